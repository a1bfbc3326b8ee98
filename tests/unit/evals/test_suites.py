"""Suites in TOML and Python files, their matrix, and the built-in suite."""

from pathlib import Path
from typing import Any

import pytest

from outrider import Agent
from outrider.errors import ConfigurationError
from outrider.evals import (
    AnswerCheck,
    CommandCheck,
    EvalCase,
    EvalMatrix,
    EvalPolicy,
    EvalReference,
    EvalSuite,
    FileCheck,
    async_run_suite,
    built_in_suites,
    compare_runs,
    load_suite,
    validate_suite,
)
from outrider.evals.cases import write_files
from outrider.testing import call, scripted_model
from outrider.types.request import Request

SUITE = """
name = "mine"
repeat = 3
max_cost = 1.5

[limits]
turns = 7

[matrix]
models = ["one/a", "two/b"]
[matrix.prompts]
short = "Be short."
long = "@prompts/long.md"
[matrix.policies]
careful = { mode = "plan", deny = ["shell(rm *)"] }

[fixtures.shared]
"a.txt" = "one"

[[cases]]
name = "first"
prompt = "do it"
fixture = "shared"
files = { "b.txt" = "two" }
limits = { cost = 0.2 }
tags = ["quick"]
[[cases.checks]]
type = "file"
path = "a.txt"
contains = ["one", "two"]
[[cases.checks]]
type = "calls"
tool = "shell"
at_most = 0

[[cases]]
name = "second"
prompt = ["do it", "do it again"]
"""


def write_suite(folder: Path, text: str = SUITE) -> Path:
    (folder / "prompts").mkdir()
    (folder / "prompts" / "long.md").write_text("Be long.")
    (folder / "suite.toml").write_text(text)
    return folder / "suite.toml"


def test_a_suite_is_read_from_toml(tmp_path: Path):
    suite = load_suite(write_suite(tmp_path))
    first, second = suite.cases
    assert (suite.name, suite.repeat, suite.max_cost, suite.folder) == ("mine", 3, 1.5, str(tmp_path))
    assert first.files == {"a.txt": "one", "b.txt": "two"}
    assert first.checks[0] == FileCheck(path="a.txt", contains=("one", "two"))
    assert (str(first.limits.cost), suite.limits.turns) == ("0.2", 7)
    assert second.prompts == ("do it", "do it again")
    assert suite.matrix.prompts == {"short": "Be short.", "long": "Be long."}
    assert load_suite(tmp_path) == suite  # a folder means its suite.toml


def test_every_combination_of_the_matrix_is_a_variant(tmp_path: Path):
    matrix = load_suite(write_suite(tmp_path)).matrix
    assert [variant.name for variant in matrix.variants()] == [
        "one/a, short, careful",
        "one/a, long, careful",
        "two/b, short, careful",
        "two/b, long, careful",
    ]
    assert [variant.name for variant in EvalMatrix().variants()] == ["default"]
    assert matrix.policies["careful"] == EvalPolicy(mode="plan", deny=("shell(rm *)",))


CHECK = "[[cases]]\nname='a'\nprompt='b'\n[[cases.checks]]\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cases = 3", "suite.toml: Expected"),
        ("[[cases]]\nname='a'\nprompt='b'\nfiels={}", "unknown field `fiels` - at `cases\\[0\\]`"),
        ("[[cases]]\nname='a'\nprompt='b'\n[[cases.checks]]\ntype='fil'", "Invalid value 'fil'"),
        ("[[cases]]\nname='a'\nprompt='b'\nlimits={turn=3}", "cases.a.limits: unknown key 'turn'; did you mean turns"),
        ("[[cases]]\nname='a'\nprompt='b'\n[[cases]]\nname='a'\nprompt='c'", "several cases are called a"),
        ("repeat = 0", "repeat is a whole number of at least 1"),
        ("not toml", "it is not TOML"),
        (CHECK + "type='answer'\nmatches='('", "case 'a', answer: '\\(' is not a regular expression"),
        (CHECK + "type='calls'\ntool='x'\narguments={b='['}", "case 'a', calls of x: '\\[' is not a regular"),
        (CHECK + "type='file'\npath='../b'", "case 'a', file ../b: the path '../b' leads out of the workspace"),
        (CHECK + "type='schema'\nschema={type='nonsense'}", "not a JSON schema: the type 'nonsense' is unknown"),
        (CHECK + "type='schema'\nschema={properties={a={properties=3}}}", "properties is not a table"),
        ("[[cases]]\nname='a'", "missing required field `prompt` - at `cases\\[0\\]` \\(case 'a'\\)"),
        ("[[cases]]\nname='a'\nprompt=' '", "case 'a': name and prompt must not be empty"),
        ("[[cases]]\nname='a'\nprompt='b'\nlimits={turns='x'}", "cases.a.limits: .*a whole number"),
        (CHECK + "type='judge'\ncriterion='x'\nvotes=0", "votes is a whole number of at least 1"),
        (CHECK + "type='calls'\ntool='x'\nat_least=2\nat_most=1", "at_least is more than at_most"),
        (CHECK + "type='command'\ncommand='x'\nseconds=0", "seconds is more than 0"),
        ("[matrix.prompts]\na='@missing.md'", "missing.md cannot be read"),
    ],
)
def test_a_wrong_suite_names_the_file_and_the_key(tmp_path: Path, text: str, message: str):
    with pytest.raises(ConfigurationError, match=message):
        load_suite(write_suite(tmp_path, text))


def test_a_suite_is_read_from_python(tmp_path: Path):
    file = tmp_path / "mine.py"
    file.write_text("from outrider.evals import EvalCase\ncases = [EvalCase(name='a', prompt='b', checks=(bool,))]\n")
    suite = load_suite(file)
    assert (suite.name, suite.folder, suite.cases[0].checks) == ("mine", str(tmp_path), (bool,))
    file.write_text("cases = 3")
    with pytest.raises(ConfigurationError, match="neither `suite = EvalSuite"):
        load_suite(file)
    file.write_text("1 / 0")
    with pytest.raises(ConfigurationError, match="ZeroDivisionError"):
        load_suite(file)


def test_a_suite_in_python_imports_files_next_to_it_and_errors_have_a_line(tmp_path: Path):
    (tmp_path / "prompts_of_mine.py").write_text("TEXT = 'do it'\n")
    head = "import prompts_of_mine\nfrom outrider.evals import EvalCase\n"
    (tmp_path / "good.py").write_text(f"{head}cases = [EvalCase(name='a', prompt=prompts_of_mine.TEXT)]\n")
    (tmp_path / "wrong.py").write_text(f"{head}cases = [EvalCase(nam='a')]\n")
    assert load_suite(tmp_path / "good.py").cases[0].prompts == ("do it",)
    with pytest.raises(ConfigurationError, match=r"wrong\.py, line 3: ConfigurationError"):
        load_suite(tmp_path / "wrong.py")


def test_cases_are_selected_by_name_and_tag(tmp_path: Path):
    suite = load_suite(write_suite(tmp_path))
    assert [case.name for case in suite.select(["sec*"]).cases] == ["second"]
    assert [case.name for case in suite.select(tags=["quick"]).cases] == ["first"]
    with pytest.raises(ConfigurationError, match="no such case; did you mean first"):
        suite.select(["frist"])


def test_an_unknown_suite_lists_the_built_in_ones():
    with pytest.raises(ConfigurationError, match="one of coding"):
        load_suite("no-such-suite")


def test_the_built_in_suite_has_at_least_thirty_tasks():
    assert built_in_suites() == ["coding"]
    suite = load_suite("coding")
    assert len(suite.cases) >= 30
    assert all(case.checks and case.reference for case in suite.cases)


@pytest.mark.slow
async def test_each_built_in_task_passes_with_its_reference_and_fails_untouched():
    found = await validate_suite(load_suite("coding"))
    assert [one for one in found if one.problem] == []


async def test_checks_that_cannot_distinguish_a_solution_from_the_fixture_are_reported():
    cases = (
        EvalCase(name="no reference", prompt="x", checks=(AnswerCheck(contains="x"),)),
        EvalCase(name="passes", prompt="x", checks=(AnswerCheck(),), reference=EvalReference(answer="x")),
        EvalCase(name="fails", prompt="x", checks=(AnswerCheck(contains="y"),), reference=EvalReference(answer="x")),
        EvalCase(
            name="command",
            prompt="x",
            checks=(CommandCheck(command="test -e made"),),
            reference=EvalReference(commands="touch made"),
        ),
    )
    found = {one.case: one.problem for one in await validate_suite(EvalSuite(name="s", cases=cases))}
    assert found["no reference"].startswith("it has no reference")
    assert found["passes"] == "the untouched fixture passes"
    assert found["fails"].startswith("the reference fails: answer: it does not contain 'y'")
    assert found["command"] == ""


def test_a_file_of_a_case_stays_inside_its_folder(tmp_path: Path):
    (tmp_path / "inside").mkdir()
    with pytest.raises(ConfigurationError, match="leads out"):
        write_files(tmp_path / "inside", {"../outside.txt": "x"})
    assert not (tmp_path / "outside.txt").exists()


def solves(suite: EvalSuite) -> Any:
    """A model that carries out the reference solutions with the tools."""

    def answer(request: Request) -> Any:
        prompt = str(request.prompt[0].content)
        case = next(case for case in suite.cases if repr(case.prompts[0])[1:-1] in prompt)
        step = sum(message.role == "assistant" for message in request.prompt)
        assert case.reference is not None
        files = list(case.reference.files.items())
        existing = [call("read", file_path=path) for path, _ in files if path in case.files]
        if step == 0 and existing:
            return existing
        written = step == bool(existing) and files
        return (
            [call("write", file_path=path, content=text) for path, text in files]
            if written
            else (case.reference.answer or "Done.")
        )

    return scripted_model(answer)


@pytest.mark.slow
async def test_the_built_in_suite_runs_offline_and_distinguishes_a_working_agent_from_an_idle_one():
    suite = load_suite("coding")
    agent = Agent("worker", "Do the task.", "m", "demo")
    run = await async_run_suite(suite, [agent], [solves(suite)])
    assert [(one.case, one.problem) for one in run.attempts if one.status != "passed"] == []
    idle = await async_run_suite(suite, [agent], [scripted_model(lambda _: "I am done.")])
    assert idle.pass_rate().passed == 0
    assert compare_runs(run, idle).verdict == "regression"
