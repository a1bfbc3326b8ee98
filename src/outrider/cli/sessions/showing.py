"""A conversation as text: who said what, which tools were called, and how that ended."""

from argparse import Namespace
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from outrider.app.archive.archive import Archive, Transcript
from outrider.app.archive.names import short_id
from outrider.cli import exits
from outrider.cli.console import Console
from outrider.cli.store import with_archive
from outrider.cli.tables import cost_text, cut, tokens_text
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
    tool_result,
)
from outrider.types.tool_state import ToolError
from outrider.types.usage import Usage

Line = tuple[str, str]
"""A line and its style."""

OUTPUT_LINES = 12


def show(arguments: Namespace) -> int:
    async def work(archive: Archive) -> Transcript:
        return await archive.load((await archive.find(arguments.session)).id, last=arguments.last)

    console, transcript = Console(), with_archive(work)
    if arguments.json:
        for message in transcript.messages:
            console.print(msgspec.json.encode(message.to_dict()).decode())
        return exits.DONE
    for text, style in _lines(transcript, console.width, full=arguments.full):
        console.print(text, style)
    return exits.DONE


def _lines(transcript: Transcript, width: int, *, full: bool) -> Iterator[Line]:
    session = transcript.session
    yield cut(session.title or "(no title)", width), "bold"
    yield f"{session.id}  {session.mode} mode  {session.workspace_directory}", "dim"
    if not transcript.first:
        yield "(earlier messages are left out)", "dim"
    usage = Usage()
    for message in transcript.messages:
        usage = usage.plus(message.tokens, message.cost) if message.role == "assistant" else usage
        yield "", ""
        yield _heading(message), "cyan" if message.role == "user" else "green"
        for part in message.parts:
            yield from _part(part, width, full=full)
        if message.error is not None:
            yield f"ended early: {message.error.type}: {message.error.message}", "red"
    for row in transcript.damaged:
        yield f"a damaged {row.kind} is left out: {row.error}", "yellow"
    yield "", ""
    tokens = usage.tokens
    yield (
        (
            f"{tokens_text(tokens.prompt)} tokens in, {tokens_text(tokens.output + tokens.reasoning)} out, "
            f"cost {cost_text(usage.total_cost)}; go on with: outrider --session {short_id(session.id)}"
        ),
        "dim",
    )


def _heading(message: Message) -> str:
    who = "You" if message.role == "user" else message.agent or "Assistant"
    model = f"  {message.model.provider}/{message.model.model}" if message.model else ""
    at = datetime.fromtimestamp(message.time.created / 1000).strftime("%Y-%m-%d %H:%M") if message.time else ""
    return f"{who}  {at}{model}"


def _part(part: Any, width: int, *, full: bool) -> Iterator[Line]:
    match part:
        case TextPart() if not part.ignored:
            yield part.text, "dim" if part.synthetic else ""
        case ReasoningPart():
            yield part.text if full else cut(f"(thought: {part.text})", width), "dim"
        case ToolPart():
            yield from _call(part, width, full=full)
        case FilePart():
            yield f"[file {part.filename or part.url[:60]} {part.mime}]", "blue"
        case PatchPart():
            yield f"[changed {', '.join(part.files)}]", "blue"
        case SubtaskPart():
            yield f"[task for {part.agent}: {part.description}]", "blue"
        case RetryPart():
            yield f"[attempt {part.attempt} failed]", "yellow"
        case CompactionPart():
            yield f"[the conversation so far was summed up: {part.tokens_before} → {part.tokens_after} tokens]", "blue"
        case _:
            pass


def _call(call: ToolPart, width: int, *, full: bool) -> Iterator[Line]:
    given = msgspec.json.encode(call.state.input).decode()
    yield (f"▸ {call.tool} {given}" if full else cut(f"▸ {call.tool} {given}", width)), "bold"
    result = tool_result(call)
    lines = result.content.splitlines() if result else [f"({call.display_status})"]
    if isinstance(call.state, ToolError):
        lines = [f"✗ {call.state.reason}", *lines]
    style = "red" if result and result.is_error else "dim"
    for line in lines if full else lines[:OUTPUT_LINES]:
        yield f"  {line}", style
    if not full and len(lines) > OUTPUT_LINES:
        yield f"  … {len(lines) - OUTPUT_LINES} more lines (--full)", "dim"
