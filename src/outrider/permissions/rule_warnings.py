"""Finds rules that match nothing, or less than they seem to, so that the user is warned when the rules are loaded."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from outrider.types.tool_declaration import Effect, PermissionRule, canonical_tool, declaration_of

_OPERATOR = re.compile(r"&&|\|\|?|;|&|\d*>>?(?:&\d)?|<")
_EXPANSION = re.compile(r"\$\(|`|\$\{?\w|<\(")
_HOST = re.compile(r"(?:\*\.)?[A-Za-z0-9.-]+(?::\d+)?|\[[0-9A-Fa-f:]+\](?::\d+)?")
_CAMEL_CASE = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)*")


def find_weaknesses(rule: PermissionRule, effect: Effect, workspace: Path) -> Iterator[str]:
    """Yields the weaknesses of a valid rule, each as the predicate of a sentence about it."""
    if rule.right == "write":
        yield from _path_weaknesses(rule.pattern or "", workspace)
        return
    if rule.right == "reach":
        yield from _host_weaknesses(rule.pattern or "")
        return
    declared = declaration_of(rule.tool)
    if declared.kind == "unknown" and _CAMEL_CASE.fullmatch(rule.tool):
        yield "names no built-in tool; it applies only to a custom tool with this name"
    if rule.pattern is None:
        return
    match declared.kind:
        case "shell":
            yield from _command_weaknesses(rule, effect)
        case "read" | "write":
            yield from _path_weaknesses(rule.pattern, workspace)
        case "network":
            yield from _host_weaknesses(rule.pattern.removeprefix("domain:"))
        case "talk" | "delegate":
            yield from _name_only_weaknesses(effect)
        case "unknown":
            yield from _name_only_weaknesses(effect) if rule.tool.startswith("mcp__") else ()


def _name_only_weaknesses(effect: Effect) -> Iterator[str]:
    if effect == "allow":
        yield "matches nothing: this tool has no pattern; name the tool alone"
    else:
        yield "applies to every call: this tool has no pattern"


def _command_weaknesses(rule: PermissionRule, effect: Effect) -> Iterator[str]:
    if rule.parse_error or canonical_tool(rule.tool) != "shell":
        return
    if any(map(_OPERATOR.fullmatch, rule.words)) or any(word.endswith(";") for word in rule.words):
        yield "matches nothing: a rule names one simple command, without operators and redirects; write one for each"
        return
    if any(map(_EXPANSION.search, rule.words)) and "'" not in (rule.pattern or ""):
        yield "matches nothing: a command with a substitution or a variable has no words that are known in advance"
        return
    if rule.folder is not None and rule.words[0] == "cd":
        yield "matches nothing: it names no command after the folder"
    quoted = any(quote in (rule.pattern or "") for quote in "'\"\\")
    if any("*" in word[:-1] for word in rule.words) and not quoted:
        yield "has a star inside a word, which is a plain character; only a star at the end of a word is a pattern"
    if any(rule.words[position] == "*" for position in rule.wildcards):
        yield "has a star between words, which matches exactly one word"
    if effect == "allow":
        yield from _allow_weaknesses(rule)


def _allow_weaknesses(rule: PermissionRule) -> Iterator[str]:
    """Yields why an allow rule covers less than its program with these arguments."""
    from outrider.permissions.shell.programs.registry import is_known_reader, program_name
    from outrider.permissions.shell.rule_matching import SHELL_BUILTINS
    from outrider.permissions.shell.wrappers import WRAPPERS, reads_commands_from_stdin, runs_any_program

    name, further = rule.words[0], rule.words[1:]
    if program_name(name) != name:
        yield f"matches nothing: write the name of the program, {program_name(name)}"
    elif name in WRAPPERS:
        yield f"matches nothing: {name} only runs another program; name that one"
    elif name in SHELL_BUILTINS:
        yield f"matches nothing: {name} is a part of the shell or runs other programs; name those"
    elif not rule.open_ended and reads_commands_from_stdin(name, rule.words):
        yield f"matches nothing: {name} runs what it reads from standard input, which no rule can name"
    elif rule.open_ended and runs_any_program(name) and all(word.startswith("-") for word in further):
        yield f"covers no script: {name} runs its arguments; name the script"
    elif rule.open_ended and not further and is_known_reader(name):
        example = "git commit *" if name == "git" else f"{name} OPTION *"
        yield f"covers only calls that read; name the subcommand or option that does more, as in shell({example})"
    elif not rule.open_ended and not further and 0 in rule.wildcards:
        yield f"covers no arguments; write shell({name.rstrip('*')} *)"


def _path_weaknesses(pattern: str, workspace: Path) -> Iterator[str]:
    if ".." in pattern.split("/"):
        yield "matches nothing: paths are compared without `..`"
    if pattern.startswith("!"):
        yield "matches nothing: there is no negation; write a rule with another effect"
    if "\\" in pattern:
        yield "matches nothing: folders are separated by /"
    if not frozenset("[]{}").isdisjoint(pattern):
        yield "has brackets or braces, which are plain characters; the patterns are *, ** and ?"
    if re.match(r"/[^/]", pattern) and "*" not in pattern.split("/")[1]:
        top_folder = pattern.split("/")[1]
        if not (workspace / top_folder).exists() and Path("/", top_folder).exists():
            yield f"starts at the workspace, which has no {top_folder}; an absolute path is written /{pattern}"


def _host_weaknesses(pattern: str) -> Iterator[str]:
    pattern = pattern.strip()
    if "://" in pattern:
        try:
            host = urlsplit(pattern).hostname or ""
        except ValueError:
            host = "*"
        if "*" in host:
            yield "matches nothing: a star in a URL matches only the rest of its path"
    elif "/" in pattern:
        yield f"matches nothing: write the host, {pattern.partition('/')[0]}, or a URL"
    elif not _HOST.fullmatch(pattern):
        yield "matches nothing: it is not a host; a star is possible at the start, as in *.example.org"
