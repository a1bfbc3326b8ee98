"""Uses what a client offers besides showing updates: its buffers with unsaved text, and its terminals."""

import asyncio
import errno
import logging
import os
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import acp
from acp import RequestError
from acp.schema import (
    ClientCapabilities,
    ContentToolCallContent,
    FileSystemCapabilities,
    TerminalToolCallContent,
    ToolCallProgress,
    ToolCallStart,
)

from outrider.acp.tool_calls import MAX_OUTPUT_CHARS, fence_text, replace_surrogates
from outrider.engine.frontend import EditorFiles
from outrider.errors import ToolFailure

_log = logging.getLogger("outrider.acp")

READ_SECONDS = 20.0  # until a client that does not respond fails the call of a tool
CANCEL_SECONDS = 1.0
WRITE_SECONDS = 120.0  # clients may ask their user before they write

T = TypeVar("T")


class ClientBuffers:
    """The buffers of the client for one session. Tools call the methods in threads, which wait for the client.
    `folders` are the workspace and further folders as the client names them."""

    def __init__(
        self, session_id: str, client: acp.Client, folders: Sequence[str], capabilities: FileSystemCapabilities
    ) -> None:
        self.can_read = bool(capabilities.read_text_file)
        self.can_write = bool(capabilities.write_text_file)
        self.folders = folders
        self._session_id = session_id
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._writes: set[Future[Any]] = set()
        self._writes_lock = threading.Lock()  # a cancellation must find a write that has just been sent

    def includes(self, path: str) -> bool:
        """Returns whether a path is in a folder of the client."""
        return self._find_folder(path) is not None

    def read_text(self, path: str) -> str | None:
        """Returns the text of a file in the client; None if the client does not provide it."""
        try:
            future = self._start(self._client.read_text_file(self._session_id, self._client_path(path)))
            return _wait(future, READ_SECONDS).content
        except TimeoutError:
            raise ToolFailure("the user's editor does not respond") from None
        except (RequestError, ValueError):
            return None

    def write_text(self, path: str, text: str) -> None:
        """Lets the client write and save a file. Raises ToolFailure if it refuses, or may still write."""
        request = self._client.write_text_file(self._session_id, self._client_path(path), text)
        with self._writes_lock:
            future = self._start(request)
            self._writes.add(future)
        try:
            _wait(future, WRITE_SECONDS)
        except TimeoutError:
            raise ToolFailure("the user's editor does not respond, and may still write the file") from None
        except CancelledError:
            raise ToolFailure("the turn was cancelled, and the user's editor may still write the file") from None
        except (RequestError, ValueError) as error:
            raise ToolFailure(f"the user's editor refuses to write it: {error}. Nothing was written") from error
        finally:
            self._writes.discard(future)

    def cancel_writes(self) -> None:
        """Makes pending writes stop waiting soon, because the turn is cancelled."""
        with self._writes_lock:
            waiting = list(self._writes)
        for future in waiting:
            self._loop.call_later(CANCEL_SECONDS, future.cancel)

    async def find_unsaved(self, paths: Sequence[Path]) -> list[str]:
        """Returns the names of files whose text in the client differs from the file on disk."""
        return await asyncio.to_thread(lambda: [path.name for path in paths if self._is_unsaved(path)])

    async def show_saved(self, paths: Sequence[Path]) -> None:
        """Lets the client show what was written to disk, if it still has the text before that."""
        await asyncio.to_thread(self._write_saved, paths)

    def _write_saved(self, paths: Sequence[Path]) -> None:
        for path in paths if self.can_write else ():
            with suppress(ToolFailure, OSError):
                if self._is_unsaved(path):
                    self.write_text(os.path.realpath(path), path.read_bytes().decode())

    def _is_unsaved(self, path: Path) -> bool:
        saved = path.read_bytes() if path.is_file() else None
        return EditorFiles(self).read(os.path.realpath(path), path.name, saved).unsaved

    def _client_path(self, path: str) -> str:
        """Returns a resolved path below the folder that the client named, which may be a link."""
        folder = self._find_folder(path)
        if folder is not None:
            path = os.path.join(folder, os.path.relpath(path, os.path.realpath(folder)))  # noqa: PTH118
        return replace_surrogates(path)

    def _find_folder(self, path: str) -> str | None:
        inside = (folder for folder in self.folders if path.startswith(f"{os.path.realpath(folder).rstrip('/')}/"))
        return next(inside, None)

    def _start(self, request: Coroutine[Any, Any, T]) -> "Future[T]":
        """Runs a request in the event loop, from a thread."""
        return asyncio.run_coroutine_threadsafe(request, self._loop)


def _wait(future: "Future[T]", seconds: float) -> T:
    """Returns the response. Raises TimeoutError if the client does not respond, ToolFailure if it disconnects."""
    try:
        return future.result(seconds)
    except TimeoutError:
        future.cancel()
        raise
    except ConnectionError as error:
        raise ToolFailure("the user's editor has disconnected") from error


TERMINAL_SECONDS = 10.0  # for each request about a terminal
READER_SECONDS = 5.0  # until the program in the terminal must read
_MAX_TERMINAL_BYTES = 1 << 20
# Prints what arrives in a pipe, and exits with the code in a file.
_PRINT_OUTPUT = 'cat "$1" && read -r code < "$2" && exit "$code"'
_ENDED = ("completed", "failed")
_META_CAPABILITY = "terminal_output"

SendUpdate = Callable[[ToolCallProgress], Awaitable[None]]
CallUpdate = ToolCallStart | ToolCallProgress


def has_terminals(capabilities: ClientCapabilities) -> bool:
    """Returns whether a client can show the output of commands in terminals."""
    return bool(capabilities.terminal) or shows_output_messages(capabilities)


def shows_output_messages(capabilities: ClientCapabilities) -> bool:
    """Returns whether a client shows output that updates of a call carry in `_meta`, as Zed does."""
    return bool((capabilities.field_meta or {}).get(_META_CAPABILITY))


class CommandTerminals:
    """Shows the output of the session's commands in terminals of the client. The commands run in our sandbox.

    A client that declares the capability receives the output with the updates of a call. Any other client runs a small
    program in each terminal, which prints what it reads from a pipe.
    """

    def __init__(
        self,
        session_id: str,
        client: acp.Client,
        tasks: asyncio.TaskGroup,
        send_update: SendUpdate,
        *,
        with_messages: bool,
    ) -> None:
        self._session_id = session_id
        self._client = client
        self._tasks = tasks
        self._send_update = send_update
        self._with_messages = with_messages
        self._views: dict[str, _MessageTerminal | _ClientTerminal] = {}

    def add_output(self, call_id: str, folder: Path, text: str) -> None:
        """Adds output of a running command; the first one opens a terminal."""
        if call_id not in self._views:
            self._views[call_id] = self._open_terminal(call_id, folder)
        self._views[call_id].add_output(text)

    def note_loss(self) -> None:
        """Notes that output was dropped: the texts of the open calls are shown next to the terminals at the end."""
        for view in self._views.values():
            view.is_complete = False

    def show(self, update: CallUpdate) -> CallUpdate:
        """Returns the update of a call with its terminal as the content. The last one closes the terminal."""
        view = self._views.get(update.tool_call_id)
        if view is None:
            return update
        has_ended = update.status in _ENDED
        if has_ended:
            del self._views[update.tool_call_id]
            code = update.raw_output.get("exit_code") if isinstance(update.raw_output, dict) else None  # pyright: ignore
            view.end(code if isinstance(code, int) else None)
        if view.terminal_id is None:
            return update
        needs_text = has_ended and (update.status == "failed" or not view.is_complete)
        terminal = TerminalToolCallContent(type="terminal", terminal_id=view.terminal_id)
        content = [terminal, *(update.content or ())] if needs_text else [terminal]
        return update.model_copy(update={"content": content, "field_meta": view.take_meta() or update.field_meta})

    def close(self) -> None:
        for view in self._views.values():
            view.end(None)
        self._views.clear()

    def _open_terminal(self, call_id: str, folder: Path) -> "_MessageTerminal | _ClientTerminal":
        if self._with_messages:
            return _MessageTerminal(call_id, folder)
        view = _ClientTerminal(call_id, self._session_id, self._client, self._send_update)
        self._tasks.create_task(view.run(folder))
        return view


class _MessageTerminal:
    """A terminal whose output is sent with the updates of its call."""

    def __init__(self, call_id: str, folder: Path) -> None:
        self.terminal_id: str | None = call_id
        self.is_complete = True
        self._meta: dict[str, Any] = {"terminal_info": {"terminal_id": call_id, "cwd": replace_surrogates(str(folder))}}

    def add_output(self, text: str) -> None:
        waiting = self._meta.get("terminal_output", {}).get("data", "")
        self._meta["terminal_output"] = {"terminal_id": self.terminal_id, "data": waiting + replace_surrogates(text)}

    def end(self, code: int | None) -> None:
        self._meta["terminal_exit"] = {"terminal_id": self.terminal_id, "exit_code": code, "signal": None}

    def take_meta(self) -> dict[str, Any]:
        meta, self._meta = self._meta, {}
        return meta


class _ClientTerminal:
    """A terminal of the client that prints what it reads from a pipe. `terminal_id` is set while it can be shown."""

    def __init__(self, call_id: str, session_id: str, client: acp.Client, send_update: SendUpdate) -> None:
        self.terminal_id: str | None = None
        self.is_complete = True
        self._call_id = call_id
        self._session_id = session_id
        self._client = client
        self._send_update = send_update
        self._output: asyncio.Queue[str | None] = asyncio.Queue()
        self._code: int | None = None
        self._text = ""  # the end of the output, if the terminal cannot show it

    def add_output(self, text: str) -> None:
        self._text = (self._text + text)[-MAX_OUTPUT_CHARS:]
        self._output.put_nowait(text)

    def end(self, code: int | None) -> None:
        self._code = code
        self._output.put_nowait(None)

    def take_meta(self) -> dict[str, Any]:
        return {}

    async def run(self, folder: Path) -> None:
        """Creates the terminal, writes the output to its pipe, and releases it when the command has ended."""
        try:
            with _pipe_files() as (pipe, status):
                await self._create_terminal(folder, pipe, status)
                await self._write_output(pipe, status)
        except (RequestError, OSError, ValueError, TimeoutError) as error:  # ConnectionError is an OSError
            _log.warning("the client shows no terminal for a command: %s", error)
            if self.terminal_id is not None:
                self.terminal_id = None
                await self._show_content(acp.tool_content(acp.text_block(fence_text(self._text))))

    async def _create_terminal(self, folder: Path, pipe: str, status: str) -> None:
        async with asyncio.timeout(TERMINAL_SECONDS):
            created = await self._client.create_terminal(
                self._session_id,
                "/bin/sh",
                args=["-c", _PRINT_OUTPUT, "outrider", pipe, status],
                cwd=str(folder),
                output_byte_limit=_MAX_TERMINAL_BYTES,
            )
        self.terminal_id = created.terminal_id
        await self._show_content(TerminalToolCallContent(type="terminal", terminal_id=created.terminal_id))

    async def _show_content(self, content: ContentToolCallContent | TerminalToolCallContent) -> None:
        await self._send_update(
            ToolCallProgress(session_update="tool_call_update", tool_call_id=self._call_id, content=[content])
        )

    async def _write_output(self, pipe: str, status: str) -> None:
        terminal_id = self.terminal_id or ""
        try:
            descriptor = await _open_pipe(pipe)
            try:
                while (text := await self._output.get()) is not None:
                    await _write_all(descriptor, text.encode("utf-8", "replace"))
                code = 1 if self._code is None else self._code
                await asyncio.to_thread(Path(status).write_text, f"{code}\n")
            finally:
                os.close(descriptor)
            async with asyncio.timeout(TERMINAL_SECONDS):
                await self._client.wait_for_terminal_exit(self._session_id, terminal_id)
        finally:
            async with asyncio.timeout(TERMINAL_SECONDS):
                await self._client.release_terminal(self._session_id, terminal_id)


@contextmanager
def _pipe_files() -> Generator[tuple[str, str]]:
    """Yields the paths of a named pipe and of a file for the exit code, which only the user can open."""
    with tempfile.TemporaryDirectory(prefix="outrider-terminal-") as folder:
        pipe = os.path.join(folder, "output")  # noqa: PTH118
        os.mkfifo(pipe, 0o600)
        yield pipe, os.path.join(folder, "status")  # noqa: PTH118


async def _open_pipe(pipe: str) -> int:
    """Opens a named pipe for writing. Raises OSError if nothing reads it, as in a client on another machine."""
    deadline = asyncio.get_running_loop().time() + READER_SECONDS
    while True:
        try:
            descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.05)
        else:
            return descriptor


async def _write_all(descriptor: int, data: bytes) -> None:
    """Writes to a pipe that does not block. Raises TimeoutError if its reader stops reading."""
    async with asyncio.timeout(TERMINAL_SECONDS):
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                await asyncio.sleep(0.02)
