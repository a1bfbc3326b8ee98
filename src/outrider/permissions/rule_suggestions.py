"""Builds the rules that an "always allow" answer adds: they cover the shown call and as little else as possible."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from msgspec import Struct

from outrider.permissions.call_assessment import ShellCall, assess_call, call_paths
from outrider.permissions.paths.containment import contain
from outrider.permissions.policy import decide
from outrider.permissions.redaction.redactor import redact_patterns
from outrider.permissions.redaction.terminal import is_fully_visible
from outrider.permissions.rules import parse_rule
from outrider.permissions.shell.analysis import analyse_script
from outrider.permissions.shell.command import TRANSPARENT_WRAPPERS, AnalysedCommand
from outrider.permissions.shell.rule_matching import certain_words
from outrider.types.tool_declaration import (
    DeclaredTool,
    call_directory,
    call_subject,
    call_subjects,
    canonical_tool,
    declaration_of,
    tool_name,
)

MAX_SHOWN_CHARS = 2_000


class RuleSuggestion(Struct, frozen=True):
    """What allows the same call again: rules, and hashes of workspace configuration files.

    There is one rule for each command that is not proven read-only. `contents` has the hashes of the configuration
    files that the programs read: an approval covers their current content only."""

    rules: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules or self.contents)


def suggest_for_call(tool: str | DeclaredTool, arguments: Mapping[str, Any], *, workspace: str) -> RuleSuggestion:
    """Returns the suggestion for a call.

    It is empty, and "always" is not offered, if the call cannot be shown completely or rules alone cannot allow it.
    """
    if not is_shown_in_full(tool, arguments):
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
    shown = all(is_fully_visible(text) and redact_patterns(text) == text for text in texts)
    return shown and sum(map(len, texts)) <= MAX_SHOWN_CHARS


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
    found = (content for command in call.script.commands for content in call.rule_matcher.config_hashes(command))
    return tuple(dict.fromkeys(found))


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
    # Without a rule every command runs inside the sandbox, which says nothing about the suggestion.
    return decision.effect == "allow" and (decision.rule is not None or decision.confinement != "workspace")


def _shell_rules(command: str, workspace: str) -> tuple[str, ...]:
    script = analyse_script(command, root=workspace, cwd=workspace)
    rules = [_exact_shell_rule(found) for found in script.commands if found.unproven_reason is not None]
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
    found = contain(path, root=workspace, cwd=workspace, op=declaration_of(tool).operation)
    if found.kind != "inside" or found.real_path is None:
        return None
    relative = str(Path(found.real_path).relative_to(Path(workspace).resolve()))
    return None if any(mark in relative for mark in "*?[]()") else f"{canonical_tool(tool_name(tool))}(/{relative})"


def _host_rules(tool: str, url: str) -> tuple[str, ...]:
    address = urlsplit(url)
    return (f"{canonical_tool(tool)}({address.hostname})",) if address.hostname and address.username is None else ()
