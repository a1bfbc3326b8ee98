"""What unusual paths resolve to: cases in addition to those of the corpus."""

import os
from pathlib import Path

import msgspec
import pytest

from outrider.permissions import contain
from tests.fixtures.cases import for_each
from tests.fixtures.shell_analysis import judge as decide

WINDOWS = "C:\\b\\ws"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "ws" / "src").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    for name in ("ws/README.md", "ws/.env", "out/secret.txt"):
        (tmp_path / name).write_text("x")
    os.mkfifo(tmp_path / "ws" / "pipe")
    (tmp_path / "ws" / "link").symlink_to("../out")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "op", "kind"),
    [
        ("README.md/.", "read", "reject"),
        ("README.md/./", "read", "reject"),
        ("pipe", "search", "reject"),
        ("src", "search", "inside"),
        ("\ud800", "read", "reject"),
        ("src/\udfff", "create", "reject"),
        ("\udce9.txt", "create", "inside"),
        ("File:/etc/passwd", "read", "reject"),
        ("HTTPS://example.org/x", "read", "reject"),
        ("a" * 4095, "create", "reject"),
        ("x/" * 2047 + "x", "create", "reject"),
    ],
)
def test_what_the_kernel_would_not_open_is_refused(path: str, op: str, kind: str, place: Path):
    assert contain(path, root=place / "ws", cwd=place / "ws", op=op).kind == kind


def test_a_root_with_two_slashes_is_no_share_of_another_machine(place: Path):
    root = f"/{place}/ws"
    assert contain("link/secret.txt", root=root, cwd=root).kind == "outside"
    assert contain("README.md", root=root, cwd=root).real_path == str(place / "ws" / "README.md")


def test_a_root_may_be_written_from_where_the_program_is(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(place)
    assert contain("README.md", root="ws", cwd="ws").real_path == str(place / "ws" / "README.md")
    assert contain("../out/secret.txt", root="ws", cwd="ws").kind == "outside"


def test_a_further_root_that_is_gone_takes_nothing_away_from_the_others(place: Path):
    workspace = place / "ws"
    assert contain("README.md", root=workspace, cwd=workspace, extra_roots=[place / "gone"]).kind == "inside"
    assert contain(place / "gone" / "x", root=workspace, cwd=workspace, extra_roots=[place / "gone"]).kind == "outside"


@for_each(
    ("path", "op", "kind"),
    [
        ("~\\.ssh\\id_rsa", "read", "outside"),
        ("~/x", "read", "outside"),
        ("~", "read", "outside"),
        ("~x", "read", "inside"),
        (".. \\out", "read", "reject"),
        ("src\\...\\x", "read", "reject"),
        (". .\\x", "read", "reject"),
        ("..\\ws\\x", "read", "inside"),
        ("ENV~1", "read", "protected"),
        ("env~1.loc", "read", "protected"),
        ("MCP~1.JSO", "write", "protected"),
        ("VSCODE~1\\settings.json", "write", "protected"),
        ("GITATT~2", "write", "protected"),
        ("README~1.MD", "write", "inside"),
        ("src\\x~1", "write", "inside"),
    ],
)
def test_windows_names_are_read_as_windows_reads_them(path: str, op: str, kind: str):
    assert contain(path, root=WINDOWS, cwd=WINDOWS, op=op).kind == kind


@pytest.mark.parametrize("path", ["a\ud800", "../\udce9", "\udce9/.env"])
@pytest.mark.parametrize("tool", ["read", "write"])
def test_a_decision_about_a_name_that_is_no_text_can_be_stored(tool: str, path: str, place: Path):
    found = decide(tool, {"path": path, "content": "x"}, mode="agent", workspace=place / "ws")
    assert found.effect != "allow"
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found
