"""Changes to sessions as a whole: fork, rename, delete."""

import sys
from argparse import Namespace
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from outrider.cli import registry as exits
from outrider.cli.output import Console, ago, cost_text, cut, table, tokens_text
from outrider.cli.setup import with_archive
from outrider.engine.archive import Archive, Imported, SearchHit, StoredSession, Transcript, shared_page, short_id
from outrider.errors import ConfigurationError
from outrider.types.ids import now_ms
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


def fork(arguments: Namespace) -> int:
    async def work(archive: Archive) -> str:
        found = await archive.find(arguments.session)
        return (await archive.fork(found.id, at=arguments.at, title=arguments.title)).id

    Console().print(with_archive(work))
    return exits.DONE


def rename(arguments: Namespace) -> int:
    async def work(archive: Archive) -> None:
        await archive.rename((await archive.find(arguments.session)).id, arguments.title)

    with_archive(work)
    return exits.DONE


def delete(arguments: Namespace) -> int:
    async def work(archive: Archive) -> int:
        found = await archive.find(arguments.session)
        if not sure(f"Delete {short_id(found.id)} {found.title!r}? It cannot be brought back.", yes=arguments.yes):
            return exits.FAILED
        await archive.delete(found.id)
        return exits.DONE

    return with_archive(work)


def clear(arguments: Namespace) -> int:
    if not sure("Delete every session that is not in use? They cannot be brought back.", yes=arguments.yes):
        return exits.FAILED
    count = with_archive(Archive.clear)
    Console().say(f"{count} deleted")
    return exits.DONE


def sure(question: str, *, yes: bool) -> bool:
    """Asked only where somebody can answer; elsewhere the flag must say it."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError(f"{question} Nobody can be asked here; say it with --yes")
    Console().err.write(f"{question} [y/N] ")
    Console().err.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def list_sessions(arguments: Namespace) -> int:
    async def work(archive: Archive) -> list[StoredSession]:
        workspace = Path.cwd() if arguments.here else None
        return list(await archive.sessions(arguments.limit, workspace=workspace, children=arguments.children))

    console, found = Console(), with_archive(work)
    if arguments.json:
        for session in found:
            console.print(msgspec.json.encode(session).decode())
    elif not found:
        console.say("There is no session yet. Begin one: outrider run 'say hello', or just: outrider")
    else:
        heads, rows = ("id", "used", "mode", "folder", "title"), [_row(one) for one in found]
        for line in table(heads, rows, console.width, narrow=(0, 1, 4)):
            console.print(line)
    return exits.DONE


def search(arguments: Namespace) -> int:
    words = " ".join(arguments.words)

    async def work(archive: Archive) -> list[SearchHit]:
        return list(await archive.search(words, limit=arguments.limit))

    console, hits = Console(), with_archive(work)
    if arguments.json:
        for hit in hits:
            console.print(msgspec.json.encode(hit).decode())
        return exits.DONE if hits else exits.FAILED
    for hit in hits:
        console.print(cut(f"{short_id(hit.session_id)}  {hit.title or '(no title)'}", console.width), "bold")
        console.print(f"  {hit.kind}: {cut(hit.snippet, console.width - len(hit.kind) - 4)}")
    if not hits:
        console.say(f"{words!r} was not found.")
    return exits.DONE if hits else exits.FAILED


def _row(session: StoredSession) -> tuple[str, ...]:
    used = ago(session.time.updated, now_ms()) if session.time else ""
    home, folder = str(Path.home()), session.workspace_directory
    shown = f"~{folder.removeprefix(home)}" if folder == home or folder.startswith(f"{home}/") else folder
    return short_id(session.id), used, session.mode, shown, session.title or "(no title)"


def export(arguments: Namespace) -> int:
    async def work(archive: Archive) -> bytes:
        return await archive.export((await archive.find(arguments.session)).id)

    return written(with_archive(work), arguments.output)


def share(arguments: Namespace) -> int:
    async def work(archive: Archive) -> str:
        return await shared_page(archive, (await archive.find(arguments.session)).id)

    return written(with_archive(work).encode(), arguments.output)


def bring(arguments: Namespace) -> int:
    document = _read(arguments.file)

    async def work(archive: Archive) -> Imported:
        return await archive.bring(document, as_copy=arguments.copy)

    console, done = Console(), with_archive(work, make=True)
    for session in done.sessions:
        console.print(session.id)
    for what in done.left_out:
        console.say(f"left out, since it is damaged: {what}", "yellow")
    return exits.DONE


def written(content: bytes, output: str | None) -> int:
    """To a file, or as it is to stdout."""
    if output is None or output == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return exits.DONE
    try:
        Path(output).write_bytes(content)
    except OSError as error:
        raise ConfigurationError(f"{output} cannot be written: {error.strerror}") from error
    Console().say(f"written: {output}")
    return exits.DONE


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error


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
