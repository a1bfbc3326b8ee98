"""The contract between a screen and what it steers: an engine, wherever that runs, and what a screen needs besides."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from outrider.agents.turn_state import TurnEnd
from outrider.config.settings import Settings
from outrider.engine.archive import Archive
from outrider.engine.engine import Engine
from outrider.engine.frontend import archive_of, context_limit, end_process, models_of, processes, run_by_hand
from outrider.engine.plans import Plan
from outrider.engine.questions import AskedQuestion, OpenQuestions
from outrider.engine.undo_history import Restored
from outrider.event_bus import EventStream
from outrider.processes.supervisor import ProcessStatus
from outrider.sessions.records import Approval, ApprovalScope, Delivery, InboxItem
from outrider.sessions.session import Session
from outrider.sessions.snapshots.restore import Direction
from outrider.types.agents import Agent, Mode
from outrider.types.parts import ModelRef, PartBase


class OpenSession(Protocol):
    """A session that somebody works in. One that is not `whole` has the last of its messages; the archive has all."""

    @property
    def whole(self) -> bool: ...

    @property
    def session(self) -> Session: ...

    @property
    def in_turn(self) -> bool: ...

    @property
    def agent(self) -> Agent:
        """The agent that answers, with the model that was chosen for it."""
        ...

    async def use_model(self, model: ModelRef | None) -> None: ...


class Restoring(Protocol):
    """What agents did to files, to be looked at, undone and redone."""

    async def preview(self, direction: Direction = "undo") -> Restored: ...

    async def undo(self) -> Restored: ...

    async def redo(self) -> Restored: ...


class Shortened(Protocol):
    """What a compaction came to."""

    @property
    def tokens_before(self) -> int | None: ...

    @property
    def tokens_after(self) -> int | None: ...


class EngineClient(Protocol):
    """What a screen does with an engine. `Engine` says what each of these means."""

    @property
    def live(self) -> Mapping[str, OpenSession]: ...

    def events(self) -> EventStream: ...

    async def create(self, *, mode: Mode | None, agent: str | None, workspace: Path | None) -> str: ...

    async def open(self, session_id: str, *, take_over: bool = False) -> Session: ...

    async def prompt(
        self,
        session_id: str,
        content: str | Sequence[str | PartBase],
        *,
        delivery: Delivery = "queue",
        input_id: str | None = None,
        sender: str = "",
    ) -> TurnEnd: ...

    async def go_on(self, session_id: str) -> TurnEnd: ...

    async def abort(self, session_id: str) -> None: ...

    async def queued(self, session_id: str) -> Sequence[InboxItem]: ...

    async def withdraw(self, session_id: str, input_id: str) -> bool: ...

    async def plan(self, session_id: str) -> Plan | None: ...

    async def accept_plan(self, session_id: str, changed: str | None = None, *, by: str = "") -> TurnEnd: ...

    async def refuse_plan(self, session_id: str, words: str = "", *, by: str = "") -> TurnEnd: ...

    async def compact(self, session_id: str) -> Shortened | None: ...

    async def set_mode(self, session_id: str, mode: Mode) -> None: ...

    async def set_agent(self, session_id: str, agent: str) -> None: ...

    async def approvals(self, session_id: str | None = None) -> Sequence[Approval]: ...

    async def answer(
        self, approval_id: str, *, allow: bool, scope: ApprovalScope = "once", by: str = "", words: str = ""
    ) -> Approval: ...

    def file_changes(self, session_id: str) -> Restoring: ...


class SessionClient(Protocol):
    """`settings` are those that count where the engine runs, `folder` is where new sessions work and whose sessions are
    looked for first: None is for the server to say."""

    @property
    def engine(self) -> EngineClient: ...

    @property
    def archive(self) -> Archive: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def folder(self) -> Path | None: ...

    async def models(self) -> Sequence[str]:
        """Those that may be switched to, as PROVIDER/MODEL."""
        ...

    @property
    def providers(self) -> Sequence[str]: ...

    def context_limit(self, session_id: str, model: ModelRef) -> int | None: ...

    async def processes(self, session_id: str) -> Sequence[ProcessStatus]:
        """What runs or ran in the background of a session."""
        ...

    async def end_process(self, session_id: str, process_id: str) -> bool: ...

    async def run_by_hand(self, session_id: str, command: str, on_output: Callable[[str], object]) -> str:
        """A command of the user's own; how it ended, in words."""
        ...

    async def questions(self, session_id: str) -> Sequence[AskedQuestion]:
        """What models ask there and nobody has answered yet; the bus tells of those that come and go."""
        ...

    async def answer_question(self, question_id: str, answers: Sequence[str]) -> None: ...

    async def revoke(self, approval_id: str) -> None:
        """Take back an answer that holds for longer than once."""
        ...


class LocalBridge:
    def __init__(self, engine: Engine, settings: Settings, questions: OpenQuestions) -> None:
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

    async def models(self) -> Sequence[str]:
        return [f"{found.provider}/{found.model}" for found in models_of(self.settings.providers)]

    def context_limit(self, session_id: str, model: ModelRef) -> int | None:
        return context_limit(self.settings.providers, model)

    async def processes(self, session_id: str) -> Sequence[ProcessStatus]:
        return processes(self.engine, session_id)

    async def end_process(self, session_id: str, process_id: str) -> bool:
        return await end_process(self.engine, session_id, process_id)

    async def run_by_hand(self, session_id: str, command: str, on_output: Callable[[str], object]) -> str:
        return await run_by_hand(self.engine, session_id, command, on_output)

    async def questions(self, session_id: str) -> Sequence[AskedQuestion]:
        return self._questions.waiting(session_id)

    async def answer_question(self, question_id: str, answers: Sequence[str]) -> None:
        await self._questions.give(question_id, answers)

    async def revoke(self, approval_id: str) -> None:
        await self.engine.desk.revoke(approval_id)
