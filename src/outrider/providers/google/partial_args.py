"""Arguments that arrive as JSON paths with values, written on as the text of one JSON object while they arrive."""

import re
from typing import Any

import msgspec

Step = str | int

# .name, [0], ['name'] and ["name"]
_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")


class ArgsWriter:
    """Paths come in the order in which the model writes, so the text only ever grows."""

    def __init__(self) -> None:
        self._open: list[Step] = []  # the way to the innermost open container
        self._closers: list[str] = []  # what closes each open container, the outermost first
        self._filled: list[bool] = []  # whether it already holds something
        self._string: list[Step] | None = None  # where a string is being written

    def write(self, piece: dict[str, Any]) -> str:
        """The text that one piece adds."""
        path = steps(piece.get("jsonPath") or "")
        if not path:
            return ""
        if "stringValue" in piece:
            return self._write_string(path, piece["stringValue"], goes_on=bool(piece.get("willContinue")))
        value = piece.get("numberValue", piece.get("boolValue"))  # what is left is null
        return self._lead_to(path) + _json(value)

    def end(self) -> str:
        """What closes the object; nothing when it was never begun."""
        text = self._close_string() + "".join(reversed(self._closers))
        self._open, self._closers, self._filled = [], [], []
        return text

    def _write_string(self, path: list[Step], value: str, *, goes_on: bool) -> str:
        escaped = _json(value)[1:-1]
        text = escaped if path == self._string else f'{self._lead_to(path)}"{escaped}'
        self._string = path
        return text if goes_on else text + self._close_string()

    def _close_string(self) -> str:
        closing = "" if self._string is None else '"'
        self._string = None
        return closing

    def _lead_to(self, path: list[Step]) -> str:
        """Close what the path has left and open what it enters, up to its value."""
        text = self._close_string()
        if not self._closers:
            text += self._enter("{")
        while self._open != path[: len(self._open)] or len(self._open) >= len(path):
            self._open.pop()
            self._filled.pop()
            text += self._closers.pop()
        for depth in range(len(self._open), len(path) - 1):
            text += self._name(path[depth]) + self._enter("[" if isinstance(path[depth + 1], int) else "{")
            self._open.append(path[depth])
        return text + self._name(path[-1])

    def _enter(self, opener: str) -> str:
        self._closers.append("]" if opener == "[" else "}")
        self._filled.append(False)
        return opener

    def _name(self, step: Step) -> str:
        comma = "," if self._filled[-1] else ""
        self._filled[-1] = True
        return comma if isinstance(step, int) else f"{comma}{_json(step)}:"


def steps(path: str) -> list[Step]:
    """`$.orders[0].name` as its steps."""
    found: list[Step] = []
    for name, index, single, double in _STEP.findall(path):
        found.append(int(index) if index else name or single or double)
    return found


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
