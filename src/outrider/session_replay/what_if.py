"""What if a step had gone otherwise: a fork of a session runs on with a change, and stands beside the original."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from outrider.agents.turn_state import TurnEnd, is_cut_off
from outrider.engine.approval_gate import Rules
from outrider.engine.engine import Engine
from outrider.errors import ConfigurationError
from outrider.session_replay.comparison import Comparison, compare
from outrider.session_replay.recorded_session import calls_of, load, steps_of, with_its_model
from outrider.sessions.records import SessionUpdate
from outrider.sessions.session import Session
from outrider.types.agents import Agent
from outrider.types.messages import Message
from outrider.types.parts import ToolPart
from outrider.types.tool_state import EndedTime, ToolCompleted, ToolError

EDITED = "edited"  # in a part's metadata: what the result was before


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What is otherwise. `model` is a model of the agent's provider or "provider/model"; `results` are new results
    of calls by their ids; `agent` is the name of another agent, or a new one."""

    model: str | None = None
    agent: Agent | str | None = None
    instructions: str | None = None
    rules: Rules | None = None
    results: Mapping[str, str] = {}


class WhatIf(msgspec.Struct, frozen=True):
    """`session` is the fork, which is stored like any other; `end` is how its turn ended."""

    original: Session
    session: Session
    end: TurnEnd
    comparison: Comparison

    def text(self) -> str:
        return self.comparison.text()


async def what_if(engine: Engine, session_id: str, *, at_step: int | None = None, **changes: Any) -> WhatIf:
    """Keep the first `at_step` steps of a session and what the user said until then, in a fork, and run the turn on
    from there with a change: see `Change`. None keeps as much as has a changed result, and 0 the first input alone.

    The original stays as it is; the fork has a place of its own in the store, and runs under the engine's limits."""
    change = _read(changes)
    original = await load(engine.store, session_id)
    steps = steps_of(original.messages)
    number = _step(steps, at_step, change.results)
    replaced = steps[number] if number < len(steps) else None
    fork = await _fork(engine, original, _kept(original, replaced), change.results)
    agent = _agent(engine, original, replaced, change)
    agents = [agent, *(other for other in engine.staff.plan.agents.values() if other.name != agent.name)]
    rules = {} if change.rules is None else {"rules": change.rules}
    mode = replaced.mode if replaced and replaced.mode else original.mode
    await engine.store.update(fork, SessionUpdate(agent=agent.name, mode=mode))
    async with engine.like(agents=agents, attended=engine.attended, **rules) as twin:
        end = await twin.go_on(fork)
    session = await load(engine.store, fork)
    return WhatIf(original, session, end, compare(original, session))


def _read(changes: dict[str, Any]) -> Change:
    try:
        change = Change(**changes)
    except TypeError as error:
        known = ", ".join(Change.__struct_fields__)
        raise ConfigurationError(f"what if what? {error}; what can be changed is {known}") from error
    if change == Change():
        raise ConfigurationError("what if what? Name what is to be otherwise")
    return change


def _step(steps: Sequence[Message], at_step: int | None, results: Mapping[str, str]) -> int:
    """How many steps stay."""
    missing = results.keys() - {call.call_id for step in steps for call in calls_of(step)}
    if missing:
        raise ConfigurationError(f"the session has no call {', '.join(sorted(missing))}")
    changed = max((n for n, step in enumerate(steps, 1) for c in calls_of(step) if c.call_id in results), default=0)
    number = changed if at_step is None else at_step
    if not 0 <= number <= len(steps):
        raise ConfigurationError(f"the session has {len(steps)} steps; it cannot be forked behind step {number}")
    if number < changed:
        raise ConfigurationError(f"a result of step {changed} is to be changed, and only {number} steps would stay")
    return number


def _kept(session: Session, replaced: Message | None) -> list[Message]:
    """Everything before the step that is made anew."""
    kept = session.messages if replaced is None else session.messages[: session.messages.index(replaced)]
    if not is_cut_off(kept):
        raise ConfigurationError("the session has ended there, so nothing can be made anew; keep fewer steps")
    return kept


async def _fork(engine: Engine, original: Session, kept: Sequence[Message], results: Mapping[str, str]) -> str:
    """A new session with a copy of what stays; changed results are the fork's own, and say what they were."""
    fork = await engine.store.fork(original.id, at=kept[-1].id, title=f"{original.title} (what if)".strip())
    edited = list(_edited((await engine.store.load(fork.id)).messages, results))
    if edited:
        await engine.store.append(fork.id, edited)
    return fork.id


def _edited(messages: Sequence[Message], results: Mapping[str, str]) -> Iterable[ToolPart]:
    for message in messages:
        for call in calls_of(message):
            if call.call_id in results:
                yield _with_result(call, results[call.call_id])


def _with_result(call: ToolPart, output: str) -> ToolPart:
    state = call.state
    time = state.time if isinstance(state, ToolCompleted | ToolError) else EndedTime(0, 0)
    was = state.output if isinstance(state, ToolCompleted) else getattr(state, "error", "")
    done = ToolCompleted(input=state.input, output=output, time=time)
    return replace(call, state=done, metadata={**call.metadata, EDITED: was})


def _agent(engine: Engine, original: Session, replaced: Message | None, change: Change) -> Agent:
    providers = engine.staff.plan.providers
    if isinstance(change.agent, Agent):
        agent = change.agent
    elif change.agent is not None:
        agent = engine.staff.agent(change.agent)
    else:
        agent = engine.staff.agent(replaced.agent if replaced else original.agent)
        agent = with_its_model(agent, replaced, providers)
    if change.instructions is not None:
        agent = replace(agent, instructions=change.instructions)
    if change.model is None:
        return agent
    provider, _, model = change.model.partition("/")
    if not model or provider not in providers:
        provider, model = agent.provider, change.model
    return replace(agent, provider=provider, model=model)
