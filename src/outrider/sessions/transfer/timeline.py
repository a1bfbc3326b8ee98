"""When things happened, drawn: a lane for what was said, one for calls, from the first moment to the last."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from outrider.sessions.transfer.markup import safe
from outrider.types.messages import Message
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError

_WIDTH = 1000
_LANES = {"user": 4, "model": 4, "tool": 31, "tool failed": 31}


class Bar(msgspec.Struct, frozen=True):
    kind: str
    name: str
    start: int
    end: int


def bars_of(messages: Sequence[Message]) -> list[Bar]:
    return [bar for message in messages for bar in _bars(message)]


def _bars(message: Message) -> Iterator[Bar]:
    if message.time is not None:
        kind = "user" if message.role == "user" else "model"
        created = message.time.created
        yield Bar(kind, message.role, created, max(created, message.time.completed or 0))
    for part in message.parts:
        match part:
            case ToolPart(state=ToolCompleted(time=time)):
                yield Bar("tool", part.tool, time.start, max(time.start, time.end))
            case ToolPart(state=ToolError(time=time)):
                yield Bar("tool failed", part.tool, time.start, max(time.start, time.end))
            case _:
                pass


def timeline(bars: Sequence[Bar]) -> str:
    if not bars:
        return ""
    start, end = min(bar.start for bar in bars), max(bar.end for bar in bars)
    scale = _WIDTH / max(1, end - start)
    drawn = "".join(_draw(bar, start, scale) for bar in bars)
    line = f'<line x1="0" y1="27" x2="{_WIDTH}" y2="27"></line>'
    drawing = f'<svg viewBox="0 0 {_WIDTH} 54" preserveAspectRatio="none" role="img">{line}{drawn}</svg>'
    ends = "".join(f"<span>{safe(moment(at, '%H:%M:%S'))}</span>" for at in (start, end))
    return f'<h2>Timeline</h2><div class="timeline">{drawing}<p>{ends}</p></div>'


def _draw(bar: Bar, start: int, scale: float) -> str:
    width = min(float(_WIDTH), max(3.0, (bar.end - bar.start) * scale))
    x = min(_WIDTH - width, (bar.start - start) * scale)
    label = safe(f"{bar.name}, {duration(bar.end - bar.start)}")
    shape = f'x="{x:.1f}" y="{_LANES[bar.kind]}" width="{width:.1f}" height="19" rx="2"'
    return f'<rect class="{bar.kind}" {shape}><title>{label}</title></rect>'


def moment(at: int, form: str) -> str:
    try:
        return datetime.fromtimestamp(at / 1000, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return ""


def duration(milliseconds: int) -> str:
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    minutes, seconds = divmod(milliseconds // 1000, 60)
    return f"{minutes} m {seconds:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} m"
