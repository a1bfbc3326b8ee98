"""Shell commands of the user run on the server: their output is streamed, and its client can end them."""

import asyncio
from pathlib import Path

import pytest

from outrider.errors import OutriderError, ToolFailure
from outrider.remote.engine import run_remote_command
from tests.e2e.attach.socket_server import Serving, until


def lives(pid: str) -> bool:
    state = Path(f"/proc/{pid}/stat")
    try:
        return state.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_command_runs_in_the_session_s_folder_and_is_received_while_it_runs(serving: Serving):
    serving.script("never asked")
    await serving.begin()
    async with serving.client() as engine:
        session_id = await engine.create()
        texts: list[str] = []
        command = "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo 'wörld' > made; cat made; exit 3"
        running = asyncio.create_task(run_remote_command(engine.client, session_id, command, texts.append))
        await until(lambda: "begun" in "".join(texts))
        assert not running.done()
        (serving.workspace / "go").touch()
        assert "3" in await running
        assert "".join(texts) == "begun\nwörld\n"
        assert (serving.workspace / "made").read_text() == "wörld\n"
        assert (await engine.open(session_id)).messages == []


async def test_a_client_that_stops_waiting_ends_the_command_on_the_server(serving: Serving):
    serving.script("never asked")
    await serving.begin()
    async with serving.client() as engine:
        texts: list[str] = []
        running = asyncio.create_task(
            run_remote_command(engine.client, await engine.create(), "echo $$; exec sleep 1000", texts.append)
        )
        await until(lambda: "".join(texts).endswith("\n"))
        pid = "".join(texts).strip()
        assert lives(pid)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: not lives(pid))


async def test_all_of_a_flood_that_is_read_arrives(serving: Serving):
    serving.script("never asked")
    await serving.begin()
    async with serving.client() as engine:
        texts: list[str] = []
        await run_remote_command(engine.client, await engine.create(), "seq 1 20000", texts.append)
        assert "".join(texts) == "".join(f"{number}\n" for number in range(1, 20_001))
        with pytest.raises(OutriderError, match="session"):
            await run_remote_command(engine.client, "0198b5a0-0000-7000-8000-000000000000", "ls", texts.append)
        with pytest.raises(OutriderError, match="length"):
            await run_remote_command(engine.client, await engine.create(), "", texts.append)


async def test_what_the_server_s_rules_deny_is_denied_in_every_mode(serving: Serving):
    serving.script("never asked")
    await serving.begin("--socket", str(serving.socket), "--deny", "shell(touch *)")
    async with serving.client() as engine:
        for mode in ("agent", "chat"):
            with pytest.raises(ToolFailure, match=r"a deny rule of the server matches this command: shell\(touch \*\)"):
                await run_remote_command(engine.client, await engine.create(mode=mode), "true && touch made", print)
        assert not (serving.workspace / "made").exists()
        assert await run_remote_command(engine.client, await engine.create(), "true", print) == "exit code 0"
