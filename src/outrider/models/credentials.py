"""Keys that change: a function of the program returns them, and is called again when one expires or is rejected."""

import asyncio
from time import monotonic
from typing import Any

from msgspec.structs import replace

from outrider.errors import AuthenticationError, CallbackError
from outrider.http.transport import HttpRequest
from outrider.tools.threads import call_user_function
from outrider.types.agents import Credential, CredentialFunction, Provider
from outrider.types.ids import new_id

_RENEWAL_SECONDS = 60.0  # before the end, so that no request starts with a key that expires on its way
_RENEWAL_SHARE = 0.1  # of a short time


class CredentialSource:
    """The current key of one provider. Requests are built with `placeholder`, which `sign` replaces by the key."""

    def __init__(self, provider: Provider) -> None:
        self.placeholder = f"credential-{new_id()}"
        self._name = provider.name
        self._function: CredentialFunction = provider.credentials
        self._value = ""
        self._renew_at: float | None = None
        self._lock = asyncio.Lock()

    async def current_key(self) -> str:
        """Returns the key, from the function if none is known or it expires. Raises AuthenticationError if the function
        fails. Concurrent requests wait for one call."""
        async with self._lock:
            if not self._value or (self._renew_at is not None and monotonic() >= self._renew_at):
                await self._call_function()
            return self._value

    async def sign(self, request: HttpRequest) -> HttpRequest:
        """Returns the request with the current key in place of the placeholder."""
        key = await self.current_key()
        headers = {name: value.replace(self.placeholder, key) for name, value in request.headers.items()}
        return replace(request, headers=headers, url=request.url.replace(self.placeholder, key))

    def reject(self, request: HttpRequest) -> None:
        """Forgets the key of a refused request, unless another request has replaced it already."""
        if self._value and any(self._value in value for value in (*request.headers.values(), request.url)):
            self._value = ""

    async def _call_function(self) -> None:
        self._value, self._renew_at = "", None
        name = f"the api_key function of the provider {self._name!r}"
        try:
            given: Any = await call_user_function(name, self._function)
        except CallbackError as error:
            raise AuthenticationError(error.message, provider=self._name) from error
        found = Credential(given) if isinstance(given, str) else given
        if not isinstance(found, Credential) or not isinstance(found.value, str) or not found.value.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise AuthenticationError(
                f"{name} returned no key; it returns a text or a Credential, got {type(given).__name__}",
                provider=self._name,
            )
        if found.seconds is not None:
            self._renew_at = monotonic() + found.seconds - min(_RENEWAL_SECONDS, found.seconds * _RENEWAL_SHARE)
        self._value = found.value.strip()


async def with_current_key(provider: Provider) -> Provider:
    """Returns the provider with the key that its function returns, for a single request outside of a client."""
    if provider.credentials is None:
        return provider
    return replace(provider, api_key=await CredentialSource(provider).current_key(), credentials=None)
