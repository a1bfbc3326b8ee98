"""Declares the arguments of the commands that examine and evaluate what agents do."""

from argparse import ArgumentParser

from outrider.cli.parser import (
    add_archive_options,
    add_cwd_option,
    add_database_option,
    format_examples,
    parse_cost,
    parse_folder,
    parse_positive_int,
)

_SESSION_HELP = "an id, the end of one, or `last` (the default)"


def declare_what_if(parser: ArgumentParser) -> None:
    parser.description = "Rerun a copy of a session from one of its steps with a change, and compare the results."
    parser.epilog = format_examples(
        "outrider what-if last --at-step 3 --model openai/gpt-5.4",
        "outrider what-if 1a2b3c4d --instructions @shorter.md",
        "outrider what-if last --result CALL_ID='no such file'",
    )
    add_cwd_option(parser)
    parser.add_argument("session", metavar="SESSION", help="an id, the end of one, or `last`")
    parser.add_argument(
        "--at-step", metavar="N", type=int, help="keep the first N model responses (default: as many as possible)"
    )
    parser.add_argument("--model", metavar="PROVIDER/MODEL", help="use another model")
    parser.add_argument("--agent", metavar="NAME", help="use another agent")
    parser.add_argument("--instructions", metavar="TEXT", help="use other instructions; @FILE reads a file")
    parser.add_argument("--result", metavar="CALL=TEXT", action="append", default=[], help="replace a call's result")
    parser.set_defaults(execute="outrider.cli.commands.what_if:run_what_if")


def declare_trace(parser: ArgumentParser) -> None:
    parser.description = "Show what a session did: every model response and tool call, with time, tokens and cost."
    parser.epilog = format_examples("outrider trace", "outrider trace 1a2b3c4d --html trace.html")
    parser.add_argument("session", metavar="SESSION", nargs="?", default="last", help=_SESSION_HELP)
    parser.add_argument("--html", metavar="FILE", help="write an HTML page with a timeline instead (- for stdout)")
    add_archive_options(parser)
    parser.set_defaults(execute="outrider.cli.commands.sessions:show_trace")


def _parse_step(text: str) -> int:
    return 0 if text == "0" else parse_positive_int(text)


def declare_context(parser: ArgumentParser) -> None:
    parser.description = "Show what fills the context: tokens and cost by source, and why the prompt cache missed."
    parser.epilog = format_examples(
        "outrider context", "outrider context --diff 2 3", "outrider context --raw", "outrider context --month 2026-11"
    )
    parser.add_argument("session", metavar="SESSION", nargs="?", default="last", help=_SESSION_HELP)
    parser.add_argument(
        "--step", metavar="N", type=_parse_step, help="show the sources of one step (0: of the last summary request)"
    )
    view = parser.add_mutually_exclusive_group()
    view.add_argument("--diff", metavar=("A", "B"), nargs=2, help="compare two steps: N, or SESSION:N")
    view.add_argument("--raw", action="store_true", help="print the request of the step, or else the last one")
    view.add_argument("--html", metavar="FILE", help="write a treemap as an HTML page (- for stdout)")
    view.add_argument("--month", metavar="YYYY-MM", help="add up the sources of all sessions of a month")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_archive_options(parser)
    parser.set_defaults(execute="outrider.cli.commands.context:show_context")


def declare_stats(parser: ArgumentParser) -> None:
    parser.description = "Show usage by day, model, agent and tool. Days are in UTC."
    parser.epilog = format_examples(
        "outrider stats", "outrider stats --by model --days 7", "outrider stats --session last"
    )
    parser.add_argument("--by", choices=("day", "model", "agent", "tool", "cache"), help="only this table")
    parser.add_argument("-d", "--days", metavar="N", type=parse_positive_int, default=30, help="the last N days (30)")
    parser.add_argument("-s", "--session", metavar="ID", help="only this session")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_archive_options(parser)
    parser.set_defaults(execute="outrider.cli.commands.stats:show_stats")


_EVAL_DESCRIPTION = """\
Run the cases of a suite, each in its own sandboxed copy of its files, and report pass rates, cost and time. SUITE is a
TOML or Python file, a folder with a suite.toml, a built-in suite (see `outrider eval list`), a file of SWE-bench
instances (.jsonl), or a terminal-bench task or a folder of them."""
_EVAL_EXIT_CODES = "Exit codes: 0 all attempts passed (or --min-pass), 1 some did not, or a regression, 2 usage error."


def declare_eval(parser: ArgumentParser) -> None:
    parser.description = _EVAL_DESCRIPTION
    parser.epilog = (
        format_examples(
            "outrider eval coding --model openai/gpt-5.4 --repeat 3",
            "outrider eval my-suite.toml --cassettes replay",
            "outrider eval my-suite.toml --baseline runs/before",
            "outrider eval compare runs/before runs/after",
            "outrider eval add last --to my-suite.toml",
        )
        + f"\n\n{_EVAL_EXIT_CODES}"
    )
    parser.set_defaults(default_subcommand="run", subcommand_names=("run", "compare", "add", "validate", "list"))
    subparsers = parser.add_subparsers(
        title="subcommands (default: run)", metavar="WHAT", required=True, parser_class=type(parser)
    )

    def add_subcommand(name: str, help: str, function: str) -> ArgumentParser:
        subparser = subparsers.add_parser(name, help=help, description=help)
        subparser.set_defaults(execute=f"outrider.cli.commands.eval:{function}")
        return subparser

    _add_eval_run(add_subcommand("run", "run a suite and write a report", "run_evaluation"))
    compare_parser = add_subcommand(
        "compare", "compare two runs: what changed, and is it noise?", "compare_evaluations"
    )
    compare_parser.add_argument("before", metavar="A", help="the folder of a run, or FOLDER:VARIANT")
    compare_parser.add_argument("after", metavar="B", help="the folder of another run, or FOLDER:VARIANT")
    compare_parser.add_argument("--alpha", metavar="P", type=float, default=0.05, help="share of wrong alarms (0.05)")
    compare_parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_parser = add_subcommand("add", "create a case from a session: prompt, files, checks and recording", "add_case")
    add_parser.add_argument("session", metavar="SESSION", help="an id, the end of one, or `last`")
    add_parser.add_argument(
        "--to", metavar="FILE", default="evals/suite.toml", help="the suite (default: evals/suite.toml)"
    )
    add_parser.add_argument("--name", metavar="NAME", help="the name of the case (default: from the title)")
    validate_parser = add_subcommand("validate", "test the checks with the reference solutions", "validate_evaluation")
    validate_parser.add_argument("suite", metavar="SUITE", help="a suite")
    validate_parser.add_argument("--no-sandbox", action="store_true", help="this machine is a sandbox (a container)")
    add_subcommand("list", "list the built-in suites", "list_suites")


def _add_eval_run(parser: ArgumentParser) -> None:
    parser.description, parser.epilog = _EVAL_DESCRIPTION, _EVAL_EXIT_CODES
    parser.add_argument("suite", metavar="SUITE", help="a suite, see above")
    add_cwd_option(parser)
    parser.add_argument(
        "-m", "--model", metavar="PROVIDER/MODEL", action="append", default=[], help="evaluate this model; repeatable"
    )
    for flag, metavar, help in (
        ("--agent", "NAME", "evaluate this agent; may be repeated"),
        ("--case", "NAME", "only cases of this name (wildcards); may be repeated"),
        ("--tag", "TAG", "only cases with this tag; may be repeated"),
    ):
        parser.add_argument(flag, metavar=metavar, action="append", default=[], help=help)
    parser.add_argument("-r", "--repeat", metavar="N", type=parse_positive_int, help="attempts for each case")
    parser.add_argument("-j", "--concurrency", metavar="N", type=parse_positive_int, help="attempts at the same time")
    parser.add_argument("--max-cost", metavar="DOLLARS", type=parse_cost, help="start no attempt beyond this cost")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="where to write report, results and traces")
    parser.add_argument("--baseline", metavar="FOLDER", help="compare with this run; a regression fails")
    parser.add_argument(
        "--min-pass", metavar="PERCENT", type=float, default=100.0, help="the share that must pass (default: 100)"
    )
    parser.add_argument(
        "--cassettes",
        choices=("off", "record", "replay"),
        default="off",
        help="record all requests next to the suite, or answer them from there without a network",
    )
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object")
    parser.add_argument("--no-sandbox", action="store_true", help="this machine is a sandbox (a container)")
    parser.add_argument("--workers", action="store_true", help="run the attempts on background workers")
    add_database_option(parser)
    bench = parser.add_argument_group("benchmarks")
    bench.add_argument("--repositories", metavar="FOLDER", type=parse_folder, help="clones for SWE-bench instances")
    bench.add_argument("--test-command", metavar="COMMAND", default="", help="tests; {tests}: their names")
    bench.add_argument("--predictions", metavar="FILE", help="write predictions in the format of SWE-bench")
    bench.add_argument("--limit", metavar="N", type=parse_positive_int, help="only the first N cases")
