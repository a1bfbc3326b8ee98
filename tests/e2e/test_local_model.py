"""The embedded model with real, small weights; if they are missing, the tests are skipped with the command to
download them."""

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import aclosing, closing
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from outrider import Agent, Engine, EventBus, Provider, TextPart, ToolCompleted, ToolPart
from outrider.config.paths import find_app_folders
from outrider.context.prompts import prompt_text
from outrider.engine.session_tools import ToolEnvironment
from outrider.models.local_models import SMALL_WEIGHTS, local_profile, prefix_cache_folder, weights_path
from outrider.processes.sandbox.sandbox import NoSandbox
from outrider.providers.local.client import LocalClient
from outrider.providers.local.model_pool import MODEL_POOL, EmbeddedRuntime, LoadedModel
from outrider.providers.local.prompt import LOCAL_TOOL_PROMPT
from outrider.providers.local.runtime import ChunkCallback, PrefixCache, RuntimeLimits
from outrider.providers.local.workspace_files import WorkspaceFileSource
from outrider.providers.provider import AnswerAssembler
from outrider.types.request import (
    ModelMessage,
    ModelSettings,
    OutputSchema,
    Prompt,
    Request,
    TextDelta,
    ToolChoice,
    ToolSpec,
)
from tests.fixtures.soak import SOAK

pytest.importorskip("xllamacpp")
WEIGHTS = weights_path(SMALL_WEIGHTS, find_app_folders(os.environ).data)
OPTIONS = {"context": 4096, "threads": 1}  # other tests run beside these, and threads would wait for each other
LIMITS = RuntimeLimits(**OPTIONS)
TERSE = replace(LOCAL_TOOL_PROMPT, examples=())  # examples make answers better, and take long to read
BRIEF = replace(LOCAL_TOOL_PROMPT, examples=LOCAL_TOOL_PROMPT.examples[7:9])  # how a file is read
SOON = 120  # seconds: for what takes one or two on a free machine
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not WEIGHTS.is_file(), reason="the small weights are not here; download them with: outrider models pull small"
    ),
]

ODD = ToolSpec(
    "plan",
    "Makes a plan.",
    {
        "type": "object",
        "properties": {
            "steps": {"type": "array", "items": {"$ref": "#/$defs/Step"}, "minItems": 1, "maxItems": 2},
            "urgent": {"type": "boolean"},
            "level": {"enum": ["low", "high"]},
        },
        "required": ["steps", "level"],
        "$defs": {
            "Step": {
                "type": "object",
                "properties": {"what": {"type": "string", "maxLength": 40}, "minutes": {"type": "integer"}},
                "required": ["what", "minutes"],
            }
        },
    },
)


class Models:
    """Returns one loaded model for every name."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model

    def acquire(self, name: str) -> LoadedModel:
        return self._model

    def release(self, name: str) -> None:
        pass


class WatchedRuntime(EmbeddedRuntime):
    """Stores the chunks of the last answer: one per batch of the prompt and one per generated token."""

    def __init__(self, weights: Path, imprints: Path) -> None:
        super().__init__(weights, imprints, LIMITS)
        self.chunks: list[str] = []
        self.reads = threading.Event()

    def chat(self, body: str, on_chunk: ChunkCallback) -> None:
        self.chunks = chunks = []

        def noted(chunk: str) -> bool:
            chunks.append(chunk)
            self.reads.set()
            return on_chunk(chunk)

        super().chat(body, noted)


def imprints_of(home: Path) -> Path:
    return prefix_cache_folder(home, weights_path(SMALL_WEIGHTS, home))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Everything but the weights is the tests' own."""
    folder = tmp_path_factory.mktemp("home")
    imprints_of(folder).mkdir(parents=True)
    weights_path(SMALL_WEIGHTS, folder).symlink_to(WEIGHTS)
    options = "".join(f"{name} = {value}\n" for name, value in OPTIONS.items())
    (folder / "config.toml").write_text(f"[providers.local.options]\n{options}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTRIDER_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def runtime(home: Path) -> WatchedRuntime:
    """Loaded once for all tests here."""
    return WatchedRuntime(weights_path(SMALL_WEIGHTS, home), imprints_of(home))


@pytest.fixture(scope="module")
def models(home: Path, runtime: WatchedRuntime) -> Iterator[Models]:
    with closing(LoadedModel(runtime, PrefixCache(imprints_of(home), weights_path(SMALL_WEIGHTS, home)))) as model:
        yield Models(model)


def asking(text: str, **fields) -> Request:
    return Request(
        "0.5b", Prompt([ModelMessage("user", (TextPart(text),))]), fields.pop("system", "Be short."), **fields
    )


async def folded(client: LocalClient, request: Request) -> AnswerAssembler:
    assembler = AnswerAssembler("local")
    async for delta in client.stream(request):
        assembler.add(delta)
    return assembler


async def test_the_embedded_model_answers(models):
    answer = await folded(LocalClient("local", models, LOCAL_TOOL_PROMPT), asking("What is the capital of France?"))
    (text,) = answer.list_parts()
    assert "Paris" in text.text
    assert (answer.finish, answer.model) == ("stop", "0.5b")
    assert answer.tokens.output > 0


async def test_calls_always_parse_however_wild_the_model_is(models):
    client = LocalClient("local", models, TERSE)
    for number in range(2 if SOAK else 1):
        settings = ModelSettings(temperature=1.5, extra={"seed": number}, max_output_tokens=120)
        request = asking('Plan my day! ☕ "quotes" and\nnewlines', tools=(ODD,), settings=settings)
        answer = await folded(client, request)
        (part,) = answer.list_parts()
        if isinstance(part, ToolPart) and answer.finish == "tool_use":
            assert part.metadata == {}, "the input did not parse"
            assert {"steps", "level"} <= part.state.input.keys()
            assert part.state.input["level"] in ("low", "high")
            assert all({"what", "minutes"} == step.keys() for step in part.state.input["steps"])
        else:
            assert isinstance(part, TextPart) or answer.finish == "length"


async def test_a_value_follows_its_schema(models):
    wanted = OutputSchema({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]})
    answer = await folded(
        LocalClient("local", models, LOCAL_TOOL_PROMPT), asking("What is 2 + 2?", settings=ModelSettings(output=wanted))
    )
    (text,) = answer.list_parts()
    assert msgspec.json.decode(text.text).keys() == {"sum"}


async def test_a_prompt_is_given_up_between_two_batches(models, runtime):
    client = LocalClient("local", models, LOCAL_TOOL_PROMPT)
    await folded(client, asking("Hi", settings=ModelSettings(max_output_tokens=1)))  # the common beginning is read
    runtime.reads.clear()
    reading = asyncio.ensure_future(folded(client, asking("word " * 2000)))
    assert await asyncio.to_thread(runtime.reads.wait, SOON)
    reading.cancel()
    await asyncio.wait([reading])
    await require_stopped(client, runtime)


async def test_an_answer_is_given_up_between_two_tokens(models, runtime):
    client = LocalClient("local", models, LOCAL_TOOL_PROMPT)
    async with aclosing(client.stream(asking("Count from one to a thousand, in words."))) as deltas:
        while not isinstance(await anext(deltas), TextDelta):
            pass
    await require_stopped(client, runtime)


async def require_stopped(client: LocalClient, runtime: WatchedRuntime) -> None:
    """A cancelled request does not continue: a chunk may be in progress, and the next one ends it. Then the model
    serves the next request."""
    given_up = runtime.chunks
    before = len(given_up)
    async with asyncio.timeout(SOON):
        answer = await folded(client, asking("Hi", settings=ModelSettings(max_output_tokens=1)))
    assert answer.tokens.output == 1
    assert len(given_up) - before <= 2


async def test_the_second_start_remembers_what_the_first_has_read(models, home):
    system = "You are a very patient gardener. " * 20
    first = await folded(LocalClient("local", models, LOCAL_TOOL_PROMPT), asking("Hi", system=system))
    assert len([*imprints_of(home).glob("*.bin")]) > 0
    again = RuntimeLimits(context=2048, threads=1)
    fresh = await asyncio.to_thread(MODEL_POOL.acquire, weights_path(SMALL_WEIGHTS, home), imprints_of(home), again)
    try:
        second = await folded(LocalClient("local", Models(fresh), LOCAL_TOOL_PROMPT), asking("Hi", system=system))
    finally:
        await asyncio.to_thread(MODEL_POOL.release, weights_path(SMALL_WEIGHTS, home), again)
    assert second.tokens.cache.read > 100
    assert second.list_parts()[0].text == first.list_parts()[0].text


async def test_an_agent_answers_from_a_file(models, home, tmp_path):
    provider = Provider("local", "local", options=OPTIONS)
    if not SOAK:  # the model reads all examples for 9 s of CPU time
        provider = LocalClient("local", models, BRIEF, WorkspaceFileSource())
    (tmp_path / "notes.txt").write_text("The code word is marmalade.\n")
    bus = EventBus()
    around = ToolEnvironment(sandbox=NoSandbox("", ""), data=home, home=home, bus=bus)
    # One tool: the model reads the descriptions and examples of all others for 15 s of CPU time.
    instructions = prompt_text("agent") if SOAK else "Answer from the files of the workspace."
    agent = local_profile(Agent("outrider", instructions, "0.5b", "local", tools=("read",)))
    async with Engine([agent], [provider], bus=bus, surroundings=around) as engine:
        session = await engine.create(workspace=tmp_path)
        end = await engine.prompt(session, "What is the code word? Look into notes.txt.")
        stored = await engine.store.load(session)
    calls = [part for message in stored.messages for part in message.get_parts_by_type(ToolPart)]
    assert [call.tool for call in calls][:1] == ["read"]
    assert isinstance(calls[0].state, ToolCompleted)
    assert "marmalade" in end.output


async def test_only_files_that_exist_can_be_read(models, tmp_path):
    (tmp_path / "only_one.txt").touch()
    read = ToolSpec(
        "read", "", {"type": "object", "properties": {"file_path": {"type": "string"}}, "required": ["file_path"]}
    )
    client = LocalClient("local", models, TERSE, WorkspaceFileSource())
    settings = ModelSettings(temperature=1.5, extra={"seed": 1}, tool_choice=ToolChoice("required"))
    for text in ("What is in main.c, I wonder", "Show me the readme")[: 2 if SOAK else 1]:
        (call,) = (
            await folded(client, asking(text, tools=(read,), settings=settings, workspace=str(tmp_path)))
        ).list_parts()
        assert call.state.input["file_path"] in ("only_one.txt", "main.c")


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="the first task of `make run` can take minutes; it runs in `make soak`")
def test_the_first_task_is_worked_on_and_shown(home):
    """The model may fail to repair the bug, but its calls and the trace are shown."""
    command = [sys.executable, str(Path(__file__).parents[2] / "scripts" / "local_demo.py"), SMALL_WEIGHTS.name, "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\n> read prices.py\n" in done.stdout  # a call, as it began
    assert "─ tool read(prices.py)" in done.stdout  # and in the trace
    assert "The test of the workspace" in done.stdout


def test_a_process_with_a_model_can_be_interrupted_and_listens_nowhere(tmp_path):
    program = textwrap.dedent(
        f"""
        import os, re, signal, sys, time
        from pathlib import Path
        from outrider.providers.local.model_pool import EmbeddedRuntime
        from outrider.providers.local.runtime import RuntimeLimits
        runtime = EmbeddedRuntime(Path({str(WEIGHTS)!r}), Path({str(tmp_path)!r}), RuntimeLimits(context=512))
        open_sockets = {{os.readlink(f"/proc/self/fd/{{fd}}") for fd in os.listdir("/proc/self/fd") if fd != "0"
                        and os.path.islink(f"/proc/self/fd/{{fd}}")}}
        tables = [open(f"/proc/self/net/{{name}}").readlines()[1:] for name in ("tcp", "tcp6")]
        listening = [line.split() for table in tables for line in table]
        assert not [row for row in listening if row[3] == "0A" and f"socket:[{{row[9]}}]" in open_sockets]
        try:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1200):  # another thread may be given the signal: this one hears of it between two naps
                time.sleep(0.05)
            print("not interrupted")
        except KeyboardInterrupt:
            print("interrupted")
        runtime.close()
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=False)
    assert done.stdout.strip() == "interrupted", done.stderr
    assert done.stderr == ""


def test_a_model_can_be_closed_as_soon_as_it_is_loaded(tmp_path):
    program = textwrap.dedent(
        f"""
        from pathlib import Path
        from outrider.providers.local.model_pool import EmbeddedRuntime
        from outrider.providers.local.runtime import RuntimeLimits
        for _ in range(3):
            EmbeddedRuntime(Path({str(WEIGHTS)!r}), Path({str(tmp_path)!r}), RuntimeLimits(context=512)).close()
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
