"""Lets agents call each other: `call_agent` and `task` run a callee in a child session, `finish` ends the agent's own
turn."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Unpack
from weakref import ref

from msgspec import UNSET

from outrider.agents.compaction import offer_conversation_search
from outrider.agents.instructions import build_system_prompt, tools_for_mode, widest_mode
from outrider.agents.output_type import OutputType
from outrider.agents.run_context import AgentContext, RunContext, TakeInput
from outrider.agents.turn import Turn
from outrider.agents.turn_state import TurnEnd, has_pending_calls
from outrider.context.lower import PromptProjection
from outrider.context.prompts import role_of
from outrider.context.request_ledger import RequestRecorder
from outrider.errors import LimitReachedError, ToolFailure
from outrider.permissions.modes import stricter_mode
from outrider.sessions.journal import Journal
from outrider.sessions.session import Session
from outrider.tools.definitions import ToolKeywords
from outrider.tools.tool import OnDemandTool, Progress, Tool, ToolContext, replace_function, tools_by_name
from outrider.types.agents import Agent, AgentMessage, Mode
from outrider.types.events import AgentCalledEvent, AgentReturnedEvent
from outrider.types.messages import Message
from outrider.types.origins import merge_origins
from outrider.types.parts import FilePart, SubtaskPart, TextPart
from outrider.types.tool_declaration import ToolDeclaration
from outrider.types.tool_state import LEFT_OPEN, Attachment

OpenContext = Callable[..., AgentContext]
_AgentName = Annotated[str, "the agent to call"]
_AgentMessage = Annotated[str, "all it needs to know"]
_FinalResult = Annotated[str, "the result, in full"]
OWN_COPY_ROLE = "a fresh copy of you, with your tools and an empty context"


def build_delegation_tools(caller: AgentContext, open_context: OpenContext) -> dict[str, Tool]:
    """Builds the tools that need the loop. `open_context` is a parameter to break a cycle: opening a context builds
    these tools, and these tools open contexts. The tools have a weak reference to `caller`: it refers to them, and a
    reference cycle would delay freeing a closed session until a garbage collection."""
    weak_caller = ref(caller)

    async def call_agent(agent_name: _AgentName, message: _AgentMessage, context: ToolContext) -> str:
        """Ask another agent and get its answer."""
        return await AgentDelegation(_running_agent(weak_caller), open_context, context).run(agent_name, message)

    async def finish(message: _FinalResult) -> str:
        """End your work with this result."""
        _running_agent(weak_caller).finish_output = message
        return "finished"

    async def run_task(agent_name: str, description: str, prompt: str, context: ToolContext) -> str:
        return await AgentDelegation(_running_agent(weak_caller), open_context, context).run(
            agent_name, prompt, description
        )

    make = caller.run.task_tool
    roles = {caller.agent.name: OWN_COPY_ROLE}
    for agent in caller.run.agents.values():
        roles.setdefault(agent.name, role_of(agent))
    tools = [_make_tool(call_agent, delegates=True), _make_tool(finish, declares=ToolDeclaration("talk"))]
    return tools_by_name([*tools, *([make(roles, run_task)] if make else [])])


def _running_agent(context: ref[AgentContext]) -> AgentContext:
    """Returns the context of the agent whose call runs."""
    agent = context()
    assert agent is not None
    return agent


_made_tools: dict[str, Tool] = {}


def _make_tool(function: Callable[..., Any], **options: Unpack[ToolKeywords]) -> Tool:
    """Makes a tool from a nested function. Its definition is read once, because each run makes these tools."""
    tool = _made_tools.get(function.__name__)
    if tool is None:
        tool = _made_tools[function.__name__] = Tool(function, **options)
    return replace_function(tool, function)


class AgentDelegation:
    """One call of an agent by another agent, from the request to the returned result."""

    def __init__(self, context: AgentContext, open_context: OpenContext, tool_context: ToolContext) -> None:
        self._context = context
        self._run = context.run
        self._open_context = open_context
        self._tool_context = tool_context
        self._call_id = tool_context.call_id

    async def run(self, agent_name: str, message: str, description: str = "") -> str:
        callee = self._find_agent(agent_name)
        try:
            self._run.budget.check_depth(self._context.depth + 1)
        except LimitReachedError as error:
            raise ToolFailure(f"No agent can be called from here: {error.message}. Do the work yourself.") from error
        started = monotonic()
        reopened = await self._reopen_child_journal()
        session = reopened.session if reopened else self._child_session(callee)
        if reopened is None:
            await self._record_subtask(callee, session, message, description)
        self._publish_call(callee, message, session)
        async with reopened or await self._run.child_sessions.open_child(session) as journal:
            child = self._open_context(callee, journal, self._run, caller=self._context, call_id=self._call_id)
            if reopened is None:
                origins = merge_origins(self._context.read_origins()) or UNSET
                await journal.add_message(Message("user", [TextPart(message, origins=origins), *self._input_files()]))
            try:
                end = await self._run_turn(child)
            finally:  # the answer may repeat what the agent has read, also if it was cancelled
                self._tool_context.report(Progress(origins=merge_origins(child.read_origins())))
        self._publish_return(callee, end, session, round((monotonic() - started) * 1000))
        return _result_text(callee, end)

    async def _reopen_child_journal(self) -> Journal | None:
        """Reopens the child session of this call if it was suspended while its agent waited for an approval. Returns
        None otherwise."""
        call = next(filter(None, (m.find_call(self._call_id) for m in reversed(self._context.session.messages))))
        session_id = call.metadata.get(LEFT_OPEN)
        if not session_id or not self._run.child_sessions.can_reopen:
            return None
        self._tool_context.report(Progress(metadata={"child_session_id": session_id}))
        return await self._run.child_sessions.reopen_child(session_id)

    async def _run_turn(self, child: AgentContext) -> TurnEnd:
        try:
            return await Turn(child).run()
        except asyncio.CancelledError:
            if child.will_resume and (child.suspended_calls or has_pending_calls(child.session.messages[-1])):
                self._context.suspended_calls.add(self._call_id)
            raise

    async def _record_subtask(self, callee: Agent, session: Session, prompt: str, description: str) -> None:
        """Stores the id of the child session in the transcript and in the call, so that front ends can find it."""
        self._tool_context.report(Progress(metadata={"child_session_id": session.id}))
        message = next(m for m in reversed(self._context.session.messages) if m.find_call(self._call_id))
        model = callee.model_ref
        await self._context.journal.put_part(SubtaskPart(callee.name, description, prompt, model, session.id), message)

    def _find_agent(self, name: str) -> Agent:
        if name == self._context.agent.name:
            return self._context.agent  # not from `agents`: the session may have switched its model
        if name in self._run.agents:
            return self._run.agents[name]
        if name in self._context.tools:
            raise ToolFailure(f"There is a tool called {name!r}, not an agent. Call the tool itself.")
        raise ToolFailure(f"There is no agent called {name!r}. The agents are: {', '.join(self._run.agents)}.")

    def _child_session(self, callee: Agent) -> Session:
        parent = self._context.session
        return Session(
            title=f"{self._context.agent.name} → {callee.name}",
            workspace_directory=parent.workspace_directory,
            mode=stricter_mode(self._context.effective_mode, callee.mode),
            approval=self._context.effective_level,
            agent=callee.name,
            parent_id=parent.id,
            owner=parent.owner,
            metadata=parent.metadata,
        )

    def _input_files(self) -> list[FilePart]:
        """Returns copies of the files of the caller's first input; the callee gets them too."""
        first = next((m for m in self._context.session.messages if m.role == "user"), None)
        files = first.get_parts_by_type(FilePart) if first else []
        return [
            FilePart(file.mime, file.url, file.filename, file.source, file.metadata, file.origins) for file in files
        ]

    def _publish_call(self, callee: Agent, message: str, session: Session) -> None:
        self._run.agent_messages.append(
            AgentMessage(
                "forward",
                self._context.agent.name,
                callee.name,
                message,
                self._call_id,
                _as_attachments(self._input_files()),
            )
        )
        self._context.emit_event(
            AgentCalledEvent,
            call_id=self._call_id,
            callee=callee.name,
            message=message,
            child_session_id=session.id,
        )

    def _publish_return(self, callee: Agent, end: TurnEnd, session: Session, duration_ms: int) -> None:
        self._run.agent_messages.append(
            AgentMessage("return", callee.name, self._context.agent.name, end.output, self._call_id)
        )
        self._context.emit_event(
            AgentReturnedEvent,
            call_id=self._call_id,
            callee=callee.name,
            output=end.output,
            success=end.reason == "completed",
            duration_ms=duration_ms,
            child_session_id=session.id,
        )


async def answer_in_child_session(
    caller: AgentContext, call_id: str, messages: Sequence[Message], system: str, agent: Agent
) -> TurnEnd:
    """Lets an agent without tools answer a conversation in a child session of the caller, with its budget. The prompt
    contains nothing from the caller's session, because the answer goes to the author of the conversation."""
    caller.run.budget.check_depth(caller.depth + 1)
    parent = caller.session
    session = Session(
        title=f"{caller.agent.name} → {agent.name}",
        workspace_directory=parent.workspace_directory,
        mode="chat",
        agent=agent.name,
        parent_id=parent.id,
        owner=parent.owner,
        metadata=parent.metadata,
    )
    async with await caller.run.child_sessions.open_child(session) as journal:
        child = open_agent_context(agent, journal, caller.run, caller=caller, call_id=call_id)
        child.system_prompt = child.fixed_prompt = system
        child.tools, child.tool_specs = {}, ()
        for message in messages:
            await journal.add_message(message)
        return await Turn(child).run()


def _result_text(callee: Agent, end: TurnEnd) -> str:
    if end.reason == "completed":
        return end.output
    reason = end.error.message if end.error else end.reason.replace("_", " ")
    so_far = f" Its answer so far: {end.output}" if end.output else ""
    raise ToolFailure(f"{callee.name} ended early ({reason}).{so_far}")


def _as_attachments(files: list[FilePart]) -> tuple[Attachment, ...]:
    return tuple(Attachment(file.mime, url=file.url, name=file.filename) for file in files)


TASK_TOOL = "task"
# Models trained on the patch format; all others are trained on text replacement.
PATCH_MODEL_MARKERS = ("gpt-4.1", "gpt-5", "codex", "o4-mini")


def open_agent_context(
    agent: Agent,
    journal: Journal,
    run: RunContext,
    *,
    caller: AgentContext | None = None,
    call_id: str = "",
    take_input: TakeInput | None = None,
    output: OutputType | None = None,
    request_recorder: RequestRecorder | None = None,
) -> AgentContext:
    """Creates the context of an agent in a session: system prompt, tools for the session's mode and inherited rules."""
    session = journal.session
    prompt, sent_mode = build_system_prompt(agent, session, run), widest_mode(agent.name, session)
    other_agents = [other for other in run.agents.values() if other.name != agent.name and sent_mode != "chat"]
    context = AgentContext(
        agent=agent,
        run=run,
        mode=session.mode,
        caller=caller,
        journal=journal,
        projection=PromptProjection(run.client_for(agent).model_family(agent.model)),
        system_prompt=prompt,
        fixed_prompt=prompt,
        tools={},
        workspace=Path(session.workspace_directory or "."),
        depth=0 if caller is None else caller.depth + 1,
        ask_rules=(*(caller.ask_rules if caller else ()), *agent.permissions.get("ask", ())),
        deny_rules=(*(caller.deny_rules if caller else ()), *agent.permissions.get("deny", ())),
        call_id=call_id,
        take_input=take_input,
        output=output,
        request_recorder=request_recorder or RequestRecorder(),
    )
    offered = tools_for_mode(agent, run.tools, session.mode)
    delegates = build_delegation_tools(context, open_agent_context)
    context.tools = delegates | offered
    delegates_offered = (tool for tool in delegates.values() if _is_offered(tool, context, other_agents, sent_mode))
    sent = advertised_tools(agent, tools_for_mode(agent, run.tools, sent_mode))
    context.tool_specs = tuple(tool.spec() for tool in (*sent, *delegates_offered))
    offer_conversation_search(context)
    return context


def _is_offered(delegate: Tool, context: AgentContext, other_agents: Sequence[Agent], mode: Mode) -> bool:
    """Returns whether a delegation tool is sent to the model. `call_agent` and `finish` need other agents; `task` also
    works with a copy of the same agent. A user's tool named `task` replaces ours."""
    if delegate.name != TASK_TOOL:
        return bool(other_agents)
    is_listed = context.agent.tools is None or TASK_TOOL in context.agent.tools
    return is_listed and mode != "chat" and TASK_TOOL not in context.run.tools


def advertised_tools(agent: Agent, tools: Mapping[str, Tool]) -> list[Tool]:
    """Returns the tools whose schemas are sent to the model. Each schema costs tokens in every request, so of two file
    editing tools only the one that the model was trained on is sent, and `list` is omitted if there is a shell; tools
    on demand are found by a search. Omitted tools still run when the model calls them."""
    preferred, alternative = ("apply_patch", "edit") if _prefers_patches(agent.model) else ("edit", "apply_patch")
    omitted = {alternative if preferred in tools else "", "list" if "shell" in tools else ""}
    if agent.tools is not None:
        return list(tools.values())
    return [
        tool
        for name, tool in tools.items()
        if name not in omitted and not (isinstance(tool, OnDemandTool) and tool.is_on_demand)
    ]


def _prefers_patches(model: str) -> bool:
    return any(marker in model.lower() for marker in PATCH_MODEL_MARKERS)
