"""Reads session files of other programs: Claude Code, Codex, Gemini CLI, opencode, and plain lists of messages.

The formats are those that the programs write; what a file has beyond messages, such as settings, is skipped. Entries
that cannot be read are reported, and the rest is imported.
"""

import datetime
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import msgspec

from outrider.errors import PartValidationError
from outrider.sessions.message_formats import FormatReader, read_messages
from outrider.sessions.session import Session, SessionTime
from outrider.types.ids import now_ms
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import FilePart, ModelRef, ReasoningPart, TextPart, ToolPart
from outrider.types.tool_state import ToolPending
from outrider.types.usage import CacheTokens, Tokens
from outrider.types.validate import is_object

Fields = dict[str, Any]
_TITLE_LENGTH = 80


class ForeignSession(msgspec.Struct):
    """A session of another program. `left_out` describes the entries that were not read."""

    session: Session
    left_out: list[str]


def read_session_file(document: bytes | str) -> ForeignSession:
    """Reads a session file of another program, or a list of messages in one of the four formats. Raises
    PartValidationError if it is none of these."""
    entries = _decode_entries(document)
    match entries:
        case [{"info": {**info}, "messages": [*messages]}]:
            return _read_opencode(info, messages)
        case [{"sessionId": str(), "messages": [*messages]} as head]:
            return _read_gemini_cli(head, messages)
        case [{"history": [*messages]}] | [{"messages": [*messages]}] | [{"contents": [*messages]}]:
            return _read_list(messages)
        case [{"type": "session_meta"}, *_]:
            return _read_codex(entries)
        case [{"id": str(), "timestamp": str(), "instructions": _}, *_]:
            return _read_codex([{"type": "session_meta", "payload": entries[0]}, *map(_wrap_item, entries[1:])])
        case _ if any("uuid" in entry or "sessionId" in entry for entry in entries):
            return _read_claude_code(entries)
        case _:
            return _read_list(entries)


def _decode_entries(document: bytes | str) -> list[Fields]:
    """Decodes a JSON document or JSON lines; the last line may be incomplete."""
    text = document.encode() if isinstance(document, str) else document
    try:
        value = msgspec.json.decode(text)
        entries: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
    except (msgspec.DecodeError, UnicodeDecodeError):
        entries = list(_decode_lines(text))
    found = [entry for entry in entries if is_object(entry)]
    if not found:
        raise PartValidationError(
            "this is no session file: expected an export of Outrider, a session of Claude Code, Codex, Gemini CLI or "
            "opencode, or a list of messages"
        )
    return found


def _decode_lines(text: bytes) -> Iterator[Any]:
    for line in text.splitlines():
        try:
            if line.strip():
                yield msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue


def _read_list(messages: Iterable[Any]) -> ForeignSession:
    return _finish(Session(messages=read_messages(messages, now_ms())), [])


def _finish(session: Session, left_out: list[str], times: Iterable[int] = ()) -> ForeignSession:
    if not session.messages:
        raise PartValidationError("this file has no messages that can be imported")
    for message in session.messages:
        message.join(session.id)
    if not session.title:
        texts = (message.get_text_content().strip() for message in session.messages if message.role == "user")
        session.title = next((text for text in texts if text and not text.startswith("<")), "").split("\n")[0]
        session.title = session.title[:_TITLE_LENGTH]
    known = [time for time in times if time] or [session.time.created]
    session.time = SessionTime(created=min(known), updated=max(known))
    for message in session.messages:
        message.time = message.time or MessageTime(created=min(known))
    return ForeignSession(session, left_out)


def _object(fields: Fields, name: str) -> Fields:
    found = fields.get(name)
    return found if is_object(found) else {}


def _items(fields: Fields, name: str) -> list[Any]:
    found = fields.get(name)
    return cast("list[Any]", found) if isinstance(found, list) else []


def _milliseconds(value: Any) -> int:
    if isinstance(value, int | float):
        return int(value if value > 1e11 else value * 1000)
    try:
        return int(datetime.datetime.fromisoformat(str(value)).timestamp() * 1000)
    except ValueError:
        return 0


def _read_all(entries: Iterable[tuple[int, Fields]], read: Callable[[Fields], None]) -> list[str]:
    """Reads entries and returns why some were not read."""
    left_out: list[str] = []
    for number, entry in entries:
        try:
            read(entry)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            left_out.append(f"entry {number}: {error}")
    return left_out


def _read_claude_code(entries: list[Fields]) -> ForeignSession:
    """A line for each block of an answer: lines with the id of the same answer are one message."""
    collected: list[Fields] = []
    first = next((entry for entry in entries if entry.get("cwd")), Fields())
    answers: dict[str, Fields] = {}

    def read(entry: Fields) -> None:
        message = entry["message"]
        role, content, answer_id = message["role"], message["content"], message.get("id")
        if role == "assistant" and answer_id in answers:
            answers[answer_id]["content"] += content
            return
        fields = {"role": role, "content": content, "entry": entry}
        if role == "assistant" and answer_id:
            answers[answer_id] = fields
        collected.append(fields)

    spoken = [
        (number, entry)
        for number, entry in enumerate(entries, 1)
        if entry.get("type") in ("user", "assistant") and not entry.get("isSidechain") and not entry.get("isMeta")
    ]
    left_out = _read_all(spoken, read)
    plain = [{"role": fields["role"], "content": fields["content"]} for fields in collected]
    summaries = (entry.get("summary") for entry in entries if entry.get("type") == "summary")
    session = Session(
        messages=read_messages(plain, now_ms(), "anthropic"),
        workspace_directory=first.get("cwd") or "",
        title=next(filter(None, summaries), ""),
    )
    for message, fields in zip(session.messages, collected, strict=True):
        _describe_claude_message(message, fields["entry"])
    return _finish(session, left_out, (_milliseconds(entry.get("timestamp", 0)) for _, entry in spoken))


def _describe_claude_message(message: Message, entry: Fields) -> None:
    if time := _milliseconds(entry.get("timestamp", 0)):
        message.time = MessageTime(created=time, completed=time if message.role == "assistant" else None)
    if message.role != "assistant":
        return
    answer = entry["message"]
    message.model = ModelRef("anthropic", answer.get("model") or "")
    usage = _object(answer, "usage")
    cache = CacheTokens(usage.get("cache_read_input_tokens") or 0, usage.get("cache_creation_input_tokens") or 0)
    message.tokens = Tokens(usage.get("input_tokens") or 0, usage.get("output_tokens") or 0, cache=cache)


def _wrap_item(entry: Fields) -> Fields:
    """Codex wrote items without an envelope at first."""
    return {"type": "response_item", "payload": entry}


def _read_codex(entries: list[Fields]) -> ForeignSession:
    head = _object(entries[0], "payload")
    reader = FormatReader()

    def read(entry: Fields) -> None:
        payload = entry["payload"]
        if payload.get("role") not in ("system", "developer") and not _is_codex_context(payload):
            reader.read_item(payload)

    items = [(number, entry) for number, entry in enumerate(entries, 1) if entry.get("type") == "response_item"]
    left_out = _read_all(items, read)
    session = Session(messages=reader.finish(now_ms()), workspace_directory=head.get("cwd") or "")
    return _finish(session, left_out, (_milliseconds(entry.get("timestamp", 0)) for entry in entries))


def _is_codex_context(payload: Fields) -> bool:
    """Returns whether a user message holds only the description of the environment that Codex adds."""
    texts = [str(part.get("text", "")) for part in _items(payload, "content") if is_object(part)]
    marks = ("<environment_context>", "<user_instructions>", "# AGENTS.md instructions")
    return payload.get("role") == "user" and bool(texts) and all(text.lstrip().startswith(marks) for text in texts)


def _read_gemini_cli(head: Fields, entries: list[Any]) -> ForeignSession:
    reader = FormatReader()
    names = {"user": "user", "gemini": "model"}

    def read(entry: Fields) -> None:
        content: Any = entry.get("content") or ""
        parts: list[Any] = _items(entry, "content") or [{"text": content} if isinstance(content, str) else content]
        thoughts = [
            {"text": f"{thought.get('subject', '')}: {thought.get('description', '')}", "thought": True}
            for thought in _items(entry, "thoughts")
        ]
        calls = [
            {"functionCall": {"id": call["id"], "name": call["name"], "args": _object(call, "args")}}
            for call in _items(entry, "toolCalls")
        ]
        spoken = [part for part in parts if part.get("text") != ""]
        reader.read_content({"role": names[entry["type"]], "parts": [*thoughts, *spoken, *calls]})
        for call in _items(entry, "toolCalls"):
            results = [part for part in _items(call, "result") if "functionResponse" in part]
            text = results or [_gemini_response(call)]
            reader.read_content({"role": "user", "parts": text})

    spoken = [(number, entry) for number, entry in enumerate(entries, 1) if entry.get("type") in names]
    left_out = _read_all(spoken, read)
    times = (_milliseconds(value) for value in (head.get("startTime", 0), head.get("lastUpdated", 0)))
    return _finish(Session(messages=reader.finish(now_ms())), left_out, times)


def _gemini_response(call: Fields) -> Fields:
    text = call.get("resultDisplay") if isinstance(call.get("resultDisplay"), str) else ""
    key = "output" if call.get("status") == "success" else "error"
    outcome = text or f"(the call ended as {call.get('status', 'unknown')})"
    return {"functionResponse": {"id": call["id"], "name": call["name"], "response": {key: outcome}}}


def _read_opencode(info: Fields, entries: list[Any]) -> ForeignSession:
    messages: list[Message] = []
    left_out: list[str] = []
    for number, entry in enumerate(entries, 1):
        about = _object(entry, "info")
        role = "assistant" if about.get("role") == "assistant" else "user"
        message = Message(role)
        parts = enumerate(_items(entry, "parts"), 1)
        left_out += [f"message {number}, {text}" for text in _read_all(parts, _opencode_reader(message))]
        created = _milliseconds(_object(about, "time").get("created", 0))
        message.time = MessageTime(created=created) if created else None
        if role == "assistant":
            message.model = ModelRef(about.get("providerID") or "", about.get("modelID") or "")
        if message.parts:
            messages.append(message)
    session = Session(messages=messages, title=info.get("title") or "", workspace_directory=info.get("directory") or "")
    times = _object(info, "time")
    return _finish(session, left_out, (_milliseconds(times.get(name, 0)) for name in ("created", "updated")))


def _opencode_reader(message: Message) -> Callable[[Fields], None]:
    def read(part: Fields) -> None:
        match part.get("type"):
            case "text":
                message.add_part(TextPart(part["text"], synthetic=bool(part.get("synthetic"))))
            case "reasoning" if part.get("text"):
                message.add_part(ReasoningPart(part["text"], provider_state={"family": "imported"}))
            case "file":
                message.add_part(FilePart(part["mime"], part["url"], part.get("filename")))
            case "tool":
                message.add_part(_opencode_call(part))
            case _:
                return  # steps, snapshots and patches of opencode's own files

    return read


def _opencode_call(part: Fields) -> ToolPart:
    state, now = part["state"], now_ms()
    times = _object(state, "time")
    running = ToolPending(_object(state, "input"), "", "ready").start(_milliseconds(times.get("start", now)))
    end = _milliseconds(times.get("end", now))
    if state.get("status") == "completed":
        ended = running.complete(str(state.get("output") or ""), end, title=str(state.get("title") or ""))
    else:
        ended = running.fail(str(state.get("error") or "the call has no result"), end)
    return ToolPart(call_id=part["callID"], tool=part["tool"], state=ended)
