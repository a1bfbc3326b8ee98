"""`outrider sessions`: lists, shows, searches, forks, renames, exports, imports, shares and deletes
sessions, and `outrider trace`."""

import sys
from argparse import Namespace
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, assert_never

import msgspec

from outrider.cli import exit_codes
from outrider.cli.output import NOTICE_STYLES, STATUS_STYLES, Console, format_table, truncate_text
from outrider.cli.setup import run_with_archive
from outrider.config.environment import read_option_defaults
from outrider.engine.archive import (
    ImportResult,
    SearchHit,
    SessionArchive,
    SessionTranscript,
    StoredSession,
    render_shared_page,
)
from outrider.errors import ConfigurationError
from outrider.presentation.formats import format_age, format_cost, format_time, format_token_usage, short_id
from outrider.types.ids import now_ms
from outrider.types.messages import Message
from outrider.types.parts import ToolPart, Usage, tool_result

if TYPE_CHECKING:
    from outrider.presentation.items import TranscriptItem


def fork_session(arguments: Namespace) -> int:
    """Copies a session, and prints the new id."""

    async def fork_found(archive: SessionArchive) -> str:
        session = await archive.find_session(arguments.session)
        return (await archive.fork(session.id, at=arguments.at, title=arguments.title)).id

    Console().print(run_with_archive(fork_found, arguments))
    return exit_codes.SUCCESS


def rename_session(arguments: Namespace) -> int:
    async def rename_found(archive: SessionArchive) -> None:
        await archive.rename((await archive.find_session(arguments.session)).id, arguments.title)

    run_with_archive(rename_found, arguments)
    return exit_codes.SUCCESS


def delete_session(arguments: Namespace) -> int:
    """Deletes a session after confirmation."""

    async def delete_confirmed(archive: SessionArchive) -> int:
        session = await archive.find_session(arguments.session)
        if not confirm_action(
            f"Delete {short_id(session.id)} {session.title!r}? This cannot be undone.", yes=arguments.yes
        ):
            return exit_codes.FAILURE
        await archive.delete(session.id)
        return exit_codes.SUCCESS

    return run_with_archive(delete_confirmed, arguments)


def clear_sessions(arguments: Namespace) -> int:
    """Deletes every session without a lease after confirmation."""
    if not confirm_action("Delete every session that is not in use? This cannot be undone.", yes=arguments.yes):
        return exit_codes.FAILURE
    count = run_with_archive(lambda archive: archive.delete_all(), arguments)
    Console().print_stderr(f"{count} deleted")
    return exit_codes.SUCCESS


def confirm_action(question: str, *, yes: bool) -> bool:
    """Asks for confirmation on the terminal. Raises ConfigurationError without a terminal, where --yes is required."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError(f"{question} There is no terminal to ask on; confirm with --yes")
    Console().err.write(f"{question} [y/N] ")
    Console().err.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def list_sessions(arguments: Namespace) -> int:
    """Prints the most recently used sessions, as a table or JSON."""

    async def load_sessions(archive: SessionArchive) -> list[StoredSession]:
        workspace = Path.cwd() if arguments.here else None
        return list(await archive.list_sessions(arguments.limit, workspace=workspace, children=arguments.children))

    console, sessions = Console(), run_with_archive(load_sessions, arguments)
    if arguments.json:
        for session in sessions:
            console.print(msgspec.json.encode(session).decode())
    elif not sessions:
        console.print_stderr("There are no sessions yet. Start one: outrider run 'say hello', or just: outrider")
    else:
        heads, rows = ("id", "used", "mode", "folder", "title"), [_session_row(session) for session in sessions]
        for line in format_table(heads, rows, console.width, narrow=(0, 1, 4)):
            console.print(line)
    return exit_codes.SUCCESS


def search_sessions(arguments: Namespace) -> int:
    """Prints search results; the exit code is FAILURE if there are none."""
    query = " ".join(arguments.words)

    async def search_archive(archive: SessionArchive) -> list[SearchHit]:
        return list(await archive.search(query, limit=arguments.limit))

    console, hits = Console(), run_with_archive(search_archive, arguments)
    if arguments.json:
        for hit in hits:
            console.print(msgspec.json.encode(hit).decode())
        return exit_codes.SUCCESS if hits else exit_codes.FAILURE
    for hit in hits:
        console.print(truncate_text(f"{short_id(hit.session_id)}  {hit.title or '(no title)'}", console.width), "bold")
        console.print(f"  {hit.kind}: {truncate_text(hit.snippet, console.width - len(hit.kind) - 4)}")
    if not hits:
        console.print_stderr(f"No matches for {query!r}.")
    return exit_codes.SUCCESS if hits else exit_codes.FAILURE


def _session_row(session: StoredSession) -> tuple[str, ...]:
    used = format_age((now_ms() - session.time.updated) / 1000) if session.time else ""
    home, folder = str(Path.home()), session.workspace_directory
    short_folder = f"~{folder.removeprefix(home)}" if folder == home or folder.startswith(f"{home}/") else folder
    return short_id(session.id), used, session.mode, short_folder, session.title or "(no title)"


def export_session(arguments: Namespace) -> int:
    async def export_found(archive: SessionArchive) -> None:
        session = await archive.find_session(arguments.session)
        with _open_output(arguments.output) as file:
            async for chunk in archive.stream_document(session.id):
                file.write(chunk)

    run_with_archive(export_found, arguments)
    return exit_codes.SUCCESS


def share_session(arguments: Namespace) -> int:
    async def render_page(archive: SessionArchive) -> str:
        return await render_shared_page(archive, (await archive.find_session(arguments.session)).id)

    return write_output(run_with_archive(render_page, arguments).encode(), arguments.output)


def import_sessions(arguments: Namespace) -> int:
    """Imports an exported document, prints the ids, and reports skipped items."""
    is_url = arguments.file.startswith(("http://", "https://"))
    document = b"" if is_url else _read_document(arguments.file)

    async def import_document(archive: SessionArchive) -> ImportResult:
        if is_url:
            token = read_option_defaults().token or None
            return await archive.import_from_url(arguments.file, token=token, as_copy=arguments.copy)
        return await archive.import_document(document, as_copy=arguments.copy)

    console, result = Console(), run_with_archive(import_document, arguments, create=True)
    for session in result.sessions:
        console.print(session.id)
    for item in result.left_out:
        console.print_stderr(f"skipped, because it cannot be read: {item}", "yellow")
    return exit_codes.SUCCESS


def write_output(content: bytes, output: str | None) -> int:
    """Writes the bytes to the file `output`, or to stdout for None or `-`."""
    with _open_output(output) as file:
        file.write(content)
    return exit_codes.SUCCESS


@contextmanager
def _open_output(output: str | None) -> Generator[BinaryIO]:
    """Yields the file `output`, or stdout for None or `-`, and reports its name at the end."""
    if output is None or output == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with Path(output).open("wb") as file:
            yield file
    except OSError as error:
        raise ConfigurationError(f"cannot write {output}: {error.strerror}") from error
    Console().print_stderr(f"written: {output}")


def _read_document(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from error


StyledLine = tuple[str, str]
"""A line of text and the name of its style."""

MAX_OUTPUT_LINES = 12


def show_session(arguments: Namespace) -> int:
    """Prints the transcript of a session, as text or JSON."""

    async def load_transcript(archive: SessionArchive) -> SessionTranscript:
        return await archive.load((await archive.find_session(arguments.session)).id, last=arguments.last)

    console, transcript = Console(), run_with_archive(load_transcript, arguments)
    if arguments.json:
        for message in transcript.messages:
            console.print(msgspec.json.encode(message.to_dict()).decode())
        return exit_codes.SUCCESS
    for text, style in _transcript_lines(transcript, console.width, full=arguments.full):
        console.print(text, style)
    return exit_codes.SUCCESS


def _transcript_lines(transcript: SessionTranscript, width: int, *, full: bool) -> Iterator[StyledLine]:
    """Yields the lines of a transcript: title, messages, damaged rows and usage."""
    from outrider.presentation.items import damage_notices, message_items

    session = transcript.session
    yield truncate_text(session.title or "(no title)", width), "bold"
    yield f"{session.id}  {session.mode} mode  {session.workspace_directory}", "dim"
    if not transcript.first:
        yield "(earlier messages are not shown)", "dim"
    usage = Usage()
    for message in transcript.messages:
        usage = usage.plus(message.tokens, message.cost) if message.role == "assistant" else usage
        yield "", ""
        yield _message_heading(message), "cyan" if message.role == "user" else "green"
        for item in message_items(message):
            yield from _item_lines(item, width, full=full)
    for notice in damage_notices(transcript):
        yield notice.text, NOTICE_STYLES[notice.level]
    yield "", ""
    yield (
        (
            f"{format_token_usage(usage.tokens)}, "
            f"cost {format_cost(usage.total_cost)}; continue with: outrider --session {short_id(session.id)}"
        ),
        "dim",
    )


def _message_heading(message: Message) -> str:
    """Returns the heading of a message: role or agent, time and model."""
    author = "You" if message.role == "user" else message.agent or "Assistant"
    model = f"  {message.model}" if message.model else ""
    time = format_time(message.time.created) if message.time else ""
    return f"{author}  {time}{model}"


def _item_lines(item: "TranscriptItem", width: int, *, full: bool) -> Iterator[StyledLine]:
    """Yields the lines of one item; those of a failed attempt are struck out."""
    from outrider.presentation.items import strike_out

    if item.withdrawn:
        yield from ((strike_out(text), "dim") for text, _ in _content_lines(item, width - len("~~~~"), full=full))
    else:
        yield from _content_lines(item, width, full=full)


def _content_lines(item: "TranscriptItem", width: int, *, full: bool) -> Iterator[StyledLine]:
    """Yields the lines of one item; without `full`, reasoning, calls and outputs are shortened."""
    from outrider.presentation import items

    match item:
        case items.UserItem():
            yield from [(item.text, "")] if item.text.strip() else ()
            yield from [(f"[file {items.file_summary(file)}]", "blue") for file in item.files]
        case items.ReasoningItem():
            yield item.text if full else truncate_text(f"(thought: {item.text})", width), "dim"
        case items.TextItem():
            yield item.text, ""
        case items.ToolCallItem():
            yield from _call_lines(item.part, width, full=full)
        case items.FileItem():
            yield f"[file {items.file_summary(item.part)}]", "blue"
        case items.NoticeItem():
            yield f"[{item.text}]", NOTICE_STYLES[item.level]
            yield from [(item.body, "dim")] if full and item.body else ()
        case items.CommandItem():
            yield (f"$ {item.command}" if full else truncate_text(f"$ {item.command}", width)), "bold"
            yield from _output_lines(item.output.splitlines(), "dim", full=full)
        case _:
            assert_never(item)


def _call_lines(call: ToolPart, width: int, *, full: bool) -> Iterator[StyledLine]:
    """Yields the input and output of a call; without `full`, both are shortened."""
    from outrider.presentation.tool_calls import call_status, call_title, status_text, status_tone

    if full:
        yield f"▸ {call.tool} {msgspec.json.encode(call.state.input).decode()}", "bold"
    else:
        yield truncate_text(f"▸ {call_title(call.tool, call.state.input)}", width), "bold"
    result = tool_result(call)
    if (status := status_text(call_status(call))) != "done":
        yield f"  {status}", STATUS_STYLES[status_tone(call)]
    lines = result.content.splitlines() if result else []
    yield from _output_lines(lines, "red" if result and result.is_error else "dim", full=full)


def _output_lines(lines: Sequence[str], style: str, *, full: bool) -> Iterator[StyledLine]:
    for line in lines if full else lines[:MAX_OUTPUT_LINES]:
        yield f"  {line}", style
    if not full and len(lines) > MAX_OUTPUT_LINES:
        yield f"  … {len(lines) - MAX_OUTPUT_LINES} more lines (--full)", "dim"


def show_trace(arguments: Namespace) -> int:
    """Prints the trace as a tree for the terminal width, or writes it as an HTML page."""
    from outrider.engine.session_trace import stored_trace  # lazy: other commands do not need the tracer

    console = Console()

    async def render_trace(archive: SessionArchive) -> str:
        session = await archive.find_session(arguments.session)
        trace = await stored_trace(archive, session.id)
        return trace.to_html(session.title) if arguments.html else trace.format_tree(console.width)

    text = run_with_archive(render_trace, arguments)
    if arguments.html:
        return write_output(text.encode(), arguments.html)
    console.print(text)
    return exit_codes.SUCCESS
