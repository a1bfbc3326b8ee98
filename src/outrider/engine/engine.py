"""The engine: the entry point of every front end to sessions, agents, models and tools; and its open sessions."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, Self, TypedDict, Unpack, overload
from weakref import WeakValueDictionary

from outrider._lazy import deprecated_method
from outrider._sync import CALLBACK_SECONDS
from outrider.agents.instructions import additional_instructions
from outrider.agents.output_type import DEFAULT_ATTEMPTS, OutputValidator, as_output_type
from outrider.engine.approval_gate import function_channel, queue_channel
from outrider.engine.approvals import ApprovalQueue, PeerApprovals
from outrider.engine.inbox import AbortListener, abort_in_other_process, is_abort_request
from outrider.engine.live_session import LiveSession
from outrider.engine.plans import ProposedPlan
from outrider.engine.results import Out, RunResult, RunSubmitter, SubmitKeywords, SubmittedRun
from outrider.engine.runtime import (
    EngineKeywords,
    EngineOptions,
    EngineRuntime,
    OpenDependencies,
    RunSpec,
    check_arguments,
    check_parts,
)
from outrider.errors import ConfigurationError, SessionInUseError
from outrider.event_bus import EventBus, EventStream
from outrider.models.clients import as_provider
from outrider.providers.provider import CustomProvider
from outrider.sessions.journal import Journal
from outrider.sessions.records import (
    Approval,
    ApprovalScope,
    Delivery,
    InboxItem,
    SearchHit,
    SessionFilter,
    SessionUpdate,
    StoredSession,
    check_metadata,
)
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.tools.builtin.todo import recorded_todos
from outrider.tools.tool import Tool
from outrider.types.agents import Agent, Mode, Provider
from outrider.types.ids import new_id, now_ms
from outrider.types.messages import Message
from outrider.types.modes import ApprovalLevel
from outrider.types.outcomes import OutcomeChoice
from outrider.types.parts import CompactionPart, PartBase, TextPart, attachment_part
from outrider.types.tool_state import Attachment, TodoItem, check_attachments
from outrider.types.validate import check_level, check_mode, check_names

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from outrider.engine.archive import SessionArchive
    from outrider.engine.titles import TitleGenerator
    from outrider.engine.undo_history import FileChanges


def _create_titles(runtime: EngineRuntime, live: Mapping[str, LiveSession]) -> "TitleGenerator":
    from outrider.engine.titles import TitleGenerator  # lazy: unattended sessions have none

    return TitleGenerator(runtime, live)


class SessionRegistry:
    """Opens, finds and closes sessions. One lock per id prevents opening a session twice."""

    def __init__(self, runtime: EngineRuntime) -> None:
        self.live: dict[str, LiveSession] = {}
        self._opening: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._runtime = runtime
        self._abort_listener = AbortListener(runtime.store)
        self._base_variables = copy_context()
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop to which the clients of the models belong
        self._titles = _create_titles(runtime, self.live) if runtime.titles else None

    def open(self) -> None:
        """Binds the sessions to the running event loop and to the context variables of this task."""
        self._base_variables, self._loop = copy_context(), asyncio.get_running_loop()

    async def create_session(self, session: Session) -> None:
        """Stores a new session, acquires its lease and adds it to the registry."""
        self._require_open()
        deps = await self._runtime.open_deps(session)
        try:
            journal = await self._runtime.create_session(session)
            try:
                self._register_session(journal, deps)
            except BaseException:
                await journal.close()
                raise
        except BaseException:
            await deps.close()
            raise

    async def open_session(self, session_id: str, *, take_over: bool = False, resume_turn: bool = False) -> LiveSession:
        """Returns the session, opened if necessary. A session whose lease was lost is reopened. With `resume_turn`,
        interrupted calls of repeatable tools run again; otherwise they end as interrupted."""
        self._require_open()
        if session_id in self.live and self.live[session_id].journal.is_lost:
            await self.close_session(session_id)
        if session_id in self.live:
            return self.live[session_id]
        # Concurrent calls wait for the lock: a second lease would invalidate the first one.
        async with self._opening.setdefault(session_id, asyncio.Lock()):
            if session_id not in self.live:
                (await self._resume_session(session_id, take_over=take_over, repeat_calls=resume_turn)).wake()
            return self.live[session_id]

    async def _resume_session(self, session_id: str, **options: bool) -> LiveSession:
        journal = await self._runtime.resume_session(session_id, **options)
        try:
            deps = await self._runtime.open_deps(journal.session)
            try:
                return self._register_session(journal, deps)
            except BaseException:
                await deps.close()
                raise
        except BaseException:
            await journal.close()
            raise

    async def open_idle_session(self, session_id: str) -> Journal:
        """Returns the journal of a session without a running turn. Raises SessionInUseError if there is one."""
        live = await self.open_session(session_id)
        if live.in_turn:
            raise SessionInUseError("a turn is running in this session; abort it or wait for its end")
        return live.journal

    def reject_own_turn(self, session_id: str) -> None:
        """Raises SessionInUseError if a function of this session's running turn is about to wait for its end."""
        if not isinstance(session_id, str):  # pyright: ignore[reportUnnecessaryIsInstance]  `put` explains it
            return
        if (live := self.live.get(session_id)) is not None:
            live.reject_own_turn()

    async def abort_turn(self, session_id: str) -> None:
        """Aborts the turn in this process, or else in the process that owns the session."""
        self.check_loop()
        live = self.live.get(session_id)
        if live is not None:
            await live.abort()
        if live is None or live.journal.is_lost:
            await abort_in_other_process(self._runtime.store, session_id)

    async def close_session(self, session_id: str) -> None:
        """Closes the session under its lock: a concurrent open waits, because a second owner would reject the last
        writes of the first."""
        async with self._opening.setdefault(session_id, asyncio.Lock()):
            live = self.live.pop(session_id, None)
            if live is not None:
                await live.close()
            await self._runtime.release_session(session_id)

    async def close_all(self) -> None:
        """Closes all sessions, and the background tasks for titles and abort requests. If closing a session fails, for
        example because the disk is full, the other sessions are closed too, and the error is raised at the end."""
        async with AsyncExitStack() as stack:  # it calls the callbacks in reverse order
            stack.callback(self.live.clear)
            stack.push_async_callback(self._abort_listener.close)
            for live in reversed(self.live.values()):
                stack.push_async_callback(live.close)
            if self._titles is not None:
                stack.push_async_callback(self._titles.close)

    def _register_session(self, journal: Journal, deps: OpenDependencies) -> LiveSession:
        live = LiveSession(journal, self._runtime, self._abort_listener, deps=deps, base_variables=self._base_variables)
        self.live[journal.session.id] = live
        return live

    def _require_open(self) -> None:
        if not self._runtime.is_open:
            raise ConfigurationError("this engine is not open; use it inside `async with engine:`")
        self.check_loop()

    def check_loop(self) -> None:
        """Raises ConfigurationError if the engine is open in another event loop."""
        if self._runtime.is_open and asyncio.get_running_loop() is not self._loop:
            raise ConfigurationError(
                "this engine was opened in another event loop, to which its connections belong; open an engine in each "
                "loop (they may share a store), or pass the call to the other loop with "
                "asyncio.run_coroutine_threadsafe()"
            )


class PromptKeywords(TypedDict, total=False):
    """The keyword arguments of `Engine.prompt`, except for `output_type`."""

    delivery: Delivery
    input_id: str | None
    sender: str
    instructions: str
    output_validators: OutputValidator | Sequence[OutputValidator] | None
    output_attempts: int


class ResumeKeywords(TypedDict, total=False):
    """The keyword arguments of `Engine.resume`, except for `output_type`."""

    take_over: bool
    output_validators: OutputValidator | Sequence[OutputValidator] | None
    output_attempts: int


_CREATE_ARGUMENTS = ("title", "mode", "agent", "workspace", "approval", "owner", "metadata")
MAX_COMPACTION_INSTRUCTIONS = 4_000  # characters


class Engine:
    """Runs sessions. Open it with `async with`. Several front ends may listen, prompt, answer and abort concurrently.

    Set `attended` if a user can approve calls. With `surroundings` every session has the built-in tools for its
    workspace in addition to `tools`. With `cassettes`, a folder, all model requests and responses of every session are
    recorded there for replay.
    """

    background: RunSubmitter | None = None  # set by `outrider.Background` while it is open

    def __init__(
        self,
        agents: Sequence[Agent],
        providers: Sequence[Provider | CustomProvider],
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        store: Store | None = None,
        bus: EventBus | None = None,
        **options: Unpack[EngineKeywords],
    ) -> None:
        check_parts("Engine()", agents, tools, providers)
        check_arguments("Engine()", {**options, "store": store, "bus": bus})
        check_level(options.get("approval"), "the engine")
        if not agents:
            raise ConfigurationError("an engine needs at least one agent; write Engine([Agent(…)], [Provider(…)])")
        engine_providers = [as_provider(provider) for provider in providers]
        self._arguments: dict[str, Any] = {
            "agents": agents,
            "providers": engine_providers,
            "tools": tuple(tools),
            **options,
        }
        chosen = EngineOptions.from_keywords(options)
        self.attended = chosen.attended
        self._workspace = chosen.workspace
        self.cassettes = chosen.cassettes
        self.bus = bus or EventBus()
        spec = RunSpec.build(
            agents[0], agents, self._arguments["tools"], engine_providers, more_tools=chosen.surroundings is not None
        )
        self.runtime = EngineRuntime(spec, chosen, store=store, bus=self.bus)
        self.store = self.runtime.store
        self.approval_queue = ApprovalQueue(
            self.store, self.bus, lambda: self.attended, PeerApprovals(self.bus, engine_providers)
        )
        self.runtime.approvals = (
            function_channel(chosen.approve) if chosen.approve else queue_channel(self.approval_queue)
        )
        self._sessions = SessionRegistry(self.runtime)
        self.live = self._sessions.live

    async def __aenter__(self) -> Self:
        if self.runtime.is_open:
            raise ConfigurationError("this engine is already open; open it once, and share it between tasks")
        self._sessions.open()
        try:
            await self.runtime.open()
            await self.approval_queue.load()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        async with AsyncExitStack() as stack:  # it calls the callbacks in reverse order, and all of them after an error
            stack.push_async_callback(self.runtime.aclose)
            stack.callback(self.approval_queue.close)
            stack.push_async_callback(self.bus.settled, self.runtime.callback_seconds or CALLBACK_SECONDS)
            stack.push_async_callback(self._sessions.close_all)

    def replace(self, **changes: Any) -> "Engine":
        """Returns a new engine with the arguments of this one, except for `changes`. It must be opened too. It has the
        providers and the keys of users that this engine uses now."""
        providers = tuple(self.runtime.spec.providers.values())
        parts: dict[str, Any] = {**self._arguments, "providers": providers, "store": self.store, "bus": self.bus}
        similar = Engine(**{**parts, **changes})
        similar.runtime.keys_of_owner = self.runtime.keys_of_owner
        return similar

    @overload
    async def submit(
        self, prompt: str, *, output_type: None = None, **order: Unpack[SubmitKeywords]
    ) -> SubmittedRun[str]: ...
    @overload
    async def submit(
        self, prompt: str, *, output_type: "TypeForm[Out]", **order: Unpack[SubmitKeywords]
    ) -> SubmittedRun[Out]: ...
    @overload
    async def submit(
        self, prompt: str, *, output_type: dict[str, Any], **order: Unpack[SubmitKeywords]
    ) -> SubmittedRun[Any]: ...
    async def submit(
        self, prompt: str, *, output_type: Any = None, **order: Unpack[SubmitKeywords]
    ) -> SubmittedRun[Any]:
        """Queues a background run and returns its `RunHandle`. The run is stored when this returns.

        It needs an open `Background(engine, …)`, whose `submit` documents the other arguments, and raises
        ConfigurationError without one."""
        if self.background is None:
            raise ConfigurationError("this engine has no run queue; open outrider.Background(engine, database)")
        return await self.background.submit(prompt, output_type=output_type, **order)

    async def create(
        self,
        *,
        title: str = "",
        mode: Mode | None = None,
        agent: str | None = None,
        workspace: str | Path | None = None,
        approval: ApprovalLevel | None = None,
        owner: str = "",
        metadata: Mapping[str, Any] | None = None,
        **unknown: Never,
    ) -> str:
        """Creates a session that this engine owns and returns its id. Agent and mode default to those of the first
        agent, the approval level to that of the engine. `owner` names the user or tenant that the session belongs to;
        `metadata` is a small JSON object. Both are stored, and `SessionFilter` selects by them."""
        check_names("Engine.create()", unknown, _CREATE_ARGUMENTS)
        check_arguments("Engine.create()", {"title": title, "owner": owner, "workspace": workspace, "agent": agent})
        check_mode(mode, "a session")
        check_level(approval, "a session")
        chosen = self.runtime.find_agent(agent or "")
        session = Session(
            title=title,
            mode=mode or chosen.mode,
            agent=chosen.name,
            approval=approval or self.runtime.approval,
            workspace_directory=str(workspace or self._workspace or Path.cwd()),
            owner=owner,
            metadata=check_metadata(metadata),
        )
        await self._sessions.create_session(session)
        return session.id

    async def open(self, session_id: str, *, take_over: bool = False) -> Session:
        """Opens a stored session and takes its lease. Calls that a crash left open are ended, open approvals are
        published again, and queued input is processed. An interrupted turn waits for `resume` or for new input."""
        return (await self._sessions.open_session(session_id, take_over=take_over)).journal.session

    @overload
    async def resume(
        self, session_id: str, *, output_type: None = None, **options: Unpack[ResumeKeywords]
    ) -> RunResult[str]: ...
    @overload
    async def resume(
        self, session_id: str, *, output_type: "TypeForm[Out]", **options: Unpack[ResumeKeywords]
    ) -> RunResult[Out]: ...
    @overload
    async def resume(
        self, session_id: str, *, output_type: dict[str, Any], **options: Unpack[ResumeKeywords]
    ) -> RunResult[Any]: ...
    async def resume(
        self,
        session_id: str,
        *,
        take_over: bool = False,
        output_type: Any = None,
        output_validators: OutputValidator | Sequence[OutputValidator] | None = None,
        output_attempts: int = DEFAULT_ATTEMPTS,
        **unknown: Any,
    ) -> RunResult[Any]:
        """Resumes a turn that was interrupted by a crash, an abort or a limit, and waits for its end. Interrupted calls
        are not repeated, except for those of `repeatable` tools; the model reads which ones were interrupted. The
        output type and its validators are not stored: pass those of `prompt`. `take_over` takes the session from
        another process."""
        check_names("Engine.resume()", unknown, (*ResumeKeywords.__annotations__, "output_type"))
        output = as_output_type(output_type, output_validators, output_attempts)
        self._sessions.reject_own_turn(session_id)
        live = await self._sessions.open_session(session_id, take_over=take_over, resume_turn=True)
        return await live.resume_turn(output)

    @overload
    async def prompt(
        self,
        session_id: str,
        content: str | Sequence[str | PartBase | Attachment],
        *,
        output_type: None = None,
        **options: Unpack[PromptKeywords],
    ) -> RunResult[str]: ...
    @overload
    async def prompt(
        self,
        session_id: str,
        content: str | Sequence[str | PartBase | Attachment],
        *,
        output_type: "TypeForm[Out]",
        **options: Unpack[PromptKeywords],
    ) -> RunResult[Out]: ...
    @overload
    async def prompt(
        self,
        session_id: str,
        content: str | Sequence[str | PartBase | Attachment],
        *,
        output_type: dict[str, Any],
        **options: Unpack[PromptKeywords],
    ) -> RunResult[Any]: ...
    async def prompt(
        self,
        session_id: str,
        content: str | Sequence[str | PartBase | Attachment],
        *,
        output_type: Any = None,
        **options: Unpack[PromptKeywords],
    ) -> RunResult[Any]:
        """Adds input to the session and waits for the result of the turn that processes it. With `output_type` its
        output is a value of that type, which `output_validators` check as in `run`; `instructions` are added to those
        of the agent for this turn. The output type is not stored: after a restart, pass it to `resume` again. If the
        task that waits is cancelled, the turn continues; `abort` ends it."""
        self._sessions.reject_own_turn(session_id)
        return await (await self.enqueue(session_id, content, output_type=output_type, **options))

    @overload
    async def enqueue(
        self,
        session_id: str,
        content: str | Sequence[str | PartBase | Attachment],
        *,
        output_type: None = None,
        **options: Unpack[PromptKeywords],
    ) -> asyncio.Future[RunResult[str]]: ...
    @overload
    async def enqueue(
        self,
        session_id: str,
        content: str | Sequence[str | PartBase | Attachment],
        *,
        output_type: "TypeForm[Out]",
        **options: Unpack[PromptKeywords],
    ) -> asyncio.Future[RunResult[Out]]: ...
    @overload
    async def enqueue(
        self,
        session_id: str,
        content: str | Sequence[str | PartBase | Attachment],
        *,
        output_type: dict[str, Any],
        **options: Unpack[PromptKeywords],
    ) -> asyncio.Future[RunResult[Any]]: ...
    async def enqueue(
        self,
        session_id: str,
        content: str | Sequence[str | PartBase | Attachment],
        *,
        delivery: Delivery = "queue",
        input_id: str | None = None,
        sender: str = "",
        instructions: str = "",
        output_type: Any = None,
        output_validators: OutputValidator | Sequence[OutputValidator] | None = None,
        output_attempts: int = DEFAULT_ATTEMPTS,
        **unknown: Any,
    ) -> asyncio.Future[RunResult[Any]]:
        """Adds input without waiting for its turn. The input is stored when this returns; the future resolves to the
        result of the turn."""
        check_names("Engine.prompt()", unknown, (*PromptKeywords.__annotations__, "output_type"))
        arguments = {"session_id": session_id, "content": content, "delivery": delivery, "instructions": instructions}
        check_arguments("Engine.prompt()", {**arguments, "input_id": input_id, "sender": sender})
        if content is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise ConfigurationError(
                "Engine.prompt(): content is missing; pass a string, or a list of strings and parts"
            )
        output = as_output_type(output_type, output_validators, output_attempts)
        live = await self._sessions.open_session(session_id)
        parts = [content] if isinstance(content, str) else content
        message = Message("user", [_input_part(part) for part in parts])
        if instructions.strip():
            message.add_part(additional_instructions(instructions))
        await self.runtime.call_prompt_hook(live.session, message)
        live = await self._sessions.open_session(session_id)  # the hook may have closed it
        item = InboxItem(
            session_id=session_id, message=message, id=input_id or new_id(), delivery=delivery, sender=sender
        )
        return await live.put(item, output)

    async def queued(self, session_id: str) -> Sequence[InboxItem]:
        """Returns the input that waits for its turn, oldest first."""
        return [item for item in await self.store.inbox(session_id) if not is_abort_request(item)]

    async def withdraw(self, session_id: str, input_id: str) -> bool:
        """Removes waiting input. Returns False if a turn has started with it. The future of the input resolves with the
        reason `aborted`."""
        return await (await self._sessions.open_session(session_id)).withdraw(input_id)

    async def plan(self, session_id: str) -> ProposedPlan | None:
        """Returns the plan that the last turn in plan mode proposed. Returns None if the plan was answered or other
        input followed it. A SessionUpdatedEvent with `changes["plan"]` announces a plan."""
        return self.runtime.redact((await self._sessions.open_session(session_id)).plan())

    async def accept_plan(self, session_id: str, changed: str | None = None, *, by: str = "") -> RunResult[str]:
        """Accepts the plan, unchanged or as `changed`, switches the session to agent mode, and returns the result of
        the turn that carries it out. Raises OutriderError if the plan already has another answer."""
        live = await self._sessions.open_session(session_id)
        answer = "accepted" if changed is None else "changed"
        return await (await live.answer_plan(answer, changed or "", sender=by))

    async def refuse_plan(self, session_id: str, words: str = "", *, by: str = "") -> RunResult[str]:
        """Refuses the plan and stays in plan mode. With `words`, a comment for the model, the model plans again at
        once; without them, it reads the refusal with the next input."""
        live = await self._sessions.open_session(session_id)
        return await (await live.answer_plan("refused", words, sender=by))

    async def compact(self, session_id: str, instructions: str = "") -> CompactionPart | None:
        """Replaces old messages in the prompt by a summary, after the running turn if there is one. `instructions` tell
        the model what the summary should contain, such as "focus on the API"; at most 4,000 characters. Returns None
        if nothing can be summarized, or the summary is not shorter."""
        check_arguments("Engine.compact()", {"session_id": session_id, "instructions": instructions})
        self._sessions.reject_own_turn(session_id)
        if len(instructions) > MAX_COMPACTION_INSTRUCTIONS:
            raise ConfigurationError(
                f"the instructions for a compaction have {len(instructions):,} characters; at most "
                f"{MAX_COMPACTION_INSTRUCTIONS:,} are possible"
            )
        return await (await self._sessions.open_session(session_id)).compact(instructions.strip())

    async def undo_compaction(self, session_id: str) -> bool:
        """Restores the messages that the last compaction replaced in the prompt. Returns False if no compaction is in
        effect. Raises OutriderError while a turn runs."""
        return await (await self._sessions.open_session(session_id)).undo_compaction()

    async def fork(self, session_id: str, *, at: str | None = None, title: str | None = None) -> str:
        """Copies a session up to and including message `at` (None: all messages) and returns the id of the copy."""
        return (await self.store.fork(session_id, at=at, title=title)).id

    async def list(self, filter: SessionFilter | None = None, *, limit: int | None = 50) -> "Sequence[StoredSession]":
        """Returns stored sessions, latest activity first. Without a filter, sessions that agents opened for each other
        are left out. `limit=None` returns all sessions."""
        check_arguments("Engine.list()", {"filter": filter, "limit": limit})
        chosen = SessionFilter(roots=True) if filter is None else filter
        return [session async for session in self._archive.iterate_sessions(chosen, limit)]

    async def search(
        self, query: str, *, session_id: str | None = None, filter: SessionFilter | None = None, limit: int = 20
    ) -> "Sequence[SearchHit]":
        """Searches titles, texts and tool outputs of one session, of the sessions that match the filter, or of all. A
        hit has every word of the query; `"a phrase"` and `prefix*` are supported."""
        arguments = {"query": query, "session_id": session_id, "filter": filter, "limit": limit}
        check_arguments("Engine.search()", arguments)
        if filter is None:  # a store written for version 0.1 has no such parameter
            return await self.store.search(query, session_id=session_id, limit=limit)
        return await self.store.search(query, session_id=session_id, limit=limit, filter=filter)

    async def delete(self, session_id: str) -> None:
        """Deletes a session, the sessions of the agents that it called, and their files. Raises SessionInUseError while
        a turn runs, or if another process owns the session."""
        live = self.live.get(session_id)
        if live is not None:
            if live.in_turn or live.is_busy:
                raise SessionInUseError("a turn is running in this session; abort it or wait for its end")
            await self._sessions.close_session(session_id)
        await self._archive.delete(session_id)

    async def clear(self) -> int:
        """Deletes every session that is not in use, including those that this engine has open, and returns their
        number. Sessions with a running turn and those of other processes stay."""
        for session_id, live in tuple(self.live.items()):
            if not live.in_turn and not live.is_busy:
                await self._sessions.close_session(session_id)
        return await self._archive.delete_all()

    async def export(self, session_id: str) -> bytes:
        """Returns a session and the sessions of the agents that it called as a JSON document."""
        return await self._archive.export_document(session_id)

    async def import_session(self, document: bytes | str, *, as_copy: bool = True) -> str:
        """Stores the session of an export, or of a session file of another program, and returns its id. As a copy it
        gets a new id; otherwise StoreError is raised if the id exists. Secrets are redacted. Entries that could not be
        read are logged as warnings of `outrider.import`."""
        if not isinstance(document, bytes | str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"Engine.import_session() takes an export as str or bytes, got {type(document).__name__}; for a dict, "
                "pass json.dumps(document)"
            )
        data = document.encode() if isinstance(document, str) else document
        imported = await self._archive.import_document(data, as_copy=as_copy)
        session_id = imported.sessions[0].id
        if imported.left_out:
            import logging  # lazy: rarely needed

            for item in imported.left_out:
                logging.getLogger("outrider.import").warning("session %s: skipped %s", session_id, item)
        return session_id

    async def share(self, session_id: str) -> str:
        """Returns the session as one self-contained HTML page."""
        from outrider.engine.archive import render_shared_page

        return await render_shared_page(self._archive, session_id)

    @property
    def _archive(self) -> "SessionArchive":
        from outrider.engine.archive import SessionArchive  # lazy: runs do not need it

        return SessionArchive(self.store, self.runtime.data)

    async def todos(self, session_id: str) -> Sequence[TodoItem]:
        """Returns the todo list of the session's agent. A SessionUpdatedEvent with `changes["todos"]` announces
        changes."""
        return self.runtime.redact(recorded_todos((await self.open(session_id)).messages))

    async def rename(self, session_id: str, title: str) -> None:
        """Sets the title of a session, even if another process owns it."""
        check_arguments("Engine.rename()", {"session_id": session_id, "title": title})
        if session_id in self.live:
            await self.live[session_id].journal.update_session(SessionUpdate(title=title))
        else:
            await self.store.update(session_id, SessionUpdate(title=title))

    async def abort(self, session_id: str) -> None:
        """Cancels the running turn; all completed work is stored. If another process runs the turn, requests the abort
        from that process. Raises SessionInUseError if it does not respond."""
        await self._sessions.abort_turn(session_id)

    async def set_mode(self, session_id: str, mode: Mode) -> None:
        """Sets the mode of the session. Raises ConfigurationError for an unknown value."""
        check_mode(mode, "a session")
        await self._update_session(session_id, SessionUpdate(mode=mode))

    async def set_approval(self, session_id: str, level: ApprovalLevel) -> None:
        """Sets the approval level of the session: `ask`, `edits` or `auto`. Raises ConfigurationError for another
        value."""
        check_level(level, "a session")
        await self._update_session(session_id, SessionUpdate(approval=level))

    async def set_agent(self, session_id: str, agent: str) -> None:
        """Sets the agent that answers in the session. Raises ConfigurationError for an unknown name."""
        await self._update_session(session_id, SessionUpdate(agent=self.runtime.find_agent(agent).name))

    async def set_archived(self, session_id: str, *, archived: bool) -> None:
        """Archives the session, or takes it out of the archive; lists of front ends leave archived sessions out."""
        await self._update_session(session_id, SessionUpdate(archived=now_ms() if archived else None))

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
    ) -> Approval:
        """Answers an approval request and returns the answer in effect: the first answer wins. `by` names the user who
        answers, and `words` is the user's comment, which the model reads after a denial. For the outcome of a command,
        `keep` names the files to keep (None: all), and `choice` says how a blocked command runs again. `width` is the
        id of one of the approval's `widths`, which a lasting answer then covers; by default the narrowest."""
        check_arguments("Engine.answer()", {"allow": allow, "by": by, "scope": scope})
        self._sessions.check_loop()
        return await self.approval_queue.answer(
            approval_id, allow=allow, scope=scope, by=by, words=words, keep=keep, choice=choice, width=width
        )

    async def approvals(self, session_id: str | None = None) -> Sequence[Approval]:
        """Returns the open approval requests."""
        return await self.approval_queue.open_approvals(session_id)

    def file_changes(self, session_id: str) -> "FileChanges":
        """Returns access to the file changes of the session's agents, for preview, undo and redo."""
        from outrider.engine.undo_history import FileChanges  # lazy: most runs undo nothing

        return FileChanges(
            session_id, self.runtime.undo, self.store, self.bus, lambda: self._sessions.open_idle_session(session_id)
        )

    def redact(self, value: Any) -> Any:
        """Returns a copy of a value with secrets redacted, as they are in the store."""
        return self.runtime.redact(value)

    def events(self, session_id: str | None = None) -> EventStream:
        """Returns a stream of the events from now on, of one session or of all. It does not end by itself."""
        check_arguments("Engine.events()", {"session_id": session_id})
        return self.bus.stream(None if session_id is None else lambda event: event.session_id == session_id)

    async def close(self, session_id: str) -> None:
        """Closes the session and releases its lease, so that another engine can open it."""
        await self._sessions.close_session(session_id)

    async def _update_session(self, session_id: str, update: SessionUpdate) -> None:
        await (await self._sessions.open_session(session_id)).journal.update_session(update)

    # Names of version 0.1.
    go_on = deprecated_method("go_on", resume)
    put = deprecated_method("put", enqueue)
    like = deprecated_method("like", replace)
    discreet = deprecated_method("discreet", redact)


def _input_part(content: str | PartBase | Attachment) -> PartBase:
    if isinstance(content, Attachment):
        return attachment_part(check_attachments([content])[0])
    return TextPart(content) if isinstance(content, str) else content
