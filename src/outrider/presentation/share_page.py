"""Renders a session as one self-contained HTML page without scripts and external resources."""

import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, assert_never

import msgspec

from outrider.presentation.diffs import DiffRow, FileDiff, diff_rows, text_rows
from outrider.presentation.formats import (
    format_cost,
    format_count,
    format_duration,
    format_milliseconds,
    format_token_usage,
    format_tokens,
    format_utc_time,
    shorten,
)
from outrider.presentation.html_page import escape_invisible, escape_text, render_page, render_tile
from outrider.presentation.items import (
    CommandItem,
    FileItem,
    Notice,
    NoticeItem,
    ReasoningItem,
    TextItem,
    ToolCallItem,
    TranscriptItem,
    UserItem,
    damage_notices,
    file_summary,
    message_items,
)
from outrider.presentation.tool_calls import (
    TODO_MARKS,
    call_changes,
    call_input,
    call_mark,
    call_status,
    call_todos,
    final_answer,
    input_text,
    status_text,
    subject_line,
)
from outrider.sessions.records import SessionTranscript, StoredSession
from outrider.types.messages import Message
from outrider.types.parts import FilePart, ToolPart, Usage, is_withdrawn
from outrider.types.tool_state import TodoItem, ToolCompleted, ToolError, ToolPending, ToolRunning

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


SHOWN_CHARACTERS = 100_000
"""Characters of one text that are shown; the middle of a longer one is left out."""
_ALLOWED_LINKS = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_BARE_URL = re.compile(r"\bhttps?://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)\]]")
_DIFF = re.compile(r"^(?:diff --git |--- .*\n\+\+\+ |@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@)", re.MULTILINE)
_FIRST_HEADING = 4  # the levels above belong to the page
_LAST_HEADING = 6


def cut_text(text: str) -> str:
    """Returns the text without its middle if it is longer than SHOWN_CHARACTERS."""
    if len(text) <= SHOWN_CHARACTERS:
        return text
    half = SHOWN_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - SHOWN_CHARACTERS:,} characters are left out here …\n{text[-half:]}"


def render_markdown(text: str) -> str:
    """Renders CommonMark with tables and strikethrough. HTML in the text is shown as text."""
    parser = _parser()
    tokens = parser.parse(cut_text(text))
    for token in tokens:
        _adapt_block(token)
    # Entities such as `&#x202e;` are decoded by the parser, so invisible characters are escaped in the result.
    return escape_invisible(parser.renderer.render(tokens, parser.options, {}))


def render_code(text: str, language: str = "") -> str:
    """Renders code or tool output; a diff gets one class per line type."""
    text = cut_text(text)
    if language in ("diff", "patch") or _DIFF.search(text):
        return _render_rows(text_rows(text))
    return f"<pre>{escape_text(text)}</pre>"


def render_diffs(files: Sequence[FileDiff]) -> str:
    """Renders the changes of files, up to SHOWN_CHARACTERS."""
    return _render_rows(diff_rows(files, SHOWN_CHARACTERS))


def _render_rows(rows: Iterable[DiffRow]) -> str:
    lines = (f'<span class="{row.kind}">{escape_text(row.text) or " "}</span>\n' for row in rows)
    return f'<pre class="diff">{"".join(lines)}</pre>'


@cache
def _parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "xhtmlOut": False})
    parser.enable(["table", "strikethrough"]).disable("image")
    parser.validateLink = _is_allowed_link
    return parser


def _is_allowed_link(url: str) -> bool:
    return _ALLOWED_LINKS.match(url.strip()) is not None


def _adapt_block(token: "Token") -> None:
    """Changes a block to what the page allows: smaller headings, alignment by class, code as `render_code` shows it."""
    match token.type:
        case "heading_open" | "heading_close":
            token.tag = f"h{min(int(token.tag[1:]) + _FIRST_HEADING - 1, _LAST_HEADING)}"
        case "th_open" | "td_open":
            align = str(token.attrs.pop("style", "")).rpartition(":")[2]
            if align in ("right", "center"):
                token.attrSet("class", align)
        case "fence" | "code_block":
            token.content = render_code(token.content, token.info.strip().partition(" ")[0])
            token.type = "html_block"  # rendered without escaping
        case "inline":
            token.children = list(_adapt_inline(token.children or []))
        case _:
            return  # rendered unchanged: the parser does not pass HTML of the text through


def _adapt_inline(tokens: "Sequence[Token]") -> "Iterator[Token]":
    """Yields the tokens of a paragraph with bare addresses as links."""
    in_link = False
    for token in tokens:
        if token.type in ("link_open", "link_close"):
            in_link = token.type == "link_open"
            if in_link:
                token.attrSet("rel", "noreferrer noopener")
        if token.type == "text" and not in_link:
            yield from _link_addresses(token)
        else:
            yield token


def _link_addresses(token: "Token") -> "Iterator[Token]":
    from markdown_it.token import Token

    position = 0
    for match in _BARE_URL.finditer(token.content):
        yield Token("text", "", 0, content=token.content[position : match.start()])
        yield Token("link_open", "a", 1, attrs={"href": match[0], "rel": "noreferrer noopener"})
        yield Token("text", "", 0, content=match[0])
        yield Token("link_close", "a", -1)
        position = match.end()
    yield Token("text", "", 0, content=token.content[position:])


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
        if isinstance(part, ToolPart) and isinstance(part.state, ToolCompleted | ToolError) and not is_withdrawn(part):
            kind, time = "tool failed" if isinstance(part.state, ToolError) else "tool", part.state.time
            yield TimelineBar(kind, part.tool, time.start, max(time.start, time.end))


def render_timeline(bars: Sequence[TimelineBar]) -> str:
    if not bars:
        return ""
    start, end = min(bar.start for bar in bars), max(bar.end for bar in bars)
    scale = _WIDTH / max(1, end - start)
    drawn = "".join(_render_bar(bar, start, scale) for bar in bars)
    line = f'<line x1="0" y1="27" x2="{_WIDTH}" y2="27"></line>'
    drawing = f'<svg viewBox="0 0 {_WIDTH} 54" preserveAspectRatio="none" role="img">{line}{drawn}</svg>'
    ends = "".join(f"<span>{escape_text(format_utc_time(time, '%H:%M:%S'))}</span>" for time in (start, end))
    return f'<h2>Timeline</h2><div class="timeline">{drawing}<p>{ends}</p></div>'


def _render_bar(bar: TimelineBar, start: int, scale: float) -> str:
    width = min(float(_WIDTH), max(3.0, (bar.end - bar.start) * scale))
    x = min(_WIDTH - width, (bar.start - start) * scale)
    label = escape_text(f"{bar.name}, {format_milliseconds(bar.end - bar.start)}")
    shape = f'x="{x:.1f}" y="{_LANES[bar.kind]}" width="{width:.1f}" height="19" rx="2"'
    return f'<rect class="{bar.kind}" {shape}><title>{label}</title></rect>'


_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+")
_SUBJECT_LENGTH = 120


def _render_or_strike_out(item: TranscriptItem) -> str:
    return f'<del class="withdrawn">{render_item(item)}</del>' if item.withdrawn else render_item(item)


def render_item(item: TranscriptItem) -> str:
    match item:
        case UserItem():
            return render_markdown(item.text) + "".join(map(_render_file, item.files))
        case ReasoningItem():
            duration = format_duration(item.seconds) if item.seconds is not None else ""
            return _render_details("reasoning", "reasoning", "", duration, render_markdown(item.text))
        case TextItem():
            return render_markdown(item.text)
        case ToolCallItem():
            answer = final_answer(item.part)
            return render_markdown(answer) if answer else _render_call(item.part)
        case FileItem():
            return _render_file(item.part)
        case NoticeItem():
            return _render_notice(item.notice)
        case CommandItem():
            return _render_details("call done", "$", "", shorten(item.command, 1000), render_code(item.output))
        case _:
            assert_never(item)


def _render_call(part: ToolPart) -> str:
    label, output = _call_result(part)
    content = "".join(_call_sections(part))
    if label:
        content += f"<h3>{escape_text(label)}</h3>{render_code(output)}"
    mark = call_mark(part)
    subject = subject_line(part.tool, call_input(part), limit=_SUBJECT_LENGTH)
    facts = " · ".join(filter(None, (subject, status_text(call_status(part)))))
    return _render_details(f"call {part.display_status}", part.tool, mark, facts, content)


def _call_result(part: ToolPart) -> tuple[str, str]:
    """Returns the label and text of the result; empty before a call has ended."""
    match part.state:
        case ToolCompleted(output=output):
            return "output", output
        case ToolError(error=error, reason=reason):
            return reason.replace("_", " "), error
        case ToolPending() | ToolRunning():
            return "", ""
        case _:
            assert_never(part.state)


def _call_sections(part: ToolPart) -> Iterator[str]:
    """Yields input and changes of a call. An input that only describes changes or tasks is not repeated."""
    changes, todos = call_changes(part), call_todos(part)
    are_applied = isinstance(part.state, ToolCompleted) and changes
    if todos is None and (text := input_text(part.tool, call_input(part))):
        yield f"<h3>input</h3>{render_code(text)}"
    if todos:
        yield f'<h3>tasks</h3><ul class="todos">{"".join(map(_render_todo, todos))}</ul>'
    if changes:
        yield f"<h3>{'changes' if are_applied else 'planned changes'}</h3>{render_diffs(changes)}"


def _render_todo(todo: TodoItem) -> str:
    return f'<li class="{todo.status}">{TODO_MARKS[todo.status][0]} {escape_text(todo.content)}</li>'


def _render_file(part: FilePart) -> str:
    if part.mime.startswith("image/") and _IMAGE.fullmatch(part.url):
        return f'<p><img src="{escape_text(part.url)}" alt="{escape_text(part.filename or part.mime)}"></p>'
    return f'<p class="marker">file: {escape_text(file_summary(part))}</p>'


def _render_notice(notice: Notice) -> str:
    if notice.body:
        return _render_details("note", notice.topic, "", notice.text, render_markdown(notice.body))
    kind = "error" if notice.level == "error" else "marker"
    return f'<p class="{kind}">{escape_text(notice.text)}</p>'


def _render_details(kind: str, name: str, mark: str, summary: str, content: str) -> str:
    head = (
        f'<span class="mark">{mark}</span> <b>{escape_text(name)}</b> <span class="brief">{escape_text(summary)}</span>'
    )
    return f'<details class="{kind}"><summary>{head}</summary><div>{content}</div></details>'


MAX_MESSAGES = 10_000
_BODY = """<header><h1>{title}</h1><p class="when">{when}</p></header>
<dl class="tiles">{tiles}</dl>{timeline}<main>{notes}{conversation}</main>"""


def render_share_page(transcript: SessionTranscript) -> str:
    """Returns the page as a string. Its content security policy forbids scripts and external resources."""
    session, messages = transcript.session, transcript.messages[:MAX_MESSAGES]
    title = session.title or "A session"
    body = _BODY.format(
        title=escape_text(title),
        when=escape_text(_describe_session(session, transcript.messages)),
        tiles="".join(_render_tiles(transcript.messages)),
        timeline=render_timeline(timeline_bars(messages)),
        notes="".join(f'<p class="note">{escape_text(note)}</p>' for note in _transcript_notes(transcript)),
        conversation="".join(_render_message(message) for message in messages),
    )
    return render_page(title, _load_style(), body, images="data:")


@cache
def _load_style() -> str:
    return files("outrider.presentation").joinpath("assets", "share.css").read_text(encoding="utf-8").strip()


def _render_message(message: Message) -> str:
    author = "You" if message.role == "user" else message.agent or "Assistant"
    model = str(message.model) if message.model else ""
    facts = [_format_clock(message), model, _format_usage(message)]
    head = f"<b>{escape_text(author)}</b>" + "".join(f"<span>{escape_text(fact)}</span>" for fact in facts if fact)
    body = "".join(map(_render_or_strike_out, message_items(message)))
    return f'<article class="{message.role}"><header>{head}</header>{body}</article>' if body else ""


def _format_clock(message: Message) -> str:
    return format_utc_time(message.time.created, "%H:%M:%S") if message.time else ""


def _format_usage(message: Message) -> str:
    if message.role != "assistant" or not message.tokens.total:
        return ""
    cost = f", {format_cost(message.cost)}" if message.cost is not None else ""
    return f"{format_token_usage(message.tokens)}{cost}"


def _describe_session(session: StoredSession, messages: Sequence[Message]) -> str:
    agents = sorted({message.agent for message in messages if message.agent} or {session.agent} - {""})
    facts = [format_utc_time(session.time.created) if session.time else "", session.mode, *agents]
    return " · ".join(fact for fact in facts if fact)


def _render_tiles(messages: Sequence[Message]) -> Iterator[str]:
    usage, unpriced = Usage(), 0
    for message in messages:
        if message.role == "assistant" and message.tokens.total:
            unpriced += message.cost is None
            usage = usage.plus(message.tokens, message.cost or Decimal(0))
    calls = [call for message in messages for call in message.get_calls()]
    failed = sum(part.state.status == "error" for part in calls)
    if bars := timeline_bars(messages):
        yield render_tile("time", format_milliseconds(max(bar.end for bar in bars) - min(bar.start for bar in bars)))
    yield render_tile("messages", f"{len(messages):,}")
    yield render_tile("tokens in", format_tokens(usage.tokens.prompt))
    yield render_tile("tokens out", format_tokens(usage.tokens.output + usage.tokens.reasoning))
    cost = format_cost(usage.total_cost if usage.total_cost or not unpriced else None)
    note = f"without {format_count(unpriced, 'answer')} of unknown price" if unpriced else ""
    yield render_tile("cost", cost, note)
    yield render_tile("tool calls", f"{len(calls):,}", f"{failed:,} failed" if failed else "")


def _transcript_notes(transcript: SessionTranscript) -> Iterator[str]:
    if len(transcript.messages) > MAX_MESSAGES:
        yield f"Only the first {MAX_MESSAGES:,} messages are on this page."
    if not transcript.first:
        yield "Earlier messages are not on this page."
    yield from (notice.text for notice in damage_notices(transcript))
