"""An editor for tests: the client of the SDK, which starts the real program and records all messages."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import acp
from acp.client import ClientSideConnection
from acp.schema import (
    AcceptElicitationResponse,
    AgentMessageChunk,
    AgentThoughtChunk,
    AllowedOutcome,
    ClientCapabilities,
    CreateTerminalResponse,
    DeclineElicitationResponse,
    DeniedOutcome,
    InitializeResponse,
    PermissionOption,
    ReadTextFileResponse,
    RequestPermissionResponse,
    ToolCallProgress,
    ToolCallStart,
    ToolCallUpdate,
    UserMessageChunk,
    WaitForTerminalExitResponse,
)

SECONDS = 60
CANCELLED = "cancelled"
COMMAND = (sys.executable, "-m", "outrider", "acp")

Ask = Callable[..., Awaitable[dict[str, Any]]]


class Editor(acp.Client):
    """`answers` are the options that the user chooses, in order. A question without an answer stays open."""

    def __init__(self) -> None:
        self.agent: ClientSideConnection
        self.offered: InitializeResponse
        self.process: asyncio.subprocess.Process
        self.updates: list[Any] = []
        self.answers: list[str] = []
        self.asked: list[tuple[ToolCallUpdate, list[PermissionOption]]] = []
        self.forms: list[tuple[str, Any]] = []  # what it was asked in forms
        self.filled: list[dict[str, Any] | None] = []  # what its user fills in; None declines
        self.buffers: dict[str, str] = {}  # unsaved text by path
        self.refuses_writes = self.hangs_on_writes = self.refuses_terminals = self.has_remote_terminals = False
        self.written: list[str] = []  # paths that were written through it
        self.terminals: dict[str, asyncio.subprocess.Process] = {}
        self.printed: dict[str, str] = {}  # what its terminals show, by id
        self.released: list[str] = []
        self._readers: list[asyncio.Task[None]] = []
        self._news = asyncio.Event()

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        self.updates.append(update)
        self._news.set()

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **kwargs: Any
    ) -> RequestPermissionResponse:
        self.asked.append((tool_call, options))
        self._news.set()
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if answer == CANCELLED:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=answer))

    async def create_elicitation(self, message: str, mode: Any, **kwargs: Any) -> Any:
        self.forms.append((message, mode))
        self._news.set()
        if not self.filled:
            await asyncio.Event().wait()
        content = self.filled.pop(0)
        if content is None:
            return DeclineElicitationResponse(action="decline")
        return AcceptElicitationResponse(action="accept", content=content)

    async def read_text_file(
        self, session_id: str, path: str, line: int | None = None, limit: int | None = None, **kwargs: Any
    ) -> ReadTextFileResponse:
        if path in self.buffers:
            return ReadTextFileResponse(content=self.buffers[path])
        if not Path(path).exists():
            raise acp.RequestError.resource_not_found(path)
        return ReadTextFileResponse(content=Path(path).read_bytes().decode())

    async def write_text_file(self, session_id: str, path: str, content: str, **kwargs: Any) -> None:
        """Replaces the text of the buffer and saves it, as editors do."""
        if self.refuses_writes:
            raise acp.RequestError(-32603, "the file is locked")
        self.written.append(path)
        self._news.set()
        if self.hangs_on_writes:
            await asyncio.Event().wait()
        self.buffers.pop(path, None)
        Path(path).write_bytes(content.encode())

    async def create_terminal(self, session_id: str, command: str, args: Any = None, **kwargs: Any) -> Any:
        if self.refuses_terminals:
            raise acp.RequestError(-32603, "no terminals here")
        if self.has_remote_terminals:
            command, args = "true", ()
        terminal_id, pipe = f"terminal-{len(self.terminals)}", asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(command, *(args or ()), stdout=pipe, stderr=pipe)
        self.terminals[terminal_id] = process
        self.printed[terminal_id] = ""
        self._readers.append(asyncio.create_task(self._read_terminal(terminal_id, process)))
        return CreateTerminalResponse(terminal_id=terminal_id)

    async def _read_terminal(self, terminal_id: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while chunk := await process.stdout.read(1000):
            self.printed[terminal_id] += chunk.decode()
            self._news.set()
        await process.wait()
        self._news.set()

    async def wait_for_terminal_exit(self, session_id: str, terminal_id: str, **kwargs: Any) -> Any:
        return WaitForTerminalExitResponse(exit_code=await self.terminals[terminal_id].wait())

    async def release_terminal(self, session_id: str, terminal_id: str, **kwargs: Any) -> None:
        self.released.append(terminal_id)
        self._news.set()
        process = self.terminals[terminal_id]
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def until(self, true: Callable[[], object]) -> None:
        """Wait for news that make it true."""
        async with asyncio.timeout(SECONDS):
            while not true():
                self._news.clear()
                await self._news.wait()

    def of(self, kind: type[Any]) -> list[Any]:
        return [update for update in self.updates if isinstance(update, kind)]

    def text_of(self, kind: type[Any] = AgentMessageChunk) -> str:
        return "".join(update.content.text for update in self.of(kind))

    @property
    def thought(self) -> str:
        return self.text_of(AgentThoughtChunk)

    @property
    def user_text(self) -> str:
        return self.text_of(UserMessageChunk)

    def call(self) -> dict[str, Any]:
        """The only call as the editor would show it: what it started as, with every later word about it."""
        (started,) = self.of(ToolCallStart)
        shown = _fields(started)
        for update in self.of(ToolCallProgress):
            assert update.tool_call_id == started.tool_call_id
            shown |= _fields(update)
        return shown

    def forget(self) -> None:
        self.updates.clear()


def _fields(update: Any) -> dict[str, Any]:
    return {name: value for name in type(update).model_fields if (value := getattr(update, name)) is not None}


class EditorHome:
    """A user with a home and a workspace, who may open one editor after the other."""

    def __init__(self, home: Path, workspace: Path) -> None:
        self.home = home
        self.workspace = workspace

    def write_script(self, *answers: Any, delay: float = 0.0) -> None:
        """Writes a configuration with a scripted model."""
        script = ",\n  ".join(_toml(answer) for answer in answers)
        (self.home / "config.toml").write_text(
            f'model = "script/demo"\n[providers.script]\nkind = "scripted"\nmodel = "demo"\n'
            f"[providers.script.options]\ndelay = {delay}\nscript = [\n  {script}\n]\n"
        )

    @asynccontextmanager
    async def editor(self, *flags: str, able: dict[str, Any] | None = None) -> AsyncIterator[Editor]:
        """Open, and introduced; the program has to end by itself when the editor goes. `able` is what it declares."""
        editor = Editor()
        options = {"stderr": None, "limit": 1 << 24, "shutdown_timeout": SECONDS}
        async with acp.spawn_agent_process(
            editor,
            *COMMAND,
            *flags,
            env=self.environ,
            cwd=self.home,
            transport_kwargs=options,
            use_unstable_protocol=True,
        ) as (agent, process):
            editor.agent, editor.process = agent, process
            async with asyncio.timeout(SECONDS):
                editor.offered = await agent.initialize(
                    protocol_version=acp.PROTOCOL_VERSION,
                    client_capabilities=ClientCapabilities.model_validate(able or {}),
                )
            yield editor
        assert process.returncode == 0

    @asynccontextmanager
    async def raw(self) -> AsyncIterator[tuple[asyncio.subprocess.Process, Ask]]:
        """The program without an SDK: every line that it writes has to be a message."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "--mode", "background", stdin=pipe, stdout=pipe, stderr=pipe, env=self.environ, cwd=self.home
        )

        async def ask(method: str, **params: Any) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(
                json.dumps({"jsonrpc": "2.0", "id": method, "method": method, "params": params}).encode() + b"\n"
            )
            async with asyncio.timeout(SECONDS):
                while (message := json.loads(await process.stdout.readline())).get("id") != method:
                    assert message["jsonrpc"] == "2.0"
            return message

        yield process, ask
        async with asyncio.timeout(SECONDS):
            await process.wait()

    @property
    def environ(self) -> dict[str, str]:
        environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
        return {**environment, "OUTRIDER_HOME": str(self.home), "HOME": str(self.home), "SIM_KEY": "key"}

    async def new(self, editor: Editor) -> str:
        return (await editor.agent.new_session(cwd=str(self.workspace), mcp_servers=[])).session_id

    async def load(self, editor: Editor, session_id: str) -> Any:
        return await editor.agent.load_session(cwd=str(self.workspace), session_id=session_id, mcp_servers=[])


async def say(editor: Editor, session_id: str, text: str) -> str:
    """The stop reason of the turn."""
    async with asyncio.timeout(SECONDS):
        answer = await editor.agent.prompt(session_id=session_id, prompt=[acp.text_block(text)])
    return answer.stop_reason


def call(tool: str, **given: Any) -> dict[str, Any]:
    return {"tool": tool, "input": given}


def _toml(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + ", ".join(_toml(one) for one in value) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)
