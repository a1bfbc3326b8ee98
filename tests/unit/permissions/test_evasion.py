"""Techniques that hide an effect in a command, and harmless commands that must stay allowed.

`asked.txt` and `run.txt` hold one command line per line; ⏎ represents a line end.
"""

import subprocess
from pathlib import Path

import pytest

from tests.fixtures.cases import for_each
from tests.fixtures.shell_analysis import judge as decide

HERE = Path(__file__).parent
ASKED = HERE.joinpath("asked.txt").read_text(encoding="utf-8").splitlines()
RUN = HERE.joinpath("run.txt").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("techniques")
    (place / "ws" / "src").mkdir(parents=True)
    (place / "out").mkdir()
    (place / "out" / "secret.txt").write_text("x")
    for name in (
        "README.md",
        "data.csv",
        "notes.txt",
        "src/app.py",
        ".env",
        "script.sh",
        "a",
        "b",
        "x",
        "package.json",
    ):
        (place / "ws" / name).write_text("x\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], cwd=place / "ws", check=True, capture_output=True)
    return place / "ws"


@for_each("command", ASKED)
def test_what_is_not_proven_harmless_does_not_run_unasked(command: str, workspace: Path):
    found = decide("shell", {"command": command.replace("⏎", "\n")}, mode="plan", workspace=workspace)
    assert found.effect == "deny"


@for_each("command", RUN)
def test_plain_work_runs_unasked(command: str, workspace: Path):
    found = decide("shell", {"command": command.replace("⏎", "\n")}, mode="plan", workspace=workspace)
    assert found.effect == "allow", found.reason


@for_each(
    "char",
    [
        "\x00",
        "\x07",
        "\x1b",
        "\r",
        "\x7f",
        "\x85",
        "\xa0",
        "\xad",
        "\u200b",
        "\u200d",
        "\u202e",
        "\u2028",
        "\u2066",
        "\u3000",
        "\u3164",
        "\ufeff",
        "\U000e0041",
        "\ue000",
    ],
)
def test_a_character_that_is_not_shown_as_it_is_asks(char: str, workspace: Path):
    for command in (f"ls {char}", f"ls{char}", f"echo 'a{char}b'"):
        assert decide("shell", {"command": command}, mode="plan", workspace=workspace).effect == "deny"


@pytest.mark.parametrize("command", ["echo 'héllo wörld'", "grep -n 'über' README.md", "echo 日本語", "echo '✓ done'"])
def test_other_languages_are_no_reason_to_ask(command: str, workspace: Path):
    assert decide("shell", {"command": command}, mode="plan", workspace=workspace).effect == "allow"


@pytest.mark.parametrize(
    "command",
    [
        "echo " + "a" * 10_001,
        "(" * 200,
        "$(" * 100 + "ls" + ")" * 100,
        "; ".join(["ls"] * 400),
        "timeout 5 " * 30 + "ls",
    ],
)
def test_unreadable_commands_ask(command: str, workspace: Path):
    assert decide("shell", {"command": command}, mode="plan", workspace=workspace).effect == "deny"


def test_a_file_named_like_an_option_is_no_argument(tmp_path: Path):
    (tmp_path / "--files0-from=x").write_text("x")
    (tmp_path / "a").write_text("x")
    assert decide("shell", {"command": "wc *"}, mode="plan", workspace=tmp_path).effect == "deny"
    assert decide("shell", {"command": "wc ./*"}, mode="plan", workspace=tmp_path).effect == "allow"
    assert decide("shell", {"command": "wc -- *"}, mode="plan", workspace=tmp_path).effect == "allow"


def test_a_pattern_that_matches_too_much_to_look_at_asks(tmp_path: Path):
    for number in range(400):
        (tmp_path / f"f{number}").touch()
    assert decide("shell", {"command": "cat f*"}, mode="plan", workspace=tmp_path).effect == "deny"
    assert decide("shell", {"command": "cat f1*"}, mode="plan", workspace=tmp_path).effect == "allow"


def test_a_pattern_is_judged_by_the_files_it_matches(tmp_path: Path):
    (tmp_path / "ws" / "d").mkdir(parents=True)
    (tmp_path / "out.txt").write_text("x")
    workspace = tmp_path / "ws"
    (workspace / "d" / "plain").write_text("x")
    assert decide("shell", {"command": "cat d/*"}, mode="plan", workspace=workspace).effect == "allow"
    (workspace / "d" / "link").symlink_to("../../out.txt")
    assert decide("shell", {"command": "cat d/*"}, mode="plan", workspace=workspace).effect == "deny"
    assert decide("shell", {"command": "cat d/p*"}, mode="plan", workspace=workspace).effect == "allow"
    assert decide("shell", {"command": "cat d/[!p]*"}, mode="plan", workspace=workspace).effect == "deny"
    assert decide("shell", {"command": "cat d/[^p]*"}, mode="plan", workspace=workspace).effect == "deny"


def test_folders_are_followed_and_links_to_them_are_not(tmp_path: Path):
    (tmp_path / "ws" / "a" / "b").mkdir(parents=True)
    workspace = tmp_path / "ws"
    (workspace / "link").symlink_to("a/b")
    assert decide("shell", {"command": "cd a/b && cat ../../x"}, mode="plan", workspace=workspace).effect == "allow"
    assert decide("shell", {"command": "cd link && cat ../x"}, mode="plan", workspace=workspace).effect == "deny"
