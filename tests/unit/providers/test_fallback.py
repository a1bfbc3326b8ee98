"""The next model of the list answers when one cannot, and only then."""

import pytest

from outrider.errors import (
    AuthenticationError,
    ConfigurationError,
    ContentFilterError,
    ContextOverflowError,
    InvalidRequestError,
    NetworkError,
    NotFoundError,
    OverloadedError,
    ProviderError,
    QuotaExceededError,
)
from outrider.providers.client import FallbackCandidate, FallbackClient
from outrider.types.deltas import AnswerStart, Delta, Finish, PartEnd, PartStart, TextDelta
from outrider.types.request import Request
from tests.fixtures.plain_wire import plain_request


class FakeClient:
    """Gives out its deltas, then raises its error, if it has one."""

    def __init__(self, name: str, *deltas: Delta, error: ProviderError | None = None) -> None:
        self.name = name
        self._deltas = deltas
        self._error = error
        self.asked: list[str] = []
        self.unclaimed_text = 0
        self.closed = False

    def model_family(self, model: str) -> str:
        return f"{self.name}:{model}"

    async def stream(self, request: Request):
        self.asked.append(request.model)
        try:
            for delta in self._deltas:
                yield delta
            if self._error is not None:
                raise self._error
        finally:
            self.unclaimed_text += 1

    async def aclose(self) -> None:
        self.closed = True


def answering(name: str = "good") -> FakeClient:
    return FakeClient(name, PartStart(0, "text"), TextDelta(0, "hi"), PartEnd(0), Finish("stop"))


async def ask(*candidates: FallbackCandidate) -> list[Delta]:
    return [delta async for delta in FallbackClient(candidates).stream(plain_request("first"))]


@pytest.mark.parametrize(
    "error", [AuthenticationError, NotFoundError, QuotaExceededError, OverloadedError, NetworkError]
)
async def test_a_model_that_cannot_answer_is_followed_by_the_next(error: type[ProviderError]):
    bad, good = FakeClient("bad", AnswerStart(), error=error("no")), answering()
    deltas = await ask(FallbackCandidate(bad), FallbackCandidate(good, "second"))
    assert deltas[-1] == Finish("stop")
    assert (bad.asked, good.asked) == (["first"], ["second"])


@pytest.mark.parametrize("error", [InvalidRequestError, ContextOverflowError, ContentFilterError])
async def test_a_request_that_is_wrong_itself_is_not_sent_to_others(error: type[ProviderError]):
    good = answering()
    with pytest.raises(error):
        await ask(FallbackCandidate(FakeClient("bad", error=error("no"))), FallbackCandidate(good))
    assert good.asked == []


async def test_once_something_was_shown_nobody_else_is_asked():
    bad = FakeClient("bad", PartStart(0, "text"), TextDelta(0, "h"), error=OverloadedError("full"))
    good = answering()
    with pytest.raises(OverloadedError):
        await ask(FallbackCandidate(bad), FallbackCandidate(good))
    assert good.asked == []


async def test_the_error_of_the_last_model_is_raised():
    with pytest.raises(NetworkError):
        await ask(
            FallbackCandidate(FakeClient("a", error=OverloadedError("full"))),
            FallbackCandidate(FakeClient("b", error=NetworkError("gone"))),
        )


async def test_closing_the_answer_closes_the_one_that_is_being_asked():
    good = answering()
    stream = FallbackClient([FallbackCandidate(good)]).stream(plain_request())
    await anext(stream)
    await stream.aclose()
    assert good.unclaimed_text == 1


async def test_the_list_speaks_for_its_first_model_and_closes_all():
    first, second = answering("a"), answering("b")
    client = FallbackClient([FallbackCandidate(first, "m1"), FallbackCandidate(second, "m2")])
    assert (client.name, client.model_family("x")) == ("a", "a:m1")
    await client.aclose()
    assert first.closed
    assert second.closed


def test_an_empty_list_is_a_mistake():
    with pytest.raises(ConfigurationError):
        FallbackClient([])
