"""Operations of front ends on a session: queue, compaction, forks, titles."""

import asyncio

import pytest

from outrider import ConfigurationError, Engine, Limits, OutriderError, ProviderError, Tool
from outrider.events import SessionUpdatedEvent
from outrider.sessions.memory_store import MemoryStore
from tests.scenario.scripted_runs import agent, call, scripted


def engine(script, *tools: Tool, **options) -> Engine:
    return Engine([agent()], [scripted(script)], tools, **options)


class Slow:
    """A tool that runs until it is let go."""

    def __init__(self) -> None:
        self.started, self.release = asyncio.Event(), asyncio.Event()
        self.tool = Tool(self._wait, name="slow")

    async def _wait(self) -> str:
        self.started.set()
        await self.release.wait()
        return "done"


async def queued(held: Engine, session: str, count: int) -> list[str]:
    while len(items := await held.queued(session)) < count:
        await asyncio.sleep(0.001)
    return [item.id for item in items]


async def test_queued_input_can_be_listed_and_withdrawn():
    slow = Slow()
    events: list[dict] = []
    async with engine([[call("slow")], "first", "third"], slow.tool) as held:
        held.bus.subscribe(SessionUpdatedEvent, lambda event: events.append(event.changes))
        session = await held.create()
        first = asyncio.ensure_future(held.prompt(session, "one"))
        await slow.started.wait()
        second = asyncio.ensure_future(held.prompt(session, "two", input_id="b"))
        assert await queued(held, session, 1) == ["b"]
        third = asyncio.ensure_future(held.prompt(session, "three", input_id="c"))
        assert await queued(held, session, 2) == ["b", "c"]
        assert await held.withdraw(session, "b")
        assert (await second).reason == "aborted"
        slow.release.set()
        assert [(await first).output, (await third).output] == ["first", "third"]
        users = [
            message.get_text_content() for message in (await held.open(session)).messages if message.role == "user"
        ]
        assert users == ["one", "three"]
        assert not await held.queued(session)
    assert [change for change in events if {"queued", "taken", "withdrawn"} & change.keys()][1:] == [
        {"taken": events[0]["queued"]},
        {"queued": "b"},
        {"queued": "c"},
        {"withdrawn": "b"},
        {"taken": "c"},
    ]


async def test_consumed_input_cannot_be_withdrawn():
    async with engine(["one"]) as held:
        session = await held.create()
        await held.prompt(session, "x", input_id="a")
        assert not await held.withdraw(session, "a")
        assert not await held.withdraw(session, "never there")


async def test_the_same_input_put_again_later_is_not_consumed_again_and_no_waiter_hangs():
    async with engine(["one"]) as held:
        session = await held.create()
        await held.prompt(session, "x", input_id="a")
        again = await asyncio.wait_for(held.prompt(session, "x", input_id="a"), 30)
        assert again.output == "one"
        assert len((await held.open(session)).messages) == 2


async def test_each_turn_of_a_session_has_its_own_limits_for_the_agents_it_calls_too():
    clerk = agent("clerk", "You help.")
    script = [[call("call_agent", agent_name="clerk", message="help")], "helped", "done"] * 3
    async with Engine([agent(), clerk], [scripted(script)], limits=Limits(turns=3)) as held:
        session = await held.create()
        ends = [await held.prompt(session, "go") for _ in range(3)]
    assert [(end.reason, end.output) for end in ends] == [("completed", "done")] * 3


def summary_or(text: str):
    def answer(request):
        return "## Goal\nto talk" if "about to be shortened" in request.prompt[-1].content[-1].text else text

    return answer


async def test_a_session_is_compacted_on_request_and_nothing_is_deleted():
    async with engine(summary_or("word " * 100)) as held:
        session = await held.create()
        for number in range(3):
            await held.prompt(session, f"question {number}")
        part = await held.compact(session)
        assert part is not None
        assert part.summary.startswith("## Goal\nto talk\n")
        assert (part.auto, part.overflow) == (False, False)
        assert part.tokens_after < part.tokens_before  # pyright: ignore
        assert len((await held.open(session)).messages) == 7
        (used,) = await held.store.statistics("model")
        assert (used.key, used.messages) == ("scripted/model-1", 4)
        assert used.tokens == (await held.open(session)).usage.tokens
        assert (await held.prompt(session, "and now?")).reason == "completed"


async def test_there_is_nothing_to_compact_in_an_empty_session_or_twice():
    async with engine(summary_or("hello " * 200)) as held:
        session = await held.create()
        assert await held.compact(session) is None
        await held.prompt(session, "a")
        await held.prompt(session, "b")
        assert await held.compact(session) is not None
        assert await held.compact(session) is None


async def test_a_compaction_that_is_asked_for_during_a_turn_waits_for_its_end():
    slow = Slow()
    script = ["zero " * 200, [call("slow")], "one", "## Goal\nto talk"]
    async with engine(script, slow.tool) as held:
        session = await held.create()
        await held.prompt(session, "first")
        prompting = asyncio.ensure_future(held.prompt(session, "second"))
        await slow.started.wait()
        compacting = asyncio.ensure_future(held.compact(session))
        await asyncio.sleep(0.01)
        slow.release.set()
        assert (await prompting).output == "one"
        part = await compacting
        assert part is not None
        assert part.summary.startswith("## Goal\nto talk\n")


async def test_a_compaction_that_fails_reports_why_and_the_session_continues():
    script = ["one", "two", ProviderError("no capacity"), "three"]
    async with engine(script) as held:
        session = await held.create()
        await held.prompt(session, "a")
        await held.prompt(session, "b")
        with pytest.raises(OutriderError, match="no capacity"):
            await held.compact(session)
        assert (await held.prompt(session, "c")).output == "three"


async def test_aborting_a_compaction_informs_its_caller():
    asked, never = asyncio.Event(), asyncio.Event()

    def summary(_):
        asked.set()
        return [never, "a summary"]

    async with engine(["one", "two", summary]) as held:
        session = await held.create()
        await held.prompt(session, "a")
        await held.prompt(session, "b")
        compacting = asyncio.ensure_future(held.compact(session))
        await asyncio.wait_for(asked.wait(), 30)
        await held.abort(session)
        with pytest.raises(OutriderError, match="aborted"):
            await compacting


async def test_a_session_is_forked_at_a_message_and_both_continue():
    async with engine(lambda request: f"{len(request.prompt)}") as held:
        session = await held.create()
        await held.prompt(session, "one")
        await held.prompt(session, "two")
        first_answer = (await held.open(session)).messages[1].id
        fork = await held.fork(session, at=first_answer)
        assert fork != session
        assert (await held.prompt(fork, "another two")).output == "3"
        assert (await held.prompt(session, "three")).output == "5"
        forked_from = (await held.open(fork)).forked_from
        assert forked_from is not None
        assert (forked_from.session_id, forked_from.message_id) == (session, first_answer)


async def test_a_session_is_renamed_whether_it_is_open_or_not():
    async with engine(["hi"]) as held:
        session = await held.create()
        await held.prompt(session, "hello")
        await held.rename(session, "Greetings")
        assert (await held.open(session)).title == "Greetings"
        await held.close(session)
        await held.rename(session, "Farewells")
        assert (await held.store.get(session)).title == "Farewells"


async def test_a_compaction_does_not_come_between_a_question_and_its_answer():
    store = MemoryStore()
    risky = Tool(lambda: "ran", name="risky", policy="ask")
    async with engine(["zero " * 200, [call("risky")]], risky, store=store) as first:
        session = await first.create()
        await first.prompt(session, "first")
        prompting = asyncio.ensure_future(first.prompt(session, "second"))
        while not await first.approvals(session):
            await asyncio.sleep(0.005)
    await prompting
    async with engine(["done", "## Goal\nto talk"], risky, store=store) as second:
        compacting = asyncio.ensure_future(second.compact(session))
        async with asyncio.timeout(30):
            while not second.live or not second.live[session].in_turn:
                await asyncio.sleep(0.005)
        (question,) = await second.approvals(session)
        await second.answer(question.id, allow=True)
        part = await compacting
        assert part is not None
        texts = [message.get_text_content() for message in (await second.open(session)).messages]
    assert "done" in texts


async def test_instructions_for_a_compaction_reach_the_model_and_are_stored():
    requests: list[str] = []

    def answer(request):
        requests.append(request.prompt[-1].content[-1].text)
        return "## Goal\nto talk" if "about to be shortened" in requests[-1] else "word " * 100

    async with engine(answer) as held:
        session = await held.create()
        await held.prompt(session, "one")
        await held.prompt(session, "two")
        parts = await asyncio.gather(*(held.compact(session, text) for text in ("focus on the API", "", "no {names}")))
        assert requests[-1].endswith("about this summary:\nfocus on the API\nno {names}")
        assert [part and part.instructions for part in parts] == ["focus on the API\nno {names}"] * 3
        await held.prompt(session, "three")
        plain = await held.compact(session)
        assert plain is not None
        assert "instructions" not in plain.to_dict()
        assert "focus on the API" not in requests[-1]
        with pytest.raises(ConfigurationError, match="4,001 characters; at most 4,000"):
            await held.compact(session, "x" * 4001)
