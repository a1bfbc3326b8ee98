"""Renders tool calls: a heading with subject and status, then the command, diff, todo list or output."""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from rich.text import Text

from outrider.tui.entries import ToolCallEntry
from outrider.tui.rendering.markdown import highlight_code, markdown_lines
from outrider.tui.rendering.text import (
    clean_line,
    clean_text,
    format_duration,
    indent_lines,
    justify_ends,
    last_lines,
    pad_line,
    text_line,
    truncate_line,
    wrap_text,
)
from outrider.tui.theme import Palette
from outrider.types.parts import DisplayStatus, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_DIFF_STYLES = {"+": ("added", "good"), "-": ("removed", "bad")}


def diff_lines(text: str, width: int, palette: Palette) -> list[Text]:
    """Return the lines of a unified diff with line numbers; file names are shown if there are several."""
    rows = clean_text(text).split("\n")
    names = [row for row in rows if row.startswith("+++ ")]
    lines: list[Text] = []
    old = new = 0
    for row in rows:
        if found := _HUNK.match(row):
            if lines and lines[-1].plain.strip() != "":
                lines.append(text_line("   ⋮", palette.style("faint")))
            old, new = int(found[1]), int(found[2])
        elif row.startswith("--- ") or row.startswith("+++ "):
            if row.startswith("+++ ") and len(names) > 1:
                lines.append(text_line(row[4:], palette.style("quiet", bold=True)))
        else:
            lines += _diff_row(row, old if row.startswith("-") else new, width, palette)
            old += not row.startswith("+")
            new += not row.startswith("-")
    return lines


def replacement_lines(old: str, new: str, width: int, palette: Palette) -> list[Text]:
    """Return the replacement of one text by another as lines; line numbers are not known before the call runs."""
    removed = [f"-{row}" for row in clean_text(old).removesuffix("\n").split("\n")] if old else []
    added = [f"+{row}" for row in clean_text(new).removesuffix("\n").split("\n")] if new else []
    return [piece for row in (*removed, *added) for piece in _diff_row(row, None, width, palette)]


def patch_lines(text: str, width: int, palette: Palette) -> list[Text]:
    """Return the lines of a patch as the model wrote it, colored by the first character of each line."""
    lines: list[Text] = []
    for row in clean_text(text).split("\n"):
        if row.startswith(("***", "@@", "diff ", "index ", "--- ", "+++ ")):
            lines += wrap_text(text_line(row, palette.style("quiet")), width)
        else:
            lines += _diff_row(row, None, width, palette)
    return lines


def _diff_row(row: str, number: int | None, width: int, palette: Palette) -> Iterator[Text]:
    """Yield the lines of one diff row; continuation lines of a long row have no sign and number."""
    sign = row[:1] or " "
    background, colour = _DIFF_STYLES.get(sign, ("background", "quiet"))
    gutter = "" if number is None else f"{number:>4} "
    room = max(width - len(gutter) - 2, 8)
    for row_index, piece in enumerate(wrap_text(text_line(row[1:]), room)):
        mark = Text.assemble(
            (gutter if row_index == 0 else " " * len(gutter), palette.style("faint")),
            (f"{sign} " if row_index == 0 else "  ", palette.style(colour)),
            end="",
        )
        body = Text.assemble(mark, (piece.plain, palette.style("text" if sign in _DIFF_STYLES else "quiet")), end="")
        yield pad_line(body, width, palette.style_on(background)) if sign in _DIFF_STYLES else body


_SUBJECT_FIELDS = (
    "description",
    "file_path",
    "path",
    "pattern",
    "command",
    "url",
    "query",
    "name",
    "agent_name",
    "question",
)


def call_subject(part: ToolPart, raw: str = "") -> str:
    """Return a short text that identifies this call: path, command, pattern, …"""
    tool_input = partial_input(part, raw)
    match part.tool:
        case "grep" | "glob":
            where = tool_input.get("path") or tool_input.get("include") or ""
            return clean_line(f"{tool_input.get('pattern', '')} {f'in {where}' if where else ''}".strip())
        case "call_agent":
            return clean_line(f"{tool_input.get('agent_name', '')}: {tool_input.get('message', '')}")
        case "process":
            return clean_line(" ".join(str(value) for value in tool_input.values() if isinstance(value, str | int)))
        case "apply_patch":
            return clean_line(", ".join(_patched_files(str(tool_input.get("patch", tool_input.get("input", ""))))))
        case "todo":
            return ""
        case _:
            found = next((tool_input[name] for name in _SUBJECT_FIELDS if tool_input.get(name)), None)
            return clean_line(str(found)) if found is not None else clean_line(_format_arguments(tool_input))


def shell_command(part: ToolPart, raw: str = "") -> str:
    return str(partial_input(part, raw).get("command", ""))


def partial_input(part: ToolPart, raw: str) -> dict[str, Any]:
    """Return the input of a call; while it streams, the fields that can be parsed so far."""
    if part.state.input:
        return part.state.input
    text = raw or (part.state.raw if isinstance(part.state, ToolPending) else "")
    return parse_partial_json(text) if text else {}


def parse_partial_json(text: str) -> dict[str, Any]:
    """Parse a truncated JSON object; an unfinished last string is included."""
    for closing in ("", '"}', "}", '"]}', "]}", '"}]}', "null}", '""}'):
        try:
            found = json.loads(text + closing, strict=False)
        except ValueError:
            continue
        return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    return {}


def effect_lines(tool: str, tool_input: dict[str, Any], width: int, palette: Palette) -> list[Text]:
    """Return lines with exactly what will run or be written, without shortening: the user approves this."""
    match tool:
        case "shell":
            shown = [
                piece
                for found in highlight_code(clean_text(str(tool_input.get("command", ""))), "bash", palette)
                for piece in wrap_text(found, width)
            ]
            return shown + _argument_lines(tool_input, {"command", "description"}, width, palette)
        case "edit":
            rest = _argument_lines(tool_input, {"old_string", "new_string", "file_path"}, width, palette)
            return rest + replacement_lines(
                str(tool_input.get("old_string", "")), str(tool_input.get("new_string", "")), width, palette
            )
        case "write":
            return replacement_lines("", str(tool_input.get("content", "")), width, palette)
        case "apply_patch":
            return patch_lines(str(tool_input.get("patch", tool_input.get("input", ""))), width, palette)
        case _:
            return _argument_lines(tool_input, set(), width, palette)


def _argument_lines(tool_input: dict[str, Any], excluded: set[str], width: int, palette: Palette) -> list[Text]:
    lines: list[Text] = []
    for name, value in tool_input.items():
        if name in excluded:
            continue
        text = value if isinstance(value, str) else _encode_json(value)
        label = Text.assemble(
            (f"{clean_line(name)}: ", palette.style("quiet")), (clean_text(text), palette.style("text"))
        )
        lines += wrap_text(label, width)
    return lines


def _patched_files(text: str) -> list[str]:
    marks = ("*** Update File: ", "*** Add File: ", "*** Delete File: ", "+++ ")
    return [row[len(mark) :] for row in text.split("\n") for mark in marks if row.startswith(mark)]


def _format_arguments(tool_input: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}={value if isinstance(value, str) else _encode_json(value)}" for name, value in tool_input.items()
    )


def _encode_json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


STATUS_MARKS: dict[DisplayStatus, tuple[str, str]] = {
    "generating": ("◌", "quiet"),
    "generated": ("○", "quiet"),
    "calling": ("●", "accent"),
    "done": ("●", "good"),
    "canceled": ("⊘", "warn"),
    "errored": ("✗", "bad"),
}
FINISH_TOOL = "finish"
_HIDDEN_OUTPUT_TOOLS = frozenset(
    {"read", "list", "glob", "grep", "skill", "web_fetch", "process"}
)  # their output is for the model
_TODO_MARKS = {"pending": "○", "in_progress": "◐", "completed": "●", "cancelled": "⊘"}
OUTPUT_LINES, ERROR_LINES, DIFF_LINES, UNFOLDED_LINES = 8, 4, 24, 500


def call_lines(call: ToolCallEntry, width: int, palette: Palette) -> list[Text]:
    """Return the lines of a tool call: heading and body, or only the text of a `finish` call."""
    if call.part.tool == FINISH_TOOL:
        return indent_lines(markdown_lines(_final_answer(call), max(width - 2, 8), palette), text_line("  "))
    head = _heading_line(call, width, palette)
    body = _body_lines(call, max(width - 2, 8), palette)
    return [head, *indent_lines(body, text_line("  "), text_line("  "))]


def _final_answer(call: ToolCallEntry) -> str:
    """Return the message of a `finish` call, which is the final answer of a called agent."""
    return str(partial_input(call.part, call.raw_input).get("message", ""))


def _heading_line(call: ToolCallEntry, width: int, palette: Palette) -> Text:
    part = call.part
    mark, colour = STATUS_MARKS[part.display_status]
    subject = call_subject(part, call.raw_input)
    left = Text.assemble(
        (f"{mark} ", palette.style(colour)),
        (clean_line(part.tool, 40), palette.style("text", bold=True)),
        ("  " if subject else "", ""),
        (subject, palette.style("quiet")),
        end="",
    )
    return justify_ends(left, _status_text(call, palette), width)


def _status_text(call: ToolCallEntry, palette: Palette) -> Text:
    """Return the status with its most useful details: changed lines, exit code, duration, failure reason."""
    part, state = call.part, call.part.state
    word = part.display_status
    text = Text(end="")
    match state:
        case ToolCompleted():
            _append_counts(text, state, palette)
            text.append(word, palette.style("quiet"))
            _append_time(text, state.time.end - state.time.start, palette)
        case ToolError():
            text.append(word, palette.style(STATUS_MARKS[word][1]))
            text.append(f" · {state.reason}", palette.style("quiet"))
        case ToolPending(phase="awaiting_approval"):
            text.append(word, palette.style("quiet"))
            text.append(" · needs approval", palette.style("warn"))
        case ToolPending() | ToolRunning():
            text.append(word, palette.style(STATUS_MARKS[word][1]))
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
        text.append(f" {format_duration(milliseconds / 1000)}", palette.style("quiet"))


def _body_lines(call: ToolCallEntry, width: int, palette: Palette) -> list[Text]:
    part, state = call.part, call.part.state
    match state:
        case ToolPending():
            return _pending_lines(call, width, palette)
        case ToolRunning():
            return [*_command_lines(part, width, palette), *_live_output_lines(call, width, palette)]
        case ToolCompleted():
            return _completed_lines(call, state, width, palette)
        case ToolError():
            most = UNFOLDED_LINES if call.unfolded else ERROR_LINES
            error = _first_lines(
                clean_text(state.error), width, most, palette, style="bad" if state.reason == "failed" else "quiet"
            )
            return [*_command_lines(part, width, palette), *error]


def _pending_lines(call: ToolCallEntry, width: int, palette: Palette) -> list[Text]:
    """Return the end of the streaming input, where it grows. An approval dialog shows the input itself."""
    tool_input = partial_input(call.part, call.raw_input)
    awaiting_approval = isinstance(call.part.state, ToolPending) and call.part.state.phase == "awaiting_approval"
    if awaiting_approval or call.part.tool in _HIDDEN_OUTPUT_TOOLS or not tool_input:
        return []
    lines = effect_lines(call.part.tool, tool_input, width, palette)
    return lines[-OUTPUT_LINES:]


def _command_lines(part: ToolPart, width: int, palette: Palette) -> list[Text]:
    """Return the shell command as lines if the heading shows its description instead."""
    command = clean_text(shell_command(part))
    if part.tool != "shell" or call_subject(part) == clean_line(command):
        return []
    rows = [
        piece
        for row in command.split("\n")[:OUTPUT_LINES]
        for piece in wrap_text(text_line(row, palette.style("text")), width - 2)
    ]
    return indent_lines(rows, text_line("$ ", palette.style("accent")))


def _live_output_lines(call: ToolCallEntry, width: int, palette: Palette) -> list[Text]:
    if call.child_activity:
        return [truncate_line(text_line(clean_line(call.child_activity), palette.style("quiet")), width)]
    rows = clean_text("\n".join(call.live_output)).rstrip("\n")
    return _last_output_lines(rows, width, UNFOLDED_LINES if call.unfolded else OUTPUT_LINES, palette) if rows else []


def _completed_lines(call: ToolCallEntry, state: ToolCompleted, width: int, palette: Palette) -> list[Text]:
    part = call.part
    if isinstance(changed := state.metadata.get("diff"), str) and changed:
        return _fold_lines(
            diff_lines(changed, width, palette), UNFOLDED_LINES if call.unfolded else DIFF_LINES, palette
        )
    if isinstance(state.metadata.get("todos"), list | tuple):
        return _todo_lines(state, width, palette)
    if part.tool in _HIDDEN_OUTPUT_TOOLS and not call.unfolded:
        return []
    return [
        *_command_lines(part, width, palette),
        *_output_lines(call, clean_text(state.output).strip("\n"), width, palette),
    ]


def _output_lines(call: ToolCallEntry, text: str, width: int, palette: Palette) -> list[Text]:
    """Return the end of a shell command's output, where its result is, or the beginning of any other output."""
    if call.unfolded:
        return _first_lines(text, width, UNFOLDED_LINES, palette)
    if call.part.tool == "shell":
        return _last_output_lines(text, width, OUTPUT_LINES, palette)
    return _first_lines(text, width, OUTPUT_LINES, palette)


def _todo_lines(state: ToolCompleted, width: int, palette: Palette) -> list[Text]:
    lines: list[Text] = []
    for item in state.metadata["todos"]:
        status = str(item.get("status", "pending"))
        colour = {"completed": "good", "in_progress": "accent"}.get(status, "quiet")
        content = text_line(
            clean_text(str(item.get("content", ""))), palette.style("quiet" if status == "completed" else "text")
        )
        lines += indent_lines(
            wrap_text(content, width - 2), text_line(f"{_TODO_MARKS.get(status, '○')} ", palette.style(colour))
        )
    return lines


def _first_lines(text: str, width: int, max_lines: int, palette: Palette, *, style: str = "quiet") -> list[Text]:
    """Return the first lines and the number of the following ones."""
    rows = text.strip("\n").split("\n")
    lines = [piece for row in rows[: max_lines + 1] for piece in wrap_text(text_line(row, palette.style(style)), width)]
    hidden = len(rows) - max_lines
    if hidden > 1:
        return [*lines[:max_lines], text_line(f"… {hidden} more lines", palette.style("faint"))]
    return lines[: max_lines + 8]


def _last_output_lines(text: str, width: int, max_lines: int, palette: Palette) -> list[Text]:
    """Return the last lines and the number of lines above them."""
    hidden, rows = last_lines(text.split("\n"), max_lines)
    lines = [piece for row in rows for piece in wrap_text(text_line(row, palette.style("quiet")), width)][-max_lines:]
    return [text_line(f"… {hidden} lines above", palette.style("faint")), *lines] if hidden else lines


def _fold_lines(lines: list[Text], max_lines: int, palette: Palette) -> list[Text]:
    hidden = len(lines) - max_lines
    return [*lines[:max_lines], text_line(f"… {hidden} more lines", palette.style("faint"))] if hidden > 1 else lines
