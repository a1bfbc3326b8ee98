"""A client over a real connection: what arrives is shown once, and failures end well."""

import asyncio
import gzip
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import (
    AuthenticationError,
    ConfigurationError,
    InvalidRequestError,
    MalformedAnswerError,
    NetworkError,
    OverloadedError,
    ProviderError,
    RateLimitError,
    StalledStreamError,
)
from outrider.http.client import HttpClient
from outrider.http.transport import HttpTimeouts
from outrider.providers.client import (
    JitterBackoff,
    ProviderRoute,
    RateLimit,
    RateLimiter,
    RepeatingClient,
    RequestAttempts,
    WireClient,
)
from outrider.providers.provider import assemble_answer
from outrider.providers.stream_filters import create_think_filter
from outrider.types.request import (
    AnswerStart,
    Delta,
    Finish,
    PartEnd,
    PartStart,
    Prompt,
    ReasoningDelta,
    Request,
    Retry,
    RetryPolicy,
    TextDelta,
    UsageReport,
)
from tests.fixtures.http_server import Pause, Reply, Server, serving, unused_port
from tests.fixtures.plain_wire import KEY, PlainWire, plain_request, text_stream

QUICK = RetryPolicy(attempts=3, first_window=0.01)
ONCE = RetryPolicy(attempts=1)
SHORT = HttpTimeouts(first_byte=1, idle=1, quiet=2, total=10)  # for servers that fall silent
CERTIFICATE = Path(__file__).parents[2] / "fixtures" / "self_signed.pem"
GOOD = Reply([text_stream("Hello", "world", "[END]")])


@asynccontextmanager
async def asking(*replies: Reply, **options: Any) -> AsyncIterator[tuple[WireClient, Server]]:
    async with serving(*replies) as server:
        transport = HttpClient(options.pop("timeouts", SHORT))
        retry = options.pop("retry", QUICK)
        client = WireClient("plain", PlainWire(server.url), transport, retry=retry, **options)
        try:
            yield client, server
        finally:
            await client.aclose()


async def ask(client: WireClient, got: list[Delta] | None = None) -> str:
    """The text of the answer; everything that was given out before a failure is in `got`."""
    got = [] if got is None else got
    async for delta in client.stream(plain_request()):
        got.append(delta)
    return text_of(got)


def text_of(deltas: list[Delta]) -> str:
    return " ".join(delta.text for delta in last_attempt(deltas) if isinstance(delta, TextDelta))


def last_attempt(deltas: list[Delta]) -> list[Delta]:
    """What no retry has withdrawn."""
    start = max((at + 1 for at, delta in enumerate(deltas) if isinstance(delta, Retry)), default=0)
    return deltas[start:]


async def test_an_answer_is_streamed_and_its_connection_used_again():
    async with asking(GOOD) as (client, server):
        assert await ask(client) == "Hello world"
        assert await ask(client) == "Hello world"
        assert [seen.connection for seen in server.requests] == [1, 1]
        assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("end", ["[END]", None], ids=["whole", "broken off"])
async def test_what_a_stage_holds_back_is_given_when_the_answer_ends_or_breaks_off(end: str | None):
    got: list[Delta] = []
    body = text_stream("<think>Well</think>", "So", "<thi", *([end] if end else []))
    async with asking(Reply([body], after="keep" if end else "reset"), create_filter=create_think_filter) as (
        client,
        _,
    ):
        if end:
            await ask(client, got)
        else:
            with pytest.raises(NetworkError):
                await ask(client, got)
    assert [delta.text for delta in last_attempt(got) if isinstance(delta, ReasoningDelta)] == ["Well"]
    assert text_of(got).split() == ["So", "<thi"]


async def test_deltas_are_given_out_as_they_arrive():
    got: list[Delta] = []

    def pieces() -> Iterator[bytes | Pause]:
        yield text_stream("a")
        while text_of(got) != "a":
            yield 0.01
        yield text_stream("b", "[END]")

    async with asking(Reply(pieces)) as (client, _), asyncio.timeout(30):
        assert await ask(client, got) == "a b"


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_a_passing_failure_is_asked_again(status: int):
    async with asking(Reply([b"wait"], status), GOOD) as (client, server):
        assert await ask(client) == "Hello world"
        assert len(server.requests) == 2


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 413, 422])
async def test_a_doomed_request_is_not_repeated(status: int):
    async with asking(Reply([b"no"], status), GOOD) as (client, server):
        with pytest.raises(ProviderError) as refused:
            await ask(client)
        assert (refused.value.status, refused.value.message, refused.value.provider) == (status, "no", "plain")
        assert len(server.requests) == 1


async def test_the_last_failure_is_raised_after_the_last_attempt():
    received: list[Delta] = []
    async with asking(Reply([b"full"], 529)) as (client, server):
        with pytest.raises(OverloadedError):
            await ask(client, received)
        assert len(server.requests) == 3
    retries = [delta for delta in received if isinstance(delta, Retry)]
    assert [(retry.attempt, retry.max_attempts) for retry in retries] == [(1, 3), (2, 3)]
    assert "full" in retries[0].error


@pytest.mark.parametrize(
    "broken",
    [
        Reply(status=0, after="reset"),
        Reply(status=0, after="drop"),
        Reply(after="reset"),
        Reply(after="drop"),
        Reply(after="keep"),
        Reply(after="stall"),
        Reply(status=0, after="stall"),
        Reply([b"event: start\ndata: 1\n\n"], after="reset"),
        Reply([b"event: error\ndata: overloaded_error\n\n"]),
    ],
)
async def test_an_attempt_that_showed_nothing_is_repeated(broken: Reply):
    async with asking(broken, GOOD) as (client, server):
        assert await ask(client) == "Hello world"
        assert len(server.requests) == 2


@pytest.mark.parametrize("after", ["reset", "drop", "keep", "stall"])
async def test_an_answer_that_breaks_off_is_requested_again_and_withdrawn(after: Any):
    got: list[Delta] = []
    async with asking(Reply([b"event: start\ndata: 1\n\n", text_stream("Hello")], after=after), GOOD) as (
        client,
        server,
    ):
        assert await ask(client, got) == "Hello world"
        assert len(server.requests) == 2
    assert [type(delta).__name__ for delta in got].count("Retry") == 1
    assert [delta for delta in got if isinstance(delta, UsageReport)]


class BareClient:
    """A client of a user, which does not repeat its requests."""

    name = "own"

    def __init__(self, *answers: list[Delta | ProviderError]) -> None:
        self.answers = list(answers)

    def model_family(self, model: str) -> str:
        return "own"

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        for item in self.answers.pop(0):
            if isinstance(item, ProviderError):
                raise item
            yield item

    async def aclose(self) -> None:
        pass


HALF: list[Delta | ProviderError] = [PartStart(0, "text"), TextDelta(0, "Hel")]
WHOLE: list[Delta | ProviderError] = [PartStart(0, "text"), TextDelta(0, "Hello"), PartEnd(0), Finish("stop")]


async def test_a_client_of_a_user_is_asked_again_after_output():
    policy = RetryPolicy(first_window=0.01, attempts=3)
    client = BareClient([*HALF, NetworkError("broken")], [OverloadedError("busy")], WHOLE)
    got = [delta async for delta in RepeatingClient(client).stream(Request("m", Prompt(), retry=policy))]
    assert [delta.attempt for delta in got if isinstance(delta, Retry)] == [1, 2]
    assert assemble_answer(got, "own").message.get_text_content() == "Hello"
    assert not client.answers


@pytest.mark.parametrize("error", [NetworkError("broken"), AuthenticationError("no key")])
async def test_a_client_of_a_user_fails_with_its_last_error(error: ProviderError):
    policy = RetryPolicy(first_window=0.01, attempts=2)
    client = BareClient(*[[*HALF, error]] * 2)
    with pytest.raises(type(error)):
        _ = [delta async for delta in RepeatingClient(client).stream(Request("m", Prompt(), retry=policy))]
    assert len(client.answers) == (0 if error.retryable else 1)


async def test_all_that_arrived_before_an_error_in_the_stream_is_given_out_first():
    got: list[Delta] = []
    async with asking(Reply([text_stream("a", "b") + b"event: error\ndata: overloaded_error\n\n"])) as (client, _):
        with pytest.raises(OverloadedError):
            await ask(client, got)
    assert text_of(got) == "a b"


async def test_an_answer_that_is_whole_does_not_care_how_its_connection_ends():
    for after in ("reset", "drop", "stall", "keepalive_open"):
        async with asking(Reply([text_stream("Hello", "[END]")], after=after)) as (client, _), asyncio.timeout(30):  # type: ignore[arg-type]
            assert await ask(client) == "Hello"


async def test_a_server_that_continues_after_the_end_is_not_listened_to():
    pings = [b": still here\n\n", 0.02] * 5000  # for more than a minute
    async with asking(Reply([text_stream("Hello", "[END]"), *pings])) as (client, _), asyncio.timeout(30):
        assert await ask(client) == "Hello"


async def test_a_silent_stream_is_cut():
    got: list[Delta] = []
    silent = Reply([text_stream("a")], after="stall")
    async with asking(silent, timeouts=HttpTimeouts(idle=0.3), retry=ONCE) as (client, server), asyncio.timeout(30):
        with pytest.raises(StalledStreamError):
            await ask(client, got)
        await server.requests[0].closed.wait()
    assert text_of(got) == "a"


async def test_keep_alives_hold_a_quiet_stream_open_but_not_for_ever():
    pings = [b": ping\n\n", 0.05] * 2000  # for more than a minute
    started = asyncio.get_running_loop().time()
    limits = HttpTimeouts(idle=0.8, quiet=1)
    answer = Reply([text_stream("a"), *pings])
    async with asking(answer, timeouts=limits, retry=ONCE) as (client, _), asyncio.timeout(30):
        with pytest.raises(StalledStreamError):
            await ask(client)
    assert asyncio.get_running_loop().time() - started > 0.9


async def test_a_stream_that_never_ends_is_cut_after_its_total_time():
    endless = Reply([text_stream("a"), 0.05] * 2000)
    async with asking(endless, timeouts=HttpTimeouts(total=0.4)) as (client, _), asyncio.timeout(30):
        with pytest.raises(StalledStreamError):
            await ask(client)


async def test_a_slow_reader_is_not_reported_as_a_silent_provider():
    async with asking(
        Reply([text_stream("a"), text_stream("b", "[END]")]), timeouts=HttpTimeouts(idle=0.5, total=0.5)
    ) as (
        client,
        _,
    ):
        got: list[Delta] = []
        async for delta in client.stream(plain_request()):
            got.append(delta)
            if isinstance(delta, TextDelta):
                await asyncio.sleep(0.8)
    assert text_of(got) == "a b"


@pytest.mark.parametrize("replies", [Reply([text_stream("a")], after="stall"), Reply(status=0, after="stall")])
async def test_cancelling_closes_the_connection_at_once(replies: Reply):
    async with asking(replies, timeouts=HttpTimeouts()) as (client, server):
        task = asyncio.create_task(ask(client))
        while not server.requests:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        task.cancel()
        async with asyncio.timeout(30):
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.requests[0].closed.wait()


async def test_closing_the_iterator_closes_the_connection_and_preserves_what_arrived():
    async with asking(Reply([b"event: start\ndata: 1\n\n"], after="stall"), timeouts=HttpTimeouts()) as (
        client,
        server,
    ):
        stream = client.stream(plain_request())
        got = [await anext(stream), await anext(stream)]
        async with asyncio.timeout(30):
            await stream.aclose()
            await server.requests[0].closed.wait()
    assert isinstance(got[0], AnswerStart)
    assert isinstance(got[1], UsageReport)


async def test_a_redirect_is_refused_and_the_key_stays_home():
    async with serving(GOOD) as other_server:
        moved = Reply(status=307, headers={"location": f"{other_server.url}/v1"})
        async with asking(moved) as (client, server):
            with pytest.raises(InvalidRequestError, match="redirects to"):
                await ask(client)
            assert len(server.requests) == 1
        assert other_server.requests == []


async def test_a_whole_answer_is_read_where_a_stream_was_expected():
    json = {"content-type": "application/json"}
    async with asking(Reply([b" \n\n", b'{"text":', b'"Hi"}'], headers=json)) as (client, _):
        assert await ask(client) == "Hi"


async def test_a_web_page_is_not_an_answer():
    page = Reply([b"<html>Sign in</html>"], headers={"content-type": "text/html"})
    async with asking(page, GOOD) as (client, server):
        with pytest.raises(MalformedAnswerError, match="web page"):
            await ask(client)
        assert len(server.requests) == 1


async def test_an_error_body_without_end_is_read_to_a_bound():
    endless = Reply(lambda: (b"x" * 65536 for _ in range(10_000)), 400)
    async with asking(endless) as (client, _), asyncio.timeout(30):
        with pytest.raises(InvalidRequestError) as refused:
            await ask(client)
    assert len(refused.value.message) < 10_000


@pytest.mark.parametrize("after", ["stall", "reset"])
async def test_a_refusal_is_raised_even_if_its_body_never_ends(after: Any):
    async with asking(Reply([b"bad key"], 401, after=after)) as (client, _), asyncio.timeout(30):
        with pytest.raises(AuthenticationError, match="bad key"):
            await ask(client)


async def test_a_compressed_stream_is_read_and_a_cut_one_is_not_whole():
    packed = gzip.compress(text_stream("Hello", "[END]"))
    headers = {"content-encoding": "gzip"}
    async with asking(Reply([packed], headers=headers)) as (client, _):
        assert await ask(client) == "Hello"
    async with asking(Reply([packed[:-12]], headers=headers)) as (client, _):
        with pytest.raises(NetworkError):
            await ask(client)


async def test_a_decoder_that_breaks_on_an_answer_ends_only_that_answer():
    async with asking(Reply([b"data: \xc3\xb6\n\n{\n\n[1]"], headers={"content-type": "application/json"})) as (
        client,
        _,
    ):
        with pytest.raises(ProviderError):
            await ask(client)
    async with asking(Reply([b'{"no text": 1}'])) as (client, _):
        with pytest.raises(MalformedAnswerError, match="cannot be read"):
            await ask(client)


async def test_a_key_that_the_provider_repeats_gets_nowhere(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    received: list[Delta] = []
    async with asking(Reply([f"your key is {KEY}".encode()], 500)) as (client, _):
        with pytest.raises(ProviderError) as refused:
            await ask(client, received)
    error = refused.value
    shown = [
        str(error),
        repr(error),
        error.message,
        str(error.args),
        str(error.details),
        caplog.text,
        *map(str, received),
    ]
    assert not [text for text in shown if KEY in text]
    assert "[hidden secret]" in error.message


@pytest.mark.parametrize("broken", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\n\r\nx"])
async def test_an_answer_that_is_not_http_is_a_typed_error_without_the_key(broken: bytes):
    async with asking(Reply(raw=broken)) as (client, _):
        with pytest.raises(NetworkError) as refused:
            await ask(client)
    chain: list[BaseException] = [refused.value]
    while (earlier := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(earlier)
    assert not [error for error in chain if KEY in repr(error) + str(vars(error))]


async def test_a_body_that_ends_with_its_connection_is_read():
    async with asking(Reply(raw=b"HTTP/1.0 200 OK\r\n\r\n" + text_stream("Hello", "[END]"))) as (client, _):
        assert await ask(client) == "Hello"


async def test_a_body_shorter_than_announced_is_preserved_and_not_whole():
    got: list[Delta] = []
    async with asking(Reply(raw=b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n" + text_stream("Hello"))) as (
        client,
        _,
    ):
        with pytest.raises(NetworkError):
            await ask(client, got)
    assert text_of(got) == "Hello"


async def test_a_refused_connection_is_a_clear_error():
    client = WireClient("plain", PlainWire(f"http://127.0.0.1:{unused_port()}"), retry=QUICK)
    with pytest.raises(NetworkError, match="no connection to"):
        await ask(client)
    await client.aclose()


async def test_an_address_that_cannot_be_called_is_a_mistake_of_configuration():
    client = WireClient("plain", PlainWire("nonsense"), retry=QUICK)
    with pytest.raises(ConfigurationError):
        await ask(client)
    await client.aclose()


async def test_a_large_request_leaves_in_one_piece():
    body = b"x" * 3_000_000
    async with serving(GOOD) as server:
        client = WireClient("plain", PlainWire(server.url, body))
        assert await ask(client) == "Hello world"
        await client.aclose()
        assert server.requests[0].body == body


async def test_a_proxy_is_used_when_one_is_chosen():
    async with serving(GOOD) as proxy:
        transport = HttpClient(proxy=lambda url: proxy.url)
        client = WireClient("plain", PlainWire("http://models.invalid"), transport)
        assert await ask(client) == "Hello world"
        await client.aclose()
        assert proxy.requests[0].target == "http://models.invalid/m"


async def test_a_connection_that_went_stale_in_the_pool_costs_one_more_attempt():
    async with asking(GOOD, Reply(status=0, after="reset"), GOOD) as (client, server):
        assert await ask(client) == "Hello world"
        assert await ask(client) == "Hello world"
        assert [seen.connection for seen in server.requests] == [1, 1, 2]


class LearningWire(PlainWire):
    """Finds out from a refusal that it must ask at another place."""

    def adapt_to_error(self, request: Request, error: ProviderError) -> bool:
        if not isinstance(error, InvalidRequestError) or self._url.endswith("/better"):
            return False
        self._url += "/better"
        return True


async def test_a_wire_format_that_learns_from_a_refusal_asks_again_at_once():
    async with serving(Reply([b"too much"], 400), GOOD) as server:
        client = WireClient("plain", LearningWire(server.url), retry=RetryPolicy(attempts=1))
        assert await ask(client) == "Hello world"
        await client.aclose()
        assert [seen.target for seen in server.requests] == ["/m", "/better/m"]


async def test_a_request_that_was_built_before_another_one_was_refused_learns_from_it_too():
    refusal = Reply([b"too much"], 400)
    async with serving(refusal, GOOD, refusal, GOOD) as server:
        route = ProviderRoute("plain", LearningWire(server.url), HttpClient(SHORT), JitterBackoff(QUICK))
        together = [RequestAttempts(route, plain_request()) for _ in range(2)]
        answers: list[str] = []
        for attempts in together:
            got: list[Delta] = []
            while (deltas := await attempts.read()) is not None:
                got += deltas
            attempts.close()
            answers.append(text_of(got))
        await route.transport.aclose()
        assert answers == ["Hello world"] * 2
        assert [seen.target for seen in server.requests] == ["/m", "/better/m"] * 2


async def test_a_wire_format_that_has_nothing_more_to_learn_gives_up():
    async with serving(Reply([b"too much"], 400)) as server:
        client = WireClient("plain", LearningWire(server.url))
        with pytest.raises(InvalidRequestError):
            await ask(client)
        await client.aclose()
        assert len(server.requests) == 2


async def test_attempts_reserve_their_place_and_settle_what_they_used():
    limiter = RateLimiter(RateLimit(requests_per_minute=2, tokens_per_minute=12))
    async with asking(GOOD, limiter=limiter) as (client, _):
        assert await ask(client) == "Hello world"
        with pytest.raises(TimeoutError):  # all 12 tokens of the minute are used
            async with asyncio.timeout(0.1):
                await limiter.reserve(1)


async def test_a_pause_that_the_provider_asks_for_holds_all_who_share_the_limiter():
    limiter = RateLimiter(RateLimit(requests_per_minute=1000))
    async with asking(Reply([b"slow"], 429, {"retry-after": "1000"}), limiter=limiter) as (client, _):
        with pytest.raises(RateLimitError) as refused:
            await ask(client)
        assert refused.value.retry_after == 1000
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await limiter.reserve(1)


@asynccontextmanager
async def serving_tls(*replies: Reply) -> AsyncIterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    async with serving(*replies, tls=context) as server:
        yield server


async def test_an_untrusted_certificate_is_explained_and_not_tried_again():
    received: list[Delta] = []
    async with serving_tls(GOOD) as server:
        client = WireClient("plain", PlainWire(server.url), retry=QUICK)
        with pytest.raises(NetworkError, match="SSL_CERT_FILE") as refused:
            await ask(client, received)
        await client.aclose()
    assert not refused.value.retryable
    assert (server.requests, received) == ([], [])


async def test_silence_is_measured_from_the_first_byte_of_the_body():
    """Also if that byte comes together with the head."""
    limits = HttpTimeouts(first_byte=60, idle=0.2)
    async with (
        asking(Reply([text_stream("a")], after="stall"), timeouts=limits) as (client, server),
        asyncio.timeout(20),
    ):
        with pytest.raises(StalledStreamError):
            await ask(client)
        assert len(server.requests) == QUICK.attempts


async def test_a_model_that_pauses_longer_than_usual_gets_more_time_with_each_attempt_and_later():
    slow = Reply(lambda: [text_stream("a"), 0.6, text_stream("b", "[END]")])
    async with asking(slow, timeouts=HttpTimeouts(first_byte=60, idle=0.4)) as (client, server):
        assert await ask(client) == "a b"
        assert len(server.requests) == 2
        assert await ask(client) == "a b"
        assert len(server.requests) == 3
