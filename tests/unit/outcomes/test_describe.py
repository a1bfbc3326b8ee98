"""What a question shows about an outcome: which paths are caches, ignored or protected, and diffs."""

import os
from pathlib import Path

import pytest

from outrider.outcomes.describe import (
    MAX_FILES,
    describe_outcome,
    ignored_paths,
    is_cache,
    list_changes,
    make_diff,
)
from outrider.outcomes.pending import OutcomeFolder, PendingOutcome
from outrider.outcomes.repository import list_protected
from outrider.processes.sandbox.overlay import FileStamp, OverlayChange, OverlayFolders, read_changes
from tests.fixtures.cases import for_each


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


@pytest.fixture
def folders(tmp_path: Path) -> OverlayFolders:
    return OverlayFolders.create(tmp_path / "overlay")


def described(workspace: Path, folders: OverlayFolders):
    changes = tuple(read_changes(workspace, folders))
    pending = PendingOutcome(session_id="s", call_id="c", workspace=str(workspace), changes=changes, content="said")
    return describe_outcome(pending, folders.upper)


@for_each(
    ("path", "cache"),
    [
        ("src/__pycache__/a.cpython-311.pyc", True), ("__pycache__", True), (".pytest_cache/v/x", True),
        ("a.pyc", True), ("node_modules/.cache/x", True), ("web/.next/cache/x", True), ("tsconfig.tsbuildinfo", True),
        ("src/a.py", False), ("node_modules/left-pad/index.js", False), (".next/build", False), ("cache/x", False),
        ("my__pycache__x", False), (".cache", False),
    ],
)  # fmt: skip
def test_caches_of_known_tools_are_by_products(path: str, cache: bool):
    assert is_cache(path) is cache


def test_ignore_files_of_the_workspace_count_and_those_of_the_command_do_not(workspace: Path, folders: OverlayFolders):
    (workspace / ".gitignore").write_text("build/\n*.log\n!keep.log\n")
    (workspace / "sub").mkdir()
    (workspace / "sub" / ".gitignore").write_text("own\n")
    for name in ("build/a", "x.log", "keep.log", "sub/own", "own", "src.py"):
        (folders.upper / name).parent.mkdir(exist_ok=True)
        (folders.upper / name).write_text("x")
    (folders.upper / ".gitignore").write_text("*\n")
    found = ignored_paths(workspace, read_changes(workspace, folders))
    assert found == {"build", "build/a", "x.log", "sub/own"}


def test_an_ignore_file_that_is_a_pipe_does_not_block(workspace: Path):
    os.mkfifo(workspace / ".gitignore")
    assert ignored_paths(workspace, [OverlayChange("a", "created", "file")]) == set()


def test_files_that_steer_tools_or_hold_secrets_come_first(workspace: Path, folders: OverlayFolders):
    for name in ("a.py", ".env", "AGENTS.md"):
        (folders.upper / name).write_text("x\n")
    files = described(workspace, folders).files
    assert [(file.path, file.protected) for file in files[:2]] == [(".env", True), ("AGENTS.md", True)]
    assert list_protected(workspace, folders.upper, read_changes(workspace, folders)) == {".env", "AGENTS.md"}


def test_a_diff_shows_what_changes(workspace: Path, folders: OverlayFolders):
    (workspace / "a").write_text("one\ntwo\n")
    (folders.upper / "a").write_text("one\n2")
    (folders.upper / "b").write_text("new\n")
    (folders.upper / "bin").write_bytes(b"\0")
    (folders.upper / "link").symlink_to("a")
    files = {file.path: file for file in described(workspace, folders).files}
    assert files["a"].diff == "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    assert files["b"].diff == "--- /dev/null\n+++ b/b\n@@ -0,0 +1 @@\n+new\n"
    assert (files["bin"].diff, files["link"].diff, files["link"].note) == ("", "", "link to a")
    gone = OverlayChange("a", "deleted", "file", base=FileStamp.of_path(workspace / "a"))
    assert make_diff(workspace, folders.upper, gone) == "--- a/a\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n"


def test_modes_folders_and_conflicts_are_said(workspace: Path, folders: OverlayFolders):
    (workspace / "a").write_text("x")
    (folders.upper / "a").write_text("x")
    (folders.upper / "a").chmod(0o755)
    (folders.upper / "run").write_text("x")
    (folders.upper / "run").chmod(0o755)
    (folders.upper / "empty").mkdir()
    (folders.upper / "full").mkdir()
    (folders.upper / "full" / "x").write_text("x")
    os.mkfifo(folders.upper / "pipe")
    files = {file.path: file for file in described(workspace, folders).files}
    assert files.keys() == {"a", "run", "empty", "full/x", "pipe"}
    assert files["a"].note == "mode 644 becomes 755"
    assert (files["run"].note, files["pipe"].file) == ("executable", "special")
    changes = tuple(read_changes(workspace, folders))
    (workspace / "run").write_text("theirs")
    pending = PendingOutcome(session_id="s", call_id="c", workspace=str(workspace), changes=changes, content="")
    assert [file.path for file in describe_outcome(pending, folders.upper).files if file.conflict] == ["run"]


def test_many_files_are_counted(workspace: Path, folders: OverlayFolders):
    for number in range(MAX_FILES + 5):
        (folders.upper / f"{number:04}").touch()
    outcome = described(workspace, folders)
    assert (len(outcome.files), outcome.more_files) == (MAX_FILES, 5)
    listed = list_changes(read_changes(workspace, folders))
    assert listed.startswith("0000 (created), 0001 (created)")
    assert listed.endswith(f"and {MAX_FILES - 15} more")


def test_stored_outcomes_survive_and_are_removed(workspace: Path, tmp_path: Path):
    folder = OutcomeFolder(tmp_path / "data", "../../session", workspace)
    assert folder.load("call") is None
    for call_id in ("call", "../other"):
        folders = folder.prepare(call_id)
        (folders.upper / "locked").mkdir(mode=0)
        folder.save(
            PendingOutcome(session_id="s", call_id=call_id, workspace=str(workspace), changes=(), content=call_id)
        )
    assert folder.root.is_relative_to(tmp_path / "data" / "overlays")
    assert folder.upper("../other").is_relative_to(folder.root)
    again = OutcomeFolder(tmp_path / "data", "../../session", workspace)
    assert [again.load(call_id).content for call_id in ("call", "../other")] == ["call", "../other"]
    again.remove_except(["call"])
    assert again.load("../other") is None
    (folder.upper("call").parent / "outcome.json").write_text('{"broken')
    assert again.load("call") is None
    again.remove("call")
    assert not folder.upper("call").parent.exists()


def test_each_workspace_and_session_has_its_own_overlays(workspace: Path, tmp_path: Path):
    roots = {OutcomeFolder(tmp_path, session, place).root for session in ("a", "b") for place in (workspace, tmp_path)}
    assert len(roots) == 4


def test_committed_paths_leave_the_layer(workspace: Path, tmp_path: Path):
    folder = OutcomeFolder(tmp_path / "data", "s", workspace)
    folder.prepare("call")
    (folder.layer / "d").mkdir()
    (folder.layer / "d" / "x").touch()
    (folder.layer / "f").touch()
    assert folder.layers() == (folder.layer,)
    folder.forget_cached(["d", "f", "absent", "absent/below"])
    assert folder.layers() == ()
