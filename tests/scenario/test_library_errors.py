"""Wrong uses of the library: each raises an OutriderError that states what is wrong, where, and what to write."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any, cast

import pytest
from annotated_types import Ge, MinLen

from outrider import (
    Agent,
    Attachment,
    Background,
    Engine,
    EventBus,
    EventLogger,
    HookDecision,
    Hooks,
    Limits,
    Message,
    OpenTelemetry,
    OutriderError,
    Provider,
    RetryPolicy,
    Rules,
    Session,
    SessionFilter,
    Tool,
    compare,
    complete,
    new_id,
    part_from_dict,
    register_part_type,
    run,
    run_stream,
    server_app,
)
from outrider.mcp import HttpServer, McpToolset, OAuthClient, StdioServer
from outrider.permissions import contain, decide
from outrider.providers import Credential, ModelCatalog, ModelDescription, RateLimit
from outrider.stores import PostgresStore, SqliteStore
from outrider.testing import Simulator, call, check_store
from outrider.types.modes import MODES
from outrider.workspace import Workspace
from tests.fixtures.cases import for_each

MODEL = Provider("demo", kind="scripted", options={"script": ["ok"] * 5})
AGENT = Agent("helper", "You help.", model="m", provider="demo")


def search(word: str) -> str:
    return word


async def coroutine() -> None: ...


def go(*arguments: Any, **options: Any) -> Any:
    return run(*arguments, **({"providers": [MODEL]} | options))


def agent(**fields: Any) -> Any:
    return Agent(**({"name": "a", "instructions": "b", "model": "m", "provider": "demo"} | fields))


def with_engine(use: Callable[[Engine], Awaitable[Any]], **options: Any) -> Any:
    async def main() -> Any:
        async with Engine([AGENT], [MODEL], **options) as engine:
            return await use(engine)

    return asyncio.run(main())


def key_of(kind: Any, **options: Any) -> Any:
    return Provider("p", kind, "key", options=options)


class Nameless:
    async def stream(self, request: object) -> object: ...


class Returns(Nameless):
    name = "mine"


def server() -> StdioServer:
    return StdioServer(name="a", command="b")


async def read_events(engine: Engine) -> None:
    engine.events(cast("Any", Session()))


CASES: dict[str, tuple[Callable[[], Any], str, str]] = {  # the use, where it is wrong, what to do
    "cost as text": (lambda: Limits(cost="x"), "Limits(cost='x')", "a number of at least 0"),  # pyright: ignore
    "negative turns": (lambda: Limits(turns=-1), "Limits(turns=-1)", "or None for no limit"),
    "limits as a dict": (lambda: go(AGENT, "hi", limits={"turns": 3}), "limits is", "Limits(turns=20"),
    "limits as a number": (lambda: go(AGENT, "hi", limits=3), "run(): limits", "Limits(turns=20"),
    "limits of an agent": (lambda: agent(limits={"turns": 3}), "agent 'a': limits", "Limits("),
    "attachments as paths": (lambda: go(AGENT, "hi", attachments=["a.png"]), "attachments", "Attachment("),
    "one tool": (lambda: go(AGENT, "hi", tools=search), "run(): tools", "tools=[…]"),
    "one provider": (lambda: go(AGENT, "hi", providers=MODEL), "run(): providers", "providers=[…]"),
    "one agent": (lambda: go(AGENT, "hi", AGENT), "run(): agents", "agents=[…]"),
    "a name as a provider": (lambda: go(AGENT, "hi", providers=["demo"]), "providers has", 'Provider("openai"'),
    "a message list": (lambda: go(AGENT, [{"role": "user"}]), "message of a run", "session=Session"),
    "no message": (lambda: go(AGENT, None), "message of a run must be a string, got NoneType", "session="),
    "functions of an agent": (lambda: agent(tools=[search]), "agent 'a': `tools`", "run(tools=[…])"),
    "one tool name": (lambda: agent(tools="search"), "agent 'a': tools", "('search',)"),
    "provider option": (lambda: key_of("anthropic", retries=3), "provider 'p': there is no option 'retries'", "retry"),
    "provider option of another kind": (lambda: key_of("google", dialect="x"), "no option 'dialect'", "location"),
    "retry option": (
        lambda: go(agent(provider="p"), "hi", providers=[key_of("anthropic", retry={"attemps": 3})]),
        "options of the provider 'p': retry",
        "attemps",
    ),
    "provider kind": (
        lambda: go(agent(provider="p"), "hi", providers=[key_of("antropic")]),
        "provider 'p' has the unknown kind",
        "use one of: anthropic",
    ),
    "provider object": (lambda: agent(provider=MODEL), "agent 'a': provider", "run(providers=[…])"),
    "temperature": (lambda: agent(temperature="hot"), "agent 'a': temperature", "a number"),
    "effort": (lambda: agent(reasoning_effort="huge"), "agent 'a': reasoning_effort", "medium"),
    "output tokens": (lambda: agent(max_output_tokens="9"), "max_output_tokens", "whole number"),
    "retry policy": (lambda: agent(retry=3), "agent 'a': retry", "RetryPolicy("),
    "vendor tools": (lambda: agent(vendor_tools=("search",)), "agent 'a': vendor_tools", "web_search"),
    "permissions": (lambda: agent(permissions={"alow": ()}), "agent 'a': permissions", "allow, ask and deny"),
    "agent mode": (lambda: go(agent(mode="yolo"), "hi"), "agent 'a' has the unknown mode", "modes: chat"),
    "agent without a name": (lambda: agent(name=""), "an agent needs a name", "Agent('helper'"),
    "model": (lambda: agent(model=None), "agent 'a': the model", "a list of at least one name"),
    "instructions": (lambda: agent(instructions=["b"]), "agent 'a': the instructions", "a string or a function"),
    "unknown entry": (lambda: go("nobody", "hi", [AGENT]), "entry agent 'nobody'", "one of: helper"),
    "no provider": (lambda: go(AGENT, "hi", providers=[]), "agent 'helper'", "needs the provider 'demo'"),
    "two tools of one name": (lambda: go(AGENT, "hi", tools=[search, search]), "two tools", "'search'"),
    "two agents of one name": (lambda: go(AGENT, "hi", [AGENT, agent(name="helper")]), "two agents", "'helper'"),
    "unknown tool": (lambda: go(agent(tools=("x",)), "hi"), "agent 'a' needs the tool 'x'", "not given"),
    "mode": (lambda: go(AGENT, "hi", mode="yolo"), "the run has the unknown mode", "modes: chat"),
    "approval level": (lambda: go(AGENT, "hi", approval="never"), "approval level 'never'", "ask, edits, auto"),
    "a path as a store": (lambda: go(AGENT, "hi", store="s.db"), "run(): store", "SqliteStore("),
    "session without a store": (lambda: go(AGENT, "hi", session="x"), "no session x", "session"),
    "session of another type": (lambda: go(AGENT, "hi", session=3), "run(): session", "the id of one in `store`"),
    "hooks": (lambda: go(AGENT, "hi", hooks=search), "run(): hooks", "Hooks(before_call"),
    "approve": (lambda: go(AGENT, "hi", approve=True), "run(): approve", "a function that takes"),
    "bus": (lambda: go(AGENT, "hi", bus=EventBus), "bus is the class EventBus", "EventBus()"),
    "argument": (lambda: go(AGENT, "hi", limit=Limits()), "run() has no argument 'limit'", "did you mean 'limits'"),
    "argument of a stream": (
        lambda: list(run_stream(AGENT, "hi", providers=[MODEL], limt=3)),  # pyright: ignore
        "has no argument 'limt'",
        "did you mean 'limits'",
    ),
    "output type": (lambda: go(AGENT, "hi", output_type=3), "output_type 3", "pass a dataclass"),
    "output class": (lambda: go(AGENT, "hi", output_type=threading.Thread), "Thread is a class", "a JSON schema"),
    "output attempts": (lambda: go(AGENT, "hi", output_attempts=0), "output_attempts", "from 1"),
    "output validators": (lambda: go(AGENT, "hi", output_validators=["x"]), "output_validators", "functions"),
    "metadata": (lambda: go(AGENT, "hi", metadata={"x": object()}), "metadata of a session", "JSON object"),
    "owner": (lambda: go(AGENT, "hi", owner=3), "run(): owner", "a string"),
    "run instructions": (lambda: go(AGENT, "hi", instructions=3), "run(): instructions", "a string"),
    "callback seconds": (lambda: go(AGENT, "hi", callback_seconds="3"), "callback_seconds", "a number of seconds"),
    "policy": (lambda: Tool(search, policy="sometimes"), "tool search: policy", "allow, ask or deny"),  # pyright: ignore
    "tool option": (lambda: Tool(search, timeot=3), "tool search", "the options are"),  # pyright: ignore
    "timeout": (lambda: Tool(search, timeout="3"), "tool search: timeout", "seconds"),  # pyright: ignore
    "repeats": (lambda: Tool(search, repeats=0), "tool search: repeats", "at least 1"),
    "policy function": (lambda: Tool(search, evaluate_policy="x"), "evaluate_policy", "a function"),  # pyright: ignore
    "a class as a tool": (lambda: Tool(Path), "got the class Path", "pass one of its methods"),
    "a lambda as a tool": (lambda: Tool(lambda: 1), "a tool '<lambda>'", "name=…"),
    "a coroutine as a tool": (lambda: go(AGENT, "hi", tools=[coroutine()]), "got a coroutine", "without calling it"),
    "positional parameter": (lambda: Tool(lambda a, /: 1, name="x"), "tool x", "give it a name"),
    "path parameter": (lambda: Tool(search, path_parameters=("pth",)), "tool search", "'pth'"),
    "one path parameter": (lambda: Tool(search, path_parameters="word"), "path_parameters", "a tuple"),  # pyright: ignore
    "schema": (lambda: Tool.from_schema("t", "d", "x", search), "tool t", "a JSON schema"),  # pyright: ignore
    "engine without agents": (lambda: Engine([], [MODEL]), "needs at least one agent", "Engine([Agent("),
    "engine with one agent": (lambda: Engine(AGENT, [MODEL]), "Engine(): agents", "agents=[…]"),  # pyright: ignore
    "engine option": (lambda: Engine([AGENT], [MODEL], attend=True), "no option attend", "attended"),  # pyright: ignore
    "dependencies": (lambda: Engine([AGENT], [MODEL], deps={"db": 1}), "Engine(): deps", "function"),  # pyright: ignore
    "engine that is not open": (lambda: asyncio.run(Engine([AGENT], [MODEL]).create()), "not open", "async with"),
    "unknown session": (lambda: with_engine(lambda engine: engine.prompt(new_id(), "hi")), "no session", "session"),
    "no queue": (lambda: with_engine(lambda engine: engine.submit("hi")), "no run queue", "Background("),
    "role": (lambda: Message("system", []), "role", "user or assistant"),  # pyright: ignore
    "complete without a provider": (lambda: complete("demo", "m", "hi"), "complete()", "Provider('demo'"),  # pyright: ignore
    "complete with numbers": (lambda: complete(MODEL, "m", [3]), "messages", "a list of Message"),  # pyright: ignore
    "an empty script": (
        lambda: go(AGENT, "hi", providers=[Provider("demo", kind="scripted", options={"script": []})]),
        "the script has 0 answers",
        "request 1",
    ),
}


def in_session(use: Callable[[Engine, str], Awaitable[Any]]) -> Any:
    async def create(engine: Engine) -> Any:
        return await use(engine, await engine.create())

    return with_engine(create)


def attach(*values: Any, **fields: Any) -> Any:
    return go(AGENT, "hi", attachments=[Attachment(*values, **fields)])


def judge(*arguments: Any, **options: Any) -> Any:
    return decide(*arguments, **({"mode": "agent", "workspace": "."} | options))


def open_workspace(folder: Any, **options: Any) -> Any:
    async def main() -> None:
        async with Workspace(folder, AGENT, [MODEL], **options) as workspace:
            await workspace.prompt("x")

    asyncio.run(main())


async def submit_to(engine: Engine, url: str) -> None:
    async with Background(engine, url) as background:
        await background.submit("x")


ANY: Any = None  # arguments of a wrong type
MORE_CASES: dict[str, tuple[Callable[[], Any], str, str]] = {
    "data and url": (lambda: attach("image/png", data=b"x", url="https://e.x"), "an attachment has either", "or a url"),
    "neither data nor url": (lambda: attach("image/png"), "an attachment has either data", "or a url"),
    "type of an attachment": (lambda: attach(3, data=b"x"), "mime_type", "Attachment('image/png'"),
    "url of an attachment": (lambda: attach("image/png", url=3), "the url of an attachment", "https://"),
    "scheme of an attachment": (lambda: attach("image/png", url="ftp://x/y"), "'ftp://x/y'", "https:"),
    "path as a url": (lambda: attach("image/png", url="a.png"), "'a.png'", "Attachment.from_path"),
    "text as base64": (lambda: attach("image/png", data="a picture!"), "not base64", "pass bytes"),
    "text as bytes": (lambda: Attachment.from_bytes("abc", "image/png"), "from_bytes", "takes bytes"),  # pyright: ignore
    "no path": (lambda: Attachment.from_path(ANY), "Attachment.from_path", "path of a file"),
    "missing file": (lambda: Attachment.from_path("/no/such.png"), "'/no/such.png'", "cannot be read"),
    "one attachment": (
        lambda: go(AGENT, "hi", attachments=Attachment("image/png", data=b"x")),
        "attachments must be a list",
        "attachments=[…]",
    ),
    "no content": (lambda: in_session(lambda e, s: e.prompt(s, 3)), "Engine.prompt(): content", "a string"),  # pyright: ignore
    "delivery": (
        lambda: in_session(lambda e, s: e.prompt(s, "x", delivery="now")),  # pyright: ignore
        "Engine.prompt(): delivery",
        '"queue" or "steer"',
    ),
    "session as an object": (
        lambda: in_session(lambda e, s: e.prompt(Session(), "x")),  # pyright: ignore
        "Engine.prompt(): session_id",
        "the id of a session",
    ),
    "argument of prompt": (
        lambda: in_session(lambda e, s: e.prompt(s, "x", outptu_type=str)),  # pyright: ignore
        "no argument 'outptu_type'",
        "did you mean 'output_type'",
    ),
    "instructions of prompt": (
        lambda: in_session(lambda e, s: e.prompt(s, "x", instructions=3)),  # pyright: ignore
        "Engine.prompt(): instructions",
        "a string",
    ),
    "owner of a session": (
        lambda: with_engine(lambda e: e.create(owner=ANY or 3)),
        "Engine.create(): owner",
        "a string",
    ),
    "folder of a session": (
        lambda: with_engine(lambda e: e.create(workspace=ANY or 3)),
        "Engine.create(): workspace",
        "a folder",
    ),
    "title": (lambda: in_session(lambda e, s: e.rename(s, ANY or 3)), "Engine.rename(): title", "a string"),
    "query": (lambda: with_engine(lambda e: e.search(ANY or 3)), "Engine.search(): query", "the words"),
    "filter": (lambda: with_engine(lambda e: e.list(ANY or "ada")), "Engine.list(): filter", "SessionFilter("),
    "a misspelled argument of an agent": (lambda: agent(temprature=1), "Agent()", "did you mean 'temperature'"),
    "a misspelled limit": (lambda: Limits(**{"turn": 3}), "Limits()", "did you mean 'turns'"),
    "a misspelled hook": (lambda: Hooks(**{"before_calls": print}), "Hooks()", "did you mean 'before_call'"),
    "an agent without a model": (lambda: Agent(*("a", "b")), "Agent()", "model"),
    "a misspelled filter": (lambda: SessionFilter(**{"ownr": "ada"}), "SessionFilter()", "did you mean 'owner'"),
    "a misspelled list of providers": (
        lambda: run(AGENT, "x", **{"provider": []}),
        "'provider'",
        "did you mean 'providers'",
    ),
    "a schema with an unknown type": (lambda: go(AGENT, "x", output_type={"type": "objekt"}), "'objekt'", "object"),
    "a file without a media type": (
        lambda: go(AGENT, "x", attachments=[Attachment("png", data=b"x")]),
        "'png'",
        "from_path",
    ),
    "a simulator that is not open": (lambda: Simulator(["x"]).provider(), "not open", "with Simulator"),
    "a dict as an export": (lambda: with_engine(lambda e: e.import_session(ANY or {})), "got dict", "json.dumps"),
    "level of an engine": (lambda: Engine([AGENT], [MODEL], approval=ANY or "never"), "level 'never'", "ask, edits"),
    "flow": (lambda: Engine([AGENT], [MODEL], flow=ANY or 3), "Engine(): flow", "FlowSettings("),
    "event class": (lambda: EventBus().subscribe(ANY or "x", print), "subscribe()", "a class of outrider.events"),
    "listener": (lambda: EventBus().subscribe_all(ANY or 3), "subscribe()", "a function"),
    "part class": (lambda: register_part_type("x", ANY or 3), "register_part_type", "a name and a class"),
    "known part": (lambda: register_part_type("text", Path), "'text' is already TextPart", "another name"),
    "unknown part": (lambda: part_from_dict({"type": "nope"}), "part type 'nope'", "known: agent"),
    "path of a store": (lambda: SqliteStore(ANY or 3), "SqliteStore", '"sessions.db"'),
    "provider without a name": (lambda: Provider("", kind="openai"), "a provider needs a name", "Provider('openai'"),
    "key as a number": (lambda: Provider("p", "openai", ANY or 3), "provider 'p': api_key", "a string or a function"),
    "credential": (lambda: Credential(ANY or 3), "a Credential has a string", "Credential(token, seconds=3600)"),
    "attempts": (lambda: RetryPolicy(attempts=0), "RetryPolicy(attempts=0)", "at least 1"),
    "total": (lambda: RetryPolicy(total=ANY or "x"), "RetryPolicy(total='x')", "a number"),
    "hook": (lambda: Hooks(before_call=ANY or 3), "Hooks(before_call=3)", "before_call=function"),
    "decision of a hook": (lambda: HookDecision(ANY or "allow"), "HookDecision('allow')", "return None"),
    "rules as a text": (lambda: judge("read", {}, allow="read(*)"), "decide(): allow", "allow=('read(*)',)"),
    "arguments as a text": (lambda: judge("read", "a"), "decide(): arguments", "a dict"),
    "mode of decide": (lambda: judge("read", {}, mode="x"), "mode 'x'", ", ".join(MODES)),
    "description": (lambda: Tool(search, description=ANY or 3), "tool search: description", "a string"),
    "display": (lambda: Tool(search, display=ANY or "fancy"), "tool search: display", "one of read, edit"),
    "origins": (lambda: Tool(search, origins=ANY or "web"), "tool search: origins", "('web',)"),
    "api of a simulator": (lambda: Simulator([]).provider(ANY or "x"), "no API 'x'", "anthropic, openai"),
    "script of a simulator": (lambda: Simulator(ANY or 3), "the script of a simulator", "a list of answers"),
    "url of runs": (lambda: with_engine(lambda e: submit_to(e, "x")), "the runs database", "sqlite:///path"),
    "complete without a model": (lambda: complete(MODEL, ANY, "hi"), "complete(): model", "the name of a model"),
    "complete without messages": (lambda: complete(MODEL, "m", ""), "complete(): messages is empty", "a string"),
    "complete with one tool": (lambda: complete(MODEL, "m", "hi", tools=ANY or 3), "complete(): tools", "tools=[…]"),
    "workspace that is missing": (lambda: open_workspace("/no/such/folder"), "not a folder", "create it first"),
    "level of a workspace": (lambda: open_workspace(".", approval="x"), "level 'x'", "ask, edits, auto"),
}
CASES |= MORE_CASES


def annotated(hint: Any) -> Any:
    def look(x: str) -> str:
        return x

    look.__annotations__["x"] = hint
    return Tool(look)


def submit(prompt: Any = "x", **order: Any) -> Any:
    async def use(engine: Engine) -> Any:
        async with Background(engine, f"sqlite:///{mkdtemp()}/runs.db", works=False) as background:
            return await background.submit(prompt, **order)

    return with_engine(use)


async def open_twice(engine: Engine) -> None:
    async with engine:
        pass


def not_open() -> Any:
    return Workspace(".", AGENT, [MODEL])


ANYTHING: Any = None
WRONG_TYPES: dict[str, tuple[Callable[[], Any], str, str]] = {
    "run without arguments": (lambda: run(*()), "the message of a run must be a string", "session="),
    "run with a sixth position": (lambda: run(AGENT, "hi", *([], [], [MODEL], 3)), "run() takes five", "their names"),
    "agents as a dict": (lambda: go(AGENT, "hi", {"a": AGENT}), "run(): agents must be a list", "agents=[…]"),
    "mode of a session": (
        lambda: go(AGENT, "x", session=Session(mode=ANY or "yolo")),
        "the session has",
        "modes: chat",
    ),
    "schema with objects": (lambda: go(AGENT, "x", output_type={"x": object()}), "the output_type", "not JSON"),
    "keys of metadata": (lambda: go(AGENT, "x", metadata={1: 2}), "metadata of a session has the key 1", "strings"),
    "fallback as a text": (lambda: agent(fallback_models="x"), "agent 'a': fallback_models", "a tuple of names"),
    "stream of an agent": (lambda: agent(stream="no"), "agent 'a': stream", "True or False"),
    "reasoning of an agent": (lambda: agent(reasoning="high"), "agent 'a': reasoning", "reasoning_effort"),
    "extra of an agent": (lambda: agent(extra="x"), "agent 'a': extra", "a dict"),
    "role of an agent": (lambda: agent(role=3), "agent 'a': role", "a string"),
    "rule of an agent as a text": (lambda: agent(permissions={"deny": "x"}), "permissions", '{"deny": ("shell",)}'),
    "temperature that is no number": (lambda: agent(temperature=float("nan")), "temperature", "a number"),
    "a misspelled change of an agent": (lambda: AGENT.replace(**ANY or {"modle": "x"}), "Agent.replace()", "model"),
    "kind": (lambda: key_of("opnai"), "the unknown kind 'opnai'", "openai-responses"),
    "url of a provider": (lambda: Provider("p", "openai", base_url=ANY or 3), "provider 'p': base_url", "https://"),
    "headers as a list": (lambda: Provider("p", "openai", headers=ANY or ["x"]), "provider 'p': headers", "a dict"),
    "headers of numbers": (lambda: Provider("p", "openai", headers=ANY or {"x": 3}), "headers", "dict of strings"),
    "options as a list": (lambda: Provider("p", "openai", options=ANY or ["x"]), "provider 'p': options", "a dict"),
    "script as a text": (
        lambda: go(AGENT, "x", providers=[Provider("demo", "scripted", options={"script": "hi"})]),
        "the script of a provider",
        "['hi']",
    ),
    "negative credential": (lambda: Credential("x", seconds=-1), "a Credential has", "seconds=3600"),
    "name of a tool": (lambda: Tool(search, name=ANY or 3), "no model can call a tool 3", "name=…"),
    "a tool of a tool": (lambda: Tool(Tool(search)), "search is a tool already", "pass it as it is"),
    "flag of a tool": (lambda: Tool(search, read_only=ANY or "yes"), "tool search: read_only", "True or False"),
    "network of a tool": (lambda: Tool(search, network=ANY or "x.org"), "tool search: network", "True or False"),
    "destination": (lambda: Tool(search, destination=ANY or 3), "tool search: destination", "a string"),
    "declaration": (lambda: Tool(search, declares=ANY or "read"), "tool search: declares", "ToolDeclaration"),
    "path operation": (lambda: Tool(search, path_operation=ANY or "x"), "path_operation", "one of read"),
    "schema of a text": (lambda: Tool.from_schema("t", "d", {"type": "string"}, search), "tool t", "'object'"),
    "schema without a function": (lambda: Tool.from_schema("t", "d", {}, ANYTHING), "got NoneType", "Tool(function)"),
    "a limit of a text": (lambda: annotated(Annotated[str, Ge(3)]), "tool look, parameter `x`", "ge does not apply"),
    "a length of a number": (lambda: annotated(Annotated[int, MinLen(3)]), "parameter `x`", "min_length does not"),
    "secrets as a text": (lambda: Engine([AGENT], [MODEL], secrets=ANY or "x"), "Engine(): secrets", "a tuple"),
    "rules as a dict": (lambda: Engine([AGENT], [MODEL], rules=ANY or {"allow": []}), "Engine(): rules", "Rules("),
    "rule as a text": (lambda: Rules(allow=ANY or "shell"), "Rules(allow='shell')", "('shell',)"),
    "a rule without an end": (
        lambda: Rules(deny=("shell(rm",)),
        "Rules.deny: 'shell(rm' is not a rule: it does not have the form tool(pattern)",
        "write tool(pattern), such as shell(git status *)",
    ),
    "a rule with an open quote": (lambda: Rules(allow=("shell(git commit 'a)",)), "its quotes are not closed", "write"),
    "a rule without a program": (lambda: Rules(ask=("shell()",)), "Rules.ask: 'shell()'", "such as shell("),
    "an outcome that is denied": (lambda: Rules(deny=("may write x",)), "can only allow", "write tool(pattern)"),
    "an unknown outcome": (lambda: Rules(allow=("may fly",)), "'may fly' is not a rule", "may write PATH, may reach"),
    "a rule of an agent": (
        lambda: agent(permissions={"deny": ("shell(rm",)}),
        "agent 'a': permissions.deny: 'shell(rm' is not a rule",
        "write tool(pattern), such as",
    ),
    "a changed rule of an agent": (
        lambda: AGENT.replace(permissions={"ask": ("",)}),
        "permissions.ask: '' is not a rule",
        "write tool(pattern), such as",
    ),
    "a misspelled rule": (lambda: Rules(**ANY or {"alow": ()}), "Rules()", "did you mean 'allow'"),
    "attended": (lambda: Engine([AGENT], [MODEL], attended=ANY or "no"), "Engine(): attended", "True or False"),
    "titles": (lambda: Engine([AGENT], [MODEL], titles=ANY or "x"), "Engine(): titles", "the agent that writes"),
    "catalog": (lambda: Engine([AGENT], [MODEL], catalog=ANY or {"a": 1}), "Engine(): catalog", "ModelCatalog"),
    "cassettes": (lambda: Engine([AGENT], [MODEL], cassettes=ANY or 3), "Engine(): cassettes", "a folder"),
    "surroundings": (lambda: Engine([AGENT], [MODEL], surroundings=ANY or "/w"), "surroundings", "Workspace"),
    "an engine that is open": (lambda: with_engine(open_twice), "already open", "open it once"),
    "no content at all": (lambda: in_session(lambda e, s: e.prompt(s, ANYTHING)), "content is missing", "a string"),
    "id of an input": (lambda: in_session(lambda e, s: e.prompt(s, "x", input_id=ANY or 3)), "input_id", "a string"),
    "agent of a session": (
        lambda: with_engine(lambda e: e.create(agent=ANY or AGENT)),
        "Engine.create(): agent",
        "name",
    ),
    "a misspelled owner": (
        lambda: with_engine(lambda e: e.create(**ANY or {"ownr": "x"})),
        "Engine.create() has no argument",
        "did you mean 'owner'",
    ),
    "a misspelled resume": (
        lambda: in_session(lambda e, s: e.resume(s, **ANY or {"takeover": True})),
        "Engine.resume() has no argument",
        "did you mean 'take_over'",
    ),
    "limit of a list": (
        lambda: with_engine(lambda e: e.list(limit=ANY or "9")),
        "Engine.list(): limit",
        "whole number",
    ),
    "limit of a search": (
        lambda: with_engine(lambda e: e.search("x", limit=-1)),
        "Engine.search(): limit",
        "at least 0",
    ),
    "instructions of a compaction": (lambda: in_session(lambda e, s: e.compact(s, ANY or 3)), "compact()", "a string"),
    "allow": (
        lambda: with_engine(lambda e: e.answer("x", allow=ANY or "yes")),
        "Engine.answer(): allow",
        "True or False",
    ),
    "background of an agent": (lambda: Background(ANY or AGENT, "sqlite:///x"), "takes an Engine", "Engine"),
    "background that is not open": (
        lambda: asyncio.run(Background(Engine([AGENT], [MODEL]), "sqlite:///x").submit("x")),
        "not open",
        "async with Background",
    ),
    "prompt of a run": (lambda: submit(3), "submit(): message", "a string"),
    "empty prompt of a run": (lambda: submit(""), "the prompt is empty", "pass a string"),
    "a misspelled order": (lambda: submit(worksapce="/w"), "submit() has no argument", "did you mean 'workspace'"),
    "mode of a run": (lambda: submit(mode="yolo"), "submit() has the unknown mode", "modes: chat"),
    "limits of a run": (lambda: submit(limits=3), "submit(): limits", "Limits("),
    "place of a run": (lambda: submit(place="first"), "submit(): place", "QueuePlacement("),
    "terms of a run": (lambda: submit(terms="x"), "submit(): terms", "JobOverrides("),
    "webhook": (lambda: submit(webhook="here"), "submit(): webhook", "http(s) URL"),
    "content of a block": (
        lambda: Session().set_messages([{"role": "user", "content": 3}]),
        "messages[0]",
        "a string or",
    ),
    "results as a text": (lambda: Session().add_tool_results("x"), "got str", "a dict or an object"),
    "tokens of an answer": (lambda: Session().add_assistant_message("a", tokens=ANY or 3), "tokens=3", "Tokens(input="),
    "cost of an answer": (lambda: Session().add_assistant_message("a", cost=ANY or 0.1), "cost=0.1", "Decimal("),
    "finish of an answer": (lambda: Session().add_assistant_message("a", finish=ANY or 3), "finish=3", '"stop"'),
    "results that are none": (lambda: Session().add_tool_results(ANYTHING), "add_tool_results()", "a list of results"),
    "root of contain": (lambda: contain("a", root=ANYTHING, cwd="/"), "contain(): root is a path", "root='/srv"),
    "folder of contain": (lambda: contain("a", root="/", cwd=ANY or 3), "contain(): cwd is a path", "cwd='/srv"),
    "answer as a number": (lambda: Session().add_assistant_message(3), "got int", "a dict or an object"),
    "a misspelled title": (lambda: Session(**ANY or {"titel": "x"}), "Session() has no argument 'titel'", "title"),
    "a list as a session": (lambda: Session.from_dict(ANY or [1]), "got list", "to_dict()"),
    "a text as a part": (lambda: Message("user", ANY or ["x"]), "str is not a part", "TextPart("),
    "owner of a filter": (lambda: SessionFilter(owner=ANY or 3), "SessionFilter(): owner", "a string"),
    "metadata of a filter": (lambda: SessionFilter(metadata=ANY or "x"), "SessionFilter(): metadata", "'tenant'"),
    "folder of a workspace": (lambda: Workspace(ANY or 3, AGENT, [MODEL]), "the folder must be a path", "path"),
    "agents of a workspace": (lambda: Workspace(".", ANY or "a", [MODEL]), "Workspace(): agents", "agents=[…]"),
    "provider of a workspace": (lambda: Workspace(".", AGENT, ANY or MODEL), "Workspace(): providers", "providers=[…]"),
    "workspace that is not open": (lambda: asyncio.run(not_open().prompt("x")), "not open", "async with Workspace"),
    "processes that are not open": (lambda: not_open().processes, "not open", "async with Workspace"),
    "arguments of a server": (lambda: StdioServer(name="a", command="b", args=ANY or "-y"), "args", "args=('-y',)"),
    "name of a server": (lambda: StdioServer(name="", command="b"), "needs a name", "StdioServer(name="),
    "complete with a list of nothing": (lambda: complete(MODEL, "m", []), "messages is empty", "a string"),
    "complete with a number": (lambda: complete(MODEL, "m", "x", system=ANY or 3), "complete(): system", "a string"),
    "complete with a name": (
        lambda: complete(MODEL, "m", "x", tools=["search"]),
        "complete(): tools",
        "Tool(function)",
    ),
    "complete with a typo": (lambda: complete(MODEL, "m", "x", **ANY or {"sytem": "x"}), "'sytem'", "system"),
    "class of no event": (lambda: EventBus().subscribe(ANY or int, print), "subscribe()", "outrider.events"),
    "no bus": (lambda: EventLogger().attach(ANY or 3), "EventLogger.attach()", "EventBus()"),
    "tool of decide": (lambda: judge(3, {}), "decide(): tool", "the name of a built-in one"),
    "level of decide": (lambda: judge("read", {}, level="x"), "approval level 'x'", "ask, edits, auto"),
    "workspace of decide": (lambda: judge("read", {}, workspace=3), "decide(): workspace", "a folder"),
    "a misspelled argument of decide": (lambda: judge("read", {}, alow=()), "no argument 'alow'", "allow"),
    "a text for a simulator": (lambda: Simulator(ANY or "hi"), "the script of a simulator", "a list of answers"),
    "store for a check": (lambda: asyncio.run(check_store(ANY or "x")), "check_store()", "a function"),
    "an empty message": (lambda: go(AGENT, " "), "the message of a run is empty", "pass attachments"),
    "a session for events": (lambda: with_engine(read_events), "Engine.events(): session_id", "Engine.create"),
    "scope of an answer": (
        lambda: with_engine(lambda e: e.answer("x", allow=True, scope=ANY or "forever")),
        "Engine.answer(): scope",
        "once, session, project and always",
    ),
    "a number as a rule": (lambda: judge("shell", {}, deny=[3]), "a rule of deny is a string, got 3", "write deny=("),
    "a number as rules": (lambda: judge("shell", {}, ask=3), "decide(): ask is a list of rules", "write ask=("),
    "one message as a list": (lambda: Session().set_messages(ANY or {"role": "user"}), "got dict", "[message, …]"),
    "a message of OpenAI for Gemini": (
        lambda: Session().set_messages([{"role": "user", "content": "x"}], "google"),
        "messages[0]: a content of Gemini has a list of `parts`",
        "got content",
    ),
    "command of a server": (
        lambda: StdioServer(name="a", command=ANY or ["npx"]),
        "StdioServer('a'): command",
        "args=",
    ),
    "environment of a server": (
        lambda: StdioServer(name="a", command="b", env=ANY or {"A": 1}),
        "env",
        "'NAME': 'value'",
    ),
    "words of a server": (
        lambda: StdioServer(name="a", command="b", args=ANY or (1,)),
        "args is a tuple",
        "args=('-y'",
    ),
    "url of a server": (lambda: HttpServer(name="a", url="ftp://x"), "HttpServer('a') needs", "https://"),
    "headers of a server": (
        lambda: HttpServer(name="a", url="http://x", headers=ANY or []),
        "headers is a dict",
        "Bearer",
    ),
    "login of a server": (lambda: HttpServer(name="a", url="http://x", oauth=ANY or "x"), "oauth is", "OAuthClient("),
    "a misspelled login": (
        lambda: OAuthClient(**ANY or {"clientid": "x"}),
        "OAuthClient()",
        "did you mean 'client_id'",
    ),
    "a misspelled toolset": (lambda: McpToolset(server(), **ANY or {"includ": []}), "McpToolset()", "'include'"),
    "a misspelled store": (lambda: SqliteStore("x.db", **ANY or {"clok": 1}), "SqliteStore()", "did you mean 'clock'"),
    "a name as a database": (lambda: PostgresStore("localhost"), "the address of a database", "postgresql://user@host"),
    "a misspelled database": (lambda: PostgresStore("a=b", **ANY or {"shema": "x"}), "PostgresStore()", "'schema'"),
    "a misspelled simulator": (lambda: Simulator([], **ANY or {"dellay": 1}), "Simulator()", "did you mean 'delay'"),
    "a misspelled rate": (lambda: RateLimit(**ANY or {"request_per_minute": 1}), "RateLimit()", "requests_per_minute"),
    "a rate of nothing": (lambda: RateLimit(requests_per_minute=0), "RateLimit(requests_per_minute=0)", "above 0"),
    "a rate in options": (
        lambda: go(agent(provider="p"), "x", providers=[key_of("openai", rate_limit={"tokens_per_minute": -1})]),
        "tokens_per_minute=-1",
        "a number above 0",
    ),
    "models as a list": (lambda: ModelCatalog.from_config(ANY or []), "models is a dict", "context_limit"),
    "a misspelled model": (lambda: ModelCatalog.from_config({"m": {"price": {}}}), "models['m']", '"prices"'),
    "a misspelled description": (lambda: ModelDescription(**ANY or {"contxt": 1}), "ModelDescription()", "'context'"),
    "a name for telemetry": (
        lambda: OpenTelemetry(ANY or "x"),
        "OpenTelemetry() takes a TracerProvider",
        "opentelemetry.sdk",
    ),
    "a name for a server": (lambda: server_app(ANY or "x"), "server_app() takes an Engine", "Engine(["),
    "a call of nothing": (lambda: call(ANY or 3), "call() takes the name of a tool", "call('add', a=1"),
    "a provider without a name": (
        lambda: go(AGENT, "x", providers=[Nameless()]),
        "a `name` and a method `stream`",
        "CustomProvider",
    ),
    "an answer that is returned": (
        lambda: go(agent(provider="mine"), "x", providers=[Returns()]),
        "returned a coroutine",
        "`yield`",
    ),
    "sessions to compare": (lambda: compare(*ANY or (1, 2)), "compare()", "two sessions"),
}
CASES |= WRONG_TYPES


def test_there_are_enough_cases():
    assert len(CASES) >= 200


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_use_is_explained(name: str):
    use, where, remedy = CASES[name]
    with pytest.raises(OutriderError) as caught:
        use()
    assert where in caught.value.message
    assert remedy in caught.value.message


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no representation")


@for_each(
    "use",
    [
        lambda: Rules(allow=ANY or Unprintable()),
        lambda: SessionFilter(owner=ANY or Unprintable()),
        lambda: EventLogger().attach(ANY or Unprintable()),
        lambda: EventBus().subscribe(ANY or Unprintable(), print),
        lambda: compare(*ANY or (Unprintable(), 2)),
        lambda: Workspace(ANY or Unprintable(), AGENT, [MODEL]),
        lambda: judge(Unprintable(), {}),
        lambda: judge("read", Unprintable()),
        lambda: go(AGENT, "hi", limits=Unprintable()),
        lambda: Tool(search, timeout=ANY or Unprintable()),
    ],
)
def test_a_value_without_a_representation_is_named_by_its_type(use: Callable[[], object]):
    with pytest.raises(OutriderError) as caught:
        use()
    assert "Unprintable" in caught.value.message
