"""A call that waits for an approval: exactly what will run, why it asks, and which rule would allow it."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from outrider.tui.rendering.inputs import effect
from outrider.tui.rendering.lines import clean_line, indented, line, wrapped
from outrider.tui.rendering.palette import Palette
from outrider.tui.widgets.panel import Key, Panel

_LABEL = 6
_ONCE = Key("y", "once", "yes, once")
_LASTING = (Key("s", "session", "for this session"), Key("a", "always", "always"))
_NO = (Key("n", "no", "no"), Key("r", "no", "no, because…", "why not? The model reads this"))


class ApprovalPanel(Panel):
    """`rules` are what "session" and "always" would allow; without any, it can only be allowed once."""

    def __init__(
        self, approval_id: str, tool: str, given: dict[str, Any], *, reason: str, agent: str, rules: Sequence[str]
    ) -> None:
        super().__init__()
        self.approval_id = approval_id
        self.tool = tool
        self._given = given
        self._reason = reason
        self._agent = agent
        self._rules = rules

    @property
    def title(self) -> str:
        who = f" for {clean_line(self._agent, 30)}" if self._agent else ""
        return f"Allow {clean_line(self.tool, 40)}{who}?"

    @property
    def keys(self) -> Sequence[Key]:
        return (_ONCE, *(_LASTING if self._rules else ()), *_NO)

    def lines(self, width: int, palette: Palette) -> list[Text]:
        path = self._given.get("file_path") or self._given.get("path")
        head = [*wrapped(line(clean_line(str(path)), palette.style("text", bold=True)), width), line()] if path else []
        shown = effect(self.tool, {k: v for k, v in self._given.items() if v != path or k == "command"}, width, palette)
        return [*head, *shown, line(), *self._why(width, palette)]

    def _why(self, width: int, palette: Palette) -> list[Text]:
        rules = ", ".join(clean_line(rule, 300) for rule in self._rules)
        rows = [("why", self._reason), ("rule", rules or "none could name exactly this, so it can be allowed once")]
        found: list[Text] = []
        for label, words in rows:
            text = line(clean_line(words, 1000), palette.style("quiet"))
            found += indented(wrapped(text, width - _LABEL), line(f"{label:<{_LABEL}}", palette.style("warn")))
        return found
