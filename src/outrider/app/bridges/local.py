"""An engine of this process, as screens hold it."""

from collections.abc import Callable, Sequence
from pathlib import Path

from outrider.app.config.settings import Settings
from outrider.app.engine import Engine
from outrider.app.inputs.questions import AskedQuestion, OpenQuestions
from outrider.app.views.commands import ProcessStatus, end_process, processes, run_by_hand
from outrider.app.views.models import context_limit, models_of
from outrider.app.views.sessions import archive_of
from outrider.types.parts import ModelRef


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
