"""What a small model is helped with: the names of files that exist, and of those that may be meant."""

from collections.abc import Sequence
from typing import Protocol

from outrider.types.request import Request


class FileNames(Protocol):
    def existing(self, request: Request) -> Sequence[str]:
        """All it may name; empty where there are too many to choose from."""
        ...

    def meant(self, request: Request, text: str) -> Sequence[str]:
        """The few that a text may be about."""
        ...


class NoNames:
    def existing(self, request: Request) -> Sequence[str]:
        return ()

    def meant(self, request: Request, text: str) -> Sequence[str]:
        return ()
