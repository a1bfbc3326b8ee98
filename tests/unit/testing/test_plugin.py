"""A user's test is recorded once against a real server, and passes ever after without one."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from tests.fixtures.http_server import Reply, serving

KEY = "sk-" + "made-up-for-this-test-" * 2
USER_TEST = """
import socket
import pytest
from outrider.models.complete import complete

pytestmark = pytest.mark.outrider_cassette(secrets=["swordfish"])

def test_it(outrider_cassette):
    provider = outrider_cassette.provider("demo", "openai", {fields})
    answer = complete(provider, "demo-1", {question!r})
    assert answer.message.get_text_content() == "Hello"
    assert outrider_cassette.unplayed == 0

@pytest.mark.parametrize("reach", ["name", "number"])
def test_nothing_else_can_be_reached(outrider_cassette, reach):
    if not outrider_cassette.recording:
        with pytest.raises(RuntimeError, match="tried to reach"):
            if reach == "name":
                socket.create_connection(("example.invalid", 80))
            else:
                with socket.socket() as plug:
                    plug.connect(("192.0.2.1", 80))
"""
CHUNK = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "demo-1"}


def events() -> list[bytes]:
    deltas = [{"role": "assistant", "content": "Hel"}, {"content": "lo"}]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    sent = [f"data: {json.dumps({**CHUNK, 'choices': [choice]})}\n\n".encode() for choice in choices]
    return [*sent, b"data: [DONE]\n\n"]


def write(folder: Path, question: str, fields: str) -> None:
    (folder / "test_mine.py").write_text(USER_TEST.format(question=question, fields=fields))


async def run_pytest(folder: Path, *options: str) -> tuple[int, str]:
    """Runs pytest in a separate process, with our plugin only: loading all installed ones takes most of the time."""
    named = ["-p", "outrider.testing.plugin", "-p", "no:cacheprovider", "--strict-markers"]
    clean = {name: value for name, value in os.environ.items() if "API_KEY" not in name and "BASE_URL" not in name}
    clean["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest", "-q", *named, *options, ".",
        cwd=folder, env=clean, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    printed, _ = await child.communicate()
    return child.returncode or 0, printed.decode()


@pytest.mark.slow
async def test_a_test_is_recorded_once_and_played_after(tmp_path: Path):
    async with serving(Reply(events())) as server:
        write(tmp_path, "Hi, swordfish", f'api_key="{KEY}", base_url="{server.url}/v1"')
        code, printed = await run_pytest(tmp_path, "--outrider-record")
        assert code == 0, printed
        assert len(server.requests) == 1
    cassette = (tmp_path / "cassettes" / "test_mine.test_it.jsonl").read_text()
    assert KEY not in cassette and "swordfish" not in cassette

    write(tmp_path, "Hi, swordfish", "")
    code, printed = await run_pytest(tmp_path)
    assert code == 0, printed

    write(tmp_path, "Bye, swordfish", "")
    code, printed = await run_pytest(tmp_path)
    assert code == 1
    assert "does not contain this request" in printed and "messages[0].content" in printed


@pytest.mark.slow
async def test_a_test_without_a_recording_explains_how_to_make_one(tmp_path: Path):
    write(tmp_path, "Hi", "")
    code, printed = await run_pytest(tmp_path, "-k", "test_it")
    assert code == 1 and "record it first" in printed


async def test_loading_the_plugin_loads_nothing_of_the_engine():
    code = "import sys, outrider.testing.plugin; print(*sys.modules)"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    printed, _ = await child.communicate()
    engine = ("outrider.providers", "outrider.types", "outrider.engine", "msgspec", "aiohttp")
    assert [name for name in printed.decode().split() if name.startswith(engine)] == []


SIMILAR_TESTS = """
import pytest
from outrider.models.complete import complete

def ask(cassette, question):
    fields = {fields}
    answer = complete(cassette.provider("demo", "openai", **fields), "demo-1", question)
    assert answer.message.get_text_content() == "Hello"
    assert cassette.unplayed == 0

class TestFirst:
    def test_it(self, outrider_cassette):
        ask(outrider_cassette, "one")

class TestSecond:
    class TestInner:
        def test_it(self, outrider_cassette):
            ask(outrider_cassette, "two")

@pytest.mark.parametrize("question", ["a b", "a/b", "a-b"])
def test_several(outrider_cassette, question):
    ask(outrider_cassette, question)
"""


@pytest.mark.slow
async def test_tests_of_one_module_have_different_recordings_and_earlier_names_are_read(tmp_path: Path):
    program, cassettes = tmp_path / "test_mine.py", tmp_path / "cassettes"
    async with serving(*[Reply(events())] * 5) as server:
        fields = {"api_key": KEY, "base_url": f"{server.url}/v1"}
        program.write_text(SIMILAR_TESTS.replace("{fields}", repr(fields)))
        code, printed = await run_pytest(tmp_path, "--outrider-record")
        assert code == 0, printed
    assert len(list(cassettes.iterdir())) == 5
    program.write_text(SIMILAR_TESTS.replace("{fields}", "{}"))
    code, printed = await run_pytest(tmp_path)
    assert code == 0, printed
    (cassettes / "test_mine.TestFirst.test_it.jsonl").rename(cassettes / "test_mine.test_it.jsonl")  # of version 0.2
    code, printed = await run_pytest(tmp_path, "-k", "TestFirst")
    assert code == 0, printed
