"""Attempts to outlive the command, to regain rights, and to exhaust the machine."""

from tests.e2e.escapes.attempt import NO_USER, ROOT, Attempt

_MIB = 1 << 20

OUTLIVE = [
    Attempt("stay as a daemon", """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 20); time.sleep(20)
    os._exit(0)
"""),
    Attempt("stay in a new session",
            'subprocess.Popen(["setsid", "sleep", "20"], stdout=-3, stderr=-3); time.sleep(0.1)'),
    Attempt("stay and ignore signals", """
if os.fork() == 0:
    os.closerange(0, 3)
    for n in range(1, 32):
        try: signal.signal(n, signal.SIG_IGN)
        except (OSError, ValueError): pass
    time.sleep(20)
"""),
    Attempt("stay by nohup", 'subprocess.Popen("nohup sleep 20 >/dev/null 2>&1 &", shell=True); time.sleep(0.1)'),
    Attempt("stay stopped", """
child = os.fork()
if child == 0: os.closerange(0, 3); time.sleep(20)
time.sleep(0.1); os.kill(child, signal.SIGSTOP); time.sleep(0.05)
"""),
    Attempt("stay by forking all the time", """
if os.fork() == 0:
    os.closerange(0, 3); os.setsid(); until = time.time() + 20
    while time.time() < until:
        if os.fork(): os._exit(0)
        time.sleep(0.3)
"""),
    Attempt("stay when the parent is killed", """
if os.fork() == 0: os.setsid(); os.closerange(0, 3); time.sleep(20)
time.sleep(20)
""", kill_after=3, landlock=False),
    Attempt("kill the warden and stay", """
if os.fork() == 0: os.setsid(); os.closerange(0, 3); time.sleep(20)
time.sleep(0.05)
for n in (signal.SIGSTOP, signal.SIGKILL):
    os.kill(os.getppid(), n)
escaped()
""", control=NO_USER),
    Attempt("have another service start it", """
for program in ("systemd-run --user sleep 20", "at now", "batch"):
    try:
        if subprocess.run(program.split(), input=b"sleep 20", stdout=-3, stderr=-3).returncode == 0: escaped()
    except OSError: pass
""", control=NO_USER),
]  # fmt: skip

_TERMINAL = """
child = os.fork()
if child: os.waitpid(child, 0); sys.exit()
master, slave = pty.openpty(); os.setsid(); fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
def tty(request, argument): return call(libc.ioctl(slave, ctypes.c_ulong(request), argument))
"""

_MACHINE_CODE = """
if os.uname().machine != "x86_64": sys.exit()
code = mmap.mmap(-1, 4096, prot=7)
code.write({code})
at = ctypes.addressof(ctypes.c_char.from_buffer(code))
result = ctypes.CFUNCTYPE(ctypes.c_int)(at)()
if result == os.getpid(): escaped()
"""

PRIVILEGES = [
    Attempt("make a user namespace by unshare", "call(libc.unshare(0x10000000)); escaped()"),
    Attempt("make a mount namespace", "call(libc.unshare(0x20000)); escaped()", control=ROOT),
    Attempt("make a user namespace by clone", """
pid = syscall(number(56, 220), ctypes.c_ulong(0x10000000 | 17), None, None, None, None)
if pid == 0: os._exit(0)
escaped()
"""),
    Attempt("make a user namespace by clone3", """
pid = syscall(435, struct.pack("QQQQQQQQ", 0x10000000, 0, 0, 0, 17, 0, 0, 0), ctypes.c_size_t(64))
if pid == 0: os._exit(0)
escaped()
"""),
    Attempt("nest another bubblewrap", """
if subprocess.run([E["BWRAP"], "--ro-bind", "/", "/", "true"], stdout=-3, stderr=-3).returncode == 0: escaped()
"""),
    Attempt("enter a bystander's namespaces", """
for name in ("mnt", "net", "pid", "ipc", "uts"):
    f = os.open(f"/proc/{VICTIM}/ns/{name}", os.O_RDONLY); call(libc.setns(f, 0)); escaped()
""", control=ROOT),
    Attempt("enter the warden's namespaces by a descriptor", """
call(libc.setns(os.pidfd_open(os.getppid()), 0x20000 | 0x40000000)); escaped()
""", control=ROOT),
    Attempt("take all capabilities back", """
header, everything = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xFFFFFFFF, 0xFFFFFFFF, 0] * 2)
libc.capset(header, everything)
held = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "CapPrm"))]
if any(int(word, 16) for word in held): escaped()
""", control=ROOT),
    Attempt("become another user", "os.setuid(12345); escaped()", control=ROOT),
    Attempt("allow new privileges again", """
libc.prctl(38, 0, 0, 0, 0)
if "NoNewPrivs:\\t0" in open("/proc/self/status").read(): escaped()
"""),
    Attempt("lay a kinder filter over the strict one", """
words = struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000); buffer = ctypes.create_string_buffer(words, 8)
class Program(ctypes.Structure): _fields_ = (("length", ctypes.c_ushort), ("words", ctypes.c_void_p))
call(libc.prctl(38, 1, 0, 0, 0)); call(libc.prctl(22, 2, ctypes.byref(Program(1, ctypes.addressof(buffer))), 0, 0))
call(libc.unshare(0x10000000)); escaped()
"""),
    Attempt("make calls as 32-bit programs do", _MACHINE_CODE.format(code=r'b"\xb8\x14\0\0\0\xcd\x80\xc3"'),
            control=NO_USER),
    Attempt("make calls in the x32 way", _MACHINE_CODE.format(code=r'b"\xb8\x27\0\0\x40\x0f\x05\xc3"'),
            control=NO_USER),
    Attempt("load a kernel module", """
try: syscall(number(175, 105), b"x", ctypes.c_ulong(1), b"")
except OSError as error:
    if error.errno != errno.EPERM: escaped()
""", control=NO_USER),
    Attempt("change the clock", """
try: syscall(number(227, 112), 99, struct.pack("QQ", 0, 0))
except OSError as error:
    if error.errno != errno.EPERM: escaped()
"""),
    Attempt("rename the machine", """
try: call(libc.sethostname(b"x" * 100, 100))
except OSError as error:
    if error.errno != errno.EPERM: escaped()
""", control=ROOT),
    Attempt("reach the hardware's ports", "call(libc.iopl(3)); escaped()", control=NO_USER),
    Attempt("type into the terminal", _TERMINAL + 'tty(0x5412, b"x"); escaped()', control=NO_USER),
    Attempt("type into the terminal with a longer request", _TERMINAL + 'tty(0x5412 | 1 << 32, b"x"); escaped()',
            control=NO_USER),
    Attempt("drive the console", _TERMINAL + """
try: tty(0x541C, b"\\x0c")
except OSError as error:
    if error.errno != errno.EPERM: escaped()
"""),
    Attempt("change a terminal's discipline", _TERMINAL + "tty(0x5423, ctypes.byref(ctypes.c_int(0))); escaped()"),
    Attempt("keep a controlling terminal", 'os.close(os.open("/dev/tty", os.O_RDWR)); escaped()', control=NO_USER),
]  # fmt: skip

_SHARED_MEMORY = """
held = [mmap.mmap(-1, 16 << 20) for _ in range(8)]
for piece in held: piece.write(b"x" * len(piece))
time.sleep(3); escaped()
"""

BOUNDS = [
    Attempt("use up memory", """
held = bytearray(b"x") * (128 << 20); time.sleep(3); escaped()
""", bounds={"memory": 64 * _MIB}),
    Attempt("use up memory in many processes", """
parent = os.getpid()
for _ in range(6):
    if os.fork() == 0: held = bytearray(b"x") * (24 << 20); time.sleep(9); os._exit(0)
time.sleep(3); escaped()
""", bounds={"memory": 80 * _MIB}),
    Attempt("use up memory that is shared", _SHARED_MEMORY, bounds={"memory": 64 * _MIB}),
    # The limit is for the growth of all shared memory, so it must exceed what other programs may free meanwhile.
    Attempt("use up memory in nameless files", """
f = os.memfd_create("x")
for _ in range(512): os.write(f, b"x" * (1 << 20))
time.sleep(3); escaped()
""", bounds={"memory": 64 * _MIB}),
    Attempt("use up memory in segments of System V", """
i = call(libc.shmget(0, ctypes.c_size_t(128 << 20), 0o1600)); libc.shmat.restype = ctypes.c_void_p
a = libc.shmat(i, None, 0); libc.shmctl(i, 0, None)
ctypes.memset(a, 120, 128 << 20); libc.shmdt(ctypes.c_void_p(a)); time.sleep(3); escaped()
""", bounds={"memory": 64 * _MIB}),
    Attempt("fill /tmp", """
name = f"/tmp/outrider-test-{MARK}"
try:
    with open(name, "wb") as f:
        for _ in range(24): f.write(b"x" * (1 << 20))
    escaped()
finally: os.unlink(name)
""", bounds={"temporary": 16 * _MIB}),
    Attempt("fill /dev/shm", """
name = f"/dev/shm/outrider-test-{MARK}"
try:
    with open(name, "wb") as f:
        for _ in range(24): f.write(b"x" * (1 << 20))
    escaped()
finally: os.unlink(name)
""", bounds={"temporary": 16 * _MIB}, control=NO_USER),
    Attempt("fill /dev", """
with open("/dev/outrider-test", "wb") as f: escaped()
""", control=NO_USER),
    Attempt("write one large file", """
with open(WS + "/large", "wb") as f:
    for _ in range(24): f.write(b"x" * (1 << 20))
escaped()
""", bounds={"file_size": 16 * _MIB}),
    Attempt("write many large files", """
for i in range(8):
    with open(f"{WS}/large{i}", "wb") as f: f.write(b"x" * (4 << 20)); os.fsync(f.fileno())
time.sleep(3); escaped()
""", bounds={"disk": 8 * _MIB}),
    Attempt("start processes without end", """
made = 0
try:
    for _ in range(160):
        if os.fork() == 0: time.sleep(9); os._exit(0)
        made += 1
finally:
    time.sleep(0.3)
    if made > 100: escaped()
""", bounds={"processes": 40}),
    Attempt("start threads without end", """
for _ in range(160): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
time.sleep(3); escaped(); os._exit(0)
""", bounds={"processes": 40}),
    Attempt("start processes that start processes", """
until, count = time.time() + 0.6, os.open(WS + "/count", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
while time.time() < until:
    try:
        if os.fork() == 0: os.write(count, b"x")
    except OSError: time.sleep(0.01)
time.sleep(5)
if os.stat(WS + "/count").st_size > 100: escaped()
""", bounds={"processes": 40}, control=NO_USER),
    Attempt("open files without end", """
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(600)]; escaped()
""", bounds={"open_files": 256}),
    Attempt("use the processor without end", """
while time.process_time() < 1.3: pass
escaped()
""", bounds={"cpu_seconds": 1}),
    Attempt("run without end", "time.sleep(4); escaped()", bounds={"seconds": 0.7}),
    Attempt("lift a limit", """
resource.setrlimit(resource.RLIMIT_NOFILE, (257, 257)); escaped()
""", bounds={"open_files": 256}, control=NO_USER),
    Attempt("be spared when memory runs out", """
put("/proc/self/oom_score_adj", "0"); escaped()
"""),
]  # fmt: skip

ATTEMPTS = [*OUTLIVE, *PRIVILEGES, *BOUNDS]
