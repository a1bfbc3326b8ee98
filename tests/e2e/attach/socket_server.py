"""Runs a real `outrider serve` on a Unix socket with a scripted model; tests can kill and restart it."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import outrider
from outrider.remote.client import resolve_server
from outrider.remote.engine import RemoteEngine, connect_engine

SECONDS = 60


class Serving:
    """`outrider` with an empty home; the server and the programs that attach to it share it."""

    def __init__(self, folder: Path, socket: str = "s.sock") -> None:
        self.home, self.workspace = folder / "home", folder / "work"
        for made in (self.home, self.workspace):
            made.mkdir(exist_ok=True)
        self.socket = folder / socket
        self.extra: dict[str, str] = {}
        self._server: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http+unix://{self.socket}"

    @property
    def environ(self) -> dict[str, str]:
        known = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ}
        return known | {"HOME": str(self.home), "OUTRIDER_HOME": str(self.home), "TERM": "dumb"} | self.extra

    def script(self, *answers: Any, delay: float = 0.0) -> None:
        written = ",\n  ".join(_toml(answer) for answer in answers)
        (self.home / "config.toml").write_text(
            'model = "script/demo"\n[providers.script]\nkind = "scripted"\nmodel = "demo"\n'
            f"[providers.script.options]\ndelay = {delay}\nscript = [\n  {written}\n]\n"
        )

    async def begin(self, *flags: str, program: tuple[str, ...] = ("-m", "outrider")) -> str:
        """Starts the server and returns its first line of output."""
        place = flags or ("--socket", str(self.socket))
        self._server = await self.start("serve", *place, program=program)
        assert self._server.stderr is not None
        line = (await asyncio.wait_for(self._server.stderr.readline(), SECONDS)).decode()
        assert "listens" in line, line + (await self._server.stderr.read()).decode()
        return line

    async def kill(self) -> None:
        """Ends as in a crash, without a message to any client."""
        assert self._server is not None
        self._server.kill()
        await self._server.wait()

    async def end(self) -> None:
        if self._server is not None and self._server.returncode is None:
            self._server.terminate()
            await asyncio.wait_for(self._server.wait(), SECONDS)

    async def start(self, *arguments: str, program: tuple[str, ...] = ("-m", "outrider")) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *program,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.workspace,
            env=self.environ,
        )

    async def run(self, *arguments: str) -> "Done":
        return await ended(await self.start("run", *arguments))

    @asynccontextmanager
    async def client(self) -> AsyncIterator[RemoteEngine]:
        place = resolve_server(self.url, token=None, environ=self.environ)
        async with connect_engine(place, outrider.__version__) as engine:
            yield engine


class Done:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


async def ended(process: asyncio.subprocess.Process) -> Done:
    out, err = await asyncio.wait_for(process.communicate(), SECONDS)
    return Done(process.returncode or 0, out.decode(), err.decode())


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not true():
            await asyncio.sleep(0.02)


def call(tool: str, **given: Any) -> dict[str, Any]:
    return {"tool": tool, "input": given}


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)
