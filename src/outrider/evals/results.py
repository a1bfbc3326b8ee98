"""Results of evaluations: attempts and runs, pass rates with confidence intervals, and the comparison of two runs."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Literal

import msgspec

from outrider.errors import ConfigurationError
from outrider.evals.cases import CheckResult, EvalVariant
from outrider.presentation.formats import format_cost, format_count, format_duration, format_utc_time

RESULTS_FILE = "results.json"
Z_95 = 1.959963984540054
PERMUTATIONS = 4_000
ENOUGH_EXTREMES = 40
TOTAL_SHARE = 0.8
AttemptStatus = Literal["passed", "failed", "error", "skipped"]
Verdict = Literal["regression", "improvement", "no significant change"]


class EvalAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a case. It `passed` or `failed`; `error` means that the model could not be reached, `skipped`
    that the budget was spent. Neither of the last two counts for pass rates. `cost` includes judges and is None if a
    price is unknown. `trace` is the path of its trace, relative to the folder of the run."""

    case: str
    variant: str
    number: int
    status: AttemptStatus
    checks: tuple[CheckResult, ...] = ()
    answer: str = ""
    reason: str = ""
    error: str = ""
    cost: Decimal | None = None
    seconds: float = 0.0
    steps: int = 0
    calls: int = 0
    tokens: int = 0
    session_id: str = ""
    trace: str = ""
    patch: str = ""

    @property
    def is_counted(self) -> bool:
        """Whether it counts for the pass rate."""
        return self.status in ("passed", "failed")

    @property
    def problem(self) -> str:
        """Why it did not pass, "" if it did."""
        failed = [f"{check.name}: {check.detail}" for check in self.checks if not check.passed]
        return self.error or "; ".join(failed)


class PassRate(msgspec.Struct, frozen=True):
    """A share of passed attempts with its 95% confidence interval (Wilson)."""

    passed: int
    total: int

    @property
    def rate(self) -> float:
        """The share, 0 without attempts."""
        return self.passed / self.total if self.total else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The lower and the upper bound."""
        return wilson_interval(self.passed, self.total)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.passed}/{self.total} {self.rate:.0%} ({low:.0%}–{high:.0%})" if self.total else "none"


def wilson_interval(passed: int, total: int, z: float = Z_95) -> tuple[float, float]:
    """Returns the confidence interval of a share after Wilson, which is usable for few attempts and near 0 and 1."""
    if total == 0:
        return 0.0, 1.0
    share, square = passed / total, z * z
    middle = (share + square / (2 * total)) / (1 + square / total)
    half = z / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    return (0.0 if passed == 0 else max(0.0, middle - half), 1.0 if passed == total else min(1.0, middle + half))


class EvalRun(msgspec.Struct, frozen=True, kw_only=True):
    """All attempts of one run of a suite. `started` is in Unix milliseconds."""

    suite: str
    variants: tuple[EvalVariant, ...]
    cases: tuple[str, ...]
    attempts: tuple[EvalAttempt, ...]
    repeat: int = 1
    started: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    def select(self, *, case: str | None = None, variant: str | None = None) -> list[EvalAttempt]:
        """Returns the attempts at a case, of a variant, or both."""
        return [
            attempt
            for attempt in self.attempts
            if (case is None or attempt.case == case) and (variant is None or attempt.variant == variant)
        ]

    def pass_rate(self, *, case: str | None = None, variant: str | None = None) -> PassRate:
        """Returns the share of passed attempts, of all that count."""
        counted = [attempt for attempt in self.select(case=case, variant=variant) if attempt.is_counted]
        return PassRate(sum(attempt.status == "passed" for attempt in counted), len(counted))

    @property
    def cost(self) -> Decimal | None:
        """The cost of all attempts; None if a price is unknown."""
        return total_cost(self.attempts)

    @property
    def passed(self) -> bool:
        """Whether every attempt passed."""
        return all(attempt.status == "passed" for attempt in self.attempts)

    def save(self, folder: str | Path) -> Path:
        """Writes the run to `results.json` in a folder and returns the path."""
        path = Path(folder) / RESULTS_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".json.part")
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1))
        partial.replace(path)
        return path

    @classmethod
    def load(cls, path: str | Path) -> "EvalRun":
        """Reads a run from its folder or its file. Raises ConfigurationError if it cannot be read."""
        file = Path(path)
        file = file / RESULTS_FILE if file.is_dir() else file
        try:
            return msgspec.json.decode(file.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigurationError(f"{path} is not a run of an evaluation: {error}") from error


def total_cost(attempts: Iterable[EvalAttempt]) -> Decimal | None:
    """Returns the sum of known costs; None if a price is unknown."""
    costs = [attempt.cost for attempt in attempts if attempt.status != "skipped"]
    return None if any(cost is None for cost in costs) else sum((cost for cost in costs if cost), Decimal(0))


# Statistics. A stratum is a case with (passed, total) of both runs: under the hypothesis that nothing changed, each way
# to divide the passed attempts of a case between the runs is equally likely. The test is exact for any number of cases
# and repetitions; for one case it is Fisher's, for one attempt each it is McNemar's exact test. Exact tests of few
# attempts alarm far less often than their level says and so miss real changes; the mid-p-value corrects that.

Counts = tuple[int, int]
Stratum = tuple[Counts, Counts]


def _passed_in_second(stratum: Stratum) -> list[tuple[int, float]]:
    """Returns how likely each number of passed attempts of the second run is, given the total of the case."""
    (passed_a, total_a), (passed_b, total_b) = stratum
    passed, total = passed_a + passed_b, total_a + total_b
    lowest, highest = max(0, passed - total_a), min(passed, total_b)
    ways = math.comb(total, passed)
    return [
        (number, math.comb(total_b, number) * math.comb(total_a, passed - number) / ways)
        for number in range(lowest, highest + 1)
    ]


def exact_test(strata: Iterable[Stratum], *, mid_p: bool = False) -> float:
    """Returns the two-sided p-value of the hypothesis that the pass rate did not change in any case. With `mid_p`,
    results that are as likely as the observed one count half."""
    distribution: dict[int, float] = {0: 1.0}
    observed = 0
    for stratum in strata:
        observed += stratum[1][0]
        convolved: dict[int, float] = {}
        for value, likely in distribution.items():
            for number, share in _passed_in_second(stratum):
                convolved[value + number] = convolved.get(value + number, 0.0) + likely * share
        distribution = convolved
    limit = distribution[observed]
    equal = sum(likely for likely in distribution.values() if math.isclose(likely, limit, rel_tol=1e-9))
    below = sum(likely for likely in distribution.values() if likely < limit * (1 - 1e-9))
    return min(1.0, below + (equal / 2 if mid_p else equal))


def permutation_test(strata: Sequence[tuple[Sequence[float], Sequence[float]]], *, seed: int = 0) -> float:
    """Returns the two-sided p-value of the hypothesis that a figure did not change, by exchanging the attempts of each
    case between the runs at random. It ends early if the difference is clearly not unusual (Besag and Clifford)."""
    usable = [(list(a), list(b)) for a, b in strata if a and b]

    def difference(pairs: Iterable[tuple[Sequence[float], Sequence[float]]]) -> float:
        return sum(sum(b) / len(b) - sum(a) / len(a) for a, b in pairs)

    observed = abs(difference(usable))
    if not usable or observed == 0:
        return 1.0
    random, extreme = Random(seed), 0
    for number in range(1, PERMUTATIONS + 1):
        total = 0.0
        for a, b in usable:
            pooled = a + b
            random.shuffle(pooled)
            total += sum(pooled[len(a) :]) / len(b) - sum(pooled[: len(a)]) / len(a)
        extreme += abs(total) >= observed * (1 - 1e-9)
        if extreme == ENOUGH_EXTREMES:
            return extreme / number
    return (extreme + 1) / (PERMUTATIONS + 1)


def adjust_p_values(values: Sequence[float]) -> list[float]:
    """Corrects p-values for the number of tests (Holm), so that a wrong alarm is unlikely over all of them together."""
    order = sorted(range(len(values)), key=lambda position: values[position])
    adjusted, highest = [1.0] * len(values), 0.0
    for rank, position in enumerate(order):
        highest = max(highest, min(1.0, values[position] * (len(values) - rank)))
        adjusted[position] = highest
    return adjusted


class RateChange(msgspec.Struct, frozen=True, kw_only=True):
    """The pass rate before and after. `p_value` is corrected for the number of tests; `significant` says whether the
    change is more than noise."""

    name: str
    before: PassRate
    after: PassRate
    p_value: float
    significant: bool

    @property
    def difference(self) -> float:
        """The change of the share, from -1 to 1."""
        return self.after.rate - self.before.rate


class FigureChange(msgspec.Struct, frozen=True, kw_only=True):
    """The mean cost, time or number of steps of an attempt before and after. None: not known in both runs."""

    name: str
    before: float | None
    after: float | None
    p_value: float
    significant: bool

    @property
    def ratio(self) -> float | None:
        """The mean after, divided by the mean before."""
        return self.after / self.before if self.before and self.after is not None else None


class VariantComparison(msgspec.Struct, frozen=True, kw_only=True):
    """How one variant differs between two runs: in total, by case, and in cost, time and steps."""

    before: str
    after: str
    total: RateChange
    cases: tuple[RateChange, ...]
    figures: tuple[FigureChange, ...]

    @property
    def verdict(self) -> Verdict:
        """Whether the pass rate changed by more than noise, in total or in a case."""
        changes = [change for change in (self.total, *self.cases) if change.significant]
        if not changes:
            return "no significant change"
        return "regression" if any(change.difference < 0 for change in changes) else "improvement"


class EvalComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `compare_runs`. `alpha` is the probability of a wrong alarm over all tests together. `only_before`
    and `only_after` are cases that one run does not have; `not_counted` attempts had errors or were skipped."""

    variants: tuple[VariantComparison, ...]
    alpha: float = 0.05
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()
    not_counted: int = 0

    @property
    def verdict(self) -> Verdict:
        """`regression` if any variant got worse by more than noise, else `improvement` if one got better."""
        verdicts = {comparison.verdict for comparison in self.variants}
        if "regression" in verdicts:
            return "regression"
        return "improvement" if "improvement" in verdicts else "no significant change"


def compare_runs(
    before: EvalRun,
    after: EvalRun,
    *,
    alpha: float = 0.05,
    variants: tuple[str, str] | None = None,
) -> EvalComparison:
    """Compares two runs of a suite, case by case, and reports what changed by more than noise.

    Variants of the same name are compared, or those two that `variants` names, the first of `before` and the second of
    `after`. If both runs have only one variant, it is compared whatever its name is. Raises ConfigurationError if
    nothing can be compared."""
    for run in (before, after):
        if not isinstance(run, EvalRun):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"compare_runs() takes two runs, as run_suite() returns them, got {type(run).__name__}"
            )
    pairs = _match_variants(before, after, variants)
    shared = [case for case in before.cases if case in after.cases]
    if not shared:
        raise ConfigurationError("the two runs have no case in common")
    comparisons = tuple(_compare_variant(before, after, pair, shared, alpha / len(pairs)) for pair in pairs)
    if not any(comparison.cases for comparison in comparisons):
        raise ConfigurationError(
            "nothing can be compared: in every case, all attempts of one run had errors or were skipped"
        )
    compared = [*(before.select(variant=a) for a, _ in pairs), *(after.select(variant=b) for _, b in pairs)]
    return EvalComparison(
        variants=comparisons,
        alpha=alpha,
        only_before=tuple(case for case in before.cases if case not in after.cases),
        only_after=tuple(case for case in after.cases if case not in before.cases),
        not_counted=sum(
            not attempt.is_counted for attempts in compared for attempt in attempts if attempt.case in shared
        ),
    )


def _match_variants(before: EvalRun, after: EvalRun, names: tuple[str, str] | None) -> list[tuple[str, str]]:
    first, second = ([variant.name for variant in run.variants] for run in (before, after))
    if names is not None:
        for name, variants in zip(names, (first, second), strict=True):
            if name not in variants:
                raise ConfigurationError(f"the run has no variant {name!r}; it has {'; '.join(map(repr, variants))}")
        return [names]
    if len(first) == len(second) == 1:
        return [(first[0], second[0])]
    pairs = [(name, name) for name in first if name in second]
    if not pairs:
        raise ConfigurationError(
            f"the runs have no variant in common: {', '.join(first)}; {', '.join(second)}. Name two to compare"
        )
    return pairs


def _compare_variant(
    before: EvalRun, after: EvalRun, pair: tuple[str, str], cases: Sequence[str], alpha: float
) -> VariantComparison:
    rates = {
        case: (before.pass_rate(case=case, variant=pair[0]), after.pass_rate(case=case, variant=pair[1]))
        for case in cases
    }
    counted = {case: pair_rates for case, pair_rates in rates.items() if pair_rates[0].total and pair_rates[1].total}
    strata = {case: ((a.passed, a.total), (b.passed, b.total)) for case, (a, b) in counted.items()}
    # A part of the probability of a wrong alarm is for the total, the rest is divided between the cases.
    total_p = min(1.0, exact_test(strata.values(), mid_p=True) / TOTAL_SHARE)
    case_p = [
        min(1.0, p / (1 - TOTAL_SHARE)) for p in adjust_p_values([exact_test([stratum]) for stratum in strata.values()])
    ]
    changes = tuple(
        RateChange(name=case, before=a, after=b, p_value=p, significant=p < alpha)
        for (case, (a, b)), p in zip(counted.items(), case_p, strict=True)
    )
    total = RateChange(
        name="total",
        before=_sum_rates(a for a, _ in counted.values()),
        after=_sum_rates(b for _, b in counted.values()),
        p_value=total_p,
        significant=total_p < alpha,
    )
    return VariantComparison(
        before=pair[0],
        after=pair[1],
        total=total,
        cases=changes,
        figures=_compare_figures(before, after, pair, list(counted), alpha),
    )


def _sum_rates(rates: Iterable[PassRate]) -> PassRate:
    passed = total = 0
    for rate in rates:
        passed, total = passed + rate.passed, total + rate.total
    return PassRate(passed, total)


_FIGURES: Mapping[str, Callable[[EvalAttempt], float | None]] = {
    "cost": lambda attempt: None if attempt.cost is None else float(attempt.cost),
    "seconds": lambda attempt: attempt.seconds,
    "steps": lambda attempt: float(attempt.steps),
    "tokens": lambda attempt: float(attempt.tokens),
}


def _compare_figures(
    before: EvalRun, after: EvalRun, pair: tuple[str, str], cases: Sequence[str], alpha: float
) -> tuple[FigureChange, ...]:
    means: list[tuple[float | None, float | None]] = []
    p_values: list[float] = []
    for read in _FIGURES.values():
        strata = [
            (_read_figure(before, case, pair[0], read), _read_figure(after, case, pair[1], read)) for case in cases
        ]
        means.append((_mean(v for a, _ in strata for v in a), _mean(v for _, b in strata for v in b)))
        p_values.append(permutation_test(strata))
    return tuple(
        FigureChange(name=name, before=mean[0], after=mean[1], p_value=p, significant=p < alpha)
        for name, mean, p in zip(_FIGURES, means, adjust_p_values(p_values), strict=True)
    )


def _read_figure(run: EvalRun, case: str, variant: str, read: Callable[[EvalAttempt], float | None]) -> Sequence[float]:
    values = [read(attempt) for attempt in run.select(case=case, variant=variant) if attempt.is_counted]
    return [value for value in values if value is not None]


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None


# Reports.

_STYLE = """
body { max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 2rem; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.passed { color: var(--good); } .failed { color: var(--bad); } .error, .skipped { color: var(--stop); }
.bar { width: 10rem; height: .7rem; background: var(--line); border-radius: .2rem; }
.bar .rate { fill: var(--good); } .bar .interval { fill: var(--text); opacity: .6; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--faint); padding: .6rem; border-radius: .3rem; }
summary { cursor: pointer; } small { opacity: .75; }
"""


def to_html(run: EvalRun, comparison: EvalComparison | None = None) -> str:
    """Returns the report of a run as one HTML page, which links to the trace of each attempt."""
    from outrider.presentation.html_page import escape_text as escape
    from outrider.presentation.html_page import render_page

    started, cases = format_utc_time(run.started), format_count(len(run.cases), "case")
    parts = [
        f"<h1>{escape(run.suite)}</h1><p>{started}, {cases}, {format_count(len(run.attempts), 'attempt')}, "
        f"{format_duration(run.seconds)}, cost {format_cost(run.cost)}</p>",
        *(f"<p class=error>{escape(note)}</p>" for note in run.notes),
        _summary_html(run),
    ]
    if comparison is not None:
        parts.append(f"<h2>Comparison</h2><pre>{escape(comparison_text(comparison))}</pre>")
    parts.append(_cases_html(run))
    parts.append(
        "<h2>Attempts</h2><table><tr><th>case<th>variant<th>status<th class=number>steps"
        "<th class=number>time<th class=number>cost<th>trace</tr>"
    )
    parts += [_attempt_html(attempt) for attempt in run.attempts]
    return render_page(run.suite, _STYLE, "\n".join([*parts, "</table>"]))


def _summary_html(run: EvalRun) -> str:
    from outrider.presentation.html_page import escape_text as escape

    rows = ["<table><tr><th>variant<th>pass rate, 95% interval<th><th class=number>cost<th class=number>time"
            "<th class=number>steps<th>not counted</tr>"]  # fmt: skip
    for variant in run.variants:
        rate, attempts = run.pass_rate(variant=variant.name), run.select(variant=variant.name)
        low, high = rate.interval
        counted = [attempt for attempt in attempts if attempt.is_counted]
        means = _mean(attempt.seconds for attempt in counted), _mean(float(attempt.steps) for attempt in counted)
        rows.append(
            f"<tr><td>{escape(variant.name)}<td><svg class=bar role=presentation>"
            f"<rect class=rate width='{rate.rate:.1%}' height='100%'/>"
            f"<rect class=interval x='{low:.1%}' y='30%' width='{high - low:.1%}' height='40%'/></svg><td>{rate}"
            f"<td class=number>{format_cost(total_cost(attempts))}<td class=number>{format_duration(means[0] or 0)}"
            f"<td class=number>{means[1] or 0:.1f}<td>{len(attempts) - len(counted) or ''}</tr>"
        )
    return "\n".join([*rows, "</table>"])


def _cases_html(run: EvalRun) -> str:
    from outrider.presentation.html_page import escape_text as escape

    heads = "".join(f"<th>{escape(variant.name)}" for variant in run.variants)
    rows = [f"<h2>Cases</h2><table><tr><th>case{heads}</tr>"]
    for case in run.cases:
        cells: list[str] = []
        for variant in run.variants:
            rate = run.pass_rate(case=case, variant=variant.name)
            kind = "skipped" if not rate.total else "passed" if rate.passed == rate.total else "failed"
            cells.append(f"<td class={kind}>{rate}")
        rows.append(f"<tr><td>{escape(case)}{''.join(cells)}</tr>")
    return "\n".join([*rows, "</table>"])


def _attempt_html(attempt: EvalAttempt) -> str:
    from outrider.presentation.html_page import escape_text as escape

    checks = "".join(
        f"<li class={'passed' if check.passed else 'failed'}>{escape(check.name)}"
        f"{f'<pre>{escape(check.detail)}</pre>' if check.detail else ''}</li>"
        for check in attempt.checks
    )
    details = f"<ul>{checks}</ul>" if checks else ""
    for title, text in (("Error", attempt.error), ("Answer", attempt.answer), ("Changes", attempt.patch)):
        details += f"<small>{title}</small><pre>{escape(text)}</pre>" if text else ""
    link = f"<a href='{escape(attempt.trace)}'>trace</a>" if attempt.trace else ""
    return (
        f"<tr><td>{escape(attempt.case)} <small>{attempt.number}</small><td>{escape(attempt.variant)}"
        f"<td><details><summary class={attempt.status}>{attempt.status}</summary>{details}</details>"
        f"<td class=number>{attempt.steps}<td class=number>{format_duration(attempt.seconds)}"
        f"<td class=number>{format_cost(attempt.cost)}<td>{link}</tr>"
    )


def to_junit(run: EvalRun) -> str:
    """Returns the run as JUnit XML: a test suite for each variant, a test case for each attempt."""
    from xml.sax.saxutils import escape, quoteattr

    parts = ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuites name={quoteattr(run.suite)}>"]
    for variant in run.variants:
        attempts = run.select(variant=variant.name)
        count = {kind: sum(attempt.status == kind for attempt in attempts) for kind in ("failed", "error", "skipped")}
        seconds = sum(attempt.seconds for attempt in attempts)
        parts.append(
            f'<testsuite name={quoteattr(variant.name)} tests="{len(attempts)}" failures="{count["failed"]}" '
            f'errors="{count["error"]}" skipped="{count["skipped"]}" time="{seconds:.3f}">'
        )
        for attempt in attempts:
            name = attempt.case if run.repeat == 1 else f"{attempt.case} [{attempt.number}]"
            head = f'<testcase classname={quoteattr(run.suite)} name={quoteattr(name)} time="{attempt.seconds:.3f}">'
            tag = {"failed": "failure", "error": "error", "skipped": "skipped"}.get(attempt.status)
            problem = _xml_text(attempt.problem)
            inner = f"<{tag} message={quoteattr(problem[:200])}>{escape(problem)}</{tag}>" if tag else ""
            parts.append(f"{head}{inner}</testcase>")
        parts.append("</testsuite>")
    return "\n".join([*parts, "</testsuites>\n"])


def _xml_text(text: str) -> str:
    """Returns the text without the control characters that XML does not allow."""
    return "".join(char if char >= " " or char in "\n\t" else "�" for char in text)


def comparison_text(comparison: EvalComparison) -> str:
    """Returns a comparison as text: the verdict, and for each variant what changed and whether it is noise."""
    lines = [comparison.verdict]
    for variant in comparison.variants:
        name = variant.after if variant.before == variant.after else f"{variant.before} -> {variant.after}"
        lines += ["", f"{name}: {variant.verdict}", f"  {_rate_line(variant.total, 'pass rate')}"]
        changed_cases = [case for case in variant.cases if case.before.rate != case.after.rate]
        lines += [f"  {_rate_line(case, case.name)}" for case in sorted(changed_cases, key=lambda case: case.p_value)]
        lines += [f"  {_figure_line(figure)}" for figure in variant.figures if figure.before is not None]
    unmatched = [("only in the first run", comparison.only_before), ("only in the second run", comparison.only_after)]
    lines += [f"\n{title}: {', '.join(names)}" for title, names in unmatched if names]
    if comparison.not_counted:
        lines.append(f"\n{comparison.not_counted} attempts had errors or were skipped, and do not count")
    return "\n".join(lines)


def _rate_line(change: RateChange, title: str) -> str:
    verdict = "significant" if change.significant else "may be noise"
    points = f"{100 * change.difference:+.0f} points"
    return f"{title}: {change.before} -> {change.after}, {points}, p = {change.p_value:.3g}, {verdict}"


def _figure_line(figure: FigureChange) -> str:
    ratio = f", {figure.ratio - 1:+.0%}" if figure.ratio is not None else ""
    verdict = "significant" if figure.significant else "may be noise"
    return f"{figure.name}: {figure.before:.4g} -> {figure.after or 0:.4g}{ratio}, p = {figure.p_value:.3g}, {verdict}"
