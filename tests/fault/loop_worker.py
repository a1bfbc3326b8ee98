"""An engine in a separate process, to be killed at work: `loop_worker.py STORE EFFECTS SESSION KIND URL`.

Its model is a function of what it is shown, so that a turn continues the same way wherever it was cut: five calls
at once with effects that can be counted, one that asks, a context that overflows once, and an answer."""

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from outrider import Agent, Engine, Provider, Tool
from outrider.events import ToolApprovalRequestedEvent
from outrider.sessions.sqlite.store import SqliteStore
from outrider.testing import SimulatedRequest, call
from outrider.testing.simulator_answers import SIMULATED_APIS
from outrider.tools.tool import Progress, ToolContext
from tests.fault.worker import say

LONG = "I am working on it, step by step. " * 200  # more than is shown without a stored file
DONE = "All done."


# Models with the strictest rules: all but OpenAI's reject a conversation that ends with the assistant.
MODELS = {
    "anthropic": "claude-opus-4-6",
    "openai": "gpt-4.1",
    "openai-responses": "gpt-5.4",
    "google": "gemini-3.1-pro",
}


def answer(request: SimulatedRequest) -> Any:
    """Every request passes the rules of its API before it gets here."""
    if "about to be shortened" in request.texts[-1]:
        return "## Goal\nto go on"
    if any("Summary of the conversation" in text for text in request.texts):
        return DONE
    if any("risky" in result for result in request.results) or _asked_for_risky(request):
        return SIMULATED_APIS[request.kind].overflow
    if request.results:
        return ["Now the risky one.", call("risky", "risky-1")]
    return [LONG, *(call("effect", f"effect-{number}", number=number) for number in range(5))]


def _asked_for_risky(request: SimulatedRequest) -> bool:
    """Whether the call is in the conversation; its result may be a note about an interruption."""
    conversation = str([request.body.get(name) for name in ("messages", "input", "contents")])
    return any(f"{quote}risky{quote}" in conversation for quote in "'\"")


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
async def engine(path: Path, effects: Path, kind: Any, url: str, **options: Any):
    dialect = {"dialect": "openai"} if kind == "openai" else {}
    provider = Provider("vendor", kind, "key", url, options=dialect)
    writer = Agent("writer", "You write.", MODELS[kind], "vendor")
    async with (
        SqliteStore(path) as store,
        Engine([writer], [provider], tools(effects), store=store, **options) as held,
    ):

        async def approve(event: ToolApprovalRequestedEvent) -> None:
            await held.answer(event.approval_id, allow=True, by="the test")

        held.bus.subscribe(ToolApprovalRequestedEvent, approve)
        yield held


def history() -> list[tuple[str, str]]:
    """Earlier messages, so that there is something to compact."""
    return [(f"question {number}", f"answer {number} " + "word " * 1_000) for number in range(4)]


async def main(path: str, effects: str, session_id: str, kind: str, url: str) -> None:
    async with engine(Path(path), Path(effects), kind, url) as held:
        say(ready=True)
        end = await held.prompt(session_id, "go")
        say(reason=end.reason, output=end.output)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
