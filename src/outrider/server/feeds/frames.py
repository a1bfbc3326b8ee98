"""Server-sent events as bytes, made once and sent to everybody who follows."""

from collections.abc import Iterable
from typing import Any

import msgspec

from outrider.types.events import Event, PartDeltaEvent, ToolInputDeltaEvent, ToolOutputEvent

HEARTBEAT = b": still here\n\n"

_encode = msgspec.json.Encoder(enc_hook=lambda part: part.to_dict()).encode


class Frame(msgspec.Struct, frozen=True):
    """`seq` is the session's number of a kept change; None for what is only shown, which a slow client may miss."""

    body: bytes
    seq: int | None = None


def change_frame(change: Any) -> Frame:
    """A kept value. Its number is the event's id, so that a client that comes back says where it was."""
    return Frame(b"id: %d\nevent: change\ndata: %b\n\n" % (change.seq, _encode(change)), change.seq)


def live_frame(events: Iterable[Event]) -> Frame:
    """What happened in one moment, pieces of the same text joined."""
    return Frame(b"event: live\ndata: %b\n\n" % _encode(joined(events)))


def joined(events: Iterable[Event]) -> list[Event]:
    """Deltas of the same part that follow each other become one: a client draws no faster anyway."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        match last, event:
            case (PartDeltaEvent(), PartDeltaEvent()) | (ToolInputDeltaEvent(), ToolInputDeltaEvent()) if (
                last.part_id == event.part_id
            ):
                result[-1] = msgspec.structs.replace(last, delta=last.delta + event.delta)
            case (ToolOutputEvent(), ToolOutputEvent()) if (last.call_id, last.stream) == (event.call_id, event.stream):
                result[-1] = msgspec.structs.replace(last, output=last.output + event.output)
            case _:
                result.append(event)
    return result
