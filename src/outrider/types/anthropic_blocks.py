"""Converts Anthropic content blocks (SDK objects or dicts) to parts."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast
from urllib.parse import quote

from outrider.errors import PartValidationError
from outrider.types.parts import (
    FilePart,
    ModelPart,
    PartBase,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    result_content,
)
from outrider.types.tool_state import Attachment, attachment_from_url, make_data_url
from outrider.types.validate import is_object

_ATTRIBUTES = ("type", "text", "thinking", "signature", "data", "id", "name", "input", "tool_use_id", "content")
_OPAQUE = {"server_tool_use", "mcp_tool_use", "compaction", "container_upload", "fallback", "search_result"}


def part_from_anthropic(block: Any) -> ModelPart:
    """Converts one content block. Fields that the part does not have are preserved in its metadata and returned by
    `to_api_format`. Raises ValueError for an unknown or invalid block."""
    fields = as_dict(block)
    kind = fields.get("type")
    if isinstance(kind, str) and (kind in _OPAQUE or kind.endswith("_tool_result")):
        return ReasoningPart(text="", provider_state={"family": "anthropic", "block": fields})
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        raise PartValidationError(f"unknown content block type {kind!r}; known: {', '.join(sorted(_READERS))}")
    return reader(fields)


def as_dict(block: Any) -> dict[str, Any]:
    """Converts a block to a dict: an SDK object (pydantic), a part, or a dict."""
    if is_object(block):
        return block
    if isinstance(block, PartBase):
        to_api_format = getattr(block, "to_api_format", None)
        if to_api_format is None:
            raise PartValidationError(f"a {block.type} part is not a content block")
        return to_api_format()
    if (dump := getattr(block, "model_dump", None)) is not None:
        return dump(mode="json", exclude_unset=True)
    if not isinstance(getattr(block, "type", None), str):
        raise PartValidationError(
            f"a content block must be a dict or an object with the attribute `type`, got {type(block).__name__}"
        )
    return _read_attributes(block)


def _read_attributes(value: Any) -> Any:
    """Converts an object of any class, including the objects in its attributes, to plain data."""
    if isinstance(value, list | tuple):
        return [_read_attributes(item) for item in cast("Sequence[Any]", value)]
    if is_object(value):
        return {name: _read_attributes(item) for name, item in value.items()}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    classes = cast("type[Any]", type(value)).__mro__
    instance_fields: dict[str, Any] = getattr(value, "__dict__", {})
    names = [*instance_fields, *(name for cls in classes for name in _slots(cls))]
    class_fields = [name for name in _ATTRIBUTES if name not in names and hasattr(value, name)]
    attributes = {name: getattr(value, name, None) for name in (*names, *class_fields) if not name.startswith("_")}
    return {
        name: _read_attributes(attribute)
        for name, attribute in attributes.items()
        if attribute is not None and not callable(attribute)
    }


def _slots(cls: type[Any]) -> Sequence[str]:
    slots: Any = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots


def content_blocks(content: Any) -> list[dict[str, Any]]:
    """Returns message content as a list of blocks; a string is one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if content is None:
        return []
    if not isinstance(content, Iterable):
        raise PartValidationError(
            f"the content of a message must be a string or a list of blocks, got {type(content).__name__}",
            field="content",
        )
    blocks = cast("Iterable[Any]", content)
    return [{"type": "text", "text": block} if isinstance(block, str) else as_dict(block) for block in blocks]


def _unread_fields(fields: dict[str, Any], *read_names: str) -> dict[str, Any]:
    """Returns metadata with the fields that the part does not have (cache_control, citations, caller, …)."""
    unread = {name: value for name, value in fields.items() if name not in ("type", *read_names)}
    return {"anthropic": unread} if unread else {}


def _text(fields: dict[str, Any]) -> TextPart:
    return TextPart(text=_string(fields, "text"), metadata=_unread_fields(fields, "text"))


def _thinking(fields: dict[str, Any]) -> ReasoningPart:
    plain_fields = {"type", "thinking", "signature"}
    state: dict[str, Any] = {"family": "anthropic"}
    if fields.keys() - plain_fields:
        state["block"] = fields
    elif "signature" in fields:
        state["signature"] = fields["signature"]
    return ReasoningPart(text=_string(fields, "thinking"), provider_state=state)


def _redacted_thinking(fields: dict[str, Any]) -> ReasoningPart:
    return ReasoningPart(text="", provider_state={"family": "anthropic", "block": fields})


def _tool_use(fields: dict[str, Any]) -> ToolUsePart:
    return ToolUsePart(
        tool_id=_string(fields, "id"),
        tool_name=_string(fields, "name"),
        tool_input=_object(fields, "input"),
        metadata=_unread_fields(fields, "id", "name", "input"),
    )


def _tool_result(fields: dict[str, Any]) -> ToolResultPart:
    content = fields.get("content")
    blocks = content_blocks(content)
    text = "\n".join(block["text"] for block in blocks if block.get("type") == "text")
    attachments = tuple(attachment for block in blocks if (attachment := _attachment(block)))
    is_error = fields.get("is_error")
    metadata = _unread_fields(fields, "tool_use_id", "content", *(("is_error",) if is_error else ()))
    if content != result_content(text, attachments):
        metadata["content"] = content  # absent, or blocks in another order
    return ToolResultPart(
        tool_use_id=_string(fields, "tool_use_id"),
        content=text,
        is_error=bool(is_error),
        attachments=attachments,
        metadata=metadata,
    )


def _attachment(block: dict[str, Any]) -> Attachment | None:
    if block.get("type") not in ("image", "document"):
        return None
    mime, url = read_file_url(block)
    return attachment_from_url(mime, url, block.get("title"))


def _file(fields: dict[str, Any]) -> FilePart:
    mime, url = read_file_url(fields)
    return FilePart(
        mime=mime, url=url, filename=fields.get("title"), metadata=_unread_fields(fields, "source", "title")
    )


def read_file_url(fields: dict[str, Any]) -> tuple[str, str]:
    """Returns the media type and the URL of an image or document block."""
    source = fields.get("source")
    fallback = "image/*" if fields.get("type") == "image" else "application/pdf"
    match source:
        case {"type": "base64", "media_type": str(mime), "data": str(data)}:
            return mime, make_data_url(mime, data)
        case {"type": "text", "data": str(text)}:
            mime = source.get("media_type", "text/plain")
            return mime, f"data:{mime};charset=utf-8,{quote(text)}"
        case {"type": "url", "url": str(url)}:
            return fallback, url
        case {"type": "file", "file_id": str(file_id)}:
            return fallback, f"file-id:{file_id}"
        case _:
            raise PartValidationError(f"unknown source of a {fields.get('type')} block: {source!r:.200}")


def _string(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        problem = f"has no `{name}`" if value is None else f"has a `{name}` that is not a string"
        raise PartValidationError(f"a {fields['type']} block {problem}")
    return value


def _object(fields: dict[str, Any], name: str) -> dict[str, Any]:
    value = fields.get(name)
    if value is not None and not is_object(value):
        raise PartValidationError(f"a {fields['type']} block has an `{name}` that is not an object")
    return value or {}


_READERS: dict[str, Callable[[dict[str, Any]], ModelPart]] = {
    "text": _text,
    "thinking": _thinking,
    "redacted_thinking": _redacted_thinking,
    "tool_use": _tool_use,
    "tool_result": _tool_result,
    "image": _file,
    "document": _file,
}
