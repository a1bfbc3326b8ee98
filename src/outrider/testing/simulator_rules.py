"""Rules of the four model APIs: what each of them rejects, in its own words, and how to read its requests."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Protocol, cast

from outrider.testing.schema_rules import (
    Body,
    Problems,
    anthropic_problems,
    array_problems,
    google_problems,
    schemas_in,
    strict_problems,
)

_STATE = re.compile(r"<workspace_state>.*?</workspace_state>", re.DOTALL)
_IDENTIFIER = re.compile(r"[a-zA-Z0-9_-]+")
SKIPPED_SIGNATURE = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
"""The value with which Gemini accepts a call of another model."""
SIGNATURES: Mapping[str, str] = {
    "anthropic": "c2lnbmVkIGJ5IGFudGhyb3BpYw==",
    "openai-responses": "c2lnbmVkIGJ5IG9wZW5haQ==",
    "google": "c2lnbmVkIGJ5IGdvb2dsZQ==",
}
"""Signature that a simulated API gives to its reasoning, and the only one that it accepts."""


def _table(value: Any) -> Body:
    return value or {}


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


class ApiRules(Protocol):
    """Reads requests of one API. `conversation_problems` yields why the API rejects the conversation, for every model;
    `model_problems` yields what depends on the model: settings, signatures, tools and unknown fields."""

    def conversation_problems(self, body: Body, model: str) -> Problems: ...
    def model_problems(self, body: Body, model: str) -> Problems: ...
    def texts(self, body: Body) -> list[str]: ...
    def results(self, body: Body) -> list[str]: ...
    def system(self, body: Body) -> str: ...
    def signatures(self, body: Body) -> list[str]: ...
    def output_schema(self, body: Body) -> Body | None: ...


def _without_state(texts: Iterable[str]) -> list[str]:
    """Returns the texts of the user, without what the engine adds about the workspace."""
    return [text for text in (_STATE.sub("", text) for text in texts) if text]


def _joined(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block.get("text", "") for block in content or ())


class AnthropicRules:
    """The Messages API."""

    def conversation_problems(self, body: Body, model: str) -> Problems:
        if "max_tokens" not in body:
            yield "max_tokens: Field required"
        messages: list[Body] = body.get("messages") or []
        if not messages:
            yield "messages: at least one message is required"
            return
        yield from _anthropic_roles(messages)
        yield from _anthropic_contents(messages)
        yield from _anthropic_pairs(_merged(messages, "content"))
        yield from _anthropic_prefill(messages[-1], model)

    def model_problems(self, body: Body, model: str) -> Problems:
        yield from (f"{name}: Extra inputs are not permitted" for name in sorted(set(body) - _ANTHROPIC_FIELDS))
        if not 0 <= body.get("temperature", 0) <= 1:
            yield "temperature: range: 0..1"
        yield from _claude_settings(body, model)
        yield from _anthropic_blocks(body)
        if output := self.output_schema(body):
            yield from anthropic_problems("output_config.format.schema", output)
        yield from _anthropic_tools([tool for tool in body.get("tools") or () if "type" not in tool])

    def texts(self, body: Body) -> list[str]:
        return _without_state(block["text"] for block in self._blocks(body, "user") if block["type"] == "text")

    def results(self, body: Body) -> list[str]:
        return [_joined(block.get("content", "")) for block in self._blocks(body) if block["type"] == "tool_result"]

    def system(self, body: Body) -> str:
        return _joined(body.get("system", ""))

    def signatures(self, body: Body) -> list[str]:
        return [block["signature"] for block in self._blocks(body) if block["type"] == "thinking"]

    def output_schema(self, body: Body) -> Body | None:
        return body.get("output_config", {}).get("format", {}).get("schema")

    def _blocks(self, body: Body, *roles: str) -> Iterator[Body]:
        for role, blocks in _merged(body["messages"], "content"):
            if not roles or role in roles:
                yield from blocks


_ANTHROPIC_FIELDS = _words(
    "model messages max_tokens system tools tool_choice stream temperature top_p top_k stop_sequences metadata "
    "thinking output_config service_tier cache_control container context_management mcp_servers inference_geo speed"
)
_BLOCK_FIELDS = {
    "text": {"type", "text", "cache_control", "citations"},
    "image": {"type", "source", "cache_control"},
    "document": {"type", "source", "title", "context", "citations", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
    "tool_use": {"type", "id", "name", "input", "cache_control", "caller"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
}


def _merged(messages: list[Body], field: str) -> list[tuple[str, list[Body]]]:
    """Joins neighbours of one role: Anthropic and Google accept them as one message."""
    merged: list[tuple[str, list[Body]]] = []
    for message in messages:
        content: Any = message.get(field)
        blocks: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else _list(content)
        role = message.get("role", "user")
        if merged and merged[-1][0] == role:
            merged[-1][1].extend(blocks)
        else:
            merged.append((role, list(blocks)))
    return merged


def _anthropic_roles(messages: list[Body]) -> Problems:
    for at, message in enumerate(messages):
        if message["role"] == "system":
            yield (
                'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, not '
                '"system" as an input message role.'
            )
        elif message["role"] not in ("user", "assistant"):
            yield f"messages.{at}.role: Input should be 'user' or 'assistant'"
        yield from (
            f"messages.{at}.{name}: Extra inputs are not permitted" for name in set(message) - {"role", "content"}
        )
    if messages[0]["role"] != "user":
        yield 'messages: first message must use the "user" role'


def _anthropic_contents(messages: list[Body]) -> Problems:
    for at, message in enumerate(messages):
        content: Any = message["content"]
        if not content:
            yield (
                f"messages.{at}: all messages must have non-empty content except for the optional final assistant "
                "message"
            )
        for place, block in enumerate(_list(content)):
            where = f"messages.{at}.content.{place}"
            if block["type"] == "text" and not block["text"].strip():
                yield "messages: text content blocks must contain non-whitespace text"
            if block.get("is_error") and not isinstance(block["content"], str):
                yield f"{where}.tool_result: all content must be type `text` if `is_error` is true"
            if block["type"] == "tool_use" and not isinstance(block["input"], dict):
                yield f"{where}.tool_use.input: Input should be a valid dictionary"


def _anthropic_prefill(last: Body, model: str) -> Problems:
    """An answer that the API itself paused ends with a block of that API and is sent back."""
    content: Any = last["content"]
    if last["role"] != "assistant" or (isinstance(content, list) and content[-1]["type"] not in ("text", "tool_use")):
        return
    if claude_version(model) >= (4, 6):
        yield "This model does not support assistant message prefill. The conversation must end with a user message."
    elif _joined(content) != _joined(content).rstrip():
        yield "messages: final assistant content cannot end with trailing whitespace"


def claude_version(model: str) -> tuple[int, int]:
    """Returns the version in the name of a Claude model; an unknown name has the newest."""
    named = re.search(r"claude-(?:opus|sonnet|haiku)-(\d+)-(\d{1,2})(?!\d)", model)
    if named:
        return int(named[1]), int(named[2])
    older = re.search(r"claude-(?:(\d)(?:-(\d))?-|(?:opus|sonnet|haiku)-(\d)(?:-|$))", model)
    return (int(older[1] or older[3]), int(older[2] or 0)) if older else (99, 0)


def _anthropic_pairs(messages: list[tuple[str, list[Body]]]) -> Problems:
    asked: list[str] = []
    seen: set[str] = set()
    for at, (_, blocks) in enumerate([*messages, ("user", list[Body]())]):
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        leading = [block["tool_use_id"] for block in blocks[: len(results)] if block["type"] == "tool_result"]
        for missing in (use for use in asked if use not in leading):
            yield (
                f"messages.{at - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{missing}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."
            )
        for orphan in (result for result in results if result not in asked):
            yield (
                f"messages.{at}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {orphan}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        yield from (
            f"messages.{at}.content: each tool_use must have a single result. Found multiple `tool_result` blocks with "
            f"id: {result}"
            for result in _repeated(results)
        )
        for unanswered in _open_server_uses(blocks) if at < len(messages) - 1 else ():
            yield f"messages.{at}: server tool use with id `{unanswered}` was found without a corresponding result"
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if _repeated(asked) or seen & set(asked):
            yield f"messages.{at}.content: `tool_use` ids must be unique"
        seen |= set(asked)


def _open_server_uses(blocks: list[Body]) -> list[str]:
    """Code of the vendor that calls a tool of the client waits for its result, so it has none yet."""
    if any(block["type"] == "tool_use" for block in blocks):
        return []
    results = {block.get("tool_use_id") for block in blocks if block["type"].endswith("_tool_result")}
    return [block["id"] for block in blocks if block["type"] == "server_tool_use" and block["id"] not in results]


def _repeated(ids: list[str]) -> list[str]:
    return sorted({one for one in ids if ids.count(one) > 1}) if len(set(ids)) < len(ids) else []


def _anthropic_blocks(body: Body) -> Problems:
    marks = sum("cache_control" in block for block in [*body.get("tools", ()), *_list(body.get("system"))])
    marks += "cache_control" in body
    for at, message in enumerate(body["messages"]):
        for place, block in enumerate(_list(message["content"])):
            where, kind = f"messages.{at}.content.{place}", block["type"]
            marks += "cache_control" in block
            if kind == "thinking" and block.get("signature") != SIGNATURES["anthropic"]:
                yield f"{where}: Invalid `signature` in `thinking` block"
            if kind == "tool_use" and not _IDENTIFIER.fullmatch(block["id"]):
                yield f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
            unknown = set(block) - _BLOCK_FIELDS.get(kind, set(block))
            yield from (f"{where}.{kind}.{name}: Extra inputs are not permitted" for name in sorted(unknown))
            if kind == "image" and len(block["source"].get("data", "")) > 5 * 2**20:
                size = len(block["source"]["data"])
                yield f"{where}.image.source.base64: image exceeds 5 MB maximum: {size} bytes > {5 * 2**20} bytes"
    if marks > 4:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {marks}."


def _claude_settings(body: Body, model: str) -> Problems:
    thinking = _table(body.get("thinking")).get("type")
    effort = _table(body.get("output_config")).get("effort")
    version = claude_version(model)
    if version < (3, 7) and thinking:
        yield f"{model} does not support extended thinking"
    if version < (4, 6) and thinking == "adaptive":
        yield '"thinking.type.adaptive" is not supported for this model. Use "thinking.type.enabled".'
    if version >= (4, 7) and thinking == "enabled":
        yield '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive".'
    if version >= (5, 5) and model.startswith("claude-opus") and thinking == "disabled":
        yield '"thinking.type.disabled" is not supported for this model.'
    if version < (4, 6) and effort and "opus-4-5" not in model:
        yield "This model does not support the effort parameter."
    if model == "claude-sonnet-4-6" and effort == "xhigh":
        yield "This model does not support effort level 'xhigh'. Supported levels: high, low, max, medium."
    if effort not in (None, "low", "medium", "high", "xhigh", "max"):
        yield f"output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max', not {effort}"
    if thinking == "enabled":
        yield from _thinking_first(body["messages"])


def _thinking_first(messages: list[Body]) -> Problems:
    """With a thinking budget, an answer whose results are sent must begin with its thinking."""
    last, answer = messages[-1], messages[-2:-1]
    results = any(block["type"] == "tool_result" for block in _list(last["content"]))
    if results and answer and answer[0]["content"][0]["type"] not in ("thinking", "redacted_thinking"):
        yield (
            f"messages.{len(messages) - 2}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{answer[0]['content'][0]['type']}`. When `thinking` is enabled, a final `assistant` message must start "
            "with a thinking block."
        )


def _anthropic_tools(tools: list[Body]) -> Problems:
    for at, tool in enumerate(tools):
        where, schema = f"tools.{at}.custom", _table(tool.get("input_schema"))
        if not (_IDENTIFIER.fullmatch(tool["name"]) and len(tool["name"]) <= 128):
            yield f"{where}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
        if "type" not in schema:
            yield f"{where}.input_schema.type: Field required"
        elif schema["type"] != "object":
            yield f"{where}.input_schema.type: Input should be 'object'"
        if schema.keys() & {"oneOf", "allOf", "anyOf"}:
            yield f"{where}.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
        if tool.get("strict"):
            yield from anthropic_problems(f"{where}.input_schema", schema)
    if _repeated([tool["name"] for tool in tools]):
        yield "tools: Tool names must be unique."


class ChatRules:
    """OpenAI's Chat Completions."""

    def conversation_problems(self, body: Body, model: str) -> Problems:
        messages: list[Body] = body.get("messages") or []
        if not any(message["role"] != "system" for message in messages):
            yield (
                "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array "
                "instead."
            )
        yield from chain(_chat_messages(messages, is_gateway="/" in model), _chat_pairs(messages))

    def model_problems(self, body: Body, model: str) -> Problems:
        yield from (f"Unrecognized request argument supplied: {name}" for name in sorted(set(body) - _CHAT_FIELDS))
        if not 0 <= body.get("temperature", 0) <= 2:
            yield _outside(body["temperature"])
        yield from _chat_effort(body, model)
        for at, message in enumerate(body["messages"]):
            for name in sorted(set(message) - _CHAT_MESSAGE_FIELDS):
                yield f"Unrecognized request argument supplied: messages[{at}].{name}"
        yield from _openai_tools([tool["function"] for tool in body.get("tools") or ()], "tools[{}].function.name")
        wanted = _table(body.get("response_format")).get("json_schema")
        if wanted and wanted.get("strict"):
            yield from strict_problems(f"response_format '{wanted.get('name')}'", wanted["schema"])

    def texts(self, body: Body) -> list[str]:
        return _without_state(_joined(message["content"]) for message in body["messages"] if message["role"] == "user")

    def results(self, body: Body) -> list[str]:
        return [_joined(message["content"]) for message in body["messages"] if message["role"] == "tool"]

    def system(self, body: Body) -> str:
        return "".join(_joined(m["content"]) for m in body["messages"] if m["role"] in ("system", "developer"))

    def signatures(self, body: Body) -> list[str]:
        return []

    def output_schema(self, body: Body) -> Body | None:
        return body.get("response_format", {}).get("json_schema", {}).get("schema")


_CHAT_FIELDS = _words(
    "model messages tools tool_choice parallel_tool_calls stream stream_options temperature top_p n stop max_tokens "
    "max_completion_tokens presence_penalty frequency_penalty logit_bias logprobs top_logprobs user seed "
    "response_format reasoning_effort metadata store service_tier modalities audio prediction web_search_options "
    "verbosity prompt_cache_key prompt_cache_retention safety_identifier"
)
_CHAT_MESSAGE_FIELDS = _words("role content tool_calls tool_call_id refusal name audio annotations")
_CHAT_ROLES = ("system", "developer", "user", "assistant", "tool")
_MAX_STRING = 10 * 2**20


def _outside(value: float) -> str:
    bound = "above maximum value. Expected a value <= 2" if value > 2 else "below minimum value. Expected a value >= 0"
    return f"Invalid 'temperature': decimal {bound}, but got {value} instead."


def _chat_messages(messages: list[Body], *, is_gateway: bool) -> Problems:
    """A gateway, whose models are named VENDOR/MODEL, passes longer call ids on."""
    for at, message in enumerate(messages):
        content: Any = message.get("content")
        calls: Any = message.get("tool_calls")
        if message["role"] not in _CHAT_ROLES:
            supported = ", ".join(repr(role) for role in _CHAT_ROLES)
            yield f"Invalid value: '{message['role']}'. Supported values are: {supported}."
        if calls == []:
            yield f"Invalid 'messages[{at}].tool_calls': empty array. Expected an array with minimum length 1."
        if not content and not calls:
            yield f"Invalid value for 'content': expected a string, got null. messages.[{at}].content"
        if isinstance(content, str) and len(content) > _MAX_STRING:
            yield _too_long(f"messages[{at}].content", _MAX_STRING, len(content))
        for place, call in enumerate(calls or ()):
            if len(call["id"]) > 40 and not is_gateway:
                yield _too_long(f"messages[{at}].tool_calls[{place}].id", 40, len(call["id"]))
            if not isinstance(cast("Any", call)["function"]["arguments"], str):
                yield f"Invalid type for 'messages[{at}].tool_calls[{place}].function.arguments': expected a string."


def _too_long(where: str, most: int, found: int) -> str:
    return (
        f"Invalid '{where}': string too long. Expected a string with maximum length {most}, but got a string with "
        f"length {found} instead."
    )


def _chat_pairs(messages: list[Body]) -> Problems:
    open_calls: list[str] = []
    closing: Body = {"role": "user"}
    for at, message in enumerate([*messages, closing]):
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                yield "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
            else:
                open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            yield (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                "'tool_call_id'. The following tool_call_ids did not have response messages: " + ", ".join(open_calls)
            )
        open_calls = [call["id"] for call in message.get("tool_calls") or ()]
        if _repeated(open_calls):
            yield f"Duplicate value for 'tool_call_id' of '{open_calls[0]}' in message with 'tool_calls' at index {at}."


_CHAT_EFFORTS: Mapping[str, tuple[str, ...]] = {
    "gpt-4.1": (),
    "gpt-5.1": ("none", "low", "medium", "high"),
    "gpt-5.4": ("none", "low", "medium", "high", "xhigh"),
    "gpt-5.6-terra": ("none", "low", "medium", "high", "xhigh", "max"),
}
_RESPONSES_EFFORTS: Mapping[str, tuple[str, ...]] = {
    "gpt-4.1": (),
    "gpt-5": ("minimal", "low", "medium", "high"),
    "gpt-5.1": ("none", "low", "medium", "high"),
    "gpt-5.4": ("none", "low", "medium", "high", "xhigh"),
    "gpt-5-chat-latest": (),
    "gpt-7-mini": ("low", "high"),
}


def _effort_problems(effort: str | None, model: str, levels: Mapping[str, tuple[str, ...]], name: str) -> Problems:
    allowed = levels.get(model)
    if effort is None or allowed is None or effort in allowed:
        return
    if not allowed:
        yield f"Unsupported parameter: '{name}' is not supported with this model."
        return
    listed = ", ".join(repr(level) for level in allowed)
    yield f"Unsupported value: '{effort}' is not supported with the '{model}' model. Supported values are: {listed}."


def _chat_effort(body: Body, model: str) -> Problems:
    effort, tools = body.get("reasoning_effort"), body.get("tools")
    yield from _effort_problems(effort, model, _CHAT_EFFORTS, "reasoning_effort")
    message = f"Function tools with reasoning_effort are not supported for {model} in /v1/chat/completions."
    if model == "gpt-5.4" and tools and effort not in (None, "none"):
        yield message
    if model == "gpt-5.6-terra" and tools and effort != "none":
        yield message + " To use function tools, use /v1/responses or set reasoning_effort to 'none'."


def _openai_tools(functions: list[Body], where: str) -> Problems:
    if len(functions) > 128:
        yield (
            "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length "
            f"{len(functions)} instead."
        )
    for at, function in enumerate(functions):
        name: str = function["name"]
        schema = _table(function.get("parameters", {"type": "object", "properties": {}}))
        if not _IDENTIFIER.fullmatch(name):
            yield (
                f"Invalid '{where.format(at)}': string does not match pattern. Expected a string that matches the "
                "pattern '^[a-zA-Z0-9_-]+$'."
            )
        if len(name) > 64:
            yield _too_long(where.format(at), 64, len(name))
        found = schema.get("type")
        if found != "object":
            yield (
                f"Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"', got "
                f"'type: \"{found}\"'."
            )
        elif "properties" not in schema and not function.get("strict"):
            yield f"Invalid schema for function '{name}': In context=(), object schema missing properties."
        yield from array_problems(f"function '{name}'", schema, ())
        if function.get("strict"):
            yield from strict_problems(f"function '{name}'", schema)
    if _repeated([function["name"] for function in functions]):
        yield "Duplicate function names are not allowed in 'tools'."


class ResponsesRules:
    """OpenAI's Responses."""

    def conversation_problems(self, body: Body, model: str) -> Problems:
        items = _input_items(body)
        if not items:
            yield "Missing required parameter: 'input'."
        yield from chain(_item_contents(items), _item_pairs(items), _item_reasoning(items))

    def model_problems(self, body: Body, model: str) -> Problems:
        yield from (f"Unknown parameter: '{name}'." for name in sorted(set(body) - _RESPONSES_FIELDS))
        effort = _table(body.get("reasoning")).get("effort")
        if not 0 <= body.get("temperature", 0) <= 2:
            yield _outside(body["temperature"])
        yield from _effort_problems(effort, model, _RESPONSES_EFFORTS, "reasoning.effort")
        if "reasoning.encrypted_content" in _list(body.get("include")) and model == "gpt-4.1":
            yield "Encrypted content is not supported with this model."
        yield from _item_ids(_input_items(body))
        functions = [tool for tool in body.get("tools") or () if tool["type"] == "function"]
        yield from _openai_tools(functions, "tools[{}].name")
        wanted = _table(_table(body.get("text")).get("format"))
        if wanted.get("strict"):
            yield from strict_problems(f"response_format '{wanted.get('name')}'", wanted["schema"])

    def texts(self, body: Body) -> list[str]:
        return _without_state(_joined(item["content"]) for item in _input_items(body) if item.get("role") == "user")

    def results(self, body: Body) -> list[str]:
        return [_joined(item["output"]) for item in _input_items(body) if item.get("type") == "function_call_output"]

    def system(self, body: Body) -> str:
        return body.get("instructions") or ""

    def signatures(self, body: Body) -> list[str]:
        return [item["encrypted_content"] for item in _input_items(body) if item.get("type") == "reasoning"]

    def output_schema(self, body: Body) -> Body | None:
        return body.get("text", {}).get("format", {}).get("schema")


_RESPONSES_FIELDS = _words(
    "model input instructions tools tool_choice parallel_tool_calls stream stream_options temperature top_p "
    "max_output_tokens max_tool_calls reasoning text include store metadata previous_response_id conversation "
    "truncation user service_tier prompt_cache_key prompt_cache_retention safety_identifier background prompt "
    "top_logprobs context_management"
)
_ITEM_FIELDS = {
    "message": {"type", "id", "role", "content", "status", "phase"},
    "function_call": {"type", "id", "call_id", "name", "arguments", "status", "namespace"},
    "function_call_output": {"type", "id", "call_id", "output", "status"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content", "status"},
}
_CONTENT_TYPES = {
    "assistant": ("output_text", "refusal"),
    "user": ("input_text", "input_image", "input_file", "input_audio"),
    "system": ("input_text",),
    "developer": ("input_text",),
}


def _input_items(body: Body) -> list[Body]:
    given: Any = body.get("input") or []
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def _item_contents(items: list[Body]) -> Problems:
    for at, item in enumerate(items):
        if item.get("type", "message") != "message":
            continue
        content: Any = item["content"]
        allowed = _CONTENT_TYPES.get(item["role"])
        if allowed is None:
            supported = ", ".join(repr(role) for role in _CONTENT_TYPES)
            yield f"Invalid value: '{item['role']}'. Supported values are: {supported}."
        if content in ("", []):
            yield f"Invalid 'input[{at}].content': empty."
        if isinstance(content, str) and len(content) > _MAX_STRING:
            yield _too_long(f"input[{at}].content", _MAX_STRING, len(content))
        for piece in _list(content):
            if allowed and piece["type"] not in allowed:
                listed = " and ".join(repr(kind) for kind in allowed)
                yield f"Invalid value: '{piece['type']}'. Supported values are: {listed}."


def _item_pairs(items: list[Body]) -> Problems:
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    outputs = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    yield from (f"No tool output found for function call {call}." for call in calls if call not in set(outputs))
    asked: set[str] = set()
    for item in items:
        if item.get("type") == "function_call":
            asked.add(item["call_id"])
        if item.get("type") == "function_call_output" and item["call_id"] not in asked:
            yield f"No tool call found for function call output with call_id {item['call_id']}."
    for twice in chain(_repeated(calls), _repeated(outputs), _repeated([item["id"] for item in items if "id" in item])):
        yield f"Duplicate item found with id {twice}. Remove duplicate items from your input and try again."


def _item_reasoning(items: list[Body]) -> Problems:
    for at, item in enumerate(items):
        following = items[at + 1] if at + 1 < len(items) else {}
        by_model = following.get("role") == "assistant" or following.get("type") in ("function_call", "reasoning")
        if item.get("type") == "reasoning" and not by_model:
            yield f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."


def _item_ids(items: list[Body]) -> Problems:
    prefixes = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
    for at, item in enumerate(items):
        kind = item.get("type", "message")
        unknown = set(item) - _ITEM_FIELDS.get(kind, set(item))
        yield from (f"Unknown parameter: 'input[{at}].{name}'." for name in sorted(unknown))
        if kind == "reasoning" and item.get("encrypted_content") != SIGNATURES["openai-responses"]:
            yield f"The encrypted content for item {item.get('id')} could not be verified."
        prefix = prefixes.get(kind, "")
        if not str(item.get("id", prefix)).startswith(prefix):
            yield f"Invalid 'input[{at}].id': '{item['id']}'. Expected an ID that begins with '{prefix}'."
        if len(item.get("call_id", "")) > 64:
            yield _too_long(f"input[{at}].call_id", 64, len(item["call_id"]))


class GoogleRules:
    """Google's Gemini API."""

    def conversation_problems(self, body: Body, model: str) -> Problems:
        contents: list[Body] = body.get("contents") or []
        if not contents:
            yield "* GenerateContentRequest.contents: contents is not specified\n"
            return
        if contents[-1].get("role") == "model":
            yield "Please ensure that multiturn requests end with a user role or a function response."
        yield from chain(_google_contents(contents), _google_turns(_merged(contents, "parts")))

    def model_problems(self, body: Body, model: str) -> Problems:
        yield from (_unknown_name(name) for name in sorted(set(body) - _GOOGLE_FIELDS))
        config = _table(body.get("generationConfig"))
        yield from (_unknown_name(name, "generation_config") for name in sorted(set(config) - _CONFIG_FIELDS))
        if not 0 <= config.get("temperature", 0) <= 2:
            yield (
                f"Unable to submit request because it has a temperature value of {config['temperature']} but the "
                "supported range is from 0 (inclusive) to 2.0001 (exclusive)."
            )
        yield from _gemini_thinking(_table(config.get("thinkingConfig")), model)
        for content in body["contents"]:
            yield from _gemini_parts(content["parts"], model)
        yield from _google_tools(body.get("tools") or [])
        yield from _google_schema(config.get("responseSchema"), "generation_config.response_schema")
        yield from google_problems("generation_config.response_json_schema", _table(config.get("responseJsonSchema")))

    def texts(self, body: Body) -> list[str]:
        return _without_state(part["text"] for part in self._parts(body, "user") if "text" in part)

    def results(self, body: Body) -> list[str]:
        given: list[Body] = [
            part["functionResponse"]["response"] for part in self._parts(body) if "functionResponse" in part
        ]
        return [str(next(iter(response.values()))) if len(response) == 1 else str(response) for response in given]

    def system(self, body: Body) -> str:
        return "".join(part["text"] for part in body.get("systemInstruction", {}).get("parts", ()))

    def signatures(self, body: Body) -> list[str]:
        return [part["thoughtSignature"] for part in self._parts(body) if "thoughtSignature" in part]

    def output_schema(self, body: Body) -> Body | None:
        config = body.get("generationConfig", {})
        return config.get("responseJsonSchema") or config.get("responseSchema")

    def _parts(self, body: Body, *roles: str) -> Iterator[Body]:
        for content in body["contents"]:
            if not roles or content["role"] in roles:
                yield from content["parts"]


_GOOGLE_FIELDS = _words(
    "contents systemInstruction tools toolConfig generationConfig safetySettings cachedContent model"
)
_CONFIG_FIELDS = _words(
    "temperature topP topK candidateCount maxOutputTokens stopSequences responseMimeType responseSchema "
    "responseJsonSchema presencePenalty frequencyPenalty seed responseLogprobs logprobs responseModalities "
    "speechConfig thinkingConfig mediaResolution imageConfig"
)
_PART_DATA = _words("text functionCall functionResponse inlineData fileData executableCode codeExecutionResult")
_GOOGLE_SCHEMA = _words(
    "type format title description nullable enum maxItems minItems properties required minProperties maxProperties "
    "minLength maxLength pattern example anyOf propertyOrdering default items minimum maximum"
)
_GOOGLE_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")


def _unknown_name(name: str, place: str = "") -> str:
    where = f" at '{place}'" if place else ""
    return f'Invalid JSON payload received. Unknown name "{name}"{where}: Cannot find field.'


def _google_contents(contents: list[Body]) -> Problems:
    for at, content in enumerate(contents):
        if content.get("role") not in ("user", "model"):
            yield "Please use a valid role: user, model."
        if not content.get("parts"):
            yield f"* GenerateContentRequest.contents[{at}].parts: contents.parts must not be empty.\n"
        for place, part in enumerate(content.get("parts") or ()):
            if len(part.keys() & _PART_DATA) != 1:
                yield (
                    f"* GenerateContentRequest.contents[{at}].parts[{place}].data: required oneof field 'data' must "
                    "have one initialized field\n"
                )


def _google_turns(contents: list[tuple[str, list[Body]]]) -> Problems:
    asked: list[str] = []
    if contents[0][0] == "model" and any("functionCall" in part for part in contents[0][1]):
        yield (
            "Please ensure that function call turn comes immediately after a user turn or after a function "
            "response turn."
        )
    for _, parts in [*contents, ("user", list[Body]())]:
        given = [part["functionResponse"]["name"] for part in parts if "functionResponse" in part]
        if sorted(given) != sorted(asked):
            yield (
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn."
            )
        asked = [part["functionCall"]["name"] for part in parts if "functionCall" in part]


def _gemini_thinking(config: Body, model: str) -> Problems:
    level, budget = config.get("thinkingLevel"), config.get("thinkingBudget")
    if config and model == "gemini-2.0-flash":
        yield "Thinking is not enabled for models/gemini-2.0-flash"
    if level and model.startswith("gemini-2"):
        yield "Thinking level is not supported for this model."
    if level == "minimal" and model in ("gemini-3.1-pro", "gemini-3.8-flash"):
        yield "Thinking level MINIMAL is not supported for this model. Please retry with other thinking level."
    if model == "gemini-2.5-pro" and budget is not None and not 128 <= budget <= 32768:
        yield f"The thinking budget {budget} is invalid. Please choose a value between 128 and 32768."
    if level and budget is not None:
        yield "You can only set only one of thinking budget and thinking level."


def _gemini_parts(parts: list[Body], model: str) -> Problems:
    calls = [part for part in parts if "functionCall" in part]
    if calls and model.startswith("gemini-3") and not calls[0].get("thoughtSignature"):
        yield "Function call is missing a thought_signature in functionCall parts."
    for part in parts:
        if part.get("thoughtSignature") not in (None, SKIPPED_SIGNATURE, SIGNATURES["google"]):
            yield "Thought signature is not valid."
        if part.get("text") == "" and "thoughtSignature" not in part:
            yield "Unable to submit request because it must have a text parameter."


def _google_tools(tools: list[Body]) -> Problems:
    declared = [one for tool in tools for one in tool.get("functionDeclarations") or ()]
    for at, function in enumerate(declared):
        where = f"tools[0].function_declarations[{at}]"
        if not _GOOGLE_NAME.fullmatch(function["name"]):
            yield (
                f"* GenerateContentRequest.{where}.name: Invalid function name. Must start with a letter or an "
                "underscore. Must be alphameric (a-z, A-Z, 0-9), underscores (_), dots (.), colons (:), or dashes (-), "
                "with a maximum length of 64.\n"
            )
        yield from _google_schema(function.get("parameters"), f"{where}.parameters")
    yield from (
        f"Duplicate function declaration found: {name}" for name in _repeated([one["name"] for one in declared])
    )


def _google_schema(schema: Any, where: str) -> Problems:
    """`parametersJsonSchema` and `responseJsonSchema` accept JSON Schema; the older fields a part of it."""
    for place, inner in schemas_in(schema, ()):
        here = ".".join((where, *place))
        yield from (_unknown_name(word, here) for word in sorted(set(inner) - _GOOGLE_SCHEMA))
        kind = str(inner.get("type", "")).lower()
        if kind == "array" and "items" not in inner:
            yield f"* GenerateContentRequest.{here}.items: missing field.\n"
        if "enum" in inner and kind != "string":
            yield f"* GenerateContentRequest.{here}.enum: only allowed for STRING type\n"
        for number, name in enumerate(inner.get("required") or ()):
            if name not in _table(inner.get("properties")):
                yield f"* GenerateContentRequest.{here}.required[{number}]: property is not defined\n"
