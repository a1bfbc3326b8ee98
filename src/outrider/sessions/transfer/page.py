"""Shares a session as one self-contained page: it loads nothing, runs nothing, and reads well."""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cache
from importlib.resources import files

from outrider.sessions.records import StoredSession, Transcript
from outrider.sessions.transfer.markup import safe
from outrider.sessions.transfer.parts import part_html
from outrider.sessions.transfer.timeline import bars_of, duration, moment, timeline
from outrider.types.messages import Message
from outrider.types.parts import ToolPart
from outrider.types.usage import Usage

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
    return files("outrider.sessions.transfer").joinpath("assets", "share.css").read_text(encoding="utf-8").strip()


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
