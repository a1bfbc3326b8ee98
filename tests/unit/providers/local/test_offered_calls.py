"""Which calls a small model is offered."""

from pathlib import Path

import pytest

from outrider.providers.local.constrained_output import RecentCalls, ToolOffer, has_to_look, select_tools
from outrider.providers.local.prompt import LOCAL_TOOL_PROMPT, NoFileNames
from outrider.providers.local.question_topics import ReadCall
from outrider.providers.local.workspace_files import WorkspaceFileSource
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


def looking(asked: str, *calls: ReadCall, folder: Path) -> tuple[list[ToolOffer], bool]:
    """The offered tools, and whether the model has to look before it answers."""
    prompt = Prompt([ModelMessage("user", (TextPart(asked),))])
    for number, call in enumerate(calls):
        prompt.append(ModelMessage("assistant", (ToolUsePart(str(number), call.tool, dict(call.arguments)),)))
        prompt.append(ModelMessage("user", (ToolResultPart(str(number), "x"),)))
    request = Request("tiny", prompt, "", LOOKING_TOOLS, workspace=str(folder))
    offers = select_tools(request, LOCAL_TOOL_PROMPT, WorkspaceFileSource())
    return offers, has_to_look(request, LOCAL_TOOL_PROMPT, WorkspaceFileSource(), offers)


def offered_names(asked: str, *calls: ReadCall, folder: Path) -> set[str]:
    return {offer.tool.name for offer in looking(asked, *calls, folder=folder)[0]}


def read(path: str) -> ReadCall:
    return ReadCall("read", {"file_path": path})


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
        path.write_text("Install the test.\n" * (50 if name.endswith("shop.py") else 1))
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "looks"),
    [
        (
            "Explain how this project is put together",
            [ReadCall("list", {"path": ".", "depth": 3}), read("README.rst"), read("src/tea/shop.py")],
        ),
        ("What is it?", [read("README.rst"), read("pyproject.toml")]),
        ("How do I run the tests?", [read("pyproject.toml"), read("README.rst")]),
        ("how can we install it", [read("README.rst"), read("pyproject.toml")]),
        ("Which dependencies does it have?", [read("pyproject.toml")]),
        ("Can you explain what this code does?", [read("README.rst"), read("pyproject.toml")]),
    ],
)
def test_a_question_with_a_known_topic_is_answered_after_the_looks_that_it_needs(asked, looks, project):
    for done in range(len(looks)):
        offers, must = looking(asked, *looks[:done], folder=project)
        assert must
        assert [ReadCall(offer.tool.name, offer.arguments) for offer in offers] == [looks[done]]
    offers, must = looking(asked, *looks, folder=project)
    assert not must
    assert [offer.tool.name for offer in offers] == ["other"]


@pytest.mark.parametrize(
    ("asked", "look"),
    [
        ("What does src/tea/shop.py do?", read("src/tea/shop.py")),
        ("Where is get_tea used?", ReadCall("grep", {"pattern": "get_tea", "context": 4})),
        ("What does the function brew do?", ReadCall("grep", {"pattern": "brew", "context": 4})),
        ("What is the Kettle for?", ReadCall("grep", {"pattern": "Kettle", "context": 4})),
    ],
)
def test_a_file_or_symbol_that_a_question_names_is_looked_at_first(asked, look, project):
    offers, must = looking(asked, folder=project)
    assert must
    assert [ReadCall(offer.tool.name, offer.arguments) for offer in offers] == [look]
    assert not looking(asked, look, folder=project)[1]


def test_after_a_file_that_a_question_names_others_can_be_read(project):
    asked = "Why does tests/test_shop.py fail, and is shop.py wrong? See NEWS."
    offers, must = looking(asked, read("tests/test_shop.py"), read("src/tea/shop.py"), folder=project)
    assert not must
    assert "shell" in {offer.tool.name for offer in offers}
    assert not any(offer.arguments for offer in offers)


def test_a_look_that_differs_from_its_plan_is_not_made_again(project):
    offers, must = looking("Is there anything left to do here?", ReadCall("grep", {"pattern": "TO"}), folder=project)
    assert not must
    assert [offer.tool.name for offer in offers] == ["other"]


def test_the_model_chooses_its_looks_for_a_question_without_a_known_topic(project):
    asked = "Why is the tea in this program cold?"
    offers, must = looking(asked, folder=project)
    assert must
    assert {"read", "grep", "list"} <= {offer.tool.name for offer in offers}
    assert not looking(asked, read("README.rst"), folder=project)[1]


def test_no_command_runs_for_a_question_how_something_is_done(project):
    assert "shell" not in offered_names("How do I reach the kettle in this program?", folder=project)
    assert "shell" in offered_names("Do the tests pass? Run them.", folder=project)


@pytest.mark.parametrize("asked", ["Hello!", "What does HTTP stand for?", "Thanks, that is all for today."])
def test_what_needs_no_file_is_answered_at_once(asked, project):
    assert not looking(asked, folder=project)[1]


def test_a_task_may_change_files(project):
    assert "write" in offered_names("Fix the bug in shop.py", folder=project)
    assert "write" in offered_names("Can you add a test?", folder=project)


def test_the_model_looks_a_few_times_and_then_has_to_answer(project):
    asked, looks = "Why is the tea in this program cold?", {"read", "list", "grep"}
    calls = [read("README.rst"), ReadCall("list", {"path": "."}), read("pyproject.toml")]
    assert "grep" in offered_names(asked, *calls[:2], folder=project)
    assert not looks & offered_names(asked, *calls, folder=project)


def test_after_long_results_the_model_has_to_answer(project):
    (project / "README.rst").write_text("x" * 6_000)
    prompt = Prompt([ModelMessage("user", (TextPart("Why is the tea in this program cold?"),))])
    prompt.append(ModelMessage("assistant", (ToolUsePart("1", "read", {"file_path": "README.rst"}),)))
    prompt.append(ModelMessage("user", (ToolResultPart("1", "x" * 6_000),)))
    request = Request("tiny", prompt, "", LOOKING_TOOLS, workspace=str(project))
    offers = select_tools(request, LOCAL_TOOL_PROMPT, WorkspaceFileSource())
    assert not {"read", "list", "grep"} & {offer.tool.name for offer in offers}


def test_after_a_change_the_model_may_look_again(project):
    calls = [
        read("README.rst"),
        read("NEWS"),
        ReadCall("list", {"path": "."}),
        ReadCall("write", {"file_path": "NEWS"}),
    ]
    assert "read" in offered_names("Add a line to NEWS, then check README.rst", *calls, folder=project)


def test_texts_that_the_engine_adds_are_not_the_request(project):
    state = TextPart("entries: README.rst NEWS shop.py", synthetic=True)
    prompt = Prompt([ModelMessage("user", (TextPart("What does this project do?"), state))])
    latest = RecentCalls(prompt)
    assert latest.request_text == "What does this project do?"
    request = Request("tiny", prompt, "", LOOKING_TOOLS, workspace=str(project))
    (first,) = select_tools(request, LOCAL_TOOL_PROMPT, WorkspaceFileSource())
    assert first.arguments == {"file_path": "README.rst"}


def test_a_request_after_an_interrupted_one_is_the_request(project):
    prompt = Prompt([ModelMessage("user", (TextPart("Add a line to NEWS."), TextPart("What is this project?")))])
    assert RecentCalls(prompt).request_text == "What is this project?"
