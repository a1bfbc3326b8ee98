"""A workspace with the built-in tools, called as the loop calls them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from outrider import Tool, ToolCompleted, ToolContext, ToolError, ToolPart, ToolPending
from outrider.tools.builtin.edit import apply_patch_tool, edit_tool, write_tool
from outrider.tools.builtin.read import read_tool
from outrider.tools.edit_transaction import FileEditor, PlannedChange, SaveOriginals
from outrider.tools.runner import ToolRunner
from outrider.tools.tool import tools_by_name
from outrider.tools.workspace_files import WorkspaceFiles


def saving_originals(save: Callable[[Path, bytes | None], Awaitable[None]]) -> SaveOriginals:
    """Calls `save` for each file before anything is written."""

    @asynccontextmanager
    async def around(_: ToolContext, changes: Sequence[PlannedChange]) -> AsyncIterator[None]:
        for change in changes:
            await save(Path(change.location.real), change.before)
        yield

    return around


class ToolWorkspace:
    """`originals` has the contents before each change; `saving_error` is raised instead of saving one."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.originals: list[tuple[Path, bytes | None]] = []
        self.saving_error: Exception | None = None
        self.files = WorkspaceFiles(root, **options)
        self.editor = FileEditor(self.files, saving_originals(self.save))
        self.tools: list[Tool] = [
            read_tool(self.files, self.editor.seen_versions),
            write_tool(self.editor),
            edit_tool(self.editor),
            apply_patch_tool(self.editor),
        ]

    async def save(self, path: Path, content: bytes | None) -> None:
        """Calls `save_original`, which a test may replace."""
        await self.save_original(path, content)

    async def save_original(self, path: Path, content: bytes | None) -> None:
        if self.saving_error is not None:
            raise self.saving_error
        self.originals.append((path, content))

    async def call(self, tool: str, session: str = "s", /, **arguments: Any) -> ToolPart:
        async def record(part: ToolPart) -> None:
            pass

        tools = tools_by_name(self.tools)
        part = ToolPart("call_1", tool, ToolPending(tools[tool].prepare(arguments), phase="ready"))
        return await ToolRunner(tools, record).run(part, ToolContext(session_id=session, workspace=self.root))

    async def output_of(self, tool: str, session: str = "s", /, **arguments: Any) -> str:
        part = await self.call(tool, session, **arguments)
        assert isinstance(part.state, ToolCompleted), part.state
        return part.state.output

    async def error_of(self, tool: str, session: str = "s", /, **arguments: Any) -> str:
        part = await self.call(tool, session, **arguments)
        assert isinstance(part.state, ToolError), part.state
        return part.state.error

    def write_file(self, name: str, content: bytes | str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def list_files(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*"))
