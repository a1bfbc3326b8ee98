"""A worker that the system starts is the one that a person would start, in the same place."""

import configparser
import plistlib
import shlex
import subprocess
import sys
from pathlib import Path

from outrider.cli.commands.worker import ServiceUnit, build_unit
from outrider.config.paths import AppFolders

COMMAND = ["/opt/my tools/python", "-m", "outrider", "worker", "--database", 'postgresql://me:100%$"@db/x']


def unit(platform: str, folder: Path) -> ServiceUnit:
    folders = AppFolders(folder / "config", folder / "data", folder)
    environ = {"PATH": "/opt/my tools:/bin", "OUTRIDER_HOME": str(folder), "ANTHROPIC_API_KEY": "a secret"}
    return build_unit(platform, COMMAND, folders, environ)


def systemd_words(line: str) -> list[str]:
    """As systemd reads them: quoted, with %% for a percent sign and $$ for a dollar."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line)]


def test_a_unit_of_systemd_names_the_command_the_places_and_a_file_for_keys(tmp_path: Path):
    made = unit("linux", tmp_path)
    read = configparser.RawConfigParser(strict=False)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(made.text)
    assert systemd_words(read["Service"]["ExecStart"]) == COMMAND
    assert read["Service"]["EnvironmentFile"] == f"-{tmp_path}/config/worker.env"
    assert f'Environment="OUTRIDER_HOME={tmp_path}"' in made.text
    assert 'Environment="PATH=/opt/my tools:/bin"' in made.text
    assert (read["Service"]["Restart"], read["Install"]["WantedBy"]) == ("on-failure", "default.target")
    assert made.path == tmp_path / ".config/systemd/user/outrider-worker.service"
    assert "a secret" not in made.text


def test_an_agent_of_launchd_runs_the_command_with_the_keys_of_a_file(tmp_path: Path):
    made = unit("darwin", tmp_path)
    agent = plistlib.loads(made.text.encode())
    assert agent["EnvironmentVariables"]["OUTRIDER_HOME"] == str(tmp_path)
    assert (agent["RunAtLoad"], agent["KeepAlive"]) == (True, {"SuccessfulExit": False})
    assert "a secret" not in made.text
    *shell, script = agent["ProgramArguments"]
    assert script.endswith(f"exec {shlex.join(COMMAND)}")
    (tmp_path / "config").mkdir()
    shown = script.replace(shlex.join(COMMAND), "env")
    nothing = subprocess.run([*shell, shown], capture_output=True, text=True, check=True, env={})
    assert "KEY=" not in nothing.stdout
    (tmp_path / "config" / "worker.env").write_text("ANTHROPIC_API_KEY=from-the-file\n")
    found = subprocess.run([*shell, shown], capture_output=True, text=True, check=True, env={})
    assert "ANTHROPIC_API_KEY=from-the-file" in found.stdout


def test_the_unit_is_printed_and_what_to_do_with_it_is_said_beside_it(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "outrider", "worker", "--print-unit", "--runs", "2"],
        env={"HOME": str(tmp_path), "OUTRIDER_HOME": str(tmp_path), "PATH": "/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert sys.executable in done.stdout
    assert "--runs" in done.stdout
    assert "worker.env" in done.stderr
