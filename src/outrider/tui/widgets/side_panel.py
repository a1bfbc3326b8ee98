"""What runs beside the conversation: the todo list, agents at work, processes in the background."""

from collections.abc import Callable, Iterable
from time import monotonic

from rich.text import Text
from textual.widgets import Static

from outrider.tui.conversation import ChildAgent, ChildProcess, SideActivity, Todo
from outrider.tui.rendering.text import clean_line, cut, duration, elapsed, indented, line, wrapped
from outrider.tui.theme import Palette
from outrider.tui.widgets.status import palette_of

WIDTH = 34
_TODO = {
    "pending": ("○", "quiet"),
    "in_progress": ("◐", "accent"),
    "completed": ("●", "good"),
    "cancelled": ("⊘", "faint"),
}
_AGENT = {"working": ("●", "accent"), "asking": ("?", "warn"), "done": ("●", "good"), "failed": ("✗", "bad")}
_MOST = 14


class SidePanel(Static):
    DEFAULT_CSS = f"""
    SidePanel {{
        width: {WIDTH}; height: 100%; padding: 0 1 0 2; display: none; background: $background;
        border-left: solid $faint;
    }}
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__("", id="side", markup=False)
        self._clock = clock

    def show(self, beside: SideActivity) -> None:
        lines = side_lines(beside, WIDTH - 4, palette_of(self), self._clock())
        self.update(Text("\n").join(lines))


def has_something(beside: SideActivity) -> bool:
    return bool(beside.todos or beside.agents or beside.running())


def side_lines(beside: SideActivity, width: int, palette: Palette, now: float) -> list[Text]:
    sections = (
        ("To do", _todos(beside.todos, width, palette)),
        ("Agents", [found for agent in beside.agents.values() for found in _agent(agent, width, palette, now)]),
        ("Processes", [found for process in beside.running() for found in _process(process, width, palette, now)]),
    )
    lines: list[Text] = []
    for title, body in sections:
        if body:
            lines += [*([line()] if lines else []), line(title, palette.style("accent", bold=True)), *body]
    return lines or [line("Nothing runs beside.", palette.style("quiet"))]


def _todos(todos: Iterable[Todo], width: int, palette: Palette) -> list[Text]:
    """Those that are done give way first where there are too many."""
    shown = list(todos)
    while len(shown) > _MOST and shown[0].status in {"completed", "cancelled"}:
        shown.pop(0)
    lines: list[Text] = []
    for todo in shown[:_MOST]:
        mark, colour = _TODO.get(todo.status, _TODO["pending"])
        style = palette.style("quiet" if todo.status in {"completed", "cancelled"} else "text")
        lines += indented(
            wrapped(line(clean_line(todo.content), style), width - 2), line(f"{mark} ", palette.style(colour))
        )
    return lines


def _agent(agent: ChildAgent, width: int, palette: Palette, now: float) -> list[Text]:
    mark, colour = _AGENT[agent.state]
    ended = agent.state in {"done", "failed"}
    spent = duration(agent.seconds) if ended else elapsed(now - agent.since)
    head = Text.assemble(
        (f"{mark} ", palette.style(colour)),
        (clean_line(agent.name, 24), palette.style("text")),
        (f"  {agent.state} {spent}", palette.style("quiet")),
        end="",
    )
    detail = agent.message if ended else agent.doing or agent.message
    return [cut(head, width), cut(line(f"  {clean_line(detail)}", palette.style("quiet")), width)]


def _process(process: ChildProcess, width: int, palette: Palette, now: float) -> list[Text]:
    mark, colour = ("●", "accent") if not process.ended else ("○", "quiet")
    state = process.ended or f"running {elapsed(now - process.since)}"
    command = cut(line(clean_line(process.command), palette.style("text")), width - 2)
    return [
        Text.assemble((f"{mark} ", palette.style(colour)), command, end=""),
        line(f"  {clean_line(state)}", palette.style("quiet")),
    ]
