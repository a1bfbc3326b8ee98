"""A call that a model writes as <function=name> with <parameter=key> inside, given out while it arrives."""

import json
import re
from collections.abc import Callable, Collection

import msgspec

from outrider.providers.stages.json_call import JsonSpan, Out
from outrider.providers.stages.split import Piece

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
