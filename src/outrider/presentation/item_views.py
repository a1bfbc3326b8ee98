"""Transcript items and results as values for front ends that receive JSON, such as the page: what to show, computed."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Literal, assert_never

import msgspec

from outrider.presentation.diffs import DiffRow, diff_rows, group_git_files, parse_unified_diff
from outrider.presentation.formats import (
    clean_line,
    format_cost,
    format_duration,
    format_milliseconds,
    format_tokens,
    format_total_cost,
    shorten,
)
from outrider.presentation.items import (
    CommandItem,
    FileItem,
    Notice,
    NoticeItem,
    NoticeLevel,
    ReasoningItem,
    TextItem,
    ToolCallItem,
    TranscriptItem,
    UserItem,
    file_summary,
    is_further_attempt,
    is_unfinished,
    message_error_notice,
    part_item,
    plan_notice,
)
from outrider.presentation.tool_calls import (
    StatusFact,
    call_changes,
    call_input,
    call_outcome,
    call_status,
    call_todos,
    final_answer,
    input_text,
    status_text,
    subject_line,
)
from outrider.sessions.snapshots.restore import FileAction
from outrider.types.codec import AnyPart
from outrider.types.messages import Message
from outrider.types.parts import DisplayStatus, SubtaskPart, Tokens
from outrider.types.tool_state import TodoItem

ItemKind = Literal["user", "text", "reasoning", "call", "file", "notice", "command", "agent"]
MAX_INPUT, MAX_DIFF = 100_000, 100_000  # characters
_STREAMED_INPUT = 2_000  # characters of an input that the model is still writing


class ItemView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to show of a part. Every kind can be drawn from `title`, `subject`, `status_text` and the longer texts, so a
    client can show kinds that it does not know.

    - `kind`: what the item is.
    - `title`: the name of a tool, of an agent or of the topic.
    - `subject`: what distinguishes the item from others with this title, on one line.
    - `level`: how important a notice is.
    - `status`: the state of a call.
    - `status_text`: the status of a call in words.
    - `status_facts`: the facts of `status_text`, each with a tone.
    - `duration`: how long a call worked.
    - `input`: the arguments of a call that neither `diff` nor `todos` shows.
    - `diff`: what a call changes.
    - `todos`: the task list that a call has stored.
    - `output`: the output of a command of the user. A call has its output and its error in the state of its part.
    - `body`: Markdown that replaces the part's `text`, which is shown if this is None.
    - `withdrawn`: the item belongs to a failed attempt and is shown struck out.
    - `unfinished`: the call was cut off, so the answer is not complete.
    - `merges`: the notice replaces a notice with the same title that is directly before it in its message.
    - `child_session_id`: the session of a called agent.
    """

    kind: ItemKind
    title: str = ""
    subject: str = ""
    level: NoticeLevel | None = None
    status: DisplayStatus | None = None
    status_text: str = ""
    status_facts: tuple[StatusFact, ...] = ()
    duration: str = ""
    input: str = ""
    diff: tuple[DiffRow, ...] = ()
    todos: tuple[TodoItem, ...] = ()
    output: str = ""
    body: str | None = None
    withdrawn: bool = False
    unfinished: bool = False
    merges: bool = False
    child_session_id: str = ""


class MessageView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to show of a message besides its parts: how a plan was answered, how the answer failed, how long it took,
    and whether it is not complete."""

    notices: tuple[Notice, ...] = ()
    duration: str = ""
    unfinished: bool = False


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and cost as formatted strings."""

    tokens: str
    tokens_in: str
    tokens_out: str
    cost: str


class RunView(msgspec.Struct, frozen=True):
    """Figures of a background run as formatted strings; empty before they are known."""

    duration: str = ""
    tokens: str = ""
    cost: str = ""


def part_view(part: AnyPart) -> ItemView | None:
    """Returns what to show of a part; None for bookkeeping."""
    if isinstance(part, SubtaskPart) and part.child_session_id:
        return ItemView(
            kind="agent",
            title=part.agent,
            subject=shorten(part.description or part.prompt or "", 400),
            child_session_id=part.child_session_id,
        )
    item = part_item(part)
    if item is None:
        return None
    return msgspec.structs.replace(item_view(item), withdrawn=item.withdrawn, merges=is_further_attempt(part))


def item_view(item: TranscriptItem) -> ItemView:
    match item:
        case UserItem():
            return ItemView(kind="user", body=item.text)
        case ReasoningItem():
            duration = f" for {format_duration(item.seconds)}" if item.seconds else ""
            return ItemView(kind="reasoning", title=f"thought{duration}")
        case TextItem():
            return ItemView(kind="text")
        case ToolCallItem():
            return _call_view(item)
        case FileItem():
            return ItemView(kind="file", title="file", subject=file_summary(item.part))
        case NoticeItem():
            return ItemView(
                kind="notice", title=item.notice.topic, subject=item.text, level=item.level, body=item.body or None
            )
        case CommandItem():
            return ItemView(kind="command", title="!", subject=item.command, output=item.output)
        case _:
            assert_never(item)


def _call_view(item: ToolCallItem) -> ItemView:
    part = item.part
    if part.display_status == "done" and (answer := final_answer(part)) is not None:
        return ItemView(kind="text", body=answer)
    facts = call_status(part)
    view = ItemView(
        kind="call",
        title=part.tool,
        status=part.display_status,
        status_text=status_text(facts),
        status_facts=facts,
    )
    if part.display_status == "generating":
        return msgspec.structs.replace(view, input=item.raw_input[-_STREAMED_INPUT:])
    arguments, todos, outcome = call_input(part), call_todos(part), call_outcome(part)
    milliseconds = outcome.milliseconds
    return msgspec.structs.replace(
        view,
        subject=subject_line(part.tool, arguments),
        duration=format_milliseconds(milliseconds) if milliseconds is not None else "",
        input="" if todos is not None else input_text(part.tool, arguments)[:MAX_INPUT],
        diff=tuple(diff_rows(call_changes(part), MAX_DIFF)),
        todos=todos or (),
        unfinished=not item.withdrawn and outcome.error_reason in ("canceled", "interrupted"),
    )


def message_view(message: Message) -> MessageView:
    notices = (plan_notice(message), message_error_notice(message))
    time = message.time
    return MessageView(
        notices=tuple(notice for notice in notices if notice is not None),
        duration=format_milliseconds(time.completed - time.created) if time and time.completed else "",
        unfinished=message.role == "assistant" and is_unfinished(message.finish),
    )


def usage_view(tokens: Tokens, cost: Decimal | None, *, unpriced: int = 0) -> UsageView:
    """Returns usage as strings. `unpriced` is the number of answers whose cost is not known."""
    return UsageView(
        tokens=format_tokens(tokens.total),
        tokens_in=format_tokens(tokens.prompt),
        tokens_out=format_tokens(tokens.output + tokens.reasoning),
        cost=format_total_cost(cost, unpriced),
    )


def run_view(tokens: Tokens, cost: Decimal | None, milliseconds: int | None) -> RunView:
    duration = format_milliseconds(milliseconds) if milliseconds is not None else ""
    return RunView(duration, format_tokens(tokens.total), format_cost(cost))


def unified_diff_rows(text: str) -> tuple[DiffRow, ...]:
    return tuple(diff_rows(parse_unified_diff(text), MAX_DIFF))


_RESTORE_TEXTS = {
    "create": ("would be created again", "created again"),
    "change": ("would be restored", "restored"),
    "delete": ("would be deleted", "deleted"),
    "conflict": (
        "was changed outside the session since, and would be left as it is",
        "changed outside the session since, left as it is",
    ),
    "doubtful": (
        "may not have been changed by an agent, and would be left as it is",
        "may not be an agent's change, left as it is",
    ),
}
NO_BACKUP = "may have been changed too, but has no backup"


def restore_text(action: FileAction, *, preview: bool = False) -> str:
    """Returns what an undo or redo does to a file; "" for nothing."""
    return _RESTORE_TEXTS.get(action.action, ("", ""))[0 if preview else 1]


def restore_notice(
    actions: Iterable[FileAction], *, uncovered: Sequence[str] = (), off: str = "", preview: bool = False
) -> Notice:
    """Returns the notice about the result of an undo or redo: what happened to which files, and why the other files
    stay unchanged."""
    if off:
        return Notice("warning", "files", off)
    paths: dict[str, list[str]] = {}
    level: NoticeLevel = "warning" if uncovered else "success"
    for action in actions:
        if text := restore_text(action, preview=preview):
            paths.setdefault(text, []).append(action.path)
            level = "warning" if action.action in ("conflict", "doubtful") else level
    if uncovered:
        paths[NO_BACKUP] = list(uncovered)
    if not paths:
        return Notice("info", "files", "there is nothing to change")
    groups = (f"{text}: {', '.join(group_git_files(names))}" for text, names in paths.items())
    return Notice(level, "files", clean_line("; ".join(groups), 2000))
