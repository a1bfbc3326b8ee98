"""`outrider run`: reads the prompt, runs one turn without the terminal application, and returns its exit code."""

import asyncio
import atexit
import fcntl
import os
import signal
import stat
import sys
import termios
from argparse import Namespace
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from outrider.cli import exit_codes
from outrider.cli.commands.run_output import (
    CONTINUE_PROMPT,
    HeadlessResult,
    RunInfo,
    RunJsonPrinter,
    RunPrinter,
    RunStats,
    RunTarget,
    RunTextPrinter,
    ServerInfo,
    StdoutPipe,
)
from outrider.cli.output import NOTICE_STYLES, Console
from outrider.cli.setup import settings_from_arguments, user_folders
from outrider.config.settings import Settings, remember_shown_files
from outrider.engine.engine import Engine
from outrider.engine.factory import standard_engine
from outrider.errors import ConfigurationError, LimitReachedError, OutputUnavailableError, OutriderError
from outrider.presentation.formats import format_bytes, format_cost, format_reached_limit, format_token_usage, short_id
from outrider.types.events import (
    Event,
    LLMRequestEvent,
    LLMResponseEvent,
    LoopCompletedEvent,
    LoopStartedEvent,
    MessageAddedEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    ProcessExitedEvent,
    ProcessOutputEvent,
    ProcessStartedEvent,
    RequestChangedEvent,
    SessionUpdatedEvent,
    StateChangedEvent,
    ToolExecutionCompletedEvent,
    ToolExecutionStartedEvent,
    ToolInputDeltaEvent,
    ToolOutputEvent,
    TurnCompletedEvent,
    TurnStartedEvent,
)
from outrider.types.parts import FilePart, PartBase, TextPart
from outrider.types.validate import is_object

if TYPE_CHECKING:
    from outrider.engine.archive import TurnOutcome
    from outrider.engine.frontend import QuestionQueue

MAX_INPUT_BYTES = 32 * 1024 * 1024
STDIN_WORD = "-"

ROUTINE_EVENTS = (
    LoopStartedEvent,
    LoopCompletedEvent,
    TurnStartedEvent,
    TurnCompletedEvent,
    StateChangedEvent,
    LLMRequestEvent,
    RequestChangedEvent,
    LLMResponseEvent,
    MessageAddedEvent,
    PartUpdatedEvent,
    PartDeltaEvent,
    ToolInputDeltaEvent,
    ToolExecutionStartedEvent,
    ToolExecutionCompletedEvent,
    ToolOutputEvent,
    ProcessStartedEvent,
    ProcessOutputEvent,
    ProcessExitedEvent,
)
"""Events of every run, which have no notice unless a model sends a file: their modules are not loaded for them."""


def prompt_parts(arguments: Sequence[str], files: Sequence[str], *, resumes: bool = False) -> list[TextPart | FilePart]:
    """Builds the message parts; none if the last turn of a session `resumes`. Raises ConfigurationError if the prompt
    is empty or a file cannot be read."""
    text = prompt_text(arguments)
    if not text.strip() and resumes:
        return []
    if not text.strip():
        raise ConfigurationError("the prompt is empty. Pass one: outrider run 'say hello', or send it on stdin")
    return [TextPart(text), *(attach_file(file) for file in files)]


def prompt_text(arguments: Sequence[str]) -> str:
    """Joins the arguments to a prompt: plain words with spaces, contents of stdin and files with blank lines.

    Without arguments the prompt is read from stdin, unless stdin is a terminal: the program would seem to hang.
    """
    if not arguments:
        return "" if sys.stdin is None or sys.stdin.isatty() else _read_stdin()
    if all(not _names_source(argument) for argument in arguments):
        return " ".join(map(decode_argument, arguments))
    return "\n\n".join(_read_word(argument) for argument in arguments)


def read_text_argument(text: str) -> str:
    """Returns the text, or for `@FILE` the content of that file."""
    return _read_word(text) if text.startswith("@") else decode_argument(text)


def decode_argument(argument: str) -> str:
    """Decodes bytes that the locale could not decode (stored as surrogate escapes) as UTF-8."""
    return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def attach_file(file: str) -> FilePart:
    """Returns a file as a message part with a data URL."""
    from outrider.engine.frontend import file_part  # lazy: most prompts have no files

    path = Path(file).expanduser()
    return file_part(path, _read_file(path))


def _read_word(argument: str) -> str:
    if argument == STDIN_WORD:
        return _read_stdin()
    if not _names_source(argument):
        return decode_argument(argument)
    return _read_file(Path(argument[1:]).expanduser()).decode("utf-8", "replace")


def _names_source(argument: str) -> bool:
    """Returns whether an argument names stdin or a file. A sentence that starts with `@` is text, unless such a file
    exists."""
    if argument == STDIN_WORD:
        return True
    return argument.startswith("@") and len(argument) > 1 and (" " not in argument or Path(argument[1:]).is_file())


def _read_stdin() -> str:
    content = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
    if len(content) > MAX_INPUT_BYTES:
        raise ConfigurationError(f"stdin has more than {format_bytes(MAX_INPUT_BYTES)}, the maximum for a prompt")
    return content.decode("utf-8", "replace")


def _has_unread_input(arguments: Sequence[str]) -> bool:
    """Returns whether a pipe on stdin has data that the prompt does not include. Stdin is read only on request: it may
    stay open, or belong to the loop of a script."""
    if not arguments or STDIN_WORD in arguments or sys.stdin is None:
        return False
    try:
        descriptor = sys.stdin.fileno()
        waiting = fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4)
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode) and any(waiting)
    except (OSError, ValueError):
        return False


def _read_file(path: Path) -> bytes:
    """Returns the content of a file. Raises ConfigurationError if it is too large or cannot be read."""
    try:
        if path.stat().st_size > MAX_INPUT_BYTES:
            raise ConfigurationError(f"{path} is larger than {format_bytes(MAX_INPUT_BYTES)}")
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}") from error


class ResumedSession(NamedTuple):
    """The id and folder of a stored session to continue."""

    id: str
    workspace: str

    def choose_folder(self, requested: Path | None) -> Path:
        """Returns the session's folder. Raises ConfigurationError if `--cwd` names another one."""
        folder = Path(self.workspace) if self.workspace else requested or Path.cwd()
        if requested is not None and requested != folder:
            raise ConfigurationError(f"session {short_id(self.id)} belongs to {folder}; omit --cwd")
        return folder


async def find_resumed_session(arguments: Namespace) -> ResumedSession | None:
    """Returns the session of `--session` or `--continue`, or None for a new session."""
    if not (arguments.session or arguments.resume):
        return None
    from outrider.engine.archive import open_archive  # imported late: a new session does not need the archive

    async with open_archive(user_folders().store_file) as archive:
        if arguments.session:
            session = await archive.find_session(arguments.session)
        else:
            session = await archive.find_newest(arguments.cwd or Path.cwd())
        return ResumedSession(session.id, session.workspace_directory)


_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class InterruptState:
    """Whether the user requested an interrupt, and the exit code for the received signal (128 + its number)."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.exit_code = exit_codes.INTERRUPTED

    def on_signal(self, number: int) -> None:
        """Requests an interrupt; exits immediately on the second signal. Exiting is safe: changes are already stored,
        and the process supervisor kills child processes."""
        self.exit_code = 128 + number
        if self.requested.is_set():
            os._exit(self.exit_code)
        self.requested.set()
        for signal_number in _available_signals():
            signal.signal(signal_number, _exit_now)  # works even if the event loop hangs


@contextmanager
def handle_interrupts() -> Generator[InterruptState, None, None]:
    """Installs signal handlers on the event loop; restores the default handling on exit."""
    interrupts, loop = InterruptState(), asyncio.get_running_loop()
    for number in _available_signals():
        with suppress(NotImplementedError, RuntimeError):
            loop.add_signal_handler(number, interrupts.on_signal, number)
    try:
        yield interrupts
    finally:
        for number in _available_signals():
            with suppress(NotImplementedError, RuntimeError):
                loop.remove_signal_handler(number)
            if interrupts.requested.is_set():
                _exit_on_later_signal(number)


def _available_signals() -> list[int]:
    return [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]


def _exit_now(number: int, _frame: object) -> None:
    os._exit(128 + number)


def _exit_on_later_signal(number: int) -> None:
    """Lets a further signal after an interrupt exit immediately while the result is printed. At interpreter shutdown
    signals are ignored: Python removes its handlers then, and a late signal would change the exit code."""
    signal.signal(number, _exit_now)
    atexit.register(signal.signal, number, signal.SIG_IGN)


def run_prompt(arguments: Namespace) -> int:
    """Runs the command, and returns its exit code."""
    parts = _first_prompt(arguments)
    return asyncio.run(RunCommand(arguments, Console()).run(parts))


def _first_prompt(arguments: Namespace) -> list[TextPart | FilePart]:
    """Returns the prompt of the command line, which may be empty with an input stream. Raises ConfigurationError if an
    option does not fit the formats."""
    resumes = bool(arguments.session or arguments.resume)
    if arguments.input_format == "text":
        return prompt_parts(arguments.prompt, arguments.file, resumes=resumes)
    if "stream" not in arguments.output_format:
        raise ConfigurationError("--input-format stream-json needs --output-format stream-json")
    if STDIN_WORD in arguments.prompt:
        raise ConfigurationError("with --input-format stream-json, stdin has the input lines; omit -")
    return prompt_parts(arguments.prompt, arguments.file) if arguments.prompt else []


def create_printer(output_format: str, console: Console, *, deltas: bool | None = None) -> RunPrinter:
    """Returns the printer of an output format. `deltas` selects whether a stream has chunks of answers; None is the
    default of the format."""
    pipe = StdoutPipe(console)
    match output_format:
        case "json":
            return RunJsonPrinter(pipe)
        case "stream-json":
            from outrider.cli.commands.run_stream import RunStreamPrinter  # lazy: other formats do not need it

            return RunStreamPrinter(pipe, deltas=deltas is not False)
        case "claude-stream-json":
            from outrider.cli.commands.run_claude import ClaudeStreamPrinter

            return ClaudeStreamPrinter(pipe, deltas=bool(deltas))
        case _:
            return RunTextPrinter(pipe, for_terminal=console.out_is_terminal)


class RunCommand:
    """Runs one prompt in a local or remote session, prints events as they arrive, and returns the exit code."""

    def __init__(self, arguments: Namespace, console: Console) -> None:
        self._arguments = arguments
        self._console = console
        self._stats = RunStats()
        self._schema = None if arguments.output_schema is None else read_output_schema(arguments.output_schema)
        self._denied_reads: tuple[Sequence[str], Path] = ((), Path.cwd())

    async def run(self, parts: Sequence[PartBase]) -> int:
        opening_target = await self._select_target()
        printer = create_printer(self._arguments.output_format, self._console, deltas=self._arguments.deltas)
        with handle_interrupts() as interrupts:
            async with opening_target as target:
                self._subscribe_listeners(target, printer)
                printer.start(target.info)
                if self._streams_input:
                    result = await self._run_input(target, printer, parts, interrupts)
                else:
                    result = await self._run_turn(target, parts, interrupts)
        if result is not None and not self._streams_input:
            printer.finish(result)
        if result is not None:
            self._print_summary(result)
        if self._console.write_error is not None:
            raise self._console.write_error
        return exit_codes.SUCCESS if result is None else result.exit_code

    @property
    def _streams_input(self) -> bool:
        return self._arguments.input_format == "stream-json"

    async def _run_turn(
        self, target: RunTarget, parts: Sequence[PartBase], interrupts: InterruptState, input_id: str = ""
    ) -> HeadlessResult:
        started = monotonic()
        end = await _run_turn(target, parts, interrupts)
        duration_ms = round((monotonic() - started) * 1000)
        value, problem = _schema_value(end) if self._schema is not None else (msgspec.UNSET, "")
        return HeadlessResult(
            target.info, end, self._stats, duration_ms, interrupts.exit_code, input_id, value, problem
        )

    async def _run_input(
        self, target: RunTarget, printer: RunPrinter, parts: Sequence[PartBase], interrupts: InterruptState
    ) -> HeadlessResult | None:
        """Runs a turn for each prompt of the input; returns the last result, None if there was no prompt."""
        from outrider.cli.commands.run_input import StreamInput, StreamPrinter  # lazy: most runs have one prompt

        last_result: HeadlessResult | None = None

        async def run_turn(parts: Sequence[PartBase], input_id: str) -> None:
            nonlocal last_result
            self._stats = RunStats()
            last_result = await self._run_turn(target, parts, interrupts, input_id)
            printer.finish(last_result)

        stream = StreamInput(target, cast("StreamPrinter", printer), self._attach_input_file, interrupts.requested)
        await stream.run(parts, run_turn)
        return last_result

    async def _select_target(self) -> AbstractAsyncContextManager[RunTarget]:
        if self._arguments.attach:
            from outrider.cli.commands.run_attached import (
                open_remote_target,  # imported late: a local run does not need the remote client
            )

            return open_remote_target(self._arguments)
        resumed = await find_resumed_session(self._arguments)
        return self._open_local_target(self._load_settings(resumed), resumed)

    @asynccontextmanager
    async def _open_local_target(
        self, settings: Settings, resumed: ResumedSession | None
    ) -> AsyncGenerator[RunTarget, None]:
        questions = self._create_questions(settings)
        async with standard_engine(
            settings,
            workspace=settings.workspace,
            attended=questions is not None,
            bus=questions.bus if questions else None,
            ask=questions.ask if questions else None,
            titles=False,
        ) as engine:
            info = await self._open_session(engine, settings, resumed)
            session_id = info.session_id
            yield RunTarget(
                info,
                engine.bus.subscribe_all,
                prompt=partial(_prompt_or_continue, engine, session_id, output_type=self._schema),
                abort=partial(_abort_turn, engine, session_id),
                steer=partial(engine.prompt, session_id, delivery="steer"),
                answer=engine.answer,
                answer_question=questions.answer_anywhere if questions else _answer_nothing,
                set_mode=partial(engine.set_mode, session_id),
                set_approval=partial(engine.set_approval, session_id),
            )

    def _create_questions(self, settings: Settings) -> "QuestionQueue | None":
        """Returns the queue of the model's questions, if input lines can answer them."""
        if not self._streams_input:
            return None
        from outrider.engine.frontend import QuestionQueue  # lazy: most runs are unattended

        return QuestionQueue(providers=settings.providers)

    def _attach_input_file(self, file: str) -> FilePart:
        from outrider.engine.frontend import is_denied_file

        deny, workspace = self._denied_reads
        if is_denied_file(Path(file), deny, workspace):
            raise ConfigurationError(f"{file} is not sent: a rule forbids to read it")
        return attach_file(file)

    def _subscribe_listeners(self, target: RunTarget, printer: RunPrinter) -> None:
        target.subscribe(self._count_event)
        target.subscribe(printer.on_event)
        if self._arguments.debug:
            from outrider.engine.session_trace import print_events  # lazy: it is rarely used

            target.subscribe(print_events(self._console.err))
        elif self._arguments.verbose or (self._console.err_is_terminal and not self._arguments.quiet):
            from outrider.cli.commands.run_progress import ProgressPrinter  # lazy: only for a terminal

            session_id = target.info.session_id
            progress = ProgressPrinter(self._console, verbose=self._arguments.verbose, session_id=session_id)
            target.subscribe(progress.on_event)
        elif self._arguments.output_format == "text" and not self._arguments.quiet:
            target.subscribe(self._print_event)

    def _count_event(self, event: Event) -> None:
        self._stats.on_event(event)  # the figures of the current turn

    def _print_event(self, event: Event) -> None:
        """Prints the notice of an event, so that a log shows why nothing happens and what went wrong."""
        has_file = isinstance(event, PartUpdatedEvent) and isinstance(event.part, FilePart)
        if (isinstance(event, ROUTINE_EVENTS) and not has_file) or (
            isinstance(event, SessionUpdatedEvent) and "mcp_servers" not in event.changes
        ):
            return
        from outrider.cli.commands.run_progress import printed_notice  # lazy: most runs have no notices

        if (notice := printed_notice(event, verbose=False)) is not None:
            self._console.print_stderr(f"outrider: {notice.text}", NOTICE_STYLES[notice.level])

    def _load_settings(self, resumed: ResumedSession | None) -> Settings:
        """Returns the settings. A resumed session determines the folder; `--system` replaces the instructions."""
        arguments = self._arguments
        if resumed is not None:
            arguments.cwd = resumed.choose_folder(arguments.cwd)
        settings = settings_from_arguments(arguments)
        if not arguments.quiet:
            for notice in settings.notices:
                self._console.print_stderr(f"outrider: {notice}", "yellow")
            if self._console.err_is_terminal:
                remember_shown_files(settings.workspace, settings.folders)
        self._check_attachments(settings)
        if arguments.system is None:
            return settings
        agent = msgspec.structs.replace(settings.agents[0], instructions=read_text_argument(arguments.system))
        return msgspec.structs.replace(settings, agents=(agent, *settings.agents[1:]))

    def _check_attachments(self, settings: Settings) -> None:
        """Raises ConfigurationError if a deny rule forbids reading a file that is sent with the prompt."""
        self._denied_reads = settings.rules.deny, settings.workspace
        sources = [word[1:] for word in self._arguments.prompt if word.startswith("@") and _names_source(word)]
        for name in (*sources, *self._arguments.file):
            from outrider.engine.frontend import is_denied_file  # lazy: most prompts have no files

            if is_denied_file(Path(name), settings.rules.deny, settings.workspace):
                raise ConfigurationError(f"{name} is not sent: a rule forbids to read it")

    async def _open_session(self, engine: Engine, settings: Settings, resumed: ResumedSession | None) -> RunInfo:
        """Creates or opens the session, and applies `--mode` and `--agent`."""
        agent_name = settings.agents[0].name
        if resumed is None:
            session_id, mode = await engine.create(mode=settings.mode, workspace=settings.workspace), settings.mode
        else:
            session_id = resumed.id
            session = await engine.open(session_id)
            if self._arguments.mode:
                await engine.set_mode(session_id, settings.mode)
            if self._arguments.agent or session.agent not in {agent.name for agent in settings.agents}:
                await engine.set_agent(session_id, agent_name)
            mode = session.mode
        info = RunInfo(session_id, agent_name, settings.model, mode, str(settings.workspace))
        if "stream" not in self._arguments.output_format:
            return info
        # The stream begins when the servers are connected; until then, notices report that the run waits for them.
        unsubscribe = engine.bus.subscribe_all(self._print_event) if not self._arguments.quiet else None
        try:
            return await _with_setup(engine, info)
        finally:
            if unsubscribe is not None:
                unsubscribe()

    @property
    def _attach_option(self) -> str:
        return f" --attach {self._arguments.attach.partition('?')[0]}" if self._arguments.attach else ""

    def _print_summary(self, result: HeadlessResult) -> None:
        """Prints errors, denied calls and usage to stderr."""
        console, quiet = self._console, self._arguments.quiet
        if result.end.error is not None:
            console.print_stderr(f"outrider: {_error_text(result.end.error)}", "red")
        elif result.end.reason != "completed":
            console.print_stderr(f"outrider: the turn stopped early: {result.end.reason.replace('_', ' ')}", "yellow")
        if result.end.reason != "completed" and not quiet:
            self._print_next_step(result)
        unapproved_calls = result.unapproved_calls
        for call in unapproved_calls if not quiet else ():
            from outrider.presentation.tool_calls import call_title

            console.print_stderr(
                f"outrider: denied, because approval is needed: {call_title(call.tool, call.input)}", "yellow"
            )
        if unapproved_calls and not quiet:
            remote = "use --wait-for-approval to let another user answer, or start the server with --allow RULE"
            local = "allow calls with --allow RULE, keep file changes with --approval edits, or use --mode background"
            console.print_stderr(f"outrider: {remote if self._arguments.attach else local}")
        if not quiet and not self._streams_input and _has_unread_input(self._arguments.prompt):
            console.print_stderr("outrider: stdin was not read; pass - to include it in the prompt", "yellow")
        if console.err_is_terminal and not quiet:
            usage = self._stats.usage
            is_free = usage.total_cost is not None and not usage.total_cost  # e.g. the embedded model
            cost = "" if is_free else f", cost {format_cost(usage.total_cost)}"
            facts = f"{format_token_usage(usage.tokens)}{cost}"
            resume = f"outrider run{self._attach_option} --session {short_id(result.info.session_id)} …"
            console.print_stderr(f"{facts}; continue with: {resume}", "dim")

    def _print_next_step(self, result: HeadlessResult) -> None:
        """Prints what to do after a turn that did not complete, and how to continue it."""
        if result.next_step:
            self._console.print_stderr(f"outrider: {result.next_step}")
        command = f"outrider run{self._attach_option} --session {short_id(result.info.session_id)}"
        self._console.print_stderr(f"outrider: continue this turn with: {command}")


def _error_text(error: OutriderError) -> str:
    if not isinstance(error, LimitReachedError) or "maximum" not in error.details:
        return str(error)
    return format_reached_limit(*(str(error.details.get(name, "")) for name in ("limit", "maximum", "reached")))


async def _with_setup(engine: Engine, info: RunInfo) -> RunInfo:
    """Returns the info with the tools of the session and the states of its MCP servers."""
    from outrider.cli.main import program_version
    from outrider.engine.frontend import session_servers, session_tool_specs  # lazy: for the stream formats only

    servers = await session_servers(engine, info.session_id)
    return msgspec.structs.replace(
        info,
        program_version=program_version(),
        tools=tuple(spec.name for spec in await session_tool_specs(engine, info.session_id)),
        servers=tuple(ServerInfo(server.name, server.state, server.error) for server in servers),
    )


async def _answer_nothing(question_id: str, answers: Sequence[str]) -> None:
    raise OutriderError("this run has no questions to answer", id=question_id, answers=list(answers))


def read_output_schema(file: str) -> dict[str, Any]:
    """Returns the JSON schema in a file. Raises ConfigurationError if there is none."""
    content = _read_file(Path(file).expanduser())
    try:
        schema = msgspec.json.decode(content)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{file} is not JSON: {error}") from error
    if not is_object(schema):
        raise ConfigurationError(f"{file} is not a JSON schema: it must be an object")
    return schema


def _schema_value(end: "TurnOutcome") -> tuple[Any, str]:
    """Returns the value of the output schema, or None and why there is none."""
    if end.error is not None:
        return None, end.error.message
    try:
        return end.output, ""
    except OutputUnavailableError as error:
        return None, error.message


async def _prompt_or_continue(
    engine: Engine, session_id: str, parts: Sequence[PartBase], output_type: dict[str, Any] | None
) -> "TurnOutcome":
    """Runs a turn with the prompt. Without one, resumes a turn that was cut off, or lets the model continue."""
    if parts:
        return await engine.prompt(session_id, parts, output_type=output_type)
    from outrider.engine.frontend import was_cut_off  # imported late: most runs have a prompt

    if was_cut_off((await engine.open(session_id)).messages):
        return await engine.resume(session_id, output_type=output_type)
    return await engine.prompt(session_id, CONTINUE_PROMPT, output_type=output_type)


async def _run_turn(target: RunTarget, parts: Sequence[PartBase], interrupts: InterruptState) -> "TurnOutcome":
    """Runs the turn until it ends or is interrupted. After an abort, waits a second for its end, then cancels it."""
    async with asyncio.TaskGroup() as tasks:
        turn = tasks.create_task(_prompt_or_error(target, parts))
        stop = tasks.create_task(interrupts.requested.wait())
        await asyncio.wait((turn, stop), return_when=asyncio.FIRST_COMPLETED)
        if not turn.done():
            await target.abort()
            await asyncio.wait((turn,), timeout=1)
            turn.cancel()
        stop.cancel()
    if not turn.cancelled():
        return turn.result()
    from outrider.engine.archive import TurnEnd  # lazy: most turns have a result

    return TurnEnd("aborted")


async def _abort_turn(engine: Engine, session_id: str) -> None:
    """Aborts the turn and waits at most a second for its end: a tool may ignore that it is cancelled."""
    with suppress(OutriderError, TimeoutError):
        async with asyncio.timeout(1):
            await engine.abort(session_id)


async def _prompt_or_error(target: RunTarget, parts: Sequence[PartBase]) -> "TurnOutcome":
    """Runs the turn; converts an error that is raised before the turn starts into a turn end."""
    try:
        return await target.prompt(parts)
    except OutriderError as error:
        from outrider.engine.archive import TurnEnd

        return TurnEnd("error", error=error)
