"""Recorded requests of the Messages API as our values, and a normal form for comparisons."""

from collections.abc import Iterable
from typing import Any

from outrider.context.lower import lower
from outrider.providers.anthropic.client import AnthropicWire
from outrider.sessions.session import Session
from outrider.types.anthropic_blocks import part_from_anthropic
from outrider.types.messages import Message
from outrider.types.request import ModelSettings, OutputSchema, Request, ToolChoice, ToolSpec

Body = dict[str, Any]

_MODES = {"auto": "auto", "any": "required", "none": "none", "tool": "tool"}
_PLAIN_TOOL = {"name", "description", "input_schema", "strict", "cache_control"}
_READ = {"model", "messages", "system", "tools", "stream", "max_tokens", "temperature", "top_p", "stop_sequences"}
_READ |= {"tool_choice", "cache_control", "anthropic_version"}
# Marks steer the cache, not the answer; `stream` and the version only how it is carried.
_MEANINGLESS = {"cache_control", "stream", "anthropic_version", "output_format"}


def request_from(body: Body, session: Session, wire: AnthropicWire, model: str) -> Request:
    """The request that one of our agents with the recorded settings would send for this session."""
    plain, special = _tools(body.get("tools", []))
    return Request(
        model=model,
        prompt=lower(session.messages, family=wire.model_family(model)),
        system=system_text(body),
        tools=tuple(plain),
        settings=_settings(body, special),
        stream=bool(body.get("stream")),
    )


def next_session(asked: Body, answer: Message, following: Body) -> Session:
    """The conversation as a session holds it: what was asked, our reading of the answer, the recorded results."""
    session = Session()
    session.set_messages(asked["messages"])
    session.add_message(answer)
    calls = {part.tool_id for part in answer.get_tool_uses()}
    for message in results_after(following["messages"], calls):
        blocks = content(message)
        results = [block for block in blocks if block["type"] == "tool_result"]
        session.add_tool_results(results)
        others = [part_from_anthropic(block) for block in blocks if block["type"] != "tool_result"]
        if others:
            session.add_user_message(others)
    return session


def system_text(body: Body) -> str | None:
    system = body.get("system")
    if isinstance(system, list):
        return "\n\n".join(block["text"] for block in system)
    return system


def output_config(body: Body) -> Body:
    """The schema of the answer had a separate field in older versions."""
    config = dict(body.get("output_config") or {})
    return config | {"format": body["output_format"]} if "output_format" in body else config


def content(message: Body) -> list[Body]:
    blocks = message["content"]
    return [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks


def meaning(body: Body, like: Body | None = None) -> Body:
    """A request without what makes no difference to the model's answer.

    Where `like` names no model, as on Vertex, whose addresses do, it is left out."""
    fields = {name: value for name, value in body.items() if name not in _MEANINGLESS}
    if like is not None and "model" not in like:
        fields.pop("model", None)
    fields["output_config"] = output_config(body)
    if fields.get("temperature") == 1:
        del fields["temperature"]  # the default
    fields["system"] = system_text(body) or ""  # a string and blocks of text say the same
    fields["tools"] = {tool["name"]: _tool_meaning(tool) for tool in body.get("tools", [])}
    fields["messages"] = messages_meaning(body["messages"])
    fields["tool_choice"] = _choice_meaning(body)
    return {name: value for name, value in fields.items() if value not in (None, "", {}, [])}


def _tool_meaning(tool: Body) -> Body:
    """`strict: false`, `type: custom` and an empty description are the defaults; marks only steer the cache."""
    defaults = {"strict": False, "type": "custom", "description": ""}
    return {name: value for name, value in _unmarked(tool).items() if defaults.get(name, ...) != value}


def _choice_meaning(body: Body) -> Body:
    """`auto` and `disable_parallel_tool_use: false` are the defaults; without tools there is no choice."""
    choice = dict(body.get("tool_choice") or {})
    if not choice.get("disable_parallel_tool_use"):
        choice.pop("disable_parallel_tool_use", None)
    return {} if choice == {"type": "auto"} or not body.get("tools") else choice


def messages_meaning(messages: Iterable[Body]) -> list[Body]:
    """Neighbours of one role are one message to the API, and results come first in it."""
    merged: list[Body] = []
    for message in messages:
        blocks = [_block_meaning(block) for block in content(message) if not _blank(block)]
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"] += blocks
        else:
            merged.append({"role": message["role"], "content": blocks})
    for message in merged:
        message["content"].sort(key=lambda block: block["type"] != "tool_result")
    _number_calls(merged)
    return merged


def _number_calls(messages: list[Body]) -> None:
    """Replaces ids of calls by positions: an id only assigns a result to a call, and some clients repeat ids."""
    numbers: dict[str, int] = {}
    for number, block in enumerate(block for message in messages for block in message["content"]):
        if block["type"] == "tool_use":
            numbers[block["id"]] = number
            block["id"] = number
        elif block["type"] == "tool_result":
            block["tool_use_id"] = numbers.get(block["tool_use_id"])


def _block_meaning(block: Body) -> Body:
    """Marks only steer the cache; `caller: direct`, `is_error: false` and null are the defaults."""
    fields = {name: value for name, value in _unmarked(block).items() if value is not None}
    if fields.get("caller") == {"type": "direct"}:
        del fields["caller"]
    if fields["type"] == "tool_result":
        if not fields.get("is_error"):
            fields.pop("is_error", None)
        fields["content"] = [_block_meaning(inner) for inner in content({"content": fields.get("content") or ""})]
        fields["content"] = [inner for inner in fields["content"] if not _blank(inner)]
    return fields


def _blank(block: Body) -> bool:
    """The API refuses blank text now; older recordings have some that it took."""
    return block["type"] == "text" and not block["text"].strip() and not block.get("citations")


def _unmarked(fields: Body) -> Body:
    return {name: value for name, value in fields.items() if name != "cache_control"}


def results_after(messages: list[Body], calls: set[str]) -> list[Body]:
    for position, message in enumerate(messages):
        if any(block.get("tool_use_id") in calls for block in content(message) if block["type"] == "tool_result"):
            return messages[position:]
    return []


def _tools(tools: Iterable[Body]) -> tuple[list[ToolSpec], list[Body]]:
    """Tools of ours, and tools that only this API has: those a user gives in `extra`."""
    plain: list[ToolSpec] = []
    special: list[Body] = []
    for tool in tools:
        if tool.keys() <= _PLAIN_TOOL and "input_schema" in tool:
            strict = bool(tool.get("strict"))
            plain.append(ToolSpec(tool["name"], tool.get("description", ""), tool["input_schema"], strict))
        else:
            special.append(_unmarked(tool))
    return plain, special


def _settings(body: Body, special: list[Body]) -> ModelSettings:
    extra = {name: value for name, value in body.items() if name not in _READ}
    if special:
        extra["tools"] = special
    fields: Body = {}
    config = output_config(body)
    extra.pop("output_config", None)
    extra.pop("output_format", None)
    match extra.get("thinking"):
        case {"type": "enabled", "budget_tokens": budget}:
            fields |= {"reasoning": True, "reasoning_budget": budget}
            del extra["thinking"]
        case {"type": "adaptive"} if "effort" in config and "display" not in extra["thinking"]:
            fields |= {"reasoning": True, "reasoning_effort": config.pop("effort")}
            del extra["thinking"]
        case _:
            pass
    if "format" in config:
        fields["output"] = OutputSchema(config.pop("format")["schema"])
    if config:
        extra["output_config"] = config
    return ModelSettings(
        max_output_tokens=body["max_tokens"],
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        stop=tuple(body.get("stop_sequences", ())),
        tool_choice=_choice(body.get("tool_choice") or {"type": "auto"}),
        extra=extra,
        **fields,
    )


def _choice(choice: Body) -> ToolChoice:
    return ToolChoice(_MODES[choice["type"]], choice.get("name"), not choice.get("disable_parallel_tool_use"))  # type: ignore[arg-type]
