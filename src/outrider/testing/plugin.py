"""The pytest plugin; it loads nothing of the engine before a test asks for its fixture."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from outrider.testing.recording import RecordedProviders
    from outrider.testing.replay import ReplayedAgents


_MARKER = (
    "outrider_cassette(ignore=[…], secrets=[…]): fields of requests that may differ, texts to hide in the cassette"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("outrider").addoption(
        "--outrider-record",
        action="store_true",
        help="ask the real providers, with your keys, and record their answers; without it recordings are played",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def outrider_cassette(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> "Iterator[RecordedProviders]":
    """Providers whose traffic is on a cassette of this test: `cassettes/MODULE.TEST.jsonl` beside its file.

    Recorded with --outrider-record; otherwise played, and nothing but this machine can be reached."""
    from outrider.testing.recording import RecordedProviders

    recording = _is_recording(request, monkeypatch)
    marker = request.node.get_closest_marker("outrider_cassette")
    options = dict(marker.kwargs) if marker else {}
    yield RecordedProviders(_folder(request) / f"{_name(request)}.jsonl", recording=recording, **options)


@pytest.fixture
def outrider_replay(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> "Iterator[ReplayedAgents]":
    """Agents whose sessions are recorded with --outrider-record (`cassettes/MODULE.TEST.session.json` and `.jsonl`
    beside the test's file); otherwise they run again offline, and everything that goes otherwise is known."""
    from outrider.testing.replay import ReplayedAgents

    yield ReplayedAgents(_folder(request), _name(request), recording=_is_recording(request, monkeypatch))


def _is_recording(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """If not, nothing but this machine can be reached."""
    from outrider.testing.recording import refuse_network

    recording = bool(request.config.getoption("--outrider-record"))
    if not recording:
        refuse_network(monkeypatch)
    return recording


def _folder(request: pytest.FixtureRequest) -> Path:
    return request.path.parent / "cassettes"


def _name(request: pytest.FixtureRequest) -> str:
    return re.sub(r"[^\w.-]+", "-", f"{request.path.stem}.{request.node.name}")
