"""`outrider eval`: runs suites of cases, compares runs, creates cases from sessions and tests the checks of cases."""

import asyncio
from argparse import Namespace
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from outrider.cli import exit_codes
from outrider.cli.output import Console, format_table
from outrider.cli.setup import user_folders
from outrider.config.settings import CommandFlags, Settings, read_settings
from outrider.engine.archive import open_archive
from outrider.errors import ConfigurationError
from outrider.evals.adapters import (
    add_session_case,
    is_terminal_bench,
    load_swe_bench,
    load_terminal_bench,
    write_predictions,
)
from outrider.evals.cases import (
    BUILT_IN_FOLDER,
    SUITE_FILE,
    EvalMatrix,
    EvalSuite,
    JudgeCheck,
    built_in_suites,
    load_suite,
)
from outrider.evals.results import (
    EvalAttempt,
    EvalComparison,
    EvalRun,
    compare_runs,
    comparison_text,
    to_html,
    to_junit,
    total_cost,
)
from outrider.evals.runner import OnAttempt, RunSuiteKeywords, async_run_suite, validate_suite
from outrider.presentation.formats import format_cost, format_duration
from outrider.types.agents import Agent, Provider

REPORT_FILE = "report.html"
JUNIT_FILE = "junit.xml"
RUNS_FOLDER = "evals"


def run_evaluation(arguments: Namespace) -> int:
    """Runs a suite, writes its report and prints a table."""
    suite = _read_suite(arguments)
    baseline = EvalRun.load(arguments.baseline) if arguments.baseline else None
    suite, agents, providers = _choose_subjects(suite, arguments)
    if arguments.predictions:
        _check_predictions(suite, arguments.predictions)
    folder = _output_folder(arguments, suite)
    console = Console()
    try:
        run = asyncio.run(_run_suite(suite, agents, providers, arguments, folder, console))
    except KeyboardInterrupt:
        _write_reports(EvalRun.load(folder), None, folder)
        console.print_stderr(f"interrupted; the attempts so far: {folder / REPORT_FILE}")
        raise
    comparison, problem = _compare_with(baseline, run)
    _write_reports(run, comparison, folder)
    if arguments.predictions:
        write_predictions(run, arguments.predictions)
    if arguments.json:
        console.print(msgspec.json.encode(run).decode())
    else:
        _print_run(run, comparison, console)
    if problem:
        console.print_stderr(f"not compared with the baseline: {problem}", "yellow")
    console.print_stderr(f"report: {folder / REPORT_FILE}")
    share = 100.0 * sum(attempt.status == "passed" for attempt in run.attempts) / max(1, len(run.attempts))
    is_worse = comparison is not None and comparison.verdict == "regression"
    return exit_codes.FAILURE if is_worse or problem or share < arguments.min_pass else exit_codes.SUCCESS


def _compare_with(baseline: EvalRun | None, run: EvalRun) -> tuple[EvalComparison | None, str]:
    """Returns the comparison, or why there is none. It does not raise, because a run that has cost something must be
    reported."""
    try:
        return (compare_runs(baseline, run) if baseline else None), ""
    except ConfigurationError as error:
        return None, error.message


def _check_predictions(suite: EvalSuite, file: str) -> None:
    """Raises ConfigurationError if the predictions cannot be written, before the run costs anything."""
    if len(variants := suite.matrix.variants()) > 1:
        names = "; ".join(variant.name for variant in variants)
        raise ConfigurationError(f"--predictions needs a run with one variant; this one has {names}")
    if not Path(file).absolute().parent.is_dir():
        raise ConfigurationError(f"the predictions cannot be written to {file}: there is no such folder")


def _write_reports(run: EvalRun, comparison: EvalComparison | None, folder: Path) -> None:
    (folder / REPORT_FILE).write_text(to_html(run, comparison), encoding="utf-8")
    (folder / JUNIT_FILE).write_text(to_junit(run), encoding="utf-8")


def _read_suite(arguments: Namespace) -> EvalSuite:
    path = Path(arguments.suite)
    if path.suffix in (".jsonl", ".json"):
        if arguments.repositories is None:
            raise ConfigurationError("instances of SWE-bench need --repositories FOLDER with a clone of each")
        suite = load_swe_bench(path, arguments.repositories, test_command=arguments.test_command)
    elif not (path / SUITE_FILE).exists() and is_terminal_bench(path):
        suite = load_terminal_bench(path)
    else:
        suite = load_suite(arguments.suite)
    if arguments.case or arguments.tag:
        suite = suite.select(arguments.case, arguments.tag)
    if not suite.cases:
        raise ConfigurationError(f"suite {suite.name!r} has no cases; a case begins with [[cases]]")
    return msgspec.structs.replace(suite, cases=suite.cases[: arguments.limit])


def _choose_subjects(suite: EvalSuite, arguments: Namespace) -> tuple[EvalSuite, Sequence[Agent], Sequence[Provider]]:
    """Returns the suite with the matrix of the command line, the configured agents, and the providers of all models."""
    base = _read_settings(arguments, None)
    models = tuple(arguments.model) or suite.matrix.models
    source = "--model" if arguments.model else "matrix.models"
    model_settings = [_read_settings(arguments, model, source) for model in models] or [base]
    judges = [
        suite.judge,
        *(check.model for case in suite.cases for check in case.checks if isinstance(check, JudgeCheck)),
    ]
    all_settings = [
        *model_settings,
        *(_read_settings(arguments, judge, "judge") for judge in filter(None, dict.fromkeys(judges))),
    ]
    missing = next((settings.missing for settings in all_settings if settings.missing), "")
    if missing and arguments.cassettes != "replay":
        raise ConfigurationError(missing)
    providers = {provider.name: provider for settings in (base, *all_settings) for provider in settings.providers}
    model_names = [settings.model or model for model, settings in zip(models, model_settings, strict=False)]
    matrix_fields = {"models": tuple(model_names), "agents": tuple(arguments.agent) or suite.matrix.agents}
    matrix: EvalMatrix = msgspec.structs.replace(suite.matrix, **matrix_fields)
    return msgspec.structs.replace(suite, matrix=matrix), base.agents, list(providers.values())


def _read_settings(arguments: Namespace, model: str | None, source: str = "") -> Settings:
    try:
        return read_settings(cwd=arguments.cwd or Path.cwd(), flags=CommandFlags(model=model))
    except ConfigurationError as error:
        text = error.message.removeprefix("--model or OUTRIDER_MODEL: ")
        raise ConfigurationError(f"{source}: {text}" if source and text != error.message else error.message) from error


def _output_folder(arguments: Namespace, suite: EvalSuite) -> Path:
    """Returns the folder of the run: `--output`, or a new one in the data folder."""
    if arguments.output:
        folder = Path(arguments.output).expanduser().absolute()
    else:
        started = datetime.now().strftime("%Y%m%d-%H%M%S")
        folder = user_folders().data / RUNS_FOLDER / f"{suite.name}-{started}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"the results cannot be written to {folder}: {error.strerror}") from error
    return folder


async def _run_suite(
    suite: EvalSuite,
    agents: Sequence[Agent],
    providers: Sequence[Provider],
    arguments: Namespace,
    folder: Path,
    console: Console,
) -> EvalRun:
    options: RunSuiteKeywords = {
        "folder": folder,
        "repeat": arguments.repeat,
        "concurrency": arguments.concurrency,
        "max_cost": arguments.max_cost,
        "sandbox": "none" if arguments.no_sandbox else "auto",
        "cassettes": arguments.cassettes,
        "on_attempt": _show_progress(console),
    }
    if not arguments.workers:
        return await async_run_suite(suite, agents, providers, **options)
    from outrider.cli.commands.jobs_common import require_background  # lazy: most runs are local
    from outrider.cli.commands.worker import ensure_worker_running

    require_background()
    from outrider.background.factory import standard_jobs

    settings = _read_settings(arguments, None)
    ensure_worker_running(Namespace(**{**vars(arguments), "attach": None, "worker": True}), settings)
    async with standard_jobs(user_folders(), arguments.database) as jobs:
        return await async_run_suite(suite, agents, providers, **{**options, "background": jobs})


def _show_progress(console: Console) -> OnAttempt:
    counts: dict[str, int] = {}

    def show(attempt: EvalAttempt, done: int, total: int) -> None:
        counts[attempt.status] = counts.get(attempt.status, 0) + 1
        if attempt.status != "passed":
            reason = _shorten_reason(" ".join(attempt.problem.split()))
            console.print_stderr(
                f"{attempt.status}: {attempt.case} ({attempt.variant}, {attempt.number}): {reason}", "dim"
            )
        summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        console.show_status(f"{done} of {total} attempts: {summary}")

    return show


def _shorten_reason(text: str) -> str:
    """Returns the start of a problem and its end, where commands print what failed."""
    return text if len(text) <= 300 else f"{text[:100]} … {text[-200:]}"


def _print_run(run: EvalRun, comparison: EvalComparison | None, console: Console) -> None:
    rows = [
        (case, *(str(run.pass_rate(case=case, variant=variant.name)) for variant in run.variants)) for case in run.cases
    ]
    for line in format_table(("case", *(variant.name for variant in run.variants)), rows, console.width):
        console.print(line)
    console.print()
    totals: list[Sequence[str]] = []
    for variant in run.variants:
        attempts = run.select(variant=variant.name)
        counted_attempts = [attempt for attempt in attempts if attempt.is_counted]
        number = max(1, len(counted_attempts))
        totals.append(
            (
                variant.name,
                str(run.pass_rate(variant=variant.name)),
                format_cost(total_cost(attempts)),
                format_duration(sum(attempt.seconds for attempt in counted_attempts) / number),
                f"{sum(attempt.steps for attempt in counted_attempts) / number:.1f}",
                str(len(attempts) - len(counted_attempts) or ""),
            )
        )
    heads = ("variant", "pass rate (95%)", "cost", "mean time", "steps", "not counted")
    for line in format_table(heads, totals, console.width, right=(2, 3, 4), narrow=(0, 1, 2)):
        console.print(line)
    for note in run.notes:
        console.print_stderr(note, "yellow")
    if comparison is not None:
        console.print(f"\nCompared with the baseline: {comparison_text(comparison)}")


def compare_evaluations(arguments: Namespace) -> int:
    """Prints what changed between two runs; the exit code says whether it is a regression."""
    (before, first_variant), (after, second_variant) = _load_run(arguments.before), _load_run(arguments.after)
    variants = None
    if first_variant or second_variant:
        variants = first_variant or before.variants[0].name, second_variant or after.variants[0].name
    comparison = compare_runs(before, after, alpha=arguments.alpha, variants=variants)
    console = Console()
    console.print(
        msgspec.json.encode({"verdict": comparison.verdict, **msgspec.to_builtins(comparison)}).decode()
        if arguments.json
        else comparison_text(comparison)
    )
    return exit_codes.FAILURE if comparison.verdict == "regression" else exit_codes.SUCCESS


def _load_run(text: str) -> tuple[EvalRun, str]:
    """Returns a run and the variant that FOLDER:VARIANT names."""
    if Path(text).exists() or ":" not in text:
        return EvalRun.load(text), ""
    folder, _, variant = text.partition(":")
    return EvalRun.load(folder), variant


def add_case(arguments: Namespace) -> int:
    """Creates a case from a session and prints what is left to do."""

    async def create() -> int:
        folders = user_folders()
        async with open_archive(folders.store_file) as archive:
            new_case = await add_session_case(
                archive, arguments.session, _new_suite(Path(arguments.to)), data=folders.data, name=arguments.name
            )
        console = Console()
        console.print(f"added {new_case.name} to {new_case.file} ({new_case.checks} checks)")
        for note in new_case.notes:
            console.print_stderr(note, "yellow")
        console.print_stderr(f"Run it: outrider eval {arguments.to} --case {new_case.name}")
        return exit_codes.SUCCESS

    return asyncio.run(create())


def _new_suite(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def validate_evaluation(arguments: Namespace) -> int:
    """Tests the checks of every case with and without its reference solution."""
    suite = load_suite(arguments.suite)
    results = asyncio.run(validate_suite(suite, sandbox="none" if arguments.no_sandbox else "auto"))
    console = Console()
    for result in results:
        console.print(
            f"{'wrong' if result.problem else 'ok':6}{result.case}{f': {result.problem}' if result.problem else ''}"
        )
    wrong = sum(bool(result.problem) for result in results)
    console.print_stderr(f"{len(results)} cases, {wrong} with problems")
    return exit_codes.FAILURE if wrong else exit_codes.SUCCESS


def list_suites(_: Namespace) -> int:
    """Prints the built-in suites."""
    rows = [(name, str(len(load_suite(BUILT_IN_FOLDER / f"{name}.toml").cases))) for name in built_in_suites()]
    for line in format_table(("suite", "cases"), rows, Console().width, right=(1,)):
        Console().print(line)
    return exit_codes.SUCCESS
