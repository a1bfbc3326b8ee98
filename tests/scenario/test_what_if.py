"""A fork continues with a change and can be compared with the original."""

from decimal import Decimal
from pathlib import Path

import msgspec
import pytest

from outrider import (
    Agent,
    ConfigurationError,
    Engine,
    Message,
    MessageTime,
    ModelRef,
    Rules,
    Session,
    TextPart,
    Tokens,
    Tool,
    ToolPart,
    compare,
    replay,
    what_if,
)
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.sqlite.store import SqliteStore
from tests.scenario.scripted_runs import agent, call, scripted


@Tool
def look(place: str) -> str:
    """Look somewhere."""
    return f"{place} is empty"


@Tool
def dig(place: str) -> str:
    """Dig somewhere."""
    return "nothing"


def treasure(request):
    """Looks into the cellar; digs if it is not empty; the hasty model and instructions to hurry skip it."""
    given = [part.content for message in request.prompt for part in message.content if part.type == "tool_result"]
    if request.model == "hasty" or request.system.startswith("Hurry"):
        return "I give up."
    if not given:
        return ["I look.", call("look", "c1", place="cellar")]
    if "gold" in given[-1]:
        return ["I dig.", call("dig", "c2", place="cellar")]
    return f"Found: {given[-1]}"


def engine(store=None, *, agents: list[Agent] | None = None, **options) -> Engine:
    return Engine(agents or [agent()], [scripted(treasure)], [look, dig], store=store or MemoryStore(), **options)


async def ended(held: Engine, *inputs: str) -> str:
    session = await held.create()
    for text in inputs or ("find the treasure",):
        await held.prompt(session, text)
    return session


async def test_an_edited_result_changes_the_fork_and_the_original_stays():
    async with engine() as held:
        session = await ended(held)
        before = await held.store.load(session)
        found = await what_if(held, session, results={"c1": "there is gold in the cellar"})
        assert found.end.output == "Found: nothing"
        assert found.comparison.shared == 1
        assert found.comparison.a.calls == ()
        assert found.comparison.b.calls == ('dig({"place":"cellar"})',)
        after = await held.store.load(session)
        assert after.session.seq == before.session.seq
        assert [m.to_dict() for m in after.messages] == [m.to_dict() for m in before.messages]


async def test_the_fork_is_a_session_of_the_store_and_records_what_was_edited(tmp_path: Path):
    async with SqliteStore(tmp_path / "sessions.db") as store, engine(store) as held:
        session = await ended(held)
        found = await what_if(held, session, results={"c1": "gold!"})
        stored = await store.get(found.session.id)
        assert stored.forked_from is not None and stored.forked_from.session_id == session
        assert stored.title == "find the treasure (what if)"
        messages = (await store.load(found.session.id)).messages
        (look_call,) = messages[1].get_parts_by_type(ToolPart)
        assert look_call.state.output == "gold!"  # pyright: ignore
        assert look_call.metadata["edited"] == "cellar is empty"
        assert (await held.prompt(found.session.id, "and now?")).output == "Found: nothing"


async def test_another_model_continues_from_the_step_that_is_named():
    async with engine() as held:
        session = await ended(held)
        found = await what_if(held, session, at_step=1, model="hasty")
        assert (found.end.output, found.comparison.shared) == ("I give up.", 1)
        assert (found.comparison.a.models, found.comparison.b.models) == (("model-1",), ("hasty",))
        anew = await what_if(held, session, at_step=0, model="scripted/hasty")
        assert (anew.comparison.shared, anew.comparison.a.steps, anew.comparison.b.steps) == (0, 2, 1)


async def test_other_instructions_and_another_agent_count_from_the_fork_on():
    cast = [agent(), agent("other", "Hurry.")]
    async with engine(agents=cast) as held:
        session = await ended(held)
        what_if_result = await what_if(held, session, at_step=0, instructions="Hurry up.")
        assert what_if_result.end.output == "I give up."
        named = await what_if(held, session, at_step=1, agent="other")
        assert (named.end.output, named.session.agent) == ("I give up.", "other")
        given = await what_if(held, session, at_step=1, agent=agent("stranger", "Hurry!"))
        assert (given.end.output, given.session.agent) == ("I give up.", "stranger")


async def test_other_rules_count_for_the_calls_to_come():
    async with engine() as held:
        session = await ended(held)
        found = await what_if(held, session, at_step=0, rules=Rules(deny=("look",)))
        assert "not allowed" in found.end.output
        assert (found.comparison.a.failed_calls, found.comparison.b.failed_calls) == (0, 1)


async def test_a_later_turn_is_forked_with_the_input_that_began_it():
    async with engine() as held:
        session = await ended(held, "find the treasure", "and the other one")
        found = await what_if(held, session, at_step=2, model="hasty")
        assert [m.get_text_content() for m in found.session.messages if m.role == "user"] == [
            "find the treasure",
            "and the other one",
        ]
        assert (found.comparison.shared, found.comparison.b.answer) == (2, "I give up.")
        first = await what_if(held, session, at_step=1, model="hasty")
        assert first.comparison.a.answer == "Found: cellar is empty"
        assert first.comparison.a.steps == 1


async def test_what_cannot_be_forked_is_refused_and_leaves_no_files():
    async with engine() as held:
        session = await ended(held)
        for wrong in (
            {},
            {"at_step": 9, "model": "x"},
            {"at_step": 2, "model": "x"},
            {"results": {"nope": "x"}},
            {"at_step": 0, "results": {"c1": "x"}},
            {"colour": "red"},
            {"at_step": 0, "agent": "nobody"},
        ):
            with pytest.raises(ConfigurationError):
                await what_if(held, session, **wrong)
        assert len((await held.store.list()).sessions) == 1


async def test_a_fork_has_a_cassette_and_can_be_replayed_from_where_it_branched_off(tmp_path: Path):
    held = engine(cassettes=tmp_path)
    async with held:
        session = await ended(held)
        found = await what_if(held, session, results={"c1": "gold"})
    again = await replay(held, found.session.id)
    assert again.same, again.text()
    assert (again.copied_steps, [step.number for step in again.steps]) == (1, [2, 3])


def recorded_session(*answers: tuple[str, str, int, str | None], ids: bool = False) -> Session:
    """A session with an answer for every input: text, model, tokens and cost."""
    session = Session()
    for n, (text, model, tokens, cost) in enumerate(answers):
        session.add_message(Message("user", [TextPart(f"input {n}")]))
        session.add_message(
            Message(
                "assistant",
                [TextPart(text)],
                model=ModelRef("p", model),
                tokens=Tokens(input=tokens, output=1),
                cost=None if cost is None else Decimal(cost),
                time=MessageTime(1000, 3500),
                finish="stop",
            )
        )
    return session


def test_a_comparison_is_a_table_and_data():
    compared = compare(
        recorded_session(("long " * 100, "big", 100, "0.5")), recorded_session(("short", "small", 50, "0.1"))
    )
    rows = {row.name: (row.a, row.b, row.difference) for row in compared.rows()}
    assert rows["cost"] == ("$0.5000", "$0.1000", "0.20x")
    assert rows["input tokens"] == ("100", "50", "-50")
    assert rows["time"] == ("2.5s", "2.5s", "")
    assert rows["answer"][2] == "differs"
    assert rows["steps"] == ("1", "1", "")
    text = compared.text()
    assert "big" in text and all(len(line) < 400 for line in text.splitlines())
    data = msgspec.json.decode(msgspec.json.encode(compared))
    assert data["b"]["answer"] == "short"
    assert not compared.same


def test_a_price_that_is_not_known_stays_unknown():
    compared = compare(recorded_session(("a", "m", 1, None)), recorded_session(("a", "m", 1, "0.1")))
    assert {row.name: (row.a, row.b, row.difference) for row in compared.rows()}["cost"] == ("unknown", "$0.1000", "")
    assert compared.same


def test_inputs_that_only_one_of_them_got_are_left_out():
    compared = compare(recorded_session(("a", "m", 1, "1"), ("b", "m", 1, "1")), recorded_session(("a", "m", 1, "1")))
    assert (compared.a.steps, compared.b.steps) == (1, 1)
