"""The parts of a message as a person reads them on a shared page."""

import re
from typing import Any

import msgspec

from outrider.sessions.transfer.markup import code, prose, safe
from outrider.sessions.transfer.timeline import duration
from outrider.types.codec import AnyPart
from outrider.types.parts import (
    CompactionPart,
    FilePart,
    PatchPart,
    ReasoningPart,
    RetryPart,
    SubtaskPart,
    TextPart,
    ToolPart,
)
from outrider.types.tool_state import ToolCompleted, ToolError, ToolState

SHOWN_CHARACTERS = 100_000
_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+")
_QUIET = frozenset({"step-start", "step-finish", "snapshot"})


def part_html(part: AnyPart) -> str:
    match part:
        case TextPart(ignored=True) | TextPart(synthetic=True):
            return _folded("note", "note", "", "for the model", prose(_cut(part.text)))
        case TextPart():
            return prose(_cut(part.text))
        case ReasoningPart():
            return _folded("reasoning", "reasoning", "", "", prose(_cut(part.text))) if part.text else ""
        case ToolPart():
            return _call(part)
        case FilePart():
            return _file(part)
        case _:
            return _marker(part)


def _call(part: ToolPart) -> str:
    state = part.state
    content = f"<h3>input</h3>{code(_cut(_pretty(state.input)))}" if state.input else ""
    match state:
        case ToolCompleted(output=output):
            kind, mark = "done", "✓"
            content += f"<h3>output</h3>{code(_cut(output))}"
        case ToolError(error=error, reason=reason):
            kind, mark = "failed", "✗"
            content += f"<h3>{safe(reason)}</h3>{code(_cut(error))}"
        case _:
            kind, mark = "open", "…"
    diff = state.metadata.get("diff") if isinstance(state, ToolCompleted) else None
    if isinstance(diff, str):
        content += f"<h3>changes</h3>{code(_cut(diff), 'diff')}"
    return _folded(f"call {kind}", part.tool, mark, _gist(state), content)


def _gist(state: ToolState) -> str:
    """A few words that tell this call from the next."""
    title = getattr(state, "title", "") or next((str(value) for value in state.input.values() if value), "")
    took = f" · {duration(state.time.end - state.time.start)}" if isinstance(state, ToolCompleted | ToolError) else ""
    return " ".join(title.split())[:120] + took


def _file(part: FilePart) -> str:
    name = part.filename or part.mime
    if part.mime.startswith("image/") and _IMAGE.fullmatch(part.url):
        return f'<p><img src="{safe(part.url)}" alt="{safe(name)}"></p>'
    return f'<p class="marker">file: {safe(name)} ({safe(part.mime)})</p>'


def _marker(part: AnyPart) -> str:
    match part:
        case CompactionPart():
            return _folded("note", "compaction", "", "what came before was summarised", prose(_cut(part.summary)))
        case SubtaskPart():
            return _folded("note", part.agent, "", part.description, prose(_cut(part.prompt)))
        case PatchPart():
            return f'<p class="marker">changed: {safe(", ".join(part.files))}</p>'
        case RetryPart():
            return f'<p class="marker">attempt {part.attempt} failed: {safe(part.error)}</p>'
        case _ if part.type in _QUIET:
            return ""
        case _:
            return _folded("note", part.type or "part", "", "", code(_cut(_pretty(part.to_dict()))))


def _folded(kind: str, name: str, mark: str, said: str, content: str) -> str:
    head = f'<span class="mark">{mark}</span> <b>{safe(name)}</b> <span class="said">{safe(said)}</span>'
    return f'<details class="{kind}"><summary>{head}</summary><div>{content}</div></details>'


def _pretty(value: dict[str, Any]) -> str:
    if len(value) == 1 and isinstance(only := next(iter(value.values())), str):
        return only
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()


def _cut(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS:
        return text
    half = SHOWN_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - SHOWN_CHARACTERS:,} characters are left out here …\n{text[-half:]}"
