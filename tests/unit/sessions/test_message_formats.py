"""Lists of messages and session files of other programs are read and written."""

import json
from base64 import b64decode
from decimal import Decimal
from typing import Any

import pytest

from outrider import Agent, Engine
from outrider.errors import PartValidationError
from outrider.sessions.export import import_session
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.session import Session
from outrider.testing import scripted_model
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import CacheTokens, FilePart, ModelRef, ReasoningPart, TextPart, Tokens
from outrider.types.tool_state import ToolCompleted, ToolError, data_url_base64

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


@pytest.mark.parametrize(
    ("format", "messages", "problem"),
    [
        ("google", [{"role": "user", "content": "Hi"}], r"messages\[0\]: a content .* `parts`, got content"),
        ("google", [{"role": "user", "parts": "Hi"}], r"messages\[0\]: a content .* `parts`, got 'Hi'"),
        ("openai", [{"role": "user", "content": 3}], r"messages\[0\]: the content .*, got int"),
        ("openai-responses", [{"type": "function_call", "name": "x"}], r"messages\[0\]: it has no field 'call_id'"),
        ("openai", "Hi", "messages must be a list of messages, got str"),
        ("anthropic", "Hi", "messages must be a list of messages, got str"),
        (None, {"role": "user", "content": "Hi"}, "messages must be a list of messages, got dict"),
        ("anthropic", 3, "messages must be a list of messages, got int"),
    ],
)  # fmt: skip
def test_a_message_in_another_form_is_refused_and_nothing_is_lost(format: Any, messages: Any, problem: str):
    session = Session()
    session.add_user_message("Before")
    with pytest.raises(PartValidationError, match=problem):
        session.set_messages(messages, format)
    assert session.messages[0].get_text_content() == "Before"


def test_a_refused_or_spoken_answer_of_chat_completions_has_its_text():
    session = Session()
    session.set_messages(
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "refusal": "I cannot."},
            {"role": "user", "content": "Say it"},
            {"role": "assistant", "content": None, "audio": {"id": "a1", "transcript": "Hello."}},
        ],
        "openai",
    )
    assert [message.get_text_content() for message in session.messages] == ["Hi", "I cannot.", "Say it", "Hello."]


def test_an_empty_answer_of_gemini_is_read():
    session = Session()
    session.set_messages([*GEMINI, {"role": "model"}, {"role": "model", "parts": None}], "google")
    assert session.get_messages("google") == GEMINI


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
GEMINI_CLI_LINES = [
    {"sessionId": "s", "projectHash": "h", "startTime": "2025-06-01T10:00:00Z", "kind": "main"},
    {"id": "0", "type": "user", "content": [{"text": "Never mind."}]},
    {"$rewindTo": "0"},
    {"id": "1", "timestamp": "2025-06-01T10:00:01Z", "type": "user", "content": [{"text": "List the files."}]},
    {"$set": {"lastUpdated": "2025-06-01T10:00:01Z", "directories": ["/w"], "summary": "A walk"}},
    {"id": "2", "type": "gemini", "content": "", "model": "gemini-3-pro", "toolCalls": [
        {"id": "c1", "name": "ls", "args": {"path": "."}, "status": "executing"}]},
    {"id": "2", "timestamp": "2025-06-01T10:00:02Z", "type": "gemini", "content": "", "model": "gemini-3-pro",
     "tokens": {"input": 10, "output": 2, "cached": 4, "thoughts": 1, "tool": 0, "total": 13},
     "toolCalls": [{"id": "c1", "name": "ls", "args": {"path": "."}, "status": "success",
                    "result": {"functionResponse": {"id": "c1", "name": "ls", "response": {"output": "a.txt"}}}}]},
    {"$patch": {"id": "2", "toolCalls": [{"id": "c1", "result": None}]}},
    {"id": "3", "type": "gemini", "content": [{"text": "There is a.txt."}]},
    {"id": "4", "type": "user", "content": [{"video": 1}]},
]  # fmt: skip
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
    "claude code, web": json.dumps({"loglines": CLAUDE_CODE}),
    "gemini cli": json.dumps(GEMINI_CLI),
    "gemini cli, lines": "\n".join(map(json.dumps, GEMINI_CLI_LINES)),
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
    if program != "gemini cli" and "first" not in program:
        assert stored.workspace_directory == "/w"


async def import_messages(document: object) -> list[Message]:
    text = document if isinstance(document, str) else json.dumps(document)
    async with MemoryStore() as store:
        (stored,) = (await import_session(store, text)).sessions
        return list((await store.load(stored.id)).messages)


def write_lines(*entries: object) -> str:
    return "\n".join(map(json.dumps, entries))


def claude_entry(uuid: str, parent: str | None, content: object, **more: object) -> dict[str, object]:
    role = "assistant" if uuid.startswith("a") else "user"
    message = {"role": role, "content": content} | ({"id": f"msg_{uuid}"} if role == "assistant" else {})
    return {"type": role, "uuid": uuid, "parentUuid": parent, "sessionId": "s", "message": message, **more}


async def test_what_was_rewound_in_claude_code_is_not_imported():
    calls = [{"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {}} for number in (1, 2)]
    results = [{"type": "tool_result", "tool_use_id": f"t{number}", "content": f"r{number}"} for number in (1, 2)]
    messages = await import_messages(write_lines(
        claude_entry("u1", None, "Start"),
        claude_entry("a1", "u1", calls),
        claude_entry("u2", "a1", [results[0]]),
        claude_entry("u3", "a1", [results[1]]),  # next to the other result; this is no rewind
        claude_entry("a2", "u3", [{"type": "text", "text": "Ready"}]),
        claude_entry("u4", "a2", "First attempt"),
        claude_entry("a3", "u4", [{"type": "text", "text": "First answer"}]),
        claude_entry("a4", "a3", [{"type": "text", "text": "API Error: 529"}], isApiErrorMessage=True),
        claude_entry("u5", "a2", "Second attempt"),
        claude_entry("a5", "u5", [{"type": "text", "text": "Second answer"}, {"type": "text", "text": "!"}]),
        claude_entry("a6", "a5", [{"type": "of_the_future"}]),
        {"type": "ai-title", "aiTitle": "Generated", "sessionId": "s"},
    ))  # fmt: skip
    texts = [message.get_text_content() for message in messages if message.get_text_content()]
    assert texts == ["Start", "Ready", "Second attempt", "Second answer\n!"]
    assert [call.state.output for call in messages[1].get_calls()] == ["r1", "r2"]


async def test_a_called_agent_of_claude_code_is_imported_by_itself():
    messages = await import_messages(write_lines(claude_entry("u1", None, "Search", isSidechain=True)))
    assert [message.get_text_content() for message in messages] == ["Search"]


async def test_an_engine_logs_the_entries_that_it_could_not_import(caplog: pytest.LogCaptureFixture):
    async with Engine([Agent("helper", "You help.", model="demo", provider="demo")], [scripted_model()]) as engine:
        session_id = await engine.import_session(FILES["codex"])
    assert [record.getMessage() for record in caplog.records if record.name == "outrider.import"] == [
        f"session {session_id}: skipped entry 9: items of the type 'unheard_of' cannot be imported"
    ]


async def test_turns_that_codex_rolled_back_are_not_imported_and_answers_have_their_model():
    def say(role: str, text: str) -> dict[str, object]:
        kind = "input_text" if role == "user" else "output_text"
        payload = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
        return {"timestamp": "2025-06-01T10:00:05Z", "type": "response_item", "payload": payload}

    messages = await import_messages(write_lines(
        {"type": "session_meta", "payload": {"id": "s", "model_provider": "openai"}},
        {"type": "turn_context", "payload": {"model": "gpt-5"}},
        say("user", "One"), say("assistant", "1"),
        say("user", "Two"), say("user", "<turn_aborted>x</turn_aborted>"), say("assistant", "2"),
        say("user", "Three"), say("assistant", "3"),
        {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 2}},
        {"type": "turn_context", "payload": {"model": "gpt-6"}},
        say("user", "Four"), say("assistant", "4"),
    ))  # fmt: skip
    assert [message.get_text_content() for message in messages] == ["One", "1", "Four", "4"]
    assert [message.model and message.model.model for message in messages] == [None, "gpt-5", None, "gpt-6"]
    assert messages[0].time is not None
    assert messages[0].time.created == 1748772005000


async def test_gemini_answers_have_their_model_time_and_tokens():
    answer = (await import_messages(FILES["gemini cli, lines"]))[1]
    assert (answer.model, answer.time) == (
        ModelRef("google", "gemini-3-pro"),
        MessageTime(1748772002000, 1748772002000),
    )
    assert answer.tokens == Tokens(6, 2, 1, cache=CacheTokens(4))


async def test_an_opencode_message_with_several_steps_has_its_calls_files_and_costs():
    def call(number: int, state: dict[str, object]) -> dict[str, object]:
        return {"type": "tool", "callID": f"c{number}", "tool": "read", "state": {"input": {}, **state}}

    image = {"type": "file", "mime": "image/png", "url": "data:image/png;base64,aGk=", "filename": "a.png"}
    seen, answer, gone = await import_messages({
        "info": {"id": "ses_1", "revert": {"messageID": "m3"}},
        "messages": [
            {"info": {"id": "m1", "role": "assistant", "providerID": "p", "modelID": "m", "agent": "build",
                      "cost": 0.25,
                      "tokens": {"input": 5, "output": 2, "reasoning": 1, "cache": {"read": 3, "write": 0}}},
             "parts": [{"type": "step-start"},
                       call(1, {"status": "completed", "output": "seen", "title": "a.png", "attachments": [image]}),
                       {"type": "step-finish"}, {"type": "step-start"}, {"type": "text", "text": "A cat."}]},
            {"info": {"id": "m2", "role": "assistant"}, "parts": [call(2, {"status": "running"})]},
            {"info": {"id": "m3", "role": "user"}, "parts": [{"type": "text", "text": "taken back"}]},
            {"info": {"id": "m4", "role": "assistant"}, "parts": [{"type": "text", "text": "too"}]},
        ],
    })  # fmt: skip
    (state,) = [part.state for part in seen.get_calls()]
    assert [(file.mime_type, file.data, file.name) for file in state.attachments] == [("image/png", "aGk=", "a.png")]
    assert (answer.get_text_content(), answer.cost, answer.agent) == ("A cat.", Decimal("0.25"), "build")
    assert answer.tokens == Tokens(5, 2, 1, cache=CacheTokens(3))
    assert [part.state.reason for part in gone.get_calls()] == ["interrupted"]


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


@pytest.mark.parametrize("format", list(LISTS))
def test_a_text_document_keeps_its_text_in_every_format(format: Any):
    source = {"type": "text", "media_type": "text/plain", "data": "a, %b\nü"}
    session, other = Session(), Session()
    session.set_messages([{"role": "user", "content": [{"type": "document", "source": source}]}], "anthropic")
    other.set_messages(session.get_messages(format), format)
    part = other.messages[0].parts[0]
    assert isinstance(part, FilePart)
    assert (part.mime, b64decode(data_url_base64(part.url) or "").decode()) == ("text/plain", "a, %b\nü")


def test_a_percent_encoded_data_url_is_read_as_text():
    file = {"type": "file", "file": {"file_data": "data:text/plain,a%20b", "filename": "a.txt"}}
    session = Session()
    session.set_messages([{"role": "user", "content": [file]}], "openai")
    assert session.get_messages("anthropic")[0]["content"][0]["source"] == {
        "type": "text",
        "media_type": "text/plain",
        "data": "a b",
    }
