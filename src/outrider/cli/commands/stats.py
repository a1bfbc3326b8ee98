"""Usage as tables, with a small plot for each."""

from argparse import Namespace
from collections.abc import Sequence

import msgspec

from outrider.cli import registry as exits
from outrider.cli.output import NARROW_TABLES as NARROW
from outrider.cli.output import Console, bar, cost_text, table, tokens_text
from outrider.cli.setup import with_archive
from outrider.engine.archive import Archive, Grouping, UsageRow
from outrider.types.ids import now_ms

DAY = 86_400_000
BAR, SHORT_BAR = 20, 6
_ALL: tuple[Grouping, ...] = ("day", "model", "agent", "tool")


def execute(arguments: Namespace) -> int:
    wanted: Sequence[Grouping] = (arguments.by,) if arguments.by else _ALL
    since = None if arguments.session else now_ms() - arguments.days * DAY

    async def work(archive: Archive) -> dict[str, Sequence[UsageRow]]:
        session = (await archive.find(arguments.session)).id if arguments.session else None
        return {by: await archive.usage(by, since=since, session_id=session) for by in wanted}

    console, found = Console(), with_archive(work)
    if arguments.json:
        console.print(msgspec.json.encode(found).decode())
        return exits.DONE
    if not any(found.values()):
        console.say("Nothing was used" + ("." if arguments.session else f" in the last {arguments.days} days."))
        return exits.DONE
    for number, (by, rows) in enumerate(found.items()):
        if rows:
            console.print("\n" * bool(number) + f"By {by}", "bold")
            for line in _calls(rows, console.width) if by == "tool" else _usage(by, rows, console.width):
                console.print(line)
    return exits.DONE


def _usage(by: str, rows: Sequence[UsageRow], width: int) -> list[str]:
    """The bar is the cost; of models without a price, the tokens."""
    most, of = max((row.cost for row in rows), default=0), "cost"
    if not most:
        most, of = max(row.tokens.total for row in rows), "tokens"
    cells = [
        (
            row.key or "(unknown)",
            f"{row.messages:,}",
            tokens_text(row.tokens.prompt),
            tokens_text(row.tokens.cache.read),
            tokens_text(row.tokens.output + row.tokens.reasoning),
            _cost(row),
            bar(float(row.cost if of == "cost" else row.tokens.total), float(most), _bar_width(width)),
        )
        for row in rows
    ]
    heads = (by, "answers", "in", "of it cached", "out", "cost", of)
    return table(heads, cells, width, right=(1, 2, 3, 4, 5), narrow=(0, 2, 4, 5, 6))


def _calls(rows: Sequence[UsageRow], width: int) -> list[str]:
    most = max(row.calls for row in rows)
    cells = [
        (
            row.key,
            f"{row.calls:,}",
            f"{row.errors:,}",
            _time(row.duration_ms / max(1, row.calls)),
            bar(row.calls, most, _bar_width(width)),
        )
        for row in rows
    ]
    heads = ("tool", "calls", "errors", "time each", "")
    return table(heads, cells, width, right=(1, 2, 3), narrow=(0, 1, 3, 4))


def _bar_width(width: int) -> int:
    return BAR if width >= NARROW else SHORT_BAR


def _time(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:,.1f} s"


def _cost(row: UsageRow) -> str:
    """What has no price is not free, and so it is said."""
    if not row.unpriced:
        return cost_text(row.cost)
    return f"≥{cost_text(row.cost)}" if row.cost else "unknown"
