"""`claude-stream-json`: the output and input lines of Claude Code, for programs that read and write them already.

docs/stream-json.md lists what is supported. Sessions of called agents appear as messages with the id of their call."""

import re
from collections.abc import Iterable, Iterator
from typing import Any, assert_never, cast

import msgspec

from outrider.cli.commands.run_input import (
    AnswerInput,
    ApprovalInput,
    GreetingInput,
    InputCommand,
    InputProblem,
    InterruptInput,
    MessageInput,
    SettingsInput,
)
from outrider.cli.commands.run_output import HeadlessResult, RunInfo, StdoutPipe, encode_json_line
from outrider.cli.commands.run_stream import (
    MAX_REPEATED_INPUT,
    AnswerCollector,
    SessionTree,
    stable_stop_reason,
)
from outrider.errors import LimitReachedError, OutputMismatch
from outrider.presentation.approvals import question_text, requested_approval_view
from outrider.presentation.items import file_summary
from outrider.presentation.tool_calls import vendor_tool_use
from outrider.presentation.turn_updates import CallEnded, CallReporter, CallStarted
from outrider.types.events import (
    ActivityEvent,
    AgentCalledEvent,
    AgentReturnedEvent,
    BudgetExceededEvent,
    CallProgressEvent,
    ContextCompactionEvent,
    DeltasDroppedEvent,
    ErrorEvent,
    Event,
    FilesRestoredEvent,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    RetryScheduledEvent,
    SessionUpdatedEvent,
    StandardEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    is_standard_event,
)
from outrider.types.ids import new_id
from outrider.types.parts import (
    AnswerPart,
    FilePart,
    PartBase,
    ReasoningPart,
    TextPart,
    Tokens,
    ToolPart,
    is_withdrawn,
)
from outrider.types.tool_state import make_data_url
from outrider.types.validate import is_object

Line = dict[str, Any]

_TOOL_NAMES = {
    "shell": "Bash",
    "read": "Read",
    "list": "LS",
    "glob": "Glob",
    "grep": "Grep",
    "edit": "Edit",
    "write": "Write",
    "task": "Task",
    "todo": "TodoWrite",
    "web_fetch": "WebFetch",
    "web_search": "WebSearch",
    "question": "AskUserQuestion",
    "skill": "Skill",
}
_STOP_REASONS = {"stop": "end_turn", "tool_use": "tool_use", "length": "max_tokens", "refusal": "refusal"}
_SERVER_STATES = {"ready": "connected", "connecting": "pending"}
_LIMIT_SUBTYPES = {"turns": "error_max_turns", "cost": "error_max_budget_usd"}
_PERMISSION_MODES = {
    "default": SettingsInput("agent", "ask"),
    "acceptEdits": SettingsInput("agent", "edits"),
    "plan": SettingsInput("plan"),
}


_ChunkedEvent = PartDeltaEvent | RetryScheduledEvent | LLMResponseEvent
_UnwrittenEvent = (  # Claude Code has no line for these events; the last line has the error
    ActivityEvent
    | CallProgressEvent
    | LoopCompletedEvent
    | LLMRequestEvent
    | MessageAddedEvent
    | PartDeltaEvent
    | PartUpdatedEvent
    | BudgetExceededEvent
    | ErrorEvent
    | AgentCalledEvent
    | AgentReturnedEvent
    | FilesRestoredEvent
    | DeltasDroppedEvent
)


def tool_name(name: str) -> str:
    """Returns the name of Claude Code's built-in tool with the same purpose, or the name unchanged."""
    return _TOOL_NAMES.get(name, name)


class ClaudeStreamPrinter:
    """Prints `system`, `assistant`, `user`, `stream_event`, `control_request` and `result` lines."""

    def __init__(self, pipe: StdoutPipe, *, deltas: bool) -> None:
        self._pipe = pipe
        self._sessions = SessionTree()
        self._answers = AnswerCollector()
        self._chunks = ChunkEncoder() if deltas else None
        self._session = ""
        self._calls = CallReporter()
        self._requests: dict[str, _OpenRequest] = {}

    def start(self, info: RunInfo) -> None:
        self._session = info.session_id
        self._write(
            "system",
            subtype="init",
            cwd=info.cwd,
            tools=[tool_name(name) for name in info.tools],
            mcp_servers=[
                {"name": server.name, "status": _SERVER_STATES.get(server.status, "failed")} for server in info.servers
            ],
            model=info.model.partition("/")[2] or info.model,
            permissionMode="plan" if info.mode == "plan" else "default",
            slash_commands=[],
            agents=[],
            skills=[],
            plugins=[],
            apiKeySource="none",
            output_style="default",
            claude_code_version=info.program_version,
        )

    def on_event(self, event: Event) -> None:
        self._sessions.on_event(event)
        self._answers.on_event(event)
        parent = self._sessions.parent_call(event) or None
        if self._chunks is not None and isinstance(event, _ChunkedEvent):
            for chunk in self._chunks.encode_event(event):
                self._write("stream_event", event=chunk, parent_tool_use_id=parent)
        if is_standard_event(event):
            self._write_event(event, parent)

    def _write_event(self, event: StandardEvent, parent: str | None) -> None:
        match event:
            case LLMResponseEvent():
                self._write_answer(event, parent)
            case PartUpdatedEvent(part=ToolPart() as call):
                self._write_result(call, parent)
            case RetryScheduledEvent():
                retry = {"attempt": event.attempt, "max_retries": event.max_attempts, "error": event.error}
                self._write("system", subtype="api_retry", retry_delay_ms=event.delay_ms, **retry)
            case ContextCompactionEvent():
                facts = {"trigger": "auto", "pre_tokens": event.tokens_before, "post_tokens": event.tokens_after}
                self._write("system", subtype="compact_boundary", compact_metadata=facts)
            case ToolApprovalRequestedEvent():
                request = _OpenRequest(event.approval_id, suggestions=permission_suggestions(event))
                self._ask(request, tool_name(event.tool_name), event.tool_input, event)
            case ToolApprovalResultEvent():
                self._withdraw_request(event.approval_id)
            case SessionUpdatedEvent():
                self._on_question(event)
            case _:
                _ignored: _UnwrittenEvent = event

    def finish(self, result: HeadlessResult) -> None:
        subtype = _result_subtype(result)
        usage, tokens = result.stats.usage, result.stats.usage.tokens
        cost = None if usage.total_cost is None else float(usage.total_cost)
        model = result.info.model.partition("/")[2]
        failed = subtype != "success"
        errors = [str(result.end.error) if result.end.error else result.end.reason.replace("_", " ")]
        self._write(
            "result",
            subtype=subtype,
            is_error=failed,
            duration_ms=result.duration_ms,
            duration_api_ms=result.stats.api_ms,
            num_turns=result.stats.answers,
            result=result.text,
            stop_reason=result.end.reason,
            total_cost_usd=cost,
            usage=_encode_usage(tokens),
            modelUsage={
                model: {
                    "inputTokens": tokens.input,
                    "outputTokens": tokens.output + tokens.reasoning,
                    "cacheReadInputTokens": tokens.cache.read,
                    "cacheCreationInputTokens": tokens.cache.write,
                    "costUSD": cost,
                }
            },
            permission_denials=[
                {"tool_name": tool_name(call.tool), "tool_use_id": call.call_id, "tool_input": call.input}
                for call in result.stats.refused
            ],
            **({} if result.value is msgspec.UNSET or result.value_error else {"structured_output": result.value}),
            **({"errors": errors} if failed else {}),
        )

    def report_input_error(self, number: int, message: str, text: str, request_id: str = "") -> None:
        """Answers a request with an error; reports a line that is not a request as a message of the system."""
        if request_id:
            self._respond({"subtype": "error", "request_id": request_id, "error": message})
        else:
            facts = {"line": number, "message": message, "input": text[:MAX_REPEATED_INPUT]}
            self._write("system", subtype="input_error", **facts)

    def confirm(self, request_id: str) -> None:
        if request_id:
            response = {"commands": [], "models": [], "output_style": "default", "available_output_styles": ["default"]}
            self._respond({"subtype": "success", "request_id": request_id, "response": response})

    def decode_input(self, line: bytes) -> InputCommand:
        """Decodes a `user`, `control_request` or `control_response` line. Raises InputProblem for other lines."""
        try:
            value = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InputProblem(str(error)) from error
        match value:
            case {"type": "user", "message": {"content": content}}:
                return MessageInput(tuple(_decode_content(content)), str(value.get("uuid") or ""))
            case {"type": "control_request", "request_id": str() as request_id, "request": {"subtype": subtype}}:
                return _decode_request(request_id, subtype, value["request"])
            case {"type": "control_response", "response": {"request_id": str() as request_id}}:
                return self._decode_response(request_id, value["response"])
            case _:
                raise InputProblem("expected an object with the type user, control_request or control_response")

    def _decode_response(self, request_id: str, response: Line) -> InputCommand:
        request = self._requests.pop(request_id, None)
        if request is None:
            raise InputProblem(f"there is no open request {request_id!r}")
        answer: Any = response.get("response")
        if response.get("subtype") != "success" or not is_object(answer):
            reason = str(response.get("error") or "the program could not ask the user")
            return request.refuse(reason)
        if answer.get("behavior") != "allow":
            return request.refuse(str(answer.get("message") or ""))
        return request.accept(answer.get("updatedInput"), answer.get("updatedPermissions"))

    def _write_answer(self, event: LLMResponseEvent, parent: str | None) -> None:
        answer = self._answers.close_answer(event.session_id)
        content = [block for part in answer.parts if (block := _content_block(part)) is not None]
        if not content:
            return
        message = {
            "id": answer.message_id,
            "type": "message",
            "role": "assistant",
            "model": event.model,
            "content": content,
            "stop_reason": _STOP_REASONS.get(stable_stop_reason(event.stop_reason)),
            "stop_sequence": None,
            "usage": _encode_usage(event.tokens),
        }
        self._write("assistant", message=message, parent_tool_use_id=parent)

    def _write_result(self, call: ToolPart, parent: str | None) -> None:
        if is_withdrawn(call):
            return  # the call was in no printed message
        for update in self._calls.call_updates(call):
            match update:
                case CallStarted():
                    pass  # the message of the answer contains the call
                case CallEnded(result=result, state=state):
                    block = {"type": "tool_result", "tool_use_id": call.call_id, "content": result.content}
                    message = {"role": "user", "content": [{**block, "is_error": result.is_error}]}
                    details = {"diff": diff} if (diff := state.metadata.get("diff")) else result.content
                    self._write("user", message=message, parent_tool_use_id=parent, tool_use_result=details)
                case _:
                    assert_never(update)

    def _on_question(self, event: SessionUpdatedEvent) -> None:
        match event.changes:
            case {"question": {"id": str() as question_id, "text": str() as text} as fields}:
                options = [{"label": option, "description": ""} for option in fields.get("options", ())]
                question = {"question": text, "header": text[:12], "options": options}
                tool_input = {"questions": [{**question, "multiSelect": bool(fields.get("multiple"))}]}
                self._ask(_OpenRequest(question_id, is_question=True), "AskUserQuestion", tool_input, event)
            case {"settled": str() as question_id}:
                self._withdraw_request(question_id)
            case _:
                pass

    def _ask(self, request: "_OpenRequest", tool: str, tool_input: Line, event: Event) -> None:
        request_id = new_id()
        self._requests[request_id] = msgspec.structs.replace(request, input=tool_input)
        suggestions = list(request.suggestions.values())
        fields: Line = {"subtype": "can_use_tool", "tool_name": tool, "input": tool_input}
        fields["permission_suggestions"] = suggestions
        if event.call_id:
            fields["tool_use_id"] = event.call_id
        if isinstance(event, ToolApprovalRequestedEvent):
            fields["decision_reason"] = question_text(requested_approval_view(event), shows_input=False)
        self._pipe.write(encode_json_line({"type": "control_request", "request_id": request_id, "request": fields}))

    def _withdraw_request(self, subject: str) -> None:
        """Withdraws a request that was answered in another front end or no longer needs an answer."""
        for request_id in [open_id for open_id, request in self._requests.items() if request.subject == subject]:
            del self._requests[request_id]
            self._pipe.write(encode_json_line({"type": "control_cancel_request", "request_id": request_id}))

    def _respond(self, response: Line) -> None:
        self._pipe.write(encode_json_line({"type": "control_response", "response": response}))

    def _write(self, kind: str, **fields: Any) -> None:
        self._pipe.write(encode_json_line({"type": kind, **fields, "session_id": self._session, "uuid": new_id()}))


class _OpenRequest(msgspec.Struct, frozen=True):
    """A `can_use_tool` request and its subject, which is the id of an approval or of a question of the model.
    `suggestions` are the lasting answers by the id of their choice, the narrowest first."""

    subject: str
    is_question: bool = False
    input: Line = {}
    suggestions: dict[str, Line] = {}

    def refuse(self, reason: str) -> InputCommand:
        if self.is_question:
            return AnswerInput(self.subject)
        return ApprovalInput(self.subject, allow=False, reason=reason)

    def accept(self, updated: Any, permissions: Any = None) -> InputCommand:
        if self.is_question:
            return AnswerInput(self.subject, tuple(_returned_answers(updated)))
        if is_object(updated) and updated != self.input:
            new_input = msgspec.json.encode(updated).decode()
            return ApprovalInput(self.subject, allow=False, reason=f"The user wants this input instead: {new_input}")
        updates = cast("list[Any]", permissions) if isinstance(permissions, list) else []
        # A program may return all suggestions; the narrowest one is the only one that the user wants for certain.
        lasting = next((choice for choice, suggestion in self.suggestions.items() if suggestion in updates), "")
        return ApprovalInput(self.subject, choice=lasting, allow=True)


_DESTINATIONS: dict[str, str] = {
    "session": "session",
    "project": "localSettings",
    "always": "userSettings",
}
_RULE = re.compile(r"(?P<tool>\w+)\((?P<content>.*)\)", re.DOTALL)


def permission_suggestions(event: ToolApprovalRequestedEvent) -> dict[str, Line]:
    """Returns the lasting answers of an approval, by choice, as the permission updates that Claude Code suggests. Empty
    if no rule describes what the answer covers."""
    view = requested_approval_view(event)
    rules = [_encode_rule(event.tool_name, rule) for rule in view.rules]
    return {
        choice.id: {
            "type": "addRules",
            "rules": rules,
            "behavior": "allow",
            "destination": _DESTINATIONS[choice.scope],
        }
        for choice in view.choices
        if rules and choice.kind == "allow" and choice.scope in _DESTINATIONS
    }


def _encode_rule(tool: str, rule: str) -> Line:
    if (match := _RULE.fullmatch(rule)) is not None:
        return {"toolName": tool_name(match["tool"]), "ruleContent": match["content"]}
    return {"toolName": tool_name(tool), "ruleContent": rule}


class ChunkEncoder:
    """Converts deltas to the streaming events of the Messages API: a message starts with its first chunk, blocks are
    numbered in the order in which they begin, and the end of the step closes both."""

    def __init__(self) -> None:
        self._blocks: dict[str, dict[str, int]] = {}

    def encode_event(self, event: _ChunkedEvent) -> Iterator[Line]:
        match event:
            case PartDeltaEvent():
                yield from self._text_chunk(event)
            case RetryScheduledEvent():
                yield from self._close_message(event.session_id, None)
            case LLMResponseEvent():
                stop = _STOP_REASONS.get(stable_stop_reason(event.stop_reason))
                usage = {"output_tokens": event.output_tokens + event.reasoning_tokens}
                changes = {"delta": {"stop_reason": stop, "stop_sequence": None}, "usage": usage}
                yield from self._close_message(event.session_id, changes)
            case _:
                assert_never(event)

    def _text_chunk(self, event: PartDeltaEvent) -> Iterator[Line]:
        if event.session_id not in self._blocks:
            empty: Line = {"id": event.message_id, "type": "message", "role": "assistant", "content": []}
            usage = {"input_tokens": 0, "output_tokens": 0}
            message: Line = {**empty, "model": "", "stop_reason": None, "stop_sequence": None, "usage": usage}
            yield {"type": "message_start", "message": message}
        blocks = self._blocks.setdefault(event.session_id, {})
        kind, field = ("text", "text") if event.field == "text" else ("thinking", "thinking")
        if event.part_id not in blocks:
            blocks[event.part_id] = len(blocks)
            start = {"type": kind, field: "", **({} if kind == "text" else {"signature": ""})}
            yield {"type": "content_block_start", "index": blocks[event.part_id], "content_block": start}
        delta = {"type": f"{kind}_delta", field: event.delta}
        yield {"type": "content_block_delta", "index": blocks[event.part_id], "delta": delta}

    def _close_message(self, session_id: str, changes: Line | None) -> Iterator[Line]:
        blocks = self._blocks.pop(session_id, None)
        if blocks is None:
            return
        for number in blocks.values():
            yield {"type": "content_block_stop", "index": number}
        if changes is not None:
            yield {"type": "message_delta", **changes}
        yield {"type": "message_stop"}


def _content_block(part: AnswerPart) -> Line | None:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ReasoningPart():
            tool_use = vendor_tool_use(part.provider_state)
            if tool_use is not None:
                return {"type": "text", "text": tool_use.title}
            return {"type": "thinking", "thinking": part.text, "signature": ""}
        case ToolPart():
            return {"type": "tool_use", "id": part.call_id, "name": tool_name(part.tool), "input": part.state.input}
        case FilePart():
            return {"type": "text", "text": file_summary(part)}  # a model sends no files in this format


def _encode_usage(tokens: Tokens) -> Line:
    return {
        "input_tokens": tokens.input,
        "cache_creation_input_tokens": tokens.cache.write,
        "cache_read_input_tokens": tokens.cache.read,
        "output_tokens": tokens.output + tokens.reasoning,
    }


def _result_subtype(result: HeadlessResult) -> str:
    error = result.end.error
    if isinstance(error, OutputMismatch):
        return "error_max_structured_output_retries"
    if isinstance(error, LimitReachedError):
        return _LIMIT_SUBTYPES.get(str(error.limit), "error_during_execution")
    return "success" if result.end.reason == "completed" and not result.value_error else "error_during_execution"


def _decode_request(request_id: str, subtype: Any, request: Line) -> InputCommand:
    match subtype:
        case "initialize":
            return GreetingInput(request_id)
        case "interrupt":
            return InterruptInput(request_id)
        case "set_permission_mode" if (settings := _PERMISSION_MODES.get(str(request.get("mode")))) is not None:
            return msgspec.structs.replace(settings, id=request_id)
        case _:
            raise InputProblem(f"the request {subtype!r} is not supported in this form", request_id)


def _decode_content(content: Any) -> Iterable[PartBase]:
    """Returns the parts of a user message: text, images and documents."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not blocks:
        raise InputProblem("the content of a user message must be a string or a list of blocks")
    return [_decode_block(block) for block in cast("list[Any]", blocks)]


def _decode_block(block: Any) -> PartBase:
    match block:
        case {"type": "text", "text": str() as text}:
            return TextPart(text)
        case {
            "type": "image" | "document",
            "source": {"type": "base64", "media_type": str() as mime, "data": str() as data},
        }:
            return FilePart(mime, make_data_url(mime, data))
        case _:
            raise InputProblem("a block of a user message must be text, or an image or document in base64")


def _returned_answers(updated: Any) -> Iterator[str]:
    """Yields the answers in the input that the program returned for a question."""
    answers: Any = updated.get("answers") if is_object(updated) else None
    for answer in answers.values() if is_object(answers) else ():
        if isinstance(answer, list):
            yield from map(str, cast("list[Any]", answer))
        else:
            yield str(answer)
