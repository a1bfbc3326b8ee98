"""What front ends show of stored messages and of events: transcript items, and notices, which are sentences of the
program itself.

`part_item` matches every part kind and `event_notice` every event class, so the type checker reports a new one that no
front end would show."""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, assert_never, cast
from urllib.parse import unquote_to_bytes

import msgspec

from outrider.presentation.formats import (
    clean_line,
    format_bytes,
    format_count,
    format_duration,
    format_elapsed,
    format_milliseconds,
    format_reached_limit,
    format_tokens,
)
from outrider.presentation.tool_calls import vendor_tool_use
from outrider.types.codec import AnyPart, UnknownPart
from outrider.types.events import (
    AgentCalledEvent,
    AgentReturnedEvent,
    BudgetExceededEvent,
    CacheMissEvent,
    ContextCompactionEvent,
    DeltasDroppedEvent,
    ErrorEvent,
    Event,
    FilesRestoredEvent,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    MessageAddedEvent,
    ModelProgressEvent,
    ModelSilentEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    ProcessExitedEvent,
    ProcessOutputEvent,
    ProcessStartedEvent,
    RequestChangedEvent,
    RetryScheduledEvent,
    SessionUpdatedEvent,
    StandardEvent,
    StateChangedEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
    ToolInputDeltaEvent,
    ToolOutputEvent,
    TurnCompletedEvent,
    TurnStartedEvent,
    is_standard_event,
)
from outrider.types.messages import PLAN_ANSWER, Message
from outrider.types.parts import (
    STORED_KINDS,
    AgentPart,
    CompactionPart,
    FilePart,
    Part,
    PatchPart,
    ReasoningPart,
    RetryPart,
    SnapshotPart,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    ToolPart,
    ToolResultPart,
    ToolUsePart,
    is_withdrawn,
)
from outrider.types.tool_state import ToolPending, parse_data_url
from outrider.types.validate import is_object

if TYPE_CHECKING:
    from outrider.sessions.records import SessionTranscript

NoticeLevel = Literal["detail", "info", "success", "warning", "error"]
NoticeTopic = Literal[
    "retry", "limit", "error", "compaction", "agent", "end", "approval", "files", "command", "tool", "mcp", "custom"
]

OtherDisplay = Literal["activity", "message", "call", "approval"]

ABORTED = "aborted"
"""The error type of a message whose turn was aborted by a person."""


STATE_LABELS = {
    "calling_model": "thinking",
    "running_tools": "working",
    "compacting": "summarising",
    "idle": "starting",
}


class Notice(msgspec.Struct, frozen=True):
    """A sentence of the program itself. `body` is Markdown that can be expanded; `detail` notices may be hidden."""

    level: NoticeLevel
    topic: NoticeTopic
    text: str
    body: str = ""


def event_notice(event: Event) -> Notice | None:
    """Returns what to show for an event that no message or part shows; None if there is nothing to add.

    A custom event class, which is unknown here, becomes a `detail` notice with its name.
    """
    if not is_standard_event(event):
        return Notice("detail", "custom", clean_line(event.event_type, 100))
    return _standard_notice(event)


def other_display(event: Event) -> OtherDisplay | None:
    """Returns which other element shows the content of an event's notice. A front end without it shows the notice."""
    match event:
        case RetryScheduledEvent() | ModelSilentEvent():
            return "activity"
        case ContextCompactionEvent() | FilesRestoredEvent():
            return "message"
        case AgentCalledEvent() | AgentReturnedEvent():
            return "call"
        case ToolApprovalRequestedEvent():
            return "approval"
        case _:
            return None


def has_other_display(event: Event) -> bool:
    """Returns whether the activity, a message, a call or an approval shows the content of an event's notice."""
    return other_display(event) is not None


def _standard_notice(event: StandardEvent) -> Notice | None:
    match event:
        case RetryScheduledEvent():
            return retry_notice(event)
        case ModelSilentEvent():
            return Notice("warning", "retry", silence_text(event))
        case BudgetExceededEvent():
            reached = format_reached_limit(event.limit, event.maximum, event.reached)
            return Notice("warning", "limit", clean_line(f"stopped: {reached}; {REMEDIES['LimitReachedError']}"))
        case ContextCompactionEvent():
            return Notice("info", "compaction", compaction_text(event.tokens_before, event.tokens_after))
        case ErrorEvent():
            return Notice("error", "error", error_text(event.error_type, event.message))
        case AgentCalledEvent():
            text = f"{event.agent_name} calls {event.callee}: {event.message}"
            return Notice("info", "agent", clean_line(text))
        case AgentReturnedEvent():
            text = f"{event.callee} {'returned' if event.success else 'failed'}"
            return Notice("detail" if event.success else "warning", "agent", clean_line(text))
        case LoopCompletedEvent():
            return _end_notice(event)
        case ToolApprovalRequestedEvent():
            location = f" at {event.server}" if event.server else ""
            reason = event.description.removeprefix(f"at {event.server}: ")
            text = f"{event.tool_name} waits for approval{location}: {reason}"
            return Notice("warning", "approval", clean_line(text))
        case FilesRestoredEvent():
            return Notice("info", "files", "files were restored")
        case SessionUpdatedEvent(changes={"mcp_servers": [*servers]}):
            return _servers_notice(servers, event.changes.get("wait_seconds"))
        case (
            LoopStartedEvent()
            | TurnStartedEvent()
            | TurnCompletedEvent()
            | StateChangedEvent()
            | LLMRequestEvent()
            | RequestChangedEvent()
            | CacheMissEvent()
            | LLMResponseEvent()
            | ModelProgressEvent()
            | SessionUpdatedEvent()
        ):
            return None  # shown as activity, usage or title
        case (
            MessageAddedEvent()
            | PartUpdatedEvent()
            | PartDeltaEvent()
            | ToolInputDeltaEvent()
            | ToolOutputEvent()
            | ToolExecutionStartedEvent()
            | ToolExecutionCompletedEvent()
            | ToolApprovalResultEvent()
            | ProcessStartedEvent()
            | ProcessOutputEvent()
            | ProcessExitedEvent()
            | DeltasDroppedEvent()
        ):
            return None  # shown by the message, the call or the process that it belongs to
        case _:
            assert_never(event)


def _servers_notice(servers: Sequence[Any], wait_seconds: float | None) -> Notice:
    """Returns a notice that names the MCP servers that cannot be used now and why, or that all servers are ready. With
    `wait_seconds`, the turn waits for those that are connecting."""
    waiting = [server for server in servers if wait_seconds and _is_connecting(server)]
    problems = [text for server in servers if server not in waiting and (text := _server_problem(server))]
    if wait_seconds and waiting:
        names = ", ".join(_server_name(server) for server in waiting)
        problems.insert(0, f"waiting at most {format_duration(wait_seconds)} more for {names}, still connecting")
    if not problems:
        return Notice("info", "mcp", "all MCP servers are ready")
    return Notice("warning", "mcp", clean_line(f"MCP: {'; '.join(problems)}", 1_000))


def _is_connecting(server: Any) -> bool:
    return is_object(server) and server.get("state") == "connecting"


def _server_problem(server: Any) -> str:
    """Returns why a server cannot be used or needs attention; "" for one that is ready."""
    match server:
        case {"name": str() as name, "state": "ready", "changed": [_, *_] as changed}:
            return f"{name} has changed its tools: {', '.join(map(str, changed))}"
        case {"name": str() as name, "state": "ready", "added": [*added], "removed": [*removed]} if added or removed:
            tools_by_change = (("removed", removed), ("new", added))
            changes = [f"{change}: {', '.join(map(str, tools))}" for change, tools in tools_by_change if tools]
            return f"{name} has other tools than before; {'; '.join(changes)}"
        case {"name": str(), "state": "ready"}:
            return ""
        case {"name": str() as name, "state": "connecting"} if not server.get("error"):
            return f"{name} is still connecting; its tools join a later turn"
        case {"name": str() as name, "state": str() as state}:
            return f"{name} is not available ({state}): {server.get('error') or 'no reason is known'}"
        case _:
            return f"{_server_name(server)} is in an unknown state"


def _server_name(server: Any) -> str:
    return str(server.get("name") or "a server") if is_object(server) else "a server"


def state_label(state: str) -> str:
    """Returns what an agent in this state does, in words."""
    return STATE_LABELS.get(state, state.replace("_", " "))


def retry_notice(event: RetryScheduledEvent, wait_ms: int | None = None) -> Notice:
    """Describes a retry. `wait_ms` is the remaining time, for a countdown."""
    withdrawn = "; the text above is withdrawn" if event.withdrawn else ""
    if event.model:
        text = f"the model is not available: {event.error}{withdrawn}; continuing with {event.model}"
        return Notice("warning", "retry", clean_line(text))
    wait = format_milliseconds(event.delay_ms) if wait_ms is None else format_elapsed(ceil(wait_ms / 1000))
    return Notice("warning", "retry", retry_countdown(event).replace(COUNTDOWN, wait, 1))


COUNTDOWN = "{left}"
RETRY_NOW = "sending the request again"


def retry_countdown(event: RetryScheduledEvent) -> str:
    """Returns the text of a wait before a retry. Its first `COUNTDOWN` is to be replaced by the remaining time; the
    error may contain it too."""
    limit = f" of {event.max_attempts}" if event.max_attempts else ""
    withdrawn = "; the text above is withdrawn" if event.withdrawn else ""
    text = f"retrying in {COUNTDOWN}: attempt {event.attempt}{limit} failed: {event.error}{withdrawn}"
    return clean_line(text)


def progress_text(event: ModelProgressEvent) -> str:
    """Returns what a model that runs in this process does before its answer."""
    if event.stage == "loading":
        return "loading the model"
    share = f" {100 * event.done // event.total} %" if event.total else ""
    return f"reading the prompt{share}"


def silence_text(event: ModelSilentEvent) -> str:
    return clean_line(f"no data from {event.model or 'the model'} for {format_elapsed(round(event.silent_ms / 1000))}")


_CONTINUE = 'send "continue" to try again, or choose another model'
REMEDIES = {
    "AuthenticationError": "check the API key of this provider; `outrider doctor` shows which one is used",
    "PermissionRefusedError": "use a key with access to this model, or choose another model",
    "NotFoundError": "choose another model; `outrider models` lists them",
    "InvalidRequestError": "change the settings that the message names, or choose another model",
    "ContextOverflowError": "compact the conversation (/compact) or start a new session (/new)",
    "ContentFilterError": "rephrase the request, or choose another model",
    "QuotaExceededError": "add credit to the account, or choose another model",
    "RateLimitError": _CONTINUE,
    "OverloadedError": _CONTINUE,
    "ServerError": _CONTINUE,
    "NetworkError": _CONTINUE,
    "StalledStreamError": _CONTINUE,
    "MalformedAnswerError": _CONTINUE,
    "LimitReachedError": 'raise the limit, then send "continue"',
    "LeaseLostError": "continue there, or open the session here again (/resume)",
}
"""What to do after an error that ended a turn, by the name of its class."""
_END_REMEDIES = {
    "length": 'send "continue" to get the rest',
    "refusal": "rephrase the request, or choose another model",
    "repetition": "tell the agent what to do differently, or choose another model",
    "empty_answers": _CONTINUE,
    "limit": REMEDIES["LimitReachedError"],
    "aborted": 'send "continue" to resume',
}


_UNFINISHED = frozenset({"error", "limit", "length", "refusal", "aborted", "repetition", "empty_answers"})


def is_unfinished(reason: str | None) -> bool:
    """Returns whether a turn or an answer that ended for this reason can be continued, because its work is not done."""
    return reason in _UNFINISHED


def next_step(reason: str, error_type: str = "") -> str:
    """Returns what to do after a turn that did not complete; "" if nothing is known."""
    return REMEDIES.get(error_type, "") or _END_REMEDIES.get(reason, "")


ERROR_TITLES = {
    "AuthenticationError": "the API key was rejected",
    "PermissionRefusedError": "access was refused",
    "NotFoundError": "not found",
    "InvalidRequestError": "the request was rejected",
    "ContextOverflowError": "the conversation is too long for this model",
    "ContentFilterError": "the provider's content filter stopped the answer",
    "QuotaExceededError": "the quota of the account is used up",
    "RateLimitError": "the rate limit is reached",
    "OverloadedError": "the provider is overloaded",
    "ServerError": "the provider failed",
    "NetworkError": "the connection failed",
    "StalledStreamError": "the model stopped sending",
    "MalformedAnswerError": "the answer could not be read",
}
"""What happened, in words, by the name of the error's class."""


def error_text(error_type: str, message: str) -> str:
    """Returns the text of an error, with the next step for the user if it is known."""
    title = ERROR_TITLES.get(error_type) or ("" if message else _error_words(error_type))
    text, remedy = clean_line(": ".join(filter(None, (title, message))), 2000), REMEDIES.get(error_type)
    return f"{text.rstrip('.')}. {remedy[:1].upper()}{remedy[1:]}" if remedy else text


def _error_words(error_type: str) -> str:
    """Returns the name of an error class in words, for an error without a message: "rate limit error"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", error_type.rpartition(".")[2]).lower() or "unknown error"


def compaction_text(before: int | None, after: int | None) -> str:
    sizes = f" ({format_tokens(before)} → {format_tokens(after)} tokens)" if before and after else ""
    return f"earlier messages were summarised{sizes}"


def compaction_notice(part: CompactionPart) -> Notice:
    text = compaction_text(part.tokens_before, part.tokens_after)
    return Notice("info", "compaction", f"{text}; undone" if not part.summary else text, part.summary)


def compaction_result(*, done: bool) -> Notice | None:
    """Returns the result of a command to compact; None if the message with the summary shows it."""
    return Notice("info", "compaction", "there is nothing to shorten yet") if not done else None


def compaction_undo_result(*, undone: bool) -> Notice:
    text = "the summarised messages are used again" if undone else "no summary is in effect"
    return Notice("success" if undone else "info", "compaction", text)


def plan_notice(message: Message) -> Notice | None:
    """Returns the notice for a message that answers a plan; None for other messages."""
    answer = message.metadata.get(PLAN_ANSWER)
    return Notice("success", "end", f"the plan was {answer}") if answer else None


def damage_notice(kind: str, error: str) -> Notice:
    """Returns the notice for a stored row that cannot be decoded."""
    return Notice("warning", "error", clean_line(f"a damaged {kind} is skipped: {error}"))


def damage_notices(transcript: "SessionTranscript") -> Iterator[Notice]:
    """Yields a notice for each row of a transcript that cannot be decoded; above `MAX_DAMAGE_NOTICES` only their
    number."""
    for row in transcript.damaged[:MAX_DAMAGE_NOTICES]:
        yield damage_notice(row.kind, row.error)
    if further_rows := transcript.damaged[MAX_DAMAGE_NOTICES:]:
        yield Notice("warning", "error", f"{format_count(len(further_rows), 'more damaged row')} skipped")


def message_error_notice(message: Message) -> Notice | None:
    """Returns the notice for an answer that ended with an error or was aborted; None for other messages."""
    error = message.error
    if error is None:
        return None
    if error.type == ABORTED:
        last_error = error.message.partition("; the last error: ")[2]
        return Notice("warning", "end", clean_line(f"interrupted: {last_error}") if last_error else "interrupted")
    return Notice("error", "error", error_text(error.type, error.message))


def _end_notice(event: LoopCompletedEvent) -> Notice | None:
    match event.termination_reason:
        case "length":
            text = 'the answer was cut off: the model\'s output limit is reached; send "continue" to get the rest'
            return Notice("warning", "end", text)
        case "repetition" | "empty_answers":
            return Notice(
                "warning", "end", f"stopped: {clean_line(event.output or 'the model returned empty answers')}"
            )
        case "refusal":
            return Notice("warning", "end", "the model refused to answer; rephrase the request or choose another model")
        case "" | "completed" | "aborted" | "error" | "limit":
            return None  # shown by the answer, by its error or by the event of the limit
        case reason:
            return Notice("warning", "end", f"stopped: {clean_line(reason.replace('_', ' '), 100)}")


LIVE_OUTPUT_LINES = 400
"""Lines of a running call's output that are held in memory; the stored result has all of them."""
_LIVE_LINE_LENGTH = 2000
_COMMAND_OUTPUT = 100_000
MAX_DAMAGE_NOTICES = 20


class BaseItem:
    """Base of all items. `expanded` is what a person chose; None leaves it to the front end's default."""

    def __init__(self, id: str, message_id: str = "") -> None:
        self.id = id
        self.message_id = message_id
        self.version = 0
        self.expanded: bool | None = None
        self.withdrawn = False  # it belongs to a failed attempt and is shown struck out

    def touch(self) -> None:
        self.version += 1

    def toggle(self) -> None:
        self.expanded = not self.expanded
        self.touch()


class UserItem(BaseItem):
    """What a person wrote, with the attached files."""

    def __init__(self, id: str, text: str, files: tuple[FilePart, ...] = (), message_id: str = "") -> None:
        super().__init__(id, message_id)
        self.text = text
        self.files = files


class TextItem(BaseItem):
    """Text of the model; it grows while `streaming`."""

    def __init__(self, id: str, message_id: str = "", text: str = "", *, streaming: bool = True) -> None:
        super().__init__(id, message_id)
        self.text = text
        self.streaming = streaming

    def append(self, delta: str) -> None:
        self.text += delta
        self.touch()

    def finish(self, text: str) -> None:
        self.text = text
        self.streaming = False
        self.touch()


class ReasoningItem(TextItem):
    """Reasoning of the model, collapsed by default."""

    def __init__(self, id: str, message_id: str = "", text: str = "", *, streaming: bool = True) -> None:
        super().__init__(id, message_id, text, streaming=streaming)
        self.seconds: float | None = None


class ToolCallItem(BaseItem):
    """A tool call, from the first streamed character of its input to its end."""

    def __init__(self, part: ToolPart) -> None:
        super().__init__(part.id, part.message_id)
        self.part = part
        self.raw_input = part.state.raw if isinstance(part.state, ToolPending) else ""
        self.live_output: deque[str] = deque([""], maxlen=LIVE_OUTPUT_LINES)
        self.dropped_lines = 0  # of the output, above `live_output`
        self.child_activity = ""  # what the called agent is doing

    def append_input(self, delta: str) -> None:
        self.raw_input += delta
        self.touch()

    def append_output(self, text: str) -> None:
        first_line, *further_lines = text.split("\n")
        self.live_output[-1] = (self.live_output[-1] + first_line)[-_LIVE_LINE_LENGTH:]
        self.dropped_lines += max(len(self.live_output) + len(further_lines) - LIVE_OUTPUT_LINES, 0)
        self.live_output.extend(further_lines)
        self.touch()

    def update(self, part: ToolPart) -> None:
        self.part = part
        self.touch()


class FileItem(BaseItem):
    """A file that the model made, such as an image."""

    def __init__(self, part: FilePart) -> None:
        super().__init__(part.id, part.message_id)
        self.part = part

    def update(self, part: FilePart) -> None:
        self.part = part
        self.touch()


class NoticeItem(BaseItem):
    """A sentence of the program itself; `body` is Markdown that can be expanded."""

    def __init__(self, id: str, notice: Notice, message_id: str = "") -> None:
        super().__init__(id, message_id)
        self.notice = notice

    @property
    def text(self) -> str:
        return self.notice.text

    @property
    def level(self) -> NoticeLevel:
        return self.notice.level

    @property
    def body(self) -> str:
        return self.notice.body

    def update(self, notice: Notice) -> None:
        self.notice = notice
        self.touch()


class CommandItem(BaseItem):
    """A command that the person ran with `!`. `exit_status` is None while it runs, and "" if it is no longer known."""

    def __init__(self, id: str, command: str) -> None:
        super().__init__(id)
        self.command = command
        self.output = ""
        self.exit_status: str | None = None

    def append_output(self, text: str) -> None:
        self.output = (self.output + text)[-_COMMAND_OUTPUT:]
        self.touch()

    def finish(self, exit_status: str) -> None:
        self.exit_status = exit_status
        self.touch()


TranscriptItem = UserItem | TextItem | ReasoningItem | ToolCallItem | FileItem | NoticeItem | CommandItem
"""Every item class. A `match` over it ends with `assert_never`; `ReasoningItem` comes before its base `TextItem`."""


def file_name(part: FilePart) -> str:
    """Returns the name of a file, or its URL, or its media type. The content of a data URL is left out."""
    return clean_line(part.filename or part.url.partition(",")[0] or part.mime, 120)


def file_size(part: FilePart) -> int | None:
    """Returns the size in bytes of a file whose content is in its URL; None for a file that its URL only names."""
    data = parse_data_url(part.url)
    if data is None:
        return None
    return len(data.payload.rstrip("=")) * 3 // 4 if data.is_base64 else len(unquote_to_bytes(data.payload))


def file_summary(part: FilePart) -> str:
    """Returns name, media type and size of a file on one line."""
    size = file_size(part)
    return " · ".join([file_name(part), clean_line(part.mime, 80), *([format_bytes(size)] if size is not None else [])])


def strike_out(text: str) -> str:
    """Marks the text of a withdrawn item as struck out, as Markdown does, for front ends that show plain text or
    Markdown."""
    return "\n".join(f"~~{line}~~" if line.strip() else "" for line in text.splitlines())


def message_items(message: Message) -> Iterator[TranscriptItem]:
    """Yields the items of a stored message."""
    if message.role == "user":
        yield from _user_items(message)
        return
    items: list[TranscriptItem] = []
    for part in message.parts:
        item = part_item(part)
        if item is not None and not merge_retry(items[-1] if items else None, part):
            items.append(item)
    yield from items
    if (notice := message_error_notice(message)) is not None:
        yield NoticeItem(f"{message.id}-error", notice, message.id)


def is_further_attempt(part: AnyPart) -> TypeGuard[RetryPart]:
    """Returns whether the part is a failed attempt that may be shown in the line of the attempt before it. The change
    to another model has a separate line."""
    return isinstance(part, RetryPart) and part.model is None


def merge_retry(last_item: TranscriptItem | None, part: AnyPart) -> bool:
    """Shows a further failed attempt in the line of the attempt before it, and returns True. Returns False if the last
    item is not that attempt."""
    if not is_further_attempt(part) or not isinstance(last_item, NoticeItem):
        return False
    if last_item.notice.topic != "retry" or last_item.message_id != part.message_id:
        return False
    last_item.update(_retry_part_notice(part))
    return True


def _retry_part_notice(part: RetryPart) -> Notice:
    text = f"continued with {part.model}: " if part.model else f"attempt {part.attempt} failed: "
    return Notice("warning", "retry", clean_line(text + part.error))


def part_item(part: AnyPart) -> TranscriptItem | None:
    """Returns the item of a complete part; None for bookkeeping. An unknown kind becomes a `detail` notice."""
    if type(part) not in STORED_KINDS:
        return NoticeItem(part.id, _custom_notice(part), part.message_id)
    item = _standard_item(cast("Part", part))
    if item is not None and is_withdrawn(part):
        item.withdrawn = True
    return item


def _standard_item(part: Part) -> TranscriptItem | None:
    match part:
        case TextPart() if "command" in part.metadata:
            return _command_item(part)
        case TextPart():
            is_visible = not part.synthetic and part.text.strip()
            return TextItem(part.id, part.message_id, part.text, streaming=False) if is_visible else None
        case ReasoningPart():
            return _reasoning_item(part) if part.text.strip() else _vendor_tool_item(part)
        case ToolPart():
            return ToolCallItem(part)
        case FilePart():
            return FileItem(part)
        case RetryPart():
            return NoticeItem(part.id, _retry_part_notice(part), part.message_id)
        case CompactionPart():
            return NoticeItem(part.id, compaction_notice(part), part.message_id)
        case PatchPart():
            return NoticeItem(part.id, Notice("detail", "files", f"changed: {', '.join(part.files)}"), part.message_id)
        case SubtaskPart():
            notice = Notice("detail", "agent", f"{part.agent}: {part.description}", part.prompt)
            return NoticeItem(part.id, notice, part.message_id)
        case StepStartPart() | StepFinishPart() | SnapshotPart() | AgentPart():
            return None
        case _:
            assert_never(part)


def vendor_tool_notice(part: ReasoningPart) -> Notice | None:
    """Returns the notice about a tool that the vendor ran; None for reasoning."""
    used = vendor_tool_use(part.provider_state)
    return Notice("info", "tool", used.title, used.body) if used is not None else None


def _vendor_tool_item(part: ReasoningPart) -> NoticeItem | None:
    notice = vendor_tool_notice(part)
    return NoticeItem(part.id, notice, part.message_id) if notice is not None else None


def _reasoning_item(part: ReasoningPart) -> ReasoningItem:
    item = ReasoningItem(part.id, part.message_id, part.text, streaming=False)
    if part.time is not None and part.time.end is not None:
        item.seconds = (part.time.end - part.time.start) / 1000
    return item


def _user_items(message: Message) -> Iterator[TranscriptItem]:
    """Text and files are one item; the other parts are shown as in an answer, custom ones at the end."""
    if (notice := plan_notice(message)) is not None:
        yield NoticeItem(f"{message.id}-plan", notice, message.id)
    custom: list[TranscriptItem] = []
    for part in message.parts:
        if isinstance(part, ToolUsePart | ToolResultPart | FilePart) or _is_user_text(part):
            continue
        if (item := part_item(part)) is not None and type(part) in STORED_KINDS:
            yield item
        elif item is not None:
            custom.append(item)
    files = tuple(message.get_parts_by_type(FilePart))
    text = "\n".join(part.text for part in message.get_parts_by_type(TextPart) if not part.synthetic)
    if text.strip() or files:
        yield UserItem(message.id, text, files, message.id)
    yield from custom


def _is_user_text(part: AnyPart) -> bool:
    return isinstance(part, TextPart) and "command" not in part.metadata


def _command_item(part: TextPart) -> CommandItem:
    item = CommandItem(part.id, str(part.metadata["command"]))
    item.message_id = part.message_id
    item.output = str(part.metadata.get("output", ""))
    item.exit_status = ""
    return item


def _custom_notice(part: AnyPart) -> Notice:
    """Returns the notice about a part of a custom kind. If a model sees the part, the notice has the text that the
    model reads."""
    convert = None if isinstance(part, UnknownPart) else getattr(part, "to_api_format", None)
    try:
        block = convert() if convert else None
    except Exception:  # noqa: BLE001  user code may raise anything
        block = None
    if not is_object(block):
        return Notice("detail", "custom", part.type or "part", _as_code(part))
    text = block.get("text")
    return Notice("info", "custom", clean_line(text, 400) if isinstance(text, str) else part.type, _as_code(part))


def _as_code(part: AnyPart) -> str:
    text = msgspec.json.format(msgspec.json.encode(part.to_dict(), enc_hook=str), indent=2).decode()
    return f"```json\n{text}\n```"
