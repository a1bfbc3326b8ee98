"""A yes to a command that version 0.1 asked about before the start decides about exactly this command."""

import asyncio
from pathlib import Path

import pytest

from outrider import Engine, EventBus, Rules, TextPart, ToolCompleted, ToolError, ToolPart
from outrider.engine.session_tools import ToolEnvironment
from outrider.events import ToolApprovalRequestedEvent
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import Approval, StoredSession, fingerprint_call
from outrider.types.messages import Message, MessageTime
from outrider.types.tool_state import ToolPending
from tests.scenario.scripted_runs import agent, scripted

COMMAND = {"command": "echo once >> notes.txt"}
SECONDS = 20


class OldSession:
    """A session as version 0.1 stored it: a command that waits for its approval, and the question about `asked`."""

    def __init__(self, tmp_path: Path, sandbox, asked: dict[str, str] | None = None, **options) -> None:
        self.workspace = tmp_path / "workspace"
        self.workspace.mkdir()
        self.notes = self.workspace / "notes.txt"
        self.notes.write_text("")
        self.store = MemoryStore()
        self.bus = EventBus()
        self.questions: list[ToolApprovalRequestedEvent] = []
        self.bus.subscribe(ToolApprovalRequestedEvent, self.questions.append)
        self._asked = asked or COMMAND
        around = ToolEnvironment(sandbox=sandbox, bus=self.bus, data=tmp_path / "data", home=tmp_path)
        self.engine = Engine(
            [agent()], [scripted(["done"])], store=self.store, bus=self.bus, surroundings=around, **options
        )

    async def write(self, command: dict[str, str] = COMMAND) -> tuple[str, str]:
        """Store the session; return its id and that of the question."""
        stored = await self.store.create(
            StoredSession(title="Old", workspace_directory=str(self.workspace), agent=agent().name)
        )
        prompt = Message("user", [TextPart("go")], time=MessageTime(1))
        part = ToolPart(call_id="call-1", tool="shell", state=ToolPending(command, "", "awaiting_approval"))
        answer = Message("assistant", [part], time=MessageTime(2), parent_id=prompt.id, agent=agent().name)
        for message in (prompt, answer):
            message.join(stored.id)
        await self.store.append(stored.id, [prompt, answer])
        question = Approval(
            session_id=stored.id,
            call_id="call-1",
            tool="shell",
            input=self._asked,
            fingerprint=fingerprint_call("shell", self._asked),
            description="it changes files",
            workspace=str(self.workspace),
            offers=("shell(echo once)",),
        )
        return stored.id, (await self.store.ask(question)).id

    async def end(self, session_id: str) -> ToolPart:
        await asyncio.wait_for(self.engine.resume(session_id), SECONDS)
        return (await self.store.load(session_id)).messages[1].get_parts_by_type(ToolPart)[0]


@pytest.mark.parametrize("by", ["version 0.1", "this version"])
async def test_a_stored_yes_is_not_asked_again(by: str, tmp_path, sandbox):
    old = OldSession(tmp_path, sandbox)
    session_id, question = await old.write()
    if by == "version 0.1":
        await old.store.answer(question, "allowed", by="the user")
    async with old.engine:
        if by == "this version":
            await old.engine.answer(question, allow=True)
        part = await old.end(session_id)
    assert isinstance(part.state, ToolCompleted)
    assert old.notes.read_text() == "once\n"
    assert not old.questions


async def test_a_stored_yes_allows_nothing_that_its_question_did_not_name(tmp_path, sandbox):
    """The network: a file of the workspace can decide which host a command connects to."""
    command = {"command": "git push https://git.example.invalid/x main; echo pushed >> notes.txt"}
    old = OldSession(tmp_path, sandbox, command)
    session_id, question = await old.write(command)
    await old.store.answer(question, "allowed")
    async with old.engine:
        turn = asyncio.create_task(old.end(session_id))
        async with asyncio.timeout(SECONDS):
            while not old.questions:
                await asyncio.sleep(0.01)
        await old.engine.answer(old.questions[0].approval_id, allow=False)
        await turn
    assert old.notes.read_text() == ""


async def test_a_denial_counts_beside_an_approval_of_the_same_call(tmp_path, sandbox):
    old = OldSession(tmp_path, sandbox)
    session_id, question = await old.write()
    await old.store.answer(question, "allowed")
    other = await old.store.ask(
        Approval(session_id=session_id, call_id="call-1", tool="shell", input={"command": "ls"}, fingerprint="other")
    )
    await old.store.answer(other.id, "denied")
    async with old.engine:
        part = await old.end(session_id)
    assert isinstance(part.state, ToolError)
    assert old.notes.read_text() == ""


async def test_a_yes_to_another_input_decides_nothing(tmp_path, sandbox):
    old = OldSession(tmp_path, sandbox, {"command": "echo twice >> notes.txt"})
    session_id, question = await old.write()
    await old.store.answer(question, "allowed")
    async with old.engine:
        turn = asyncio.create_task(old.end(session_id))
        async with asyncio.timeout(SECONDS):
            while not old.questions:
                await asyncio.sleep(0.01)
        assert old.questions[0].outcome is not None
        assert old.notes.read_text() == ""
        await old.engine.answer(old.questions[0].approval_id, allow=False)
        await turn
    assert old.notes.read_text() == ""


async def test_a_yes_does_not_replace_a_rule_that_forbids_the_call(tmp_path, sandbox):
    old = OldSession(tmp_path, sandbox, rules=Rules(deny=("shell(echo *)",)))
    session_id, question = await old.write()
    await old.store.answer(question, "allowed")
    async with old.engine:
        part = await old.end(session_id)
    assert isinstance(part.state, ToolError)
    assert part.state.reason == "denied"
    assert old.notes.read_text() == ""


async def test_a_question_that_is_not_needed_any_more_is_revoked(tmp_path, sandbox):
    command = {"command": "cat notes.txt"}
    old = OldSession(tmp_path, sandbox, command)
    session_id, _ = await old.write(command)
    async with old.engine:
        part = await old.end(session_id)
        assert isinstance(part.state, ToolCompleted)
        assert not await old.engine.approvals(session_id)
    assert not old.questions
