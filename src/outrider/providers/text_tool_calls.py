"""Tool calls for models without native support: tools, calls and results are rendered as plain text, and a streaming
scanner finds the calls in the answer.

The prompt asks for <tool_call>{"name": …, "arguments": {…}}</tool_call>. The scanner also accepts forms from other
training data: several objects or a list in one tag, a code fence with the language tool_call, <function=name> with JSON
or <parameter=key> inside, <invoke name="…">, and missing closing tags. A tag inside a code fence or inline code is an
example, and a tag without a call is text; both are emitted unchanged. Blank lines around calls are dropped.
"""

import json
import re
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard, assert_never, cast

import msgspec
from msgspec.structs import replace

from outrider.providers.provider import ModelClient
from outrider.providers.stream_filters import (
    MarkdownTracker,
    PartBoundary,
    PartChunk,
    ReclassifyText,
    TextSplitFilter,
    filter_stream,
)
from outrider.types.partial_json import JsonSpan
from outrider.types.parts import (
    FilePart,
    ModelPart,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
    attachment_part,
)
from outrider.types.request import Delta, ModelMessage, Prompt, Request, ToolChoice, ToolSpec

ScanOutput = list[PartChunk | PartBoundary | ReclassifyText]

_NAME_KEYS = ("name", "tool", "tool_name", "function")
_INPUT_KEYS = ("arguments", "parameters", "input", "args")
_JSON_CALL_HEAD = re.compile(
    rf'\{{\s*"(?:{"|".join(_NAME_KEYS)})"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"(?:{"|".join(_INPUT_KEYS)})"\s*:\s*(?=\S)'
)
_LOOSE_NAME = re.compile(r"""["']?\b(?:name|tool|tool_name|function)\b["']?\s*[:=]\s*["'](?P<name>[\w.:-]+)["']""")


class JsonCallReader:
    """Reads one JSON call. The input streams if name and arguments come first; otherwise it is parsed at its end.

    `failed` is True if the object is not a call; `raw` is then its text.
    """

    def __init__(self) -> None:
        self.raw = ""
        self.failed = False
        self._reader: Callable[[str, ScanOutput], str | None] = self._read_head
        self._span = JsonSpan()

    def feed(self, text: str, out: ScanOutput) -> str | None:
        """Reads more text; returns the text after the call once it has ended, else None."""
        return self._reader(text, out)

    def close(self, out: ScanOutput) -> None:
        """Ends the answer. A call whose input has started is left incomplete; the assembler reports that."""
        if self._reader == self._read_head:
            self._parse_call(self.raw, out)

    def _read_head(self, text: str, out: ScanOutput) -> str | None:
        old_length = len(self.raw)
        self.raw += text
        match = _JSON_CALL_HEAD.match(self.raw)
        if match is not None:
            out.append(PartChunk("tool", tool=match["name"]))
            tail, self.raw = self.raw[match.end() :], ""
            self._reader, self._span = self._read_value, JsonSpan()
            return self._read_value(tail, out)
        end = self._span.find_end(text)
        if end is None:
            return None
        self._parse_call(self.raw[: old_length + end], out)
        return text[end:]

    def _read_value(self, text: str, out: ScanOutput) -> str | None:
        end = self._span.find_end(text)
        out.append(PartChunk("tool", text if end is None else text[:end]))
        if end is None:
            return None
        self._reader, self._span = self._read_tail, JsonSpan(depth=1)
        return self._read_tail(text[end:], out)

    def _read_tail(self, text: str, out: ScanOutput) -> str | None:
        """Reads the rest of the object. If its closing brace is missing, the following text is returned."""
        text = text.lstrip()
        if not text:
            return None
        if text[0] not in ",}":
            return text
        self._reader = self._skip_rest
        return self._skip_rest(text, out)

    def _skip_rest(self, text: str, out: ScanOutput) -> str | None:
        end = self._span.find_end(text)
        return None if end is None else text[end:]

    def _parse_call(self, raw: str, out: ScanOutput) -> None:
        try:
            name, arguments = _extract_call(msgspec.json.decode(raw))
        except (msgspec.DecodeError, RecursionError):
            match = _LOOSE_NAME.search(raw)
            name, arguments = (match["name"], raw) if match else ("", "")
        if name:
            out.append(PartChunk("tool", arguments, name))
        else:
            self.failed, self.raw = True, raw


def _extract_call(value: Any) -> tuple[str, str]:
    """Returns name and input of a call in any of the known shapes; ("", "") if it is not a call."""
    if not isinstance(value, dict):
        return "", ""
    fields = cast("dict[str, Any]", value)
    inner = fields.get("function")
    if isinstance(inner, dict):
        return _extract_call(inner)
    key = next((key for key in _NAME_KEYS if isinstance(fields.get(key), str) and fields[key]), None)
    if key is None:
        return "", ""
    return fields[key], _extract_input(fields, key)


def _extract_input(fields: Mapping[str, Any], name_key: str) -> str:
    """Returns the arguments as JSON; without an arguments field, all fields except name, id and type."""
    for key in _INPUT_KEYS:
        if key in fields:
            return msgspec.json.encode(fields[key]).decode()
    remaining = {key: value for key, value in fields.items() if key not in {name_key, "id", "type"}}
    return msgspec.json.encode(remaining).decode()


_PARAMETER_TAG = re.compile(r"""<parameter(?:=|\s+name=)["']?(?P<key>[^"'<>\n]+?)["']?>""", re.IGNORECASE)
_CALL_END_TAG = re.compile(r"</(?:function|invoke)>", re.IGNORECASE)
_VALUE_END_TAG = re.compile(r"\n?(?P<tag></(?:parameter|function|invoke)>)", re.IGNORECASE)
_PARTIAL_END_TAG = re.compile(r"\n?(?:</?[a-z]{0,9})?\Z", re.IGNORECASE)
_MAX_TAG_LENGTH = 200


class MarkupCallReader:
    """Reads what follows <function=NAME>: parameters as markup, or one JSON object, then the closing tag.

    Values are text, except for the parameters in `typed`, whose schema has another type: their values are JSON. A value
    without its closing tag is left open, so that a truncated answer does not become a complete call.
    """

    def __init__(self, name: str, typed: Collection[str] = ()) -> None:
        self.raw = ""
        self.failed = False
        self._name = name
        self._typed = typed
        self._held = ""
        self._reader: Callable[[], bool | None] = self._read_start
        self._count = 0
        self._value = ""  # buffered value of a typed parameter
        self._is_typed = False
        self._at_value_start = False  # whether the next character is a value's first
        self._span = JsonSpan()
        self._out: ScanOutput = []

    def feed(self, text: str, out: ScanOutput) -> str | None:
        """Reads more text; returns the text after the call once it has ended, else None."""
        self._held += text
        self._out = out
        while (result := self._reader()) is True:
            pass
        if result is None:
            return None
        remainder, self._held = self._held, ""
        return remainder

    def close(self, out: ScanOutput) -> None:
        self._out = out
        if self._reader == self._read_start:
            self._mark_failed()
        elif self._reader == self._read_between:
            self._emit("}" if self._count else "{}")
        elif self._reader == self._read_text:
            self._emit(self._escape_text(self._held))
        self._held = ""

    # Each reader method returns True to continue reading, None to wait for more text, False when the call has ended.

    def _read_start(self) -> bool | None:
        head = self._held.lstrip()
        if not head:
            return None
        if head[0] == "{":
            self._open_call(head)
            self._reader = self._read_object
            return True
        if _PARAMETER_TAG.match(head) or _CALL_END_TAG.match(head):
            self._open_call(head)
            self._reader = self._read_between
            return True
        if _may_be_partial_tag(head):
            return None
        self._mark_failed()
        return False

    def _open_call(self, head: str) -> None:
        self._held = head
        self._out.append(PartChunk("tool", tool=self._name))

    def _mark_failed(self) -> None:
        self.failed, self.raw, self._held = True, self._held, ""

    def _read_object(self) -> bool | None:
        end = self._span.find_end(self._held)
        size = len(self._held) if end is None else end
        self._emit(self._held[:size])
        self._held = self._held[size:]
        if end is None:
            return None
        self._reader = self._read_after_object
        return True

    def _read_after_object(self) -> bool | None:
        head = self._held.lstrip()
        if not head or (_may_be_partial_tag(head) and not _CALL_END_TAG.match(head)):
            return None
        end_tag = _CALL_END_TAG.match(head)
        self._held = head[end_tag.end() :] if end_tag else self._held
        return False

    def _read_between(self) -> bool | None:
        """Reads the next parameter tag or the closing tag."""
        head = self._held.lstrip()
        parameter = _PARAMETER_TAG.match(head)
        if parameter is not None:
            self._held = head[parameter.end() :]
            self._open_parameter(parameter["key"].strip())
            return True
        if not head or (_may_be_partial_tag(head) and not _CALL_END_TAG.match(head)):
            return None
        self._emit("}" if self._count else "{}")
        end_tag = _CALL_END_TAG.match(head)
        self._held = head[end_tag.end() :] if end_tag else head
        return False

    def _open_parameter(self, key: str) -> None:
        self._is_typed = key in self._typed
        quote = "" if self._is_typed else '"'
        self._emit(f"{'{' if not self._count else ','}{json.dumps(key, ensure_ascii=False)}:{quote}")
        self._count += 1
        self._reader, self._value, self._at_value_start = self._read_text, "", True

    def _read_text(self) -> bool | None:
        """Reads a parameter value; the line breaks around it belong to the markup."""
        if self._at_value_start and self._held:
            self._at_value_start = False
            self._held = self._held.removeprefix("\n")
        end_tag = _VALUE_END_TAG.search(self._held)
        if end_tag is None:
            cut = _PARTIAL_END_TAG.search(self._held)
            size = cut.start() if cut else len(self._held)
            self._emit(self._escape_text(self._held[:size]))
            self._held = self._held[size:]
            return None
        self._emit(self._escape_text(self._held[: end_tag.start()]))
        self._emit(self._close_value())
        is_parameter_end = end_tag["tag"].lower() == "</parameter>"
        self._held = self._held[end_tag.end() if is_parameter_end else end_tag.start("tag") :]
        self._reader = self._read_between
        return True

    def _escape_text(self, text: str) -> str:
        if self._is_typed:
            self._value += text
            return ""
        return json.dumps(text, ensure_ascii=False)[1:-1]

    def _close_value(self) -> str:
        if not self._is_typed:
            return '"'
        try:
            msgspec.json.decode(self._value)
        except (msgspec.DecodeError, RecursionError):
            return json.dumps(self._value.strip(), ensure_ascii=False)
        return self._value.strip()

    def _emit(self, text: str) -> None:
        if text:
            self._out.append(PartChunk("tool", text))


def _may_be_partial_tag(head: str) -> bool:
    """Whether the text may be the start of a known tag that is incomplete."""
    tags = ("<parameter", "</function>", "</invoke>")
    is_prefix = any(tag.startswith(head.lower()) for tag in tags) or head.lower().startswith("<parameter")
    return is_prefix and ">" not in head and len(head) < _MAX_TAG_LENGTH


_CALL_TAGS = ("tool_call", "tool_calls", "function_call", "function_calls", "tool_use")
_CALL_OPENING = re.compile(
    rf"<(?P<tag>{'|'.join(_CALL_TAGS)})>"
    r"|<function=(?P<function>[\w.:-]+)>"
    r"|<invoke name=\"(?P<invoke>[\w.:-]+)\">"
    r"|(?P<fence>`{3,})[ \t]*tool_calls?[ \t]*\n"
    r"|(?P<cut>(?:<[^<>\n]{0,80}|`{1,2}|`{3,}[^`<\n]{0,20})\Z)",
    re.IGNORECASE,
)
_CALL_CLOSING = re.compile(rf"</(?:{'|'.join(_CALL_TAGS)})>|(?P<cut></?[a-z_]*)\Z", re.IGNORECASE)
_OPENING_TAGS = (*(f"<{tag}>" for tag in _CALL_TAGS), "<function=", '<invoke name="')
_CLOSING_TAGS = tuple(f"</{tag}>" for tag in _CALL_TAGS)
_INNER_FENCE = re.compile(r"`{3,}[ \t]*\w*[ \t]*\n")
_PARTIAL_FENCE = re.compile(r"(?:`{1,2}|`{3,}[ \t]*\w{0,20}[ \t]*)\Z")
_FENCE = "```"


class TextCallScanner:
    """Finds tool calls in text. A state machine; `_reader` is the method for the current state.

    `typed` maps tool names to their non-text parameters, because markup does not distinguish 5 from "5".
    """

    def __init__(self, typed: Mapping[str, Collection[str]] | None = None) -> None:
        self._typed = typed or {}
        self._reader: Callable[[], bool] = self._read_edge
        self._held: str = ""
        self._out: list[PartChunk | PartBoundary | ReclassifyText] = []
        self._lines = MarkdownTracker()
        self._after_call = False  # whether the reader is after a call, not at the start of the text
        self._inside = False  # whether a tag or fence that may contain further calls is open
        self._opening = ""  # the opening tag, emitted as text if no call follows
        self._call: JsonCallReader | MarkupCallReader = JsonCallReader()

    def feed(self, text: str) -> list[PartChunk | PartBoundary | ReclassifyText]:
        self._held += text
        while self._held and self._reader():
            pass
        return self._take_output()

    def close(self) -> list[PartChunk | PartBoundary | ReclassifyText]:
        if self._reader == self._read_call:
            self._call.close(self._out)
            if self._call.failed:
                self._emit_text(self._opening + self._call.raw)
        elif self._reader == self._read_tag:
            self._emit_text(self._opening + self._held)
        elif not self._is_leftover():
            self._leave_edge()
            self._emit_text(self._held)
        self._held = ""
        return self._take_output()

    def _is_leftover(self) -> bool:
        """Whether the buffer after a call holds nothing, or only a part of its closing tag."""
        leftover = self._held.strip()
        closing = _is_tag_prefix(leftover, _CLOSING_TAGS) or (self._inside and not leftover.strip("`"))
        return self._reader == self._read_edge and self._after_call and (not leftover or closing)

    def _take_output(self) -> list[PartChunk | PartBoundary | ReclassifyText]:
        out, self._out = self._out, []
        return out

    def _read_edge(self) -> bool:
        """Reads at the start of the text or after a call; whitespace before a call is dropped with it."""
        head = self._held.lstrip()
        if not head:
            return False
        skipped = self._skip_between_calls(head) if self._after_call else None
        if skipped is not None:
            return skipped
        opening = _CALL_OPENING.match(head)
        if not _is_possible_opening(opening):
            self._leave_edge()
            return True
        if opening["cut"]:
            return False
        self._held = head[opening.end() :]
        self._handle_opening(opening)
        return True

    def _skip_between_calls(self, head: str) -> bool | None:
        """Skips closing tags and separators after a call; returns None if there is nothing to skip."""
        if self._inside and head[0] in ",]":
            self._held = head[1:]
            return True
        if self._inside and head[0] == "{":
            self._held = head
            self._start_call(JsonCallReader())
            return True
        if self._inside and head[0] == "`":
            return self._skip_fence_end(head)
        closing = _CALL_CLOSING.match(head)
        if closing is None or (closing["cut"] and not _is_tag_prefix(closing["cut"], _CLOSING_TAGS)):
            return None
        if closing["cut"]:
            return False
        self._held, self._inside = head[closing.end() :], False
        return True

    def _skip_fence_end(self, head: str) -> bool | None:
        run = head[: len(head) - len(head.lstrip("`"))]
        if len(run) == len(head):
            return False  # more backticks may follow
        if len(run) < len(_FENCE):
            return None
        self._held = head[len(run) :]
        self._inside = not self._opening.startswith("`")
        return True

    def _leave_edge(self) -> None:
        """Drops blank lines after a call, but not the indentation of the next line."""
        if self._reader == self._read_edge and self._after_call:
            text = self._held.lstrip()
            blanks = self._held[: len(self._held) - len(text)]
            self._held = blanks.rpartition("\n")[2] + text if "\n" in blanks else text
        self._reader = self._read_text

    def _read_text(self) -> bool:
        opening = _CALL_OPENING.search(self._held)
        if not _is_possible_opening(opening):
            self._emit_held(len(self._held))
            return True
        self._emit_held(opening.start())
        if not self._is_valid_opening(opening):
            self._emit_held(len(opening[0]))
        elif opening["cut"]:
            return False
        else:
            self._held = self._held[len(opening[0]) :]
            self._handle_opening(opening)
        return True

    def _is_valid_opening(self, opening: re.Match[str]) -> bool:
        """Whether an opening is real: a fence only at the start of a line, a tag anywhere outside of code."""
        if self._lines.fence:
            return False
        if opening[0].startswith("`"):
            return self._lines.at_line_start
        return not self._lines.in_code()

    def _handle_opening(self, opening: re.Match[str]) -> None:
        self._opening, self._inside = opening[0], bool(opening["tag"] or opening["fence"])
        name = opening["function"] or opening["invoke"]
        if name:
            self._start_call(MarkupCallReader(name, self._typed.get(name, ())))
        else:
            self._reader = self._read_tag

    def _start_call(self, call: JsonCallReader | MarkupCallReader) -> None:
        self._call, self._reader = call, self._read_call

    def _read_tag(self) -> bool:
        """Reads after an opening tag, before its first call."""
        head = self._held.lstrip()
        if not head:
            return False
        blanks = self._held[: len(self._held) - len(head)]
        if head[0] == "{":
            self._consume(blanks, head)
            self._start_call(JsonCallReader())
            return True
        if head[0] == "[":
            self._consume(blanks + "[", head[1:])
            return True
        return self._read_tag_markup(blanks, head)

    def _read_tag_markup(self, blanks: str, head: str) -> bool:
        if fence := _INNER_FENCE.match(head):
            self._consume(blanks + fence[0], head[fence.end() :])
            return True
        markup = _CALL_OPENING.match(head)
        if _PARTIAL_FENCE.match(head) or (_is_possible_opening(markup) and markup["cut"]):
            return False
        name = (markup["function"] or markup["invoke"]) if markup else ""
        if markup and name:
            self._consume(blanks + markup[0], head[markup.end() :])
            self._start_call(MarkupCallReader(name, self._typed.get(name, ())))
            return True
        opening, self._opening, self._inside = self._opening, "", False
        self._emit_text(opening)
        self._reader = self._read_text
        return True

    def _consume(self, consumed: str, remainder: str) -> None:
        self._opening += consumed
        self._held = remainder

    def _read_call(self) -> bool:
        remainder = self._call.feed(self._held, self._out)
        self._held = remainder or ""
        if remainder is None:
            return False
        if self._call.failed:
            self._emit_text(self._opening)
            self._held = self._call.raw + remainder
            self._reader, self._inside = self._read_text, False
        else:
            self._out.append(PartBoundary())
            self._reader, self._after_call, self._lines = self._read_edge, True, MarkdownTracker()
        self._opening = self._opening if self._opening.startswith("`") else ""
        return True

    def _emit_held(self, size: int) -> None:
        text, self._held = self._held[:size], self._held[size:]
        self._emit_text(text)

    def _emit_text(self, text: str) -> None:
        if text:
            self._lines.add(text)
            self._out.append(PartChunk("text", text))


def _is_possible_opening(match: re.Match[str] | None) -> TypeGuard[re.Match[str]]:
    """Whether a match is an opening, or an incomplete one at the end of the text."""
    if match is None or not match["cut"]:
        return match is not None
    cut = match["cut"].lower()
    if cut[0] == "`":
        return "tool_calls".startswith(cut.lstrip("`").strip())
    return _is_tag_prefix(cut, _OPENING_TAGS) or cut.startswith(_OPENING_TAGS[-2:])


def _is_tag_prefix(cut: str, tags: Collection[str]) -> bool:
    return any(tag.startswith(cut.lower()) for tag in tags)


_PROMPT_FORM = "text-tools"


class TextToolsClient:
    """Wraps a client whose models have no native tool calls, and parses calls from their text."""

    def __init__(self, client: ModelClient) -> None:
        self.repeats_requests = getattr(client, "repeats_requests", False)
        self.name = client.name
        self._client = client

    def model_family(self, model: str) -> str:
        return self._client.model_family(model)

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        deltas = self._client.stream(render_tools_as_text(request))
        if not request.tools or request.settings.tool_choice.mode == "none":
            return deltas
        typed = {tool.name: _typed_parameters(tool) for tool in request.tools}
        return filter_stream(deltas, TextSplitFilter(lambda: TextCallScanner(typed)))

    async def aclose(self) -> None:
        await self._client.aclose()


def render_tools_as_text(request: Request) -> Request:
    """Returns the request without tools: appends their description to the system text and renders calls and results.

    The rewritten prompt is cached with the original one and only appends, so its encoded prefix stays stable.
    """
    system = "\n\n".join(filter(None, (request.system, *_tool_sections(request.tools, request.settings.tool_choice))))
    return replace(
        request,
        system=system or None,
        tools=(),
        prompt=rewrite_as_text(request.prompt),
        settings=replace(request.settings, tool_choice=ToolChoice()),
    )


def rewrite_as_text(prompt: Prompt) -> Prompt:
    """Returns the prompt with calls and results as text."""
    return prompt.rewritten(_PROMPT_FORM, _render_message)


def render_call(use: ToolUsePart) -> str:
    call = msgspec.json.encode({"name": use.tool_name, "arguments": use.tool_input}).decode()
    return f"<tool_call>\n{call}\n</tool_call>"


def render_result(result: ToolResultPart, tool: str) -> str:
    failed = ' error="true"' if result.is_error else ""
    return f'<tool_result name="{tool}"{failed}>\n{result.content}\n</tool_result>'


@cache
def _protocol_prompt() -> str:
    return Path(__file__).with_suffix(".md").read_text(encoding="utf-8").strip()


def _tool_sections(tools: tuple[ToolSpec, ...], choice: ToolChoice) -> Iterator[str]:
    if not tools:
        return
    yield _protocol_prompt()
    for tool in tools:
        schema = msgspec.json.encode(tool.parameters).decode()
        yield f"## {tool.name}\n\n{tool.description.strip()}\n\nSchema of the arguments: {schema}"
    match choice.mode:
        case "auto":
            pass
        case "required":
            yield "In this answer you must call at least one tool."
        case "none":
            yield "In this answer you must not call any tool."
        case "tool":
            yield f"In this answer you must call the tool {choice.tool}."
        case _:
            assert_never(choice.mode)
    if not choice.parallel:
        yield "Make one call at a time."


def _typed_parameters(tool: ToolSpec) -> Collection[str]:
    """Returns the names of parameters whose type is not a string."""
    properties: dict[str, Any] = tool.parameters.get("properties") or {}
    return {name for name, schema in properties.items() if not _is_text(schema)}


def _is_text(schema: Any) -> bool:
    match schema:
        case {"type": str(kind)}:
            return kind == "string"
        case {"type": [*kinds]}:
            return "string" in kinds
        case {"anyOf": [*choices]} | {"oneOf": [*choices]}:
            return any(_is_text(choice) for choice in choices)
        case _:
            return True


def _render_message(message: ModelMessage, previous: ModelMessage | None) -> ModelMessage:
    if not any(isinstance(part, ToolUsePart | ToolResultPart) for part in message.content):
        return message
    calls = previous.content if previous else ()
    names = {part.tool_id: part.tool_name for part in calls if isinstance(part, ToolUsePart)}
    return ModelMessage(message.role, tuple(_join_texts(_render_parts(message.content, names))))


def _render_parts(content: Iterable[ModelPart], names: dict[str, str]) -> Iterator[ModelPart]:
    for part in content:
        match part:
            case ToolUsePart():
                yield TextPart(render_call(part))
            case ToolResultPart():
                yield TextPart(render_result(part, names.get(part.tool_use_id, "unknown")))
                yield from map(attachment_part, part.attachments)
            case TextPart() | ReasoningPart() | FilePart():
                yield part
            case _:
                assert_never(part)


def _join_texts(parts: Iterable[ModelPart]) -> Iterator[ModelPart]:
    """Joins consecutive text parts, because some servers accept only one text. An empty text part has only the vendor's
    signature, so it stays as it is."""
    texts: list[str] = []
    for part in parts:
        if isinstance(part, TextPart) and part.text.strip():
            texts.append(part.text)
            continue
        if texts:
            yield TextPart("\n\n".join(texts))
            texts = []
        yield part
    if texts:
        yield TextPart("\n\n".join(texts))
