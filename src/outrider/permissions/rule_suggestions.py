"""Builds the rules that a lasting answer adds: for exactly the shown call, and wider ones that a person may choose.

A backtest over the stored questions of the same workspace counts how many of them each width would have answered.
"""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast
from urllib.parse import urlsplit

from msgspec import Struct, structs

from outrider.permissions.call_assessment import ShellCall, assess_call, call_paths
from outrider.permissions.paths.containment import contain
from outrider.permissions.policy import decide
from outrider.permissions.redaction.redactor import redact_patterns
from outrider.permissions.redaction.terminal import is_fully_visible
from outrider.permissions.rules import allows_hosts, allows_writing
from outrider.permissions.shell.analysis import analyse_script
from outrider.permissions.shell.command import TRANSPARENT_WRAPPERS, AnalysedCommand
from outrider.permissions.shell.command_effects import is_destructive, widened_words
from outrider.permissions.shell.rule_matching import certain_words, may_read_commands_from_stdin
from outrider.types.outcomes import CommandOutcome, RuleWidth
from outrider.types.tool_declaration import (
    DeclaredTool,
    ToolKind,
    call_directory,
    call_subject,
    call_subjects,
    canonical_tool,
    declaration_of,
    parse_rule,
    tool_name,
)

MAX_SHOWN_CHARS = 2_000


class RuleSuggestion(Struct, frozen=True):
    """What allows the same call again: rules, and hashes of workspace configuration files.

    There is one rule for each command that is not proven read-only. `contents` has the hashes of the configuration
    files that the programs read: an approval covers their current content only.
    """

    rules: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules or self.contents)


def suggest_for_call(tool: str | DeclaredTool, arguments: Mapping[str, Any], *, workspace: str) -> RuleSuggestion:
    """Returns the suggestion for a call.

    It is empty, and "always" is not offered, if the call cannot be shown completely, if it destroys something, or if
    rules alone cannot allow it.
    """
    if not is_shown_in_full(tool, arguments) or any(
        map(_may_allow_only_once, _find_commands(tool, arguments, workspace))
    ):
        return RuleSuggestion()
    rules, contents = _build_rules(tool, arguments, workspace), _config_hashes(tool, arguments, workspace)
    for suggestion in (RuleSuggestion(rules), RuleSuggestion(rules, contents)):
        if suggestion and _is_sufficient(suggestion, tool, arguments, workspace):
            return suggestion
    return RuleSuggestion()


def suggested_rules(tool: str | DeclaredTool, arguments: Mapping[str, Any], *, workspace: str) -> tuple[str, ...]:
    return suggest_for_call(tool, arguments, workspace=workspace).rules


def is_shown_in_full(tool: str | DeclaredTool, arguments: Mapping[str, Any]) -> bool:
    """Returns whether an approval prompt shows everything: no text is too long, invisible or redacted."""
    subjects, folder = call_subjects(tool, arguments), call_directory(arguments)
    texts = list(_iter_strings([*subjects, folder or ""] if subjects else arguments))
    all_visible = all(is_fully_visible(text) and redact_patterns(text) == text for text in texts)
    return all_visible and sum(map(len, texts)) <= MAX_SHOWN_CHARS


def _iter_strings(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for key, item in cast("Mapping[object, object]", value).items():
                yield from (*_iter_strings(key), *_iter_strings(item))
        case list():
            for item in cast("list[object]", value):
                yield from _iter_strings(item)
        case _:
            pass


class PastQuestion(Struct, frozen=True):
    """An earlier question of the workspace.

    - `tool`, `arguments`: the call.
    - `refused`: True if the user denied it.
    - `paths`: the files that a command changed.
    - `hosts`: the hosts that a command tried to reach.
    - `always_asked`: True if no rule can answer the question, because it is about protected files or about data that
      would leave the machine.
    """

    tool: str
    arguments: Mapping[str, Any]
    refused: bool = False
    paths: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    always_asked: bool = False

    @classmethod
    def from_outcome(
        cls, tool: str, arguments: Mapping[str, Any], outcome: CommandOutcome | None, *, refused: bool
    ) -> Self:
        paths = [file.path for file in outcome.files if file.file != "folder"] if outcome else []
        # A question about files comes after the one about what was blocked.
        blocked = [access.description for access in outcome.blocked] if outcome and not outcome.files else []
        fixed = outcome is not None and (outcome.flow is not None or any(file.protected for file in outcome.files))
        return cls(tool, arguments, refused, tuple(paths), tuple(blocked), fixed)


def suggest_widths(
    tool: str | DeclaredTool,
    arguments: Mapping[str, Any],
    *,
    workspace: str,
    outcome: CommandOutcome | None = None,
) -> tuple[RuleWidth, ...]:
    """Returns what a lasting answer may cover, the narrowest first; empty if the call can only be allowed once.

    With `outcome`, the question is about what a sandboxed command changed or tried to reach. The rules that result from
    such an answer never let a command leave the sandbox.
    """
    if outcome is not None and not outcome.files:
        return tuple(_reach_widths(outcome))
    exact = suggest_for_call(tool, arguments, workspace=workspace)
    kind = declaration_of(tool).kind
    widths: list[RuleWidth] = []
    if exact:
        widths.append(RuleWidth(id="exact", label=_EXACT_LABELS[kind], rules=exact.rules, contents=exact.contents))
    if exact and kind == "shell":
        widths += _command_widths(exact, tool, arguments, workspace)
    if exact and kind == "write":
        widths += _edit_widths(tool, arguments, workspace)
    if outcome is not None:
        widths += _outcome_widths(outcome)
    return tuple(widths)


_EXACT_LABELS: dict[ToolKind, str] = {
    "shell": "exactly this command",
    "read": "exactly this path",
    "write": "exactly these files",
    "network": "this host",
    "unknown": "every call of this tool",
    "talk": "every call of this tool",
    "delegate": "every call of this tool",
}
_MAX_NAMED_PATHS = 5
_PATTERN_CHARS = frozenset("*?[]()\n")


def _find_commands(tool: str | DeclaredTool, arguments: Mapping[str, Any], workspace: str) -> list[AnalysedCommand]:
    """Returns the commands of a call that are not proven to only read."""
    call = assess_call(tool, arguments, workspace=workspace)
    commands = call.script.commands if isinstance(call, ShellCall) else ()
    return [command for command in commands if command.unproven_reason is not None]


def _may_allow_only_once(command: AnalysedCommand) -> bool:
    """Returns whether a lasting rule is out of the question: the command destroys something, or it runs a script that
    no rule names."""
    words = certain_words(command)
    return words is not None and (is_destructive(words) or may_read_commands_from_stdin(command))


def _command_widths(
    exact: RuleSuggestion,
    tool: str | DeclaredTool,
    arguments: Mapping[str, Any],
    workspace: str,
) -> Iterator[RuleWidth]:
    """Yields the widths that allow the program with any arguments: in the folder where it runs, and anywhere in the
    workspace."""
    commands = _find_commands(tool, arguments, workspace)
    named = [widened_words(certain_words(command) or ()) for command in commands]
    if not named or not all(named):
        return
    programs = dict.fromkeys(shlex.join(words) for words in named if words)
    root, folders = os.path.realpath(workspace), {cwd for command in commands for cwd in command.cwds}
    program_names = ", ".join(programs)
    if len(folders) == 1 and (folder := os.path.relpath(folders.pop(), root)) != "." and not folder.startswith(".."):
        rules = tuple(f"shell(cd {shlex.quote(folder)} && {program} *)" for program in programs)
        wider = RuleSuggestion(rules, exact.contents)
        if _is_sufficient(wider, tool, arguments, workspace):
            yield RuleWidth(
                id="folder",
                label=f"{program_names} with any arguments, in {folder}/",
                rules=rules,
                contents=exact.contents,
            )
    wider = RuleSuggestion(tuple(f"shell({program} *)" for program in programs), exact.contents)
    if _is_sufficient(wider, tool, arguments, workspace):
        yield RuleWidth(
            id="program", label=f"{program_names} with any arguments", rules=wider.rules, contents=exact.contents
        )


def _edit_widths(tool: str | DeclaredTool, arguments: Mapping[str, Any], workspace: str) -> Iterator[RuleWidth]:
    """Yields the widths that allow all edits below the common folder of the files, below each of its parents, and in
    the whole workspace."""
    root = Path(workspace).resolve()
    paths = [contain(path, root=workspace, cwd=workspace, op="edit").real_path for path in call_paths(tool, arguments)]
    files = [Path(path).relative_to(root) for path in paths if path]
    yield from _folder_widths([str(file) for file in files])
    yield RuleWidth(id="workspace", label="all edits in this workspace", rules=("may write **",))


def _outcome_widths(outcome: CommandOutcome) -> Iterator[RuleWidth]:
    """Yields the widths that allow any command that changes only these files, or only files below their common
    folder."""
    paths = [file.path for file in outcome.files if file.file != "folder"]
    if not paths or outcome.more_files or any(file.protected or not file.can_undo for file in outcome.files):
        return
    if len(paths) <= _MAX_NAMED_PATHS and not any(_PATTERN_CHARS & set(path) for path in paths):
        label = f"any command that changes only {', '.join(paths)}"
        yield RuleWidth(id="files", label=label, rules=tuple(f"may write /{path}" for path in paths))
    yield from _folder_widths(paths, "any command that changes only files under {folder}/")


def _folder_widths(paths: Sequence[str], label: str = "all edits under {folder}/") -> Iterator[RuleWidth]:
    """Yields one width for the common folder of the paths and for each of its parents, the deepest first."""
    folder = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""  # noqa: PTH120
    while folder and not _PATTERN_CHARS & set(folder):
        yield RuleWidth(id=f"under {folder}", label=label.format(folder=folder), rules=(f"may write /{folder}/**",))
        folder = os.path.dirname(folder)  # noqa: PTH120


def _reach_widths(outcome: CommandOutcome) -> Iterator[RuleWidth]:
    """Yields the width that allows any command that needs network access only to these hosts, if nothing else was
    blocked."""
    hosts = [access.target for access in outcome.blocked if access.kind == "network"]
    if len(hosts) == len(outcome.blocked) and all(hosts):
        yield RuleWidth(
            id="hosts",
            label=f"any command that needs network access only to {', '.join(hosts)}",
            rules=tuple(f"may reach {host}" for host in hosts),
        )


def backtest_widths(
    widths: Sequence[RuleWidth], questions: Sequence[PastQuestion], *, workspace: str
) -> tuple[RuleWidth, ...]:
    """Returns the widths with the number of earlier questions that each would have answered."""
    covered = [_covering_widths(widths, question, workspace) for question in questions]
    return tuple(
        structs.replace(
            width,
            asked=len(questions),
            covered=sum(width.id in ids for ids in covered),
            refused=sum(width.id in ids and question.refused for ids, question in zip(covered, questions, strict=True)),
        )
        for width in widths
    )


def _covering_widths(widths: Sequence[RuleWidth], question: PastQuestion, workspace: str) -> set[str]:
    """Returns the ids of the widths that answer a question. The call is analysed once for all of them."""
    if question.always_asked:
        return set()
    call = assess_call(question.tool, question.arguments, workspace=workspace)
    if call.invalid or call.action == "protected":
        return set()
    if isinstance(call, ShellCall):
        approved = frozenset(
            content for command in call.script.commands for content in call.rule_matcher.config_hashes(command)
        )
        call = assess_call(question.tool, question.arguments, workspace=workspace, approved=approved)
    covering_ids: set[str] = set()
    for width in widths:
        rules = [parse_rule(rule) for rule in width.rules]
        files = [f"{os.path.realpath(workspace)}/{path}" for path in question.paths]
        by_outcome = bool(files or question.hosts) and (
            allows_writing(rules, files, root=os.path.realpath(workspace)) and allows_hosts(rules, question.hosts)
        )
        if by_outcome or (rules and not question.hosts and call.allowed_by(rules)):
            covering_ids.add(width.id)
    return covering_ids


def _build_rules(tool: str | DeclaredTool, arguments: Mapping[str, Any], workspace: str) -> tuple[str, ...]:
    """Returns one rule for each part of the call that a rule can name; `_is_sufficient` checks that they allow it."""
    subject = call_subject(tool, arguments)
    kind, name = declaration_of(tool).kind, tool_name(tool)
    if kind == "unknown":
        return (name,) if parse_rule(name).tool == name else ()
    if not isinstance(subject, str):
        return ()
    match kind:
        case "shell":
            return _shell_rules(subject, workspace)
        case "read" | "write":
            return _file_rules(tool, arguments, workspace)
        case "network":
            return _host_rules(name, subject)
        case "talk" | "delegate":
            return ()


def _config_hashes(tool: str | DeclaredTool, arguments: Mapping[str, Any], workspace: str) -> tuple[str, ...]:
    call = assess_call(tool, arguments, workspace=workspace)
    if not isinstance(call, ShellCall):
        return ()
    hashes = (content for command in call.script.commands for content in call.rule_matcher.config_hashes(command))
    return tuple(dict.fromkeys(hashes))


def _is_sufficient(
    suggestion: RuleSuggestion, tool: str | DeclaredTool, arguments: Mapping[str, Any], workspace: str
) -> bool:
    decision = decide(
        tool,
        arguments,
        mode="agent",
        allow=suggestion.rules,
        workspace=workspace,
        approved=frozenset(suggestion.contents),
    )
    # Without a rule every command runs inside the sandbox, so that decision does not depend on the suggestion.
    return decision.effect == "allow" and (decision.rule is not None or decision.confinement != "workspace")


def _shell_rules(command: str, workspace: str) -> tuple[str, ...]:
    script = analyse_script(command, root=workspace, cwd=workspace)
    rules = [_exact_shell_rule(analysed) for analysed in script.commands if analysed.unproven_reason is not None]
    return tuple(dict.fromkeys(rule for rule in rules if rule))


def _exact_shell_rule(command: AnalysedCommand) -> str | None:
    words = certain_words(command)
    if words is None or command.barriers or not TRANSPARENT_WRAPPERS.issuperset(command.wrappers):
        return None
    text = shlex.join(words)
    return None if "\n" in text else f"shell({text})"  # shlex quotes a star, so it is literal


def _file_rules(tool: str | DeclaredTool, arguments: Mapping[str, Any], workspace: str) -> tuple[str, ...]:
    rules = [_file_rule(tool, path, workspace) for path in call_paths(tool, arguments)]
    return tuple(dict.fromkeys(rule for rule in rules if rule))


def _file_rule(tool: str | DeclaredTool, path: object, workspace: str) -> str | None:
    containment = contain(path, root=workspace, cwd=workspace, op=declaration_of(tool).operation)
    if containment.kind != "inside" or containment.real_path is None:
        return None
    relative = str(Path(containment.real_path).relative_to(Path(workspace).resolve()))
    return None if any(mark in relative for mark in "*?[]()") else f"{canonical_tool(tool_name(tool))}(/{relative})"


def _host_rules(tool: str, url: str) -> tuple[str, ...]:
    address = urlsplit(url)
    return (f"{canonical_tool(tool)}({address.hostname})",) if address.hostname and address.username is None else ()
