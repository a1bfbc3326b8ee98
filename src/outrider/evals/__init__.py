"""Public module for evaluations: cases with checks, suites over a matrix of agents, models, prompts and policies, and
the comparison of two runs."""

from typing import TYPE_CHECKING

from outrider._lazy import lazy_names

if TYPE_CHECKING:
    from outrider.evals.adapters import load_swe_bench, load_terminal_bench, write_predictions
    from outrider.evals.cases import (
        AnswerCheck,
        CallsCheck,
        CheckResult,
        CommandCheck,
        EvalCase,
        EvalMatrix,
        EvalOutcome,
        EvalPolicy,
        EvalReference,
        EvalSuite,
        EvalVariant,
        FileCheck,
        JudgeCheck,
        LimitsCheck,
        PythonCheck,
        SchemaCheck,
        built_in_suites,
        load_suite,
    )
    from outrider.evals.results import (
        EvalAttempt,
        EvalComparison,
        EvalRun,
        FigureChange,
        PassRate,
        RateChange,
        VariantComparison,
        compare_runs,
        to_html,
        to_junit,
    )
    from outrider.evals.runner import CaseValidation, async_run_suite, run_suite, validate_suite

__all__ = [
    "AnswerCheck",
    "CallsCheck",
    "CaseValidation",
    "CheckResult",
    "CommandCheck",
    "EvalAttempt",
    "EvalCase",
    "EvalComparison",
    "EvalMatrix",
    "EvalOutcome",
    "EvalPolicy",
    "EvalReference",
    "EvalRun",
    "EvalSuite",
    "EvalVariant",
    "FigureChange",
    "FileCheck",
    "JudgeCheck",
    "LimitsCheck",
    "PassRate",
    "PythonCheck",
    "RateChange",
    "SchemaCheck",
    "VariantComparison",
    "async_run_suite",
    "built_in_suites",
    "compare_runs",
    "load_suite",
    "load_swe_bench",
    "load_terminal_bench",
    "run_suite",
    "to_html",
    "to_junit",
    "validate_suite",
    "write_predictions",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "outrider.evals.adapters": "load_swe_bench load_terminal_bench write_predictions",
        "outrider.evals.cases": """
            AnswerCheck CallsCheck CheckResult CommandCheck EvalCase EvalMatrix EvalOutcome EvalPolicy EvalReference
            EvalSuite EvalVariant FileCheck JudgeCheck LimitsCheck PythonCheck SchemaCheck built_in_suites load_suite
        """,
        "outrider.evals.results": """
            EvalAttempt EvalComparison EvalRun FigureChange PassRate RateChange VariantComparison compare_runs
            to_html to_junit
        """,
        "outrider.evals.runner": "CaseValidation async_run_suite run_suite validate_suite",
    },
)
