"""Converts lists of messages from and to the formats of OpenAI (Chat Completions, Responses) and Gemini.

Each format is converted from and to the Anthropic format, which `anthropic_format` reads and writes without loss.
System messages become the `system` of the user message that follows. Reasoning is read as text; it belongs to no model
family, so no model receives it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast, get_args
from urllib.parse import unquote

import msgspec

from outrider.errors import ConfigurationError, PartValidationError
from outrider.sessions.anthropic_format import check_message_list, read_api_messages, write_api_messages
from outrider.types.anthropic_blocks import as_dict, content_blocks, read_file_url
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.parts import ReasoningPart
from outrider.types.tool_state import data_url_base64, make_data_url, parse_data_url
from outrider.types.validate import is_object

MessageFormat = Literal["anthropic", "openai", "openai-responses", "google"]
Fields = dict[str, Any]
_SYSTEM_ROLES = ("system", "developer")
_SYSTEM_ROLE = "system_role"  # in the metadata of a message
_IMPORTED = "imported"  # the family of reasoning that was imported


def read_messages(messages: Iterable[Any], now: int, format: MessageFormat | None = None) -> list[Message]:
    """Reads a list of messages; without a format it is detected. Raises PartValidationError with the index of an
    invalid message."""
    check_message_list(messages)
    entries = [_as_fields(message, position) for position, message in enumerate(messages)]
    chosen = detect_format(entries) if format is None else _check_format(format)
    if chosen == "anthropic":
        return read_api_messages(entries, now)
    reader = FormatReader()
    read = {"openai": reader.read_chat, "openai-responses": reader.read_item, "google": reader.read_content}[chosen]
    for position, fields in enumerate(entries):
        try:
            read(fields)
        except KeyError as error:
            raise PartValidationError(
                f"messages[{position}]: it has no field {error} of the format {chosen}"
            ) from error
        except (TypeError, AttributeError, LookupError) as error:
            raise PartValidationError(
                f"messages[{position}]: a field does not have the form of the format {chosen} ({error})"
            ) from error
        except ValueError as error:
            raise PartValidationError(f"messages[{position}]: {error}") from error
    return reader.finish(now)


def write_messages(messages: Sequence[Message], format: MessageFormat) -> list[Fields]:
    """Returns messages in a format. OpenAI Responses accepts only its own reasoning, so reasoning is left out in that
    format."""
    chosen = _check_format(format)
    if chosen == "anthropic":
        return write_api_messages(messages)
    writers: dict[str, Callable[[Fields], Iterable[Fields]]] = {
        "openai": _write_chat, "openai-responses": _write_items, "google": _ContentWriter().write,
    }  # fmt: skip
    written: list[Fields] = []
    systems = [message for message in messages if message.role == "user" and message.system]
    for fields in write_api_messages(messages):
        if systems and chosen != "google" and _is_input_of(fields, systems[0]):
            first = systems.pop(0)
            written.append({"role": first.metadata.get(_SYSTEM_ROLE, "system"), "content": first.system})
        written += writers[chosen](fields)
    return written


def detect_format(messages: Sequence[Fields]) -> MessageFormat:
    """Returns the format of a list of messages. Plain texts are equal in three of the formats."""
    for message in messages:
        kinds = {part.get("type") for part in _parts(message.get("content"))}
        if "parts" in message:
            return "google"
        if message.get("type") not in (None, "message") or kinds & {"input_text", "output_text", "input_image"}:
            return "openai-responses"
        if "tool_calls" in message or message.get("role") in ("tool", "function") or "image_url" in kinds:
            return "openai"
    roles = {message.get("role") for message in messages}
    return "openai" if roles & set(_SYSTEM_ROLES) else "anthropic"


class FormatReader:
    """Collects messages of another format as messages of the Anthropic format."""

    def __init__(self) -> None:
        self._messages: list[Fields] = []
        self._systems: dict[int, tuple[str, str]] = {}  # role and text, by the position of the user message
        self._waiting: list[tuple[str, str]] = []
        self._open_calls: dict[str, list[str]] = {}  # ids by the name of the tool, for Gemini

    def __len__(self) -> int:
        return len(self._messages)

    def finish(self, now: int) -> list[Message]:
        """Returns the messages. `now` is the time of calls without a time."""
        messages = read_api_messages(self._messages, now)
        for position, (role, text) in self._systems.items():
            messages[position].system = text
            if role != "system":
                messages[position].metadata[_SYSTEM_ROLE] = role
        for message in messages:
            for part in message.get_parts_by_type(ReasoningPart):
                message.update_part(part.id, _without_family)
        return messages

    def add(self, role: str, content: Any) -> None:
        """Adds a message, with the system messages before it if it is a user message."""
        if role == "user" and self._waiting:
            roles, texts = zip(*self._waiting, strict=True)
            self._systems[len(self._messages)] = (roles[-1], "\n\n".join(texts))
            self._waiting.clear()
        self._messages.append({"role": role, "content": content})

    def add_blocks(self, role: str, *blocks: Fields) -> None:
        """Adds blocks to the last message if it has the same role and consists of blocks."""
        last_message = self._messages[-1] if self._messages else None
        if last_message is not None and last_message["role"] == role and isinstance(last_message["content"], list):
            last_message["content"] += blocks
        else:
            self.add(role, list(blocks))

    def add_result(self, call_id: str, content: Any, *, is_error: bool = False) -> None:
        result: Fields = {"type": "tool_result", "tool_use_id": call_id, "content": content}
        blocks = _parts(self._messages[-1]["content"]) if self._messages else []
        if is_error:
            result["is_error"] = True
        if blocks and all(block["type"] == "tool_result" for block in blocks):
            self._messages[-1]["content"].append(result)
        else:
            self.add("user", [result])

    def read_chat(self, fields: Fields) -> None:
        """Reads a message of Chat Completions."""
        role, content = fields.get("role"), fields.get("content")
        match role:
            case "system" | "developer":
                self._waiting.append((role, _text_of(content)))
            case "user":
                self.add("user", content if isinstance(content, str) else _read_parts(content))
            case "tool" | "function":
                self.add_result(fields.get("tool_call_id") or fields["name"], _text_of(content))
            case "assistant":
                self._read_chat_answer(fields, content)
            case _:
                raise ValueError(f"the role must be system, developer, user, assistant or tool, got {role!r}")

    def _read_chat_answer(self, fields: Fields, content: Any) -> None:
        reasoning = fields.get("reasoning_content") or fields.get("reasoning")
        calls = [*(fields.get("tool_calls") or ())]
        if legacy := fields.get("function_call"):
            calls.append({"id": legacy["name"], "function": legacy})
        if content is None:  # a refused or a spoken answer has its text in another field
            spoken: Fields = fields.get("audio") or {}
            content = fields.get("refusal") or spoken.get("transcript")
        if isinstance(content, str) and not calls and not reasoning:
            self.add("assistant", content)
            return
        texts = [{"type": "text", "text": content}] if isinstance(content, str) else _read_parts(content)
        blocks = [_thinking(reasoning)] if isinstance(reasoning, str) and reasoning else []
        blocks += [block for block in texts if block.get("text") != ""]
        blocks += [_read_call(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]
        self.add("assistant", blocks)

    def read_item(self, fields: Fields) -> None:
        """Reads an item of the Responses API."""
        kind = fields.get("type", "message")
        match kind:
            case "message":
                self._read_message_item(fields)
            case "function_call" | "custom_tool_call":
                arguments = fields.get("arguments", fields.get("input", ""))
                name = fields["name"]
                self.add_blocks("assistant", _read_call(fields["call_id"], name, arguments))
            case "local_shell_call":
                self.add_blocks("assistant", _read_call(fields["call_id"], "shell", fields.get("action") or {}))
            case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
                self.add_result(fields["call_id"], _read_output(fields.get("output")))
            case "reasoning":
                texts = [part.get("text", "") for part in (fields.get("summary") or fields.get("content") or ())]
                if text := "\n\n".join(filter(None, texts)):
                    self.add_blocks("assistant", _thinking(text))
            case _:
                raise ValueError(f"items of the type {kind!r} cannot be imported")

    def _read_message_item(self, fields: Fields) -> None:
        role, content = fields.get("role"), fields.get("content")
        if role in _SYSTEM_ROLES:
            self._waiting.append((role, _text_of(content)))
        elif role not in ("user", "assistant"):
            raise ValueError(f"the role must be system, developer, user or assistant, got {role!r}")
        elif isinstance(content, str):
            self.add(role, content)
        else:
            blocks = _read_parts(content)
            self.add_blocks(role, *blocks) if role == "assistant" else self.add(role, blocks)

    def read_content(self, fields: Fields) -> None:
        """Reads a content of Gemini."""
        role = {"user": "user", "model": "assistant", "function": "user", None: "user"}.get(fields.get("role"))
        if role is None:
            raise ValueError(f"the role must be user or model, got {fields.get('role')!r}")
        parts = fields.get("parts")
        other_names = [name for name in fields if name not in ("role", "parts")]
        if not isinstance(parts, list | tuple) and (parts is not None or other_names):  # an empty answer has no parts
            raise ValueError(f"a content of Gemini has a list of `parts`, got {', '.join(other_names) or repr(parts)}")
        blocks: list[Fields] = []
        for part in cast("Sequence[Fields]", parts or ()):
            if response := part.get("functionResponse") or part.get("function_response"):
                content, is_error = _read_response(response.get("response"))
                self.add_result(self._answered_call(response), content, is_error=is_error)
            else:
                blocks.append(self._read_gemini_part(part))
        if blocks:
            self.add(role, blocks)

    def _read_gemini_part(self, part: Fields) -> Fields:
        if call := part.get("functionCall") or part.get("function_call"):
            call_id = call.get("id") or f"call_{new_id()}"
            self._open_calls.setdefault(call["name"], []).append(call_id)
            return _read_call(call_id, call["name"], call.get("args") or {})
        if data := part.get("inlineData") or part.get("inline_data"):
            return _file(make_data_url(_either(data, "mimeType", "mime_type"), data["data"]))
        if file := part.get("fileData") or part.get("file_data"):
            return _file(_either(file, "fileUri", "file_uri"), _either(file, "mimeType", "mime_type"))
        if "text" not in part:
            raise ValueError(f"a part with {', '.join(part)} cannot be imported")
        return _thinking(part["text"]) if part.get("thought") else {"type": "text", "text": part["text"]}

    def _answered_call(self, response: Fields) -> str:
        waiting = self._open_calls.get(response["name"], [])
        call_id = response.get("id") or (waiting[0] if waiting else response["name"])
        if call_id in waiting:
            waiting.remove(call_id)
        return call_id


def _without_family(part: Any) -> Any:
    return msgspec.structs.replace(part, provider_state={"family": _IMPORTED})


def _as_fields(message: Any, position: int) -> Fields:
    if isinstance(message, Mapping):
        return dict(message)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    try:
        return as_dict(message)
    except ValueError as error:
        raise PartValidationError(f"messages[{position}]: {error}") from error


def _check_format(format: str) -> MessageFormat:
    if format not in get_args(MessageFormat):
        formats = ", ".join(get_args(MessageFormat))
        raise ConfigurationError(f"there is no message format {format!r}; formats: {formats}")
    return format  # pyright: ignore[reportReturnType]


def _parts(content: Any) -> list[Fields]:
    return [part for part in content if is_object(part)] if isinstance(content, list) else []  # pyright: ignore


def _either(fields: Fields, name: str, other_name: str) -> str:
    return fields.get(name) or fields.get(other_name) or ""


def _text_of(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    return "\n".join(part.get("text", "") if is_object(part) else str(part) for part in content)


def _thinking(text: str) -> Fields:
    return {"type": "thinking", "thinking": text, "signature": ""}


def _read_call(call_id: str, name: str, arguments: Any) -> Fields:
    """Returns a call. Arguments that are not a JSON object are preserved under `input`."""
    value = arguments
    if isinstance(arguments, str):
        try:
            value = msgspec.json.decode(arguments or "{}")
        except msgspec.DecodeError:
            value = arguments
    return {"type": "tool_use", "id": call_id, "name": name, "input": value if is_object(value) else {"input": value}}


def _read_parts(content: Any) -> list[Fields]:
    """Reads the content of a message that is a list of parts."""
    if content is not None and not isinstance(content, list | tuple):
        raise ValueError(f"the content of a message must be a string or a list of parts, got {type(content).__name__}")
    return [_read_part(part) for part in content or ()]  # pyright: ignore[reportUnknownVariableType]


def _read_part(part: Any) -> Fields:
    """Reads a part of a message's content, in the format of either API of OpenAI."""
    match part:
        case str():
            return {"type": "text", "text": part}
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "refusal", "refusal": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image_url", "image_url": {"url": str(url)}} | {"type": "input_image", "image_url": str(url)}:
            return _file(url, "image/*")
        case {"type": "file", "file": {"file_data": str(url), **rest}} | {
            "type": "input_file",
            "file_data": str(url),
            **rest,
        }:
            return _file(url, "application/pdf") | ({"title": rest["filename"]} if rest.get("filename") else {})
        case {"type": "input_file", "file_url": str(url)}:
            return _file(url, "application/pdf")
        case {"type": "input_audio", "input_audio": {"data": str(data), "format": str(kind)}}:
            return _file(make_data_url(f"audio/{kind}", data))
        case _:
            kind = part.get("type") if is_object(part) else type(part).__name__
            raise ValueError(f"content of the type {kind!r} cannot be imported")


def _file(url: str, mime: str = "") -> Fields:
    data = parse_data_url(url)
    mime = (data and data.mime) or mime
    source: Fields = {"type": "url", "url": url}
    if data is not None and data.is_base64:
        source = {"type": "base64", "media_type": mime, "data": data.payload}
    elif data is not None:
        source = {"type": "text", "media_type": mime, "data": unquote(data.payload)}
    return {"type": "image" if mime.startswith("image/") else "document", "source": source}


def _read_output(output: Any) -> Any:
    if isinstance(output, str) or output is None:
        return output or ""
    if isinstance(output, list):
        return [_read_part(part) for part in output]  # pyright: ignore[reportUnknownVariableType]
    if is_object(output) and isinstance(output.get("content"), str):
        return output["content"]
    return msgspec.json.encode(output).decode()


def _read_response(response: Any) -> tuple[str, bool]:
    match response:
        case {"output": str(text), **rest} | {"result": str(text), **rest} if not rest:
            return text, False
        case {"error": str(text), **rest} if not rest:
            return text, True
        case _:
            return msgspec.json.encode(response).decode(), False


def _is_input_of(fields: Fields, message: Message) -> bool:
    return fields["role"] == "user" and fields["content"] == message.to_api_format()["content"]


def _result_text(block: Fields) -> str:
    return "\n".join(part["text"] for part in content_blocks(block.get("content")) if part.get("type") == "text")


def _write_chat(fields: Fields) -> Iterable[Fields]:
    content = fields["content"]
    if isinstance(content, str):
        yield fields
        return
    if fields["role"] == "assistant":
        yield _write_chat_answer(content)
        return
    for block in content:
        if block["type"] == "tool_result":
            yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": _result_text(block)}
    if parts := [_write_chat_part(block) for block in content if block["type"] != "tool_result"]:
        yield {"role": "user", "content": parts}


def _write_chat_answer(content: Sequence[Fields]) -> Fields:
    text = "".join(block["text"] for block in content if block["type"] == "text")
    answer: Fields = {"role": "assistant", "content": text or None}
    if thought := "\n\n".join(block["thinking"] for block in content if block.get("thinking")):
        answer["reasoning_content"] = thought
    calls = [
        {"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": _json(block["input"])}}
        for block in content
        if block["type"] == "tool_use"
    ]
    return answer | ({"tool_calls": calls} if calls else {})


def _write_url(block: Fields) -> str:
    """Returns the URL of a file; these formats accept content in base64 only."""
    mime, url = read_file_url(block)
    content = data_url_base64(url)
    return url if content is None else make_data_url(mime, content)


def _write_chat_part(block: Fields) -> Fields:
    match block["type"]:
        case "text":
            return {"type": "text", "text": block["text"]}
        case "image":
            return {"type": "image_url", "image_url": {"url": _write_url(block)}}
        case "document":
            return {
                "type": "file",
                "file": {"filename": block.get("title") or "document", "file_data": _write_url(block)},
            }
        case kind:
            raise PartValidationError(f"a block of the type {kind!r} cannot be converted to Chat Completions")


def _write_items(fields: Fields) -> Iterable[Fields]:
    content, role = fields["content"], fields["role"]
    if isinstance(content, str):
        yield {"role": role, "content": content}
        return
    text_kind = "output_text" if role == "assistant" else "input_text"
    parts: list[Fields] = []
    for block in content:
        match block["type"]:
            case "text":
                parts.append({"type": text_kind, "text": block["text"]})
            case "image":
                parts.append({"type": "input_image", "image_url": _write_url(block)})
            case "document":
                name = block.get("title") or "document"
                parts.append({"type": "input_file", "filename": name, "file_data": _write_url(block)})
            case "tool_use" | "tool_result" as kind:
                if parts:
                    yield {"type": "message", "role": role, "content": parts}
                    parts = []
                yield _write_call_item(block) if kind == "tool_use" else _write_output_item(block)
            case _:
                continue
    if parts:
        yield {"type": "message", "role": role, "content": parts}


def _write_call_item(block: Fields) -> Fields:
    return {"type": "function_call", "call_id": block["id"], "name": block["name"], "arguments": _json(block["input"])}


def _write_output_item(block: Fields) -> Fields:
    return {"type": "function_call_output", "call_id": block["tool_use_id"], "output": _result_text(block)}


class _ContentWriter:
    """Writes contents of Gemini, in which a result has the name of its tool."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def write(self, fields: Fields) -> Iterable[Fields]:
        parts = [self._write_part(block) for block in content_blocks(fields["content"])]
        yield {"role": "model" if fields["role"] == "assistant" else "user", "parts": parts}

    def _write_part(self, block: Fields) -> Fields:
        match block["type"]:
            case "text":
                return {"text": block["text"]}
            case "thinking":
                return {"text": block["thinking"], "thought": True}
            case "tool_use":
                self._names[block["id"]] = block["name"]
                return {"functionCall": {"id": block["id"], "name": block["name"], "args": block["input"]}}
            case "tool_result":
                call_id = block["tool_use_id"]
                key = "error" if block.get("is_error") else "output"
                name = self._names.get(call_id, call_id)
                return {"functionResponse": {"id": call_id, "name": name, "response": {key: _result_text(block)}}}
            case "image" | "document":
                mime, url = read_file_url(block)
                if (content := data_url_base64(url)) is not None:
                    return {"inlineData": {"mimeType": mime, "data": content}}
                return {"fileData": {"fileUri": url, "mimeType": mime}}
            case kind:
                raise PartValidationError(f"a block of the type {kind!r} cannot be converted to Gemini")


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
