"""One prompt, from the command line to the exit code."""

import asyncio
from argparse import Namespace
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from time import monotonic

import msgspec

from outrider.app.archive.ends import TurnEnd
from outrider.app.archive.names import short_id
from outrider.app.config.settings import Settings
from outrider.app.engine import Engine
from outrider.app.standard import standard_engine
from outrider.cli.console import Console
from outrider.cli.run.interrupts import Interrupts, interrupts
from outrider.cli.run.opened import Opened
from outrider.cli.run.printers import Printer, printer_of
from outrider.cli.run.progress import Progress, telling
from outrider.cli.run.prompt import prompt_parts, said
from outrider.cli.run.result import Begun, Result, Tally
from outrider.cli.run.resuming import Resumed, resumed_session
from outrider.cli.settings import settings_of
from outrider.cli.tables import cost_text, tokens_text
from outrider.errors import OutriderError
from outrider.types.parts import PartBase


def execute(arguments: Namespace) -> int:
    parts = prompt_parts(arguments.prompt, arguments.file)
    return asyncio.run(Work(arguments, Console()).done(parts))


class Work:
    def __init__(self, arguments: Namespace, console: Console) -> None:
        self._arguments = arguments
        self._console = console
        self._tally = Tally()

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

    async def _opening(self) -> AbstractAsyncContextManager[Opened]:
        if self._arguments.attach:
            from outrider.cli.run.attach import opened  # a run of this process needs none of it

            return opened(self._arguments)
        resumed = await resumed_session(self._arguments)
        return self._here(self._settings(resumed), resumed)

    @asynccontextmanager
    async def _here(self, settings: Settings, resumed: Resumed | None) -> AsyncGenerator[Opened, None]:
        async with standard_engine(settings, workspace=settings.workspace, attended=False) as engine:
            begun = await self._begin(engine, settings, resumed)
            at = begun.session_id
            yield Opened(begun, engine.bus.subscribe_all, partial(engine.prompt, at), partial(engine.abort, at))

    def _listen(self, opened: Opened, printer: Printer) -> None:
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

    async def _begin(self, engine: Engine, settings: Settings, resumed: Resumed | None) -> Begun:
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
        return Begun(session_id, first.name, settings.model, mode, str(settings.workspace))

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


async def _turn(opened: Opened, parts: Sequence[PartBase], heard: Interrupts) -> TurnEnd:
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


async def _ended(opened: Opened, parts: Sequence[PartBase]) -> TurnEnd:
    """What is refused before there is a turn is how it ended, too."""
    try:
        return await opened.prompt(parts)
    except OutriderError as error:
        return TurnEnd("error", error=error)
