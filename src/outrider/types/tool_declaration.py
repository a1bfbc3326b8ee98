"""What a tool declares about its calls (what they do, which parameters name paths or URLs, and how they are shown), and
the syntax of permission rules, which name tools.

A `Tool` declares this with its options; its name has no meaning. Where only the name of a tool is known (rules, stored
calls, tools of other agents), the table of names in this module applies. A new tool needs no row in it.

A rule has the form `tool(pattern)`. An outcome rule says what a call or a sandboxed command may cause: `may write
build/**`, `may reach example.org`, `may run npm test`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Literal, Protocol, cast, get_args

from msgspec import Struct

from outrider._lazy import lazy_pattern
from outrider.errors import ConfigurationError
from outrider.types.origins import Origins

ToolKind = Literal["read", "write", "shell", "network", "talk", "delegate", "unknown"]
CallKind = Literal["read", "edit", "search", "execute", "fetch", "think", "agent", "other"]
"""How front ends group and show calls."""
PathOperation = Literal["read", "list", "search", "write", "edit", "change"]
FileOperation = Literal[PathOperation, "create", "delete", "rename", "rename_source", "rename_dest"]


class ToolDeclaration(Struct, frozen=True):
    """What calls of a tool do.

    - `kind`: the kind of access.
    - `parameters`: the parameters that name the file, command or URL.
    - `operation`: what happens to the paths.
    - `display`: how front ends group and show calls.
    - `network`: True for a file tool that also connects to other hosts.
    - `origins`: the origins of results, if they do not follow from the kind.
    - `destination`: where arguments are sent.
    - `paths_in`: where the paths are: in the values, in the text of a patch, or also at the start of a glob pattern.
    - `controls_process`: whether a call without a command acts on a process that already runs.
    """

    kind: ToolKind
    parameters: tuple[str, ...] = ()
    operation: PathOperation = "read"
    display: CallKind = "other"
    network: bool = False
    origins: Origins | None = None
    destination: str = ""
    paths_in: Literal["value", "patch", "glob"] = "value"
    controls_process: bool = False


class DeclaredTool(Protocol):
    """A tool that declares what its calls do, such as a `Tool`."""

    @property
    def name(self) -> str: ...
    @property
    def declaration(self) -> ToolDeclaration: ...


UNKNOWN_TOOL = ToolDeclaration("unknown")
_FILES = ("file_path", "path", "filename", "file")
_FOLDERS = ("path", "directory", "dir", "cwd")
KNOWN_NAMES: dict[str, ToolDeclaration] = {
    "read": ToolDeclaration("read", _FILES, display="read"),
    "list": ToolDeclaration("read", _FOLDERS, "list", display="read"),
    "glob": ToolDeclaration("read", _FOLDERS, "list", display="search", paths_in="glob"),
    "grep": ToolDeclaration("read", _FOLDERS, "search", display="search"),
    "write": ToolDeclaration("write", _FILES, "write", display="edit"),
    "edit": ToolDeclaration("write", _FILES, "edit", display="edit"),
    "apply_patch": ToolDeclaration("write", ("patch", "input", "diff"), "write", display="edit", paths_in="patch"),
    "shell": ToolDeclaration("shell", ("command", "cmd", "script"), display="execute"),
    "process": ToolDeclaration("shell", ("command", "cmd"), display="execute", controls_process=True),
    "web_fetch": ToolDeclaration("network", ("url", "address"), display="fetch"),
    "web_search": ToolDeclaration("network", ("url", "query")),
    "todo": ToolDeclaration("talk", display="think"),
    "question": ToolDeclaration("talk", display="think"),
    "finish": ToolDeclaration("talk"),
    "skill": ToolDeclaration("talk", display="read"),
    "task": ToolDeclaration("delegate", display="agent"),
    "call_agent": ToolDeclaration("delegate", display="agent"),
}
_ALIASES = {"bash": "shell", "sh": "shell", "execute": "shell", "ls": "list", "search": "grep", "multi_edit": "edit",
            "patch": "apply_patch", "fetch": "web_fetch", "webfetch": "web_fetch", "todo_write": "todo",
            "Bash": "shell", "Read": "read", "LS": "list", "Glob": "glob", "Grep": "grep", "Edit": "edit",
            "MultiEdit": "edit", "Write": "write", "WebFetch": "web_fetch", "WebSearch": "web_search",
            "TodoWrite": "todo", "Task": "task"}  # fmt: skip
_WORKING_DIRECTORIES = ("cwd", "workdir", "working_directory", "directory")
_IN_BACKGROUND = ("background", "run_in_background", "is_background")
_FALSE = frozenset({"false", "0", "no", "off"})


def canonical_tool(tool: str) -> str:
    """Returns the built-in name for an alias that other agents use, such as `bash` for `shell`."""
    return _ALIASES.get(tool, tool)


def tool_name(tool: str | DeclaredTool) -> str:
    return tool if isinstance(tool, str) else tool.name


def declaration_of(tool: str | DeclaredTool) -> ToolDeclaration:
    """Returns the declaration of a tool, or for a name the declaration in the table of names."""
    return KNOWN_NAMES.get(canonical_tool(tool), UNKNOWN_TOOL) if isinstance(tool, str) else tool.declaration


def call_subjects(tool: str | DeclaredTool, arguments: Mapping[str, Any]) -> list[object]:
    """Returns the paths, the command or the URL that a call acts on. For a name, the parameters are spellings of one
    parameter, so only the first one is returned."""
    subjects = [arguments[name] for name in declaration_of(tool).parameters if name in arguments]
    if isinstance(tool, str):
        return subjects[:1]
    listed = (cast("list[object]", value) if isinstance(value, list) else [value] for value in subjects)
    return [value for values in listed for value in values if value is not None]


def call_subject(tool: str | DeclaredTool, arguments: Mapping[str, Any]) -> object:
    """Returns the path, command or URL that a call acts on: the first one if there are several, None if there is
    none."""
    return next(iter(call_subjects(tool, arguments)), None)


def call_directory(arguments: Mapping[str, Any]) -> object:
    """Returns the working directory that a call requests, or None."""
    return next((arguments[name] for name in _WORKING_DIRECTORIES if arguments.get(name)), None)


def runs_in_background(arguments: Mapping[str, Any]) -> bool:
    """Returns whether a call starts a command that runs longer than the call. True if unsure."""
    values = (arguments[name] for name in _IN_BACKGROUND if arguments.get(name))
    return any(str(value).strip().lower() not in _FALSE for value in values)


Effect = Literal["allow", "ask", "deny"]
OutcomeRight = Literal["write", "reach", "run"]
_RIGHTS_BY_NAME: dict[str, OutcomeRight] = {right: right for right in get_args(OutcomeRight)}

_RULE = lazy_pattern(r"^\s*(?P<tool>[A-Za-z0-9_.:*?/-]+)\s*(?:\((?P<pattern>.*)\))?\s*$", re.DOTALL)
_OUTCOME_RULE = lazy_pattern(r"^\s*may\s+(?P<right>[a-z]+)(?:\s+(?P<pattern>.+?))?\s*$", re.DOTALL)
_FORM = "write tool(pattern), such as shell(git status *) or write(docs/**)"


class PermissionRule(Struct, frozen=True):
    """A parsed rule.

    - `text`: the rule as it was written.
    - `tool`: the name of the tool, which may have wildcards.
    - `pattern`: the text in parentheses; None matches every call of the tool.
    - `words`: the words of a shell rule.
    - `open_ended`: whether the rule ends in ` *` and so allows further arguments.
    - `parse_error`: why the text is not a valid rule.
    - `wildcards`: the positions of words that end in an unquoted star.
    - `folder`: limits a shell rule to commands that run in this folder.
    - `right`: is set for an outcome rule.
    """

    text: str
    tool: str
    pattern: str | None = None
    words: tuple[str, ...] = ()
    open_ended: bool = False
    parse_error: str | None = None
    wildcards: frozenset[int] = frozenset()
    folder: str | None = None
    right: OutcomeRight | None = None

    def matches_tool(self, tool: str) -> bool:
        return self.right in (None, "run") and fnmatchcase(canonical_tool(tool), canonical_tool(self.tool))


@lru_cache(maxsize=1024)
def parse_rule(text: str) -> PermissionRule:
    """Parses a rule. Never raises: an invalid rule has `parse_error` set, so that deny and ask still apply it and allow
    ignores it."""
    if match := _OUTCOME_RULE.match(text):
        return _outcome_rule(text, match["right"], match["pattern"] or "")
    match = _RULE.match(text)
    if not match:
        return PermissionRule(text, "*", parse_error="it does not have the form tool(pattern)")
    tool, pattern = match["tool"], match["pattern"]
    if pattern is None or pattern.strip() == "*":
        return PermissionRule(text, tool)
    if canonical_tool(tool) not in {"shell", "process"}:
        return PermissionRule(text, tool, pattern.strip())
    return _shell_rule(text, tool, pattern.strip())


def check_rule(text: str, effect: Effect, where: str) -> PermissionRule:
    """Parses a rule of a program or a configuration file. Raises ConfigurationError that names the rule, if it cannot
    be parsed or cannot have this effect: an ignored deny rule would be dangerous."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"{where}.{effect}: a rule is a text, got {text!r}; {_FORM}")
    rule = parse_rule(text)
    if rule.parse_error:
        raise ConfigurationError(f"{where}.{effect}: {text!r} is not a rule: {rule.parse_error}; {_FORM}")
    if rule.right and effect != "allow":
        raise ConfigurationError(f"{where}.{effect}: {text!r} can only allow; to {effect} it, {_FORM}")
    return rule


def check_rules(rules: Mapping[str, Iterable[str]], where: str) -> None:
    """Checks the rules of a program, by effect."""
    for effect in get_args(Effect):
        for text in rules.get(effect, ()):
            check_rule(text, effect, where)


def _outcome_rule(text: str, name: str, pattern: str) -> PermissionRule:
    right = _RIGHTS_BY_NAME.get(name)
    if right is None or not pattern:
        return PermissionRule(
            text, "*", parse_error="an outcome rule is may write PATH, may reach HOST or may run PROGRAM"
        )
    if right == "run":
        rule = _shell_rule(text, "shell", pattern)
        return PermissionRule(
            text, "shell", pattern, rule.words, open_ended=True, parse_error=rule.parse_error,
            wildcards=rule.wildcards, folder=rule.folder, right=right,
        )  # fmt: skip
    return PermissionRule(text, "", pattern, right=right)


def _shell_rule(text: str, tool: str, pattern: str) -> PermissionRule:
    """Splits the pattern into shell words. A trailing ` *` or the older `:*` makes the rule open-ended; `cd FOLDER &&`
    at the start limits it to that folder. A quoted star is a plain character."""
    try:
        marked_words = list(_split_words(pattern))
    except ValueError:
        return PermissionRule(text, tool, pattern, parse_error="its quotes are not closed")
    is_open = bool(marked_words) and marked_words[-1] == ("*", True)
    if is_open:
        marked_words.pop()
    elif marked_words and marked_words[-1][1] and marked_words[-1][0].endswith(":*"):
        is_open, marked_words[-1] = True, (marked_words[-1][0][:-2], False)
    words = tuple(word for word, _ in marked_words)
    folder = words[1] if len(words) > 3 and (words[0], words[2]) == ("cd", "&&") else None
    if folder is not None:
        marked_words, words = marked_words[3:], words[3:]
    if not words:
        return PermissionRule(text, tool, pattern, parse_error="it names no program")
    wildcards = frozenset(position for position, (_, is_wildcard) in enumerate(marked_words) if is_wildcard)
    return PermissionRule(text, tool, pattern, words, is_open, wildcards=wildcards, folder=folder)


def _split_words(pattern: str) -> Iterator[tuple[str, bool]]:
    """Yields the words of a shell pattern as a shell splits them, and whether a word ends in a star without quotes."""
    word: list[str] | None = None
    quote, is_wildcard = "", False
    characters = iter(pattern)
    for char in characters:
        if not quote and char.isspace():
            if word is not None:
                yield "".join(word), is_wildcard
            word, is_wildcard = None, False
            continue
        word = [] if word is None else word
        if char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        elif char == "\\" and quote != "'":
            escaped = next(characters, None)
            if escaped is None:
                raise ValueError("nothing follows the backslash")
            word += [escaped] if not quote or escaped in '"\\' else [char, escaped]
        else:
            word.append(char)
            is_wildcard = char == "*" and not quote
            continue
        is_wildcard = False
    if quote:
        raise ValueError("a quote is not closed")
    if word is not None:
        yield "".join(word), is_wildcard
