"""A small model is offered the names of existing files."""

from pathlib import Path

import pytest

from outrider.providers.local.workspace_files import MAX_FILE_NAMES, WorkspaceFileSource
from outrider.types.parts import TextPart
from outrider.types.request import ModelMessage, Prompt, Request

NAMES = WorkspaceFileSource()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    for name in ("shop/cart.py", "shop/price_list.py", "tests/test_cart.py", "README.md", ".env", "node_modules/x.js"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return tmp_path


def asking(workspace: Path | str, *texts: str) -> Request:
    return Request("m", Prompt([ModelMessage("user", (TextPart(text),)) for text in texts]), workspace=str(workspace))


def test_files_are_offered_without_what_is_hidden_or_not_the_users_own(workspace):
    offered = ["README.md", "shop/cart.py", "shop/price_list.py", "tests/test_cart.py"]
    assert NAMES.list_files(asking(workspace, "Hello.")) == offered


def test_a_file_that_the_user_names_can_be_named_though_it_is_not_there(workspace):
    offered = NAMES.list_files(asking(workspace, "Earlier: a/b.txt", "Show me nothing.txt, and cart.py."))
    assert "nothing.txt" in offered
    assert "cart.py" not in offered  # shop/cart.py is meant
    assert "a/b.txt" not in offered


def test_numbers_are_not_read_as_names(workspace):
    assert "4.0" not in NAMES.list_files(asking(workspace, "It costs 4.0, see v1.2."))


def test_where_there_are_too_many_files_none_are_offered(tmp_path):
    for number in range(MAX_FILE_NAMES + 1):
        (tmp_path / f"{number}.txt").touch()
    assert NAMES.list_files(asking(tmp_path, "Hello.")) == ()


def test_without_a_workspace_nothing_is_offered():
    assert NAMES.list_files(asking("", "Hello.")) == ()
    assert NAMES.match_files(asking("", ""), "cart") == []


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("What does the cart do?", ["shop/cart.py", "tests/test_cart.py"]),
        ("Read the readme", ["README.md"]),
        ("Is price_list.py right?", ["shop/price_list.py"]),
        ("Test the cart", ["tests/test_cart.py", "shop/cart.py"]),
        ("Does test_cart.py test cart.py?", ["tests/test_cart.py", "shop/cart.py"]),
        ("cart.py has no test", ["shop/cart.py", "tests/test_cart.py"]),
        ("Hello!", []),
    ],
)
def test_files_match_by_the_words_in_their_names(workspace, text, meant):
    assert NAMES.match_files(asking(workspace, text), text) == meant
