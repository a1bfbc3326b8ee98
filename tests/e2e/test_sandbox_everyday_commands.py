"""Everyday commands work inside a sandbox."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.permissions.paths.protected import find_protected_files
from outrider.processes.launch import LaunchRequest
from outrider.processes.sandbox.bubblewrap import SCOPES_SINCE, landlock_version
from outrider.processes.sandbox.detect import LandlockSandbox, find_sandbox
from outrider.processes.sandbox.sandbox import Sandbox, SandboxLimits, default_policy

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes exist on Linux only")

Shell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def bubblewrap(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    sandbox = find_sandbox(tmp_path_factory.mktemp("scratch"))
    if sandbox.name != "bubblewrap":
        pytest.skip(f"bubblewrap does not work here: {sandbox.limitations}")
    return sandbox


@pytest.fixture(params=["bubblewrap", "landlock"])
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> Sandbox:
    if request.param == "bubblewrap":
        return request.getfixturevalue("bubblewrap")
    if landlock_version() < SCOPES_SINCE:
        pytest.skip(f"needs Landlock {SCOPES_SINCE}, here is {landlock_version()}")
    (tmp_path / "scratch").mkdir()
    return LandlockSandbox(tmp_path / "scratch")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def shell(sandbox: Sandbox, workspace: Path, tmp_path: Path) -> Shell:
    return shell_in(sandbox, workspace, tmp_path)


def shell_in(sandbox: Sandbox, workspace: Path, home: Path) -> Shell:
    def run(script: str, *, writable: bool = True, bounds: SandboxLimits | None = None, **variables: str):
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **variables}
        policy = default_policy(
            workspace, writable=writable, home=home, limits=bounds, protected=find_protected_files(workspace)
        )
        launch = sandbox.wrap(LaunchRequest(("/bin/bash", "-c", script), environment, workspace), policy)
        return subprocess.run(
            launch.argv,
            env=dict(launch.environment),
            cwd=launch.workdir,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def output_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"needs {program}")


def test_files_of_a_writable_workspace_are_written_renamed_and_removed(shell: Shell, workspace: Path):
    output_of(
        shell("mkdir -p a/b; echo one > a/one; mv a/one a/b/two; ln -s b/two a/link; ln a/b/two hard; mkfifo p; rm p")
    )
    assert (workspace / "a/link").read_text() == "one\n"
    assert (workspace / "hard").stat().st_nlink == 2


def test_files_of_a_read_only_workspace_are_read(shell: Shell, workspace: Path):
    (workspace / "text").write_text("here")
    assert output_of(shell("cat text; echo no > new 2>/dev/null || echo refused", writable=False)) == "hererefused"


def test_temporary_files_are_made(shell: Shell):
    assert output_of(shell('f=$(mktemp); echo kept > "$f"; cat "$f"')) == "kept"
    assert output_of(shell("cat <<< word")) == "word"


def test_system_files_are_read(shell: Shell):
    assert "root" in output_of(shell("cat /etc/passwd"))
    assert output_of(shell("test -r /proc/self/status && head -c 4 /dev/urandom | wc -c")) == "4"


def test_pipes_and_job_control_work(shell: Shell):
    assert output_of(shell("seq 1000 | sort -rn | head -1")) == "1000"
    assert output_of(shell("set -m; sleep 0.1 & jobs -r | wc -l; wait %1; echo $?")) == "1\n0"
    assert output_of(shell("diff <(echo a) <(echo b) | wc -l")) == "4"


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_exit_codes_arrive(shell: Shell, code: int):
    assert shell(f"exit {code}").returncode == code


def test_a_signal_that_ends_the_command_is_reported_as_a_shell_states_it(shell: Shell):
    assert shell("kill -SEGV $$").returncode == 128 + 11
    assert output_of(shell("trap 'echo caught; exit 0' TERM; kill $$; sleep 5")) == "caught"


def test_a_program_that_does_not_exist_is_named(sandbox: Sandbox, workspace: Path):
    launch = LaunchRequest(("no-such-program",), {"PATH": os.defpath}, workspace)
    wrapped = sandbox.wrap(
        launch, default_policy(workspace, writable=True, home=workspace, protected=find_protected_files(workspace))
    )
    done = subprocess.run(wrapped.argv, env=dict(wrapped.environment), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (127, "outrider: no-such-program: not found")


def test_names_in_any_script_work(shell: Shell, workspace: Path):
    output_of(shell("echo ok > 'größe 日本語 🙂'"))
    assert (workspace / "größe 日本語 🙂").read_text() == "ok\n"
    assert output_of(shell("ls")) == "größe 日本語 🙂"


def test_names_that_are_no_text_work(shell: Shell, workspace: Path):
    output_of(shell(r"touch $'caf\xe9'"))
    assert [os.fsencode(path.name) for path in workspace.iterdir()] == [b"caf\xe9"]


def test_large_output_arrives_whole(shell: Shell):
    assert len(shell("head -c 20000000 /dev/zero | tr '\\0' x").stdout) == 20_000_000


def test_git_works(shell: Shell, workspace: Path):
    needs("git")
    subprocess.run(["git", "init", "-q", workspace], check=True)
    commit = "git -c user.name=a -c user.email=a@b.c commit -qm one"
    assert "new" in output_of(
        shell(f"echo x > f; git add f; {commit}; echo y > new; git status --short; git log --oneline | cat")
    )
    assert output_of(shell("git status --short", writable=False)) == "?? new"


def test_a_compiler_works(shell: Shell, workspace: Path):
    needs("cc")
    (workspace / "a.c").write_text('#include <stdio.h>\nint main(void) { puts("compiled"); return 0; }\n')
    assert output_of(shell("cc -O1 a.c -o a && ./a")) == "compiled"


def test_pytest_works(shell: Shell, workspace: Path):
    (workspace / "test_it.py").write_text("import tempfile\ndef test_it(tmp_path): (tmp_path / 'a').write_text('b')\n")
    # Plugins may live in a checkout that the sandbox does not show.
    command = f"{sys.executable} -m pytest -q -p no:cacheprovider test_it.py"
    assert "1 passed" in output_of(shell(command, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"))


def test_processes_work_together(bubblewrap: Sandbox, workspace: Path, tmp_path: Path):
    """Landlock refuses what they share: without namespaces it is shared with all."""
    script = "import multiprocessing as m\nwith m.get_context('fork').Pool(2) as p: print(sum(p.map(abs, [-1, -2])))"
    assert output_of(shell_in(bubblewrap, workspace, tmp_path)(f'{sys.executable} -c "{script}"')) == "3"


def test_search_works(shell: Shell, workspace: Path):
    (workspace / "a").mkdir()
    (workspace / "a" / "b").write_text("needle\n")
    assert output_of(shell("grep -rn needle .; find . -name b")) == "./a/b:1:needle\n./a/b"


def test_libraries_of_the_users_own_are_found_inside_only(shell: Shell):
    assert output_of(shell("echo $LD_LIBRARY_PATH", LD_LIBRARY_PATH="/opt/mine")) == "/opt/mine"


def test_ways_to_other_programs_are_forgotten(shell: Shell):
    assert output_of(shell("echo x$SSH_AUTH_SOCK$DBUS_SESSION_BUS_ADDRESS", SSH_AUTH_SOCK="/tmp/agent")) == "x"


def test_servers_and_clients_meet_inside(bubblewrap: Sandbox, workspace: Path, tmp_path: Path):
    """Only with a separate network: Landlock refuses all sockets, because it cannot distinguish their owners."""
    script = """
import socket, threading
with socket.create_server(("127.0.0.1", 0)) as server:
    threading.Thread(target=lambda: server.accept()[0].sendall(b"met")).start()
    print(socket.create_connection(server.getsockname()).recv(9).decode())
"""
    (workspace / "meet.py").write_text(script)
    assert output_of(shell_in(bubblewrap, workspace, tmp_path)(f"{sys.executable} meet.py")) == "met"


def test_a_bound_that_is_reached_is_reported(shell: Shell):
    done = shell("sleep 100", bounds=SandboxLimits(seconds=0.3))
    assert done.returncode == 137
    assert done.stderr.strip() == "outrider: the command was killed: it ran for more than 0.3 seconds"


def test_a_sandbox_is_quick(shell: Shell):
    """The exact figure is the benchmark's; this only notices a disaster."""
    best = 1e9
    for _ in range(5):
        start = time.perf_counter()
        output_of(shell("true"))
        best = min(best, time.perf_counter() - start)
    assert best < 5
