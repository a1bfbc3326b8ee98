"""Processes are found with all their descendants, in the way of Linux and in the way of every other system."""

import os
import signal
import subprocess
from collections.abc import Generator

import pytest

from outrider.processes import platform
from tests.fixtures.process_checks import wait_until_dead


@pytest.fixture(params=["proc", "ps"])
def listing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "ps":
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    elif not platform.lists_children():
        pytest.skip("this system does not list children in /proc")


@pytest.fixture
def family() -> Generator[subprocess.Popen[bytes]]:
    """A shell with a child and a grandchild; it prints a line when both have started."""
    command = "sh -c 'sleep 60 & echo ready; wait' & wait"
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, start_new_session=True) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"ready\n"
        yield shell
        os.killpg(shell.pid, signal.SIGKILL)


@pytest.mark.usefixtures("listing")
def test_descendants_are_found_down_to_the_last(family: subprocess.Popen[bytes]):
    assert family.pid in [process.pid for process in platform.list_children(os.getpid())]
    assert [process.pid for process in platform.list_children(family.pid)] < [
        p.pid for p in platform.list_descendants(family.pid)
    ]
    assert len(platform.list_descendants(family.pid)) == 2


@pytest.mark.usefixtures("listing")
def test_only_the_process_that_was_meant_gets_a_signal(family: subprocess.Popen[bytes]):
    (child,) = platform.list_children(family.pid)
    platform.send_signal(platform.ProcessInstance(child.pid, "another start"), signal.SIGKILL)
    assert platform.start_time_of(child.pid) == child.start
    platform.send_signal(child, signal.SIGKILL)
    wait_until_dead(child.pid)
    assert platform.start_time_of(child.pid) is None


@pytest.mark.usefixtures("listing")
def test_a_process_that_has_ended_has_no_start_and_no_children():
    child = subprocess.Popen(["true"])
    wait_until_dead(child.pid)
    assert platform.start_time_of(child.pid) is None  # a zombie
    child.wait()
    assert platform.start_time_of(child.pid) is None
    assert platform.list_children(child.pid) == []


def test_killings_for_memory_are_counted_upwards():
    assert 0 <= platform.count_oom_kills() <= platform.count_oom_kills()
