"""Tasks for agents, their rights, and the list of what is to be done: built-in tools that need the session."""

import asyncio
from pathlib import Path

import pytest

from outrider import Agent, Engine, EventBus, Limits, Rules, SubtaskPart, Tool, ToolCompleted, ToolError, ToolPart
from outrider.engine.archive import SessionArchive
from outrider.engine.session_tools import ToolEnvironment
from outrider.engine.session_trace import stored_trace
from outrider.events import AgentCalledEvent, SessionUpdatedEvent, ToolApprovalRequestedEvent
from outrider.processes.launch import LaunchRequest
from outrider.processes.sandbox.sandbox import Sandbox, SandboxPolicy
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import SessionFilter
from tests.scenario.scripted_runs import agent, call, scripted


class WatchedSandbox:
    """Confines as the sandbox of this machine does, and records what it confined and how."""

    name, confines, gaps, overlays, accepted = "watched", True, (), True, False
    protects_files, filters_hosts = True, True

    def __init__(self, inner: Sandbox) -> None:
        self._inner = inner
        self.confined: list[tuple[str, str]] = []

    def wrap(self, launch: LaunchRequest, policy: SandboxPolicy) -> LaunchRequest:
        view = "copy" if policy.overlay else "writable" if policy.writable else "read-only"
        self.confined.append((launch.argv[-1], view))
        return self._inner.wrap(launch, policy)


@pytest.fixture(name="sandbox")
def watched_sandbox(sandbox: Sandbox) -> WatchedSandbox:
    return WatchedSandbox(sandbox)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "notes.txt").write_text("remember the milk\n")
    return folder


@pytest.fixture
def engine(tmp_path: Path, sandbox: WatchedSandbox):
    def made(script, *agents: Agent, **options) -> Engine:
        bus = EventBus()
        around = ToolEnvironment(sandbox=sandbox, data=tmp_path / "data", home=tmp_path, bus=bus)
        return Engine(agents or [agent()], [scripted(script)], bus=bus, surroundings=around, **options)

    return made


async def calls_in(held: Engine, session: str) -> list[ToolPart]:
    messages = (await held.store.load(session)).messages
    return [part for message in messages for part in message.get_parts_by_type(ToolPart)]


async def child_of(held: Engine, session: str):
    (stored,) = (await held.store.list(SessionFilter(parent_id=session))).sessions
    return stored


async def test_a_task_is_done_by_a_fresh_copy_of_the_agent_in_a_separate_session(engine, workspace):
    def child(request):
        assert [message.role for message in request.prompt] == ["user"]
        assert request.prompt[0].content[0].text == "count the lines"
        return "there is one line"

    script = [[call("task", "c1", description="Count lines", prompt="count the lines")], child, "done"]
    async with engine(script) as held:
        session = await held.create(workspace=workspace)
        assert (await held.prompt(session, "go")).output == "done"
        (part,) = await calls_in(held, session)
        stored = await child_of(held, session)
        asked = next(message for message in (await held.open(session)).messages if message.find_call("c1"))
    assert isinstance(part.state, ToolCompleted)
    assert part.state.output == "there is one line"
    assert part.state.metadata["child_session_id"] == stored.id
    (noted,) = asked.get_parts_by_type(SubtaskPart)
    assert (noted.agent, noted.description, noted.prompt) == ("writer", "Count lines", "count the lines")
    assert noted.child_session_id == stored.id


async def test_a_task_may_name_another_agent_and_an_unknown_one_is_reported(engine, workspace):
    script = [
        [
            call("task", description="d", prompt="p", agent="clerk"),
            call("task", description="d", prompt="p", agent="x"),
        ],
        "from the clerk",
        "done",
    ]
    async with engine(script, agent(), agent("clerk", "You help.")) as held:
        session = await held.create(workspace=workspace)
        await held.prompt(session, "go")
        first, second = await calls_in(held, session)
    assert first.state.output == "from the clerk"  # pyright: ignore
    assert isinstance(second.state, ToolError)
    assert "the agents are: writer, clerk" in second.state.error


async def test_tasks_count_against_the_limits_of_the_whole_tree(engine, workspace):
    def always(request):
        return [call("task", description="d", prompt=f"{len(request.prompt)}")]

    async with engine(always, limits=Limits(depth=2, turns=6)) as held:
        session = await held.create(workspace=workspace)
        end = await held.prompt(session, "go")
    assert end.reason == "limit"


async def test_several_tasks_run_side_by_side(engine, workspace):
    both = asyncio.Barrier(2)

    async def meet() -> str:
        await asyncio.wait_for(both.wait(), 30)
        return "met"

    def answer(request):
        text = request.prompt[0].content[0].text
        if text == "go":
            asked = any(part.type == "tool_result" for part in request.prompt[-1].content)
            return "done" if asked else [call("task", description="d", prompt="p") for _ in range(2)]
        return "met" if len(request.prompt) > 1 else [call("meet")]

    bus, held = None, engine(answer, limits=Limits(parallel_calls=2))
    held = held.replace(tools=[Tool(meet)], bus=bus)
    async with held:
        session = await held.create(workspace=workspace)
        assert (await held.prompt(session, "go")).output == "done"


@pytest.mark.parametrize(("mode", "offered"), [("chat", False), ("plan", True), ("agent", True)])
async def test_a_task_is_offered_where_a_mode_has_tools(engine, workspace, mode, offered):
    def answer(request):
        return str("task" in [tool.name for tool in request.tools])

    async with engine(answer) as held:
        session = await held.create(workspace=workspace, mode=mode)
        assert (await held.prompt(session, "go")).output == str(offered)


async def test_chat_mode_with_several_agents_has_no_tools_either(engine, workspace):
    def answer(request):
        return f"{len(request.tools)} {'call_agent' in request.system}"

    async with engine(answer, agent(), agent("clerk")) as held:
        session = await held.create(workspace=workspace, mode="chat")
        assert (await held.prompt(session, "go")).output == "0 False"


async def test_a_call_of_a_task_that_needs_an_approval_asks_in_the_name_of_its_call(engine, workspace):
    script = [
        [call("task", "t1", description="d", prompt="p")],
        [call("write", file_path="new.txt", content="x")],
        "written",
        "done",
    ]
    async with engine(script) as held:
        asked: asyncio.Queue[ToolApprovalRequestedEvent] = asyncio.Queue()
        held.bus.subscribe(ToolApprovalRequestedEvent, asked.put_nowait)
        session = await held.create(workspace=workspace)
        prompting = asyncio.ensure_future(held.prompt(session, "go"))
        question = await asyncio.wait_for(asked.get(), 30)
        assert question.parent_call_id == "t1"
        assert question.session_id == (await child_of(held, session)).id
        await held.answer(question.approval_id, allow=True)
        assert (await prompting).output == "done"
    assert (workspace / "new.txt").read_text() == "x"


SHELL = [
    [call("call_agent", agent_name="scout", message="look")],
    [call("shell", command="cat notes.txt"), call("shell", command="touch made.txt")],
    "looked",
    "done",
]


async def test_a_planning_agent_that_a_working_one_calls_is_confined_and_writes_nothing(engine, workspace, sandbox):
    async with engine(SHELL, agent(), agent("scout", "You look.", mode="plan"), attended=False) as held:
        session = await held.create(workspace=workspace, mode="agent")
        await held.prompt(session, "go")
        stored = await child_of(held, session)
        read, touched = await calls_in(held, stored.id)
    assert stored.mode == "plan"
    assert read.state.output.strip() == "remember the milk"  # pyright: ignore
    assert isinstance(touched.state, ToolCompleted)
    assert "this mode discards what a command changes: made.txt (created)" in touched.state.output
    assert sorted(sandbox.confined) == [("cat notes.txt", "read-only"), ("touch made.txt", "copy")]
    assert not (workspace / "made.txt").exists()


async def test_an_agent_that_works_alone_is_asked_about_like_the_one_who_called_it(engine, workspace, sandbox):
    async with engine(SHELL, agent(), agent("scout", "You look.", mode="background"), attended=False) as held:
        session = await held.create(workspace=workspace, mode="agent")
        await held.prompt(session, "go")
        stored = await child_of(held, session)
        _, touched = await calls_in(held, stored.id)
    assert stored.mode == "agent"
    assert isinstance(touched.state, ToolError)
    assert touched.state.reason == "denied"
    assert sorted(sandbox.confined) == [("cat notes.txt", "read-only"), ("touch made.txt", "copy")]
    assert not (workspace / "made.txt").exists()


async def test_in_the_background_every_agent_is_confined(engine, workspace, sandbox):
    async with engine(SHELL, agent(), agent("scout", "You look.")) as held:
        session = await held.create(workspace=workspace, mode="background")
        await held.prompt(session, "go")
        stored = await child_of(held, session)
    assert stored.mode == "background"
    assert sorted(sandbox.confined) == [("cat notes.txt", "read-only"), ("touch made.txt", "copy")]
    assert (workspace / "made.txt").exists()


async def test_a_mode_that_is_tightened_holds_at_once_for_the_agents_that_were_called_too(engine, workspace, sandbox):
    script = [
        [call("call_agent", agent_name="scout", message="look")],
        [call("wait")],
        [call("shell", command="cat notes.txt"), call("shell", command="touch made.txt")],
        "looked",
        "done",
    ]
    waiting, release = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        waiting.set()
        await release.wait()
        return "went on"

    rules = Rules(allow=("shell(touch *)",))
    held = engine(script, agent(), agent("scout", "You look."), attended=False, rules=rules)
    async with held.replace(tools=[Tool(wait)]) as held:
        session = await held.create(workspace=workspace, mode="agent")
        prompting = asyncio.ensure_future(held.prompt(session, "go"))
        await asyncio.wait_for(waiting.wait(), 30)
        await held.set_mode(session, "plan")
        release.set()
        await prompting
    assert sorted(sandbox.confined) == [("cat notes.txt", "read-only"), ("touch made.txt", "copy")]
    assert not (workspace / "made.txt").exists()


TODOS = [{"content": "look", "status": "completed"}, {"content": "write", "status": "pending"}]


async def test_a_list_of_todos_survives_the_engine_and_is_reported(engine, workspace):
    store, events = MemoryStore(), []
    async with engine([[call("todo", todos=TODOS)], "noted"], store=store) as first:
        first.bus.subscribe(SessionUpdatedEvent, lambda event: events.append(event.changes.get("todos")))
        session = await first.create(workspace=workspace)
        await first.prompt(session, "go")
    assert [one for one in events if one] == [TODOS]
    async with engine([[call("todo")], lambda request: request.prompt[-1].content[0].content], store=store) as second:
        assert (await second.prompt(session, "what is left?")).output == "[x] look\n[ ] write"
        assert [todo.content for todo in await second.todos(session)] == ["look", "write"]


async def test_a_fork_has_the_todos_of_its_past_and_a_task_has_its_own(engine, workspace):
    script = [
        [call("todo", todos=TODOS)],
        [call("task", description="d", prompt="p")],
        [call("todo")],
        lambda request: request.prompt[-1].content[0].content,
        "done",
    ]
    async with engine(script) as held:
        session = await held.create(workspace=workspace)
        await held.prompt(session, "go")
        _, task = await calls_in(held, session)
        assert task.state.output == "(the list is empty)"  # pyright: ignore
        fork = await held.fork(session)
        assert [todo.content for todo in await held.todos(fork)] == ["look", "write"]


async def test_a_call_of_an_agent_names_the_session_it_opened(engine, workspace):
    async with engine([[call("task", description="d", prompt="p")], "did", "done"]) as held:
        called: list[AgentCalledEvent] = []
        held.bus.subscribe(AgentCalledEvent, called.append)
        session = await held.create(workspace=workspace)
        await held.prompt(session, "go")
        assert called[0].child_session_id == (await child_of(held, session)).id


async def test_tasks_are_found_again_in_the_trace_of_a_stored_session(engine, workspace):
    script = [[call("task", f"t{n}", description="d", prompt=f"part {n}") for n in (1, 2)], "did", "did", "done"]
    async with engine(script) as held:
        session = await held.create(workspace=workspace)
        await held.prompt(session, "go")
        tree = (await stored_trace(SessionArchive(held.store), session)).format_tree()
    assert "part 1" in tree
    assert "part 2" in tree
