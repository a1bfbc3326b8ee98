"""Explains a permission decision command by command, and backtests changed rules on the calls of a session."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from outrider.permissions import reasons
from outrider.permissions.call_assessment import ShellCall, assess_call
from outrider.permissions.modes import MODE_TABLE, Decision, Mode
from outrider.permissions.policy import PermissionRules, decide, decide_with_rules
from outrider.permissions.redaction.terminal import sanitize_for_terminal
from outrider.permissions.rule_suggestions import suggested_rules
from outrider.permissions.shell.command_effects import list_effects as list_script_effects
from outrider.types.messages import Message
from outrider.types.modes import ApprovalLevel
from outrider.types.outcomes import CallEffect
from outrider.types.parts import ToolPart
from outrider.types.tool_declaration import DeclaredTool


class DecisionExplanation(Struct, frozen=True):
    """A decision, the findings for each shell command, and the rules that "always" would add.

    `confined` states in words where an allowed command runs and what happens to its changes; "" for other calls.
    """

    decision: Decision
    steps: tuple[str, ...] = ()
    offers: tuple[str, ...] = ()
    confined: str = ""

    def format(self) -> str:
        effect = f"{self.decision.effect}, {self.confined}" if self.confined else self.decision.effect
        lines = [f"{effect}: {self.decision.reason}", *self.steps]
        return sanitize_for_terminal(
            "\n".join([*lines, *(reasons.ALWAYS_ADDS.format(rule=rule) for rule in self.offers)])
        )


def explain_decision(
    tool: str | DeclaredTool,
    arguments: Mapping[str, Any],
    *,
    mode: Mode,
    allow: Sequence[str] = (),
    ask: Sequence[str] = (),
    deny: Sequence[str] = (),
    workspace: str,
    level: ApprovalLevel = "ask",
    **decide_options: Any,
) -> DecisionExplanation:
    """Returns the decision of `decide` with the findings behind it. `decide_options` are further options of `decide`.
    Rules are offered if the call itself, or what it changes, needs an approval."""
    rules = {"allow": allow, "ask": ask, "deny": deny}
    decision = decide(tool, arguments, mode=mode, workspace=workspace, level=level, **rules, **decide_options)
    confined = _describe_confinement(decision, mode, level)
    call = assess_call(tool, arguments, workspace=workspace)
    steps = tuple(_explain_commands(call)) if isinstance(call, ShellCall) else ()
    asks = decision.effect == "ask" or confined == reasons.ASKED_OUTCOME
    offers = suggested_rules(tool, arguments, workspace=workspace) if asks else ()
    return DecisionExplanation(decision, steps, offers, confined)


def _describe_confinement(decision: Decision, mode: Mode, level: ApprovalLevel) -> str:
    match decision.confinement:
        case None:
            return ""
        case "none":
            return reasons.OUTSIDE_SANDBOX
        case "read-only":
            return reasons.READ_ONLY_SANDBOX
        case "workspace":
            outcomes = MODE_TABLE[mode].outcomes
            if outcomes == "drop":
                return reasons.DROPPED_OUTCOME
            asks = outcomes == "ask" and level == "ask" and decision.rule is None
            return reasons.ASKED_OUTCOME if asks else reasons.COMMITTED_OUTCOME


def _explain_commands(call: ShellCall) -> Iterable[str]:
    for problem in call.script.problems:
        yield f"  {reasons.WHOLE_LINE.format(problem=problem)}"
    for command in call.script.commands:
        wrapped = f" (behind {', '.join(command.wrappers)})" if command.wrappers else ""
        doubts = [doubt for doubt in (command.unproven_reason, *command.barriers) if doubt]
        yield f"  {command.source_text}{wrapped}: {'; '.join(doubts) or reasons.READS_ONLY}"


def list_effects(tool: str | DeclaredTool, arguments: Mapping[str, Any], *, workspace: str) -> tuple[CallEffect, ...]:
    """Returns in plain words what the commands of a call do, risky effects first; empty for other tools."""
    call = assess_call(tool, arguments, workspace=workspace)
    effects = list_script_effects(call.script) if isinstance(call, ShellCall) else ()
    visible = [CallEffect(effect.text[:MAX_EFFECT_CHARS], effect.risky) for effect in effects[:MAX_EFFECTS]]
    if hidden := effects[MAX_EFFECTS:]:
        risky = any(effect.risky for effect in hidden)
        visible.append(CallEffect(f"and {len(hidden)} more, in the complete command", risky))
    return tuple(visible)


MAX_EFFECTS = 12
MAX_EFFECT_CHARS = 300


class PastCall(Struct, frozen=True):
    """A tool call from a stored transcript."""

    tool: str
    arguments: dict[str, Any]
    call_id: str = ""


class BacktestResult(Struct, frozen=True):
    """The decisions for one past call under the old and the new rules."""

    call: PastCall
    before: Decision
    after: Decision

    @property
    def changed(self) -> bool:
        return self.transition[0] != self.transition[1]

    @property
    def transition(self) -> tuple[str, str]:
        """The decisions before and after in words, such as "ask" or "allow, inside the sandbox"."""
        return describe_effect(self.before), describe_effect(self.after)


def describe_effect(decision: Decision) -> str:
    """Returns the effect of a decision, and for an allowed command where it runs."""
    match decision.confinement:
        case None:
            return decision.effect
        case "none":
            return f"{decision.effect} {reasons.OUTSIDE_SANDBOX}"
        case "read-only" | "workspace":
            return f"{decision.effect} {reasons.INSIDE_SANDBOX}"


def past_calls(messages: Iterable[Message]) -> Iterator[PastCall]:
    """Yields every tool call of a transcript with its original input."""
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolPart):
                yield PastCall(part.tool, dict(part.state.input), part.call_id)


def backtest_rules(
    calls: Iterable[PastCall],
    *,
    before: PermissionRules,
    after: PermissionRules,
    mode: Mode,
    workspace: str,
    sandbox: bool = True,
    tools: Mapping[str, DeclaredTool] | None = None,
) -> list[BacktestResult]:
    """Decides every call again under both rule sets. Runs nothing. `tools` has, by name, the tools whose
    declaration applies instead of that of a built-in tool."""

    def decide_call(rules: PermissionRules, call: PastCall) -> Decision:
        tool = (tools or {}).get(call.tool, call.tool)
        return decide_with_rules(rules, tool, call.arguments, mode=mode, workspace=workspace, sandbox=sandbox)

    return [BacktestResult(call, decide_call(before, call), decide_call(after, call)) for call in calls]


def count_changes(verdicts: Iterable[BacktestResult]) -> Mapping[str, int]:
    """Returns the number of calls for each change, such as "ask -> deny". The key of unchanged calls is their
    effect."""
    return Counter(" -> ".join(dict.fromkeys(verdict.transition)) for verdict in verdicts)
