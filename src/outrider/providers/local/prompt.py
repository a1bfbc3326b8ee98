"""A conversation as a small model reads it: tools in a few lines, calls as the JSON objects that it writes itself."""

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, assert_never

import msgspec

from outrider.providers.local.dialect import SAY, TOOL, Dialect, Words
from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, Prompt, ToolSpec


def system_text(system: str | None, tools: tuple[ToolSpec, ...], dialect: Dialect) -> str:
    """Byte-identical as long as the agent and its tools are."""
    parts = [system or ""]
    if tools:
        words = Words.for_tools(tools)
        lines = "\n".join(_line(spec, dialect, words) for spec in tools)
        answer = f"{_written({words.tool: words.answer, 'text': '…'})} says something to the user and ends your work"
        parts.append(_protocol().format(tools=f"{lines}\n{answer}", answer=words.answer))
        parts.append(_examples(tools, dialect, words))
    return "\n\n".join(part.strip() for part in parts if part.strip())


def chat_messages(system: str, prompt: Prompt, tools: tuple[ToolSpec, ...], dialect: Dialect) -> bytes:
    """The messages as a JSON list. What was written for an earlier request is used again."""
    words = Words.for_tools(tools)
    names: dict[str, str] = {}

    def encode(message: ModelMessage) -> bytes:
        return b",".join(msgspec.json.encode(said) for said in _said(message, names, words if tools else None, dialect))

    for message in prompt:
        names |= {part.tool_id: part.tool_name for part in message.content if isinstance(part, ToolUsePart)}
    form = f"local {words.tool} {words.answer} {bool(tools)} {id(dialect)}"
    head = msgspec.json.encode({"role": "system", "content": system}) + b"," if system else b""
    return b"[" + head + bytes(prompt.encoded(form, encode)) + b"]"


def call_text(use: ToolUsePart, words: Words) -> str:
    return _written(_call(use, words))


def _call(use: ToolUsePart, words: Words) -> dict[str, Any]:
    return {words.tool: use.tool_name, **use.tool_input}


def _line(spec: ToolSpec, dialect: Dialect, words: Words) -> str:
    shape = {name: "…" for name in dialect.parameters(spec)}
    return f"{_written({words.tool: spec.name, **shape})} {dialect.description(spec)}"


def _examples(tools: tuple[ToolSpec, ...], dialect: Dialect, words: Words) -> str:
    offered = {spec.name for spec in tools} | {words.answer}
    fitting = [(said, call) for said, call in dialect.examples if call[TOOL] in offered]
    if not fitting:
        return ""
    return "Examples:\n" + "\n".join(f"{said}\n{_written({words.tool: call[TOOL], **call})}" for said, call in fitting)


def _said(
    message: ModelMessage, names: dict[str, str], words: Words | None, dialect: Dialect
) -> Iterator[dict[str, str]]:
    if message.role == "assistant":
        texts = [part.text for part in message.content if isinstance(part, TextPart) and part.text.strip()]
        calls = [part for part in message.content if isinstance(part, ToolUsePart)]
        yield {"role": "assistant", "content": _answer_text("\n\n".join(texts), calls, words)}
        return
    yield {"role": "user", "content": "\n\n".join(_user_texts(message.content, names, dialect))}


def _answer_text(text: str, calls: list[ToolUsePart], words: Words | None) -> str:
    if words is None:
        return "\n".join([text, *(call_text(call, Words.for_tools(())) for call in calls)]).strip()
    if not calls:
        return _written({words.tool: words.answer, "text": text})
    first = {SAY: text} if text else {}
    objects = [_call(call, words) for call in calls]
    return "\n".join(_written(written) for written in [first | objects[0], *objects[1:]])


def _user_texts(content: Iterable[ModelPart], names: dict[str, str], dialect: Dialect) -> Iterator[str]:
    for part in content:
        match part:
            case TextPart(text=text):
                yield text
            case ToolResultPart(tool_use_id=call_id, content=said, is_error=failed):
                tool = names.get(call_id, "the tool")
                yield f"{tool} {'failed' if failed else 'gave'}:\n{dialect.result(tool, said)}"
            case FilePart(mime=mime, filename=name):
                yield f"(a file is attached that you cannot see: {name or 'without a name'}, {mime})"
            case ToolUsePart() | ReasoningPart():
                pass
            case _:
                assert_never(part)


def _written(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


@cache
def _protocol() -> str:
    return Path(__file__).with_name("compact.md").read_text(encoding="utf-8").strip()
