"""The interface between a front end and an engine in this or another process."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from outrider.agents.turn_state import TurnOutcome
from outrider.config.settings import Settings
from outrider.engine.archive import SessionArchive
from outrider.engine.engine import Engine
from outrider.engine.frontend import (
    ContextShare,
    archive_of,
    background_processes,
    complete_input,
    context_limit,
    context_shares,
    end_process,
    list_models,
    list_offers,
    list_servers,
    read_process_output,
    run_embedded_command,
    run_user_command,
    send_to_background,
)
from outrider.engine.plans import ProposedPlan
from outrider.engine.questions import AskedQuestion, QuestionQueue
from outrider.engine.undo_history import RestoreResult
from outrider.event_bus import EventStream
from outrider.processes.supervisor import ProcessStatus
from outrider.sessions.records import Approval, ApprovalScope, Delivery, InboxItem
from outrider.sessions.session import Session
from outrider.sessions.snapshots.restore import Direction
from outrider.types.agents import Agent, Mode
from outrider.types.modes import ApprovalLevel, ReasoningEffort
from outrider.types.outcomes import OutcomeChoice
from outrider.types.parts import ModelRef, PartBase, ToolPart
from outrider.types.request import ServerOverview

if TYPE_CHECKING:
    from outrider.project.mcp import ServerOffers
    from outrider.project.mcp_completion import InputCompletion


class OpenSession(Protocol):
    """An open session. Without `has_all_messages` it holds only the latest messages; the archive has all."""

    @property
    def has_all_messages(self) -> bool: ...

    @property
    def session(self) -> Session: ...

    @property
    def in_turn(self) -> bool: ...

    @property
    def agent(self) -> Agent:
        """The agent that answers, with the model that was chosen for it."""
        ...

    async def use_model(self, model: ModelRef | None) -> None: ...

    async def use_effort(self, effort: ReasoningEffort | None) -> None: ...


class FileRestorer(Protocol):
    """Preview, undo and redo of file changes."""

    async def preview(self, direction: Direction = "undo") -> RestoreResult: ...

    async def undo(self) -> RestoreResult: ...

    async def redo(self) -> RestoreResult: ...


class CompactionTokens(Protocol):
    """The numbers of tokens before and after a compaction."""

    @property
    def tokens_before(self) -> int | None: ...

    @property
    def tokens_after(self) -> int | None: ...


class EngineClient(Protocol):
    """What a front end uses of an engine; see `Engine` for each method."""

    @property
    def live(self) -> Mapping[str, OpenSession]: ...

    def events(self) -> EventStream: ...

    async def create(
        self, *, mode: Mode | None, agent: str | None, workspace: Path | None, approval: ApprovalLevel | None = None
    ) -> str: ...

    async def open(self, session_id: str, *, take_over: bool = False) -> Session: ...

    async def prompt(
        self,
        session_id: str,
        content: str | Sequence[str | PartBase],
        *,
        delivery: Delivery = "queue",
        input_id: str | None = None,
        sender: str = "",
    ) -> TurnOutcome: ...

    async def resume(self, session_id: str) -> TurnOutcome: ...

    async def abort(self, session_id: str) -> None: ...

    async def queued(self, session_id: str) -> Sequence[InboxItem]: ...

    async def withdraw(self, session_id: str, input_id: str) -> bool: ...

    async def plan(self, session_id: str) -> ProposedPlan | None: ...

    async def accept_plan(self, session_id: str, changed: str | None = None, *, by: str = "") -> TurnOutcome: ...

    async def refuse_plan(self, session_id: str, words: str = "", *, by: str = "") -> TurnOutcome: ...

    async def compact(self, session_id: str, instructions: str = "") -> CompactionTokens | None: ...
    async def undo_compaction(self, session_id: str) -> bool: ...

    async def set_mode(self, session_id: str, mode: Mode) -> None: ...

    async def set_approval(self, session_id: str, level: ApprovalLevel) -> None: ...

    async def set_agent(self, session_id: str, agent: str) -> None: ...

    async def rename(self, session_id: str, title: str) -> None: ...

    async def approvals(self, session_id: str | None = None) -> Sequence[Approval]: ...

    async def answer(
        self,
        approval_id: str,
        *,
        allow: bool,
        scope: ApprovalScope = "once",
        by: str = "",
        words: str = "",
        keep: tuple[str, ...] | None = None,
        choice: OutcomeChoice = "keep",
        width: str = "",
    ) -> Approval: ...

    def file_changes(self, session_id: str) -> FileRestorer: ...


class RemoteConnection(Protocol):
    """Whether the server of a remote engine answers. While it does not, `next_attempt` is the monotonic time of the
    next request. A front end sets `on_change`."""

    on_change: Callable[[], object]

    @property
    def is_away(self) -> bool: ...

    @property
    def next_attempt(self) -> float: ...

    async def wait_until_reachable(self) -> None: ...


class SessionClient(Protocol):
    """What a front end uses of an engine in this process or on a server. `settings` are the settings of the process in
    which the engine runs. `folder` is the workspace of new sessions, whose sessions are listed first; with None, the
    server chooses it."""

    @property
    def engine(self) -> EngineClient: ...

    @property
    def archive(self) -> SessionArchive: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def folder(self) -> Path | None: ...

    @property
    def is_remote(self) -> bool:
        """Whether the engine, and so the workspace, is on a server."""
        ...

    @property
    def connection(self) -> RemoteConnection | None:
        """The connection to the server; None if the engine is in this process."""
        ...

    async def list_models(self) -> Sequence[str]:
        """Returns the models that a session can switch to, as PROVIDER/MODEL."""
        ...

    @property
    def providers(self) -> Sequence[str]: ...

    def context_limit(self, session_id: str, model: ModelRef) -> int | None: ...

    async def context_shares(self, session_id: str) -> Sequence[ContextShare]:
        """Returns what the next prompt of a session consists of; an empty list if the engine does not know."""
        ...

    async def list_servers(self) -> Sequence[ServerOverview]:
        """Returns the state of each MCP server."""
        ...

    async def list_offers(self) -> "ServerOffers":
        """Returns the prompts and resources of the MCP servers that are ready."""
        ...

    async def complete_input(self, text: str) -> "InputCompletion":
        """Returns how MCP servers complete the end of an input."""
        ...

    async def list_processes(self, session_id: str) -> Sequence[ProcessStatus]:
        """Returns the background processes of a session."""
        ...

    async def end_process(self, session_id: str, process_id: str) -> bool: ...

    async def read_process_output(self, session_id: str, process_id: str) -> str:
        """Returns the end of a process's output."""
        ...

    async def send_to_background(self, session_id: str, process_id: str) -> bool:
        """Lets a command that a call waits for continue in the background."""
        ...

    async def run_user_command(self, session_id: str, command: str, on_output: Callable[[str], object]) -> str:
        """Runs a shell command of the user. Returns a description of how it ended."""
        ...

    async def run_embedded_command(
        self, session_id: str, command: str, allowed: Sequence[str] | None, on_child: Callable[[str], object]
    ) -> ToolPart:
        """Runs a shell command of a command file as a call of the agent. Raises ToolFailure if it does not succeed."""
        ...

    async def list_questions(self, session_id: str) -> Sequence[AskedQuestion]:
        """Returns the model's open questions. The bus publishes new and settled ones."""
        ...

    async def answer_question(self, question_id: str, answers: Sequence[str]) -> None: ...

    async def revoke_approval(self, approval_id: str) -> None:
        """Revokes an approval that applies to more than one call."""
        ...


class LocalSessionClient:
    """The session client for an engine in this process."""

    is_remote = False
    connection = None

    def __init__(self, engine: Engine, settings: Settings, questions: QuestionQueue) -> None:
        self.engine = engine
        self._questions = questions
        self.settings = settings
        self.archive = archive_of(engine)

    @property
    def folder(self) -> Path | None:
        return self.settings.workspace

    @property
    def providers(self) -> Sequence[str]:
        return [provider.name for provider in self.settings.providers]

    async def list_models(self) -> Sequence[str]:
        return [str(model) for model in await list_models(self.settings.providers)]

    def context_limit(self, session_id: str, model: ModelRef) -> int | None:
        return context_limit(self.settings.providers, model)

    async def context_shares(self, session_id: str) -> Sequence[ContextShare]:
        return await context_shares(self.engine, session_id)

    async def list_servers(self) -> Sequence[ServerOverview]:
        return list_servers(self.engine)

    async def list_offers(self) -> "ServerOffers":
        return await list_offers(self.engine, self.folder)

    async def complete_input(self, text: str) -> "InputCompletion":
        return await complete_input(self.engine, text, self.folder)

    async def list_processes(self, session_id: str) -> Sequence[ProcessStatus]:
        return background_processes(self.engine, session_id)

    async def end_process(self, session_id: str, process_id: str) -> bool:
        return await end_process(self.engine, session_id, process_id)

    async def read_process_output(self, session_id: str, process_id: str) -> str:
        return read_process_output(self.engine, session_id, process_id).text

    async def send_to_background(self, session_id: str, process_id: str) -> bool:
        return send_to_background(self.engine, session_id, process_id)

    async def run_user_command(self, session_id: str, command: str, on_output: Callable[[str], object]) -> str:
        return (await run_user_command(self.engine, session_id, command, on_output)).words

    async def run_embedded_command(
        self, session_id: str, command: str, allowed: Sequence[str] | None, on_child: Callable[[str], object]
    ) -> ToolPart:
        return await run_embedded_command(self.engine, session_id, command, allowed, on_child)

    async def list_questions(self, session_id: str) -> Sequence[AskedQuestion]:
        return self._questions.open_questions(session_id)

    async def answer_question(self, question_id: str, answers: Sequence[str]) -> None:
        await self._questions.answer_anywhere(question_id, answers)

    async def revoke_approval(self, approval_id: str) -> None:
        await self.engine.approval_queue.revoke(approval_id)
