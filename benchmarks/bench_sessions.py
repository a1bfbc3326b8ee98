"""Cost of sessions in an SQLite file: appending, opening, listing, searching, disk space, and sixteen writers."""

import asyncio
import json
import random
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.figure import Figure
from outrider import Agent, Engine, Provider, Tool
from outrider.sessions.export import stream_export
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import StoredSession
from outrider.sessions.sqlite.store import SqliteStore
from outrider.testing import SimulatedRequest, Simulator, call
from outrider.types.codec import encode_part
from outrider.types.ids import new_id, now_ms
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import TextPart, ToolPart, ToolResultPart
from outrider.types.request import Request
from outrider.types.tool_state import EndedTime, ToolCompleted

ROUNDS, APPENDS = 8, 150
LONG, MIDDLE, SHORT = 100_000, 10_000, 100
SESSIONS, SEARCHED = 100_000, 1_000_000
INDEXED_SESSIONS = 20_000
PROCESSES, SECONDS = 16, 5
OLD_TURNS, MEASURED_TURNS, COMPACTED = 5_000, 200, 100
LARGE_MESSAGES = 1_000  # of a megabyte each
ANSWER_MEGABYTES = 40
TEXT = "x" * 1850


def bench() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        return [
            *asyncio.run(appending(home)),
            *asyncio.run(long_session(home)),
            *asyncio.run(many_sessions(home)),
            *asyncio.run(searching(home)),
            *asyncio.run(first_indexing(home)),
            *contention(home),
            *asyncio.run(turns_of_a_long_session(home)),
            *asyncio.run(exporting(home)),
            *processes_at_once(home),
            *large_values(home),
        ]


async def appending(home: Path) -> list[Figure]:
    """Bare inserts and appends alternate, so that load on the machine affects both equally."""
    bare = bare_table(home / "bare.db")
    ours: list[float] = []
    theirs: list[float] = []
    async with SqliteStore(home / "append" / "sessions.db") as store:
        message = await open_message(store)
        for _ in range(ROUNDS):
            theirs += [timed(lambda: insert(bare)) for _ in range(APPENDS)]
            ours += [await append_one(store, message) for _ in range(APPENDS)]
        together = await clocked(lambda: append_together(store, message, APPENDS)) / APPENDS
    bare.close()
    cost, floor = statistics.median(ours) * 1000, statistics.median(theirs) * 1000
    ratio = cost / floor
    return [
        Figure("append a stored part, awaited", cost, "ms", ratio, "<= 2x a bare insert, synced", ok=ratio <= 2),
        Figure(f"append, {APPENDS} at once, each", together * 1000, "ms", together * 1000 / floor),
    ]


async def long_session(home: Path) -> list[Figure]:
    path = home / "long" / "sessions.db"
    async with SqliteStore(path) as store:
        short = await open_message(store)
        payload = await fill(store, short.session_id, SHORT)
        long = await open_message(store)
        payload += await fill(store, long.session_id, LONG)
        log = log_size(path) / 2**20
        await store.search("settled")
        few, many = await take_turns(store, short, long)
        middle = await open_message(store)
        payload += await fill(store, middle.session_id, MIDDLE)
        whole = [await clocked(lambda: store.load(middle.session_id)) for _ in range(5)]
        opening = [await clocked(lambda: store.load(long.session_id, limit=50)) for _ in range(20)]
    size = path.stat().st_size / payload
    growth = many / few
    opened, resumed = statistics.median(opening) * 1000, statistics.median(whole) * 1000
    return [
        Figure("append to 100,000 parts over to 100", growth, "x", growth, "<= 1.2x", ok=growth <= 1.2),
        Figure("open the last 50 messages of 100,000 parts", opened, "ms", None, "< 20 ms", ok=opened < 20),
        Figure("open all of 10,000 parts", resumed, "ms", None, "< 500 ms", ok=resumed < 500),
        Figure("database over payload, index included", size, "x", size, "<= 1.5x", ok=size <= 1.5),
        Figure("write-ahead log under load", log, "MiB", None, "<= 64 MiB", ok=log <= 64),
    ]


async def turns_of_a_long_session(home: Path) -> list[Figure]:
    """CPU time of a turn after OLD_TURNS turns over that of a young session, measured alternately. Both sessions are
    compacted after every COMPACTED turns, so their prompts have about the same length and the simulator, which is in
    the same process, has the same work; every turn has two requests and a call."""
    with Simulator(answer_turn) as simulator:
        agent = Agent("writer", "You write.", "claude-opus-4-6", "simulator")
        async with (
            SqliteStore(home / "turns" / "sessions.db") as store,
            Engine([agent], [simulator.provider()], [Tool(look, read_only=True)], store=store) as engine,
        ):
            old, young = await engine.create(), await engine.create()

            async def take_turn(session: str, number: int) -> float:
                before = time.process_time()
                await engine.prompt(session, f"question {number}")
                if number % COMPACTED == 0:
                    await engine.compact(session)
                simulator.requests.clear()
                return time.process_time() - before

            for number in range(OLD_TURNS):
                await take_turn(old, number)
            await engine.compact(old)  # so that both prompts are short at first and are compacted at the same time
            took: dict[str, list[float]] = {old: [], young: []}
            for number in range(2 * MEASURED_TURNS):
                session = (old, young)[number % 2]
                took[session].append(await take_turn(session, number // 2 + 1))
    growth = statistics.mean(took[old]) / statistics.mean(took[young])  # the mean includes compactions
    return [
        Figure(f"turn after {OLD_TURNS:,} turns over a new session", growth, "x", growth, "<= 1.3x", ok=growth <= 1.3),
        Figure("turn with one call, CPU time with the simulated API", statistics.mean(took[old]) * 1000, "ms"),
    ]


def look(name: str) -> str:
    """Look at something."""
    return f"{name}: " + "text " * 60


def answer_turn(request: SimulatedRequest) -> object:
    if "about to be shortened" in request.texts[-1]:
        return "## Goal\nto go on"
    last = request.body["messages"][-1]["content"]
    if isinstance(last, list) and last[0]["type"] == "tool_result":
        return "It is done. " + "word " * 40
    return ["Let me look.", call("look", f"c{new_id()}", name="a")]


async def exporting(home: Path) -> list[Figure]:
    """Memory of the export of a transcript, and the time to open its end."""
    async with SqliteStore(home / "large" / "sessions.db") as store:
        message = await open_message(store)
        for number in range(LARGE_MESSAGES):
            text = Message("user", [TextPart(f"{number} " + "word " * 200_000)], time=MessageTime(now_ms()))
            text.join(message.session_id)
            await store.append(message.session_id, [text])
        opened = await clocked(lambda: store.load(message.session_id, limit=5)) * 1000
        before, size = peak_memory(), 0
        async for piece in stream_export(store, message.session_id):
            size += len(piece)
        grown = (peak_memory() - before) / 2**20
    return [
        Figure(f"export of {size / 2**20:,.0f} MiB, memory", grown, "MiB", None, "< 200 MiB", ok=grown < 200),
        Figure("open the end of that transcript", opened, "ms", None, "< 1,000 ms", ok=opened < 1000),
    ]


def large_values(home: Path) -> list[Figure]:
    """Opening the transcript of `exporting` in an engine, and an answer of ANSWER_MEGABYTES, each in a process that
    does nothing else."""
    opened, opened_memory = run_child("open", str(home / "large" / "sessions.db"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), LongAnswer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    _, answer_memory = run_child("answer", str(home / "answer" / "sessions.db"), url)
    server.shutdown()
    server.server_close()
    name, answer = f"open a transcript of {LARGE_MESSAGES:,} MB", f"answer of {ANSWER_MEGABYTES} MB"
    return [
        Figure(name, opened, "s", None, "< 1 s", ok=opened < 1),
        Figure(f"{name}, memory", opened_memory, "MiB", None, "< 200 MiB", ok=opened_memory < 200),
        Figure(f"{answer}, memory", answer_memory, "MiB", None, "< 200 MiB", ok=answer_memory < 200),
    ]


def run_child(*arguments: str) -> tuple[float, float]:
    """Returns the seconds that a process of this module reports, and its peak memory in MiB."""
    command = [sys.executable, "-m", "benchmarks.bench_sessions", *arguments]
    seconds, memory = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return seconds, memory


class LongAnswer(BaseHTTPRequestHandler):
    """OpenAI's chat API with one answer of ANSWER_MEGABYTES, in deltas of 64 KiB."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for delta, finish in [*[({"content": "word " * 13_107}, None)] * (ANSWER_MEGABYTES * 16), ({}, "stop")]:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            event = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        pass


async def use_large_value(place: str, url: str = "") -> float:
    """Returns the seconds of an answer of the server at `url`; without one, of opening the newest session."""
    agent = Agent("writer", "You write.", "m", "server")
    provider = Provider("server", "openai", "key", url or "http://127.0.0.1:1/v1")
    async with SqliteStore(place) as store, Engine([agent], [provider], store=store) as engine:
        if url:
            return await clocked(lambda: ask_once(engine))
        session_id = (await store.list()).sessions[0].id
        return await clocked(lambda: engine.open(session_id))


def own_peak_memory() -> float:
    """Returns MiB; `getrusage` has the peak of the parent, too."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


async def ask_once(engine: Engine) -> None:
    await engine.prompt(await engine.create(), "a question")


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def processes_at_once(home: Path) -> list[Figure]:
    """p99 of turns of PROCESSES processes on one file over p99 of the same work on stores in memory."""
    places = ("memory", str(home / "together" / "sessions.db"))
    in_memory, on_disk = (took[int(len(took) * 0.99)] for took in (run_children("turns", place) for place in places))
    ratio = on_disk / in_memory
    return [
        Figure(f"{PROCESSES} processes on one file, p99 over in memory", ratio, "x", ratio, "<= 2x", ok=ratio <= 2),
        Figure(f"{PROCESSES} processes on one file, p99 of a turn", on_disk * 1000, "ms"),
    ]


def run_children(*arguments: str) -> list[float]:
    """Starts PROCESSES processes of this module and returns the times that they print, sorted."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.bench_sessions", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(PROCESSES)
    ]
    for child in children:
        child.stdout.readline()
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    return sorted(seconds for child in children for seconds in json.loads(child.communicate()[0]))


async def turns_for_a_while(place: str) -> list[float]:
    """Turns of one process with a scripted model and a tool, until SECONDS are over."""
    took: list[float] = []
    script = Provider("scripted", "scripted", options={"script": answer_scripted})
    agent = Agent("writer", "You write.", "scripted", "scripted")
    async with (
        MemoryStore() if place == "memory" else SqliteStore(place) as store,
        Engine([agent], [script], [Tool(look, read_only=True)], store=store) as engine,
    ):
        session = await engine.create()
        await engine.prompt(session, "warm up")
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            took.append(await clocked(lambda: engine.prompt(session, "a question")))
    return took


def answer_scripted(request: Request) -> object:
    answered = any(isinstance(part, ToolResultPart) for part in request.prompt[-1].content)
    return "It is done." if answered else [call("look", name="a")]


async def take_turns(store: SqliteStore, *messages: Message) -> list[float]:
    """The median time of an append to each, measured alternately."""
    took: list[list[float]] = [[] for _ in messages]
    for number in range(ROUNDS * len(messages)):
        message = messages[number % len(messages)]
        took[number % len(messages)] += [await append_one(store, message) for _ in range(APPENDS)]
    return [statistics.median(times) for times in took]


def log_size(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


async def many_sessions(home: Path) -> list[Figure]:
    path = home / "many" / "sessions.db"
    async with SqliteStore(path) as store:
        for _ in range(SESSIONS // 1000):
            await asyncio.gather(*(store.create(StoredSession(title=f"session {number}")) for number in range(1000)))
        took = [await clocked(lambda: store.list(limit=50)) for _ in range(20)]
    listed = statistics.median(took) * 1000
    return [Figure("list the newest 50 of 100,000 sessions", listed, "ms", None, "< 10 ms", ok=listed < 10)]


async def searching(home: Path) -> list[Figure]:
    """Searches for common, rare and several words, a phrase and a prefix; returns the time of the slowest search."""
    queries = ("w0", "w49999", "w0 w1", "w3 w40000", '"w0 w1"', "w4999*")
    async with SqliteStore(home / "words" / "sessions.db") as store:
        message = await open_message(store)
        for _ in range(SEARCHED // 2000):
            await store.append(message.session_id, [text_part(message, words(12)) for _ in range(2000)])
        await store.search("w0")
        took = [
            statistics.median([await clocked(lambda: store.search(query)) for _ in range(5)])  # noqa: B023
            for query in queries
        ]
    slowest = max(took) * 1000
    return [Figure("search 1,000,000 parts, slowest query", slowest, "ms", None, "< 100 ms", ok=slowest < 100)]


async def first_indexing(home: Path) -> list[Figure]:
    """The first search of INDEXED_SESSIONS sessions that no index has yet, as after an import."""
    path = home / "unindexed" / "sessions.db"
    async with SqliteStore(path) as store:
        for _ in range(INDEXED_SESSIONS // 500):
            messages = await asyncio.gather(*(open_message(store) for _ in range(500)))
            await asyncio.gather(
                *(store.append(message.session_id, [text_part(message, words(12))]) for message in messages)
            )
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO words (words) VALUES ('delete-all')")
        db.execute("UPDATE sessions SET indexed = 0")
    db.close()
    async with SqliteStore(path) as store:
        took = await clocked(lambda: store.search("w0"))
    return [Figure(f"first search of {INDEXED_SESSIONS:,} sessions", took, "s", None, "< 10 s", ok=took < 10)]


def contention(home: Path) -> list[Figure]:
    took = run_children(str(home / "shared" / "sessions.db"))
    p99, longest = took[int(len(took) * 0.99)] * 1000, took[-1] * 1000
    return [
        Figure("16 processes appending, p99", p99, "ms", None, "< 250 ms", ok=p99 < 250),
        Figure("16 processes appending, longest", longest, "ms", None, "< 2,000 ms", ok=longest < 2000),
        Figure("16 processes appending, all together", len(took) / SECONDS, "appends/s"),
    ]


async def append_for_a_while(path: Path) -> list[float]:
    took: list[float] = []
    async with SqliteStore(path) as store:
        message = await open_message(store)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            took.append(await append_one(store, message))
    return took


async def open_message(store: SqliteStore) -> Message:
    session = await store.create(StoredSession())
    message = Message("assistant", time=MessageTime(now_ms()))
    message.join(session.id)
    await store.append(session.id, [message])
    return message


async def fill(store: SqliteStore, session_id: str, parts: int) -> int:
    """Messages of ten parts like those of a real session; returns their size in bytes of JSON."""
    payload = 0
    for _ in range(max(1, parts // 1000)):
        messages: list[Message] = []
        for _ in range(min(parts, 1000) // 10):
            message = Message("assistant", time=MessageTime(now_ms()))
            message.join(session_id)
            for _ in range(10):
                message.add_part(some_part())
            payload += sum(len(encode_part(part)) for part in message.parts)
            messages.append(message)
        await store.append(session_id, messages)
    return payload


def some_part() -> TextPart | ToolPart:
    length = random.choice((20, 60, 150, 400))
    if length < 150:
        return TextPart(words(length))
    state = ToolCompleted({"path": words(3)}, words(length), EndedTime(1, 2))
    return ToolPart(call_id=new_id(), tool="read", state=state)


def words(count: int) -> str:
    """Returns words with the frequencies of natural language."""
    return " ".join(f"w{int(50_000 ** random.random()) - 1}" for _ in range(count))


def text_part(message: Message, text: str = TEXT) -> TextPart:
    part = TextPart(text)
    part.adopt(message.id, message.session_id)
    return part


async def append_one(store: SqliteStore, message: Message) -> float:
    return await clocked(lambda: store.append(message.session_id, [text_part(message)]))


async def append_together(store: SqliteStore, message: Message, count: int) -> None:
    await asyncio.gather(*(store.append(message.session_id, [text_part(message)]) for _ in range(count)))


def bare_table(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE part (id INTEGER PRIMARY KEY, session TEXT, body BLOB)")
    return db


def insert(db: sqlite3.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO part (session, body) VALUES (?, ?)", ("s", encode_part(TextPart(TEXT))))
    db.execute("COMMIT")


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


async def clocked(work: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    await work()
    return time.perf_counter() - start


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["turns", place]:
            measured: object = asyncio.run(turns_for_a_while(place))
        case ["open" | "answer", *rest]:
            measured = asyncio.run(use_large_value(*rest)), own_peak_memory()
        case [path]:
            measured = asyncio.run(append_for_a_while(Path(path)))
    print(json.dumps(measured))
