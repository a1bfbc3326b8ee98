"""Messages of a prompt as Chat Completions wants them, each written exactly once."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, assert_never

from outrider.providers.openai.chat.details import merged_details
from outrider.providers.openai.chat.dialects import Dialect
from outrider.providers.openai.chat.files import file_content
from outrider.providers.writing import encoded_json
from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage

Fields = dict[str, Any]

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SEE_ATTACHMENTS = "The result is attached to the message that follows."


class MessageWriter:
    """Writes one message. `family` names the private state that may go back."""

    def __init__(self, dialect: Dialect, family: str) -> None:
        self._dialect = dialect
        self._family = family

    @property
    def form(self) -> str:
        """All that the bytes depend on besides the message."""
        return f"{self._family}@{self._dialect.name}/{self._dialect.replay}"

    def write(self, message: ModelMessage) -> bytes:
        written = self._answer(message) if message.role == "assistant" else self._question(message)
        return encoded_json(written)[1:-1]

    def _question(self, message: ModelMessage) -> list[Fields]:
        """Results first, since they must follow their calls; their attachments, which they cannot carry, after them."""
        written: list[Fields] = []
        attached: list[Fields] = []
        said: list[Fields] = []
        for part in message.content:
            if isinstance(part, ToolResultPart):
                result = {"role": "tool", "tool_call_id": self._call_id(part.tool_use_id), "content": _result(part)}
                written.append(result)
                attached += self._attachments(part) if part.attachments else ()
            elif (block := self._said_by_user(part)) is not None:
                said.append(block)
        if content := attached + said:
            only_text = len(content) == 1 and content[0]["type"] == "text"
            written.append({"role": "user", "content": content[0]["text"] if only_text else content})
        return written

    def _said_by_user(self, part: ModelPart) -> Fields | None:
        match part:
            case TextPart():
                return {"type": "text", "text": part.text}
            case FilePart():
                return file_content(part.mime, part.url, part.filename, self._dialect)
            case ToolResultPart() | ReasoningPart() | ToolUsePart():
                return None  # written elsewhere, or not a user's
            case _:
                assert_never(part)

    def _attachments(self, part: ToolResultPart) -> Iterator[Fields]:
        yield {"type": "text", "text": f"Attached to the result of {part.tool_name or 'call'} {part.tool_use_id}:"}
        for attachment in part.attachments:
            url = attachment.url or f"data:{attachment.mime_type};base64,{attachment.data}"
            yield file_content(attachment.mime_type, url, attachment.name, self._dialect)

    def _answer(self, message: ModelMessage) -> list[Fields]:
        kinds: dict[str, list[Any]] = {"text": [], "reasoning": [], "tool_use": [], "file": []}
        for part in message.content:
            kinds.setdefault(part.type, []).append(part)
        refusals = [part for part in kinds["text"] if self._own(part).get("refusal") and self._dialect.refusals]
        text = "".join([part.text for part in kinds["text"] if part not in refusals])
        calls = [self._call(part) for part in kinds["tool_use"]]
        fields: Fields = {"role": "assistant", "content": text or None}
        fields |= self._reasoning(kinds["reasoning"], text, calls=bool(calls))
        fields |= self._made(kinds["file"])
        if refusals:
            fields["refusal"] = "".join(part.text for part in refusals)
        if calls:
            fields["tool_calls"] = calls
        if len(fields) == 2 and not text:
            return []
        if fields["content"] is None and not calls and not refusals:
            fields["content"] = ""
        return [fields]

    def _own(self, part: TextPart | FilePart | ToolUsePart) -> Fields:
        return part.metadata.get(self._family, {})

    def _call(self, part: ToolUsePart) -> Fields:
        own = self._own(part)
        call_id = self._call_id(part.tool_id)
        if own.get("custom"):
            free = part.tool_input.get("input", "")
            return {"id": call_id, "type": "custom", "custom": {"name": part.tool_name, "input": free}}
        function = {"name": part.tool_name, "arguments": encoded_json(part.tool_input).decode()}
        call: Fields = {"id": call_id, "type": "function", "function": function}
        if "extra_content" in own:
            call["extra_content"] = own["extra_content"]
        return call

    def _reasoning(self, parts: Iterable[ReasoningPart], text: str, *, calls: bool) -> Fields:
        """Reasoning goes back to its own family, under the name by which it came."""
        own = [part for part in parts if part.provider_state.get("family") == self._family]
        fields: Fields = {"reasoning_content": ""} if calls and self._dialect.empty_reasoning else {}
        if not own or self._dialect.replay == "never":
            return fields
        blocks = self._dialect.replay == "thinking blocks"
        for field, thought in _by_field(own, "content" if blocks else None):
            fields[field] = [_thinking(thought), *_text_blocks(text)] if field == "content" else thought
        details = merged_details(item for part in own for item in part.provider_state.get("details", ()))
        return fields | ({"reasoning_details": details} if details and not blocks else {})

    def _made(self, parts: Iterable[FilePart]) -> Fields:
        """Sound and pictures that the model made itself."""
        fields: Fields = {}
        for part in parts:
            own = self._own(part)
            if own.get("audio"):
                fields["audio"] = {"id": own["audio"]}
            elif own.get("images") and self._dialect.replay == "as it came":
                fields.setdefault("images", []).append({"type": "image_url", "image_url": {"url": part.url}})
        return fields

    def _call_id(self, call_id: str) -> str:
        """The id as it is, or a name for it of the form that this server insists on."""
        if _form(self._dialect.call_ids).fullmatch(call_id):
            return call_id
        digest = hashlib.sha256(call_id.encode()).digest()
        return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:9])


@cache
def _form(call_ids: str) -> re.Pattern[str]:
    return re.compile(call_ids)


def _result(part: ToolResultPart) -> str:
    """This API has no flag for errors, so the words must say it."""
    text = part.content or (_SEE_ATTACHMENTS if part.attachments else "(no output)")
    return f"Error: {text}" if part.is_error and not text.lower().startswith("error") else text


def _by_field(parts: Iterable[ReasoningPart], always: str | None) -> Iterator[tuple[str, str]]:
    found: dict[str, list[str]] = {}
    for part in parts:
        field = always or part.provider_state.get("field")
        if field and part.text:
            found.setdefault(field, []).append(part.text)
    return ((field, "".join(texts)) for field, texts in found.items())


def _thinking(text: str) -> Fields:
    return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}


def _text_blocks(text: str) -> list[Fields]:
    return [{"type": "text", "text": text}] if text else []
