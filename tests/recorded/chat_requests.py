"""Recorded chat requests, read into our messages, and chat messages brought to what they mean."""

import json
from typing import Any

from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage

Fields = dict[str, Any]

SOUND = {"wav": "audio/wav", "mp3": "audio/mpeg"}


def system_of(messages: list[Fields]) -> str | None:
    """Our requests have one system text; several are joined."""
    texts = [text for message in messages if message["role"] in ("system", "developer") for text in texts_of(message)]
    return "\n".join(texts) or None


def texts_of(message: Fields) -> list[str]:
    content = message.get("content") or ""
    if isinstance(content, str):
        return [content] if content else []
    return [block["text"] for block in content if block["type"] == "text"]


def model_messages(messages: list[Fields], family: str) -> list[ModelMessage]:
    """Neighbours of one role become one message, as our prompts have it."""
    found: list[ModelMessage] = []
    for message in messages:
        if message["role"] in ("system", "developer"):
            continue
        role = "assistant" if message["role"] == "assistant" else "user"
        parts = tuple(assistant_meaning(message, family) if role == "assistant" else user_meaning(message))
        if found and found[-1].role == role:
            parts = found.pop().content + parts
        found.append(ModelMessage(role, parts))
    return found


def user_meaning(message: Fields) -> list[ModelPart]:
    if message["role"] in ("tool", "function"):
        call_id = message.get("tool_call_id") or message.get("name") or ""
        return [ToolResultPart(tool_use_id=call_id, content="\n".join(texts_of(message)))]
    content = message["content"]
    if isinstance(content, str):
        return [TextPart(content)]
    return [part_of(block) if isinstance(block, dict) else TextPart(block) for block in content]


def part_of(block: Fields) -> ModelPart:
    match block:
        case {"type": "text", "text": text}:
            return TextPart(text)
        case {"type": "image_url", "image_url": {"url": url}} | {"type": "image_url", "image_url": str(url)}:
            return FilePart(mime=mime_of(url, "image/png"), url=url)
        case {"type": "input_audio", "input_audio": {"data": data, "format": form}}:
            return FilePart(mime=SOUND[form], url=f"data:{SOUND[form]};base64,{data}")
        case {"type": "file", "file": {"file_data": url, **rest}}:
            return FilePart(mime=mime_of(url, "application/pdf"), url=url, filename=rest.get("filename"))
        case {"type": "document_url", "document_url": url}:
            return FilePart(mime=mime_of(url, "application/pdf"), url=url, filename=block.get("document_name"))
        case {"type": "video_url", "video_url": {"url": url}}:
            return FilePart(mime=mime_of(url, "video/mp4"), url=url)
        case _:
            raise NotImplementedError(str(block)[:200])


def mime_of(url: str, otherwise: str) -> str:
    return url[5:].partition(";")[0] if url.startswith("data:") else otherwise


def assistant_meaning(message: Fields, family: str) -> list[ModelPart]:
    parts: list[ModelPart] = []
    for field in ("reasoning_content", "reasoning"):
        if message.get(field):
            state = {"family": family, "field": field}
            parts.append(ReasoningPart(message[field], provider_state=state))
    if details := message.get("reasoning_details"):
        parts.append(ReasoningPart("", provider_state={"family": family, "details": details}))
    parts += [TextPart(text) for text in texts_of(message)]
    for call in message.get("tool_calls") or ():
        function = call["function"]
        value = json.loads(function["arguments"] or "{}") or {}
        parts.append(ToolUsePart(tool_id=call["id"], tool_name=function["name"], tool_input=value))
    if call := message.get("function_call"):
        parts.append(
            ToolUsePart(tool_id=call["name"], tool_name=call["name"], tool_input=json.loads(call["arguments"]))
        )
    return parts


def meaning(messages: list[Fields]) -> list[Fields]:
    """What the messages say to a model, and nothing of how they say it. Not counted, since it means nothing:

    - system messages by where and in how many pieces they stand; `developer` is the newer word for `system`
    - whether text is a string or a list of one text block, and whether no text is null, "" or absent
    - white space and the order of keys inside a call's arguments; no arguments are an empty object
    - fields that repeat what the position says (`index` of a call, `name` of a result) or are null, empty or false
    - `name`, `cache_control`, `detail`: a label, a mark for a cache, a default
    - ids of calls as such: they are numbered by first appearance, so that only what they connect counts
    - reasoning, which is judged on its own
    """
    ids: dict[str, int] = {}
    system = system_of(messages)
    found: list[Fields] = [{"role": "system", "text": system.split()}] if system else []
    for message in messages:
        if message["role"] in ("system", "developer"):
            continue
        one = one_meaning(message, ids)
        if found and one["role"] == "user" == found[-1]["role"]:
            found[-1]["content"] += one["content"]
        elif one != {"role": "assistant"}:
            found.append(one)
    return found


def one_meaning(message: Fields, ids: dict[str, int]) -> Fields:
    match message["role"]:
        case "tool" | "function":
            call_id = message.get("tool_call_id") or message.get("name")
            return {"role": "result", "call": ids.setdefault(call_id, len(ids)), "text": "\n".join(texts_of(message))}
        case "user":
            return {"role": "user", "content": [part_meaning(part) for part in user_meaning(message)]}
        case _:
            calls = [
                (ids.setdefault(part.tool_id, len(ids)), part.tool_name, part.tool_input)
                for part in assistant_meaning(message, "")
                if isinstance(part, ToolUsePart)
            ]
            one = {"role": "assistant", "text": "".join(texts_of(message)), "calls": calls}
            return {name: value for name, value in one.items() if value}


def part_meaning(part: ModelPart) -> tuple[str, ...]:
    assert isinstance(part, TextPart | FilePart)
    return ("text", part.text) if isinstance(part, TextPart) else ("file", part.mime, part.url)


def reasoning_in(message: Fields) -> Fields:
    """What goes back of the model's own reasoning: text, and what is signed or encrypted."""
    details = message.get("reasoning_details") or []
    text = message.get("reasoning_content") or message.get("reasoning") or ""
    text = text or "".join(item.get("text") or item.get("summary") or "" for item in details)
    sealed = [item.get("signature") or item.get("data") for item in details]
    return {"text": text, "sealed": [seal for seal in sealed if seal]}
