"""The terminal application over a server's sessions, also after the server has crashed."""

import asyncio
from collections.abc import Iterator

import pytest

from outrider.remote.engine import RemoteArchive
from outrider.types.events import Event, ToolApprovalRequestedEvent, ToolApprovalResultEvent
from tests.e2e.attach.socket_server import Serving, call, until

pytest.importorskip("textual", reason="the extra `terminal` is not installed")
pytest.importorskip("pyte", reason="pyte is not installed")

from tests.e2e.tui.terminal import Terminal

LIMIT = 60.0


class Screen:
    """A terminal whose waiting leaves the event loop to others."""

    def __init__(self, serving: Serving, *arguments: str) -> None:
        environ = {**serving.environ, "TERM": "xterm-256color"}
        self.terminal = Terminal(["--attach", serving.url, *arguments], cwd=serving.workspace, environ=environ)

    async def shows(self, *texts: str, without: str = "") -> None:
        await asyncio.to_thread(self.terminal.wait_for, *texts, without=without, limit=LIMIT)

    async def say(self, text: str) -> None:
        await asyncio.to_thread(self.terminal.say, text)

    async def answer(self, key: str) -> None:
        await asyncio.to_thread(self.terminal.answer, key)


@pytest.fixture
def screens() -> Iterator[list[Screen]]:
    opened: list[Screen] = []
    yield opened
    for screen in opened:
        screen.terminal.close()


async def test_a_call_is_approved_on_the_screen_while_another_client_watches(serving: Serving, screens: list[Screen]):
    serving.script("Words that stream.", call("write", file_path="made", content="x"), "Made it.", delay=0.02)
    await serving.begin()
    screen = Screen(serving)
    screens.append(screen)
    await screen.shows("Attached to", "script/demo")
    await screen.say("hello there")
    await screen.shows("▌ hello there", "Words that stream.")
    async with serving.client() as watching:
        (session,) = (await watching.client.get("/api/sessions"))["sessions"]
        events: list[Event] = []
        watching.bus.subscribe_all(events.append)
        await watching.open(session["id"])
        await screen.say("make it")
        await screen.shows("Allow write", "made")
        await until(lambda: any(isinstance(event, ToolApprovalRequestedEvent) for event in events))
        await screen.answer("s")
        await screen.shows("Made it.", without="Allow write")
        await until(lambda: any(isinstance(event, ToolApprovalResultEvent) and event.approved for event in events))
    assert (serving.workspace / "made").exists()
    await screen.say("!ls")
    await screen.shows("! ls", "made", "exit code 0")
    await screen.say("/permissions")
    await screen.shows("Stored approvals (Enter revokes one)", "made")
    await asyncio.to_thread(screen.terminal.press, "enter")
    await screen.shows("approval revoked")
    async with serving.client() as engine:
        assert not await RemoteArchive(engine.client).lasting_approvals()


async def test_the_screen_continues_when_its_server_comes_back(serving: Serving, screens: list[Screen]):
    serving.script("Before the crash.")
    await serving.begin()
    screen = Screen(serving)
    screens.append(screen)
    await screen.shows("script/demo")
    await screen.say("first words")
    await screen.shows("Before the crash.")
    await serving.kill()
    await screen.shows("reconnecting")
    serving.script("After the crash.")
    await serving.begin()
    await screen.say("more words")
    await screen.shows("▌ first words", "Before the crash.", "▌ more words", "After the crash.")
    await asyncio.to_thread(screen.terminal.press, "ctrl+d")
    assert await asyncio.to_thread(screen.terminal.wait, LIMIT) == 0
    assert f"--attach {serving.url} --session" in bytes(screen.terminal.raw).decode()
