"""Lists of messages and session files of other programs are read and written."""

import json
from typing import Any

import pytest

from outrider.errors import PartValidationError
from outrider.sessions.export import import_session
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.session import Session
from outrider.types.parts import FilePart, ReasoningPart, TextPart
from outrider.types.tool_state import ToolCompleted, ToolError

PIXEL = "data:image/png;base64,iVBORw0KGgo="
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "You help."},
    {"role": "user", "content": [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": PIXEL}}]},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at":"it"}'}},
        {"id": "c2", "type": "function", "function": {"name": "look", "arguments": '{"at":"more"}'}}]},
    {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
    {"role": "tool", "tool_call_id": "c2", "content": "a dog"},
    {"role": "assistant", "content": "A cat and a dog."},
    {"role": "user", "content": "Thanks"},
]  # fmt: skip
RESPONSES: list[dict[str, Any]] = [
    {"role": "developer", "content": "You help."},
    {"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "See"}, {"type": "input_image", "image_url": PIXEL}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":"it"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "a cat"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A cat."}]},
    {"role": "user", "content": "Thanks"},
]  # fmt: skip
GEMINI: list[dict[str, Any]] = [
    {"role": "user", "parts": [{"text": "See"}, {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}]},
    {"role": "model", "parts": [{"text": "I look."}, {"functionCall": {"id": "c1", "name": "look", "args": {"a": 1}}}]},
    {"role": "user", "parts": [
        {"functionResponse": {"id": "c1", "name": "look", "response": {"output": "a cat"}}}]},
    {"role": "model", "parts": [{"text": "A cat."}]},
]  # fmt: skip
LISTS: dict[Any, list[dict[str, Any]]] = {"openai": CHAT, "openai-responses": RESPONSES, "google": GEMINI}


@pytest.mark.parametrize("format", list(LISTS))
def test_a_list_is_read_and_written_again_as_it_was(format: Any):
    session = Session()
    session.set_messages(LISTS[format], None)
    assert session.get_messages(format) == LISTS[format]
    session.set_messages(LISTS[format], format)
    assert session.get_messages(format) == LISTS[format]
    call = session.messages[1].get_calls()[0]
    assert isinstance(call.state, ToolCompleted)
    assert (call.tool, call.state.output) == ("look", "a cat")
    assert isinstance(session.messages[0].parts[1], FilePart)


@pytest.mark.parametrize("source", list(LISTS))
@pytest.mark.parametrize("target", ["anthropic", *LISTS])
def test_every_list_can_be_written_in_every_format(source: Any, target: Any):
    session, other = Session(), Session()
    session.set_messages(LISTS[source], source)
    other.set_messages(session.get_messages(target), target)
    assert [message.get_text_content() for message in other.messages if message.get_text_content()] == [
        message.get_text_content() for message in session.messages if message.get_text_content()
    ]
    assert [call.state.text for message in other.messages for call in message.get_calls()] == [
        call.state.text for message in session.messages for call in message.get_calls()
    ]


def test_reasoning_of_another_program_is_shown_and_belongs_to_no_model():
    session = Session()
    answer = {"role": "assistant", "content": "Four.", "reasoning_content": "2 + 2"}
    session.set_messages([{"role": "user", "content": "2 + 2?"}, answer], "openai")
    (reasoning,) = session.messages[1].get_parts_by_type(ReasoningPart)
    assert (reasoning.text, reasoning.provider_state) == ("2 + 2", {"family": "imported"})
    assert session.get_messages("openai")[1] == answer


def test_what_cannot_be_read_is_named_and_changes_nothing():
    session = Session()
    session.add_user_message("before")
    for format, wrong in [("openai", {"role": "robot"}), ("openai-responses", {"type": "magic"}),
                          ("google", {"role": "user", "parts": [{"video": 1}]}), ("openai", 3)]:  # fmt: skip
        with pytest.raises(PartValidationError, match=r"messages\[1\]"):
            session.set_messages([LISTS[format][1], wrong], format)  # type: ignore[arg-type, index]
    with pytest.raises(ValueError, match="no message format 'xml'"):
        session.get_messages("xml")  # type: ignore[arg-type]
    assert len(session.messages) == 1


CLAUDE_CODE = [
    {"type": "summary", "summary": "A walk", "leafUuid": "x"},
    {"type": "user", "uuid": "1", "sessionId": "s", "cwd": "/w", "timestamp": "2025-06-01T10:00:00.000Z",
     "message": {"role": "user", "content": "List the files."}},
    {"type": "assistant", "uuid": "2", "sessionId": "s", "timestamp": "2025-06-01T10:00:01.000Z",
     "message": {"id": "msg_1", "role": "assistant", "model": "claude-opus-4", "usage": {"input_tokens": 5},
                 "content": [{"type": "text", "text": "I look."}]}},
    {"type": "assistant", "uuid": "3", "sessionId": "s", "timestamp": "2025-06-01T10:00:01.000Z",
     "message": {"id": "msg_1", "role": "assistant", "content": [
         {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}]}},
    {"type": "user", "uuid": "4", "sessionId": "s", "toolUseResult": {},
     "message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a.txt"}]}},
    {"type": "assistant", "uuid": "5", "sessionId": "s",
     "message": {"id": "msg_2", "role": "assistant", "content": [{"type": "text", "text": "There is a.txt."}]}},
    {"type": "assistant", "uuid": "6", "sessionId": "s", "message": {"role": "assistant"}},
]  # fmt: skip
CODEX = [
    {"timestamp": "2025-06-01T10:00:00Z", "type": "session_meta", "payload": {"id": "s", "cwd": "/w"}},
    {"timestamp": "2025-06-01T10:00:00Z", "type": "response_item", "payload": {"type": "message", "role": "user",
     "content": [{"type": "input_text", "text": "<environment_context>x</environment_context>"}]}},
    {"timestamp": "2025-06-01T10:00:01Z", "type": "response_item", "payload": {"type": "message", "role": "user",
     "content": [{"type": "input_text", "text": "List the files."}]}},
    {"timestamp": "2025-06-01T10:00:01Z", "type": "event_msg", "payload": {"type": "user_message"}},
    {"type": "response_item", "payload": {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}},
    {"type": "response_item", "payload": {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}',
                                          "call_id": "c1"}},
    {"type": "response_item", "payload": {"type": "function_call_output", "call_id": "c1", "output": "a.txt"}},
    {"type": "response_item", "payload": {"type": "message", "role": "assistant",
     "content": [{"type": "output_text", "text": "There is a.txt."}]}},
    {"type": "response_item", "payload": {"type": "unheard_of"}},
]  # fmt: skip
GEMINI_CLI = {
    "sessionId": "s", "projectHash": "h", "startTime": "2025-06-01T10:00:00Z", "lastUpdated": "2025-06-01T11:00:00Z",
    "messages": [
        {"id": "1", "type": "user", "content": "List the files."},
        {"id": "2", "type": "info", "content": "update available"},
        {"id": "3", "type": "gemini", "content": "", "model": "gemini-3-pro",
         "thoughts": [{"subject": "Plan", "description": "look"}],
         "toolCalls": [{"id": "c1", "name": "ls", "args": {"path": "."}, "status": "success", "result": [
             {"functionResponse": {"id": "c1", "name": "ls", "response": {"output": "a.txt"}}}]}]},
        {"id": "4", "type": "gemini", "content": "There is a.txt."},
        {"id": "5", "type": "user", "content": [{"video": 1}]},
    ],
}  # fmt: skip
OPENCODE = {
    "info": {"id": "ses_1", "title": "A walk", "directory": "/w", "time": {"created": 1748772000000}},
    "messages": [
        {"info": {"id": "m1", "role": "user", "time": {"created": 1748772000000}},
         "parts": [{"type": "text", "text": "List the files."}]},
        {"info": {"id": "m2", "role": "assistant", "providerID": "anthropic", "modelID": "claude-opus-4"},
         "parts": [{"type": "step-start"}, {"type": "reasoning", "text": "Hm."},
                   {"type": "tool", "callID": "c1", "tool": "list",
                    "state": {"status": "completed", "input": {"path": "."}, "output": "a.txt",
                              "time": {"start": 1748772000000, "end": 1748772000001}}},
                   {"type": "tool", "callID": "c2"}]},
        {"info": {"id": "m3", "role": "assistant"}, "parts": [{"type": "text", "text": "There is a.txt."}]},
    ],
}  # fmt: skip
FILES = {
    "claude code": "\n".join(map(json.dumps, CLAUDE_CODE)) + '\n{"cut',
    "codex": "\n".join(map(json.dumps, CODEX)),
    "codex, first version": "\n".join(
        map(json.dumps, [{"id": "s", "timestamp": "t", "instructions": None}, *(one["payload"] for one in CODEX[1:])])
    ),
    "gemini cli": json.dumps(GEMINI_CLI),
    "opencode": json.dumps(OPENCODE),
}


@pytest.mark.parametrize("program", list(FILES))
async def test_a_session_file_of_another_program_is_imported(program: str):
    async with MemoryStore() as store:
        result = await import_session(store, FILES[program])
        (stored,) = result.sessions
        messages = (await store.load(stored.id)).messages
    texts = [message.get_text_content() for message in messages if message.get_text_content()]
    assert texts[0] == "List the files."
    assert texts[-1] == "There is a.txt."
    (call,) = [call for message in messages for call in message.get_calls()]
    assert isinstance(call.state, ToolCompleted)
    assert call.state.output == "a.txt"
    assert len(result.left_out) >= 1  # each file has an entry that cannot be read
    assert stored.title in ("A walk", "List the files.")
    if "gemini" not in program and "first" not in program:
        assert stored.workspace_directory == "/w"


async def test_a_list_of_messages_is_imported_and_nonsense_is_refused():
    async with MemoryStore() as store:
        (stored,) = (await import_session(store, json.dumps(CHAT))).sessions
        first = (await store.load(stored.id)).messages[0]
        assert (first.system, first.parts[0]) == ("You help.", first.get_parts_by_type(TextPart)[0])
        for wrong in ("", "[]", "7", "hello", '{"a": 1}', '{"messages": []}'):
            with pytest.raises(PartValidationError):
                await import_session(store, wrong)
        failed = [
            {"role": "model", "parts": [{"functionCall": {"name": "x", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "x", "response": {"error": "no"}}}]},
        ]
        (stored,) = (await import_session(store, json.dumps(failed))).sessions
        assert isinstance((await store.load(stored.id)).messages[0].get_calls()[0].state, ToolError)
