"""Decides about one call: deny, then protected paths, then ask, then allow, then the mode."""

import itertools
import os
import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from outrider.permissions.modes import (
    MODE_TABLE,
    MODES,
    WHY,
    Action,
    Decision,
    Effect,
    Mode,
    canonical,
    folder_of,
    offered,
    shape_of,
    subject_of,
)
from outrider.permissions.paths.containment import Containment, contain
from outrider.permissions.rules import Rule, match_host, match_path, parse_rule
from outrider.permissions.shell.analysis import analyse
from outrider.permissions.shell.command import Script
from outrider.permissions.shell.rule_matching import ShellRuleMatcher, certain_words, forbids, may_read_commands

_PATCHED = re.compile(
    r"^(?:\*\*\* (?:Add File|Update File|Delete File|Move to): (?P<plain>.+)|(?:---|\+\+\+) (?P<marked>[^\t\n]+).*)$",
    re.MULTILINE,
)
BY_NAME = ("talk", "delegate", "unknown")  # kinds of tools of which nothing but the name counts


class Assessment(Protocol):
    """`invalid` says why the call cannot be judged at all: such a call never runs. `changes` is True for tools that are
    there to change files."""

    action: Action
    reason: str
    invalid: str
    changes: bool

    def held_by(self, rule: Rule) -> bool:
        """Whether a rule that denies or asks speaks about this call."""
        ...

    def allowed_by(self, rules: Sequence[Rule]) -> list[Rule]:
        """The allow rules that together cover the whole call; none: they do not."""
        ...


def assess(
    tool: str, arguments: Mapping[str, Any], *, workspace: str, approved: Collection[str] = (), search_path: str = ""
) -> Assessment:
    shape = shape_of(tool)
    match shape.kind:
        case "shell" if canonical(tool) == "process" and subject_of(tool, arguments) is None:
            return ProcessCall(tool, arguments)
        case "shell":
            return ShellCall(tool, arguments, workspace, approved, search_path)
        case "read" | "write":
            return FileCall(tool, arguments, workspace)
        case "network":
            return WebCall(tool, arguments)
        case "talk" | "delegate" | "unknown":
            return PlainCall(tool, shape.kind)


class PlainCall:
    """A call known by its tool's name alone: a tool of a server, of the user's program, or one that only talks."""

    invalid, changes = "", False

    def __init__(self, tool: str, kind: str) -> None:
        self.tool, self.reason = tool, ""
        self.action: Action = "talk" if kind == "talk" else "delegate" if kind == "delegate" else "beyond"
        if self.action == "beyond":
            self.reason = f"what {tool} does is not known"

    def held_by(self, rule: Rule) -> bool:
        return rule.names(self.tool)

    def allowed_by(self, rules: Sequence[Rule]) -> list[Rule]:
        return [rule for rule in rules if rule.names(self.tool) and rule.pattern is None and not rule.broken][:1]


class ProcessCall:
    """A call that looks after a command which was allowed to start; what it does with input is not known."""

    invalid, changes = "", False

    def __init__(self, tool: str, arguments: Mapping[str, Any]) -> None:
        self.tool, self.verb = tool, str(arguments.get("action") or "")
        self.action: Action = "talk" if self.verb in {"list", "read", "wait", "kill"} else "shell"
        self.reason = "" if self.action == "talk" else "what the process does with its input is not known"

    def held_by(self, rule: Rule) -> bool:
        return rule.names(self.tool) and (rule.broken is not None or not rule.words or rule.words[0] == self.verb)

    def allowed_by(self, rules: Sequence[Rule]) -> list[Rule]:
        return [rule for rule in rules if rule.names(self.tool) and self._allows(rule)][:1]

    def _allows(self, rule: Rule) -> bool:
        return not rule.broken and (not rule.words or rule.words == (self.verb,))


class WebCall:
    """A call that reaches another machine."""

    action: Action = "beyond"
    invalid, changes = "", False

    def __init__(self, tool: str, arguments: Mapping[str, Any]) -> None:
        self.tool, self.url = tool, str(subject_of(tool, arguments) or "")
        self.reason = self.url

    def held_by(self, rule: Rule) -> bool:
        return rule.names(self.tool) and (rule.broken is not None or rule.pattern is None or self._at(rule.pattern))

    def _at(self, pattern: str) -> bool:
        """For refusing, whatever could be that host counts."""
        host = pattern.removeprefix("domain:").strip().lower().removeprefix("*.")
        return match_host(pattern, self.url) or host in self.url.lower()

    def allowed_by(self, rules: Sequence[Rule]) -> list[Rule]:
        return [rule for rule in rules if rule.names(self.tool) and self._allows(rule)][:1]

    def _allows(self, rule: Rule) -> bool:
        return not rule.broken and (rule.pattern is None or match_host(rule.pattern, self.url))


class FileCall:
    """A call that reads or writes files, given by one path or by the paths of a patch."""

    def __init__(self, tool: str, arguments: Mapping[str, Any], workspace: str) -> None:
        shape, self.tool, self.root = shape_of(tool), tool, os.path.realpath(workspace)
        self.invalid = ""
        subject = subject_of(tool, arguments)
        paths = _paths(tool, subject)
        paths += _pattern_paths(tool, arguments, paths)
        self.found: list[tuple[str, Containment]] = []
        for path in paths:
            found = contain(path, root=workspace, cwd=workspace, op=shape.op)
            self.found.append((str(path), found))
            if found.kind == "reject":
                self.invalid = f"{str(path)[:200]}: {found.reason}"
        if not paths:
            self.invalid = "it names no file"
        self.action, self.reason = self._action(shape.kind)
        self.changes = shape.kind == "write"

    action: Action

    def _action(self, kind: str) -> tuple[Action, str]:
        for wanted, action in (("outside", "beyond"), ("protected", "protected")):
            for path, found in self.found:
                if found.kind == wanted:
                    return ("beyond" if action == "beyond" else "protected"), f"{path}: {found.reason}"
        return ("write" if kind == "write" else "read"), ""

    def held_by(self, rule: Rule) -> bool:
        if not rule.names(self.tool):
            return False
        pattern = rule.pattern
        if rule.broken or pattern is None:
            return True
        return any(self._matches(pattern, found) or match_path(pattern, _written(path)) for path, found in self.found)

    def allowed_by(self, rules: Sequence[Rule]) -> list[Rule]:
        used: list[Rule] = []
        for _, found in self.found:
            rule = next((rule for rule in rules if self._allows(rule, found)), None)
            if rule is None:
                return []
            used.append(rule)
        return list(dict.fromkeys(used))

    def _allows(self, rule: Rule, found: Containment) -> bool:
        if not rule.names(self.tool) or rule.broken:
            return False
        if rule.pattern is None:
            return found.kind == "inside"
        return self._matches(rule.pattern, found)

    def _matches(self, pattern: str, found: Containment) -> bool:
        """Inside, patterns are relative to the workspace; outside they must be absolute, as `//etc/hosts` or `~/x`."""
        real = found.real_path or ""
        if pattern.startswith(("//", "~/")):
            absolute = os.path.expanduser(pattern).lstrip("/")  # noqa: PTH111
            return match_path("/" + absolute, real.lstrip("/"))
        if found.kind == "outside":
            return False
        return match_path(pattern, real[len(self.root) :].strip("/"))


def _written(path: str) -> str:
    return os.path.normpath(path).strip("/")


def _paths(tool: str, subject: object) -> list[object]:
    if canonical(tool) == "apply_patch":
        return list(dict.fromkeys(patched_paths(str(subject)))) if subject else []
    if subject is None and shape_of(tool).op in {"list", "search"}:
        subject = "."
    return [] if subject is None else [subject]


def _pattern_paths(tool: str, arguments: Mapping[str, Any], folders: list[object]) -> list[object]:
    """Where a pattern for file names begins to search: before its first sign, and above it where it says so."""
    pattern = arguments.get("pattern")
    if canonical(tool) != "glob" or not isinstance(pattern, str):
        return []
    parts = pattern.split("/")
    fixed = list(itertools.takewhile(lambda part: not set(part) & set("*?[{"), parts))
    above = [".."] if ".." in parts[len(fixed) :] else []
    start = "/".join([*fixed, *above]) or "."
    return [os.path.join(str(folder), start) for folder in folders]  # noqa: PTH118


def patched_paths(patch: str) -> list[str]:
    """Every path that a patch names, in the envelope format or as a unified diff."""
    found: list[str] = []
    for match in _PATCHED.finditer(patch):
        path = (match["plain"] or match["marked"] or "").strip()
        if path != "/dev/null":
            found.append(path if match["plain"] else re.sub(r"^[ab]/", "", path))
    return found


class ShellCall:
    """A command line."""

    changes = False

    def __init__(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        workspace: str,
        approved: Collection[str],
        search_path: str = "",
    ) -> None:
        self.tool, self.invalid = tool, ""
        command, folder = subject_of(tool, arguments), folder_of(arguments)
        self.command = command if isinstance(command, str) else ""
        root = os.path.realpath(workspace)
        self.reach = ShellRuleMatcher(root, approved, search_path)
        self.script, self.action, self.reason = Script(()), "shell", ""
        if not isinstance(command, str) or not command.strip():
            self.invalid = "it names no command"
            return
        self._judge(root, folder)

    action: Action

    def _judge(self, root: str, folder: object) -> None:
        place = contain(folder, root=root, cwd=root, op="list") if folder else None
        if place is not None and place.kind != "inside":
            self.reason = f"the folder it runs in: {place.reason}"
            self.script = Script((), (self.reason,))
            return
        self.script = analyse(self.command, root=root, cwd=(place.real_path if place else None) or root)
        doubts = self.script.doubts or tuple(filter(None, map(self.reach.steered, self.script.commands)))
        self.action, self.reason = ("shell", doubts[0]) if doubts else ("shell that reads", "")

    def held_by(self, rule: Rule) -> bool:
        if not rule.names(self.tool):
            return self._reads_what_is_denied(rule)
        if rule.broken or not rule.words:
            return True
        return any(forbids(rule, command) for command in self.script.commands) or self._may_hide(rule)

    def _may_hide(self, rule: Rule) -> bool:
        """Where a part is not understood, the program's name anywhere in the text is enough."""
        unclear = bool(self.script.problems) or any(
            certain_words(command) is None or may_read_commands(command) for command in self.script.commands
        )
        return unclear and re.search(rf"(?<![\w-]){re.escape(rule.words[0])}(?![\w-])", self.command) is not None

    def _reads_what_is_denied(self, rule: Rule) -> bool:
        """A file that may not be read may not be read through the shell either, where it is named."""
        pattern = rule.pattern
        if pattern is None or shape_of(rule.tool).kind != "read":
            return False
        words = [choice for command in self.script.commands for arg in command.argv[1:] for choice in arg.choices or ()]
        return any(match_path(pattern, str(Path(word))) for word in words if word and not word.startswith("-"))

    def allowed_by(self, rules: Sequence[Rule]) -> list[Rule]:
        """Each command is proven to read, or a rule covers it; what is not understood is covered by none."""
        rules = [rule for rule in rules if rule.names(self.tool) and not rule.broken]
        if self.script.problems or not self.script.commands:
            return []
        if everything := [rule for rule in rules if rule.pattern is None]:
            return everything[:1]
        used: list[Rule] = []
        for command in self.script.commands:
            if command.doubt is None and not command.barriers and self.reach.steered(command) is None:
                continue
            rule = next((rule for rule in rules if self.reach.covers(rule, command) is None), None)
            if rule is None:
                return []
            used.append(rule)
        return list(dict.fromkeys(used))


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
