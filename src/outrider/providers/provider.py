"""The provider contract: a client takes a request and streams deltas, which an assembler folds into message parts.

A vendor implements `WireFormat` and `AnswerDecoder`: how a request is encoded, how a response is decoded, and which
exception an error response becomes. Neither touches a socket, so tests run them on plain bytes.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Container, Iterable, Mapping
from decimal import Decimal
from typing import Any, ClassVar, Protocol, assert_never, runtime_checkable

import msgspec

from outrider.errors import ProviderError
from outrider.http.transport import HttpRequest
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.parts import AnswerPart, FilePart, PartTime, ReasoningPart, TextPart, Tokens, ToolPart
from outrider.types.request import (
    Answer,
    AnswerStart,
    Delta,
    Finish,
    FinishReason,
    InputDelta,
    PartEnd,
    PartKind,
    PartStart,
    ReasoningDelta,
    RemoteEvent,
    Request,
    Retry,
    TextDelta,
    UsageReport,
)
from outrider.types.tool_state import ToolPending
from outrider.types.validate import ArgumentsMeta


class ModelClient(Protocol):
    """Streams answers from the models of one provider. A class whose attribute `repeats_requests` is True repeats
    failed requests itself. The engine repeats those of other clients, even after output."""

    name: str

    def model_family(self, model: str) -> str:
        """Returns the name of the group of models that accept each other's private state.

        Private state is what only the vendor can read: signatures and encrypted reasoning. A request to a model of
        another family is sent without it.
        """
        ...

    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Yields the deltas of one answer as they arrive.

        Raises ProviderError. Closing the generator closes the connection.
        """
        ...

    async def aclose(self) -> None:
        """Closes all connections of the client."""
        ...


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True, metaclass=ArgumentsMeta):
    """What is known about a model: its limits in tokens, and its prices in US dollars for a million tokens."""

    context: int | None = None
    output: int | None = None
    input_price: Decimal | float | None = None
    output_price: Decimal | float | None = None


class CustomProvider(Protocol):
    """A provider that a program implements: pass it to `run`, `Engine` or `complete` in place of a `Provider`.

    Agents refer to it by `name`. `stream` is an async generator that yields the deltas of one answer, in the order that
    `outrider.types.request` describes, and ends with Finish. It raises ProviderError or a subclass: after an error with
    `retryable` the answer is requested again, and the next model of an agent's list is tried as for other providers.
    The request has everything that a model needs: `prompt` (messages with alternating roles, in which every call has
    its result), `system`, `tools`, `settings`. It must not be changed. The program closes the provider itself.

    A stream that yields nothing for `idle_seconds`, an optional attribute (600 by default, None for no limit), fails
    with NetworkError.

    These methods are optional. `model_family(model)` returns the name of the group of models that accept each other's
    private state (the `state` of PartEnd), by default the name of the provider. `describe_model(model)` returns
    `ModelDescription`, which limits of cost and the compaction of long conversations need.
    `outrider.testing.check_provider` tests an implementation.
    """

    @property
    def name(self) -> str:
        """The name by which agents refer to the provider."""
        ...

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        """Yields the deltas of one answer and ends with Finish. Raises ProviderError."""
        ...


class AnswerDecoder(Protocol):
    """Decodes one response into deltas, event by event, without buffering what a user could already see.

    `is_complete` is True when the answer needs no further events: only a usage report or the end mark may follow.
    """

    is_complete: bool

    def feed(self, event: str, data: bytes) -> Iterable[Delta]:
        """Decodes one server-sent event, given its name ("" for none) and its data.

        Raises ProviderError when the event reports an error.
        """
        ...

    def decode_body(self, body: bytes) -> Iterable[Delta]:
        """Decodes a complete response body, for responses that are not a stream."""
        ...

    def close(self) -> Iterable[Delta]:
        """Returns the deltas that end the answer. Raises NetworkError when the stream ended too early."""
        ...


@runtime_checkable
class ResumableDecoder(Protocol):
    """A decoder of answers that the server continues if the request is repeated: it runs nothing twice, and its next
    usage report includes the usage before."""

    def resume_request(self, request: HttpRequest) -> HttpRequest | None:
        """Returns the request that continues the answer; None before the server has started it."""
        ...


class WireFormat(Protocol):
    """Encodes requests and decodes responses for one vendor API."""

    def model_family(self, model: str) -> str:
        """Returns the name of the group of models that accept each other's private state."""
        ...

    def build_request(self, request: Request) -> HttpRequest:
        """Returns the encoded request; earlier messages come from the bytes that the prompt caches."""
        ...

    def create_decoder(self, request: Request) -> AnswerDecoder:
        """Returns a new decoder for the answer to `request`."""
        ...

    def decode_error(self, status: int, headers: Mapping[str, str], body: bytes) -> ProviderError:
        """Returns the exception for a response with an error status."""
        ...


@runtime_checkable
class AdaptiveWireFormat(Protocol):
    """A wire format that learns model limits, such as the maximum output size, from error responses.

    The client calls `adapt_to_error` for every error before it considers a retry. After True it calls `build_request`
    again and sends the new request without waiting. An implementation returns True only if the new request differs
    from the last one, so the loop terminates.
    """

    def adapt_to_error(self, request: Request, error: ProviderError) -> bool:
        """Learns from a rejected request. Returns whether the request is sent again."""
        ...


class _PartDraft:
    """A message part that is still being streamed."""

    __slots__ = ("call_id", "chunks", "ended", "id", "kind", "mime", "state", "time", "tool", "url")

    def __init__(self, kind: PartKind, call_id: str = "", tool: str = "") -> None:
        self.kind: PartKind = kind
        self.id = new_id()
        self.call_id = call_id
        self.tool = tool
        self.chunks: list[str] = []
        self.state: dict[str, Any] = {}
        self.mime = self.url = ""
        self.ended = False
        self.time: PartTime | None = None

    @property
    def text(self) -> str:
        if len(self.chunks) > 1:
            self.chunks = ["".join(self.chunks)]
        return self.chunks[0] if self.chunks else ""

    def build_part(self, family: str) -> AnswerPart:
        metadata = {family: self.state} if self.state else {}
        match self.kind:
            case "text":
                return TextPart(self.text, id=self.id, time=self.time, metadata=metadata)
            case "reasoning":
                state = {"family": family, **self.state}
                return ReasoningPart(self.text, id=self.id, time=self.time, provider_state=state)
            case "file":
                return FilePart(mime=self.mime, url=self.url, id=self.id, metadata=metadata)
            case "tool":
                return self._build_tool_part(metadata)
            case _:
                assert_never(self.kind)

    def _build_tool_part(self, metadata: dict[str, Any]) -> ToolPart:
        raw = self.text
        if not self.ended:
            return ToolPart(self.call_id, self.tool, ToolPending(raw=raw), metadata, id=self.id)
        from outrider.providers.response_json import parse_tool_input  # lazy: loaded with the first call

        value, problem = parse_tool_input(raw)
        if problem:
            metadata = metadata | {"input_error": problem}
        return ToolPart(self.call_id, self.tool, ToolPending(value, raw, "ready"), metadata, id=self.id)


class AnswerAssembler:
    """Folds the deltas of one answer into parts, usage and a finish reason.

    `family` names the models that may receive the private state of this answer again (see `ModelClient.model_family`).
    With a `clock` the parts have the times of their first and last delta.
    """

    def __init__(self, family: str, clock: Callable[[], int] | None = None) -> None:
        self.family = family
        self._clock = clock
        self.response_id = ""
        self.model = ""
        self.tokens = Tokens()
        self.cost: Decimal | None = None
        self.turns = 1
        self.finish: FinishReason | None = None
        self.finish_raw = ""
        self.paused = False
        self.withdrawn: list[AnswerPart] = []
        self.withdrawn_tokens = Tokens()
        self.withdrawn_cost: Decimal | None = None
        self._drafts: dict[int, _PartDraft] = {}

    def add(self, delta: Delta) -> None:
        self._HANDLERS[type(delta)](self, delta)

    def get_part(self, index: int) -> AnswerPart:
        """Returns a part with the content received so far. Its id does not change until the part ends."""
        return self._drafts[index].build_part(self.family)

    def part_id(self, index: int) -> str:
        return self._drafts[index].id

    def tool_name(self, index: int) -> str:
        return self._drafts[index].tool

    def part_builder(self, index: int) -> Callable[[], AnswerPart]:
        """Returns a function that builds the part with the content received until then, also after a retry."""
        draft, family = self._drafts[index], self.family
        return lambda: draft.build_part(family)

    def list_parts(self, exclude_ids: Container[str] = ()) -> list[AnswerPart]:
        """Returns all parts in order, except those in `exclude_ids` and those without content."""
        drafts = [draft for draft in self._drafts.values() if draft.id not in exclude_ids]
        return [part for draft in drafts if _has_content(part := draft.build_part(self.family))]

    def build_answer(self, cost: Decimal | None = None) -> Answer:
        message = Message(
            "assistant",
            list(self.list_parts()),
            cost=cost,
            tokens=self.tokens,
            finish=self.finish or "other",
            metadata={"response_id": self.response_id} if self.response_id else {},
        )
        return Answer(message, self.finish or "other", self.finish_raw, self.tokens, cost)

    def _start_answer(self, start: AnswerStart) -> None:
        self.response_id, self.model = start.response_id or self.response_id, start.model or self.model

    def _start_part(self, start: PartStart) -> None:
        draft = _PartDraft(start.kind, start.call_id, start.tool)
        earlier = self._drafts.get(start.index)
        if earlier is not None:  # the part restarts; readers and the store know it by its first id
            draft.id = earlier.id
        if self._clock is not None:
            draft.time = PartTime(self._clock())
        self._drafts[start.index] = draft

    def _append_text(self, delta: TextDelta | ReasoningDelta | InputDelta) -> None:
        self._drafts[delta.index].chunks.append(delta.text)

    def _end_part(self, end: PartEnd) -> None:
        draft = self._drafts[end.index]
        draft.ended = True
        if self._clock is not None and draft.time is not None:
            draft.time = PartTime(draft.time.start, max(self._clock(), draft.time.start))
        draft.state = end.state
        draft.mime, draft.url = end.mime, end.url

    def _set_usage(self, report: UsageReport) -> None:
        self.tokens, self.cost, self.turns = report.tokens, report.cost, report.turns

    def _set_finish(self, end: Finish) -> None:
        self.finish, self.finish_raw, self.paused = end.reason, end.raw, end.paused

    def start_again(self, family: str) -> None:
        """Withdraws the answer so far: `withdrawn` has its parts, `withdrawn_tokens` and `withdrawn_cost` its
        reported usage and cost."""
        self.withdrawn, self.withdrawn_tokens, self.family = self.list_parts(), self.tokens, family
        self.withdrawn_cost = self.cost
        self._drafts, self.tokens, self.cost, self.finish = {}, Tokens(), None, None

    def _start_again(self, retry: Retry) -> None:
        self.start_again(self.family)

    def _ignore_delta(self, delta: RemoteEvent) -> None:
        """Ignores a delta that is not part of the answer."""

    # A dispatch table is faster than `match`, and this runs for every delta. A test checks that it has all types.
    _HANDLERS: ClassVar[dict[type[Delta], Callable[[Any, Any], None]]] = {
        AnswerStart: _start_answer,
        PartStart: _start_part,
        TextDelta: _append_text,
        ReasoningDelta: _append_text,
        InputDelta: _append_text,
        PartEnd: _end_part,
        UsageReport: _set_usage,
        Finish: _set_finish,
        Retry: _start_again,
        RemoteEvent: _ignore_delta,
    }


def _has_content(part: AnswerPart) -> bool:
    match part:
        case TextPart():
            return bool(part.text or part.metadata)
        case ReasoningPart():
            return bool(part.text or len(part.provider_state) > 1)
        case ToolPart() | FilePart():
            return True


def assemble_answer(deltas: "list[Delta]", family: str) -> Answer:
    """Folds a complete list of deltas into an answer."""
    assembler = AnswerAssembler(family)
    for delta in deltas:
        assembler.add(delta)
    return assembler.build_answer()
