"""Runs of suites with real engines, tools and sandboxes, and a scripted model."""

import asyncio
import hashlib
import json
import subprocess
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from outrider import Agent, Limits
from outrider.errors import AuthenticationError, ConfigurationError
from outrider.evals import (
    AnswerCheck,
    CallsCheck,
    CommandCheck,
    EvalCase,
    EvalMatrix,
    EvalOutcome,
    EvalPolicy,
    EvalRun,
    EvalSuite,
    FileCheck,
    JudgeCheck,
    LimitsCheck,
    PythonCheck,
    SchemaCheck,
    async_run_suite,
    compare_runs,
    load_suite,
    run_suite,
    to_html,
    to_junit,
)
from outrider.evals.adapters import make_patch
from outrider.evals.cases import write_files
from outrider.evals.runner import EvalBudget
from outrider.providers.provider import ModelDescription
from outrider.testing import SimulatedError, Simulator, call, scripted_model
from outrider.types.parts import Tokens
from outrider.types.request import Delta, Finish, PartEnd, PartStart, Request, TextDelta, UsageReport

AGENT = Agent("worker", "Do the task.", "m", "demo")


def suite_of(*cases: EvalCase, **fields: Any) -> EvalSuite:
    return EvalSuite(name="suite", cases=cases, **fields)


def case_of(*checks: Any, name: str = "case", **fields: Any) -> EvalCase:
    return EvalCase(name=name, prompt=fields.pop("prompt", "write it"), checks=checks, **fields)


def writes(text: str = "hello\n", answer: str = "I wrote hello.") -> Any:
    def answer_request(request: Request) -> Any:
        if any(message.role == "assistant" for message in request.prompt):
            return answer
        return call("write", file_path="a.txt", content=text)

    return scripted_model(answer_request)


async def attempts_with(*checks: Any, model: Any = None, **fields: Any) -> dict[str, tuple[bool, str]]:
    run = await async_run_suite(suite_of(case_of(*checks, **fields)), [AGENT], [model or writes()])
    assert run.attempts[0].error == "", run.attempts[0]
    return {check.name: (check.passed, check.detail) for check in run.attempts[0].checks}


async def test_checks_that_are_fulfilled_pass():
    def changed(outcome: EvalOutcome) -> None:
        assert "+hello" in outcome.patch
        assert outcome.baseline != outcome.workspace

    async def later(outcome: EvalOutcome) -> bool:
        return (await outcome.run_command("ls", seconds=10)).text.split() == ["a.txt", "b.txt"]

    found = await attempts_with(
        FileCheck(path="a.txt", contains="hell", lacks="bye", matches="^h.*o$", equals="hello\n"),
        FileCheck(path="c.txt", exists=False),
        AnswerCheck(contains="WROTE", matches=r"hello\.$"),
        CommandCheck(command="cat a.txt; exit 3", exit_code=3, matches="^hello$"),
        PythonCheck(code="assert open('a.txt').read() == 'hello\\n'"),
        CallsCheck(tool="write", arguments={"file_path": r"\.txt$"}, at_most=1, at_least=1),
        CallsCheck(tool="shell", at_most=0),
        LimitsCheck(steps=2, calls=1, seconds=60, tokens=10_000),
        changed,
        later,
        files={"b.txt": "b"},
    )
    assert [name for name, (passed, _) in found.items() if not passed] == []


async def test_checks_that_are_not_fulfilled_say_why():
    found = await attempts_with(
        FileCheck(path="a.txt", contains="bye"),
        FileCheck(path="b.txt"),
        AnswerCheck(equals="no"),
        CommandCheck(command="echo oh; false"),
        PythonCheck(code="assert 1 == 2, 'numbers'"),
        SchemaCheck(schema={"type": "object"}),
        CallsCheck(tool="shell"),
        LimitsCheck(steps=1),
    )
    reasons = {name: detail for name, (passed, detail) in found.items() if not passed}
    assert reasons["file a.txt"] == "it does not contain 'bye'"
    assert reasons["file b.txt"] == "it does not exist"
    assert "it is not equal to 'no'" in reasons["answer"]
    assert reasons["command echo oh; false"] == "exit code 1, expected 0: oh"
    assert "AssertionError: numbers" in reasons["python"]
    assert "not JSON" in reasons["schema of the answer"]
    assert reasons["calls of shell"] == "0 calls match, expected at least 1; called tools: write"
    assert reasons["limits"] == "steps: 2, at most 1"


async def test_a_check_function_that_raises_or_returns_a_text_fails():
    def wrong(_: EvalOutcome) -> str:
        return "not good"

    def broken(_: EvalOutcome) -> bool:
        raise ValueError("oh")

    found = await attempts_with(wrong, broken)
    assert found == {"wrong": (False, "not good"), "broken": (False, "ValueError: oh")}


def runs_shell(*commands: str) -> Any:
    def answer_request(request: Request) -> Any:
        step = sum(message.role == "assistant" for message in request.prompt)
        return call("shell", command=commands[step]) if step < len(commands) else "done"

    return scripted_model(answer_request)


@pytest.mark.parametrize(
    ("command", "check", "passes"),
    [
        ("ln -s {outside}/solution.txt result.txt", FileCheck(path="result.txt", contains="solved"), False),
        ("ln -s {outside}/solution.txt result.txt", SchemaCheck(path="result.txt", schema={}), False),
        ("rm -r tests && ln -s {outside} tests", CommandCheck(command="cat tests/t.py", restore="tests/*"), True),
        ("rm -r tests/t.py && mkdir tests/t.py", CommandCheck(command="cat tests/t.py", restore="tests/*"), True),
        ("rm -r tests && echo > tests", CommandCheck(command="cat tests/t.py", restore="tests/*"), True),
        ("mkdir .outrider_check.py", PythonCheck(code="assert True"), True),
        ("truncate -s 51M a.txt", FileCheck(path="a.txt", contains="a"), False),
    ],
)
async def test_files_of_an_agent_fool_no_check_and_end_no_run(command: str, check: Any, passes: bool, tmp_path: Path):
    (tmp_path / "solution.txt").write_text("solved")
    model = runs_shell(command.format(outside=tmp_path))
    found = await attempts_with(check, model=model, files={"a.txt": "a\n", "tests/t.py": "x = 1\n"})
    assert [passed for passed, _ in found.values()] == [passes], found
    assert [path.name for path in tmp_path.iterdir()] == ["solution.txt"]


async def test_a_check_function_that_ends_the_program_is_a_failed_check():
    def leave(_: EvalOutcome) -> None:
        raise SystemExit(3)

    assert await attempts_with(leave) == {"leave": (False, "SystemExit: 3")}


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (case_of(JudgeCheck(criterion="good")), "a judge needs a model"),
        (case_of(fixture="missing"), "missing is not a folder"),
    ],
)
async def test_a_suite_that_cannot_run_is_refused_before_it_costs_anything(case: EvalCase, message: str):
    def fail(_: Request) -> Any:
        raise AssertionError("a model was asked")

    with pytest.raises(ConfigurationError, match=message):
        await async_run_suite(suite_of(case_of(name="first"), case), [AGENT], [scripted_model(fail)], concurrency=1)


async def test_an_answer_in_json_is_checked_against_a_schema():
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    model = scripted_model(lambda _: '```json\n{"sum": 3}\n```')
    assert await attempts_with(SchemaCheck(schema=schema), model=model) == {"schema of the answer": (True, "")}
    model = scripted_model(lambda _: '{"sum": "three"}')
    assert not (await attempts_with(SchemaCheck(schema=schema), model=model))["schema of the answer"][0]


async def test_tests_that_the_agent_changed_are_restored_and_hidden_files_are_not_seen():
    seen: list[str] = []

    def cheat(request: Request) -> Any:
        results = [part for message in request.prompt for part in message.content if "content" in dir(part)]
        seen.extend(str(part) for part in results)
        step = sum(message.role == "assistant" for message in request.prompt)
        script = [call("write", file_path="test_a.py", content="pass\n"), call("shell", command="ls -a"), "done"]
        return script[step]

    check = CommandCheck(
        command="{python} test_a.py && {python} hidden.py", restore="test_*.py", files={"hidden.py": ""}
    )
    found = await attempts_with(check, model=scripted_model(cheat), files={"test_a.py": "raise SystemExit('wrong')"})
    assert "wrong" in next(iter(found.values()))[1]
    assert "hidden.py" not in "".join(seen)


async def test_attempts_do_not_see_each_other_and_the_fixture_does_not_change(tmp_path: Path):
    fixture = tmp_path / "fixture"
    fixture.mkdir()
    (fixture / "count.txt").write_text("0\n")

    def model(request: Request) -> Any:
        done = any(message.role == "assistant" for message in request.prompt)
        return "done" if done else call("shell", command="echo 1 >> count.txt; ls ..")

    suite = suite_of(case_of(FileCheck(path="count.txt", equals="0\n1\n"), fixture="fixture"), folder=str(tmp_path))
    run = await async_run_suite(suite, [AGENT], [scripted_model(model)], repeat=6)
    assert [one.status for one in run.attempts] == ["passed"] * 6
    assert (fixture / "count.txt").read_text() == "0\n"
    assert (
        run.attempts[0].patch
        == "diff --git a/count.txt b/count.txt\n--- a/count.txt\n+++ b/count.txt\n@@ -1 +1,2 @@\n 0\n+1\n"
    )


async def test_a_command_of_an_agent_cannot_leave_the_workspace(tmp_path: Path):
    target = tmp_path / "outside.txt"

    def model(request: Request) -> Any:
        done = any(message.role == "assistant" for message in request.prompt)
        return "done" if done else call("shell", command=f"echo x > {target}")

    check = CommandCheck(command=f"mkdir -p {tmp_path} && echo y > {target}; true")
    await attempts_with(check, model=scripted_model(model))
    assert not target.exists()


async def test_the_matrix_runs_over_agents_models_prompts_and_policies():
    seen: set[tuple[str, str]] = set()

    def model(request: Request) -> Any:
        seen.add((request.model, (request.system or "").split("\n")[0]))
        done = any(message.role == "assistant" for message in request.prompt)
        return "done" if done else call("write", file_path="a.txt", content="x")

    matrix = EvalMatrix(
        models=("demo/one", "two"),
        prompts={"short": "Short.", "long": "Long."},
        policies={"free": EvalPolicy(), "plan": EvalPolicy(mode="plan")},
    )
    suite = suite_of(case_of(FileCheck(path="a.txt")), matrix=matrix)
    run = await async_run_suite(suite, [AGENT], [scripted_model(model)])
    assert {name for name, _ in seen} == {"one", "two"}
    assert {text for _, text in seen} == {"Short.", "Long."}
    assert {one.variant for one in run.attempts if one.status == "passed"} == {
        f"{model}, {prompt}, free" for model in ("demo/one", "two") for prompt in ("short", "long")
    }
    with pytest.raises(ConfigurationError, match="there is no agent 'nobody'"):
        await async_run_suite(suite_of(case_of(), matrix=EvalMatrix(agents=("nobody",))), [AGENT], [writes()])


@pytest.mark.slow
def test_a_weakened_prompt_is_a_significant_regression_and_another_wording_is_not():
    """The model obeys its instructions: without the request to check its work it is wrong more often."""
    calls: dict[str, int] = {}

    def model(request: Request) -> Any:
        if any(message.role == "assistant" for message in request.prompt):
            return "done"
        system = request.system or ""
        calls[system] = calls.get(system, 0) + 1
        chance = int(hashlib.sha256(f"{system[:40]}{calls[system]}".encode()).hexdigest(), 16) % 100
        good = chance < (92 if "check your work" in system.lower() else 45)
        return call("write", file_path="a.txt", content="right" if good else "wrong")

    cases = [case_of(FileCheck(path="a.txt", contains="right"), name=f"case {number}") for number in range(10)]
    suite = suite_of(*cases, repeat=4)

    def run_with(instructions: str) -> EvalRun:
        agent = Agent("worker", instructions, "m", "demo")
        return run_suite(suite, [agent], [scripted_model(model)])

    before = run_with("You solve tasks. Check your work before you answer.")
    reworded = run_with("Solve the task you get. Always check your work.")
    weakened = run_with("You solve tasks. Answer at once.")
    assert compare_runs(before, reworded).verdict == "no significant change"
    assert compare_runs(before, before).verdict == "no significant change"
    assert compare_runs(before, weakened).verdict == "regression"
    assert compare_runs(weakened, before).verdict == "improvement"


async def test_a_model_that_cannot_be_reached_is_an_error_and_not_a_failure():
    async with Simulator(lambda _: SimulatedError(401, "wrong key", "authentication_error")) as simulator:
        agent = Agent("worker", "Do it.", "claude-sonnet-4-5", "simulator")
        run = await async_run_suite(suite_of(case_of(FileCheck(path="a"))), [agent], [simulator.provider()])
    assert run.attempts[0].status == "error"
    assert "wrong key" in run.attempts[0].error
    assert run.pass_rate().total == 0
    assert not run.passed


class PricedModel:
    """A model whose answers cost four cents."""

    name = "demo"

    def describe_model(self, _: str) -> ModelDescription:
        return ModelDescription(input_price=0, output_price=40)

    async def stream(self, _: Request) -> AsyncIterator[Delta]:
        for delta in (PartStart(0, "text"), TextDelta(0, "done"), PartEnd(0)):
            yield delta
        yield UsageReport(Tokens(output=1000))
        yield Finish("stop", "stop")


async def test_the_budget_limits_the_whole_run():
    run = await async_run_suite(
        suite_of(case_of(AnswerCheck(contains="done"))),
        [AGENT],
        [PricedModel()],
        repeat=10,
        concurrency=2,
        max_cost=0.2,
    )
    counts = {status: sum(one.status == status for one in run.attempts) for status in ("passed", "skipped")}
    assert run.cost is not None
    assert run.cost <= Decimal("0.24")
    assert counts["passed"] >= 3
    assert counts["skipped"] >= 4


class PricedModelWithoutJudge(PricedModel):
    """A model whose answers cost four cents, except as a judge: then it fails."""

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        if request.model == "judge":
            raise AuthenticationError("wrong key")
        async for delta in super().stream(request):
            yield delta


async def test_an_attempt_whose_judge_fails_costs_what_its_agent_has_spent():
    check = JudgeCheck(criterion="it is polite")
    suite = suite_of(case_of(check), judge="demo/judge", repeat=4, concurrency=1, max_cost=0.08)
    run = await async_run_suite(suite, [AGENT], [PricedModelWithoutJudge()])
    assert [(one.status, one.cost) for one in run.attempts] == [
        ("error", Decimal("0.04")),
        ("error", Decimal("0.04")),
        ("skipped", None),
        ("skipped", None),
    ]
    assert "wrong key" in run.attempts[0].error


async def test_an_attempt_whose_trace_cannot_be_written_costs_what_its_agent_has_spent(tmp_path: Path):
    (tmp_path / "traces").write_text("not a folder")
    suite = suite_of(case_of(AnswerCheck(contains="done"), prompt=("first", "second")))
    run = await async_run_suite(suite, [AGENT], [PricedModel()], folder=tmp_path)
    assert (run.attempts[0].status, run.cost) == ("error", Decimal("0.08"))


def test_parallel_attempts_share_what_is_left():
    budget = EvalBudget(1.0, slots=2)
    first, second = budget.reserve(), budget.reserve()
    assert (first, second) == (Decimal("0.5"), Decimal("0.5"))
    budget.settle(first, Decimal("0.1"))
    assert budget.reserve() == Decimal("0.4")
    assert EvalBudget(None, slots=1).reserve() is None


async def test_a_limit_of_a_case_ends_the_attempt_and_the_checks_decide():
    model = scripted_model(lambda _: call("list", path="."))
    run = await async_run_suite(suite_of(case_of(FileCheck(path="a"), limits=Limits(turns=3))), [AGENT], [model])
    assert (run.attempts[0].status, run.attempts[0].steps) == ("failed", 3)


async def test_several_prompts_are_one_conversation():
    def model(request: Request) -> str:
        return f"answer {sum(message.role == 'assistant' for message in request.prompt) + 1}"

    case = case_of(AnswerCheck(equals="answer 2"), LimitsCheck(steps=2), prompt=("first", "second"))
    run = await async_run_suite(suite_of(case), [AGENT], [scripted_model(model)])
    assert run.passed, run.attempts[0].problem


async def test_a_judge_decides_about_a_criterion():
    def model(request: Request) -> Any:
        if request.model == "judge":
            text = request.prompt[0].content[0].text
            assert "<criterion>\nit is polite\n</criterion>" in text
            return json.dumps({"passed": "please" in text, "reason": "it does not say please"})
        return "Do it" if request.system and "rude" in request.system else "Do it, please"

    check = JudgeCheck(criterion="it is polite", votes=3)
    suite = suite_of(case_of(check), judge="demo/judge", matrix=EvalMatrix(prompts={"a": "Be kind.", "b": "Be rude."}))
    run = await async_run_suite(suite, [AGENT], [scripted_model(model)])
    assert [one.status for one in run.attempts] == ["passed", "failed"]
    assert run.attempts[1].checks[0].detail == "it does not say please"
    with pytest.raises(ConfigurationError, match="a judge needs a model"):
        await async_run_suite(suite_of(case_of(check)), [AGENT], [scripted_model(model)])


@pytest.mark.parametrize("kind", ["anthropic", "openai", "openai-responses", "google", "scripted"])
async def test_a_recorded_suite_runs_again_without_a_network(kind: Any, tmp_path: Path):
    def answer(request: Any) -> Any:
        body = str(getattr(request, "body", "")) or str([message.content for message in request.prompt])
        if "hello" in body.replace("write hello", ""):
            return "I wrote hello."
        return call("shell", command="pwd; echo hello > a.txt; cat a.txt")

    case = case_of(FileCheck(path="a.txt", equals="hello\n"), AnswerCheck(contains="wrote"), prompt="write it")
    suite = suite_of(case, folder=str(tmp_path), repeat=2)
    models = {"anthropic": "claude-sonnet-4-5", "google": "gemini-2.5-pro"}
    async with Simulator(answer) as simulator:
        provider = scripted_model(answer, name="simulator") if kind == "scripted" else simulator.provider(kind)
        agent = Agent("worker", "Do the task.", models.get(kind, "gpt-5"), "simulator")
        recorded = await async_run_suite(suite, [agent], [provider], cassettes="record")
        sent = len(simulator.requests)
    assert recorded.passed, [one.problem for one in recorded.attempts]
    again = await async_run_suite(suite, [agent], [provider], cassettes="replay")
    assert again.passed, [one.problem for one in again.attempts]
    assert len(simulator.requests) == sent
    assert [one.tokens for one in again.attempts] == [one.tokens for one in recorded.attempts]
    texts = [path.read_text() for path in (tmp_path / "cassettes").rglob("*.jsonl")]
    assert len(texts) == 2
    assert not any("outrider-eval-" in text for text in texts)  # no path of this machine
    changed = agent.replace(instructions="Do something else.")
    differs = await async_run_suite(suite, [changed], [provider], cassettes="replay")
    assert [one.status for one in differs.attempts] == ["error", "error"]
    assert "Record it again" in differs.attempts[0].error


async def test_a_missing_recording_is_a_usage_error(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="there is no recording"):
        await async_run_suite(suite_of(case_of(), folder=str(tmp_path)), [AGENT], [writes()], cassettes="replay")


async def test_a_run_is_written_to_a_folder_and_read_again(tmp_path: Path):
    suite = suite_of(case_of(FileCheck(path="a.txt")), case_of(FileCheck(path="<b>"), name="bad & <worse>"))
    progress: list[tuple[str, int, int]] = []
    run = await async_run_suite(
        suite,
        [AGENT],
        [writes(answer="<script>alert(1)</script>\x1b")],
        folder=tmp_path,
        on_attempt=lambda one, done, total: progress.append((one.case, done, total)),
    )
    assert EvalRun.load(tmp_path) == run
    assert sorted(progress) == [("bad & <worse>", 2, 2), ("case", 1, 2)] or len(progress) == 2
    page = to_html(run, compare_runs(run, run))
    assert "<script>alert" not in page
    assert "no significant change" in page
    for one in run.attempts:
        assert f"href='{one.trace}'" in page
        assert (tmp_path / one.trace).read_text().startswith("<!")
    (first,) = ElementTree.fromstring(to_junit(run))
    assert (first.get("tests"), first.get("failures"), first.get("errors")) == ("2", "1", "0")
    assert first[1].get("name") == "bad & <worse>"
    with pytest.raises(ConfigurationError, match="is not a run"):
        EvalRun.load(tmp_path / "nothing")


async def test_what_was_done_before_an_interruption_is_stored(tmp_path: Path):
    started = asyncio.Event()

    async def wait(outcome: EvalOutcome) -> None:
        started.set()
        await asyncio.sleep(60)

    suite = suite_of(case_of(FileCheck(path="a.txt")), case_of(wait, name="slow"), concurrency=1)
    task = asyncio.create_task(async_run_suite(suite, [AGENT], [writes()], folder=tmp_path))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [one.status for one in EvalRun.load(tmp_path).attempts] == ["passed"]


async def test_setup_commands_and_commits_make_the_workspace(tmp_path: Path):
    source = tmp_path / "repository"
    source.mkdir()

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(source), "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True)

    git("init", "-q")
    for text in ("old", "new"):
        (source / "a.txt").write_text(text)
        git("add", "a.txt")
        git("commit", "-q", "-m", text)
    case = case_of(
        CommandCheck(command="test $(cat a.txt) = old && test $(git log --all --oneline | wc -l) = 1 && test -e made"),
        repository=str(source),
        commit="HEAD~1",
        setup="touch made",
    )
    run = await async_run_suite(suite_of(case), [AGENT], [scripted_model(lambda _: "ok")])
    assert run.passed, run.attempts[0].problem
    with pytest.raises(ConfigurationError, match="setup command 'false' failed"):
        await async_run_suite(suite_of(case_of(setup="false")), [AGENT], [writes()])


def test_unknown_options_are_refused():
    with pytest.raises(ConfigurationError, match="repeats"):
        run_suite(suite_of(case_of()), [AGENT], [writes()], repeats=3)  # type: ignore[call-arg]


async def test_names_that_differ_in_signs_only_have_separate_traces_and_recordings(tmp_path: Path):
    suite = suite_of(case_of(name="a b"), case_of(name="a-b"), case_of(name="a/b"), folder=str(tmp_path))
    run = await async_run_suite(suite, [AGENT], [writes()], folder=tmp_path, cassettes="record")
    assert len({one.trace for one in run.attempts}) == 3
    assert len(list((tmp_path / "cassettes").rglob("*.jsonl"))) == 3


async def test_an_agent_cannot_read_the_checks_and_solutions_of_its_suite():
    suite = load_suite("coding").select(["question-port"])
    secret = Path(suite.folder) / "coding.toml"

    def model(request: Request) -> Any:
        step = sum(message.role == "assistant" for message in request.prompt)
        return (call("shell", command=f"cat {secret}"), call("read", file_path=str(secret)), "No idea.")[step]

    seen: list[str] = []

    def look(outcome: EvalOutcome) -> None:
        seen.extend(str(one.state) for one in outcome.calls)

    peeking = replace(suite, cases=(replace(suite.cases[0], checks=(look,)),))
    await async_run_suite(peeking, [AGENT], [scripted_model(model)])
    assert len(seen) == 2
    assert not any("reference" in text for text in seen)


async def test_without_a_sandbox_checks_run_only_if_the_machine_is_one():
    check = CommandCheck(command="echo $PPID")
    suite = suite_of(case_of(check))
    run = await async_run_suite(suite, [AGENT], [scripted_model(lambda _: "ok")], sandbox="none")
    assert run.passed


def test_a_patch_of_files_without_a_last_newline_can_be_applied(tmp_path: Path):
    before, after = tmp_path / "before", tmp_path / "after"
    write_files(before, {"a.txt": "one\ntwo", "gone.txt": "x\n", "same.txt": "s", "sub/b.txt": "1\n2\n3\n"})
    write_files(after, {"a.txt": "one\nthree", "new/c.txt": "no end", "same.txt": "s", "sub/b.txt": "1\n3\n"})
    (after / "binary").write_bytes(b"\xff\x00")
    patch = make_patch(before, after)
    assert "Binary files differ" in patch
    text = patch.split("diff --git a/binary")
    usable = text[0] + "diff --git" + text[1].split("diff --git", 1)[1]
    subprocess.run(["git", "apply", "-"], input=usable, text=True, cwd=before, check=True)
    (after / "binary").unlink()
    assert make_patch(before, after) == ""


async def test_the_calls_of_called_agents_count_too():
    def model(request: Request) -> Any:
        done = any(message.role == "assistant" for message in request.prompt)
        if request.model == "helper":
            return "listed" if done else call("shell", command="ls")
        return "done" if done else call("call_agent", agent_name="helper", message="list the files")

    agents = [Agent("worker", "Ask the helper.", "worker", "demo"), Agent("helper", "Help.", "helper", "demo")]
    checks = (CallsCheck(tool="shell", at_most=0), CallsCheck(tool="call_agent"), LimitsCheck(steps=4))
    run = await async_run_suite(suite_of(case_of(*checks)), agents, [scripted_model(model)])
    assert [check.passed for check in run.attempts[0].checks] == [False, True, True]
    assert run.attempts[0].steps == 4


async def test_tokens_are_those_of_all_prompts():
    totals: list[int] = []

    def look(outcome: EvalOutcome) -> None:
        totals.append(outcome.session.usage.tokens.total)

    suite = suite_of(case_of(look, prompt=("first", "second", "third")))
    run = await async_run_suite(suite, [AGENT], [scripted_model(lambda _: "ok")])
    assert run.passed, run.attempts[0].problem
    assert run.attempts[0].tokens == totals[0] > 0
