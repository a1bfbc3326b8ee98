"""Faults of streams and responses on all four wires, over real connections: a run ends as it would without the fault,
or with a typed error, and no call runs twice."""

import gzip
import json
import re
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import msgspec
import pytest

from outrider import Agent, Provider, Session, Tool, async_run
from outrider.errors import AuthenticationError, InvalidRequestError, MalformedAnswerError, NetworkError, RateLimitError
from outrider.providers.scripted import call
from outrider.testing.simulator_answers import SIMULATED_APIS, SimulatedApi
from outrider.types.parts import RetryPart, TextPart, ToolPart, is_withdrawn
from outrider.types.request import RetryPolicy
from tests.fixtures.http_server import Reply, serving

TEXT = "Hello wörld 👋"
SSE = {"content-type": "text/event-stream"}
JSON = {"content-type": "application/json"}
each_kind = pytest.mark.parametrize("kind", list(SIMULATED_APIS))


def frames(vendor: SimulatedApi, *pieces: Any) -> list[bytes]:
    found = list(vendor.stream(list(pieces) or [TEXT, call("add", "c1", a=1, b=2)]))
    assert all(isinstance(frame, bytes) for frame in found)
    return found  # type: ignore[return-value]


def swap(given: list[bytes], old: str | bytes, new: str | bytes, count: int = -1) -> list[bytes]:
    old, new = (text.encode() if isinstance(text, str) else text for text in (old, new))
    joined = b"\0".join(given)
    assert old in joined, (old, joined)
    return joined.replace(old, new, count).split(b"\0")


def before_text(given: list[bytes]) -> int:
    return next(at for at, frame in enumerate(given) if "wörld".encode() in frame)


def error_event(vendor: SimulatedApi, payload: dict[str, Any]) -> bytes:
    data = json.dumps(payload).encode()
    if vendor.kind == "openai-responses":
        data = json.dumps({"type": "error", **payload["error"]}).encode()
    name = b"event: error\n" if vendor.kind in ("anthropic", "openai-responses") else b""
    return name + b"data: " + data + b"\n\n"


def overload(vendor: SimulatedApi) -> dict[str, Any]:
    return vendor.error_body(vendor.overloaded)


REJECTIONS = {
    "anthropic": {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}},
    "openai": {
        "error": {"message": "Incorrect API key provided", "type": "invalid_request_error", "code": "invalid_api_key"}
    },
    "openai-responses": {
        "error": {"message": "Incorrect API key", "type": "invalid_request_error", "code": "invalid_api_key"}
    },
    "google": {"error": {"code": 401, "message": "API key not valid.", "status": "UNAUTHENTICATED"}},
}
NAMELESS_ERROR = b'event: error\ndata: {"error": {"message": "Overloaded, try again later", "code": 503}}\n\n'
Fault = Callable[[SimulatedApi, list[bytes]], Reply]


def raw(head: str, body: bytes) -> Reply:
    return Reply(raw=f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{head}\r\n".encode() + body)


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


def cut_in_character(vendor: SimulatedApi, given: list[bytes]) -> Reply:
    joined = b"".join(given)
    return Reply([joined[: joined.index("ö".encode()) + 1]], after="reset")


def cut_in_json(vendor: SimulatedApi, given: list[bytes]) -> Reply:
    at = before_text(given)
    return Reply([*given[:at], given[at][: len(given[at]) // 2]], after="close")


def broken_event(vendor: SimulatedApi, given: list[bytes]) -> Reply:
    at = before_text(given)
    return Reply([*given[:at], given[at].rstrip()[:-9] + b"\n\n", *given[at + 1 :]])


REPEATED: dict[str, Fault] = {
    "cut inside a character": cut_in_character,
    "cut inside JSON": cut_in_json,
    "an event that is truncated": broken_event,
    "an overload after text": lambda v, f: Reply([*f[: before_text(f) + 1], error_event(v, overload(v))]),
    "an overload as the first event": lambda v, f: Reply([error_event(v, overload(v))]),
    "an overload after a call": lambda v, f: Reply([*f[:-1][: len(f) - 2], error_event(v, overload(v))]),
    "200 with an overload as JSON": lambda v, f: Reply([json.dumps(overload(v)).encode()], 200, JSON),
    "200 with nothing": lambda v, f: Reply([], 200, SSE, after="close"),
    "200 with white space": lambda v, f: Reply([b"\n\n \n"], 200, SSE, after="close"),
    "200 with comments only": lambda v, f: Reply([b": keep-alive\n\n" * 3], 200, SSE, after="close"),
    "no status line": lambda v, f: Reply(raw=b"garbage\r\n\r\n"),
    "a response that ends in its head": lambda v, f: Reply(raw=b"HTTP/1.1 200 OK\r\ncontent-ty"),
    "a chunk size that is no number": lambda v, f: raw(
        "transfer-encoding: chunked\r\n", chunked(f[0]) + b"zz\r\nx\r\n"
    ),
    "a chunk that is cut": lambda v, f: raw("transfer-encoding: chunked\r\n", chunked(b"".join(f[:-1]))[:-40]),
    "fewer bytes than announced": lambda v, f: raw("content-length: 99999\r\n", b"".join(f[: before_text(f) + 1])),
    "gzip that is cut": lambda v, f: raw("content-encoding: gzip\r\n", gzip.compress(b"".join(f))[:-60]),
    "gzip that is none": lambda v, f: raw("content-encoding: gzip\r\n", b"".join(f)),
    "gzip with a wrong checksum": lambda v, f: raw(
        "content-encoding: gzip\r\n", gzip.compress(b"".join(f[:-1]))[:-8] + b"\0" * 8
    ),
    "500 with a page": lambda v, f: Reply(
        [b"<html><h1>Internal Error</h1></html>"], 500, {"content-type": "text/html"}
    ),
    "502 without a body": lambda v, f: Reply([], 502, {}),
    "503 with text": lambda v, f: Reply([b"upstream connect error"], 503, {"content-type": "text/plain"}),
    "529 with an unknown shape": lambda v, f: Reply([b'{"detail":[{"msg":"busy"}]}'], 529, JSON),
    "429 with milliseconds": lambda v, f: Reply(
        [json.dumps(overload(v)).encode()], 429, JSON | {"retry-after-ms": "20"}
    ),
    "429 with a fraction": lambda v, f: Reply([b"{}"], 429, JSON | {"retry-after": "0.02"}),
    "429 with a date": lambda v, f: Reply(
        [b"{}"], 429, JSON | {"retry-after": formatdate(time.time() + 1, usegmt=True)}
    ),
    "429 with a date in the past": lambda v, f: Reply(
        [b"{}"], 429, JSON | {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}
    ),
    "429 with words": lambda v, f: Reply([b"{}"], 429, JSON | {"retry-after": "soon, maybe"}),
    "429 with a negative number": lambda v, f: Reply([b"{}"], 429, JSON | {"retry-after": "-5"}),
    "429 with infinity": lambda v, f: Reply([b"{}"], 429, JSON | {"retry-after": "inf"}),
    "an error body that is cut": lambda v, f: Reply(
        raw=b'HTTP/1.1 503 x\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{"error": {"mess'
    ),
    "a reset before the head": lambda v, f: Reply(status=0, after="reset"),
    "an error event without a type": lambda v, f: Reply(
        [*f[: before_text(f) + 1], NAMELESS_ERROR, *f[before_text(f) + 1 :]]
    ),
    "an error beside the answer": lambda v, f: Reply([*f[:-1], error_event(v, overload(v)), f[-1]]),
}


def unchanged_bytes(transform: Callable[[bytes], bytes]) -> Fault:
    return lambda v, f: Reply([transform(b"".join(f))])


def one_by_one(vendor: SimulatedApi, given: list[bytes]) -> Reply:
    return Reply([bytes([byte]) for byte in b"".join(given)])


HARMLESS: dict[str, Fault] = {
    "byte by byte": one_by_one,
    "CRLF": unchanged_bytes(lambda body: body.replace(b"\n", b"\r\n")),
    "CR": unchanged_bytes(lambda body: body.replace(b"\n", b"\r")),
    "a byte order mark": unchanged_bytes(lambda body: b"\xef\xbb\xbf" + body),
    "no space after the colon": unchanged_bytes(
        lambda body: body.replace(b"data: ", b"data:").replace(b"event: ", b"event:")
    ),
    "comments and pings between": lambda v, f: Reply(
        [b for frame in f for b in (b": ping\n\n", b"retry: 100\n\n", frame, b"event: ping\ndata: {}\n\n")]
    ),
    "ids of events": lambda v, f: Reply([b"id: %d\n%b" % (at, frame) for at, frame in enumerate(f)]),
    "leading blank lines": unchanged_bytes(lambda body: b"\n\n\r\n" + body),
    "the type application/json": lambda v, f: Reply(f, headers=JSON),
    "the type text/plain": lambda v, f: Reply(f, headers={"content-type": "text/plain; charset=latin-1"}),
    "no type": lambda v, f: Reply(f, headers={}),
    "gzip": lambda v, f: raw("content-encoding: gzip\r\n", gzip.compress(b"".join(f))),
    "more after the end": lambda v, f: Reply([*f, b'data: {"surprise": true}\n\n', b"data: not json\n\n"]),
    "a reset after the end": lambda v, f: Reply(f, after="reset"),
    "escaped characters": unchanged_bytes(
        lambda body: body.replace("ö".encode(), b"\\u00f6").replace("👋".encode(), b"\\ud83d\\udc4b")
    ),
    "no last blank line": unchanged_bytes(lambda body: body.rstrip(b"\n") + b"\n"),
    "unknown fields": unchanged_bytes(lambda body: re.sub(rb'data: \{"', b'data: {"obfuscation":{"x":[1]},"', body)),
}


class Calls:
    def __init__(self) -> None:
        self.made: list[tuple[int, int]] = []

    @property
    def tool(self) -> Tool:
        def add(a: int, b: int) -> int:
            """Add."""
            self.made.append((a, b))
            return a + b

        return Tool(add)


async def answer(
    kind: str, calls: Calls, *replies: Reply, session: Session | None = None, **agent: Any
) -> tuple[Any, Session, int]:
    vendor, session = SIMULATED_APIS[kind], session or Session()
    policy = agent.pop("retry", RetryPolicy(attempts=4, first_window=0.01, largest_window=0.02))
    async with serving(*replies) as server:
        provider = Provider("p", kind, "sk-SECRET-1234567890", server.url + vendor.base)  # type: ignore[arg-type]
        writer = Agent("writer", "You write.", vendor.model, "p", retry=policy, **agent)
        result = await async_run(writer, "go", [writer], [calls.tool], [provider], session=session)
        problems = [vendor.problem(msgspec.json.decode(seen.body)) for seen in server.requests]
    assert problems == [None] * len(problems)
    return result, session, len(server.requests)


def shown(session: Session) -> list[tuple[str, Any]]:
    """The transcript without withdrawn parts: texts, and calls with input and result."""
    found: list[tuple[str, Any]] = []
    for message in session.messages:
        for part in message.parts:
            if is_withdrawn(part):
                continue
            if isinstance(part, TextPart) and message.role == "assistant":
                found.append(("text", part.text))
            elif isinstance(part, ToolPart):
                found.append(("call", (part.tool, part.state.input, getattr(part.state, "output", None))))
    return found


WANTED = [("text", TEXT), ("call", ("add", {"a": 1, "b": 2}, "3")), ("text", "It is 3.")]


def replies(vendor: SimulatedApi, fault: Fault | None = None) -> list[Reply]:
    first = frames(vendor)
    good = [Reply(first), Reply(frames(vendor, "It is 3."))]
    return good if fault is None else [fault(vendor, first), *good]


@each_kind
@pytest.mark.parametrize("fault", list(REPEATED.values()), ids=list(REPEATED))
async def test_a_fault_is_repeated_and_leaves_the_transcript_of_an_unbroken_stream(kind: str, fault: Fault):
    calls = Calls()
    result, session, requests = await answer(kind, calls, *replies(SIMULATED_APIS[kind], fault))
    assert (result.output, shown(session)) == ("It is 3.", WANTED)
    assert (calls.made, requests) == ([(1, 2)], 3)


@each_kind
@pytest.mark.parametrize("fault", list(HARMLESS.values()), ids=list(HARMLESS))
async def test_an_unusual_stream_is_read_without_a_repetition(kind: str, fault: Fault):
    vendor, calls = SIMULATED_APIS[kind], Calls()
    result, session, requests = await answer(
        kind, calls, fault(vendor, frames(vendor)), Reply(frames(vendor, "It is 3."))
    )
    assert (result.output, shown(session)) == ("It is 3.", WANTED)
    assert (calls.made, requests) == ([(1, 2)], 2)


@each_kind
@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (lambda v, f: Reply([json.dumps(REJECTIONS[v.kind]).encode()], 200, JSON), AuthenticationError),
        (lambda v, f: Reply([error_event(v, REJECTIONS[v.kind])]), AuthenticationError),
        (
            lambda v, f: Reply([b"<!doctype html><title>Sign in</title>"], 200, {"content-type": "text/html"}),
            MalformedAnswerError,
        ),
        (lambda v, f: Reply([b"{}"], 429, JSON | {"retry-after": "86400"}), RateLimitError),
        (lambda v, f: Reply([b"{}"], 429, JSON | {"retry-after-ms": "86400000"}), RateLimitError),
        (lambda v, f: Reply([b"{}"], 429, JSON | {"retry-after": "Wed, 21 Oct 2099 07:28:00 GMT"}), RateLimitError),
        (lambda v, f: Reply([], 307, {"location": "https://elsewhere.example/"}), InvalidRequestError),
    ],
    ids=[
        "200 with a refusal",
        "a refusal in the stream",
        "a page",
        "retry after a day",
        "in ms",
        "as a date",
        "redirect",
    ],
)
async def test_an_error_that_stays_is_raised_at_once_and_the_next_turn_works(
    kind: str, reply: Fault, error: type[Exception]
):
    vendor, calls = SIMULATED_APIS[kind], Calls()
    session = Session()
    with pytest.raises(error) as raised:
        await answer(kind, calls, reply(vendor, frames(vendor)), Reply(frames(vendor, "never")), session=session)
    assert "SECRET" not in str(raised.value)
    assert not [part for part in session.messages[-1].parts if isinstance(part, RetryPart)]
    result, _, _ = await answer(kind, calls, *replies(vendor), session=session)
    assert (result.output, calls.made) == ("It is 3.", [(1, 2)])


@each_kind
async def test_a_fault_that_does_not_pass_ends_with_its_error_after_the_attempts(kind: str):
    vendor, calls = SIMULATED_APIS[kind], Calls()
    session = Session()
    with pytest.raises(NetworkError):
        await answer(kind, calls, cut_in_json(vendor, frames(vendor)), session=session)
    assert len([part for part in session.messages[-1].parts if isinstance(part, RetryPart)]) == 3
    assert calls.made == []
    result, _, _ = await answer(kind, calls, *replies(vendor), session=session)
    assert result.output == "It is 3."


@each_kind
@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [("\\ud83d", "\\ude00", "😀"), ("a\\ud83d", "\\ude00b", "a😀b"), ("x\\ud83d", "y", "x\ufffdy")],
)
async def test_a_surrogate_pair_over_two_deltas_is_one_character_and_a_lone_one_is_replaced(
    kind, first, second, joined
):
    vendor = SIMULATED_APIS[kind]
    given = [frame.replace(b"AA", first.encode()).replace(b"ZZ", second.encode()) for frame in frames(vendor, "AAZZ")]
    result, session, _ = await answer(kind, Calls(), Reply(given), Reply(frames(vendor, "next")))
    assert result.output == joined
    result, _, _ = await answer(kind, Calls(), Reply(frames(vendor, "next")), session=session)
    assert result.output == "next"


@each_kind
async def test_calls_with_the_same_id_run_once_each_and_are_paired(kind: str):
    vendor, calls = SIMULATED_APIS[kind], Calls()
    twice = frames(vendor, call("add", "same", a=1, b=2), call("add", "same", a=3, b=4))
    result, session, _ = await answer(kind, calls, Reply(twice), Reply(frames(vendor, "done")))
    assert (result.output, sorted(calls.made)) == ("done", [(1, 2), (3, 4)])
    parts = [part for message in session.messages for part in message.get_parts_by_type(ToolPart)]
    assert len({part.call_id for part in parts}) == 2


@each_kind
async def test_an_answer_without_content_ends_and_the_session_continues(kind: str):
    vendor = SIMULATED_APIS[kind]
    empty = [
        frame for frame in frames(vendor, "x") if b'"x"' not in frame or b"finish" in frame or b"completed" in frame
    ]
    empty = [frame.replace(b'"x"', b'""') for frame in empty]
    _, session, _ = await answer(kind, Calls(), Reply(empty), Reply(frames(vendor, "now")))
    result, _, _ = await answer(kind, Calls(), Reply(frames(vendor, "now")), session=session)
    assert result.output == "now"


@each_kind
async def test_every_event_twice_runs_each_call_at_most_once_per_id(kind: str):
    vendor, calls = SIMULATED_APIS[kind], Calls()
    doubled = [copy for frame in frames(vendor) for copy in (frame, frame)]
    result, _, _ = await answer(
        kind, calls, Reply(doubled), Reply(frames(vendor, "fine")), Reply(frames(vendor, "fine"))
    )
    assert result.output == "fine"
    assert len(calls.made) <= 2


@each_kind
async def test_a_text_of_many_megabytes_in_one_event_is_read(kind: str):
    vendor = SIMULATED_APIS[kind]
    result, _, _ = await answer(kind, Calls(), Reply(swap(frames(vendor, "AAZZ"), "ZZ", "x" * 4_000_000)))
    assert len(result.output) == 4_000_002
