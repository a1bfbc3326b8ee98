"""A session as versioned JSON, and back without loss: unknown kinds and fields included."""

import asyncio
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import msgspec

from outrider.errors import PartValidationError, StoreError, StoreUnavailableError, StoreVersionError
from outrider.sessions.records import Kept, SessionFilter, StoredSession, Transcript
from outrider.sessions.store import Store
from outrider.types.ids import new_id
from outrider.types.messages import Message

VERSION = 1


class ExportedSession(msgspec.Struct, frozen=True):
    """`damaged` rows travel along to be looked at; an import leaves them out and says so."""

    session: StoredSession
    messages: list[dict[str, Any]]
    drafts: tuple[str, ...] = ()
    damaged: tuple[dict[str, str], ...] = ()


class Export(msgspec.Struct, frozen=True):
    """The first session is the one that was asked for; those of its agents follow."""

    sessions: tuple[ExportedSession, ...]
    outrider_export: int = VERSION


class Imported(msgspec.Struct, frozen=True):
    sessions: tuple[StoredSession, ...]
    left_out: tuple[str, ...] = ()


async def export_session(store: Store, session_id: str, *, children: bool = True) -> bytes:
    """JSON of a session, and of those that its agents opened."""
    found = [await store.load(session_id)]
    for transcript in found:
        if children:
            found += [await store.load(child.id) for child in await _children(store, transcript.session.id)]
    return msgspec.json.format(msgspec.json.encode(Export(tuple(map(_exported, found)))), indent=1)


async def import_session(store: Store, document: bytes | str, *, as_copy: bool = False) -> Imported:
    """Keep what an export holds, under its own ids, or, with `as_copy`, as new sessions."""
    export = _read(document)
    names = {one.session.id: new_id() if as_copy else one.session.id for one in export.sessions}
    sessions = [await _keep(store, one, names) for one in export.sessions]
    left_out = [f"{row['kind']} {row['id']}: {row['error']}" for one in export.sessions for row in one.damaged]
    return Imported(tuple(sessions), tuple(left_out))


def _exported(transcript: Transcript) -> ExportedSession:
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


async def _children(store: Store, session_id: str) -> Sequence[StoredSession]:
    found: list[StoredSession] = []
    after = None
    while True:
        page = await store.list(SessionFilter(parent_id=session_id), limit=200, after=after)
        found += page.sessions
        after = page.next
        if after is None:
            return sorted(found, key=lambda session: session.id)


def _read(document: bytes | str) -> Export:
    try:
        version = msgspec.json.decode(document, type=dict[str, msgspec.Raw]).get("outrider_export")
        found = msgspec.json.decode(version, type=int) if version is not None else 0
        if found > VERSION:
            raise StoreVersionError(
                f"this export has version {found}; this program reads up to {VERSION}", found=found, supported=VERSION
            )
        if found < 1:
            raise PartValidationError("this is not an export: `outrider_export` is missing", field="outrider_export")
        return msgspec.json.decode(document, type=Export)
    except msgspec.DecodeError as error:
        raise PartValidationError(f"this export cannot be read: {error}") from error


async def _keep(store: Store, one: ExportedSession, names: dict[str, str]) -> StoredSession:
    session = one.session
    parent = names.get(session.parent_id, session.parent_id) if session.parent_id else None
    created = await store.create(msgspec.structs.replace(session, id=names[session.id], parent_id=parent))
    values: list[Kept] = []
    drafts: list[Kept] = []
    for raw in one.messages:
        message = Message.from_dict(raw)
        message.join(created.id)
        drafts += [part for part in message.parts if part.id in one.drafts]
        values.append(message)
    if values:
        await store.append(created.id, values)
    if drafts:
        await store.append(created.id, drafts, draft=True)
    return await store.get(created.id)


LIMIT_BYTES = 256 * 1024 * 1024
SECONDS = 60


async def import_from(store: Store, url: str, *, key: str | None = None, as_copy: bool = True) -> Imported:
    """`url` is the address of an export on that server; `key` goes to that address and to no other."""
    return await import_session(store, await asyncio.to_thread(fetch, url, key), as_copy=as_copy)


def fetch(url: str, key: str | None = None) -> bytes:
    if urlsplit(url).scheme not in ("http", "https"):
        raise StoreError(f"{url} is not an http or https address")
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=SECONDS) as answer:
            document = answer.read(LIMIT_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise StoreUnavailableError(f"{url} answered {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise StoreUnavailableError(f"{url} cannot be reached: {error}") from error
    if len(document) > LIMIT_BYTES:
        raise StoreError(f"the export at {url} is larger than {LIMIT_BYTES:,} bytes")
    return document


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The key must not follow to wherever an answer points."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None
