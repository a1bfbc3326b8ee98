"""`outrider jobs` and `outrider worker`: what they take."""

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable

from outrider.cli.options import add_database, add_place, add_terms, at_least_one, seconds
from outrider.cli.parser import TO_DO, examples

_JOBS = """\
Runs that go on when the terminal is closed. A worker carries them on: on one machine it starts by itself, and many
machines share a database (see `outrider worker --help`). A run is a session too: `outrider sessions show ID` and
`outrider trace ID` show what it did."""
_WORKER = """\
Carry on the runs that were submitted, until it is stopped; it can be killed at any moment, and another goes on.
Any number of workers may share one Postgres server. Users of a queue take turns, however many runs one has submitted.

The settings may bound a worker, and over all workers a queue and a provider:

  [background]
  runs = 4
  [background.queues.runs]
  at_once = 20
  [background.providers.anthropic]
  at_once = 5
  starts = 30       # in
  seconds = 60"""


_RUN = "its id, or the end of it"

Add = Callable[[str, str, str], ArgumentParser]


def jobs(parser: ArgumentParser) -> None:
    parser.description = _JOBS
    parser.epilog = examples(
        "outrider jobs submit 'update the dependencies and mend what breaks'",
        "outrider jobs submit 'look for dead links' --after 22:30 --max-cost 1",
        "outrider jobs schedule '0 7 * * 1-5' 'summarise what was merged yesterday'",
        "outrider jobs follow RUN",
        "outrider jobs approve RUN",
    )
    parser.set_defaults(usual="list")
    known = parser.add_subparsers(title=TO_DO, metavar="WHAT", required=True, parser_class=type(parser))

    def add(name: str, help: str, function: str) -> ArgumentParser:
        one = known.add_parser(name, help=help, description=help)
        one.set_defaults(execute=f"outrider.cli.jobs.{function}")
        one.add_argument("--json", action="store_true", help="one JSON object on each line")
        add_database(one)
        return one

    _add_submitting(add)
    _add_looking(add)
    _add_ordering(add)


def _add_submitting(add: Add) -> None:
    submitted = add("submit", "submit a prompt; it is begun as soon as a worker has time", "work:submit")
    submitted.add_argument("prompt", metavar="PROMPT", type=words, help="what to do")
    submitted.add_argument(
        "--after", default="", metavar="WHEN", help="not before 90s, 15m or 2h are over, 22:30, or another run's end"
    )
    submitted.add_argument("--wait", action="store_true", help="follow it until it is over")
    _add_order(submitted)
    scheduled = add("schedule", "submit a prompt again and again", "timing:schedule")
    scheduled.add_argument("cron", metavar="CRON", help="minute, hour, day, month and weekday: '0 7 * * *'")
    scheduled.add_argument("prompt", metavar="PROMPT", type=words, help="what to do")
    scheduled.add_argument("--timezone", default="", metavar="ZONE", help="like Europe/Berlin (this machine's)")
    _add_order(scheduled)
    add("schedules", "what is submitted again and again, and when", "timing:schedules")
    paused = add("pause", "submit no runs of a schedule until it is resumed", "timing:pause")
    resumed = add("resume", "submit runs of a schedule again, from its next time on", "timing:resume")
    _add_no_worker(resumed)
    unscheduled = add("unschedule", "end a schedule; runs that it submitted go on", "timing:unschedule")
    for one in (paused, resumed, unscheduled):
        one.add_argument("schedule", metavar="SCHEDULE", help=_RUN)


def _add_looking(add: Add) -> None:
    listed = add("list", "the newest runs, and where they stand", "work:list_runs")
    listed.add_argument("-n", "--limit", type=at_least_one, default=20, metavar="N", help="at most so many")
    shown = add("show", "one run: where it stands, where it works, and what came of it", "showing:show")
    shown.add_argument("--diff", action="store_true", help="print what it changed, as git does")
    shown.add_argument("--trace", action="store_true", help="print what it did, step by step")
    logged = add("logs", "what a run has said and done so far", "following:logs")
    followed = add("follow", "watch a run until it is over; Ctrl+C leaves it alone", "following:follow")
    for one in (logged, followed):
        one.add_argument("--after", type=int, default=0, metavar="N", help="only what is newer than this number")
    for one in (shown, logged, followed):
        one.add_argument("run", metavar="RUN", help=_RUN)


def _add_ordering(add: Add) -> None:
    for name, help, function in (
        ("cancel", "end a run, with everything kept", "work:cancel"),
        ("clean", "remove the worktree of a run that has ended; its branch stays", "showing:clean"),
        ("retry", "let a run go on that failed or was canceled", "work:retry"),
        ("approve", "say yes to what a run waits for", "work:approve"),
        ("deny", "say no to what a run waits for", "work:deny"),
    ):
        ordered = add(name, help, function)
        ordered.add_argument("run", metavar="RUN", help=_RUN)
        _add_no_worker(ordered)


def _add_order(parser: ArgumentParser) -> None:
    """What may be said about a run, whenever it begins."""
    parser.add_argument(
        "--priority", type=at_least_one, default=100, metavar="N", help="smaller is begun sooner (100), among your own"
    )
    parser.add_argument("--queue", default="runs", metavar="NAME", help="one that the settings may bound (runs)")
    parser.add_argument(
        "--no-worktree", dest="worktree", action="store_false", help="work in the folder itself, not in a git worktree"
    )
    parser.add_argument("--webhook", type=web_address, metavar="URL", help="POST its end there, as JSON")
    _add_no_worker(parser)
    add_place(parser)
    add_terms(parser)


def worker(parser: ArgumentParser) -> None:
    parser.description = _WORKER
    parser.epilog = examples(
        "outrider worker",
        "outrider worker --database postgresql://runs.example/outrider",
        "outrider worker --print-unit",
    )
    parser.add_argument(
        "--runs", type=at_least_one, metavar="N", help="so many runs at once (as [background] says, else 4)"
    )
    add_database(parser)
    add_place(parser)
    add_terms(parser)
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--status", action="store_true", help="say whether a worker is at work on this machine")
    one.add_argument("--stop", action="store_true", help="end it; another one goes on with its runs")
    one.add_argument("--restart", action="store_true", help="end it, and start one with the keys and settings of now")
    one.add_argument(
        "--print-unit",
        action="store_true",
        help="print what has the system start a worker whenever the machine starts (systemd, or launchd on a Mac)",
    )
    one.add_argument("--resident", action="store_true", help=SUPPRESS)
    parser.add_argument("--idle", type=seconds, default=300, help=SUPPRESS)
    parser.set_defaults(execute="outrider.cli.jobs.resident:worker")


def words(text: str) -> str:
    if not text.strip():
        raise ArgumentTypeError("it is empty; say what to do")
    return text


def web_address(text: str) -> str:
    from urllib.parse import urlsplit

    if urlsplit(text).scheme not in ("http", "https") or not urlsplit(text).hostname:
        raise ArgumentTypeError(f"{text!r} is no address of the web")
    return text


def _add_no_worker(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--no-worker", dest="worker", action="store_false", help="start no worker, if none is at work on this machine"
    )
