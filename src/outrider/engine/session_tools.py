"""The built-in tools of one session: made for its workspace, with its mode's sandbox around commands."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import msgspec

from outrider.engine.child_sessions import SessionTree
from outrider.engine.undo import Undo
from outrider.event_bus import EventBus
from outrider.permissions import Containment, contain
from outrider.permissions.modes import shape_of, subject_of
from outrider.processes.launch import Launch
from outrider.processes.output import FindSecrets, OutputFolder, OutputLimits, find_none
from outrider.processes.sandbox.defaults import absent_places, planted_words, remove_planted, usual_policy
from outrider.processes.sandbox.sandbox import Network, Sandbox
from outrider.processes.supervisor import Supervisor
from outrider.project.extensions import WorkspaceExtensions
from outrider.project.sandbox import with_git, worktree_at
from outrider.sessions.session import Session
from outrider.tools.builtin.apply_patch import apply_patch_tool
from outrider.tools.builtin.edit import edit_tool
from outrider.tools.builtin.glob import glob_tool
from outrider.tools.builtin.grep import grep_tool
from outrider.tools.builtin.list import list_tool
from outrider.tools.builtin.process import process_tool
from outrider.tools.builtin.question import Ask, question_tool
from outrider.tools.builtin.read import read_tool
from outrider.tools.builtin.shell import shell_tool
from outrider.tools.builtin.todo import Todo, recorded_todos, todo_tool
from outrider.tools.builtin.web_fetch import web_fetch_tool
from outrider.tools.builtin.write import write_tool
from outrider.tools.edit_transaction import Editor, keep_nothing
from outrider.tools.tool import Tool, named
from outrider.tools.workspace_files import Files, SeenVersions
from outrider.types.events import SessionUpdatedEvent
from outrider.types.parts import ToolPart


class ToolEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """What the tools of every session have in common. `data` is where Outrider keeps its own things."""

    sandbox: Sandbox
    data: Path
    home: Path
    bus: EventBus
    ask: Ask | None = None
    network: Network = "off"
    belongings: WorkspaceExtensions | None = None


def confining(around: ToolEnvironment | None) -> Callable[[], bool]:
    """Whether commands can be confined; found out when it is asked, since that may cost a trial."""
    return lambda: around is not None and around.sandbox.confines


class GrantedPaths:
    """Paths beyond the workspace, or protected in it, that an admitted call names: its tool may open them, no other."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = str(workspace)
        self._paths: set[str] = set()

    def admit(self, call: ToolPart) -> None:
        path = subject_of(call.tool, call.state.input)
        if isinstance(path, str) and shape_of(call.tool).kind in ("read", "write"):
            found = contain(path, root=self._workspace, cwd=self._workspace, op=shape_of(call.tool).op)
            if found.real_path is not None and not found.ok:
                self._paths.add(found.real_path)

    def holds(self, found: Containment, op: str) -> bool:
        return found.real_path in self._paths


class SessionTools:
    """Close it with the session: no process that its tools started outlives it."""

    def __init__(
        self,
        session: Session,
        around: ToolEnvironment,
        undo: Undo | None = None,
        find_secrets: FindSecrets = find_none,
    ) -> None:
        self._session = session
        self._bus = around.bus
        self._undo = undo
        self.tree = SessionTree(session)
        workspace = Path(session.workspace_directory or ".")
        self._outputs = OutputFolder(around.data / "outputs", OutputLimits(), find_secrets)
        self.supervisor = Supervisor(
            folder=self._outputs,
            bus=around.bus,
            environment=around.belongings.environment(workspace) if around.belongings else None,
            wrap=_confined(self.tree, workspace, around),
        )
        self.grants = GrantedPaths(workspace)
        files = Files(workspace, readable=[around.data / "outputs"], granted=self.grants.holds)
        ledger = SeenVersions()
        editor = Editor(files, undo.keep if undo else keep_nothing, ledger)
        self.tools: dict[str, Tool] = named(
            [
                read_tool(files, ledger),
                write_tool(editor),
                edit_tool(editor),
                apply_patch_tool(editor),
                list_tool(files),
                glob_tool(files),
                grep_tool(files),
                shell_tool(self.supervisor),
                process_tool(self.supervisor),
                todo_tool(self._recall, self._keep),
                web_fetch_tool(),
                *([question_tool(around.ask)] if around.ask else ()),
                *(around.belongings.skills(workspace) if around.belongings else ()),
            ]
        )
        self.belongings = around.belongings
        self._workspace = workspace
        self._foreign: dict[str, Tool] = {}
        if self.belongings is not None:
            self.belongings.reword(self.tools.values())

    @cached_property
    def notes(self) -> str:
        """What agents are told about the workspace when a session begins in it."""
        return self.belongings.notes(self._workspace) if self.belongings else ""

    def save_output(self, output: str) -> Path | None:
        """Where the file tools find all of what was too long to be told."""
        return self._outputs.keep("output", output)

    async def renew(self) -> bool:
        """Take over what MCP servers offer now; says whether that is anything else than before."""
        servers = self.belongings.servers if self.belongings else None
        if servers is None:
            return False
        before, now = self._foreign, named(await servers.tools(self._workspace))
        if [tool.to_schema() for tool in before.values()] == [tool.to_schema() for tool in now.values()]:
            return False
        self.tools = {name: tool for name, tool in self.tools.items() if name not in before} | now
        self._foreign = now
        return True

    def admit(self, call: ToolPart) -> None:
        """A call may run: so may its tool open the path that it names, and a changed tool has been looked at."""
        self.grants.admit(call)
        if self.belongings is not None and self.belongings.servers is not None:
            self.belongings.servers.accept(self.tools.get(call.tool))

    async def aclose(self) -> None:
        await self.supervisor.close()
        if self._undo is not None:
            await self._undo.settle(self._session.id)

    async def _recall(self, session_id: str) -> tuple[Todo, ...]:
        session = self.tree.find(session_id)
        return recorded_todos(session.messages) if session else ()

    async def _keep(self, session_id: str, todos: tuple[Todo, ...]) -> None:
        """The list is kept in the transcript, as what the call says; here it is told."""
        changes = {"todos": msgspec.to_builtins(list(todos))}
        self._bus.publish(SessionUpdatedEvent(session_id=session_id, changes=changes))


def _confined(tree: SessionTree, workspace: Path, around: ToolEnvironment) -> Callable[[Launch], Launch]:
    """Commands of modes in which nobody is asked run in the sandbox; only background mode may write. What counts is the
    mode of the agent that starts them."""

    def wrap(launch: Launch) -> Launch:
        mode = tree.mode_of(launch.session_id)
        if mode == "agent":
            return launch
        writable = mode == "background"
        usual = usual_policy(
            workspace, writable=writable, home=around.home, own_files=[around.data], network=around.network
        )
        policy = with_git(usual, worktree_at(workspace, around.data))
        absent, kept = absent_places(policy), around.data / "planted"

        def afterwards() -> str:
            return planted_words(remove_planted(absent, kept), kept)

        return msgspec.structs.replace(around.sandbox.wrap(launch, policy), afterwards=afterwards)

    return wrap
