"""The built-in tools of one session, created for its workspace, with a sandbox for commands that depends on the
mode."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from outrider._posix import is_within
from outrider.agents.run_context import AgentContext, ApprovalVerdict, PromptTexts
from outrider.engine.approval_gate import ApprovalChannel, Rules, function_channel
from outrider.engine.child_sessions import OpenSessionTree
from outrider.engine.undo import UndoRecorder
from outrider.errors import ToolFailure
from outrider.event_bus import EventBus
from outrider.permissions import reasons
from outrider.permissions.modes import MODE_TABLE, Decision
from outrider.permissions.paths.protected import SecretFileFinder, find_protected_files
from outrider.permissions.rules import DeniedReads, match_path_rule
from outrider.processes.launch import LaunchRequest
from outrider.processes.output import FindSecrets, OutputFolder, OutputLimits, find_no_secrets
from outrider.processes.sandbox.sandbox import (
    Network,
    NoSandbox,
    ProtectedState,
    Sandbox,
    SandboxPolicy,
    default_policy,
    describe_planted,
)
from outrider.processes.supervisor import ProcessSupervisor
from outrider.project.extensions import GitState, WorkspaceExtensions, recorded_notes
from outrider.project.sandbox import allow_git_writes, find_worktree
from outrider.sessions.session import Session
from outrider.tools.builtin.edit import apply_patch_tool, edit_tool, write_tool
from outrider.tools.builtin.glob import glob_tool, list_tool
from outrider.tools.builtin.grep import grep_tool
from outrider.tools.builtin.process import process_tool
from outrider.tools.builtin.read import read_tool
from outrider.tools.builtin.shell import shell_tool
from outrider.tools.builtin.task import task_tool
from outrider.tools.builtin.todo import recorded_todos, todo_tool
from outrider.tools.builtin.web import web_fetch_tool
from outrider.tools.edit_transaction import FileEditor, WorkspaceLock, save_no_originals
from outrider.tools.tool import AskUser, Progress, Tool, ToolContext, tools_by_name
from outrider.tools.workspace_files import EditorBuffers, SeenVersions, WorkspaceFiles
from outrider.types.events import SessionUpdatedEvent
from outrider.types.messages import MCP_SERVERS, WORKSPACE_STATE, Message
from outrider.types.modes import UNATTENDED_MODES
from outrider.types.origins import FlowSettings, Origin, make_origin
from outrider.types.outcomes import CommandOutcome, OutcomeAnswer
from outrider.types.parts import TextPart, ToolPart
from outrider.types.request import ServerOverview
from outrider.types.tool_declaration import (
    PermissionRule,
    call_directory,
    call_subject,
    call_subjects,
    declaration_of,
    parse_rule,
)
from outrider.types.tool_state import WAITED, TodoItem

if TYPE_CHECKING:
    from outrider.outcomes.repository import OutsideRepository
    from outrider.outcomes.runner import SandboxedCommands
    from outrider.permissions import Containment
    from outrider.permissions.information_flow import EgressPolicy
    from outrider.processes.git import GitRunner
    from outrider.sessions.journal import Journal
    from outrider.sessions.records import StoredSession
    from outrider.tools.mcp.catalog import McpToolCatalog
    from outrider.tools.mcp.connection import SamplingReply, SamplingRequest


ATTENDED = "The user is present and can be asked."
UNATTENDED = "No one can be asked: decide yourself; what needs approval is denied."


_DENIED_TO_AGENT: ContextVar[DeniedReads | None] = ContextVar("denied_to_agent", default=None)
"""What the agent of the running call may not read; each call runs in its own task, or after the one before it."""


class OwnerLimits(msgspec.Struct, frozen=True):
    """The limits of sessions whose owner may not use the whole machine: file tools stay in the workspace and commands
    in the sandbox, even after an approval. `hidden` are folders that these sessions cannot read, except below their own
    workspace. `folder` is the resolved path of the folder with the owner's workspaces, "" if it is unknown."""

    hidden: tuple[str, ...] = ()
    folder: str = ""

    def hides(self, real_path: str, workspace: str) -> bool:
        """Returns whether a resolved path may not be read from this workspace."""
        is_own = is_within(real_path, workspace)
        return any(
            is_within(real_path, folder) and not (is_own and is_within(workspace, folder)) for folder in self.hidden
        )

    def has_left(self, workspace: str, real_path: str) -> bool:
        """Returns whether a workspace in the folder of the owner resolves to a path outside that folder: commands of
        the owner can replace folders with links."""
        return bool(self.folder) and is_within(workspace, self.folder) and not is_within(real_path, self.folder)

    def as_metadata(self) -> dict[str, Any]:
        """Returns the metadata that gives a session these limits in every process."""
        return {OWNER_LIMITS: msgspec.to_builtins(self)}


OWNER_LIMITS = "owner_limits"  # in the metadata of a session


def stored_limits(metadata: Mapping[str, Any]) -> OwnerLimits | None:
    """Returns the limits in the metadata of a session, None if there are none."""
    return msgspec.convert(metadata[OWNER_LIMITS], OwnerLimits) if OWNER_LIMITS in metadata else None


class ToolEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """What the tools of all sessions share.

    - `sandbox`: confines commands.
    - `data`: Outrider's data folder; no tool or command changes it.
    - `home`: the user's home folder.
    - `bus`: the event bus of the engine.
    - `config`: the folder of Outrider's configuration; no tool or command changes it.
    - `ask`: the callback for the model's questions to the user.
    - `network`: the network of sandboxed commands.
    - `search_tool`: creates the tool `web_search`.
    - `extensions`: instructions, skills, commands, prompts and MCP servers of the user and the workspaces.
    - `hosts`: the hosts that sandboxed commands may reach.
    - `editor_buffers`: returns the buffers of the editor in which a session runs.
    - `limits_of_owner`: returns the limits of the sessions of a user.
    - `workspace_locks`: serialize commands with an overlay, commits and edits of one workspace.
    """

    sandbox: Sandbox
    data: Path
    home: Path
    bus: EventBus
    config: Path | None = None
    ask: AskUser | None = None
    network: Network = "off"
    search_tool: Callable[[], Tool] | None = None
    extensions: WorkspaceExtensions | None = None
    hosts: tuple[str, ...] = ()
    editor_buffers: Callable[[str], EditorBuffers | None] | None = None
    limits_of_owner: Callable[[str], OwnerLimits | None] | None = None
    workspace_locks: dict[Path, WorkspaceLock] = msgspec.field(default_factory=dict[Path, WorkspaceLock])

    @property
    def own_folders(self) -> tuple[Path, ...]:
        return (self.data, self.config) if self.config else (self.data,)

    def find_limits(self, session: "Session | StoredSession") -> OwnerLimits | None:
        """Returns the limits of a session; None if its calls may leave the workspace after an approval."""
        limits = self.limits_of_owner(session.owner) if self.limits_of_owner is not None else None
        return limits or stored_limits(session.metadata)

    def git_runner(self, session: "StoredSession") -> "GitRunner":
        """Returns the object that runs git in the workspace of a session. Git runs in the sandbox, because commands of
        the session can change the repository at the same time."""
        from outrider.processes.git import GitRunner  # lazy: for the review of changes only

        limits, workspace = self.find_limits(session), Path(session.workspace_directory or ".")
        own_files = [*self.own_folders, *map(Path, limits.hidden if limits is not None else ())]
        hidden = default_policy(workspace, writable=False, home=self.home, own_files=own_files).hidden
        return GitRunner(self.sandbox, hidden, exact=limits is not None)


class GrantedPaths:
    """Paths outside the workspace, or protected inside it, that an admitted call names; file tools may open them.
    `may_grant` is asked about each resolved path, because a link may have changed since the decision."""

    def __init__(self, workspace: Path, may_grant: Callable[[str], bool] = lambda _: True) -> None:
        self._workspace = str(workspace)
        self._may_grant = may_grant
        self._paths: set[str] = set()
        self._committed: set[str] = set()

    def add_committed(self, paths: Iterable[str]) -> None:
        """Adds paths below the workspace that a command changed and whose changes were committed."""
        self._committed.update(f"{self._workspace}/{path}" for path in paths)

    def includes(self, path: Path) -> bool:
        """Returns whether an admitted call created or changed a path."""
        return not self._paths.isdisjoint({str(path), os.path.realpath(path)}) or any(
            str(path) == committed or committed.startswith(f"{path}/") for committed in self._committed
        )

    def add_call(self, call: ToolPart, tool: str | Tool) -> None:
        """Adds the paths of an allowed call that the default rules would reject."""
        declared = declaration_of(tool)
        if declared.kind not in ("read", "write"):
            return
        from outrider.permissions import contain  # lazy: loaded with the first call

        for path in call_subjects(tool, call.state.input):
            containment = contain(path, root=self._workspace, cwd=self._workspace, op=declared.operation)
            is_known = isinstance(path, str) and containment.real_path is not None and not containment.ok
            if is_known and self._may_grant(containment.real_path or ""):
                self._paths.add(containment.real_path or "")

    def allows_path(self, containment: "Containment", op: str) -> bool:
        """Returns whether a path outside the default rules may be opened."""
        return containment.real_path in self._paths


def _question_tools(ask: AskUser) -> Iterable[Tool]:
    from outrider.tools.builtin.question import question_tool  # lazy: a headless run asks nothing

    return (question_tool(ask),)


class SessionTools:
    """The tools and processes of one session. Closing it kills all processes that the tools started."""

    task_tool = staticmethod(task_tool)

    def __init__(
        self,
        session: Session,
        environment: ToolEnvironment,
        approvals: ApprovalChannel,
        undo: UndoRecorder | None = None,
        find_secrets: FindSecrets = find_no_secrets,
        flow: FlowSettings | None = None,
        rules: Rules | None = None,
    ) -> None:
        self._flow = flow or FlowSettings()
        self._is_network_closed = False
        self._session = session
        self._bus = environment.bus
        self._sandbox = environment.sandbox
        self._undo = undo
        self._approvals = approvals
        self._rules = rules or Rules()
        self._denied = DeniedReads(self._rules.deny, session.workspace_directory or ".")
        self._denied_by_rules: dict[tuple[str, ...], DeniedReads] = {}
        self.tree = OpenSessionTree(session)
        self._environment, self.extensions = environment, environment.extensions
        workspace = self._workspace = Path(session.workspace_directory or ".")
        self._outputs = OutputFolder(environment.data / "outputs" / session.id, OutputLimits(), find_secrets)
        self._command_environment = (
            environment.extensions.command_environment(workspace) if environment.extensions else None
        )
        self.supervisor = ProcessSupervisor(
            folder=self._outputs,
            bus=environment.bus,
            environment=self._command_environment,
            wrap=self._wrap_writable,
        )
        self.granted_paths = GrantedPaths(workspace, self._may_grant)
        self._secret_files = SecretFileFinder(workspace)
        self._approved_fetches: set[str] = set()
        files = WorkspaceFiles(
            workspace,
            readable=[environment.data / "outputs", *self._rules.readable],
            private=environment.own_folders,
            granted=self.granted_paths.allows_path,
            is_denied=self._is_denied,
            buffers=environment.editor_buffers(session.id) if environment.editor_buffers else None,
        )
        self._files = files
        ledger = SeenVersions()
        lock = WorkspaceLock(environment.data, workspace)
        self._lock = environment.workspace_locks.setdefault(workspace.resolve(), lock)
        editor = FileEditor(files, undo.record_edit if undo else save_no_originals, ledger, self._lock)
        self.tools: dict[str, Tool] = tools_by_name(
            [
                read_tool(files, ledger),
                write_tool(editor),
                edit_tool(editor),
                apply_patch_tool(editor),
                list_tool(files),
                glob_tool(files),
                grep_tool(files),
                shell_tool(
                    self.supervisor,
                    sandbox=lambda: self.commands,
                    describe_surroundings=self._describe_unsaved if files.editor is not None else None,
                ),
                process_tool(self.supervisor),
                todo_tool(self._load_todos, self._publish_todos),
                web_fetch_tool(may_reach_this_machine=self._approved_fetches.__contains__),
                *([environment.search_tool()] if environment.search_tool else ()),
                *(_question_tools(environment.ask) if environment.ask else ()),
                *(environment.extensions.skill_tools(workspace) if environment.extensions else ()),
            ]
        )
        self._mcp_tools: McpToolCatalog | None = None
        self._shown_servers: list[ServerOverview] = []
        self._waited: dict[str, int] = {}  # milliseconds in which a call waited for answers, by its id
        self._end_requests = self._register_requests(environment.ask)
        self._git_state: asyncio.Future[GitState | None] | None = None
        if self.extensions is not None:
            self.extensions.override_descriptions(self.tools.values())

    @cached_property
    def commands(self) -> "SandboxedCommands":
        """The command runner. Its modules load with the first command."""
        from outrider.outcomes.runner import SandboxedCommands

        undo, environment = self._undo, self._environment
        return SandboxedCommands(
            workspace=Path(self._files.root),
            data=environment.data,
            sandbox=environment.sandbox,
            policy=self._command_policy,
            settings=self.tree,
            ask=self._ask_outcome,
            record_paths=self._record_commit,
            record_all=undo.record_all if undo else _record_nothing,
            open_network=_open_network,
            lock=self._lock,
            find_repository=lambda: _find_repository(self._workspace, environment),
            rules=self._outcome_rules,
            restrictions=self._write_restrictions,
            find_unsaved=self._files.find_unsaved,
            withdraw=self._withdraw_questions,
        )

    @cached_property
    def egress(self) -> "EgressPolicy":
        """The policy about where the session may send data without a question, with what it has sent."""
        from outrider.permissions.information_flow import EgressPolicy

        return EgressPolicy(allowed=self._flow.allowed)

    def trusts_workspace(self) -> bool:
        """Returns whether the user trusts the workspace; without extensions it is trusted."""
        return self.extensions is None or self.extensions.trusts_workspace(self._workspace)

    @cached_property
    def workspace_notes(self) -> str:
        """The notes about the workspace for the system prompt of a new session."""
        return self.extensions.system_notes(self._workspace) if self.extensions else ""

    def prefetch_state(self) -> None:
        """Starts reading the state of the repository in a thread, while the first input is stored. Git runs outside the
        sandbox for this, so this is not done for a limited owner, who may have changed the repository."""
        if self.extensions is not None and self._git_state is None and self.owner_limits is None:
            work = asyncio.get_running_loop().run_in_executor
            self._git_state = work(None, self.extensions.read_git_state, self._workspace)

    async def initial_state(self, model: str) -> TextPart | None:
        """Returns the state of the workspace for the first user message. It contains names and commit subjects, but no
        content of files. So it is not private, and it does not close the network of commands that the user's rules
        allow."""
        if self.extensions is None:
            return None
        self.prefetch_state()
        git = await self._git_state if self._git_state else None
        state = self.extensions.describe_state(self._workspace, model, git)
        origins = (Origin("workspace", str(self._workspace)),)
        return TextPart(state, synthetic=True, origins=origins, metadata={WORKSPACE_STATE: True})

    def prompt_texts(self, session: Session, *, attended: bool) -> PromptTexts:
        """Returns the texts for the prompts of a session. Its workspace notes are those of its first message, or else
        the current notes."""
        recorded = recorded_notes(session.messages) if self.extensions else ""
        notes = self.workspace_notes if recorded is None else recorded
        return PromptTexts(notes=notes, rights=self._describe_rights(attended=attended), overrides=self.prompts)

    def _describe_rights(self, *, attended: bool) -> dict[str, str]:
        """Returns the fields of the prompt about the mode: how commands run and whether a user can be asked."""
        network = self._environment.network
        if self._sandbox.accepted and self.owner_limits is not None:
            sandbox = "for administrators only: this server has no sandbox"
        elif self._sandbox.accepted:
            sandbox = "without a sandbox, because the user says that this machine is one"
        else:
            sandbox = "in a sandbox without network" if network == "off" else "in a sandbox with some network hosts"
        return {"sandbox": sandbox, "attended": ATTENDED if attended else UNATTENDED, "unattended": UNATTENDED}

    @property
    def prompts(self) -> Mapping[str, str]:
        """The user's prompt overrides by name."""
        return self.extensions.prompts if self.extensions else {}

    def save_output(self, output: str) -> Path | None:
        """Saves output that was truncated in a folder that the file tools can read. Returns its path."""
        return self._outputs.store_text("output", output)

    async def expand_input(self, message: Message) -> None:
        """Adds the prompts and resources of MCP servers that an input names. Raises OutriderError if a server does not
        return one of them."""
        if self.extensions is not None and self.extensions.servers is not None:
            await self.extensions.servers.expand_input(message, self._workspace)

    def _register_requests(self, ask: AskUser | None) -> Callable[[], object]:
        """Lets MCP servers ask the user of this session during a call. Returns a function that ends this."""
        servers = self.extensions.servers if self.extensions else None
        if ask is None or servers is None or servers.requests is None:
            return lambda: None
        from outrider.tools.mcp.requests import RequestHandler  # lazy: most sessions have no servers

        def is_attended() -> bool:
            return self._session.mode not in UNATTENDED_MODES

        return servers.requests.register(self._session.id, RequestHandler(ask, is_attended, self._sample_model))

    async def _sample_model(self, request: "SamplingRequest", tool_context: ToolContext) -> "SamplingReply":
        """Lets the model of a call's agent answer for an MCP server, in a child session."""
        from outrider.agents.delegation import answer_in_child_session
        from outrider.tools.mcp.connection import SamplingReply, ServerFault

        context = self._undo.active_context(tool_context) if self._undo else None
        if context is None:
            raise ServerFault("the call has ended")
        origins = (make_origin("mcp", request.server),)
        messages = [Message(m.role, [TextPart(m.content.content, origins=origins)]) for m in request.messages]
        agent = msgspec.structs.replace(
            context.agent,
            name=f"mcp-{request.server}",
            instructions=request.system_prompt,
            max_output_tokens=request.max_tokens,
            temperature=request.temperature,
            tools=(),
            mode="chat",
            vendor_tools=(),
        )
        end = await answer_in_child_session(context, tool_context.call_id, messages, request.system_prompt, agent)
        if end.reason != "completed":
            raise ServerFault(f"the model gave no answer: {end.error.message if end.error else end.reason}")
        return SamplingReply(end.output, agent.model)

    async def refresh_mcp_tools(self) -> bool:
        """Loads the current tools of the MCP servers. Returns whether they have changed."""
        servers = self.extensions.servers if self.extensions else None
        if servers is None:
            return False
        catalog = self._mcp_tools = self._mcp_tools or servers.create_catalog(self._session.messages)
        before = catalog.tools
        if not await servers.refresh_catalog(catalog, self._workspace, self._report_server_wait):
            return False
        self.tools = {name: tool for name, tool in self.tools.items() if name not in before} | catalog.tools
        return True

    def _report_server_wait(self, seconds: float) -> None:
        """Shows the user which MCP servers a turn waits for, and for how long at most."""
        servers = self.extensions.servers if self.extensions else None
        overviews = servers.describe_servers(self._workspace) if servers else []
        if any(server.state == "connecting" for server in overviews):
            self._shown_servers = overviews
            changes = {"mcp_servers": msgspec.to_builtins(overviews), "wait_seconds": seconds}
            self._bus.publish(SessionUpdatedEvent(session_id=self._session.id, changes=changes))

    async def announce_mcp_servers(self, journal: "Journal") -> None:
        """Publishes changes of the MCP servers, and stores a text about them for the model with the new input, after
        the conversation, so that the provider's cached prefix stays valid."""
        servers = self.extensions.servers if self.extensions else None
        if servers is None or self._mcp_tools is None:
            return
        overviews = servers.describe_servers(self._workspace)
        if overviews != self._shown_servers:
            has_news = any(not server.is_as_before for server in (*overviews, *self._shown_servers))
            self._shown_servers = overviews
            if has_news:
                changes = {"mcp_servers": msgspec.to_builtins(overviews)}
                self._bus.publish(SessionUpdatedEvent(session_id=self._session.id, changes=changes))
        message = self._session.messages[-1] if self._session.messages else None
        if message is None or message.role != "user" or MODE_TABLE[self._session.mode].tools != "all":
            return
        text, record = self._mcp_tools.announce(overviews, self._session.messages)
        if record is not None:
            message.metadata[MCP_SERVERS] = record
            if text:
                await journal.put_part(TextPart(text, synthetic=True, metadata={MCP_SERVERS: True}), message)
            await journal.put_message(message)

    def admit_call(self, call: ToolPart, decision: Decision, context: AgentContext, verdict: ApprovalVerdict) -> None:
        """Registers an allowed call: its tool may open the path that the call names, its command runs with the decided
        confinement, and a changed MCP tool is accepted. Called in the task of the call."""
        tool = self.tools.get(call.tool, call.tool)
        _DENIED_TO_AGENT.set(self._denied_to(context.deny_rules))
        self.granted_paths.add_call(call, tool)
        if declaration_of(tool).kind == "shell":
            from outrider.outcomes.predict import PackageRegistries, predict_effect
            from outrider.outcomes.runner import CommandPlan
            from outrider.permissions.information_flow import find_wanted_hosts, prints_remote_text

            command = str(call_subject(tool, call.state.input) or "")
            # The changes of a command that a user approved before it ran are committed; it still runs in the sandbox.
            confinement = (decision.confinement or "workspace") if self._sandbox.confines else "none"
            if confinement == "none" and self.owner_limits is not None and self._sandbox.confines:
                confinement = "workspace"
            asks_first = confinement == "workspace" and decision.effect == "allow" and self._sandbox.overlays
            folder = str(call_directory(call.state.input) or "")
            registries = PackageRegistries(self._workspace, self._environment.home, self._command_environment)
            plan = CommandPlan(
                confinement,
                keeps=decision.rule is not None or decision.effect == "ask" or verdict.by_stored_answer,
                predicted=predict_effect(command, workspace=self._workspace, folder=folder, registries=registries)
                if asks_first
                else None,
                flow=decision.flow,
                open_hosts=self._open_hosts(call, decision),
                wanted=find_wanted_hosts(command),
                prints_remote=prints_remote_text(command),
            )
            self.commands.plan_call(call.call_id, plan)
        if declaration_of(tool).kind == "network" and self._may_reach_machine(call, tool, decision, context):
            self._approved_fetches.add(call.call_id)
        if self.extensions is not None and self.extensions.servers is not None:
            self.extensions.servers.accept_change(self.tools.get(call.tool))

    def _may_reach_machine(self, call: ToolPart, tool: str | Tool, decision: Decision, context: AgentContext) -> bool:
        """Returns whether a fetch may connect to this machine and its network: a user approved it, or a rule names the
        host. Answers of a limited owner do not allow it."""
        if self.owner_limits is None:
            return decision.effect == "ask" or _names_host(decision.rule, call, tool)
        configured = (*self._rules.allow, *context.agent.permissions.get("allow", ()))
        return decision.rule in configured and _names_host(decision.rule, call, tool)

    def _open_hosts(self, call: ToolPart, decision: Decision) -> tuple[str, ...]:
        """Returns the hosts that a command may still reach after its session has read untrusted text; none if the
        sandbox cannot filter hosts. From now on the session's commands have no other network, because the text stays in
        its context."""
        if decision.flow is None:
            return ()
        self._is_network_closed = True
        if self._sandbox.confines and not self._sandbox.filters_hosts:
            return ()
        hosts = self.egress.open_hosts(self._environment.hosts if decision.rule is None else None)
        for host in hosts:
            self.egress.ledger.charge(host, call.id, 0)
        return hosts

    async def aclose(self) -> None:
        """Kills all processes of the session, then records their last file changes."""
        self._end_requests()
        await self.supervisor.close()
        if "commands" in self.__dict__:  # the cached property was used, so a command may have run
            parts = (part for message in self._session.messages for part in message.get_calls())
            await self.commands.drop_leftovers(self._session.id, [part.call_id for part in parts if not part.ended])
        if self._undo is not None:
            await self._undo.settle_session(self._session.id)

    async def _ask_outcome(self, tool_context: ToolContext, outcome: CommandOutcome, question: str) -> OutcomeAnswer:
        context = self._undo.active_context(tool_context) if self._undo else None
        message = context and next(
            (message for message in reversed(context.session.messages) if message.find_call(tool_context.call_id)), None
        )
        call = message and message.find_call(tool_context.call_id)
        if context is None or call is None:
            return OutcomeAnswer(allowed=False, attended=False)
        asked_at = monotonic()
        answer = await self._approvals.ask_outcome(call, context, outcome, question)
        waited = self._waited.get(tool_context.call_id, 0) + round((monotonic() - asked_at) * 1000)
        self._waited[tool_context.call_id] = waited
        tool_context.report(Progress(metadata={WAITED: waited}))
        if self.owner_limits is None:
            return answer
        return limit_answer(answer, outcome, self._files.root)

    async def _withdraw_questions(self, tool_context: ToolContext) -> None:
        await self._approvals.withdraw(tool_context.session_id, tool_context.call_id)

    def _outcome_rules(self, tool_context: ToolContext) -> list[PermissionRule]:
        """Returns the rules about what the commands of a call may write and reach: rules of the user, of the agent and
        of answers."""
        context = self._undo.active_context(tool_context) if self._undo else None
        granted = self._approvals.find_grant(context).rules if context else ()
        agent_rules = context.agent.permissions.get("allow", ()) if context else ()
        if self.owner_limits is not None:
            granted = [text for text in granted if not (parse_rule(text).pattern or "").startswith(("//", "~"))]
        rules = map(parse_rule, (*self._rules.allow, *agent_rules, *granted))
        return [rule for rule in rules if rule.right and not rule.parse_error]

    def _write_restrictions(self, tool_context: ToolContext) -> tuple[list[str], list[str]]:
        """Returns the patterns of the deny rules and of the ask rules about writing files."""
        context = self._undo.active_context(tool_context) if self._undo else None
        deny = (*self._rules.deny, *(context.deny_rules if context else ()))
        ask = (*self._rules.ask, *(context.ask_rules if context else ()))
        return _write_patterns(deny), _write_patterns(ask)

    @asynccontextmanager
    async def _record_commit(
        self, context: ToolContext, workspace: Path, paths: Sequence[str]
    ) -> AsyncGenerator[None, None]:
        """Saves the originals of files that a commit changes, for undo."""
        self.granted_paths.add_committed(paths)
        async with self._undo.record_paths(context, workspace, paths) if self._undo else _record_nothing():
            yield

    def _denied_to(self, rules: tuple[str, ...]) -> DeniedReads | None:
        """Returns the files that the rules of an agent and its callers hide; None without such rules."""
        if not rules:
            return None
        return self._denied_by_rules.setdefault(rules, DeniedReads(rules, self._workspace))

    @property
    def owner_limits(self) -> OwnerLimits | None:
        """The current limits of the session's owner: an administrator may have changed the role."""
        return self._environment.find_limits(self._session)

    @property
    def can_confine(self) -> bool:
        """Whether commands run in a sandbox. False if the user declared the machine itself to be a sandbox, because
        that does not separate the users of a server."""
        return self._sandbox.confines

    def _may_grant(self, real_path: str) -> bool:
        """Returns whether an admitted call may open a path that the default rules reject."""
        root = self._files.root
        if self.owner_limits is None or is_within(real_path, root):
            return True
        rules = [rule for rule in map(parse_rule, self._rules.allow) if rule.pattern and not rule.parse_error]
        return any(match_path_rule(rule.pattern or "", real_path, root) for rule in rules)

    def _is_denied(self, real_path: str) -> bool:
        denied_to_agent, limits = _DENIED_TO_AGENT.get(), self.owner_limits
        if limits is not None:
            if limits.has_left(str(self._workspace), self._files.root):
                return True
            outputs = str(self._environment.data / "outputs")
            is_foreign = is_within(real_path, outputs) and not is_within(real_path, f"{outputs}/{self._session.id}")
            if is_foreign or limits.hides(real_path, self._files.root):
                return True
        return self._denied.includes(real_path) or (denied_to_agent is not None and denied_to_agent.includes(real_path))

    def _find_denied(self) -> tuple[Path, ...]:
        denied_to_agent = _DENIED_TO_AGENT.get()
        return (*self._denied.find_paths(), *(denied_to_agent.find_paths() if denied_to_agent is not None else ()))

    def _command_policy(self, *, writable: bool) -> SandboxPolicy:
        environment, limits = self._environment, self.owner_limits
        workspace = self._files.root
        if limits is not None and limits.has_left(str(self._workspace), workspace):
            raise ToolFailure(reasons.OWNER_LEFT)
        hidden = [Path(folder) for folder in (limits.hidden if limits else ()) if folder != workspace]
        usual = default_policy(
            self._workspace if limits is None else Path(workspace),
            writable=writable,
            home=environment.home,
            own_files=[*environment.own_folders, *hidden, *self._secret_files.find(), *self._find_denied()],
            protected=find_protected_files(self._workspace) if writable else (),
            network="off" if self._is_network_closed else environment.network,
        )
        usual = msgspec.structs.replace(usual, exact=limits is not None)
        return allow_git_writes(usual, find_worktree(self._workspace, environment.data))

    def _wrap_writable(self, launch: LaunchRequest) -> LaunchRequest:
        """Wraps a process that writes to the workspace itself, not to a copy; in plan mode it cannot write. The mode of
        the agent that starts it applies. Protected files are read-only for it; new protected files are moved away when
        it ends."""
        sandbox, quarantine = self._sandbox, self._environment.data / "planted"
        if not sandbox.confines:
            if self.owner_limits is not None:
                raise ToolFailure(reasons.OWNER_NEEDS_SANDBOX)
            return launch  # the gate has asked about it before
        writable = MODE_TABLE[self.tree.mode_of(launch.session_id)].outcomes != "drop"
        policy = self._command_policy(writable=writable)
        if not writable:
            return sandbox.wrap(launch, policy)
        before = ProtectedState(lambda: find_protected_files(self._workspace))

        wrapped = sandbox.wrap(launch, policy)

        def cleanup() -> str:
            wrapped.cleanup()
            planted = before.quarantine_planted(quarantine, self.granted_paths.includes)
            return describe_planted(planted, quarantine)

        return msgspec.structs.replace(wrapped, cleanup=cleanup)

    async def _describe_unsaved(self) -> str:
        """Returns a note about files with unsaved changes in the user's editor, which commands do not see."""
        names = await asyncio.to_thread(self._files.list_unsaved)
        if not names:
            return ""
        return f"not saved in the user's editor, so commands see the saved text: {', '.join(names)}"

    async def _load_todos(self, session_id: str) -> tuple[TodoItem, ...]:
        session = self.tree.find(session_id)
        return recorded_todos(session.messages) if session else ()

    async def _publish_todos(self, session_id: str, todos: tuple[TodoItem, ...]) -> None:
        """Publishes the new todo list. The transcript stores it as the input of the call."""
        changes = {"todos": msgspec.to_builtins(list(todos))}
        self._bus.publish(SessionUpdatedEvent(session_id=session_id, changes=changes))


def limit_answer(answer: OutcomeAnswer, outcome: CommandOutcome, workspace: str) -> OutcomeAnswer:
    """Returns the answer without permissions to leave the workspace or the sandbox; hosts stay granted."""
    if not answer.allowed:
        return answer
    wants_hosts = any(access.kind == "network" for access in outcome.blocked)
    leaves = any(
        access.kind != "network" and not (access.grantable and is_within(access.target, workspace))
        for access in outcome.blocked
    )
    if answer.access.unconfined or (outcome.predicted and not outcome.blocked):
        return OutcomeAnswer(allowed=False, words=reasons.OWNER_STAYS)
    if not leaves:
        return answer
    if wants_hosts and answer.access.hosts:
        return msgspec.structs.replace(answer, choice="hosts")
    return OutcomeAnswer(allowed=False, words=reasons.OWNER_STAYS)


def _names_host(rule: str | None, call: ToolPart, tool: str | Tool) -> bool:
    """Returns whether a rule names the hosts of a call literally: a rule for all hosts does not allow this machine."""
    hosts = [urlsplit(str(url)).hostname or "" for url in call_subjects(tool, call.state.input)]
    return rule is not None and bool(hosts) and all(host and host in rule for host in hosts)


def _write_patterns(rules: Sequence[str]) -> list[str]:
    parsed = map(parse_rule, rules)
    return [rule.pattern for rule in parsed if rule.pattern and declaration_of(rule.tool).kind == "write"]


def list_built_in_tools(workspace: str) -> dict[str, Tool]:
    """Returns the built-in tools of a workspace to read their declarations, without an engine."""
    folder = Path(workspace)
    environment = ToolEnvironment(sandbox=NoSandbox("", ""), data=folder, home=folder, bus=EventBus())
    return SessionTools(Session(workspace_directory=workspace), environment, function_channel(None)).tools


def _find_repository(workspace: Path, environment: ToolEnvironment) -> "OutsideRepository | None":
    """Returns the git folder outside the workspace in which commands may record work. Commands in the worktree of a
    background run may only write to the branch of the run."""
    from outrider.outcomes.repository import OutsideRepository, find_outside_repository

    tree = find_worktree(workspace.resolve(), environment.data)
    if tree is None:
        return find_outside_repository(workspace.resolve())
    own_folder = Path(tree.own).relative_to(tree.common)
    return OutsideRepository(tree.common, own=f"{own_folder}/", branch=tree.branch)


@asynccontextmanager
async def _record_nothing(*_: object) -> AsyncGenerator[None, None]:
    """Records nothing; the default without undo."""
    yield


@asynccontextmanager
async def _open_network(hosts: Sequence[str]) -> AsyncGenerator[Network, None]:
    """Opens a proxy that lets a command reach these hosts, at public addresses only, because the output of a command
    named them. Without hosts the network is not restricted."""
    if not hosts:
        yield "on"
        return
    from outrider.http.client import is_public
    from outrider.processes.sandbox.proxy import open_proxy

    async with open_proxy(hosts, is_public) as network:
        yield network
