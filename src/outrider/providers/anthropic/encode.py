"""Parts of a conversation as content blocks of the Messages API; each message is written once, to bytes."""

import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, assert_never

from outrider.providers.anthropic.files import file_block
from outrider.providers.writing import encoded_json, file_id
from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 128


def encode_message(message: ModelMessage, family: str) -> bytes:
    """A message that has nothing left to say to this family is not sent."""
    blocks = [block for part in message.content for block in _blocks(part, family)]
    blocks += [block for part in message.content for block in _files_of_failure(part)]
    return encoded_json({"role": message.role, "content": blocks}) if blocks else b""


def _blocks(part: ModelPart, family: str) -> Iterator[dict[str, Any]]:
    """Private fields that the family's own answers carried (citations, caller, …) go back in their block."""
    match part:
        case TextPart():
            if part.text.strip():  # the API itself sends blank text, and refuses to have it back
                yield {"type": "text", "text": part.text, **part.metadata.get(family, {})}
        case ReasoningPart():
            yield from _reasoning(part, family)
        case FilePart():
            yield file_block(part.mime, part.url, part.filename) | part.metadata.get(family, {})
        case ToolUsePart():
            yield {
                "type": "tool_use",
                "id": safe_name(part.tool_id),
                "name": safe_name(part.tool_name),
                "input": part.tool_input,
                **part.metadata.get(family, {}),
            }
        case ToolResultPart():
            yield _result(part, family)
        case _:
            assert_never(part)


def _reasoning(part: ReasoningPart, family: str) -> Iterator[dict[str, Any]]:
    """Thinking without a signature, or with that of another family, is refused; what is opaque goes back as it was."""
    state = part.provider_state
    if state.get("family") != family:
        return
    if "block" in state:
        yield state["block"]
    elif state.get("signature"):
        yield {"type": "thinking", "thinking": part.text, "signature": state["signature"]}


def _result(part: ToolResultPart, family: str) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": safe_name(part.tool_use_id)}
    content = part.metadata["content"] if "content" in part.metadata else _result_content(part)
    if content is not None:
        block["content"] = content
    return block | ({"is_error": True} if part.is_error else {}) | part.metadata.get(family, {})


def _result_content(part: ToolResultPart) -> str | list[dict[str, Any]]:
    if part.is_error or not part.attachments:
        return part.content
    text = [{"type": "text", "text": part.content}] if part.content.strip() else []
    return [*text, *_attachments(part)]


def _files_of_failure(part: ModelPart) -> Iterator[dict[str, Any]]:
    """The API takes only text in the result of a failed call, so its files follow after the results."""
    if isinstance(part, ToolResultPart) and part.is_error and "content" not in part.metadata:
        yield from _attachments(part)


def _attachments(part: ToolResultPart) -> Iterator[dict[str, Any]]:
    for attachment in part.attachments:
        url = attachment.url or f"data:{attachment.mime_type};base64,{attachment.data}"
        yield file_block(attachment.mime_type, url, attachment.name)


def names_upload(part: ModelPart) -> bool:
    """Whether the part refers to a file that was uploaded to the provider before."""
    match part:
        case FilePart():
            return file_id(part.url) is not None
        case ToolResultPart():
            return any(file_id(attachment.url or "") is not None for attachment in part.attachments)
        case ReasoningPart():
            return "file_id" in part.provider_state.get("block", ())
        case TextPart() | ToolUsePart():
            return False


def safe_name(name: str) -> str:
    """Ids and tool names from other providers, or misspelt by a model, within the alphabet that the API takes."""
    if name and len(name) <= _LONGEST_NAME and not _NOT_IN_NAMES.search(name):
        return name
    mark = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()  # two names never become one
    return f"{_NOT_IN_NAMES.sub('_', name)[: _LONGEST_NAME - 9]}_{mark}"
