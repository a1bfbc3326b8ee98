"""A workspace with the built-in tools on it, called as the loop calls them."""

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


def keeping(keep: Callable[[Path, bytes | None], Awaitable[None]]) -> SaveOriginals:
    """Keeps one file after the other, before anything is written."""

    @asynccontextmanager
    async def around(_: ToolContext, changes: Sequence[PlannedChange]) -> AsyncIterator[None]:
        for change in changes:
            await keep(Path(change.location.real), change.before)
        yield

    return around


class Desk:
    """`kept` holds the before-images; `keep_fails` makes keeping fail."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        self.kept: list[tuple[Path, bytes | None]] = []
        self.keep_fails: Exception | None = None
        self.files = WorkspaceFiles(root, **options)
        self.editor = FileEditor(self.files, keeping(self.keep))
        self.tools: list[Tool] = [
            read_tool(self.files, self.editor.seen_versions),
            write_tool(self.editor),
            edit_tool(self.editor),
            apply_patch_tool(self.editor),
        ]

    async def keep(self, path: Path, content: bytes | None) -> None:
        if self.keep_fails is not None:
            raise self.keep_fails
        self.kept.append((path, content))

    async def call(self, tool: str, session: str = "s", /, **arguments: Any) -> ToolPart:
        async def record(part: ToolPart) -> None:
            pass

        tools = tools_by_name(self.tools)
        part = ToolPart("call_1", tool, ToolPending(tools[tool].prepare(arguments), phase="ready"))
        return await ToolRunner(tools, record).run(part, ToolContext(session_id=session, workspace=self.root))

    async def done(self, tool: str, session: str = "s", /, **arguments: Any) -> str:
        part = await self.call(tool, session, **arguments)
        assert isinstance(part.state, ToolCompleted), part.state
        return part.state.output

    async def refused(self, tool: str, session: str = "s", /, **arguments: Any) -> str:
        part = await self.call(tool, session, **arguments)
        assert isinstance(part.state, ToolError), part.state
        return part.state.error

    def put(self, name: str, content: bytes | str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*"))
