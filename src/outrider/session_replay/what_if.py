"""Compares two sessions, and runs a variant of one: forks it and continues the fork with changes."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import takewhile
from typing import TypedDict, Unpack

import msgspec
from msgspec.structs import replace

from outrider._sync import describe_value
from outrider.agents.turn_state import TurnOutcome, is_cut_off
from outrider.engine.approval_gate import Rules
from outrider.engine.engine import Engine
from outrider.engine.runtime import check_engine
from outrider.errors import ConfigurationError
from outrider.presentation.formats import format_cost, format_duration
from outrider.session_replay.recorded_session import (
    assistant_steps,
    format_call,
    is_input,
    load_session,
    quote_short,
    tool_calls,
    with_recorded_model,
)
from outrider.sessions.records import SessionUpdate
from outrider.sessions.session import Session
from outrider.types.agents import Agent
from outrider.types.messages import Message
from outrider.types.parts import Tokens, ToolPart, Usage
from outrider.types.tool_state import EndedTime, ToolCompleted, ToolError


class ComparedSession(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one session after the last shared message, summed up.

    `cost` is None if a price is unknown; `seconds` is the time that models and tools took.
    """

    session_id: str
    models: tuple[str, ...] = ()
    answer: str = ""
    finish: str = ""
    steps: int = 0
    calls: tuple[str, ...] = ()
    failed_calls: int = 0
    tokens: Tokens = Tokens()
    cost: Decimal | None = None
    seconds: float = 0.0


Course = ComparedSession  # its name in version 0.1


class ComparisonRow(msgspec.Struct, frozen=True):
    """A row of the comparison table; `difference` is an empty string if the values are equal or have no short form."""

    name: str
    a: str
    b: str
    difference: str = ""


class Comparison(msgspec.Struct, frozen=True):
    """The result of `compare`. The first `shared` steps are in both sessions and are not part of `a` and `b`."""

    shared: int
    a: ComparedSession
    b: ComparedSession

    @property
    def same(self) -> bool:
        """True if both sessions have the same final response and the same tool calls."""
        return (self.a.answer, self.a.calls) == (self.b.answer, self.b.calls)

    def rows(self) -> list[ComparisonRow]:
        """Returns one row for each compared value: model, answer, steps, calls, tokens, cost and time."""
        a, b = self.a, self.b
        return [
            ComparisonRow("model", ", ".join(a.models), ", ".join(b.models), _difference_label(a.models, b.models)),
            ComparisonRow("answer", a.answer, b.answer, _difference_label(a.answer, b.answer)),
            ComparisonRow("finish", a.finish, b.finish, _difference_label(a.finish, b.finish)),
            _count_row("steps", a.steps, b.steps),
            ComparisonRow("calls", _join_calls(a.calls), _join_calls(b.calls), _difference_label(a.calls, b.calls)),
            _count_row("failed calls", a.failed_calls, b.failed_calls),
            _count_row("input tokens", a.tokens.prompt, b.tokens.prompt),
            _count_row("output tokens", *(side.tokens.output + side.tokens.reasoning for side in (a, b))),
            ComparisonRow("cost", format_cost(a.cost), format_cost(b.cost), _format_ratio(a.cost, b.cost)),
            ComparisonRow(
                "time", format_duration(a.seconds), format_duration(b.seconds), _format_ratio(a.seconds, b.seconds)
            ),
        ]

    def text(self) -> str:
        """Returns the table as text; long values are shortened, `rows` returns them in full."""
        head = ComparisonRow("", "first", "second", "")
        lines = [(row.name, _short_line(row.a), _short_line(row.b), row.difference) for row in (head, *self.rows())]
        widths = [max(len(line[column]) for line in lines) for column in range(4)]
        table = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
        return "\n".join([f"after {self.shared} shared steps", *table] if self.shared else table)


def compare(a: Session, b: Session) -> Comparison:
    """Compares two sessions after their last shared message; ignores inputs that only one of them received."""
    for session in (a, b):
        if not isinstance(session, Session):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"compare() takes two sessions, as Engine.open() returns them, got {describe_value(session)}"
            )
    messages_a, messages_b = _comparable_messages(a, b), _comparable_messages(b, a)
    common = sum(1 for _ in takewhile(lambda pair: pair[0].id == pair[1].id, zip(messages_a, messages_b, strict=False)))
    return Comparison(
        shared=len(assistant_steps(messages_a[:common])),
        a=_summarize_steps(a.id, messages_a[common:]),
        b=_summarize_steps(b.id, messages_b[common:]),
    )


def _comparable_messages(session: Session, other_session: Session) -> Sequence[Message]:
    """Returns the messages up to the first input that the other session did not receive."""
    count = sum(map(is_input, other_session.messages))
    inputs = [position for position, message in enumerate(session.messages) if is_input(message)]
    return session.messages[: inputs[count]] if len(inputs) > count else session.messages


def _summarize_steps(session_id: str, messages: Sequence[Message]) -> ComparedSession:
    steps = assistant_steps(messages)
    calls = [call for step in steps for call in tool_calls(step)]
    used = [step for step in steps if step.tokens.total or step.cost is not None]
    usage = Usage()
    for step in used:
        usage = usage.plus(step.tokens, step.cost)
    return ComparedSession(
        session_id=session_id,
        models=tuple(dict.fromkeys(step.model.model for step in steps if step.model)),
        answer=next((step.join_text() for step in reversed(steps) if step.join_text()), ""),
        finish=_finish_reason(steps[-1]) if steps else "",
        steps=len(steps),
        calls=tuple(map(format_call, calls)),
        failed_calls=sum(isinstance(call.state, ToolError) for call in calls),
        tokens=usage.tokens,
        cost=usage.total_cost if used else None,
        seconds=sum(map(_step_seconds, steps)),
    )


def _finish_reason(step: Message) -> str:
    return step.error.type if step.error else step.finish or ""


def _step_seconds(step: Message) -> float:
    """Returns the time from the request to the last tool result, without the time until the next input."""
    if step.time is None:
        return 0.0
    ends = [call.state.time.end for call in tool_calls(step) if isinstance(call.state, ToolCompleted | ToolError)]
    return (max([step.time.completed or step.time.created, *ends]) - step.time.created) / 1000


def _count_row(name: str, a: int, b: int) -> ComparisonRow:
    return ComparisonRow(name, f"{a:,}", f"{b:,}", f"{b - a:+,}" if a != b else "")


def _difference_label(a: object, b: object) -> str:
    return "" if a == b else "differs"


def _join_calls(calls: Iterable[str]) -> str:
    return ", ".join(calls) or "none"


def _format_ratio(a: Decimal | float | None, b: Decimal | float | None) -> str:
    return "" if not a or b is None or a == b else f"{float(b) / float(a):.2f}x"


def _short_line(text: str) -> str:
    return quote_short(text)[1:-1] if text else ""


_TITLE_MARK = " (what if)"
EDITED = "edited"  # metadata key of a part with a changed result: the original result


class WhatIfKeywords(TypedDict, total=False):
    """The keyword arguments of `what_if`; see `WhatIfChanges`."""

    model: str | None
    agent: Agent | str | None
    instructions: str | None
    rules: Rules | None
    results: Mapping[str, str]


class WhatIfChanges(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of a variant; None and an empty dict change nothing.

    - `model`: a model of the agent's provider, or "provider/model".
    - `agent`: the name of another agent, or an Agent.
    - `instructions`: other instructions of the agent.
    - `rules`: other permission rules.
    - `results`: new results by call id.
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
        """Returns the comparison as a table in plain text."""
        return self.comparison.text()


async def what_if(
    engine: Engine, session_id: str, *, at_step: int | None = None, **changes: Unpack[WhatIfKeywords]
) -> WhatIf:
    """Forks a session after `at_step` steps and continues the fork with changes: see `WhatIfChanges`.

    With `at_step=None` the fork ends after the last step with a changed result; with 0 it has only the first input.
    The original does not change. The fork is stored and runs under the engine's limits. Raises ConfigurationError for
    unknown changes, an unknown call id, or a step that has nothing to continue.
    """
    check_engine("what_if()", engine, session_id)
    change = _parse_changes(changes)
    original = await load_session(engine.store, session_id)
    steps = assistant_steps(original.messages)
    number = _count_retained_steps(steps, at_step, change.results)
    replaced = steps[number] if number < len(steps) else None
    # Before the fork is created, so that a mistake does not leave one.
    agent = _select_agent(engine, original, replaced, change)
    fork = await _create_fork(engine, original, _retained_messages(original, replaced), change.results)
    agents = [agent, *(entry for entry in engine.runtime.spec.agents.values() if entry.name != agent.name)]
    rules = {} if change.rules is None else {"rules": change.rules}
    mode = replaced.mode if replaced and replaced.mode else original.mode
    await engine.store.update(fork, SessionUpdate(agent=agent.name, mode=mode))
    async with engine.replace(agents=agents, attended=engine.attended, **rules) as variant_engine:
        end = await variant_engine.resume(fork)
    session = await load_session(engine.store, fork)
    return WhatIf(original, session, end, compare(original, session))


def _parse_changes(changes: WhatIfKeywords) -> WhatIfChanges:
    try:
        change = WhatIfChanges(**changes)
    except TypeError as error:
        names = ", ".join(WhatIfChanges.__struct_fields__)
        raise ConfigurationError(f"unknown change: {error}; possible changes are {names}") from error
    if change == WhatIfChanges():
        raise ConfigurationError(
            f"nothing is changed: pass at least one of {', '.join(WhatIfChanges.__struct_fields__)}"
        )
    return change


def _count_retained_steps(steps: Sequence[Message], at_step: int | None, results: Mapping[str, str]) -> int:
    """Returns the number of steps to keep in the fork."""
    unknown_ids = results.keys() - {call.call_id for step in steps for call in tool_calls(step)}
    if unknown_ids:
        raise ConfigurationError(f"the session has no call {', '.join(sorted(unknown_ids))}")
    last_changed = max(
        (n for n, step in enumerate(steps, 1) for c in tool_calls(step) if c.call_id in results), default=0
    )
    number = last_changed if at_step is None else at_step
    if not 0 <= number <= len(steps):
        raise ConfigurationError(f"the session has {len(steps)} steps; it cannot be forked after step {number}")
    if number < last_changed:
        raise ConfigurationError(f"a result of step {last_changed} is changed, but the fork has only {number} steps")
    return number


def _retained_messages(session: Session, replaced: Message | None) -> list[Message]:
    """Returns the messages before the step that runs again."""
    retained = session.messages if replaced is None else session.messages[: session.messages.index(replaced)]
    if not is_cut_off(retained):
        raise ConfigurationError(
            "the turn has ended at this step: there is nothing to run again; choose an earlier step"
        )
    return retained


async def _create_fork(
    engine: Engine, original: Session, retained: Sequence[Message], results: Mapping[str, str]
) -> str:
    """Creates the fork and stores the changed results in it; the metadata holds the original results."""
    title = f"{original.title.removesuffix(_TITLE_MARK)}{_TITLE_MARK}".strip()
    fork = await engine.store.fork(original.id, at=retained[-1].id, title=title)
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
    original_result = state.output if isinstance(state, ToolCompleted) else getattr(state, "error", "")
    edited_state = ToolCompleted(input=state.input, output=output, time=time)
    return replace(call, state=edited_state, metadata={**call.metadata, EDITED: original_result})


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
