"""The terminal application in a pseudo-terminal: start, memory, idle CPU, and typing while an answer streams.

The start ends when a key that was typed at the first paint is shown. Other terminal agents (codex, pi) are measured in
the same run if their programs are on the PATH. Needs /proc.
"""

import asyncio
import fcntl
import os
import pty
import select
import shutil
import signal
import statistics
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.bench_cli import tree_memory
from benchmarks.figure import Figure
from outrider.sessions.records import StoredSession
from outrider.sessions.sqlite.store import SqliteStore
from outrider.types.ids import now_ms
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import TextPart

ROUNDS, MESSAGES, TOKENS_PER_SECOND, KEYS = 5, 10_000, 150, 60
IDLE_SECONDS = 10.0
PEER_IDLE_SECONDS = 5.0
PEERS = ("codex", "pi", "opencode")
ANSWERS = {
    b"\x1b[6n": b"\x1b[1;1R",
    b"\x1b[c": b"\x1b[?62;c",
    b"\x1b]11;?": b"\x1b]11;rgb:0000/0000/0000\x1b\\",
    b"\x1b]10;?": b"\x1b]10;rgb:ffff/ffff/ffff\x1b\\",
    b"\x1b[?u": b"\x1b[?0u",
}


def bench() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="outrider-bench-") as folder:
        place = Path(folder)
        peers: dict[str, list[PeerStart]] = {name: [] for name in PEERS if shutil.which(name)}
        starts: list[tuple[float, float, float, float]] = []
        for _ in range(ROUNDS):  # in turn, so that load on the machine affects all of them equally
            starts.append(measure_start(place))
            for name, measured in peers.items():
                measured.extend(measure_peer(name, place))
        first, ready, cpu, memory = (statistics.median(values) for values in zip(*starts, strict=True))
        idle = measure_idle(place)
        echo = measure_typing(place)
        figures = [
            Figure("terminal: first paint", first * 1000, "ms", None, "<= 250", first <= 0.25),
            Figure("terminal: ready, the first key is shown", ready * 1000, "ms", None, "<= 400", ready <= 0.4),
            Figure("terminal: CPU until then", cpu * 1000, "ms"),
            Figure("terminal: memory after the start", memory, "MB", None, "<= 60", memory <= 60),
            Figure("terminal: CPU while idle", idle * 100, "%", None, "<= 0.5", idle <= 0.005),
            Figure(
                f"terminal: key echo, p95, {TOKENS_PER_SECOND} tokens/s, {MESSAGES:,} messages",
                echo * 1000,
                "ms",
                None,
                "<= 10",
                echo <= 0.01,
            ),
        ]
        return figures + [
            figure for name, found in peers.items() if found for figure in peer_figures(name, found, first)
        ]


class Program:
    """A program in a pseudo-terminal."""

    def __init__(self, command: list[str], place: Path, size: tuple[int, int] = (120, 40)) -> None:
        workspace = place / "work"
        workspace.mkdir(exist_ok=True)
        (place / "home").mkdir(exist_ok=True)
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(place / "home"),
            "OUTRIDER_HOME": str(place / "kept"),
            "PYTHONPYCACHEPREFIX": str(place / "bytecode"),
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "LANG": "C.UTF-8",
            "ANTHROPIC_API_KEY": "x",
            "OPENAI_API_KEY": "x",
            **({"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}),
        }
        self.started = time.monotonic()
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
            os.chdir(workspace)
            os.execvpe(command[0], command, environ)
        self.first = 0.0

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def read(self, seconds: float) -> bytes:
        """Returns the first output within this time; answers queries to the terminal."""
        if not select.select([self.terminal], [], [], seconds)[0]:
            return b""
        data = os.read(self.terminal, 1 << 16)
        self.first = self.first or time.monotonic() - self.started
        for query, answer in ANSWERS.items():
            if query in data:
                os.write(self.terminal, answer)
        return data

    def wait_for(self, text: str, limit: float = 60.0) -> float:
        """Until the program writes the text; the seconds that it took."""
        start, seen = time.monotonic(), b""
        while time.monotonic() - start < limit:
            seen = seen[-100:] + self.read(0.1)
            if text.encode() in seen:
                return time.monotonic() - start
        raise TimeoutError(f"{text!r} was not written")

    def settle(self, quiet: float, limit: float = 20.0) -> float:
        """Waits until the program is silent for this time, at most until the limit; returns the time of the last
        output."""
        start = last = time.monotonic()
        while time.monotonic() - start < limit and self.read(quiet):
            last = time.monotonic()
        return last

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def end(self) -> None:
        os.killpg(self.pid, signal.SIGKILL)  # the program of a launcher too
        os.waitpid(self.pid, 0)
        os.close(self.terminal)


def outrider(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "outrider", *arguments]


def write_config(place: Path, answer: str = "unused", delay: float = 0.0) -> None:
    (place / "kept").mkdir(exist_ok=True)
    (place / "kept" / "config.toml").write_text(
        f'model = "script/demo"\n[providers.script]\nkind = "scripted"\nmodel = "demo"\n'
        f'[providers.script.options]\ndelay = {delay}\nscript = ["{answer}"]\n'
    )


def measure_start(place: Path) -> tuple[float, float, float, float]:
    """First paint, ready, CPU time and memory of one start."""
    write_config(place)
    program = Program(outrider(), place)
    try:
        program.wait_for("\x1b[?1049h")
        program.type("Ω")  # earlier, the terminal itself would show it
        program.wait_for("Ω")
        ready, cpu = time.monotonic() - program.started, program.cpu()
        program.settle(0.6)
        return program.first, ready, cpu, program.megabytes()
    finally:
        program.end()
        shutil.rmtree(place / "kept" / "drafts", ignore_errors=True)


def measure_idle(place: Path) -> float:
    """Returns the share of a core that an idle program uses."""
    program = Program(outrider(), place)
    try:
        program.wait_for("script/demo")
        program.settle(5.0)
        before = program.cpu()
        time.sleep(IDLE_SECONDS)
        return (program.cpu() - before) / IDLE_SECONDS
    finally:
        program.end()


def measure_typing(place: Path) -> float:
    """The 95th percentile of the time until a key is shown, while an answer streams in a long session."""
    paragraph = "A paragraph with **bold** words and `code`. " * 6 + "\\n\\n- one\\n- two\\n\\n"
    write_config(place, paragraph * 200, 1 / TOKENS_PER_SECOND)
    asyncio.run(store_long_session(place))
    program = Program(outrider("--continue"), place)
    try:
        program.wait_for("question 4999")
        program.settle(1.0)
        program.type("go")
        program.settle(0.3)
        program.type("\r")
        program.wait_for("paragraph")
        took: list[float] = []
        for number in range(KEYS):
            letter = chr(0x391 + number % 17)  # no such letter is on the screen before
            program.type(letter)
            took.append(program.wait_for(letter))
            if number % 17 == 16:
                program.type("\x15")  # empty the field
            deadline = time.monotonic() + 0.1
            while (left := deadline - time.monotonic()) > 0:
                program.read(left)
        return sorted(took)[int(len(took) * 0.95)]
    finally:
        program.end()


async def store_long_session(place: Path) -> None:
    async with SqliteStore(place / "kept" / "sessions.db") as store:
        workspace = str((place / "work").resolve())
        session = await store.create(StoredSession(title="long", workspace_directory=workspace, agent="outrider"))
        for start in range(0, MESSAGES // 2, 500):
            messages: list[Message] = []
            for number in range(start, start + 500):
                now = now_ms()
                asked = Message("user", [TextPart(f"question {number}")], time=MessageTime(now))
                parts = [TextPart(f"Answer **{number}**\n\n- with\n- a list")]
                messages += [asked, Message("assistant", parts, time=MessageTime(now, now), finish="stop")]
            for message in messages:
                message.join(session.id)
            await store.append(session.id, messages)


class PeerStart(NamedTuple):
    """One start of another program: seconds, CPU seconds of the process tree, its memory in MB, share of a core."""

    first: float
    last: float
    cpu: float
    memory: float
    idle: float


def measure_peer(name: str, place: Path) -> list[PeerStart]:
    """Starts another program once; returns None if it ends immediately or shows nothing."""
    program = Program([name], place)
    try:
        if not program.read(20.0):
            return []
        last = program.settle(0.6) - program.started
        cpu, memory = tree_cpu(program.pid), tree_memory(program.pid) / 1000
        time.sleep(PEER_IDLE_SECONDS)
        idle = (tree_cpu(program.pid) - cpu) / PEER_IDLE_SECONDS
        return [PeerStart(program.first, last, cpu, memory, idle)]
    except OSError:
        return []
    finally:
        program.end()


def tree_cpu(root: int) -> float:
    """CPU seconds of a process and its living descendants; some programs are a launcher and a child."""
    total, waiting = 0.0, [root]
    while waiting:
        pid = waiting.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except OSError:
            continue  # the process ended between two reads
    return total


def peer_figures(name: str, starts: list[PeerStart], our_first: float) -> list[Figure]:
    first, last, cpu, memory, idle = (statistics.median(values) for values in zip(*starts, strict=True))
    return [
        Figure(f"{name}: first paint (ours beside it)", first * 1000, "ms", our_first / first),
        Figure(f"{name}: last paint of the start", last * 1000, "ms"),
        Figure(f"{name}: CPU until then", cpu * 1000, "ms"),
        Figure(f"{name}: memory of its processes", memory, "MB"),
        Figure(f"{name}: CPU while idle", idle * 100, "%"),
    ]
