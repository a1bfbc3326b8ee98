"""Opens and closes one run: its runtime, its session and the turn of its entry agent."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from outrider.agents.delegation import open_agent_context
from outrider.agents.output_type import MAX_REPAIRS, OutputType
from outrider.agents.run_context import AgentContext, RunContext
from outrider.agents.turn import Turn
from outrider.agents.turn_state import TurnEnd
from outrider.config.environment import redactor_for
from outrider.engine.approval_gate import ApproveFunction, function_channel, relay_remote_approvals
from outrider.engine.runtime import EngineOptions, EngineRuntime, RunSpec, create_memory_store
from outrider.errors import OutputMismatch, SessionNotFoundError
from outrider.event_bus import EventBus
from outrider.models.clients import find_peers
from outrider.sessions.journal import Journal, create_journal, resume_journal
from outrider.sessions.records import SessionUpdate
from outrider.sessions.redacted_store import redact_store
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.types.agents import Agent, AgentMessage, Mode
from outrider.types.messages import Message
from outrider.types.parts import FilePart, TextPart
from outrider.types.tool_state import Attachment

USER = "user"


class RunSession:
    """One run in progress."""

    def __init__(self, entry: Agent, run_context: RunContext, journal: Journal) -> None:
        self._entry = entry
        self.run_context = run_context
        self.journal = journal
        self.value: Any = msgspec.UNSET

    async def run_entry_agent(
        self, message: str, attachments: Sequence[Attachment] = (), output: OutputType | None = None
    ) -> TurnEnd:
        """Give the message to the entry agent and run its turn. With `output`, parse the answer into `value`."""
        entry = self._entry
        self.run_context.agent_messages.append(
            AgentMessage("forward", USER, entry.name, message, "", tuple(attachments))
        )
        files = [_file_part(attachment) for attachment in attachments]
        await self.journal.add_message(Message("user", [TextPart(message), *files], agent=entry.name))
        context = open_agent_context(entry, self.journal, self.run_context, output=output.schema if output else None)
        end = await Turn(context).run()
        if output is not None:
            end, self.value = await self._parse_output(end, output, context)
        self.run_context.agent_messages.append(AgentMessage("return", entry.name, USER, end.output, ""))
        return end

    async def _parse_output(self, end: TurnEnd, output: OutputType, context: AgentContext) -> tuple[TurnEnd, Any]:
        """Parse the answer as the output type. The model may repair an invalid answer `MAX_REPAIRS` times."""
        for repairs_left in range(MAX_REPAIRS, -1, -1):
            if end.reason != "completed":
                return end, msgspec.UNSET
            try:
                return end, output.parse_answer(end.output)
            except OutputMismatch as problem:
                if not repairs_left:
                    return TurnEnd("error", end.output, problem), msgspec.UNSET
                repair = TextPart(output.repair_prompt(problem), synthetic=True)
            await self.journal.add_message(Message("user", [repair]))
            context.finish_output = None
            end = await Turn(context).run()
        return end, msgspec.UNSET


@asynccontextmanager
async def open_run_session(
    spec: RunSpec,
    options: EngineOptions,
    bus: EventBus,
    *,
    store: Store | None = None,
    session: Session | str | None = None,
    mode: Mode | None = None,
    approve: ApproveFunction | None = None,
) -> AsyncGenerator[RunSession, None]:
    """Open the runtime and the session of one run, and close them afterwards. `mode` overrides that of the session."""
    redactor = redactor_for(spec.providers.values(), options.secrets)
    run_store = redact_store(store or create_memory_store(), redactor)
    runtime = EngineRuntime(
        spec, options, store=run_store, bus=bus, redactor=redactor, approvals=function_channel(approve)
    )
    try:
        # A run cannot switch to another model, so providers without an agent may lack credentials.
        await runtime.open(unused_providers=False)
        async with (
            _relay_approvals(bus, spec, approve),
            await _open_journal(session, spec.entry, mode, run_store, bus) as journal,
        ):
            if mode is not None and mode != journal.session.mode:
                await journal.update_session(SessionUpdate(mode=mode))
            yield RunSession(spec.entry, runtime.create_run_context(journal.session), journal)
    finally:
        await runtime.aclose()


def _relay_approvals(
    bus: EventBus, spec: RunSpec, approve: ApproveFunction | None
) -> AbstractAsyncContextManager[None]:
    """Relay approval requests if agents run on other servers and there is a function that approves."""
    if approve is None or not find_peers(spec.providers.values()):
        return nullcontext()
    return relay_remote_approvals(bus, spec.providers.values(), approve)


async def _open_journal(
    session: Session | str | None, entry: Agent, mode: Mode | None, store: Store, bus: EventBus
) -> Journal:
    """Open a new session, a stored one, or one in memory that is not in the store yet."""
    if isinstance(session, str):
        return await resume_journal(session, store, bus)
    if session is None:
        fresh = Session(workspace_directory=str(Path.cwd()), mode=mode or entry.mode, agent=entry.name)
        return await create_journal(fresh, store, bus)
    try:
        await store.get(session.id)
    except SessionNotFoundError:
        journal = await create_journal(session, store, bus)
        if session.messages:
            await store.append(session.id, session.messages)
        return journal
    return await resume_journal(session.id, store, bus)


def _file_part(attachment: Attachment) -> FilePart:
    url = attachment.url or f"data:{attachment.mime_type};base64,{attachment.data}"
    return FilePart(attachment.mime_type, url, attachment.name)
