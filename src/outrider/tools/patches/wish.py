"""What a patch wants to become of one file."""

import msgspec

from outrider.tools.text.hunk import Hunk


class AddFile(msgspec.Struct, frozen=True):
    path: str
    text: str


class DeleteFile(msgspec.Struct, frozen=True):
    path: str


class UpdateFile(msgspec.Struct, frozen=True):
    """`move_to` is where the file goes, with or without changes."""

    path: str
    hunks: tuple[Hunk, ...]
    move_to: str | None = None


Wish = AddFile | DeleteFile | UpdateFile
