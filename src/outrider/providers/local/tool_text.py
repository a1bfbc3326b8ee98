"""The tools of a request in the few lines that a small model is told about them."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from outrider.providers.local.primer import TOOL, Primer, Words, clipped
from outrider.providers.local.runtimes.imprints import Beginning
from outrider.types.request import ToolSpec


def beginning_of(system: str, tools: tuple[ToolSpec, ...], primer: Primer) -> tuple[Beginning | None, str]:
    """What all sessions of an agent share, and the rest of its system text, which tells of the place.

    Examples are turns of a conversation: a small model follows those better than any description."""
    instructions, _, place = clipped(system.strip(), primer.longest_system).partition("\n\n")
    if not tools:
        whole = system.strip()
        return (Beginning((("system", whole),)) if whole else None), ""
    words = Words.for_tools(tools)
    told = "\n\n".join(filter(None, (instructions, _tools(tools, primer, words))))
    return Beginning((("system", told), *_examples(tools, primer, words))), place


def _tools(tools: tuple[ToolSpec, ...], primer: Primer, words: Words) -> str:
    lines = [_line(spec, primer, words) for spec in tools]
    lines.append(f"{written({words.tool: words.answer, 'text': '…'})} says something to the user and ends your work")
    return _protocol().format(tools="\n".join(lines), answer=words.answer)


def _line(spec: ToolSpec, primer: Primer, words: Words) -> str:
    shape = {name: "…" for name in primer.parameters(spec)}
    return f"{written({words.tool: spec.name, **shape})} {primer.description(spec)}"


def _examples(tools: tuple[ToolSpec, ...], primer: Primer, words: Words) -> Iterator[tuple[str, str]]:
    offered = {spec.name for spec in tools} | {words.answer}
    for said, call in primer.examples:
        if call[TOOL] in offered:
            arguments = {name: value for name, value in call.items() if name != TOOL}
            yield from (("user", said), ("assistant", written({words.tool: call[TOOL], **arguments})))


def written(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


@cache
def _protocol() -> str:
    return Path(__file__).with_name("compact.md").read_text(encoding="utf-8").strip()
