"""Decides whether one tool call is allowed, needs approval or is denied.

The order is fixed: deny rules, invalid calls, tools the mode lacks, protected paths, ask rules, allow rules, and
finally the mode table. Deny comes first so that an additional rule source can never widen permissions.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypedDict, Unpack

from msgspec import Struct

from outrider._sync import describe_value
from outrider.errors import ConfigurationError
from outrider.permissions import reasons
from outrider.permissions.call_assessment import CallAssessment, NameOnlyCall, ProcessCall, ShellCall, assess_call
from outrider.permissions.information_flow import FlowState, restrict_flow
from outrider.permissions.modes import MODE_TABLE, Decision, Mode, mode_asks, mode_offers
from outrider.types.modes import APPROVAL_LEVELS, ApprovalLevel
from outrider.types.outcomes import Confinement
from outrider.types.tool_declaration import (
    DeclaredTool,
    Effect,
    PermissionRule,
    declaration_of,
    parse_rule,
    tool_name,
)
from outrider.types.validate import check_names

NAME_ONLY_KINDS = ("talk", "delegate", "unknown")  # decided by tool name only
RuleTexts = Sequence[str]


class PermissionRules(Struct, frozen=True):
    """The rules of all sources, merged. Deny wins over ask and allow, so a further source cannot override a denial."""

    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    confined: tuple[str, ...] = ()  # allow rules of projects and agents: commands that they cover stay in the sandbox


class DecideKeywords(TypedDict, total=False):
    """Further keyword arguments of `decide`."""

    unconfined: bool
    confined: RuleTexts
    approved: Collection[str]
    readable: Sequence[str]
    search_path: str


def decide(
    tool: str | DeclaredTool,
    arguments: Mapping[str, Any],
    *,
    mode: Mode,
    allow: RuleTexts = (),
    ask: RuleTexts = (),
    deny: RuleTexts = (),
    workspace: str | os.PathLike[str],
    level: ApprovalLevel = "ask",
    sandbox: bool = True,
    flow: FlowState | None = None,
    **more: Unpack[DecideKeywords],
) -> Decision:
    """Returns whether a tool call is allowed, needs approval or is denied, and how an allowed command is confined.

    - `tool`: a `Tool`, which declares what its calls do, or the name of a built-in tool.
    - `arguments`: the arguments of the call.
    - `mode`: the mode of the session.
    - `allow`: rules of the user. A command that they cover runs unconfined. Every other command runs inside the
      sandbox, and its outcome may need an approval.
    - `ask`: rules for calls that always need an approval.
    - `deny`: rules for calls that never run.
    - `workspace`: the folder of the session.
    - `level`: the approval level of agent mode.
    - `sandbox`: False if no sandbox works here. Agent mode then asks about every command that no rule allows; plan and
      background mode deny it.
    - `flow`: what the session has read. After untrusted text, a call that could send private data needs an approval.
    - `unconfined`: True if the user has stated that the machine is the sandbox; background mode then runs commands
      without one.
    - `confined`: rules that allow commands without letting them leave the sandbox.
    - `approved`: hashes of workspace configuration files that a person has approved.
    - `readable`: folders besides the workspace that may be read without an approval.
    - `search_path`: the PATH of the commands. A program that it resolves inside the workspace is not a known program.
    """
    _check_rule_texts({"allow": allow, "ask": ask, "deny": deny, "confined": more.get("confined", ())})
    if not isinstance(tool, str) and not hasattr(tool, "declaration"):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"decide(): tool is a Tool or the name of a built-in one, got {describe_value(tool)}")
    if not isinstance(workspace, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"decide(): workspace is the path of a folder, got {describe_value(workspace)}")
    named_parameters = ("mode", "allow", "ask", "deny", "workspace", "level", "sandbox", "flow")
    check_names("decide()", more, (*named_parameters, *DecideKeywords.__annotations__))
    if not isinstance(arguments, dict | Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"decide(): arguments is a dict of the call's arguments, got {describe_value(arguments)}"
        )
    policy = PermissionRules(tuple(allow), tuple(ask), tuple(deny), tuple(more.pop("confined", ())))
    return decide_with_rules(
        policy, tool, arguments, mode=mode, workspace=workspace, level=level, sandbox=sandbox, flow=flow, **more
    )


def _check_rule_texts(rules_by_name: Mapping[str, RuleTexts]) -> None:
    """Raises ConfigurationError for rules that are not strings. A string that cannot be parsed, such as a rule of a
    newer version, is not an error: as an allow rule it matches nothing, as a deny or ask rule it matches everything."""
    for name, rules in rules_by_name.items():
        if isinstance(rules, str):
            raise ConfigurationError(f"decide(): {name} is a list of rules, got a string; write {name}=({rules!r},)")
        if not isinstance(rules, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"decide(): {name} is a list of rules, got {describe_value(rules)}; write {name}=('shell(make *)',)"
            )
        for rule in rules:
            if not isinstance(rule, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(
                    f"decide(): a rule of {name} is a string, got {describe_value(rule)}; "
                    f"write {name}=('shell(make *)',)"
                )


def decide_with_rules(
    policy: PermissionRules,
    tool: str | DeclaredTool,
    arguments: Mapping[str, Any],
    *,
    mode: Mode,
    workspace: str | os.PathLike[str],
    level: ApprovalLevel = "ask",
    sandbox: bool = True,
    unconfined: bool = False,
    flow: FlowState | None = None,
    **assess_options: Any,
) -> Decision:
    """Returns the decision about a call under merged rules; see `decide` for the parameters. `assess_options` are
    `approved`, `search_path` and `readable` of `assess_call`."""
    if mode not in MODE_TABLE:
        raise ConfigurationError(f"unknown permission mode {mode!r}; use one of {', '.join(MODE_TABLE)}")
    if level not in APPROVAL_LEVELS:
        raise ConfigurationError(
            f"decide(): there is no approval level {describe_value(level)}; use {', '.join(APPROVAL_LEVELS)}"
        )
    kind, folder, reads_only = declaration_of(tool).kind, os.fspath(workspace), False
    if kind in NAME_ONLY_KINDS:
        decision = _decide_by_name(policy, tool_name(tool), kind, mode)
    else:
        call = assess_call(tool, arguments, workspace=folder, **assess_options)
        decision = _decide_assessed(policy, call, mode, level, sandbox=sandbox, unconfined=unconfined)
        reads_only = call.action == "shell that reads"
    if flow is None or not flow.origins:
        return decision
    return restrict_flow(
        decision, tool, arguments, flow, mode=mode, workspace=folder, sandbox=sandbox, reads_only=reads_only
    )


@lru_cache(maxsize=256)
def _decide_by_name(policy: PermissionRules, tool: str, kind: str, mode: Mode) -> Decision:
    """Returns the decision for a tool whose arguments do not matter, so that it can be cached."""
    return _decide_assessed(policy, NameOnlyCall(tool, kind), mode, "ask", sandbox=True)


def _decide_assessed(
    policy: PermissionRules,
    call: CallAssessment,
    mode: Mode,
    level: ApprovalLevel,
    *,
    sandbox: bool,
    unconfined: bool = False,
) -> Decision:
    decision = _decide_by_rules(policy, call, mode) or _decide_by_mode(
        call, mode, level, sandbox=sandbox, unconfined=unconfined
    )
    if decision.effect == "ask" and not mode_asks(mode):
        return Decision("deny", reasons.MODE_CANNOT_ASK.format(reason=decision.reason, mode=mode), decision.rule)
    return decision


def _decide_by_rules(policy: PermissionRules, call: CallAssessment, mode: Mode) -> Decision | None:
    if rule := _find_restricting_rule(policy.deny, call):
        return Decision("deny", reasons.RULE_FORBIDS.format(rule=rule.text), rule.text)
    if call.invalid:
        return Decision("deny", call.invalid, invalid=True)
    if not mode_offers(mode, call.action, changes=call.changes):
        return Decision("deny", reasons.MODE_LACKS_TOOL.format(mode=mode, reason=reasons.ACTION_REASONS[call.action]))
    if call.action == "protected":
        return Decision(MODE_TABLE[mode].effects["protected"], call.reason or reasons.ACTION_REASONS["protected"])
    if rule := _find_restricting_rule(policy.ask, call):
        return Decision("ask", reasons.RULE_ASKS.format(rule=rule.text), rule.text)
    user_rules = [parse_rule(text) for text in policy.allow]
    # An outcome rule never lets a command leave the sandbox.
    allowing = [rule for rule in user_rules if rule.right is None]
    confined = [*(rule for rule in user_rules if rule.right), *map(parse_rule, policy.confined)]
    if rules := call.allowed_by(allowing):
        # Plan mode must not change anything, whatever the rules allow.
        free: Confinement = "workspace" if mode == "plan" else "none"
        return _allow_by_rules(call, rules, free)
    if confined and (rules := call.allowed_by([*allowing, *confined])):
        return _allow_by_rules(call, rules, "workspace")
    return None


def _allow_by_rules(call: CallAssessment, rules: Sequence[PermissionRule], confinement: Confinement) -> Decision:
    texts = ", ".join(rule.text for rule in rules)
    reason = reasons.RULE_ALLOWS.format(rule=texts)
    return Decision("allow", reason, texts, confinement if isinstance(call, ShellCall) else None)


def _find_restricting_rule(rules: RuleTexts, call: CallAssessment) -> PermissionRule | None:
    """Returns the first deny or ask rule that applies. A rule with a syntax error applies to every call of its tool. An
    outcome rule can only allow; as a deny or ask rule it is a mistake and applies to every call."""
    return next((rule for rule in map(parse_rule, rules) if rule.right or call.restricted_by(rule)), None)


def _decide_by_mode(
    call: CallAssessment, mode: Mode, level: ApprovalLevel, *, sandbox: bool, unconfined: bool
) -> Decision:
    effect: Effect = MODE_TABLE[mode].effects[call.action]
    reason = reasons.action_reason(call.action, call.reason)
    if isinstance(call, ShellCall):
        return _decide_command(call, mode, level, reason, sandbox=sandbox, unconfined=unconfined)
    if isinstance(call, ProcessCall) and call.action == "shell" and effect == "allow" and not (sandbox or unconfined):
        return Decision("deny", reasons.NO_SANDBOX.format(reason=reason))
    if mode == "agent" and level != "ask" and call.action == "write":
        return Decision("allow", reasons.LEVEL_ALLOWS.format(reason=reason, level=level))
    return Decision(effect, reason)


def _decide_command(
    call: ShellCall, mode: Mode, level: ApprovalLevel, reason: str, *, sandbox: bool, unconfined: bool
) -> Decision:
    """Returns the decision about a command that no rule covers: it runs inside the sandbox. The analysis only chooses
    the cheaper read-only mount.

    A command that stays running writes to the workspace itself, so there is no outcome that could be approved later:
    the approval is requested before it starts.
    """
    if sandbox and call.stays_running and call.action != "shell that reads":
        if MODE_TABLE[mode].outcomes == "ask" and level == "ask":
            return Decision("ask", reasons.STAYS_RUNNING.format(reason=reason))
        return Decision("allow", reason, None, "workspace")
    if sandbox:
        return Decision("allow", reason, None, "read-only" if call.action == "shell that reads" else "workspace")
    if unconfined and not mode_asks(mode):
        return Decision("allow", reasons.UNCONFINED.format(reason=reason), None, "none")
    if mode_asks(mode) and MODE_TABLE[mode].outcomes == "ask":
        return Decision("ask", reasons.NO_SANDBOX.format(reason=reason))
    return Decision("deny", reasons.NO_SANDBOX.format(reason=reason))
