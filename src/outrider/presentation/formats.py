"""Numbers and text as people read them: times, durations, costs, token counts, sizes, and lines of untrusted text.

`sanitize_for_terminal` is re-exported for front ends that print text with its tabs."""

import re
import unicodedata
from datetime import UTC, datetime, tzinfo
from decimal import Decimal

from outrider.permissions.redaction.terminal import (
    escape_control_characters,
    remove_escape_sequences,
    reveal_for_terminal,
    sanitize_for_terminal,
)
from outrider.types.parts import Tokens

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
TAB_WIDTH = 4
_BLANKS = re.compile(r"[ \t\r\n]+")  # other white space, such as U+2028, is escaped


def replace_surrogates(text: str) -> str:
    """Replaces unpaired surrogates, which models may return and UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


def clean_text(text: str) -> str:
    """Returns text from a model, a tool or a file without control sequences and tabs, so that a terminal can show
    it."""
    return sanitize_for_terminal(text.replace("\r\n", "\n")).expandtabs(TAB_WIDTH)


def is_editable(text: str) -> bool:
    """Returns whether a text field can show the text unchanged: it may have tabs, but no control characters."""
    return clean_text(text) == text.expandtabs(TAB_WIDTH)


def reveal_text(text: str) -> str:
    """Returns text that a user approves, with its tabs expanded and its control characters as escapes, so that nothing
    is hidden."""
    return reveal_for_terminal(text).expandtabs(TAB_WIDTH)


def clean_line(text: str, limit: int = 400) -> str:
    """Returns at most `limit` characters of the text on one line, without control sequences."""
    # Only a bounded prefix is split, because a tool may return megabytes.
    return sanitize_for_terminal(" ".join(text[: limit * 2].split()), keep_lines=False)[:limit]


def escape_line(text: str, limit: int = 200) -> str:
    """Returns at most `limit` characters of the text on one line for a log, where unsafe characters stay visible as
    escapes: ESC becomes `\\x1b`. An ellipsis marks a cut."""
    start = text[: limit * 4]
    line = escape_control_characters(_BLANKS.sub(" ", start).strip())
    if len(line) <= limit and len(start) == len(text):
        return line
    return line[: max(0, limit - 1)] + "…"


def shorten(text: str, limit: int) -> str:
    """Returns the text on one line; if it is longer than `limit` characters, its beginning and an ellipsis."""
    line = " ".join(text[: limit * 2 + 2].split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def width_of(text: str) -> int:
    """Returns the width of the text in terminal columns."""
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def fit_width(text: str, width: int, ellipsis: str = "…") -> str:
    """Returns the text cut to a number of columns, with an ellipsis if it was cut."""
    if width_of(text) <= width:
        return text
    room, used = width - width_of(ellipsis), 0
    if room < 0:
        return ellipsis[: max(0, width)]
    for index, char in enumerate(text):
        used += _char_width(char)
        if used > room:
            return text[:index] + ellipsis
    return text


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def format_time(milliseconds: float, form: str = "%Y-%m-%d %H:%M", zone: tzinfo | None = None) -> str:
    """Returns a Unix time in the given time zone, or in that of this machine, which terminals show. Returns "" for a
    time outside of the calendar, which stored data may contain."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, zone).strftime(form)
    except (OverflowError, ValueError, OSError):
        return ""


def format_utc_time(milliseconds: float, form: str = "%Y-%m-%d %H:%M UTC") -> str:
    """Returns a Unix time in UTC, for files that people of other time zones read."""
    return format_time(milliseconds, form, UTC)


def format_iso_time(milliseconds: float, timespec: str = "seconds") -> str:
    """Returns a Unix time as ISO 8601 in UTC, for protocols and data; "" for a time outside of the calendar."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec=timespec)
    except (OverflowError, ValueError, OSError):
        return ""


def format_duration(seconds: float) -> str:
    """Returns `350ms`, `4.2s`, `42s`, `3m 05s` or `2h 07m`."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    if seconds < _MINUTE - 0.5:
        return f"{seconds:.0f}s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE}m {whole % _MINUTE:02}s"
    return f"{whole // _HOUR}h {whole % _HOUR // _MINUTE:02}m"


def format_milliseconds(milliseconds: int) -> str:
    return format_duration(milliseconds / 1000)


def format_elapsed(seconds: float) -> str:
    """Returns the duration of something that is still running, in whole seconds, so that the display does not
    flicker."""
    return f"{int(seconds)}s" if seconds < _MINUTE else format_duration(int(seconds))


def format_cost(cost: Decimal | None) -> str:
    """Returns a cost in dollars, or `unknown` for a model without a price. A cost above zero is never shown as zero."""
    if cost is None:
        return "unknown"
    if not cost:
        return "$0.00"
    if cost < Decimal("0.0001"):
        return "<$0.0001"
    return f"${cost:.4f}" if cost < 1 else f"${cost:,.2f}"


def format_dollars(amount: Decimal) -> str:
    """Returns a cost without the dollar sign, for a sentence that names the currency: `0.0040 dollars`."""
    return format_cost(amount).replace("$", "")


def format_limit(limit: str, maximum: str) -> str:
    """Returns `the cost limit of $0.5000`, `the time limit of 1h 00m`, `the limit of 1.2M tokens` or `the limit of 3
    turns`, from the stored name and value of a limit."""
    amount = _limit_amount(limit, maximum)
    kind = {"cost": "cost limit", "seconds": "time limit"}.get(limit, "limit") if amount else "limit"
    return f"the {kind} of {amount or f'{maximum} {limit}'}"


def format_reached_limit(limit: str, maximum: str, reached: str) -> str:
    """Returns a sentence that a limit is reached, with the amount, or with the other reason for which the run ended."""
    is_count = reached.isdecimal() and not _limit_amount(limit, reached)
    amount = "" if is_count else _limit_amount(limit, reached) or reached
    return f"{format_limit(limit, maximum)} is reached{f' ({amount})' if amount else ''}"


def _limit_amount(limit: str, value: str) -> str:
    """Returns an amount with its unit; "" for a limit without a unit and for a value that is not a number."""
    try:
        match limit:
            case "cost":
                return format_cost(Decimal(value))
            case "seconds":
                return format_duration(float(value))
            case "tokens":
                return f"{format_tokens(int(value))} tokens"
            case _:
                return ""
    except (ValueError, ArithmeticError):
        return ""


def format_total_cost(cost: Decimal | None, unpriced: int) -> str:
    """Returns a sum that lacks the cost of `unpriced` answers: `≥$0.12`, or `unknown` if nothing else is known."""
    if not unpriced:
        return format_cost(cost)
    return f"≥{format_cost(cost)}" if cost else format_cost(None)


def format_tokens(number: int) -> str:
    """Returns `950`, `1.2k`, `340k`, `1.5M` or `2.0G`."""
    if number < 1000:
        return str(number)
    for size, letter in ((1_000_000_000, "G"), (1_000_000, "M")):
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return f"{number / 1000:.1f}k" if number < 99_950 else f"{number // 1000}k"


def format_token_usage(tokens: Tokens) -> str:
    """Returns `1.2k tokens in, 300 out`: the size of the prompts, and what the model wrote."""
    return f"{format_tokens(tokens.prompt)} tokens in, {format_tokens(tokens.output + tokens.reasoning)} out"


def format_bytes(number: int) -> str:
    """Returns `950 B`, `1.2 kB`, `340 kB` or `1.5 MB`; a kilobyte has 1,000 bytes."""
    if number < 1000:
        return f"{number} B"
    for size, unit in ((1_000_000_000, "GB"), (1_000_000, "MB")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number / 1000:.1f} kB" if number < 99_950 else f"{number // 1000} kB"


def format_count(number: int, noun: str) -> str:
    """Returns `1 file` or `1,200 files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def as_sentence(text: str) -> str:
    """Returns a notice as a sentence, for a front end that shows it as text of the agent."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '…')) else '.'}"


def format_age(seconds: float) -> str:
    for size, unit in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        if seconds >= size:
            return f"{format_count(int(seconds // size), unit)} ago"
    return "just now"


def text_for_pipe(text: str) -> str:
    """Returns text as a program reads it: without escape sequences, which start with ESC or a control of Latin-1."""
    return text if text.isascii() and "\x1b" not in text else remove_escape_sequences(text)


_SHORT_ID_LENGTH = 8


def short_id(session_id: str) -> str:
    """Returns the end of an id. Its start is a timestamp, which is equal for sessions of the same minute."""
    return session_id[-_SHORT_ID_LENGTH:]


def away_text(seconds: int) -> str:
    """Returns a sentence about a server that cannot be reached; `seconds` remain until the next attempt."""
    attempt = f"next attempt in {format_elapsed(seconds)}" if seconds > 0 else "trying again"
    return f"the server cannot be reached · {attempt}"
