"""Pytest plugin with the fixtures `outrider_cassette`, `outrider_replay` and `assert_stable_prefix`; the engine is
imported on first use."""

import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from outrider.sessions.session import Session
    from outrider.testing.replay import RecordedProviders, ReplayedAgents


_MARKER = (
    "outrider_cassette(ignore=[…], secrets=[…]): fields of requests that may differ, texts to hide in the cassette"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("outrider").addoption(
        "--outrider-record",
        action="store_true",
        help="send requests to the real providers, with your keys, and record the responses (default: replay)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def outrider_cassette(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> "Iterator[RecordedProviders]":
    """Providers whose traffic is recorded with --outrider-record to `cassettes/MODULE.TEST.jsonl` next to the test
    file.

    Without that option the recording is replayed, and only this machine can be reached."""
    from outrider.testing.replay import RecordedProviders

    recording = _is_recording(request, monkeypatch)
    folder = _cassette_folder(request)
    name = _test_name(request, lambda name: recording or (folder / f"{name}.jsonl").exists())
    marker = request.node.get_closest_marker("outrider_cassette")
    options = dict(marker.kwargs) if marker else {}
    yield RecordedProviders(folder / f"{name}.jsonl", recording=recording, **options)


@pytest.fixture
def outrider_replay(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> "Iterator[ReplayedAgents]":
    """Agents whose sessions are recorded with --outrider-record (`cassettes/MODULE.TEST.session.json` and `.jsonl` next
    to the test file). Without that option they run again offline, and all differences are reported."""
    from outrider.testing.replay import ReplayedAgents

    recording, folder = _is_recording(request, monkeypatch), _cassette_folder(request)
    name = _test_name(request, lambda name: recording or (folder / f"{name}.session.json").exists())
    yield ReplayedAgents(folder, name, recording=recording)


@pytest.fixture(name="assert_stable_prefix")
def provide_stable_prefix_assertion() -> "Callable[[Session], None]":
    """A function that fails unless each request of a session continues the one before, so that caches can be used."""
    from outrider.testing.contracts import assert_stable_prefix

    return assert_stable_prefix


def _is_recording(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Blocks the network, except for this machine, if the test does not record."""
    from outrider.testing.replay import refuse_network

    recording = bool(request.config.getoption("--outrider-record"))
    if not recording:
        refuse_network(monkeypatch)
    return recording


def _cassette_folder(request: pytest.FixtureRequest) -> Path:
    return request.path.parent / "cassettes"


def _test_name(request: pytest.FixtureRequest, is_used: Callable[[str], bool]) -> str:
    """Returns the name of the test for its files: two tests of one module have different ones. Older recordings
    have a name without the class and the hash."""
    node: pytest.Item = request.node
    classes = [node.name for node in node.listchain() if isinstance(node, pytest.Class)]
    name = ".".join([request.path.stem, *classes, node.name])
    values = node.name.partition("[")[2]
    if re.search(r"[^\w.-]", values.removesuffix("]")):  # the name has these characters of parameters as "-"
        name += f"-{zlib.crc32(values.encode()):08x}"
    earlier, current = (re.sub(r"[^\w.-]+", "-", raw_name) for raw_name in (f"{request.path.stem}.{node.name}", name))
    return current if is_used(current) or not is_used(earlier) else earlier
