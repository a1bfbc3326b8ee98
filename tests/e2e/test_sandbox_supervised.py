"""The supervisor runs confined commands: they are asked to end politely, and nothing of them stays."""

import marshal
import socket
import sys
import tempfile
import time
from binascii import a2b_base64, b2a_base64
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from outrider.permissions.paths.protected import find_protected_files
from outrider.processes.launch import LaunchRequest
from outrider.processes.sandbox.bubblewrap import BubblewrapSandbox
from outrider.processes.sandbox.detect import find_sandbox
from outrider.processes.sandbox.sandbox import (
    ProtectedState,
    SandboxLimits,
    SandboxPolicy,
    default_policy,
    describe_planted,
)
from outrider.processes.supervisor import ProcessSupervisor
from tests.fixtures.sandbox_workspace import scratch_folder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes exist on Linux only")


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[ProcessSupervisor]:
    sandbox = find_sandbox(tmp_path)
    if sandbox.name != "bubblewrap":
        pytest.skip(f"bubblewrap does not work here: {sandbox.limitations}")
    policy = default_policy(tmp_path, writable=True, home=tmp_path)
    async with ProcessSupervisor(wrap=partial(sandbox.wrap, policy=policy)) as supervisor:
        yield supervisor


@pytest.fixture
def outside_tmp() -> Iterator[Path]:
    """A folder that commands can see: their /tmp is another one."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        yield Path(folder)


async def test_a_confined_command_gives_its_output_and_exit_code(supervisor: ProcessSupervisor, tmp_path: Path):
    outcome = await supervisor.run_command("a", "pwd; echo $$; exit 3", workdir=tmp_path)
    folder, pid = outcome.text.splitlines()
    assert folder == str(tmp_path)
    assert int(pid) <= 3  # a separate process namespace
    assert outcome.ending is not None
    assert outcome.ending.exit_code == 3


async def test_a_confined_command_is_asked_to_end_before_it_is_made_to(supervisor: ProcessSupervisor, tmp_path: Path):
    script = "trap 'echo goodbye > last; exit 0' TERM; touch ready; while :; do sleep 0.05; done"
    outcome = await supervisor.run_command("b", script, workdir=tmp_path, limit=3)
    assert outcome.ending is not None
    assert outcome.ending.cause == "timeout"
    assert (tmp_path / "ready").exists()
    assert (tmp_path / "last").read_text() == "goodbye\n"


async def test_a_confined_command_that_does_not_listen_is_ended(supervisor: ProcessSupervisor, tmp_path: Path):
    script = "trap '' TERM; (setsid sleep 300 &) ; while :; do sleep 0.05; done"
    outcome = await supervisor.run_command("c", script, workdir=tmp_path, limit=0.4)
    assert outcome.ending is not None
    assert outcome.ending.cause == "timeout"


async def test_what_a_command_plants_is_moved_away_and_reported(tmp_path: Path):
    sandbox = find_sandbox(tmp_path)
    if not sandbox.confines:
        pytest.skip(f"nothing confines commands here: {sandbox.limitations}")
    workspace, quarantine = tmp_path / "workspace", tmp_path / "kept"
    workspace.mkdir()
    policy = default_policy(workspace, writable=True, home=tmp_path / "home", own_files=[quarantine])

    def wrap(launch: LaunchRequest) -> LaunchRequest:
        before = ProtectedState(lambda: find_protected_files(workspace))

        def afterwards() -> str:
            return describe_planted(before.quarantine_planted(quarantine), quarantine)

        return replace(sandbox.wrap(launch, policy), cleanup=afterwards)

    async with ProcessSupervisor(wrap=wrap) as supervisor:
        outcome = await supervisor.run_command("a", "echo '{}' > .mcp.json; echo hi > ordinary.txt", workdir=workspace)
    assert [path.name for path in workspace.iterdir()] == ["ordinary.txt"]
    assert "moved away" in outcome.note
    assert ".mcp.json" in outcome.note


async def test_a_confined_command_has_no_privileges(supervisor: ProcessSupervisor, tmp_path: Path):
    outcome = await supervisor.run_command("d", "cat /proc/self/status; ls /proc/self/fd", workdir=tmp_path)
    status = dict(line.split(":\t", 1) for line in outcome.text.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert outcome.text.split()[-4:] == ["0", "1", "2", "3"]  # 3 is the folder that ls reads


async def test_processes_that_a_command_leaves_are_named_and_ended(supervisor: ProcessSupervisor, tmp_path: Path):
    running = "until grep -qs ^sleep /proc/$!/cmdline; do :; done"
    script = f"(setsid sleep 311 >/dev/null 2>&1 & {running}); sleep 312 & {running}; echo started"
    outcome = await supervisor.run_command("e", script, workdir=tmp_path)
    assert outcome.exit_code == 0
    assert sorted(outcome.left_running) == ["sleep 311", "sleep 312"]
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [command for command in commands if command.startswith((b"sleep\x00311", b"sleep\x00312"))]


async def test_a_process_that_erases_its_command_line_is_named(supervisor: ProcessSupervisor, tmp_path: Path):
    program = (
        "import ctypes, time\n"
        "libc = ctypes.CDLL(None)\n"
        "fields = open('/proc/self/stat').read().rpartition(')')[2].split()\n"
        "start, end = int(fields[45]), int(fields[46])\n"
        "ctypes.memset(start, 0, end - start)\n"
        "libc.prctl(15, b'quiet')\n"
        "open('ready', 'w').close()\n"
        "time.sleep(60)\n"
    )
    (tmp_path / "hide.py").write_text(program)
    script = f"{sys.executable} hide.py >/dev/null 2>&1 & until [ -e ready ]; do sleep 0.01; done"
    outcome = await supervisor.run_command("h", script, workdir=tmp_path)
    assert outcome.left_running == ("[quiet]",)


async def test_a_child_that_ends_by_itself_is_not_named(supervisor: ProcessSupervisor, tmp_path: Path):
    outcome = await supervisor.run_command("f", "(sleep 0.03; echo late > file) & true", workdir=tmp_path)
    assert outcome.left_running == ()
    assert (tmp_path / "file").read_text() == "late\n"


async def test_a_sandbox_that_cannot_be_set_up_reports_why(tmp_path: Path):
    sandbox = find_sandbox(tmp_path)
    if not isinstance(sandbox, BubblewrapSandbox):
        pytest.skip(f"bubblewrap does not work here: {sandbox.limitations}")
    (tmp_path / "gone").mkdir()
    policy = SandboxPolicy(workspace=tmp_path / "gone")

    def wrap(launch: LaunchRequest) -> LaunchRequest:
        wrapped = sandbox.wrap(launch, policy)
        (tmp_path / "gone").rmdir()
        return wrapped

    async with ProcessSupervisor(wrap=wrap) as supervisor:
        outcome = await supervisor.run_command("g", "echo ran", workdir=tmp_path / "gone")
    assert outcome.exit_code == 1
    assert "bwrap: " in outcome.text
    assert "ran" not in outcome.text


WAYS_AROUND_THE_FILTER = """
for process in /proc/[0-9]*; do
  filter=$(sed -n 's/^Seccomp:\\t//p' $process/status)
  if (exec 3<>$process/mem) 2>/dev/null; then echo "$process $filter"; fi
done
"""


def without_landlock(launch: LaunchRequest, *, joined: bool) -> LaunchRequest:
    """As on a kernel without Landlock, which also separates processes from each other."""

    def drop(request: bytes) -> bytes:
        return marshal.dumps(marshal.loads(request) | {"landlock": None})

    assert launch.join is not None
    *argv, request = launch.argv
    encoded = b2a_base64(drop(a2b_base64(request)), newline=False).decode()
    join = replace(launch.join, init=drop(launch.join.init)) if joined else None
    return replace(launch, argv=(*argv, encoded), join=join)


@pytest.mark.parametrize("joined", [True, False], ids=["joined", "init"])
async def test_without_landlock_no_process_in_reach_is_free_of_the_filter(tmp_path: Path, joined: bool):
    sandbox = find_sandbox(tmp_path)
    if not isinstance(sandbox, BubblewrapSandbox) or not sandbox.holder:
        pytest.skip(f"namespaces cannot be joined here: {sandbox.limitations}")
    policy = default_policy(tmp_path, writable=True, home=tmp_path)

    def wrap(launch: LaunchRequest) -> LaunchRequest:
        return without_landlock(sandbox.wrap(launch, policy), joined=joined)

    async with ProcessSupervisor(wrap=wrap) as supervisor:
        outcome = await supervisor.run_command("h", WAYS_AROUND_THE_FILTER, workdir=tmp_path)
    writable = outcome.text.split()
    assert len(writable) >= 2  # at least the memory of the shell itself
    assert set(writable[1::2]) == {"2"}


@pytest.mark.parametrize("name", ["gone", "folder/gone"])
async def test_a_hidden_path_that_disappears_before_the_start_does_not_prevent_it(
    tmp_path: Path, outside_tmp: Path, name: str
):
    sandbox = find_sandbox(tmp_path)
    if not isinstance(sandbox, BubblewrapSandbox) or not sandbox.holder:
        pytest.skip(f"namespaces cannot be joined here: {sandbox.limitations}")
    workspace, gone, quarantine = outside_tmp / "workspace", outside_tmp / name, outside_tmp / "kept"
    workspace.mkdir()
    gone.parent.mkdir(exist_ok=True)
    policy = SandboxPolicy(workspace=workspace, hidden=(quarantine,))

    def wrap(launch: LaunchRequest) -> LaunchRequest:
        quarantine.write_text("secret")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(gone))
            listener.listen()
            wrapped = sandbox.wrap(launch, policy)
        gone.unlink()
        if gone.parent != outside_tmp:
            gone.parent.rmdir()
        return wrapped

    async with ProcessSupervisor(wrap=wrap) as supervisor:
        outcome = await supervisor.run_command("i", f"cat {quarantine} 2>/dev/null; echo ran", workdir=workspace)
    assert outcome.text == "ran\n"


async def test_a_socket_that_a_server_creates_again_cannot_be_reached(tmp_path: Path, outside_tmp: Path):
    sandbox = find_sandbox(tmp_path)
    if not isinstance(sandbox, BubblewrapSandbox):
        pytest.skip(f"bubblewrap does not work here: {sandbox.limitations}")
    workspace, server = outside_tmp / "workspace", outside_tmp / "server"
    workspace.mkdir()
    server.mkdir()
    policy = SandboxPolicy(workspace=workspace)
    connect = (
        "import socket, sys\nfor name in sys.argv[1:]:\n  try: socket.socket(1).connect(name); print('IN')\n"
        "  except OSError as error: print(type(error).__name__)"
    )
    names = [str(server / name) for name in ("control.sock", "other.sock")]
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as again, socket.socket(1) as later:
        first.bind(names[0])
        first.listen()

        def wrap(launch: LaunchRequest) -> LaunchRequest:
            wrapped = sandbox.wrap(launch, policy)
            Path(names[0]).unlink()
            for listener, name in zip((again, later), names, strict=True):
                listener.bind(name)
                listener.listen()
            return wrapped

        async with ProcessSupervisor(wrap=wrap) as supervisor:
            outcome = await supervisor.run_command("j", ["/usr/bin/python3", "-c", connect, *names], workdir=workspace)
    assert outcome.text.split() == ["FileNotFoundError", "FileNotFoundError"]


def test_settings_with_the_password_of_a_registry_are_hidden(tmp_path: Path):
    pip, conda = tmp_path / ".config" / "pip" / "pip.conf", tmp_path / ".condarc"
    pip.parent.mkdir(parents=True)
    pip.write_text("[global]\nindex-url = https://me:secret@pip.corp.example/simple\n")
    conda.write_text("channels: [https://conda.corp.example/main]\n")
    hidden = default_policy(tmp_path, writable=True, home=tmp_path).hidden
    assert pip in hidden
    assert conda not in hidden


async def test_a_workspace_that_contains_only_a_socket_stays_visible(tmp_path: Path, outside_tmp: Path):
    sandbox = find_sandbox(tmp_path)
    if not isinstance(sandbox, BubblewrapSandbox):
        pytest.skip(f"bubblewrap does not work here: {sandbox.limitations}")
    wrap = partial(sandbox.wrap, policy=SandboxPolicy(workspace=outside_tmp, writable=True))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(outside_tmp / "dev.sock"))
        listener.listen()
        async with ProcessSupervisor(wrap=wrap) as supervisor:
            outcome = await supervisor.run_command("k", "echo 1 > made; ls", workdir=outside_tmp)
    assert outcome.text.split() == ["dev.sock", "made"]


BOMB = "f() { if [ $1 -gt 0 ]; then f $(($1 - 1)) & f $(($1 - 1)) & fi; sleep 9; }; "


@pytest.mark.parametrize("ends", ["f 8", "f 8 & exit 0"], ids=["while the command runs", "after it has ended"])
async def test_processes_that_multiply_are_ended_at_once(ends: str, tmp_path: Path):
    sandbox = find_sandbox(tmp_path)
    if not isinstance(sandbox, BubblewrapSandbox) or not sandbox.holder:
        pytest.skip(f"namespaces cannot be joined here: {sandbox.limitations}")
    policy = default_policy(tmp_path, writable=True, home=tmp_path, limits=SandboxLimits(processes=60))
    started = time.monotonic()
    async with ProcessSupervisor(wrap=partial(sandbox.wrap, policy=policy)) as supervisor:
        outcome = await supervisor.run_command("l", BOMB + ends, workdir=tmp_path)
    assert time.monotonic() - started < 8
    assert outcome.exit_code == (0 if "exit" in ends else 137)
    if "exit" in ends:
        assert outcome.left_running
    else:
        assert "it started more than 60 processes" in outcome.text
