"""Commands of background mode reach the hosts that the user allowed, and no others."""

import asyncio
from pathlib import Path

import pytest

from outrider.processes.sandbox.detect import find_sandbox
from outrider.providers.scripted import call
from outrider.types.parts import ToolPart
from tests.fixtures.standard_engine import Place

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
FETCH = "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/', timeout=30).read())\""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    if not find_sandbox(tmp_path / "scratch").confines:
        pytest.skip("needs a sandbox that works on this machine")
    return Place(tmp_path)


@pytest.mark.parametrize("is_named", [True, False])
async def test_commands_reach_the_hosts_that_the_user_named(place: Place, is_named: bool):
    received: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(ANSWER)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as site:
        port = site.sockets[0].getsockname()[1]
        named = port if is_named else port + 1
        (place.own / "config.toml").write_text(f'[sandbox]\nhosts = ["127.0.0.1:{named}"]')
        async with place.engine(
            [[call("shell", command=FETCH.format(port=port))], "done"], mode="background"
        ) as engine:
            session = await engine.create(workspace=place.workspace)
            await engine.prompt(session, "go")
            loaded = await engine.store.load(session)
    (part,) = [part for message in loaded.messages for part in message.get_parts_by_type(ToolPart)]
    assert ("hello" in str(part.state)) is is_named
    assert bool(received) is is_named
