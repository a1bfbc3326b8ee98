"""The public modules in a program: fallback models, workspaces, MCP servers, custom providers."""

import asyncio
import json
import socket
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from outrider import (
    Agent,
    Attachment,
    AuthenticationError,
    CallbackError,
    ConfigurationError,
    Engine,
    EventBus,
    HookedRequest,
    Hooks,
    Limits,
    OverloadedError,
    Provider,
    ProviderError,
    RetryPart,
    RetryPolicy,
    SessionFilter,
    SessionNotFoundError,
    TextPart,
    Tool,
    async_complete,
    async_run,
)
from outrider.events import RequestChangedEvent
from outrider.providers import (
    Credential,
    Delta,
    Finish,
    InputDelta,
    ModelDescription,
    PartEnd,
    PartStart,
    Request,
    TextDelta,
    Tokens,
    UsageReport,
)
from outrider.stores import MemoryStore, SqliteStore
from outrider.testing import SimulatedError, Simulator, call, check_provider, check_store, scripted_model
from outrider.testing.simulator_answers import SIMULATED_APIS
from outrider.workspace import ApprovalRequest, Workspace

QUICK = RetryPolicy(first_window=0.0)
MODELS = {"anthropic": "claude-opus-4-6", "openai": "gpt-5", "openai-responses": "gpt-5", "google": "gemini-3-pro"}
OUTAGES = {
    "overload": {
        "anthropic": SimulatedError(529, "Overloaded", "overloaded_error"),
        "openai": SimulatedError(503, "The server is overloaded.", "server_error"),
        "openai-responses": SimulatedError(503, "The server is overloaded.", "server_error"),
        "google": SimulatedError(503, "The model is overloaded.", "UNAVAILABLE"),
    },
    "quota": {
        "anthropic": SimulatedError(400, "Your credit balance is too low to access the API.", "invalid_request_error"),
        "openai": SimulatedError(429, "You exceeded your current quota.", "insufficient_quota"),
        "openai-responses": SimulatedError(429, "You exceeded your current quota.", "insufficient_quota"),
        "google": SimulatedError(429, "You exceeded your current quota, check your plan.", "RESOURCE_EXHAUSTED"),
    },
}


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("outage", ["overload", "quota", "unreachable"])
@pytest.mark.parametrize("kind", list(MODELS))
async def test_the_next_model_of_a_list_answers_once_and_the_change_is_recorded(kind: Any, outage: str):
    def answer(request: Any) -> Any:
        return OUTAGES[outage][kind] if outage in OUTAGES and request.kind == kind else "from the next model"

    other: Any = "openai" if kind == "anthropic" else "anthropic"
    async with Simulator(answer) as simulator:
        first = simulator.provider(kind)
        if outage == "unreachable":
            first = Provider("x", kind, "key", f"http://127.0.0.1:{closed_port()}")
        providers = [
            Provider("first", kind, first.api_key, first.base_url),
            Provider("second", other, "key", simulator.provider(other).base_url),
        ]
        names = [f"first/{MODELS[kind]}", f"second/{MODELS[other]}", f"second/{MODELS[other]}-never"]
        agent = Agent("helper", "You help.", model=names, provider="first", retry=QUICK)
        result = await async_run(agent, "Hello", providers=providers)
        requested = [request.kind for request in simulator.requests]
        assert {request.model for request in simulator.requests} <= set(MODELS.values())
    assert result.output == "from the next model"
    assert requested.count(other) == 1
    answers = [message for message in result.session.messages if message.role == "assistant"]
    assert [str(message.model) for message in answers] == [f"second/{MODELS[other]}"]
    assert [str(part.model) for part in answers[0].get_parts_by_type(RetryPart) if part.model] == [
        f"second/{MODELS[other]}"
    ]
    assert [message.role for message in result.session.messages] == ["user", "assistant"]


def test_a_list_of_models_has_at_least_one_name():
    for models in ([], [""], [3]):
        with pytest.raises(ConfigurationError, match="agent 'helper': the model must be"):
            Agent("helper", "", model=models, provider="p")  # type: ignore[arg-type]


def scripted(*answers: Any) -> list[Provider]:
    return [Provider("demo", kind="scripted", options={"script": list(answers)})]


def helper(**fields: Any) -> Agent:
    return Agent("helper", "You help.", model="demo", provider="demo", **fields)


async def test_a_workspace_has_tools_a_sandbox_undo_processes_and_plan_mode(tmp_path: Path):
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a.txt").write_text("one\n")
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> bool:
        asked.append(request)
        return True

    answers = [
        [call("read", path="a.txt")],
        "1. Edit a.txt.\n2. Run a command.",
        [call("edit", path="a.txt", old_string="one", new_string="two")],
        [call("shell", command="echo three > b.txt")],
        "Done.",
    ]
    async with Workspace(
        tmp_path / "w", helper(), scripted(*answers), approve=approve, data=tmp_path / "data"
    ) as workspace:
        assert "Edit a.txt" in (await workspace.prompt("Change it.", mode="plan")).output
        assert (await workspace.plan()) is not None
        assert (await workspace.accept_plan()).output == "Done."
        assert (tmp_path / "w" / "a.txt").read_text() == "two\n"
        assert (tmp_path / "w" / "b.txt").read_text() == "three\n"
        assert [request.tool for request in asked] == ["edit", "shell"]
        assert asked[1].outcome is not None
        assert workspace.processes.get_running_ids() == []
        assert set((await workspace.undo()).changed) == {"a.txt", "b.txt"}
        assert (tmp_path / "w" / "a.txt").read_text() == "one\n"
        assert not (tmp_path / "w" / "b.txt").exists()
        assert set((await workspace.redo()).changed) == {"a.txt", "b.txt"}
        session_id = workspace.session_id
    async with Workspace(
        tmp_path / "w", helper(), scripted("Again."), data=tmp_path / "data", session=session_id
    ) as workspace:
        assert (await workspace.prompt("More?")).output == "Again."
        assert len(workspace.engine.live[session_id].session.messages) > 4


async def test_a_workspace_takes_the_keywords_of_the_engine_s_prompt(tmp_path: Path):
    def is_short(value: list[int]) -> None:
        if len(value) > 1:
            raise ValueError("one number only")

    texts: list[str] = []

    def answer(request: Any) -> str:
        texts.append(" ".join(part.text for message in request.prompt for part in message.content))
        return '{"value": [1]}' if "one number only" in texts[-1] else '{"value": [1, 2]}'

    async with Workspace(tmp_path, helper(), [scripted_model(answer)]) as workspace:
        result = await workspace.prompt(
            "Numbers!", output_type=list[int], output_validators=is_short, instructions="Be brief.", output_attempts=2
        )
        assert (result.output, len(texts)) == ([1], 2)
        assert "Be brief." in texts[0]
        wrong: Any = {"output_validator": is_short}
        with pytest.raises(ConfigurationError, match="did you mean 'output_validators'"):
            await workspace.prompt("x", mode="plan", **wrong)
        assert workspace.engine.live[workspace.session_id].session.mode == "agent"


async def test_a_workspace_without_approve_denies_and_leaves_no_files(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    script = [[call("write", path="a.txt", content="x")], "I could not."]
    async with Workspace(tmp_path, helper(), scripted(*script)) as workspace:
        assert (await workspace.prompt("Write.")).output == "I could not."
    assert list(tmp_path.iterdir()) == []
    assert list(temporary.glob("outrider-*")) == []
    for wrong in ({"folder": tmp_path / "no"}, {"data": tmp_path / "d"}, {"sandbox": "x"}, {"session": "x"}):
        arguments: Any = {"folder": tmp_path, "agents": helper(), "providers": scripted(), **wrong}
        with pytest.raises(ConfigurationError, match="Workspace"):
            Workspace(**arguments)


class Parrot:
    """A provider of the program: it repeats the user input, calls a tool first, and fails on request."""

    name = "parrot"

    def __init__(self, *failures: Any) -> None:
        self.failures = list(failures)
        self.requests: list[Request] = []

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        self.requests.append(request)
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            yield failure
            return
        yield PartStart(0, "text")
        yield TextDelta(0, f"{request.model}: ")
        part = request.prompt[-1].content[-1]
        yield TextDelta(0, part.text if isinstance(part, TextPart) else "?")
        yield PartEnd(0)
        yield UsageReport(Tokens(input=1_000_000, output=1_000_000))
        yield Finish("stop")

    def describe_model(self, model: str) -> ModelDescription:
        return ModelDescription(context=100_000, input_price=1, output_price=2.5)


async def test_a_provider_of_the_program_answers_with_prices_retries_and_fallback():
    parrot = Parrot(OverloadedError("busy"))
    agent = Agent("helper", "You help.", model="grey", provider="parrot", retry=QUICK)
    result = await async_run(agent, "Hello", providers=[parrot], limits=Limits(cost=10))
    assert result.output == "grey: Hello"
    assert result.cost == Decimal("3.5")
    assert len(parrot.requests) == 2
    assert (await async_complete(parrot, "green", "Hi")).message.get_text_content() == "green: Hi"
    broken = Parrot(*[OverloadedError("busy")] * 9)
    backup = Agent("helper", "", model=["grey", "demo/demo"], provider="parrot", retry=QUICK)
    result = await async_run(backup, "Hello", providers=[broken, *scripted("from another")])
    assert result.output == "from another"
    assert len(broken.requests) == RetryPolicy().attempts_before_fallback


async def test_a_provider_of_the_program_that_fails_ends_the_run_with_a_typed_error():
    agent = Agent("helper", "You help.", model="grey", provider="parrot")
    for failure, message in [
        (KeyError("x"), "KeyError"),
        ("text", "yielded str"),
        (PartStart(0, "text"), "without Finish"),
    ]:
        parrot = Parrot(failure)
        async with Engine([agent], [parrot]) as engine:
            session_id = await engine.create()
            end = await engine.prompt(session_id, "Hello")
            assert isinstance(end.error, ProviderError)
            assert message in end.error.message
            assert (await engine.prompt(session_id, "Again")).output == "grey: Again"
    for wrong in (object(), Parrot, "parrot"):
        with pytest.raises(ConfigurationError, match="Provider"):
            Engine([agent], [wrong])  # type: ignore[list-item]


@pytest.mark.parametrize("kind", list(MODELS))
async def test_a_key_comes_from_a_function_again_when_it_expires_or_is_rejected(kind: Any):
    keys = ["first", "second", "third"]
    calls: list[str] = []
    valid = {"first", "third"}

    async def make_key() -> Credential:
        calls.append(keys[len(calls)])
        return Credential(calls[-1], seconds=0.3 if calls[-1] == "first" else None)

    async with serving_keys(kind, valid) as (url, seen):
        provider = Provider("p", kind, make_key, url)
        assert "first" not in repr(provider)
        agent = Agent("helper", "You help.", model=MODELS[kind], provider="p")
        async with Engine([agent], [provider]) as engine:
            session_id = await engine.create()
            for _ in range(2):
                assert (await engine.prompt(session_id, "Hello")).output == "Hi"
            assert calls == ["first"]
            await asyncio.sleep(0.4)
            assert (await engine.prompt(session_id, "Hello")).output == "Hi"
    assert calls == keys
    assert seen == ["first", "first", "second", "third"]


async def test_a_function_for_the_key_that_fails_is_a_typed_error():
    def broken() -> str:
        raise RuntimeError("no token server")

    agent = Agent("helper", "You help.", model="claude-opus-4-6", provider="p")
    for function, message in (
        (broken, "no token server"),
        (lambda: None, "NoneType"),
        (lambda: " ", "returned no key"),
    ):
        provider = Provider("p", "anthropic", function, "http://127.0.0.1:9")  # type: ignore[arg-type]
        with pytest.raises(AuthenticationError, match=message):
            await async_run(agent, "Hello", providers=[provider])


@asynccontextmanager
async def serving_keys(kind: Any, valid: set[str]) -> AsyncIterator[tuple[str, list[str]]]:
    """A server of one API that accepts only some keys, and the keys that it has seen."""
    api, seen = SIMULATED_APIS[kind], list[str]()

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = request.headers
        key = headers.get("x-api-key") or headers.get("x-goog-api-key") or headers["authorization"].split()[-1]
        seen.append(key)
        if key not in valid:
            body = api.error_body(SimulatedError(401, "invalid key", "authentication_error"))
            return web.json_response(body, status=401)
        return web.Response(body=b"".join(api.stream(["Hi"])), content_type="text/event-stream")

    app = web.Application()
    app.router.add_post("/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}{api.base}", seen
    finally:
        await runner.cleanup()


PIXEL = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


@pytest.mark.parametrize("kind", list(MODELS))
async def test_attachments_from_files_bytes_and_file_urls_are_sent_as_data(kind: Any, tmp_path: Path):
    path = tmp_path / "a b.png"
    path.write_bytes(PIXEL)
    files = [
        Attachment.from_path(path),
        Attachment.from_bytes(PIXEL, "image/png", "x.png"),
        Attachment("image/png", data=PIXEL),
        Attachment("image/png", url=path.as_uri()),
    ]
    assert files[0] == Attachment("image/png", data=b64encode(PIXEL).decode(), name="a b.png")

    def draw() -> Attachment:
        """Draw."""
        return files[3]

    async with Simulator([[call("draw")], "Nice.", "Nice again."]) as simulator:
        agent = Agent("helper", "You look.", model=MODELS[kind], provider="p")
        provider = simulator.provider(kind)
        provider = Provider("p", kind, "key", provider.base_url)
        result = await async_run(agent, "See", tools=[draw], providers=[provider], attachments=files)
        assert result.output == "Nice."
        async with Engine([agent], [provider]) as engine:
            end = await engine.prompt(await engine.create(), ["See", files[3]])
        assert end.output == "Nice again."
        bodies = [json.dumps(request.body) for request in simulator.requests]
        simulator.check()
    sent = b64encode(PIXEL).decode()
    assert [body.count(sent) for body in bodies] == [4, 5, 1]
    assert not any("\\\\x89" in body or "file:" in body for body in bodies)


def test_wrong_attachments_are_refused_with_a_reason(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        Attachment("image/png", url=(tmp_path / "no.png").as_uri()).load()
    with pytest.raises(ConfigurationError, match="pass mime_type"):
        Attachment.from_path(tmp_path / "no")
    with pytest.raises(ConfigurationError, match="another machine"):
        Attachment("image/png", url="file://server/a.png").load()
    with pytest.raises(ConfigurationError, match="got list"):
        Attachment("image/png", data=[1])  # type: ignore[arg-type]


async def test_an_engine_lists_searches_copies_exports_shares_and_deletes_sessions(tmp_path: Path):
    def answer(request: Request) -> str:
        return "The walrus sings."

    provider = Provider("demo", kind="scripted", options={"script": answer})
    async with SqliteStore(tmp_path / "s.db") as store, Engine([helper()], [provider], store=store) as engine:
        first = await engine.create(title="one", owner="ada")
        second = await engine.create(title="two", owner="bob")
        await engine.prompt(first, "Sing!")
        assert [found.id for found in await engine.list(SessionFilter(owner="ada"))] == [first]
        assert {found.id for found in await engine.list()} == {first, second}
        assert {hit.session_id for hit in await engine.search("walrus")} == {first}
        copy = await engine.fork(first, title="three")
        document = await engine.export(first)
        again = await engine.import_session(document)
        assert again != first
        assert (await engine.open(again)).messages[1].get_text_content() == "The walrus sings."
        assert "walrus" in await engine.share(first)
        await engine.delete(first)
        with pytest.raises(SessionNotFoundError):
            await engine.open(first)
        running = asyncio.create_task(engine.prompt(second, "Sing!"))
        await running
        assert await engine.clear() == 3
        assert await engine.list() == []
        assert copy not in engine.live
        assert (await engine.prompt(await engine.create(), "Sing!")).output == "The walrus sings."


async def test_a_hook_before_requests_masks_extends_and_trims_and_reports_the_cache():
    def find_documents(request: HookedRequest) -> HookedRequest | None:
        if request.deps == "trim":
            return request.replace(messages=request.messages[-1:], tools=())
        if request.deps is None:
            return None
        masked = tuple(
            msgspec.structs.replace(
                message,
                content=tuple(
                    msgspec.structs.replace(part, text=part.text.replace("4111", "****"))
                    if isinstance(part, TextPart)
                    else part
                    for part in message.content
                ),
            )
            for message in request.messages
        )
        return request.replace(messages=masked).with_text(f"Found: {request.deps}")

    async with Simulator(lambda request: f"answer {len(request.texts)}") as simulator:
        base = simulator.provider("anthropic")
        agent = Agent("helper", "You help.", model=MODELS["anthropic"], provider="p")
        provider = Provider("p", "anthropic", "key", base.base_url)
        bus, events, store = EventBus(), list[RequestChangedEvent](), MemoryStore()
        bus.subscribe(RequestChangedEvent, events.append)
        hooks = Hooks(before_request=find_documents)
        deps = iter(["a book", "a book", "trim"])
        async with Engine([agent], [provider], store=store, bus=bus, hooks=hooks, deps=lambda _: next(deps)) as engine:
            session_id = await engine.create()
            await engine.prompt(session_id, "My card is 4111.")
            await engine.prompt(session_id, "And now?")
            stored = (await engine.open(session_id)).messages
        simulator.check()
        bodies = [json.dumps(request.body) for request in simulator.requests]
    assert not any("4111" in body for body in bodies)
    assert [body.count("Found: a book") for body in bodies] == [1, 1]
    assert "4111" in stored[0].get_text_content()
    assert "Found" not in "".join(message.get_text_content() for message in stored)
    assert [(event.messages_before, event.messages_after) for event in events] == [(1, 1), (3, 3)]
    assert [(event.previous_messages, event.cached_messages) for event in events] == [(0, 0), (1, 0)]


async def test_a_hook_before_requests_that_fails_sends_nothing_and_the_session_stays_usable():
    script = [f"answer {number}" for number in range(9)]
    wrong = [
        lambda _: 1 / 0,
        lambda _: "text",
        lambda request: request.replace(messages=()),
        lambda request: request.replace(messages=(*request.messages, *request.messages)),
    ]
    hooks = iter([*wrong, None])
    current: list[Any] = [None]
    hook = Hooks(before_request=lambda request: current[0](request) if current[0] else None)
    async with Engine([helper()], scripted(*script), hooks=hook) as engine:
        session_id = await engine.create()
        for current[0] in hooks:
            end = await engine.prompt(session_id, "Hello")
            if current[0] is None:
                assert end.output == "answer 0"
            else:
                assert isinstance(end.error, CallbackError)
                assert "before_request" in end.error.message


async def test_the_contract_suite_of_stores_accepts_the_stores_and_finds_broken_ones(tmp_path: Path):
    paths = (tmp_path / f"{number}.db" for number in range(99))
    await check_store(MemoryStore)
    await check_store(lambda: SqliteStore(next(paths)))

    class ForgetfulStore(MemoryStore):
        """It forgets leases and loses every second message."""

        async def acquire(self, session_id: str, owner: Any, **options: Any) -> Any:
            return await super().acquire(session_id, owner, **(options | {"take_over": True}))

        async def load(self, session_id: str, **page: Any) -> Any:
            found = await super().load(session_id, **page)
            return msgspec.structs.replace(found, messages=found.messages[::2])

    with pytest.raises(AssertionError) as caught:
        await check_store(ForgetfulStore)
    assert "leases: AssertionError: two owners can hold a lease" in str(caught.value)
    assert "messages: AssertionError" in str(caught.value)
    assert "inbox" not in str(caught.value)


async def test_the_contract_suite_of_providers_accepts_good_ones_and_finds_broken_ones():
    await check_provider(Parrot(), "grey")
    await check_provider(scripted_model(lambda _: ["Hello.", call("look", at="it")]), "demo")
    async with Simulator(lambda _: "Hello.") as simulator:
        for kind, model in MODELS.items():
            await check_provider(simulator.provider(kind), model)  # type: ignore[arg-type]

    class BrokenParrot(Parrot):
        async def stream(self, request: Request) -> AsyncIterator[Delta]:
            yield TextDelta(3, "x")
            yield PartStart(1, "tool")
            yield InputDelta(1, "[1")
            yield UsageReport(Tokens(input=-1))
            yield Finish("stop")

    with pytest.raises(AssertionError) as caught:
        await check_provider(BrokenParrot(), "grey")
    problems = ("a delta 3 is outside", "no call_id", "negative", "no PartEnd", "not a JSON object", "closing")
    assert [word for word in problems if word not in str(caught.value)] == []


async def test_a_function_is_judged_by_its_declaration_and_never_by_its_name(tmp_path: Path):
    def read(anything: int) -> str:
        """Return a number."""
        return f"{anything}"

    def search(query: str) -> str:
        """Search a database."""
        return query

    @Tool(name="look", read_only=True, path_parameters=("path",))
    def look(path: str) -> str:
        """Look at a file."""
        return "seen"

    pieces = [call("read", anything=7), call("search", query="/etc/passwd"), call("look", path="/etc/passwd")]
    result = await async_run(helper(), "Go", tools=[read, search, look], providers=scripted(pieces, "Done."))
    states = [part.state for part in result.session.messages[1].get_calls()]
    assert [state.status for state in states] == ["completed", "completed", "error"]  # a declared path is outside
