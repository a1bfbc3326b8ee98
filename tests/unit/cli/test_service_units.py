"""A worker that systemd or launchd starts has the same settings as one that a user starts."""

import asyncio
import configparser
import json
import plistlib
import shlex
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.cli import exit_codes
from outrider.cli.commands.worker import ServiceUnit, build_unit, open_worker
from outrider.cli.main import main
from outrider.cli.parser import find_command, parse_arguments
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
    assert read["Service"]["RestartPreventExitStatus"] == str(exit_codes.USAGE_ERROR)
    assert (read["Service"]["KillMode"], read["Service"]["TimeoutStopSec"]) == ("mixed", "60"), "calls may end first"
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


def test_the_unit_is_printed_with_instructions_on_stderr(tmp_path: Path):
    options = ["--runs", "2", "--grace", "2m", "--health", "127.0.0.1:9464", "--log-format", "json"]
    options += ["--listen-url", "postgresql://me:secret@db/x"]
    done = subprocess.run(
        [sys.executable, "-m", "outrider", "worker", "--print-unit", *options],
        env={"HOME": str(tmp_path), "OUTRIDER_HOME": str(tmp_path), "PATH": "/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert sys.executable in done.stdout
    for option in ('"--runs" "2"', '"--grace" "120"', '"--health" "127.0.0.1:9464"', '"--log-format" "json"'):
        assert option in done.stdout
    assert "TimeoutStopSec=160" in done.stdout
    assert "secret" not in done.stdout
    assert "worker.env" in done.stderr


def parsed_database(*arguments: str) -> str | None:
    command = find_command("worker")
    assert command is not None
    return parse_arguments(command, list(arguments)).database


def test_the_database_comes_from_the_flag_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("OUTRIDER_DATABASE_URL", raising=False)
    assert parsed_database() is None
    (tmp_path / "url").write_text("postgresql://me:secret@db/file\n")
    assert parsed_database("--database", f"@{tmp_path}/url") == "postgresql://me:secret@db/file"
    monkeypatch.setenv("OUTRIDER_DATABASE_URL", "postgres://me:secret@db/variable")
    assert parsed_database() == "postgresql://me:secret@db/variable"
    assert parsed_database("--database", "postgresql://db/flag") == "postgresql://db/flag"
    monkeypatch.setenv("OUTRIDER_DATABASE_URL", f"@{tmp_path}/url")
    assert parsed_database() == "postgresql://me:secret@db/file"
    for wrong in ("mysql://me:secret@db/x", f"@{tmp_path}/missing"):
        with pytest.raises(SystemExit):
            parsed_database("--database", wrong)
        error = capsys.readouterr().err
        assert "URL" in error
        assert "secret" not in error


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("postgresql://db/x", "postgresql://db/x"),
        ("postgresql://me:secret@db/x", "@{home}/worker.database"),
        ("postgresql://db/x?user=me&password=secret", "@{home}/worker.database"),
        ("@{home}/url", "@{home}/url"),
    ],
)
def test_a_printed_unit_names_the_database_without_its_password(
    given: str, printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("dbos")
    (tmp_path / "url").write_text("postgresql://me:secret@db/x")
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    assert main(["worker", "--print-unit", "--database", given.format(home=tmp_path)]) == 0
    unit, hints = capsys.readouterr()
    assert f'"--database" "{printed.format(home=tmp_path)}"' in unit
    assert "secret" not in unit + hints
    assert ("worker.database" in hints) == ("worker.database" in printed)


def test_the_user_of_a_run_is_configurable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("dbos")
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "root")
    monkeypatch.chdir(tmp_path)

    def submitted_user(*arguments: str) -> str:
        assert main(["jobs", "submit", "--no-worker", "--no-worktree", "--json", *arguments, "look"]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[0])["user"]

    assert submitted_user() == "root"
    (tmp_path / "config.toml").write_text('[background]\nuser = "team"\n')
    assert submitted_user() == "team"
    monkeypatch.setenv("OUTRIDER_USER", "alice")
    assert submitted_user() == "alice"
    assert submitted_user("--user", "bob") == "bob"


async def test_a_worker_that_waits_for_its_database_ends_when_it_is_asked_to():
    """Also while the store itself waits, for minutes."""
    stop = asyncio.Event()

    @asynccontextmanager
    async def waiting() -> AsyncGenerator[Any, None]:
        stop.set()
        await asyncio.Event().wait()
        yield None

    async with AsyncExitStack() as stack, asyncio.timeout(30):
        with pytest.raises(SystemExit):
            await open_worker(stack, waiting, stop)
