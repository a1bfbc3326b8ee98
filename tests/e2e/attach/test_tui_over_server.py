"""The terminal application over a server's sessions, also after the server has crashed."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

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

    def __init__(self, serving: Serving, *arguments: str, url: str = "") -> None:
        environ = {**serving.environ, "TERM": "xterm-256color"}
        self.terminal = Terminal(["--attach", url or serving.url, *arguments], cwd=serving.workspace, environ=environ)

    async def shows(self, *texts: str, without: str = "") -> None:
        await asyncio.to_thread(self.terminal.wait_for, *texts, without=without, limit=LIMIT)

    async def say(self, text: str) -> None:
        await asyncio.to_thread(self.terminal.say, text)

    async def opens(self) -> None:
        """Until the application is connected: then it knows the commands."""
        self.terminal.type("/hel")
        await self.shows("/help")
        self.terminal.type("\x15")

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
    # The thread that reads the terminal may be behind the end of the program.
    await asyncio.to_thread(screen.terminal.wait_for_bytes, f"--attach {serving.url} --session".encode())


async def test_a_message_that_is_typed_while_the_server_is_away_waits_on_the_screen_and_is_sent_once(
    serving: Serving, screens: list[Screen]
):
    serving.script("Before the crash.")
    await serving.begin()
    screen = Screen(serving)
    screens.append(screen)
    await screen.shows("script/demo")
    await screen.say("first words")
    await screen.shows("Before the crash.")
    await serving.kill()
    await screen.shows("the server cannot be reached · next attempt in")
    await screen.say("words that wait")
    await screen.shows("↳ when the server answers  words that wait", "↑: edit again")
    await asyncio.to_thread(screen.terminal.press, "up")
    await screen.shows("› words that wait", without="↳ when the server answers")
    await screen.say(" a little")
    await screen.shows("↳ when the server answers  words that wait a little")
    serving.script("After the crash.")
    await serving.begin()
    await screen.shows("the server answers again", "▌ words that wait a little", "After the crash.", without="↳")
    async with serving.client() as engine:
        (stored,) = (await engine.client.get("/api/sessions"))["sessions"]
        transcript = await RemoteArchive(engine.client).load(stored["id"])
    asked = [message.get_text_content() for message in transcript.messages if message.role == "user"]
    assert [text.rpartition("\n")[2] for text in asked] == ["first words", "words that wait a little"]


async def test_the_first_message_waits_for_a_server_that_is_away(serving: Serving, screens: list[Screen]):
    serving.script("Here I am.")
    await serving.begin()
    screen = Screen(serving)
    screens.append(screen)
    await screen.opens()
    await serving.kill()
    await screen.say("are you there")
    await screen.shows("↳ when the server answers  are you there", "next attempt in")
    await serving.begin()
    await screen.shows("▌ are you there", "Here I am.", without="↳")


async def test_a_message_that_waits_for_the_server_is_a_draft_after_a_restart(serving: Serving, screens: list[Screen]):
    serving.script("Here I am.")
    await serving.begin()
    screen = Screen(serving)
    screens.append(screen)
    await screen.opens()
    await serving.kill()
    await screen.say("not sent yet")
    await screen.shows("↳ when the server answers  not sent yet")
    screen.terminal.hang_up()
    assert await asyncio.to_thread(screen.terminal.wait, LIMIT) == 0
    await serving.begin()
    again = Screen(serving)
    screens.append(again)
    await again.shows("› not sent yet")


async def test_a_screen_whose_server_is_away_during_the_start_opens_when_it_is_back(
    serving: Serving, screens: list[Screen], tmp_path: Path
):
    """The program checks the connection with two requests before it changes the screen; later ones are refused."""
    serving.script("Here I am.")
    await serving.begin()
    accepted, is_back = 0, False
    connections: set[asyncio.Task[None]] = set()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        if task := asyncio.current_task():
            connections.add(task)
        if is_back or accepted <= 2:
            answers, requests = await asyncio.open_unix_connection(serving.socket)
            await asyncio.wait(
                [asyncio.ensure_future(copy(reader, requests)), asyncio.ensure_future(copy(answers, writer))]
            )
        writer.close()

    proxy = await asyncio.start_unix_server(forward, tmp_path / "proxy.sock")
    screen = Screen(serving, url=f"http+unix://{tmp_path / 'proxy.sock'}")
    screens.append(screen)
    await screen.shows("the server cannot be reached · next attempt in")
    await screen.say("too early")
    await screen.shows("The server cannot be reached yet.", "› too early")
    is_back = True
    await screen.shows("› too early", without="the server cannot be reached")
    screen.terminal.press("enter")
    await screen.shows("▌ too early", "Here I am.")
    screen.terminal.process.kill()
    proxy.close()
    await asyncio.wait(connections)


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    target.close()
