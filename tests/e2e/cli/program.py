"""The real program as a process, with a home and a separate workspace, and a model server that it talks to."""

import asyncio
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.testing.simulator import Script, Simulator
from outrider.types.parts import ToolUsePart

SECONDS = 60


@dataclass
class Done:
    """How a process ended, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class Program:
    """`outrider`, started in a folder by a user with an empty home."""

    home: Path
    workspace: Path
    url: str = ""
    extra: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def environ(self) -> dict[str, str]:
        known = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
        own = {"HOME": str(self.home), "OUTRIDER_HOME": str(self.home / "outrider"), "TERM": "dumb"}
        server = {"OPENAI_BASE_URL": self.url, "OPENAI_API_KEY": "key", "OUTRIDER_MODEL": "openai/gpt-4.1"}
        return known | own | (server if self.url else {}) | self.extra

    async def start(
        self, *arguments: str, stdin: int = asyncio.subprocess.DEVNULL, **given: Any
    ) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "outrider",
            *arguments,
            stdin=stdin,
            **{"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE, **given},
            cwd=self.workspace,
            env=self.environ,
        )

    async def run(self, *arguments: str, stdin: str | None = None) -> Done:
        process = await self.start(
            *arguments, stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE
        )
        return await ended(process, stdin)

    async def on_a_terminal(self, *arguments: str, size: tuple[int, int] = (80, 24)) -> Done:
        """With a terminal for stdout and stderr, and none for stdin; both are in `out`."""
        master, slave = pty.openpty()
        own = Program(self.home, self.workspace, self.url, {"TERM": "xterm", "COLUMNS": str(size[0]), **self.extra})
        process = await own.start(*arguments, stdout=slave, stderr=slave)
        os.close(slave)
        reading = asyncio.create_task(asyncio.to_thread(_read_all, master))
        code = await asyncio.wait_for(process.wait(), SECONDS)
        return Done(code, await reading, "")


async def ended(process: asyncio.subprocess.Process, stdin: str | None = None) -> Done:
    given = None if stdin is None else stdin.encode()
    out, err = await asyncio.wait_for(process.communicate(given), SECONDS)
    return Done(process.returncode or 0, (out or b"").decode(), (err or b"").decode())


def _read_all(master: int) -> str:
    pieces: list[bytes] = []
    try:
        while piece := os.read(master, 65536):
            pieces.append(piece)
    except OSError:  # the last process has closed its end
        pass
    os.close(master)
    return b"".join(pieces).decode()


def call(tool: str, call_id: str = "call_1", **given: Any) -> ToolUsePart:
    return ToolUsePart(tool_id=call_id, tool_name=tool, tool_input=given)


@asynccontextmanager
async def answering(program: Program, script: Script) -> AsyncIterator[Simulator]:
    """Runs a model server with these answers for the program."""
    async with Simulator(script) as server:
        program.url = server.url("openai")
        yield server


def interrupt(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGINT)
