"""Brings a session from another Outrider server: the export that it gives out, read within bounds."""

import asyncio
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from outrider.errors import StoreError, StoreUnavailableError
from outrider.sessions.store import Store
from outrider.sessions.transfer.exports import Imported, import_session

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
