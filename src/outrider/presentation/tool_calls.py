"""A tool call as every front end shows it: its title, subject, changes, status and duration."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, cast, get_args

import msgspec

from outrider.presentation.diffs import FileDiff, is_complete_patch, parse_unified_diff, preview_patch, replacement_diff
from outrider.presentation.formats import clean_line, format_count, format_milliseconds, shorten
from outrider.types.partial_json import parse_partial_object
from outrider.types.parts import DisplayStatus, ToolPart
from outrider.types.tool_declaration import CallKind, declaration_of
from outrider.types.tool_state import (
    DISPLAY,
    TodoItem,
    TodoStatus,
    ToolCompleted,
    ToolError,
    ToolPending,
    ToolRunning,
    exit_code_of,
    working_time,
)

FINISH_TOOL = "finish"
"""Ends an agent that works with others; its `message` is the agent's answer and is shown as text."""

_CALL_KINDS: tuple[CallKind, ...] = get_args(CallKind)
# Parameters that identify a call, in the order in which a reader looks for them.
_SUBJECTS = (
    "description",
    "file_path",
    "path",
    "pattern",
    "command",
    "url",
    "query",
    "name",
    "agent_name",
    "question",
    "message",
)
# Arguments that the diff of a planned change shows.
_DIFF_ARGUMENTS: dict[str, frozenset[str]] = {
    "apply_patch": frozenset({"patch", "input"}),
    "edit": frozenset({"file_path", "old_string", "new_string"}),
    "write": frozenset({"file_path", "content"}),
}
_PLAIN_ARGUMENTS = frozenset({"command", "patch", "input"})


StatusTone = Literal["quiet", "accent", "good", "warn", "bad"]
_MIN_SHOWN_MILLISECONDS = 500


class CallOutcome(msgspec.Struct, frozen=True):
    """The summary of a call that has ended, for its line in a front end.

    - `exit_code`: the exit code of a command.
    - `lines_added`: the number of lines that the call added to files.
    - `lines_removed`: the number of lines that the call removed from files.
    - `milliseconds`: how long the call worked, without waits for an approval.
    - `error_reason`: why the call ended in an error.
    - `error`: the message of the error.
    """

    exit_code: int | None = None
    lines_added: int | None = None
    lines_removed: int | None = None
    milliseconds: int | None = None
    error_reason: str = ""
    error: str = ""


def call_kind(part: ToolPart) -> CallKind:
    """Returns how the call is shown: as its tool declared when it ran, else as declared for the name of the tool."""
    declared_kind = part.metadata.get(DISPLAY)
    for kind in _CALL_KINDS:
        if kind == declared_kind:
            return kind
    return declaration_of(part.tool).display


def has_output_for_people(part: ToolPart) -> bool:
    """Returns whether the output is worth showing by default; the output of tools that read is for the model."""
    return part.tool != "process" and call_kind(part) not in ("read", "search", "fetch")


def call_input(part: ToolPart, raw_input: str = "") -> dict[str, Any]:
    """Returns the arguments of a call; while the model is still writing them, those that can be read so far."""
    if part.state.input:
        return part.state.input
    text = raw_input or (part.state.raw if isinstance(part.state, ToolPending) else "")
    return parse_partial_object(text) if text else {}


def subject_line(tool: str, arguments: Mapping[str, Any], *, limit: int = 400) -> str:
    """Returns the few words that distinguish this call from others of the same tool, on one line."""
    match tool:
        case "grep" | "glob":
            location = arguments.get("path") or arguments.get("include") or ""
            subject = f"{arguments.get('pattern', '')}{f' in {location}' if location else ''}"
        case "call_agent":
            subject = f"{arguments.get('agent_name', '')}: {arguments.get('message', '')}"
        case "process":
            subject = " ".join(str(value) for value in arguments.values() if isinstance(value, str | int))
        case "apply_patch":
            subject = ", ".join(file.path for file in preview_patch(patch_argument(arguments)))
        case "todo":
            items = arguments.get("todos")
            subject = format_count(len(items), "item") if isinstance(items, list) else ""  # pyright: ignore[reportUnknownArgumentType]
        case _:
            argument = next((arguments[name] for name in _SUBJECTS if arguments.get(name)), None)
            subject = str(argument) if argument is not None else compact_arguments(arguments)
    return clean_line(subject, limit)


def call_title(tool: str, arguments: Mapping[str, Any], *, limit: int = 200) -> str:
    """Returns one line for lists of calls: the command of a shell call, otherwise the tool and its subject."""
    if tool == "shell" and arguments.get("command"):
        return shorten(clean_line(str(arguments["command"]), limit * 2), limit)
    return shorten(f"{clean_line(tool, 60)} {subject_line(tool, arguments, limit=limit * 2)}".strip(), limit)


def call_changes(part: ToolPart) -> list[FileDiff]:
    """Returns the files that a call has changed if it has ended, else those that it is about to change."""
    if isinstance(part.state, ToolCompleted):
        diff = part.state.metadata.get("diff")
        return parse_unified_diff(diff) if isinstance(diff, str) else []
    return planned_changes(part.tool, call_input(part))


def planned_changes(tool: str, arguments: Mapping[str, Any]) -> list[FileDiff]:
    """Returns the files that a call of a built-in edit tool would change, read from its arguments. Empty for a patch
    that a diff would not show completely: then show the arguments."""
    path = str(arguments.get("file_path") or "")
    match tool:
        case "edit" if "old_string" in arguments or "new_string" in arguments:
            old, new = str(arguments.get("old_string") or ""), str(arguments.get("new_string") or "")
            return [replacement_diff(path, old, new)]
        case "write" if "content" in arguments:
            return [replacement_diff(path, "", str(arguments["content"]), creates=True)]
        case "apply_patch":
            patch = patch_argument(arguments)
            return preview_patch(patch) if is_complete_patch(patch) else []
        case _:
            return []


def other_arguments(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call that the diff of its planned changes does not show."""
    in_diff = _DIFF_ARGUMENTS.get(tool, frozenset()) if planned_changes(tool, arguments) else frozenset[str]()
    return {name: value for name, value in arguments.items() if name not in in_diff}


def input_text(tool: str, arguments: Mapping[str, Any]) -> str:
    """Returns all arguments that no diff shows: a command or a patch unchanged, everything else as JSON."""
    arguments_left = other_arguments(tool, arguments)
    name = next(
        (name for name in arguments_left if name in _PLAIN_ARGUMENTS and isinstance(arguments_left[name], str)), None
    )
    sections = [arguments_left.pop(name)] if name is not None else []
    if tool == "shell":
        arguments_left.pop("description", None)  # the subject of the call
    if arguments_left:
        sections.append(msgspec.json.format(msgspec.json.encode(arguments_left, enc_hook=str), indent=2).decode())
    return "\n".join(sections)


def patch_argument(arguments: Mapping[str, Any]) -> str:
    return str(arguments.get("patch", arguments.get("input", "")))


def call_outcome(part: ToolPart) -> CallOutcome:
    match part.state:
        case ToolCompleted(metadata=metadata):
            return CallOutcome(
                exit_code=exit_code_of(part.state),
                lines_added=_integer(metadata.get("added")),
                lines_removed=_integer(metadata.get("removed")),
                milliseconds=working_time(part.state),
            )
        case ToolError(error=error, reason=reason):
            return CallOutcome(milliseconds=working_time(part.state), error_reason=reason, error=error)
        case ToolPending() | ToolRunning():
            return CallOutcome()


def truncated_lines(part: ToolPart) -> int:
    """Returns the number of lines of an output before it was shortened for the model, or 0 if it is complete."""
    truncated = part.state.metadata.get("truncated") if isinstance(part.state, ToolCompleted) else None
    return _integer(cast("dict[str, Any]", truncated).get("lines")) or 0 if isinstance(truncated, dict) else 0


class StatusFact(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fact about the status of a call. `joined`: it continues the fact before it, without a dot between them."""

    text: str
    tone: StatusTone = "quiet"
    joined: bool = False


def call_status(part: ToolPart) -> tuple[StatusFact, ...]:
    """Returns the status of a call as every front end shows it: one of the six words of `DisplayStatus`, then the exit
    code or the reason of an error, changed lines, the duration, and whether it waits for approval."""
    outcome = call_outcome(part)
    facts = [
        StatusFact(part.display_status, status_tone(part)),
        *ending_facts(outcome.exit_code, outcome.error_reason, part.display_status),
    ]
    if outcome.lines_added:
        facts.append(StatusFact(f"+{outcome.lines_added}", "good"))
    if outcome.lines_removed:
        facts.append(StatusFact(f"−{outcome.lines_removed}", "bad", joined=bool(outcome.lines_added)))
    if outcome.milliseconds is not None and outcome.milliseconds >= _MIN_SHOWN_MILLISECONDS:
        facts.append(StatusFact(format_milliseconds(outcome.milliseconds)))
    if waits_for_approval(part):
        facts.append(StatusFact("needs approval", "warn"))
    return tuple(facts)


def ending_facts(exit_code: int | None, reason: str, status: DisplayStatus) -> Iterator[StatusFact]:
    """Yields how a call ended, if its status does not show that."""
    if exit_code:
        yield StatusFact(f"exit code {exit_code}", "warn")
    if reason not in ("", "failed", status):
        yield StatusFact(reason.replace("_", " "))


def status_tone(part: ToolPart) -> StatusTone:
    """Returns how the status of a call is emphasized; a command with an exit code above 0 is done, but worth a look."""
    return "warn" if call_outcome(part).exit_code else _STATUS_TONES[part.display_status]


def status_text(facts: Iterable[StatusFact]) -> str:
    """Returns the facts on one line: `done · exit code 3 · 900ms`."""
    text = ""
    for fact in facts:
        text += f"{'' if not text else ' ' if fact.joined else ' · '}{fact.text}"
    return text


def call_mark(part: ToolPart) -> str:
    """Returns the mark of a call in plain output; a command with an exit code above 0 is not marked as a success."""
    return "!" if call_outcome(part).exit_code else _STATUS_MARKS[part.display_status][0]


def coloured_mark(part: ToolPart) -> str:
    """Returns the mark of a call for coloured output, where the colour of its `status_tone` shows how it ended."""
    return _STATUS_MARKS[part.display_status][1]


def call_line(part: ToolPart, title: str, detail: str = "") -> str:
    """Returns one line about a call for plain output: a mark, the title, its status and a detail such as the error. For
    a call that is done, the mark replaces the status."""
    facts = call_status(part)
    status = status_text(facts[1:] if part.display_status == "done" else facts)
    line = f"{call_mark(part)} {title}{f' · {status}' if status else ''}"
    return f"{line}: {detail}" if detail else line


def call_todos(part: ToolPart) -> tuple[TodoItem, ...] | None:
    """Returns the task list that a call has stored; None if it stored none."""
    todos = part.state.metadata.get("todos") if isinstance(part.state, ToolCompleted) else None
    if not isinstance(todos, list | tuple):
        return None
    items: list[TodoItem] = []
    for todo in todos:  # pyright: ignore[reportUnknownVariableType]
        try:
            items.append(msgspec.convert(todo, TodoItem, strict=False))
        except msgspec.ValidationError:
            content = todo.get("content", todo) if isinstance(todo, dict) else todo  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            items.append(TodoItem(clean_line(str(content))))  # pyright: ignore[reportUnknownArgumentType]
    return tuple(items)


def final_answer(part: ToolPart, raw_input: str = "") -> str | None:
    """Returns the answer in a call of `finish`; None for every other call."""
    return str(call_input(part, raw_input).get("message") or "") if part.tool == FINISH_TOOL else None


def waits_for_approval(part: ToolPart) -> bool:
    return isinstance(part.state, ToolPending) and part.state.phase == "awaiting_approval"


_STATUS_MARKS: dict[DisplayStatus, tuple[str, str]] = {  # in plain output, and in colour
    "generating": ("…", "◌"),
    "generated": ("…", "○"),
    "calling": ("·", "●"),
    "done": ("✓", "●"),
    "canceled": ("⊘", "⊘"),
    "errored": ("✗", "✗"),
}
TODO_MARKS: dict[TodoStatus, tuple[str, StatusTone]] = {
    "pending": ("○", "quiet"),
    "in_progress": ("◐", "accent"),
    "completed": ("●", "good"),
    "cancelled": ("⊘", "quiet"),
}
"""The mark of an entry of a task list, and its tone."""
_STATUS_TONES: dict[DisplayStatus, StatusTone] = {
    "generating": "quiet",
    "generated": "quiet",
    "calling": "accent",
    "done": "good",
    "canceled": "warn",
    "errored": "bad",
}


def compact_arguments(arguments: Mapping[str, Any]) -> str:
    """Returns `name=value, other=value`; a list is shown as its length."""
    return ", ".join(f"{name}={_compact(value)}" for name, value in arguments.items())


def _compact(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return f"[{len(value)}]"  # pyright: ignore[reportUnknownArgumentType]
    return msgspec.json.encode(value, enc_hook=str).decode()


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class VendorToolUse(msgspec.Struct, frozen=True):
    """A call or a result of a tool that the vendor ran: one line, and Markdown with the details."""

    title: str
    body: str = ""


_SHOWN_SOURCES = 20
_SHOWN_OUTPUT = 20_000  # characters


def vendor_tool_use(state: Mapping[str, Any]) -> VendorToolUse | None:
    """Describes the opaque vendor block that a reasoning part holds; returns None if it does not belong to a tool."""
    match state:
        case {"block": {"type": "server_tool_use" | "mcp_tool_use", "name": str(name)} as block}:
            return _vendor_call(name, block.get("input"))
        case {"block": {"type": str(kind)} as block} if kind.endswith("_tool_result"):
            return _vendor_result(kind.removesuffix("_tool_result"), block.get("content"))
        case {"item": {"type": "code_interpreter_call"} as item}:
            return _vendor_result("code_interpreter", item.get("outputs"), str(item.get("code") or ""))
        case {"item": {"type": str(kind)} as item} if kind.endswith("_call"):
            return _vendor_call(kind.removesuffix("_call"), item.get("action") or item.get("arguments") or item)
        case {"part": {**part}}:
            return _gemini_tool_use(part)
        case {"grounding": grounding}:
            return _vendor_result("web_search", grounding)
        case _:
            return None


def _gemini_tool_use(part: Mapping[str, Any]) -> VendorToolUse | None:
    match part:
        case {"executableCode": {"code": str(code)}}:
            return _vendor_call("code_execution", {"code": code})
        case {"codeExecutionResult": result}:
            return _vendor_result("code_execution", result)
        case {"toolCall": {"toolType": str(name)} as call}:
            return _vendor_call(name.lower(), call.get("args"))
        case {"toolResponse": {"toolType": str(name)} as response}:
            return _vendor_result(name.lower(), response.get("response"))
        case _:
            return None


def _vendor_call(name: str, arguments: Any) -> VendorToolUse:
    subject = next(_find_texts(arguments, ("query", "queries", "code", "command", "url", "pattern")), "")
    body = _fence(subject) if "\n" in subject.strip() else ""
    first_line = subject.strip().partition("\n")[0]
    return VendorToolUse(clean_line(f"{name}: {first_line}" if first_line else name, 200), body)


def _vendor_result(name: str, content: Any, code: str = "") -> VendorToolUse:
    errors = list(_find_texts(content, ("error_code", "error_message")))
    sources = list(dict.fromkeys(_find_sources(content)))
    output = "\n".join(_find_texts(content, ("stdout", "stderr", "output", "logs"))).strip()
    if errors:
        text = f"{name} failed: {errors[0]}"
    elif sources:
        queries = ", ".join(_find_texts(content, ("webSearchQueries",)))
        text = f"{name}{f': {queries}' if queries else ''}: {len(sources)} sources"
    else:
        text = f"{name}: {code.strip().partition(chr(10))[0]}" if code else f"{name}: done"
    blocks = [_fence(section) for section in (code, output) if section.strip()]
    blocks += ["\n".join(f"- {source}" for source in sources[:_SHOWN_SOURCES])] if sources else []
    return VendorToolUse(clean_line(text, 200), "\n\n".join(blocks))


def _find_sources(value: Any) -> Iterator[str]:
    """Yields title and address of every page in a result."""
    for source in _find_objects(value):
        url = source.get("url") or source.get("uri")
        if isinstance(url, str) and url.startswith(("https:", "http:")):
            yield clean_line(f"{source.get('title') or ''} {url}".strip(), 300)


def _find_texts(value: Any, names: tuple[str, ...]) -> Iterator[str]:
    """Yields the strings under these names, anywhere in a value; a list of strings is joined."""
    for fields in _find_objects(value):
        for name in names:
            text: Any = fields.get(name)
            if isinstance(text, list) and text and all(isinstance(item, str) for item in cast("list[Any]", text)):
                yield ", ".join(cast("list[str]", text))
            elif isinstance(text, str) and text.strip():
                yield text


def _find_objects(value: Any, depth: int = 6) -> Iterator[dict[str, Any]]:
    values: Iterable[Any] = cast("list[Any]", value) if isinstance(value, list) else ()
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        yield fields
        values = fields.values()
    for item in values if depth else ():
        yield from _find_objects(item, depth - 1)


def _fence(text: str) -> str:
    excerpt = text.strip("\n")[:_SHOWN_OUTPUT].replace("```", "``")
    return f"```\n{excerpt}\n```"
