"""Reads session files of other programs: Claude Code, Codex, Gemini CLI, opencode, and plain lists of messages.

Only the messages of a file are imported; other entries, such as settings, are skipped. Messages that the user took back
in such a program (rewind, rollback, revert) are left out. Entries that cannot be read are reported, and the other ones
are imported.
"""

import datetime
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any, cast

import msgspec

from outrider.errors import PartValidationError
from outrider.sessions.message_formats import FormatReader, read_messages
from outrider.sessions.session import Session, SessionTime
from outrider.types.anthropic_blocks import content_blocks, part_from_anthropic
from outrider.types.ids import now_ms
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import CacheTokens, FilePart, ModelRef, ReasoningPart, TextPart, Tokens, ToolPart
from outrider.types.tool_state import Attachment, ToolPending, attachment_from_url
from outrider.types.validate import is_object

Fields = dict[str, Any]
_TITLE_LENGTH = 80


class ForeignSession(msgspec.Struct):
    """A session of another program. `left_out` describes the entries that were not read."""

    session: Session
    left_out: list[str]


def read_session_file(document: bytes | str) -> ForeignSession:
    """Reads a session file of another program, or a list of messages in one of the four formats. Raises
    PartValidationError if the document is neither."""
    entries = _decode_entries(document)
    match entries:
        case [{"info": {**info}, "messages": [*messages]}]:
            return _read_opencode(info, messages)
        case [{"sessionId": str(), "messages": [*messages]} as head]:
            return _read_gemini_cli(head, messages)
        case [{"sessionId": str(), "startTime": _}, *_]:
            return _read_gemini_cli(*_fold_gemini_records(entries))
        case [{"loglines": [*lines]}]:
            return _read_claude_code([line for line in lines if is_object(line)])
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
    except RecursionError as error:
        raise PartValidationError("this is not a session file: its JSON is nested too deeply") from error
    except (msgspec.DecodeError, UnicodeDecodeError):
        entries = list(_decode_lines(text))
    objects = [entry for entry in entries if is_object(entry)]
    if not objects:
        raise PartValidationError(
            "this is not a session file: expected an export of Outrider, a session of Claude Code, Codex, Gemini CLI "
            "or opencode, or a list of messages"
        )
    return objects


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
    timestamps = [time for time in times if time] or [session.time.created]
    session.time = SessionTime(created=min(timestamps), updated=max(timestamps))
    for message in session.messages:
        message.time = message.time or MessageTime(created=min(timestamps))
    return ForeignSession(session, left_out)


def _object(fields: Fields, name: str) -> Fields:
    value = fields.get(name)
    return value if is_object(value) else {}


def _items(fields: Fields, name: str) -> list[Any]:
    value = fields.get(name)
    return cast("list[Any]", value) if isinstance(value, list) else []


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
    """Reads a file of Claude Code. It has a line for each block of an answer, so lines with the id of the same answer
    are one message. The files of called agents contain only side chains."""
    collected: list[Fields] = []
    first = next((entry for entry in entries if entry.get("cwd")), Fields())
    answers: dict[str, Fields] = {}

    def read(entry: Fields) -> None:
        message = entry["message"]
        role, content, answer_id = message["role"], message["content"], message.get("id")
        blocks = content_blocks(content)
        for block in blocks:
            part_from_anthropic(block)  # raises ValueError for a block that cannot be read
        if role == "assistant" and answer_id in answers:
            answers[answer_id]["content"] += blocks
            return
        fields = {"role": role, "content": content if role == "user" else blocks, "entry": entry}
        if role == "assistant" and answer_id:
            answers[answer_id] = fields
        collected.append(fields)

    taken_back = _find_rewound(entries)
    is_child = all(entry.get("isSidechain") for entry in entries if entry.get("type") in ("user", "assistant"))
    spoken = [
        (number, entry)
        for number, entry in enumerate(entries, 1)
        if entry.get("type") in ("user", "assistant")
        and (is_child or not entry.get("isSidechain"))
        and not (entry.get("isMeta") or entry.get("isApiErrorMessage") or entry.get("uuid") in taken_back)
    ]
    left_out = _read_all(spoken, read)
    plain = [{"role": fields["role"], "content": fields["content"]} for fields in collected]
    session = Session(
        messages=read_messages(plain, now_ms(), "anthropic"),
        workspace_directory=first.get("cwd") or "",
        title=_claude_title(entries),
    )
    for message, fields in zip(session.messages, collected, strict=True):
        _describe_claude_message(message, fields["entry"])
    return _finish(session, left_out, (_milliseconds(entry.get("timestamp", 0)) for _, entry in spoken))


def _find_rewound(entries: list[Fields]) -> set[str]:
    """Returns the ids of the entries that a rewind took back: inputs with a later input after the same parent, and the
    entries that followed them. Results of parallel calls have different parents, so they stay."""
    inputs: dict[str, str] = {}
    rewound: set[str] = set()
    parents = {entry["uuid"]: entry.get("parentUuid") for entry in entries if isinstance(entry.get("uuid"), str)}
    for entry in entries:
        parent = entry.get("parentUuid")
        if entry.get("type") != "user" or not parent or entry.get("isMeta") or "toolUseResult" in entry:
            continue
        blocks = _items(_object(entry, "message"), "content")
        if any(is_object(block) and block.get("type") == "tool_result" for block in blocks):
            continue
        if parent in inputs:
            rewound.add(inputs[parent])
        inputs[parent] = str(entry.get("uuid"))
    for uuid, parent in parents.items() if rewound else ():  # a parent is written before its children
        if parent in rewound:
            rewound.add(uuid)
    return rewound


def _claude_title(entries: list[Fields]) -> str:
    """Returns the title that the user chose, or the last generated title."""
    for kind, name in (("custom-title", "customTitle"), ("ai-title", "aiTitle"), ("summary", "summary")):
        titles = [str(entry[name]) for entry in entries if entry.get("type") == kind and entry.get(name)]
        if titles:
            return titles[0] if kind == "summary" else titles[-1]
    return ""


def _describe_claude_message(message: Message, entry: Fields) -> None:
    time = _milliseconds(entry.get("timestamp", 0))
    if message.role != "assistant":
        _describe(message, time)
        return
    answer = entry["message"]
    usage = _object(answer, "usage")
    cache = CacheTokens(usage.get("cache_read_input_tokens") or 0, usage.get("cache_creation_input_tokens") or 0)
    tokens = Tokens(usage.get("input_tokens") or 0, usage.get("output_tokens") or 0, cache=cache)
    _describe(message, time, ModelRef("anthropic", answer.get("model") or ""), tokens)


def _describe(message: Message, time: int, model: ModelRef | None = None, tokens: Tokens | None = None) -> None:
    """Sets the time and, for an answer, the model and the tokens."""
    is_answer = message.role == "assistant"
    if time:
        message.time = MessageTime(created=time, completed=time if is_answer else None)
    if is_answer:
        message.model, message.tokens = model, tokens or Tokens()


def _wrap_item(entry: Fields) -> Fields:
    """Returns an item in the envelope that early versions of Codex did not write."""
    return {"type": "response_item", "payload": entry}


def _read_codex(entries: list[Fields]) -> ForeignSession:
    head = _object(entries[0], "payload")
    reader = FormatReader()
    described: list[tuple[int, str]] = []  # time and model of each message
    model = ""

    def read(entry: Fields) -> None:
        nonlocal model
        payload = entry["payload"]
        if entry["type"] == "turn_context":
            model = str(payload.get("model") or model)
        elif payload.get("role") not in ("system", "developer") and not _is_codex_context(payload):
            reader.read_item(payload)
        time = _milliseconds(entry.get("timestamp", 0))
        described.extend([(time, model)] * (len(reader) - len(described)))

    left_out = _read_all(_find_codex_items(entries), read)
    session = Session(messages=reader.finish(now_ms()), workspace_directory=head.get("cwd") or "")
    for message, (time, name) in zip(session.messages, described, strict=True):
        _describe(message, time, ModelRef(str(head.get("model_provider") or "openai"), name) if name else None)
    return _finish(session, left_out, (_milliseconds(entry.get("timestamp", 0)) for entry in entries))


def _find_codex_items(entries: list[Fields]) -> list[tuple[int, Fields]]:
    """Returns the items and turn contexts, without the turns that were rolled back."""
    items: list[tuple[int, Fields]] = []
    for number, entry in enumerate(entries, 1):
        match entry:
            case {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": int(turns)}} if turns > 0:
                inputs = [position for position, (_, item) in enumerate(items) if _is_codex_input(item)]
                del items[inputs[max(len(inputs) - turns, 0)] if inputs else 0 :]
            case {"type": "response_item" | "turn_context", "payload": {}}:
                items.append((number, entry))
            case _:
                pass
    return items


def _is_codex_input(entry: Fields) -> bool:
    payload = _object(entry, "payload")
    return entry["type"] == "response_item" and payload.get("role") == "user" and not _is_codex_context(payload)


_CODEX_CONTEXT = (
    "# AGENTS.md instructions",
    *(
        f"<{name}>"
        for name in (
            "environment_context", "user_instructions", "environments_instructions", "turn_aborted", "skill",
            "recommended_plugins", "subagent_notification", "current_time_reminder", "image_resize_notice",
        )
    ),
)  # fmt: skip


def _is_codex_context(payload: Fields) -> bool:
    """Returns whether a user message holds only what Codex adds, such as the description of the environment."""
    texts = [str(part.get("text", "")) for part in _items(payload, "content") if is_object(part)]
    is_added = all(text.lstrip().startswith(_CODEX_CONTEXT) for text in texts)
    return payload.get("role") == "user" and bool(texts) and is_added


def _fold_gemini_records(records: list[Fields]) -> tuple[Fields, list[Any]]:
    """Folds the records of a file of JSON lines. A message replaces the message with the same id. `$set` changes the
    head, and may replace all messages. `$rewindTo` removes messages. `$patch` only shortens messages, so it is
    skipped."""
    head: Fields = {}
    messages: dict[Any, Any] = {}
    for record in records:
        match record:
            case {"$rewindTo": str(rewound)}:
                ids = list(messages)
                for message_id in ids[ids.index(rewound) if rewound in ids else 0 :]:
                    del messages[message_id]
            case {"id": str(message_id)}:
                messages[message_id] = record
            case {"$set": {**changes}} | {"sessionId": _, **changes}:
                head |= changes
                if "messages" in changes:
                    replacements = [message for message in _items(changes, "messages") if is_object(message)]
                    messages = {message.get("id"): message for message in replacements}
            case _:
                pass
    return head, list(messages.values())


def _read_gemini_cli(head: Fields, entries: list[Any]) -> ForeignSession:
    reader = FormatReader()
    names = {"user": "user", "gemini": "model"}
    described: list[Fields] = []  # the entry of each message

    def read(entry: Fields) -> None:
        content: Any = entry.get("content") or ""
        parts: list[Any] = _items(entry, "content") or [content]
        spoken = [part for part in map(_gemini_part, parts) if part.get("text") != ""]
        thoughts = [
            {"text": f"{thought.get('subject', '')}: {thought.get('description', '')}", "thought": True}
            for thought in _items(entry, "thoughts")
        ]
        noted = {_object(part, "functionCall").get("id") for part in spoken}
        calls = [
            {"functionCall": {"id": call["id"], "name": call["name"], "args": _object(call, "args")}}
            for call in _items(entry, "toolCalls")
            if call["id"] not in noted
        ]
        if result_ids:  # results that the calls of the answer before have already
            spoken = [part for part in spoken if _object(part, "functionResponse").get("id") not in result_ids]
        reader.read_content({"role": names[entry["type"]], "parts": [*thoughts, *spoken, *calls]})
        described.extend([entry] * (len(reader) - len(described)))
        for call in _items(entry, "toolCalls"):
            result: Any = call.get("result")
            results = [part for part in _items({"result": result}, "result") or [result] if _is_gemini_result(part)]
            reader.read_content({"role": "user", "parts": results or [_gemini_response(call)]})
            result_ids.add(call["id"])
        described.extend([entry] * (len(reader) - len(described)))

    result_ids: set[Any] = set()
    spoken = [(number, entry) for number, entry in enumerate(entries, 1) if entry.get("type") in names]
    left_out = _read_all(spoken, read)
    folders = [folder for folder in _items(head, "directories") if isinstance(folder, str)]
    session = Session(
        messages=reader.finish(now_ms()),
        title=str(head.get("summary") or "")[:_TITLE_LENGTH],
        workspace_directory=folders[0] if folders else "",
    )
    for message, entry in zip(session.messages, described, strict=True):
        model = ModelRef("google", entry["model"]) if isinstance(entry.get("model"), str) else None
        _describe(message, _milliseconds(entry.get("timestamp", 0)), model, _gemini_tokens(_object(entry, "tokens")))
    times = (_milliseconds(value) for value in (head.get("startTime", 0), head.get("lastUpdated", 0)))
    return _finish(session, left_out, times)


def _gemini_part(part: Any) -> Fields:
    return {"text": part} if isinstance(part, str) else part


def _is_gemini_result(part: Any) -> bool:
    return is_object(part) and "functionResponse" in part


def _gemini_tokens(tokens: Fields) -> Tokens:
    count = {name: value for name, value in tokens.items() if isinstance(value, int)}
    cached = count.get("cached", 0)
    new = max(count.get("input", 0) + count.get("tool", 0) - cached, 0)
    return Tokens(new, count.get("output", 0), count.get("thoughts", 0), cache=CacheTokens(cached))


def _gemini_response(call: Fields) -> Fields:
    text = call.get("resultDisplay") if isinstance(call.get("resultDisplay"), str) else ""
    key = "output" if call.get("status") == "success" else "error"
    outcome = text or f"(the call ended as {call.get('status', 'unknown')})"
    return {"functionResponse": {"id": call["id"], "name": call["name"], "response": {key: outcome}}}


def _read_opencode(info: Fields, entries: list[Any]) -> ForeignSession:
    messages: list[Message] = []
    left_out: list[str] = []
    reverted = _object(info, "revert").get("messageID")
    for number, entry in enumerate(entries, 1):
        about = _object(entry, "info")
        if reverted and about.get("id") == reverted:
            break  # the user took back this message and the later ones
        role = "assistant" if about.get("role") == "assistant" else "user"
        steps = [Message(role)]
        parts = enumerate(_items(entry, "parts"), 1)
        left_out += [f"message {number}, {text}" for text in _read_all(parts, _opencode_reader(steps))]
        created = _milliseconds(_object(about, "time").get("created", 0))
        for message in steps:
            _describe(message, created, ModelRef(about.get("providerID") or "", about.get("modelID") or ""))
            message.agent = str(about.get("agent") or "")
        if role == "assistant":
            _describe_cost(steps[-1], about)
        messages += [message for message in steps if message.parts]
    session = Session(messages=messages, title=info.get("title") or "", workspace_directory=info.get("directory") or "")
    times = _object(info, "time")
    return _finish(session, left_out, (_milliseconds(times.get(name, 0)) for name in ("created", "updated")))


def _describe_cost(message: Message, about: Fields) -> None:
    tokens, cost = _object(about, "tokens"), about.get("cost")
    cache = _object(tokens, "cache")
    input, output, reasoning = (int(tokens.get(name) or 0) for name in ("input", "output", "reasoning"))
    cached = CacheTokens(int(cache.get("read") or 0), int(cache.get("write") or 0))
    message.tokens = Tokens(input, output, reasoning, cache=cached)
    message.cost = Decimal(str(cost)) if cost else None


def _opencode_reader(steps: list[Message]) -> Callable[[Fields], None]:
    """Returns a function that reads a part. A message of opencode may have several steps, each with its calls."""

    def read(part: Fields) -> None:
        message = steps[-1]
        match part.get("type"):
            case "text":
                synthetic, ignored = bool(part.get("synthetic")), bool(part.get("ignored"))
                message.add_part(TextPart(part["text"], synthetic=synthetic, ignored=ignored))
            case "reasoning" if part.get("text"):
                message.add_part(ReasoningPart(part["text"], provider_state={"family": "imported"}))
            case "file":
                message.add_part(FilePart(part["mime"], part["url"], part.get("filename")))
            case "tool":
                message.add_part(_opencode_call(part))
            case "step-start" if message.parts:
                steps.append(Message(message.role))
            case _:
                return  # snapshots and patches of opencode's own files

    return read


def _opencode_call(part: Fields) -> ToolPart:
    state, now = part["state"], now_ms()
    times = _object(state, "time")
    running = ToolPending(_object(state, "input"), "", "ready").start(_milliseconds(times.get("start", now)))
    end = _milliseconds(times.get("end", now))
    if state.get("status") == "completed":
        files = [file for file in _items(state, "attachments") if is_object(file) and file.get("url")]
        ended = running.complete(
            str(state.get("output") or ""),
            end,
            title=str(state.get("title") or ""),
            attachments=tuple(_opencode_file(file) for file in files),
        )
    elif state.get("status") == "error":
        ended = running.fail(str(state.get("error") or "the call has no result"), end)
    else:
        ended = running.fail("the call has no result: the program stopped before it ended", end, reason="interrupted")
    return ToolPart(call_id=part["callID"], tool=part["tool"], state=ended)


def _opencode_file(file: Fields) -> Attachment:
    mime, url, name = str(file.get("mime") or ""), str(file["url"]), file.get("filename")
    return attachment_from_url(mime, url, name)
