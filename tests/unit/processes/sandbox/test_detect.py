"""A sandbox is used only after a trial run; if there is none, the reason and a remedy are reported."""

import stat
import sys
from pathlib import Path

import msgspec
import pytest

from outrider.processes.launch import LaunchRequest
from outrider.processes.sandbox import detect
from outrider.processes.sandbox.bubblewrap import BubblewrapSandbox, build_ruleset, landlock_version
from outrider.processes.sandbox.sandbox import NoSandbox, SandboxPolicy

linux = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes exist on Linux only")


def program(folder: Path, script: str) -> str:
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


class Unconfined(msgspec.Struct, frozen=True):
    """Starts commands without any restriction."""

    name: str = "unconfined"
    confines: bool = True
    limitations: tuple[str, ...] = ()

    def wrap(self, launch: LaunchRequest, policy: SandboxPolicy) -> LaunchRequest:
        return launch


@linux
def test_a_sandbox_that_does_not_start_is_refused_with_its_message(tmp_path: Path):
    sandbox = BubblewrapSandbox(program(tmp_path, "echo 'setting up uid map: Permission denied' >&2; exit 1"))
    assert detect.try_sandbox(sandbox) == "setting up uid map: Permission denied"


@linux
def test_a_sandbox_that_pretends_is_refused(tmp_path: Path):
    assert (
        detect.try_sandbox(BubblewrapSandbox(program(tmp_path, "echo 'ended well'")))
        == "it runs commands but does not confine them"
    )


@linux
def test_a_sandbox_that_starts_commands_and_does_not_confine_them_is_refused():
    assert detect.try_sandbox(Unconfined()) == "it runs commands but does not confine them"


@linux
def test_a_bubblewrap_without_overlays_is_recognised_by_its_version(tmp_path: Path):
    assert detect.find_old_version(program(tmp_path, "echo bubblewrap 0.8.0")) == "bubblewrap 0.8.0 has no overlays"
    assert detect.find_old_version(program(tmp_path, "echo bubblewrap 0.11.0")) == ""
    assert detect.find_old_version(program(tmp_path, "echo a version of its own")) == ""  # a trial decides


@linux
def test_a_detected_sandbox_works_or_reports_why_not(tmp_path: Path):
    sandbox = detect.find_sandbox(tmp_path)
    assert (detect.try_sandbox(sandbox) is None) is sandbox.confines
    assert sandbox.confines or sandbox.limitations


def test_the_search_path_is_searched_after_the_system_and_never_relatively(tmp_path: Path):
    found = program(tmp_path, "")
    programs = list(detect.find_bubblewrap(f".:{tmp_path}"))
    assert all(Path(path).is_absolute() for path in programs)
    system = [path for path in programs if path.startswith(("/usr/bin", "/bin"))]
    assert programs[0] == (system[0] if system else found)


def test_no_sandbox_reports_it_and_changes_nothing(tmp_path: Path):
    sandbox = NoSandbox("bubblewrap is not installed", detect.suggest_remedy([]))
    launch = LaunchRequest(("true",), {}, tmp_path)
    assert sandbox.wrap(launch, SandboxPolicy(workspace=tmp_path)) is launch
    assert not sandbox.confines
    assert "pip install" in sandbox.limitations[0]


def test_the_remedy_fits_the_trouble():
    assert detect.suggest_remedy([]) == detect.INSTALL_HINT
    assert "user namespaces" in detect.suggest_remedy(["/usr/bin/bwrap: setting up uid map: Permission denied"])


@pytest.mark.parametrize(
    ("known", "files", "network", "scopes", "length"),
    [(1, 13, 0, 0, 8), (2, 14, 0, 0, 8), (3, 15, 0, 0, 8), (4, 15, 3, 0, 16), (5, 16, 3, 0, 16), (6, 16, 3, 3, 24),
     (7, 16, 3, 3, 24), (9, 16, 3, 3, 24)],
)  # fmt: skip
def test_a_kernel_is_asked_for_no_more_than_it_knows(known: int, files: int, network: int, scopes: int, length: int):
    assert build_ruleset([], known, network=False) == (((1 << files) - 1, network, scopes), length, [])
    online = build_ruleset([], known, network=True)
    assert online is not None
    assert online[0][1] == 0


def test_without_landlock_there_are_no_rules():
    assert build_ruleset([], 0, network=False) is None
    assert landlock_version() >= 0
