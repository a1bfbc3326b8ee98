"""Attempts to connect to the network, to sockets of other programs, and to other processes."""

from tests.e2e.escapes.attempt import NO_USER, ROOT, Attempt

NETWORK = [
    Attempt("connect over TCP", """
s = socket.create_connection(("127.0.0.1", int(E["TCP"])), 2); s.sendall(MARK.encode()); s.close()
"""),
    Attempt("connect over TCP, version 6", """
s = socket.create_connection(("::1", int(E["TCP6"])), 2); s.sendall(MARK.encode()); s.close()
""", control=NO_USER),
    Attempt("connect without asking first (TCP fast open)", """
s = socket.socket(); s.sendto(MARK.encode(), 0x20000000, ("127.0.0.1", int(E["TCP"]))); s.close()
"""),
    Attempt("connect over multipath TCP", """
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262); s.settimeout(2)
s.connect(("127.0.0.1", int(E["TCP"]))); s.sendall(MARK.encode()); s.close()
""", control=NO_USER),
    Attempt("send a packet over UDP", """
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(MARK.encode(), ("127.0.0.1", int(E["UDP"])))
"""),
    Attempt("ask a name server", """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("127.0.0.1", int(E["UDP"]))); s.send(MARK.encode())
"""),
    Attempt("leave this machine", """
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 9)); escaped()
""", control=NO_USER),
    Attempt("open a raw socket", """
socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP); escaped()
""", control=ROOT),
    Attempt("ping", """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP); s.settimeout(1)
s.sendto(b"\\x08\\0\\0\\0\\0\\1\\0\\1", ("192.0.2.1", 0)); escaped()
""", control=NO_USER),
    Attempt("listen to all packets", "socket.socket(17, socket.SOCK_RAW, 3); escaped()", control=ROOT),
    Attempt("talk to the machine that runs this one", """
socket.socket(40, socket.SOCK_STREAM); escaped()
""", control=NO_USER),
    Attempt("use the kernel's cryptography", "socket.socket(38, socket.SOCK_SEQPACKET); escaped()", control=NO_USER),
    Attempt("open rare kinds of sockets", """
for family in (3, 4, 5, 6, 9, 15, 18, 20, 21, 22, 23, 24, 26, 29, 30, 31, 33, 35, 36, 37, 39, 41, 42, 43, 44, 45):
    try: socket.socket(family, socket.SOCK_DGRAM); escaped()
    except OSError: pass
""", control=NO_USER),
    Attempt("see the machine's network devices", """
if set(name for _, name in socket.if_nameindex()) - {"lo"}: escaped()
""", control=NO_USER),
    Attempt("hear the kernel's device events", """
s = socket.socket(16, socket.SOCK_RAW, 15); s.bind((0, 1)); escaped()
"""),
    Attempt("connect to an abstract socket", r"""
s = socket.socket(socket.AF_UNIX); s.connect("\0" + E["ABSTRACT"]); s.sendall(MARK.encode()); s.close()
"""),
    Attempt("send to an abstract socket", r"""
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(MARK.encode(), "\0" + E["ABSTRACT"] + "-dgram")
"""),
    Attempt("connect to a socket in the file system", """
s = socket.socket(socket.AF_UNIX); s.connect(E["SOCKET"]); s.sendall(MARK.encode()); s.close()
"""),
    Attempt("connect to a socket in /tmp", """
s = socket.socket(socket.AF_UNIX); s.connect(E["SOCKET_TMP"]); s.sendall(MARK.encode()); s.close()
"""),
    Attempt("connect to a socket in /run", """
s = socket.socket(socket.AF_UNIX); s.connect(E["SOCKET_RUN"]); s.sendall(MARK.encode()); s.close()
""", control=ROOT),
    Attempt("connect to a socket by way of /proc/self/root", """
s = socket.socket(socket.AF_UNIX); s.connect("/proc/self/root" + E["SOCKET"]); s.sendall(MARK.encode()); s.close()
""", control=NO_USER),
    Attempt("connect to container and system daemons", """
for path in ("/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/user/0/bus",
             "/run/dbus/system_bus_socket", "/run/systemd/private", "/run/podman/podman.sock", "/run/snapd.socket"):
    try: socket.socket(socket.AF_UNIX).connect(path); escaped()
    except OSError: pass
""", control=NO_USER),
    Attempt("use a socket that was left open", """
for descriptor in range(3, 64):
    try: socket.socket(fileno=descriptor).send(MARK.encode())
    except OSError: pass
"""),
    Attempt("use io_uring in place of refused calls", """
parameters = ctypes.create_string_buffer(120); syscall(425, 8, parameters); escaped()
""", control=NO_USER),
]  # fmt: skip

PROCESSES = [
    Attempt("kill a bystander", "os.kill(VICTIM, 9)"),
    Attempt("stop a bystander", "os.kill(VICTIM, signal.SIGSTOP)"),
    Attempt("kill a bystander's group", "os.killpg(VICTIM, 9)"),
    Attempt("kill a bystander by its descriptor", "signal.pidfd_send_signal(os.pidfd_open(VICTIM), 9)"),
    Attempt("kill a bystander's thread", "syscall(number(234, 131), VICTIM, VICTIM, 9)"),
    Attempt("queue a signal for a bystander", "call(libc.sigqueue(VICTIM, 9, None))"),
    Attempt("kill everything", "os.kill(-1, 9)", control=NO_USER),
    Attempt("have the kernel signal a bystander when a pipe is written", """
a, b = socket.socketpair()
fcntl.fcntl(a, fcntl.F_SETOWN, VICTIM); fcntl.fcntl(a, 10, signal.SIGKILL)
fcntl.fcntl(a, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC); b.send(b"x"); time.sleep(0.1)
"""),
    Attempt("change a bystander's limits", "resource.prlimit(VICTIM, resource.RLIMIT_NOFILE, (10, 10))"),
    Attempt("change a bystander's priority", "os.setpriority(os.PRIO_PROCESS, VICTIM, 19); escaped()"),
    Attempt("offer a bystander for killing", 'put(f"/proc/{VICTIM}/oom_score_adj", "1000"); escaped()'),
]  # fmt: skip

ATTEMPTS = [*NETWORK, *PROCESSES]
