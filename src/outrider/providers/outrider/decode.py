"""What an agent of another server answers: deltas as they are, each an event of its own name."""

from collections.abc import Iterable, Iterator
from typing import Any, get_args

import msgspec

from outrider.errors import MalformedAnswerError, NetworkError, ProviderError
from outrider.providers.reading import decoded
from outrider.types.events import Event, SessionUpdatedEvent, ToolApprovalRequestedEvent, event_from_dict
from outrider.types.stream import (
    Delta,
    Finish,
    Happened,
    InputDelta,
    PartEnd,
    PartStart,
    ReasoningDelta,
    TextDelta,
    delta_tag,
)

FAILED = "Failed"
_READ: dict[str, msgspec.json.Decoder[Any]] = {
    delta_tag(kind): msgspec.json.Decoder(kind) for kind in get_args(Delta) if kind is not Happened
}


class _Heard(msgspec.Struct):
    event: dict[str, Any]


class _Failure(msgspec.Struct):
    """Why the agent ended early: the word for it, and what it said about it."""

    reason: str
    message: str = ""


_read_heard = msgspec.json.Decoder(_Heard).decode
_read_failure = msgspec.json.Decoder(_Failure).decode


class PeerDecoder:
    """Events of a newer version that are not known here are passed over."""

    closable = False

    def __init__(self, server: str = "") -> None:
        self._server = server
        self._started: set[int] = set()
        self._finished = False

    def feed(self, event: str, data: bytes) -> Iterator[Delta]:
        if event == FAILED:
            failure = decoded(_read_failure, data)
            raise ProviderError(failure.message or failure.reason.replace("_", " "), type=failure.reason)
        if event == delta_tag(Happened):
            yield from self._heard(data)
        elif event in _READ:
            delta = decoded(_READ[event].decode, data)
            self._check(delta)
            yield delta

    def whole(self, body: bytes) -> Iterable[Delta]:
        raise MalformedAnswerError("the server answered in one piece; is it an Outrider server?", type="malformed")

    def close(self) -> Iterable[Delta]:
        if not self._finished:
            raise NetworkError("the server ended its answer in the middle", type="disconnected")
        return ()

    def _check(self, delta: Delta) -> None:
        match delta:
            case PartStart(index):
                self._started.add(index)
            case TextDelta(index) | ReasoningDelta(index) | InputDelta(index) | PartEnd(index):
                if index not in self._started:
                    raise MalformedAnswerError("the server goes on with a part that it has not begun")
            case Finish():
                self._finished = True
            case _:
                pass

    def _heard(self, data: bytes) -> Iterator[Delta]:
        try:
            event = event_from_dict(decoded(_read_heard, data).event)
        except ValueError:
            return  # of a kind that is not known here
        yield Happened(self._placed(event))

    def _placed(self, event: Event) -> Event:
        """What is asked says where, since that is where an answer goes."""
        match event:
            case ToolApprovalRequestedEvent():
                where = f"at {self._server}: {event.description}"
                return msgspec.structs.replace(event, server=self._server, description=where)
            case SessionUpdatedEvent(changes={"question": {"agent": agent} as question}):
                placed = {**question, "server": self._server, "agent": f"{agent} at {self._server}"}
                return msgspec.structs.replace(event, changes={"question": placed})
            case _:
                return event
