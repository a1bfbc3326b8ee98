"""The side panel: todo list, called agents and background processes."""

from collections.abc import Callable, Iterable
from time import monotonic
from typing import TYPE_CHECKING

from rich.text import Text
from textual.widgets import Static

from outrider.presentation.formats import clean_line, format_duration, format_elapsed
from outrider.presentation.tool_calls import TodoItem
from outrider.tui.rendering.text import text_line, truncate_line
from outrider.tui.rendering.tool_calls import todo_lines
from outrider.tui.theme import Palette
from outrider.tui.widgets.status import widget_palette

if TYPE_CHECKING:
    from outrider.presentation.activity import ChildAgent, ChildProcess, SideActivity

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
    return bool(activity.todos or activity.agents or activity.background_processes())


def side_lines(activity: "SideActivity", width: int, palette: Palette, now: float) -> list[Text]:
    """Return the lines of the sections of the panel; empty sections are omitted."""
    sections = (
        ("To do", _todo_lines(activity.todos, width, palette)),
        ("Agents", [found for agent in activity.agents.values() for found in _agent_lines(agent, width, palette, now)]),
        (
            "Processes",
            [
                found
                for process in activity.background_processes()
                for found in _process_lines(process, width, palette, now)
            ],
        ),
    )
    lines: list[Text] = []
    for title, body in sections:
        if body:
            lines += [*([text_line()] if lines else []), text_line(title, palette.style("accent", bold=True)), *body]
    return lines or [text_line("No todos, agents or background processes.", palette.style("quiet"))]


def _todo_lines(todos: Iterable[TodoItem], width: int, palette: Palette) -> list[Text]:
    """Return the lines of the todo list; if it is too long, completed items are dropped first."""
    shown = list(todos)
    while len(shown) > _MAX_TODOS and shown[0].status in {"completed", "cancelled"}:
        shown.pop(0)
    return todo_lines(shown[:_MAX_TODOS], width, palette)


def _agent_lines(agent: "ChildAgent", width: int, palette: Palette, now: float) -> list[Text]:
    mark, colour = _AGENT_MARKS[agent.state]
    ended = agent.state in {"done", "failed"}
    spent = format_duration(agent.seconds) if ended else format_elapsed(now - agent.started)
    head = Text.assemble(
        (f"{mark} ", palette.style(colour)),
        (clean_line(agent.name, 24), palette.style("text")),
        (f"  {agent.state} {spent}", palette.style("quiet")),
        end="",
    )
    detail = agent.message if ended else agent.activity or agent.message
    return [
        truncate_line(head, width),
        truncate_line(text_line(f"  {clean_line(detail)}", palette.style("quiet")), width),
    ]


def _process_lines(process: "ChildProcess", width: int, palette: Palette, now: float) -> list[Text]:
    mark, colour = ("●", "accent") if not process.exit_text else ("○", "quiet")
    state = process.exit_text or f"running {format_elapsed(now - process.started)}"
    command = truncate_line(text_line(clean_line(process.command), palette.style("text")), width - 2)
    return [
        Text.assemble((f"{mark} ", palette.style(colour)), command, end=""),
        text_line(f"  {clean_line(state)}", palette.style("quiet")),
    ]
