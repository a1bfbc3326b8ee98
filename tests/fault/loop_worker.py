"""An engine in a process of its own, to be killed in the middle of its work: `loop_worker.py STORE EFFECTS [SESSION]`.

Its model is a function of what it is shown, so that a turn goes on the same way wherever it was cut: five calls at once
with effects that can be counted, one that asks, a context that overflows once, and an answer."""

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from outrider import ContextOverflowError, Engine, Tool
from outrider.events import ToolApprovalRequestedEvent
from outrider.providers.scripted import call
from outrider.sessions.sqlite.store import SqliteStore
from outrider.tools.tool import Progress, ToolContext
from outrider.types.parts import ToolResultPart
from outrider.types.request import Request
from tests.fault.worker import say
from tests.scenario.stories import agent, scripted

LONG = "I am working on it, step by step. " * 200  # more than is shown without being kept
DONE = "All done."


def answer(request: Request) -> Any:
    """Every request passes the rules of the strictest API before it gets here."""
    texts = [getattr(part, "text", "") for message in request.prompt for part in message.content]
    if "about to be shortened" in texts[-1]:
        return "## Goal\nto go on"
    given = [part for message in request.prompt for part in message.content if isinstance(part, ToolResultPart)]
    shortened = any("Summary of the conversation" in text for text in texts)
    names = {result.tool_name for result in given}
    if shortened:
        return DONE
    if "risky" in names:
        return ContextOverflowError("prompt is too long", status=400)
    if given:
        return ["Now the risky one.", call("risky", "risky-1")]
    return [LONG, *(call("effect", f"effect-{number}", number=number) for number in range(5))]


def tools(effects: Path) -> list[Tool]:
    async def effect(number: int, context: ToolContext) -> str:
        context.report(Progress(output=f"beginning {number}\n"))
        await asyncio.sleep(0.01 * number)
        with effects.open("a") as file:
            file.write(f"effect-{number}\n")
            file.flush()
            os.fsync(file.fileno())
        return f"effect {number} is done"

    def risky() -> str:
        with effects.open("a") as file:
            file.write("risky-1\n")
        return "the risky one is done"

    return [Tool(effect), Tool(risky, policy="ask")]


@contextlib.asynccontextmanager
async def engine(path: Path, effects: Path, **options: Any):
    async with (
        SqliteStore(path) as store,
        Engine([agent()], [scripted(answer, chunk=512, delay=0.004)], tools(effects), store=store, **options) as held,
    ):

        async def approve(event: ToolApprovalRequestedEvent) -> None:
            await held.answer(event.approval_id, allow=True, by="the test")

        held.bus.subscribe(ToolApprovalRequestedEvent, approve)
        yield held


def history() -> list[tuple[str, str]]:
    """Enough said before that there is something to shorten."""
    return [(f"question {number}", f"answer {number} " + "word " * 1_000) for number in range(4)]


async def main(path: str, effects: str, session_id: str) -> None:
    async with engine(Path(path), Path(effects)) as held:
        say(ready=True)
        end = await held.prompt(session_id, "go")
        say(reason=end.reason, output=end.output)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
