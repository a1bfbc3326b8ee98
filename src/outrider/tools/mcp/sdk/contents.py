"""What a server answers, as results: text for the model, and files that are what they claim to be."""

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Any, assert_never

import mcp_types as wire
import msgspec

from outrider.tools.mcp.faults import ServerFault, cut
from outrider.tools.tool import ToolResult
from outrider.types.tool_state import Attachment

LONGEST_ERROR = 10_000
LARGEST_STRUCTURE = 64 << 10  # bytes of structured content that are kept beside the text
_BEGINNINGS = {
    "image/png": b"\x89PNG",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}


def result_of(answer: wire.CallToolResult) -> ToolResult:
    """What a call came to; one that the server calls an error is raised as one."""
    result = gathered(answer.content)
    structured = (answer.structured_content is not None and encoded(answer.structured_content)) or b""
    if not result.content and structured:
        result = msgspec.structs.replace(result, content=structured.decode())
    if answer.is_error:
        raise ServerFault(cut(result.content or "the tool failed and gave no reason", LONGEST_ERROR))
    if structured and len(structured) <= LARGEST_STRUCTURE:
        metadata = result.metadata | {"structured": answer.structured_content}
        result = msgspec.structs.replace(result, metadata=metadata)
    return result


def encoded(value: Any) -> bytes | None:
    """None for what is valid JSON and yet cannot be written again: numbers beyond 64 bits, halves of letters."""
    try:
        return msgspec.json.encode(value)
    except (ValueError, OverflowError, TypeError, RecursionError):
        return None


def gathered(blocks: Iterable[wire.ContentBlock]) -> ToolResult:
    """All blocks in one result, in their order. A link is told as text and never followed: its address is the
    server's choice, and whoever reads the result would visit it."""
    texts: list[str] = []
    attachments: list[Attachment] = []
    links: list[dict[str, Any]] = []
    for block in blocks:
        match block:
            case wire.TextContent():
                texts.append(block.text)
            case wire.ImageContent() | wire.AudioContent():
                texts.append(_attach(attachments, block.data, block.mime_type, None))
            case wire.EmbeddedResource():
                texts.append(_embed(attachments, block.resource))
            case wire.ResourceLink():
                links.append({"uri": block.uri, "name": block.name, "mime_type": block.mime_type})
                about = ": ".join(word for word in (block.name, block.description) if word)
                texts.append(f"[resource {block.uri} ({about})]")
            case _:
                assert_never(block)
    metadata = {"resource_links": links} if links else {}
    return ToolResult("\n".join(text for text in texts if text), tuple(attachments), metadata=metadata)


def resource_of(contents: Sequence[wire.TextResourceContents | wire.BlobResourceContents]) -> ToolResult:
    attachments: list[Attachment] = []
    if len(contents) == 1 and isinstance(contents[0], wire.TextResourceContents):
        return ToolResult(contents[0].text)
    texts = [_embed(attachments, content) for content in contents]
    return ToolResult("\n".join(texts), tuple(attachments))


def _embed(attachments: list[Attachment], resource: wire.TextResourceContents | wire.BlobResourceContents) -> str:
    match resource:
        case wire.TextResourceContents():
            return f"[resource {resource.uri}]\n{resource.text}"
        case wire.BlobResourceContents():
            name = resource.uri.rstrip("/").rpartition("/")[2] or None
            mime_type = resource.mime_type or "application/octet-stream"
            return f"[resource {resource.uri}]\n{_attach(attachments, resource.blob, mime_type, name)}"
        case _:
            assert_never(resource)


def _attach(attachments: list[Attachment], data: str, mime_type: str, name: str | None) -> str:
    """What is no such file is left out, since a model's API would refuse the whole conversation for it."""
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return f"[a file of type {mime_type} was left out: it is not valid base64]"
    if not content.startswith(_BEGINNINGS.get(mime_type, b"")):
        return f"[a file was left out: it is not of its type, {mime_type}]"
    attachments.append(Attachment(mime_type, data=data, name=name))
    return f"[attached: {name or mime_type}]"
