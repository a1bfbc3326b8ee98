"""What one moment brings, made to bytes once and written to everybody who follows in one piece."""

from collections.abc import Sequence

import msgspec

from outrider.server.feeds.frames import Frame


class Batch(msgspec.Struct, frozen=True):
    """`first` is the number of its first kept change, None if all of it is only shown."""

    frames: tuple[Frame, ...]
    body: bytes
    first: int | None

    @classmethod
    def of(cls, frames: Sequence[Frame]) -> "Batch":
        first = next((frame.seq for frame in frames if frame.seq is not None), None)
        return cls(tuple(frames), b"".join([frame.body for frame in frames]), first)

    @property
    def last(self) -> int | None:
        return next((frame.seq for frame in reversed(self.frames) if frame.seq is not None), None)

    def after(self, seq: int) -> "Batch":
        """Without the changes that somebody has seen; nearly always that is all of it."""
        if self.first is None or self.first > seq:
            return self
        return Batch.of([frame for frame in self.frames if frame.seq is None or frame.seq > seq])

    def kept(self) -> "Batch":
        """Without what is only shown."""
        return Batch.of([frame for frame in self.frames if frame.seq is not None])
