"""Long pasted texts: a mark stands for them while one writes, and they are put in when it is sent."""

import re

LINES, CHARACTERS = 12, 1500
_MARK = re.compile(r"\[pasted #(\d+): [\d,]+ (?:lines|characters)\]")


class Pastes:
    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def take(self, text: str) -> str:
        """The text itself if it is short, else a mark for it."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.count("\n") + 1
        if lines <= LINES and len(text) <= CHARACTERS:
            return text
        number = len(self._texts) + 1
        self._texts[number] = text
        size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        return f"[pasted #{number}: {size}]"

    def put_in(self, text: str) -> str:
        return _MARK.sub(lambda found: self._texts.get(int(found[1]), found[0]), text)

    def clear(self) -> None:
        self._texts.clear()
