"""The tools of a request in the few lines that a small model is told about them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from outrider.providers.local.dialect import TOOL, Dialect, Words
from outrider.types.request import ToolSpec


def system_text(system: str | None, tools: tuple[ToolSpec, ...], dialect: Dialect) -> str:
    """Byte-identical as long as the agent and its tools are."""
    parts = [system or ""]
    if tools:
        words = Words.for_tools(tools)
        lines = "\n".join(_line(spec, dialect, words) for spec in tools)
        answer = f"{written({words.tool: words.answer, 'text': '…'})} says something to the user and ends your work"
        parts.append(_protocol().format(tools=f"{lines}\n{answer}", answer=words.answer))
        parts.append(_examples(tools, dialect, words))
    return "\n\n".join(part.strip() for part in parts if part.strip())


def _line(spec: ToolSpec, dialect: Dialect, words: Words) -> str:
    shape = {name: "…" for name in dialect.parameters(spec)}
    return f"{written({words.tool: spec.name, **shape})} {dialect.description(spec)}"


def _examples(tools: tuple[ToolSpec, ...], dialect: Dialect, words: Words) -> str:
    offered = {spec.name for spec in tools} | {words.answer}
    fitting = [(said, call) for said, call in dialect.examples if call[TOOL] in offered]
    if not fitting:
        return ""
    return "Examples:\n" + "\n".join(f"{said}\n{written({words.tool: call[TOOL], **call})}" for said, call in fitting)


def written(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


@cache
def _protocol() -> str:
    return Path(__file__).with_name("compact.md").read_text(encoding="utf-8").strip()
