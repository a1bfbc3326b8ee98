"""Starts, reads and kills real processes for the fault tests, and always ends them."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def worker(*arguments: object, fault: str = "") -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"OUTRIDER_FAULT": fault, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.fault.worker", *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield child
    finally:
        _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        with contextlib.suppress(BrokenPipeError, AttributeError):
            pipe.close()


def read_line(child: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Reads the next line of the child, a JSON object."""
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line, "the child ended without a line"
    return msgspec.json.decode(line)


def read_all_lines(child: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    """Reads all lines until the child ends. An incomplete line is no acknowledgement."""
    assert child.stdout is not None
    return [msgspec.json.decode(line) for line in child.stdout.readlines() if line.endswith(b"\n")]


def send_newline(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.flush()
