"""How an agent of another server is asked: what is new since its last answer, and what it may use of our limits."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args
from urllib.parse import quote

import msgspec

from outrider.errors import ConfigurationError, MalformedAnswerError, NetworkError, NotFoundError, ProviderError
from outrider.providers.error_mapping import refusal
from outrider.providers.provider import HttpCall
from outrider.providers.request_body import inline
from outrider.providers.response_json import decoded
from outrider.types.agents import Provider
from outrider.types.deltas import (
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
from outrider.types.events import Event, SessionUpdatedEvent, ToolApprovalRequestedEvent, event_from_dict
from outrider.types.ids import new_id
from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, Request

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


SESSION = "session_id"
EARLIER = "What was said before you came in:\n\n"


class _Said(msgspec.Struct):
    type: str = ""
    message: str = ""


class _Refused(msgspec.Struct):
    error: _Said


class PeerWire:
    """The agent there has a session of its own, with its own instructions, tools and memory: only what it has not heard
    yet is sent. Which session that is stands in its answers, so that it lasts as long as ours."""

    def __init__(self, provider: Provider) -> None:
        if not provider.base_url:
            raise ConfigurationError(f"the provider {provider.name!r} needs base_url, the address of a server")
        self._address = provider.base_url.rstrip("/")
        key = {"authorization": f"Bearer {provider.api_key}"} if provider.api_key else {}
        self._headers = {"content-type": "application/json", **key, **provider.headers}
        self._gone: set[str] = set()

    def family(self, model: str) -> str:
        return f"outrider {self._address} {model}"

    def call(self, request: Request) -> HttpCall:
        session_id, start = self._place(request)
        spoken = request.prompt[start:]
        asked = {
            "id": new_id(),  # attempts repeat the call as it is, so that the server knows them for one
            "agent": request.model,
            SESSION: session_id,
            "parts": [_written(part) for part in _told(spoken, anew=not session_id)],
            **msgspec.structs.asdict(request.allowance()),
        }
        return HttpCall(f"{self._address}/api/peer", self._headers, msgspec.json.encode(asked))

    def answering(self, path: str, answer: Mapping[str, Any]) -> HttpCall:
        """A person's answer to what is asked over there."""
        return HttpCall(f"{self._address}{quote(path)}", self._headers, msgspec.json.encode(answer))

    def decoder(self, request: Request) -> PeerDecoder:
        return PeerDecoder(self._address)

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        try:
            said = msgspec.json.decode(body, type=_Refused).error
        except msgspec.DecodeError:
            said = _Said(message=body.decode(errors="replace"))
        return refusal(said.message, status=status, type=said.type or None, headers=headers)

    def learn(self, request: Request, error: ProviderError) -> bool:
        """A session that was deleted there is begun anew, with what was said before."""
        session_id, _ = self._place(request)
        if not session_id or not isinstance(error, NotFoundError):
            return False
        self._gone.add(session_id)
        return True

    def _place(self, request: Request) -> tuple[str, int]:
        """The session of its last answer, and where what it has not heard begins; "" and 0 if it has none."""
        for position in range(len(request.prompt) - 1, -1, -1):
            session_id = _session_of(request.prompt[position], self.family(request.model))
            if session_id and session_id not in self._gone:
                return session_id, position + 1
        return "", 0


def _session_of(message: ModelMessage, family: str) -> str:
    for part in message.content:
        match part:
            case ReasoningPart(provider_state=state) if state.get("family") == family:
                return str(state.get(SESSION, ""))
            case TextPart(metadata=metadata) if family in metadata:
                return str(metadata[family].get(SESSION, ""))
            case _:
                pass
    return ""


def _told(messages: list[ModelMessage], *, anew: bool) -> Iterable[TextPart | FilePart]:
    """What the others said is for the agent to read; what the user said last is for it to do."""
    last = max((at for at, message in enumerate(messages) if message.role == "user"), default=-1)
    before = [f"{message.role}: {words}" for message in messages[:last] if (words := _words(message))]
    if before and anew:
        yield TextPart(EARLIER + "\n\n".join(before))
    for message in messages[last:] if anew else messages:
        if message.role == "user":
            yield from (_told_part(part) for part in message.content)


def _words(message: ModelMessage) -> str:
    return "\n".join(part.text for part in message.content if isinstance(part, TextPart) and part.text.strip())


def _told_part(part: ModelPart) -> TextPart | FilePart:
    match part:
        case TextPart() | FilePart():
            return part
        case ToolResultPart():
            return TextPart(f"({part.tool_name or 'a tool'} gave: {part.content})")
        case ReasoningPart() | ToolUsePart():
            return TextPart("")


def _written(part: TextPart | FilePart) -> dict[str, Any]:
    """A file of this machine goes along: over there its path means nothing."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if part.url.startswith(("https:", "http:")):
        return {"type": "file", "mime": part.mime, "url": part.url, "filename": part.filename}
    content = inline(part.url)
    if content is None:
        return {"type": "text", "text": f"(the file {part.filename or part.mime} could not be sent along)"}
    return {
        "type": "file",
        "mime": part.mime,
        "url": f"data:{part.mime};base64,{content}",
        "filename": part.filename,
    }
