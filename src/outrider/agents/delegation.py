"""How agents call each other as equals: `call_agent` and `task` open a child session, `finish` ends one's own turn."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Annotated

from outrider.agents.run_context import AgentContext, RunContext, TakeInput
from outrider.agents.turn import Turn
from outrider.agents.turn_state import TurnEnd, has_pending_calls
from outrider.context.lower import Projection
from outrider.context.system_prompt import role_of, system_prompt
from outrider.errors import LimitReachedError, ToolFailure
from outrider.permissions.modes import stricter
from outrider.sessions.journal import Journal
from outrider.sessions.session import Session
from outrider.tools.context import Progress, ToolContext
from outrider.tools.tool import Tool, named
from outrider.types.agents import Agent, AgentMessage, Mode
from outrider.types.events import AgentCalledEvent, AgentReturnedEvent
from outrider.types.messages import Message
from outrider.types.parts import FilePart, ModelRef, SubtaskPart, TextPart
from outrider.types.request import OutputSchema
from outrider.types.tool_state import LEFT_OPEN, Attachment

TakeSeat = Callable[..., AgentContext]
ITSELF = "a fresh copy of you, with your tools and an empty context"


def delegate_tools(seat: AgentContext, take_seat: TakeSeat) -> dict[str, Tool]:
    """The tools that need the loop. `take_seat` is handed in: seats have these tools, and these make seats."""

    @Tool(delegates=True)
    async def call_agent(
        agent_name: Annotated[str, "the agent to call"],
        message: Annotated[str, "all it needs to know"],
        context: ToolContext,
    ) -> str:
        """Ask another agent and get its answer."""
        return await Delegation(seat, take_seat, context).run(agent_name, message)

    @Tool
    async def finish(message: Annotated[str, "the result, in full"]) -> str:
        """End your work with this result."""
        seat.finished = message
        return "finished"

    async def run_task(agent_name: str, description: str, prompt: str, context: ToolContext) -> str:
        return await Delegation(seat, take_seat, context).run(agent_name, prompt, description)

    make = seat.crew.task_tool
    roles = {seat.agent.name: ITSELF}
    for agent in seat.crew.agents.values():
        roles.setdefault(agent.name, role_of(agent))
    return named([call_agent, finish, *([make(roles, run_task)] if make else [])])


class Delegation:
    """One call of an agent by another, from the forward to the return."""

    def __init__(self, seat: AgentContext, take_seat: TakeSeat, context: ToolContext) -> None:
        self._seat = seat
        self._crew = seat.crew
        self._take_seat = take_seat
        self._context = context
        self._call_id = context.call_id

    async def run(self, agent_name: str, message: str, description: str = "") -> str:
        callee = self._find(agent_name)
        try:
            self._crew.budget.check_depth(self._seat.depth + 1)
        except LimitReachedError as error:
            raise ToolFailure(f"No agent can be called from here: {error.message}. Do the work yourself.") from error
        started = monotonic()
        left = await self._left_open()
        session = left.session if left else self._child_session(callee)
        if left is None:
            await self._note(callee, session, message, description)
        self._forward(callee, message, session)
        async with left or await self._crew.open_journal(session) as journal:
            child = self._take_seat(callee, journal, self._crew, caller=self._seat, call_id=self._call_id)
            if left is None:
                await journal.add_message(Message("user", [TextPart(message), *self._files()]))
            end = await self._turn(child)
        self._return(callee, end, session, round((monotonic() - started) * 1000))
        return _result(callee, end)

    async def _left_open(self) -> Journal | None:
        """The session of an earlier life of this call, whose agent waited for an answer when all of it was left."""
        call = next(found for m in reversed(self._seat.session.messages) if (found := m.find_call(self._call_id)))
        session_id = call.metadata.get(LEFT_OPEN)
        if not session_id or self._crew.reopen_journal is None:
            return None
        self._context.report(Progress(metadata={"child_session_id": session_id}))
        return await self._crew.reopen_journal(session_id)

    async def _turn(self, child: AgentContext) -> TurnEnd:
        try:
            return await Turn(child, self._crew).run()
        except asyncio.CancelledError:
            if child.comes_back and (child.left or has_pending_calls(child.session.messages[-1])):
                self._seat.left.add(self._call_id)
            raise

    async def _note(self, callee: Agent, session: Session, prompt: str, description: str) -> None:
        """Where the work can be found is part of the transcript, and of the call."""
        self._context.report(Progress(metadata={"child_session_id": session.id}))
        asked = next(m for m in reversed(self._seat.session.messages) if m.find_call(self._call_id))
        model = ModelRef(callee.provider, callee.model)
        await self._seat.journal.put_part(SubtaskPart(callee.name, description, prompt, model, session.id), asked)

    def _find(self, name: str) -> Agent:
        if name == self._seat.agent.name:
            return self._seat.agent  # with the model that it has here
        if name in self._crew.agents:
            return self._crew.agents[name]
        if name in self._seat.tools:
            raise ToolFailure(f"There is a tool called {name!r}, not an agent. Call the tool itself.")
        raise ToolFailure(f"There is no agent called {name!r}. The agents are: {', '.join(self._crew.agents)}.")

    def _child_session(self, callee: Agent) -> Session:
        parent = self._seat.session
        return Session(
            title=f"{self._seat.agent.name} → {callee.name}",
            workspace_directory=parent.workspace_directory,
            mode=stricter(self._seat.effective_mode, callee.mode),
            agent=callee.name,
            parent_id=parent.id,
        )

    def _files(self) -> list[FilePart]:
        """Files that came with the caller's own input go on to whom it asks."""
        given = next((m for m in self._seat.session.messages if m.role == "user"), None)
        files = given.get_parts_by_type(FilePart) if given else []
        return [FilePart(file.mime, file.url, file.filename, file.source, file.metadata) for file in files]

    def _forward(self, callee: Agent, message: str, session: Session) -> None:
        self._crew.forwards.append(
            AgentMessage(
                "forward", self._seat.agent.name, callee.name, message, self._call_id, _attached(self._files())
            )
        )
        self._seat.tell(
            AgentCalledEvent,
            call_id=self._call_id,
            callee=callee.name,
            message=message,
            child_session_id=session.id,
        )

    def _return(self, callee: Agent, end: TurnEnd, session: Session, duration_ms: int) -> None:
        self._crew.forwards.append(
            AgentMessage("return", callee.name, self._seat.agent.name, end.output, self._call_id)
        )
        self._seat.tell(
            AgentReturnedEvent,
            call_id=self._call_id,
            callee=callee.name,
            output=end.output,
            success=end.reason == "completed",
            duration_ms=duration_ms,
            child_session_id=session.id,
        )


def _result(callee: Agent, end: TurnEnd) -> str:
    if end.reason == "completed":
        return end.output
    why = end.error.message if end.error else end.reason.replace("_", " ")
    so_far = f" What it had said: {end.output}" if end.output else ""
    raise ToolFailure(f"{callee.name} ended early ({why}).{so_far}")


def _attached(files: list[FilePart]) -> tuple[Attachment, ...]:
    return tuple(Attachment(file.mime, url=file.url, name=file.filename) for file in files)


TASK = "task"
# Models that were taught to write patches; all others were taught to replace text.
PATCHING = ("gpt-4.1", "gpt-5", "codex", "o4-mini")


def open_agent_context(
    agent: Agent,
    journal: Journal,
    crew: RunContext,
    *,
    caller: AgentContext | None = None,
    call_id: str = "",
    take_input: TakeInput | None = None,
    output: OutputSchema | None = None,
) -> AgentContext:
    session = journal.session
    others = [other for other in crew.agents.values() if other.name != agent.name and session.mode != "chat"]
    seat = AgentContext(
        agent=agent,
        crew=crew,
        mode=session.mode,
        caller=caller,
        journal=journal,
        projection=Projection(crew.client(agent).family(agent.model)),
        system=system_prompt(agent, others, session.mode, notes=crew.notes, prompts=crew.prompts),
        tools={},
        workspace=Path(session.workspace_directory or "."),
        depth=0 if caller is None else caller.depth + 1,
        ask=(*(caller.ask if caller else ()), *agent.permissions.get("ask", ())),
        deny=(*(caller.deny if caller else ()), *agent.permissions.get("deny", ())),
        call_id=call_id,
        take_input=take_input,
        output=output,
    )
    offered = tools_of(agent, crew.tools, session.mode)
    delegates = delegate_tools(seat, open_agent_context)
    seat.tools = delegates | offered
    said = (*said_to(agent, offered), *(tool for tool in delegates.values() if _is_offered(tool, seat, others)))
    seat.specs = tuple(tool.spec() for tool in said)
    return seat


def _is_offered(delegate: Tool, seat: AgentContext, others: Sequence[Agent]) -> bool:
    """An agent alone calls nobody, but may give itself tasks; a tool of the user's own goes before ours."""
    if delegate.name != TASK:
        return bool(others)
    wanted = seat.agent.tools is None or TASK in seat.agent.tools
    return wanted and seat.mode != "chat" and TASK not in seat.crew.tools


def said_to(agent: Agent, tools: Mapping[str, Tool]) -> list[Tool]:
    """The tools that a model is told of: every word about one travels with every request. Of two ways to change a file
    it hears of the one that it was taught, and a shell lists folders. What is left unsaid works all the same."""
    taught, other = ("apply_patch", "edit") if _patches(agent.model) else ("edit", "apply_patch")
    unsaid = {other if taught in tools else "", "list" if "shell" in tools else ""}
    return [tool for name, tool in tools.items() if agent.tools is not None or name not in unsaid]


def _patches(model: str) -> bool:
    return any(mark in model.lower() for mark in PATCHING)


def tools_of(agent: Agent, tools: Mapping[str, Tool], mode: Mode) -> dict[str, Tool]:
    """What a mode leaves of an agent's tools: chat none, plan those that only read or that the gate watches."""
    if mode == "chat":
        return {}
    named = {name: tool for name, tool in tools.items() if agent.tools is None or name in agent.tools}
    if mode != "plan":
        return named
    return {name: tool for name, tool in named.items() if tool.read_only or tool.options.plan}
