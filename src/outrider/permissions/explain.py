"""Says in words what decided about a call, command by command, and what could be offered."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from outrider.permissions.modes import Decision, Mode
from outrider.permissions.policy import Policy, ShellCall, assess, decide, decide_by
from outrider.permissions.redaction.terminal import for_terminal
from outrider.permissions.rule_suggestions import offered_rules
from outrider.types.messages import Message
from outrider.types.parts import ToolPart


class Explanation(Struct, frozen=True):
    decision: Decision
    steps: tuple[str, ...] = ()
    offers: tuple[str, ...] = ()

    def format(self) -> str:
        decided = f"{self.decision.effect}: {self.decision.reason}"
        lines = [decided if self.decision.rule is None else f"{decided} ({self.decision.rule})", *self.steps]
        return for_terminal("\n".join([*lines, *(f'"always" would add {rule}' for rule in self.offers)]))


def explain(
    tool: str,
    arguments: Mapping[str, Any],
    *,
    mode: Mode,
    allow: Sequence[str] = (),
    ask: Sequence[str] = (),
    deny: Sequence[str] = (),
    workspace: str,
    **more: Any,
) -> Explanation:
    """The decision itself comes from `decide`; this adds what it was made of."""
    decision = decide(tool, arguments, mode=mode, allow=allow, ask=ask, deny=deny, workspace=workspace, **more)
    call = assess(tool, arguments, workspace=workspace)
    steps = tuple(_steps(call)) if isinstance(call, ShellCall) else ()
    offers = offered_rules(tool, arguments, workspace=workspace) if decision.effect == "ask" else ()
    return Explanation(decision, steps, offers)


def _steps(call: ShellCall) -> Iterable[str]:
    for problem in call.script.problems:
        yield f"  not understood: {problem}"
    for command in call.script.commands:
        behind = f" (behind {', '.join(command.wrappers)})" if command.wrappers else ""
        doubts = [doubt for doubt in (command.doubt, *command.barriers) if doubt]
        yield f"  {command.shown}{behind}: {'; '.join(doubts) or 'reads only'}"


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
