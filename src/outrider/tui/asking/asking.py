"""Where questions wait for their turn: one is shown, in place of the composer; the others follow."""

import asyncio
from collections.abc import Awaitable, Callable

from textual.containers import Vertical
from textual.message import Message

from outrider.tui.asking.approval import ApprovalPanel
from outrider.tui.asking.panel import Panel
from outrider.tui.asking.questions import ChoicePanel, QuestionPanel

Taken = Callable[[str, str], Awaitable[None]]
"""What is done with an answer and its words."""


class Asking(Vertical):
    DEFAULT_CSS = "Asking { height: auto; max-height: 75vh; display: none; }"

    class Changed(Message):
        """A question came or went; `open` says whether one is shown."""

        def __init__(self, *, open: bool) -> None:
            super().__init__()
            self.open = open

    def __init__(self) -> None:
        super().__init__(id="asking")
        self._waiting: list[tuple[Panel, Taken]] = []

    @property
    def open(self) -> bool:
        return bool(self._waiting)

    def asks_about(self, question_id: str) -> bool:
        return any(_id_of(panel) == question_id for panel, _ in self._waiting)

    async def put(self, panel: Panel, taken: Taken) -> None:
        self._waiting.append((panel, taken))
        await self._show()

    async def ask(self, panel: Panel) -> tuple[str, str]:
        """Put a question and wait for its answer; it goes away when nobody waits any more."""
        answered: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()

        async def taken(answer: str, words: str) -> None:
            if not answered.done():
                answered.set_result((answer, words))

        await self.put(panel, taken)
        try:
            return await answered
        finally:
            await self.drop(lambda waiting: waiting is panel)

    async def drop(self, which: Callable[[Panel], bool]) -> None:
        """Questions that need no answer any more."""
        gone = [panel for panel, _ in self._waiting if which(panel)]
        self._waiting = [(panel, taken) for panel, taken in self._waiting if panel not in gone]
        for panel in gone:
            if panel.is_attached:
                await panel.remove()
        if gone:
            await self._show()

    async def leave(self) -> None:
        """Another session is looked at: its own questions come. Those about calls are asked again on the way back, what
        a model asked stays, and whoever waits for a choice hears that there was none."""
        choices = [(panel, taken) for panel, taken in self._waiting if isinstance(panel, ChoicePanel)]
        await self.drop(lambda panel: isinstance(panel, ApprovalPanel | ChoicePanel))
        for _, taken in choices:
            await taken("", "")

    async def drop_approvals(self, approval_id: str | None = None) -> None:
        """One that was answered elsewhere, or all of them."""
        await self.drop(lambda panel: isinstance(panel, ApprovalPanel) and approval_id in (None, panel.asked.id))

    async def drop_question(self, question_id: str) -> None:
        await self.drop(lambda panel: isinstance(panel, QuestionPanel) and panel.asked.id == question_id)

    async def drop_questions_of(self, session_id: str) -> None:
        await self.drop(lambda panel: isinstance(panel, QuestionPanel) and panel.asked.session_id == session_id)

    async def on_panel_answered(self, event: Panel.Answered) -> None:
        event.stop()
        taken = next((taken for panel, taken in self._waiting if panel is event.panel), None)
        await self.drop(lambda panel: panel is event.panel)
        if taken is not None:
            await taken(event.answer, event.words)

    async def _show(self) -> None:
        self.display = bool(self._waiting)
        if self._waiting and not self.children:
            await self.mount(self._waiting[0][0])
        self.post_message(self.Changed(open=bool(self._waiting)))


def _id_of(panel: Panel) -> str:
    return panel.asked.id if isinstance(panel, ApprovalPanel | QuestionPanel) else ""
