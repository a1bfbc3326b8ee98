"""Plan mode: a turn ends in a plan, which the user accepts, changes or refuses; from any front end, and later."""

import asyncio
from pathlib import Path

import pytest

from outrider import Engine, EventBus, OutriderError, Tool
from outrider.events import SessionUpdatedEvent
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.sqlite.store import SqliteStore
from outrider.sessions.store import Store
from outrider.types.request import Finish
from tests.scenario.scripted_runs import Story, agent, call, scripted

LOOK = Tool(lambda: "seen", name="look", read_only=True)
TOUCH = Tool(lambda: "touched", name="touch")


def engine(script, *, store: Store | None = None, bus: EventBus | None = None) -> Engine:
    return Engine([agent(mode="plan")], [scripted(script)], [LOOK, TOUCH], store=store, bus=bus)


def last_input(request) -> str:
    return "\n".join(part.text for part in request.prompt[-1].content if part.type == "text")


async def planned(held: Engine) -> str:
    session = await held.create()
    await held.prompt(session, "tidy up")
    return session


async def test_a_turn_in_plan_mode_ends_in_a_plan_and_reports_it():
    bus, events = EventBus(), []
    bus.subscribe(SessionUpdatedEvent, lambda event: events.append(event.changes.get("plan")))
    async with engine([[call("look")], "1. touch it"], bus=bus) as held:
        session = await planned(held)
        plan = await held.plan(session)
    assert plan is not None
    assert (plan.text, plan.agent) == ("1. touch it", "writer")
    assert [one for one in events if one] == [{"id": plan.id, "text": "1. touch it", "agent": "writer"}]


async def test_the_model_is_informed_what_plan_mode_expects_and_no_longer_once_it_is_over():
    seen: list[tuple[bool, bool]] = []

    def answer(request):
        seen.append(("plan mode" in request.system, "Mode: agent." in last_input(request)))
        return "1. fine"

    async with engine(answer) as held:
        session = await planned(held)
        await held.accept_plan(session)
    assert seen == [(True, False), (True, True)]  # the system prompt stays the same, for the provider's cache


async def test_accepting_switches_to_agent_mode_and_the_plan_is_carried_on():
    def carry_out(request):
        assert [tool.name for tool in request.tools] == ["look", "touch"]
        assert request.prompt[-2].content[0].text == "1. touch it"
        assert "accepts the plan" in last_input(request)
        return [call("touch")]

    async with engine(["1. touch it", carry_out, "done"]) as held:
        session = await planned(held)
        end = await held.accept_plan(session)
        assert (end.reason, end.output) == ("completed", "done")
        assert (await held.open(session)).mode == "agent"
        assert await held.plan(session) is None


async def test_a_changed_plan_is_the_users_text_and_the_model_reads_it():
    async with engine(["1. touch it", last_input]) as held:
        session = await planned(held)
        end = await held.accept_plan(session, "1. look only")
        assert end.output.endswith("\n1. look only")
        changed = (await held.open(session)).messages[-2]
        assert [(part.text, part.synthetic) for part in changed.parts][-1] == ("1. look only", False)


async def test_rejecting_with_a_message_stays_in_plan_mode_and_the_model_plans_again():
    async with engine(["1. touch it", lambda request: f"2. better, since: {last_input(request)}"]) as held:
        session = await planned(held)
        end = await held.refuse_plan(session, "too risky")
        assert end.output.endswith("too risky")
        assert (await held.open(session)).mode == "plan"
        plan = await held.plan(session)
        assert plan is not None
        assert plan.text.startswith("2. better")


async def test_refusing_without_a_word_asks_the_model_nothing_and_is_read_with_the_next_input():
    async with engine(["1. touch it", last_input]) as held:
        session = await planned(held)
        await held.refuse_plan(session)
        assert await held.plan(session) is None
        assert len((await held.open(session)).messages) == 3
        end = await held.prompt(session, "look for another way")
        assert "refuses the plan" in end.output
        assert end.output.endswith("look for another way")
        assert (await held.open(session)).mode == "plan"


async def test_a_plan_is_answered_once_and_a_different_later_answer_is_reported():
    async with engine(["1. touch it", "done"]) as held:
        session = await planned(held)
        first = asyncio.ensure_future(held.accept_plan(session, by="terminal"))
        second = asyncio.ensure_future(held.refuse_plan(session, "no", by="web"))
        with pytest.raises(OutriderError, match="already accepted by terminal"):
            await second
        assert (await first).output == "done"
        with pytest.raises(OutriderError, match="no unanswered plan"):
            await held.accept_plan(session)


async def test_the_same_answer_from_two_front_ends_is_one_turn_for_both():
    async with engine(["1. touch it", "done"]) as held:
        session = await planned(held)
        ends = await asyncio.gather(held.accept_plan(session, by="terminal"), held.accept_plan(session, by="web"))
        assert [end.output for end in ends] == ["done", "done"]
        assert len((await held.open(session)).messages) == 4


async def test_a_plan_survives_the_engine_and_is_answered_in_another(tmp_path: Path):
    async with SqliteStore(tmp_path / "sessions.db") as store:
        async with engine(["1. touch it"], store=store) as first:
            session = await planned(first)
        async with engine(["carried out"], store=store) as second:
            plan = await second.plan(session)
            assert plan is not None
            assert plan.text == "1. touch it"
            assert (await second.accept_plan(session)).output == "carried out"


async def test_an_answer_that_was_preserved_before_a_crash_is_carried_out_after_it():
    store = MemoryStore()
    async with engine(["1. touch it"], store=store) as first:
        session = await planned(first)
        live = first.live[session]
        live.wake = lambda: None  # the program dies between keeping the answer and working on it
        await live.answer_plan("accepted")
    async with engine(["carried out"], store=store) as second:
        await second.open(session)
        while second.live[session].is_busy:
            await asyncio.sleep(0.001)
        opened = await second.open(session)
        assert (opened.mode, opened.messages[-1].get_text_content()) == ("agent", "carried out")


async def test_saying_something_else_continues_planning():
    async with engine(["1. touch it", "2. with a test"]) as held:
        session = await planned(held)
        await held.prompt(session, "and a test?")
        plan = await held.plan(session)
        assert plan is not None
        assert plan.text == "2. with a test"


async def test_the_text_of_finish_is_the_plan_too():
    async with engine([[call("finish", message="1. touch it")]]) as held:
        plan = await held.plan(await planned(held))
        assert plan is not None
        assert plan.text == "1. touch it"


@pytest.mark.parametrize("finish", ["length", "refusal"])
async def test_an_answer_that_did_not_come_to_its_end_is_no_plan(finish):
    async with engine([["1. touch", Finish(finish, finish)]]) as held:
        assert await held.plan(await planned(held)) is None


async def test_an_answer_in_another_mode_is_no_plan():
    async with engine(["hello"]) as held:
        session = await held.create(mode="agent")
        await held.prompt(session, "hi")
        assert await held.plan(session) is None
        await held.set_mode(session, "plan")
        assert await held.plan(session) is None


async def test_nothing_is_written_before_the_plan_is_accepted():
    async with engine([[call("touch")], "1. touch it"]) as held:
        session = await planned(held)
        parts = [part for message in (await held.open(session)).messages for part in message.parts]
        (part,) = [part for part in parts if part.type == "tool"]
        assert part.state.status == "error"


async def test_a_plan_is_shown_without_secrets_and_carried_out_with_what_the_model_wrote():
    secret = "hunter2-hunter2-hunter2"

    def carry_out(request):
        return "knows it" if secret in request.prompt[1].content[0].text else "was lied to"

    provider = scripted([f"1. log in with {secret}", carry_out])
    async with Engine([agent(mode="plan")], [provider], secrets=(secret,)) as held:
        session = await planned(held)
        plan = await held.plan(session)
        assert plan is not None
        assert secret not in plan.text
        assert (await held.accept_plan(session)).output == "knows it"


async def test_a_run_that_ended_in_a_plan_is_carried_on_by_another_run_of_the_session():
    def tools(request):
        return ",".join(tool.name for tool in request.tools)

    planned_run = await Story(["1. touch it"]).run("tidy up", tools=[LOOK, TOUCH], mode="plan")
    carried_on = await Story(tools).run("do it", tools=[LOOK, TOUCH], session=planned_run.session, mode="agent")
    assert (planned_run.output, carried_on.output) == ("1. touch it", "look,touch")
    assert carried_on.session.mode == "agent"
    assert len(carried_on.session) == 4
