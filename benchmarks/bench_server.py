"""The server: many clients that follow one streaming session, and the cost of a request without the engine's work.

Server and clients are separate processes, as in production. Clients buffer what they receive and check it after the
stream has ended, so that they do not compete with it for CPU time. In the load of a team, one process has the turns and
their followers, and another one, this one, measures its own requests, so that a request is not measured late because
followers of the same process are read."""

import asyncio
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from multiprocessing.synchronize import Event
from pathlib import Path

import msgspec

from benchmarks.figure import Figure
from benchmarks.server_worker import TOKEN, Course

CLIENTS = 200
COURSE = Course(pieces=300)
ROUNDS = 3
REQUESTS = 400
TEAM_TURNS, TEAM_FOLLOWERS = 100, 500
TEAM_COURSE = Course(pieces=240, characters=24, pause=0.05)  # twelve seconds of twenty chunks each
START_PAUSE = 0.03  # seconds between the starts of two turns: people do not start them in the same instant
PROBE_PAUSE = 0.02  # seconds between two measured requests
END = b'"LoopCompletedEvent"'


def bench() -> Iterable[Figure]:
    with tempfile.TemporaryDirectory() as folder, Worker(Path(folder), COURSE) as worker:
        alone, together, bytes_each = asyncio.run(followed(worker))
        overhead = asyncio.run(request_cost(worker))
    with tempfile.TemporaryDirectory() as folder, Worker(Path(folder), TEAM_COURSE) as worker:
        waits, share = asyncio.run(team_load(worker))
    yield Figure("server: requests in the load of a team", len(waits), "requests")
    yield Figure("server: CPU of a core in the load of a team", share * 100, "%")
    waits.sort()
    for share in (0.5, 0.99):
        name = f"server: request p{share * 100:g}, {TEAM_TURNS} turns, {TEAM_FOLLOWERS} followers"
        milliseconds = waits[int(len(waits) * share)] * 1000
        yield Figure(name, milliseconds, "ms", target="< 100 ms", ok=milliseconds < 100)
    slower = min(together) / min(alone) - 1
    yield Figure(
        f"server: slower stream with {CLIENTS} followers", slower * 100, "%", target="< 10 %", ok=slower < 0.10
    )
    kilobytes = bytes_each / 1024
    yield Figure("server: memory of a follower", kilobytes, "KB", target="< 200 KB", ok=kilobytes < 200)
    yield Figure(
        "server: CPU of a request besides the engine", overhead * 1000, "ms", target="<= 2 ms", ok=overhead <= 0.002
    )


class Worker:
    """The server process."""

    def __init__(self, folder: Path, course: Course) -> None:
        command = [sys.executable, "-m", "benchmarks.server_worker", str(folder), msgspec.json.encode(course).decode()]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> "Worker":
        self.port = int(self._read())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def ask(self, *words: object) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return float(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


class Follower(asyncio.Protocol):
    """Buffers the bytes; `ended` is set when the turn has ended."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self.received = bytearray()
        self.joined = asyncio.get_running_loop().create_future()
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._head)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if not self.joined.done():
            self.joined.set_result(None)
        if not self.ended.done() and END in self.received[-len(data) - len(END) :]:
            self.ended.set_result(None)


class Speaker:
    """One connection for plain requests."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> "Speaker":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def ask(self, method: str, path: str, body: object = None) -> bytes:
        sent = b"" if body is None else msgspec.json.encode(body)
        self._writer.write(request(self._port, method, path, sent) + sent)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert b" 20" in head.split(b"\r\n", 1)[0], head
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        return await self._reader.readexactly(int(length.split(b":")[1]))

    def close(self) -> None:
        self._writer.close()


def request(port: int, method: str, path: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()


async def followed(worker: Worker) -> tuple[list[float], list[float], float]:
    """Seconds of the stream for one follower and for many, alternating; and the bytes of memory per follower."""
    await stream(worker, 1)
    _, bytes_each = await stream(worker, CLIENTS)  # measured the first time, when no freed memory is reused
    alone: list[float] = []
    together: list[float] = []
    for _ in range(ROUNDS):
        alone.append((await stream(worker, 1))[0])
        together.append((await stream(worker, CLIENTS))[0])
    return alone, together, bytes_each


async def stream(worker: Worker, count: int) -> tuple[float, float]:
    speaker = await Speaker(worker.port).open()
    session = msgspec.json.decode(await speaker.ask("POST", "/api/sessions", {}))["id"]
    before = worker.ask("rss")
    followers = [await follower(worker.port, session) for _ in range(count)]
    await asyncio.wait([one.joined for one in followers])
    start = time.perf_counter()
    await speaker.ask("POST", f"/api/sessions/{session}/prompt", {"text": "Go.", "wait": True})
    seconds = time.perf_counter() - start
    async with asyncio.timeout(60):
        await asyncio.wait([one.ended for one in followers])
    grown = worker.ask("rss") - before
    speaker.close()
    for one in followers:
        one.transport.close()
        judge(bytes(one.received))
    return seconds, grown / count


async def team_load(worker: Worker) -> tuple[list[float], float]:
    """Seconds of each request while a hundred turns stream to their followers, and the share of a core that the server
    used meanwhile."""
    creator = await Speaker(worker.port).open()
    sessions = [msgspec.json.decode(await creator.ask("POST", "/api/sessions", {}))["id"] for _ in range(TEAM_TURNS)]
    creator.close()
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    team = context.Process(target=run_team, args=(worker.port, sessions, ready))
    team.start()
    assert await asyncio.to_thread(ready.wait, 60)
    probe = await Speaker(worker.port).open()
    waits: list[float] = []
    used, began = worker.ask("cpu"), time.perf_counter()
    while team.is_alive():
        path = f"/api/sessions/{sessions[len(waits) % TEAM_TURNS]}"
        start = time.perf_counter()
        await probe.ask("GET", path)
        waits.append(time.perf_counter() - start)
        await asyncio.sleep(PROBE_PAUSE)
    share = (worker.ask("cpu") - used) / (time.perf_counter() - began)
    team.join()
    assert team.exitcode == 0
    probe.close()
    return waits, share


def run_team(port: int, sessions: list[str], ready: Event) -> None:
    asyncio.run(team_turns(port, sessions, ready))


async def team_turns(port: int, sessions: list[str], ready: Event) -> None:
    """Runs a turn in each session and follows it; all followers see the end."""
    speakers = [await Speaker(port).open() for _ in sessions]
    followers = [await follower(port, session) for session in sessions for _ in range(TEAM_FOLLOWERS // TEAM_TURNS)]
    await asyncio.wait([one.joined for one in followers])
    ready.set()
    async with asyncio.TaskGroup() as group:
        for number, (one, session) in enumerate(zip(speakers, sessions, strict=True)):
            group.create_task(start_later(number * START_PAUSE, one, session))
    async with asyncio.timeout(60):
        await asyncio.wait([one.ended for one in followers])
    for one in speakers:
        one.close()
    for one in followers:
        one.transport.close()


async def start_later(seconds: float, speaker: Speaker, session: str) -> None:
    await asyncio.sleep(seconds)
    await speaker.ask("POST", f"/api/sessions/{session}/prompt", {"text": "Go.", "wait": True})


async def follower(port: int, session: str) -> Follower:
    head = request(port, "GET", f"/api/sessions/{session}/events")
    _, protocol = await asyncio.get_running_loop().create_connection(lambda: Follower(head), "127.0.0.1", port)
    return protocol


def judge(received: bytes) -> None:
    """Checks that every word arrived, and every change once and in order (a replaced value has no number)."""
    seen, text = [], ""
    for frame in body(received).split(b"\n\n"):
        lines = dict(line.split(b": ", 1) for line in frame.split(b"\n") if b": " in line)
        if b"id" in lines:
            seen.append(int(lines[b"id"]))
        if lines.get(b"event") == b"live":
            events = msgspec.json.decode(lines[b"data"])
            text += "".join(event["delta"] for event in events if event["type"] == "PartDeltaEvent")
    assert seen == sorted(set(seen)), seen
    assert text == COURSE.text(), (len(text), len(COURSE.text()))


def body(received: bytes) -> bytes:
    """Joins the chunks; the last one may be incomplete."""
    rest, pieces = received.partition(b"\r\n\r\n")[2], []
    while rest:
        size, found, rest = rest.partition(b"\r\n")
        if not found or not size:
            break
        length = int(size, 16)
        pieces.append(rest[:length])
        rest = rest[length + 2 :]
    return b"".join(pieces)


async def request_cost(worker: Worker) -> float:
    """CPU seconds of the server for one request, without those of the engine call in it."""
    speaker = await Speaker(worker.port).open()
    session = msgspec.json.decode(await speaker.ask("POST", "/api/sessions", {}))["id"]
    path = f"/api/sessions/{session}"
    for _ in range(REQUESTS):
        await speaker.ask("GET", path)
    best = float("inf")
    for _ in range(ROUNDS):
        start = worker.ask("cpu")
        for _ in range(REQUESTS):
            await speaker.ask("GET", path)
        spent = (worker.ask("cpu") - start) / REQUESTS
        best = min(best, spent - worker.ask("engine", session, REQUESTS))
    speaker.close()
    return best
