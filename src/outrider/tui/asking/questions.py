"""Questions that a model asks, and questions of the program itself, answered in place."""

from collections.abc import Sequence

from rich.text import Text

from outrider.app.views.questions import AskedQuestion
from outrider.tui.asking.panel import Key, Panel
from outrider.tui.rendering.lines import clean, clean_line, indented, line, wrapped
from outrider.tui.rendering.markdown import markdown
from outrider.tui.rendering.palette import Palette

_OWN = Key("w", "", "write an answer", "your answer")
_DIGITS = "123456789"


class QuestionPanel(Panel):
    """Options by their number; several may be chosen where the question says so. Words of one's own always count."""

    def __init__(self, asked: AskedQuestion) -> None:
        super().__init__()
        self.asked = asked
        self.chosen: list[str] = []

    @property
    def title(self) -> str:
        return "A question"

    @property
    def keys(self) -> Sequence[Key]:
        numbers = [Key(digit, option, "") for digit, option in zip(_DIGITS, self.asked.options, strict=False)]
        done = (Key("enter", "", "done"),) if self.asked.multiple else ()
        return (*numbers, *done, _OWN, Key("x", "", "no answer"))

    def lines(self, width: int, palette: Palette) -> list[Text]:
        lines = markdown(self.asked.text, width, palette)
        if self.asked.options:
            lines.append(line())
        for number, option in enumerate(self.asked.options, 1):
            mark = "●" if option in self.chosen else "○" if self.asked.multiple else " "
            label = line(f"{number} {mark} ", palette.style("accent", bold=True))
            lines += indented(wrapped(line(clean(option), palette.style("text")), width - 4), label)
        return lines

    def choose(self, key: Key) -> None:
        if self.asked.multiple and key.key in _DIGITS:
            (self.chosen.remove if key.answer in self.chosen else self.chosen.append)(key.answer)
            self.draw()
            return
        super().choose(key)

    def answers(self, answer: str, words: str) -> tuple[str, ...]:
        """What was chosen, and what was written besides."""
        return tuple(found for found in (*self.chosen, answer, words) if found)


class ChoicePanel(Panel):
    """A question of the program: a text in Markdown and a key for each answer."""

    def __init__(self, title: str, text: str, keys: Sequence[Key]) -> None:
        super().__init__()
        self._title = title
        self._text = text
        self._keys = keys

    @property
    def title(self) -> str:
        return clean_line(self._title, 60)

    @property
    def keys(self) -> Sequence[Key]:
        return self._keys

    def lines(self, width: int, palette: Palette) -> list[Text]:
        return markdown(self._text, width, palette)
