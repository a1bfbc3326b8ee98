"""The sandbox that is found is one that was tried; where there is none, it is said why and what helps."""

import stat
import sys
from pathlib import Path

import msgspec
import pytest

from outrider.processes.launch import Launch
from outrider.processes.sandbox import detect
from outrider.processes.sandbox.bubblewrap import Bubblewrap
from outrider.processes.sandbox.init_args import ruleset, version
from outrider.processes.sandbox.sandbox import NoSandbox, Policy

linux = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes exist on Linux only")


def program(folder: Path, script: str) -> str:
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


class Unconfined(msgspec.Struct, frozen=True):
    """Starts commands and keeps nobody from anything."""

    name: str = "unconfined"
    confines: bool = True
    gaps: tuple[str, ...] = ()

    def wrap(self, launch: Launch, policy: Policy) -> Launch:
        return launch


@linux
def test_a_sandbox_that_does_not_start_is_refused_with_its_own_words(tmp_path: Path):
    sandbox = Bubblewrap(program(tmp_path, "echo 'setting up uid map: Permission denied' >&2; exit 1"))
    assert detect.try_out(sandbox) == "setting up uid map: Permission denied"


@linux
def test_a_sandbox_that_pretends_is_refused(tmp_path: Path):
    assert (
        detect.try_out(Bubblewrap(program(tmp_path, "echo 'ended well'")))
        == "it starts commands and does not confine them"
    )


@linux
def test_a_sandbox_that_starts_commands_and_does_not_confine_them_is_refused():
    assert detect.try_out(Unconfined()) == "it starts commands and does not confine them"


@linux
def test_what_is_found_works_or_says_why_not(tmp_path: Path):
    sandbox = detect.find_sandbox(tmp_path)
    assert (detect.try_out(sandbox) is None) is sandbox.confines
    assert sandbox.confines or sandbox.gaps


def test_the_search_path_is_searched_after_the_system_and_never_relatively(tmp_path: Path):
    found = program(tmp_path, "")
    programs = list(detect.bubblewrap_programs(f".:{tmp_path}"))
    assert all(Path(path).is_absolute() for path in programs)
    system = [path for path in programs if path.startswith(("/usr/bin", "/bin"))]
    assert programs[0] == (system[0] if system else found)


def test_no_sandbox_says_so_and_changes_nothing(tmp_path: Path):
    sandbox = NoSandbox("bubblewrap is not installed", detect.remedy([]))
    launch = Launch(("true",), {}, tmp_path)
    assert sandbox.wrap(launch, Policy(workspace=tmp_path)) is launch
    assert not sandbox.confines
    assert "pip install" in sandbox.gaps[0]


def test_the_remedy_fits_the_trouble():
    assert detect.remedy([]) == detect.INSTALL
    assert "user namespaces" in detect.remedy(["/usr/bin/bwrap: setting up uid map: Permission denied"])


@pytest.mark.parametrize(
    ("known", "files", "network", "scopes", "length"),
    [(1, 13, 0, 0, 8), (2, 14, 0, 0, 8), (3, 15, 0, 0, 8), (4, 15, 3, 0, 16), (5, 16, 3, 0, 16), (6, 16, 3, 3, 24),
     (7, 16, 3, 3, 24), (9, 16, 3, 3, 24)],
)  # fmt: skip
def test_a_kernel_is_asked_for_no_more_than_it_knows(known: int, files: int, network: int, scopes: int, length: int):
    assert ruleset([], known, network=False) == (((1 << files) - 1, network, scopes), length, [])
    online = ruleset([], known, network=True)
    assert online is not None
    assert online[0][1] == 0


def test_without_landlock_there_are_no_rules():
    assert ruleset([], 0, network=False) is None
    assert version() >= 0
