"""Login at a real OpenID Connect provider (the package oidc-provider), in a browser."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from outrider.errors import ConfigurationError
from outrider.server.auth import ListenAddress
from outrider.server.oidc import OidcLogins, OidcSettings
from outrider.server.oidc import ProviderMetadata as Metadata
from outrider.server.users import AccessDeniedError, AuditLog, ServerUser, UserDirectory
from tests.e2e.server.http_server import served
from tests.e2e.server.test_page import PATIENCE, say
from tests.e2e.server.test_reverse_proxy import free_port
from tests.fixtures.browser import BROWSER, CHROMIUM

FOLDER = Path(__file__).parents[2] / "fixtures" / "oidc"
CLIENT_SECRET = "a-secret-of-the-client"


def install_provider() -> bool:
    if (FOLDER / "node_modules" / "oidc-provider").exists():
        return True
    if shutil.which("npm") is None or shutil.which("node") is None:
        return False
    command = ["npm", "ci", "--no-audit", "--no-fund", "--silent", "--ignore-scripts"]
    return subprocess.run(command, check=False, cwd=FOLDER, timeout=180, capture_output=True).returncode == 0


@pytest.fixture(scope="module", autouse=True)
def provider_package() -> None:
    if not install_provider():
        pytest.skip("oidc-provider is not installed; `npm ci` in tests/fixtures/oidc installs it")


@asynccontextmanager
async def provider(redirect_uri: str) -> AsyncIterator[OidcSettings]:
    port = free_port()
    command = ["node", str(FOLDER / "provider.mjs"), str(port), redirect_uri]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            while b"ready" not in (line := await process.stdout.readline()):
                assert line, "the provider ended"
        yield OidcSettings(
            issuer=f"http://127.0.0.1:{port}",
            client_id="outrider",
            client_secret=CLIENT_SECRET,
            roles={"outrider-admins": "admin", "outrider-readers": "viewer"},
        )
    finally:
        process.terminate()
        await process.communicate()


async def log_in(page: Any, url: str, name: str) -> None:
    await page.goto(url)
    await page.click("#login")
    await page.fill("input[name=login]", name)
    await page.fill("input[name=password]", "any")
    await page.click("button[type=submit]")
    await page.get_by_role("button", name="Continue").click()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here")
@pytest.mark.usefixtures("browser")
@pytest.mark.asyncio(loop_scope="session")
async def test_two_users_with_different_roles_log_in_with_two_browsers(tmp_path):
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    users, audit = UserDirectory(tmp_path / "users.json"), AuditLog(tmp_path / "audit.jsonl")
    async with (
        provider(f"{url}/login/callback") as oidc,
        served(tmp_path, ["A plan."], users=users, oidc=oidc, audit=audit, listen=ListenAddress(port=port)) as client,
    ):
        contexts = [await BROWSER.connection.new_context() for _ in range(3)]
        try:
            ana, vic, eve = [await context.new_page() for context in contexts]
            for page in (ana, vic, eve):
                page.set_default_timeout(PATIENCE)
            await log_in(ana, url, "ana")
            await ana.click("#new-session")
            await say(ana, "make a plan")
            await ana.get_by_text("A plan.").wait_for()
            session = ana.url.partition("#/")[2].partition("/")[0]
            await log_in(vic, url, "vic")
            await vic.locator("#user").get_by_text("vic (viewer)").wait_for()
            assert [user.role for user in users.users] == ["admin", "viewer"]
            assert await vic.get_by_text("make a plan").count() == 0
            await client.ask("POST", f"/api/sessions/{session}/shares", {"to": "vic"})
            await vic.goto(f"{url}/#/{session}")
            await vic.reload()
            await vic.get_by_text("A plan.").wait_for()
            await say(vic, "delete it")
            await vic.get_by_text("is a viewer and may not change anything").first.wait_for()
            await log_in(eve, url, "eve")
            await eve.get_by_text("has no role on this server").wait_for()
            await ana.keyboard.press("Control+k")
            await ana.keyboard.type("sign out")
            await ana.keyboard.press("Enter")
            await ana.locator("#login").wait_for()
        finally:
            for context in contexts:
                await context.close()
    signed_in = [entry["user"] for entry in audit.read() if entry["action"] == "sign-in"]
    assert signed_in == ["ana", "vic"]
    assert any(entry["action"] == "denied" and entry["user"] == "vic" for entry in audit.read())


async def test_an_answer_is_accepted_once_and_only_from_the_browser_that_started(tmp_path):
    users = UserDirectory(tmp_path / "users.json")
    async with provider("http://127.0.0.1:1/login/callback") as settings:
        logins = OidcLogins(settings, users, "http://127.0.0.1:1/login/callback")
        start = await logins.start()
        sent = parse_qs(urlsplit(start.url).query)
        assert sent["code_challenge_method"] == ["S256"] and sent["scope"] == ["openid profile email"]
        query = {"state": sent["state"][0], "code": "guessed"}
        with pytest.raises(AccessDeniedError, match="not started in this browser"):
            await logins.finish(query, "the cookie of another browser")
        with pytest.raises(AccessDeniedError, match="not started in this browser"):
            await logins.finish(query, start.browser)  # it was used up
        again = await logins.start()
        state = parse_qs(urlsplit(again.url).query)["state"][0]
        with pytest.raises(ConfigurationError, match="answered 400"):
            await logins.finish({"state": state, "code": "guessed"}, again.browser)
        refused = await logins.start()
        state = parse_qs(urlsplit(refused.url).query)["state"][0]
        with pytest.raises(AccessDeniedError, match="access_denied"):
            await logins.finish({"state": state, "error": "access_denied"}, refused.browser)
    assert users.users == ()


def test_claims_of_another_client_issuer_or_login_are_refused_and_names_are_not_reused(tmp_path):
    users = UserDirectory(tmp_path / "users.json")
    users.put(ServerUser(name="ada", role="admin"))
    settings = OidcSettings(issuer="https://login.example", client_id="outrider", roles={"ops": "operator"})
    logins = OidcLogins(settings, users, "https://agents.example/login/callback", clock=lambda: 1000.0)
    metadata = Metadata("https://login.example", "https://login.example/a", "https://login.example/t")
    right = {"iss": "https://login.example", "aud": "outrider", "nonce": "n", "exp": 1300, "sub": "7"}
    logins.check_claims(right, metadata, "n")
    changes = ({"iss": "https://evil"}, {"aud": "x"}, {"aud": ["outrider"], "azp": "x"}, {"nonce": "m"}, {"exp": 900})
    for wrong in changes:
        with pytest.raises(AccessDeniedError):
            logins.check_claims(right | wrong, metadata, "n")
    with pytest.raises(AccessDeniedError, match="another user ada"):
        logins.store_user(right | {"preferred_username": "ada", "groups": ["ops"]})
    assert logins.store_user(right | {"preferred_username": "b e", "groups": ["ops", "x"]}).name == "b-e"
    with pytest.raises(AccessDeniedError, match="no role"):
        logins.store_user(right | {"preferred_username": "b e", "groups": []})
    assert [user.name for user in users.users] == ["ada"]
    for bad in ({"issuer": "http://login.example"}, {"client_id": ""}, {"roles": {}}):
        with pytest.raises(ConfigurationError):
            given = {"issuer": "https://l", "client_id": "x", "roles": {"a": "admin"}} | bad
            OidcLogins(OidcSettings(**given), users, "")
