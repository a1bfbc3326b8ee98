"""Files while a call plans its changes: read once, changed in memory, nothing written."""

import os
import stat
from collections.abc import Iterator

from outrider.errors import ToolFailure
from outrider.tools.files.commit import Change
from outrider.tools.files.files import LARGEST, Files, Place
from outrider.tools.files.ledger import Ledger, version_of
from outrider.tools.text.encoding import Encoding, detect


class Revision:
    """One file: `before` is what it holds (None: it does not exist), `after` what it shall hold."""

    def __init__(self, place: Place, before: bytes | None, *, stale: bool, seen: bool, mode: int | None) -> None:
        self.place = place
        self.before = before
        self.after = before
        self.stale = stale
        self.seen = seen
        self.mode = mode

    @property
    def encoding(self) -> Encoding:
        """Of the content so far; UTF-8 for a new file."""
        found = detect(self.after or b"")
        if found is None or found.encode(found.decode(self.after or b"")) != (self.after or b""):
            raise ToolFailure(f"{self.place.shown} is a binary file, which cannot be edited as text")
        return found

    @property
    def text(self) -> str:
        if self.after is None:
            raise ToolFailure(f"{self.place.shown} does not exist")
        return self.encoding.decode(self.after)

    def write(self, text: str, encoding: Encoding) -> None:
        try:
            self.after = encoding.encode(text)
        except UnicodeEncodeError as error:
            wrong = text[error.start : error.start + 1].encode("unicode_escape", "surrogatepass").decode()
            raise ToolFailure(
                f"{self.place.shown} is in {encoding.label}, which has no character {wrong}. Nothing was written"
            ) from error

    def change(self) -> Change:
        return Change(self.place, self.before, self.after, None if self.before is not None else self.mode)


class Revisions:
    """The files of one call by their real paths, so that a file named twice is one revision."""

    def __init__(self, files: Files, ledger: Ledger, session_id: str) -> None:
        self._files = files
        self._ledger = ledger
        self._session_id = session_id
        self._revisions: dict[str, Revision] = {}

    def open(self, path: str, op: str = "edit") -> Revision:
        """Of a file that may or may not exist. Deleting and moving act on the name, which is no link then."""
        place = self._files.locate(path, op)
        if not place.parts:
            raise ToolFailure(f"{place.shown}: it is a folder")
        if place.real not in self._revisions:
            self._revisions[place.real] = self._read(place)
        return self._revisions[place.real]

    def changed(self) -> Iterator[Revision]:
        return (revision for revision in self._revisions.values() if revision.after != revision.before)

    def saw(self, revision: Revision) -> None:
        """The model is shown what the file holds now, in the words of a refusal."""
        if revision.before is not None:
            self._ledger.saw(self._session_id, revision.place.real, version_of(revision.before))

    def _read(self, place: Place) -> Revision:
        try:
            found = os.lstat(place.real)
        except (FileNotFoundError, NotADirectoryError):
            return Revision(place, None, stale=False, seen=True, mode=None)
        if stat.S_ISLNK(found.st_mode):
            raise ToolFailure(f"{place.shown} is a link; links are neither deleted nor moved")
        with self._files.open(place) as file:
            if found.st_size > LARGEST:
                raise ToolFailure(f"{place.shown} has {found.st_size:,} bytes; files over {LARGEST:,} are not changed")
            before = file.read(LARGEST + 1)
        known = self._ledger.seen(self._session_id, place.real)
        return Revision(
            place,
            before,
            stale=known is not None and known != version_of(before),
            seen=known is not None,
            mode=stat.S_IMODE(found.st_mode),
        )
