"""Decides about one call: deny, then protected paths, then ask, then allow, then the mode."""

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from outrider.permissions.assess import BY_NAME, Assessment, assess
from outrider.permissions.decision import MODES, Decision, Effect, Mode
from outrider.permissions.modes import MODE_TABLE, WHY, offered
from outrider.permissions.rules import Rule, parse_rule
from outrider.permissions.tools import shape_of

Rules = Sequence[str]


class Policy(Struct, frozen=True):
    """Rules from every source together: more of them never means more rights, since deny wins."""

    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


def decide(
    tool: str,
    arguments: Mapping[str, Any],
    *,
    mode: Mode,
    allow: Rules = (),
    ask: Rules = (),
    deny: Rules = (),
    workspace: str | os.PathLike[str],
    **more: Any,
) -> Decision:
    """Whether a call runs, is asked about, or is refused.

    `sandbox=True` says that shell commands run inside one; without it, background mode refuses what is not proven to
    read only. `approved` holds hashes of workspace files that may steer programs, since a person has read them.
    `search_path` is the PATH that commands will have: a program that it finds in the workspace is not a known one.
    """
    policy = Policy(tuple(allow), tuple(ask), tuple(deny))
    return decide_by(policy, tool, arguments, mode=mode, workspace=workspace, **more)


def decide_by(
    policy: Policy,
    tool: str,
    arguments: Mapping[str, Any],
    *,
    mode: Mode,
    workspace: str | os.PathLike[str],
    sandbox: bool = False,
    **known: Any,
) -> Decision:
    """`known` is what `assess` takes besides: `approved` and `search_path`."""
    if mode not in MODES:
        raise ValueError(f"no mode is called {mode!r}; there are {', '.join(MODES)}")
    if shape_of(tool).kind in BY_NAME:
        return _by_name(policy, tool, mode)
    return _by_assessment(
        policy, assess(tool, arguments, workspace=os.fspath(workspace), **known), mode, sandbox=sandbox
    )


@lru_cache(maxsize=256)
def _by_name(policy: Policy, tool: str, mode: Mode) -> Decision:
    """Whatever its arguments are, such a call is decided on as the one before."""
    return _by_assessment(policy, assess(tool, {}, workspace=""), mode, sandbox=False)


def _by_assessment(policy: Policy, found: Assessment, mode: Mode, *, sandbox: bool) -> Decision:
    decision = _by_rules(policy, found, mode) or _by_mode(found, mode, sandbox=sandbox)
    if decision.effect == "ask" and mode == "background":
        return Decision("deny", f"{decision.reason}; nobody is asked in background mode", decision.rule)
    return decision


def _by_rules(policy: Policy, found: Assessment, mode: Mode) -> Decision | None:
    if rule := _first(policy.deny, found):
        return Decision("deny", "a rule forbids it", rule.text)
    if found.invalid:
        return Decision("deny", found.invalid)
    if not offered(mode, found.action, changes=found.changes):
        return Decision("deny", f"{mode} mode has no such tool: {WHY[found.action]}")
    if found.action == "protected":
        return Decision(MODE_TABLE[mode]["protected"], found.reason or WHY["protected"])
    if rule := _first(policy.ask, found):
        return Decision("ask", "a rule wants it asked about", rule.text)
    if rules := found.allowed_by([parse_rule(text) for text in policy.allow]):
        return Decision("allow", "a rule allows it", ", ".join(rule.text for rule in rules))
    return None


def _first(rules: Rules, found: Assessment) -> Rule | None:
    """The first rule that holds; one that cannot be read holds for every call that it could mean."""
    return next((rule for rule in map(parse_rule, rules) if found.held_by(rule)), None)


def _by_mode(found: Assessment, mode: Mode, *, sandbox: bool) -> Decision:
    effect: Effect = MODE_TABLE[mode][found.action]
    reason = WHY[found.action] if not found.reason else f"{WHY[found.action]}: {found.reason}"
    if mode == "background" and found.action == "shell" and not sandbox:
        return Decision("deny", f"{reason}; there is no sandbox to run it in")
    return Decision(effect, reason)
