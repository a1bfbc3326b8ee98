"""Shares a session as one self-contained page: it loads nothing, runs nothing, and reads well."""

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from outrider.sessions.records import StoredSession, Transcript
from outrider.types.codec import AnyPart
from outrider.types.messages import Message
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
from outrider.types.usage import Usage

_FENCE = re.compile(r"^(`{3,}|~{3,})[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:^\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`|\*\*([^*\n]+)\*\*|\b(https?://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)\]])")
_HEADING = re.compile(r"(#{1,6})[ \t]+(.+)")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,3}[.)])[ \t]+(.+)")
_DIFF = re.compile(r"^(?:diff --git |--- .*\n\+\+\+ |@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@)", re.MULTILINE)
# What would not be seen, or would make the rest be read in another order than it stands.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


def visible(text: str) -> str:
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n"))


def safe(text: str) -> str:
    return escape(visible(text), quote=True)


def prose(text: str) -> str:
    """What people and models write: paragraphs, headings, lists, code."""
    pieces: list[str] = []
    position = 0
    text = text.replace("\r\n", "\n")
    for fence in _FENCE.finditer(text):
        pieces.append(_blocks(text[position : fence.start()]))
        pieces.append(code(fence[3], fence[2]))
        position = fence.end()
    pieces.append(_blocks(text[position:]))
    return "".join(pieces)


def code(text: str, language: str = "") -> str:
    """Code or output; a diff is coloured."""
    if language in ("diff", "patch") or _DIFF.search(text):
        return f'<pre class="diff">{"".join(map(_diff_line, text.splitlines()))}</pre>'
    return f"<pre>{safe(text)}</pre>"


def _diff_line(line: str) -> str:
    if line.startswith(("+++", "---", "diff ", "index ")):
        kind = "file"
    else:
        kind = {"+": "added", "-": "removed", "@": "place"}.get(line[:1], "same")
    return f'<span class="{kind}">{safe(line) or " "}</span>\n'


def _blocks(text: str) -> str:
    return "".join(_block(block) for block in re.split(r"\n[ \t]*\n", text) if block.strip())


def _block(block: str) -> str:
    """One paragraph; lines that are headings or list items stand for themselves."""
    pieces: list[str] = []
    lines: list[str] = []

    def end_paragraph() -> None:
        if lines:
            pieces.append(f"<p>{'<br>'.join(map(_inline, lines))}</p>")
            lines.clear()

    for line in block.strip("\n").split("\n"):
        if heading := _HEADING.fullmatch(line.strip()):
            end_paragraph()
            pieces.append(f"<h4>{_inline(heading[2])}</h4>")
        elif item := _ITEM.fullmatch(line):
            end_paragraph()
            pieces.append(f'<p class="item">{_inline(item[1])}</p>')
        else:
            lines.append(line)
    end_paragraph()
    return "".join(pieces)


def _inline(text: str) -> str:
    pieces: list[str] = []
    position = 0
    for found in _INLINE.finditer(text):
        pieces.append(safe(text[position : found.start()]))
        if found[1] is not None:
            pieces.append(f"<code>{safe(found[1])}</code>")
        elif found[2] is not None:
            pieces.append(f"<strong>{safe(found[2])}</strong>")
        else:
            pieces.append(f'<a href="{safe(found[3])}" rel="noreferrer noopener">{safe(found[3])}</a>')
        position = found.end()
    pieces.append(safe(text[position:]))
    return "".join(pieces)


_WIDTH = 1000
_LANES = {"user": 4, "model": 4, "tool": 31, "tool failed": 31}


class Bar(msgspec.Struct, frozen=True):
    kind: str
    name: str
    start: int
    end: int


def bars_of(messages: Sequence[Message]) -> list[Bar]:
    return [bar for message in messages for bar in _bars(message)]


def _bars(message: Message) -> Iterator[Bar]:
    if message.time is not None:
        kind = "user" if message.role == "user" else "model"
        created = message.time.created
        yield Bar(kind, message.role, created, max(created, message.time.completed or 0))
    for part in message.parts:
        match part:
            case ToolPart(state=ToolCompleted(time=time)):
                yield Bar("tool", part.tool, time.start, max(time.start, time.end))
            case ToolPart(state=ToolError(time=time)):
                yield Bar("tool failed", part.tool, time.start, max(time.start, time.end))
            case _:
                pass


def timeline(bars: Sequence[Bar]) -> str:
    if not bars:
        return ""
    start, end = min(bar.start for bar in bars), max(bar.end for bar in bars)
    scale = _WIDTH / max(1, end - start)
    drawn = "".join(_draw(bar, start, scale) for bar in bars)
    line = f'<line x1="0" y1="27" x2="{_WIDTH}" y2="27"></line>'
    drawing = f'<svg viewBox="0 0 {_WIDTH} 54" preserveAspectRatio="none" role="img">{line}{drawn}</svg>'
    ends = "".join(f"<span>{safe(moment(at, '%H:%M:%S'))}</span>" for at in (start, end))
    return f'<h2>Timeline</h2><div class="timeline">{drawing}<p>{ends}</p></div>'


def _draw(bar: Bar, start: int, scale: float) -> str:
    width = min(float(_WIDTH), max(3.0, (bar.end - bar.start) * scale))
    x = min(_WIDTH - width, (bar.start - start) * scale)
    label = safe(f"{bar.name}, {duration(bar.end - bar.start)}")
    shape = f'x="{x:.1f}" y="{_LANES[bar.kind]}" width="{width:.1f}" height="19" rx="2"'
    return f'<rect class="{bar.kind}" {shape}><title>{label}</title></rect>'


def moment(at: int, form: str) -> str:
    try:
        return datetime.fromtimestamp(at / 1000, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return ""


def duration(milliseconds: int) -> str:
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    minutes, seconds = divmod(milliseconds // 1000, 60)
    return f"{minutes} m {seconds:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} m"


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


MESSAGES = 10_000
_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title><style>{style}</style></head>
<body><header><h1>{title}</h1><p class="when">{when}</p></header>
<dl class="tiles">{tiles}</dl>{timeline}<main>{notes}{conversation}</main></body></html>
"""


def share(transcript: Transcript) -> str:
    """The page. Nothing in it comes from elsewhere, and no script is allowed to run."""
    session, messages = transcript.session, transcript.messages[:MESSAGES]
    return _TEMPLATE.format(
        policy=safe(_policy()),
        title=safe(session.title or "A session"),
        style=_style(),
        when=safe(_when(session, transcript.messages)),
        tiles="".join(_tiles(transcript.messages)),
        timeline=timeline(bars_of(messages)),
        notes="".join(f'<p class="note">{safe(note)}</p>' for note in _notes(transcript)),
        conversation="".join(_article(message) for message in messages),
    )


@cache
def _style() -> str:
    return files("outrider.sessions").joinpath("assets", "share.css").read_text(encoding="utf-8").strip()


@cache
def _policy() -> str:
    digest = base64.b64encode(hashlib.sha256(_style().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


def _article(message: Message) -> str:
    who = "You" if message.role == "user" else message.agent or "Assistant"
    model = f"{message.model.provider}/{message.model.model}" if message.model else ""
    facts = [_clock(message), model, _usage(message)]
    head = f"<b>{safe(who)}</b>" + "".join(f"<span>{safe(fact)}</span>" for fact in facts if fact)
    body = "".join(map(part_html, message.parts))
    if message.error is not None:
        body += f'<p class="error">{safe(message.error.type)}: {safe(message.error.message)}</p>'
    return f'<article class="{message.role}"><header>{head}</header>{body}</article>' if body else ""


def _clock(message: Message) -> str:
    return moment(message.time.created, "%H:%M:%S") if message.time else ""


def _usage(message: Message) -> str:
    if message.role != "assistant" or not message.tokens.total:
        return ""
    cost = f", ${message.cost:.4f}" if message.cost is not None else ""
    return f"{message.tokens.prompt:,} tokens in, {message.tokens.output + message.tokens.reasoning:,} out{cost}"


def _when(session: StoredSession, messages: Sequence[Message]) -> str:
    agents = sorted({message.agent for message in messages if message.agent} or {session.agent} - {""})
    words = [moment(session.time.created, "%Y-%m-%d %H:%M UTC") if session.time else "", session.mode, *agents]
    return " · ".join(word for word in words if word)


def _tiles(messages: Sequence[Message]) -> Iterator[str]:
    usage, unpriced = Usage(), 0
    for message in messages:
        if message.role == "assistant" and message.tokens.total:
            unpriced += message.cost is None
            usage = usage.plus(message.tokens, message.cost or Decimal(0))
    calls = [part for message in messages for part in message.parts if isinstance(part, ToolPart)]
    failed = sum(part.state.status == "error" for part in calls)
    if bars := bars_of(messages):
        yield _tile("time", duration(max(bar.end for bar in bars) - min(bar.start for bar in bars)))
    yield _tile("messages", f"{len(messages):,}")
    yield _tile("tokens in", f"{usage.tokens.prompt:,}")
    yield _tile("tokens out", f"{usage.tokens.output + usage.tokens.reasoning:,}")
    cost = f"${usage.total_cost:.4f}" if usage.total_cost or not unpriced else "unknown"
    yield _tile("cost", cost, f"{unpriced:,} answers have no known price" if unpriced else "")
    yield _tile("tool calls", f"{len(calls):,}", f"{failed:,} failed" if failed else "")


def _tile(label: str, value: str, note: str = "") -> str:
    small = f"<small>{safe(note)}</small>" if note else ""
    return f"<div><dt>{label}</dt><dd>{safe(value)}{small}</dd></div>"


def _notes(transcript: Transcript) -> Iterator[str]:
    if len(transcript.messages) > MESSAGES:
        yield f"Only the first {MESSAGES:,} messages are on this page."
    if not transcript.first:
        yield "Earlier messages are not on this page."
    if transcript.damaged:
        yield f"{len(transcript.damaged)} damaged rows could not be shown."
