"""How times, tokens, money and foreign text are written for people."""

import re
import unicodedata
from decimal import Decimal

from outrider.permissions.texts.terminal import spelled_out
from outrider.tracing.agent_event import AgentEvent

visible = spelled_out
_SPACE = re.compile(r"[ \t\r\n]+")


def one_line(text: str, limit: int = 200) -> str:
    """The beginning of a foreign text, on one line and harmless."""
    start = text[: limit * 4]
    line = visible(_SPACE.sub(" ", start).strip())
    if len(line) <= limit and len(start) == len(text):
        return line
    return line[: max(0, limit - 1)] + "…"


def encodable(text: str, encoding: str) -> str:
    """The text as an output of this encoding can take it."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def duration_text(ms: int) -> str:
    if ms < 1000:
        return f"{ms} ms"
    if ms < 59_950:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(round(ms / 1000), 60)
    if minutes < 60:
        return f"{minutes} m {seconds:02} s"
    return f"{minutes // 60} h {minutes % 60:02} m"


def cost_text(cost: Decimal) -> str:
    if cost == 0:
        return "$0"
    if abs(cost) < Decimal("0.0001"):
        return "<$0.0001"
    return f"${cost:.4f}" if abs(cost) < 10 else f"${cost:,.2f}"


def width_of(text: str) -> int:
    """How many columns a terminal gives to the text."""
    if text.isascii():
        return len(text)
    return sum(_columns(char) for char in text)


def fit(text: str, width: int, ellipsis: str = "…") -> str:
    """The text cut to a number of columns, with a mark where it was cut."""
    if width_of(text) <= width:
        return text
    room, kept = width - width_of(ellipsis), 0
    if room < 0:
        return ellipsis[: max(0, width)]
    for index, char in enumerate(text):
        kept += _columns(char)
        if kept > room:
            return text[:index] + ellipsis
    return text


def record_line(event: AgentEvent, start: int) -> str:
    """One record on one line, for `EventLog.format`."""
    seconds = max(0, event.timestamp - start) / 1000
    words = " ".join(
        f"{one_line(str(key), 40)}={one_line(str(value), 60)}"
        for key, value in event.data.items()
        if _says_something(value)
    )
    agent = one_line(event.agent_name or "-", 30)
    call = f" ({one_line(event.call_id, 40)})" if event.call_id else ""
    return f"{seconds:9.3f}s  {event.type:<12}  {agent:<16}{call}  {words}".rstrip()


def _says_something(value: object) -> bool:
    return isinstance(value, bool) or bool(value)


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
