"""`outrider stats`: prints usage tables by day, model, agent and tool, with a bar per row."""

from argparse import Namespace
from collections.abc import Sequence

import msgspec

from outrider.cli import exit_codes
from outrider.cli.output import NARROW_TABLE_WIDTH as NARROW
from outrider.cli.output import Console, draw_bar, format_table
from outrider.cli.setup import run_with_archive
from outrider.engine.archive import Grouping, SessionArchive, SessionFilter, UsageRow
from outrider.presentation.formats import format_duration, format_tokens, format_total_cost
from outrider.types.ids import now_ms
from outrider.types.messages import Message
from outrider.types.parts import StepFinishPart

DAY_MS = 86_400_000
BAR_WIDTH, SHORT_BAR_WIDTH = 20, 6
_ALL_GROUPINGS: tuple[Grouping, ...] = ("day", "model", "agent", "tool")


def show_stats(arguments: Namespace) -> int:
    """Prints usage tables, or one JSON object with all of them."""
    groupings: Sequence[Grouping] = (arguments.by,) if arguments.by else _ALL_GROUPINGS
    since = None if arguments.session else now_ms() - arguments.days * DAY_MS

    async def load_usage(archive: SessionArchive) -> dict[str, Sequence[UsageRow]]:
        session = (await archive.find_session(arguments.session)).id if arguments.session else None
        return {by: await archive.usage_statistics(by, since=since, session_id=session) for by in groupings}

    console = Console()
    if arguments.by == "cache":
        misses = run_with_archive(lambda archive: _count_misses(archive, arguments, since), arguments)
        return _show_cache(misses, console, arguments)
    usage = run_with_archive(load_usage, arguments)
    if arguments.json:
        console.print(msgspec.json.encode(usage).decode())
        return exit_codes.SUCCESS
    if not any(usage.values()):
        console.print_stderr("No usage" + ("." if arguments.session else f" in the last {arguments.days} days."))
        return exit_codes.SUCCESS
    for number, (by, rows) in enumerate(usage.items()):
        if rows:
            console.print("\n" * bool(number) + f"By {by}", "bold")
            for line in _call_table(rows, console.width) if by == "tool" else _usage_table(by, rows, console.width):
                console.print(line)
    return exit_codes.SUCCESS


class CacheMisses(msgspec.Struct):
    """The answers whose request missed the provider's cache for one reason, and the tokens that were read again."""

    cause: str
    answers: int = 0
    tokens: int = 0


async def _count_misses(archive: SessionArchive, arguments: Namespace, since: int | None) -> list[CacheMisses]:
    """Counts the stored causes. The tokens are those of the prompts that did not come from a cache."""
    if arguments.session:
        sessions = [await archive.find_session(arguments.session)]
    else:
        active = SessionFilter(active_since=since)
        sessions = [session async for session in archive.iterate_sessions(active)]
    misses: dict[str, CacheMisses] = {}
    for session in sessions:
        for message in (await archive.load(session.id)).messages:
            if since is None or message.time is None or message.time.created >= since:
                _add_misses(message, misses)
    return sorted(misses.values(), key=lambda row: -row.tokens)


def _add_misses(message: Message, misses: dict[str, CacheMisses]) -> None:
    for part in message.get_parts_by_type(StepFinishPart):
        if part.cache_miss:
            cause = part.cache_miss.describe()
            row = misses.setdefault(cause, CacheMisses(cause))
            row.answers += 1
            row.tokens += round(part.tokens.prompt * (1 - part.cache_miss.cached))


def _show_cache(rows: list[CacheMisses], console: Console, arguments: Namespace) -> int:
    if arguments.json:
        console.print(msgspec.json.encode({"cache": rows}).decode())
        return exit_codes.SUCCESS
    if not rows:
        console.print_stderr("No cache misses are recorded.")
        return exit_codes.SUCCESS
    console.print("By cause of a cache miss", "bold")
    cells = [(row.cause, f"{row.answers:,}", format_tokens(row.tokens)) for row in rows]
    for line in format_table(("cause", "answers", "tokens not cached"), cells, console.width, right=(1, 2)):
        console.print(line)
    return exit_codes.SUCCESS


def _usage_table(by: str, rows: Sequence[UsageRow], width: int) -> list[str]:
    """Returns the usage table. The bar shows the cost, or the tokens if no row has a known price."""
    maximum, measure = max((row.cost for row in rows), default=0), "cost"
    if not maximum:
        maximum, measure = max(row.tokens.total for row in rows), "tokens"
    cells = [
        (
            row.key or "(unknown)",
            f"{row.messages:,}",
            format_tokens(row.tokens.prompt),
            format_tokens(row.tokens.cache.read),
            format_tokens(row.tokens.output + row.tokens.reasoning),
            format_total_cost(row.cost, row.unpriced),
            draw_bar(float(row.cost if measure == "cost" else row.tokens.total), float(maximum), _bar_width(width)),
        )
        for row in rows
    ]
    heads = (by, "answers", "in", "of it cached", "out", "cost", measure)
    return format_table(heads, cells, width, right=(1, 2, 3, 4, 5), narrow=(0, 2, 4, 5, 6))


def _call_table(rows: Sequence[UsageRow], width: int) -> list[str]:
    maximum = max(row.calls for row in rows)
    cells = [
        (
            row.key,
            f"{row.calls:,}",
            f"{row.errors:,}",
            format_duration(row.duration_ms / max(1, row.calls) / 1000),
            draw_bar(row.calls, maximum, _bar_width(width)),
        )
        for row in rows
    ]
    heads = ("tool", "calls", "errors", "time each", "")
    return format_table(heads, cells, width, right=(1, 2, 3), narrow=(0, 1, 3, 4))


def _bar_width(width: int) -> int:
    return BAR_WIDTH if width >= NARROW else SHORT_BAR_WIDTH
