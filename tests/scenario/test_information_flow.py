"""Parts carry their origins: they are stored, shown in traces, and passed between agents in both directions."""

from pathlib import Path

import pytest

from outrider import CompactionPart, Engine, Message, TextPart, Tool, ToolPart, ToolResult
from outrider.engine.archive import SessionArchive
from outrider.engine.session_trace import stored_trace
from outrider.errors import ToolFailure
from outrider.sessions.records import StoredSession
from outrider.stores import MemoryStore, SqliteStore
from outrider.tools.tool import Progress, ToolContext
from outrider.types.messages import MessageTime
from outrider.types.origins import Origin, make_origin
from tests.scenario.scripted_runs import Story, agent, call, scripted

PAGE = make_origin("web", "https://a.example/")


@Tool(url_parameters=("url",), read_only=True)
def look(url: str) -> str:
    """Look at a page."""
    return "a page"


@Tool(path_parameters=("path",), read_only=True)
def peek(path: str) -> str:
    """Read a file."""
    return "a file"


@Tool(network=True)
def publish(text: str) -> str:
    """Publish a text."""
    return "published"


def looking() -> list:
    return [[call("look", url="https://a.example/")], [call("peek", path="notes.txt")]]


def calls_of(messages: list[Message]) -> list[ToolPart]:
    return [part for message in messages for part in message.get_parts_by_type(ToolPart)]


async def test_results_are_stored_with_their_origins_and_the_trace_shows_them():
    story, store = Story([*looking(), "done"]), MemoryStore()
    result = await story.run(tools=[look, peek], store=store)
    loaded = await store.load(result.session.id)
    assert [part.origins for part in calls_of(loaded.messages)] == [(PAGE,), (make_origin("workspace", "notes.txt"),)]
    assert "from https://a.example/ (web)" in result.trace.format_tree(width=200)
    stored = await stored_trace(SessionArchive(store), result.session.id)
    assert "from https://a.example/ (web)" in stored.format_tree(width=200)


async def test_a_tool_that_sends_data_is_asked_about_after_both_kinds_were_read():
    asked = []

    def approve(request):
        asked.append(request)
        return len(asked) > 1

    script = [
        [call("publish", text="one")],
        *looking(),
        [call("publish", text="two")],
        [call("publish", text="three")],
        "done",
    ]
    result = await Story(script).run(tools=[look, peek, publish], approve=approve)
    first, _, _, second, third = calls_of(result.session.messages)
    assert [part.state.status for part in (first, second, third)] == ["completed", "error", "completed"]
    assert [request.flow.destination for request in asked] == ["tool:publish", "tool:publish"]
    assert PAGE in asked[0].flow.untrusted
    assert "notes.txt" in asked[0].description


async def test_without_a_user_the_model_reads_why_it_may_not_send_data():
    result = await Story([*looking(), [call("publish", text="x")], "done"]).run(tools=[look, peek, publish])
    refused = calls_of(result.session.messages)[-1].state
    assert refused.reason == "denied"
    assert "https://a.example/ (web)" in refused.error


async def test_a_stored_session_knows_what_it_has_read():
    store, asked = MemoryStore(), []
    first = await Story([*looking(), "done"]).run(tools=[look, peek], store=store)
    again = Story([[call("publish", text="x")], "done"])
    await again.run(tools=[look, peek, publish], store=store, session=first.session.id, approve=asked.append)
    assert len(asked) == 1
    fork = await store.fork(first.session.id)
    again = Story([[call("publish", text="x")], "done"])
    await again.run(tools=[look, peek, publish], store=store, session=fork.id, approve=asked.append)
    assert len(asked) == 2


async def test_origins_pass_between_agents_in_both_directions():
    def answer(request):
        texts = [part.text for message in request.prompt for part in message.content if isinstance(part, TextPart)]
        results = sum(message.role == "assistant" for message in request.prompt)
        if "child" in texts[0]:
            return [call("peek", path="notes.txt")] if not results else "I read it"
        return [*looking()[:1], [call("call_agent", agent_name="helper", message="child, please")], "done"][results]

    store = MemoryStore()
    story = Story(answer)
    result = await story.run(agents=[agent("helper")], tools=[look, peek], store=store)
    opened = calls_of(result.session.messages)[-1]
    assert set(opened.origins) == {PAGE, make_origin("workspace", "notes.txt")}
    child = await store.load(opened.state.metadata["child_session_id"])
    assert child.messages[0].parts[0].origins == (PAGE,)


async def test_a_tool_reports_origins_while_it_runs_and_with_its_result():
    def find_pages(query: str, context: ToolContext) -> ToolResult:
        """Search."""
        context.report(Progress(origins=(PAGE,)))
        if query == "bad":
            raise ToolFailure("the page is gone")
        return ToolResult("found", origins=(Origin("mcp", "index", untrusted=True), "wrong"))  # type: ignore[arg-type]

    result = await Story([[call("find_pages", query="good")], [call("find_pages", query="bad")], "done"]).run(
        tools=[find_pages]
    )
    good, bad = calls_of(result.session.messages)
    assert {origin.kind for origin in good.origins} == {"tool", "web", "mcp"}
    assert PAGE in bad.origins


async def test_a_secret_in_a_result_marks_it(tmp_path: Path):
    leak = Tool(lambda: "ghp_aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789", name="leak")
    async with Engine([agent()], [scripted([[call("leak")], "done"])], [leak]) as engine:
        session = await engine.create(workspace=tmp_path)
        await engine.prompt(session, "go")
        (part,) = calls_of((await engine.store.load(session)).messages)
    assert [origin.kind for origin in part.origins] == ["tool", "secret"]


@pytest.mark.slow
async def test_a_session_with_answers_that_are_not_in_memory_is_treated_as_one_that_read_everything(tmp_path: Path):
    asked: list[object] = []

    def approve(request: object) -> bool:
        asked.append(request)
        return False

    async with SqliteStore(tmp_path / "s.db") as store:
        session = await store.create(StoredSession(title="long", agent="main"))
        for number in range(70):
            page = [
                Message("assistant", [TextPart(f"{number} " + "word " * 2000)], time=MessageTime(1)) for _ in range(100)
            ]
            page += [Message("user", [CompactionPart(summary="done")], time=MessageTime(1))] if number == 60 else []
            for message in page:
                message.join(session.id)
            await store.append(session.id, page, synced=False)
        model = scripted([[call("publish", text="hello")], "ok"])
        async with Engine([agent("main")], [model], [publish], store=store, approve=approve) as engine:
            assert len((await engine.open(session.id)).messages) < 7_000
            assert not engine.live[session.id].has_all_messages
            await engine.prompt(session.id, "publish it")
            assert len(asked) == 1
