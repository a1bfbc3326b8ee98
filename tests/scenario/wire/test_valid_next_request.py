"""The next request of a session follows the rules of the API after every kind of event."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider import Agent, Engine, Tool
from outrider.events import PartDeltaEvent, ToolApprovalRequestedEvent, ToolInputDeltaEvent
from outrider.sessions.sqlite.store import SqliteStore
from outrider.testing import (
    BrokenConnection,
    MaxTokens,
    SimulatedError,
    SimulatedReasoning,
    SimulatedRequest,
    Simulator,
    call,
)
from tests.fixtures.soak import SOAK

# The models with the strictest rules of each API.
MODELS: dict[Any, str] = {
    "anthropic": "claude-opus-4-6",
    "openai": "gpt-4.1",
    "openai-responses": "gpt-5.4",
    "google": "gemini-3.1-pro",
}
FAULTS = ["none", "broken", "broken call", "abort", "abort call", "denied", "length", "error", "crash", "empty"]
SEEDS = range(200) if SOAK else range(6)


class UnreliableModel:
    """Answers with what the current fault wants, once, and then well."""

    def __init__(self) -> None:
        self.fault = "none"
        self.never = asyncio.Event()
        self._calls = 0

    def answer(self, request: SimulatedRequest) -> Any:
        if "about to be shortened" in request.texts[-1]:
            return [call("look", f"s{self._number()}", name="instead of a summary")]
        fault, self.fault = self.fault, "none"
        thought = [SimulatedReasoning("hm")]
        look = call("look", f"c{self._number()}", name=f"file {self._calls}")
        match fault:
            case "broken":
                return [*thought, "half an answer ", BrokenConnection()]
            case "broken call":
                return ["I look.", look, BrokenConnection()]
            case "abort":
                return [*thought, "half an answer ", self.never]
            case "abort call" | "crash":
                return [*thought, "I look.", look, self.never]
            case "denied":
                return [*thought, call("risky", f"r{self._number()}"), look]
            case "length":
                return [*thought, "cut ", look, MaxTokens()]
            case "error":
                return SimulatedError(400, "this model does not like it")
            case "empty":
                return [*thought, MaxTokens()]
            case _:
                answered = request.results and random.random() < 0.7
                return "Done. " + "word " * 200 if answered else [*thought, "I look.", look, call("look", "", name="b")]

    def _number(self) -> int:
        self._calls += 1
        return self._calls


def look(name: str) -> str:
    """Look at something."""
    return f"{name}: " + "text " * 100


def risky() -> str:
    """Ask first."""
    return "never"


@asynccontextmanager
async def engine_of(kind: Any, simulator: Simulator, path: Path) -> AsyncIterator[Engine]:
    agent = Agent("writer", "You write.", MODELS[kind], "vendor")
    provider = simulator.provider(kind, "vendor", retry={"attempts": 1})
    tools = [Tool(look, read_only=True), Tool(risky, policy="ask")]
    async with SqliteStore(path) as store, Engine([agent], [provider], tools, store=store) as engine:

        async def deny(event: ToolApprovalRequestedEvent) -> None:
            await engine.answer(event.approval_id, allow=False, by="the test")

        engine.bus.subscribe(ToolApprovalRequestedEvent, deny)
        yield engine


async def run_turn(engine: Engine, model: UnreliableModel, session: str, fault: str, number: int) -> str:
    """One input with a fault; returns the session with which to continue."""
    model.fault = fault
    seen = asyncio.Event()
    awaited = ToolInputDeltaEvent if fault in ("abort call", "crash") else PartDeltaEvent
    stop = engine.bus.subscribe(awaited, lambda _: seen.set())
    turn = asyncio.ensure_future(engine.prompt(session, f"input {number}"))
    try:
        if fault in ("abort", "abort call", "crash"):
            await asyncio.wait_for(seen.wait(), 20)
            copy = (await engine.store.fork(session)).id if fault == "crash" else session
            await asyncio.wait_for(engine.abort(session), 20)
            session = copy
        await asyncio.wait_for(turn, 20)
    finally:
        stop()
    return session


async def maintain(engine: Engine, session: str, number: int) -> None:
    """Resumes and compacts, sometimes."""
    if random.random() < 0.3:
        await engine.resume(session)
    if random.random() < 0.3 and number > 2:
        await engine.compact(session)


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_sequence_of_faults_and_model_switches_causes_a_rejected_request(seed: int, tmp_path: Path):
    random.seed(seed)
    model, kinds, path = UnreliableModel(), list(MODELS), tmp_path / "sessions.db"
    faults = random.sample(FAULTS, len(FAULTS))
    async with Simulator(model.answer) as simulator:
        async with engine_of(kinds[seed % 4], simulator, path) as engine:
            session = await engine.create()
        for number, fault in enumerate(faults):
            async with engine_of(kinds[(seed + number // 2) % 4], simulator, path) as engine:
                await maintain(engine, session, number)
                session = await run_turn(engine, model, session, fault, number)
        for kind in kinds:
            async with engine_of(kind, simulator, path) as engine:
                end = await engine.prompt(session, "are you there?")
            assert end.reason == "completed", (kind, faults, end.error)
        assert simulator.rejected == [], faults
