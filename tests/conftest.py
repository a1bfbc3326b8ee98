"""Fixtures and checks for all tests: leaked tasks and processes fail a test, and shared data is located in one
function."""

import asyncio
import gc
import inspect
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, is_hypothesis_test, settings

from outrider.processes.sandbox.sandbox import Sandbox
from tests.fixtures.leaks import adopt_orphans, child_processes, leaked_processes, leaked_tasks, restore_interrupts
from tests.fixtures.sandbox_workspace import sandbox_or_skip
from tests.fixtures.soak import examples
from tests.fixtures.warm_start import warm_starts

ROOT = Path(__file__).parents[1]

# A loaded machine is no reason for a test to fail.
settings.register_profile(
    "outrider",
    deadline=None,
    print_blob=True,
    max_examples=examples(50),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("outrider")


def pytest_configure() -> None:
    # Tests start hundreds of Python processes; without stored bytecode each of them compiles the package again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    gc.disable()  # until all tests are collected: what is imported and collected stays
    adopt_orphans()
    restore_interrupts()


def pytest_collection_finish() -> None:
    """Excludes the collected tests and the imported modules from garbage collection: they live until the end, and every
    full collection would go through all of them. Collections are also rarer: with the usual thresholds they take a
    twentieth of the time of all tests."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


# Files that take longest, or whose tests share what takes long to build. Each worker starts with some of them, so that
# none of them is the last that all wait for, and none is divided between workers.
LONG_FILES = (
    "e2e/test_local_model.py", "e2e/test_sandbox_escapes.py", "security/test_hostile_workspaces.py",
    "e2e/test_mcp_public_servers.py", "e2e/test_packaging.py", "e2e/tui/test_real_terminals.py",
    "e2e/background/test_chaos_cli.py", "e2e/background/test_soak.py", "e2e/server/test_generated_clients.py",
    "e2e/background/test_outages.py", "e2e/background/test_one_machine.py", "security/test_information_flow.py",
    "e2e/cli/test_jobs.py", "e2e/cli/test_run.py", "fault/test_store_size.py", "typing/test_checkers.py",
    "e2e/background/test_parking.py", "e2e/background/test_rolling_upgrade.py", "e2e/test_documentation_site.py",
    "recorded/test_conversations.py",
)  # fmt: skip
# A browser and its driver take 5 s of CPU time for each worker that starts them, so two workers are given these files.
BROWSER_FILES = (
    "e2e/server/test_page.py", "e2e/server/test_page_daily_use.py", "e2e/server/test_page_settings.py",
    "e2e/server/test_page_input.py", "e2e/server/test_page_user_commands.py", "e2e/server/test_jobs_page.py",
    "e2e/server/test_page_workspace.py", "e2e/server/test_page_questions.py", "e2e/server/test_oidc_login.py",
    "e2e/server/test_reverse_proxy.py",
)  # fmt: skip
BROWSERS = 2
QUICK_FOLDERS = ("architecture/", "contract/", "scenario/", "unit/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        items[:] = long_files_first(items, workers)
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if inspect.iscoroutinefunction(item.function):
            marker = item.get_closest_marker("asyncio")
            lasting = marker is not None and marker.kwargs.get("loop_scope") == "session"
            if lasting:  # after fixtures with the scope of the event loop
                item.fixturenames.append("no_leaked_tasks_in_lasting_loop")
            else:
                item.fixturenames.insert(0, "no_leaked_tasks")
        if is_hypothesis_test(item.function):
            item.add_marker(pytest.mark.soak)


def long_files_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Each worker is given an equal part of the list, and takes from the parts of others when its own is done. A part
    starts with long files and files that wait for other processes; quick tests, which are easy to divide, are last."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path.relative_to(ROOT / "tests").as_posix(), []).append(item)
    early = [name for name in LONG_FILES if name in files]
    early += [name for name in files if name not in LONG_FILES + BROWSER_FILES and not name.startswith(QUICK_FOLDERS)]
    names = [early[worker::workers] for worker in range(workers)]
    with_browser = [name for name in BROWSER_FILES if name in files]
    for number in range(BROWSERS):
        names[number - BROWSERS][:0] = with_browser[number::BROWSERS]
    queues = [[item for name in chosen for item in files.pop(name)] for chosen in names]
    quick = [item for found in files.values() for item in found]
    ordered: list[pytest.Item] = []
    for number, queue in enumerate(queues):
        share = (len(items) - len(ordered)) // (workers - number)  # as xdist divides the list
        room = max(0, share - len(queue))
        ordered += queue + quick[:room]
        del quick[:room]
    return ordered + quick


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


@pytest_asyncio.fixture(loop_scope="session")
async def no_leaked_tasks_in_lasting_loop() -> AsyncIterator[None]:
    """Given to every asynchronous test that shares its event loop with others."""
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
    """Returns the folder `shared` next to the repository (or $OUTRIDER_SHARED), with corpora and recordings."""
    folder = Path(os.environ.get("OUTRIDER_SHARED") or ROOT.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"needs the shared folder; {folder} is absent (set OUTRIDER_SHARED)")
    return folder
