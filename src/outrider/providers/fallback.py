"""An ordered list of models: the next is asked when one cannot answer and the request is not to blame."""

from collections.abc import AsyncGenerator, Sequence

import msgspec

from outrider.errors import ConfigurationError, ContentFilterError, InvalidRequestError, ProviderError
from outrider.providers.provider import ModelClient
from outrider.types.request import Request
from outrider.types.stream import AnswerStart, Delta, Retry, UsageReport

_OWN_FAULT = (InvalidRequestError, ContentFilterError)


class Candidate(msgspec.Struct, frozen=True):
    """`model` is None for the model that the request names."""

    client: ModelClient
    model: str | None = None

    def request(self, request: Request) -> Request:
        return request if self.model is None else msgspec.structs.replace(request, model=self.model)


class FallbackClient:
    """Once something of an answer was shown, its failure is raised like any other."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        if not candidates:
            raise ConfigurationError("a list of fallback models needs at least one model")
        self.name = candidates[0].client.name
        self._candidates = tuple(candidates)

    def family(self, model: str) -> str:
        first = self._candidates[0]
        return first.client.family(first.model or model)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        shown = False
        for candidate in self._candidates:
            deltas = candidate.client.stream(candidate.request(request))
            try:
                async for delta in deltas:
                    shown = shown or not isinstance(delta, AnswerStart | Retry | UsageReport)
                    yield delta
                return
            except ProviderError as error:
                if shown or isinstance(error, _OWN_FAULT) or candidate is self._candidates[-1]:
                    raise
            finally:
                await deltas.aclose()

    async def aclose(self) -> None:
        for candidate in self._candidates:
            await candidate.client.aclose()
