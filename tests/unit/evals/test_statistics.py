"""The comparison of runs: exact tests, corrections, wrong alarms and power."""

from math import comb
from random import Random

import msgspec
import pytest

from outrider.errors import ConfigurationError
from outrider.evals import EvalAttempt, EvalRun, EvalVariant, PassRate, compare_runs
from outrider.evals.results import adjust_p_values, comparison_text, exact_test, permutation_test, wilson_interval
from tests.fixtures.soak import SOAK

CASES_40 = tuple(f"case-{number}" for number in range(40))
CASES = CASES_40[:12]
COMPARISONS = 300 if SOAK else 100


def simulated_run(random: Random, rates: dict[str, float], repeat: int = 5) -> EvalRun:
    attempts = [
        EvalAttempt(
            case=case,
            variant="default",
            number=number,
            status="passed" if random.random() < rate else "failed",
            seconds=random.lognormvariate(0, 0.3),
            steps=random.randint(2, 6),
        )
        for case, rate in rates.items()
        for number in range(1, repeat + 1)
    ]
    return EvalRun(suite="s", variants=(EvalVariant(),), cases=tuple(rates), attempts=tuple(attempts), repeat=repeat)


def plain(run: EvalRun) -> EvalRun:
    """The run without figures, whose comparison takes the most time."""
    attempts = tuple(msgspec.structs.replace(one, seconds=0.0, steps=0) for one in run.attempts)
    return msgspec.structs.replace(run, attempts=attempts)


def rates_of(random: Random) -> dict[str, float]:
    """Cases of all kinds: always, often, sometimes and never solved."""
    return {case: random.choice((0.0, 0.3, 0.6, 0.8, 0.95, 1.0)) for case in CASES}


@pytest.mark.parametrize(
    ("passed", "total", "low", "high"), [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0)]
)
def test_the_wilson_interval_has_the_values_of_the_literature(passed: int, total: int, low: float, high: float):
    assert wilson_interval(passed, total) == pytest.approx((low, high), abs=1e-4)


def test_the_interval_contains_the_true_rate_in_95_of_100_runs():
    random, inside = Random(1), 0
    for _ in range(2000):
        rate = random.uniform(0.05, 0.95)
        low, high = wilson_interval(sum(random.random() < rate for _ in range(20)), 20)
        inside += low <= rate <= high
    assert 0.93 < inside / 2000 < 0.98


def test_one_case_is_compared_with_fishers_test():
    # Fisher's tea: 3 of 4 against 1 of 4.
    assert exact_test([((3, 4), (1, 4))]) == pytest.approx(2 * 17 / 70)
    assert exact_test([((10, 10), (0, 10))]) == pytest.approx(2 / comb(20, 10))


def test_single_attempts_are_compared_with_mcnemars_test():
    worse, better, same = ((1, 1), (0, 1)), ((0, 1), (1, 1)), ((1, 1), (1, 1))
    assert exact_test([worse] * 8 + [better] * 2 + [same] * 50) == pytest.approx(2 * (1 + 10 + 45) / 2**10)


def test_the_mid_p_value_counts_equally_likely_results_half():
    assert exact_test([((3, 4), (1, 4))], mid_p=True) == pytest.approx((1 + 1 + 16) / 70)
    worse, better = ((1, 1), (0, 1)), ((0, 1), (1, 1))
    assert exact_test([worse] * 8 + [better] * 2, mid_p=True) == pytest.approx(2 * (1 + 10 + 45 / 2) / 2**10)


def test_a_permutation_test_finds_a_shift_and_no_shift():
    random = Random(3)
    base = [[random.gauss(10, 1) for _ in range(5)] for _ in range(8)]
    assert permutation_test([(a, [value + 2 for value in a]) for a in base]) < 0.001
    assert permutation_test([(a, list(a)) for a in base]) == 1.0


def test_corrected_p_values_are_those_of_holm():
    assert adjust_p_values([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.slow
@pytest.mark.soak
def test_a_change_without_effect_is_called_significant_in_at_most_5_of_100_comparisons():
    alarms, figures = 0, 0
    for seed in range(COMPARISONS):
        random = Random(seed)
        rates = rates_of(random)
        found = compare_runs(simulated_run(random, rates), simulated_run(random, rates))
        alarms += found.verdict != "no significant change"
        figures += any(one.significant for one in found.variants[0].figures)
    assert alarms / COMPARISONS <= 0.05
    assert figures / COMPARISONS <= 0.08  # 5 of 100, and what so many comparisons may deviate from it


def test_a_loss_of_a_third_is_found():
    found = 0
    for seed in range(40):
        random = Random(seed)
        before = simulated_run(random, dict.fromkeys(CASES, 0.9))
        after = simulated_run(random, dict.fromkeys(CASES, 0.6))
        found += compare_runs(before, after).verdict == "regression"
    assert found >= 36


@pytest.mark.parametrize(
    ("cases", "repeat", "least"), [(8, 1, 0.3), (1, 8, 0.4), (4, 3, 0.6), (24, 1, 0.9), (10, 4, 0.98)]
)
def test_a_fall_from_90_to_40_percent_is_found_by_few_attempts(cases: int, repeat: int, least: float):
    found = 0
    for seed in range(200):
        random = Random(seed)
        before, after = (simulated_run(random, dict.fromkeys(CASES_40[:cases], rate), repeat) for rate in (0.9, 0.4))
        found += compare_runs(plain(before), plain(after)).verdict == "regression"
    assert found / 200 >= least


@pytest.mark.parametrize(("cases", "repeat", "rate"), [(1, 16, 0.5), (1, 40, 0.5), (40, 1, 0.5), (12, 5, 0.8)])
def test_no_effect_is_rarely_significant_for_any_shape_of_a_suite(cases: int, repeat: int, rate: float):
    alarms = 0
    for seed in range(400):
        random = Random(seed)
        one, other = (simulated_run(random, dict.fromkeys(CASES_40[:cases], rate), repeat) for _ in range(2))
        alarms += compare_runs(plain(one), plain(other)).verdict != "no significant change"
    assert alarms / 400 <= 0.06


def test_one_case_that_breaks_is_named():
    random = Random(5)
    before = simulated_run(random, dict.fromkeys(CASES, 0.95), repeat=10)
    after = simulated_run(random, {**dict.fromkeys(CASES, 0.95), "case-3": 0.0}, repeat=10)
    found = compare_runs(before, after).variants[0]
    assert [case.name for case in found.cases if case.significant] == ["case-3"]
    assert found.verdict == "regression"
    assert "case-3: 9/10" in comparison_text(compare_runs(before, after))


def test_attempts_with_errors_do_not_count():
    random = Random(1)
    before = simulated_run(random, {"a": 1.0, "b": 1.0}, repeat=4)
    counted = before.select(case="b")
    failed = tuple(
        EvalAttempt(case="a", variant="default", number=number, status="error", error="overloaded")
        for number in range(1, 5)
    )
    after = EvalRun(suite="s", variants=(EvalVariant(),), cases=("a", "b"), attempts=(*failed, *counted), repeat=4)
    found = compare_runs(before, after)
    assert (found.verdict, found.not_counted) == ("no significant change", 4)
    assert after.pass_rate(case="a") == PassRate(0, 0)
    with pytest.raises(ConfigurationError, match="nothing can be compared"):
        compare_runs(before, EvalRun(suite="s", variants=(EvalVariant(),), cases=("a",), attempts=failed, repeat=4))


def test_runs_without_a_common_case_or_variant_cannot_be_compared():
    random = Random(1)
    one, other = simulated_run(random, {"a": 1.0}), simulated_run(random, {"b": 1.0})
    with pytest.raises(ConfigurationError, match="no case in common"):
        compare_runs(one, other)
    with pytest.raises(ConfigurationError, match="no variant 'nothing'"):
        compare_runs(one, one, variants=("default", "nothing"))
