"""Finds calls in the plain text of a model without native tool calls, while it streams.

The form that models are asked for is <tool_call>{"name": …, "arguments": {…}}</tool_call>. What others were trained on
is taken as well: several objects or a list in one tag, a fence of the language tool_call, <function=name> with JSON or
<parameter=key> inside, <invoke name="…">, closing tags that are missing. A tag inside a fence or inline code is an
example, and one that no call follows is text; both leave as they came. Blank lines around calls are dropped.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeGuard, cast

import msgspec

from outrider.providers.stream_filters.base import End, Piece, Reclassify
from outrider.providers.stream_filters.think_tags import Lines

Out = list[Piece | End | Reclassify]

_NAMES = ("name", "tool", "tool_name", "function")
_INPUTS = ("arguments", "parameters", "input", "args")
_HEAD = re.compile(
    rf'\{{\s*"(?:{"|".join(_NAMES)})"\s*:\s*"(?P<name>[^"\\]+)"\s*,\s*"(?:{"|".join(_INPUTS)})"\s*:\s*(?=\S)'
)
_LOOSE_NAME = re.compile(r"""["']?\b(?:name|tool|tool_name|function)\b["']?\s*[:=]\s*["'](?P<name>[\w.:-]+)["']""")
_OUTSIDE = re.compile(r'["{}\[\],<]')
_IN_STRING = re.compile(r'["\\]')


class JsonSpan:
    """Finds where a JSON value ends, in text that arrives in pieces and may be damaged."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._string = False
        self._escaped = False

    def end(self, text: str) -> int | None:
        """The position after the value. A `<` outside strings belongs to no value, so it ends one, too."""
        position = 0
        while position < len(text):
            if self._string:
                position = self._through_string(text, position)
                if self._depth == 0 and not self._string:
                    return position
                continue
            found = _OUTSIDE.search(text, position)
            if found is None:
                return None
            position = found.end()
            if (end := self._at(found)) is not None:
                return end
        return None

    def _at(self, found: re.Match[str]) -> int | None:
        mark = found[0]
        if mark == "<" or (self._depth == 0 and mark in ",}]"):
            return found.start()
        if mark == '"':
            self._string = True
        elif mark in "{[":
            self._depth += 1
        elif mark in "}]":
            self._depth -= 1
            return found.end() if self._depth == 0 else None
        return None

    def _through_string(self, text: str, position: int) -> int:
        if self._escaped:
            self._escaped = False
            return position + 1
        found = _IN_STRING.search(text, position)
        if found is None:
            return len(text)
        if found[0] == '"':
            self._string = False
        else:
            self._escaped = True
        return found.end()


class JsonCall:
    """Reads one call. An object that begins with name and arguments streams; any other is read when it is whole.

    `failed` says that it was no call at all: then `raw` is all of its text.
    """

    def __init__(self) -> None:
        self.raw = ""
        self.failed = False
        self._read: Callable[[str, Out], str | None] = self._head
        self._span = JsonSpan()

    def feed(self, text: str, out: Out) -> str | None:
        """What follows the call, once it has ended."""
        return self._read(text, out)

    def close(self, out: Out) -> None:
        """The answer is over. A call that has begun stays as it is; its reader sees whether its input is whole."""
        if self._read == self._head:
            self._interpret(self.raw, out)

    def _head(self, text: str, out: Out) -> str | None:
        before = len(self.raw)
        self.raw += text
        found = _HEAD.match(self.raw)
        if found is not None:
            out.append(Piece("tool", tool=found["name"]))
            rest, self.raw = self.raw[found.end() :], ""
            self._read, self._span = self._value, JsonSpan()
            return self._value(rest, out)
        end = self._span.end(text)
        if end is None:
            return None
        self._interpret(self.raw[: before + end], out)
        return text[end:]

    def _value(self, text: str, out: Out) -> str | None:
        end = self._span.end(text)
        out.append(Piece("tool", text if end is None else text[:end]))
        if end is None:
            return None
        self._read, self._span = self._tail, JsonSpan(depth=1)
        return self._tail(text[end:], out)

    def _tail(self, text: str, out: Out) -> str | None:
        """The rest of the object. Where its end is missing, what follows is not swallowed."""
        text = text.lstrip()
        if not text:
            return None
        if text[0] not in ",}":
            return text
        self._read = self._skip
        return self._skip(text, out)

    def _skip(self, text: str, out: Out) -> str | None:
        end = self._span.end(text)
        return None if end is None else text[end:]

    def _interpret(self, raw: str, out: Out) -> None:
        try:
            name, given = _call_of(msgspec.json.decode(raw))
        except (msgspec.DecodeError, RecursionError):
            found = _LOOSE_NAME.search(raw)
            name, given = (found["name"], raw) if found else ("", "")
        if name:
            out.append(Piece("tool", given, name))
        else:
            self.failed, self.raw = True, raw


def _call_of(value: Any) -> tuple[str, str]:
    """Name and input of a call, in the shapes that models know; no name means that it is none."""
    if not isinstance(value, dict):
        return "", ""
    fields = cast("dict[str, Any]", value)
    inner = fields.get("function")
    if isinstance(inner, dict):
        return _call_of(inner)
    key = next((key for key in _NAMES if isinstance(fields.get(key), str) and fields[key]), None)
    if key is None:
        return "", ""
    return fields[key], _input_of(fields, key)


def _input_of(fields: Mapping[str, Any], name_key: str) -> str:
    """The arguments, or all the other fields where there are none of that name."""
    for key in _INPUTS:
        if key in fields:
            return msgspec.json.encode(fields[key]).decode()
    others = {key: value for key, value in fields.items() if key not in {name_key, "id", "type"}}
    return msgspec.json.encode(others).decode()


_PARAMETER = re.compile(r"""<parameter(?:=|\s+name=)["']?(?P<key>[^"'<>\n]+?)["']?>""", re.IGNORECASE)
_END = re.compile(r"</(?:function|invoke)>", re.IGNORECASE)
_VALUE_END = re.compile(r"\n?(?P<tag></(?:parameter|function|invoke)>)", re.IGNORECASE)
_CUT_END = re.compile(r"\n?(?:</?[a-z]{0,9})?\Z", re.IGNORECASE)
_LONGEST_TAG = 200


class MarkupCall:
    """Reads what follows <function=NAME>: parameters as markup, or one JSON object, then the closing tag.

    Values are text, except those of `typed` parameters, whose schema wants another type: these are JSON. A value whose
    own closing tag never came is left open, so that a cut answer is not taken for a whole one.
    """

    def __init__(self, name: str, typed: Collection[str] = ()) -> None:
        self.raw = ""
        self.failed = False
        self._name = name
        self._typed = typed
        self._held = ""
        self._read: Callable[[], bool | None] = self._start
        self._count = 0
        self._value = ""  # of a typed parameter, until it is whole
        self._is_typed = False
        self._fresh = False  # whether the next character is a value's first
        self._span = JsonSpan()
        self._out: Out = []

    def feed(self, text: str, out: Out) -> str | None:
        """What follows the call, once it has ended."""
        self._held += text
        self._out = out
        while (again := self._read()) is True:
            pass
        if again is None:
            return None
        rest, self._held = self._held, ""
        return rest

    def close(self, out: Out) -> None:
        self._out = out
        if self._read == self._start:
            self._fail()
        elif self._read == self._between:
            self._give("}" if self._count else "{}")
        elif self._read == self._text:
            self._give(self._escaped(self._held))
        self._held = ""

    # Every reader answers: True (there is more to read), None (wait for more text), False (the call has ended).

    def _start(self) -> bool | None:
        head = self._held.lstrip()
        if not head:
            return None
        if head[0] == "{":
            self._begin(head)
            self._read = self._object
            return True
        if _PARAMETER.match(head) or _END.match(head):
            self._begin(head)
            self._read = self._between
            return True
        if _may_be_tag(head):
            return None
        self._fail()
        return False

    def _begin(self, head: str) -> None:
        self._held = head
        self._out.append(Piece("tool", tool=self._name))

    def _fail(self) -> None:
        self.failed, self.raw, self._held = True, self._held, ""

    def _object(self) -> bool | None:
        end = self._span.end(self._held)
        size = len(self._held) if end is None else end
        self._give(self._held[:size])
        self._held = self._held[size:]
        if end is None:
            return None
        self._read = self._after_object
        return True

    def _after_object(self) -> bool | None:
        head = self._held.lstrip()
        if not head or (_may_be_tag(head) and not _END.match(head)):
            return None
        found = _END.match(head)
        self._held = head[found.end() :] if found else self._held
        return False

    def _between(self) -> bool | None:
        """Before a parameter or the end."""
        head = self._held.lstrip()
        found = _PARAMETER.match(head)
        if found is not None:
            self._held = head[found.end() :]
            self._open(found["key"].strip())
            return True
        if not head or (_may_be_tag(head) and not _END.match(head)):
            return None
        self._give("}" if self._count else "{}")
        end = _END.match(head)
        self._held = head[end.end() :] if end else head
        return False

    def _open(self, key: str) -> None:
        self._is_typed = key in self._typed
        quote = "" if self._is_typed else '"'
        self._give(f"{'{' if not self._count else ','}{json.dumps(key, ensure_ascii=False)}:{quote}")
        self._count += 1
        self._read, self._value, self._fresh = self._text, "", True

    def _text(self) -> bool | None:
        """A value: the line breaks around it belong to the markup."""
        if self._fresh and self._held:
            self._fresh = False
            self._held = self._held.removeprefix("\n")
        found = _VALUE_END.search(self._held)
        if found is None:
            cut = _CUT_END.search(self._held)
            size = cut.start() if cut else len(self._held)
            self._give(self._escaped(self._held[:size]))
            self._held = self._held[size:]
            return None
        self._give(self._escaped(self._held[: found.start()]))
        self._give(self._value_end())
        own = found["tag"].lower() == "</parameter>"
        self._held = self._held[found.end() if own else found.start("tag") :]
        self._read = self._between
        return True

    def _escaped(self, text: str) -> str:
        if self._is_typed:
            self._value += text
            return ""
        return json.dumps(text, ensure_ascii=False)[1:-1]

    def _value_end(self) -> str:
        if not self._is_typed:
            return '"'
        try:
            msgspec.json.decode(self._value)
        except (msgspec.DecodeError, RecursionError):
            return json.dumps(self._value.strip(), ensure_ascii=False)
        return self._value.strip()

    def _give(self, text: str) -> None:
        if text:
            self._out.append(Piece("tool", text))


def _may_be_tag(head: str) -> bool:
    """Whether a tag that we know may have begun and is not whole."""
    known = ("<parameter", "</function>", "</invoke>")
    begun = any(tag.startswith(head.lower()) for tag in known) or head.lower().startswith("<parameter")
    return begun and ">" not in head and len(head) < _LONGEST_TAG


_TAGS = ("tool_call", "tool_calls", "function_call", "function_calls", "tool_use")
_OPEN = re.compile(
    rf"<(?P<tag>{'|'.join(_TAGS)})>"
    r"|<function=(?P<function>[\w.:-]+)>"
    r"|<invoke name=\"(?P<invoke>[\w.:-]+)\">"
    r"|(?P<fence>`{3,})[ \t]*tool_calls?[ \t]*\n"
    r"|(?P<cut>(?:<[^<>\n]{0,80}|`{1,2}|`{3,}[^`<\n]{0,20})\Z)",
    re.IGNORECASE,
)
_CLOSE = re.compile(rf"</(?:{'|'.join(_TAGS)})>|(?P<cut></?[a-z_]*)\Z", re.IGNORECASE)
_OPENINGS = (*(f"<{tag}>" for tag in _TAGS), "<function=", '<invoke name="')
_CLOSINGS = tuple(f"</{tag}>" for tag in _TAGS)
_INNER_FENCE = re.compile(r"`{3,}[ \t]*\w*[ \t]*\n")
_INNER_CUT = re.compile(r"(?:`{1,2}|`{3,}[ \t]*\w{0,20}[ \t]*)\Z")
_FENCE = "```"


class TextCalls:
    """A scanner; where it stands is the method that reads on from there.

    `typed` names, per tool, the parameters that are not text: in markup nothing else tells 5 from "5".
    """

    def __init__(self, typed: Mapping[str, Collection[str]] | None = None) -> None:
        self._typed = typed or {}
        self._read: Callable[[], bool] = self._edge
        self._held: str = ""
        self._out: list[Piece | End | Reclassify] = []
        self._lines = Lines()
        self._after = False  # whether the edge is the end of a call, not the start of the text
        self._inside = False  # whether a tag or fence that may hold further calls is open
        self._opening = ""  # what opened it, in case that no call follows
        self._call: JsonCall | MarkupCall = JsonCall()

    def feed(self, text: str) -> list[Piece | End | Reclassify]:
        self._held += text
        while self._held and self._read():
            pass
        return self._given()

    def close(self) -> list[Piece | End | Reclassify]:
        if self._read == self._in_call:
            self._call.close(self._out)
            if self._call.failed:
                self._show_text(self._opening + self._call.raw)
        elif self._read == self._in_tag:
            self._show_text(self._opening + self._held)
        elif not self._is_leftover():
            self._leave_edge()
            self._show_text(self._held)
        self._held = ""
        return self._given()

    def _is_leftover(self) -> bool:
        """After a call: nothing, or what would have closed it."""
        left = self._held.strip()
        closing = _begins(left, _CLOSINGS) or (self._inside and not left.strip("`"))
        return self._read == self._edge and self._after and (not left or closing)

    def _given(self) -> list[Piece | End | Reclassify]:
        out, self._out = self._out, []
        return out

    def _edge(self) -> bool:
        """The start of the text, or the end of a call; blanks go with the call that follows them."""
        head = self._held.lstrip()
        if not head:
            return False
        skipped = self._skip(head) if self._after else None
        if skipped is not None:
            return skipped
        found = _OPEN.match(head)
        if not _possible(found):
            self._leave_edge()
            return True
        if found["cut"]:
            return False
        self._held = head[found.end() :]
        self._open(found)
        return True

    def _skip(self, head: str) -> bool | None:
        """After a call: closing tags, and what stands between calls. None when there is nothing to skip."""
        if self._inside and head[0] in ",]":
            self._held = head[1:]
            return True
        if self._inside and head[0] == "{":
            self._held = head
            self._begin(JsonCall())
            return True
        if self._inside and head[0] == "`":
            return self._skip_fence_end(head)
        found = _CLOSE.match(head)
        if found is None or (found["cut"] and not _begins(found["cut"], _CLOSINGS)):
            return None
        if found["cut"]:
            return False
        self._held, self._inside = head[found.end() :], False
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
        """After a call, blank lines are dropped; the indentation of the first line is not."""
        if self._read == self._edge and self._after:
            text = self._held.lstrip()
            blanks = self._held[: len(self._held) - len(text)]
            self._held = blanks.rpartition("\n")[2] + text if "\n" in blanks else text
        self._read = self._text

    def _text(self) -> bool:
        found = _OPEN.search(self._held)
        if not _possible(found):
            self._show(len(self._held))
            return True
        self._show(found.start())
        if not self._counts(found):
            self._show(len(found[0]))
        elif found["cut"]:
            return False
        else:
            self._held = self._held[len(found[0]) :]
            self._open(found)
        return True

    def _counts(self, opening: re.Match[str]) -> bool:
        """A fence opens at the start of a line; a tag anywhere, except where code is shown."""
        if self._lines.fence:
            return False
        if opening[0].startswith("`"):
            return self._lines.fresh
        return not self._lines.in_code()

    def _open(self, opening: re.Match[str]) -> None:
        self._opening, self._inside = opening[0], bool(opening["tag"] or opening["fence"])
        name = opening["function"] or opening["invoke"]
        if name:
            self._begin(MarkupCall(name, self._typed.get(name, ())))
        else:
            self._read = self._in_tag

    def _begin(self, call: JsonCall | MarkupCall) -> None:
        self._call, self._read = call, self._in_call

    def _in_tag(self) -> bool:
        """Inside an opening tag, before its first call."""
        head = self._held.lstrip()
        if not head:
            return False
        blanks = self._held[: len(self._held) - len(head)]
        if head[0] == "{":
            self._take(blanks, head)
            self._begin(JsonCall())
            return True
        if head[0] == "[":
            self._take(blanks + "[", head[1:])
            return True
        return self._in_tag_markup(blanks, head)

    def _in_tag_markup(self, blanks: str, head: str) -> bool:
        if fence := _INNER_FENCE.match(head):
            self._take(blanks + fence[0], head[fence.end() :])
            return True
        found = _OPEN.match(head)
        if _INNER_CUT.match(head) or (_possible(found) and found["cut"]):
            return False
        name = (found["function"] or found["invoke"]) if found else ""
        if found and name:
            self._take(blanks + found[0], head[found.end() :])
            self._begin(MarkupCall(name, self._typed.get(name, ())))
            return True
        opening, self._opening, self._inside = self._opening, "", False
        self._show_text(opening)
        self._read = self._text
        return True

    def _take(self, passed: str, rest: str) -> None:
        self._opening += passed
        self._held = rest

    def _in_call(self) -> bool:
        rest = self._call.feed(self._held, self._out)
        self._held = rest or ""
        if rest is None:
            return False
        if self._call.failed:
            self._show_text(self._opening)
            self._held = self._call.raw + rest
            self._read, self._inside = self._text, False
        else:
            self._out.append(End())
            self._read, self._after, self._lines = self._edge, True, Lines()
        self._opening = self._opening if self._opening.startswith("`") else ""
        return True

    def _show(self, size: int) -> None:
        text, self._held = self._held[:size], self._held[size:]
        self._show_text(text)

    def _show_text(self, text: str) -> None:
        if text:
            self._lines.add(text)
            self._out.append(Piece("text", text))


def _possible(found: re.Match[str] | None) -> TypeGuard[re.Match[str]]:
    """An opening, or the beginning of one."""
    if found is None or not found["cut"]:
        return found is not None
    cut = found["cut"].lower()
    if cut[0] == "`":
        return "tool_calls".startswith(cut.lstrip("`").strip())
    return _begins(cut, _OPENINGS) or cut.startswith(_OPENINGS[-2:])


def _begins(cut: str, tags: Collection[str]) -> bool:
    return any(tag.startswith(cut.lower()) for tag in tags)
