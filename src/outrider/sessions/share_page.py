"""Renders a session as one self-contained HTML page without scripts and external resources."""

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

from outrider.sessions.records import SessionTranscript, StoredSession
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
# Control, zero-width and bidirectional characters: invisible, or they change the displayed order of a text.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


def escape_invisible(text: str) -> str:
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n"))


def escape_text(text: str) -> str:
    return escape(escape_invisible(text), quote=True)


def render_markdown(text: str) -> str:
    """Renders a Markdown subset as HTML: paragraphs, headings, lists, code blocks, links."""
    fragments: list[str] = []
    position = 0
    text = text.replace("\r\n", "\n")
    for fence in _FENCE.finditer(text):
        fragments.append(_render_blocks(text[position : fence.start()]))
        fragments.append(render_code(fence[3], fence[2]))
        position = fence.end()
    fragments.append(_render_blocks(text[position:]))
    return "".join(fragments)


def render_code(text: str, language: str = "") -> str:
    """Renders code or tool output; a diff gets one class per line type."""
    if language in ("diff", "patch") or _DIFF.search(text):
        return f'<pre class="diff">{"".join(map(_diff_line, text.splitlines()))}</pre>'
    return f"<pre>{escape_text(text)}</pre>"


def _diff_line(line: str) -> str:
    if line.startswith(("+++", "---", "diff ", "index ")):
        kind = "file"
    else:
        kind = {"+": "added", "-": "removed", "@": "place"}.get(line[:1], "same")
    return f'<span class="{kind}">{escape_text(line) or " "}</span>\n'


def _render_blocks(text: str) -> str:
    return "".join(_render_block(block) for block in re.split(r"\n[ \t]*\n", text) if block.strip())


def _render_block(block: str) -> str:
    """Renders one paragraph; headings and list items become separate elements."""
    fragments: list[str] = []
    lines: list[str] = []

    def end_paragraph() -> None:
        if lines:
            fragments.append(f"<p>{'<br>'.join(map(_render_inline, lines))}</p>")
            lines.clear()

    for line in block.strip("\n").split("\n"):
        if heading := _HEADING.fullmatch(line.strip()):
            end_paragraph()
            fragments.append(f"<h4>{_render_inline(heading[2])}</h4>")
        elif item := _ITEM.fullmatch(line):
            end_paragraph()
            fragments.append(f'<p class="item">{_render_inline(item[1])}</p>')
        else:
            lines.append(line)
    end_paragraph()
    return "".join(fragments)


def _render_inline(text: str) -> str:
    fragments: list[str] = []
    position = 0
    for found in _INLINE.finditer(text):
        fragments.append(escape_text(text[position : found.start()]))
        if found[1] is not None:
            fragments.append(f"<code>{escape_text(found[1])}</code>")
        elif found[2] is not None:
            fragments.append(f"<strong>{escape_text(found[2])}</strong>")
        else:
            fragments.append(f'<a href="{escape_text(found[3])}" rel="noreferrer noopener">{escape_text(found[3])}</a>')
        position = found.end()
    fragments.append(escape_text(text[position:]))
    return "".join(fragments)


_WIDTH = 1000
_LANES = {"user": 4, "model": 4, "tool": 31, "tool failed": 31}


class TimelineBar(msgspec.Struct, frozen=True):
    kind: str
    name: str
    start: int
    end: int


def timeline_bars(messages: Sequence[Message]) -> list[TimelineBar]:
    return [bar for message in messages for bar in _message_bars(message)]


def _message_bars(message: Message) -> Iterator[TimelineBar]:
    if message.time is not None:
        kind = "user" if message.role == "user" else "model"
        created = message.time.created
        yield TimelineBar(kind, message.role, created, max(created, message.time.completed or 0))
    for part in message.parts:
        match part:
            case ToolPart(state=ToolCompleted(time=time)):
                yield TimelineBar("tool", part.tool, time.start, max(time.start, time.end))
            case ToolPart(state=ToolError(time=time)):
                yield TimelineBar("tool failed", part.tool, time.start, max(time.start, time.end))
            case _:
                pass


def render_timeline(bars: Sequence[TimelineBar]) -> str:
    if not bars:
        return ""
    start, end = min(bar.start for bar in bars), max(bar.end for bar in bars)
    scale = _WIDTH / max(1, end - start)
    drawn = "".join(_render_bar(bar, start, scale) for bar in bars)
    line = f'<line x1="0" y1="27" x2="{_WIDTH}" y2="27"></line>'
    drawing = f'<svg viewBox="0 0 {_WIDTH} 54" preserveAspectRatio="none" role="img">{line}{drawn}</svg>'
    ends = "".join(f"<span>{escape_text(format_time(at, '%H:%M:%S'))}</span>" for at in (start, end))
    return f'<h2>Timeline</h2><div class="timeline">{drawing}<p>{ends}</p></div>'


def _render_bar(bar: TimelineBar, start: int, scale: float) -> str:
    width = min(float(_WIDTH), max(3.0, (bar.end - bar.start) * scale))
    x = min(_WIDTH - width, (bar.start - start) * scale)
    label = escape_text(f"{bar.name}, {format_duration(bar.end - bar.start)}")
    shape = f'x="{x:.1f}" y="{_LANES[bar.kind]}" width="{width:.1f}" height="19" rx="2"'
    return f'<rect class="{bar.kind}" {shape}><title>{label}</title></rect>'


def format_time(at: int, form: str) -> str:
    try:
        return datetime.fromtimestamp(at / 1000, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return ""


def format_duration(milliseconds: int) -> str:
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    minutes, seconds = divmod(milliseconds // 1000, 60)
    return f"{minutes} m {seconds:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} m"


SHOWN_CHARACTERS = 100_000
_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+")
_HIDDEN_PARTS = frozenset({"step-start", "step-finish", "snapshot"})


def render_part(part: AnyPart) -> str:
    match part:
        case TextPart(ignored=True) | TextPart(synthetic=True):
            return _render_details("note", "note", "", "for the model", render_markdown(_truncate_text(part.text)))
        case TextPart():
            return render_markdown(_truncate_text(part.text))
        case ReasoningPart():
            return (
                _render_details("reasoning", "reasoning", "", "", render_markdown(_truncate_text(part.text)))
                if part.text
                else ""
            )
        case ToolPart():
            return _render_call(part)
        case FilePart():
            return _render_file(part)
        case _:
            return _render_other_part(part)


def _render_call(part: ToolPart) -> str:
    state = part.state
    content = f"<h3>input</h3>{render_code(_truncate_text(_format_input(state.input)))}" if state.input else ""
    match state:
        case ToolCompleted(output=output):
            kind, mark = "done", "✓"
            content += f"<h3>output</h3>{render_code(_truncate_text(output))}"
        case ToolError(error=error, reason=reason):
            kind, mark = "failed", "✗"
            content += f"<h3>{escape_text(reason)}</h3>{render_code(_truncate_text(error))}"
        case _:
            kind, mark = "open", "…"
    diff = state.metadata.get("diff") if isinstance(state, ToolCompleted) else None
    if isinstance(diff, str):
        content += f"<h3>changes</h3>{render_code(_truncate_text(diff), 'diff')}"
    return _render_details(f"call {kind}", part.tool, mark, _summarize_call(state), content)


def _summarize_call(state: ToolState) -> str:
    """Returns the title or first argument of a call, and its duration."""
    title = getattr(state, "title", "") or next((str(value) for value in state.input.values() if value), "")
    took = (
        f" · {format_duration(state.time.end - state.time.start)}"
        if isinstance(state, ToolCompleted | ToolError)
        else ""
    )
    return " ".join(title.split())[:120] + took


def _render_file(part: FilePart) -> str:
    name = part.filename or part.mime
    if part.mime.startswith("image/") and _IMAGE.fullmatch(part.url):
        return f'<p><img src="{escape_text(part.url)}" alt="{escape_text(name)}"></p>'
    return f'<p class="marker">file: {escape_text(name)} ({escape_text(part.mime)})</p>'


def _render_other_part(part: AnyPart) -> str:
    match part:
        case CompactionPart():
            return _render_details(
                "note",
                "compaction",
                "",
                "what came before was summarised",
                render_markdown(_truncate_text(part.summary)),
            )
        case SubtaskPart():
            return _render_details(
                "note", part.agent, "", part.description, render_markdown(_truncate_text(part.prompt))
            )
        case PatchPart():
            return f'<p class="marker">changed: {escape_text(", ".join(part.files))}</p>'
        case RetryPart():
            return f'<p class="marker">attempt {part.attempt} failed: {escape_text(part.error)}</p>'
        case _ if part.type in _HIDDEN_PARTS:
            return ""
        case _:
            return _render_details(
                "note", part.type or "part", "", "", render_code(_truncate_text(_format_input(part.to_dict())))
            )


def _render_details(kind: str, name: str, mark: str, summary: str, content: str) -> str:
    head = (
        f'<span class="mark">{mark}</span> <b>{escape_text(name)}</b> <span class="said">{escape_text(summary)}</span>'
    )
    return f'<details class="{kind}"><summary>{head}</summary><div>{content}</div></details>'


def _format_input(value: dict[str, Any]) -> str:
    if len(value) == 1 and isinstance(only := next(iter(value.values())), str):
        return only
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()


def _truncate_text(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS:
        return text
    half = SHOWN_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - SHOWN_CHARACTERS:,} characters are left out here …\n{text[-half:]}"


MAX_MESSAGES = 10_000
_TEMPLATE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title><style>{style}</style></head>
<body><header><h1>{title}</h1><p class="when">{when}</p></header>
<dl class="tiles">{tiles}</dl>{timeline}<main>{notes}{conversation}</main></body></html>
"""


def render_share_page(transcript: SessionTranscript) -> str:
    """Returns the page as a string. Its content security policy forbids scripts and external resources."""
    session, messages = transcript.session, transcript.messages[:MAX_MESSAGES]
    return _TEMPLATE.format(
        policy=escape_text(_content_policy()),
        title=escape_text(session.title or "A session"),
        style=_load_style(),
        when=escape_text(_describe_session(session, transcript.messages)),
        tiles="".join(_render_tiles(transcript.messages)),
        timeline=render_timeline(timeline_bars(messages)),
        notes="".join(f'<p class="note">{escape_text(note)}</p>' for note in _transcript_notes(transcript)),
        conversation="".join(_render_message(message) for message in messages),
    )


@cache
def _load_style() -> str:
    return files("outrider.sessions").joinpath("assets", "share.css").read_text(encoding="utf-8").strip()


@cache
def _content_policy() -> str:
    digest = base64.b64encode(hashlib.sha256(_load_style().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"


def _render_message(message: Message) -> str:
    author = "You" if message.role == "user" else message.agent or "Assistant"
    model = f"{message.model.provider}/{message.model.model}" if message.model else ""
    facts = [_format_clock(message), model, _format_usage(message)]
    head = f"<b>{escape_text(author)}</b>" + "".join(f"<span>{escape_text(fact)}</span>" for fact in facts if fact)
    body = "".join(map(render_part, message.parts))
    if message.error is not None:
        body += f'<p class="error">{escape_text(message.error.type)}: {escape_text(message.error.message)}</p>'
    return f'<article class="{message.role}"><header>{head}</header>{body}</article>' if body else ""


def _format_clock(message: Message) -> str:
    return format_time(message.time.created, "%H:%M:%S") if message.time else ""


def _format_usage(message: Message) -> str:
    if message.role != "assistant" or not message.tokens.total:
        return ""
    cost = f", ${message.cost:.4f}" if message.cost is not None else ""
    return f"{message.tokens.prompt:,} tokens in, {message.tokens.output + message.tokens.reasoning:,} out{cost}"


def _describe_session(session: StoredSession, messages: Sequence[Message]) -> str:
    agents = sorted({message.agent for message in messages if message.agent} or {session.agent} - {""})
    facts = [format_time(session.time.created, "%Y-%m-%d %H:%M UTC") if session.time else "", session.mode, *agents]
    return " · ".join(word for word in facts if word)


def _render_tiles(messages: Sequence[Message]) -> Iterator[str]:
    usage, unpriced = Usage(), 0
    for message in messages:
        if message.role == "assistant" and message.tokens.total:
            unpriced += message.cost is None
            usage = usage.plus(message.tokens, message.cost or Decimal(0))
    calls = [part for message in messages for part in message.parts if isinstance(part, ToolPart)]
    failed = sum(part.state.status == "error" for part in calls)
    if bars := timeline_bars(messages):
        yield _render_tile("time", format_duration(max(bar.end for bar in bars) - min(bar.start for bar in bars)))
    yield _render_tile("messages", f"{len(messages):,}")
    yield _render_tile("tokens in", f"{usage.tokens.prompt:,}")
    yield _render_tile("tokens out", f"{usage.tokens.output + usage.tokens.reasoning:,}")
    cost = f"${usage.total_cost:.4f}" if usage.total_cost or not unpriced else "unknown"
    yield _render_tile("cost", cost, f"{unpriced:,} answers have no known price" if unpriced else "")
    yield _render_tile("tool calls", f"{len(calls):,}", f"{failed:,} failed" if failed else "")


def _render_tile(label: str, value: str, note: str = "") -> str:
    small = f"<small>{escape_text(note)}</small>" if note else ""
    return f"<div><dt>{label}</dt><dd>{escape_text(value)}{small}</dd></div>"


def _transcript_notes(transcript: SessionTranscript) -> Iterator[str]:
    if len(transcript.messages) > MAX_MESSAGES:
        yield f"Only the first {MAX_MESSAGES:,} messages are on this page."
    if not transcript.first:
        yield "Earlier messages are not on this page."
    if transcript.damaged:
        yield f"{len(transcript.damaged)} damaged rows could not be shown."
