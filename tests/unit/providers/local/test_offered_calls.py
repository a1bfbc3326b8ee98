"""Which calls a small model is offered."""

from pathlib import Path

import pytest

from outrider.providers.local.constrained_output import RecentCalls, has_to_look, select_tools
from outrider.providers.local.prompt import LOCAL_TOOL_PROMPT, NoFileNames, WorkspaceFileSource
from outrider.types.parts import TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, ModelSettings, Prompt, Request, ToolChoice, ToolSpec

TOOLS = tuple(ToolSpec(name, "", {}) for name in ("read", "write", "shell", "other"))
FILES = ["a.py", "b.py", "c.py"]
SUBJECTS = {"read": "file_path", "write": "file_path", "shell": "command", "other": "anything"}


class Names(NoFileNames):
    """A text may be about the files whose names it contains without the ending."""

    def list_files(self, request):
        return FILES

    def match_files(self, request, text):
        return [name for name in FILES if name[0] in text.split()]


NAMES = Names()


def offered(*calls, asked="Go.", choice="auto", names=NAMES) -> dict[str, list[str]]:
    """The tools and their names, after calls of (tool, subject, result)."""
    prompt = Prompt([ModelMessage("user", (TextPart(asked),))])
    for number, (tool, subject, result) in enumerate(calls):
        prompt.append(ModelMessage("assistant", (ToolUsePart(str(number), tool, {SUBJECTS[tool]: subject}),)))
        prompt.append(ModelMessage("user", (ToolResultPart(str(number), result),)))
    settings = ModelSettings(tool_choice=ToolChoice(choice, "shell" if choice == "tool" else None))
    request = Request("tiny", prompt, "", TOOLS, settings=settings)
    return {offer.tool.name: list(offer.paths) for offer in select_tools(request, LOCAL_TOOL_PROMPT, names)}


def test_at_first_everything_can_be_called_and_every_file_named():
    assert offered() == dict.fromkeys(("read", "write", "shell", "other"), FILES)


@pytest.mark.parametrize(
    ("choice", "names"), [("required", ["read", "write", "shell", "other"]), ("tool", ["shell"]), ("none", [])]
)
def test_a_caller_who_insists_gets_what_they_asked_for(choice, names):
    twice = [("read", "a.py", "x")] * 2 + [("shell", "make", "x")] * 2
    assert list(offered(*twice, choice=choice)) == names


def test_after_a_file_only_those_are_read_that_something_speaks_of():
    assert offered(("read", "a.py", "import b"))["read"] == ["b.py"]
    assert offered(("read", "a.py", "x"), asked="Compare a.py with c.py")["read"] == ["c.py"]


def test_where_nothing_speaks_of_another_file_reading_is_over():
    assert "read" not in offered(("read", "a.py", "nothing of interest"))
    assert "read" not in offered(("read", "a.py", "import b"), ("read", "b.py", "import a"))


def test_after_another_step_every_file_can_be_read_again():
    assert offered(("read", "a.py", "x"), ("shell", "make", "x"))["read"] == FILES


def test_the_next_input_starts_a_new_turn():
    prompt = Prompt([ModelMessage("user", (TextPart("Go."),))])
    prompt.append(ModelMessage("assistant", (ToolUsePart("1", "read", {"file_path": "a.py"}),)))
    prompt.append(ModelMessage("user", (ToolResultPart("1", "x"),)))
    prompt.append(ModelMessage("assistant", (TextPart("Done."),)))
    prompt.append(ModelMessage("user", (TextPart("And again."),)))
    found = {
        offer.tool.name: offer.paths
        for offer in select_tools(Request("tiny", prompt, "", TOOLS), LOCAL_TOOL_PROMPT, NAMES)
    }
    assert found["read"] == FILES


def test_the_same_is_not_done_a_third_time_in_a_row():
    once, other = ("write", "a.py", "x"), ("write", "b.py", "x")
    assert "write" in offered(once)
    assert "write" not in offered(once, once)
    assert "write" in offered(once, once, ("shell", "make", "x"))
    assert "write" in offered(once, other)
    assert "shell" not in offered(("shell", "make", "x"), ("shell", "make", "x"))


def test_where_names_are_not_known_a_file_is_not_read_a_third_time_in_a_row():
    assert offered(("read", "a.py", "x"), names=NoFileNames())["read"] == []
    assert "read" not in offered(("read", "a.py", "x"), ("read", "a.py", "x"), names=NoFileNames())


def test_a_tool_that_nothing_is_known_of_is_always_offered():
    assert "other" in offered(*[("other", "same", "x")] * 3)


LOOKING_TOOLS = (*TOOLS, ToolSpec("list", "", {}), ToolSpec("grep", "", {}))


def looking(asked: str, *calls: tuple[str, str], folder: Path, size: int = 10) -> tuple[dict[str, list[str]], bool]:
    """The offered tools with their files, and whether the model has to look before it answers."""
    prompt = Prompt([ModelMessage("user", (TextPart(asked),))])
    for number, (tool, subject) in enumerate(calls):
        prompt.append(ModelMessage("assistant", (ToolUsePart(str(number), tool, {"file_path": subject}),)))
        prompt.append(ModelMessage("user", (ToolResultPart(str(number), "x" * size),)))
    request = Request("tiny", prompt, "", LOOKING_TOOLS, workspace=str(folder))
    offers = select_tools(request, LOCAL_TOOL_PROMPT, WorkspaceFileSource())
    must = has_to_look(request, LOCAL_TOOL_PROMPT, WorkspaceFileSource(), offers)
    return {offer.tool.name: list(offer.paths) for offer in offers}, must


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in (
        "README.rst",
        "pyproject.toml",
        "src/tea/shop.py",
        "src/tea/__init__.py",
        "tests/test_shop.py",
        "NEWS",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x\n" * (50 if name.endswith("shop.py") else 1))
    return tmp_path


@pytest.mark.parametrize("asked", ["Explain how this project is put together", "What is it?"])
def test_a_question_about_the_workspace_is_answered_after_a_look(asked, project):
    offers, must = looking(asked, folder=project)
    assert must
    assert sorted(offers["read"]) == ["README.rst", "pyproject.toml", "src/tea/__init__.py", "src/tea/shop.py"]
    assert "write" not in offers
    assert not looking(asked, ("read", "README.rst"), folder=project)[1]


@pytest.mark.parametrize(
    "asked", ["How do I run the tests?", "how can we install it", "Which dependencies does it have?"]
)
def test_how_something_is_done_is_read_in_the_manifest_and_the_readme(asked, project):
    offers, must = looking(asked, folder=project)
    assert must
    assert sorted(offers["read"]) == ["README.rst", "pyproject.toml"]
    assert "write" not in offers


def test_no_command_runs_for_a_question_how_something_is_done(project):
    assert "shell" not in looking("How do I run the tests?", folder=project)[0]
    assert "shell" in looking("Do the tests pass? Run them.", folder=project)[0]


@pytest.mark.parametrize("asked", ["Hello!", "What does HTTP stand for?", "Thanks, that is all for today."])
def test_what_needs_no_file_is_answered_at_once(asked, project):
    assert not looking(asked, folder=project)[1]


def test_a_task_may_change_files(project):
    assert "write" in looking("Fix the bug in shop.py", folder=project)[0]
    assert "write" in looking("Can you add a test?", folder=project)[0]


def test_the_model_looks_a_few_times_and_then_has_to_answer(project):
    calls = [("read", "README.rst"), ("list", "."), ("read", "pyproject.toml")]
    assert "grep" in looking("Explain this project", *calls[:2], folder=project)[0]
    assert not {"read", "list", "grep"} & set(looking("Explain this project", *calls, folder=project)[0])
    long = looking("Explain this project", *calls[:1], folder=project, size=6_000)[0]
    assert not {"read", "list", "grep"} & set(long)


def test_after_a_change_the_model_may_look_again(project):
    calls = [("read", "README.rst"), ("read", "NEWS"), ("list", "."), ("write", "NEWS")]
    assert "read" in looking("Add a line to NEWS, then check README.rst", *calls, folder=project)[0]


def test_texts_that_the_engine_adds_are_not_the_request(project):
    state = TextPart("entries: README.rst NEWS shop.py", synthetic=True)
    prompt = Prompt([ModelMessage("user", (TextPart("What does this project do?"), state))])
    latest = RecentCalls(prompt)
    assert latest.request_text == "What does this project do?"
    request = Request("tiny", prompt, "", LOOKING_TOOLS, workspace=str(project))
    read = next(offer for offer in select_tools(request, LOCAL_TOOL_PROMPT, WorkspaceFileSource()))
    assert "NEWS" not in read.paths
