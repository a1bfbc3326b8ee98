"""The web page in Chromium: frames per second while a long answer streams in and while a long session is scrolled, and
how fast a session of 10,000 messages opens."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.figure import Figure
from outrider import Agent, Engine, Provider
from outrider.server.app import create_app
from outrider.server.auth import ListenAddress
from outrider.server.event_stream import SessionFeedRegistry
from outrider.server.server import OutriderServer, bind_socket
from outrider.stores import SqliteStore
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import TextPart

TOKEN = "a-token-that-is-long-enough-for-the-benchmark"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PARAGRAPH = "A paragraph with **bold**, `code` and a [link](https://example.com), as answers have them. " * 4
ANSWER = "\n\n".join(
    f"{number}. {PARAGRAPH}" if number % 7 else f"```python\nx = {number}\n```" for number in range(960)
)
MESSAGES = 10_000
COUNT_FRAMES = """() => { window.frames_seen = 0;
    const count = () => { window.frames_seen += 1; requestAnimationFrame(count); }; requestAnimationFrame(count); }"""


def bench() -> Iterable[Figure]:
    if CHROMIUM is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        stream, work, opened, scrolled, found, heap = asyncio.run(_measure(Path(folder)))
    size = f"{len(ANSWER) / 1024:.0f} KB"
    yield Figure(f"page: frames while {size} stream in", stream, "fps", target=">= 30 fps", ok=stream >= 30)
    yield Figure("page: main thread per frame meanwhile", work, "ms CPU", target="<= 33 ms", ok=work <= 33)
    yield Figure(
        f"page: {MESSAGES:,} messages until the last is shown", opened, "s", target="<= 0.3 s", ok=opened <= 0.3
    )
    yield Figure("page: frames while they are scrolled", scrolled, "fps", target=">= 50 fps", ok=scrolled >= 50)
    yield Figure("page: until the first of them is found", found, "s", target="<= 5 s", ok=found <= 5)
    yield Figure("page: JavaScript heap with all of them loaded", heap, "MB", target="<= 150 MB", ok=heap <= 150)


async def _measure(folder: Path) -> tuple[float, float, float, float, float, float]:
    from playwright.async_api import async_playwright

    async with _serve(folder) as (engine, url), async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        await page.goto(f"{url}/?token={TOKEN}")
        await page.evaluate(COUNT_FRAMES)
        session = await page.context.new_cdp_session(page)
        await session.send("Performance.enable", {"timeDomain": "threadTicks"})  # CPU time: other load does not count
        frames, busy = await page.evaluate("window.frames_seen"), (await _read_metrics(session))["TaskDuration"]
        stream = await _stream_frames(page, engine)
        busy = (await _read_metrics(session))["TaskDuration"] - busy
        work = busy * 1000 / (await page.evaluate("window.frames_seen") - frames)
        long_session = await _create_long_session(engine)
        start = time.perf_counter()
        await page.evaluate("id => { location.hash = '#/' + id; }", long_session)
        await page.get_by_text(f"message {MESSAGES - 1} ").last.wait_for()
        opened = time.perf_counter() - start
        scrolled = await _scroll_frames(page)
        found = await _find_first(page, engine, long_session)
        await session.send("HeapProfiler.collectGarbage")
        metrics = await _read_metrics(session)
        await browser.close()
    return stream, work, opened, scrolled, found, metrics["JSHeapUsedSize"] / 1024 / 1024


async def _read_metrics(session: Any) -> dict[str, float]:
    return {one["name"]: one["value"] for one in (await session.send("Performance.getMetrics"))["metrics"]}


@asynccontextmanager
async def _serve(folder: Path) -> AsyncIterator[tuple[Engine, str]]:
    provider = Provider("scripted", "scripted", options={"script": [ANSWER], "chunk": 200, "delay": 0.005})
    listening, address = bind_socket(ListenAddress())
    agents = [Agent("writer", "You write.", "m", "scripted")]
    async with SqliteStore(folder / "sessions.db") as store, Engine(agents, [provider], store=store) as engine:
        feeds = SessionFeedRegistry(engine)
        server = OutriderServer(create_app(engine, feeds, address=address, token=TOKEN, version="0"), address, feeds)
        serving = asyncio.create_task(server.serve([listening]))
        try:
            yield engine, address.url
        finally:
            server.should_exit = True
            await serving


async def _stream_frames(page: Any, engine: Engine) -> float:
    session_id = await engine.create(title="stream")
    await page.evaluate("id => { location.hash = '#/' + id; }", session_id)
    await page.locator("#input").wait_for()
    before, start = await page.evaluate("window.frames_seen"), time.perf_counter()
    await engine.prompt(session_id, "write")
    await page.locator("#state:not(.busy)").wait_for(state="attached", timeout=120_000)
    return (await page.evaluate("window.frames_seen") - before) / (time.perf_counter() - start)


async def _create_long_session(engine: Engine) -> str:
    session_id = await engine.create(title="long")
    await engine.close(session_id)
    for start in range(0, MESSAGES, 1000):
        rows: list[Any] = []
        for number in range(start, start + 1000):
            role = "assistant" if number % 2 else "user"
            written = MessageTime(created=number, completed=number)
            message = Message(role, session_id=session_id, time=written, finish="stop" if number % 2 else None)
            text = TextPart(f"message {number} {PARAGRAPH}", message_id=message.id, session_id=session_id)
            rows += [message, text]
        await engine.store.append(session_id, rows)
    return session_id


async def _scroll_frames(page: Any) -> float:
    await page.locator("#conversation").hover()
    before, start = await page.evaluate("window.frames_seen"), time.perf_counter()
    for _ in range(60):
        await page.mouse.wheel(0, -1500)
        await asyncio.sleep(0.05)
    return (await page.evaluate("window.frames_seen") - before) / (time.perf_counter() - start)


async def _find_first(page: Any, engine: Engine, session_id: str) -> float:
    """Opens the session at its first message, as a search hit does: everything is loaded."""
    (first,) = (await engine.store.load(session_id, after="", limit=1)).messages
    start = time.perf_counter()
    await page.evaluate("place => { location.hash = place; }", f"#/{session_id}/{first.id}")
    await page.get_by_text("message 0 ").first.wait_for()
    return time.perf_counter() - start
