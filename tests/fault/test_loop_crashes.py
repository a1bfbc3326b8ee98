"""An engine is killed in the middle of a turn: what the next one finds, reports and continues."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider import CompactionPart, Session, ToolCompleted, ToolError, ToolPart
from outrider.agents.turn_state import is_cut_off
from outrider.context.lower import lower
from outrider.providers.scripted import MESSAGE_RULES
from outrider.sessions.records import StoredSession
from outrider.sessions.sqlite.store import SqliteStore
from outrider.testing import Simulator
from outrider.types.messages import text_message
from tests.fault.loop_worker import DONE, MODELS, answer, engine, history
from tests.fault.processes import ROOT

Record = Callable[[str, object], None]
SOAK = bool(os.environ.get("OUTRIDER_SOAK"))

POINTS = {
    "FP-before-request": (1, 2, 3, 4),
    "FP-mid-stream": (1, 2),
    "FP-before-record-call": (1, 3, 6),
    "FP-after-record-call": (1, 3, 6),
    "FP-tool-mid": (1, 3, 5),
    "FP-after-effect-before-result": (1, 3, 6),
    "FP-after-result": (1, 2, 5, 6),
    "FP-mid-approval": (1,),
    "FP-mid-compaction": (1,),
    "FP-after-commit": (4, 9, 16, 25),
}


async def new_session(path: Path) -> str:
    session = Session(workspace_directory=str(path.parent))
    for question, answered in history():
        session.add_user_message(question)
        session.add_assistant_message(answered, finish="stop")
    async with SqliteStore(path) as store:
        await store.create(StoredSession.from_session(session))
        await store.append(session.id, session.messages)
    return session.id


def killed(
    path: Path, effects: Path, session_id: str, kind: str, url: str, fault: str = "", after: float | None = None
) -> bool:
    """Whether the engine was killed before it was done."""
    command = [sys.executable, "-m", "tests.fault.loop_worker", str(path), str(effects), session_id, kind, url]
    environment = os.environ | {"OUTRIDER_FAULT": fault, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        if after is not None:
            child.stdout.readline()
            time.sleep(after)
            child.kill()
        assert child.wait() in (0, -signal.SIGKILL)
        return child.returncode != 0


def calls_in(session: Session) -> list[ToolPart]:
    return [part for message in session.messages for part in message.get_parts_by_type(ToolPart)]


def effect_of(call: ToolPart) -> str:
    """What the call leaves in the file of effects; ids of calls are the engine's own where the API has none."""
    return f"{call.tool}-{call.state.input.get('number', 1)}"


def judge_opened(session: Session, effects: Path) -> Counter[str]:
    """Checks a session that was opened again, and returns how its calls ended."""
    done = Counter(effects.read_text().split()) if effects.exists() else Counter[str]()
    ends = Counter[str]()
    for call in calls_in(session):
        if isinstance(call.state, ToolCompleted):
            assert done[effect_of(call)] == 1
            ends["completed"] += 1
        elif isinstance(call.state, ToolError):
            assert call.state.reason == "interrupted"
            ran = "may have had" in call.state.error
            assert ran or ("had no effect" in call.state.error and not done[effect_of(call)])
            ends["unknown" if ran else "never ran"] += 1
        else:
            assert call.state.phase == "awaiting_approval"  # pyright: ignore
            ends["asked"] += 1
    assert len({call.call_id for call in calls_in(session)}) == len(calls_in(session))
    for rules in MESSAGE_RULES.values():
        # A request never ends with the assistant: a note of the program or new input follows.
        assert not list(rules(lower([*session.messages, text_message("user", "go")], family="scripted")))
    return ends


async def judge(path: Path, effects: Path, session_id: str, kind: str, url: str) -> Counter[str]:
    """Opens the session, checks it, continues to the end, and checks it again."""
    async with engine(path, effects, kind, url) as held:
        opened = await held.store.load(session_id)
        before = {part.id: part for message in opened.messages for part in message.parts}
        # A process that was killed before the input was stored had not acknowledged it: the user sends it again.
        input_stored = opened.messages[-1].role == "user" or len(opened.messages) > 2 * len(history())
        input_stored = input_stored or bool(await held.store.inbox(session_id))
        session = await held.open(session_id)
        ends = judge_opened(session, effects)
        ended_calls = [part for part in before.values() if isinstance(part, ToolPart) and part.ended]
        assert all(part in calls_in(session) for part in ended_calls)
        end = await (held.resume(session_id) if input_stored else held.prompt(session_id, "go"))
        assert (end.reason, end.output, end.error) == ("completed", DONE, None)
        assert not is_cut_off(session.messages)
        assert len(await held.store.approvals(session_id)) <= 1  # asked again, never twice
    done = Counter(effects.read_text().split()) if effects.exists() else Counter[str]()
    assert all(count == 1 for count in done.values()), f"done twice: {done}"
    assert [m.get_text_content() for m in session.messages].count("go") == 1
    assert len([part for m in session.messages for part in m.get_parts_by_type(CompactionPart)]) <= 1
    assert all(call.ended for call in calls_in(session))
    return ends


async def round_of(folder: Path, name: str, kind: Any, **how: Any) -> tuple[bool, Counter[str]]:
    """One engine is killed, another continues its turn; no request of either may break a rule of the API."""
    path, effects = folder / f"{name}.db", folder / f"effects-{name}"
    session_id = await new_session(path)
    with Simulator(answer, delay=0.002) as simulator:
        url = simulator.url(kind)
        was_killed = killed(path, effects, session_id, kind, url, **how)
        ends = await judge(path, effects, session_id, kind, url)
        assert [problem for problem in simulator.rejected if "maximum" not in problem] == []
    return was_killed, ends


@pytest.mark.soak
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("point", POINTS)
async def test_sf_001_to_007_an_engine_killed_at_a_fault_point_is_recovered_and_its_turn_continues(
    point: str, kind: str, tmp_path: Path, record_property: Record
):
    # Every API and every point, one visit each; a soak tries all visits. How often a point is visited depends on how
    # many chunks arrive together, so a visit that was not reached is followed by the first one.
    turn = (list(POINTS).index(point) + list(MODELS).index(kind)) % len(POINTS[point])
    visits = range(1, 40) if SOAK else (POINTS[point][turn], 1)
    ends, rounds = Counter[str](), 0
    for number, visit in enumerate(visits):
        was_killed, ended = await round_of(tmp_path, str(number), kind, fault=f"{point}@{visit}")
        ends += ended
        rounds += was_killed
        if was_killed != SOAK:
            break
    assert rounds
    summary = ", ".join(f"{count} {what}" for what, count in sorted(ends.items())) or "none begun"
    record_property("figures", f"engine killed at {point} ({kind}): {rounds} rounds, all taken up; calls: {summary}")


@pytest.mark.soak
async def test_sf_012_an_engine_killed_at_any_moment_is_recovered_and_its_turn_continues(
    tmp_path: Path, record_property: Record
):
    ends, rounds, cut, longest = Counter[str](), 300 if SOAK else 4, 0, 0.25
    for number in range(rounds):
        kind = list(MODELS)[number % len(MODELS)]
        delay = random.uniform(0, longest)
        was_killed, ended = await round_of(tmp_path, str(number), kind, after=delay)
        ends += ended
        cut += was_killed
        if not was_killed:
            longest = delay / 2  # the turn ended before: on a fast machine it takes less
    summary = ", ".join(f"{count} {what}" for what, count in sorted(ends.items())) or "none begun"
    record_property("figures", f"engine killed at random moments: {rounds} rounds, {cut} cut; calls: {summary}")
    assert cut
