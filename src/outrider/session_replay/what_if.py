"""Runs a variant of a session: forks it, continues the fork with changes, and compares both."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from outrider.agents.turn_state import TurnOutcome, is_cut_off
from outrider.engine.approval_gate import Rules
from outrider.engine.engine import Engine
from outrider.errors import ConfigurationError
from outrider.session_replay.comparison import Comparison, compare
from outrider.session_replay.recorded_session import assistant_steps, load_session, tool_calls, with_recorded_model
from outrider.sessions.records import SessionUpdate
from outrider.sessions.session import Session
from outrider.types.agents import Agent
from outrider.types.messages import Message
from outrider.types.parts import ToolPart
from outrider.types.tool_state import EndedTime, ToolCompleted, ToolError

EDITED = "edited"  # metadata key of a part with a changed result: the original result


class WhatIfChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a variant; None and an empty dict change nothing.

    `model` is a model of the agent's provider or "provider/model"; `agent` is the name of another agent, or an Agent;
    `results` maps call ids to new results.
    """

    model: str | None = None
    agent: Agent | str | None = None
    instructions: str | None = None
    rules: Rules | None = None
    results: Mapping[str, str] = {}


class WhatIf(msgspec.Struct, frozen=True):
    """The result of `what_if`: the original, the stored fork, how its turn ended, and the comparison of both."""

    original: Session
    session: Session
    end: TurnOutcome
    comparison: Comparison

    def text(self) -> str:
        return self.comparison.text()


async def what_if(engine: Engine, session_id: str, *, at_step: int | None = None, **changes: Any) -> WhatIf:
    """Forks a session after `at_step` steps and continues the fork with changes: see `WhatIfChanges`.

    With `at_step=None` the fork ends after the last step with a changed result; with 0 it has only the first input.
    The original does not change. The fork is stored and runs under the engine's limits. Raises ConfigurationError for
    unknown changes, an unknown call id, or a step that has nothing to continue.
    """
    change = _parse_changes(changes)
    original = await load_session(engine.store, session_id)
    steps = assistant_steps(original.messages)
    number = _count_kept_steps(steps, at_step, change.results)
    replaced = steps[number] if number < len(steps) else None
    fork = await _create_fork(engine, original, _kept_messages(original, replaced), change.results)
    agent = _select_agent(engine, original, replaced, change)
    agents = [agent, *(other for other in engine.runtime.spec.agents.values() if other.name != agent.name)]
    rules = {} if change.rules is None else {"rules": change.rules}
    mode = replaced.mode if replaced and replaced.mode else original.mode
    await engine.store.update(fork, SessionUpdate(agent=agent.name, mode=mode))
    async with engine.like(agents=agents, attended=engine.attended, **rules) as twin:
        end = await twin.go_on(fork)
    session = await load_session(engine.store, fork)
    return WhatIf(original, session, end, compare(original, session))


def _parse_changes(changes: dict[str, Any]) -> WhatIfChanges:
    try:
        change = WhatIfChanges(**changes)
    except TypeError as error:
        known = ", ".join(WhatIfChanges.__struct_fields__)
        raise ConfigurationError(f"unknown change: {error}; possible changes are {known}") from error
    if change == WhatIfChanges():
        raise ConfigurationError("what_if needs at least one change")
    return change


def _count_kept_steps(steps: Sequence[Message], at_step: int | None, results: Mapping[str, str]) -> int:
    """Returns the number of steps to keep in the fork."""
    missing = results.keys() - {call.call_id for step in steps for call in tool_calls(step)}
    if missing:
        raise ConfigurationError(f"the session has no call {', '.join(sorted(missing))}")
    changed = max((n for n, step in enumerate(steps, 1) for c in tool_calls(step) if c.call_id in results), default=0)
    number = changed if at_step is None else at_step
    if not 0 <= number <= len(steps):
        raise ConfigurationError(f"the session has {len(steps)} steps; it cannot be forked after step {number}")
    if number < changed:
        raise ConfigurationError(f"a result of step {changed} is changed, but the fork has only {number} steps")
    return number


def _kept_messages(session: Session, replaced: Message | None) -> list[Message]:
    """Returns the messages before the step that runs again."""
    kept = session.messages if replaced is None else session.messages[: session.messages.index(replaced)]
    if not is_cut_off(kept):
        raise ConfigurationError(
            "the turn has ended at this step: there is nothing to run again; choose an earlier step"
        )
    return kept


async def _create_fork(engine: Engine, original: Session, kept: Sequence[Message], results: Mapping[str, str]) -> str:
    """Creates the fork and stores the changed results in it; the metadata holds the original results."""
    fork = await engine.store.fork(original.id, at=kept[-1].id, title=f"{original.title} (what if)".strip())
    edited = list(_edit_results((await engine.store.load(fork.id)).messages, results))
    if edited:
        await engine.store.append(fork.id, edited)
    return fork.id


def _edit_results(messages: Sequence[Message], results: Mapping[str, str]) -> Iterable[ToolPart]:
    for message in messages:
        for call in tool_calls(message):
            if call.call_id in results:
                yield _with_result(call, results[call.call_id])


def _with_result(call: ToolPart, output: str) -> ToolPart:
    state = call.state
    time = state.time if isinstance(state, ToolCompleted | ToolError) else EndedTime(0, 0)
    was = state.output if isinstance(state, ToolCompleted) else getattr(state, "error", "")
    done = ToolCompleted(input=state.input, output=output, time=time)
    return replace(call, state=done, metadata={**call.metadata, EDITED: was})


def _select_agent(engine: Engine, original: Session, replaced: Message | None, change: WhatIfChanges) -> Agent:
    providers = engine.runtime.spec.providers
    if isinstance(change.agent, Agent):
        agent = change.agent
    elif change.agent is not None:
        agent = engine.runtime.find_agent(change.agent)
    else:
        agent = engine.runtime.find_agent(replaced.agent if replaced else original.agent)
        agent = with_recorded_model(agent, replaced, providers)
    if change.instructions is not None:
        agent = replace(agent, instructions=change.instructions)
    if change.model is None:
        return agent
    provider, _, model = change.model.partition("/")
    if not model or provider not in providers:
        provider, model = agent.provider, change.model
    return replace(agent, provider=provider, model=model)
