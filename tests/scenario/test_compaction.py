"""Compaction: when the context is full, a summary replaces old messages in the prompt, and no message is deleted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from outrider import (
    Agent,
    CompactionPart,
    ContextOverflowError,
    Engine,
    OutriderError,
    Session,
    Tokens,
    Tool,
    ToolPart,
)
from outrider.agents.carried_context import search_messages
from outrider.events import ContextCompactionEvent, RetryScheduledEvent
from outrider.stores import SqliteStore
from outrider.testing import BrokenConnection, SimulatedError, SimulatedRequest, Simulator
from outrider.testing.simulator_answers import SIMULATED_APIS
from tests.scenario.scripted_runs import Story, agent, call, scripted

LONG = "word " * 2_000


def wants_summary(request) -> bool:
    return "about to be shortened" in getattr(request.prompt[-1].content[-1], "text", "")


async def test_an_overflow_is_compacted_once_and_the_turn_continues():
    session = Session()
    for number in range(6):
        session.add_user_message(f"question {number}")
        session.add_assistant_message(f"answer {number} {LONG}")
    overflowed: list[int] = []

    def answer(request):
        if wants_summary(request):
            return "## Goal\nto answer"
        if not overflowed:
            overflowed.append(len(request.prompt))
            return ContextOverflowError("prompt is too long: 300000 tokens > 200000 maximum", status=400)
        return f"{len(request.prompt)}: {request.prompt[0].content[0].text[:40]}"

    story = Story(answer)
    result = await story.run("and now?", session=session)
    assert result.termination_reason == "completed"
    assert overflowed == [13]
    assert result.output == "7: Summary of the conversation so far; the "
    (event,) = story.events_of(ContextCompactionEvent)
    assert event.tokens_after < event.tokens_before
    compactions = [part for message in result.session.messages for part in message.get_parts_by_type(CompactionPart)]
    assert [part.overflow for part in compactions] == [True]
    assert len(result.session.messages) >= 14
    assert any("answer 0" in message.get_text_content() for message in result.session.messages)


async def test_a_context_that_still_overflows_ends_the_run_with_the_providers_message():
    session = Session()
    session.add_user_message("question")
    session.add_assistant_message(f"answer {LONG}")

    def answer(request):
        return "a summary" if wants_summary(request) else ContextOverflowError("prompt is too long", status=400)

    with pytest.raises(ContextOverflowError, match=r"too long|alone fill it"):
        await Story(answer).run("and now?", session=session)


async def test_after_a_compaction_calls_and_results_still_belong_together():
    def answer(request):
        if wants_summary(request):
            return "## Done\nmany looks"
        uses = sum(part.type == "tool_use" for message in request.prompt for part in message.content)
        if uses >= 4 and not any("Summary" in getattr(p, "text", "") for p in request.prompt[0].content):
            return ContextOverflowError("too long", status=400)
        if any("Summary" in getattr(p, "text", "") for p in request.prompt[0].content):
            return "finished after compaction"
        return [f"step {uses}", call("look", number=uses), Tokens(100, 10)]

    tools = [Tool(lambda number: f"seen {number} {LONG}", name="look")]
    result = await Story(answer).run("look around", tools=tools, entry=agent())
    assert result.output == "finished after compaction"
    assert len([p for m in result.session.messages for p in m.get_parts_by_type(ToolPart)]) == 4


async def test_in_the_middle_of_one_long_turn_the_users_input_is_unchanged():
    asked = "look around, and never write with tabs"

    def answer(request):
        if wants_summary(request):
            return "## Done\nmany looks"
        uses = sum(part.type == "tool_use" for message in request.prompt for part in message.content)
        first = request.prompt[0].content[0].text
        if "Summary" in first:
            return "kept" if first.endswith(asked) else "lost"
        return ContextOverflowError("too long", status=400) if uses >= 4 else [call("look", number=uses)]

    tools = [Tool(lambda number: f"seen {number} {LONG}", name="look")]
    result = await Story(answer).run(asked, tools=tools)
    assert result.output == "kept"


async def test_a_second_compaction_covers_the_first_one_too():
    summaries: list[str] = []

    def answer(request):
        text = request.prompt[0].content[0].text
        if wants_summary(request):
            summaries.append(text)
            return f"summary {len(summaries)}"
        if len(request.prompt) > 5:
            return ContextOverflowError("too long", status=400)
        return f"answer {LONG}"

    session = Session()
    for number in range(8):
        await Story(answer).run(f"question {number}", session=session)
    assert "question 0" in summaries[0]
    assert all("Summary" in text for text in summaries[1:])
    assert len(summaries) >= 2


async def test_the_cost_of_a_summary_is_added_to_the_session():
    def answer(request):
        if wants_summary(request):
            return ["a summary", Tokens(1_000, 50)]
        if len(request.prompt) > 2:
            return ContextOverflowError("too long", status=400) if "Summary" not in str(request.prompt[0]) else "done"
        return [f"hello {LONG}", Tokens(10, 2_000)]

    session = Session()
    await Story(answer).run("one", session=session)
    result = await Story(answer).run("two", session=session)
    assert result.session.usage.tokens.input > 1_000
    assert result.usage.tokens.input > 1_000


RULES = [
    "Never push to the release branch without asking me.",
    "Always write commit subjects in the imperative.",
    "Tabs, not spaces, in the Makefiles.",
    "Please don't touch anything below vendor/legacy.",
    "All timestamps must be UTC.",
    "Only Python 3.11 syntax, nothing newer.",
    "The public API may not change before May.",
    "Log with structlog instead of print.",
    "Prices are integers in cents, no floats.",
    "Every new table needs a migration and a rollback.",
]
OPEN_ITEMS = [
    "TODO: the retry test on Windows is still flaky.",
    "Open question: who owns the billing webhook?",
    "- [ ] document the --strict flag",
    "We are waiting for the certificate from ops.",
    "Remaining: delete the feature flag beta_cart after the launch.",
]
DECISIONS = [f"We decided to keep module orders_{n} because of ticket SHOP-{400 + n}." for n in range(10)]
FINDINGS = [f"max_connections of database shard{n} is {1_000 + 37 * n}" for n in range(15)]


@pytest.mark.slow
async def test_a_long_session_preserves_rules_and_open_items_and_finds_the_rest():
    """The summaries of this model are useless, so that only carried text and the search tool can preserve facts."""
    prompts: list[list[str]] = []

    def answer(request):
        if wants_summary(request):
            return "We worked on the shop."
        prompts.append([getattr(part, "text", "") for message in request.prompt for part in message.content])
        turn = len(prompts)
        if turn % 100 == 99 and turn not in overflowed:
            overflowed.add(turn)
            return ContextOverflowError("too long", status=400)
        notes = list(DECISIONS[turn // 20 :][:1]) if turn % 20 == 5 else []
        notes += OPEN_ITEMS[turn // 50 :][:1] if turn % 50 == 10 else []
        return " ".join([f"Step {turn} is complete, the suite passes and I looked at the diff again.", *notes])

    overflowed: set[int] = set()
    async with Engine([agent()], [scripted(answer)]) as engine:
        session_id = await engine.create()
        for turn in range(300):
            text = f"Carry out step {turn} of the list and report what changed in the files of that step."
            if turn % 25 == 3 and turn // 25 < len(RULES):
                text = f"{text} {RULES[turn // 25]}"
            if turn % 20 == 7:
                text = f"Inspection {turn}: {'x ' * 3_000} {FINDINGS[turn // 20]} {'y ' * 500}"
            await engine.prompt(session_id, text)
        session = await engine.open(session_id)
    compactions = [p for m in session.messages for p in m.get_parts_by_type(CompactionPart) if p.summary]
    assert len(compactions) == 3
    prompt = "\n".join(prompts[-1])
    assert [rule for rule in RULES if rule not in prompt] == []
    assert [item for item in OPEN_ITEMS if item.removeprefix("- [ ] ") not in prompt] == []
    lost = [fact for fact in DECISIONS if fact not in prompt and fact not in found(session, fact.split(" because")[0])]
    lost += [fact for fact in FINDINGS if fact not in prompt and fact not in found(session, fact.rpartition(" is ")[0])]
    assert lost == []


FILLER = "The build is green and the review of the previous commit had no remarks so far. "
PLAIN_RULES = [  # without words such as "never", in the middle of long messages, in several languages
    "Database access goes through the repository classes.",
    "Branch names start with the ticket number.",
    "Tests come before the implementation in each commit.",
    "No emojis in user-facing strings.",
    "Bitte keine neuen Abhängigkeiten ohne Rückfrage.",
    "日志里绝对不能出现客户邮箱。",
    "Ne touche pas au dossier infra/prod.",
    "Не добавляй новые зависимости без согласования.",
    "本番のデータベースには接続しないでください。",
]
PLAIN_OPEN_ITEMS = [
    "Pending: rotate the signing key of the mobile app.",
    "Offen: die Lizenz der Schriftart.",
    "I still have to check the rounding in invoice_total.",
    "待办：确认退款接口的超时时间。",
]
REVERSED = ("Let us use Redis for the cart cache.", "Changed my mind about the cart cache: Memcached, not Redis.")
CHECKSUMS = [f"checksum of artefact-{number} = {0xABC000 + 977 * number:x}" for number in range(4)]


@pytest.mark.slow
async def test_rules_in_long_messages_and_early_open_items_survive_three_compactions():
    by_user = dict(zip(range(2, 100, 9), [*PLAIN_RULES, *REVERSED], strict=True))
    by_agent = dict(zip(range(1, 30, 8), PLAIN_OPEN_ITEMS, strict=True))
    by_tool = dict(zip(range(4, 80, 20), CHECKSUMS, strict=True))
    prompts: list[str] = []
    overflows = {35, 70, 105}

    def inspect(turn: int) -> str:
        """Inspect the artefact of a turn."""
        return "line\n" * 400 + by_tool[turn] + "\nline" * 400

    def answer(request):
        if wants_summary(request):
            return "We worked on the shop."
        prompts.append("\n".join(getattr(part, "text", "") for message in request.prompt for part in message.content))
        turn = int(prompts[-1].rpartition("Turn number ")[2].partition(":")[0])
        if turn in overflows:
            overflows.remove(turn)
            return ContextOverflowError("too long", status=400)
        if turn in by_tool and request.prompt[-1].content[0].type != "tool_result":
            return [call("inspect", turn=turn)]
        return f"{FILLER * 40}{by_agent.get(turn, '')} {FILLER * 30}"

    async with Engine([agent()], [scripted(answer)], [Tool(inspect, read_only=True)]) as engine:
        session_id = await engine.create()
        for turn in range(110):
            text = f"{FILLER * 30}{by_user[turn]} {FILLER * 30}" if turn in by_user else FILLER
            await engine.prompt(session_id, f"Turn number {turn}: {text}")
        session = await engine.open(session_id)
    assert overflows == set()
    assert [rule for rule in PLAIN_RULES if rule not in prompts[-1]] == []
    assert [item for item in PLAIN_OPEN_ITEMS if item not in prompts[-1]] == []
    assert 0 <= prompts[-1].find(REVERSED[0]) < prompts[-1].find(REVERSED[1])
    assert [fact for fact in CHECKSUMS if fact not in found(session, fact.partition(" = ")[0])] == []


def found(session: Session, query: str) -> str:
    return "\n".join(excerpt for _, excerpt in search_messages(session.messages, query)[:8])


@pytest.mark.parametrize(
    ("query", "fact"),
    [
        ("客户代号是什么", "我们说好了：客户代号是青龙七号。"),
        ("本番サーバーはどこ", "本番サーバーは大阪にある。"),
        ("how many retries?", "The ceiling is 17, then no retry."),
        ("Kowalczyks exporter", "Frau Kowalczyk owns the payroll export."),
        ("port 48213", "The legacy bridge listens on 48213."),
    ],
)
def test_a_search_finds_other_forms_and_scripts_without_spaces(query, fact):
    session = Session()
    for number in range(40):
        session.add_user_message(fact if number == 7 else f"Step {number}: 继续下一步 and the build is green.")
        session.add_assistant_message(f"Step {number} is complete. 次に進みます。")
    assert search_messages(session.messages, query)[0][1] == fact


async def test_after_a_compaction_the_model_can_search_what_was_removed():
    def answer(request):
        if wants_summary(request):
            return "Nothing worth mentioning."
        results = [part.content for message in request.prompt for part in message.content if part.type == "tool_result"]
        if results:
            return results[-1]
        if "Summary" in getattr(request.prompt[0].content[0], "text", ""):
            return [call("search_conversation", query="colour of the boat house")]
        assert "search_conversation" not in [tool.name for tool in request.tools]
        return ContextOverflowError("too long", status=400) if len(request.prompt) > 3 else f"ok {LONG}"

    session = Session()
    session.add_user_message(f"{LONG} The colour of the boat house is green. {LONG}")
    session.add_assistant_message(f"noted {LONG}")
    for text in ("one", "two"):
        result = await Story(answer).run(text, session=session)
    assert "The colour of the boat house is green." in result.output


def compacting_script(request):
    if wants_summary(request):
        return "a summary"
    return f"{len(request.prompt)} messages {LONG}"


async def test_a_compaction_can_be_undone(tmp_path):
    file = tmp_path / "sessions.sqlite"
    async with SqliteStore(file) as store, Engine([agent()], [scripted(compacting_script)], store=store) as engine:
        session = await engine.create()
        for text in ("one", "two", "three"):
            await engine.prompt(session, text)
        assert await engine.compact(session) is not None
        assert (await engine.prompt(session, "four")).output.startswith("3 messages")
        assert await engine.undo_compaction(session)
        assert not await engine.undo_compaction(session)
        assert (await engine.prompt(session, "five")).output.startswith("9 messages")
    async with SqliteStore(file) as store, Engine([agent()], [scripted(compacting_script)], store=store) as engine:
        assert (await engine.prompt(session, "six")).output.startswith("11 messages")


async def test_a_compaction_is_not_undone_while_a_turn_runs():
    running, release = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        running.set()
        await release.wait()
        return "waited"

    script = [[call("wait")], "done"]
    async with Engine([agent()], [scripted(script)], tools=[Tool(wait)]) as engine:
        session = await engine.create()
        turn = asyncio.create_task(engine.prompt(session, "go"))
        await running.wait()
        with pytest.raises(OutriderError, match="a turn is running"):
            await engine.undo_compaction(session)
        release.set()
        await turn


async def test_a_compaction_that_shortens_nothing_is_discarded():
    def answer(request):
        return f"a summary {LONG * 3}" if wants_summary(request) else "short"

    async with Engine([agent()], [scripted(answer)]) as engine:
        session = await engine.create()
        for text in ("one", "two", "three"):
            await engine.prompt(session, text)
        assert await engine.compact(session) is None
        stored = (await engine.open(session)).messages
    assert not any(message.get_parts_by_type(CompactionPart) for message in stored)


WINDOW = 20_000  # tokens of the simulated context
MODELS: dict[Any, str] = {
    "anthropic": "claude-opus-4-6",
    "openai": "gpt-4.1",
    "openai-responses": "gpt-5.4",
    "google": "gemini-3.1-pro",
}
each_api = pytest.mark.parametrize("kind", list(MODELS))


def wants_simulated_summary(request: SimulatedRequest) -> bool:
    return "about to be shortened" in request.texts[-1]


@asynccontextmanager
async def simulated_engine(kind: Any, simulator: Simulator, *tools: Tool) -> AsyncIterator[Engine]:
    writer = Agent("writer", "You write.", MODELS[kind], "vendor")
    provider = simulator.provider(kind, "vendor", retry={"first_window": 0.001})
    async with Engine([writer], [provider], list(tools)) as engine:
        yield engine


@each_api
async def test_a_summary_request_that_breaks_is_repeated_and_its_tokens_are_counted(kind):
    breaks: list[Any] = [["half a summary " * 10, BrokenConnection()], SIMULATED_APIS[kind].overloaded]

    def answer(request: SimulatedRequest) -> Any:
        if wants_simulated_summary(request):
            return breaks.pop(0) if breaks else "a summary"
        return f"ok {LONG}"

    async with Simulator(answer) as simulator, simulated_engine(kind, simulator) as engine:
        retries: list[RetryScheduledEvent] = []
        engine.bus.subscribe(RetryScheduledEvent, retries.append)
        session_id = await engine.create()
        for number in range(4):
            await engine.prompt(session_id, f"input {number}")
        compaction = await engine.compact(session_id)
        assert compaction is not None
        assert "a summary" in compaction.summary
        assert "half" not in compaction.summary
        assert [retry.attempt for retry in retries] == [1, 2]
        last = (await engine.open(session_id)).messages[-1]
        assert last.tokens.output >= 10 + 30  # the answer and the withdrawn text
        simulator.check()


@each_api
async def test_an_input_that_alone_is_too_long_is_shortened_and_the_session_continues(kind):
    def answer(request: SimulatedRequest) -> Any:
        return "a summary" if wants_simulated_summary(request) else "ok"

    async with Simulator(answer, context_tokens=WINDOW) as simulator, simulated_engine(kind, simulator) as engine:
        session_id = await engine.create()
        for number in range(3):
            await engine.prompt(session_id, f"input {number}")
        pasted = f"Find the mistake: {'data ' * 5 * WINDOW}"
        assert (await engine.prompt(session_id, pasted)).reason == "completed"
        sent = "\n".join(simulator.requests[-1].texts)
        assert "Find the mistake: data" in sent
        assert f"finds the rest of its {len(pasted) - 1:,} characters" in sent
        assert (await engine.prompt(session_id, "and now?")).reason == "completed"


@each_api
async def test_a_conversation_that_a_smaller_window_cannot_hold_continues(kind):
    windows = [10 * WINDOW]

    def answer(request: SimulatedRequest) -> Any:
        if len(msgspec.json.encode(request.body)) > 4 * windows[-1]:
            return SIMULATED_APIS[kind].overflow
        return "a summary" if wants_simulated_summary(request) else f"ok {LONG}"

    async with Simulator(answer) as simulator, simulated_engine(kind, simulator) as engine:
        session_id = await engine.create()
        for number in range(20):
            await engine.prompt(session_id, f"input {number} {LONG}")
        windows.append(WINDOW)
        for number in range(4):
            end = await engine.prompt(session_id, f"input {number} for the smaller model")
            assert (end.reason, end.error) == ("completed", None)
        assert "input 0 for the smaller model" in "\n".join(simulator.requests[-1].texts)


@each_api
async def test_outputs_of_parallel_calls_that_alone_are_too_long_leave_the_prompt(kind):
    def read(number: int) -> str:
        """Read a file."""
        return f"file {number} {LONG}"

    def answer(request: SimulatedRequest) -> Any:
        if wants_simulated_summary(request):
            return "a summary"
        if not request.results:
            return [call("read", f"c{number}", number=number) for number in range(12)]
        left = [result for result in request.results if "removed to save space" not in result]
        return f"{len(left)} of {len(request.results)}"

    async with (
        Simulator(answer, context_tokens=WINDOW) as simulator,
        simulated_engine(kind, simulator, Tool(read, read_only=True)) as engine,
    ):
        session_id = await engine.create()
        end = await engine.prompt(session_id, "read them all")
        assert (end.reason, end.error, end.output) == ("completed", None, "5 of 12")
        stored = (await engine.open(session_id)).messages
        outputs = [part.state.output for message in stored for part in message.get_calls()]
        assert all(len(output) > len(LONG) for output in outputs)


async def test_the_next_model_of_the_list_writes_the_summary_in_an_outage():
    def answer(request: SimulatedRequest) -> Any:
        if wants_simulated_summary(request):
            return SimulatedError(529, "Overloaded", "overloaded_error") if request.kind == "anthropic" else "a summary"
        return f"ok {LONG}"

    async with Simulator(answer) as simulator:
        quick = {"retry": {"first_window": 0.001}}
        providers = [simulator.provider("anthropic", "one", **quick), simulator.provider("openai", "two", **quick)]
        writer = Agent("writer", "You write.", ["one/claude-opus-4-6", "two/gpt-4.1"], "one")
        async with Engine([writer], providers) as engine:
            session_id = await engine.create()
            for number in range(4):
                await engine.prompt(session_id, f"input {number}")
            compaction = await engine.compact(session_id)
            assert compaction is not None
            assert "a summary" in compaction.summary
            message = (await engine.open(session_id)).messages[-1]
            assert str(message.model) == "two/gpt-4.1"
