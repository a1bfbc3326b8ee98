"""Titles that a model generates: after the first turn, concurrently, and never in place of a title that a user set."""

import asyncio

import pytest

from outrider import Agent, Engine, ServerError, Tokens
from outrider.engine.archive import SessionArchive
from outrider.engine.session_trace import stored_trace
from outrider.sessions.records import SessionFilter
from outrider.types.request import Finish
from tests.scenario.scripted_runs import agent, scripted

NAMER = Agent("namer", "", "small-1", "names")


def names(script):
    provider = scripted(script)
    return type(provider)("names", "scripted", options=provider.options)


def engine(title, answers=None, **options) -> Engine:
    providers = [scripted(answers or (lambda _: "an answer")), names(title)]
    return Engine([agent()], providers, titles=NAMER, **options)


async def titled(held: Engine, session: str, unlike: str = "why is the sky blue?") -> str:
    async with asyncio.timeout(30):
        while (title := (await held.store.get(session)).title) in ("", unlike):
            await asyncio.sleep(0.002)
    return title


async def settled() -> None:
    """Long enough for a title that should not come."""
    await asyncio.sleep(0.1)


async def test_a_model_names_a_session_after_its_first_turn():
    seen: list[str] = []

    def title(request):
        seen.append(request.prompt[0].content[0].text)
        assert request.tools == ()
        assert request.settings.max_output_tokens is not None
        return '"The colour of the sky."'

    async with engine([title]) as held:
        session = await held.create()
        await held.prompt(session, "why is the sky blue?")
        assert await titled(held, session) == "The colour of the sky"
        assert (await held.open(session)).title == "The colour of the sky"
        await held.prompt(session, "and at night?")
        await settled()
    assert len(seen) == 1
    assert "why is the sky blue?" in seen[0]
    assert "an answer" in seen[0]


async def test_nothing_waits_for_a_title_not_even_the_end_of_the_engine():
    never = asyncio.Event()
    async with asyncio.timeout(30), engine([[never, "late"]]) as held:
        session = await held.create()
        assert (await held.prompt(session, "why is the sky blue?")).output == "an answer"
        assert (await held.prompt(session, "and at night?")).output == "an answer"
        await settled()
    assert (await held.store.get(session)).title == "why is the sky blue?"


async def test_a_name_that_the_user_gave_meanwhile_stays():
    release = asyncio.Event()
    async with engine([[release, "The sky"]]) as held:
        session = await held.create()
        await held.prompt(session, "why is the sky blue?")
        await held.rename(session, "My question")
        release.set()
        await settled()
        assert (await held.store.get(session)).title == "My question"


async def test_a_session_that_was_given_a_name_retains_it_and_no_model_is_asked():
    def title(request):
        raise AssertionError("nobody wants a title")

    async with engine(title) as held:
        session = await held.create(title="Sky")
        await held.prompt(session, "why is the sky blue?")
        await settled()
        assert (await held.store.get(session)).title == "Sky"


@pytest.mark.parametrize("answer", [ServerError("no"), "", " \n", ["half", Finish("length", "max_tokens")]])
async def test_without_a_usable_title_the_first_line_stays(answer):
    async with engine([answer]) as held:
        session = await held.create()
        await held.prompt(session, "why is the sky blue?\nI wonder.")
        await settled()
        assert (await held.store.get(session)).title == "why is the sky blue?"


async def test_what_a_title_used_is_counted_in_a_session_below():
    async with engine([["The sky", Tokens(100, 5)]]) as held:
        session = await held.create()
        await held.prompt(session, "why is the sky blue?")
        await titled(held, session)
        (below,) = (await held.store.list(SessionFilter(parent_id=session))).sessions
        assert below.agent == "outrider/title"
        rows = {row.key: row for row in await held.store.statistics("model")}
        assert rows["names/small-1"].tokens == Tokens(100, 5)
        assert [one.id for one in (await held.store.list(SessionFilter(roots=True))).sessions] == [session]


async def test_a_script_is_not_asked_for_titles_unless_it_is_named_for_it():
    async with Engine([agent()], [scripted(["one", "two"])], titles=True) as held:
        session = await held.create()
        await held.prompt(session, "a")
        await settled()
        assert (await held.prompt(session, "b")).output == "two"


async def test_a_long_title_is_cut():
    async with engine(["word " * 50]) as held:
        session = await held.create()
        await held.prompt(session, "why is the sky blue?")
        assert len(await titled(held, session)) <= 60


async def test_a_title_is_no_part_of_the_work_that_is_traced():
    async with engine(["The sky"]) as held:
        session = await held.create()
        await held.prompt(session, "why is the sky blue?")
        await titled(held, session)
        trace = await stored_trace(SessionArchive(held.store), session)
    assert "title" not in trace.format_tree()
