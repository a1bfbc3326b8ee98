"""Requests to a login provider: errors for answers that cannot be used, and no redirects."""

import json
from pathlib import Path

import pytest

from outrider.errors import ConfigurationError
from outrider.server.oidc import OidcLogins, OidcSettings
from outrider.server.users import UserDirectory
from tests.fixtures.http_server import Reply, serving

JSON = {"content-type": "application/json"}


def create_logins(issuer: str, folder: Path) -> OidcLogins:
    settings = OidcSettings(issuer=issuer, client_id="outrider", client_secret="s3cret", default_role="viewer")
    return OidcLogins(settings, UserDirectory(folder / "users.json"), "http://127.0.0.1/login/callback")


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(status=302, headers={"location": "/elsewhere"}), "answered 302"),
        (Reply([b"secret text"], status=500), "answered 500"),
        (Reply([b"not JSON"], headers=JSON), "cannot be reached"),
        (Reply([b"[]"], headers=JSON), "not a JSON object"),
        (Reply([b"{}"], headers=JSON), "not the description of a login provider"),
        (Reply(after="drop", raw=b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{"), "cannot be reached"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_an_error_with_the_address(tmp_path, reply, message):
    async with serving(reply) as server:
        with pytest.raises(ConfigurationError, match=message) as raised:
            await create_logins(server.url, tmp_path).start()
        assert f"{server.url}/.well-known/openid-configuration" in str(raised.value)
        assert "secret text" not in str(raised.value)
        assert len(server.requests) == 1


async def test_a_login_starts_at_the_page_of_the_provider(tmp_path):
    def describe() -> list[bytes]:
        endpoints = {"authorization_endpoint": f"{server.url}/auth?x=1", "token_endpoint": f"{server.url}/token"}
        return [json.dumps({"issuer": server.url, **endpoints}).encode()]

    async with serving(Reply(describe, headers=JSON)) as server:
        started = await create_logins(server.url, tmp_path).start()
    assert started.url.startswith(f"{server.url}/auth?x=1&response_type=code&client_id=outrider&")
    assert "s3cret" not in started.url
    assert server.requests[0].headers["accept"] == "application/json"


async def test_a_provider_that_does_not_listen_is_an_error_with_the_address(tmp_path):
    async with serving(Reply()) as server:
        address = server.url
    with pytest.raises(ConfigurationError, match=f"cannot be reached at {address}"):
        await create_logins(address, tmp_path).start()
