"""Builds the OpenAPI 3.1 document from the endpoint tables."""

import inspect
import re
from collections.abc import Iterable
from typing import Any, cast, get_args

import msgspec

from outrider.engine.archive import Change, PartChange
from outrider.server.endpoint import ERROR_STATUS, ApiEndpoint, NoPayload, encode_response
from outrider.server.webhooks import TurnNotice, WebhookApproval, WebhookSession
from outrider.types.events import EVENT_TYPES
from outrider.types.parts import STORED_KINDS

REFERENCE_TEMPLATE = "#/components/schemas/{name}"
DESCRIPTION = """\
Sessions, turns, approvals and background runs of an Outrider server. Send its token as `Authorization: Bearer TOKEN`.

Event streams are server-sent events. A session's stream has frames of two kinds: `change` is one stored `Change`, whose
sequence number is the id of the frame, so that a client continues with `Last-Event-ID`; `live` is a list of `Event`s,
which are not stored. Kinds of parts, changes and events may be added: ignore those that you do not know.

A repeated `POST` with the same `Idempotency-Key` header gets the first response again for a day.
"""
TAGS = {
    "Sessions": "Conversations: create, read, follow, search, fork, share.",
    "Turns": "Input, queue, plans, abort, compaction.",
    "Approvals and questions": "What waits for an answer of a user.",
    "Tools and workspace": "Files, changes, processes, commands and tools of a session.",
    "Background runs": "Runs of workers, and schedules.",
    "OpenAI": "Agents as models of the OpenAI APIs.",
    "Agent protocols": "AG-UI and A2A.",
    "Server": "Agents, models, usage, health, settings, logins and users.",
}
_TAG_PATHS = (
    (r"/v1/", "OpenAI"),
    (r"/(agui|a2a|\.well-known)/", "Agent protocols"),
    (r"/api/(approvals|questions|answers)\b", "Approvals and questions"),
    (r"/api/(jobs|schedules)\b", "Background runs"),
    (r"/api/sessions/{session_id}/(prompt|continue|abort|compact|queue|plan|open|model|effort)\b", "Turns"),
    (r"/api/sessions(/{session_id}(/(messages|events|fork|export|share|shares|trace|context|timeline|usage).*)?)?$",
     "Sessions"),
    (r"/api/(search|events|import|import-from)$", "Sessions"),
    (r"/api/(sessions/{session_id}|files|workspace)/", "Tools and workspace"),
    (r"/", "Server"),
)  # fmt: skip
_ID = "018f6f2e-0000-7000-8000-000000000000"
EXAMPLES: dict[str, Any] = {
    "create_session": {"title": "Release notes", "mode": "agent"},
    "prompt": {"text": "Write the release notes.", "id": _ID, "wait": False},
    "answer_approval": {"allow": False, "words": "Do not push to main."},
    "answer_question": {"answers": ["yes"]},
    "change_session": {"title": "Release notes of 0.2", "archived": True},
    "answer_plan": {"accept": True},
    "create_chat_completion": {"model": "coder", "messages": [{"role": "user", "content": "Hello"}], "stream": True},
    "create_response": {"model": "coder", "input": "Hello"},
    "run_agui_agent": {
        "threadId": "thread-1",
        "runId": "run-1",
        "messages": [{"id": "1", "role": "user", "content": "Hello"}],
    },
    "call_a2a": {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendMessage",
        "params": {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "Hello"}]}},
    },
    "import_session": {
        "outrider_export": 1,
        "sessions": [{"session": {"id": _ID, "title": "Release notes"}, "messages": []}],
    },
    "import_from": {"url": "https://agents.example/api/sessions/ID/export", "token": "TOKEN"},
    "fork_session": {"at": _ID, "title": "Another way"},
    "add_share": {"to": "team:docs", "level": "read"},
    "replay_session": {"ignore": ["system"]},
    "rerun_session": {"model": "anthropic/claude-opus-4-6", "at_step": 3},
    "open_session": {"take_over": False},
    "choose_model": {"model": "anthropic/claude-opus-4-6"},
    "choose_effort": {"effort": "high"},
    "compact": {"instructions": "Focus on the API."},
    "expand_custom_command": {"name": "review", "argument": "src/app.py"},
    "restore_files": {"direction": "undo"},
    "undo_reviewed_part": {"path": "src/app.py"},
    "commit_reviewed_files": {"message": "Fix the price", "paths": ["src/app.py"]},
    "look_at_call": {"tool": "read", "input": {"file_path": "README.md"}},
    "call": {"tool": "read", "input": {"file_path": "README.md"}},
    "write_input": {"text": "yes\n"},
    "run_command": {"command": "git status"},
    "ask_agent": {"agent": "writer", "parts": [{"type": "text", "text": "Write the release notes."}]},
    "submit_job": {"prompt": "Update the dependencies.", "id": _ID, "webhook": "https://ci.example/outrider"},
    "approve_job": {"words": "Only in this branch."},
    "deny_job": {"words": "Do not push."},
    "add_schedule": {"cron": "0 7 * * 1-5", "prompt": "Summarize the open issues.", "timezone": "Europe/Berlin"},
    "store_key": {"variable": "ANTHROPIC_API_KEY", "key": "KEY"},
    "add_webhook": {
        "url": "https://ci.example/outrider",
        "events": ["turn.completed", "approval.requested"],
        "user": "ana",
    },
    "start_server_login": {"name": "github"},
    "finish_server_login": {"name": "github", "address": "http://127.0.0.1:49152/callback?code=CODE&state=STATE"},
    "end_server_login": {"name": "github"},
    "switch_server": {"name": "github", "enabled": False},
    "reconnect_server": {"name": "github"},
    "decide_trust": {"path": "/srv/project", "trusted": True, "digest": "the digest of GET /api/trust"},
}
ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {
                "type": {
                    "type": "string",
                    "description": "the kind of the error, stable; the description of each status lists those it has",
                },
                "message": {"type": "string", "description": "what happened, for people"},
                "details": {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
            },
        }
    },
}
GUARD_ERRORS = {
    "400": ["ValidationError", "DecodeError"],
    "401": ["no_token"],
    "403": ["foreign_origin", "forbidden"],
    "404": ["no_such_route"],
    "405": ["no_such_method"],
    "413": ["too_large"],
    "415": ["wrong_type"],
    "421": ["wrong_host"],
    "429": ["too_many_requests"],
    "503": ["ServerAwayError"],
}
EVENT_STREAM = "text/event-stream"
SESSION_STREAMS = ("follow_session", "follow_all", "follow_job")
ERROR_DESCRIPTIONS = {
    "400": "the request is invalid",
    "401": "the token is missing or wrong",
    "403": "cross-site request",
    "404": "not found",
    "405": "method not allowed for this path",
    "409": "the session is in use by another process, or its state does not allow this",
    "413": "the body is too large",
    "415": "the body is not JSON",
    "421": "the Host header does not name this server",
    "429": "too many requests",
    "502": "a provider returned an error",
    "503": "the store is unavailable",
    "507": "the disk or the quota is full",
}

ERROR_MESSAGES = {
    "400": "unknown query parameter: limits",
    "401": "the token is missing or wrong",
    "403": "vic is a viewer",
    "404": "no such route; see /api/openapi.json",
    "405": "allowed methods: GET, POST",
    "409": f"session {_ID} is in use by process 4711",
    "413": "the body is too large",
    "415": "send the body as application/json",
    "421": "the Host header does not name this server",
    "429": "too many requests; try again in a moment",
    "502": "the provider returned an error: overloaded",
    "503": "the server is being stopped; try again in a moment",
    "507": "no space left on the device",
}
_TIME, _CALL = 1_760_000_000_000, "call_0"
_FILE, _DIFF = "src/prices.py", "@@ -1 +1 @@\n-price = 1\n+price = 2\n"
# Values of fields in examples, by name. A field with another type has its default, or a value of its type.
EXAMPLE_VALUES: dict[str, tuple[Any, ...]] = {
    "id": (_ID, 1), "session_id": (_ID,), "message_id": (_ID,), "part_id": (_ID,), "parent_id": (None,),
    "run": (_ID,), "child_session_id": (_ID,), "call_id": (_CALL,), "next": (None,), "seq": (12,),
    "agent": ("coder",), "title": ("Release notes",), "name": ("coder",), "model": ("claude-opus-4-6",),
    "provider": ("anthropic",), "workspace_directory": ("/srv/runs/ana",), "workspace": ("/srv/runs/ana",),
    "root": ("/srv/runs/ana",), "cwd": ("/srv/runs/ana",), "worktree": ("",), "owner": ("ana",), "user": ("ana",),
    "team": ("docs",), "to": ("team:docs",), "text": ("The release notes are in NOTES.md.",),
    "output": ("The release notes are in NOTES.md.",), "content": ("The release notes are in NOTES.md.",),
    "summary": ("Wrote the release notes.",), "description": ("Writes and reviews code.",),
    "prompt": ("Write the release notes.",), "reason": ("completed",), "created": (_TIME,),
    "updated": (_TIME + 5000,), "start": (_TIME,), "end": (_TIME + 5000,), "started_at": (_TIME,),
    "ended": (_TIME + 5000,), "asked": (_TIME,), "answered": (None,), "created_at": (_TIME // 1000,),
    "completed": (_TIME + 5000,), "time": (_TIME,), "compacted": (None,), "duration_ms": (5000,),
    "duration": ("5.0 s",), "cost": ("0.0123", 0.0123), "input_tokens": (1200,), "output_tokens": (80,),
    "total_tokens": (1280,), "prompt_tokens": (1200,), "completion_tokens": (80,), "tokens_before": (120_000,),
    "tokens_after": (9_000,), "tokens_in": ("1.2k", 1200), "tokens_out": ("80", 80), "total": (1280,),
    "context_limit": (200_000,), "bytes": (2048,), "size": (2048,), "tool": ("edit",), "command": ("git status",),
    "path": (_FILE,), "file": (_FILE,), "filename": ("NOTES.md",), "new_path": (_FILE,), "old_path": (_FILE,),
    "paths": ([_FILE],), "diff": (_DIFF,), "patch": (_DIFF,), "preview": (_DIFF,), "branch": ("outrider/018f6f2e",),
    "hash": ("9fceb02d0ae598e95dc970b74767f19372d61af8",), "key": ("claude-opus-4-6",),
    "url": ("https://agents.example/?code=CODE",), "base_url": (None,), "origin": ("https://ci.example",),
    "secret": ("whsec_c2VjcmV0",), "version": ("0.2.0",), "cron": ("0 7 * * 1-5",), "timezone": ("Europe/Berlin",),
    "snippet": ("Write the release notes.",), "role": ("assistant", "operator"), "mime": ("text/plain",),
    "mime_type": ("text/plain",), "error": ("", None), "words": ("", None), "worker": ("",), "queue": ("runs",),
    "rule": (None, ""), "subject": ("Fix the price",), "author": ("ana",), "variable": ("ANTHROPIC_API_KEY",),
    "object": ("list", "model", "chat.completion", "response"), "jsonrpc": ("2.0",), "owned_by": ("outrider",),
    "protocolVersion": ("1.0",), "protocolBinding": ("JSONRPC",), "digest": ("e3b0c44298fc1c149afbf4c8996fb924",),
    "": ("anthropic/claude-opus-4-6",), "kind": ("text", "file"), "state": ("done", "ready"),
    "status": ("completed", "modified"), "finish": ("stop",), "finish_reason": ("stop",), "scope": ("once",),
    "label": ("Once",), "rule_text": ("edit(src/**)",), "input": ({"file_path": _FILE}, 1200), "reasoning": (0,),
    "line": ("price = 2",), "events": (["turn.completed"],), "tags": (["agent"],),
    "defaultInputModes": (["text/plain"],), "defaultOutputModes": (["text/plain"],),
    "tokens": ("1.2k in, 80 out", 1280), "timestamp": (_TIME,), "heading": ("src/prices.py",), "value": ("src/",),
    "Origin.kind": ("file",), "SourceShare.kind": ("history",), "SourceShare.name": ("conversation",),
    "HealthStatus.ok": (True,), "McpServerState.name": ("github",), "ProviderState.name": ("anthropic",),
    "ProviderState.kind": ("anthropic",), "ProviderState.has_key": (True,), "ToolSpec.name": ("read",),
    "ToolSpec.description": ("Reads a file.",),
    "ToolSpec.parameters": ({"type": "object", "properties": {"file_path": {"type": "string"}}},),
    "Approval.description": ("edit changes a file",), "ApprovalWithView.description": ("edit changes a file",),
    "ApprovalDetails.title": ("edit src/prices.py",), "ApprovalDetails.reason": ("edit changes a file",),
    "ChatCompletion.created": (_TIME // 1000,), "ChatCompletionChunk.created": (_TIME // 1000,),
    "ModelCard.id": ("coder",), "ModelCard.created": (_TIME // 1000,), "ChatCompletion.model": ("coder",),
    "ModelResponse.model": ("coder",), "A2aInterface.url": ("https://agents.example/a2a/coder",),
    "A2aSkill.id": ("coder",), "RuleList.allow": (["shell(git status)"],), "RuleList.ask": ([],),
    "RuleList.deny": (["read(.env)"],), "WebhookView.id": ("5f0c9a1e",), "CreatedWebhook.id": ("5f0c9a1e",),
    "Attachment.url": (None,), "Attachment.name": ("NOTES.md",), "Message.summary": (None,), "effects": ([],),
    "hint": ("FILE",), "folders": (["docs", "src"],), "parent": ("/srv",), "delivery": ("queue",), "sender": ("ana",),
    "ComparisonRow.a": ("hello",), "ComparisonRow.b": ("hello",), "ComparisonReply.a": ("018f6f2e",),
    "ComparisonReply.b": ("018f6f2f",), "damaged": ([],), "server_notices": ([],), "login_error": ("",),
    "waiting_for": ("",), "error_type": ("",), "fingerprint": ("e3b0c44298fc1c149afbf4c8996fb924",), "pid": (4711,),
    "exit_code": (0,), "attempt": (1,),
}  # fmt: skip
EXAMPLE_OBJECTS = ("time", "model", "outcome", "usage", "plan")  # shown although they may be null
# Which member of a union an example has.
EXAMPLE_MEMBERS = ("TextPart", "ToolCompleted", "MessageChange", "TurnCompletedEvent", "OutputMessage")
MAX_EXAMPLE_DEPTH = 6


def build_openapi(endpoints: Iterable[ApiEndpoint], version: str, url: str = "..") -> dict[str, Any]:
    """Returns the description. `url` is the address of the server; the default is relative to the document."""
    endpoints = list(endpoints)
    types = _schema_types(endpoints)
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE_TEMPLATE)
    schema_of = dict(zip(map(_type_key, types), schemas, strict=True))
    all_schemas = {"Refusal": ERROR_SCHEMA, **_allow_decimal_numbers(_add_unions(components))}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation = _build_operation(endpoint, schema_of, components)
        _add_response_examples(endpoint, operation["responses"], all_schemas)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Outrider",
            "version": version,
            "description": DESCRIPTION,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": url}],
        "tags": [{"name": name, "description": about} for name, about in TAGS.items()],
        "security": [{"token": []}],
        "paths": paths,
        "webhooks": {"turn": {"post": _describe_webhook(schema_of[_type_key(TurnNotice)])}},
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": all_schemas,
            "responses": _error_responses(),
        },
    }


_PART_CHANGE = msgspec.defstruct(  # the class itself has a base class as type, which no schema can describe
    "PartChange",
    [("seq", int), ("part", Any), ("draft", bool, False)],
    tag="part",
    namespace={"__doc__": PartChange.__doc__},
)
_UNIONS: dict[str, tuple[type[Any], ...]] = {
    "Part": STORED_KINDS,
    "Change": tuple(_PART_CHANGE if kind is PartChange else kind for kind in get_args(Change)),
    "Event": tuple(EVENT_TYPES.values()),
}
_PART_FIELDS = ("part", "parts")


def _add_unions(components: dict[str, Any]) -> dict[str, Any]:
    """Adds the unions of parts, changes and events, and names them where the types of Python say `Any`."""
    unions = {name: _union_schema(members) for name, members in _UNIONS.items()}
    for schema in components.values():
        fields = schema.get("properties", {})
        for name, field in fields.items():
            if field.get("type") == "object" and field.keys().isdisjoint(("properties", "additionalProperties")):
                field["additionalProperties"] = True
            if isinstance(field.get("default"), dict):
                del field["default"]  # generated clients have no defaults for objects
            implied = schema["title"] + name.title().replace("_", "")
            if "enum" in field and implied in components:
                field["title"] = f"{implied}Value"  # generated clients name an enum after its class and field
        for name in _PART_FIELDS:
            field = fields.get(name)
            if field is None or "$ref" in field:
                continue
            if name == "parts" and not field.get("items", {}).get("properties") and "A2a" not in schema["title"]:
                fields[name] = {**field, "type": "array", "items": _reference("Part")}
            elif name == "part" and not field:
                fields[name] = _reference("Part")
    return {**components, **unions}


def _union_schema(members: tuple[type[Any], ...]) -> dict[str, Any]:
    """Returns a union whose members differ in their tag."""
    tag_field = members[0].__struct_config__.tag_field
    mapping = {str(kind.__struct_config__.tag): f"#/components/schemas/{kind.__name__}" for kind in members}
    return {
        "anyOf": [_reference(kind.__name__) for kind in members],
        "discriminator": {"propertyName": tag_field, "mapping": mapping},
    }


def _reference(name: str) -> dict[str, str]:
    return {"$ref": REFERENCE_TEMPLATE.format(name=name)}


def _allow_decimal_numbers(schema: Any) -> Any:
    """Decimals are encoded as strings to keep their precision; the decoder accepts numbers as well."""
    match schema:
        case {"type": "string", "format": "decimal"}:
            return {**schema, "type": ["string", "number"]}
        case dict():
            return {name: _allow_decimal_numbers(inner) for name, inner in cast("dict[str, Any]", schema).items()}
        case list():
            return [_allow_decimal_numbers(inner) for inner in cast("list[Any]", schema)]
        case _:
            return schema


def _schema_types(endpoints: list[ApiEndpoint]) -> list[Any]:
    """Returns each type once. Generic types such as list[X] cannot be dict keys by identity, so their repr is the
    key."""
    named = [
        schema_type
        for e in endpoints
        for schema_type in (e.query, e.body, e.response_type, e.event_type)
        if schema_type is not None
    ]
    named += [TurnNotice, *(member for members in _UNIONS.values() for member in members)]
    return list(
        {_type_key(schema_type): schema_type for schema_type in named if not isinstance(schema_type, str)}.values()
    )


def _type_key(schema_type: Any) -> str:
    return f"{getattr(schema_type, '__module__', '')}.{schema_type!r}"


def _build_operation(endpoint: ApiEndpoint, schema_of: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "tags": [next(tag for pattern, tag in _TAG_PATHS if re.match(pattern, endpoint.path))],
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint, schema_of, components)],
        "responses": {str(endpoint.status): _success_response(endpoint, schema_of), **_error_references()},
    }
    if about := inspect.cleandoc(endpoint.query.__doc__ or "") if endpoint.query is not NoPayload else "":
        operation["description"] = about  # of the parameters
    if endpoint.body is not NoPayload:
        schema = {"type": "object"} if endpoint.body is msgspec.Raw else schema_of[_type_key(endpoint.body)]
        content: dict[str, Any] = {"application/json": {"schema": schema}}
        content["application/json"]["example"] = EXAMPLES[endpoint.name]
        is_required = endpoint.body is msgspec.Raw or any(
            field.required for field in msgspec.structs.fields(endpoint.body)
        )
        operation["requestBody"] = {"required": is_required, "content": content}
    return operation


def _path_parameters(endpoint: ApiEndpoint) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", endpoint.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(
    endpoint: ApiEndpoint, schema_of: dict[str, Any], components: dict[str, Any]
) -> list[dict[str, Any]]:
    if endpoint.query is NoPayload:
        return []
    reference = schema_of[_type_key(endpoint.query)]["$ref"].rpartition("/")[2]
    schema = components[reference]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": value_schema}
        for name, value_schema in schema["properties"].items()
    ]


def _success_response(endpoint: ApiEndpoint, schema_of: dict[str, Any]) -> dict[str, Any]:
    if endpoint.response_type is None:
        return {"description": "done"}
    if isinstance(endpoint.response_type, str):
        schema = {"type": "object"} if endpoint.response_type == "application/json" else {"type": "string"}
        is_stream = endpoint.response_type == EVENT_STREAM
        described = _event_stream(endpoint, schema_of) if is_stream else {"schema": schema}
        return {"description": "done", "content": {endpoint.response_type: described}}
    content: dict[str, Any] = {"application/json": {"schema": schema_of[_type_key(endpoint.response_type)]}}
    if endpoint.event_type is not None:
        content[EVENT_STREAM] = _event_stream(endpoint, schema_of)
    return {"description": "done", "content": content}


def _event_stream(endpoint: ApiEndpoint, schema_of: dict[str, Any]) -> dict[str, Any]:
    """Describes one event of a stream. This version of OpenAPI has no field for it, and tools read `schema` in two
    ways: as that of the whole text, or of each event."""
    if endpoint.event_type is not None:
        content = schema_of[_type_key(endpoint.event_type)]
    elif endpoint.name in SESSION_STREAMS:
        content = {"anyOf": [_reference("Change"), {"type": "array", "items": _reference("Event")}]}
    else:
        content = {}
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": content}
    fields = {"id": {"type": "string"}, "event": {"type": "string"}, "data": data}
    return {"x-event-schema": {"type": "object", "properties": fields}}


def _error_references() -> dict[str, Any]:
    return {status: {"$ref": f"#/components/responses/Error{status}"} for status in ERROR_DESCRIPTIONS}


def _error_responses() -> dict[str, Any]:
    kinds: dict[str, list[str]] = {status: list(names) for status, names in GUARD_ERRORS.items()}
    for error, status in ERROR_STATUS.items():
        kinds.setdefault(str(status), []).append(error.__name__)
    return {
        f"Error{status}": {
            "description": f"{description} ({', '.join(kinds[status])})",
            "content": {
                "application/json": {
                    "schema": _reference("Refusal"),
                    "example": {
                        "error": {
                            "type": kinds[status][-1 if status == "403" else 0],
                            "message": ERROR_MESSAGES[status],
                        }
                    },
                }
            },
        }
        for status, description in ERROR_DESCRIPTIONS.items()
    }


def _describe_webhook(schema: dict[str, Any]) -> dict[str, Any]:
    approval = WebhookApproval(id=_ID, tool="shell", description="git push reaches the network")
    session = WebhookSession(id=_ID, title="Release notes", owner="ana", workspace="/srv/runs/ana")
    notice = TurnNotice(
        notice=f"{_ID}:5f0c9a1e", event="approval.requested", time=_TIME, session=session, approval=approval
    )
    return {
        "operationId": "receive_turn_notice",
        "summary": "What a webhook of `POST /api/webhooks` receives",
        "tags": ["Server"],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": schema, "example": msgspec.to_builtins(notice)}},
        },
        "responses": {"200": {"description": "any status of 200 to 299 ends the attempts"}},
    }


def _add_response_examples(endpoint: ApiEndpoint, responses: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Adds an example to each content of the success response."""
    for media_type, described in responses[str(endpoint.status)].get("content", {}).items():
        if media_type == EVENT_STREAM:
            described["example"] = _stream_example(endpoint, described["x-event-schema"], schemas)
        elif endpoint.response_type == "application/json":
            described["example"] = EXAMPLES["import_session"]  # an export
        elif isinstance(endpoint.response_type, str):
            described["example"] = "<!doctype html><html lang=en><title>Release notes</title>…</html>"
        else:
            described["example"] = encode_example(endpoint.response_type, described["schema"], schemas)


def _stream_example(endpoint: ApiEndpoint, described: dict[str, Any], schemas: dict[str, Any]) -> str:
    content = described["properties"]["data"]["contentSchema"]
    if endpoint.name in SESSION_STREAMS:
        change, event = (ExampleBuilder(schemas).build(_reference(name)) for name in ("Change", "Event"))
        frames = [("id: 12\nevent: change", change), ("event: live", [event])]
    else:
        frames = [
            (
                "event: output" if not content else "",
                ExampleBuilder(schemas).build(content) if content else {"text": "…"},
            )
        ]
    return "".join(f"{head}\ndata: {msgspec.json.encode(data).decode()}\n\n".lstrip() for head, data in frames)


def encode_example(response_type: Any, schema: dict[str, Any], schemas: dict[str, Any]) -> Any:
    """Returns an example of a response, as the codec of the server encodes it."""
    value = msgspec.convert(ExampleBuilder(schemas).build(schema), response_type, strict=False)
    return msgspec.json.decode(encode_response(value))


class ExampleBuilder:
    """Builds a value that follows a schema, with the values of EXAMPLE_VALUES."""

    def __init__(self, schemas: dict[str, Any]) -> None:
        self._schemas = schemas

    def build(self, schema: dict[str, Any], name: str = "", depth: int = 0) -> Any:
        """Returns an example of a schema. `name` is that of a field, after the title of its class."""
        if "$ref" in schema:
            return self.build(self._schemas[schema["$ref"].rpartition("/")[2]], name, depth)
        plain = name.rpartition(".")[2]
        for example in (*EXAMPLE_VALUES.get(name, ()), *EXAMPLE_VALUES.get(plain, ())):
            if _has_type(example, schema):
                return example
        match schema:
            case {"enum": [*choices]}:
                return schema["default"] if schema.get("default") in choices else choices[0]
            case {"anyOf": [*members]}:
                return self._build_member(schema, members, name, depth)
            case {"type": "array", "default": []}:
                return []
            case {"type": "object"}:
                return self._build_object(schema, depth)
            case {"type": "array"}:
                items: dict[str, Any] = schema.get("items") or {}
                is_shown = depth < MAX_EXAMPLE_DEPTH and bool(items)
                return [self.build(items, name.removesuffix("s"), depth + 1)] if is_shown else []
            case {"default": default}:
                return default
            case _:
                kinds = {"string": plain, "integer": schema.get("minimum", 1), "number": 1.5, "boolean": False}
                return kinds.get(schema.get("type", ""))

    def _build_member(self, schema: dict[str, Any], members: list[dict[str, Any]], name: str, depth: int) -> Any:
        is_shown = depth < MAX_EXAMPLE_DEPTH and name.rpartition(".")[2] in EXAMPLE_OBJECTS
        if {"type": "null"} in members and not is_shown:
            return None
        members = [member for member in members if member != {"type": "null"}]
        preferred = [member for member in members if member.get("$ref", "").rpartition("/")[2] in EXAMPLE_MEMBERS]
        return self.build((preferred or members)[0], name, depth)

    def _build_object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        required = schema.get("required", ())
        return {
            name: self.build(field, f"{schema.get('title', '')}.{name}", depth + 1)
            for name, field in schema.get("properties", {}).items()
            if depth < MAX_EXAMPLE_DEPTH or name in required
        }


def _has_type(value: Any, schema: dict[str, Any]) -> bool:
    """Returns whether a plain value has the type of a schema without references."""
    if "anyOf" in schema:
        return any(_has_type(value, member) for member in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kinds = schema.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else kinds
    types = {"string": str, "integer": int, "number": (int, float), "null": type(None), "boolean": bool, "array": list}
    if isinstance(value, dict):
        return "object" in kinds and "properties" not in schema
    if isinstance(value, list) and value:
        return "array" in kinds and _has_type(value[0], schema.get("items", {}))
    return any(kind in types and isinstance(value, types[kind]) for kind in kinds)
