"""Files that configure programs and that a sandboxed command created: they are found, moved away and reported."""

from pathlib import Path

import pytest

from outrider.permissions.paths.protected import find_protected_files
from outrider.processes.sandbox.sandbox import ProtectedState, describe_planted


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


def state(workspace: Path) -> ProtectedState:
    return ProtectedState(lambda: find_protected_files(workspace))


def test_what_was_not_there_before_is_moved_away_and_preserved(workspace: Path, tmp_path: Path):
    (workspace / "AGENTS.md").write_text("mine")
    before = state(workspace)
    (workspace / ".mcp.json").write_text("planted")
    assert before.quarantine_planted(tmp_path / "kept") == (workspace / ".mcp.json",)
    assert not (workspace / ".mcp.json").exists()
    assert (tmp_path / "kept" / ".mcp.json").read_text() == "planted"
    assert (workspace / "AGENTS.md").read_text() == "mine"


def test_without_planted_files_nothing_is_stored(workspace: Path, tmp_path: Path):
    assert state(workspace).quarantine_planted(tmp_path / "kept") == ()
    assert not (tmp_path / "kept").exists()


def test_a_dangling_link_is_planted_too(workspace: Path, tmp_path: Path):
    before = state(workspace)
    (workspace / "AGENTS.md").symlink_to("nowhere")
    assert before.quarantine_planted(tmp_path / "kept") == (workspace / "AGENTS.md",)


def test_what_is_planted_twice_is_preserved_twice(workspace: Path, tmp_path: Path):
    for _ in range(2):
        before = state(workspace)
        (workspace / ".mcp.json").write_text("planted")
        before.quarantine_planted(tmp_path / "kept")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [".mcp.json", ".mcp.json.1"]


def test_on_another_disk_it_loses_its_name_only(workspace: Path, tmp_path: Path):
    other_device = Path("/dev/shm")
    if not other_device.is_dir() or other_device.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system")
    before = state(workspace)
    (workspace / ".mcp.json").write_text("planted")
    assert before.quarantine_planted(other_device) == (workspace / ".mcp.json",)
    assert [path.name for path in workspace.iterdir()] == [".mcp.json.planted"]


def test_only_planted_files_are_reported(workspace: Path, tmp_path: Path):
    assert describe_planted([], tmp_path) == ""
    text = describe_planted([Path("/w/.mcp.json"), Path("/w/AGENTS.md")], Path("/kept"))
    assert text == "the sandbox does not allow these files; moved away to /kept: /w/.mcp.json, /w/AGENTS.md"


def test_replaced_links_are_put_back(workspace: Path, tmp_path: Path):
    (workspace / "CLAUDE.md").write_text("mine")
    (workspace / "AGENTS.md").symlink_to("CLAUDE.md")
    (workspace / ".git").mkdir()
    (workspace / ".git" / "hooks").symlink_to("../scripts")
    before = state(workspace)
    (workspace / "AGENTS.md").unlink()
    (workspace / "AGENTS.md").write_text("planted")
    (workspace / ".git" / "hooks").unlink()
    (workspace / ".git" / "hooks").symlink_to("../evil")
    planted = before.quarantine_planted(tmp_path / "kept")
    assert set(planted) == {workspace / "AGENTS.md", workspace / ".git" / "hooks"}
    assert (workspace / "AGENTS.md").read_text() == "mine"
    assert (workspace / ".git" / "hooks").readlink() == Path("../scripts")
    assert before.quarantine_planted(tmp_path / "kept") == ()


@pytest.mark.parametrize(
    "name",
    [
        "sub/AGENTS.md", "sub/.vscode/tasks.json", "sub/deep/.mcp.json", ".npmrc", ".exrc", "rust-toolchain.toml",
        "AGENTS.override.md", "x.code-workspace", "sub/.git/config", ".git/config.worktree", ".git/commondir",
        ".git/objects/info/alternates", ".github/workflows/ci.yml", "sub/.git", ".husky/pre-commit",
    ],
)  # fmt: skip
def test_every_protected_name_is_found_also_in_subfolders(name: str, workspace: Path, tmp_path: Path):
    (workspace / ".git").mkdir()
    (workspace / "sub").mkdir()
    before = state(workspace)
    (workspace / name).parent.mkdir(parents=True, exist_ok=True)
    (workspace / name).write_text("planted")
    (workspace / ".git" / "index").write_text("data")
    (planted,) = before.quarantine_planted(tmp_path / "kept")
    assert (workspace / name).is_relative_to(planted)
    assert not (workspace / name).exists()
    assert (workspace / ".git" / "index").exists()


def test_a_planted_bare_repository_is_no_repository_any_more(workspace: Path, tmp_path: Path):
    before = state(workspace)
    for name in ("objects", "refs", "hooks"):
        (workspace / "fake" / name).mkdir(parents=True)
    for name in ("HEAD", "config"):
        (workspace / "fake" / name).write_text("ref: refs/heads/x\n")
    before.quarantine_planted(tmp_path / "kept")
    assert {path.name for path in (workspace / "fake").iterdir()} == {"objects", "refs"}
