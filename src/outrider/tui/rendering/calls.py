"""A call as lines: what it is, how it stands in one of six words, and as much of its output as helps."""

from rich.text import Text

from outrider.tui.conversation.entries import Call
from outrider.tui.rendering.diffs import diff
from outrider.tui.rendering.inputs import command_of, effect, given_so_far, subject
from outrider.tui.rendering.lines import clean, clean_line, cut, ends, indented, line, tail, wrapped
from outrider.tui.rendering.markdown import markdown
from outrider.tui.rendering.palette import Palette
from outrider.tui.rendering.words import duration
from outrider.types.parts import DisplayStatus, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning

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


def call_lines(call: Call, width: int, palette: Palette) -> list[Text]:
    if call.part.tool == FINISH:
        return indented(markdown(_last_words(call), max(width - 2, 8), palette), line("  "))
    head = _head(call, width, palette)
    body = _body(call, max(width - 2, 8), palette)
    return [head, *indented(body, line("  "), line("  "))]


def _last_words(call: Call) -> str:
    """An agent that works with others ends with a call; what it says there is its answer."""
    return str(given_so_far(call.part, call.raw).get("message", ""))


def _head(call: Call, width: int, palette: Palette) -> Text:
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


def _standing(call: Call, palette: Palette) -> Text:
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


def _body(call: Call, width: int, palette: Palette) -> list[Text]:
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


def _pending(call: Call, width: int, palette: Palette) -> list[Text]:
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


def _live(call: Call, width: int, palette: Palette) -> list[Text]:
    if call.child:
        return [cut(line(clean_line(call.child), palette.style("quiet")), width)]
    rows = clean("\n".join(call.live)).rstrip("\n")
    return _last(rows, width, UNFOLDED_LINES if call.unfolded else OUTPUT_LINES, palette) if rows else []


def _completed(call: Call, state: ToolCompleted, width: int, palette: Palette) -> list[Text]:
    part = call.part
    if isinstance(changed := state.metadata.get("diff"), str) and changed:
        return _folded(diff(changed, width, palette), UNFOLDED_LINES if call.unfolded else DIFF_LINES, palette)
    if isinstance(state.metadata.get("todos"), list | tuple):
        return _todos(state, width, palette)
    if part.tool in _SILENT and not call.unfolded:
        return []
    return [*_command(part, width, palette), *_output(call, clean(state.output).strip("\n"), width, palette)]


def _output(call: Call, text: str, width: int, palette: Palette) -> list[Text]:
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
