"""Recorded Responses requests, read into our values, and requests brought to what they mean."""

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, ModelSettings, OutputSchema, Prompt, Request, ToolChoice, ToolSpec
from outrider.types.tool_state import Attachment

Fields = dict[str, Any]
Atom = tuple[Any, ...]

CALLS = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
# What a client sends that is neither a message nor the result of a call.
SENT_BY_CLIENTS = ("mcp_approval_response", "additional_tools")


def items_of(body: Fields) -> list[Fields]:
    given = body["input"]
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def is_system(item: Fields) -> bool:
    return item.get("role") in ("system", "developer") and "content" in item


def is_answer(item: Fields) -> bool:
    if "role" in item:
        return item["role"] == "assistant"
    by_client = item["type"] in (*CALLS.values(), *SENT_BY_CLIENTS) or item.get("execution") == "client"
    return not by_client or item["type"] == "tool_search_call"


def pieces(content: Any) -> list[Fields]:
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    return [{"type": "input_text", "text": piece} if isinstance(piece, str) else piece for piece in content or []]


def system_of(body: Fields) -> str | None:
    """We have one system text; `instructions` and system or developer messages are joined."""
    texts = [body.get("instructions") or ""]
    texts += [piece["text"] for item in items_of(body) if is_system(item) for piece in pieces(item["content"])]
    return "\n".join(text for text in texts if text) or None


def messages_of(items: list[Fields], family: str) -> list[ModelMessage]:
    """Neighbours of one role become one message, results first, as our prompts have it."""
    found: list[ModelMessage] = []
    for item in items:
        if is_system(item):
            continue
        role = "assistant" if is_answer(item) else "user"
        parts = tuple(answer_parts(item, family) if role == "assistant" else user_parts(item, family))
        if found and found[-1].role == role:
            parts = found.pop().content + parts
        found.append(ModelMessage(role, tuple(sorted(parts, key=lambda part: not isinstance(part, ToolResultPart)))))
    return found


def answer_parts(item: Fields, family: str) -> Iterator[ModelPart]:
    kind = item.get("type", "message")
    if kind == "message":
        own = {name: item[name] for name in ("id", "phase", "status") if item.get(name)}
        for piece in pieces(item["content"]):
            extra = {"refusal": True} if piece["type"] == "refusal" else {}
            if piece.get("annotations"):
                extra["annotations"] = piece["annotations"]
            private = own | extra
            yield TextPart(
                piece.get("refusal") or piece.get("text") or "", metadata={family: private} if private else {}
            )
    elif kind in CALLS:
        rest = {name: item[name] for name in ("id", "namespace", "caller") if item.get(name)}
        value = {"input": item["input"]} if kind == "custom_tool_call" else json.loads(item["arguments"] or "{}")
        state = rest | ({"custom": True} if kind == "custom_tool_call" else {})
        yield ToolUsePart(tool_id=item["call_id"], tool_name=item["name"], tool_input=value, metadata={family: state})
    else:
        yield ReasoningPart("", provider_state={"family": family, "item": item})


def user_parts(item: Fields, family: str) -> Iterator[ModelPart]:
    if item.get("type") in CALLS.values():
        output = pieces(item["output"])
        texts = [piece["text"] for piece in output if piece["type"] == "input_text"]
        files = [file_part(piece, family) for piece in output if piece["type"] != "input_text"]
        attachments = tuple(Attachment(file.mime, url=file.url, name=file.filename) for file in files)
        yield ToolResultPart(tool_use_id=item["call_id"], content="\n".join(texts), attachments=attachments)
        return
    if "content" not in item:
        yield ReasoningPart("", provider_state={"family": family, "item": item})
        return
    for piece in pieces(item["content"]):
        yield TextPart(piece["text"]) if piece["type"] == "input_text" else file_part(piece, family)


def file_part(piece: Fields, family: str) -> FilePart:
    where = piece.get("image_url") or piece.get("file_url") or piece.get("file_data") or f"file-id:{piece['file_id']}"
    fallback = "image/png" if piece["type"] == "input_image" else "application/pdf"
    mime = where[5:].partition(";")[0] if where.startswith("data:") else fallback
    detail = {family: {"detail": piece["detail"]}} if piece.get("detail") else {}
    return FilePart(mime=mime, url=where, filename=piece.get("filename"), metadata=detail)


def request_of(body: Fields, messages: list[ModelMessage]) -> Request:
    """Converts the recorded request to our types. Fields without an equivalent are in `extra`, as users send them."""
    known = {
        "model", "input", "instructions", "stream", "tools", "tool_choice", "parallel_tool_calls", "include",
        "max_output_tokens", "temperature", "top_p", "text", "reasoning", "prompt_cache_key", "store",
    }  # fmt: skip
    extra = {name: value for name, value in body.items() if name not in known}
    if body.get("store") is not False:
        extra["store"] = True
    if choice_of(body).mode == "auto" and isinstance(body.get("tool_choice"), dict):
        extra["tool_choice"] = body["tool_choice"]
    if others := [tool for tool in body.get("tools") or [] if not is_function(tool)]:
        extra["tools"] = others
    reasoning = body.get("reasoning") or {}
    if reasoning.get("effort") == "none":
        extra["reasoning"] = {"effort": "none"}
    settings = ModelSettings(
        max_output_tokens=body.get("max_output_tokens"),
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        reasoning=reasoning.get("effort") not in (None, "none"),
        reasoning_effort=reasoning.get("effort") if reasoning.get("effort") not in (None, "none") else "medium",
        tool_choice=choice_of(body),
        output=output_of(body),
        extra=extra,
    )
    tools = tuple(tool_of(tool) for tool in body.get("tools") or [] if is_function(tool))
    key = body.get("prompt_cache_key") or ""
    return Request(
        body.get("model", ""), Prompt(messages), system_of(body), tools, settings, bool(body.get("stream")), key
    )


def is_function(tool: Fields) -> bool:
    """A function that is loaded by a search is an option of the provider's own."""
    return tool["type"] == "function" and "defer_loading" not in tool


def tool_of(tool: Fields) -> ToolSpec:
    return ToolSpec(tool["name"], tool.get("description") or "", tool.get("parameters") or {}, bool(tool.get("strict")))


def choice_of(body: Fields) -> ToolChoice:
    parallel = body.get("parallel_tool_calls") is not False
    match body.get("tool_choice"):
        case "required" | "none" as mode:
            return ToolChoice(mode, parallel=parallel)
        case {"type": "function", "name": name}:
            return ToolChoice("tool", name, parallel)
        case _:
            return ToolChoice(parallel=parallel)


def output_of(body: Fields) -> OutputSchema | None:
    form = (body.get("text") or {}).get("format") or {}
    if form.get("type") != "json_schema":
        return None
    return OutputSchema(form["schema"], form["name"], form.get("description") or "", bool(form.get("strict")))


def atoms(items: list[Fields]) -> list[Atom]:
    """What the items mean, in order. Left out: ids and status of messages and calls (the server's own bookkeeping),
    annotations, empty texts, how content is divided into messages, system messages (compared on their own), whether a
    result follows its call at once or after all calls of the answer, the detail of an image in a result (our
    attachments have no word for it)."""
    found: list[Atom] = []
    waiting: list[Atom] = []
    for item in items:
        if is_system(item):
            continue
        if item.get("type") in CALLS.values():
            waiting.append(output_atom(item))
            continue
        if not is_answer(item):
            found += waiting
            waiting = []
        found += atoms_of(item)
    return found + waiting


def output_atom(item: Fields) -> Atom:
    output = pieces(item["output"])
    text = "\n".join(piece["text"] for piece in output if piece["type"] == "input_text")
    files = [file_atom(piece)[:2] for piece in output if piece["type"] != "input_text"]
    return ("output", item["type"], item["call_id"], text, *files)


def atoms_of(item: Fields) -> Iterator[Atom]:
    kind = item.get("type", "message")
    if kind == "function_call":
        yield ("call", item["call_id"], item["name"], item.get("namespace"), meaning_of(item["arguments"]))
    elif kind == "custom_tool_call":
        yield ("custom call", item["call_id"], item["name"], item["input"])
    elif kind == "reasoning":
        texts = [piece["text"] for piece in (item.get("summary") or []) + (item.get("content") or [])]
        yield ("reasoning", "\n\n".join(texts), item.get("encrypted_content"))
    elif kind == "message":
        for piece in pieces(item["content"]):
            content = piece.get("refusal") or piece.get("text")
            if content:
                yield item["role"], item.get("phase"), content
            elif content is None:
                yield (item["role"], None, text) if (text := text_of_file(piece)) else (item["role"], file_atom(piece))
    else:
        yield ("own item", kind, item.get("id"))


def text_of_file(piece: Fields) -> str | None:
    """A text file, as we write it: every server takes text, few take such files."""
    where = piece.get("file_data") or ""
    if not where.startswith("data:text/"):
        return None
    return f'<file name="{piece["filename"]}">\n{b64decode(where.partition(",")[2]).decode()}\n</file>'


def file_atom(piece: Fields) -> Atom:
    where = piece.get("image_url") or piece.get("file_url") or piece.get("file_data") or piece.get("file_id")
    return (piece["type"], where, piece.get("detail") or "auto" if piece["type"] == "input_image" else None)


def meaning_of(arguments: str) -> str:
    return json.dumps(json.loads(arguments or "{}"), sort_keys=True)


def settings_meaning(body: Fields) -> Fields:
    """The settings that we support. Left out: `strict` where it is missing, descriptions that are empty, what
    equals the default (automatic choice, parallel calls), and the summary of reasoning, which we always ask for."""
    functions = [tool for tool in body.get("tools") or [] if is_function(tool)]
    form = (body.get("text") or {}).get("format") or {}
    choice = body.get("tool_choice")
    return {
        "system": system_of(body),
        "tools": [(t["name"], t.get("description") or "", t.get("parameters") or {}) for t in functions],
        "others": [tool for tool in body.get("tools") or [] if not is_function(tool)],
        "choice": None if choice == "auto" or not functions else choice,
        "parallel": body.get("parallel_tool_calls") is not False or not functions,
        "schema": form.get("schema"),
        "effort": (body.get("reasoning") or {}).get("effort"),
        "numbers": [body.get(name) for name in ("max_output_tokens", "temperature", "top_p")],
        "previous": body.get("previous_response_id"),
    }
