"""Two looks at a workspace, compared: only what is certain counts as a change."""

from collections.abc import Iterable
from functools import cache

from outrider.errors import StoreError
from outrider.permissions.paths.ignore import IGNORE_FILES, is_ignored
from outrider.sessions.snapshots.changes import FileChange
from outrider.sessions.snapshots.images import Camera, Snapshot
from outrider.sessions.snapshots.objects import Objects


def compare(before: Snapshot, camera: Camera, objects: Objects) -> tuple[list[FileChange], tuple[str, ...]]:
    """The files that differ from what they were, and those of which it cannot be told."""
    now = camera.take() if before.paths is None else camera.take_paths(before.paths)
    # What the second look did not come to may be there still: past a bound, or ignored since.
    missed = [path for path in before.images if path not in now.images]
    again = camera.take_paths(missed) if missed and before.paths is None else Snapshot({})
    images = now.images | again.images
    unknown = {*before.uncovered, *now.uncovered, *again.uncovered}
    changed = [path for path in {*before.images, *images} - unknown if before.images.get(path) != images.get(path)]
    if before.paths is None:
        unknown |= _there_before([path for path in changed if path not in before.images], before, now, objects)
    files = [FileChange(path, before.images.get(path), images.get(path)) for path in sorted({*changed} - unknown)]
    cut = before.cut or now.cut
    return files, (*sorted(unknown), *([f"{cut}, and everything after it"] if cut else []))


def _there_before(new: Iterable[str], before: Snapshot, now: Snapshot, objects: Objects) -> set[str]:
    """Of files that seem new: those that the first look may have passed over. Undoing would delete them."""
    if before.cut:
        return set(new)
    if before.ignoring == now.ignoring:
        return set()

    @cache
    def lines_of(folder: str) -> list[str]:
        images = [before.ignoring[folder + name] for name in IGNORE_FILES if folder + name in before.ignoring]
        return [line for image in images for line in objects.get(image.hash).decode("utf-8", "replace").splitlines()]

    try:
        return {path for path in new if is_ignored(path, lines_of)}
    except StoreError:
        return set(new)
