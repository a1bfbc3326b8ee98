"""Completion as a person meets it: a real shell reads the script, and Tab is pressed."""

from pathlib import Path
from shutil import which

import pytest

from tests.e2e.cli.program import Program

pytest.importorskip("pyte", reason="pyte is not installed")
pytest.importorskip("textual", reason="the extra `terminal` is not installed")
from tests.e2e.tui.terminal import Terminal

# How each shell is started without user settings, and what it needs before it completes.
SHELLS = {
    "bash": (("bash", "--noprofile", "--norc", "-i"), "source {script}"),
    "zsh": (("zsh", "-f", "-i"), "autoload -Uz compinit; compinit -u -D; source {script}"),
    "fish": (("fish", "--no-config", "-i"), "source {script}"),
}


@pytest.fixture(params=SHELLS)
async def shell(request: pytest.FixtureRequest, program: Program, tmp_path: Path):
    name = request.param
    if which(name) is None:
        pytest.skip(f"{name} is not installed")
    script = tmp_path / f"outrider.{name}"
    script.write_text((await program.run("completion", name)).out)
    command, prepare = SHELLS[name]
    recorder = tmp_path / "outrider"
    recorder.write_text('#!/bin/sh\necho "<$*>"\n')
    recorder.chmod(0o755)
    environ = {**program.environ, "TERM": "xterm", "PATH": f"{tmp_path}:{program.environ['PATH']}"}
    terminal = Terminal([], cwd=program.workspace, environ=environ, size=(120, 40), program=command)
    terminal.type(f"{prepare.format(script=script)}; echo pre''pared\n")
    terminal.wait_for("prepared")
    yield terminal
    terminal.close()


async def test_a_shell_completes_commands_flags_values_and_files(shell: Terminal):
    """Passes the completed words to a fake program, which prints its arguments."""
    for typed, got in (
        ("sess", "sessions"),
        ("sessions sea", "sessions search"),
        ("run --output-f", "run --output-format"),
        ("run --mode b", "run --mode background"),
        ("permissions explain shell --mode pl", "permissions explain shell --mode plan"),
        ("run --file no", "run --file notes.txt"),
    ):
        shell.type(f"outrider {typed}\t\n")
        shell.wait_for(f"<{got}>")
