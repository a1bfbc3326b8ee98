"""Public module for agents that work in a folder: the built-in tools, the sandbox, undo, processes and plan mode."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from outrider._sync import describe_value
from outrider.config.providers import search_path
from outrider.engine.approval_gate import ApprovalRequest, Rules
from outrider.engine.engine import Engine, PromptKeywords
from outrider.engine.plans import ProposedPlan
from outrider.engine.results import Out, RunResult
from outrider.engine.runtime import EngineKeywords, check_parts
from outrider.engine.session_tools import ToolEnvironment
from outrider.engine.undo_history import RestoreResult
from outrider.errors import ConfigurationError
from outrider.event_bus import EventBus
from outrider.processes.sandbox.sandbox import NoSandbox, Sandbox
from outrider.processes.supervisor import CommandResult, ProcessStatus, ProcessSupervisor
from outrider.project.sandbox import LazySandbox
from outrider.providers.provider import CustomProvider
from outrider.sessions.store import Store
from outrider.tools.tool import Tool
from outrider.types.agents import Agent, Mode, Provider
from outrider.types.outcomes import CommandOutcome
from outrider.types.parts import PartBase
from outrider.types.tool_state import Attachment
from outrider.types.validate import check_level, check_names

if TYPE_CHECKING:
    from typing_extensions import TypeForm

__all__ = [
    "ApprovalRequest",
    "CommandOutcome",
    "CommandResult",
    "ProcessStatus",
    "ProposedPlan",
    "RestoreResult",
    "Rules",
    "Workspace",
]

_SESSIONS_FILE = "sessions.db"
PromptContent = str | Sequence[str | PartBase | Attachment]


_ARGUMENTS = (
    *("data", "session", "store", "sandbox"),
    *(name for name in EngineKeywords.__annotations__ if name not in ("workspace", "surroundings")),
)


class Workspace:
    """One folder in which agents read and edit files and run commands, and one session. Open it with `async with`.

    Commands run in the sandbox of the operating system over a copy-on-write view of the folder; `approve` decides about
    what they changed, about edits and about everything else that needs approval. Without `approve` such calls are
    denied, unless `attended` is set: then they wait for `engine.answer`. `approval="edits"` commits changes of files
    without a question. Files in the folder, such as AGENTS.md, do not change what the agents do.

    - `folder`: the folder.
    - `agents`, `providers`, `tools`: as for `Engine`.
    - `data`: a folder for the session, undo data and outputs. Without it they are in a temporary folder that is deleted
      at the end.
    - `session`: the id of a session in `data` or `store` to continue.
    - `store`: where the session is stored, in place of `data`.
    - `sandbox`: "none" states that the machine is a sandbox itself, such as a container.
    - `options`: the keyword arguments of `Engine`.
    """

    def __init__(
        self,
        folder: str | Path,
        agents: Agent | Sequence[Agent],
        providers: Sequence[Provider | CustomProvider],
        tools: Iterable[Tool | Callable[..., Any]] = (),
        *,
        data: str | Path | None = None,
        session: str | None = None,
        store: Store | None = None,
        sandbox: Literal["auto", "none"] = "auto",
        **options: Unpack[EngineKeywords],
    ) -> None:
        if not isinstance(folder, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"Workspace(): the folder must be a path, got {describe_value(folder)}")
        if not isinstance(data, str | Path | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"Workspace(data={describe_value(data)}): it must be the path of a folder")
        check_names("Workspace()", options, _ARGUMENTS)
        listed = [agents] if isinstance(agents, Agent) else agents
        check_parts("Workspace()", listed, tools, providers)
        check_level(options.get("approval"), "the workspace")
        self.folder = Path(folder).resolve()
        if not self.folder.is_dir():
            raise ConfigurationError(f"Workspace({str(folder)!r}): this is not a folder; create it first")
        if sandbox not in ("auto", "none"):
            raise ConfigurationError(f"Workspace(sandbox={describe_value(sandbox)}): it must be 'auto' or 'none'")
        if session is not None and data is None and store is None:
            raise ConfigurationError("Workspace(session=…) needs the `data` folder or the `store` that has the session")
        self._agents = list(listed)
        self._providers, self._tools = list(providers), tuple(tools)
        self._data = None if data is None else Path(data).resolve()
        if self._data is not None and self._data.is_relative_to(self.folder):
            raise ConfigurationError(
                f"Workspace(data={str(data)!r}): it is inside the folder, where agents could change it; choose another"
            )
        self._session = session
        self._store = store
        self._sandbox = sandbox
        self._options: EngineKeywords = {"attended": options.get("approve") is not None, **options}
        self._stack = AsyncExitStack()
        self._opened: tuple[Engine, str] | None = None

    @property
    def engine(self) -> Engine:
        """The engine, while the workspace is open."""
        return self._open_parts[0]

    @property
    def session_id(self) -> str:
        """The session, while the workspace is open."""
        return self._open_parts[1]

    @property
    def _open_parts(self) -> tuple[Engine, str]:
        if self._opened is None:
            raise ConfigurationError(
                "this workspace is not open; use it inside `async with Workspace(…) as workspace:`"
            )
        return self._opened

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            data = self._data or self._create_temporary_folder(stack)
            data.mkdir(parents=True, exist_ok=True, mode=0o700)
            bus = EventBus()
            environment = ToolEnvironment(sandbox=self._choose_sandbox(data), data=data, home=Path.home(), bus=bus)
            options: EngineKeywords = {"workspace": self.folder, "surroundings": environment, **self._options}
            store = self._store or await self._open_store(data, stack)
            engine = Engine(self._agents, self._providers, self._tools, store=store, bus=bus, **options)
            await stack.enter_async_context(engine)
            if self._session is None:
                session_id = await engine.create(workspace=self.folder)
            else:
                session_id = (await engine.open(self._session)).id
            self._opened = engine, session_id
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @overload
    async def prompt(
        self,
        content: PromptContent,
        *,
        mode: Mode | None = None,
        output_type: None = None,
        **options: Unpack[PromptKeywords],
    ) -> RunResult[str]: ...
    @overload
    async def prompt(
        self,
        content: PromptContent,
        *,
        mode: Mode | None = None,
        output_type: "TypeForm[Out]",
        **options: Unpack[PromptKeywords],
    ) -> RunResult[Out]: ...
    @overload
    async def prompt(
        self,
        content: PromptContent,
        *,
        mode: Mode | None = None,
        output_type: dict[str, Any],
        **options: Unpack[PromptKeywords],
    ) -> RunResult[Any]: ...
    async def prompt(
        self,
        content: PromptContent,
        *,
        mode: Mode | None = None,
        output_type: Any = None,
        **options: Unpack[PromptKeywords],
    ) -> RunResult[Any]:
        """Gives a message to the first agent and returns the result of its turn. `mode` changes the mode of the
        session: in "plan" the agent reads and proposes a plan, in "agent" it works. The other keyword arguments are
        those of `Engine.prompt`."""
        check_names("Workspace.prompt()", options, ("mode", "output_type", *PromptKeywords.__annotations__))
        if mode is not None and mode != self.engine.live[self.session_id].session.mode:
            await self.engine.set_mode(self.session_id, mode)
        return await self.engine.prompt(self.session_id, content, output_type=output_type, **options)

    async def plan(self) -> ProposedPlan | None:
        """Returns the plan that the last turn in plan mode proposed, or None if it was answered."""
        return await self.engine.plan(self.session_id)

    async def accept_plan(self, changed: str | None = None) -> RunResult[str]:
        """Accepts the plan, unchanged or as `changed`. The agent carries it out in the mode "agent"."""
        return await self.engine.accept_plan(self.session_id, changed)

    async def refuse_plan(self, words: str = "") -> RunResult[str]:
        """Refuses the plan. With `words`, a comment for the agent, it plans again."""
        return await self.engine.refuse_plan(self.session_id, words)

    async def undo(self, to: str | None = None) -> RestoreResult:
        """Restores the files to their contents before the last turn, or before the message or call `to`."""
        return await self.engine.file_changes(self.session_id).undo(to)

    async def redo(self) -> RestoreResult:
        """Reverts the last undo, if nothing has changed since then."""
        return await self.engine.file_changes(self.session_id).redo()

    @property
    def processes(self) -> ProcessSupervisor:
        """The processes that the agents started. It lists and kills them, waits for them, and reads and writes their
        streams."""
        tools = self.engine.live[self.session_id].session_tools
        assert tools is not None
        return tools.supervisor

    def _choose_sandbox(self, data: Path) -> Sandbox:
        if self._sandbox == "none":
            return NoSandbox("sandbox='none' was given", "", accepted=True)
        return LazySandbox(data / "scratch", search_path)

    async def _open_store(self, data: Path, stack: AsyncExitStack) -> Store | None:
        if self._data is None:
            return None
        from outrider.sessions.sqlite.store import SqliteStore  # lazy: not needed for a temporary folder

        return await stack.enter_async_context(SqliteStore(data / _SESSIONS_FILE))

    @staticmethod
    def _create_temporary_folder(stack: AsyncExitStack) -> Path:
        from tempfile import TemporaryDirectory

        return Path(stack.enter_context(TemporaryDirectory(prefix="outrider-", ignore_cleanup_errors=True)))
