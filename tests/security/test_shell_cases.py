"""Every shell command of the corpus, judged in a real workspace: what runs, what asks, how far rules reach."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from outrider.permissions import Decision
from outrider.permissions import decide as decide_call
from tests.fixtures.cases import for_each
from tests.fixtures.shell_analysis import judge as decide

Case = dict[str, Any]


def cases() -> list[Case]:
    shared = Path(os.environ.get("OUTRIDER_SHARED") or Path(__file__).parents[3] / "shared")
    file = shared / "corpora" / "shell_cases.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


CASES = cases()
# One entry contradicts its neighbours: it is of class read_only, and `git log …`, `echo …` and `… && …` are each
# expected to run. It is judged as what it is.
HARMLESS = {case["id"] for case in CASES if case["class"] == "read_only" and case["technique"] == "rule_positive"}
AUTOMATIC = [case for case in CASES if case["plan_mode_expected"] == "allow" and case["tier"] == "core"]
STRETCH = [case for case in CASES if case["plan_mode_expected"] == "allow" and case["tier"] == "stretch"]
GUARDED = [case for case in CASES if case["plan_mode_expected"] == "ask" and case["id"] not in HARMLESS]
OVERSTEPPED = [case for case in CASES if case["must_not_auto_allow_when_rules"]]
COVERED = [case for case in CASES if case["must_auto_allow_when_rules"]]
GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]


Workspaces = Callable[[Case], Path]


def each(found: list[Case]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return for_each("case", found) if found else pytest.mark.skip("needs the shared folder")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shell")
    (place / "ws" / "src" / "deep").mkdir(parents=True)
    (place / "out" / "d").mkdir(parents=True)
    for name in ("README.md", "data.csv", "notes.txt", "big.log", "src/app.py", "src/util.py", ".env", "script.sh"):
        (place / "ws" / name).write_text("x\n")
    (place / "ws" / "package.json").write_text("{}")
    (place / "out" / "secret.txt").write_text("secret")
    for command in ([*GIT, "init", "-q"], [*GIT, "add", "-A"], [*GIT, "commit", "-qm", "x"]):
        subprocess.run(command, cwd=place / "ws", check=True, capture_output=True)
    return place


@pytest.fixture(scope="module")
def workspaces(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspaces:
    """Returns the workspace of a case: the common one, or a copy that the case changes. Decisions change none."""

    @cache
    def changed_copy(*setup: str) -> Path:
        copy = tmp_path_factory.mktemp("changed") / "copy"
        shutil.copytree(prepared, copy, symlinks=True)
        for line in setup:
            subprocess.run(["bash", "-c", line], cwd=copy / "ws", check=False, capture_output=True)
        return copy / "ws"

    return lambda case: changed_copy(*case["setup"]) if case.get("setup") else prepared / "ws"


def plan(case: Case, workspace: Path, mode: Any = "plan", rules: tuple[str, ...] = ()) -> Decision:
    allow = tuple(f"shell({rule})" for rule in rules)
    return decide("shell", {"command": case["command"]}, mode=mode, allow=allow, workspace=workspace)


@each(AUTOMATIC)
def test_a_plain_reading_command_runs_unasked(case: Case, workspaces: Workspaces):
    workspace = workspaces(case)
    found = plan(case, workspace)
    assert found.effect == "allow", found.reason


@each(STRETCH)
def test_a_harder_reading_command_runs_unasked_as_well(case: Case, workspaces: Workspaces):
    workspace = workspaces(case)
    found = plan(case, workspace)
    assert found.effect == "allow", found.reason


@each(GUARDED)
def test_a_command_with_an_effect_never_runs_unasked(case: Case, workspaces: Workspaces):
    workspace = workspaces(case)
    assert plan(case, workspace).effect != "allow"
    assert plan(case, workspace, "agent").effect == "ask"
    assert plan(case, workspace, "background").effect == "deny"


def confinement(case: Case, workspace: Path, mode: Any, **options: Any) -> str | None:
    return decide_call("shell", {"command": case["command"]}, mode=mode, workspace=workspace, **options).confinement


@each(GUARDED)
def test_a_command_with_an_effect_leaves_the_sandbox_by_no_mode_and_no_level(case: Case, workspaces: Workspaces):
    workspace = workspaces(case)
    for mode in ("plan", "agent", "background"):
        for level in ("ask", "edits", "auto"):
            assert confinement(case, workspace, mode, level=level) in ("workspace", None)
        assert confinement(case, workspace, mode, sandbox=False) is None


@each(AUTOMATIC)
def test_a_plain_reading_command_has_a_read_only_view(case: Case, workspaces: Workspaces):
    workspace = workspaces(case)
    for mode in ("plan", "agent", "background"):
        assert confinement(case, workspace, mode) == "read-only"


@each(OVERSTEPPED)
@for_each("mode", ("plan", "agent", "background"))
def test_no_rule_is_overstepped(case: Case, workspaces: Workspaces, mode: str):
    workspace = workspaces(case)
    found = plan(case, workspace, mode, tuple(case["must_not_auto_allow_when_rules"]))
    assert found.effect != "allow", found
    rules = [f"shell({rule})" for rule in case["must_not_auto_allow_when_rules"]]
    assert confinement(case, workspace, mode, allow=rules) in ("workspace", None)


@each(COVERED)
@for_each("mode", ("plan", "agent", "background"))
def test_a_rule_reaches_what_it_names(case: Case, workspaces: Workspaces, mode: str):
    workspace = workspaces(case)
    found = plan(case, workspace, mode, tuple(case["must_auto_allow_when_rules"]))
    assert found.effect == "allow", found.reason


def test_a_decision_takes_milliseconds(
    prepared: Path, shared_dir: Path, record_property: Callable[[str, object], None]
):
    """How many is the benchmark's to say; a machine with much to do takes several times as many."""
    assert len(CASES) == 434, f"{shared_dir} holds {len(CASES)} shell cases"
    seconds: list[float] = []
    for case in CASES:
        start = time.process_time()
        plan(case, prepared / "ws")
        seconds.append((time.process_time() - start) * 1000)
    p99 = sorted(seconds)[int(len(seconds) * 0.99)]
    record_property("figures", f"decisions about {len(CASES)} shell cases: p99 {p99:.1f} ms")
    assert p99 < 50
