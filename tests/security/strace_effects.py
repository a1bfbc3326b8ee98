"""Runs commands in a temporary sandbox under strace and returns the effects that they had."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from functools import cache
from pathlib import Path

BATCH = 40  # commands under one trace
SECONDS = 4  # until a command is stopped
TRACED = (
    "execve,execveat,openat,open,creat,openat2,unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat,rmdir,symlink,symlinkat,"
    "link,linkat,truncate,ftruncate,chmod,fchmod,fchmodat,chown,fchownat,mknod,mknodat,utimensat,utime,utimes,futimesat,"
    "connect,sendto,kill,setxattr,lsetxattr,fsetxattr,fallocate"
)
_CALL = re.compile(r"^(?P<name>\w+)\((?P<args>.*)\)\s+=\s+(?P<result>-?\d+|\?).*$")
_PATH = re.compile(r'"((?:[^"\\]|\\.)*)"')
_CHANGING = re.compile(
    r"^(?:creat|unlink|unlinkat|rename|renameat2?|mkdir|mkdirat|rmdir|symlink|symlinkat|link|linkat|truncate|ftruncate|f?chmod|"
    r"fchmodat|chown|fchownat|mknod|mknodat|utimensat|utime|utimes|futimesat|[lf]?setxattr|fallocate)$"
)
# The sandbox has no network, so the attempt counts. A program may open a socket only to learn what the system supports.
_REACHING = frozenset({"connect", "sendto"})
_WRITING = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND")
_DEVICES = re.compile(r"^/dev/(?:null|tty|stdout|stderr|pts/\d+|fd/\d+)$|^/proc/self/fd/|^/proc/\d+/|^pipe:")
# What the shell, sort and tac keep for a moment outside the workspace and remove again.
_SCRATCH = re.compile(r"^/tmp/(?:sh-thd|bash|tac|sort)")
# Programs that a proven command may start.
_EXPECTED = set(
    """bash sh dash ls dir cat head tail wc sort uniq cut tr grep egrep fgrep rg find sed awk gawk mawk jq git stat
    file du basename dirname realpath md5sum sha256sum diff cmp comm paste nl od xxd tac rev date uname id
    whoami pwd echo printf true false test [ seq expr env printenv which timeout nice stdbuf time nohup xargs
    sleep yes readlink tee fold fmt column strings cksum join hostname nproc arch groups df tree ps fdfind fd
    python3 node npm gcc shuf expand base64 zcat gzip tar unzip less pager w who users uptime tty logname cal free
    lscpu lsblk vmstat pgrep pidof pstree ss netstat locale getconf factor numfmt whereis hexdump hd look ionice
    unexpand b2sum sha1sum sha224sum sha384sum sha512sum sum base32 bzcat xzcat getfacl lsattr namei
    zipinfo envsubst gettext pr tsort bc iconv nm size readelf sdiff gunzip xz unxz bzip2 bunzip2 ip mount
    npx zstd python3.11 nawk pager getopt""".split()  # noqa: SIM905
)
_GIT_HELPERS = re.compile(r"/git-core/")

available = shutil.which("bwrap") is not None and shutil.which("strace") is not None and sys.platform == "linux"


def build(base: Path) -> Path:
    """A workspace with a repository, something outside it and a home, as the sandbox will see them."""
    workspace = base / "ws"
    for folder in ("ws/src/deep", "out", "home/.ssh"):
        (base / folder).mkdir(parents=True)
    files = {
        "README.md": "# x\ny\n",
        "notes.txt": "x foo\ny bar\n",
        "big.log": "line\n" * 20,
        "data.csv": "a,b\nc,d\n",
        "src/app.py": "import os\nx = 1  # TODO\n",
        "src/util.py": "y = 2\n",
        "package.json": '{"name": "x"}\n',
        "script.sh": "#!/bin/sh\ntouch PWNED\n",
        ".env": "SECRET=1\n",
        "-oPWNED": "x\n",
    }
    for name, text in files.items():
        (workspace / name).write_text(text)
    (workspace / "script.sh").chmod(0o755)
    (base / "out" / "secret.txt").write_text("secret\n")
    (base / "home" / ".ssh" / "id_rsa").write_text("key\n")
    (workspace / "link_out").symlink_to("../out")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], cwd=workspace, check=True, capture_output=True, env=_environment(base))
    return workspace


def _environment(base: Path) -> dict[str, str]:
    """What the shell tool gives to a command: a clean environment in which git rewrites nothing."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(base / "home"),
        "LANG": "C.UTF-8",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_PAGER": "cat",
    }


def _interpreter() -> set[str]:
    """Returns the folder of Python, which an empty /tmp would hide if it is there."""
    return {folder for folder in (sys.prefix, sys.base_prefix) if folder.startswith("/tmp/")}


def effects(commands: list[str], base: Path) -> list[list[str]]:
    """For each command the effects it had; all run one after the other in the same sandbox."""
    found: list[list[str]] = [[] for _ in commands]
    before = _state(base)
    _copy_ground(base, base / "copy")
    for start in range(0, len(commands), BATCH):
        _search(commands, range(start, min(start + BATCH, len(commands))), base, found)
    shutil.rmtree(base / "copy")
    assert any(found) or _state(base) == before, "something was changed that no trace shows"
    return found


def _search(commands: list[str], numbers: range, base: Path, found: list[list[str]]) -> None:
    """Runs commands together; halves them, each half on fresh ground, until the ones with an effect are found."""
    seen = _run([commands[number] for number in numbers], base)
    if not seen:
        return
    _copy_ground(base / "copy", base)
    if len(numbers) == 1:
        found[numbers[0]] = seen
        return
    middle = len(numbers) // 2
    _search(commands, numbers[:middle], base, found)
    _search(commands, numbers[middle:], base, found)


def _copy_ground(source: Path, target: Path) -> None:
    for folder in ("ws", "home", "out"):
        shutil.rmtree(target / folder, ignore_errors=True)
        shutil.copytree(source / folder, target / folder, symlinks=True)
    # Without this, git finds other inodes than in its index, and `git diff` rewrites it.
    subprocess.run(
        ["git", "status"], cwd=target / "ws", check=True, capture_output=True, env={"PATH": os.environ["PATH"]}
    )


def _run(commands: list[str], base: Path) -> list[str]:
    """Runs commands under one trace and returns the effects of all of them."""
    workspace, traces = base / "ws", base / "traces"
    shutil.rmtree(traces, ignore_errors=True)
    traces.mkdir()
    (traces / "commands.json").write_text(json.dumps(commands))
    shutil.copy(__file__, traces / "driver.py")
    mounts = [
        "--ro-bind",
        "/",
        "/",
        "--tmpfs",
        "/tmp",
        "--dev",
        "/dev",
        "--proc",
        "/proc",
        *(word for folder in _interpreter() for word in ("--ro-bind", folder, folder)),
        "--bind",
        str(base),
        str(base),
    ]
    alone = ["--unshare-net", "--unshare-pid", "--unshare-ipc", "--die-with-parent", "--new-session"]
    bwrap = ["bwrap", *mounts, *alone, "--chdir", str(workspace)]
    driver = [sys.executable, "-I", "-S", str(traces / "driver.py"), str(traces)]
    subprocess.run([*bwrap, *driver], check=True, env=_environment(base), stdin=subprocess.DEVNULL, timeout=1200)
    found = _effects(traces, base)
    shutil.rmtree(traces)
    return found


def _state(base: Path) -> dict[str, tuple[int, int, bytes]]:
    """Mode, time and content of every file in the workspace, the home folder and the folder outside."""
    paths = [path for folder in ("ws", "home", "out") for path in (base / folder).rglob("*")]
    return {
        str(path): (found.st_mode, found.st_mtime_ns, path.read_bytes() if stat.S_ISREG(found.st_mode) else b"")
        for path in paths
        if (found := path.lstat())
    }


_LOOP = (
    f'while IFS= read -r -d "" command; do timeout -k 1 {SECONDS} bash --norc --noprofile -c "$command" '
    "</dev/null >/dev/null 2>&1; done"
)


def drive(traces: Path) -> None:
    """Inside the sandbox: one command after the other; each process has its own trace file."""
    commands: list[str] = json.loads((traces / "commands.json").read_text())
    arguments = ["strace", "-ff", "-qq", "-s", "400", "--seccomp-bpf", "-e", f"trace={TRACED}", "-e", "signal=none"]
    subprocess.run(
        [*arguments, "-o", str(traces / "trace"), "bash", "--norc", "--noprofile", "-c", _LOOP],
        check=False,
        input="".join(f"{command}\0" for command in commands).encode("utf-8", "surrogateescape"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ),
    )


def _effects(traces: Path, base: Path) -> list[str]:
    found: list[str] = []
    for line in (line for trace in traces.glob("trace.*") for line in trace.read_text(errors="replace").splitlines()):
        call = _CALL.match(line)
        if not call or (call["result"].startswith("-") and call["name"] not in _REACHING):
            continue
        if effect := _effect(call["name"], call["args"], base):
            found.append(effect)
    return found


def _effect(name: str, args: str, base: Path) -> str | None:
    paths = _PATH.findall(args)
    path = paths[0] if paths else ""
    if name.startswith("execve"):
        return None if _expected(path) else f"runs {path}"
    if name in _REACHING:
        return f"{name} to another machine" if "AF_INET" in args else None
    if name == "kill":
        return None
    if _CHANGING.match(name) and not _SCRATCH.match(path):
        return f"{name} {path}"
    if name.startswith("open"):
        return _opening(path, args, base)
    return None


def _opening(path: str, args: str, base: Path) -> str | None:
    if _WRITING.search(args) and not _DEVICES.match(path) and not _SCRATCH.match(path):
        return f"writes {path}"
    outside = ("secret.txt" in path and path.endswith("secret.txt")) or str(base / "home" / ".ssh") in path
    return f"reads {path}" if outside else None


@cache
def _known_programs() -> frozenset[str]:
    from outrider.permissions.shell.programs.registry import PROGRAM_SPECS

    return frozenset(PROGRAM_SPECS) | _EXPECTED


def _expected(path: str) -> bool:
    return (Path(path).name in _known_programs() and path.startswith(("/usr/", "/bin/"))) or _GIT_HELPERS.search(
        path
    ) is not None


if __name__ == "__main__":
    drive(Path(sys.argv[1]))
