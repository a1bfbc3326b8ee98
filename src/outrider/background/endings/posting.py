"""One POST: to public addresses only, unless the user named the host; no redirects, and an end to waiting."""

import asyncio
from collections.abc import Sequence
from urllib.parse import urlsplit

from outrider.errors import ToolFailure
from outrider.processes.sandbox.guests import Rules
from outrider.tools.web.addresses import Gate, is_public
from outrider.tools.web.fetching import checked

SECONDS = 10.0
_USUAL_PORTS = {"http": 80, "https": 443}


async def post(url: str, body: str, key: str, hosts: Sequence[str] = ()) -> None:
    """`hosts` are those of the user's own network that may be called. Raises ToolFailure for anything but a yes."""
    import aiohttp

    gate = Gate((lambda _: True) if _is_named(checked(url), hosts) else is_public)
    connector = aiohttp.TCPConnector(socket_factory=gate.open_socket, use_dns_cache=False, force_close=True)
    headers = {"content-type": "application/json", "user-agent": "outrider", "idempotency-key": key}
    try:
        async with (
            asyncio.timeout(SECONDS),
            aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.post(url, data=body.encode(), headers=headers, allow_redirects=False) as answer,
        ):
            if not 200 <= answer.status < 300:
                raise ToolFailure(f"it answered with {answer.status}")
    except TimeoutError as error:
        raise ToolFailure(f"it did not answer within {SECONDS:g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if gate.refused is not None:
            raise ToolFailure(f"it leads to {gate.refused}, which is not a public address") from error
        raise ToolFailure(f"{type(error).__name__} on the way") from error


def _is_named(url: str, hosts: Sequence[str]) -> bool:
    parts = urlsplit(url)
    return Rules(hosts).allow(parts.hostname or "", parts.port or _USUAL_PORTS[parts.scheme])
