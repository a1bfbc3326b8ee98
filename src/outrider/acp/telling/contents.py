"""Content blocks of the protocol as parts of a message, and back."""

from collections.abc import Sequence
from typing import assert_never
from urllib.parse import unquote, urlsplit

import acp
from acp.helpers import ContentBlock
from acp.schema import (
    AudioContentBlock,
    EmbeddedResourceContentBlock,
    ImageContentBlock,
    ResourceContentBlock,
    TextContentBlock,
    TextResourceContents,
)

from outrider.acp.telling.texts import valid
from outrider.errors import ConfigurationError
from outrider.types.parts import FilePart, TextPart

_DOCUMENTS = ("image/", "application/pdf", "text/")


def parts_of(prompt: Sequence[ContentBlock]) -> list[TextPart | FilePart]:
    """Raises ConfigurationError for a prompt that says nothing, and for what no model is sent."""
    parts = [_part(block) for block in prompt]
    if not any(isinstance(part, FilePart) or part.text.strip() for part in parts):
        raise ConfigurationError("the prompt is empty")
    return parts


def block_of(part: TextPart | FilePart) -> ContentBlock | None:
    """What a person sees of a part; None for what was written for the model only."""
    match part:
        case TextPart(synthetic=True):
            return None
        case TextPart(text=text):
            return acp.text_block(valid(text)) if text else None
        case FilePart(mime=mime, url=url):
            head, _, content = url.partition(",")
            if mime.startswith("image/") and head.endswith(";base64"):
                return acp.image_block(content, mime)
            name = valid(part.filename or "file")
            return acp.resource_link_block(name, "data:" if url.startswith("data:") else valid(url), mime_type=mime)


def _part(block: ContentBlock) -> TextPart | FilePart:
    match block:
        case TextContentBlock():
            return TextPart(valid(block.text))
        case ImageContentBlock():
            return FilePart(block.mime_type, f"data:{block.mime_type};base64,{block.data}")
        case ResourceContentBlock():
            return TextPart(f"[{valid(block.name)}]({_place(block.uri)})")
        case EmbeddedResourceContentBlock():
            return _embedded(block)
        case AudioContentBlock():
            raise ConfigurationError("sound cannot be sent to the model; write it, or attach a file")
        case _:
            assert_never(block)


def _embedded(block: EmbeddedResourceContentBlock) -> TextPart | FilePart:
    resource = block.resource
    if isinstance(resource, TextResourceContents):
        return TextPart(f"{_place(resource.uri)}:\n{valid(resource.text)}", synthetic=True)
    mime = resource.mime_type or "application/octet-stream"
    if not mime.startswith(_DOCUMENTS):
        raise ConfigurationError(f"{_place(resource.uri)} is {mime}; only images, PDF and text can be attached")
    return FilePart(mime, f"data:{mime};base64,{resource.blob}", _place(resource.uri).rpartition("/")[2])


def _place(uri: str) -> str:
    """A file by its path, as tools name it; anything else as it is."""
    address = urlsplit(valid(uri))
    return unquote(address.path) if address.scheme == "file" else valid(uri)
