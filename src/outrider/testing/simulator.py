"""A local server for the four model APIs that gives scripted answers, rejects what the vendors reject, and fails as
they fail."""

import asyncio
import contextlib
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any, Never, Self, cast

import msgspec
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from outrider._sync import cancel_tasks
from outrider.errors import ConfigurationError
from outrider.testing.model_rules import is_other_vendors, model_exists
from outrider.testing.simulator_answers import (
    SIMULATED_APIS,
    WAITS,
    AnswerPiece,
    ApiKind,
    BrokenConnection,
    Frame,
    MalformedCall,
    PayloadChange,
    RecordedAnswer,
    SimulatedApi,
    SimulatedError,
    call,
    read_cassette_answers,
    read_script_file,
    sample_arguments,
)
from outrider.testing.simulator_rules import ApiRules, Body, as_camel_case
from outrider.types.agents import Provider
from outrider.types.parts import ToolUsePart
from outrider.types.validate import ArgumentsMeta, check_names


class SimulatedRequest(msgspec.Struct, frozen=True):
    """A request that the simulator has received, as JSON and as the bytes of its `raw` body. The properties read it in
    the same way for every API."""

    kind: ApiKind
    model: str
    body: Body
    streaming: bool = True
    raw: bytes = b""

    @property
    def texts(self) -> list[str]:
        """Texts of the user in order, without the state of the workspace that the engine adds."""
        return self._rules.texts(self.body)

    @property
    def results(self) -> list[str]:
        """Texts of all tool results in order."""
        return self._rules.results(self.body)

    @property
    def system(self) -> str:
        """The system prompt."""
        return self._rules.system(self.body)

    @property
    def signatures(self) -> list[str]:
        """Signatures of the reasoning that is sent back."""
        return self._rules.signatures(self.body)

    @property
    def output_schema(self) -> Body | None:
        """JSON schema of the requested output."""
        return self._rules.output_schema(self.body)

    @property
    def tools(self) -> dict[str, Body]:
        """Schemas of the offered functions by name."""
        offered: list[Any] = self.body.get("tools") or []
        if self.kind == "google":
            functions = [function for tool in offered for function in tool.get("functionDeclarations") or ()]
            return {
                function["name"]: function.get("parametersJsonSchema") or function.get("parameters") or {}
                for function in functions
            }
        if self.kind == "anthropic":
            return {tool["name"]: tool["input_schema"] for tool in offered if "input_schema" in tool}
        functions = [tool.get("function", tool) for tool in offered if tool.get("type", "function") == "function"]
        return {function["name"]: function.get("parameters") or {} for function in functions}

    @property
    def _rules(self) -> ApiRules:
        return SIMULATED_APIS[self.kind].rules


Answer = str | SimulatedError | RecordedAnswer | Sequence[AnswerPiece] | AnswerPiece
AnswerFunction = Callable[[SimulatedRequest], Answer]
Script = Iterable[Answer | AnswerFunction] | AnswerFunction | Path
_Answers = list[Any] | Callable[[SimulatedRequest], Any]


class Chaos(msgspec.Struct, frozen=True, kw_only=True, metaclass=ArgumentsMeta):
    """Faults of a simulator. The value of a fault is the share of requests that have it, from 0 to 1; one request has
    at most one fault.

    - `seed`: the same seed gives the same faults to the same requests.
    - `rate_limit`: status 429 with `retry-after`, in place of an answer.
    - `overloaded`: status 529 or 503, in place of an answer.
    - `server_error`: status 500, in place of an answer.
    - `cut`: the connection ends in any event of the answer.
    - `stall`: nothing is sent for `stall_seconds` in the middle of the answer.
    - `trickle`: the answer is sent a few bytes at a time.
    - `wrong_usage`: token counts are missing, zero or too large.
    - `malformed_json`, `truncated_json`, `duplicate_ids`: faults in the calls of the answer.
    - `many_calls`: `calls` calls in one answer.
    - `retry_after`: seconds in the header `retry-after`.
    - `stall_seconds`, `calls`: settings of `stall` and `many_calls`."""

    seed: int = 0
    rate_limit: float = 0.0
    overloaded: float = 0.0
    server_error: float = 0.0
    cut: float = 0.0
    stall: float = 0.0
    trickle: float = 0.0
    wrong_usage: float = 0.0
    malformed_json: float = 0.0
    truncated_json: float = 0.0
    duplicate_ids: float = 0.0
    many_calls: float = 0.0
    retry_after: float = 1.0
    stall_seconds: float = 30.0
    calls: int = 1_000

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value, maximum = getattr(self, name), 1 if name in FAULTS else inf
            if name != "seed" and not (isinstance(value, int | float) and 0 <= value <= maximum):
                expected = "a share of requests, from 0 to 1" if name in FAULTS else "a number of at least 0"
                raise ConfigurationError(f"Chaos({name}={value!r}): it is {expected}")

    @classmethod
    def of_every_kind(cls, share: float, **settings: Any) -> Self:
        """Returns faults of all kinds with equal shares, which add up to `share`."""
        return cls(**dict.fromkeys(FAULTS, share / len(FAULTS)), **settings)

    def choose_fault(self, number: int) -> tuple[str, random.Random]:
        """Returns the fault of a request, "" for none, and the source of its random choices."""
        chance = random.Random(f"{self.seed}:{number}")
        drawn = chance.random()
        for name in FAULTS:
            drawn -= cast("float", getattr(self, name))
            if drawn < 0:
                return name, chance
        return "", chance


_ERRORS = ("rate_limit", "overloaded", "server_error")
_READ_BYTES = 65_536
_CALL_FAULTS = ("malformed_json", "truncated_json", "duplicate_ids", "many_calls")
FAULTS = (*_ERRORS, "cut", "stall", "trickle", "wrong_usage", *_CALL_FAULTS)
"""Names of the faults of `Chaos`."""


class Simulator:
    """Local server for Anthropic Messages, OpenAI Chat Completions, OpenAI Responses and Gemini, streaming or not.

    Use it with `with` (in a thread) or `async with` (in this loop). A request that breaks a rule of its API gets the
    vendor's error and no answer. The attribute `requests` has the accepted requests, `rejected` the errors of the
    others, and `faults` the faults of `chaos` by request number.

    - `script`: a list of answers, used in order by all APIs, a function that returns the answer to a request, or the
      path of a script file (`.toml`, `.json`) or a cassette (`.jsonl`). An answer is a string, a list of pieces
      (strings, calls made with `call`, `SimulatedReasoning`, …), or a `SimulatedError`.
    - `delay`: seconds between two events of a stream.
    - `context_tokens`: the limit of a request, at four characters a token.
    - `chaos`: the faults.
    - `latency`: the median number of seconds until the first event.
    - `tokens_per_second`: the rate at which text is sent.
    - `any_model`: whether to accept models that the vendor does not have.
    - `log`: a file that gets a JSON line for every request.
    - `port`: the port to listen on; 0 selects a free one.
    - `tls`: makes the server use HTTPS.
    - `tls_delay`: seconds before each handshake.
    """

    def __init__(
        self,
        script: Script,
        *,
        delay: float = 0.0,
        context_tokens: int | None = None,
        chaos: Chaos | None = None,
        latency: float = 0.0,
        tokens_per_second: float = 0.0,
        any_model: bool = False,
        log: Path | None = None,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        tls_delay: float = 0.0,
        **unknown: Never,
    ) -> None:
        check_names("Simulator()", unknown, sorted(vars(self.__class__)["__init__"].__kwdefaults__))
        self.requests: list[SimulatedRequest] = []
        self.rejected: list[str] = []
        self.faults: dict[int, str] = {}
        self.disconnected = asyncio.Event()
        """Set when a client closes its connection in the middle of an answer."""
        self._script = _read_script(script)
        numbers = {"delay": delay, "context_tokens": context_tokens, "latency": latency, "tls_delay": tls_delay}
        for name, value in (numbers | {"tokens_per_second": tokens_per_second, "port": port}).items():
            if value is not None and not (isinstance(value, int | float) and value >= 0):  # pyright: ignore
                raise ConfigurationError(f"Simulator({name}={value!r}): it is a number of at least 0")
        if chaos is not None and not isinstance(chaos, Chaos):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"Simulator(chaos={chaos!r}): write chaos=Chaos(cut=0.3)")
        self._delay = delay
        self._context_tokens = context_tokens
        self._chaos = chaos or Chaos()
        self._latency = latency
        self._tokens_per_second = tokens_per_second
        self._any_model = any_model
        self._log = log
        self._port = port
        self._tls = tls
        self._tls_delay = tls_delay
        self._count = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._thread: _ServerThread | None = None

    def url(self, kind: ApiKind = "anthropic") -> str:
        """Returns the base URL of an API."""
        if kind not in SIMULATED_APIS:
            raise ConfigurationError(f"the simulator has no API {kind!r}; it has {', '.join(SIMULATED_APIS)}")
        if not self._port:
            raise ConfigurationError("the simulator is not open; use it inside `with Simulator(…) as simulator:`")
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._port}{SIMULATED_APIS[kind].base}"

    def provider(self, kind: ApiKind = "anthropic", name: str = "simulator", **options: Any) -> Provider:
        """Returns a provider that sends its requests to this server."""
        if kind == "openai":
            options.setdefault("dialect", "openai")
        return Provider(name, kind, "key", self.url(kind), options=options)

    def check(self) -> None:
        """Raises AssertionError if a request was rejected."""
        assert not self.rejected, f"rejected requests: {self.rejected}"

    async def __aenter__(self) -> Self:
        if self._tls is not None:
            self._port = self._listen_with_tls(self._tls)
            return self
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, limit=2**20)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        await cancel_tasks(self._connections)

    def __enter__(self) -> Self:
        self._thread = _ServerThread(self)
        self._thread.start()
        self._thread.started.wait()
        if self._thread.error is not None:
            raise self._thread.error
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._thread.stop()

    def _listen_with_tls(self, tls: ssl.SSLContext) -> int:
        """Accepts connections without asyncio's server, which would start a handshake at once."""
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", self._port))
        listener.settimeout(0)

        async def greet(peer: socket.socket) -> None:
            await asyncio.sleep(self._tls_delay)
            reader = asyncio.StreamReader(limit=2**20)
            protocol = asyncio.StreamReaderProtocol(reader, self._accept)
            with contextlib.suppress(OSError):
                await loop.connect_accepted_socket(lambda: protocol, peer, ssl=tls)

        async def listen() -> None:
            with listener:
                while True:
                    peer, _ = await loop.sock_accept(listener)
                    self._start(greet(peer))

        self._start(listen())
        return listener.getsockname()[1]

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        connection = _HttpConnection(reader, writer)
        try:
            while (request := await connection.read_request()) and await self._serve_request(connection, request):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            self.disconnected.set()  # a canceled handler would be reported as an error by asyncio
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve_request(self, connection: "_HttpConnection", request: "_HttpRequest") -> bool:
        """Returns whether the connection can take another request."""
        target, data = request.target, request.body
        api = _find_api(target)
        if api is None:
            body, status = _other_response(request.method, target, data)
            return await connection.send_json(body, status)
        self._count += 1
        number, started = self._count, time.monotonic()
        answer = self._answer(api, target, request.headers, data)
        try:
            return await self._send_answer(connection, api, answer, number, sse=_wants_sse(api, target))
        finally:
            self._write_log(api, answer, data, number, time.monotonic() - started)

    async def _send_answer(
        self,
        connection: "_HttpConnection",
        api: SimulatedApi,
        answer: "SimulatedError | tuple[SimulatedRequest, list[Any]]",
        number: int,
        *,
        sse: bool,
    ) -> bool:
        fault, chance = self._chaos.choose_fault(number)
        if self._latency:
            await asyncio.sleep(self._latency * chance.lognormvariate(0, 0.5))
        if isinstance(answer, SimulatedError):
            return await connection.send_json(api.error_body(answer), answer.status, answer.headers)
        request, pieces = answer
        if fault in _ERRORS:
            error = _fault_error(api, fault, self._chaos)
            self.faults[number] = fault
            return await connection.send_json(api.error_body(error), error.status, error.headers)
        changed_pieces = _change_calls(pieces, fault, self._chaos, chance) if fault in _CALL_FAULTS else pieces
        if fault and (fault not in _CALL_FAULTS or changed_pieces is not pieces):
            self.faults[number] = fault
        change = _wrong_usage(chance) if fault == "wrong_usage" else None
        if pieces and isinstance(pieces[0], RecordedAnswer):
            recorded = pieces[0]
            frames = self._disturbed(_recorded_frames(recorded), fault, chance)
            return await connection.send_frames(frames, recorded.headers.get("content-type", ""), recorded.status)
        while changed_pieces and isinstance(
            changed_pieces[0], asyncio.Event | float | int
        ):  # before the head of the response
            await connection.wait_for(changed_pieces[0])
            changed_pieces = changed_pieces[1:]
        if request.streaming and sse:
            size = 4 if self._tokens_per_second else 0
            frames = self._delayed(api.stream(changed_pieces, request.model, size=size, change=change))
            return await connection.send_frames(self._disturbed(frames, fault, chance))
        for piece in changed_pieces:
            if isinstance(piece, WAITS):
                await connection.wait_for(piece)
        content = msgspec.json.encode(_whole_body(api, request, changed_pieces, change))
        halves: list[Frame] = [content[: len(content) // 2], content[len(content) // 2 :]]
        return await connection.send_frames(self._disturbed(iter(halves), fault, chance), "application/json")

    def _answer(
        self, api: SimulatedApi, target: str, headers: dict[str, str], data: bytes
    ) -> SimulatedError | tuple[SimulatedRequest, list[Any]]:
        error = _access_error(api, headers, data) or self._size_error(api, data)
        if error is None:
            request = msgspec.structs.replace(_read_request(api, target, msgspec.json.decode(data)), raw=data)
            error = find_request_error(api, request, any_model=self._any_model or "/deployments/" in target)
            if error is None:
                self.requests.append(request)
                answer = self._scripted(request)
                if isinstance(answer, SimulatedError):
                    return answer
                return request, list(cast("list[Any]", answer)) if isinstance(answer, list | tuple) else [answer]
        self.rejected.append(error.message)
        return error

    def _size_error(self, api: SimulatedApi, data: bytes) -> SimulatedError | None:
        if len(data) > api.max_bytes:
            return api.too_large
        return api.overflow if self._context_tokens is not None and len(data) > 4 * self._context_tokens else None

    def _next_answer(self, request: SimulatedRequest) -> Any:
        if callable(self._script):
            answer: Any = self._script(request)
        elif len(self.requests) <= len(self._script):
            answer = self._script[len(self.requests) - 1]
        else:
            answer = SimulatedError(400, f"the script has {len(self._script)} answers")
        return answer(request) if callable(answer) else answer

    def _scripted(self, request: SimulatedRequest) -> Any:
        """Returns the next answer. An error of the script is a rejection, because clients repeat failed requests."""
        try:
            return self._next_answer(request)
        except Exception as error:  # noqa: BLE001  a script is the code of a test and may raise anything
            self.rejected.append(f"the script raised {error!r}")
            return SimulatedError(400, self.rejected[-1])

    def _delayed(self, frames: Iterator[Frame]) -> Iterator[Frame]:
        pause = self._delay or (1 / self._tokens_per_second if self._tokens_per_second else 0.0)
        for frame in frames:
            yield frame
            if pause and isinstance(frame, bytes):
                yield pause

    def _disturbed(self, frames: Iterator[Frame], fault: str, chance: random.Random) -> Iterator[Frame]:
        if fault not in ("cut", "stall", "trickle"):
            yield from frames
            return
        frame_list = list(frames)
        events = [position for position, frame in enumerate(frame_list) if isinstance(frame, bytes)]
        fault_position = chance.choice(events)
        for position, frame in enumerate(frame_list):
            if fault == "trickle" and isinstance(frame, bytes):
                for start in range(0, len(frame), 7):
                    yield frame[start : start + 7]
                    yield 0.001
                continue
            if position == fault_position and fault == "cut" and isinstance(frame, bytes):
                yield frame[: chance.randrange(len(frame))]
                yield BrokenConnection()
                return
            if position == fault_position and fault == "stall":
                yield self._chaos.stall_seconds
            yield frame

    def _write_log(
        self,
        api: SimulatedApi,
        answer: SimulatedError | tuple[SimulatedRequest, list[Any]],
        data: bytes,
        number: int,
        seconds: float,
    ) -> None:
        if self._log is None:
            return
        failed, request = (answer, None) if isinstance(answer, SimulatedError) else (None, answer[0])
        fault = self.faults.get(number)
        status = failed.status if failed else _fault_error(api, fault, self._chaos).status if fault in _ERRORS else 200
        line: Body = {
            "number": number,
            "time": time.time(),
            "api": api.kind,
            "model": request.model if request else "",
            "streaming": bool(request and request.streaming),
            "status": status,
            "error": failed.message if failed else None,
            "fault": fault,
            "seconds": round(seconds, 4),
            "request": msgspec.Raw(data) if request else data.decode(errors="replace"),
        }
        with self._log.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")


def find_request_error(
    api: SimulatedApi, request: SimulatedRequest, *, any_model: bool = False
) -> SimulatedError | None:
    """Returns the error with which the vendor rejects a request; None if it accepts it. For models that other vendors
    serve with this API, only the conversation is checked."""
    is_foreign = is_other_vendors(api.kind, request.model)
    if not is_foreign and not any_model and request.model and not model_exists(api.kind, request.model):
        return _missing_model(api.kind, request.model)
    try:
        rules = (api.rules.conversation_problems, *(() if is_foreign else (api.rules.model_problems,)))
        problem = next((problem for rule in rules for problem in rule(request.body, request.model)), None)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        problem = f"Input does not match the expected shape: {error}"
    return None if problem is None else SimulatedError(400, problem)


def _missing_model(kind: str, model: str) -> SimulatedError:
    if kind == "anthropic":
        return SimulatedError(404, f"model: {model}", "not_found_error")
    if kind == "openai-responses":
        return SimulatedError(400, f"The requested model '{model}' does not exist.", "model_not_found")
    if kind == "google":
        supported = "is not found for API version v1beta, or is not supported for generateContent."
        return SimulatedError(404, f"models/{model} {supported} Call ListModels to see the list of available models.")
    if model.endswith("-instruct"):
        endpoint = "not supported in the v1/chat/completions endpoint. Did you mean to use v1/completions?"
        return SimulatedError(404, f"This is not a chat model and thus {endpoint}")
    return SimulatedError(
        404, f"The model `{model}` does not exist or you do not have access to it.", "model_not_found"
    )


def echo_answer(tool: str | None = None) -> AnswerFunction:
    """Returns a script that needs no file: it repeats the last input. With the name of a tool, or `any`, it calls that
    tool once with the smallest arguments that its schema accepts, and then repeats its result."""

    def answer(request: SimulatedRequest) -> Answer:
        offered = request.tools
        chosen = next(iter(offered), None) if tool == "any" else tool
        if chosen in offered and not request.results:
            arguments = sample_arguments({"type": "object"} | offered[chosen])
            return [f"I call {chosen}.", call(chosen, **arguments if isinstance(arguments, dict) else {})]
        if request.results:
            return f"The tool returned: {request.results[-1]}"
        return f"You wrote: {request.texts[-1] if request.texts else ''}"

    return answer


def _read_script(script: Script) -> _Answers:
    if isinstance(script, Path):
        return list(read_cassette_answers(script)) if script.suffix == ".jsonl" else _file_script(script)
    if callable(script):
        return script
    if isinstance(script, str) or not isinstance(script, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"the script of a simulator is a list of answers or a function, got {script!r}")
    return list(script)


def _file_script(path: Path) -> AnswerFunction:
    file = read_script_file(path)
    matching = [scripted for scripted in file.answers if scripted.when]
    ordered = [scripted for scripted in file.answers if not scripted.when for _ in range(scripted.times)]
    answer_count = 0

    def answer(request: SimulatedRequest) -> Answer:
        nonlocal answer_count
        last_texts = "\n".join([*request.texts[-1:], *request.results[-1:]])
        for scripted in matching:
            if scripted.when in last_texts:
                return scripted.to_answer()
        if not ordered or (answer_count >= len(ordered) and not file.repeat):
            return SimulatedError(400, f"{path.name} has {len(ordered)} answers without `when`, and all are given")
        answer_count += 1
        return ordered[(answer_count - 1) % len(ordered)].to_answer()

    return answer


def _fault_error(api: SimulatedApi, fault: str | None, chaos: Chaos) -> SimulatedError:
    seconds = str(max(1, round(chaos.retry_after))) if chaos.retry_after >= 1 else str(chaos.retry_after)
    if fault == "overloaded":
        return msgspec.structs.replace(api.overloaded, headers={"retry-after": seconds})
    if fault == "server_error":
        return SimulatedError(500, "Internal server error", "api_error" if api.kind == "anthropic" else "")
    kinds = {"anthropic": "rate_limit_error", "google": "RESOURCE_EXHAUSTED"}
    message = "Rate limit reached: the number of requests has exceeded your limit per minute. Please try again later."
    return SimulatedError(429, message, kinds.get(api.kind, "rate_limit_exceeded"), {"retry-after": seconds})


def _change_calls(pieces: list[Any], fault: str, chaos: Chaos, chance: random.Random) -> list[Any]:
    """Returns the pieces of an answer with a fault in its calls; the same list if it has none."""
    position = next((index for index, piece in enumerate(pieces) if isinstance(piece, ToolUsePart)), None)
    if position is None:
        return pieces
    use: ToolUsePart = pieces[position]
    before, after = pieces[:position], pieces[position + 1 :]
    if fault == "many_calls":
        return [*before, *(call(use.tool_name, **use.tool_input) for _ in range(chaos.calls)), *after]
    if fault == "duplicate_ids":
        return [*before, use, use, *after]
    text = msgspec.json.encode(use.tool_input).decode()
    damaged = text[: chance.randrange(len(text))] if fault == "truncated_json" else text.replace('"', "'") + ",}"
    return [*before, MalformedCall(use.tool_name, damaged, use.tool_id), *after]


def _wrong_usage(chance: random.Random) -> PayloadChange:
    how = chance.choice(("missing", "zero", "huge"))

    def change(payload: Body) -> Body:
        fields: Body = {}
        for name, value in payload.items():
            if name in ("usage", "usageMetadata"):
                if how != "missing":
                    factor = 0 if how == "zero" else 100_000
                    fields[name] = value and {key: n * factor for key, n in value.items() if isinstance(n, int)}
            else:
                fields[name] = change(cast("Body", value)) if isinstance(value, dict) else value
        return fields

    return change


def _whole_body(
    api: SimulatedApi, request: SimulatedRequest, pieces: list[Any], change: PayloadChange | None
) -> Body | list[Body]:
    """Returns an answer that is not sent as events. Gemini sends an array to a client that streams without them."""
    if request.streaming:
        return [payload[1] for payload in api.events(pieces, request.model, 0) if isinstance(payload, tuple)]
    body = api.body(pieces, request.model)
    return change(body) if change else body


def _recorded_frames(recorded: RecordedAnswer) -> Iterator[Frame]:
    *events, remainder = recorded.content.split(b"\n\n")
    yield from (event + b"\n\n" for event in events)
    if remainder:
        yield remainder
    if recorded.cut:
        yield BrokenConnection()


def _find_api(target: str) -> SimulatedApi | None:
    """Returns the API of a path. Clients put version and project in front of it."""
    path = target.partition("?")[0]
    for api in SIMULATED_APIS.values():
        if api.kind == "google" and "/models/" in path and "enerateContent" in path:
            return api
        if api.kind != "google" and path.endswith(api.path.removeprefix("/v1")):
            return api
    return None


def _wants_sse(api: SimulatedApi, target: str) -> bool:
    return api.kind != "google" or "alt=sse" in target


def _other_response(method: str, target: str, data: bytes) -> tuple[Body, int]:
    """Returns the response to what clients ask besides answers: the models, and the number of tokens."""
    path = target.partition("?")[0]
    if path.endswith(("/count_tokens", ":countTokens")):
        tokens = len(data) // 4
        return ({"totalTokens": tokens} if path.endswith(":countTokens") else {"input_tokens": tokens}), 200
    if method == "GET" and path.endswith("/models"):
        names = [api.model for api in SIMULATED_APIS.values()]
        models = [{"id": name, "name": f"models/{name}", "object": "model", "type": "model"} for name in names]
        return {"object": "list", "data": models, "models": models, "has_more": False}, 200
    return {"error": {"message": f"there is no {target}"}}, 404


class _ServerThread(threading.Thread):
    """Event loop of a simulator that is used in synchronous code."""

    def __init__(self, simulator: Simulator) -> None:
        super().__init__(name="simulator", daemon=True)
        self.started = threading.Event()
        self.error: OSError | None = None
        self._simulator = simulator
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()

    def run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self.join()

    async def _serve(self) -> None:
        try:
            async with self._simulator:
                self.started.set()
                await self._stopped.wait()
        except OSError as error:  # the port is in use
            self.error = error
            self.started.set()


class _HttpRequest(msgspec.Struct):
    method: str = ""
    target: str = ""
    headers: dict[str, str] = {}
    body: bytes = b""


class _HttpConnection:
    """Reads the requests of one client and writes the responses. The methods `on_…` are callbacks of the parser."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = HttpRequestParser(self)
        self._is_incomplete = False
        self._request, self._body = _HttpRequest(), bytearray()
        self._received: list[_HttpRequest] = []
        self._problem = ""

    async def read_request(self) -> _HttpRequest | None:
        """Returns the next request; None if the client has closed an idle connection or does not send HTTP."""
        while not self._received:
            if self._problem:
                await self.send_json({"error": {"message": f"this is not an HTTP request: {self._problem}"}}, 400)
                return None
            data = await self._reader.read(_READ_BYTES)
            if not data and self._is_incomplete:
                raise ConnectionResetError
            if not data:
                return None
            try:
                with contextlib.suppress(HttpParserUpgrade):  # an offer, which a server may ignore
                    self._parser.feed_data(data)
            except HttpParserError as error:
                self._problem = str(error)
        return self._received.pop(0)

    def on_message_begin(self) -> None:
        self._is_incomplete = True
        self._request, self._body = _HttpRequest(), bytearray()

    def on_url(self, url: bytes) -> None:
        self._request.target += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._request.headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        if self._request.headers.get("expect", "").lower() == "100-continue":
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._is_incomplete = False
        self._request.method, self._request.body = self._parser.get_method().decode(), bytes(self._body)
        self._received.append(self._request)

    async def send_json(
        self, body: Body | list[Body], status: int = 200, headers: dict[str, str] | None = None
    ) -> bool:
        data = msgspec.json.encode(body)
        fields = {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
        self._writer.write(_response_head(status, fields) + data)
        await self._writer.drain()
        return True

    async def send_frames(
        self, frames: Iterator[Frame], content_type: str = "text/event-stream", status: int = 200
    ) -> bool:
        self._writer.write(_response_head(status, {"content-type": content_type, "transfer-encoding": "chunked"}))
        for frame in frames:
            if isinstance(frame, bytes):
                if frame:  # an empty chunk would end the response
                    self._writer.write(b"%x\r\n%b\r\n" % (len(frame), frame))
                    await self._writer.drain()
            elif isinstance(frame, BrokenConnection):
                return False
            else:
                await self.wait_for(frame)
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()
        return True

    async def wait_for(self, pause: asyncio.Event | float | BrokenConnection) -> None:
        """Waits, and raises ConnectionResetError when the client closes the connection."""
        if isinstance(pause, BrokenConnection):
            raise ConnectionResetError
        waited = 0.0
        while not (pause.is_set() if isinstance(pause, asyncio.Event) else waited >= pause):
            step = 0.005 if isinstance(pause, asyncio.Event) else min(0.02, pause - waited)
            await asyncio.sleep(step)
            waited += step
            if self._reader.at_eof() or self._writer.is_closing():
                raise ConnectionResetError


def _response_head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Simulated", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _access_error(api: SimulatedApi, headers: dict[str, str], data: bytes) -> SimulatedError | None:
    if api.kind == "anthropic" and "anthropic-version" not in headers:
        return SimulatedError(400, "anthropic-version: header is required")
    names = {"anthropic": ("x-api-key", "authorization"), "google": ("x-goog-api-key", "authorization")}
    if not any(headers.get(name) for name in names.get(api.kind, ("authorization",))):
        return SimulatedError(401, "invalid x-api-key", "authentication_error" if api.kind == "anthropic" else "")
    try:
        if isinstance(msgspec.json.decode(data), dict):
            return None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    return SimulatedError(400, "We could not parse the JSON body of your request.")


def _read_request(api: SimulatedApi, target: str, body: Body) -> SimulatedRequest:
    if api.kind != "google":
        return SimulatedRequest(api.kind, body.get("model") or "", body, bool(body.get("stream")))
    model, _, method = target.partition(api.path)[2].partition("?")[0].partition(":")
    return SimulatedRequest(api.kind, model, as_camel_case(body), method == "streamGenerateContent")
