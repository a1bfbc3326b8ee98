"""Cases from SWE-bench, terminal-bench and sessions."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from outrider import Agent
from outrider.engine.archive import open_archive
from outrider.errors import ConfigurationError
from outrider.evals import (
    CommandCheck,
    EvalAttempt,
    EvalRun,
    EvalVariant,
    async_run_suite,
    load_suite,
    load_swe_bench,
    load_terminal_bench,
    validate_suite,
    write_predictions,
)
from outrider.evals.adapters import add_session_case, is_terminal_bench, make_patch
from outrider.evals.cases import write_files
from outrider.testing import call, scripted_model
from outrider.types.request import Request
from outrider.workspace import Workspace

AGENT = Agent("worker", "Do the task.", "m", "demo")
FIXED = "def add(a, b):\n    return a + b\n"
TEST_PATCH = """\
diff --git a/test_calc.py b/test_calc.py
new file mode 100644
--- /dev/null
+++ b/test_calc.py
@@ -0,0 +1,5 @@
+from calc import add
+
+
+def test_add():
+    assert add(1, 2) == 3
"""
FIX_PATCH = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def instances(tmp_path: Path) -> Path:
    clone = tmp_path / "clones" / "ada__calc"
    clone.mkdir(parents=True)
    git(clone, "init", "-q")
    (clone / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    git(clone, "add", "-A")
    git(clone, "commit", "-q", "-m", "base")
    base = git(clone, "rev-parse", "HEAD").strip()
    (clone / "calc.py").write_text(FIXED)
    git(clone, "commit", "-q", "-a", "-m", "the solution")
    instance = {
        "instance_id": "ada__calc-1",
        "repo": "ada/calc",
        "base_commit": base,
        "problem_statement": "add(1, 2) is -1",
        "patch": FIX_PATCH,
        "test_patch": TEST_PATCH,
        "FAIL_TO_PASS": '["test_calc.py::test_add"]',
        "PASS_TO_PASS": "[]",
        "version": "1.0",
    }
    file = tmp_path / "instances.jsonl"
    file.write_text(json.dumps(instance) + "\n")
    return file


def fixes(path: str, content: str) -> Any:
    def answer(request: Request) -> Any:
        step = sum(message.role == "assistant" for message in request.prompt)
        return (call("read", file_path=path), call("write", file_path=path, content=content), "done")[step]

    return scripted_model(answer)


@pytest.mark.slow
async def test_an_instance_of_swe_bench_is_solved_tested_and_written_as_a_prediction(instances: Path, tmp_path: Path):
    command = "{python} -m pytest -q -p no:cacheprovider {tests}"
    suite = load_swe_bench(instances, tmp_path / "clones", test_command=command)
    assert [one.problem for one in await validate_suite(suite)] == [""]
    run = await async_run_suite(suite, [AGENT], [fixes("calc.py", FIXED)])
    assert run.passed, run.attempts[0].problem
    wrong = await async_run_suite(suite, [AGENT], [fixes("calc.py", "def add(a, b):\n    return a\n")])
    assert wrong.attempts[0].status == "failed"
    target = tmp_path / "predictions.jsonl"
    assert write_predictions(run, target) == 1
    prediction = json.loads(target.read_text())
    assert prediction.keys() == {"instance_id", "model_name_or_path", "model_patch"}
    assert prediction["instance_id"] == "ada__calc-1"
    # The official program applies the patch to the base commit; hidden tests are not part of it.
    checkout = tmp_path / "checkout"
    git(tmp_path, "clone", "-q", str(tmp_path / "clones" / "ada__calc"), str(checkout))
    git(checkout, "checkout", "-q", "HEAD~1")
    (tmp_path / "one.patch").write_text(prediction["model_patch"])
    git(checkout, "apply", str(tmp_path / "one.patch"))
    assert (checkout / "calc.py").read_text() == FIXED
    assert "test_calc" not in prediction["model_patch"]


@pytest.mark.slow
async def test_tests_of_the_agent_do_not_replace_those_of_the_benchmark(instances: Path, tmp_path: Path):
    """An array of instances, as some tools write it, and the special line separators that JSON may contain."""
    instance = json.loads(instances.read_text()) | {"problem_statement": "a\u2028b", "hints_text": None}
    file = tmp_path / "instances.json"
    file.write_text(json.dumps([instance], ensure_ascii=False))
    suite = load_swe_bench(file, tmp_path / "clones", test_command="{python} -m pytest -q -p no:cacheprovider {tests}")

    def cheat(request: Request) -> Any:
        step = sum(message.role == "assistant" for message in request.prompt)
        return (call("write", file_path="test_calc.py", content="def test_add():\n    pass\n"), "done")[step]

    run = await async_run_suite(suite, [AGENT], [scripted_model(cheat)])
    assert run.attempts[0].status == "failed"
    assert "assert -1 == 3" in run.attempts[0].problem


def test_a_prediction_can_be_applied_with_any_files_of_the_agent(tmp_path: Path):
    base, changed, checkout = (tmp_path / name for name in ("base", "changed", "checkout"))
    write_files(base, {"a.py": "1\n", "gone.py": "x\n", "run.sh": "y\n", ".gitignore": "build/\n*.log\n"})
    shutil.copytree(base, checkout)
    shutil.copytree(base, changed)
    write_files(changed, {"a.py": "2\n", "my file.py": "", "build/out.py": "x\n", "z.log": "x\n", "new.sh": "x\n"})
    (changed / ".coverage").write_bytes(b"\xff\x00")
    (changed / "gone.py").unlink()
    for name in ("run.sh", "new.sh"):
        (changed / name).chmod(0o755)
    patch = make_patch(base, changed)
    attempt = EvalAttempt(case="c", variant="default", number=1, status="failed", patch=patch)
    run = EvalRun(suite="s", variants=(EvalVariant(),), cases=("c",), attempts=(attempt,))
    write_predictions(run, tmp_path / "predictions.jsonl")
    (tmp_path / "one.patch").write_text(json.loads((tmp_path / "predictions.jsonl").read_text())["model_patch"])
    git(checkout, "init", "-q")
    git(checkout, "apply", str(tmp_path / "one.patch"))
    names = [".git", ".gitignore", "a.py", "my file.py", "new.sh", "run.sh"]
    assert sorted(path.name for path in checkout.iterdir()) == names
    assert (checkout / "a.py").read_text() == "2\n"
    assert all((checkout / name).stat().st_mode & 0o100 for name in ("run.sh", "new.sh"))


def test_an_instance_without_a_clone_or_with_a_missing_field_is_an_error(instances: Path, tmp_path: Path):
    with pytest.raises(ConfigurationError, match="no clone of ada/calc"):
        load_swe_bench(instances, tmp_path)
    instances.write_text('{"instance_id": "x"}\n')
    with pytest.raises(ConfigurationError, match="line 1: it is not an instance"):
        load_swe_bench(instances, tmp_path / "clones")


def test_a_task_has_the_data_of_its_tests_and_names_what_is_missing(tmp_path: Path):
    task = tmp_path / "count"
    (task / "tests" / "data").mkdir(parents=True)
    (task / "task.yaml").write_text(
        "instruction: Count the lines\n  of /app/in.txt.\nmax_test_timeout_sec: 33.0\nmax_agent_timeout_sec: 60.0\n"
    )
    (task / "Dockerfile").write_text("WORKDIR /app\nCOPY . /app\n")
    (task / "in.txt").write_text("a\n")
    (task / "image.png").write_bytes(b"\x89PNG\xff")
    (task / "tests" / "test_outputs.py").write_text("EXPECTED = open('/tests/data/expected.txt').read()\n")
    (task / "tests" / "data" / "expected.txt").write_text("1\n")
    (task / "run-tests.sh").write_text("pytest\n")
    case = load_terminal_bench(task).cases[0]
    assert case.prompt == "Count the lines of ./in.txt."
    assert case.files == {"in.txt": "a\n"}
    check = case.checks[0]
    assert isinstance(check, CommandCheck)
    assert check.files == {
        ".outrider_tests/data/expected.txt": "1\n",
        ".outrider_tests/test_outputs.py": "EXPECTED = open('./.outrider_tests/data/expected.txt').read()\n",
    }
    assert check.seconds == 33
    assert case.tags == ("terminal-bench", "incomplete")


def write_task(folder: Path) -> Path:
    (folder / "tests").mkdir(parents=True)
    (folder / "task.yaml").write_text(
        "# a task\ninstruction: |-\n  Copy /app/in.txt to /app/out/copy.txt.\n\n  Keep /app as it is; not /apples.\n"
        "author_name: x\ntags:\n- file\nmax_agent_timeout_sec: 120.0\nparser_name: pytest\n"
    )
    (folder / "Dockerfile").write_text("FROM python\nWORKDIR /app\nCOPY data/in.txt /app/in.txt\n")
    (folder / "data").mkdir()
    (folder / "data" / "in.txt").write_text("hello\n")
    (folder / "tests" / "test_outputs.py").write_text(
        "from pathlib import Path\n\n\ndef test_copy():\n"
        "    assert Path('/app/out/copy.txt').read_text() == 'hello\\n'\n    assert Path('/app').is_dir()\n"
    )
    (folder / "solution.sh").write_text("#!/bin/bash\nmkdir -p /app/out\ncp /app/in.txt /app/out/copy.txt\n")
    return folder


@pytest.mark.slow
async def test_a_task_of_terminal_bench_runs_in_the_sandbox(tmp_path: Path):
    write_task(tmp_path / "tasks" / "copy-file")
    assert is_terminal_bench(tmp_path / "tasks")
    assert not is_terminal_bench(tmp_path / "tasks" / "copy-file" / "tests")
    suite = load_terminal_bench(tmp_path / "tasks")
    (case,) = suite.cases
    assert case.prompt == "Copy ./in.txt to ./out/copy.txt.\n\nKeep . as it is; not /apples."
    assert case.files == {"in.txt": "hello\n"}
    assert (case.limits.seconds, case.tags) == (120.0, ("terminal-bench",))
    assert [one.problem for one in await validate_suite(suite)] == [""]
    run = await async_run_suite(suite, [AGENT], [fixes("out/copy.txt", "hello\n")])
    assert run.passed, run.attempts[0].problem
    assert load_terminal_bench(tmp_path / "tasks" / "copy-file").cases[0].name == "copy-file"


@pytest.mark.slow
async def test_the_newer_form_of_a_task_is_read_too(tmp_path: Path):
    task = tmp_path / "new"
    (task / "environment").mkdir(parents=True)
    (task / "tests").mkdir()
    (task / "solution").mkdir()
    (task / "task.toml").write_text("[agent]\ntimeout_sec = 60.0\n")
    (task / "instruction.md").write_text("Create /app/a.txt.\n")
    (task / "environment" / "Dockerfile").write_text("FROM python\nRUN apt-get install -y jq\n")
    (task / "tests" / "test_outputs.py").write_text("def test_it():\n    open('/app/a.txt')\n")
    (task / "solution" / "solve.sh").write_text("touch /app/a.txt\n")
    (case,) = load_terminal_bench(tmp_path).cases
    assert (case.prompt, case.limits.seconds, case.tags) == ("Create ./a.txt.", 60.0, ("terminal-bench", "image"))
    assert [one.problem for one in await validate_suite(load_terminal_bench(tmp_path))] == [""]
    with pytest.raises(ConfigurationError, match=r"has no task.yaml"):
        load_terminal_bench(tmp_path / "new" / "tests")


async def recorded_session(tmp_path: Path, *answers: Any, prompt: str = "Fix the bug, please") -> str:
    """A session in a folder with a bug, its answers scripted."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (folder / "test_calc.py").write_text("from calc import add\n\nassert add(1, 2) == 3\n")
    options: Any = {"data": tmp_path / "data", "approval": "auto"}
    async with Workspace(folder, AGENT, [scripted_model(*answers)], **options) as workspace:
        result = await workspace.prompt(prompt)
        assert result.reason == "completed", result.error
        return workspace.session_id


async def add_case(tmp_path: Path, session: str, **options: Any) -> Any:
    suite = tmp_path / "evals" / "suite.toml"
    suite.parent.mkdir(exist_ok=True)
    async with open_archive(tmp_path / "data" / "sessions.db") as archive:
        return await add_session_case(archive, session, suite, data=tmp_path / "data", **options)


@pytest.mark.slow
async def test_a_session_becomes_a_case_that_fails_untouched_and_runs_offline(tmp_path: Path):
    session = await recorded_session(
        tmp_path,
        call("read", file_path="calc.py"),
        call("write", file_path="calc.py", content=FIXED),
        call("write", file_path="it's.txt", content="quote ''' and \\ and \x7f\n"),
        "It adds now.",
    )
    added = await add_case(tmp_path, session)
    assert (added.name, added.fixture, added.checks) == ("fix-the-bug-please", "fixtures/fix-the-bug-please", 2)
    fixture = tmp_path / "evals" / added.fixture
    assert (fixture / "calc.py").read_text() == "def add(a, b):\n    return a - b\n"  # as it was before
    assert not (fixture / "it's.txt").exists()
    suite = load_suite(tmp_path / "evals")
    assert suite.cases[0].prompt == "Fix the bug, please"
    assert [one.problem for one in await validate_suite(suite)] == [""]
    run = await async_run_suite(suite, [AGENT], [scripted_model("unused")], cassettes="replay")
    assert run.passed, run.attempts[0].problem
    assert run.attempts[0].calls == 3
    again = await add_case(tmp_path, session)
    assert again.name == "fix-the-bug-please-2"
    assert len(load_suite(tmp_path / "evals").cases) == 2


@pytest.mark.slow
async def test_the_tests_that_a_session_ran_are_the_check(tmp_path: Path):
    session = await recorded_session(
        tmp_path,
        call("read", file_path="calc.py"),
        call("write", file_path="calc.py", content=FIXED),
        call("shell", command="python3 -m unittest test_calc || python3 test_calc.py"),
        "done",
    )
    added = await add_case(tmp_path, session, name="My bug")
    suite = load_suite(tmp_path / "evals")
    assert added.name == "my-bug"
    assert [check.title for check in suite.cases[0].checks] == [
        "command python3 -m unittest test_calc || python3 test_calc.py"
    ]
    assert [one.problem for one in await validate_suite(suite)] == [""]


async def test_a_session_without_changes_needs_a_check_by_the_user(tmp_path: Path):
    added = await add_case(tmp_path, await recorded_session(tmp_path, "The answer is 42."))
    assert "replace the check" in added.notes[0]
    run = await async_run_suite(load_suite(tmp_path / "evals"), [AGENT], [scripted_model("x")], cassettes="replay")
    assert run.attempts[0].answer == "The answer is 42."
