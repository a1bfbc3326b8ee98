"""The tools of a request in the few lines that a small model is told about them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from outrider.providers.local.dialect import TOOL, Dialect, Words, clipped
from outrider.providers.local.runtimes.states import Beginning
from outrider.types.request import ToolSpec


def beginning_of(system: str, tools: tuple[ToolSpec, ...], dialect: Dialect) -> Beginning | None:
    """The tools come first, then the agent's instructions: what tells of the place comes last, so that all workspaces
    share what is before it."""
    told = _tools(tools, dialect) if tools else ""
    system = clipped(system.strip(), dialect.longest_system)
    instructions = system.partition("\n\n")[0]
    shared = "\n\n".join(filter(None, (told, instructions)))
    whole = "\n\n".join(filter(None, (told, system)))
    return Beginning(whole, len(shared)) if whole else None


def _tools(tools: tuple[ToolSpec, ...], dialect: Dialect) -> str:
    words = Words.for_tools(tools)
    lines = [_line(spec, dialect, words) for spec in tools]
    lines.append(f"{written({words.tool: words.answer, 'text': '…'})} says something to the user and ends your work")
    protocol = _protocol().format(tools="\n".join(lines), answer=words.answer)
    return "\n\n".join(filter(None, (protocol, _examples(tools, dialect, words))))


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
