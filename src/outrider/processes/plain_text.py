"""Output as a person would have seen it on a terminal, in plain text."""

import re

_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # colours, moves of the cursor
    r"|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links and other strings
    r"|[ -/]*[0-~])"
)
_STRUCK_OVER = re.compile(r"[^\n\x08]\x08")
_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: 0x2421}


def plain_text(text: str) -> str:
    """Without colours; of a line that was written over and over, such as a progress bar, what stood there last. Other
    control characters become visible signs (␀), so that text can be stored and sent anywhere."""
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "\r" in text:
        text = "\n".join(map(_last_written, text.replace("\r\n", "\n").split("\n")))
    if "\x08" in text:
        text = _STRUCK_OVER.sub("", text)
    return text.translate(_CONTROLS)


def _last_written(line: str) -> str:
    if "\r" not in line:
        return line
    return next((piece for piece in reversed(line.split("\r")) if piece.strip()), "")
