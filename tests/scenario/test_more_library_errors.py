"""More wrong uses of the library, of values, stores, tests, evaluations and servers: each raises an OutriderError that
states what is wrong, where, and what to write."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from tempfile import mkdtemp
from typing import Any

import pytest

from outrider import (
    Agent,
    Attachment,
    Background,
    EgressBudget,
    Engine,
    FlowSettings,
    JobOverrides,
    Message,
    ModelSettings,
    OutriderError,
    Progress,
    Provider,
    QueuePlacement,
    RetryPolicy,
    Session,
    SessionContext,
    TextPart,
    ToolContext,
    ToolResult,
    complete,
    lower,
    register_part_type,
    replay,
    run,
    serve,
    what_if,
)
from outrider.evals import AnswerCheck, EvalCase, EvalSuite, compare_runs, run_suite
from outrider.mcp import McpToolset, ServerLimits, StdioServer, read_mcp_config
from outrider.providers import (
    Credential,
    Finish,
    HttpTimeouts,
    PartEnd,
    PartStart,
    Request,
    TextDelta,
    Tokens,
    UsageReport,
)
from outrider.stores import MemoryStore
from outrider.testing import Chaos, SimulatedError, Simulator, assert_stable_prefix, check_store, crash
from outrider.workspace import Workspace

ANY: Any = None  # arguments of a wrong type
MODEL = Provider("demo", kind="scripted", options={"script": ["ok"] * 5})
AGENT = Agent("helper", "You help.", model="m", provider="demo")


def go(**options: Any) -> Any:
    return run(AGENT, "hi", **({"providers": [MODEL]} | options))


def in_store(use: Callable[[MemoryStore], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with MemoryStore() as store:
            return await use(store)

    return asyncio.run(main())


def submit(**order: Any) -> Any:
    async def main() -> Any:
        url = f"sqlite:///{mkdtemp()}/runs.db"
        async with Engine([AGENT], [MODEL]) as engine, Background(engine, url, works=False) as background:
            return await background.submit("x", **order)

    return asyncio.run(main())


def scripted(answer: Any) -> Any:
    return go(providers=[Provider("demo", kind="scripted", options={"script": answer})])


def with_timeouts(**timeouts: Any) -> Any:
    model = Provider("p", "openai", "key", base_url="http://127.0.0.1:9", options={"timeouts": timeouts})
    return run(AGENT.replace(provider="p"), "hi", providers=[model])


def suite(**fields: Any) -> EvalSuite:
    return EvalSuite(**{"name": "s", "cases": (EvalCase(name="a", prompt="x"),)} | fields)


def take(value: "Missing") -> str:  # pyright: ignore  # noqa: F821
    return str(value)


@dataclass
class Outer:
    inner: "Missing"  # pyright: ignore  # noqa: F821


def two_contexts(a: ToolContext[int], b: ToolContext[int]) -> str:
    return f"{a}{b}"


class Given:
    """A provider that yields what it was given."""

    name = "demo"

    def __init__(self, *deltas: Any) -> None:
        self._deltas = deltas

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        for delta in self._deltas:
            yield delta


TEXT = (PartStart(0, "text"), TextDelta(0, "a"), PartEnd(0))


def yields(*deltas: Any) -> Any:
    return go(providers=[Given(*deltas)])


def in_session(message: Any) -> Any:
    session = Session()
    session.messages.append(message)
    return go(session=session)


def with_extra(value: object) -> Any:
    model = Provider("p", "openai", "key", base_url="http://127.0.0.1:9")
    return run(AGENT.replace(provider="p", extra={"a": value}), "hi", providers=[model])


def import_document(document: str) -> Any:
    async def main() -> None:
        async with Engine([AGENT], [MODEL]) as engine:
            await engine.import_session(document)

    asyncio.run(main())


class HalfAStore:
    async def create(self, session: object) -> object: ...
    async def append(self, session_id: str, values: object) -> int: ...


def toolset(**options: Any) -> McpToolset:
    return McpToolset(StdioServer(name="a", command="b"), **options)


CASES: dict[str, tuple[Callable[[], Any], str, str]] = {  # the use, where it is wrong, what to do
    "one validator": (lambda: go(output_type=int, output_validators=3), "output_validators are functions", "got int"),
    "debug": (lambda: go(debug="no"), "run(): debug", "True or False"),
    "no tool": (lambda: go(tools=[None]), "tools has None", "Tool(function"),
    "hint of a tool": (lambda: go(tools=[take]), "tool take: a type hint names 'Missing'", "under TYPE_CHECKING"),
    "hint of an output": (lambda: go(output_type=Outer), "a hint of Outer names 'Missing'", "under TYPE_CHECKING"),
    "half a store": (lambda: go(store=HalfAStore()), "store is a HalfAStore without the methods get, list", "inherit"),
    "idle": (lambda: HttpTimeouts(idle=-1), "HttpTimeouts(idle=-1)", "a number of seconds above 0"),
    "first byte": (lambda: HttpTimeouts(first_byte=ANY or "9"), "HttpTimeouts(first_byte='9')", "a number of seconds"),
    "timeout": (lambda: HttpTimeouts(**ANY or {"idel": 1}), "HttpTimeouts()", "did you mean 'idle'"),
    "timeout of a provider": (lambda: with_timeouts(idle=0), "timeouts", "HttpTimeouts(idle=0.0)"),
    "windows": (lambda: RetryPolicy(first_window=float("nan")), "RetryPolicy(first_window=nan)", "a number of at"),
    "attempts": (lambda: RetryPolicy(attempts=True), "RetryPolicy(attempts=True)", "a number of at least 1"),
    "credential": (lambda: Credential(*ANY or ()), "Credential()", "value"),
    "attachment": (lambda: Attachment(**ANY or {"mime": "a/b"}), "Attachment()", "did you mean 'mime_type'"),
    "result": (lambda: ToolResult("x", **ANY or {"attachment": ()}), "ToolResult()", "did you mean 'attachments'"),
    "progress": (lambda: Progress(**ANY or {"outputs": "x"}), "Progress()", "did you mean 'output'"),
    "settings": (lambda: ModelSettings(**ANY or {"temprature": 1}), "ModelSettings()", "did you mean 'temperature'"),
    "context": (lambda: SessionContext(**ANY or {"dep": 1}), "SessionContext()", "did you mean 'deps'"),
    "flow": (lambda: FlowSettings(**ANY or {"alowed": {}}), "FlowSettings()", "did you mean 'allowed'"),
    "budget": (lambda: EgressBudget(**ANY or {"request": 1}), "EgressBudget()", "did you mean 'requests'"),
    "message": (lambda: Message("user", **ANY or {"part": []}), "Message()", "did you mean 'parts'"),
    "message without a role": (lambda: Message(*ANY or ()), "Message()", "role"),
    "name of a part": (
        lambda: Message("user", [TextPart("a")]).get_parts_by_type(ANY or "text"),
        "get_parts_by_type()",
        "TextPart",
    ),
    "dicts as messages": (lambda: Session(messages=ANY or [{"role": "user"}]), "Session(): messages", "set_messages("),
    "texts as messages": (
        lambda: Session(messages=ANY or ["x"]),
        "messages must be a list of Message",
        "set_messages(",
    ),
    "a number as messages": (lambda: Session(messages=ANY or 3), "messages must be a list of Message", "set_messages("),
    "metadata": (lambda: Session(metadata=ANY or 3), "Session(): metadata must be a dict", "got int"),
    "bus": (lambda: Session(event_bus=ANY or 3), "Session(): event_bus", "EventBus()"),
    "title": (lambda: Session(title=ANY or 3), "Session(): title must be a string", "got int"),
    "owner": (lambda: Session(owner=ANY or 3), "Session(): owner must be a string", "got int"),
    "a dict in a session": (lambda: in_session({"role": "user"}), "session.messages has a dict", "set_messages("),
    "a text in a session": (lambda: in_session("hi"), "session.messages has a str", "add_user_message("),
    "metadata of a session": (lambda: go(session=Session(metadata={"a": object()})), "metadata of a session", "JSON"),
    "level of a session": (
        lambda: go(session=Session(approval=ANY or "x")),
        "the session has the unknown approval level",
        "ask, edits, auto",
    ),
    "name of a header": (
        lambda: Provider("p", "openai", headers=ANY or {1: "x"}),
        "provider 'p': headers",
        "of strings",
    ),
    "extra": (lambda: with_extra(object()), "the request is not JSON", "`extra` of the agent"),
    "two contexts": (lambda: go(tools=[two_contexts]), "tool two_contexts: the parameters 'a' and 'b'", "use one"),
    "negative usage": (
        lambda: yields(*TEXT, UsageReport(Tokens(input=-1)), Finish("stop")),
        "the provider 'demo' yielded an invalid UsageReport",
        "at least 0",
    ),
    "a call without a tool": (
        lambda: yields(PartStart(0, "tool"), PartEnd(0), Finish("tool_use")),
        "the provider 'demo' yielded PartStart(0, 'tool')",
        "without call_id and tool",
    ),
    "text after the end": (
        lambda: yields(*TEXT, Finish("stop"), *TEXT),
        "the provider 'demo' yielded PartStart after Finish",
        "which is the last",
    ),
    "nested document": (lambda: import_document("[" * 9_000 + "]" * 9_000), "this is not a session file", "too deeply"),
    "calls of OpenAI": (
        lambda: Session().set_messages([{"role": "assistant", "tool_calls": "x"}], "openai"),
        "messages[0]: a field does not have the form",
        "format openai",
    ),
    "part": (lambda: register_part_type("count", int), "register_part_type: int", "a PartBase, or a plain class"),
    "history": (lambda: lower(ANY or [{"role": "user"}], family="any"), "lower() takes", "session.messages"),
    "text as history": (
        lambda: lower(ANY or "hi", family="any"),
        "lower() takes a list of Message",
        "session.messages",
    ),
    "numbers as settings": (lambda: complete(MODEL, "m", "x", settings=ANY or 3), "complete(): settings", "a dict"),
    "schema without a name": (lambda: complete(MODEL, "m", "x", tools=[{"type": "object"}]), "tools has", "a name"),
    "replay of nothing": (lambda: asyncio.run(replay(ANY or "x", "y")), "replay() takes an Engine", "Engine(["),
    "what-if of nothing": (lambda: asyncio.run(what_if(ANY or 3, "y")), "what_if() takes an Engine", "Engine(["),
    "server of nothing": (lambda: serve(ANY or AGENT), "serve() takes an Engine, got Agent", "Engine(["),
    "filter of a store": (
        lambda: in_store(lambda s: s.list(ANY or "ada")),
        "a filter of sessions is",
        "SessionFilter(",
    ),
    "filter of a search": (
        lambda: in_store(lambda s: s.search("a", filter=ANY or {})),
        "a filter of sessions is",
        "SessionFilter(owner=…)",
    ),
    "query of a store": (lambda: in_store(lambda s: s.search(ANY or 3)), "a search takes the words", "got 3"),
    "background": (lambda: Background(ANY or None, "x", **ANY or {"work": False}), "Background()", "'works'"),
    "place": (lambda: QueuePlacement(**ANY or {"usr": "ada"}), "QueuePlacement()", "did you mean 'user'"),
    "priority": (lambda: QueuePlacement(priority=ANY or "high"), "QueuePlacement(priority='high')", "int"),
    "terms": (lambda: JobOverrides(**ANY or {"modl": "x"}), "JobOverrides()", "did you mean 'model'"),
    "rules of terms": (lambda: JobOverrides(allow=ANY or "shell"), "JobOverrides(allow='shell')", "list | tuple"),
    "worktree": (lambda: submit(worktree="yes"), "submit(): worktree", "True or False"),
    "limits of a server": (lambda: ServerLimits(call=-1), "ServerLimits(call=-1)", "a number of at least 0"),
    "limits of a toolset": (lambda: toolset(limits=3), "McpToolset(limits=3)", "ServerLimits(call=60)"),
    "environment of a toolset": (
        lambda: toolset(environment=["A=b"]),
        "McpToolset(environment=…)",
        "a dict of strings",
    ),
    "folder of a toolset": (lambda: toolset(workspace=3), "McpToolset(workspace=3)", "the path of a folder"),
    "questions of a toolset": (lambda: toolset(ask=3), "McpToolset(ask=3)", "a function"),
    "file of servers": (lambda: read_mcp_config(ANY or 3), "read_mcp_config() takes", "'.mcp.json'"),
    "option of a workspace": (
        lambda: Workspace(".", AGENT, [MODEL], **ANY or {"aprove": 1}),
        "Workspace() has no argument 'aprove'",
        "did you mean 'approve'",
    ),
    "bus of a workspace": (lambda: Workspace(".", AGENT, [MODEL], **ANY or {"bus": 1}), "no argument 'bus'", "it has"),
    "data of a workspace": (lambda: Workspace(".", AGENT, [MODEL], data=ANY or 3), "Workspace(data=3)", "a folder"),
    "chaos": (lambda: Chaos(**ANY or {"cutt": 1}), "Chaos()", "did you mean 'cut'"),
    "share": (lambda: Chaos(cut=30), "Chaos(cut=30)", "from 0 to 1"),
    "chaos of a simulator": (lambda: Simulator([], chaos=ANY or 0.3), "Simulator(chaos=0.3)", "Chaos(cut=0.3)"),
    "context of a simulator": (
        lambda: Simulator([], context_tokens=ANY or "many"),
        "Simulator(context_tokens='many')",
        "a number",
    ),
    "error of a simulator": (lambda: SimulatedError(**ANY or {"stat": 3}), "SimulatedError()", "did you mean 'status'"),
    "script that fails": (lambda: scripted(lambda request: {}["a"]), "the script of the provider 'demo'", "KeyError"),
    "script without a request": (lambda: scripted(lambda: "x"), "the script of the provider 'demo'", "0 positional"),
    "program as a text": (lambda: crash("python a.py", lambda folder: []), "crash()", "['python', 'a.py']"),
    "effects": (lambda: crash(["true"], ANY or 3), "crash(): effects", "a function that takes a folder"),
    "prefix of nothing": (lambda: assert_stable_prefix(ANY or 3), "assert_stable_prefix()", "takes a Session"),
    "case": (lambda: EvalCase(name="a", **ANY or {"promt": "x"}), "EvalCase()", "did you mean 'prompt'"),
    "prompt of a case": (lambda: EvalCase(name="a", prompt=ANY or 3), "case 'a': prompt", "a string"),
    "check of a case": (
        lambda: EvalCase(name="a", prompt="x", checks=ANY or AnswerCheck(contains="a")),
        "case 'a': checks",
        "checks=(",
    ),
    "check": (lambda: AnswerCheck(**ANY or {"contain": "x"}), "AnswerCheck()", "did you mean 'contains'"),
    "cases": (lambda: suite(cases="x"), "suite 's': cases", "EvalCase(name=…"),
    "no suite": (lambda: run_suite(ANY or "x", [AGENT], [MODEL]), "run_suite(): suite", "load_suite()"),
    "agents of a suite": (lambda: run_suite(suite(), ANY or AGENT, [MODEL]), "run_suite(): agents", "agents=[…]"),
    "repeat": (lambda: run_suite(suite(), [AGENT], [MODEL], repeat=0), "run_suite(): repeat", "at least 1"),
    "runs": (lambda: compare_runs(*ANY or (1, 2)), "compare_runs() takes two runs", "run_suite()"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_use_is_explained(name: str):
    use, where, remedy = CASES[name]
    with pytest.raises(OutriderError) as caught:
        use()
    assert where in caught.value.message
    assert remedy in caught.value.message


async def test_the_contract_suite_names_the_methods_that_a_store_lacks():
    with pytest.raises(AssertionError, match="a HalfAStore without the methods get, list"):
        await check_store(HalfAStore)  # pyright: ignore[reportArgumentType]


def test_a_failed_assertion_in_a_script_fails_the_test():
    def check(request: Any) -> str:
        assert "tea" in request.prompt[0].content[0].text
        return "ok"

    with pytest.raises(AssertionError):
        scripted(check)


def test_messages_that_a_program_makes_are_an_earlier_conversation():
    def repeat(request: Any) -> str:
        return " ".join(message.content[0].text for message in request.prompt)

    model = Provider("demo", kind="scripted", options={"script": repeat})
    session = Session(messages=[Message("user", [TextPart("one")]), Message("assistant", [TextPart("two")])])
    session.messages.append(Message("user", [TextPart("three")]))
    session.messages.append(Message("assistant", [TextPart("four")]))
    assert run(AGENT, "five", providers=[model], session=session).output == "one two three four five"


WITHOUT_EXTRAS = """
import asyncio, sys
for name in ("psycopg", "psycopg_pool", "dbos", "sqlalchemy"):
    sys.modules[name] = None
from outrider import Agent, Background, ConfigurationError, Engine, Provider
from outrider.stores import *

try:
    PostgresStore("postgresql://localhost/a")
except ConfigurationError as error:
    print(error)

async def main():
    engine = Engine([Agent("a", "b", model="m", provider="demo")], [Provider("demo", "scripted")])
    async with engine, Background(engine, "sqlite:///runs.db"):
        pass

try:
    asyncio.run(main())
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.slow
def test_what_needs_an_extra_names_it_and_the_other_names_can_be_imported():
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=False)
    first, second = done.stdout.splitlines() or [done.stderr, ""]
    assert "pip install 'outrider[postgres]'" in first
    assert "pip install 'outrider[background]'" in second
