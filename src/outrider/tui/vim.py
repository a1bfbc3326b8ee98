"""Vi keys for the composer: normal and insert mode, motions, operators and counts."""

from collections.abc import Callable
from typing import Literal

from textual.widgets import TextArea

VimMode = Literal["insert", "normal"]
_Position = tuple[int, int]
_OPERATORS = frozenset("dcy")
_FINDERS = frozenset("fFtT")


class VimKeys:
    """Interprets keys for a text area. In insert mode only Escape is handled; `handle_key` returns whether the key was
    consumed."""

    def __init__(self, area: TextArea) -> None:
        self._area = area
        self.mode: VimMode = "insert"
        self._pending = ""  # the keys of an incomplete command
        self._register, self._linewise = "", False

    def handle_key(self, key: str, character: str | None) -> bool:
        if self.mode == "insert":
            if key != "escape":
                return False
            self._enter_normal()
            return True
        if key == "escape":
            consumed, self._pending = bool(self._pending), ""
            return consumed
        if key == "ctrl+r":
            self._area.redo()
            return True
        if character is None or not character.isprintable():
            return key in ("backspace", "delete")  # arrows, Enter and shortcuts work as usual
        self._pending += character
        if self._run_pending():
            self._pending = ""
        return True

    def _enter_normal(self) -> None:
        self.mode = "normal"
        row, column = self._area.cursor_location
        self._area.move_cursor((row, max(column - 1, 0)))

    def _run_pending(self) -> bool:
        """Runs the command if it is complete or invalid; returns False if more keys are needed."""
        count, command_keys = _split_count(self._pending)
        if not command_keys:
            return False
        command = command_keys[0]
        if command in _OPERATORS:
            return self._run_operator(command, count or 1, command_keys[1:])
        if command in _FINDERS or command in "gr":
            return len(command_keys) > 1 and self._run_long(command_keys, count)
        self._run_simple(command, count)
        return True

    def _run_operator(self, operator: str, count: int, keys: str) -> bool:
        inner, target = _split_count(keys)
        if not target or (target[0] in _FINDERS | set("ia") and len(target) < 2):
            return False
        count *= inner or 1
        start = self._area.cursor_location
        if target[0] == operator:
            self._apply_to_lines(operator, count)
            return True
        if target[0] in "ia":
            word_range = self._word_around(start, whole=target[0] == "a") if target[1] == "w" else None
            if word_range:
                self._apply_to_range(operator, *word_range)
            return True
        motion = "e" if operator == "c" and target[0] == "w" else target
        end = self._find_motion(motion, count, start)
        if end is not None and end != start:
            range_start, range_end = sorted((start, end))
            self._apply_to_range(
                operator, range_start, (range_end[0], range_end[1] + (motion[0] in "eftG$" and end > start))
            )
        return True

    def _run_long(self, keys: str, count: int) -> bool:
        if keys[0] == "r":
            self._replace_character(keys[1])
        elif keys[0] != "g" or keys[1] == "g":
            self._move(self._find_motion("gg" if keys[0] == "g" else keys, count or 1, self._area.cursor_location))
        return True

    def _run_simple(self, command: str, count: int) -> None:
        row, column = self._area.cursor_location
        actions: dict[str, Callable[[], object]] = {
            "i": lambda: self._insert((row, column)),
            "a": lambda: self._insert((row, min(column + 1, len(self._line(row))))),
            "I": lambda: self._insert((row, self._first_column(row))),
            "A": lambda: self._insert((row, len(self._line(row)))),
            "o": lambda: self._open_line(row + 1),
            "O": lambda: self._open_line(row),
            "x": lambda: self._apply_to_range("d", (row, column), (row, column + (count or 1))),
            "X": lambda: self._apply_to_range("d", (row, max(column - (count or 1), 0)), (row, column)),
            "s": lambda: self._apply_to_range("c", (row, column), (row, column + (count or 1))),
            "D": lambda: self._apply_to_range("d", (row, column), (row, len(self._line(row)))),
            "C": lambda: self._apply_to_range("c", (row, column), (row, len(self._line(row)))),
            "S": lambda: self._apply_to_lines("c", count or 1),
            "Y": lambda: self._apply_to_lines("y", count or 1),
            "u": self._area.undo,
            "p": lambda: self._put(after=True),
            "P": lambda: self._put(after=False),
            "J": self._join_lines,
            "~": self._swap_case,
        }
        if command in actions:
            actions[command]()
        else:
            self._move(self._find_motion(command, count or (0 if command == "G" else 1), (row, column)))

    def _find_motion(self, motion: str, count: int, start: _Position) -> _Position | None:
        """Returns where a motion leads, or None if the key is not a motion."""
        row, column = start
        last_row = self._area.document.line_count - 1
        match motion[0]:
            case "h":
                return row, max(column - count, 0)
            case "l" | " ":
                return row, min(column + count, len(self._line(row)))
            case "j" | "k":
                target = min(max(row + (count if motion[0] == "j" else -count), 0), last_row)
                return target, min(column, len(self._line(target)))
            case "0" | "^" | "$":
                ends = {"0": 0, "^": self._first_column(row), "$": max(len(self._line(row)) - 1, 0)}
                return row, ends[motion[0]]
            case "G":
                target = min(count - 1, last_row) if count else last_row
                return target, max(len(self._line(target)) - 1, 0) if not count else 0
            case "g":
                return 0, 0
            case "w" | "b" | "e":
                return self._step_words(motion, count, start)
            case "f" | "F" | "t" | "T":
                return self._find_character(motion, count, start)
            case _:
                return None

    def _step_words(self, motion: str, count: int, start: _Position) -> _Position:
        text, index = self._area.text, self._index(start)
        for _ in range(count):
            if motion == "w":
                kind = _kind(text, index)
                while index < len(text) and _kind(text, index) == kind != "space":
                    index += 1
                while index < len(text) and _kind(text, index) == "space":
                    index += 1
            elif motion == "e":
                index += 1
                while index < len(text) and _kind(text, index) == "space":
                    index += 1
                while index + 1 < len(text) and _kind(text, index + 1) == _kind(text, index):
                    index += 1
            else:
                index -= 1
                while index > 0 and _kind(text, index) == "space":
                    index -= 1
                while index > 0 and _kind(text, index - 1) == _kind(text, index):
                    index -= 1
        return self._position(min(max(index, 0), len(text)))

    def _find_character(self, motion: str, count: int, start: _Position) -> _Position | None:
        (row, column), line = start, self._line(start[0])
        for _ in range(count):
            forward = motion[0] in "ft"
            column = line.find(motion[1], column + 1) if forward else line.rfind(motion[1], 0, column)
            if column < 0:
                return None
        return row, column - 1 if motion[0] == "t" else column + 1 if motion[0] == "T" else column

    def _word_around(self, start: _Position, *, whole: bool) -> tuple[_Position, _Position]:
        row, column = start
        line = self._line(row)
        word_start = word_end = column
        while word_start > 0 and _kind(line, word_start - 1) == _kind(line, column):
            word_start -= 1
        while word_end < len(line) and _kind(line, word_end) == _kind(line, column):
            word_end += 1
        while whole and word_end < len(line) and _kind(line, word_end) == "space":
            word_end += 1
        return (row, word_start), (row, word_end)

    def _apply_to_range(self, operator: str, start: _Position, end: _Position) -> None:
        end = end if end[0] != start[0] else (end[0], min(end[1], len(self._line(end[0]))))
        self._register, self._linewise = self._area.get_text_range(start, end), False
        if operator != "y":
            self._area.delete(start, end)
        self._area.move_cursor(start)
        if operator == "c":
            self.mode = "insert"

    def _apply_to_lines(self, operator: str, count: int) -> None:
        row = self._area.cursor_location[0]
        last_row = min(row + count, self._area.document.line_count) - 1
        self._register = self._area.get_text_range((row, 0), (last_row, len(self._line(last_row))))
        self._linewise = True
        if operator == "c":
            self._area.delete((row, 0), (last_row, len(self._line(last_row))))
            self.mode = "insert"
        elif operator == "d":
            start, end = (row, 0), (last_row + 1, 0)
            if last_row + 1 >= self._area.document.line_count:
                start = (row - 1, len(self._line(row - 1))) if row else (0, 0)
                end = (last_row, len(self._line(last_row)))
            self._area.delete(start, end)
            row = min(row, self._area.document.line_count - 1)
            self._area.move_cursor((row, self._first_column(row)))

    def _put(self, *, after: bool) -> None:
        row, column = self._area.cursor_location
        if self._linewise:
            position = (row, len(self._line(row))) if after else (row, 0)
            self._area.insert(f"\n{self._register}" if after else f"{self._register}\n", position)
            self._area.move_cursor((row + after, 0))
        else:
            self._area.insert(self._register, (row, min(column + after, len(self._line(row)))))

    def _join_lines(self) -> None:
        row = self._area.cursor_location[0]
        if row + 1 < self._area.document.line_count:
            end = len(self._line(row))
            self._area.replace(" ", (row, end), (row + 1, self._first_column(row + 1)))
            self._area.move_cursor((row, end))

    def _swap_case(self) -> None:
        row, column = self._area.cursor_location
        if column < len(self._line(row)):
            self._area.replace(self._line(row)[column].swapcase(), (row, column), (row, column + 1))
            self._area.move_cursor((row, column + 1))

    def _replace_character(self, character: str) -> None:
        row, column = self._area.cursor_location
        if column < len(self._line(row)):
            self._area.replace(character, (row, column), (row, column + 1))
            self._area.move_cursor((row, column))

    def _open_line(self, row: int) -> None:
        if row < self._area.document.line_count:
            self._area.insert("\n", (row, 0))
        else:
            self._area.insert("\n", self._area.document.end)
        self._insert((row, 0))

    def _insert(self, position: _Position) -> None:
        self._area.move_cursor(position)
        self.mode = "insert"

    def _move(self, position: _Position | None) -> None:
        if position is not None:
            self._area.move_cursor(position)

    def _line(self, row: int) -> str:
        return self._area.document.get_line(row)

    def _first_column(self, row: int) -> int:
        line = self._line(row)
        return len(line) - len(line.lstrip())

    def _index(self, position: _Position) -> int:
        return sum(len(self._line(row)) + 1 for row in range(position[0])) + position[1]

    def _position(self, index: int) -> _Position:
        before = self._area.text[:index]
        return before.count("\n"), index - (before.rfind("\n") + 1)


def _split_count(keys: str) -> tuple[int, str]:
    """Returns the count before a command, and the command; a leading 0 is the motion to the start of the line."""
    length = 0
    while length < len(keys) and keys[length].isdigit() and (length or keys[length] != "0"):
        length += 1
    return int(keys[:length] or 0), keys[length:]


def _kind(text: str, index: int) -> str:
    if index >= len(text) or text[index].isspace():
        return "space"
    return "word" if text[index].isalnum() or text[index] == "_" else "sign"
