"""A call that waits for an approval: exactly what will run, why it asks, and which rule would allow it."""

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.text import Text

from outrider.tui.asking.panel import Key, Panel
from outrider.tui.rendering.inputs import effect
from outrider.tui.rendering.lines import clean, clean_line, indented, line, wrapped
from outrider.tui.rendering.palette import Palette

_LABEL = 6
_ONCE = Key("y", "once", "yes, once")
_LASTING = (Key("s", "session", "this session"), Key("p", "project", "this folder"), Key("a", "always", "always"))
_NO = (Key("n", "no", "no"), Key("r", "no", "no, because…", "why not? The model reads this"))
_ONLY_ONCE = "none could name exactly this, so it can be allowed once"
_BY_CONTENT = "none; a yes for longer holds as long as the files that steer it stay as they are"


class Asked(msgspec.Struct, frozen=True):
    """A question about one exact call. `offers` are the rules that a yes for longer would keep; without `can_last` it
    can only be allowed once. `agent` is named if it is not the one that is talked with."""

    id: str
    tool: str
    given: dict[str, Any]
    reason: str
    offers: tuple[str, ...] = ()
    can_last: bool = False
    agent: str = ""


class ApprovalPanel(Panel):
    def __init__(self, asked: Asked) -> None:
        super().__init__()
        self.asked = asked

    @property
    def title(self) -> str:
        who = f" for {clean_line(self.asked.agent, 30)}" if self.asked.agent else ""
        return f"Allow {clean_line(self.asked.tool, 40)}{who}?"

    @property
    def keys(self) -> Sequence[Key]:
        return (_ONCE, *(_LASTING if self.asked.can_last else ()), *_NO)

    def lines(self, width: int, palette: Palette) -> list[Text]:
        given = dict(self.asked.given)
        path = given.pop("file_path", None)
        head = [*wrapped(line(clean(str(path)), palette.style("text", bold=True)), width), line()] if path else []
        return [*head, *effect(self.asked.tool, given, width, palette), line(), *self._why(width, palette)]

    def _why(self, width: int, palette: Palette) -> list[Text]:
        rules = ", ".join(self.asked.offers) or (_BY_CONTENT if self.asked.can_last else _ONLY_ONCE)
        found: list[Text] = []
        for label, words in (("why", self.asked.reason), ("rule", rules)):
            text = line(clean_line(words, 2500), palette.style("quiet"))
            found += indented(wrapped(text, width - _LABEL), line(f"{label:<{_LABEL}}", palette.style("warn")))
        return found
