"""What one tool call would do, and which rules match it: for files, commands, hosts and tools known by name only."""

import itertools
import os
import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from outrider.permissions import reasons
from outrider.permissions.modes import Action
from outrider.permissions.paths.containment import FOLDER_REJECTED, Containment, contain
from outrider.permissions.rules import match_host, match_path, match_path_rule
from outrider.permissions.shell.analysis import analyse_script
from outrider.permissions.shell.command import ScriptAnalysis
from outrider.permissions.shell.command_effects import list_effects
from outrider.permissions.shell.rule_matching import (
    ShellRuleMatcher,
    certain_words,
    may_read_commands_from_stdin,
)
from outrider.types.tool_declaration import (
    DeclaredTool,
    PermissionRule,
    call_directory,
    call_subject,
    call_subjects,
    declaration_of,
    runs_in_background,
    tool_name,
)

_PATCH_PATH = re.compile(
    r"^(?:\*\*\* (?:Add File|Update File|Delete File|Move to): (?P<plain>.+)|(?:---|\+\+\+) (?P<marked>[^\t\n]+).*)$",
    re.MULTILINE,
)
_WORD_END = re.compile(r"[\s<>|;&()'\"=`]+")
_WORKSPACE_BY_DEFAULT = ("list", "search", "change")  # without a path, these act on the workspace


class CallAssessment(Protocol):
    """What one call would do, and which rules match it.

    - `action`: the class of effect that the mode table decides about.
    - `reason`: what is special about this call, for the text of the decision; may be empty.
    - `invalid`: why the call cannot be assessed, or empty; an invalid call is always denied.
    - `changes`: True for tools whose purpose is to change files.
    """

    action: Action
    reason: str
    invalid: str
    changes: bool

    def restricted_by(self, rule: PermissionRule) -> bool:
        """Returns whether a deny or ask rule applies to this call. If that is uncertain, it applies."""
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
    readable: Sequence[str] = (),
) -> CallAssessment:
    """Returns the assessment of a call. `readable` lists folders besides the workspace that the call may read."""
    kind = declaration_of(tool).kind
    match kind:
        case "shell" if declaration_of(tool).controls_process and call_subject(tool, arguments) is None:
            return ProcessCall(tool_name(tool), arguments)
        case "shell":
            return ShellCall(tool, arguments, workspace, approved, search_path)
        case "read" | "write":
            return FileCall(tool, arguments, workspace, readable)
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
        """Returns whether a call may reach the host of a deny or ask rule. A URL that only contains the host name
        matches too, because the URL may be malformed."""
        host = pattern.removeprefix("domain:").strip().lower().removeprefix("*.")
        return any(match_host(pattern, url) or host in url.lower() for url in self.urls)

    def allowed_by(self, rules: Sequence[PermissionRule]) -> list[PermissionRule]:
        return [
            rule
            for rule in rules
            if (rule.right == "reach" or rule.matches_tool(self.tool)) and self._rule_allows(rule)
        ][:1]

    def _rule_allows(self, rule: PermissionRule) -> bool:
        return not rule.parse_error and (
            rule.pattern is None or all(match_host(rule.pattern, url) for url in self.urls)
        )


class FileCall:
    """A call that reads or writes files: one path, or every path of a patch."""

    def __init__(
        self,
        tool: str | DeclaredTool,
        arguments: Mapping[str, Any],
        workspace: str,
        readable: Sequence[str] = (),
    ) -> None:
        declared, self.tool, self.root = declaration_of(tool), tool_name(tool), os.path.realpath(workspace)
        self.invalid = ""
        extra_roots = readable if declared.kind == "read" else ()
        paths = call_paths(tool, arguments)
        if declared.paths_in == "glob":
            paths += _glob_start_paths(arguments, paths)
        self.targets: list[tuple[str, Containment]] = []
        for path in paths:
            containment = contain(path, root=workspace, cwd=workspace, op=declared.operation, extra_roots=extra_roots)
            if declared.operation == "read" and containment.reason == FOLDER_REJECTED:
                # Reading a folder means listing it.
                containment = contain(path, root=workspace, cwd=workspace, op="list", extra_roots=extra_roots)
            self.targets.append((str(path), containment))
            if containment.kind == "reject":
                self.invalid = f"{str(path)[:200]}: {containment.reason}"
        if not paths:
            self.invalid = reasons.NO_FILE
        self.changes = declared.kind == "write"
        self.connects = declared.network
        self.action, self.reason = self._classify_action(network=declared.network)

    action: Action

    def _classify_action(self, *, network: bool) -> tuple[Action, str]:
        # A path outside the workspace takes precedence over a protected one: it needs the wider permission.
        for kind, action in (("outside", "beyond"), ("protected", "protected")):
            for path, containment in self.targets:
                if containment.kind == kind:
                    return ("beyond" if action == "beyond" else "protected"), f"{path}: {containment.reason}"
        if network:
            return "beyond", reasons.CONNECTS_TO_HOSTS
        return ("write" if self.changes else "read"), ""

    def restricted_by(self, rule: PermissionRule) -> bool:
        """Returns whether a deny or ask rule applies. A rule with a pattern for `read` applies to every tool that opens
        files, a rule for `edit` or `write` to every tool that changes them."""
        pattern = rule.pattern
        family = declaration_of(rule.tool).kind if pattern is not None else "unknown"
        in_family = family == "read" or (family == "write" and self.changes)
        if not in_family and not rule.matches_tool(self.tool):
            return False
        if rule.parse_error or pattern is None:
            return True
        return any(
            self._pattern_matches(pattern, containment) or match_path(pattern, _normalize_path(path))
            for path, containment in self.targets
        )

    def allowed_by(self, rules: Sequence[PermissionRule]) -> list[PermissionRule]:
        used: list[PermissionRule] = []
        for _, containment in self.targets:
            rule = next((rule for rule in rules if self._rule_allows(rule, containment)), None)
            if rule is None:
                return []
            used.append(rule)
        return list(dict.fromkeys(used))

    def _rule_allows(self, rule: PermissionRule, containment: Containment) -> bool:
        is_covered = self.changes and not self.connects if rule.right == "write" else rule.matches_tool(self.tool)
        if not is_covered or rule.parse_error:
            return False
        if rule.pattern is None:
            return containment.kind == "inside"
        return self._pattern_matches(rule.pattern, containment)

    def _pattern_matches(self, pattern: str, containment: Containment) -> bool:
        return match_path_rule(pattern, containment.real_path or "", self.root)


def _normalize_path(path: str) -> str:
    return os.path.normpath(path).strip("/")


def call_paths(tool: str | DeclaredTool, arguments: Mapping[str, Any]) -> list[object]:
    """Returns every path that a call of a file tool names."""
    if declaration_of(tool).paths_in == "patch":
        patch = call_subject(tool, arguments)
        return list(dict.fromkeys(find_patched_paths(str(patch)))) if patch else []
    paths = [path for path in call_subjects(tool, arguments) if path is not None]
    return paths or (["."] if declaration_of(tool).operation in _WORKSPACE_BY_DEFAULT else [])


def _glob_start_paths(arguments: Mapping[str, Any], folders: list[object]) -> list[object]:
    """Returns the directories where a glob starts: its fixed prefix, plus `..` if a later component contains it."""
    pattern = arguments.get("pattern")
    if not isinstance(pattern, str):
        return []
    parts = pattern.split("/")
    fixed = list(itertools.takewhile(lambda part: not set(part) & set("*?[{"), parts))
    above = [".."] if ".." in parts[len(fixed) :] else []
    start = "/".join([*fixed, *above]) or "."
    return [os.path.join(str(folder), start) for folder in folders]  # noqa: PTH118


def find_patched_paths(patch: str) -> list[str]:
    """Returns every path that a patch names, in the `*** Update File:` format or as a unified diff."""
    paths: list[str] = []
    for match in _PATCH_PATH.finditer(patch):
        path = (match["plain"] or match["marked"] or "").strip()
        if path != "/dev/null":
            paths.append(path if match["plain"] else re.sub(r"^[ab]/", "", path))
    return paths


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
        self.root = root = os.path.realpath(workspace)
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
        doubts = tuple(effect.text for effect in list_effects(self.script)) or tuple(
            filter(None, map(self.rule_matcher.find_workspace_influence, self.script.commands))
        )
        self.action, self.reason = ("shell", doubts[0]) if doubts else ("shell that reads", "")

    def restricted_by(self, rule: PermissionRule) -> bool:
        if not rule.matches_tool(self.tool):
            return self._reads_denied_file(rule)
        if rule.parse_error or not rule.words:
            return True
        return any(map(partial(self.rule_matcher.is_restricted, rule), self.script.commands)) or self._may_hide_program(
            rule
        )

    def _may_hide_program(self, rule: PermissionRule) -> bool:
        """Returns whether the analysis is incomplete and the program name of the rule is anywhere in the command
        text."""
        unclear = bool(self.script.problems) or any(
            certain_words(command) is None or may_read_commands_from_stdin(command) for command in self.script.commands
        )
        return unclear and re.search(rf"(?<![\w-]){re.escape(rule.words[0])}(?![\w-])", self.command) is not None

    def _reads_denied_file(self, rule: PermissionRule) -> bool:
        """Returns whether a rule for a read tool applies to a file that the shell command names as an argument."""
        pattern = rule.pattern
        if pattern is None or declaration_of(rule.tool).kind != "read":
            return False
        words = {choice for command in self.script.commands for arg in command.argv[1:] for choice in arg.values or ()}
        words |= set(_WORD_END.split(self.command))  # the target of a redirect is not an argument
        folders = {self.root, *(cwd for command in self.script.commands for cwd in command.cwds)}
        return any(
            match_path_rule(pattern, os.path.normpath(Path(folder, os.path.expanduser(word))), self.root)  # noqa: PTH111
            for word in words
            if word and not word.startswith("-")
            for folder in folders
        )

    def is_limited_to(self, rules: Sequence[PermissionRule]) -> bool:
        """Returns whether the rules name every command. One that is proven read-only may be a shell builtin, which
        no allow rule covers. A rule for a program with any arguments, such as `sh *`, includes what it runs."""
        rules = [rule for rule in rules if rule.matches_tool(self.tool) and not rule.parse_error]
        if any(rule.pattern is None for rule in rules):
            return True
        return bool(self.script.commands and not self.script.problems) and all(
            any(
                self.rule_matcher.find_coverage_gap(rule, command) is None
                or self.rule_matcher.names_program(rule, command)
                or (command.unproven_reason is None and self.rule_matcher.names_command(rule, command))
                for rule in rules
            )
            for command in self.script.commands
        )

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
