"""Rules of the four model APIs: what each of them rejects, in its own words, and how to read its requests."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Protocol, cast

from outrider.testing.model_rules import (
    IDENTIFIER,
    RESPONSES_EFFORTS,
    Body,
    Problems,
    anthropic_problems,
    anthropic_tools,
    as_list,
    as_table,
    chat_effort,
    chat_settings,
    claude_version,
    effort_problems,
    find_duplicates,
    gemini_thinking,
    google_problems,
    google_schema,
    google_tools,
    image_problems,
    model_exists,
    openai_tools,
    outside_range,
    sampling_problems,
    strict_problems,
    too_long,
    unknown_name,
)

_STATE = re.compile(r"<workspace_state>.*?</workspace_state>", re.DOTALL)
SIGNATURES: Mapping[str, str] = {
    "anthropic": "c2lnbmVkIGJ5IGFudGhyb3BpYw==",
    "openai-responses": "c2lnbmVkIGJ5IG9wZW5haQ==",
    "google": "c2lnbmVkIGJ5IGdvb2dsZQ==",
}
"""Signature that a simulated API gives to its reasoning."""


def _is_foreign(signature: Any, kind: str) -> bool:
    """Returns whether a signature is missing or another simulated vendor's. Only the vendors can check real ones."""
    return not signature or (signature in SIGNATURES.values() and signature != SIGNATURES[kind])


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
    return content if isinstance(content, str) else "".join(block.get("text") or "" for block in content or ())


class AnthropicRules:
    """The Messages API."""

    def conversation_problems(self, body: Body, model: str) -> Problems:
        if "max_tokens" not in body:
            yield "max_tokens: Field required"
        messages: list[Body] = body.get("messages") or []
        if not messages:
            yield "messages: at least one message is required"
            return
        yield from _anthropic_roles(messages, model)
        yield from _anthropic_contents(messages)
        yield from _anthropic_pairs(_merged(messages, "content"))
        yield from _anthropic_prefill(messages[-1], model)

    def model_problems(self, body: Body, model: str) -> Problems:
        on_cloud = {"anthropic_version", "anthropic_beta"} if "model" not in body else set[str]()
        unknown = sorted(set(body) - _ANTHROPIC_FIELDS - on_cloud)
        yield from (f"{name}: Extra inputs are not permitted" for name in unknown)
        if not 0 <= body.get("temperature", 0) <= 1:
            yield "temperature: range: 0..1"
        yield from chain(_claude_settings(body, model), _claude_sampling(body, model), _output_problems(body, model))
        yield from _anthropic_blocks(body)
        yield from _output_format(body)
        yield from anthropic_tools([tool for tool in body.get("tools") or () if "type" not in tool])

    def texts(self, body: Body) -> list[str]:
        return _without_state(block["text"] for block in self._blocks(body, "user") if block["type"] == "text")

    def results(self, body: Body) -> list[str]:
        return [_joined(block.get("content", "")) for block in self._blocks(body) if block["type"] == "tool_result"]

    def system(self, body: Body) -> str:
        return _joined(body.get("system", ""))

    def signatures(self, body: Body) -> list[str]:
        return [block["signature"] for block in self._blocks(body) if block["type"] == "thinking"]

    def output_schema(self, body: Body) -> Body | None:
        output_format = as_table(body.get("output_config")).get("format") or body.get("output_format")
        return as_table(output_format).get("schema")

    def _blocks(self, body: Body, *roles: str) -> Iterator[Body]:
        for role, blocks in _merged(body["messages"], "content"):
            if not roles or role in roles:
                yield from blocks


_ANTHROPIC_FIELDS = _words(
    "model messages max_tokens system tools tool_choice stream temperature top_p top_k stop_sequences metadata "
    "thinking output_config output_format service_tier cache_control container context_management mcp_servers "
    "inference_geo speed compaction diagnostics fallback_credit_token fallbacks thread user_profile_id workspace_id"
)
_BLOCK_FIELDS = {
    "text": {"type", "text", "cache_control", "citations"},
    "image": {"type", "source", "cache_control", "transformations"},
    "document": {"type", "source", "title", "context", "citations", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
    "tool_use": {"type", "id", "name", "input", "cache_control", "caller", "toolset_name"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control", "toolset_name"},
}


def _merged(messages: list[Body], field: str) -> list[tuple[str, list[Body]]]:
    """Joins adjacent messages of one role, which Anthropic and Google accept as one message."""
    merged: list[tuple[str, list[Body]]] = []
    for message in messages:
        content: Any = message.get(field)
        blocks: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else as_list(content)
        role = message.get("role") or "user"
        if merged and merged[-1][0] == role:
            merged[-1][1].extend(blocks)
        else:
            merged.append((role, list(blocks)))
    return merged


def _anthropic_roles(messages: list[Body], model: str) -> Problems:
    for index, message in enumerate(messages):
        if message["role"] == "system" and index and claude_version(model) >= (4, 8):
            continue
        if message["role"] == "system":
            yield (
                'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, not '
                '"system" as an input message role.'
            )
        elif message["role"] not in ("user", "assistant"):
            yield f"messages.{index}.role: Input should be 'user' or 'assistant'"
        yield from (
            f"messages.{index}.{name}: Extra inputs are not permitted" for name in set(message) - {"role", "content"}
        )


def _anthropic_contents(messages: list[Body]) -> Problems:
    for index, message in enumerate(messages):
        content: Any = message["content"]
        if not content:
            yield (
                f"messages.{index}: all messages must have non-empty content except for the optional final assistant "
                "message"
            )
        for block_index, block in enumerate(as_list(content)):
            where = f"messages.{index}.content.{block_index}"
            if block["type"] == "text" and not block["text"]:
                yield "messages: text content blocks must be non-empty"
            if block["type"] == "text" and len(content) == 1 and not block["text"].strip():
                yield "messages: text content blocks must contain non-whitespace text"
            inner = as_list(block.get("content"))
            if block.get("is_error") and any(part["type"] != "text" for part in inner):
                yield f"{where}.tool_result: all content must be type `text` if `is_error` is true"
            if block["type"] == "tool_use" and not isinstance(block["input"], dict):
                yield f"{where}.tool_use.input: Input should be a valid dictionary"


def _anthropic_prefill(last_message: Body, model: str) -> Problems:
    """Yields problems of the last message. An answer that the API has paused ends with a block of it and is sent
    back."""
    content: Any = last_message["content"]
    if last_message["role"] != "assistant" or (
        isinstance(content, list) and content[-1]["type"] not in ("text", "tool_use")
    ):
        return
    if claude_version(model) >= (4, 6):
        yield "This model does not support assistant message prefill. The conversation must end with a user message."
    elif _joined(content) != _joined(content).rstrip():
        yield "messages: final assistant content cannot end with trailing whitespace"


def _anthropic_pairs(messages: list[tuple[str, list[Body]]]) -> Problems:
    call_ids: list[str] = []
    for index, (_, blocks) in enumerate([*messages, ("user", list[Body]())]):
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        leading = [block["tool_use_id"] for block in blocks[: len(results)] if block["type"] == "tool_result"]
        for missing in (use for use in call_ids if use not in leading):
            yield (
                f"messages.{index - 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{missing}. Each `tool_use` block must have a corresponding `tool_result` block in the next message."
            )
        for orphan in (result for result in results if result not in call_ids):
            yield (
                f"messages.{index}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {orphan}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        yield from (
            f"messages.{index}.content: each tool_use must have a single result. Found multiple `tool_result` blocks "
            f"with id: {result}"
            for result in find_duplicates(results)
        )
        for unanswered in _open_server_uses(blocks) if index < len(messages) - 1 else ():
            yield f"messages.{index}: server tool use with id `{unanswered}` was found without a corresponding result"
        call_ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
        kinds = [block["type"] for block in blocks]
        if call_ids and "text" in kinds[kinds.index("tool_use") :]:
            yield (
                f"messages.{index + 1}: `tool_use` ids were found without `tool_result` blocks immediately after: "
                f"{call_ids[0]}. Each `tool_use` block must have a corresponding `tool_result` block in the next "
                "message."
            )
        if find_duplicates(call_ids):
            yield f"messages.{index}.content: `tool_use` ids must be unique"


def _open_server_uses(blocks: list[Body]) -> list[str]:
    """Returns server uses without a result. Code of the vendor that waits for a tool of the client has none yet."""
    if any(block["type"] == "tool_use" for block in blocks):
        return []
    results = {block.get("tool_use_id") for block in blocks if block["type"].endswith("_tool_result")}
    return [block["id"] for block in blocks if block["type"] == "server_tool_use" and block["id"] not in results]


def _anthropic_blocks(body: Body) -> Problems:
    marks = sum("cache_control" in block for block in [*body.get("tools", ()), *as_list(body.get("system"))])
    marks += "cache_control" in body
    for index, message in enumerate(body["messages"]):
        for block_index, block in enumerate(as_list(message["content"])):
            where, kind = f"messages.{index}.content.{block_index}", block["type"]
            marks += "cache_control" in block
            if kind == "thinking" and _is_foreign(block.get("signature"), "anthropic"):
                yield f"{where}: Invalid `signature` in `thinking` block"
            if kind == "tool_use" and not IDENTIFIER.fullmatch(block["id"]):
                yield f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
            unknown = set(block) - _BLOCK_FIELDS.get(kind, set(block))
            yield from (f"{where}.{kind}.{name}: Extra inputs are not permitted" for name in sorted(unknown))
            if kind == "image" and len(block["source"].get("data", "")) > 5 * 2**20:
                size = len(block["source"]["data"])
                yield f"{where}.image.source.base64: image exceeds 5 MB maximum: {size} bytes > {5 * 2**20} bytes"
    if marks > 4:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {marks}."


def _claude_settings(body: Body, model: str) -> Problems:
    thinking = as_table(body.get("thinking")).get("type")
    effort = as_table(body.get("output_config")).get("effort")
    version = claude_version(model)
    if version < (3, 7) and thinking not in (None, "disabled"):
        yield f"{model} does not support extended thinking"
    if version < (4, 6) and thinking == "adaptive":
        yield '"thinking.type.adaptive" is not supported for this model. Use "thinking.type.enabled".'
    if version >= (4, 7) and thinking == "enabled":
        yield '"thinking.type.enabled" is not supported for this model. Use "thinking.type.adaptive".'
    if version >= (5, 5) and model.startswith("claude-opus") and thinking == "disabled":
        yield '"thinking.type.disabled" is not supported for this model.'
    if version < (4, 6) and effort and "opus-4-5" not in model:
        yield "This model does not support the effort parameter."
    if (4, 5) <= version < (4, 7) and effort == "xhigh":
        yield "This model does not support effort level 'xhigh'. Supported levels: high, low, max, medium."
    if effort not in (None, "low", "medium", "high", "xhigh", "max"):
        yield f"output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max', not {effort}"
    if thinking == "enabled":
        yield from _thinking_first(body["messages"])
        yield from _thinking_settings(body)


def _output_format(body: Body) -> Problems:
    newer = as_table(body.get("output_config")).get("format")
    for name, output_format in (("output_config.format", newer), ("output_format", body.get("output_format"))):
        if output_format is not None and "schema" not in output_format:
            yield f"{name}.schema: Field required"
        elif output_format is not None:
            yield from anthropic_problems(f"{name}.schema", output_format["schema"])


def _claude_sampling(body: Body, model: str) -> Problems:
    """Yields problems of sampling settings. Since 4.7, models have none; since 4.1, they take one of two."""
    version = claude_version(model)
    for name in ("temperature", "top_p", "top_k") if version >= (4, 7) else ():
        if body.get(name) is not None and (name == "top_k" or body[name] != 1):
            yield f"`{name}` is deprecated for this model."
    if version >= (4, 1) and body.get("temperature") is not None and body.get("top_p") is not None:
        yield "`temperature` and `top_p` cannot both be specified for this model. Please use only one."


def _output_problems(body: Body, model: str) -> Problems:
    max_tokens = _claude_output(model)
    if max_tokens is not None and body["max_tokens"] > max_tokens:
        yield (
            f"max_tokens: {body['max_tokens']} > {max_tokens}, which is the maximum allowed number of output tokens "
            f"for {model}"
        )
    if body["max_tokens"] < 1:
        yield "max_tokens: must be greater than or equal to 1"


def _claude_output(model: str) -> int | None:
    """Returns the most output tokens that a Claude model allows; None for models since 4.6, which change often."""
    version = claude_version(model)
    if version >= (4, 6) or not model_exists("anthropic", model):
        return None
    if version >= (4, 0):
        return 32_000 if "opus" in model and version < (4, 5) else 64_000
    if version >= (3, 7):
        return 128_000
    return 8_192 if version >= (3, 5) else 4_096


def _thinking_settings(body: Body) -> Problems:
    budget, choice = as_table(body["thinking"]).get("budget_tokens"), as_table(body.get("tool_choice")).get("type")
    if budget is None:
        yield "thinking.enabled.budget_tokens: Field required"
    elif budget < 1024:
        yield "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
    elif budget >= body["max_tokens"]:
        yield "`max_tokens` must be greater than `thinking.budget_tokens`."
    if body.get("temperature", 1) != 1:
        yield "`temperature` may only be set to 1 when thinking is enabled."
    if choice in ("any", "tool"):
        yield "Thinking may not be enabled when tool_choice forces tool use."


def _thinking_first(messages: list[Body]) -> Problems:
    """Yields a problem unless an answer whose results are sent, or the first answer since the last input, begins with
    its thinking. Models with a thinking budget require it."""
    if len(messages) < 2 or not _has_results(messages[-1]):
        return
    first = len(messages) - 2
    while first >= 2 and _has_results(messages[first - 1]):
        first -= 2
    kinds = [messages[position]["content"][0]["type"] for position in (first, -2)]
    if not {"thinking", "redacted_thinking"} & set(kinds):
        yield (
            f"messages.{len(messages) - 2}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{kinds[1]}`. When `thinking` is enabled, a final `assistant` message must start with a thinking block."
        )


def _has_results(message: Body) -> bool:
    return any(block["type"] == "tool_result" for block in as_list(message["content"]))


class ChatRules:
    """OpenAI's Chat Completions."""

    def conversation_problems(self, body: Body, model: str) -> Problems:
        messages: list[Body] = body.get("messages") or []
        if not messages:
            yield (
                "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array "
                "instead."
            )
        yield from chain(_chat_messages(messages, is_gateway="/" in model), _chat_pairs(messages))

    def model_problems(self, body: Body, model: str) -> Problems:
        yield from (f"Unrecognized request argument supplied: {name}" for name in sorted(set(body) - _CHAT_FIELDS))
        if not 0 <= (body.get("temperature") or 0) <= 2:
            yield outside_range(body["temperature"])
        yield from chat_effort(body, model)
        yield from chain(chat_settings(body, model), sampling_problems(body, model))
        yield from _dependent_settings(body)
        if as_table(body.get("response_format")).get("type") == "json_object":
            texts = "".join(_joined(message.get("content")) for message in body["messages"])
            if "json" not in texts.lower():
                yield (
                    "'messages' must contain the word 'json' in some form, to use 'response_format' of type "
                    "'json_object'."
                )
        for index, message in enumerate(body["messages"]):
            for name in sorted(set(message) - _CHAT_MESSAGE_FIELDS):
                yield f"Unrecognized request argument supplied: messages[{index}].{name}"
        yield from openai_tools(
            [tool["function"] for tool in body.get("tools") or () if tool.get("type", "function") == "function"],
            "tools[{}].function.name",
        )
        for index, message in enumerate(body["messages"]):
            if message.get("content") == []:
                yield f"Invalid 'messages[{index}].content': empty array. Expected an array with minimum length 1."
            yield from _chat_blocks(index, as_list(message.get("content")), model)
        json_schema = as_table(body.get("response_format")).get("json_schema")
        if json_schema and json_schema.get("strict"):
            yield from strict_problems(f"response_format '{json_schema.get('name')}'", json_schema["schema"])

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
    "verbosity prompt_cache_key prompt_cache_retention prompt_cache_options safety_identifier moderation functions "
    "function_call"
)
_CHAT_MESSAGE_FIELDS = _words(
    "role content tool_calls tool_call_id refusal name audio annotations function_call parsed"
)
_CHAT_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def _dependent_settings(body: Body) -> Problems:
    if not body.get("tools") and not body.get("functions"):
        for name in ("tool_choice", "parallel_tool_calls"):
            if body.get(name) not in (None, "none"):
                yield f"Invalid value for '{name}': '{name}' is only allowed when 'tools' are specified."
    if body.get("stream_options") and not body.get("stream"):
        yield "The 'stream_options' parameter is only allowed when 'stream' is enabled."
    if body.get("top_logprobs") and not body.get("logprobs"):
        yield "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled."


def _chat_blocks(index: int, blocks: list[Body], model: str) -> Problems:
    for block in blocks:
        if block["type"] == "input_audio" and "audio" not in model:
            yield f"Invalid 'messages[{index}]'. Content blocks are expected to be either text or image_url type."
        if block["type"] == "image_url":
            image_url: Any = block["image_url"]
            yield from image_problems(image_url if isinstance(image_url, str) else image_url["url"])


_MAX_STRING = 10 * 2**20


def _chat_messages(messages: list[Body], *, is_gateway: bool) -> Problems:
    """Yields problems of messages. A gateway, whose models are named VENDOR/MODEL, accepts longer call ids."""
    for index, message in enumerate(messages):
        content: Any = message.get("content")
        calls: Any = message.get("tool_calls")
        if message["role"] not in _CHAT_ROLES:
            supported = ", ".join(repr(role) for role in _CHAT_ROLES)
            yield f"Invalid value: '{message['role']}'. Supported values are: {supported}."
        if calls == []:
            yield f"Invalid 'messages[{index}].tool_calls': empty array. Expected an array with minimum length 1."
        if content is None and not calls and not message.get("function_call") and not message.get("audio"):
            yield f"Invalid value for 'content': expected a string, got null. messages.[{index}].content"
        if isinstance(content, str) and len(content) > _MAX_STRING:
            yield too_long(f"messages[{index}].content", _MAX_STRING, len(content))
        for call_index, call in enumerate(calls or ()):
            if len(call["id"]) > 40 and not is_gateway:
                yield too_long(f"messages[{index}].tool_calls[{call_index}].id", 40, len(call["id"]))
            if not isinstance(as_table(call.get("function")).get("arguments", ""), str):
                where = f"messages[{index}].tool_calls[{call_index}].function.arguments"
                yield f"Invalid type for '{where}': expected a string."


def _chat_pairs(messages: list[Body]) -> Problems:
    open_calls: list[str] = []
    closing: Body = {"role": "user"}
    for index, message in enumerate([*messages, closing]):
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
        if find_duplicates(open_calls):
            where = f"in message with 'tool_calls' at index {index}"
            yield f"Duplicate value for 'tool_call_id' of '{open_calls[0]}' {where}."


class ResponsesRules:
    """OpenAI's Responses."""

    def conversation_problems(self, body: Body, model: str) -> Problems:
        items = _input_items(body)
        stored = any(body.get(name) for name in ("previous_response_id", "conversation", "prompt"))
        if not items and not stored:
            yield "Missing required parameter: 'input'."
        yield from chain(_item_contents(items), _item_pairs(items, stored=stored), _item_reasoning(items))

    def model_problems(self, body: Body, model: str) -> Problems:
        yield from (f"Unknown parameter: '{name}'." for name in sorted(set(body) - _RESPONSES_FIELDS))
        effort = as_table(body.get("reasoning")).get("effort")
        if not 0 <= (body.get("temperature") or 0) <= 2:
            yield outside_range(body["temperature"])
        yield from effort_problems(effort, model, RESPONSES_EFFORTS, "reasoning.effort")
        if "reasoning.encrypted_content" in as_list(body.get("include")) and model == "gpt-4.1":
            yield "Encrypted content is not supported with this model."
        yield from _item_ids(_input_items(body))
        for item in _input_items(body):
            yield from _media_problems([*as_list(item.get("content")), *as_list(item.get("output"))])
        yield from sampling_problems(body, model)
        max_tokens = body.get("max_output_tokens")
        if max_tokens is not None and max_tokens < 16 and "/" not in model:
            yield (
                "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got "
                f"{max_tokens} instead."
            )
        functions = [tool for tool in body.get("tools") or () if tool["type"] == "function"]
        yield from openai_tools(functions, "tools[{}].name")
        output_format = as_table(as_table(body.get("text")).get("format"))
        if output_format.get("strict"):
            yield from strict_problems(f"response_format '{output_format.get('name')}'", output_format["schema"])

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
    "top_logprobs context_management prompt_cache_options moderation client_metadata access_programs image"
)
_ITEM_FIELDS = {
    "message": {"type", "id", "role", "content", "status", "phase"},
    "function_call": {"type", "id", "call_id", "name", "arguments", "status", "namespace", "caller", "async"},
    "function_call_output": {"type", "id", "call_id", "output", "status", "name", "namespace", "caller"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content", "status"},
}
_CONTENT_TYPES = {
    "assistant": ("output_text", "refusal"),
    "user": ("input_text", "input_image", "input_file", "input_audio"),
    "system": ("input_text",),
    "developer": ("input_text",),
}


def _input_items(body: Body) -> list[Body]:
    input_value: Any = body.get("input") or []
    return [{"role": "user", "content": input_value}] if isinstance(input_value, str) else input_value


def _item_contents(items: list[Body]) -> Problems:
    for index, item in enumerate(items):
        if item.get("type", "message") != "message":
            continue
        content: Any = item["content"]
        content_types = _CONTENT_TYPES.get(item["role"])
        if content_types is None:
            supported = ", ".join(repr(role) for role in _CONTENT_TYPES)
            yield f"Invalid value: '{item['role']}'. Supported values are: {supported}."
        if content == []:
            yield f"Invalid 'input[{index}].content': empty array. Expected an array with minimum length 1."
        if isinstance(content, str) and len(content) > _MAX_STRING:
            yield too_long(f"input[{index}].content", _MAX_STRING, len(content))
        for part in as_list(content):
            if content_types and part["type"] not in content_types:
                listed = " and ".join(repr(kind) for kind in content_types)
                yield f"Invalid value: '{part['type']}'. Supported values are: {listed}."


_MEDIA = re.compile(r"\.(mp3|wav|ogg|flac|aac|aiff|mp4|mov|mkv|webm|avi|mpe?g|wmv|3gp|flv)(\?|$)")


def _media_problems(parts: list[Body]) -> Problems:
    for part in parts:
        if part.get("type") == "input_image":
            yield from image_problems(part.get("image_url") or "")
        name = str(part.get("file_url") or part.get("filename") or "").lower()
        if part.get("type") == "input_file" and _MEDIA.search(name):
            yield "The file type you uploaded is not supported. Please try again with a pdf"


def _item_pairs(items: list[Body], *, stored: bool) -> Problems:
    """Yields calls without output and outputs without call, which may be in a stored conversation."""
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    outputs = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    yield from (f"No tool output found for function call {call}." for call in calls if call not in set(outputs))
    call_ids: set[str] = set()
    for item in items:
        if item.get("type") == "function_call":
            call_ids.add(item["call_id"])
        if item.get("type") == "function_call_output" and item["call_id"] not in call_ids and not stored:
            yield f"No tool call found for function call output with call_id {item['call_id']}."
    for twice in chain(
        find_duplicates(calls),
        find_duplicates(outputs),
        find_duplicates([item["id"] for item in items if item.get("id")]),
    ):
        yield f"Duplicate item found with id {twice}. Remove duplicate items from your input and try again."


def _item_reasoning(items: list[Body]) -> Problems:
    for index, item in enumerate(items):
        following = items[index + 1] if index + 1 < len(items) else {}
        by_client = following.get("role", "assistant") != "assistant" or str(following.get("type")).endswith("_output")
        if item.get("type") == "reasoning" and (by_client or not following):
            yield f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."


def _item_ids(items: list[Body]) -> Problems:
    prefixes = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
    for index, item in enumerate(items):
        kind = item.get("type", "message")
        unknown = set(item) - _ITEM_FIELDS.get(kind, set(item))
        yield from (f"Unknown parameter: 'input[{index}].{name}'." for name in sorted(unknown))
        if kind == "reasoning" and not item.get("id") and not item.get("encrypted_content"):
            yield f"Missing required parameter: 'input[{index}].id'."
        elif kind == "reasoning" and _is_foreign(item.get("encrypted_content") or "stored", "openai-responses"):
            yield f"The encrypted content for item {item.get('id')} could not be verified."
        prefix = prefixes.get(kind, "")
        if not str(item.get("id") or prefix).startswith(prefix):
            yield f"Invalid 'input[{index}].id': '{item['id']}'. Expected an ID that begins with '{prefix}'."
        if len(item.get("call_id") or "") > 64:
            yield too_long(f"input[{index}].call_id", 64, len(item["call_id"]))


class GoogleRules:
    """Google's Gemini API."""

    def conversation_problems(self, body: Body, model: str) -> Problems:
        contents: list[Body] = as_camel_case(body).get("contents") or []
        if not contents:
            yield "* GenerateContentRequest.contents: contents is not specified\n"
            return
        if contents[-1].get("role") == "model" and model.startswith(("gemini-1", "gemini-3")):
            yield "Please ensure that multiturn requests end with a user role or a function response."
        yield from chain(_google_contents(contents), _google_turns(_merged(contents, "parts")))

    def model_problems(self, body: Body, model: str) -> Problems:
        body = as_camel_case(body)
        yield from (unknown_name(name) for name in sorted(set(body) - _GOOGLE_FIELDS))
        config = as_table(body.get("generationConfig"))
        yield from (unknown_name(name, "generation_config") for name in sorted(set(config) - _CONFIG_FIELDS))
        if not 0 <= (config.get("temperature") or 0) <= 2:
            yield (
                f"Unable to submit request because it has a temperature value of {config['temperature']} but the "
                "supported range is from 0 (inclusive) to 2.0001 (exclusive)."
            )
        yield from gemini_thinking(as_table(config.get("thinkingConfig")), model)
        yield from _gemini_abilities(body, config, model)
        for content in body["contents"]:
            yield from _gemini_parts(content["parts"], model)
        yield from google_tools(body.get("tools") or [])
        yield from google_schema(config.get("responseSchema"), "generation_config.response_schema")
        yield from google_problems("generation_config.response_json_schema", as_table(config.get("responseJsonSchema")))

    def texts(self, body: Body) -> list[str]:
        return _without_state(part["text"] for part in self._parts(body, "user") if "text" in part)

    def results(self, body: Body) -> list[str]:
        responses: list[Body] = [
            part["functionResponse"]["response"] for part in self._parts(body) if "functionResponse" in part
        ]
        return [str(next(iter(response.values()))) if len(response) == 1 else str(response) for response in responses]

    def system(self, body: Body) -> str:
        return "".join(part["text"] for part in as_table(body.get("systemInstruction")).get("parts", ()))

    def signatures(self, body: Body) -> list[str]:
        return [part["thoughtSignature"] for part in self._parts(body) if "thoughtSignature" in part]

    def output_schema(self, body: Body) -> Body | None:
        config = body.get("generationConfig", {})
        return config.get("responseJsonSchema") or config.get("responseSchema")

    def _parts(self, body: Body, *roles: str) -> Iterator[Body]:
        for content in body["contents"]:
            if not roles or (content.get("role") or "user") in roles:
                yield from content["parts"]


_GOOGLE_FIELDS = _words(
    "contents systemInstruction tools toolConfig generationConfig safetySettings cachedContent model labels store "
    "serviceTier continuationToken modelArmorConfig outputConfig"
)
_CONFIG_FIELDS = _words(
    "temperature topP topK candidateCount maxOutputTokens stopSequences responseMimeType responseSchema "
    "responseJsonSchema presencePenalty frequencyPenalty seed responseLogprobs logprobs responseModalities "
    "speechConfig thinkingConfig mediaResolution imageConfig responseFormat enableEnhancedCivicAnswers routingConfig "
    "modelConfig audioTimestamp enableAffectiveDialog translationConfig audioTranscriptionConfig"
)
_PART_DATA = _words(
    "text functionCall functionResponse inlineData fileData executableCode codeExecutionResult toolCall toolResponse"
)
_PART_DATA_SIBLINGS = _words("thoughtSignature videoMetadata audioTranscription mediaProcessing speechMetadata")


_LISTS = ("contents", "parts", "tools", "functionDeclarations", "safetySettings")
"""Lists of a request in which the API accepts one object."""
_FREE_FIELDS = ("args", "response", "parametersJsonSchema", "responseJsonSchema", "default", "example", "enum")


def as_camel_case(value: Any, *, names_are_data: bool = False) -> Any:
    """Returns a request with the names of JSON: the API accepts those of its protocol buffers (`inline_data`) too."""
    if isinstance(value, list):
        return [as_camel_case(item) for item in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    fields: Body = {}
    for name, inner in cast("Body", value).items():
        camel = name if names_are_data else re.sub(r"_([a-z])", lambda match: match[1].upper(), name)
        fields[camel] = inner if camel in _FREE_FIELDS else as_camel_case(inner, names_are_data=camel == "properties")
        if isinstance(inner, dict) and camel in _LISTS and not names_are_data:
            fields[camel] = [fields[camel]]
    return fields


def _google_contents(contents: list[Body]) -> Problems:
    for index, content in enumerate(contents):
        role = content.get("role") or "user"  # samples of the vendor have none, or "function" for results
        if role not in ("user", "model", "function"):
            yield "Please use a valid role: user, model."
        if not content.get("parts"):
            yield f"* GenerateContentRequest.contents[{index}].parts: contents.parts must not be empty.\n"
        for part_index, part in enumerate(content.get("parts") or ()):
            data_fields = len(part.keys() & _PART_DATA)
            if data_fields > 1 or (not data_fields and not part.keys() & _PART_DATA_SIBLINGS):
                yield (
                    f"* GenerateContentRequest.contents[{index}].parts[{part_index}].data: required oneof field 'data' "
                    "must have one initialized field\n"
                )


def _google_turns(contents: list[tuple[str, list[Body]]]) -> Problems:
    """Yields problems of turns. The API compares the number of calls and responses, not their names."""
    call_count = 0
    if contents[0][0] == "model" and any("functionCall" in part for part in contents[0][1]):
        yield (
            "Please ensure that function call turn comes immediately after a user turn or after a function "
            "response turn."
        )
    for _, parts in [*contents, ("user", list[Body]())]:
        response_count = sum("functionResponse" in part for part in parts)
        if response_count != call_count:
            yield (
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn."
            )
        call_count = sum("functionCall" in part for part in parts)


def _gemini_abilities(body: Body, config: Body, model: str) -> Problems:
    functions = any(tool.get("functionDeclarations") for tool in body.get("tools") or ())
    hosted = any(tool.get("googleSearch") is not None for tool in body.get("tools") or ())
    older = model.startswith(("gemini-1", "gemini-2"))
    if functions and older and config.get("responseMimeType") == "application/json":
        yield "Function calling with a response mime type: 'application/json' is unsupported"
    if functions and hosted and older:
        yield "Tool use with function calling is unsupported"
    if model.startswith("gemma") and body.get("systemInstruction"):
        yield f"Developer instruction is not enabled for models/{model}"
    if model.startswith("gemma") and functions:
        yield f"Function calling is not enabled for models/{model}"


def _gemini_parts(parts: list[Body], model: str) -> Problems:
    calls = [part for part in parts if "functionCall" in part]
    if calls and model.startswith("gemini-3") and not calls[0].get("thoughtSignature"):
        yield "Function call is missing a thought_signature in functionCall parts."
    for part in parts:
        if "thoughtSignature" in part and _is_foreign(part["thoughtSignature"], "google"):
            yield "Thought signature is not valid."
