"""The terminal application runs nothing of a hostile workspace before and after the user denies trust."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.tui.terminal import Terminal
from tests.security import hostile_config_files, hostile_git_metadata, hostile_program_files
from tests.security.hostile_workspace import INJECTED_TEXT, Ground, as_toml

pytest.importorskip("textual", reason="the extra `terminal` is not installed")

pytestmark = pytest.mark.slow
IDLE = 1.5
SCRIPT = [
    [{"tool": "shell", "input": {"command": "git status"}}, {"tool": "list", "input": {"path": "."}}],
    "All seen.",
]


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    ground = Ground(tmp_path, "http://127.0.0.1:9")
    hostile_git_metadata.fsmonitor(ground)
    hostile_config_files.a_configuration_with_custom_providers(ground)
    hostile_config_files.mcp_servers_that_are_programs(ground)
    hostile_config_files.instructions_at_the_root(ground)
    hostile_config_files.skills_of_the_workspace(ground)
    hostile_config_files.direnv_and_its_friends(ground)
    hostile_program_files.settings_of_editors(ground)
    script = as_toml(json.dumps(SCRIPT))
    (ground.own / "config.toml").write_text(
        f"model = 'demo/m'\n[providers.demo]\nkind = 'scripted'\noptions = {{ script = {script} }}"
    )
    return ground


@pytest.fixture
def terminal(ground: Ground) -> Iterator[Terminal]:
    inherited = {name: os.environ[name] for name in ("PYTHONPATH", "VIRTUAL_ENV", "LANG") if name in os.environ}
    environ = {**inherited, **ground.environ, "TERM": "xterm-256color"}
    opened = Terminal([], cwd=ground.workspace, environ=environ, size=(110, 40))
    yield opened
    opened.close()


def test_nothing_runs_before_an_answer_nor_after_a_no(ground: Ground, terminal: Terminal):
    terminal.wait_for("Do you trust this folder?", limit=60)
    time.sleep(IDLE)
    assert not ground.mark.exists(), ground.mark.read_text()
    terminal.answer("n")
    terminal.wait_for("demo/m", without="Do you trust", limit=60)
    terminal.say("look around")
    terminal.wait_for("All seen.", limit=60)  # git obeyed its configuration inside the sandbox at most
    time.sleep(IDLE)
    assert not ground.mark.exists(), ground.mark.read_text()
    database = (ground.own / "sessions.db").read_bytes()
    for more in ground.own.glob("sessions.db-*"):
        database += more.read_bytes()
    assert INJECTED_TEXT.encode() not in database


def test_trust_starts_what_was_shown(ground: Ground, terminal: Terminal):
    """The counterpart: the trap is set, and only the user's word springs it."""
    terminal.wait_for("Do you trust this folder?", limit=60)
    terminal.answer("t")
    terminal.wait_for("demo/m", without="Do you trust", limit=60)
    deadline = time.monotonic() + 30
    while not ground.mark.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "mcp" in ground.mark.read_text()
