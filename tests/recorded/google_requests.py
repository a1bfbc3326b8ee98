"""Recorded Gemini requests, read into our values, and requests brought to what they mean."""

import json
import re
from collections.abc import Iterator
from typing import Any

from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, ModelSettings, OutputSchema, Prompt, Request, ToolChoice, ToolSpec
from outrider.types.tool_state import Attachment

Fields = dict[str, Any]
Atom = tuple[Any, ...]

# The keys under which clients wrap the result of a function.
WRAPPERS = {"output", "result", "return_value", "content", "response"}


def camel(value: Any) -> Any:
    """The API takes names in snake case too. Schemas, arguments and results are not its names."""
    if isinstance(value, list):
        return [camel(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    found = {re.sub(r"_(\w)", lambda match: match[1].upper(), name): inner for name, inner in value.items()}
    preserved = ("args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema")
    return {name: inner if name in preserved else camel(inner) for name, inner in found.items()}


def result_of(response: Fields) -> tuple[str, bool]:
    """Returns the output of a function and whether it failed. The output may be wrapped in a field, also next to the
    name of the function."""
    inner = {name: value for name, value in response.items() if name != "name"} if "content" in response else response
    if len(inner) == 1:
        name, value = next(iter(inner.items()))
        if name in WRAPPERS or name == "error":
            return value if isinstance(value, str) else json.dumps(value), name == "error"
    return json.dumps(response), False


def messages_of(contents: list[Fields], family: str) -> list[ModelMessage]:
    """Neighbours of one role become one message, results first, as our prompts have it."""
    found: list[ModelMessage] = []
    for content in contents:
        role = "assistant" if content.get("role") == "model" else "user"
        parts = tuple(part_of(part, family) for part in content["parts"] if not is_empty(part))
        if found and found[-1].role == role:
            parts = found.pop().content + parts
        found.append(ModelMessage(role, tuple(sorted(parts, key=lambda part: not isinstance(part, ToolResultPart)))))
    return found


def is_empty(part: Fields) -> bool:
    return not any(part.get(name) for name in part if name != "thought")


def part_of(part: Fields, family: str) -> ModelPart:
    signature = {"thought_signature": part["thoughtSignature"]} if part.get("thoughtSignature") else {}
    own = {family: signature} if signature else {}
    match part:
        case {"functionCall": call}:
            call_id = call.get("id") or f"noid_{call['name']}"
            return ToolUsePart(tool_id=call_id, tool_name=call["name"], tool_input=call.get("args") or {}, metadata=own)
        case {"functionResponse": given}:
            text, failed = result_of(given["response"])
            files = tuple(Attachment(file.mime, url=file.url) for file in map(file_part, given.get("parts") or []))
            call_id = given.get("id") or f"noid_{given['name']}"
            return ToolResultPart(
                tool_use_id=call_id, tool_name=given["name"], content=text, is_error=failed, attachments=files
            )
        case {"text": text} if part.get("thought"):
            return ReasoningPart(text, provider_state={"family": family, **signature})
        case {"text": text}:
            return TextPart(text, metadata=own)
        case {"inlineData": _} | {"fileData": _}:
            return file_part(part)
        case {"thought": True}:
            return ReasoningPart("", provider_state={"family": family, **signature})
        case _:
            return ReasoningPart("", provider_state={"family": family, "part": part})


def file_part(part: Fields) -> FilePart:
    inline, linked = part.get("inlineData"), part.get("fileData")
    if inline:
        return FilePart(mime=inline["mimeType"], url=f"data:{inline['mimeType']};base64,{inline['data']}")
    return FilePart(mime=linked.get("mimeType", ""), url=linked["fileUri"])


def request_of(body: Fields, model: str, messages: list[ModelMessage], *, stream: bool) -> Request:
    """Converts the recorded request to our types. Fields without an equivalent are in `extra`, as users send them."""
    config = body.get("generationConfig") or {}
    known = {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "model"}
    extra = {name: value for name, value in body.items() if name not in known}
    mine = {"maxOutputTokens", "temperature", "topP", "stopSequences", "responseJsonSchema", "responseSchema"}
    mine |= {"responseMimeType"} if schema_of(config) else set()
    if rest := {name: value for name, value in config.items() if name not in mine}:
        extra["generationConfig"] = rest
    if others := [tool for tool in body.get("tools") or [] if "functionDeclarations" not in tool]:
        extra["tools"] = others
    choice, choice_extra = choice_of(body)
    settings = ModelSettings(
        max_output_tokens=config.get("maxOutputTokens"),
        temperature=config.get("temperature"),
        top_p=config.get("topP"),
        stop=tuple(config.get("stopSequences") or ()),
        tool_choice=choice,
        output=OutputSchema(schema_of(config)) if schema_of(config) else None,
        extra=extra | choice_extra,
    )
    tools = tuple(
        ToolSpec(tool["name"], tool.get("description") or "", parameters_of(tool)) for tool in functions_of(body)
    )
    return Request(model, Prompt(messages), system_of(body), tools, settings, stream)


def functions_of(body: Fields) -> list[Fields]:
    return [tool for given in body.get("tools") or [] for tool in given.get("functionDeclarations") or []]


def parameters_of(tool: Fields) -> Fields:
    return tool.get("parametersJsonSchema") or tool.get("parameters") or {}


def schema_of(config: Fields) -> Fields | None:
    return config.get("responseJsonSchema") or config.get("responseSchema")


def system_of(body: Fields) -> str | None:
    parts = (body.get("systemInstruction") or {}).get("parts") or []
    return "\n".join(part["text"] for part in ([parts] if isinstance(parts, dict) else parts)) or None


def choice_of(body: Fields) -> tuple[ToolChoice, Fields]:
    """Converts the tool choice to our type, and returns the fields without an equivalent."""
    config = (body.get("toolConfig") or {}).get("functionCallingConfig") or {}
    allowed = config.get("allowedFunctionNames") or []
    rest = {name: value for name, value in (body.get("toolConfig") or {}).items() if name != "functionCallingConfig"}
    match config.get("mode"):
        case "NONE":
            choice = ToolChoice("none")
        case "ANY" if len(allowed) == 1:
            choice = ToolChoice("tool", allowed[0])
        case "ANY":
            choice = ToolChoice("required")
            rest |= {"functionCallingConfig": {"allowedFunctionNames": allowed}} if allowed else {}
        case None | "AUTO":
            choice = ToolChoice()
        case _:
            choice = ToolChoice()
            rest |= {"functionCallingConfig": config}
    return choice, {"toolConfig": rest} if rest else {}


def atoms(contents: list[Fields]) -> list[Atom]:
    """What the contents mean, in order. Left out: ids of calls (most come without, and clients make up their own), how
    a result is wrapped, how parts are divided into contents of one role, parts that say nothing, whether a file of a
    result stands inside or beside its response, and the alphabet of base64."""
    found: list[Atom] = []
    for content in contents:
        role = "model" if content.get("role") == "model" else "user"
        for part in content["parts"]:
            if not is_empty(part):
                found += atoms_of(role, part)
    return files_last(found)


def files_last(found: list[Atom]) -> list[Atom]:
    """Files that follow results come after all of these results."""
    ordered: list[Atom] = []
    files: list[Atom] = []
    for atom in found:
        if atom[1] == "file" and ordered and (ordered[-1][1] == "result" or files):
            files.append(atom)
            continue
        if atom[1] != "result":
            ordered += files
            files = []
        ordered.append(atom)
    return ordered + files


def atoms_of(role: str, part: Fields) -> Iterator[Atom]:
    signature = base64(part.get("thoughtSignature"))
    match part:
        case {"functionCall": call}:
            yield role, "call", call["name"], json.dumps(call.get("args") or {}, sort_keys=True), signature
        case {"functionResponse": given}:
            text, failed = result_of(given["response"])
            yield role, "result", given["name"], meaning_of(text), failed
            for file in given.get("parts") or []:
                yield from atoms_of(role, file)
        case {"inlineData": file}:
            yield role, "file", file["mimeType"], base64(file["data"])
        case {"fileData": file}:
            yield role, "file", file.get("mimeType"), file["fileUri"]
        case {"thought": True, **rest} if rest.keys() <= {"text", "thoughtSignature"}:
            yield role, "thought", part.get("text") or "", signature
        case {"text": text}:
            yield role, "thought" if part.get("thought") else "text", text, signature
        case _:
            yield (
                role,
                "own",
                json.dumps({k: v for k, v in part.items() if k != "thoughtSignature"}, sort_keys=True),
                signature,
            )


def base64(text: str | None) -> str | None:
    return text.replace("-", "+").replace("_", "/").rstrip("=") if text else None


def meaning_of(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text


def settings_meaning(body: Fields) -> Fields:
    """Returns the settings in one form: both ways to pass a schema are equal, and empty lists and a tool choice
    without tools are left out."""
    config = {name: value for name, value in (body.get("generationConfig") or {}).items() if value != []}
    schema = config.pop("responseJsonSchema", None) or config.pop("responseSchema", None)
    choice = body.get("toolConfig") or {}
    if (choice.get("functionCallingConfig") or {}) in ({}, {"mode": "AUTO"}) or not functions_of(body):
        choice = {name: value for name, value in choice.items() if name != "functionCallingConfig"}
    return {
        "system": system_of(body),
        "tools": [(tool["name"], tool.get("description") or "", parameters_of(tool)) for tool in functions_of(body)],
        "others": [tool for tool in body.get("tools") or [] if "functionDeclarations" not in tool],
        "choice": choice,
        "schema": schema,
        "config": config,
        "safety": body.get("safetySettings"),
    }
