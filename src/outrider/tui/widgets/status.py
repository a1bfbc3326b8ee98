"""The lines around the composer: current activity, queued inputs, and the status line."""

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import msgspec
from rich.text import Text
from textual.containers import Horizontal
from textual.widget import Widget
from textual.widgets import Static

from outrider.presentation.formats import clean_line, format_cost, format_duration, format_elapsed, format_tokens
from outrider.tui.rendering.text import (
    justify_ends,
    text_line,
    truncate_line,
)
from outrider.tui.rendering.tool_calls import todo_lines
from outrider.tui.theme import Palette, find_palette
from outrider.types.modes import MODES, Mode
from outrider.types.tool_state import TodoItem

if TYPE_CHECKING:
    from outrider.presentation.activity import ChildAgent, ChildProcess, SessionActivity, SideActivity


class ComposerFrame(Horizontal):
    """The border around the composer; its color shows the mode."""

    DEFAULT_CSS = """
    ComposerFrame { height: auto; margin: 0 1; padding: 0 1; border: round $faint; background: $background; }
    ComposerFrame:focus-within { border: round $primary 60%; }
    ComposerFrame.-plan:focus-within { border: round $secondary 70%; }
    ComposerFrame.-background:focus-within { border: round $warning; }
    ComposerFrame.-chat:focus-within { border: round $quiet; }
    """

    def show_mode(self, mode: Mode) -> None:
        for other_mode in MODES:
            self.set_class(other_mode == mode, f"-{other_mode}")


def widget_palette(widget: Widget) -> Palette:
    """Returns the palette of the current theme."""
    return find_palette(widget_theme(widget))


def widget_theme(widget: Widget) -> str:
    """Returns the name of the current theme."""
    return widget.app.theme  # pyright: ignore[reportUnknownMemberType]  Textual leaves App's type parameter unknown


_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_MODE_COLOURS = {"chat": "quiet", "plan": "link", "agent": "accent", "background": "warn"}
_FULL_SHARE, _NEARLY_FULL_SHARE = 0.9, 0.7


class ActivityLine(Static):
    """Shows the current activity of a turn, with its time, tokens and cost."""

    DEFAULT_CSS = "ActivityLine { height: 1; padding: 0 2; }"

    def __init__(self) -> None:
        super().__init__("", id="activity", markup=False)
        self._spinner_index = 0

    def show_activity(self, activity: "SessionActivity", away: str = "", *, cost_before: Decimal | None) -> None:
        """Shows the activity, or the sentence `away` about a server that cannot be reached."""
        palette = widget_palette(self)
        if away or not activity.busy:
            self.show_away(away)
            return
        self._spinner_index += 1
        line = Text(end="")
        line.append(f"{_SPINNER[self._spinner_index % len(_SPINNER)]} ", palette.style("accent"))
        label = "waiting for your answer" if activity.waits_for_person else activity.retry_text or activity.label
        line.append(
            clean_line(label, 80), palette.style("warn" if activity.retry_text or activity.waits_for_person else "text")
        )
        line.append(f" · {format_elapsed(activity.seconds)}", palette.style("quiet"))
        if activity.tokens:
            line.append(f" · {format_tokens(activity.tokens)} tokens", palette.style("quiet"))
        if activity.cost is not None and cost_before is not None and activity.cost > cost_before:
            line.append(f" · {format_cost(activity.cost - cost_before)}", palette.style("quiet"))
        right = text_line("esc: interrupt", palette.style("faint"))
        self.update(justify_ends(line, right, max(self.size.width, 10)), layout=False)

    def show_away(self, text: str) -> None:
        """Shows a sentence about a server that cannot be reached; "" clears the line."""
        self.update(text_line(f"! {text}" if text else "", widget_palette(self).style("warn")), layout=False)


_DELIVERIES = {"steer": "next step", "away": "when the server answers"}


class QueuedInputLines(Static):
    """Shows the inputs that are queued and not delivered yet."""

    DEFAULT_CSS = "QueuedInputLines { height: auto; max-height: 4; padding: 0 2; display: none; }"

    def __init__(self) -> None:
        super().__init__("", id="waiting", markup=False)
        self._shown: tuple[Sequence[tuple[str, str]], int] | None = None

    def show_inputs(self, inputs: Sequence[tuple[str, str]]) -> None:
        """Shows pairs of delivery and text; the last input can be withdrawn with the up key."""
        width = max(self.screen.size.width - self.styles.gutter.width, 10)
        if (inputs, width) == self._shown:
            return  # an update would lay out the screen
        self._shown = inputs, width
        palette = widget_palette(self)
        self.display = bool(inputs)
        lines: list[Text] = []
        for number, (delivery, input_text) in enumerate(inputs):
            label = (f"↳ {_DELIVERIES.get(delivery, 'after this')}  ", palette.style("link"))
            line = Text.assemble(label, (clean_line(input_text, 200), palette.style("quiet")), end="")
            hint = text_line("  ↑: edit again" if number == len(inputs) - 1 else "", palette.style("faint"))
            lines.append(Text.assemble(truncate_line(line, width - hint.cell_len), hint, end=""))
        self.update(Text("\n").join(lines))


class StatusInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the status line.

    - `mode`: the mode of the session.
    - `model`: the model that answers.
    - `agent`: the agent that answers.
    - `approval`: the approval level, in agent mode.
    - `effort`: the reasoning effort.
    - `context`: the tokens of the last prompt and its answer.
    - `context_limit`: how many tokens the model accepts, if known.
    - `cost`: what the session has cost; None if a price is not known.
    - `answers`: the number of answers of models.
    - `workspace`: the folder of the session.
    - `home`: the user's home folder, which is shown as `~`.
    """

    mode: str
    model: str
    agent: str
    approval: str = ""
    effort: str = ""
    context: int = 0
    context_limit: int | None = None
    cost: Decimal | None = None
    answers: int = 0
    workspace: Path
    home: Path


class StatusLine(Static):
    """The last line of the screen; redrawn only if its values, the width or the theme change."""

    DEFAULT_CSS = "StatusLine { height: 1; padding: 0 2; }"

    def __init__(self) -> None:
        super().__init__("", id="status", markup=False)
        self._status: StatusInfo | None = None
        self._drawn_for: tuple[StatusInfo, int, str] | None = None

    def show_status(self, status: StatusInfo) -> None:
        self._status = status
        drawing_state = (status, self.size.width, widget_theme(self))
        if self.size.width and drawing_state != self._drawn_for:
            self._drawn_for = drawing_state
            self.update(status_text(status, self.size.width, widget_palette(self)), layout=False)

    def on_resize(self) -> None:
        if self._status is not None:
            self.show_status(self._status)


def status_text(status: StatusInfo, width: int, palette: Palette) -> Text:
    """Returns the text of the status line; on a narrow screen the folder is omitted first, then the usage."""
    left = Text(end="")
    left.append(status.mode, palette.style(_MODE_COLOURS.get(status.mode, "text"), bold=True))
    if status.approval:
        left.append(f"  {status.approval}", palette.style("quiet" if status.approval == "ask" else "warn"))
    left.append(f"  {clean_line(status.model) or 'no model'}", palette.style("text"))
    if status.effort not in ("", "medium"):
        left.append(f" {status.effort}", palette.style("quiet"))
    left.append(f"  {clean_line(status.agent, 30)}", palette.style("quiet"))
    right = _usage_text(status, palette)
    folder = clean_line(_shorten_home(status.workspace, status.home), 120)
    if left.cell_len + right.cell_len + len(folder) + 5 <= width:
        right.append(f"  {folder}", palette.style("quiet"))
    return justify_ends(left, right, width) if right.cell_len + 14 < width else truncate_line(left, width)


def _usage_text(status: StatusInfo, palette: Palette) -> Text:
    text = Text(end="")
    if not status.answers:
        return text
    if status.context_limit:
        share = status.context / status.context_limit
        colour = "bad" if share > _FULL_SHARE else "warn" if share > _NEARLY_FULL_SHARE else "quiet"
        text.append(f"{share:.0%} of {format_tokens(status.context_limit)}", palette.style(colour))
    elif status.context:
        text.append(f"{format_tokens(status.context)} tokens", palette.style("quiet"))
    if status.cost:  # not for a model without a price, nor for one that is free
        text.append(f"  {format_cost(status.cost)}", palette.style("quiet"))
    return text


def _shorten_home(path: Path, home: Path) -> str:
    try:
        return f"~/{path.relative_to(home)}".rstrip("/.")
    except ValueError:
        return str(path)


PANEL_WIDTH = 34
_AGENT_MARKS = {"working": ("●", "accent"), "asking": ("?", "warn"), "done": ("●", "good"), "failed": ("✗", "bad")}
_MAX_TODOS = 14


class SidePanel(Static):
    """The panel beside the transcript; it reads the clock to show running times."""

    DEFAULT_CSS = f"""
    SidePanel {{
        width: {PANEL_WIDTH}; height: 100%; padding: 0 1 0 2; display: none; background: $background;
        border-left: solid $faint;
    }}
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__("", id="side", markup=False)
        self._clock = clock
        self._shown: Text | None = None

    def show_activity(self, activity: "SideActivity") -> None:
        lines = side_lines(activity, PANEL_WIDTH - 4, widget_palette(self), self._clock())
        text = Text("\n").join(lines)
        if text != self._shown:
            self._shown = text
            self.update(text, layout=False)


def has_activity(activity: "SideActivity") -> bool:
    return bool(activity.todos or _live_agents(activity) or activity.background_processes())


def _live_agents(activity: "SideActivity") -> "list[ChildAgent]":
    return [agent for agent in activity.agents.values() if not agent.stored]


def side_lines(activity: "SideActivity", width: int, palette: Palette, now: float) -> list[Text]:
    """Returns the lines of the sections of the panel; empty sections are omitted."""
    sections = (
        ("To do", _todo_lines(activity.todos, width, palette)),
        ("Agents", [line for agent in _live_agents(activity) for line in _agent_lines(agent, width, palette, now)]),
        (
            "Processes",
            [
                line
                for process in activity.background_processes()
                for line in _process_lines(process, width, palette, now)
            ],
        ),
    )
    lines: list[Text] = []
    for title, body in sections:
        if body:
            lines += [*([text_line()] if lines else []), text_line(title, palette.style("accent", bold=True)), *body]
    return lines or [text_line("No todos, agents or background processes.", palette.style("quiet"))]


def _todo_lines(todos: Iterable[TodoItem], width: int, palette: Palette) -> list[Text]:
    """Returns the lines of the todo list; if it is too long, completed items are dropped first."""
    visible_todos = list(todos)
    while len(visible_todos) > _MAX_TODOS and visible_todos[0].status in {"completed", "cancelled"}:
        visible_todos.pop(0)
    return todo_lines(visible_todos[:_MAX_TODOS], width, palette)


def _agent_lines(agent: "ChildAgent", width: int, palette: Palette, now: float) -> list[Text]:
    mark, colour = _AGENT_MARKS[agent.state]
    ended = agent.state in {"done", "failed"}
    duration = format_duration(agent.seconds) if ended else format_elapsed(now - agent.started)
    head = Text.assemble(
        (f"{mark} ", palette.style(colour)),
        (clean_line(agent.name, 24), palette.style("text")),
        (f"  {agent.state} {duration}", palette.style("quiet")),
        end="",
    )
    task = truncate_line(text_line(f"  {clean_line(agent.task or agent.message)}", palette.style("text")), width)
    activity = truncate_line(text_line(f"  {clean_line(agent.activity)}", palette.style("quiet")), width)
    return [truncate_line(head, width), task, *([activity] if agent.activity and not ended else [])]


def _process_lines(process: "ChildProcess", width: int, palette: Palette, now: float) -> list[Text]:
    mark, colour = ("●", "accent") if not process.exit_text else ("○", "quiet")
    state = process.exit_text or f"running {format_elapsed(now - process.started)}"
    command = truncate_line(text_line(clean_line(process.command), palette.style("text")), width - 2)
    return [
        Text.assemble((f"{mark} ", palette.style(colour)), command, end=""),
        text_line(f"  {clean_line(state)}", palette.style("quiet")),
    ]
