"""The stream-json format of `outrider run`: one JSON object per event. docs/stream-json.md describes it, and
docs/stream-json.schema.json is its JSON schema."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, assert_never

import msgspec

from outrider.cli.commands.run_input import InputCommand, decode_native_line
from outrider.cli.commands.run_output import (
    OUTPUT_VERSION,
    HeadlessResult,
    RunInfo,
    StdoutPipe,
    encode_json_line,
    encode_usage,
)
from outrider.presentation.approvals import approval_fields, requested_approval_view
from outrider.presentation.items import file_size
from outrider.presentation.tool_calls import vendor_tool_use
from outrider.presentation.turn_updates import CallEnded, CallReporter, CallStarted
from outrider.types.codec import AnyPart
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
from outrider.types.ids import now_ms
from outrider.types.parts import (
    AgentPart,
    AnswerPart,
    CompactionPart,
    FilePart,
    PartBase,
    PatchPart,
    ReasoningPart,
    RecordPart,
    RetryPart,
    SnapshotPart,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    ToolPart,
    is_standard_part,
    is_withdrawn,
)
from outrider.types.tool_state import ToolError, working_time

_COMMON_EVENT_FIELDS = frozenset({"type", *Event.__struct_fields__})
_COMMON_PART_FIELDS = frozenset({"type", *PartBase.__struct_fields__})
_FINISHES = frozenset({"stop", "tool_use", "length", "refusal", "other", "aborted"})
MAX_REPEATED_INPUT = 200  # characters of a refused input line that are repeated in the error

OutputLine = dict[str, Any]


class CollectedAnswer(msgspec.Struct, frozen=True):
    """A complete answer of a model: its message id and its parts in the order in which they began."""

    message_id: str
    parts: tuple[AnswerPart, ...]


class AnswerCollector:
    """Collects the parts of each session's current answer until its step ends. Events of a call that arrive later are
    ignored: they belong to an answer that was already returned."""

    def __init__(self) -> None:
        self._open: dict[str, dict[str, AnswerPart | None]] = {}
        self._ids: dict[str, str] = {}
        self._closed: set[str] = set()

    def on_event(self, event: Event) -> None:
        match event:
            case MessageAddedEvent(role="user"):
                self._closed.add(event.message_id)
            case PartDeltaEvent() | ToolInputDeltaEvent():
                self._add_part(event.session_id, event.message_id, event.part_id, None)
            case PartUpdatedEvent(part=part) if is_standard_part(part):
                match part:
                    case TextPart() | ReasoningPart() | ToolPart() | FilePart():
                        self._add_part(event.session_id, part.message_id or "", part.id, part)
                    case _:
                        _ignored: RecordPart = part
            case RetryScheduledEvent():
                for part_id in event.withdrawn:
                    self._open.get(event.session_id, {}).pop(part_id, None)
            case _:
                pass  # not about a part of an answer

    def close_answer(self, session_id: str) -> CollectedAnswer:
        """Returns the answer of a step that has ended."""
        message_id, parts = self._ids.pop(session_id, ""), self._open.pop(session_id, {})
        self._closed.add(message_id)
        return CollectedAnswer(message_id, tuple(part for part in parts.values() if part and is_shown(part)))

    def _add_part(self, session_id: str, message_id: str, part_id: str, part: AnswerPart | None) -> None:
        if not message_id or message_id in self._closed:
            return
        if self._ids.get(session_id) != message_id:
            self._ids[session_id], self._open[session_id] = message_id, {}
        parts = self._open[session_id]
        parts[part_id] = part or parts.get(part_id)


def is_shown(part: AnswerPart) -> bool:
    """Returns whether a part belongs to the answer: it was not withdrawn, and the model wrote it."""
    if is_withdrawn(part):
        return False
    if isinstance(part, ReasoningPart):
        return bool(part.text.strip()) or vendor_tool_use(part.provider_state) is not None
    return not (isinstance(part, TextPart) and (part.synthetic or part.ignored or not part.text))


class SessionTree:
    """The agent of each session, and the call that opened the session. Part updates contain neither."""

    def __init__(self) -> None:
        self._agents: dict[str, str] = {}
        self._callers: dict[str, str] = {}

    def on_event(self, event: Event) -> None:
        if event.agent_name:
            self._agents[event.session_id] = event.agent_name
        if isinstance(event, AgentCalledEvent) and event.child_session_id:
            self._callers[event.child_session_id] = event.call_id

    def agent_of(self, session_id: str) -> str:
        return self._agents.get(session_id, "")

    def parent_call(self, event: Event) -> str:
        """Returns the id of the call that opened the session of the event; "" for the session of the run."""
        return self._callers.get(event.session_id, "")


class StreamEventEncoder:
    """Converts events to stream-json objects. A part is updated several times, so the ids of reported calls and texts
    are stored. Without `deltas`, only complete messages and results have a line, chunks do not."""

    def __init__(self, *, deltas: bool = True) -> None:
        self._deltas = deltas
        self._sessions = SessionTree()
        self._answers = AnswerCollector()
        self._calls = CallReporter()
        self._reported_parts: set[str] = set()  # texts of which a chunk was reported, and files
        self._time = 0

    def encode_event(self, event: Event) -> Iterator[OutputLine]:
        self._sessions.on_event(event)
        self._answers.on_event(event)
        parent = self._sessions.parent_call(event)
        for kind, fields in self._event_lines(event):
            yield {
                "type": kind,
                "session_id": event.session_id,
                "agent": self._sessions.agent_of(event.session_id),
                "time": self.next_time(event.timestamp),
                **({"parent_call_id": parent} if parent else {}),
                **fields,
            }

    def next_time(self, timestamp: int) -> int:
        """Returns a time that is not before that of the last line: an event is created before it is stored."""
        self._time = max(self._time, timestamp)
        return self._time

    def _event_lines(self, event: Event) -> Iterable[tuple[str, OutputLine]]:
        if is_standard_event(event):
            return self._standard_lines(event)
        fields = {name: value for name, value in event.to_dict().items() if name not in _COMMON_EVENT_FIELDS}
        return [("event", {"name": event.event_type, "data": fields})]

    def _standard_lines(self, event: StandardEvent) -> Iterable[tuple[str, OutputLine]]:
        """Returns the objects of an event; docs/stream-json.md lists them."""
        match event:
            case PartDeltaEvent():
                self._reported_parts.add(event.part_id)
                return self._delta_lines(event)
            case PartUpdatedEvent():
                return self._part_lines(event.part)
            case ToolOutputEvent():
                fields = {"call_id": event.call_id, "tool": event.tool_name, "text": event.output}
                return [("tool_output", fields)] if self._deltas else []
            case LLMResponseEvent():
                return self._step_lines(event)
            case AgentCalledEvent():
                fields = {"call_id": event.call_id, "callee": event.callee, "message": event.message}
                return [("agent_call", {**fields, "child_session_id": event.child_session_id})]
            case AgentReturnedEvent():
                result = {"output": event.output, "is_error": not event.success, "duration_ms": event.duration_ms}
                agent = {"callee": event.callee, "child_session_id": event.child_session_id}
                return [("agent_return", {"call_id": event.call_id, **agent, **result})]
            case RetryScheduledEvent():
                return [("retry", _retry_fields(event))]
            case ModelSilentEvent():
                return [("silent", {"silent_ms": event.silent_ms, "model": event.model})]
            case ContextCompactionEvent():
                return [("compaction", {"tokens_before": event.tokens_before, "tokens_after": event.tokens_after})]
            case BudgetExceededEvent():
                return [("limit", {"limit": event.limit, "maximum": event.maximum})]
            case ErrorEvent():
                return [("error", {"error_type": event.error_type, "message": event.message})]
            case ToolApprovalRequestedEvent():
                return [("approval_request", approval_line(event))]
            case ToolApprovalResultEvent():
                answer = {"approved": event.approved, "scope": event.scope, "answered_by": event.answered_by}
                return [("approval_result", {"approval_id": event.approval_id, "tool": event.tool_name, **answer})]
            case SessionUpdatedEvent():
                return _update_lines(event)
            case (
                LoopStartedEvent()
                | LoopCompletedEvent()
                | TurnStartedEvent()
                | TurnCompletedEvent()
                | StateChangedEvent()
                | LLMRequestEvent()
                | RequestChangedEvent()
                | CacheMissEvent()
                | ModelProgressEvent()
                | DeltasDroppedEvent()
            ):
                return ()  # `start`, `step` and `result` report a run and its steps
            case (
                MessageAddedEvent()
                | ToolInputDeltaEvent()
                | ToolExecutionStartedEvent()
                | ToolExecutionCompletedEvent()
                | ProcessStartedEvent()
                | ProcessOutputEvent()
                | ProcessExitedEvent()
                | FilesRestoredEvent()
            ):
                return ()  # the lines of the call report it when the call ends
            case _:
                assert_never(event)

    def _delta_lines(self, event: PartDeltaEvent) -> list[tuple[str, OutputLine]]:
        if not self._deltas:
            return []
        return [(event.field, {"text": event.delta, "part_id": event.part_id, "message_id": event.message_id})]

    def _step_lines(self, event: LLMResponseEvent) -> Iterator[tuple[str, OutputLine]]:
        """Yields the complete message of a step, if it has content, and the `step` object."""
        answer = self._answers.close_answer(event.session_id)
        step = _step_fields(event)
        if answer.parts:
            parts = [_answer_part(part) for part in answer.parts]
            fields = {"message_id": answer.message_id, "role": "assistant", "parts": parts}
            yield "message", {**fields, "model": step["model"], "stop_reason": step["stop_reason"]}
        yield "step", {**step, "message_id": answer.message_id or None}

    def _part_lines(self, part: AnyPart) -> Iterable[tuple[str, OutputLine]]:
        if not is_standard_part(part):
            fields = {name: value for name, value in part.to_dict().items() if name not in _COMMON_PART_FIELDS}
            return [("part", {"name": part.type, "data": fields, "part_id": part.id, "message_id": part.message_id})]
        match part:
            case ToolPart():
                return self._call_lines(part)
            case TextPart():
                return self._text_lines(part)
            case ReasoningPart():
                return _vendor_tool_lines(part)
            case FilePart():
                return self._file_lines(part)
            case RetryPart() | CompactionPart() | SubtaskPart():
                return ()  # a `retry`, `compaction` or `agent_call` line reports it
            case PatchPart() | StepStartPart() | StepFinishPart() | SnapshotPart() | AgentPart():
                return ()  # the lines of the calls and of the step contain it, or it is part of the prompt
            case _:
                assert_never(part)

    def _text_lines(self, part: TextPart) -> Iterable[tuple[str, OutputLine]]:
        if not self._deltas or not self._is_unstreamed_text(part):
            return ()
        self._reported_parts.add(part.id)
        return [("text", {"text": part.text, "part_id": part.id, "message_id": part.message_id})]

    def _file_lines(self, part: FilePart) -> Iterable[tuple[str, OutputLine]]:
        if part.id in self._reported_parts or is_withdrawn(part):
            return ()
        self._reported_parts.add(part.id)
        return [("file", {**_file_fields(part), "part_id": part.id, "message_id": part.message_id})]

    def _call_lines(self, call: ToolPart) -> Iterator[tuple[str, OutputLine]]:
        """Yields the `tool_call` and `tool_result` objects of a call, each once."""
        fields: OutputLine = {"call_id": call.call_id, "tool": call.tool}
        ids: OutputLine = {"message_id": call.message_id, "part_id": call.id}
        for update in self._calls.call_updates(call):
            match update:
                case CallStarted():
                    yield "tool_call", {**fields, "input": call.state.input, **ids}
                case CallEnded(result=result, state=state):
                    result_fields = {
                        "output": result.content,
                        "is_error": result.is_error,
                        "reason": state.reason if isinstance(state, ToolError) else None,
                        "duration_ms": working_time(state),
                        "diff": _text_or_none(state.metadata.get("diff")),
                        "exit_code": state.metadata.get("exit_code"),
                        "child_session_id": _text_or_none(state.metadata.get("child_session_id")),
                    }
                    yield "tool_result", {**fields, **result_fields, **ids}
                case _:
                    assert_never(update)

    def _is_unstreamed_text(self, part: TextPart) -> bool:
        """Returns whether the part is a complete text that was not streamed as deltas."""
        is_complete = part.time is not None and part.time.end is not None
        return part.id not in self._reported_parts and not part.synthetic and not part.ignored and is_complete


def stable_stop_reason(reason: str | None) -> str:
    """Returns why an answer ended: a finish reason, "aborted", or "error" for the class name of an exception."""
    return "error" if reason and reason not in _FINISHES else reason or "other"


def approval_line(event: ToolApprovalRequestedEvent) -> OutputLine:
    """Returns an approval request as JSON: what would run, why it needs an answer, and the possible answers."""
    view = requested_approval_view(event)
    fields = approval_fields(view)
    names = ("approval_id", "tool", "input", "heading", "reason", "diff", "files", "choices", "widths")
    return {
        **{name: fields[name] for name in names},
        "call_id": view.call_id,
        "facts": [*(effect.text for effect in view.effects), *view.facts],
        "server": event.server or None,
    }


def _update_lines(event: SessionUpdatedEvent) -> Iterable[tuple[str, OutputLine]]:
    match event.changes:
        case {"question": {"id": question_id, "text": text} as question}:
            options = {"options": list(question.get("options", ())), "multiple": bool(question.get("multiple"))}
            return [("question", {"question_id": question_id, "text": text, **options})]
        case {"settled": question_id}:
            return [("question_closed", {"question_id": question_id})]
        case {"mcp_servers": [*servers]}:
            wait = {"wait_seconds": seconds} if (seconds := event.changes.get("wait_seconds")) else {}
            return [("mcp_servers", {"servers": [_server_state(server) for server in servers], **wait})]
        case _:
            return ()


def _server_state(server: Mapping[str, Any]) -> OutputLine:
    changes = {name: server[name] for name in ("changed", "added", "removed") if server.get(name)}
    return {"name": server["name"], "status": server["state"], "error": server["error"], **changes}


def _vendor_tool_lines(part: ReasoningPart) -> Iterable[tuple[str, OutputLine]]:
    tool_use = vendor_tool_use(part.provider_state)
    if tool_use is None:
        return ()
    fields = {"title": tool_use.title, "body": tool_use.body, "part_id": part.id, "message_id": part.message_id}
    return [("vendor_tool", fields)]


def _file_fields(part: FilePart) -> OutputLine:
    """Describes a file without its content, which the stored session has."""
    is_content = part.url.startswith("data:")
    return {
        "name": part.filename or None,
        "mime": part.mime,
        "size": file_size(part),
        "url": None if is_content else part.url,
    }


def _answer_part(part: AnswerPart) -> OutputLine:
    match part:
        case TextPart():
            return {"type": "text", "part_id": part.id, "text": part.text}
        case ReasoningPart():
            used = vendor_tool_use(part.provider_state)
            if used is not None:
                return {"type": "vendor_tool", "part_id": part.id, "title": used.title, "body": used.body}
            return {"type": "reasoning", "part_id": part.id, "text": part.text}
        case ToolPart():
            call = {"call_id": part.call_id, "tool": part.tool, "input": part.state.input}
            return {"type": "tool_call", "part_id": part.id, **call}
        case FilePart():
            return {"type": "file", "part_id": part.id, **_file_fields(part)}


def _retry_fields(event: RetryScheduledEvent) -> OutputLine:
    return {
        "attempt": event.attempt,
        "max_attempts": event.max_attempts,
        "delay_ms": event.delay_ms,
        "error": event.error,
        "withdrawn": list(event.withdrawn),
        "model": event.model or None,
    }


def _step_fields(event: LLMResponseEvent) -> OutputLine:
    stop = stable_stop_reason(event.stop_reason)
    return {
        "model": f"{event.provider}/{event.model}",
        "stop_reason": stop,
        "error_type": event.stop_reason if stop == "error" else None,
        "usage": encode_usage(event.tokens),
        "cost": None if event.cost is None else float(event.cost),
        "duration_ms": event.duration_ms,
    }


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


class RunStreamPrinter:
    """Prints one JSON object per event, as docs/stream-json.md specifies."""

    def __init__(self, pipe: StdoutPipe, *, deltas: bool = True) -> None:
        self._pipe = pipe
        self._encoder = StreamEventEncoder(deltas=deltas)

    def start(self, info: RunInfo) -> None:
        self._write({"type": "start", "version": OUTPUT_VERSION, **msgspec.structs.asdict(info)})

    def on_event(self, event: Event) -> None:
        for line in self._encoder.encode_event(event):
            self._pipe.write(encode_json_line(line))

    def finish(self, result: HeadlessResult) -> None:
        self._write(result.to_dict())

    def report_input_error(self, number: int, message: str, text: str, request_id: str = "") -> None:
        """Prints that an input line could not be used; other lines are not affected."""
        echo = {"input": text[:MAX_REPEATED_INPUT], "id": request_id or None}
        self._write({"type": "input_error", "line": number, "message": message, **echo})

    def confirm(self, request_id: str) -> None:
        """Does nothing: the events that follow show what an input line changed."""

    def decode_input(self, line: bytes) -> InputCommand:
        return decode_native_line(line)

    def _write(self, line: OutputLine) -> None:
        self._pipe.write(encode_json_line({**line, "time": self._encoder.next_time(now_ms())}))
