"""Long sessions stay fast: the end is there at once, older messages come when they are wanted, typing never waits."""

import asyncio
import time
from pathlib import Path

from outrider.sessions.records import StoredSession
from outrider.sessions.sqlite.store import SqliteStore
from outrider.types.ids import now_ms
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import TextPart, ToolPart
from outrider.types.tool_state import EndedTime, ToolCompleted
from tests.e2e.tui.conftest import Open, write_script

MESSAGES = 10_000


async def keep_long_session(home: Path, workspace: Path) -> None:
    async with SqliteStore(home / "sessions.db") as store:
        session = await store.create(StoredSession(title="long", workspace_directory=str(workspace), agent="outrider"))
        for start in range(0, MESSAGES // 2, 500):
            await store.append(session.id, [one for n in range(start, start + 500) for one in exchange(n, session.id)])


def exchange(number: int, session_id: str) -> list[Message]:
    done = ToolCompleted({"command": f"echo {number}"}, f"out {number}\n" * 20, EndedTime(1, 2))
    answer = [
        TextPart(f"Answer **{number}**\n\n- with\n- a list"),
        ToolPart(call_id=f"c{number}", tool="shell", state=done),
    ]
    now = now_ms()
    pair = [
        Message("user", [TextPart(f"question {number}")], time=MessageTime(now)),
        Message("assistant", answer, time=MessageTime(now, now), finish="stop"),
    ]
    for message in pair:
        message.join(session_id)
    return pair


def test_a_session_of_ten_thousand_messages_shows_its_end_at_once(
    home, workspace, open_terminal: Open, record_property
):
    asyncio.run(keep_long_session(home, workspace))
    write_script(home, ["unused"])
    empty = open_terminal()
    empty.wait_for("script/demo")
    fresh = empty.cpu()
    empty.press("ctrl+d")
    empty.wait()
    terminal = open_terminal("--continue")
    terminal.wait_for("question 4999", "Answer 4999")
    long, took = terminal.cpu(), time.monotonic() - terminal.started
    record_property("figures", f"terminal: first screen {fresh:.2f} s of CPU; with {MESSAGES:,} messages {long:.2f} s")
    record_property("figures", f"terminal: first screen with {MESSAGES:,} messages after {took:.2f} s")
    assert long < 2 * fresh + 1  # of CPU: how busy the machine is otherwise does not matter
    terminal.type("hello")
    terminal.wait_for("› hello")
    for _ in range(40):
        terminal.press("pageup")
    terminal.wait_for("question 49", without="question 4999")


def test_typing_is_not_held_up_by_an_answer_that_streams(home, open_terminal: Open, record_property):
    text = ("A paragraph with **bold** words and `code`. " * 6 + "\n\n- one\n- two\n\n```python\nx = 1\n```\n\n") * 2000
    write_script(home, [text], delay=0.001)
    terminal = open_terminal()
    terminal.wait_for("script/demo")
    terminal.say("go")
    terminal.wait_for("• two")
    took: list[float] = []
    for end in range(1, len("typing") + 1):
        terminal.type("typing"[end - 1])
        took.append(terminal.wait_for(f"› {'typing'[:end]}", "esc: interrupt"))
    record_property("figures", f"terminal: a key while an answer streams {sorted(took)[len(took) // 2] * 1000:.0f} ms")
    terminal.press("escape")
    terminal.wait_for("interrupted")
