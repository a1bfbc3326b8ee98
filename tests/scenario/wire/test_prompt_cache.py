"""In a long session nearly all of the input that can be read from the vendor's cache is read from it."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from outrider import Agent, Engine, Session, Tool, async_run
from outrider.providers.scripted import call
from outrider.stores import MemoryStore
from outrider.testing.simulator import Body, SimulatedRequest, Simulator
from outrider.testing.simulator_answers import SIMULATED_APIS, SimulatedError, SimulatedReasoning
from outrider.types.parts import ModelRef

TURNS = 30
LOOKBACK = 20
RULES = "Rules of the project, as AGENTS.md has them. " * 200


class AnthropicCache:
    """Prefixes are stored at marks, and found at marks or within 20 blocks before one; at most four marks."""

    def __init__(self) -> None:
        self._stored: set[str] = set()

    def read(self, body: Body) -> tuple[int, int]:
        blocks = list(_anthropic_blocks(body))
        marks = [at for at, (_, marked) in enumerate(blocks) if marked]
        if "cache_control" in body:
            marks.append(len(blocks) - 1)
        assert len(set(marks)) <= 4
        prefixes, text = list[str](), ""
        for block, _ in blocks:
            text += block
            prefixes.append(text)
        found = 0
        for mark in marks:
            near = (at for at in range(mark, max(mark - LOOKBACK, -1), -1) if prefixes[at] in self._stored)
            found = max(found, next((len(prefixes[at]) for at in near), 0))
        self._stored |= {prefixes[mark] for mark in marks}
        return found, len(text)


def _anthropic_blocks(body: Body) -> Iterator[tuple[str, bool]]:
    settings = json.dumps([body.get("tool_choice"), body.get("thinking"), body.get("output_config")])
    for block in [*body.get("tools", ()), *body.get("system", ())]:
        yield _unmarked(block), "cache_control" in block
    for message in body["messages"]:
        for block in message["content"]:
            yield message["role"] + settings + _unmarked(block), "cache_control" in block


def _unmarked(block: Body) -> str:
    return json.dumps({name: value for name, value in block.items() if name != "cache_control"})


class PrefixCache:
    """OpenAI and Gemini store every prompt and find the longest common prefix; OpenAI's is found by its key."""

    def __init__(self) -> None:
        self._last: dict[Any, str] = {}

    def read(self, body: Body) -> tuple[int, int]:
        head = [body.get(name) for name in ("tools", "instructions", "systemInstruction")]
        text = json.dumps(head) + json.dumps(body.get("input") or body.get("messages") or body.get("contents"))
        last = self._last.get(body.get("prompt_cache_key"), "")
        self._last[body.get("prompt_cache_key")] = text
        pairs = enumerate(zip(text, last, strict=False))
        same = next((at for at, (a, b) in pairs if a != b), min(len(text), len(last)))
        return same - same % 512, len(text)


def script(kind: str, turn: int) -> list[Any]:
    """A turn: some calls, then an answer; every fifth turn has sixteen calls at once."""
    thought = [] if kind == "openai" else [SimulatedReasoning("hm")]
    count = 16 if turn % 5 == 0 else 2
    calls = [call("look", f"c{turn}-{number}", name=f"file{number}") for number in range(count)]
    return [[*thought, "Let me see.", *calls], [*thought, f"That was turn {turn}."]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(SIMULATED_APIS))
@pytest.mark.parametrize("caching", ["auto", "marks"])
async def test_a_long_session_is_read_from_the_cache(kind, caching):
    if caching == "marks" and kind != "anthropic":
        pytest.skip("only Anthropic has marks")
    session, answers = Session(), [answer for turn in range(TURNS) for answer in script(kind, turn)]
    tools = [Tool(lambda name: f"{name}: " + "text " * 100, name="look", description="Look at a file. " * 40)]
    async with Simulator(answers) as server:
        options = {"caching": caching} if kind == "anthropic" else {}
        provider = server.provider(kind, "vendor", **options)
        agent = Agent("writer", f"You write.\n\n{RULES}", SIMULATED_APIS[kind].model, "vendor")
        for turn in range(TURNS):
            await async_run(
                agent,
                f"Turn {turn}. " + "word " * 50,
                agents=[agent],
                tools=tools,
                providers=[provider],
                session=session,
            )
        assert server.rejected == []
        cache = AnthropicCache() if kind == "anthropic" else PrefixCache()
        read = [cache.read(request.body) for request in server.requests]
    cacheable = sum(length for _, length in read[:-1])  # what the request before had
    cached = sum(found for found, _ in read[1:])
    assert cached / cacheable >= 0.95, f"{cached / cacheable:.1%}"


async def test_a_gateway_that_rejects_the_mark_of_the_request_gets_marks_in_blocks():
    def answer(request: SimulatedRequest) -> Any:
        refusal = SimulatedError(400, "cache_control: Extra inputs are not permitted")
        return refusal if "cache_control" in request.body else "Done."

    async with Simulator(answer) as server:
        provider = server.provider("anthropic", "vendor")
        agent = Agent("writer", "You write.", "claude-sonnet-4-5", "vendor")
        await async_run(agent, "go", agents=[agent], tools=[], providers=[provider])
        assert "cache_control" not in server.requests[-1].body
        assert server.requests[-1].body["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}


def _prefix(body: Body) -> tuple[str, list[str]]:
    """What vendors read first, and the items of the conversation, without marks."""
    head = [body.get(name) for name in ("tools", "system", "instructions", "systemInstruction", "tool_choice")]
    items = body.get("input") or body.get("messages") or body.get("contents") or []
    return json.dumps(head), [
        json.dumps(item).replace(', "cache_control": {"type": "ephemeral"}', "") for item in items
    ]


@pytest.mark.parametrize("kind", list(SIMULATED_APIS))
async def test_a_change_of_mode_level_or_model_is_stated_after_the_conversation(kind):
    def look(name: str) -> str:
        """Look at a file."""
        return name

    def write(name: str) -> str:
        """Write a file."""
        return name

    tools, store = [Tool(look, read_only=True), Tool(write)], MemoryStore()
    model, other = SIMULATED_APIS[kind].model, SIMULATED_APIS[kind].model + "-other"
    agent = Agent("writer", f"You write.\n\n{RULES}", model, "vendor")
    async with Simulator(lambda _: "Done.", any_model=True) as server:
        provider = server.provider(kind, "vendor")
        async with Engine([agent], [provider], tools, store=store) as engine:
            session = await engine.create(mode="agent")
            await engine.prompt(session, "One.")
            await engine.set_mode(session, "plan")
            await engine.prompt(session, "Two.")
            await engine.prompt(session, "Three.")
            await engine.set_approval(session, "edits")
            await engine.set_mode(session, "agent")
            await engine.prompt(session, "Four.")
            await engine.live[session].use_model(ModelRef("vendor", other))
            await engine.prompt(session, "Five.")
        async with Engine([agent], [provider], tools, store=store) as engine:  # with the first model again
            await engine.prompt(session, "Six.")
            texts = [m.get_text_content() for m in (await engine.open(session)).messages if m.role == "user"]
        assert server.rejected == []
        bodies = [request.body for request in server.requests]
        notes = [_prefix(body)[1][-1] for body in bodies]
    assert texts == ["One.", "Two.", "Three.", "Four.", "Five.", "Six."]
    for before, after in itertools.pairwise(bodies):
        (head, items), (next_head, next_items) = _prefix(before), _prefix(after)
        assert head == next_head
        assert next_items[: len(items)] == items
    assert ["plan mode" in text for text in notes] == [False, True, False, False, False, False]
    assert "Mode: agent" in notes[3] and "approval level is now edits" in notes[3]
    assert f"the model is vendor/{other}" in notes[4]
    assert f"the model is vendor/{model}" in notes[5]
