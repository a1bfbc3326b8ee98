"""Two hundred secrets go through an engine by every way in, and none of them is found at any way out."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider import Engine, EventBus, EventLog, EventLogger, Provider, Tool, Trace
from outrider.engine.session_tools import ToolEnvironment
from outrider.permissions.redaction.redactor import HIDDEN_SECRET
from outrider.presentation.share_page import render_share_page
from outrider.processes.sandbox.sandbox import NoSandbox
from outrider.providers.scripted import call
from outrider.sessions.export import export_session
from outrider.sessions.sqlite.store import SqliteStore
from outrider.types.events import Event
from outrider.types.parts import ReasoningPart
from tests.scenario.scripted_runs import agent
from tests.security.canaries import canaries, plain_secrets

WAYS_IN = (
    "user",
    "text",
    "reasoning",
    "argument",
    "output",
    "error",
    "address",
    "header",
    "file name",
    "file",
    "command",
    "long output",
)
FORMATTED, KNOWN = 13, 4  # of each, for every way in


class Smuggled:
    """The secrets of every way in: some by their format, some that only the environment knows."""

    def __init__(self) -> None:
        formatted = iter(canaries(FORMATTED * len(WAYS_IN), seed=1))
        known = iter(plain_secrets(KNOWN * len(WAYS_IN), seed=2))
        self.by_way = {
            way: [next(formatted) for _ in range(FORMATTED)] + [next(known) for _ in range(KNOWN)] for way in WAYS_IN
        }
        self.known = {
            f"CANARY_{place}_TOKEN": secret
            for place, secret in enumerate(secret for found in self.by_way.values() for secret in found[FORMATTED:])
        }

    @property
    def all(self) -> list[str]:
        return [secret for found in self.by_way.values() for secret in found]

    def text_for(self, way: str) -> str:
        return "\n".join(f"witness of {way}: {secret} and so on" for secret in self.by_way[way])


class ReceivedEvents:
    """Everything that listeners get to know, as it would be written down."""

    def __init__(self, bus: EventBus) -> None:
        self.events: list[Event] = []
        self.plain, self.terminal = io.StringIO(), io.StringIO()
        self.log = EventLog(maximum=100_000)
        self.log.attach(bus)
        EventLogger(self.plain, verbose=True).attach(bus)
        EventLogger(self.terminal).attach(bus)
        bus.subscribe_all(self.events.append)

    def outputs(self) -> Iterator[tuple[str, str]]:
        yield "events", "\n".join(json.dumps(event.to_dict(), ensure_ascii=False) for event in self.events)
        yield "deltas, put together", "".join(getattr(event, "delta", "") for event in self.events)
        yield "verbose log", self.plain.getvalue()
        yield "terminal", self.terminal.getvalue()
        yield "event log", self.log.to_json().decode() + self.log.format()
        trace = Trace(self.log)
        yield "trace", trace.format_tree()
        yield "trace as a page", trace.to_html()


def own_tools(smuggled: Smuggled) -> list[Tool]:
    @Tool
    def fetch(given: str) -> str:
        """Returns and is given secrets."""
        return smuggled.text_for("output")

    @Tool
    def fail(way: str) -> str:
        """Fails with secrets in its message."""
        if way == "address":
            raise ValueError("\n".join(f"no answer: https://u:{s}@x.example/a?b={s}" for s in smuggled.by_way[way]))
        if way == "header":
            raise ValueError("\n".join(f"refused: Authorization: Bearer {s}" for s in smuggled.by_way[way]))
        raise ValueError(smuggled.text_for(way))

    return [fetch, fail]


def script(smuggled: Smuggled) -> list[object]:
    def argument(secret: str) -> object:
        return call("fetch", given=f"witness of argument: {secret}")

    return [
        [
            ReasoningPart(smuggled.text_for("reasoning")),
            smuggled.text_for("text"),
            *map(argument, smuggled.by_way["argument"]),
        ],
        [call("fail", way=way) for way in ("error", "address", "header")],
        [call("list", path="."), call("read", file_path="inside.txt"), call("shell", command="cat long.txt; ls -la")],
        [call("shell", command=f"echo 'witness of command' {secret!r}") for secret in smuggled.by_way["command"]],
        "done: " + smuggled.text_for("text"),
    ]


def filled(workspace: Path, smuggled: Smuggled) -> None:
    workspace.mkdir()
    for secret in smuggled.by_way["file name"]:
        (workspace / f"witness-{secret.replace('/', '')}.txt").write_text("empty\n")
    (workspace / "inside.txt").write_text(smuggled.text_for("file"))
    filler = "nothing of interest here\n" * 12_000
    (workspace / "long.txt").write_text(filler + smuggled.text_for("long output") + "\n" + filler + filler)


async def exported(engine: Engine, session: str) -> list[tuple[str, str]]:
    loaded = await engine.store.load(session)
    found = [hit.snippet for word in ("witness", "so", "on") for hit in await engine.store.search(word, limit=100)]
    return [
        ("export", (await export_session(engine.store, session)).decode()),
        ("share", render_share_page(loaded)),
        ("search", "\n".join(found)),
        ("titles", "\n".join(one.title for one in (await engine.store.list()).sessions)),
    ]


def on_disk(folder: Path) -> list[tuple[str, str]]:
    """All files except undo data, which are exact copies of workspace files that only their owner may read."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and folder / "undo" not in path.parents)
    return [(str(path.relative_to(folder)), path.read_bytes().decode("utf-8", "replace")) for path in files]


@pytest.fixture
def smuggled(monkeypatch: pytest.MonkeyPatch) -> Smuggled:
    found = Smuggled()
    for name, secret in found.known.items():
        monkeypatch.setenv(name, secret)
    return found


async def all_outputs(smuggled: Smuggled, tmp_path: Path) -> list[tuple[str, str]]:
    """Every text that has left an engine in one conversation, by the name of the way out."""
    data, workspace, bus = tmp_path / "data", tmp_path / "workspace", EventBus()
    filled(workspace, smuggled)
    received = ReceivedEvents(bus)
    around = ToolEnvironment(sandbox=NoSandbox("none", ""), data=data, home=tmp_path, bus=bus)
    provider = Provider("scripted", "scripted", options={"script": script(smuggled), "chunk": 5})
    async with SqliteStore(data / "store.db") as store:
        engine = Engine(
            [agent()],
            [provider],
            own_tools(smuggled),
            store=store,
            bus=bus,
            surroundings=around,
            cassettes=data / "cassettes",
        )
        async with engine:
            bus.subscribe_all(answering(engine))
            session = await engine.create(workspace=workspace)
            end = await engine.prompt(session, smuggled.text_for("user"))
            outputs = [("last words", end.output), *on_disk(data), *await exported(engine, session)]
    return [*outputs, *on_disk(data), *received.outputs()]


def answering(engine: Engine):
    async def answer(event: Event) -> None:
        if event.event_type == "ToolApprovalRequestedEvent":
            await engine.answer(event.approval_id, allow=True)  # type: ignore[attr-defined]

    return answer


async def test_none_of_two_hundred_secrets_is_found_at_any_way_out(smuggled: Smuggled, tmp_path: Path):
    assert len(set(smuggled.all)) >= 200
    outputs = await all_outputs(smuggled, tmp_path)
    leaks = [
        (name, way, secret)
        for name, text in outputs
        for way, secrets in smuggled.by_way.items()
        for secret in secrets
        if any(
            form in text for form in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
        )
    ]
    assert not leaks, f"{len(leaks)} leaks, the first: {leaks[:5]}"


async def test_text_around_the_secrets_is_published(smuggled: Smuggled, tmp_path: Path):
    """Proves that the check can fail: an unprotected secret is found in the output."""
    outputs = dict(await all_outputs(smuggled, tmp_path))
    for name in ("events", "export", "share", "verbose log", "event log"):
        assert HIDDEN_SECRET in outputs[name], name
        for way in ("user", "text", "argument", "output", "error", "file", "command"):
            assert f"witness of {way}" in outputs[name] or (name, way) in NOT_PUBLISHED, (name, way)
    assert any(name.startswith("outputs") and "nothing of interest" in text for name, text in outputs.items())
    assert any(name.startswith("cassettes") and "witness of text" in text for name, text in outputs.items())


NOT_PUBLISHED: set[tuple[str, str]] = set()
