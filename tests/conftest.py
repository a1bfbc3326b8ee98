"""What holds for every test: nothing is left behind, and shared material is found in one way."""

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import is_hypothesis_test, settings

from outrider.processes.sandbox.sandbox import Sandbox
from tests.fixtures.leaks import adopt_orphans, child_processes, leaked_processes, leaked_tasks, restore_interrupts
from tests.fixtures.scratch import sandbox_or_skip
from tests.fixtures.soak import examples
from tests.fixtures.warm_start import warm_starts

ROOT = Path(__file__).parents[1]

# A loaded machine is no reason for a test to fail.
settings.register_profile("outrider", deadline=None, print_blob=True, max_examples=examples(50))
settings.load_profile("outrider")


def pytest_configure() -> None:
    # Tests start hundreds of Python processes; without stored bytecode each of them compiles the package again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    adopt_orphans()
    restore_interrupts()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if inspect.iscoroutinefunction(item.function):
            item.fixturenames.insert(0, "no_leaked_tasks")
        if is_hypothesis_test(item.function):
            item.add_marker(pytest.mark.soak)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests measured (`record_property("figures", text)`), so that numbers are seen and not only judged."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    figures = [text for report in reports for name, text in getattr(report, "user_properties", ()) if name == "figures"]
    for text in dict.fromkeys(figures):
        terminalreporter.write_line(text)


@pytest.fixture(scope="session", autouse=True)
def programs_start_warm() -> Iterator[None]:
    with warm_starts():
        yield


@pytest.fixture
async def no_leaked_tasks() -> AsyncIterator[None]:
    """Given to every asynchronous test."""
    before = asyncio.all_tasks()
    yield
    leaked = await leaked_tasks(before)
    assert not leaked, f"the test left tasks running: {leaked}"


@pytest.fixture(autouse=True)
def no_leaked_processes() -> Iterator[None]:
    before = child_processes()
    yield
    leaked = leaked_processes(before)
    assert not leaked, f"the test left processes running: {leaked}"


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    """The sandbox of this machine."""
    return sandbox_or_skip(tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder `shared` beside the repository (or $OUTRIDER_SHARED): corpora and recordings."""
    folder = Path(os.environ.get("OUTRIDER_SHARED") or ROOT.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"needs the shared folder; {folder} is absent (set OUTRIDER_SHARED)")
    return folder
