"""The MCP server: runs agents and reads sessions for other agents, over stdio or at /mcp of the HTTP server."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, assert_never, cast

import anyio
from mcp import MCPError
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError as McpToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    InputResponses,
    ToolAnnotations,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, Field, create_model
from starlette.routing import BaseRoute

from outrider.config.settings import Settings
from outrider.engine.archive import (
    LAST_SESSION,
    SessionArchive,
    SessionTranscript,
    StoredSession,
    TurnEnd,
    TurnOutcome,
    open_archive,
)
from outrider.engine.engine import Engine
from outrider.engine.factory import standard_engine
from outrider.engine.frontend import archive_of
from outrider.errors import ConfigurationError, OutriderError
from outrider.presentation.approvals import (
    LASTING_COVERS,
    ApprovalChoice,
    ApprovalView,
    WidthView,
    lasting_lines,
    question_text,
    requested_approval_view,
)
from outrider.presentation.formats import escape_control_characters, format_iso_time, replace_surrogates
from outrider.presentation.items import (
    CommandItem,
    FileItem,
    NoticeItem,
    ReasoningItem,
    TextItem,
    ToolCallItem,
    TranscriptItem,
    UserItem,
    damage_notices,
    event_notice,
    message_items,
    other_display,
)
from outrider.server.auth import REQUESTER
from outrider.server.users import SERVER_REQUESTER, Requester
from outrider.types.events import (
    AgentCalledEvent,
    Event,
    PartUpdatedEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
    ToolExecutionStartedEvent,
    TurnStartedEvent,
)
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.parts import FilePart, ToolPart, tool_result
from outrider.types.tool_state import ToolError

_log = logging.getLogger("outrider.mcp")

MAX_OUTPUT_CHARS = 2_000  # characters per tool output


def render_transcript(transcript: SessionTranscript) -> str:
    session = transcript.session
    head = f"# {session.title or 'untitled'}\nsession {session.id}, in {session.workspace_directory or 'no folder'}"
    earlier = [] if transcript.first else ["(earlier messages are left out)"]
    messages = (_render_message(message) for message in transcript.messages)
    damage = (f"[{notice.text}]" for notice in damage_notices(transcript))
    return replace_surrogates("\n\n".join([head, *earlier, *messages, *damage]))


def _render_message(message: Message) -> str:
    author = "user" if message.role == "user" else message.agent or "assistant"
    items = cast("Iterable[TranscriptItem]", message_items(message))
    visible_items = (item for item in items if not item.withdrawn)  # a model would read what was withdrawn as an answer
    return "\n".join([f"## {author}", *(text for item in visible_items for text in _render_item(item))])


def _render_item(item: TranscriptItem) -> Iterator[str]:
    match item:
        case UserItem():
            yield from [item.text] if item.text.strip() else []
            yield from (_render_file(file) for file in item.files)
        case ReasoningItem():
            pass  # another agent needs the answers, not how they came about
        case TextItem():
            yield item.text
        case ToolCallItem():
            yield _render_call(item.part)
        case FileItem():
            yield _render_file(item.part)
        case NoticeItem():
            if item.level != "detail":
                yield f"[{item.text}]\n{item.body}".rstrip()
        case CommandItem():
            yield f"[the user ran {item.command}]\n{_shorten_output(item.output)}".rstrip()
        case _:
            assert_never(item)


def _render_file(file: FilePart) -> str:
    return f"[file {file.filename or file.mime}]"


def _render_call(call: ToolPart) -> str:
    result = tool_result(call)
    if result is None:
        return f"[{call.tool} {call.state.input}: {call.state.status}]"
    return f"[{call.tool} {call.state.input}: {call.state.status}]\n{_shorten_output(result.content)}"


def _shorten_output(text: str) -> str:
    return text if len(text) <= MAX_OUTPUT_CHARS else f"{text[:MAX_OUTPUT_CHARS]}… ({len(text)} characters)"


RestrictedMode = Literal["chat", "plan"]
ProgressCallback = Callable[[float, str], Awaitable[None]]
MCP_SENDER = "mcp"


@dataclass(frozen=True)  # the MCP SDK derives a JSON schema from it
class RunReport:
    """The result of `run_agent`. `ended` is "completed" or why the turn stopped early; `refused` lists calls that were
    denied because no user can approve them here."""

    session_id: str
    output: str
    ended: str
    refused: list[str]


class ApprovalForm(BaseModel):
    """The answer of the calling agent's user to an approval. `create_approval_form` adds the choices, whose labels the
    user sees."""

    answer: str
    reason: str = Field(default="", description="why not, for the agent", max_length=2_000)

    def value_of(self, field: str) -> str:
        """Returns the value of a field that not every form has."""
        return str(getattr(self, field, ""))


AskClient = Callable[[str, type[ApprovalForm]], Awaitable[ApprovalForm | None]]
"""Asks the user of the calling agent; None if no answer was given."""


def form_text(view: ApprovalView) -> str:
    """Returns the complete question with what a lasting answer covers."""
    lasting = "".join(f"\n- {line}" for line in lasting_lines(view))
    return question_text(view) + (f"\n\n{LASTING_COVERS}:{lasting}" if lasting else "")


def _too_long_text(view: ApprovalView, text: str) -> str:
    """Returns the text of a form that can only deny, because the form cannot show all that a yes would approve."""
    excerpt = text[:MAX_SHORTENED_CHARS]
    return (
        f"This question has {len(text):,} characters, too many for this form, which therefore offers no yes. To read "
        f"and answer all of it, open session {view.session_id} on the web page of the server; `outrider serve` on this "
        f"machine starts one. This form then closes. It begins:\n\n{excerpt}\n\n… {len(text) - len(excerpt):,} more "
        "characters are not shown here."
    )


def create_approval_form(view: ApprovalView, *, allows: bool = True) -> type[ApprovalForm]:
    """Returns a form with the choices of an approval; without `allows` it can only deny. A denial has a field for its
    reason, so that it is one choice."""
    choices, widths = _form_choices(view, allows=allows), _form_widths(view) if allows else {}
    denial = next(label for label, choice in choices.items() if choice.kind == "deny")
    fields: dict[str, Any] = {"answer": (Literal[tuple(choices)], denial)}
    if any(choice.picks_files for choice in choices.values()):
        fields["files"] = (str, Field(default="", description="names or patterns of files to keep", max_length=2_000))
    if len(widths) > 1:
        about = f"what {LASTING_COVERS}; the question names the rules"
        fields["width"] = (Literal[tuple(widths)], Field(default=next(iter(widths)), description=about))
    return create_model("ApprovalForm", __base__=ApprovalForm, **fields)


def read_answer(view: ApprovalView, form: ApprovalForm | None) -> dict[str, Any]:
    """Returns the keyword arguments of `Engine.answer` for a form; without an answer the call is denied."""
    choice = _form_choices(view).get(form.answer) if form is not None else None
    if form is None or choice is None:
        return view.answer("")
    width = _form_widths(view).get(form.value_of("width"))
    text = form.value_of("files") if choice.picks_files else form.reason
    return view.answer(choice.id, text, width=width.id if width is not None else "")


def _form_choices(view: ApprovalView, *, allows: bool = True) -> dict[str, ApprovalChoice]:
    return {
        escape_control_characters(choice.label): choice
        for choice in view.choices
        if not choice.needs_reason and (allows or choice.kind == "deny")
    }


def _form_widths(view: ApprovalView) -> dict[str, WidthView]:
    """Returns the widths by label. Labels are not shortened, because those of long paths could become equal."""
    return {escape_control_characters(width.label): width for width in view.widths}


class McpRunner:
    """Runs prompts in sessions of one workspace. `attended` is the engine for callers whose user can be asked for
    approvals, `alone` the one for all others."""

    def __init__(self, attended: Engine, alone: Engine, settings: Settings) -> None:
        self._attended = attended
        self._alone = alone
        self._settings = settings

    async def run_prompt(
        self,
        prompt: str,
        session_id: str,
        mode: RestrictedMode | None,
        report: ProgressCallback,
        ask: AskClient | None = None,
        owner: str = "",
    ) -> RunReport:
        """Runs a turn and returns its result; a new session belongs to `owner`. Raises OutriderError if the model or
        the session cannot be used."""
        if not prompt.strip():
            raise ConfigurationError("the prompt is empty")
        engine = self._attended if ask else self._alone
        session_id = await self._open_session(engine, session_id, mode, owner)
        progress = _RunProgress(session_id, report)
        async with asyncio.TaskGroup() as tasks:
            approvals = _ApprovalForms(engine, session_id, ask, tasks) if ask else None
            unsubscribes = [engine.bus.subscribe_all(progress.handle_event)]
            if approvals is not None:
                event_types = (AgentCalledEvent, ToolApprovalRequestedEvent, ToolApprovalResultEvent)
                unsubscribes.append(engine.bus.subscribe(event_types, approvals.handle_event))
            try:
                end = await self._run_turn(engine, session_id, prompt)
                await engine.bus.settled()
            finally:
                for unsubscribe in unsubscribes:
                    unsubscribe()
                if approvals is not None:
                    approvals.close()
        if end.error is not None:
            raise end.error
        return RunReport(
            session_id=session_id, output=replace_surrogates(end.output), ended=end.reason, refused=progress.refused
        )

    async def _open_session(self, engine: Engine, session_id: str, mode: RestrictedMode | None, owner: str) -> str:
        """Opens a session of this server's workspace in the same mode as a new one, or creates one."""
        effective_mode = mode or self._settings.mode
        if not session_id:
            return await engine.create(mode=effective_mode, workspace=self._settings.workspace, owner=owner)
        stored = await engine.store.get(session_id)
        if stored.workspace_directory != str(self._settings.workspace):
            raise OutriderError(f"session {session_id} belongs to another folder: {stored.workspace_directory}")
        await engine.open(session_id)
        await engine.set_mode(session_id, effective_mode)
        return session_id

    async def _run_turn(self, engine: Engine, session_id: str, prompt: str) -> TurnOutcome:
        try:
            return await engine.prompt(session_id, prompt, sender=MCP_SENDER)
        except OutriderError as error:  # not raised here: a task group would wrap it
            return TurnEnd("error", error=error)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await engine.abort(session_id)
            raise


class _ApprovalForms:
    """Asks the user of the calling agent for each approval of a run and of the agents that it calls. The form is
    cancelled if another front end answers first."""

    def __init__(self, engine: Engine, session_id: str, ask: AskClient, tasks: asyncio.TaskGroup) -> None:
        self._engine = engine
        self._sessions = {session_id}
        self._ask = ask
        self._group = tasks
        self._open: dict[str, asyncio.Task[None]] = {}

    def handle_event(self, event: AgentCalledEvent | ToolApprovalRequestedEvent | ToolApprovalResultEvent) -> None:
        match event:
            case AgentCalledEvent():
                if event.session_id in self._sessions:
                    self._sessions.add(event.child_session_id)
            case ToolApprovalRequestedEvent():
                if event.session_id in self._sessions:
                    self._open[event.approval_id] = self._group.create_task(self._answer(event))
            case ToolApprovalResultEvent():
                if (task := self._open.pop(event.approval_id, None)) is not None:
                    task.cancel()
            case _:
                assert_never(event)

    def close(self) -> None:
        for task in self._open.values():
            task.cancel()

    async def _answer(self, event: ToolApprovalRequestedEvent) -> None:
        view = requested_approval_view(event)
        text = form_text(view)
        fits = len(text) <= MAX_APPROVAL_CHARS
        form = await self._ask(text if fits else _too_long_text(view, text), create_approval_form(view, allows=fits))
        self._open.pop(event.approval_id, None)  # its own answer must not cancel this task
        with suppress(OutriderError):  # another front end was faster
            await self._engine.answer(event.approval_id, by=MCP_SENDER, **read_answer(view, form))


class _RunProgress:
    """Reports progress of a run and collects its denied calls."""

    def __init__(self, session_id: str, report: ProgressCallback) -> None:
        self._session_id = session_id
        self._report = report
        self._steps = 0
        self.refused: list[str] = []

    async def handle_event(self, event: Event) -> None:
        if event.session_id != self._session_id:
            return
        match event:
            case TurnStartedEvent():
                await self._report_step("thinking")
            case ToolExecutionStartedEvent():
                await self._report_step(event.tool_name)
            case PartUpdatedEvent(part=ToolPart(tool=tool, state=ToolError(reason="denied", error=error))):
                self.refused.append(f"{tool}: {error}")
            case _:
                await self._report_notice(event)

    async def _report_notice(self, event: Event) -> None:
        notice = event_notice(event)
        if notice is None or notice.level == "detail":
            return
        match display := other_display(event):
            case "activity" | "message" | "call" | None:
                await self._report_step(notice.text)
            case "approval":
                pass  # the form asks
            case _:
                assert_never(display)

    async def _report_step(self, activity: str) -> None:
        self._steps += 1
        await self._report(self._steps, activity)


class PausedRun:
    """A run for a client that cannot be asked during a request (protocol 2026-07-28). If it needs approvals, the
    request ends with the questions, and the client repeats the request with the answers. Approvals that wait longer
    than MAX_PAUSE_SECONDS are denied."""

    def __init__(self) -> None:
        self.id = new_id()
        self.report: ProgressCallback = _report_nothing
        self._questions: dict[str, _FormQuestion] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._end: RunReport | OutriderError | None = None

    @property
    def has_ended(self) -> bool:
        return self._end is not None

    def start(self, tasks: asyncio.TaskGroup, work: Awaitable[RunReport]) -> None:
        self._task = tasks.create_task(self._finish(work))

    async def ask(self, text: str, form: type[ApprovalForm]) -> ApprovalForm | None:
        """Waits for the answer to a question, which the next result of the request carries."""
        key, question = new_id(), _FormQuestion(text, form, asyncio.get_running_loop().create_future())
        self._questions[key] = question
        self._changed.set()
        try:
            async with asyncio.timeout(MAX_PAUSE_SECONDS):
                return await question.answer
        except TimeoutError:
            return None
        finally:
            del self._questions[key]

    async def report_progress(self, step: float, doing: str) -> None:
        await self.report(step, doing)

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def take_answers(self, responses: InputResponses | None) -> None:
        for key, response in (responses or {}).items():
            question = self._questions.get(key)
            if question is not None and not question.answer.done() and isinstance(response, ElicitResult):
                question.answer.set_result(_read_form(response, question.form))

    async def wait(self, report: ProgressCallback) -> RunReport | InputRequiredResult:
        """Returns the report of the run, or the questions that it waits for. Raises OutriderError if the run failed. If
        the request is cancelled, so is the run."""
        self.report = report
        try:
            while self._end is None:
                if requests := self._unanswered():
                    return InputRequiredResult(input_requests=requests, request_state=self.id)
                self._changed.clear()
                await self._changed.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            self.report = _report_nothing
        if isinstance(self._end, OutriderError):
            raise self._end
        return self._end

    def _unanswered(self) -> dict[str, InputRequest]:
        return {
            key: ElicitRequest(params=question.params)
            for key, question in self._questions.items()
            if not question.answer.done()
        }

    async def _finish(self, work: Awaitable[RunReport]) -> None:
        try:
            self._end = await work
        except OutriderError as error:
            self._end = error
        except Exception as error:  # noqa: BLE001  the task group would end the server with all other runs
            _log.exception("a run failed")
            self._end = OutriderError(f"the run failed: {error}")
        finally:
            if self._end is None:
                self._end = OutriderError("the run was cancelled")
            self._changed.set()


async def _report_nothing(step: float, doing: str) -> None:
    """Reports nothing, because the client waits for no result at the moment."""


@dataclass(frozen=True, eq=False)
class _FormQuestion:
    text: str
    form: type[ApprovalForm]
    answer: asyncio.Future[ApprovalForm | None]

    @property
    def params(self) -> ElicitRequestFormParams:
        return ElicitRequestFormParams(message=self.text, requested_schema=self.form.model_json_schema())


def _read_form(response: ElicitResult, form: type[ApprovalForm]) -> ApprovalForm | None:
    try:
        return form.model_validate(response.content or {}) if response.action == "accept" else None
    except ValueError:
        return None


MAX_PAUSE_SECONDS = 1800.0
MAX_PAUSED_RUNS = 20

INSTRUCTIONS = """\
Outrider is a coding agent that works in one folder of this machine. `run_agent` gives it work and waits for the end; \
it reads, searches, and changes what its user's rules allow. `search_sessions` and `read_session` search and show \
earlier sessions of this folder."""
MAX_APPROVAL_CHARS = 20_000  # of a question that a form can approve; the protocol has no limit
MAX_SHORTENED_CHARS = 2_000  # of a longer question, in the form that can only deny it
MAX_LISTED = 50
MAX_HITS = 100
MAX_SEARCHED = 1_000  # hits that are read to find those of the folder
MAX_MESSAGES = 200
_READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_DESTRUCTIVE = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)


@dataclass(frozen=True)
class SessionMatch:
    session_id: str
    title: str
    kind: str
    snippet: str


class McpTools:
    """The MCP tools. Without a configured model `runner` is None and `missing` states why; stored sessions can still be
    read."""

    def __init__(
        self, archive: SessionArchive, runs: McpRunner | None, settings: Settings, tasks: asyncio.TaskGroup
    ) -> None:
        self._archive = archive
        self._tasks = tasks
        self._paused: dict[str, PausedRun] = {}
        self._runner = runs
        self._missing = settings.missing
        self._folder = None if settings.mcp_all_sessions else str(settings.workspace)

    async def run_agent(
        self,
        prompt: Annotated[str, Field(description="The work, with all that the agent needs to know.")],
        ctx: Context[Any, Any],
        session_id: Annotated[str, Field(description="Continue this session of the same folder.")] = "",
        mode: Annotated[
            RestrictedMode | None,
            Field(description="Less than the agent may otherwise do: plan only reads, chat only talks."),
        ] = None,
    ) -> RunReport | InputRequiredResult:
        """Let an agent work on a task, and wait for its answer. Approvals are asked for with elicitation if you support
        it; else calls that need one are refused and named."""
        if self._runner is None:
            raise McpToolError(self._missing)

        async def report(step: float, doing: str) -> None:
            await ctx.report_progress(step, None, doing)

        try:
            if _can_repeat(ctx):
                run = self._find_run(ctx.request_state)
                run = run or self._start_run(self._runner, prompt, session_id, mode, _find_owner(ctx))
                run.take_answers(ctx.input_responses)
                return await self._wait_for_run(run, report)
            return await self._runner.run_prompt(prompt, session_id, mode, report, _client_form(ctx), _find_owner(ctx))
        except OutriderError as error:
            raise McpToolError(str(error)) from error

    def _find_run(self, request_state: str | None) -> PausedRun | None:
        """Returns the run that a repeated request continues. Raises OutriderError if it has ended."""
        if request_state is None:
            return None
        if request_state not in self._paused:
            raise OutriderError("this run has ended; read its session, and call `run_agent` with its id to continue")
        return self._paused[request_state]

    def _start_run(
        self, runner: McpRunner, prompt: str, session_id: str, mode: RestrictedMode | None, owner: str
    ) -> PausedRun:
        if len(self._paused) >= MAX_PAUSED_RUNS:  # some may have ended without an answer; the client never returned
            self._paused = {id: run for id, run in self._paused.items() if not run.has_ended}
        if len(self._paused) >= MAX_PAUSED_RUNS:
            raise OutriderError(f"{MAX_PAUSED_RUNS} runs wait for approvals already; answer them first")
        run = PausedRun()
        run.start(self._tasks, runner.run_prompt(prompt, session_id, mode, run.report_progress, run.ask, owner))
        return run

    async def _wait_for_run(self, run: PausedRun, report: ProgressCallback) -> RunReport | InputRequiredResult:
        self._paused.pop(run.id, None)
        result = await run.wait(report)
        if isinstance(result, InputRequiredResult):
            self._paused[run.id] = run
        return result

    def close(self) -> None:
        """Cancels the runs that wait for approvals."""
        for run in self._paused.values():
            run.cancel()

    async def search_sessions(
        self,
        words: Annotated[str, Field(description="Words of a title, a message or tool output.")],
        limit: Annotated[int, Field(ge=1, le=MAX_HITS)] = 20,
    ) -> list[SessionMatch]:
        """Find earlier sessions. In a snippet, « and » stand around the words."""
        try:
            hits = await self._archive.search(words, limit=limit if self._folder is None else MAX_SEARCHED)
            readable = {id: await self._is_readable(id) for id in dict.fromkeys(hit.session_id for hit in hits)}
        except OutriderError as error:
            raise McpToolError(str(error)) from error
        matches = [hit for hit in hits if readable[hit.session_id]][:limit]
        return [
            SessionMatch(session_id=hit.session_id, title=hit.title, kind=hit.kind, snippet=hit.snippet)
            for hit in matches
        ]

    async def _is_readable(self, session_id: str) -> bool:
        if self._folder is None:
            return True
        return (await self._archive.store.get(session_id)).workspace_directory == self._folder

    async def read_session(
        self,
        session_id: Annotated[str, Field(description="An id, the end of one, or `last`.")],
        last: Annotated[int, Field(ge=1, le=MAX_MESSAGES, description="How many messages from its end.")] = 20,
    ) -> str:
        """Read a session as text: its messages, and the results of its tool calls."""
        try:
            session = await self._find_session(session_id)
            return render_transcript(await self._archive.load(session.id, last=last))
        except OutriderError as error:
            raise McpToolError(str(error)) from error

    async def _find_session(self, session_id: str) -> StoredSession:
        """Returns a session that may be read. Raises OutriderError for one of another folder."""
        if session_id == LAST_SESSION and self._folder is not None:
            listed = await self._archive.list_sessions(1, workspace=Path(self._folder))
            session_id = listed[0].id if listed else session_id
        session = await self._archive.find_session(session_id)
        if self._folder is not None and session.workspace_directory != self._folder:
            raise OutriderError(
                f"session {session.id} belongs to another folder; `mcp_all_sessions = true` in the settings allows it"
            )
        return session

    async def list_sessions(self) -> str:
        """The latest sessions of the folder: id, title and time of the last change, one per line."""
        folder = Path(self._folder) if self._folder is not None else None
        sessions = await self._archive.list_sessions(MAX_LISTED, workspace=folder)
        return replace_surrogates("\n".join(map(_session_line, sessions))) or "There are no sessions."

    async def get_transcript(self, session_id: str) -> str:
        """The end of a session as text: its messages, and the results of its tool calls."""
        return await self.read_session(session_id, MAX_MESSAGES)

    def review_changes(
        self, focus: Annotated[str, Field(description="what to look at most, for example security")] = ""
    ) -> str:
        """Have the uncommitted changes of the folder reviewed by an agent."""
        about = f" Look at this first: {focus}." if focus.strip() else ""
        return (
            "Call `run_agent` with mode `plan` and this task: review the uncommitted changes of this repository (`git "
            "diff HEAD` and untracked files). Read the changed code and what calls it, and report bugs, missed cases "
            f"and missing tests by severity, each with file, line and a fix.{about} Then give me its report, shortened."
        )

    async def continue_session(
        self,
        session_id: Annotated[str, Field(description="an id, the end of one, or `last`")],
        task: Annotated[str, Field(description="what to do next")] = "",
    ) -> str:
        """Continue an earlier session of the folder."""
        transcript = await self.read_session(session_id)
        following = task.strip() or "Find out what was left open, and finish it."
        return (
            f"This is an earlier session of the agent Outrider:\n\n{transcript}\n\nContinue it: call `run_agent` "
            f"with its session id and this task: {following}"
        )


def _session_line(session: StoredSession) -> str:
    updated = format_iso_time(session.time.updated if session.time else 0, "minutes")
    return f"{session.id}  {updated}  {session.title or 'untitled'}"


def _find_owner(ctx: "Context[Any, Any]") -> str:
    """Returns the user of the server who sends a request; "" for the holder of its token, and over standard input."""
    request = ctx.request_context.request
    requester: Requester = request.scope.get(REQUESTER, SERVER_REQUESTER) if request else SERVER_REQUESTER
    return requester.owner


def _can_repeat(ctx: "Context[Any, Any]") -> bool:
    """Returns whether the client answers questions by repeating its request, as in the protocol of 2026-07-28."""
    offered = ctx.client_capabilities
    return offered is not None and offered.elicitation is not None and ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def _client_form(ctx: "Context[Any, Any]") -> AskClient | None:
    """Returns a function that asks the user of the calling agent, or None if the client cannot be asked."""
    offered = ctx.client_capabilities
    if offered is None or offered.elicitation is None or not ctx.session.can_send_request:
        return None

    async def ask(text: str, form: type[ApprovalForm]) -> ApprovalForm | None:
        try:
            result = await ctx.elicit(text, form)
        except (MCPError, ValueError):
            return None
        return result.data if result.action == "accept" else None

    return ask


async def serve_mcp_stdio(settings: Settings, version: str) -> None:
    """Serves MCP on stdin and stdout until the client closes stdin."""
    async with AsyncExitStack() as stack:
        if settings.missing:
            archive, runner = await stack.enter_async_context(open_archive(settings.folders.store_file)), None
        else:
            engine = await stack.enter_async_context(
                standard_engine(settings, workspace=settings.workspace, attended=False)
            )
            attended = await stack.enter_async_context(engine.replace(attended=True))
            archive, runner = archive_of(engine), McpRunner(attended, engine, settings)
        tools = McpTools(archive, runner, settings, await stack.enter_async_context(asyncio.TaskGroup()))
        stack.callback(tools.close)
        await create_mcp_server(tools, version).run_stdio_async()


def create_mcp_server(tools: McpTools, version: str) -> "MCPServer[Any]":
    server = MCPServer[Any](
        "outrider", title="Outrider", instructions=INSTRUCTIONS, version=version, log_level="WARNING"
    )
    server.add_tool(tools.run_agent, annotations=_DESTRUCTIVE)
    server.add_tool(tools.search_sessions, annotations=_READ_ONLY)
    server.add_tool(tools.read_session, annotations=_READ_ONLY)
    text = "text/plain"
    server.resource("outrider://sessions", name="sessions", mime_type=text)(tools.list_sessions)
    server.resource("outrider://sessions/{session_id}", name="session", mime_type=text)(tools.get_transcript)
    server.prompt()(tools.review_changes)
    server.prompt()(tools.continue_session)
    return server


MAX_MCP_SESSIONS = 100  # concurrent MCP sessions
# The request guard checks Host and Origin before every route.
_TRANSPORT_SECURITY = TransportSecuritySettings(enable_dns_rebinding_protection=False)


@asynccontextmanager
async def mcp_routes(engine: Engine, settings: Settings, version: str) -> AsyncGenerator[Sequence[BaseRoute], None]:
    """Yields the routes of /mcp. Approvals are asked for with elicitation; for clients that do not support it, the
    engine is unattended."""
    async with AsyncExitStack() as stack:
        alone = await stack.enter_async_context(engine.replace(attended=False))
        attended = await stack.enter_async_context(engine.replace(attended=True))
        runner = McpRunner(attended, alone, settings)
        tools = McpTools(archive_of(alone), runner, settings, await stack.enter_async_context(asyncio.TaskGroup()))
        stack.callback(tools.close)
        server = create_mcp_server(tools, version)
        routes = server.streamable_http_app(
            transport_security=_TRANSPORT_SECURITY, max_sessions=MAX_MCP_SESSIONS
        ).routes
        async with server.session_manager.run():
            yield routes
