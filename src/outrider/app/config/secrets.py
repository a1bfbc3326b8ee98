"""What an engine must never tell or keep: the keys of its providers, and what the environment calls a secret."""

import os
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from outrider.permissions.texts.redact import Redactor, secret_values
from outrider.types.agents import Provider


def redactor_for(
    providers: Iterable[Provider], more: Iterable[str] = (), environ: Mapping[str, str] = os.environ
) -> Redactor:
    """Hides these wherever they turn up, besides everything that looks like a key."""
    return Redactor.of_environment(environ, [*more, *(secret for provider in providers for secret in _of(provider))])


def _of(provider: Provider) -> Iterable[str]:
    if provider.api_key:
        yield provider.api_key
    yield from secret_values(provider.headers or {})
    if password := urlsplit(provider.base_url or "").password:
        yield password
