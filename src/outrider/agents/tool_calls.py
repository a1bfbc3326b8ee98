"""The calls of one answer: each is decided on, run and ended exactly once; others do not wait for one that waits."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any

from outrider.agents.hook_runner import HookRunner, prepare
from outrider.agents.run_context import AgentContext, RunContext
from outrider.errors import OutriderError
from outrider.sessions import failpoints as faults
from outrider.tools.context import Progress, ToolContext
from outrider.tools.runner import Runner, no_such_tool
from outrider.tools.tool import Tool
from outrider.types.events import ToolExecutionCompletedEvent, ToolExecutionStartedEvent, ToolOutputEvent
from outrider.types.messages import Message
from outrider.types.parts import ToolPart, tool_result
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning

PREVIEW = 200


class ToolCallRunner:
    """Runs what a model asked for, answer by answer. Side by side, unless a tool wants to be alone."""

    def __init__(self, seat: AgentContext, crew: RunContext) -> None:
        self._seat = seat
        self._crew = crew
        self._message = Message("assistant")
        self._hooked = HookRunner(seat, crew)
        self._loop = asyncio.get_running_loop()
        self._runner = Runner(
            seat.tools,
            self._record,
            cap=crew.cap,
            save=crew.save_output,
            draft=self._draft,
            around=self._around,
            after=self._hooked.after,
            unknown=self._misrouted,
            left=self._left,
            clock=crew.clock,
        )

    async def run(self, message: Message) -> list[ToolPart]:
        """Every open call of the message, ended. Cancelling ends them all, as canceled."""
        self._message = message
        try:
            for group in self._groups():
                await self._run_together(group)
        except asyncio.CancelledError:
            await asyncio.shield(self._cancel_the_rest())
            raise
        except OutriderError as error:
            self._give_up(error)
            raise
        return self._message.get_parts_by_type(ToolPart)

    async def _cancel_the_rest(self) -> None:
        """Calls whose turn had not come: a task that is cancelled before its first step does nothing at all."""
        for call in self._message.get_parts_by_type(ToolPart):
            await self._cancel(call.id)

    def _give_up(self, error: OutriderError) -> None:
        """Calls that did not start never will. That counts at once: what went wrong may be that nothing can be kept."""
        for call in self._message.get_parts_by_type(ToolPart):
            if isinstance(call.state, ToolPending) and not self._stays(call.state):
                ended = call.state.fail(f"not run: {error.message}", self._crew.clock(), reason="canceled")
                self._seat.journal.put_part_soon(call.with_state(ended), self._message)

    async def _run_together(self, group: list[ToolPart]) -> None:
        """A call ends in a result, whatever it does; errors that get out are the journal's, and one stands for all."""
        if len(group) == 1:
            await self._run_one(group[0])
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                for call in group:
                    tasks.create_task(self._run_one(call))
        except BaseExceptionGroup as errors:
            raise next((error for error in errors.exceptions if isinstance(error, OutriderError)), errors) from None

    def _groups(self) -> Iterator[list[ToolPart]]:
        group: list[ToolPart] = []
        for call in self._message.get_parts_by_type(ToolPart):
            tool = self._seat.tools.get(call.tool)
            if tool is None or tool.options.parallel:
                group.append(call)
                continue
            if group:
                yield group
            yield [call]
            group = []
        if group:
            yield group

    async def _run_one(self, call: ToolPart) -> None:
        if not isinstance(call.state, ToolPending):
            return
        try:
            admitted = await self._admitted(call)
            if admitted is not None:
                async with self._place(admitted):
                    await self._execute(admitted)
        except asyncio.CancelledError:
            await asyncio.shield(self._cancel(call.id))
            raise

    def _place(self, call: ToolPart) -> AbstractAsyncContextManager[Any]:
        tool = self._seat.tools.get(call.tool)
        return nullcontext() if tool is not None and tool.options.delegates else self._crew.budget.calls

    async def _admitted(self, call: ToolPart) -> ToolPart | None:
        """The call as it will run, or None when it was refused (and so has ended)."""
        tool = self._seat.tools.get(call.tool)
        if tool is None or "input_error" in call.metadata:
            return call  # the runner has words for it
        call = await self._prepared(call, tool)
        if not isinstance(call.state, ToolPending):
            return None
        verdict = await self._crew.gate.admit(call, tool, self._seat)
        if verdict.allowed:
            return call
        reason = "rejected" if verdict.reason == "rejected" else "denied"
        await self._record(call.with_state(call.state.fail(verdict.words, self._crew.clock(), reason=reason)))
        return None

    async def _prepared(self, call: ToolPart, tool: Tool) -> ToolPart:
        """What is decided on and shown is what runs."""
        prepared = await prepare(call, tool, self._hooked, self._crew.clock)
        if prepared is not call:
            await self._record(prepared)
        return prepared

    async def _execute(self, call: ToolPart) -> None:
        tell = self._seat.tell
        tell(ToolExecutionStartedEvent, call_id=call.call_id, tool_name=call.tool, tool_input=call.state.input)
        ended = await self._runner.run(call, self._context(call))
        state = ended.state
        assert isinstance(state, ToolCompleted | ToolError)
        result = tool_result(ended)
        tell(
            ToolExecutionCompletedEvent,
            call_id=call.call_id,
            tool_name=call.tool,
            success=isinstance(state, ToolCompleted),
            duration_ms=state.time.end - state.time.start,
            output_preview=result.content[:PREVIEW] if result else "",
            reason=state.reason if isinstance(state, ToolError) else "",
        )

    def _context(self, call: ToolPart) -> ToolContext:
        def report(progress: Progress) -> None:
            faults.failpoint("FP-tool-mid")
            if progress.output:
                self._crew.bus.publish(
                    self._seat.labelled(
                        ToolOutputEvent, call_id=call.call_id, tool_name=call.tool, output=progress.output
                    )
                )

        return ToolContext(
            session_id=self._seat.session.id,
            call_id=call.call_id,
            agent=self._seat.agent.name,
            workspace=self._seat.workspace,
            report=report,
        )

    def _around(self, call: ToolPart, tool: Tool) -> AbstractAsyncContextManager[None]:
        return self._crew.around(call, tool, self._seat)

    def _draft(self, part_id: str, characters: int, current: Callable[[], ToolPart]) -> None:
        """Plain functions report from a thread, which may outlive its call and even the loop."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._keep_draft, part_id, characters, current)

    def _keep_draft(self, part_id: str, characters: int, current: Callable[[], ToolPart]) -> None:
        if any(part.id == part_id and not part.ended for part in self._message.get_parts_by_type(ToolPart)):
            self._seat.journal.draft(part_id, characters, current)

    async def _cancel(self, part_id: str) -> None:
        """A call that was cancelled before its tool started ends here; one that ran was ended by the runner."""
        call = next(part for part in self._message.parts if part.id == part_id)
        if isinstance(call.state, ToolPending) and not self._stays(call.state):
            await self._record(
                call.with_state(call.state.fail("canceled before it started", self._crew.clock(), reason="canceled"))
            )

    def _stays(self, state: ToolPending) -> bool:
        """What somebody was asked about waits for the answer until the session is opened again."""
        return self._seat.comes_back and state.phase == "awaiting_approval"

    def _left(self, call: ToolPart) -> bool:
        """Whether a call, or the agent that it is about, waits for an answer, and goes on when all this is opened
        again."""
        if call.asks and self._seat.comes_back:
            self._seat.left.add(call.call_id)
        return call.call_id in self._seat.left

    def _misrouted(self, name: str) -> str:
        """The tools that are named are those that were offered: an agent alone has more, which lead nowhere."""
        if name in self._crew.agents:
            return f"There is an agent called {name!r}, not a tool. Use call_agent with agent_name={name!r}."
        return no_such_tool(name, (spec.name for spec in self._seat.specs))

    async def _record(self, call: ToolPart) -> None:
        """The disk is waited for before a call starts that may change something."""
        tool = self._seat.tools.get(call.tool)
        synced = isinstance(call.state, ToolRunning) and not (tool is not None and tool.read_only)
        await self._seat.journal.put_part(call, self._message, synced=synced)
