"""The shapes of a chat answer, whole or in chunks, as loose as the servers that speak them."""

from typing import Any

import msgspec

from outrider.errors import ProviderError
from outrider.providers.openai.chat.usage import Usage
from outrider.providers.openai.endpoint import from_error
from outrider.providers.reading import UNREADABLE, decoded, mended_json

ABSENT = msgspec.Raw()


class Function(msgspec.Struct):
    """`arguments` is JSON text; some servers send the object itself."""

    name: str | None = None
    arguments: Any = None


class Custom(msgspec.Struct):
    name: str | None = None
    input: str | None = None


class Call(msgspec.Struct):
    """A call, or a piece of one. `extra_content` is private state that Google's models want back."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None
    custom: Custom | None = None
    extra_content: Any = None


class Audio(msgspec.Struct):
    id: str | None = None
    data: str | None = None
    transcript: str | None = None


class Said(msgspec.Struct):
    """A message or a delta of one. `content` is text, or a list of blocks, or the object that a schema asked for."""

    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: list[Any] | None = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None
    function_call: Function | None = None
    annotations: list[Any] | None = None
    images: list[Any] | None = None
    audio: Audio | None = None


class Choice(msgspec.Struct):
    index: int | None = None
    delta: Said | None = None
    message: Said | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    error: Any = None


class GroqExtra(msgspec.Struct):
    usage: Usage | None = None
    error: Any = None


class Chunk(msgspec.Struct):
    """Also a whole answer. What only some servers send and nobody shows at once stays raw until the end."""

    id: str | None = None
    model: str | None = None
    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    x_groq: GroqExtra | None = None
    citations: msgspec.Raw = ABSENT
    search_results: msgspec.Raw = ABSENT

    @property
    def counts(self) -> Usage | None:
        """The usage, wherever this server puts it."""
        if self.usage is not None:
            return self.usage
        if self.x_groq is not None and self.x_groq.usage is not None:
            return self.x_groq.usage
        return self.choices[0].usage if self.choices else None


_strict = msgspec.json.Decoder(Chunk).decode
_loose = msgspec.json.Decoder(Chunk, strict=False).decode  # numbers that came as text


def read_chunk(data: bytes) -> Chunk:
    try:
        return _strict(data)
    except UNREADABLE:
        return decoded(_loose, data)


def error_in(data: bytes) -> ProviderError | None:
    """The error that an event or a body without choices is, in any of the shapes that servers give it."""
    mended = mended_json(data)
    value = msgspec.json.decode(mended) if mended else None
    match value:
        case [{"error": _}, *_]:
            return from_error(value)
        case {"error": error} if error:
            return from_error(value)
        case {"detail": str() | list()} | {"errors": [_, *_]} | {"object": "error"}:
            return from_error(value)
        case {"message": str()} if {"code", "type", "status"} & value.keys():
            return from_error(value)
        case _:
            return None
