"""`outrider context`: prints what was sent to a model, by source, with tokens and cost, and why its cache missed."""

import sys
from argparse import Namespace
from collections.abc import Sequence

import msgspec

from outrider.cli import exit_codes
from outrider.cli.commands.sessions import write_output
from outrider.cli.output import Console, draw_bar, format_table
from outrider.cli.setup import run_with_archive
from outrider.config.providers import redactor_for
from outrider.engine.archive import SessionArchive
from outrider.errors import ConfigurationError
from outrider.models.context_ledger import (
    ContextReport,
    RequestComparison,
    SentRequestView,
    SourceShare,
    StepContext,
    build_report,
    compare_requests,
    find_request,
    month_of,
    sum_shares,
)
from outrider.presentation.formats import format_bytes, format_cost, format_tokens

BAR_WIDTH = 20
MAX_TOTALS = 20
NOT_RECORDED = "not recorded"


def show_context(arguments: Namespace) -> int:
    """Prints the view of the context that the options select."""
    if arguments.month:
        return _show_month(arguments)
    if arguments.diff:
        return _show_difference(arguments)
    if arguments.raw:
        return _print_request(arguments)
    return _show_report(arguments)


def _show_report(arguments: Namespace) -> int:
    async def load(archive: SessionArchive) -> tuple[str, ContextReport]:
        session = await archive.find_session(arguments.session)
        return session.title, build_report(session.id, (await archive.load(session.id)).messages)

    (title, report), console = run_with_archive(load, arguments), Console()
    step = _choose_step(report, arguments.step)
    if arguments.html:
        from outrider.presentation.treemap import treemap_page  # lazy: only for the page

        shares, name = step.sources if step else report.totals, f"{title or report.session_id}"
        return write_output(
            treemap_page(f"{name}, {_name_step(step)}" if step else name, shares).encode(), arguments.html
        )
    if arguments.json:
        console.print(msgspec.json.encode(step or report).decode())
    elif step is not None:
        _print_step(step, console)
    else:
        _print_session(report, console)
    return exit_codes.SUCCESS


def _choose_step(report: ContextReport, number: int | None) -> StepContext | None:
    if number is None:
        return None
    if number == 0:
        summary = next((step for step in reversed(report.steps) if step.step == 0), None)
        if summary is None:
            raise ConfigurationError("the session has no summary whose request is recorded")
        return summary
    answers = [step for step in report.steps if step.step]
    if number > len(answers):
        raise ConfigurationError(f"the session has {len(answers)} steps, there is no step {number}")
    return answers[number - 1]


def _name_step(step: StepContext) -> str:
    return f"step {step.step}" if step.step else "summary"


def _print_session(report: ContextReport, console: Console) -> None:
    console.print("By step", "bold")
    for line in _step_table(report.steps, console.width):
        console.print(line)
    if report.totals:
        console.print("\nBy source", "bold")
    for line in _source_table(report.totals, console.width, max_rows=MAX_TOTALS) if report.totals else ():
        console.print(line)


def _print_step(step: StepContext, console: Console) -> None:
    if not step.recorded:
        console.print(NOT_RECORDED)
        return
    console.print(f"{_name_step(step).capitalize()}, {step.model}", "bold")
    for line in _source_table(step.sources, console.width, max_rows=None):
        console.print(line)
    if step.miss is not None:
        console.print(f"\ncache miss at byte {step.miss.offset:,}: {step.miss.describe()}")


def _step_table(steps: Sequence[StepContext], width: int) -> list[str]:
    cells: list[Sequence[str]] = []
    for step in steps:
        if not step.recorded:
            cells.append((str(step.step), step.model, NOT_RECORDED, "", "", "", "", ""))
            continue
        cells.append(
            (
                str(step.step or "summary"),
                step.model,
                format_bytes(step.bytes) + ("" if step.exact else " (redacted or changed)"),
                format_tokens(step.tokens.prompt),
                f"{step.cached:.0%}",
                f"{step.achievable:.0%}" if step.step > 1 else "",
                format_cost(step.cost),
                step.miss.describe() if step.miss else "",
            )
        )
    heads = ("step", "model", "size", "in", "cached", "achievable", "cost", "cache miss")
    return format_table(heads, cells, width, right=(0, 2, 3, 4, 5, 6), narrow=(0, 3, 4, 6, 7))


def _source_table(shares: Sequence[SourceShare], width: int, *, max_rows: int | None) -> list[str]:
    maximum = max((share.tokens for share in shares), default=0)
    cells = [
        (
            share.kind,
            share.name,
            format_bytes(share.bytes),
            format_tokens(share.tokens),
            format_cost(share.cost),
            draw_bar(share.tokens, maximum, BAR_WIDTH),
        )
        for share in shares[:max_rows]
    ]
    if max_rows is not None and len(shares) > max_rows:
        hidden = shares[max_rows:]
        size, tokens = sum(share.bytes for share in hidden), sum(share.tokens for share in hidden)
        cells.append((f"{len(hidden)} more", "", format_bytes(size), format_tokens(tokens), "", ""))
    heads = ("source", "name", "size", "tokens", "cost", "")
    return format_table(heads, cells, width, right=(2, 3, 4), narrow=(0, 1, 3, 4))


def _show_month(arguments: Namespace) -> int:
    month: str = arguments.month

    async def load(archive: SessionArchive) -> Sequence[SourceShare]:
        steps: list[StepContext] = []
        async for session in archive.iterate_sessions():
            created, updated = (session.time.created, session.time.updated) if session.time else (0, 0)
            if month_of(created) <= month <= month_of(updated):
                report = build_report(session.id, (await archive.load(session.id)).messages)
                steps += [step for step in report.steps if month_of(step.created) == month]
        return sum_shares(steps)

    shares, console = run_with_archive(load, arguments), Console()
    if arguments.json:
        console.print(msgspec.json.encode(shares).decode())
        return exit_codes.SUCCESS
    if not shares:
        console.print_stderr(f"No recorded requests in {arguments.month}.")
        return exit_codes.SUCCESS
    for line in _source_table(shares, console.width, max_rows=MAX_TOTALS):
        console.print(line)
    return exit_codes.SUCCESS


def _show_difference(arguments: Namespace) -> int:
    async def load(archive: SessionArchive) -> RequestComparison:
        requests: list[SentRequestView] = []
        for text in arguments.diff:
            session, step = _parse_session_step(text, arguments.session)
            stored_session = await archive.find_session(session)
            requests.append(find_request((await archive.load(stored_session.id)).messages, step))
        return compare_requests(requests[0], requests[1])

    comparison, console = run_with_archive(load, arguments), Console()
    if arguments.json:
        console.print(msgspec.json.encode(comparison).decode())
        return exit_codes.SUCCESS
    cells = [
        (
            change.kind,
            change.name,
            format_bytes(change.before),
            format_bytes(change.after),
            f"{change.after - change.before:+,}",
        )
        for change in comparison.changes
    ]
    heads = ("source", "name", "before", "after", "bytes")
    for line in format_table(heads, cells, console.width, right=(2, 3, 4), narrow=(0, 1, 4)):
        console.print(line)
    console.print(f"\nThe first {comparison.equal_bytes:,} bytes are equal; then: {comparison.miss.describe()}")
    return exit_codes.SUCCESS


def _parse_session_step(text: str, session: str) -> tuple[str, int]:
    """Returns the session and the step that `N` or `SESSION:N` names."""
    named_session, _, number = text.rpartition(":")
    if not number.isdecimal() or not int(number):
        raise ConfigurationError(f"{text!r} is not a step; pass a number, or SESSION:NUMBER")
    return named_session or session, int(number)


def _print_request(arguments: Namespace) -> int:
    async def load(archive: SessionArchive) -> SentRequestView:
        session = await archive.find_session(arguments.session)
        return find_request((await archive.load(session.id)).messages, arguments.step)

    request, console = run_with_archive(load, arguments), Console()
    redacted = redactor_for(()).redact_text(request.body.decode("utf-8", "replace")).encode()
    sys.stdout.buffer.write(redacted + b"\n")
    sys.stdout.buffer.flush()
    if not request.exact or redacted != request.body:
        console.print_stderr("These bytes differ from those that were sent: secrets are redacted, or another version")
        console.print_stderr("of the program sent them.")
    return exit_codes.SUCCESS
