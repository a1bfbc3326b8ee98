"""Draws tool calls: a heading with subject and status, then the command, diff, todo list or output."""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec
from rich.text import Text

from outrider.presentation.diffs import DiffLine, FileDiff, LineKind, patch_rows
from outrider.presentation.formats import (
    clean_line,
    clean_text,
    escape_line,
    format_count,
    reveal_text,
)
from outrider.presentation.items import ToolCallItem
from outrider.presentation.tool_calls import (
    TODO_MARKS,
    call_changes,
    call_input,
    call_kind,
    call_status,
    call_todos,
    coloured_mark,
    final_answer,
    has_output_for_people,
    other_arguments,
    patch_argument,
    planned_changes,
    status_tone,
    subject_line,
    truncated_lines,
    waits_for_approval,
)
from outrider.tui.rendering.markdown import highlight_code, markdown_lines
from outrider.tui.rendering.text import (
    indent_lines,
    justify_ends,
    last_lines,
    pad_line,
    text_line,
    truncate_line,
    wrap_text,
)
from outrider.tui.theme import Palette
from outrider.types.parts import ToolPart
from outrider.types.tool_state import TodoItem, ToolCompleted, ToolError, ToolPending, ToolRunning

OUTPUT_LINES, ERROR_LINES, DIFF_LINES, EXPANDED_LINES = 8, 4, 24, 500
_CHANGE_STYLES: dict[LineKind, tuple[str, str]] = {"added": ("added", "good"), "removed": ("removed", "bad")}


def diff_lines(files: Sequence[FileDiff], width: int, palette: Palette) -> list[Text]:
    """Returns the lines of a diff with line numbers; file names are shown if there are several."""
    lines: list[Text] = []
    for file in files:
        if len(files) > 1:
            lines.append(text_line(_path_text(file), palette.style("quiet", bold=True)))
        for number, hunk in enumerate(file.hunks):
            if number:
                lines.append(text_line("   ⋮", palette.style("faint")))
            lines += [row for line in hunk.lines for row in _change_lines(line, width, palette)]
    return lines


def _path_text(file: FileDiff) -> str:
    moved = file.old_path and file.new_path and file.old_path != file.new_path
    return escape_line(f"{file.old_path} → {file.new_path}" if moved else file.path, 400)


def _change_lines(line: DiffLine, width: int, palette: Palette) -> Iterator[Text]:
    """Yields the wrapped rows of one diff line; the second and later rows have no sign and no number."""
    changed = line.kind in _CHANGE_STYLES
    background, colour = _CHANGE_STYLES.get(line.kind, ("background", "quiet"))
    gutter = "" if line.number is None else f"{line.number:>4} "
    room = max(width - len(gutter) - 2, 8)
    for row_index, row in enumerate(wrap_text(text_line(reveal_text(line.text.removesuffix("\r"))), room)):
        mark = Text.assemble(
            (gutter if row_index == 0 else " " * len(gutter), palette.style("faint")),
            (f"{line.sign} " if row_index == 0 else "  ", palette.style(colour)),
            end="",
        )
        body = Text.assemble(mark, (row.plain, palette.style("text" if changed else "quiet")), end="")
        yield pad_line(body, width, palette.style_on(background)) if changed else body


def effect_lines(tool: str, arguments: dict[str, Any], width: int, palette: Palette) -> list[Text]:
    """Returns lines with exactly what will run or be written, without shortening: the user approves this."""
    match tool:
        case "shell":
            command = reveal_text(str(arguments.get("command", "")))
            lines = [row for line in highlight_code(command, "bash", palette) for row in wrap_text(line, width)]
            return lines + _argument_lines(arguments, {"command", "description"}, width, palette)
        case "apply_patch":
            lines = _argument_lines(arguments, {"patch" if "patch" in arguments else "input"}, width, palette)
            rows = patch_rows(patch_argument(arguments))
            return lines + [line for row in rows for line in _change_lines(row, width, palette)]
        case _:
            lines = _argument_lines(other_arguments(tool, arguments), frozenset(), width, palette)
            return lines + diff_lines(planned_changes(tool, arguments), width, palette)


def _argument_lines(arguments: dict[str, Any], excluded: AbstractSet[str], width: int, palette: Palette) -> list[Text]:
    lines: list[Text] = []
    for name, value in arguments.items():
        if name in excluded:
            continue
        text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
        label = Text.assemble(
            (f"{clean_line(name)}: ", palette.style("quiet")), (reveal_text(text), palette.style("text"))
        )
        lines += wrap_text(label, width)
    return lines


def todo_lines(todos: Sequence[TodoItem], width: int, palette: Palette) -> list[Text]:
    """Returns the lines of a todo list."""
    lines: list[Text] = []
    for todo in todos:
        mark, colour = TODO_MARKS[todo.status]
        style = palette.style("quiet" if todo.status in {"completed", "cancelled"} else "text")
        content = wrap_text(text_line(clean_line(todo.content), style), width - 2)
        lines += indent_lines(content, text_line(f"{mark} ", palette.style(colour)))
    return lines


def call_lines(call: ToolCallItem, width: int, palette: Palette) -> list[Text]:
    """Returns the lines of a tool call: heading and body, or only the text of a `finish` call."""
    if (answer := final_answer(call.part, call.raw_input)) is not None:
        return indent_lines(markdown_lines(answer, max(width - 2, 8), palette), text_line("  "))
    head = _heading_line(call, width, palette)
    body = _body_lines(call, max(width - 2, 8), palette)
    return [head, *indent_lines(body, text_line("  "), text_line("  "))]


def _heading_line(call: ToolCallItem, width: int, palette: Palette) -> Text:
    part = call.part
    mark, colour = coloured_mark(part), status_tone(part)
    subject = subject_line(part.tool, call_input(part, call.raw_input))
    heading = Text.assemble(
        (f"{mark} ", palette.style(colour)),
        (clean_line(part.tool, 40), palette.style("text", bold=True)),
        ("  " if subject else "", ""),
        (subject, palette.style("quiet")),
        end="",
    )
    return justify_ends(heading, _status_text(part, palette), width)


def _status_text(part: ToolPart, palette: Palette) -> Text:
    """Returns the status with its most useful details: exit code, changed lines, duration, failure reason. Of calls
    that are done only the mark is coloured."""
    text = Text(end="")
    for index, fact in enumerate(call_status(part)):
        if index:
            text.append(" " if fact.joined else " · ", palette.style("quiet"))
        is_plain_word = index == 0 and (part.display_status == "done" or waits_for_approval(part))
        text.append(fact.text, palette.style("quiet" if is_plain_word else fact.tone))
    return text


def _body_lines(call: ToolCallItem, width: int, palette: Palette) -> list[Text]:
    part, state = call.part, call.part.state
    match state:
        case ToolPending():
            return _pending_lines(call, width, palette)
        case ToolRunning():
            return [*_command_lines(part, width, palette), *_live_output_lines(call, width, palette)]
        case ToolCompleted():
            return _completed_lines(call, state, width, palette)
        case ToolError():
            max_lines = EXPANDED_LINES if call.expanded else ERROR_LINES
            style = "bad" if state.reason == "failed" else "quiet"
            error = _first_lines(clean_text(state.error), width, max_lines, palette, style=style)
            return [*_command_lines(part, width, palette), *error]


def _pending_lines(call: ToolCallItem, width: int, palette: Palette) -> list[Text]:
    """Returns the end of the streaming input, where it grows. An approval dialog shows the input itself."""
    arguments = call_input(call.part, call.raw_input)
    if waits_for_approval(call.part) or not has_output_for_people(call.part) or not arguments:
        return []
    return effect_lines(call.part.tool, arguments, width, palette)[-OUTPUT_LINES:]


def _command_lines(part: ToolPart, width: int, palette: Palette) -> list[Text]:
    """Returns the shell command as lines if the heading shows its description instead."""
    arguments = call_input(part)
    command = clean_text(str(arguments.get("command", "")))
    if part.tool != "shell" or subject_line(part.tool, arguments) == clean_line(command):
        return []
    rows = [
        line
        for row in command.split("\n")[:OUTPUT_LINES]
        for line in wrap_text(text_line(row, palette.style("text")), width - 2)
    ]
    return indent_lines(rows, text_line("$ ", palette.style("accent")))


def _live_output_lines(call: ToolCallItem, width: int, palette: Palette) -> list[Text]:
    if call.child_activity:
        return [truncate_line(text_line(clean_line(call.child_activity), palette.style("quiet")), width)]
    rows = clean_text("\n".join(call.live_output)).rstrip("\n")
    max_lines = EXPANDED_LINES if call.expanded else OUTPUT_LINES
    return _last_output_lines(rows, width, max_lines, palette, above=call.dropped_lines) if rows else []


def _completed_lines(call: ToolCallItem, state: ToolCompleted, width: int, palette: Palette) -> list[Text]:
    part = call.part
    if changes := call_changes(part):
        max_lines = EXPANDED_LINES if call.expanded else DIFF_LINES
        return _fold_lines(diff_lines(changes, width, palette), max_lines, palette)
    if (todos := call_todos(part)) is not None:
        return todo_lines(todos, width, palette)
    if not has_output_for_people(part) and not call.expanded:
        return []
    return [
        *_command_lines(part, width, palette),
        *_output_lines(call, clean_text(state.output).strip("\n"), width, palette),
    ]


def _output_lines(call: ToolCallItem, text: str, width: int, palette: Palette) -> list[Text]:
    """Returns the end of a shell command's output, where its result is, or the beginning of any other output. An agent
    answers in Markdown."""
    if call_kind(call.part) == "agent":
        max_lines = EXPANDED_LINES if call.expanded else OUTPUT_LINES
        return _fold_lines(markdown_lines(text, width, palette), max_lines, palette)
    if call.expanded:
        return _first_lines(text, width, EXPANDED_LINES, palette)
    if call.part.tool == "shell":
        above = max(truncated_lines(call.part) - text.count("\n") - 1, 0)
        return _last_output_lines(text, width, OUTPUT_LINES, palette, above=above)
    return _first_lines(text, width, OUTPUT_LINES, palette)


def _first_lines(text: str, width: int, max_lines: int, palette: Palette, *, style: str = "quiet") -> list[Text]:
    """Returns the first lines and the number of the following ones."""
    rows = text.strip("\n").split("\n")
    lines = [line for row in rows[: max_lines + 1] for line in wrap_text(text_line(row, palette.style(style)), width)]
    hidden = len(rows) - max_lines
    if hidden > 1:
        return [*lines[:max_lines], text_line(f"… {format_count(hidden, 'more line')}", palette.style("faint"))]
    return lines[: max_lines + 8]


def _last_output_lines(text: str, width: int, max_lines: int, palette: Palette, *, above: int = 0) -> list[Text]:
    """Returns the last lines and the number of lines above them; `text` itself lacks `above` lines."""
    hidden, rows = last_lines(text.split("\n"), max_lines)
    hidden += above
    lines = [line for row in rows for line in wrap_text(text_line(row, palette.style("quiet")), width)][-max_lines:]
    return [text_line(f"… {format_count(hidden, 'line')} above", palette.style("faint")), *lines] if hidden else lines


def _fold_lines(lines: list[Text], max_lines: int, palette: Palette) -> list[Text]:
    hidden = len(lines) - max_lines
    if hidden <= 1:
        return lines
    return [*lines[:max_lines], text_line(f"… {format_count(hidden, 'more line')}", palette.style("faint"))]
