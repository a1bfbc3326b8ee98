"""Attempts to change files outside the workspace, or files inside it that configure programs."""

from tests.e2e.escapes.attempt import BOTH, NO_USER, ROOT, Attempt

_SWAP = """
os.mkdir(WS + "/real"); link = WS + "/swapped"
def swap():
    while True:
        for target in (WS + "/real", OUT):
            os.symlink(target, link + ".new"); os.replace(link + ".new", link)
threading.Thread(target=swap, daemon=True).start()
until = time.time() + 0.2
while time.time() < until:
    try: put(link + "/raced")
    except OSError: pass
"""

OUTSIDE = [
    Attempt("write to an absolute path", 'put(OUT + "/new")'),
    Attempt("write through two dots", 'put(WS + "/folder/../../outside/new")'),
    Attempt("write through a link that was there before", 'put(WS + "/to-outside/new")'),
    Attempt("write through a link made inside", 'os.symlink(OUT, WS + "/l"); put(WS + "/l/new")'),
    Attempt("write through a link that is swapped all the time", _SWAP),
    Attempt("change a file through a hard link", 'os.link(OUT + "/file", WS + "/h"); put(WS + "/h")'),
    Attempt("link a file from an open descriptor", """
f = os.open(OUT + "/file", os.O_RDONLY)
call(libc.linkat(-100, f"/proc/self/fd/{f}".encode(), -100, (WS + "/h").encode(), 0x400)); put(WS + "/h")
"""),
    Attempt("move a file out", 'os.rename(WS + "/plain", OUT + "/moved")'),
    Attempt("move a file in", 'os.rename(OUT + "/file", WS + "/moved")'),
    Attempt("exchange a file with one outside", """
syscall(number(316, 276), -100, (WS + "/plain").encode(), -100, (OUT + "/file").encode(), 2)
"""),
    Attempt("truncate", 'os.truncate(OUT + "/file", 0)'),
    Attempt("change a mode", 'os.chmod(OUT + "/file", 0o777)', landlock=False),
    Attempt("change a time", 'os.utime(OUT + "/file", (1, 1))', landlock=False),
    Attempt("change an owner", 'os.chown(OUT + "/file", 12345, 12345)', control=ROOT),
    Attempt("set an attribute", 'os.setxattr(OUT + "/file", "user.x", b"1")', control=NO_USER, landlock=False),
    Attempt("change a mode while the workspace is read-only", 'os.chmod(OUT + "/file", 0o777)', writable=False),
    Attempt("change a time while the workspace is read-only", 'os.utime(OUT + "/file", (1, 1))', writable=False),
    Attempt("remove a file", 'os.unlink(OUT + "/file")'),
    Attempt("make a folder", 'os.mkdir(OUT + "/new")'),
    Attempt("make a pipe", 'os.mkfifo(OUT + "/new")'),
    Attempt("make a socket", 'socket.socket(socket.AF_UNIX).bind(OUT + "/new")'),
    Attempt(
        "open a read-only descriptor again for writing",
        'f = os.open(OUT + "/file", os.O_RDONLY); put(f"/proc/self/fd/{f}")',
    ),
    Attempt("make a nameless file and give it a name", """
f = os.open(OUT, os.O_TMPFILE | os.O_WRONLY, 0o600); os.write(f, b"x")
call(libc.linkat(-100, f"/proc/self/fd/{f}".encode(), -100, (OUT + "/named").encode(), 0x400))
"""),
    Attempt("write by way of /proc/self/root", 'put("/proc/self/root" + OUT + "/new")'),
    Attempt("write by way of the first process's root", 'put("/proc/1/root" + OUT + "/new")', control=NO_USER),
    Attempt("write by way of a bystander's folder", 'put(f"/proc/{VICTIM}/cwd/new")'),
    Attempt("write by way of a bystander's root", 'put(root_of(VICTIM) + OUT + "/new")'),
    Attempt("write by way of a parent's root", 'put(root_of(os.getppid()) + OUT + "/new")'),
    Attempt("append to a shell's start-up file", 'put(HOME + "/.bashrc")'),
    Attempt("plant a start-up file of Python", """
os.makedirs(HOME + "/.local/lib/python3/site-packages"); put(HOME + "/.local/lib/python3/site-packages/x.pth")
"""),
    Attempt("plant a program that starts with the desktop", """
os.makedirs(HOME + "/.config/autostart"); put(HOME + "/.config/autostart/x.desktop")
"""),
    Attempt("plant a key that opens the account", 'put(HOME + "/.ssh/authorized_keys")'),
    Attempt("plant a job for cron", """
for folder in ("/var/spool/cron/crontabs", "/var/spool/cron", "/etc/cron.d"):
    try: f = os.open(folder + "/outrider-test", os.O_CREAT | os.O_WRONLY | os.O_EXCL)
    except OSError: continue
    os.unlink(folder + "/outrider-test"); escaped()
""", control=NO_USER),
    Attempt("poison the program that builds the sandbox", """
for path in (E["INIT_SCRIPT"], E["BWRAP"], os.path.realpath(sys.executable), "/usr/bin/env", os.__file__):
    try: open(path, "ab").close(); escaped()
    except OSError: pass
""", control=ROOT),
]  # fmt: skip

STEERING = [
    Attempt("plant a git hook", 'put(WS + "/.git/hooks/pre-commit.sample")', landlock=False),
    Attempt("change git's configuration", 'put(WS + "/.git/config")', landlock=False),
    Attempt("move the repository away and plant another", """
os.rename(WS + "/.git", WS + "/old"); os.mkdir(WS + "/.git"); put(WS + "/.git/config")
""", landlock=False),
    Attempt(
        "put another file in place of git's configuration",
        'put(WS + "/c"); os.replace(WS + "/c", WS + "/.git/config")',
        landlock=False,
    ),
    Attempt(
        "change git's configuration through a hard link",
        'os.link(WS + "/.git/config", WS + "/h"); put(WS + "/h")',
        landlock=False,
    ),
    Attempt(
        "remove git's configuration", 'os.unlink(WS + "/.git/config"); put(WS + "/.git/config")', landlock=False
    ),
    Attempt("send git to another folder for its configuration", 'put(WS + "/.git/commondir", "../evil")'),
    Attempt("change what an editor runs", 'put(WS + "/.vscode/tasks.json")', landlock=False),
    Attempt("put another folder in place of the editor's", """
os.rename(WS + "/.vscode", WS + "/v"); os.mkdir(WS + "/.vscode"); put(WS + "/.vscode/tasks.json")
""", landlock=False),
    Attempt("change what runs on every push", 'put(WS + "/.github/workflows/ci.yml")', landlock=False),
    Attempt("put another folder in place of one above", """
os.rename(WS + "/.github", WS + "/g"); os.makedirs(WS + "/.github/workflows"); put(WS + "/.github/workflows/ci.yml")
""", landlock=False),
    Attempt("change instructions for agents", 'put(WS + "/AGENTS.md")', landlock=False),
    Attempt("plant instructions for agents", 'put(WS + "/CLAUDE.md")'),
    Attempt("plant tools for agents", 'put(WS + "/.mcp.json")'),
]  # fmt: skip

READ_ONLY = [
    Attempt("write in a workspace that is read-only", 'put(WS + "/plain")', writable=False),
    Attempt("change a mode in a workspace that is read-only", 'os.chmod(WS + "/plain", 0o777)', writable=False),
    Attempt("remove a file of a workspace that is read-only", 'os.unlink(WS + "/plain"); put(WS + "/plain")',
            writable=False),
    Attempt("replace a file of a workspace that is read-only", """
import tempfile
f = tempfile.NamedTemporaryFile(delete=False, dir=os.path.dirname(WS) if os.access(os.path.dirname(WS), 2) else None)
os.replace(f.name, WS + "/plain")
""", writable=False),
    Attempt("write by way of a descriptor in a workspace that is read-only", """
f = os.open(WS + "/plain", os.O_RDONLY); put(f"/proc/self/fd/{f}")
""", writable=False),
    Attempt("write by way of a shared mapping in a workspace that is read-only", """
f = os.open(WS + "/plain", os.O_RDWR); m = mmap.mmap(f, 9); m[0:1] = b"X"; m.flush()
""", writable=False),
]  # fmt: skip

MOUNTS = [
    Attempt("mount everything again, writable", """
try: call(libc.mount(None, b"/", None, 32 | 4096, None))
finally: put(OUT + "/new")
""", control=NO_USER),
    Attempt("lay the workspace over a folder outside", """
call(libc.mount(WS.encode(), OUT.encode(), None, 4096, None)); escaped()
""", control=NO_USER),
    Attempt("take away what hides a secret", """
try: call(libc.umount2(os.path.dirname(SECRET).encode(), 2))
finally: show(SECRET)
""", control=BOTH),
    Attempt("copy the tree of mounts", """
f = syscall(428, -100, b"/", 1); escaped()
""", control=NO_USER),
    Attempt("make a file system", 'syscall(430, b"tmpfs", 0); escaped()', control=NO_USER),
    Attempt("change a mount's attributes", """
syscall(442, -100, b"/", 0x8000, struct.pack("QQQQ", 0, 1, 0, 0), ctypes.c_size_t(32)); escaped()
""", control=NO_USER),
    Attempt("leave by chroot", """
os.mkdir(WS + "/jail"); here = os.open("/", os.O_RDONLY); os.chroot(WS + "/jail"); os.fchdir(here); escaped()
""", control=ROOT),
    Attempt("turn the root around", """
try: syscall(number(155, 41), WS.encode(), (WS + "/folder").encode())
except OSError as error:
    if error.errno != errno.EPERM: escaped()
""", control=ROOT),
    Attempt("make a device of the disk", """
os.mknod(WS + "/disk", stat.S_IFBLK | 0o600, os.makedev(254, 0)); escaped()
""", control=ROOT),
    Attempt("make a device of memory", """
os.mknod(WS + "/mem", stat.S_IFCHR | 0o600, os.makedev(1, 1)); escaped()
""", control=ROOT),
    Attempt("open devices", """
for name in "mem kmem port kmsg kvm fuse vda sda nvme0n1 loop0 loop-control net/tun vsock vhost-vsock snapshot".split():
    try: os.close(os.open("/dev/" + name, os.O_RDWR | os.O_NONBLOCK)); escaped()
    except OSError: pass
""", control=NO_USER),
    Attempt("change a setting of the kernel", """
with open("/proc/sys/vm/swappiness") as f: value = f.read()
put("/proc/sys/vm/swappiness", value); escaped()
""", control=ROOT),
    Attempt("have a program run at every crash", """
os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)); escaped()
""", control=ROOT),
    Attempt("open the system request trigger", """
os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY)); escaped()
""", control=NO_USER),
    Attempt("make a control group", """
for root in ("/sys/fs/cgroup", *(e.path for e in os.scandir("/sys/fs/cgroup") if e.is_dir())):
    try: os.mkdir(root + "/outrider-test"); os.rmdir(root + "/outrider-test"); escaped()
    except OSError: pass
""", control=NO_USER),
]  # fmt: skip

ATTEMPTS = [*OUTSIDE, *STEERING, *READ_ONLY, *MOUNTS]
