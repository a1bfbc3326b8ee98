"""The wire format for agents on another Outrider server.

A request sends the messages since the remote agent's last answer, and the limits that it may use.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, assert_never, get_args
from urllib.parse import quote

import msgspec

from outrider.errors import ConfigurationError, MalformedAnswerError, NetworkError, NotFoundError, ProviderError
from outrider.http.transport import HttpRequest
from outrider.providers.error_mapping import build_provider_error
from outrider.providers.response_json import decode_json
from outrider.types.agents import Provider
from outrider.types.events import Event, SessionUpdatedEvent, ToolApprovalRequestedEvent, event_from_dict
from outrider.types.ids import new_id
from outrider.types.parts import FilePart, ModelPart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import (
    AnswerStart,
    Delta,
    Finish,
    InputDelta,
    ModelMessage,
    PartEnd,
    PartStart,
    ReasoningDelta,
    RemoteEvent,
    Request,
    Retry,
    TextDelta,
    UsageReport,
    delta_tag,
)
from outrider.types.tool_state import data_url_base64, make_data_url

FAILED_EVENT = "Failed"
_DELTA_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    delta_tag(kind): msgspec.json.Decoder(kind) for kind in get_args(Delta) if kind is not RemoteEvent
}


class _EventPayload(msgspec.Struct):
    event: dict[str, Any]


class _AgentFailure(msgspec.Struct):
    """The reason code and message of a remote agent that stopped early."""

    reason: str
    message: str = ""


SESSION_FIELD = "session_id"
_decode_event_payload = msgspec.json.Decoder(_EventPayload).decode
_decode_failure = msgspec.json.Decoder(_AgentFailure).decode


class RemoteAgentDecoder:
    """Decodes the deltas and events of a remote agent. Ignores event types that a newer server may send."""

    is_complete = False

    def __init__(self, server: str = "") -> None:
        self._server = server
        self._started: set[int] = set()
        self._finished = False
        self._session_id = ""

    def resume_request(self, request: HttpRequest) -> HttpRequest | None:
        """Returns the request that continues the turn in the session that the server has named, so that its calls run
        once."""
        if not self._session_id:
            return None
        payload = msgspec.json.decode(request.body, type=dict[str, Any])
        body = msgspec.json.encode(payload | {SESSION_FIELD: self._session_id, "resume": True})
        return msgspec.structs.replace(request, body=body)

    def feed(self, event: str, data: bytes) -> Iterator[Delta]:
        if event == FAILED_EVENT:
            failure = decode_json(_decode_failure, data)
            raise ProviderError(failure.message or failure.reason.replace("_", " "), type=failure.reason)
        if event == delta_tag(RemoteEvent):
            yield from self._decode_event(data)
        elif event in _DELTA_DECODERS:
            delta = decode_json(_DELTA_DECODERS[event].decode, data)
            self._check_order(delta)
            yield delta

    def decode_body(self, body: bytes) -> Iterable[Delta]:
        raise MalformedAnswerError(
            "the server did not answer with an event stream; check that base_url points to an Outrider server",
            type="malformed",
        )

    def close(self) -> Iterable[Delta]:
        if not self._finished:
            raise NetworkError("the server closed the stream before the answer was complete", type="disconnected")
        return ()

    def _check_order(self, delta: Delta) -> None:
        match delta:
            case AnswerStart(response_id):
                self._session_id = response_id
            case PartStart(index):
                self._started.add(index)
            case TextDelta(index) | ReasoningDelta(index) | InputDelta(index) | PartEnd(index):
                if index not in self._started:
                    raise MalformedAnswerError("the server sent a delta for a part that it has not started")
            case Finish():
                self._finished = True
            case Retry() | UsageReport() | RemoteEvent():
                pass
            case _:
                assert_never(delta)

    def _decode_event(self, data: bytes) -> Iterator[Delta]:
        try:
            event = event_from_dict(decode_json(_decode_event_payload, data).event)
        except ValueError:
            return  # an event type of a newer version
        yield RemoteEvent(self._add_server_name(event))

    def _add_server_name(self, event: Event) -> Event:
        """Adds the server's address to approvals and questions, so that the reply is sent to that server."""
        match event:
            case ToolApprovalRequestedEvent():
                description = f"at {self._server}: {event.description}"
                return msgspec.structs.replace(event, server=self._server, description=description)
            case SessionUpdatedEvent(changes={"question": {"agent": agent} as question}):
                located = {**question, "server": self._server, "agent": f"{agent} at {self._server}"}
                return msgspec.structs.replace(event, changes={"question": located})
            case _:
                return event


EARLIER_MESSAGES = "What was said before you came in:\n\n"


class _ErrorDetail(msgspec.Struct):
    type: str = ""
    message: str = ""


class _RemoteErrorBody(msgspec.Struct):
    error: _ErrorDetail


class RemoteAgentWire:
    """Encodes requests to a remote agent, which has its own session, instructions, tools and memory.

    Only messages that the remote session has not received are sent. Its session id is read from the private state of
    its earlier answers, so it is stored together with our session.
    """

    def __init__(self, provider: Provider) -> None:
        if not provider.base_url:
            raise ConfigurationError(f"the provider {provider.name!r} needs base_url, the URL of an Outrider server")
        self._address = provider.base_url.rstrip("/")
        key = {"authorization": f"Bearer {provider.api_key}"} if provider.api_key else {}
        self._headers = {"content-type": "application/json", **key, **provider.headers}
        self._deleted_sessions: set[str] = set()

    def model_family(self, model: str) -> str:
        return f"outrider {self._address} {model}"

    def build_request(self, request: Request) -> HttpRequest:
        session_id, start = self._find_session(request)
        unsent = request.prompt[start:]
        payload = {
            "id": new_id(),  # retries send the same bytes, so the server can deduplicate them by this id
            "agent": request.model,
            SESSION_FIELD: session_id,
            "parts": [_encode_part(part) for part in _select_parts(unsent, new_session=not session_id)],
            **msgspec.structs.asdict(request.allowance()),
        }
        return HttpRequest(f"{self._address}/api/peer", self._headers, msgspec.json.encode(payload))

    def build_reply(self, path: str, answer: Mapping[str, Any]) -> HttpRequest:
        """Returns the request that posts a person's reply to an approval or question of the remote agent."""
        return HttpRequest(f"{self._address}{quote(path)}", self._headers, msgspec.json.encode(answer))

    def create_decoder(self, request: Request) -> RemoteAgentDecoder:
        return RemoteAgentDecoder(self._address)

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        try:
            detail = msgspec.json.decode(body, type=_RemoteErrorBody).error
        except msgspec.DecodeError:
            detail = _ErrorDetail(message=body.decode(errors="replace"))
        return build_provider_error(detail.message, status=status, type=detail.type or None, headers=headers)

    def adapt_to_error(self, request: Request, error: ProviderError) -> bool:
        """Starts a new remote session, with the earlier messages, when the server reports that it does not have the
        session."""
        session_id, _ = self._find_session(request)
        if not session_id or not isinstance(error, NotFoundError):
            return False
        self._deleted_sessions.add(session_id)
        return True

    def _find_session(self, request: Request) -> tuple[str, int]:
        """Returns the remote session id and the position of the first unsent message; ("", 0) without a session."""
        for position in range(len(request.prompt) - 1, -1, -1):
            session_id = _session_id_in(request.prompt[position], self.model_family(request.model))
            if session_id and session_id not in self._deleted_sessions:
                return session_id, position + 1
        return "", 0


def _session_id_in(message: ModelMessage, family: str) -> str:
    for part in message.content:
        match part:
            case ReasoningPart(provider_state=state) if state.get("family") == family:
                return str(state.get(SESSION_FIELD, ""))
            case TextPart(metadata=metadata) if family in metadata:
                return str(metadata[family].get(SESSION_FIELD, ""))
            case _:
                pass
    return ""


def _select_parts(messages: list[ModelMessage], *, new_session: bool) -> Iterable[TextPart | FilePart]:
    """Yields the parts to send. A new session gets the earlier messages as one text before the last user message."""
    last_input = max((position for position, message in enumerate(messages) if message.role == "user"), default=-1)
    earlier = [f"{message.role}: {text}" for message in messages[:last_input] if (text := _message_text(message))]
    if earlier and new_session:
        yield TextPart(EARLIER_MESSAGES + "\n\n".join(earlier))
    for message in messages[last_input:] if new_session else messages:
        if message.role == "user":
            yield from (_to_input_part(part) for part in message.content)


def _message_text(message: ModelMessage) -> str:
    return "\n".join(part.text for part in message.content if isinstance(part, TextPart) and part.text.strip())


def _to_input_part(part: ModelPart) -> TextPart | FilePart:
    match part:
        case TextPart() | FilePart():
            return part
        case ToolResultPart():
            return TextPart(f"({part.tool_name or 'a tool'} gave: {part.content})")
        case ReasoningPart() | ToolUsePart():
            return TextPart("")


def _encode_part(part: TextPart | FilePart) -> dict[str, Any]:
    """Encodes a part; a local file is embedded as a data URL, because the remote server cannot read its path."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if part.url.startswith(("https:", "http:")):
        return {"type": "file", "mime": part.mime, "url": part.url, "filename": part.filename}
    content = data_url_base64(part.url)
    if content is None:
        return {"type": "text", "text": f"(the file {part.filename or part.mime} could not be sent along)"}
    return {
        "type": "file",
        "mime": part.mime,
        "url": make_data_url(part.mime, content),
        "filename": part.filename,
    }
