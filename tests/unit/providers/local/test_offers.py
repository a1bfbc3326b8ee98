"""A small model is offered the calls that lead on."""

import pytest

from outrider.providers.local.constrained_output import select_tools
from outrider.providers.local.prompt import LOCAL_TOOL_PROMPT, NoFileNames
from outrider.types.parts import TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, ModelSettings, Prompt, Request, ToolChoice, ToolSpec

TOOLS = tuple(ToolSpec(name, "", {}) for name in ("read", "write", "shell", "other"))
FILES = ["a.py", "b.py", "c.py"]
SUBJECTS = {"read": "file_path", "write": "file_path", "shell": "command", "other": "anything"}


class Names:
    """A text may be about the files whose names without the ending stand in it."""

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


def test_what_the_user_says_next_begins_anew():
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
