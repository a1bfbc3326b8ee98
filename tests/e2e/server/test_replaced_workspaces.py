"""Commands of a user replace folders by links while other requests of that user use them: they reach nothing else."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outrider.engine.session_tools import OwnerLimits
from outrider.errors import ConfigurationError, OutriderError, ProcessError, ToolFailure
from outrider.processes.git import GitRunner
from outrider.processes.launch import LaunchRequest
from outrider.processes.sandbox.detect import ContainerSandbox
from outrider.processes.sandbox.overlay import OverlayFolders
from outrider.processes.sandbox.sandbox import NoSandbox, Sandbox, SandboxPolicy
from outrider.processes.supervisor import ProcessSupervisor
from outrider.server.users import Role
from outrider.sessions.snapshots.restore import RestoreStep, restore_files
from outrider.tools.workspace_files import WorkspaceFiles
from tests.e2e.server.http_server import TOKEN
from tests.e2e.server.test_user_limits import SECRET, limited, start
from tests.e2e.server.test_users import ANA, directory_of


def make_folders(tmp_path: Path) -> tuple[Path, Callable[[], None]]:
    """Returns a workspace and a function that replaces the folder above it by a relative link to another one."""
    workspace, other = tmp_path / "ana" / "above" / "work", tmp_path / "other" / "work"
    for folder, text in ((workspace, "own"), (other, SECRET)):
        folder.mkdir(parents=True)
        (folder / "file").write_text(text)

    def replace() -> None:
        workspace.parent.rename(tmp_path / "ana" / "moved")
        workspace.parent.symlink_to("../other")

    return workspace, replace


@pytest.mark.parametrize("kind", ["writable", "read-only", "overlay"])
async def test_a_command_does_not_start_in_a_workspace_that_was_replaced_meanwhile(
    tmp_path: Path, sandbox: Sandbox, kind: str
):
    if kind == "overlay" and not sandbox.overlays:
        pytest.skip("the sandbox has no overlays")
    workspace, replace = make_folders(tmp_path)
    overlay = OverlayFolders(tmp_path / "upper", tmp_path / "scratch") if kind == "overlay" else None
    for folder in (tmp_path / "upper", tmp_path / "scratch"):
        folder.mkdir()
    policy = SandboxPolicy(workspace=workspace, writable=kind == "writable", overlay=overlay, exact=True)

    def wrap(launch: LaunchRequest) -> LaunchRequest:
        wrapped = sandbox.wrap(launch, policy)
        replace()
        return wrapped

    async with ProcessSupervisor(wrap=lambda launch: sandbox.wrap(launch, policy)) as supervisor:
        assert (await supervisor.run_command("a", "cat file", workdir=workspace)).text == "own"
    async with ProcessSupervisor(wrap=wrap) as supervisor:
        try:
            shown = (await supervisor.run_command("b", "cat file; ls", workdir=workspace)).text
        except OutriderError as error:
            shown = error.message
        assert SECRET not in shown
        assert "was replaced while the command started" in shown
    with pytest.raises(ConfigurationError, match="was replaced by a link"):
        sandbox.wrap(LaunchRequest(("true",), {}, workspace), policy)


class ReplacingSandbox:
    """A sandbox that calls `replace` after it has built the mounts of a command, and before the command starts."""

    def __init__(self, inner: Sandbox, replace: Callable[[], None]) -> None:
        self._inner = inner
        self._replace = replace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def wrap(self, launch: LaunchRequest, policy: SandboxPolicy) -> LaunchRequest:
        wrapped = self._inner.wrap(launch, policy)
        self._replace()
        return wrapped


def test_git_reads_no_view_of_a_workspace_that_was_replaced_meanwhile(tmp_path: Path, sandbox: Sandbox):
    if not sandbox.overlays:
        pytest.skip("the sandbox has no overlays")
    workspace, replace = make_folders(tmp_path)
    (tmp_path / "layer").mkdir()
    policy = SandboxPolicy(workspace=workspace, layers=(tmp_path / "layer",), exact=True)
    assert GitRunner(sandbox).run_in_view(policy, ["/bin/cat", "file"]) == "own"
    replacing: Any = ReplacingSandbox(sandbox, replace)
    with pytest.raises(ProcessError, match="was replaced while the command started"):
        GitRunner(replacing).run_in_view(policy, ["/bin/cat", "file"])


FAKE_ENGINE = """\
#!/bin/sh
while [ "$1" != the-image ]; do shift; done
shift
exec "$@"
"""


def test_a_container_does_not_start_with_a_workspace_that_was_replaced_meanwhile(tmp_path: Path):
    """The engine is a script that runs the command of the container on this machine."""
    workspace, replace = make_folders(tmp_path)
    engine = tmp_path / "engine"
    engine.write_text(FAKE_ENGINE)
    engine.chmod(0o755)
    sandbox = ContainerSandbox(str(engine), "the-image")
    policy = SandboxPolicy(workspace=workspace, writable=True, exact=True)

    def run(launch: LaunchRequest) -> subprocess.CompletedProcess[str]:
        return subprocess.run(launch.argv, env=dict(launch.environment), capture_output=True, text=True, check=False)

    environment = {"PATH": os.environ["PATH"]}
    launch = LaunchRequest(("cat", str(workspace / "file")), environment, workspace)
    assert run(sandbox.wrap(launch, policy)).stdout == "own"
    failing = LaunchRequest(("sh", "-c", 'printf "%s" "$1"; exit 3', "sh", "two words"), environment, workspace)
    ended = run(sandbox.wrap(failing, policy))
    assert (ended.stdout, ended.returncode) == ("two words", 3)
    wrapped = sandbox.wrap(launch, policy)
    replace()
    ended = run(wrapped)
    assert SECRET not in ended.stdout
    assert (ended.returncode, "was replaced while the command started" in ended.stderr) == (126, True)
    with pytest.raises(ConfigurationError, match="was replaced by a link"):
        sandbox.wrap(launch, policy)


async def test_a_folder_below_the_workspace_is_not_mounted_after_it_was_replaced(tmp_path: Path, sandbox: Sandbox):
    workspace, replace = make_folders(tmp_path)
    policy = SandboxPolicy(workspace=tmp_path / "ana", writable=True, read_only=(workspace / "file",))

    def wrap(launch: LaunchRequest) -> LaunchRequest:
        wrapped = sandbox.wrap(launch, msgspec.structs.replace(policy, hidden=(tmp_path / "other",)))
        replace()
        return wrapped

    async with ProcessSupervisor(wrap=wrap) as supervisor:
        shown = await supervisor.run_command("a", f"cat above/work/file {tmp_path}/other/work/file", workdir=tmp_path)
        assert SECRET not in shown.text
        assert shown.exit_code != 0


def test_file_tools_open_nothing_in_a_workspace_that_was_replaced_meanwhile(tmp_path: Path):
    workspace, replace = make_folders(tmp_path)
    files = WorkspaceFiles(workspace)
    location = files.locate("file", "read")
    replace()
    with pytest.raises(ToolFailure, match="was replaced by a link"), files.open(location) as file:
        file.read()
    with pytest.raises(OSError, match="was replaced by a link"):
        restore_files(workspace, [RestoreStep("file", None, None)], None, "undo")  # type: ignore[arg-type]
    assert (tmp_path / "other" / "work" / "file").exists()


class ReplacingPath(os.PathLike[str]):
    """A path that calls `replace` when it is resolved: after the workspace was checked, and before the path is."""

    def __init__(self, path: str, replace: Callable[[], None]) -> None:
        self._path = path
        self._replace = replace

    def __fspath__(self) -> str:
        self._replace()
        return self._path


def test_file_tools_locate_nothing_in_a_workspace_that_is_replaced_after_its_check(tmp_path: Path):
    workspace, replace = make_folders(tmp_path)
    path: Any = ReplacingPath("file", replace)
    with pytest.raises(ToolFailure, match="was replaced by a link"):
        WorkspaceFiles(workspace).locate(path, "read")
    assert workspace.parent.is_symlink()


async def test_a_session_of_a_user_is_not_used_behind_a_link_not_even_by_an_administrator(
    tmp_path: Path, sandbox: Sandbox
):
    workspace, replace = make_folders(tmp_path)
    users, tokens = directory_of(tmp_path, msgspec.structs.replace(ANA, workspace=str(tmp_path / "ana")))
    async with limited(tmp_path, sandbox, ["hi"], users) as (client, _):
        own = await start(client, tokens["ana"], workspace)
        assert (await client.ask("GET", f"/api/sessions/{own}/workspace"))[1] == ["file"]
        replace()
        read = {"tool": "read", "input": {"path": "file"}}
        for method, path, body in (
            ("GET", "file?path=file", None),
            ("GET", "tree", None),
            ("GET", "workspace", None),
            ("POST", "commands", {"command": "cat file"}),
            ("POST", "calls", read),
            ("POST", "review/commit", {"message": "take it", "paths": ["file"]}),
        ):
            _, answer = await client.ask(method, f"/api/sessions/{own}/{path}", body, token=TOKEN)
            assert SECRET not in str(answer), path
            assert answer == [] or "link" in str(answer), path
    limits = OwnerLimits(folder="/srv/ana")
    assert limits.has_left("/srv/ana/work", "/srv/ben")
    assert not limits.has_left("/data/worktrees/run", "/data/worktrees/run")


@pytest.mark.parametrize("role", ["operator", "admin"])
async def test_git_reads_no_hidden_file_when_it_commits_for_a_user(
    tmp_path: Path, sandbox: Sandbox, monkeypatch: Any, role: Role
):
    """A filter can be added to the configuration after it was checked; here it is in that of the server's user."""
    folder = tmp_path / "ana"
    folder.mkdir()
    (folder / "file").write_text("own\n")
    (folder / ".gitattributes").write_text("file filter=take\n")
    users, tokens = directory_of(tmp_path, msgspec.structs.replace(ANA, workspace=str(folder), role=role))
    async with limited(tmp_path, sandbox, ["hi"], users) as (client, secret):
        home = tmp_path / "user"
        home.mkdir()
        monkeypatch.setenv("HOME", str(home))
        GitRunner().run(folder, "init", "--quiet")
        GitRunner().run(folder, "config", "--global", "filter.take.clean", f"cat - {secret}")
        for key, value in (("user.name", "Ana"), ("user.email", "ana@example.com")):
            GitRunner().run(folder, "config", key, value)
        own = await start(client, tokens["ana"], folder)
        sent = {"message": "take it", "paths": ["file"]}
        status, answer = await client.ask("POST", f"/api/sessions/{own}/review/commit", sent, token=tokens["ana"])
        assert status == 201, answer
        assert SECRET not in GitRunner().run(folder, "cat-file", "--batch-all-objects", "--batch")


async def test_git_commits_without_a_sandbox(tmp_path: Path):
    folder = tmp_path / "ana"
    folder.mkdir()
    GitRunner().run(folder, "init", "--quiet")
    for key, value in (("user.name", "Ana"), ("user.email", "ana@example.com")):
        GitRunner().run(folder, "config", key, value)
    (folder / "file").write_text("own\n")
    users, tokens = directory_of(tmp_path, msgspec.structs.replace(ANA, workspace=str(folder)))
    async with limited(tmp_path, NoSandbox("none is wanted", ""), ["hi"], users) as (client, _):
        own = await start(client, tokens["ana"], folder)
        sent = {"message": "take it", "paths": ["file"]}
        assert (await client.ask("POST", f"/api/sessions/{own}/review/commit", sent, token=tokens["ana"]))[0] == 201
