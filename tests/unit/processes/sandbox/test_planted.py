"""Steering files that a command plants are found and moved away."""

from pathlib import Path

import pytest

from outrider.processes.sandbox.defaults import describe_planted, find_absent_paths, quarantine_planted
from outrider.processes.sandbox.sandbox import SandboxPolicy


def policy(workspace: Path, *, writable: bool = True) -> SandboxPolicy:
    return SandboxPolicy(
        workspace=workspace, writable=writable, read_only=(workspace / ".mcp.json", workspace / "AGENTS.md")
    )


def test_what_was_not_there_before_is_moved_away_and_kept(tmp_path: Path):
    (tmp_path / "AGENTS.md").write_text("mine")
    absent = find_absent_paths(policy(tmp_path))
    (tmp_path / ".mcp.json").write_text("planted")
    assert quarantine_planted(absent, tmp_path / "kept", {}) == (tmp_path / ".mcp.json",)
    assert not (tmp_path / ".mcp.json").exists()
    assert (tmp_path / "kept" / ".mcp.json").read_text() == "planted"
    assert (tmp_path / "AGENTS.md").read_text() == "mine"


def test_nothing_planted_leaves_nothing_behind(tmp_path: Path):
    assert quarantine_planted(find_absent_paths(policy(tmp_path)), tmp_path / "kept", {}) == ()
    assert not (tmp_path / "kept").exists()


def test_a_link_that_leads_nowhere_is_planted_too(tmp_path: Path):
    absent = find_absent_paths(policy(tmp_path))
    (tmp_path / "AGENTS.md").symlink_to("nowhere")
    assert quarantine_planted(absent, tmp_path / "kept", {}) == (tmp_path / "AGENTS.md",)


def test_what_is_planted_twice_is_kept_twice(tmp_path: Path):
    for _ in range(2):
        absent = find_absent_paths(policy(tmp_path))
        (tmp_path / ".mcp.json").write_text("planted")
        quarantine_planted(absent, tmp_path / "kept", {})
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [".mcp.json", ".mcp.json.1"]


def test_on_another_disk_it_loses_its_name_only(tmp_path: Path):
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system")
    absent = find_absent_paths(policy(tmp_path))
    (tmp_path / ".mcp.json").write_text("planted")
    assert quarantine_planted(absent, elsewhere, {}) == (tmp_path / ".mcp.json",)
    assert [path.name for path in tmp_path.iterdir()] == [".mcp.json.planted"]


def test_it_is_said_what_was_planted_and_nothing_else(tmp_path: Path):
    assert describe_planted([], tmp_path) == ""
    words = describe_planted([Path("/w/.mcp.json"), Path("/w/AGENTS.md")], Path("/kept"))
    assert words == "the sandbox does not allow these files; moved away to /kept: /w/.mcp.json, /w/AGENTS.md"


def test_nothing_is_planted_in_a_read_only_workspace(tmp_path: Path):
    assert find_absent_paths(policy(tmp_path, writable=False)) == ()
