"""The smallest useful rule to offer for "always": it covers what was shown and as little else as possible."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from msgspec import Struct

from outrider.permissions.modes import canonical, folder_of, shape_of, subject_of
from outrider.permissions.paths.containment import contain
from outrider.permissions.policy import ShellCall, assess, decide, patched_paths
from outrider.permissions.redaction.redactor import hide_patterns
from outrider.permissions.redaction.terminal import shows_everything
from outrider.permissions.rules import parse_rule
from outrider.permissions.shell.analysis import analyse
from outrider.permissions.shell.command import TRANSPARENT, Command
from outrider.permissions.shell.rule_matching import certain_words

LONGEST_SHOWN = 2_000


class RuleSuggestion(Struct, frozen=True):
    """What would let exactly this call run again: rules, one for each command that does more than read, and the hashes
    of the workspace's files that steer its programs, since a yes to the call is a yes to them as they are now."""

    rules: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules or self.contents)


def offer_for(tool: str, arguments: Mapping[str, Any], *, workspace: str) -> RuleSuggestion:
    """An empty one means that "always" is not offered: the call cannot be shown in full, or rules would not suffice."""
    if not is_shown_in_full(tool, arguments):
        return RuleSuggestion()
    rules, contents = _needed(tool, arguments, workspace), _contents(tool, arguments, workspace)
    for offer in (RuleSuggestion(rules), RuleSuggestion(rules, contents)):
        if offer and _suffices(offer, tool, arguments, workspace):
            return offer
    return RuleSuggestion()


def offered_rules(tool: str, arguments: Mapping[str, Any], *, workspace: str) -> tuple[str, ...]:
    return offer_for(tool, arguments, workspace=workspace).rules


def is_shown_in_full(tool: str, arguments: Mapping[str, Any]) -> bool:
    """Whether people see all that decides about the call: nothing of it is too long, invisible or hidden."""
    subject, folder = subject_of(tool, arguments), folder_of(arguments)
    texts = list(_texts(arguments if subject is None else [subject, folder or ""]))
    shown = all(shows_everything(text) and hide_patterns(text) == text for text in texts)
    return shown and sum(map(len, texts)) <= LONGEST_SHOWN


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for key, item in cast("Mapping[object, object]", value).items():
                yield from (*_texts(key), *_texts(item))
        case list():
            for item in cast("list[object]", value):
                yield from _texts(item)
        case _:
            pass


def _needed(tool: str, arguments: Mapping[str, Any], workspace: str) -> tuple[str, ...]:
    """A rule for every piece of the call that one can name; whether they suffice is decided as for any other rules."""
    subject = subject_of(tool, arguments)
    kind = shape_of(tool).kind
    if kind == "unknown":
        return (tool,) if parse_rule(tool).tool == tool else ()
    if not isinstance(subject, str):
        return ()
    match kind:
        case "shell":
            return _for_shell(subject, workspace)
        case "read" | "write":
            return _for_files(tool, subject, workspace)
        case "network":
            return _for_address(tool, subject)
        case "talk" | "delegate":
            return ()


def _contents(tool: str, arguments: Mapping[str, Any], workspace: str) -> tuple[str, ...]:
    call = assess(tool, arguments, workspace=workspace)
    if not isinstance(call, ShellCall):
        return ()
    found = (content for command in call.script.commands for content in call.reach.steering_contents(command))
    return tuple(dict.fromkeys(found))


def _suffices(offer: RuleSuggestion, tool: str, arguments: Mapping[str, Any], workspace: str) -> bool:
    decision = decide(
        tool, arguments, mode="agent", allow=offer.rules, workspace=workspace, approved=frozenset(offer.contents)
    )
    return decision.effect == "allow"


def _for_shell(command: str, workspace: str) -> tuple[str, ...]:
    script = analyse(command, root=workspace, cwd=workspace)
    rules = [_exactly(found) for found in script.commands if found.doubt is not None]
    return tuple(dict.fromkeys(rule for rule in rules if rule))


def _exactly(command: Command) -> str | None:
    words = certain_words(command)
    if words is None or command.barriers or not TRANSPARENT.issuperset(command.wrappers):
        return None
    text = shlex.join(words)
    return None if "\n" in text else f"shell({text})"  # a star is in quotes, so that it stands for itself


def _for_files(tool: str, subject: str, workspace: str) -> tuple[str, ...]:
    paths = patched_paths(subject) if canonical(tool) == "apply_patch" else [subject]
    rules = [_for_file(tool, path, workspace) for path in paths]
    return tuple(dict.fromkeys(rule for rule in rules if rule))


def _for_file(tool: str, path: str, workspace: str) -> str | None:
    found = contain(path, root=workspace, cwd=workspace, op=shape_of(tool).op)
    if found.kind != "inside" or found.real_path is None:
        return None
    relative = str(Path(found.real_path).relative_to(Path(workspace).resolve()))
    return None if any(mark in relative for mark in "*?[]()") else f"{canonical(tool)}(/{relative})"


def _for_address(tool: str, url: str) -> tuple[str, ...]:
    address = urlsplit(url)
    return (f"{canonical(tool)}({address.hostname})",) if address.hostname and address.username is None else ()
