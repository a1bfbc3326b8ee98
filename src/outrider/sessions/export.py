"""Exports sessions as versioned JSON and imports them without loss, including unknown part types and fields."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from outrider.errors import (
    ConfigurationError,
    NetworkError,
    PartValidationError,
    StoreError,
    StoreUnavailableError,
    StoreVersionError,
)
from outrider.sessions.records import ImportResult, SessionFilter, SessionTranscript, StoredSession, StoredValue
from outrider.sessions.store import Store
from outrider.types.ids import new_id
from outrider.types.messages import Message

if TYPE_CHECKING:
    from outrider.http.transport import ProxySelector

EXPORT_VERSION = 1
EXPORT_PAGE = 20  # messages that are read at once


class ExportedSession(msgspec.Struct, frozen=True):
    """One session in an export. `damaged` rows are included for inspection; an import skips and reports them."""

    session: StoredSession
    messages: list[dict[str, Any]]
    drafts: tuple[str, ...] = ()
    damaged: tuple[dict[str, str], ...] = ()


class SessionExport(msgspec.Struct, frozen=True):
    """The export document: the requested session first, then its child sessions."""

    sessions: tuple[ExportedSession, ...]
    outrider_export: int = EXPORT_VERSION


async def export_session(store: Store, session_id: str, *, children: bool = True) -> bytes:
    """Returns a session as JSON, with its child sessions unless `children` is False."""
    return b"".join([chunk async for chunk in stream_export(store, session_id, children=children)])


async def stream_export(store: Store, session_id: str, *, children: bool = True) -> AsyncGenerator[bytes, None]:
    """Yields the chunks of an export. The session is read page by page, so the memory that this needs does not depend
    on its length."""
    waiting = [session_id]
    yield b'{\n "sessions": ['
    for position, current in enumerate(waiting):
        if children:
            waiting += [child.id for child in await _list_children(store, current)]
        yield b",\n  " if position else b"\n  "
        async for chunk in _stream_session(store, current):
            yield chunk
    yield b'\n ],\n "outrider_export": %d\n}' % EXPORT_VERSION


async def _stream_session(store: Store, session_id: str) -> AsyncGenerator[bytes, None]:
    page = await store.load(session_id, after="", limit=EXPORT_PAGE)
    yield b'{\n   "session": %b,\n   "messages": [' % _indented(page.session, 3)
    drafts, damaged, separator = list[str](), list[dict[str, str]](), b"\n    "
    while True:
        exported = _to_exported(page)
        drafts += exported.drafts
        damaged += exported.damaged
        for message in exported.messages:
            yield separator + _indented(message, 4)
            separator = b",\n    "
        if page.last or not page.messages:
            break
        page = await store.load(session_id, after=page.messages[-1].id, limit=EXPORT_PAGE)
    yield b"\n   ]" if separator.startswith(b",") else b"]"
    yield b',\n   "drafts": %b,\n   "damaged": %b\n  }' % (_indented(sorted(drafts), 3), _indented(damaged, 3))


def _indented(value: object, depth: int) -> bytes:
    """Encodes a value with the indentation of the whole document; JSON strings contain no line breaks."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1).replace(b"\n", b"\n" + b" " * depth)


async def import_session(store: Store, document: bytes | str, *, as_copy: bool = False) -> ImportResult:
    """Stores the sessions of an export under their ids, or with `as_copy` under new ids. A session file of another
    program, or a list of messages, becomes a new session.

    Raises StoreVersionError for a newer export version and PartValidationError for an invalid document.
    """
    if not _is_export(document):
        return await _import_foreign(store, document)
    export = _decode_export(document)
    new_ids = {exported.session.id: new_id() if as_copy else exported.session.id for exported in export.sessions}
    sessions = [await _store_session(store, exported, new_ids) for exported in export.sessions]
    left_out = [
        f"{row['kind']} {row['id']}: {row['error']}" for exported in export.sessions for row in exported.damaged
    ]
    return ImportResult(tuple(sessions), tuple(left_out))


def _to_exported(transcript: SessionTranscript) -> ExportedSession:
    damaged = [
        {"kind": row.kind, "id": row.id, "error": row.error, "raw": b64encode(row.raw).decode()}
        for row in transcript.damaged
    ]
    return ExportedSession(
        session=transcript.session,
        messages=[message.to_dict() for message in transcript.messages],
        drafts=tuple(sorted(transcript.drafts)),
        damaged=tuple(damaged),
    )


async def _list_children(store: Store, session_id: str) -> Sequence[StoredSession]:
    children: list[StoredSession] = []
    after = None
    while True:
        page = await store.list(SessionFilter(parent_id=session_id), limit=200, after=after)
        children += page.sessions
        after = page.next
        if after is None:
            return sorted(children, key=lambda session: session.id)


def _is_export(document: bytes | str) -> bool:
    try:
        return "outrider_export" in msgspec.json.decode(document, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


async def _import_foreign(store: Store, document: bytes | str) -> ImportResult:
    from outrider.sessions.session_files import read_session_file  # lazy: rarely needed

    foreign = read_session_file(document)
    messages = [message.to_dict() for message in foreign.session.messages]
    exported = ExportedSession(StoredSession.from_session(foreign.session), messages)
    stored = await _store_session(store, exported, {foreign.session.id: foreign.session.id})
    return ImportResult((stored,), tuple(foreign.left_out))


def _decode_export(document: bytes | str) -> SessionExport:
    try:
        version = msgspec.json.decode(document, type=dict[str, msgspec.Raw]).get("outrider_export")
        format_version = msgspec.json.decode(version, type=int) if version is not None else 0
        if format_version > EXPORT_VERSION:
            raise StoreVersionError(
                f"the export has version {format_version}; this program reads versions up to {EXPORT_VERSION}. "
                "Update Outrider.",
                found=format_version,
                supported=EXPORT_VERSION,
            )
        return msgspec.json.decode(document, type=SessionExport)
    except msgspec.DecodeError as error:
        raise PartValidationError(f"the export cannot be decoded: {error}") from error


async def _store_session(store: Store, exported: ExportedSession, new_ids: dict[str, str]) -> StoredSession:
    session = exported.session
    parent = new_ids.get(session.parent_id, session.parent_id) if session.parent_id else None
    created = await store.create(msgspec.structs.replace(session, id=new_ids[session.id], parent_id=parent))
    values: list[StoredValue] = []
    drafts: list[StoredValue] = []
    for raw in exported.messages:
        message = Message.from_dict(raw)
        message.join(created.id)
        drafts += [part for part in message.parts if part.id in exported.drafts]
        values.append(message)
    if values:
        await store.append(created.id, values)
    if drafts:
        await store.append(created.id, drafts, draft=True)
    return await store.get(created.id)


MAX_EXPORT_BYTES = 256 * 1024 * 1024
FETCH_TIMEOUT_SECONDS = 60
_OK = 200


async def import_from_url(
    store: Store,
    url: str,
    *,
    key: str | None = None,
    as_copy: bool = True,
    proxy: "ProxySelector | None" = None,
) -> ImportResult:
    """Imports an export from the URL of another server; the API `key` is sent to that URL only. `proxy` returns the
    proxy for a URL."""
    return await import_session(store, await fetch_export(url, key, proxy), as_copy=as_copy)


async def fetch_export(
    url: str, key: str | None = None, proxy: "ProxySelector | None" = None, *, max_bytes: int = MAX_EXPORT_BYTES
) -> bytes:
    """Returns the export at the URL. Raises StoreError if it is longer than `max_bytes`."""
    # Imported here: every command that opens the archive imports this module.
    from outrider.http.client import COMPRESSED, HttpClient, read_body
    from outrider.http.transport import HttpRequest

    if urlsplit(url).scheme not in ("http", "https"):
        raise StoreError(f"{url} is not an http or https URL")
    headers = {"accept": "application/json", "accept-encoding": COMPRESSED}
    if key:
        headers["authorization"] = f"Bearer {key}"
    try:
        # Redirects are not followed: the API key must not be sent to another address.
        async with (
            asyncio.timeout(FETCH_TIMEOUT_SECONDS),
            aclosing(HttpClient(proxy=proxy, max_body_bytes=max_bytes)) as client,
        ):
            response = await client.send(HttpRequest(url, headers, method="GET"))
            if response.status != _OK:
                raise StoreUnavailableError(f"{url} answered {response.status}")
            document, is_longer = await read_body(response, max_bytes)
    except TimeoutError as error:
        raise StoreUnavailableError(f"{url} did not answer within {FETCH_TIMEOUT_SECONDS} s") from error
    except (OSError, NetworkError, ConfigurationError, ValueError) as error:
        raise StoreUnavailableError(f"{url} cannot be reached: {error}") from error
    if is_longer:
        raise StoreError(f"the export at {url} is larger than {max_bytes:,} bytes")
    return document
