"""A call as lines: what it is, how it stands in one of six words, and as much of its output as helps."""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from rich.text import Text

from outrider.tui.entries import ToolCallEntry
from outrider.tui.rendering.markdown import coloured, markdown
from outrider.tui.rendering.text import clean, clean_line, cut, duration, ends, indented, line, padded, tail, wrapped
from outrider.tui.theme import Palette
from outrider.types.parts import DisplayStatus, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_SIGNS = {"+": ("added", "good"), "-": ("removed", "bad")}


def diff(text: str, width: int, palette: Palette) -> list[Text]:
    """A unified diff; several files are told apart by their names."""
    rows = clean(text).split("\n")
    names = [row for row in rows if row.startswith("+++ ")]
    lines: list[Text] = []
    old = new = 0
    for row in rows:
        if found := _HUNK.match(row):
            if lines and lines[-1].plain.strip() != "":
                lines.append(line("   ⋮", palette.style("faint")))
            old, new = int(found[1]), int(found[2])
        elif row.startswith("--- ") or row.startswith("+++ "):
            if row.startswith("+++ ") and len(names) > 1:
                lines.append(line(row[4:], palette.style("quiet", bold=True)))
        else:
            lines += _row(row, old if row.startswith("-") else new, width, palette)
            old += not row.startswith("+")
            new += not row.startswith("-")
    return lines


def replaced(old: str, new: str, width: int, palette: Palette) -> list[Text]:
    """One text in place of another, before anybody knows at which line."""
    gone = [f"-{row}" for row in clean(old).removesuffix("\n").split("\n")] if old else []
    come = [f"+{row}" for row in clean(new).removesuffix("\n").split("\n")] if new else []
    return [piece for row in (*gone, *come) for piece in _row(row, None, width, palette)]


def patch(text: str, width: int, palette: Palette) -> list[Text]:
    """A patch as the model wrote it, coloured by the first character of each line."""
    lines: list[Text] = []
    for row in clean(text).split("\n"):
        if row.startswith(("***", "@@", "diff ", "index ", "--- ", "+++ ")):
            lines += wrapped(line(row, palette.style("quiet")), width)
        else:
            lines += _row(row, None, width, palette)
    return lines


def _row(row: str, number: int | None, width: int, palette: Palette) -> Iterator[Text]:
    sign = row[:1] or " "
    ground, colour = _SIGNS.get(sign, ("background", "quiet"))
    gutter = "" if number is None else f"{number:>4} "
    room = max(width - len(gutter) - 2, 8)
    for place, piece in enumerate(wrapped(line(row[1:]), room)):
        mark = Text.assemble(
            (gutter if place == 0 else " " * len(gutter), palette.style("faint")),
            (f"{sign} " if place == 0 else "  ", palette.style(colour)),
            end="",
        )
        body = Text.assemble(mark, (piece.plain, palette.style("text" if sign in _SIGNS else "quiet")), end="")
        yield padded(body, width, palette.on(ground)) if sign in _SIGNS else body


_SUBJECTS = ("description", "file_path", "path", "pattern", "command", "url", "query", "name", "agent_name", "question")


def subject(part: ToolPart, raw: str = "") -> str:
    """The few words that tell this call from others."""
    given = given_so_far(part, raw)
    match part.tool:
        case "grep" | "glob":
            where = given.get("path") or given.get("include") or ""
            return clean_line(f"{given.get('pattern', '')} {f'in {where}' if where else ''}".strip())
        case "call_agent":
            return clean_line(f"{given.get('agent_name', '')}: {given.get('message', '')}")
        case "process":
            return clean_line(" ".join(str(value) for value in given.values() if isinstance(value, str | int)))
        case "apply_patch":
            return clean_line(", ".join(_patched(str(given.get("patch", given.get("input", ""))))))
        case "todo":
            return ""
        case _:
            found = next((given[name] for name in _SUBJECTS if given.get(name)), None)
            return clean_line(str(found)) if found is not None else clean_line(_compact(given))


def command_of(part: ToolPart, raw: str = "") -> str:
    return str(given_so_far(part, raw).get("command", ""))


def given_so_far(part: ToolPart, raw: str) -> dict[str, Any]:
    """The input; while it is being written, what can be read of it."""
    if part.state.input:
        return part.state.input
    text = raw or (part.state.raw if isinstance(part.state, ToolPending) else "")
    return unfinished(text) if text else {}


def unfinished(text: str) -> dict[str, Any]:
    """An object that is cut off somewhere, with the last string as far as it goes."""
    for closing in ("", '"}', "}", '"]}', "]}", '"}]}', "null}", '""}'):
        try:
            found = json.loads(text + closing, strict=False)
        except ValueError:
            continue
        return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    return {}


def effect(tool: str, given: dict[str, Any], width: int, palette: Palette) -> list[Text]:
    """Exactly what will run or be written, nothing left out."""
    match tool:
        case "shell":
            shown = [
                piece
                for found in coloured(clean(str(given.get("command", ""))), "bash", palette)
                for piece in wrapped(found, width)
            ]
            return shown + _others(given, {"command", "description"}, width, palette)
        case "edit":
            rest = _others(given, {"old_string", "new_string", "file_path"}, width, palette)
            return rest + replaced(str(given.get("old_string", "")), str(given.get("new_string", "")), width, palette)
        case "write":
            return replaced("", str(given.get("content", "")), width, palette)
        case "apply_patch":
            return patch(str(given.get("patch", given.get("input", ""))), width, palette)
        case _:
            return _others(given, set(), width, palette)


def _others(given: dict[str, Any], without: set[str], width: int, palette: Palette) -> list[Text]:
    lines: list[Text] = []
    for name, value in given.items():
        if name in without:
            continue
        text = value if isinstance(value, str) else _json(value)
        label = Text.assemble((f"{clean_line(name)}: ", palette.style("quiet")), (clean(text), palette.style("text")))
        lines += wrapped(label, width)
    return lines


def _patched(text: str) -> list[str]:
    marks = ("*** Update File: ", "*** Add File: ", "*** Delete File: ", "+++ ")
    return [row[len(mark) :] for row in text.split("\n") for mark in marks if row.startswith(mark)]


def _compact(given: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value if isinstance(value, str) else _json(value)}" for name, value in given.items())


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


MARKS: dict[DisplayStatus, tuple[str, str]] = {
    "generating": ("◌", "quiet"),
    "generated": ("○", "quiet"),
    "calling": ("●", "accent"),
    "done": ("●", "good"),
    "canceled": ("⊘", "warn"),
    "errored": ("✗", "bad"),
}
FINISH = "finish"
_SILENT = frozenset({"read", "list", "glob", "grep", "skill", "web_fetch", "process"})  # output is for the model
_TODO = {"pending": "○", "in_progress": "◐", "completed": "●", "cancelled": "⊘"}
OUTPUT_LINES, ERROR_LINES, DIFF_LINES, UNFOLDED_LINES = 8, 4, 24, 500


def call_lines(call: ToolCallEntry, width: int, palette: Palette) -> list[Text]:
    if call.part.tool == FINISH:
        return indented(markdown(_last_words(call), max(width - 2, 8), palette), line("  "))
    head = _head(call, width, palette)
    body = _body(call, max(width - 2, 8), palette)
    return [head, *indented(body, line("  "), line("  "))]


def _last_words(call: ToolCallEntry) -> str:
    """An agent that works with others ends with a call; what it says there is its answer."""
    return str(given_so_far(call.part, call.raw).get("message", ""))


def _head(call: ToolCallEntry, width: int, palette: Palette) -> Text:
    part = call.part
    mark, colour = MARKS[part.display_status]
    words = subject(part, call.raw)
    left = Text.assemble(
        (f"{mark} ", palette.style(colour)),
        (clean_line(part.tool, 40), palette.style("text", bold=True)),
        ("  " if words else "", ""),
        (words, palette.style("quiet")),
        end="",
    )
    return ends(left, _standing(call, palette), width)


def _standing(call: ToolCallEntry, palette: Palette) -> Text:
    """The word for how it stands, with what a glance should tell: the time, lines changed, why it ended."""
    part, state = call.part, call.part.state
    word = part.display_status
    text = Text(end="")
    match state:
        case ToolCompleted():
            _append_counts(text, state, palette)
            text.append(word, palette.style("quiet"))
            _append_time(text, state.time.end - state.time.start, palette)
        case ToolError():
            text.append(word, palette.style(MARKS[word][1]))
            text.append(f" · {state.reason}", palette.style("quiet"))
        case ToolPending(phase="awaiting_approval"):
            text.append(word, palette.style("quiet"))
            text.append(" · asks", palette.style("warn"))
        case ToolPending() | ToolRunning():
            text.append(word, palette.style(MARKS[word][1]))
    return text


def _append_counts(text: Text, state: ToolCompleted, palette: Palette) -> None:
    added, removed = state.metadata.get("added"), state.metadata.get("removed")
    if isinstance(added, int) and isinstance(removed, int):
        text.append(f"+{added} " if added else "", palette.style("good"))
        text.append(f"−{removed} " if removed else "", palette.style("bad"))
    code = state.metadata.get("exit_code")
    if isinstance(code, int) and code:
        text.append(f"exit {code} ", palette.style("warn"))


def _append_time(text: Text, milliseconds: int, palette: Palette) -> None:
    if milliseconds >= 500:
        text.append(f" {duration(milliseconds / 1000)}", palette.style("quiet"))


def _body(call: ToolCallEntry, width: int, palette: Palette) -> list[Text]:
    part, state = call.part, call.part.state
    match state:
        case ToolPending():
            return _pending(call, width, palette)
        case ToolRunning():
            return [*_command(part, width, palette), *_live(call, width, palette)]
        case ToolCompleted():
            return _completed(call, state, width, palette)
        case ToolError():
            most = UNFOLDED_LINES if call.unfolded else ERROR_LINES
            error = _bounded(
                clean(state.error), width, most, palette, style="bad" if state.reason == "failed" else "quiet"
            )
            return [*_command(part, width, palette), *error]


def _pending(call: ToolCallEntry, width: int, palette: Palette) -> list[Text]:
    """What the model is writing: the end of it, since that is what moves. What is asked about is shown there."""
    given = given_so_far(call.part, call.raw)
    asks = isinstance(call.part.state, ToolPending) and call.part.state.phase == "awaiting_approval"
    if asks or call.part.tool in _SILENT or not given:
        return []
    lines = effect(call.part.tool, given, width, palette)
    return lines[-OUTPUT_LINES:]


def _command(part: ToolPart, width: int, palette: Palette) -> list[Text]:
    """The command itself, where the head shows its description."""
    command = clean(command_of(part))
    if part.tool != "shell" or subject(part) == clean_line(command):
        return []
    rows = [
        piece
        for row in command.split("\n")[:OUTPUT_LINES]
        for piece in wrapped(line(row, palette.style("text")), width - 2)
    ]
    return indented(rows, line("$ ", palette.style("accent")))


def _live(call: ToolCallEntry, width: int, palette: Palette) -> list[Text]:
    if call.child:
        return [cut(line(clean_line(call.child), palette.style("quiet")), width)]
    rows = clean("\n".join(call.live)).rstrip("\n")
    return _last(rows, width, UNFOLDED_LINES if call.unfolded else OUTPUT_LINES, palette) if rows else []


def _completed(call: ToolCallEntry, state: ToolCompleted, width: int, palette: Palette) -> list[Text]:
    part = call.part
    if isinstance(changed := state.metadata.get("diff"), str) and changed:
        return _folded(diff(changed, width, palette), UNFOLDED_LINES if call.unfolded else DIFF_LINES, palette)
    if isinstance(state.metadata.get("todos"), list | tuple):
        return _todos(state, width, palette)
    if part.tool in _SILENT and not call.unfolded:
        return []
    return [*_command(part, width, palette), *_output(call, clean(state.output).strip("\n"), width, palette)]


def _output(call: ToolCallEntry, text: str, width: int, palette: Palette) -> list[Text]:
    """Of a command the end is shown, where it says how it went; of everything else the beginning."""
    if call.unfolded:
        return _bounded(text, width, UNFOLDED_LINES, palette)
    if call.part.tool == "shell":
        return _last(text, width, OUTPUT_LINES, palette)
    return _bounded(text, width, OUTPUT_LINES, palette)


def _todos(state: ToolCompleted, width: int, palette: Palette) -> list[Text]:
    lines: list[Text] = []
    for item in state.metadata["todos"]:
        status = str(item.get("status", "pending"))
        colour = {"completed": "good", "in_progress": "accent"}.get(status, "quiet")
        words = line(clean(str(item.get("content", ""))), palette.style("quiet" if status == "completed" else "text"))
        lines += indented(wrapped(words, width - 2), line(f"{_TODO.get(status, '○')} ", palette.style(colour)))
    return lines


def _bounded(text: str, width: int, most: int, palette: Palette, *, style: str = "quiet") -> list[Text]:
    """The first lines, and how many follow."""
    rows = text.strip("\n").split("\n")
    lines = [piece for row in rows[: most + 1] for piece in wrapped(line(row, palette.style(style)), width)]
    hidden = len(rows) - most
    if hidden > 1:
        return [*lines[:most], line(f"… {hidden} more lines", palette.style("faint"))]
    return lines[: most + 8]


def _last(text: str, width: int, most: int, palette: Palette) -> list[Text]:
    hidden, rows = tail(text.split("\n"), most)
    lines = [piece for row in rows for piece in wrapped(line(row, palette.style("quiet")), width)][-most:]
    return [line(f"… {hidden} lines above", palette.style("faint")), *lines] if hidden else lines


def _folded(lines: list[Text], most: int, palette: Palette) -> list[Text]:
    hidden = len(lines) - most
    return [*lines[:most], line(f"… {hidden} more lines", palette.style("faint"))] if hidden > 1 else lines
