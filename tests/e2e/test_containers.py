"""Commands in containers: with a stand-in for the engine, and with a real one where it works."""

import shutil
import subprocess
from pathlib import Path

import pytest

from outrider.errors import ConfigurationError
from outrider.providers.scripted import call
from outrider.types.parts import ToolPart
from tests.fixtures.standard_engine import Place

FAKE_OUTRIDER = """\
#!/usr/bin/env python3
import os, sys
with open({log!r}, "a") as log:
    log.write(repr(sys.argv[1:]) + " with " + os.environ.get("CONTAINERS_CONF", "nothing") + "\\n")
if sys.argv[1] == "run":
    at = sys.argv.index("--workdir") + 1
    os.chdir(sys.argv[at])
    given = sys.argv[sys.argv.index("the-image") + 1:]
    os.execvp(given[0], given)
"""


async def outputs(place: Place, command: str, **given: float) -> str:
    async with place.engine([[call("shell", command=command, **given)], "done"], mode="background") as engine:
        session = await engine.create(workspace=place.workspace)
        await engine.prompt(session, "go")
        loaded = await engine.store.load(session)
    (part,) = [part for message in loaded.messages for part in message.get_parts_by_type(ToolPart)]
    return str(part.state)


async def test_each_command_runs_in_a_container_with_the_workspace_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CONTAINERS_CONF", "/etc/containers.conf")
    place, log, program = Place(tmp_path), tmp_path / "log", tmp_path / "engine"
    program.write_text(FAKE_OUTRIDER.format(log=str(log)))
    program.chmod(0o755)
    (place.workspace / ".env").write_text("TOKEN=x")
    (place.own / "config.toml").write_text(
        f'[sandbox]\nimage = "the-image"\nengine = "{program}"\noptions = ["--memory", "1g"]\n'
    )
    assert "made here" in await outputs(place, "echo made here | tee made.txt")
    assert (place.workspace / "made.txt").read_text() == "made here\n"
    run, removed = log.read_text().splitlines()
    bound = f"type=bind,source={place.workspace},target={place.workspace}"
    for wanted in ("'--network', 'none'", "'--cap-drop', 'ALL'", f"'{bound}'", "'--memory', '1g', 'the-image', 'bash'"):
        assert wanted in run, wanted
    assert f"source=/dev/null,target={place.workspace}/.env" in run
    assert str(place.own) not in run
    assert "sk-ant-of-the-user" not in run
    assert removed.startswith("['rm', '--force', 'outrider-")
    for line in (run, removed):
        assert line.endswith("with /etc/containers.conf"), "the engine must find its own settings"


async def test_a_command_of_a_session_with_text_of_others_runs_without_a_network(tmp_path: Path):
    place, log, program = Place(tmp_path), tmp_path / "log", tmp_path / "engine"
    program.write_text(FAKE_OUTRIDER.format(log=str(log)))
    program.chmod(0o755)
    (place.workspace / "page.txt").write_text("text of others")
    (place.own / "config.toml").write_text(
        f'[sandbox]\nimage = "the-image"\nengine = "{program}"\n[rules]\nallow = ["shell"]\n'
        '[egress.allow."docs.example.org"]\n'
    )
    script = [[call("read", file_path="page.txt")], [call("shell", command="echo made here")], "done"]
    async with place.engine(script, mode="plan") as engine:
        session = await engine.create(workspace=place.workspace)
        await engine.prompt(session, "go")
        loaded = await engine.store.load(session)
    calls = [part for message in loaded.messages for part in message.get_parts_by_type(ToolPart)]
    assert [part.display_status for part in calls] == ["done", "done"], calls
    assert "'--network', 'none'" in log.read_text()


async def test_a_missing_container_engine_is_named(tmp_path: Path):
    place = Place(tmp_path)
    (place.own / "config.toml").write_text('[sandbox]\nimage = "the-image"\nengine = "no-such-engine"\n')
    with pytest.raises(ConfigurationError, match="there is no program no-such-engine"):
        await outputs(place, "id")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, tuple[str, ...]]:
    """An engine that works on this machine, and the image `outrider-test` with a shell."""
    folder, program = tmp_path_factory.mktemp("image"), shutil.which("podman") or shutil.which("docker")
    if program is None:
        pytest.skip("needs podman or docker")
    root = folder / "root"
    for name in ("bash", "cat", "ls", "touch", "id"):
        found = Path(shutil.which(name) or "").resolve()
        listed = subprocess.run(["ldd", str(found)], capture_output=True, text=True, check=False).stdout
        libraries = [word for line in listed.splitlines() for word in line.split() if word.startswith("/")]
        for source, target in [(found, f"bin/{name}"), *((Path(one).resolve(), one[1:]) for one in libraries)]:
            (root / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, root / target)
    (root / "tmp").mkdir()
    subprocess.run(["tar", "-C", str(root), "-cf", str(folder / "root.tar"), "."], check=True)
    options = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
    tried = ["run", "--rm", "--network", "none", *options, "outrider-test", "bash", "-c", "id"]
    for arguments in (["import", str(folder / "root.tar"), "outrider-test"], tried):
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            pytest.skip(f"{program} does not work here: {done.stderr[-200:]}")
    return program, options


async def test_a_real_container_has_the_workspace_and_nothing_else(tmp_path: Path, image: tuple[str, tuple[str, ...]]):
    place, (program, options) = Place(tmp_path), image
    (place.workspace / ".env").write_text("TOKEN=of-the-workspace")
    (place.workspace / "notes.txt").write_text("the notes")
    listed = ", ".join(f'"{one}"' for one in options)
    (place.own / "config.toml").write_text(
        f'[sandbox]\nimage = "outrider-test"\nengine = "{program}"\noptions = [{listed}]\n'
    )
    shown = await outputs(place, f"cat notes.txt .env; ls {place.home} {tmp_path}; touch made.txt; echo end")
    assert "the notes" in shown
    assert "of-the-workspace" not in shown
    assert f"cannot access '{place.home}'" in shown
    assert (place.workspace / "made.txt").exists()
    await outputs(place, "while true; do :; done", timeout=2)
    left = subprocess.run(
        [program, "ps", "--all", "--quiet", "--filter", "label=outrider"], capture_output=True, text=True, check=False
    )
    assert not left.stdout.strip()
