"""Judges the calls of a stored session again under other rules: what would have been asked, refused, let through."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from outrider.permissions.decision import Decision, Mode
from outrider.permissions.policy import Policy, decide_by
from outrider.types.messages import Message
from outrider.types.parts import ToolPart


class PastCall(Struct, frozen=True):
    tool: str
    arguments: dict[str, Any]
    call_id: str = ""


class Verdict(Struct, frozen=True):
    call: PastCall
    before: Decision
    after: Decision

    @property
    def changed(self) -> bool:
        return self.before.effect != self.after.effect


def past_calls(messages: Iterable[Message]) -> Iterator[PastCall]:
    """Every call of a transcript, with the input it was made with."""
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolPart):
                yield PastCall(part.tool, dict(part.state.input), part.call_id)


def backtest(
    calls: Iterable[PastCall], *, before: Policy, after: Policy, mode: Mode, workspace: str, sandbox: bool = False
) -> list[Verdict]:
    def judged(policy: Policy, call: PastCall) -> Decision:
        return decide_by(policy, call.tool, call.arguments, mode=mode, workspace=workspace, sandbox=sandbox)

    return [Verdict(call, judged(before, call), judged(after, call)) for call in calls]


def summary(verdicts: Iterable[Verdict]) -> Mapping[str, int]:
    """How many calls moved where, as "ask -> allow"; those that stay are counted under their effect alone."""
    return Counter(
        f"{verdict.before.effect} -> {verdict.after.effect}" if verdict.changed else verdict.after.effect
        for verdict in verdicts
    )
