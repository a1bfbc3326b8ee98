"""The pytest plugin; it loads nothing of the engine before a test asks for its fixture."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from outrider.testing.recorded import RecordedProviders

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
    from outrider.testing.network import refuse_network
    from outrider.testing.recorded import RecordedProviders

    recording = bool(request.config.getoption("--outrider-record"))
    name = re.sub(r"[^\w.-]+", "-", f"{request.path.stem}.{request.node.name}")
    marker = request.node.get_closest_marker("outrider_cassette")
    options = dict(marker.kwargs) if marker else {}
    if not recording:
        refuse_network(monkeypatch)
    yield RecordedProviders(request.path.parent / "cassettes" / f"{name}.jsonl", recording=recording, **options)
