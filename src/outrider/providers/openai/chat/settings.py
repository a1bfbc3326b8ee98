"""All of a chat request but its messages: the model, tools, limits, sampling, the shape of the answer."""

from typing import Any, assert_never

import msgspec

from outrider.providers.openai.chat.dialects import Dialect, nearest_effort
from outrider.providers.openai.schemas import is_strict, listed_parameters
from outrider.providers.tool_schemas import once_for_each_tool
from outrider.providers.writing import encoded_json
from outrider.types.request import ModelSettings, OutputSchema, Request, ToolChoice, ToolSpec

Fields = dict[str, Any]

_SCHEMA = "Answer with one JSON object, and nothing else, that follows this JSON schema:\n{schema}"


def head(request: Request, dialect: Dialect) -> Fields:
    settings = request.settings
    fields: Fields = {"model": request.model}
    if request.stream:
        fields["stream"] = True
        if dialect.stream_options:
            fields["stream_options"] = {"include_usage": True}
    if dialect.cache_key and request.conversation:
        fields["prompt_cache_key"] = request.conversation
    if request.tools:
        fields["tools"] = [_written(tool) for tool in request.tools]
        fields |= _choice(settings.tool_choice)
    if settings.output is not None:
        fields["response_format"] = _format(settings.output, dialect)
    return fields | _sampling(settings, dialect) | (_reasoning(settings, dialect) if settings.reasoning else {})


def system_message(request: Request, dialect: Dialect) -> Fields | None:
    text = request.system or ""
    output = request.settings.output
    if output is not None and not dialect.schemas:
        told = _SCHEMA.format(schema=encoded_json(output.schema).decode())
        text = f"{text}\n\n{told}" if text else told
    if not text:
        return None
    return {"role": dialect.system, "content": text}


def _sampling(settings: ModelSettings, dialect: Dialect) -> Fields:
    fields: Fields = {
        dialect.limit: settings.max_output_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "stop": list(settings.stop) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _reasoning(settings: ModelSettings, dialect: Dialect) -> Fields:
    effort = nearest_effort(dialect, settings.reasoning_effort) if dialect.efforts else None
    budget = settings.reasoning_budget
    match dialect.reasoning:
        case "effort":
            return {"reasoning_effort": effort}
        case "object":
            return {"reasoning": {"max_tokens": budget} if budget else {"effort": effort}}
        case "thinking":
            return {"thinking": {"type": "enabled"}} | ({"reasoning_effort": effort} if effort else {})
        case "enable_thinking":
            return {"enable_thinking": True} | ({"thinking_budget": budget} if budget else {})
        case _:
            assert_never(dialect.reasoning)


@once_for_each_tool
def _written(tool: ToolSpec) -> msgspec.Raw:
    return msgspec.Raw(encoded_json(_tool(tool)))


def _tool(tool: ToolSpec) -> Fields:
    parameters = listed_parameters(tool)
    function: Fields = {"name": tool.name, "description": tool.description, "parameters": parameters}
    if tool.strict:
        function["strict"] = is_strict(parameters)
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> Fields:
    fields: Fields = {} if choice.parallel else {"parallel_tool_calls": False}
    match choice.mode:
        case "auto":
            return fields
        case "required" | "none":
            return fields | {"tool_choice": choice.mode}
        case "tool":
            return fields | {"tool_choice": {"type": "function", "function": {"name": choice.tool}}}
        case _:
            assert_never(choice.mode)


def _format(output: OutputSchema, dialect: Dialect) -> Fields:
    if not dialect.schemas:
        return {"type": "json_object"}
    described = {"description": output.description} if output.description else {}
    strict = output.strict and is_strict(output.schema)
    return {
        "type": "json_schema",
        "json_schema": {"name": output.name, **described, "schema": output.schema, "strict": strict},
    }
