"""Attempts to read secrets: files, other processes, key rings, the kernel."""

from tests.e2e.escapes.attempt import NO_USER, ORDINARY, ROOT, Attempt

_KEY = """
KEYCTL = number(250, 219)
key = syscall(KEYCTL, 10, ctypes.c_long(-4), b"user", b"outrider-test-" + MARK.encode(), 0)
buffer = ctypes.create_string_buffer(500)
size = syscall(KEYCTL, 11, ctypes.c_long(key), buffer, ctypes.c_long(500))
print(buffer.raw[:size].decode())
"""

_HANDLE = """
class Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("body", ctypes.c_ubyte * 128))
h, mount = Handle(bytes=128), ctypes.c_int()
syscall(number(303, 264), -100, (OUT + "/file").encode(), ctypes.byref(h), ctypes.byref(mount), 0)
f = syscall(number(304, 265), os.open(OUT, os.O_RDONLY), ctypes.byref(h), 0); escaped()
"""

_REMOTE = """
class Piece(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p), ("size", ctypes.c_size_t))
buffer = ctypes.create_string_buffer(200)
mine, theirs = Piece(ctypes.addressof(buffer), 200), Piece(ENVIRONMENT_AT, 200)
"""

ATTEMPTS = [
    Attempt("read a secret file", "show(SECRET)"),
    Attempt("read a secret through a link", 'show(WS + "/to-secret")'),
    Attempt("read a secret by way of /proc/self/root", 'show("/proc/self/root" + SECRET)'),
    Attempt("read a secret by way of a bystander's root", 'show(root_of(VICTIM) + SECRET)'),
    Attempt("read a secret by way of the first process's root", 'show("/proc/1/root" + SECRET)', control=NO_USER),
    Attempt("read a secret by two dots from a bystander's folder", 'show(f"/proc/{VICTIM}/cwd/../home/.ssh/id_test")'),
    Attempt("link a secret into the workspace", 'os.link(SECRET, WS + "/s"); show(WS + "/s")'),
    Attempt("read Outrider's own sessions", "show(DATA)"),
    Attempt("read a secret from a descriptor that was left open", """
for descriptor in range(3, 64):
    try: print(os.pread(descriptor, 200, 0))
    except OSError: pass
"""),
    Attempt("read passwords", """
with open("/etc/shadow") as file:
    if "root:" in file.read(): escaped()
""", control=ROOT),
    Attempt("read a bystander's environment", 'show(f"/proc/{VICTIM}/environ")'),
    Attempt("read every environment", """
for name in os.listdir("/proc"):
    try: show(f"/proc/{name}/environ")
    except OSError: pass
"""),
    Attempt("read a bystander's memory from /proc", """
print(os.pread(os.open(f"/proc/{VICTIM}/mem", os.O_RDONLY), 200, ENVIRONMENT_AT))
"""),
    Attempt("read a bystander's memory by a call", _REMOTE + """
syscall(number(310, 270), VICTIM, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0); print(buffer.raw)
"""),
    Attempt("write a bystander's memory", _REMOTE + """
syscall(number(310, 270), VICTIM, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
syscall(number(311, 271), VICTIM, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0); escaped()
"""),
    Attempt("trace a bystander", """
call(libc.ptrace(16, VICTIM, None, None)); escaped()
os.waitpid(VICTIM, 0x40000000); libc.ptrace(17, VICTIM, None, None)
"""),
    Attempt("trace the warden", """
call(libc.ptrace(16, os.getppid(), None, None)); escaped(); libc.ptrace(17, os.getppid(), None, None)
""", control=NO_USER),
    Attempt("trace a child of one's own", """
child = os.fork()
if child == 0: time.sleep(5); os._exit(0)
try: call(libc.ptrace(0x4206, child, None, None)); escaped()
finally: os.kill(child, 9)
"""),
    Attempt("read the warden's environment and files", """
for name in ("environ", "maps", "auxv"):
    try: open(f"/proc/1/{name}").read(1); escaped()
    except OSError: pass
os.readlink("/proc/1/fd/0"); escaped()
""", control=NO_USER),
    Attempt("take a descriptor from a bystander", """
syscall(438, os.pidfd_open(VICTIM), 0, 0); escaped()
"""),
    Attempt("compare with a bystander", "syscall(number(312, 272), os.getpid(), VICTIM, 1, 0, 0); escaped()"),
    Attempt("read a key ring", _KEY),
    Attempt("add a key", """
key = syscall(number(248, 217), b"user", b"outrider-test-x", b"1", 1, -4); escaped()
syscall(number(250, 219), 9, key, -4)
"""),
    Attempt("open a file by its handle", _HANDLE, control=ROOT),
    Attempt("measure others' performance", """
attributes = struct.pack("IIQQQQQ", 1, 64, 0, 0, 0, 0, 1).ljust(64, b"\\0")
syscall(number(298, 241), attributes, -1, 0, -1, 0); escaped()
""", control=NO_USER),
    Attempt("load a program into the kernel", """
syscall(number(321, 280), 0, struct.pack("IIIII", 2, 4, 4, 1, 0).ljust(64, b"\\0"), 64); escaped()
""", control=NO_USER),
    Attempt("answer page faults", "syscall(number(323, 282), 1); escaped()", control=NO_USER),
    Attempt("read the kernel's messages", """
buffer = ctypes.create_string_buffer(4096); call(libc.klogctl(3, buffer, 4096)); escaped()
""", control=ROOT),
    Attempt("read the kernel's memory", 'os.pread(os.open("/proc/kcore", os.O_RDONLY), 64, 0); escaped()',
            control=NO_USER),
    Attempt("watch all files", "syscall(number(300, 262), 0, 0); escaped()", control=NO_USER),
    Attempt("swap a link between plain file and secret", """
link = WS + "/swapped"
def swap():
    while True:
        for target in (WS + "/plain", SECRET):
            os.symlink(target, link + ".new"); os.replace(link + ".new", link)
threading.Thread(target=swap, daemon=True).start()
until = time.time() + 0.2
while time.time() < until:
    try: show(link)
    except OSError: pass
"""),
    Attempt("ask a program with the rights of root", """
print(subprocess.run([E["SUID"], "-u"], capture_output=True, text=True).stdout)
if subprocess.run([E["SUID"], "-u"], capture_output=True, text=True).stdout.strip() == "0": escaped()
""", control=ORDINARY, users=ORDINARY),
]  # fmt: skip
