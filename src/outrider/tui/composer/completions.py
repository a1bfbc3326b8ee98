"""The list of what could be meant, below the field in which one writes."""

from collections.abc import Sequence

from rich.text import Text
from textual.widgets import Static

from outrider.tui.composer.completion import MOST, Choice
from outrider.tui.rendering.lines import clean_line
from outrider.tui.widgets.look import palette_of


class Completions(Static):
    DEFAULT_CSS = """
    Completions {
        height: auto; max-height: 8; padding: 0 3; display: none; text-wrap: nowrap; text-overflow: ellipsis;
    }
    """

    def __init__(self) -> None:
        super().__init__(id="completions", markup=False)
        self._choices: Sequence[Choice] = ()
        self._place = 0

    @property
    def chosen(self) -> Choice | None:
        return self._choices[self._place] if self._choices else None

    def offer(self, choices: Sequence[Choice]) -> None:
        if choices != self._choices:
            self._choices, self._place = choices, 0
        self.display = bool(choices)
        self._draw()

    def move(self, by: int) -> None:
        self._place = (self._place + by) % len(self._choices)
        self._draw()

    def _draw(self) -> None:
        palette = palette_of(self)
        first = max(0, min(self._place - MOST // 2, len(self._choices) - MOST))
        shown = self._choices[first : first + MOST]
        text = Text()
        for number, choice in enumerate(shown, first):
            here = number == self._place
            text.append("› " if here else "  ", palette.style("accent"))
            text.append(f"{clean_line(choice.text, 60):<14}", palette.style("accent" if here else "text", bold=here))
            text.append(f"  {choice.note}" if choice.note else "", palette.style("quiet"))
            text.append("\n" if number < first + len(shown) - 1 else "")
        self.update(text)
