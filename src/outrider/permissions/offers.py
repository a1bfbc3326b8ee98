"""The smallest useful rule to offer for "always": it covers what was shown and as little else as possible."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from outrider.permissions.commands.command import TRANSPARENT, Command
from outrider.permissions.commands.reach import certain_words
from outrider.permissions.commands.walk import analyse
from outrider.permissions.paths.contain import contain
from outrider.permissions.policy import decide
from outrider.permissions.texts.terminal import shows_everything
from outrider.permissions.tools import canonical, shape_of, subject_of

LONGEST_SHOWN = 2_000


def offered_rules(tool: str, arguments: Mapping[str, Any], *, workspace: str) -> tuple[str, ...]:
    """Rules that would let exactly this call run again; empty: "always" is not offered.

    A command line may need several, one for each command in it that does more than read. Nothing is offered for
    what cannot be shown in full, or where the rules would not suffice.
    """
    subject = subject_of(tool, arguments)
    if not isinstance(subject, str) or len(subject) > LONGEST_SHOWN or not shows_everything(subject):
        return ()
    match shape_of(tool).kind:
        case "shell":
            rules = _for_shell(subject, workspace)
        case "read" | "write":
            rules = _for_file(tool, subject, workspace)
        case "network":
            rules = _for_address(tool, subject)
        case "talk" | "delegate" | "unknown":
            rules = ()
    return rules if rules and _suffice(rules, tool, arguments, workspace) else ()


def _suffice(rules: tuple[str, ...], tool: str, arguments: Mapping[str, Any], workspace: str) -> bool:
    return decide(tool, arguments, mode="agent", allow=rules, workspace=workspace).effect == "allow"


def _for_shell(command: str, workspace: str) -> tuple[str, ...]:
    script = analyse(command, root=workspace, cwd=workspace)
    if script.problems:
        return ()
    needed = [found for found in script.commands if found.doubt is not None]
    rules = [_exactly(found) for found in needed]
    return tuple(dict.fromkeys(rule for rule in rules if rule)) if all(rules) else ()


def _exactly(command: Command) -> str | None:
    words = certain_words(command)
    if words is None or command.barriers or not TRANSPARENT.issuperset(command.wrappers):
        return None
    text = shlex.join(words)
    return None if text.endswith(("*", ":*")) or "\n" in text else f"shell({text})"


def _for_file(tool: str, path: str, workspace: str) -> tuple[str, ...]:
    found = contain(path, root=workspace, cwd=workspace, op=shape_of(tool).op)
    if canonical(tool) == "apply_patch" or found.kind != "inside" or found.real_path is None:
        return ()
    relative = str(Path(found.real_path).relative_to(Path(workspace).resolve()))
    return () if any(mark in relative for mark in "*?[]()") else (f"{canonical(tool)}(/{relative})",)


def _for_address(tool: str, url: str) -> tuple[str, ...]:
    address = urlsplit(url)
    return (f"{canonical(tool)}({address.hostname})",) if address.hostname and address.username is None else ()
