"""`web_fetch` connects to this machine only after an explicit approval."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from outrider import Rules, ToolCompleted, ToolError
from tests.scenario.scripted_runs import call
from tests.scenario.test_outcomes import Harness, workspace

__all__ = ["workspace"]  # a fixture
PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 10\r\nConnection: close\r\n\r\ndev server"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(PAGE)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_page_of_this_machine_is_fetched_after_a_yes(host, port, workspace, tmp_path, sandbox):
    harness = Harness([[call("web_fetch", url=f"http://{host}:{port}/")], "done"], tmp_path, sandbox)
    async with harness.engine:
        working = asyncio.ensure_future(harness.work(workspace, approval="auto"))
        question = await harness.question()
        await harness.engine.answer(question.approval_id, allow=True)
        (part,) = await working
    assert isinstance(part.state, ToolCompleted)
    assert "dev server" in part.state.output


@pytest.mark.parametrize(
    ("rules", "reached"),
    [((), False), (("web_fetch",), False), (("web_fetch(domain:localhost)",), True)],
)
async def test_only_a_rule_that_names_this_machine_is_an_approval(rules, reached, port, workspace, tmp_path, sandbox):
    script = [[call("web_fetch", url=f"http://localhost:{port}/")], "done"]
    harness = Harness(script, tmp_path, sandbox, attended=False, rules=Rules(allow=rules))
    async with harness.engine:
        (part,) = await harness.work(workspace, approval="auto")
    assert isinstance(part.state, ToolCompleted if reached else ToolError)


async def test_an_approval_of_another_host_does_not_allow_this_machine(port, workspace, tmp_path, sandbox):
    # A public name whose address is 127.0.0.1 would do the same; without a resolver the literal forms show it.
    for url in (f"http://0.0.0.0:{port}/", f"http://[::ffff:127.0.0.1]:{port}/", f"http://2130706433:{port}/"):
        harness = Harness([[call("web_fetch", url=url)], "done"], tmp_path, sandbox)
        async with harness.engine:
            working = asyncio.ensure_future(harness.work(workspace))
            question = await harness.question()
            await harness.engine.answer(question.approval_id, allow=True)
            (part,) = await working
        assert isinstance(part.state, ToolError), url
