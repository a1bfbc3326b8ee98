"""The commands of the API guide run unchanged against a real server."""

import asyncio
import os
import re
import shutil
from pathlib import Path

import pytest

from outrider import Tool
from outrider.providers.scripted import call
from tests.architecture.repository import ROOT
from tests.e2e.server.http_server import TOKEN, served

GUIDE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


@Tool(policy="ask")
def pay(invoice: str) -> str:
    """Pay."""
    return f"paid {invoice}"


async def test_the_commands_of_the_guide_run(tmp_path: Path):
    for program in ("bash", "curl", "jq"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    commands = "\n".join(re.findall(r"^```sh\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL))
    script = [call("pay", invoice="1"), "It is paid.", call("pay", invoice="2"), "It is paid too."]
    async with served(tmp_path, script, [pay], webhook_config="") as client:
        environment = {**os.environ, "URL": client.address.url, "TOKEN": TOKEN}
        bash = await asyncio.create_subprocess_exec(
            "bash", "-euo", "pipefail", "-c", commands, cwd=tmp_path, env=environment,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        printed, problems = await asyncio.wait_for(bash.communicate(), 60)
        assert bash.returncode == 0, problems.decode()
        (session,) = await client.engine.list()
        stored = str((await client.engine.store.load(session.id)).messages)
    lines = printed.decode().splitlines()
    assert "allowed" in lines
    assert "It is paid." in lines
    assert lines[-2] == '{"busy":false,"broke_off":true}'
    assert '"origin":"https://ci.example"' in lines[-1]
    assert "paid 1" in stored
    assert "paid 2" not in stored
