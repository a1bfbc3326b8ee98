"""Questions of the approval queue: bound to their call, answered once, stored for longer only as the smallest rule."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outrider.engine.approval_gate import ApprovalRequest, relay_remote_approvals
from outrider.engine.approvals import ApprovalQueue, PeerApprovals, lasting_approvals
from outrider.event_bus import EventBus
from outrider.permissions.redaction.redactor import Redactor
from outrider.permissions.rule_suggestions import suggest_for_call
from outrider.presentation.approvals import ALLOW_PROJECT, approval_view, requested_approval_view
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import Approval, ApprovalScope, GivenAnswer, StoredSession, fingerprint_call
from outrider.sessions.redacted_store import redact_store
from outrider.types.agents import Provider
from outrider.types.events import Event, ToolApprovalRequestedEvent, ToolApprovalResultEvent


class Asked:
    """An approval queue over a store, and the events that it published."""

    def __init__(self, workspace: Path, store: MemoryStore | None = None) -> None:
        self.workspace = str(workspace)
        self.inner = store or MemoryStore()
        self.store = redact_store(self.inner, Redactor())
        self.bus, self.received = EventBus(), list[Event]()
        self.bus.subscribe_all(self.received.append)
        self.queue = ApprovalQueue(self.store, self.bus, lambda: True, poll=0.01)

    async def session(self, session_id: str) -> None:
        await self.store.create(StoredSession(id=session_id, workspace_directory=self.workspace))

    def question(self, tool: str, session_id: str = "s", call_id: str = "c", **given: str) -> Approval:
        offer = suggest_for_call(tool, given, workspace=self.workspace)
        return Approval(
            session_id=session_id,
            call_id=call_id,
            tool=tool,
            input=given,
            fingerprint=fingerprint_call(tool, given),
            workspace=self.workspace,
            offers=offer.rules,
            contents=offer.contents,
        )

    async def answered(self, question: Approval, **answer: object) -> bool:
        """Asks, answers as soon as the question is published, and returns whether it was approved."""
        waiting = asyncio.create_task(self.queue.ask(question, "agent"))
        asked_event = await self.next_question()
        self.received.clear()
        await self.queue.answer(asked_event.approval_id, **{"allow": True, **answer})  # type: ignore[arg-type]
        return (await waiting).answer == "allowed"

    async def next_question(self) -> ToolApprovalRequestedEvent:
        """Waits for the published question."""
        async with asyncio.timeout(30):
            while not (
                asked_event := [event for event in self.received if isinstance(event, ToolApprovalRequestedEvent)]
            ):
                await asyncio.sleep(0)
        return asked_event[-1]

    async def rules(self, session_id: str = "s", workspace: str | None = None) -> tuple[str, ...]:
        await self.queue.refresh_grants()
        return self.queue.find_grant({session_id}, workspace or self.workspace).rules


@pytest.fixture
async def asked(tmp_path: Path) -> Asked:
    found = Asked(tmp_path)
    await found.session("s")
    await found.session("other")
    return found


async def test_a_yes_for_once_leaves_no_rule(asked: Asked):
    assert await asked.answered(asked.question("shell", command="make test"))
    assert await asked.rules() == ()


@pytest.mark.parametrize(
    ("scope", "other_project", "other_session"),
    [("session", False, False), ("project", False, True), ("always", True, True)],
)
async def test_a_lasting_approval_stores_the_smallest_rule_in_its_scope(
    asked: Asked, scope: str, other_project: bool, other_session: bool
):
    assert await asked.answered(asked.question("shell", command="make test"), scope=scope)
    assert await asked.rules() == ("shell(make test)",)
    assert (await asked.rules("other") != ()) is other_session
    assert (await asked.rules("other", "/elsewhere") != ()) is other_project


async def test_a_rule_about_files_never_leaves_its_workspace(asked: Asked):
    assert await asked.answered(asked.question("write", file_path="a.txt", content="x"), scope="always")
    assert await asked.rules() == ("write(/a.txt)",)
    assert await asked.rules("s", "/elsewhere") == ()


async def test_what_cannot_be_shown_in_full_is_allowed_only_once_for_any_answer(asked: Asked):
    question = asked.question("shell", command="make " + "x" * 3000)
    assert await asked.answered(question, scope="always")
    assert await asked.rules() == ()
    assert await lasting_approvals(asked.store) == []


async def test_a_protected_file_is_asked_about_each_time(asked: Asked):
    assert await asked.answered(asked.question("write", file_path=".git/config", content="x"), scope="always")
    assert await asked.rules() == ()


async def test_the_question_shows_the_rule_that_would_be_stored(asked: Asked):
    waiting = asyncio.create_task(asked.queue.ask(asked.question("shell", command="make test"), "agent"))
    await asked.next_question()
    (asked_event,) = [event for event in asked.received if isinstance(event, ToolApprovalRequestedEvent)]
    assert (asked_event.offers, asked_event.can_last) == (("shell(make test)",), True)
    await asked.queue.answer(asked_event.approval_id, allow=False)
    assert (await waiting).answer == "denied"


async def test_a_yes_covers_the_files_that_steer_the_program_as_they_were(asked: Asked):
    Path(asked.workspace, "conftest.py").write_text("x = 1")
    assert await asked.answered(asked.question("shell", command="pytest -q"), scope="always")
    grant = asked.queue.find_grant({"s"}, asked.workspace)
    assert (grant.rules, len(grant.contents)) == (("shell(pytest -q)",), 1)
    assert await asked.rules("s", "/elsewhere") == ()


class LateAnswer(MemoryStore):
    """A store in which an answer arrives between reading the requests of a session and the next write."""

    answer_late: Callable[[], Awaitable[Approval]] | None = None
    before_answer: Callable[[], Awaitable[Approval]] | None = None

    async def approvals(self, session_id: str | None = None, *, only_open: bool = False) -> Sequence[Approval]:
        found = await super().approvals(session_id, only_open=only_open)
        if self.answer_late is not None:
            await self.answer_late()
        return found

    async def answer(self, approval_id: str, answer: GivenAnswer, **more: Any) -> Approval:
        answer_first, self.before_answer = self.before_answer, None
        if answer_first is not None:
            await answer_first()
        return await super().answer(approval_id, answer, **more)


async def test_a_denial_that_arrives_while_its_question_is_revoked_applies(tmp_path: Path):
    asked = Asked(tmp_path, LateAnswer())
    await asked.session("s")
    question = asked.question("shell", command="rm notes.txt")
    request = await asked.store.ask(question)
    asked.inner.answer_late = lambda: asked.queue.answer(request.id, allow=False, words="not that file")
    answered = await asked.queue.find_answer("s", "c", question.fingerprint)
    assert answered is not None
    assert (answered.answer, answered.words) == ("denied", "not that file")
    assert [one.answer for one in await asked.inner.approvals()] == ["denied"]


@pytest.mark.parametrize("scope", ["once", "session", "always"])
async def test_an_approval_that_arrives_while_its_question_is_revoked_applies(tmp_path: Path, scope: ApprovalScope):
    asked = Asked(tmp_path, LateAnswer())
    await asked.session("s")
    question = asked.question("shell", command="make test")
    request = await asked.store.ask(question)
    asked.inner.answer_late = lambda: asked.inner.answer(request.id, "allowed", scope=scope)  # in another process
    answered = await asked.queue.find_answer("s", "c", question.fingerprint)
    assert answered is not None
    assert (answered.answer, answered.scope) == ("allowed", scope)
    assert await asked.rules() == (() if scope == "once" else ("shell(make test)",))
    assert [one.approved for one in asked.received if isinstance(one, ToolApprovalResultEvent)] == [True]


@pytest.mark.parametrize("withdraw", ["find_answer", "withdraw", "withdraw_call"])
async def test_a_lasting_approval_that_arrives_while_its_question_is_revoked_stays(tmp_path: Path, withdraw: str):
    asked = Asked(tmp_path, LateAnswer())
    await asked.session("s")
    request = await asked.store.ask(asked.question("shell", command="make test"))
    asked.inner.answer_late = lambda: asked.inner.answer(request.id, "allowed", scope="always")
    match withdraw:
        case "find_answer":
            assert await asked.queue.find_answer("s", "c", "another input") is None
        case "withdraw":
            asked.inner.before_answer = asked.inner.answer_late
            await asked.queue.withdraw(request)
        case "withdraw_call":
            await asked.queue.withdraw_call("s", "c")
    asked.inner.answer_late = None
    assert await asked.rules() == ("shell(make test)",)
    assert [one.answer for one in await lasting_approvals(asked.store)] == ["allowed"]


async def test_a_call_without_a_question_revokes_its_open_request(asked: Asked):
    question = asked.question("shell", command="rm notes.txt")
    request = await asked.store.ask(question)
    assert await asked.queue.find_answer("s", "c", question.fingerprint) is None
    assert (await asked.queue.answer(request.id, allow=False)).answer == "revoked"


async def test_lasting_answers_are_listed_and_can_be_revoked(asked: Asked):
    assert await asked.answered(asked.question("shell", command="make test"), scope="always")
    (found,) = await lasting_approvals(asked.store)
    assert found.offers == ("shell(make test)",)
    await asked.queue.revoke(found.id)
    assert await asked.rules() == ()
    assert await lasting_approvals(asked.store) == []


async def test_what_another_process_takes_back_soon_holds_no_more(asked: Asked):
    asked.queue = ApprovalQueue(asked.store, asked.bus, lambda: True, refresh=0.0)
    await asked.queue.load()
    assert await asked.answered(asked.question("shell", command="make test"), scope="always")
    (found,) = await lasting_approvals(asked.store)
    await asked.inner.answer(found.id, "revoked")
    assert await asked.rules() == ()


async def test_an_answer_from_another_process_holds_here_too(asked: Asked):
    waiting = asyncio.create_task(asked.queue.ask(asked.question("shell", command="make test"), "agent"))
    await asked.next_question()
    (question,) = await asked.inner.approvals(only_open=True)
    await asked.inner.answer(question.id, "allowed", scope="always", by="elsewhere")
    assert (await waiting).answer == "allowed"
    assert await asked.rules() == ("shell(make test)",)


async def test_a_new_queue_knows_what_was_answered_before(asked: Asked):
    assert await asked.answered(asked.question("shell", command="make test"), scope="always")
    later = ApprovalQueue(asked.store, asked.bus, lambda: True)
    await later.load()
    assert later.find_grant({"x"}, asked.workspace).rules == ("shell(make test)",)


async def test_a_call_with_a_secret_is_preserved_without_it_and_still_bound_to_what_runs(asked: Asked):
    secret = "ghp_" + "a1B2" * 9
    question = asked.question("shell", command=f"login {secret}")
    assert await asked.answered(question, scope="always")
    (stored,) = await asked.inner.approvals()
    assert secret not in str(stored)
    assert stored.fingerprint == fingerprint_call("shell", {"command": f"login {secret}"})
    assert await asked.rules() == ()


async def test_a_yes_to_one_input_is_none_to_another_of_the_same_call(asked: Asked):
    assert await asked.answered(asked.question("shell", command="make test"))
    waiting = asyncio.create_task(asked.queue.ask(asked.question("shell", command="make evil"), "agent"))
    await asked.next_question()
    assert not waiting.done()
    (question,) = await asked.inner.approvals(only_open=True)
    await asked.queue.answer(question.id, allow=False)
    assert (await waiting).answer == "denied"


async def test_a_call_at_a_peer_is_asked_about_with_the_same_choices_as_here(tmp_path: Path):
    (tmp_path / "go.mod").write_text("module x\ngo 1.22\n")
    there, bus = Asked(tmp_path), EventBus()
    await there.session("s")
    question = there.question("shell", command="go version")
    assert question.contents and not question.offers, "such a call lasts as long as its files are unchanged"
    waiting = asyncio.create_task(there.queue.ask(question, "agent"))
    asked_event = await there.next_question()
    peers = PeerApprovals(bus, [Provider("there", "outrider", base_url="https://there")])
    bus.publish(msgspec.structs.replace(asked_event, server="https://there"))
    [here] = peers.open_approvals()
    assert approval_view(here) == approval_view(question) == requested_approval_view(asked_event)
    assert ALLOW_PROJECT in approval_view(here).choices
    await there.queue.answer(asked_event.approval_id, allow=False)
    await waiting


@pytest.mark.parametrize(
    ("answer", "logged"),
    [("no", "could not send the approval answer"), ("\ud800", "UnicodeEncodeError")],
    ids=["no connection", "no text"],
)
async def test_a_task_that_answers_on_another_server_is_freed_at_its_end_and_its_error_is_logged(
    answer: str, logged: str, caplog: pytest.LogCaptureFixture
):
    bus, server = EventBus(), "http://127.0.0.1:9"
    tasks: list[weakref.ref[asyncio.Task[Any]]] = []

    async def approve(request: ApprovalRequest) -> str:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(weakref.ref(task))
        return answer

    peers = [Provider("away", "outrider", "k", server, options={"retry": {"attempts": 1}})]
    async with relay_remote_approvals(bus, peers, approve):
        bus.publish(ToolApprovalRequestedEvent(session_id="s", tool_name="push", approval_id="a", server=server))
        async with asyncio.timeout(20):
            while not tasks or any(ref() is not None for ref in tasks):
                await asyncio.sleep(0.01)
                gc.collect()
        assert logged in caplog.text
