"""Decides whether one tool call is allowed, needs approval or is denied.

The order is fixed: deny rules, invalid calls, tools the mode lacks, protected paths, ask rules, allow rules, and last
the mode table. Deny comes first so that an additional rule source can never widen permissions."""

import itertools
import os
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from outrider.permissions import reasons
from outrider.permissions.information_flow import FlowState, restrict_flow
from outrider.permissions.modes import (
    MODE_TABLE,
    Action,
    Decision,
    Effect,
    Mode,
    mode_asks,
    mode_offers,
)
from outrider.permissions.paths.containment import FOLDER_REJECTED, Containment, contain
from outrider.permissions.rules import PermissionRule, match_host, match_path, parse_rule
from outrider.permissions.shell.analysis import analyse_script
from outrider.permissions.shell.command import ScriptAnalysis
from outrider.permissions.shell.rule_matching import (
    ShellRuleMatcher,
    certain_words,
    may_read_commands_from_stdin,
    restrictive_rule_matches,
)
from outrider.types.modes import ApprovalLevel
from outrider.types.outcomes import Confinement
from outrider.types.tool_declaration import (
    DeclaredTool,
    call_directory,
    call_subject,
    call_subjects,
    canonical_tool,
    declaration_of,
    runs_in_background,
    tool_name,
)

_PATCH_PATH = re.compile(
    r"^(?:\*\*\* (?:Add File|Update File|Delete File|Move to): (?P<plain>.+)|(?:---|\+\+\+) (?P<marked>[^\t\n]+).*)$",
    re.MULTILINE,
)
_WORKSPACE_BY_DEFAULT = ("list", "search", "change")  # without a path, these act on the workspace
NAME_ONLY_KINDS = ("talk", "delegate", "unknown")  # decided by tool name only


class CallAssessment(Protocol):
    """What one call would do, and which rules match it.

    `invalid` is the reason why the call cannot be assessed, or empty; an invalid call is always denied. `changes` is
    True for tools whose purpose is to change files."""

    action: Action
    reason: str
    invalid: str
    changes: bool

    def restricted_by(self, rule: PermissionRule) -> bool:
        """Returns whether a deny or ask rule applies to this call. In doubt it applies."""
        ...

    def allowed_by(self, rules: Sequence[PermissionRule]) -> list[PermissionRule]:
        """Returns the allow rules that together cover every part of the call, or an empty list."""
        ...


def assess_call(
    tool: str | DeclaredTool,
    arguments: Mapping[str, Any],
    *,
    workspace: str,
    approved: Collection[str] = (),
    search_path: str = "",
) -> CallAssessment:
    kind = declaration_of(tool).kind
    match kind:
        case "shell" if canonical_tool(tool_name(tool)) == "process" and call_subject(tool, arguments) is None:
            return ProcessCall(tool_name(tool), arguments)
        case "shell":
            return ShellCall(tool, arguments, workspace, approved, search_path)
        case "read" | "write":
            return FileCall(tool, arguments, workspace)
        case "network":
            return NetworkCall(tool, arguments)
        case "talk" | "delegate" | "unknown":
            return NameOnlyCall(tool_name(tool), kind)


class NameOnlyCall:
    """A call that is decided by its tool name alone: an MCP tool, a custom tool, or a tool without side effects."""

    invalid, changes = "", False

    def __init__(self, tool: str, kind: str) -> None:
        self.tool, self.reason = tool, ""
        self.action: Action = "talk" if kind == "talk" else "delegate" if kind == "delegate" else "beyond"
        if self.action == "beyond":
            self.reason = reasons.UNKNOWN_EFFECTS.format(tool=tool)

    def restricted_by(self, rule: PermissionRule) -> bool:
        return rule.matches_tool(self.tool)

    def allowed_by(self, rules: Sequence[PermissionRule]) -> list[PermissionRule]:
        return [
            rule for rule in rules if rule.matches_tool(self.tool) and rule.pattern is None and not rule.parse_error
        ][:1]


class ProcessCall:
    """A `process` call on a command that is already running. Input that it sends may have any effect."""

    invalid, changes = "", False

    def __init__(self, tool: str, arguments: Mapping[str, Any]) -> None:
        self.tool, self.process_action = tool, str(arguments.get("action") or "")
        self.action: Action = "talk" if self.process_action in {"list", "read", "wait", "kill"} else "shell"
        self.reason = "" if self.action == "talk" else reasons.UNKNOWN_INPUT_EFFECT

    def restricted_by(self, rule: PermissionRule) -> bool:
        return rule.matches_tool(self.tool) and (
            rule.parse_error is not None or not rule.words or rule.words[0] == self.process_action
        )

    def allowed_by(self, rules: Sequence[PermissionRule]) -> list[PermissionRule]:
        return [rule for rule in rules if rule.matches_tool(self.tool) and self._rule_allows(rule)][:1]

    def _rule_allows(self, rule: PermissionRule) -> bool:
        return not rule.parse_error and (not rule.words or rule.words == (self.process_action,))


class NetworkCall:
    """A call that connects to another host."""

    action: Action = "beyond"
    invalid, changes = "", False

    def __init__(self, tool: str | DeclaredTool, arguments: Mapping[str, Any]) -> None:
        self.tool = tool_name(tool)
        self.urls = [str(url or "") for url in call_subjects(tool, arguments)] or [""]
        self.reason = ", ".join(self.urls)

    def restricted_by(self, rule: PermissionRule) -> bool:
        return rule.matches_tool(self.tool) and (
            rule.parse_error is not None or rule.pattern is None or self._may_reach_host(rule.pattern)
        )

    def _may_reach_host(self, pattern: str) -> bool:
        """Deny and ask rules also match a URL that only contains the host name, because the URL may be malformed."""
        host = pattern.removeprefix("domain:").strip().lower().removeprefix("*.")
        return any(match_host(pattern, url) or host in url.lower() for url in self.urls)

    def allowed_by(self, rules: Sequence[PermissionRule]) -> list[PermissionRule]:
        return [rule for rule in rules if rule.matches_tool(self.tool) and self._rule_allows(rule)][:1]

    def _rule_allows(self, rule: PermissionRule) -> bool:
        return not rule.parse_error and (
            rule.pattern is None or all(match_host(rule.pattern, url) for url in self.urls)
        )


class FileCall:
    """A call that reads or writes files: one path, or every path of a patch."""

    def __init__(self, tool: str | DeclaredTool, arguments: Mapping[str, Any], workspace: str) -> None:
        declared, self.tool, self.root = declaration_of(tool), tool_name(tool), os.path.realpath(workspace)
        self.invalid = ""
        paths = call_paths(tool, arguments)
        paths += _glob_start_paths(self.tool, arguments, paths)
        self.targets: list[tuple[str, Containment]] = []
        for path in paths:
            found = contain(path, root=workspace, cwd=workspace, op=declared.operation)
            if declared.operation == "read" and found.reason == FOLDER_REJECTED:
                found = contain(path, root=workspace, cwd=workspace, op="list")  # to read a folder is to list it
            self.targets.append((str(path), found))
            if found.kind == "reject":
                self.invalid = f"{str(path)[:200]}: {found.reason}"
        if not paths:
            self.invalid = reasons.NO_FILE
        self.changes = declared.kind == "write"
        self.action, self.reason = self._classify_action(network=declared.network)

    action: Action

    def _classify_action(self, *, network: bool) -> tuple[Action, str]:
        # A path outside the workspace takes precedence over a protected one: it needs the wider permission.
        for wanted, action in (("outside", "beyond"), ("protected", "protected")):
            for path, found in self.targets:
                if found.kind == wanted:
                    return ("beyond" if action == "beyond" else "protected"), f"{path}: {found.reason}"
        if network:
            return "beyond", reasons.CONNECTS_TO_HOSTS
        return ("write" if self.changes else "read"), ""

    def restricted_by(self, rule: PermissionRule) -> bool:
        if not rule.matches_tool(self.tool):
            return False
        pattern = rule.pattern
        if rule.parse_error or pattern is None:
            return True
        return any(
            self._pattern_matches(pattern, found) or match_path(pattern, _normalize_path(path))
            for path, found in self.targets
        )

    def allowed_by(self, rules: Sequence[PermissionRule]) -> list[PermissionRule]:
        used: list[PermissionRule] = []
        for _, found in self.targets:
            rule = next((rule for rule in rules if self._rule_allows(rule, found)), None)
            if rule is None:
                return []
            used.append(rule)
        return list(dict.fromkeys(used))

    def _rule_allows(self, rule: PermissionRule, found: Containment) -> bool:
        if not rule.matches_tool(self.tool) or rule.parse_error:
            return False
        if rule.pattern is None:
            return found.kind == "inside"
        return self._pattern_matches(rule.pattern, found)

    def _pattern_matches(self, pattern: str, found: Containment) -> bool:
        """Matches inside the workspace by relative pattern, outside by an absolute one such as `//etc/hosts` or
        `~/x`."""
        real = found.real_path or ""
        if pattern.startswith(("//", "~/")):
            absolute = os.path.expanduser(pattern).lstrip("/")  # noqa: PTH111
            return match_path("/" + absolute, real.lstrip("/"))
        if found.kind == "outside":
            return False
        return match_path(pattern, real[len(self.root) :].strip("/"))


def _normalize_path(path: str) -> str:
    return os.path.normpath(path).strip("/")


def call_paths(tool: str | DeclaredTool, arguments: Mapping[str, Any]) -> list[object]:
    """Returns every path that a call of a file tool names."""
    if canonical_tool(tool_name(tool)) == "apply_patch":
        patch = call_subject(tool, arguments)
        return list(dict.fromkeys(find_patched_paths(str(patch)))) if patch else []
    paths = [path for path in call_subjects(tool, arguments) if path is not None]
    return paths or (["."] if declaration_of(tool).operation in _WORKSPACE_BY_DEFAULT else [])


def _glob_start_paths(tool: str, arguments: Mapping[str, Any], folders: list[object]) -> list[object]:
    """Returns the directories where a glob starts: its fixed prefix, plus `..` if a later component contains it."""
    pattern = arguments.get("pattern")
    if canonical_tool(tool) != "glob" or not isinstance(pattern, str):
        return []
    parts = pattern.split("/")
    fixed = list(itertools.takewhile(lambda part: not set(part) & set("*?[{"), parts))
    above = [".."] if ".." in parts[len(fixed) :] else []
    start = "/".join([*fixed, *above]) or "."
    return [os.path.join(str(folder), start) for folder in folders]  # noqa: PTH118


def find_patched_paths(patch: str) -> list[str]:
    """Returns every path that a patch names, in the `*** Update File:` format or as a unified diff."""
    found: list[str] = []
    for match in _PATCH_PATH.finditer(patch):
        path = (match["plain"] or match["marked"] or "").strip()
        if path != "/dev/null":
            found.append(path if match["plain"] else re.sub(r"^[ab]/", "", path))
    return found


class ShellCall:
    """A shell command line, analysed command by command."""

    changes = False

    def __init__(
        self,
        tool: str | DeclaredTool,
        arguments: Mapping[str, Any],
        workspace: str,
        approved: Collection[str],
        search_path: str = "",
    ) -> None:
        self.tool, self.invalid = tool_name(tool), ""
        command, folder = call_subject(tool, arguments), call_directory(arguments)
        self.command = command if isinstance(command, str) else ""
        self.stays_running = runs_in_background(arguments)
        root = os.path.realpath(workspace)
        self.rule_matcher = ShellRuleMatcher(root, approved, search_path)
        self.script, self.action, self.reason = ScriptAnalysis(()), "shell", ""
        if not isinstance(command, str) or not command.strip():
            self.invalid = reasons.NO_COMMAND
            return
        self._analyse_command(root, folder)

    action: Action

    def _analyse_command(self, root: str, folder: object) -> None:
        location = contain(folder, root=root, cwd=root, op="list") if folder else None
        if location is not None and location.kind != "inside":
            self.reason = reasons.OUTSIDE_DIRECTORY.format(reason=location.reason)
            self.script = ScriptAnalysis((), (self.reason,))
            return
        self.script = analyse_script(self.command, root=root, cwd=(location.real_path if location else None) or root)
        doubts = self.script.unproven_reasons or tuple(
            filter(None, map(self.rule_matcher.find_workspace_influence, self.script.commands))
        )
        self.action, self.reason = ("shell", doubts[0]) if doubts else ("shell that reads", "")

    def restricted_by(self, rule: PermissionRule) -> bool:
        if not rule.matches_tool(self.tool):
            return self._reads_denied_file(rule)
        if rule.parse_error or not rule.words:
            return True
        return any(
            restrictive_rule_matches(rule, command) for command in self.script.commands
        ) or self._may_hide_program(rule)

    def _may_hide_program(self, rule: PermissionRule) -> bool:
        """If the analysis is incomplete, the rule's program name anywhere in the command text is a match."""
        unclear = bool(self.script.problems) or any(
            certain_words(command) is None or may_read_commands_from_stdin(command) for command in self.script.commands
        )
        return unclear and re.search(rf"(?<![\w-]){re.escape(rule.words[0])}(?![\w-])", self.command) is not None

    def _reads_denied_file(self, rule: PermissionRule) -> bool:
        """A rule for a read tool also applies to a shell command that names the file as an argument."""
        pattern = rule.pattern
        if pattern is None or declaration_of(rule.tool).kind != "read":
            return False
        words = [choice for command in self.script.commands for arg in command.argv[1:] for choice in arg.values or ()]
        return any(match_path(pattern, str(Path(word))) for word in words if word and not word.startswith("-"))

    def allowed_by(self, rules: Sequence[PermissionRule]) -> list[PermissionRule]:
        """Requires that every command is proven read-only or covered by a rule. Only a rule for all commands covers one
        that cannot be parsed."""
        rules = [rule for rule in rules if rule.matches_tool(self.tool) and not rule.parse_error]
        if everything := [rule for rule in rules if rule.pattern is None]:
            return everything[:1]
        if self.script.problems or not self.script.commands:
            return []
        used: list[PermissionRule] = []
        for command in self.script.commands:
            if (
                command.unproven_reason is None
                and not command.barriers
                and self.rule_matcher.find_workspace_influence(command) is None
            ):
                continue
            rule = next((rule for rule in rules if self.rule_matcher.find_coverage_gap(rule, command) is None), None)
            if rule is None:
                return []
            used.append(rule)
        return list(dict.fromkeys(used))


RuleTexts = Sequence[str]


class PermissionRules(Struct, frozen=True):
    """The rules of all sources, merged. Deny wins over ask and allow, so a further source cannot override a denial."""

    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    confined: tuple[str, ...] = ()  # allow rules of projects and agents: commands that they cover stay in the sandbox


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
    **more: Any,
) -> Decision:
    """Returns whether a tool call is allowed, needs approval or is denied, and how an allowed command is confined.

    `tool` is a `Tool`, which declares what its calls do, or the name of a built-in tool. `allow` are rules of the user:
    a command that they cover runs unconfined. Every other command runs inside the sandbox, and its outcome may be a
    question. `sandbox=False` means that there is none: agent mode then asks about every command that no rule allows,
    plan and background mode deny it; with `unconfined` the user has stated that the machine is the sandbox, and
    background mode runs it. `level` is the approval level of agent mode. `confined` are rules that allow without
    leaving the sandbox. `approved` contains hashes of workspace configuration files that a person has approved.
    `search_path` is the PATH of the commands: a program that it resolves inside the workspace is not a known program.
    `flow` is what the session has read: after text of others, a call that could send private data needs an answer.
    """
    policy = PermissionRules(tuple(allow), tuple(ask), tuple(deny), tuple(more.pop("confined", ())))
    return decide_with_rules(
        policy, tool, arguments, mode=mode, workspace=workspace, level=level, sandbox=sandbox, flow=flow, **more
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
    **known: Any,
) -> Decision:
    """As `decide`, with merged rules. `known` passes `approved` and `search_path` to `assess_call`."""
    if mode not in MODE_TABLE:
        raise ValueError(f"unknown permission mode {mode!r}; use one of {', '.join(MODE_TABLE)}")
    kind, folder, reads_only = declaration_of(tool).kind, os.fspath(workspace), False
    if kind in NAME_ONLY_KINDS:
        decision = _decide_by_name(policy, tool_name(tool), kind, mode)
    else:
        call = assess_call(tool, arguments, workspace=folder, **known)
        decision = _decide_assessed(policy, call, mode, level, sandbox=sandbox, unconfined=unconfined)
        reads_only = call.action == "shell that reads"
    if flow is None or not flow.origins:
        return decision
    return restrict_flow(
        decision, tool, arguments, flow, mode=mode, workspace=folder, sandbox=sandbox, reads_only=reads_only
    )


@lru_cache(maxsize=256)
def _decide_by_name(policy: PermissionRules, tool: str, kind: str, mode: Mode) -> Decision:
    """Cached, because the decision depends on the tool only and not on the arguments."""
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
        return Decision("deny", reasons.RULE_FORBIDS, rule.text)
    if call.invalid:
        return Decision("deny", call.invalid, invalid=True)
    if not mode_offers(mode, call.action, changes=call.changes):
        return Decision("deny", reasons.MODE_LACKS_TOOL.format(mode=mode, reason=reasons.ACTION_REASONS[call.action]))
    if call.action == "protected":
        return Decision(MODE_TABLE[mode].effects["protected"], call.reason or reasons.ACTION_REASONS["protected"])
    if rule := _find_restricting_rule(policy.ask, call):
        return Decision("ask", reasons.RULE_ASKS, rule.text)
    allowing, confined = ([parse_rule(text) for text in texts] for texts in (policy.allow, policy.confined))
    if rules := call.allowed_by(allowing):
        # Plan mode must not change anything, whatever the rules allow.
        free: Confinement = "workspace" if mode == "plan" else "none"
        return _allow_by_rules(call, rules, free)
    if confined and (rules := call.allowed_by([*allowing, *confined])):
        return _allow_by_rules(call, rules, "workspace")
    return None


def _allow_by_rules(call: CallAssessment, rules: Sequence[PermissionRule], confinement: Confinement) -> Decision:
    texts = ", ".join(rule.text for rule in rules)
    return Decision("allow", reasons.RULE_ALLOWS, texts, confinement if isinstance(call, ShellCall) else None)


def _find_restricting_rule(rules: RuleTexts, call: CallAssessment) -> PermissionRule | None:
    """Returns the first deny or ask rule that applies; a rule with a syntax error applies to every call of its tool."""
    return next((rule for rule in map(parse_rule, rules) if call.restricted_by(rule)), None)


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
    """A command without a rule runs inside the sandbox. The analysis only chooses the cheaper read-only mount.

    A command that stays running has no outcome to ask about, since it writes to the workspace itself: it is asked about
    before it starts."""
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
