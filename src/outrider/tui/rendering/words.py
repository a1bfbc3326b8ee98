"""Numbers as people read them: durations, tokens, money, ages."""

from decimal import Decimal

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f}s"
    if seconds < _MINUTE:
        return f"{seconds:.0f}s"
    if seconds < _HOUR:
        return f"{int(seconds // _MINUTE)}m {int(seconds % _MINUTE):02}s"
    return f"{int(seconds // _HOUR)}h {int(seconds % _HOUR // _MINUTE):02}m"


def elapsed(seconds: float) -> str:
    """Of something that still goes on: whole seconds, since more would only flicker."""
    return f"{int(seconds)}s" if seconds < _MINUTE else duration(seconds)


def count(number: int) -> str:
    if number < 1000:
        return str(number)
    if number < 1_000_000:
        return f"{number / 1000:.1f}k" if number < 100_000 else f"{number // 1000}k"
    return f"{number / 1_000_000:.1f}M"


def money(cost: Decimal | None) -> str:
    """Unknown is said as such; it is never zero."""
    if cost is None:
        return "cost unknown"
    if cost and cost < Decimal("0.01"):
        return f"${cost:.4f}"
    return f"${cost:.2f}"


def age(seconds: float) -> str:
    for size, word in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if seconds >= size:
            number = int(seconds // size)
            return f"{number} {word}{'' if number == 1 else 's'} ago"
    return "just now"


def plural(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"
