"""One prompt, from the command line to the exit code."""

import asyncio
import atexit
import os
import signal
import sys
from argparse import Namespace
from base64 import b64encode
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import msgspec

from outrider.cli import registry as exits
from outrider.cli.commands.run_output import (
    Printer,
    Progress,
    Result,
    RunInfo,
    RunStats,
    RunTarget,
    printer_of,
    telling,
)
from outrider.cli.output import Console, cost_text, tokens_text
from outrider.cli.setup import folders, settings_of
from outrider.config.settings import Settings
from outrider.engine.archive import TurnEnd, short_id
from outrider.engine.engine import Engine
from outrider.engine.factory import standard_engine
from outrider.errors import ConfigurationError, OutriderError
from outrider.types.parts import FilePart, PartBase, TextPart

LARGEST = 32 * 1024 * 1024
STDIN = "-"


def prompt_parts(words: Sequence[str], files: Sequence[str]) -> list[TextPart | FilePart]:
    """Raises ConfigurationError where there is nothing to ask, or a file cannot be read."""
    text = prompt_text(words)
    if not text.strip():
        raise ConfigurationError("there is no prompt. Write one: outrider run 'say hello', or give it on stdin")
    return [TextPart(text), *(attached(file) for file in files)]


def prompt_text(words: Sequence[str]) -> str:
    """Plain words are joined as they stand; stdin and files stand on their own. Without any word stdin is the prompt,
    unless it is a terminal: a person would not know that they are waited for."""
    if not words:
        return "" if sys.stdin is None or sys.stdin.isatty() else _stdin()
    if all(not _is_read(word) for word in words):
        return " ".join(map(whole, words))
    return "\n\n".join(_said(word) for word in words)


def said(text: str) -> str:
    """The text itself, or what the file holds that it names as @FILE."""
    return _said(text) if text.startswith("@") else whole(text)


def whole(word: str) -> str:
    """Bytes of the command line that were no text where the locale takes less than UTF-8: they are read as UTF-8."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def attached(file: str) -> FilePart:
    path = Path(file).expanduser()
    content = _read(path)
    mime = _mime_of(path, content)
    return FilePart(mime, f"data:{mime};base64,{b64encode(content).decode()}", path.name)


def _said(word: str) -> str:
    if word == STDIN:
        return _stdin()
    if not _is_read(word):
        return whole(word)
    return _read(Path(word[1:]).expanduser()).decode("utf-8", "replace")


def _is_read(word: str) -> bool:
    """`@` names a file; a sentence that merely begins with it is a sentence."""
    if word == STDIN:
        return True
    return word.startswith("@") and len(word) > 1 and (" " not in word or Path(word[1:]).is_file())


def _stdin() -> str:
    content = sys.stdin.buffer.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ConfigurationError(f"stdin holds more than {LARGEST:,} bytes; that is no prompt")
    return content.decode("utf-8", "replace")


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST:
            raise ConfigurationError(f"{path} is larger than {LARGEST:,} bytes")
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error


def _mime_of(path: Path, content: bytes) -> str:
    """By name, else by content: what is text is sent as text, whatever it is the text of."""
    from mimetypes import guess_type  # with the first attachment: it reads the system's tables

    mime = guess_type(path.name)[0] or ""
    if mime.startswith(("image/", "audio/", "video/", "application/pdf")):
        return mime
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return mime or "application/octet-stream"
    return "text/plain" if b"\0" not in content else mime or "application/octet-stream"


class Resumed(NamedTuple):
    id: str
    workspace: str

    def folder(self, wanted: Path | None) -> Path:
        """Where the session works; nothing else can be said about it now."""
        own = Path(self.workspace) if self.workspace else wanted or Path.cwd()
        if wanted is not None and wanted != own:
            raise ConfigurationError(f"session {short_id(self.id)} works in {own}; leave --cwd out")
        return own


async def resumed_session(arguments: Namespace) -> Resumed | None:
    if not (arguments.session or arguments.resume):
        return None
    from outrider.engine.archive import open_archive  # a new session needs none of it

    async with open_archive(folders().store) as archive:
        if arguments.session:
            found = await archive.find(arguments.session)
        else:
            found = await archive.newest(arguments.cwd or Path.cwd())
        return Resumed(found.id, found.workspace_directory)


_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupts:
    """`exit_code` is what programs end with that such a signal ended."""

    def __init__(self) -> None:
        self.wanted = asyncio.Event()
        self.exit_code = exits.INTERRUPTED

    def hear(self, number: int) -> None:
        """Whoever asks twice does not want to wait: what is kept is kept, and guards end what still runs."""
        self.exit_code = 128 + number
        if self.wanted.is_set():
            os._exit(self.exit_code)
        self.wanted.set()
        for known in _known():
            signal.signal(known, _end_at_once)  # what hangs may be the loop itself


@contextmanager
def interrupts() -> Generator[Interrupts, None, None]:
    heard, loop = Interrupts(), asyncio.get_running_loop()
    for number in _known():
        with suppress(NotImplementedError, RuntimeError):
            loop.add_signal_handler(number, heard.hear, number)
    try:
        yield heard
    finally:
        for number in _known():
            with suppress(NotImplementedError, RuntimeError):
                loop.remove_signal_handler(number)
            if heard.wanted.is_set():
                _listen_to_the_end(number)


def _known() -> list[int]:
    return [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]


def _end_at_once(number: int, _frame: object) -> None:
    os._exit(128 + number)


def _listen_to_the_end(number: int) -> None:
    """For what is left after an interrupt: last words, and an interpreter that forgets its handlers while it ends."""
    signal.signal(number, _end_at_once)
    atexit.register(signal.signal, number, signal.SIG_IGN)


def execute(arguments: Namespace) -> int:
    parts = prompt_parts(arguments.prompt, arguments.file)
    return asyncio.run(RunCommand(arguments, Console()).done(parts))


class RunCommand:
    def __init__(self, arguments: Namespace, console: Console) -> None:
        self._arguments = arguments
        self._console = console
        self._tally = RunStats()

    async def done(self, parts: Sequence[PartBase]) -> int:
        opening = await self._opening()
        printer = printer_of(self._arguments.output_format, self._console, quiet=self._arguments.quiet)
        with interrupts() as heard:
            async with opening as opened:
                self._listen(opened, printer)
                printer.begin(opened.begun)
                started = monotonic()
                end = await _turn(opened, parts, heard)
                took = round((monotonic() - started) * 1000)
        result = Result(opened.begun, end, self._tally, took, heard.exit_code)
        printer.end(result)
        self._last_words(result)
        if self._console.lost is not None:
            raise self._console.lost
        return result.exit_code

    async def _opening(self) -> AbstractAsyncContextManager[RunTarget]:
        if self._arguments.attach:
            from outrider.cli.commands.run_attached import opened  # a run of this process needs none of it

            return opened(self._arguments)
        resumed = await resumed_session(self._arguments)
        return self._here(self._settings(resumed), resumed)

    @asynccontextmanager
    async def _here(self, settings: Settings, resumed: Resumed | None) -> AsyncGenerator[RunTarget, None]:
        async with standard_engine(settings, workspace=settings.workspace, attended=False) as engine:
            begun = await self._begin(engine, settings, resumed)
            at = begun.session_id
            yield RunTarget(begun, engine.bus.subscribe_all, partial(engine.prompt, at), partial(engine.abort, at))

    def _listen(self, opened: RunTarget, printer: Printer) -> None:
        opened.subscribe(self._tally.hear)
        opened.subscribe(printer.hear)
        if self._arguments.verbose or (self._console.err_is_terminal and not self._arguments.quiet):
            opened.subscribe(Progress(self._console, verbose=self._arguments.verbose).hear)

    def _settings(self, resumed: Resumed | None) -> Settings:
        arguments = self._arguments
        if resumed is not None:
            arguments.cwd = resumed.folder(arguments.cwd)
        settings = settings_of(arguments)
        if not arguments.quiet:
            for notice in settings.notices:
                self._console.say(f"outrider: {notice}", "yellow")
        if arguments.system is None:
            return settings
        first = msgspec.structs.replace(settings.agents[0], instructions=said(arguments.system))
        return msgspec.structs.replace(settings, agents=(first, *settings.agents[1:]))

    async def _begin(self, engine: Engine, settings: Settings, resumed: Resumed | None) -> RunInfo:
        first = settings.agents[0]
        if resumed is None:
            session_id, mode = await engine.create(mode=settings.mode, workspace=settings.workspace), settings.mode
        else:
            session_id = resumed.id
            session = await engine.open(session_id)
            if self._arguments.mode:
                await engine.set_mode(session_id, settings.mode)
            if self._arguments.agent or session.agent not in {agent.name for agent in settings.agents}:
                await engine.set_agent(session_id, first.name)
            mode = session.mode
        return RunInfo(session_id, first.name, settings.model, mode, str(settings.workspace))

    @property
    def _attached(self) -> str:
        return f" --attach {self._arguments.attach.partition('?')[0]}" if self._arguments.attach else ""

    def _last_words(self, result: Result) -> None:
        console, quiet = self._console, self._arguments.quiet
        if result.end.error is not None:
            console.say(f"outrider: {result.end.error}", "red")
        elif result.end.reason != "completed":
            console.say(f"outrider: the turn ended early: {result.end.reason.replace('_', ' ')}", "yellow")
        wanting = [call for call in self._tally.refused if call.for_want_of_approval]
        for call in wanting if not quiet else ():
            console.say(
                f"outrider: refused, since nobody could approve it: {call.tool} {telling(call.input)}", "yellow"
            )
        if wanting and not quiet:
            there = "let somebody answer with --wait-for-approval, or begin the server with --allow and what may run"
            here = "say with --allow what may run, or try --mode background"
            console.say(f"outrider: {there if self._arguments.attach else here}")
        if console.err_is_terminal and not quiet:
            usage = self._tally.usage
            out = tokens_text(usage.tokens.output + usage.tokens.reasoning)
            facts = f"{tokens_text(usage.tokens.prompt)} tokens in, {out} out, cost {cost_text(usage.total_cost)}"
            console.say(
                f"{facts}; go on with: outrider run{self._attached} --session {short_id(result.begun.session_id)} …",
                "dim",
            )


async def _turn(opened: RunTarget, parts: Sequence[PartBase], heard: Interrupts) -> TurnEnd:
    async with asyncio.TaskGroup() as tasks:
        turn = tasks.create_task(_ended(opened, parts))
        stop = tasks.create_task(heard.wanted.wait())
        await asyncio.wait((turn, stop), return_when=asyncio.FIRST_COMPLETED)
        if not turn.done():
            await opened.abort()
            await asyncio.wait((turn,), timeout=1)
            turn.cancel()
        stop.cancel()
    return TurnEnd("aborted") if turn.cancelled() else turn.result()


async def _ended(opened: RunTarget, parts: Sequence[PartBase]) -> TurnEnd:
    """What is refused before there is a turn is how it ended, too."""
    try:
        return await opened.prompt(parts)
    except OutriderError as error:
        return TurnEnd("error", error=error)
