"""One HTTP exchange: send a request and decode the response, a stream or a single JSON body, into deltas."""

from typing import TYPE_CHECKING

import msgspec

from outrider.errors import InvalidRequestError, MalformedAnswerError, NetworkError, ProviderError
from outrider.http.transport import HttpRequest, HttpResponse, HttpTransport, ServerEventReader
from outrider.providers.provider import ResumableDecoder, WireFormat
from outrider.types.request import Delta, Finish, Request

if TYPE_CHECKING:
    from outrider.providers.response_json import SurrogateJoiner

_MAX_ERROR_BYTES = 256 * 1024
_MAX_ANSWER_BYTES = 256 * 1024 * 1024
_ERROR_BODY_SECONDS = 10.0
# After the end mark, wait briefly for the end of the HTTP body: only then can the connection be reused.
_BODY_END_SECONDS = 0.25
_WHITESPACE = b" \t\r\n\xef\xbb\xbf"
_EVENT_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")


class HttpExchange:
    """Sends one request and decodes its response.

    `read` returns the next deltas, or None at the regular end. Deltas received before a failure are returned first; the
    next `read` raises the failure.
    """

    def __init__(self, wire: WireFormat, request: Request) -> None:
        self._wire = wire
        self._decoder = wire.create_decoder(request)
        self._events = ServerEventReader()
        self._response: HttpResponse | None = None
        self._failure: ProviderError | None = None
        self._prefix: bytes | None = b""  # buffered until the format of the body is known, then None
        self._received_bytes = 0
        self._expects_end = False
        self._finished = False
        self._ended = False
        self._joiner: SurrogateJoiner | None = None  # created with the first escaped character

    async def open(self, transport: HttpTransport, request: HttpRequest) -> None:
        """Sends the request. Raises ProviderError for an error status or a redirect."""
        self._response = response = await transport.send(request)
        if response.status >= 400:
            response.limit_remaining(_ERROR_BODY_SECONDS)
            raise self._wire.decode_error(response.status, response.headers, await _read_error_body(response))
        if response.status >= 300:
            raise _redirect_error(response)

    async def read(self) -> list[Delta] | None:
        if self._failure is not None:
            raise self._failure
        if self._ended or self._response is None:
            return None
        try:
            chunk = await self._response.read()
        except NetworkError as error:
            return self._end_stream(error)
        if not chunk:
            return self._end_stream(None)
        self._count_bytes(chunk)
        if self._prefix is not None:
            return await self._detect_format(self._response, self._prefix + chunk)
        return self._feed_chunk(chunk)

    def resume_request(self, request: HttpRequest) -> HttpRequest | None:
        """Returns the request that continues this answer, if the server can do that."""
        return self._decoder.resume_request(request) if isinstance(self._decoder, ResumableDecoder) else None

    def close(self) -> None:
        if self._response is not None:
            self._response.close()

    async def _detect_format(self, response: HttpResponse, prefix: bytes) -> list[Delta]:
        """Decides by the first byte whether the body is an event stream, one JSON value or an HTML page.

        The content type is not reliable: gateways send JSON and streams with wrong types.
        """
        self._prefix = prefix = prefix.lstrip(_WHITESPACE)
        first = prefix[:1]
        if first and first in b"{[":
            return await self._read_body(response)
        if first == b"<" or (
            first and "html" in response.headers.get("content-type", "") and not _is_event_field(prefix)
        ):
            raise _permanent_error(
                "the server sent a web page instead of an answer; check base_url", "unexpected_content"
            )
        if not first:
            return []
        self._prefix = None
        return self._feed_chunk(prefix)

    async def _read_body(self, response: HttpResponse) -> list[Delta]:
        chunks = [self._prefix or b""]
        while chunk := await response.read():
            self._count_bytes(chunk)
            chunks.append(chunk)
        self._prefix = None
        self._ended = True
        response.mark_progress()
        deltas: list[Delta] = []
        try:
            self._decode_body(b"".join(chunks), deltas)
        except Exception as error:  # noqa: BLE001 - see _record_failure
            self._record_failure(error)
        return self._return_deltas(deltas)

    def _decode_body(self, body: bytes, deltas: list[Delta]) -> None:
        try:
            deltas.extend(self._decoder.decode_body(body))
            return
        except MalformedAnswerError:
            from outrider.types.partial_json import find_json_objects  # lazy: for rare servers, also below

            values = find_json_objects(body)
            if not values or values == [body.strip()]:
                raise
        if len(values) == 1:  # other text surrounds the JSON object
            deltas.extend(self._decoder.decode_body(values[0]))
            return
        for value in values:  # a stream of bare JSON objects without event fields
            deltas.extend(self._decoder.feed("", value))
        deltas.extend(self._decoder.close())

    def _feed_chunk(self, chunk: bytes) -> list[Delta]:
        deltas: list[Delta] = []
        feed = self._decoder.feed
        try:
            for name, data in self._events.feed(chunk):
                try:
                    deltas.extend(feed(name, data))
                except MalformedAnswerError:
                    self._feed_joined_events(name, data, deltas)
                if deltas and type(deltas[-1]) is Finish:
                    self._mark_finished()
        except Exception as error:  # noqa: BLE001 - see _record_failure
            self._record_failure(error)
        if self._decoder.is_complete and not self._expects_end:
            self._expect_end()
        return self._return_deltas(deltas)

    def _feed_joined_events(self, name: str, data: bytes, deltas: list[Delta]) -> None:
        """Decodes data that may hold several JSON events: some gateways omit the blank lines between them."""
        from outrider.types.partial_json import find_json_objects

        values = find_json_objects(data)
        for value in values if len(values) > 1 else [data]:
            deltas.extend(self._decoder.feed(name, value))

    def _end_stream(self, connection_error: NetworkError | None) -> list[Delta]:
        """Ends the decoder. A broken connection is an error only if the answer is not complete."""
        self._ended = True
        deltas: list[Delta] = []
        try:
            self._feed_unterminated_event(deltas)
            deltas.extend(self._decoder.close())
        except Exception as error:  # noqa: BLE001 - see _record_failure
            self._record_failure(connection_error or error)
        return self._return_deltas(deltas)

    def _feed_unterminated_event(self, deltas: list[Delta]) -> None:
        """Decodes the last event if the stream has not terminated it; it is often incomplete."""
        try:
            for name, data in self._events.close():
                self._feed_joined_events(name, data, deltas)
        except MalformedAnswerError as error:
            raise NetworkError("the stream ended in the middle of an event", type="disconnected") from error

    def _expect_end(self) -> None:
        self._expects_end = True
        if self._response is not None:
            self._response.expect_end()

    def _mark_finished(self) -> None:
        if not self._finished and self._response is not None:
            self._finished = True
            self._response.limit_remaining(_BODY_END_SECONDS)

    def _record_failure(self, error: Exception) -> None:
        """Stores the error for the next `read`; ignores it after the end mark.

        Decoders may raise any exception for malformed input. It becomes a ProviderError, so that it fails only this
        exchange.
        """
        if self._finished:
            self._ended = True
        elif isinstance(error, ProviderError):
            self._failure = error
        else:
            self._failure = _decoding_error(error)

    def _return_deltas(self, deltas: list[Delta]) -> list[Delta]:
        if deltas and self._response is not None:
            self._response.mark_progress()
            return self._joiner.feed(deltas) if self._joiner is not None else deltas
        if self._failure is not None:
            raise self._failure
        return deltas

    def _count_bytes(self, chunk: bytes) -> None:
        self._received_bytes += len(chunk)
        if self._joiner is None and (b"\\u" in chunk or chunk.endswith(b"\\")):
            from outrider.providers.response_json import SurrogateJoiner

            self._joiner = SurrogateJoiner()
        if self._received_bytes > _MAX_ANSWER_BYTES:
            raise _permanent_error(f"the response is larger than {_MAX_ANSWER_BYTES} bytes", "answer_too_large")


def _is_event_field(prefix: bytes) -> bool:
    """Whether the bytes start with an event field name, or with a prefix of one."""
    return prefix.startswith(_EVENT_FIELDS) or any(field.startswith(prefix) for field in _EVENT_FIELDS)


async def _read_error_body(response: HttpResponse) -> bytes:
    """Reads the start of an error body. A broken connection is ignored, because the status is enough for an error."""
    body = bytearray()
    try:
        while len(body) < _MAX_ERROR_BYTES and (chunk := await response.read()):
            body += chunk
    except NetworkError:
        pass
    return bytes(body[:_MAX_ERROR_BYTES])


def _redirect_error(response: HttpResponse) -> ProviderError:
    target = response.headers.get("location", "another address")
    return InvalidRequestError(
        f"the provider redirects to {target}; API keys are not sent to another address, so set base_url to it",
        status=response.status,
        type="redirect",
    )


def _decoding_error(error: Exception) -> MalformedAnswerError:
    """Wraps a decoder's exception. Invalid JSON may be a transfer error and is retryable; other errors are not."""
    failure = MalformedAnswerError(f"the answer cannot be read: {error!r}", type="malformed")
    failure.retryable = type(error) is msgspec.DecodeError
    failure.__cause__ = error
    return failure


def _permanent_error(message: str, type: str) -> MalformedAnswerError:
    error = MalformedAnswerError(message, type=type)
    error.retryable = False
    return error
