"""Chat Completions: how a request leaves, and who reads what comes back."""

from collections.abc import Mapping

from outrider.errors import InvalidRequestError, ProviderError
from outrider.providers.openai.chat_decode import ChatDecoder
from outrider.providers.openai.chat_encode import MessageWriter, head, system_message
from outrider.providers.openai.common import address, headers, refused
from outrider.providers.openai.dialects import Dialect, after_refusal, dialect_of, family_of, for_model
from outrider.providers.provider import HttpCall
from outrider.providers.request_body import encoded_json, finished, opening
from outrider.types.agents import Provider
from outrider.types.parts import ReasoningPart
from outrider.types.request import Request


class ChatWire:
    """OpenAI, and every server that speaks like it, in the dialect that its address tells."""

    def __init__(self, provider: Provider) -> None:
        self._dialect = dialect_of(provider)
        self._learnt: dict[str, list[Dialect]] = {}  # per model, the last one counts
        self._headers = headers(provider)
        self._url = address(provider, "chat/completions")

    def family(self, model: str) -> str:
        return family_of(model)

    def call(self, request: Request) -> HttpCall:
        dialect = self._spoken_to(request.model)
        writer = MessageWriter(dialect, self.family(request.model))
        begun = opening(request, "messages", dialect, lambda: head(request, dialect), lambda: _first(request, dialect))
        body = finished(begun, request.prompt.encoded(writer.form, writer.write))
        return HttpCall(self._url, self._headers, body)

    def decoder(self, request: Request) -> ChatDecoder:
        audio = request.settings.extra.get("audio", {})
        return ChatDecoder(f"audio/{audio.get('format', 'wav')}", request.tools)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        return refused(status, headers, body)

    def learn(self, request: Request, error: ProviderError) -> bool:
        """Remembers which of two names a model's server wants, or that it does not know an optional field, or does not
        want to see a model's reasoning again."""
        if not isinstance(error, InvalidRequestError):
            return False
        before = self._spoken_to(request.model)
        tried, after = self._learnt[request.model], after_refusal(before, error.message)
        if after in tried or not _differ(request, before, after):
            return False
        tried.append(after)
        return True

    def _spoken_to(self, model: str) -> Dialect:
        if model not in self._learnt:
            self._learnt[model] = [for_model(self._dialect, model)]
        return self._learnt[model][-1]


def _differ(request: Request, before: Dialect, after: Dialect) -> bool:
    if (head(request, before), before.system) != (head(request, after), after.system):
        return True
    parts = (part for message in request.prompt for part in message.content)
    return before.replay != after.replay and any(isinstance(part, ReasoningPart) for part in parts)


def _first(request: Request, dialect: Dialect) -> bytes:
    system = system_message(request, dialect)
    return b"" if system is None else encoded_json(system)
