"""Runs jobs and workers with random faults through the command line, and checks the results.

Each job makes a few shell commands, each of which appends a line to a file: an effect that must not happen twice. A
model server answers every request from what it is shown, or with 529 during an outage of the provider."""

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

from outrider.testing import SimulatedError, SimulatedRequest, Simulator, call

ROOT = Path(__file__).parents[3]
STEPS = 3


class ModelServer:
    """OpenAI's chat API on loopback. A prompt "job N" gets STEPS commands, one after the other, then an answer."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self.overloaded_until = 0.0
        self.requests = self.refused = 0
        self.url = ""
        self.continues = asyncio.Event()  # while it is cleared, only the first request of a job is answered
        self.continues.set()
        self.waiting = 0

    def answer(self, request: SimulatedRequest) -> Any:
        self.requests += 1
        if time.monotonic() < self.overloaded_until:
            self.refused += 1
            return SimulatedError(529, "Overloaded", "overloaded_error")
        done = len(request.results)
        waits = bool(done) and not self.continues.is_set()
        self.waiting += waits
        name = next(found[1] for text in request.texts if (found := re.search(r"job (\w+)", text)))
        command = f"sleep {self._pause}; echo {name}-{done} >> effects; sleep {self._pause}"
        piece = f"{name} is done" if done >= STEPS else call("shell", f"{name}-{done}", command=command)
        return [self.continues, piece] if waits else piece


@contextmanager
def serving(model: ModelServer) -> Iterator[ModelServer]:
    with Simulator(model.answer, any_model=True) as simulator:
        model.url = simulator.url("openai")
        yield model
        simulator.check()


def can_mount() -> bool:
    """Whether this process may mount a small disk, to fill it."""
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
        )
        if mounted.returncode == 0:
            subprocess.run(["umount", folder], check=True)
        return mounted.returncode == 0


FULL_DISK = 1  # the machine with a separate, small disk
CONFIG = """
model = "mock/mock"
[providers.mock]
kind = "openai"
base_url = "{url}"
api_key_env = "MOCK_API_KEY"
[background]
runs = {runs}
[background.retry]
first_window = {window}
largest_window = {window}
"""


class Site:
    """Three machines, which share a database and a folder for effects: each has its own data folder and worker."""

    def __init__(self, folder: Path, server: Any, *, pause: float = 0.1, window: float = 20, runs: int = 4) -> None:
        self.folder = folder
        self.server = server
        self.work = folder / "work"
        self.work.mkdir()
        self.model = ModelServer(pause)
        self._settings = {"window": window, "runs": runs}
        self._name = f"chaos_{os.getpid()}_{random.randrange(10**9)}"
        with psycopg.connect(server.get_uri(), autocommit=True) as db:
            db.execute(f"CREATE DATABASE {self._name}".encode())
        self.url = urlunsplit(urlsplit(server.get_uri())._replace(path=f"/{self._name}"))
        self.workers: list[subprocess.Popen[bytes] | None] = [None] * 3

    def configure(self) -> None:
        for number in range(3):
            (home := self.home(number)).mkdir()
            if number == FULL_DISK and can_mount():
                subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(home)], check=True)
            (home / "config.toml").write_text(CONFIG.format(url=self.model.url, **self._settings))

    def home(self, number: int) -> Path:
        return self.folder / f"machine{number}"

    def environ(self, number: int) -> dict[str, str]:
        return os.environ | {
            "PYTHONPATH": str(ROOT / "src"),
            "OUTRIDER_HOME": str(self.home(number)),
            "OUTRIDER_DATABASE_URL": self.url,
            "MOCK_API_KEY": "none",
        }

    def run(self, *arguments: str, check: bool = True, folder: Path | None = None) -> str:
        """The output of a command of the first machine."""
        command = [sys.executable, "-m", "outrider", *arguments]
        ended = subprocess.run(
            command,
            env=self.environ(0),
            cwd=folder or self.work,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert not check or ended.returncode == 0, f"{arguments}: {ended.returncode}\n{ended.stderr}"
        return ended.stdout

    def submit(self, count: int) -> None:
        """Submits jobs, several at a time: each is a separate command in a separate folder."""
        names = [f"j{number}" for number in range(count)]

        def submit_some(first: int) -> None:
            for name in names[first::4]:
                (folder := self.work / name).mkdir()
                self.run("jobs", "submit", f"job {name}", "--user", f"user{len(name) % 3}", folder=folder)

        threads = [threading.Thread(target=submit_some, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def start(self, number: int) -> None:
        """Starts the worker of a machine, as its service manager would."""
        with (self.home(number) / "worker.log").open("ab") as log:
            self.workers[number] = subprocess.Popen(
                [sys.executable, "-m", "outrider", "worker"],
                env=self.environ(number),
                cwd=self.work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self, number: int, how: int = signal.SIGKILL) -> None:
        if (worker := self.workers[number]) is not None:
            worker.send_signal(signal.SIGCONT)
            worker.send_signal(how)
            worker.wait(60)
            self.workers[number] = None

    def pause(self, number: int, seconds: float) -> None:
        """Stops the process of a worker for longer than the others wait for it."""
        if (worker := self.workers[number]) is not None:
            worker.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            worker.send_signal(signal.SIGCONT)

    def fill_disk(self, seconds: float) -> None:
        """Fills the disk of one machine's data folder for some time."""
        filler = self.home(FULL_DISK) / "filler"
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        time.sleep(seconds)
        filler.unlink()

    def cut_connections(self) -> None:
        statement = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        with psycopg.connect(self.server.get_uri(), autocommit=True) as db:
            db.execute(statement, (self._name,))

    def restart_database(self, seconds: float) -> None:
        self.server.stop()
        time.sleep(seconds)
        self.server.ensure_postgres_running()

    def states(self) -> Counter[str]:
        lines = self.run("jobs", "list", "--limit", "100000", "--json").splitlines()
        return Counter(json.loads(line)["state"] for line in lines)

    def wait_for_end(self, count: int, seconds: float) -> Counter[str]:
        """The states when all jobs are over, or when the time is."""
        deadline = time.monotonic() + seconds
        while (states := self.states())["done"] + states["failed"] + states["canceled"] < count:
            if time.monotonic() > deadline:
                break
            time.sleep(2)
        return states

    def faults(self, states: Counter[str], count: int) -> list[str]:
        """Everything that must not be: failed and stuck jobs, and effects that happened twice."""
        happened = Counter(name for file in self.work.glob("*/effects") for name in file.read_text().split())
        found = [f"{name} happened {times} times" for name, times in happened.items() if times > 1]
        self._keep_transcripts({name.split("-")[0] for name, times in happened.items() if times > 1})
        if len(happened) < count * STEPS * 2 // 3:  # calls that a kill interrupted are not repeated
            found.append(f"only {len(happened)} of {count * STEPS} effects happened")
        if states != Counter(done=count):
            found.append(f"states: {dict(states)}")
            failed = self.run("jobs", "list", "--failed", "--json", check=False).splitlines()
            found += [self.run("jobs", "show", json.loads(line)["id"], check=False) for line in failed[:5]]
        return found

    def _keep_transcripts(self, names: set[str]) -> None:
        """Writes the transcripts of jobs to the folder of the test, since the database is dropped after it."""
        for line in self.run("jobs", "list", "--limit", "100000", "--json").splitlines() if names else ():
            job = json.loads(line)
            if (name := job["prompt"].removeprefix("job ")) in names:
                (self.folder / f"{name}.json").write_text(self.run("jobs", "follow", "--json", job["id"], check=False))

    def close(self) -> None:
        for number in range(3):
            self.end(number)
        if os.path.ismount(self.home(FULL_DISK)):
            subprocess.run(["umount", "--lazy", str(self.home(FULL_DISK))], check=True)


@contextmanager
def site(folder: Path, server: Any, *, pause: float = 0.1, window: float = 20, runs: int = 4) -> Iterator[Site]:
    there = Site(folder, server, pause=pause, window=window, runs=runs)
    with serving(there.model):
        there.configure()
        try:
            yield there
        finally:
            there.close()
