"""One open session as its client follows it: what is said into it, what comes back, and what is asked."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import acp
from acp.schema import (
    AvailableCommandsUpdate,
    ConfigOptionUpdate,
    CurrentModeUpdate,
    PermissionOption,
    ToolCallUpdate,
    UsageUpdate,
)

from outrider.acp.choices import Choices
from outrider.acp.commands import Name, carry_out, named, offered
from outrider.acp.engines import Opened
from outrider.acp.questions import BY, Asked, Questions
from outrider.acp.telling.calls import shown
from outrider.acp.telling.texts import valid
from outrider.acp.telling.updates import Telling, Update, plan_of_text
from outrider.acp.telling.usage import Spending
from outrider.app.archive.ends import TurnEnd
from outrider.types.events import (
    Event,
    LLMResponseEvent,
    SessionUpdatedEvent,
    ToolApprovalRequestedEvent,
    ToolApprovalResultEvent,
)
from outrider.types.ids import new_id
from outrider.types.parts import PartBase, ToolPart
from outrider.types.tool_state import ToolPending

AFTER_THE_ANSWER = 0.05  # seconds
_ACCEPT = PermissionOption(option_id="accept", name="Yes, carry it out", kind="allow_once")
_KEEP_PLANNING = PermissionOption(option_id="refuse", name="No, keep planning", kind="reject_once")


class Conversation:
    """Hears the engine from the moment it is made until it is closed."""

    def __init__(self, session_id: str, opened: Opened, client: acp.Client, tasks: asyncio.TaskGroup) -> None:
        self.session_id = session_id
        self.engine = opened.engine
        self._client = client
        self._folder = Path()
        self._telling = Telling(session_id, self._folder)
        self.choices = Choices(session_id, opened.engine, opened.settings)
        self.spending = Spending(session_id, opened.engine)
        self.questions = Questions(session_id, opened.engine, client, tasks)
        self._speaking = asyncio.Lock()  # held while what was kept is told, before what happens now
        self._inputs: set[str] = set()
        self._cancelled = 0
        self._stop_hearing = opened.engine.bus.subscribe_all(self._hear)

    async def open(self, *, replay: bool) -> None:
        """What a crash left waiting for an answer is asked once more, after everything else is told."""
        async with self._speaking:
            await self.engine.open(self.session_id)
            kept = await self.engine.store.load(self.session_id)  # without secrets, which an open session may hold
            self._folder = Path(kept.session.workspace_directory)
            self._telling = Telling(self.session_id, self._folder)
            for update in self._telling.replay(kept.messages):
                if replay:
                    await self._tell(update)

    def close(self) -> None:
        self._stop_hearing()
        self.questions.close()

    def concerns(self, session_id: str) -> bool:
        return self._telling.concerns(session_id)

    async def say(self, parts: Sequence[PartBase]) -> TurnEnd:
        """The end of the turn; the client has heard everything before it when this returns."""
        self.spending.begin()
        if (command := named(parts)) is not None:
            return await self._obey(command)
        before, input_id = self._cancelled, new_id()
        self._inputs.add(input_id)
        try:
            ends = await self.engine.put(self.session_id, parts, input_id=input_id, sender=BY)
            if self._cancelled != before:  # it came before there was anything to cancel
                await self._stop()
            end = await ends
        finally:
            self._inputs.discard(input_id)
        await self.engine.bus.settled()
        return await self._with_plan(end)

    async def tell_commands(self) -> None:
        """A client knows a session once it has read the answer that names it."""
        await asyncio.sleep(AFTER_THE_ANSWER)
        await self._tell(offered())

    async def _obey(self, command: Name) -> TurnEnd:
        words = await carry_out(command, self.engine, self.session_id)
        await self.engine.bus.settled()
        await self._tell(acp.update_agent_message(acp.text_block(valid(words))))
        return TurnEnd("completed", words)

    async def cancel(self) -> None:
        self._cancelled += 1
        await self._stop()

    async def _stop(self) -> None:
        """The turn under way ends, and what the client said into the session after it is taken back."""
        for input_id in list(self._inputs):
            await self.engine.withdraw(self.session_id, input_id)
        await self.engine.abort(self.session_id)

    async def _with_plan(self, end: TurnEnd) -> TurnEnd:
        """A turn that ends in a plan ends with what the user says to it: carried out, its end is that of the work."""
        plan = await self.engine.plan(self.session_id) if end.reason == "completed" else None
        if plan is None:
            return end
        await self._tell(plan_of_text(plan.text))
        call = acp.start_tool_call(
            f"plan-{plan.id}",
            "The plan is ready. Shall it be carried out?",
            kind="switch_mode",
            status="pending",
            content=[acp.tool_content(acp.text_block(valid(plan.text)))],
        )
        await self._tell(call)
        asked = ToolCallUpdate(
            tool_call_id=call.tool_call_id, title=call.title, kind=call.kind, status=call.status, content=call.content
        )
        chosen = await self.questions.choose(asked, (_ACCEPT, _KEEP_PLANNING))
        accepted = chosen == _ACCEPT.option_id
        await self._tell(acp.update_tool_call(call.tool_call_id, status="completed" if accepted else "failed"))
        if accepted:
            end = await self.engine.accept_plan(self.session_id, by=BY)
            await self.engine.bus.settled()
        elif chosen is not None:
            await self.engine.refuse_plan(self.session_id, by=BY)
        return TurnEnd("aborted") if chosen is None else end

    async def _hear(self, event: Event) -> None:
        async with self._speaking:
            for update in self._telling.hear(event):
                await self._tell(update)
            match event:
                case LLMResponseEvent() if self.concerns(event.session_id):
                    if (used := self.spending.hear(event)) is not None:
                        await self._tell(used)
                case ToolApprovalRequestedEvent() if self.concerns(event.session_id):
                    self.questions.ask_about(self._asked(event))
                case ToolApprovalResultEvent():
                    self.questions.drop(event.approval_id)
                case SessionUpdatedEvent(session_id=self.session_id) if event.changes.keys() & {"mode", "agent"}:
                    await self._tell_choices()
                case _:
                    pass

    def _asked(self, event: ToolApprovalRequestedEvent) -> Asked:
        call = self._telling.call(event.session_id, event.call_id)
        if call is None:
            waiting = ToolPending(event.tool_input, phase="awaiting_approval")
            call = shown(ToolPart(event.call_id, event.tool_name, waiting), self._folder)
        return Asked(event.approval_id, event.session_id, call, event.description, event.offers, event.can_last)

    async def _tell_choices(self) -> None:
        await self._tell(CurrentModeUpdate(session_update="current_mode_update", current_mode_id=self.choices.mode))
        await self._tell(
            ConfigOptionUpdate(session_update="config_option_update", config_options=list(self.choices.options()))
        )

    async def _tell(
        self, update: Update | CurrentModeUpdate | ConfigOptionUpdate | UsageUpdate | AvailableCommandsUpdate
    ) -> None:
        with suppress(ConnectionError):  # the client has gone, and what happens is kept all the same
            await self._client.session_update(self.session_id, update)
