"""Which paths are writable, readable or hidden, and the mounts and rules that follow from it."""

import os
import socket
from pathlib import Path

import pytest

import outrider
from outrider._posix import is_within
from outrider.errors import ConfigurationError
from outrider.permissions.paths.protected import find_protected_files
from outrider.processes.launch import GIT_VARIABLES, LaunchRequest
from outrider.processes.sandbox.bubblewrap import BubblewrapSandbox
from outrider.processes.sandbox.detect import list_grants
from outrider.processes.sandbox.sandbox import (
    AccessZones,
    SandboxPolicy,
    access_above,
    default_policy,
    list_secret_paths,
    resolve_zones,
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in ("home/.ssh", "home/work/.git/hooks", "home/work/.vscode", "home/data/work"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "home/.netrc").write_text("secret")
    (tmp_path / "home/work/.git/config").write_text("[core]")
    return tmp_path / "home"


def mounts(policy: SandboxPolicy) -> dict[str, str]:
    """Path to the last option that mounts something there."""
    argv = BubblewrapSandbox("/usr/bin/bwrap").wrap(LaunchRequest(("true",), {}, policy.workspace), policy).argv
    found: dict[str, str] = {}
    for at, word in enumerate(argv[: argv.index("--chdir")]):
        if word in ("--bind", "--ro-bind"):
            found[argv[at + 2]] = f"{word} {argv[at + 1]}" if argv[at + 1] == "/dev/null" else word
        elif word == "--tmpfs":
            found[argv[at + 1]] = word
    return found


def test_the_stricter_zone_applies_to_one_path_and_the_deeper_path_to_two(home: Path):
    work, data = home / "work", home / "data"
    zones = resolve_zones(
        SandboxPolicy(workspace=work, writable=True, read_only=(work,), hidden=(data,), also_writable=(data / "work",))
    )
    assert zones == {str(work): "read-only", str(data): "hidden", str(data / "work"): "writable"}


def test_only_what_exists_has_a_zone_and_links_are_followed(home: Path):
    (home / "link").symlink_to(home / ".ssh")
    zones = resolve_zones(SandboxPolicy(workspace=home / "work", hidden=(home / "link", home / "missing")))
    assert zones == {str(home / "work"): "read-only", str(home / ".ssh"): "hidden"}


def test_parents_come_before_what_lies_in_them(home: Path):
    zones = resolve_zones(default_policy(home / "work", writable=True, home=home))
    assert [path.count("/") for path in zones] == sorted(path.count("/") for path in zones)


def test_what_the_sandbox_needs_is_never_hidden(home: Path):
    assert (
        resolve_zones(SandboxPolicy(workspace=home, hidden=(home / "work",)), [str(home / "work")])[str(home / "work")]
        == "read-only"
    )


def test_the_nearest_zone_above_applies():
    zones: AccessZones = {"/a": "hidden", "/a/b": "writable"}
    assert access_above("/a/b/c/d", zones) == "writable"
    assert access_above("/a/b", zones) == "hidden"
    assert access_above("/ab", zones) is None
    assert is_within("/a/b", "/a") and is_within("/a", "/") and not is_within("/ab", "/a")


def test_secrets_are_covered_and_the_workspace_is_shown(home: Path):
    found = mounts(default_policy(home, writable=True, home=home, own_files=[home / "data"]))
    assert found[str(home / ".ssh")] == "--tmpfs"
    assert found[str(home / "data")] == "--tmpfs"
    assert found[str(home / ".netrc")] == "--ro-bind /dev/null"
    assert found[str(home)] == "--bind"


def test_what_a_new_folder_covers_needs_no_separate_cover(home: Path):
    found = mounts(default_policy(home / "work", writable=True, home=home))
    assert str(home / ".ssh") not in found  # it lies in /tmp, which is another one inside
    assert found[str(home / "work")] == "--bind"


def test_steering_files_are_read_only_and_what_holds_them_cannot_be_renamed(home: Path):
    found = mounts(
        default_policy(home / "work", writable=True, home=home, protected=find_protected_files(home / "work"))
    )
    assert found[str(home / "work/.git/config")] == found[str(home / "work/.git/hooks")] == "--ro-bind"
    assert found[str(home / "work/.git")] == "--bind"


def test_a_read_only_workspace_needs_no_mount_for_what_is_in_it(home: Path):
    found = mounts(default_policy(home / "work", writable=False, home=home))
    assert str(home / "work/.git/config") not in found
    assert found[str(home / "work")] == "--ro-bind"  # since it lies in /tmp, which is another one inside


def test_a_temporary_folder_of_the_session_takes_the_place_of_tmp(home: Path):
    policy = default_policy(home / "work", writable=True, home=home, temporary=home / "data")
    argv = BubblewrapSandbox("/usr/bin/bwrap").wrap(LaunchRequest(("true",), {}, home / "work"), policy).argv
    assert " ".join(("--bind", str(home / "data"), "/tmp")) in " ".join(argv)


def test_bubblewrap_is_not_run_from_folders_that_commands_may_write(home: Path):
    program = home / "work" / "bwrap"
    program.touch()
    with pytest.raises(ConfigurationError, match="install bubblewrap in a system folder"):
        BubblewrapSandbox(str(program)).wrap(
            LaunchRequest(("true",), {}, home), SandboxPolicy(workspace=home / "work", writable=True)
        )


def test_the_network_is_shared_only_when_it_is_on(home: Path):
    for network, alone in (("off", True), ("on", False)):
        policy = default_policy(home / "work", writable=True, home=home, network=network)
        assert (
            "--unshare-net" in BubblewrapSandbox("bwrap").wrap(LaunchRequest(("true",), {}, home), policy).argv
        ) is alone


def test_what_steers_the_loader_and_ways_out_do_not_reach_the_programs_around_the_command(home: Path):
    environment = {
        "LD_PRELOAD": "evil.so",
        "LD_LIBRARY_PATH": ".",
        "SSH_AUTH_SOCK": "/tmp/a",
        "PATH": "/bin",
        "TMPDIR": "/x",
    }
    launch = LaunchRequest(("true",), environment, home)
    wrapped = BubblewrapSandbox("bwrap").wrap(launch, SandboxPolicy(workspace=home))
    assert wrapped.environment == {"PATH": "/bin", "TMPDIR": "/tmp", **GIT_VARIABLES}


def test_grants_leave_out_what_is_hidden_and_nothing_else(home: Path):
    (home / "plain").write_text("")
    zones: AccessZones = {
        str(home / ".ssh"): "hidden",
        str(home / "data"): "hidden",
        str(home / "data/work"): "writable",
    }
    found = dict(list_grants(str(home), "read-only", zones))
    expected = {name: "read-only" for name in (".netrc", "plain", "work")} | {"data/work": "writable"}
    assert found == {str(home / name): access for name, access in expected.items()}


def test_a_folder_without_secrets_is_granted_whole(home: Path):
    assert list(list_grants(str(home), "read-only", {})) == [(str(home), "read-only")]
    zones: AccessZones = {str(home / "work"): "writable"}
    assert dict(list_grants(str(home), "read-only", zones)) == {str(home): "read-only", str(home / "work"): "writable"}


def test_links_are_not_granted(home: Path):
    (home / "link").symlink_to("/etc")
    assert str(home / "link") not in dict(list_grants(str(home), "read-only", {str(home / ".ssh"): "hidden"}))


def test_the_usual_policy_hides_keys_and_protects_hooks(home: Path):
    assert home / ".ssh" in list_secret_paths(home)
    assert Path("/etc/shadow") in list_secret_paths(home)
    assert home / "work" / ".git" / "hooks" in find_protected_files(home / "work")
    assert not [path for path in list_secret_paths(home) if not Path(path).is_absolute()]


def test_the_engine_itself_cannot_be_changed_from_inside(home: Path):
    package = Path(outrider.__file__).parent
    found = mounts(SandboxPolicy(workspace=package.parent, writable=True))
    assert found[str(package)] == "--ro-bind"


def test_sockets_of_other_programs_are_covered_wherever_they_are_seen(home: Path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(home / "work" / "listener"))
        listening.listen()
        found = mounts(default_policy(home / "work", writable=True, home=home))
    assert found[str(home / "work" / "listener")] == "--ro-bind /dev/null"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can see into closed folders of other users")
def test_a_socket_in_a_closed_folder_of_another_user_is_left_alone(home: Path):
    folder = home / "work" / "other"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "listener"))
        listening.listen()
        os.chown(folder, 12345, 12345)
        folder.chmod(0o700)
        assert not [path for path in mounts(default_policy(home / "work", writable=True, home=home)) if "other" in path]
        folder.chmod(0o755)
        assert [path for path in mounts(default_policy(home / "work", writable=True, home=home)) if "other" in path]


def test_a_link_in_a_steering_file_s_place_does_not_bring_a_secret_into_view(home: Path):
    (home / ".ssh" / "key").write_text("secret")
    (home / "work" / "AGENTS.md").symlink_to(home / ".ssh" / "key")
    (home / "work" / ".mcp.json").symlink_to(home / ".netrc")
    (home / "work" / "real.md").write_text("x")
    (home / "work" / "CLAUDE.md").symlink_to(home / "work" / "real.md")
    zones = resolve_zones(
        default_policy(home / "work", writable=True, home=home, protected=find_protected_files(home / "work"))
    )
    assert str(home / ".ssh" / "key") not in zones
    assert zones[str(home / ".netrc")] == "hidden"
    assert zones[str(home / "work" / "real.md")] == "read-only"
