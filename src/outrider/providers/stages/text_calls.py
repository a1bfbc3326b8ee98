"""Finds calls in the plain text of a model without native tool calls, while it streams.

The form that models are asked for is <tool_call>{"name": …, "arguments": {…}}</tool_call>. What others were trained on
is taken as well: several objects or a list in one tag, a fence of the language tool_call, <function=name> with JSON or
<parameter=key> inside, <invoke name="…">, closing tags that are missing. A tag inside a fence or inline code is an
example, and one that no call follows is text; both leave as they came. Blank lines around calls are dropped.
"""

import re
from collections.abc import Callable, Collection, Mapping
from typing import TypeGuard

from outrider.providers.stages.json_call import JsonCall
from outrider.providers.stages.lines import Lines
from outrider.providers.stages.markup_call import MarkupCall
from outrider.providers.stages.split import End, Piece, Recast

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
        self._out: list[Piece | End | Recast] = []
        self._lines = Lines()
        self._after = False  # whether the edge is the end of a call, not the start of the text
        self._inside = False  # whether a tag or fence that may hold further calls is open
        self._opening = ""  # what opened it, in case that no call follows
        self._call: JsonCall | MarkupCall = JsonCall()

    def feed(self, text: str) -> list[Piece | End | Recast]:
        self._held += text
        while self._held and self._read():
            pass
        return self._given()

    def close(self) -> list[Piece | End | Recast]:
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

    def _given(self) -> list[Piece | End | Recast]:
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
