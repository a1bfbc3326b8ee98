"""Says in words what decided about a call, command by command, and what could be offered."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from outrider.permissions.assess import ShellCall, assess
from outrider.permissions.decision import Decision, Mode
from outrider.permissions.offers import offered_rules
from outrider.permissions.policy import decide
from outrider.permissions.texts.terminal import for_terminal


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
