"""Users with roles on one server: what each may see and change, what it costs, and what is recorded."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec
import pytest
from mcp import Client as McpClient
from mcp.client.streamable_http import streamable_http_client

from outrider import Tool
from outrider.engine.session_tools import OwnerLimits
from outrider.errors import ConfigurationError
from outrider.providers.scripted import call
from outrider.server.app import ENDPOINTS, all_routes
from outrider.server.endpoint import ACCESS_SECONDS
from outrider.server.oidc import OidcLogins, OidcSettings, ProviderMetadata
from outrider.server.users import AccessDeniedError, AuditLog, ServerTeam, ServerUser, UserDirectory
from outrider.types.ids import now_ms
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import ModelRef, TextPart
from tests.e2e.server.http_server import TOKEN, Client, served
from tests.e2e.server.test_unauthorized_requests import MCP


@Tool(policy="ask")
def launch(where: str) -> str:
    """Launch it."""
    return f"launched to {where}"


def directory_of(tmp_path: Path, *users: ServerUser) -> tuple[UserDirectory, dict[str, str]]:
    directory = UserDirectory(tmp_path / "server" / "users.json")
    for user in users:
        directory.put(user)
    return directory, {user.name: directory.create_token(user.name) for user in users}


ANA, BEN, VIC, ADA = (
    ServerUser(name="ana", team="red"),
    ServerUser(name="ben", team="red"),
    ServerUser(name="vic", role="viewer"),
    ServerUser(name="ada", role="admin"),
)
SERVED = {(method, route.path) for route in all_routes("0") for method in route.methods or ()}
CHANGING = sorted((method, path) for method, path in {*SERVED, *MCP} if method not in ("GET", "HEAD"))


async def test_every_change_of_a_viewer_is_denied_on_every_route(tmp_path):
    users, tokens = directory_of(tmp_path, ANA, VIC)
    async with served(tmp_path, ["hi"], mcp=True, users=users) as client:
        own = (await client.ask("POST", "/api/sessions", {}, token=tokens["ana"]))[1]["id"]
        assert (await client.ask("POST", f"/api/sessions/{own}/shares", {"to": "*"}, token=tokens["ana"]))[0] == 201
        assert len(CHANGING) > 45
        for method, path in CHANGING:
            if path == "/api/sign-out":
                continue
            filled = re.sub(r"{\w+}", own, path)
            for body in ({}, None):
                status, answer = await client.ask(method, filled, body, token=tokens["vic"])
                assert (status, answer["error"]["type"]) == (403, "forbidden"), f"{method} {path}: {status} {answer}"
        assert (await client.ask("GET", "/api/mcp-servers/completions?text=x", token=tokens["vic"]))[0] == 403
        for method in ("PUT", "PATCH", "TRACE"):
            assert (await client.ask(method, f"/api/sessions/{own}", token=tokens["vic"]))[0] == 403
        assert (await client.ask("GET", f"/api/sessions/{own}/messages", token=tokens["vic"]))[0] == 200
        assert (await client.ask("GET", "/mcp", token=tokens["ana"]))[0] == 403
        assert (await client.ask("GET", "/api/me", token=tokens["vic"]))[1] == {
            "name": "vic", "role": "viewer", "team": "", "has_users": True,
        }  # fmt: skip


async def test_no_route_shows_or_changes_a_session_of_another_user(tmp_path):
    users, tokens = directory_of(tmp_path, ANA, BEN, ADA)
    async with served(tmp_path, ["a secret word"], users=users) as client:
        own = (await client.ask("POST", "/api/sessions", {"title": "Plans"}, token=tokens["ana"]))[1]["id"]
        sent = {"text": "hello", "wait": True}
        assert (await client.ask("POST", f"/api/sessions/{own}/prompt", sent, token=tokens["ana"]))[0] == 202
        routes = [one for one in ENDPOINTS if "{session_id}" in one.path]
        assert len(routes) > 30
        for one in routes:
            path = re.sub(r"{\w+}", "x", one.path.replace("{session_id}", own))
            status, answer = await client.ask(
                one.method, path, {} if one.method != "GET" else None, token=tokens["ben"]
            )
            # A body that cannot be read is refused before the session is looked at.
            assert status in (404, 400), f"{one.method} {one.path}: {status} {answer}"
            assert b"secret" not in json.dumps(str(answer)).encode()
        assert (await client.ask("GET", "/api/sessions", token=tokens["ben"]))[1]["sessions"] == []
        assert (await client.ask("GET", "/api/search?query=secret", token=tokens["ben"]))[1] == []
        assert (await client.ask("GET", "/api/usage", token=tokens["ben"]))[1] == []
        assert (await client.ask("GET", f"/api/usage?session_id={own}", token=tokens["ben"]))[0] == 404
        assert len((await client.ask("GET", "/api/search?query=secret", token=tokens["ana"]))[1]) == 1
        assert [row["messages"] for row in (await client.ask("GET", "/api/usage", token=tokens["ana"]))[1]] == [1]
        for name in ("ana", "ada"):
            listed = (await client.ask("GET", "/api/sessions", token=tokens[name]))[1]["sessions"]
            assert [(one["id"], one["owner"]) for one in listed] == [(own, "ana")]
        assert await first_states(client, tokens["ben"]) == []
        assert [one["id"] for one in await first_states(client, tokens["ana"])] == [own]
        for route in ("/api/schedules", "/api/trust?path=/etc"):
            assert (await client.ask("GET", route, token=tokens["ana"]))[0] == 403
        assert (await client.ask("DELETE", "/api/sessions", token=tokens["ana"]))[0] == 403


@asynccontextmanager
async def mcp_client(client: Client, token: str) -> AsyncIterator[McpClient]:
    http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=60)
    transport = streamable_http_client(f"{client.address.url}/mcp", http_client=http)
    async with asyncio.timeout(60), http, McpClient(transport) as agent:
        yield agent


async def test_only_administrators_use_mcp_and_their_runs_belong_to_them(tmp_path):
    users, tokens = directory_of(tmp_path, ANA, VIC, ADA)
    start = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
    async with served(tmp_path, ["a secret word", "done", "done"], mcp=True, users=users) as client:
        own = (await client.ask("POST", "/api/sessions", {"title": "Plans"}, token=tokens["ana"]))[1]["id"]
        for name in ("vic", "ana"):
            for method, path in [
                *MCP,
                ("GET", "/mcp/"),
                ("POST", "/%6dcp"),
                ("POST", "/api/../mcp"),
                ("HEAD", "/mcp?a"),
            ]:
                body = start if method == "POST" else None
                status, _ = await client.ask(method, path, body, token=tokens[name])
                assert status == 403, f"{name}: {method} {path}"
        for token, owner in ((tokens["ada"], "ada"), (TOKEN, "")):
            async with mcp_client(client, token) as agent:
                listed: Any = (await agent.read_resource("outrider://sessions")).contents[0]
                assert own in listed.text
                done: Any = (await agent.call_tool("run_agent", {"prompt": "do it"})).structured_content
            assert (await client.engine.store.get(done["session_id"])).owner == owner


async def test_a_stream_of_mcp_sends_nothing_after_the_access_has_ended(tmp_path):
    users, tokens = directory_of(tmp_path, ADA)
    started, gate = asyncio.Event(), asyncio.Event()

    @Tool(policy="allow")
    async def wait_for_gate() -> str:
        """Wait."""
        started.set()
        await gate.wait()
        return "waited"

    script = [[call("wait_for_gate")], "a secret word"]
    sent = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}
    sent["params"] = {"name": "run_agent", "arguments": {"prompt": "go"}}
    given = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": given}
    headers = {"Authorization": f"Bearer {tokens['ada']}", "Accept": "application/json, text/event-stream"}
    async with served(tmp_path, script, [wait_for_gate], mcp=True, users=users) as client:
        url = f"{client.address.url}/mcp"
        async with client.http.post(url, json=initialize, headers=headers) as answer:
            headers |= {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
        async with client.http.post(url, json=sent, headers=headers) as answer:
            await asyncio.wait_for(started.wait(), 60)
            users.remove("ada")
            gate.set()
            assert b"secret" not in await asyncio.wait_for(answer.read(), 60)
        (session,) = (await client.engine.store.list()).sessions
        assert session.owner == "ada"
    for task in asyncio.all_tasks():  # sse-starlette runs one in each event loop
        if "_shutdown_watcher" in repr(task.get_coro()):
            task.cancel()


async def test_no_route_of_another_protocol_reaches_a_session_of_another_user(tmp_path):
    users, tokens = directory_of(tmp_path, ANA, BEN)
    async with served(tmp_path, [call("launch", where="mars"), "done"], [launch], users=users) as client:
        message = {"role": "user", "content": "go"}
        chat = {"model": "writer", "messages": [message], "tools": [{"function": {"name": "outrider_approval"}}]}
        status, asked = await client.ask("POST", "/v1/chat/completions", chat, token=tokens["ana"])
        assert status == 200
        session, approval = asked["session_id"], asked["choices"][0]["message"]["tool_calls"][0]["id"]
        assert (await client.engine.store.get(session)).owner == "ana"
        answer = {"role": "tool", "tool_call_id": approval, "content": "allow"}
        resume = {"interruptId": approval, "status": "resolved", "payload": {"approved": True}}
        send = {"message": {"parts": [{"text": "go"}], "contextId": session}}
        stolen: list[tuple[str, Any]] = [
            ("/v1/chat/completions", {"model": "writer", "messages": [message], "session_id": session}),
            ("/v1/chat/completions", {"model": "writer", "messages": [message, answer]}),
            ("/v1/responses", {"model": "writer", "input": "go", "previous_response_id": f"resp_{session}_x"}),
            ("/agui/writer", {"threadId": "t", "runId": "r", "resume": [resume]}),
        ]
        for path, body in stolen:
            status, answered = await client.ask("POST", path, body, token=tokens["ben"])
            assert status == 404, f"{path}: {status} {answered}"
        for method, params in [
            ("SendMessage", send),
            ("GetTask", {"id": f"{session}.x"}),
            ("CancelTask", {"id": f"{session}.x"}),
        ]:
            rpc = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            assert (await client.ask("POST", "/a2a/writer", rpc, token=tokens["ben"]))[1]["error"]["code"] == -32001
        assert [one.id for one in await client.engine.approvals()] == [approval]
        done = await client.ask(
            "POST", "/v1/chat/completions", {**chat, "messages": [message, answer]}, token=tokens["ana"]
        )
        assert done[1]["choices"][0]["message"]["content"] == "done"
        (recorded,) = [one for one in await client.engine.store.approvals() if one.id == approval]
        assert recorded.answered_by == "ana"


async def first_states(client: Client, token: str) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}"}
    async with asyncio.timeout(30), client.http.get(client.address.url + "/api/events", headers=headers) as answer:
        async for line in answer.content:
            if line.startswith(b"data: "):
                return json.loads(line[6:])
    raise AssertionError("no states")


async def test_a_session_is_shared_with_a_user_or_a_team_and_unshared(tmp_path):
    users, tokens = directory_of(tmp_path, ANA, BEN, VIC)
    async with served(tmp_path, ["one", "two"], users=users) as client:
        own = (await client.ask("POST", "/api/sessions", {}, token=tokens["ana"]))[1]["id"]
        path, prompt = f"/api/sessions/{own}", {"text": "go", "wait": True}
        status, answer = await client.ask("POST", f"{path}/shares", {"to": "nobody"}, token=tokens["ana"])
        assert status == 400 and "no user or team" in answer["error"]["message"]
        await client.ask("POST", f"{path}/shares", {"to": "team:red"}, token=tokens["ana"])
        assert (await client.ask("GET", path, token=tokens["ben"]))[0] == 200
        assert (await client.ask("GET", path, token=tokens["vic"]))[0] == 404
        assert (await client.ask("POST", f"{path}/prompt", prompt, token=tokens["ben"]))[0] == 403
        await client.ask("POST", f"{path}/shares", {"to": "ben", "level": "write"}, token=tokens["ana"])
        assert (await client.ask("POST", f"{path}/prompt", prompt, token=tokens["ben"]))[0] == 202
        listed = (await client.ask("GET", "/api/sessions", token=tokens["ben"]))[1]["sessions"]
        assert [one["id"] for one in listed] == [own]
        assert (await client.ask("POST", f"{path}/shares", {"to": "vic"}, token=tokens["ben"]))[0] == 403
        assert (await client.ask("DELETE", f"{path}/shares/ben", token=tokens["ana"]))[0] == 204
        assert (await client.ask("POST", f"{path}/prompt", prompt, token=tokens["ben"]))[0] == 403
        assert (await client.ask("DELETE", f"{path}/shares/team:red", token=tokens["ana"]))[0] == 204
        assert (await client.ask("GET", path, token=tokens["ben"]))[0] == 404
        assert (await client.ask("DELETE", path, token=tokens["ana"]))[0] == 204


async def test_an_approval_is_recorded_with_the_name_of_the_user(tmp_path):
    users, tokens = directory_of(tmp_path, ANA, BEN)
    audit = AuditLog(tmp_path / "audit.jsonl")
    script = [call("launch", where="moon"), "Done."]
    async with served(tmp_path, script, [launch], users=users, audit=audit) as client:
        own = (await client.ask("POST", "/api/sessions", {}, token=tokens["ana"]))[1]["id"]
        await client.ask("POST", f"/api/sessions/{own}/prompt", {"text": "go"}, token=tokens["ana"])
        async with asyncio.timeout(30):
            while not (asked := (await client.ask("GET", "/api/approvals", token=tokens["ana"]))[1]):
                await asyncio.sleep(0.01)
        path = f"/api/approvals/{asked[0]['id']}"
        assert (await client.ask("GET", "/api/approvals", token=tokens["ben"]))[1] == []
        assert (await client.ask("POST", path, {"allow": True}, token=tokens["ben"]))[0] == 404
        status, answer = await client.ask("POST", path, {"allow": True}, token=tokens["ana"])
        assert (status, answer["answered_by"]) == (200, "ana")
    entries = [(entry["action"], entry["user"], entry["path"], entry["status"]) for entry in audit.read()]
    assert ("request", "ben", path, 404) in entries and ("request", "ana", path, 200) in entries


async def test_a_budget_and_a_rate_of_a_user_or_a_team_are_enforced(tmp_path):
    users, tokens = directory_of(tmp_path, ANA, BEN, VIC)
    users.put_team(ServerTeam(name="red", budget=Decimal("0")))
    async with served(tmp_path, ["one"], users=users) as client:
        own = (await client.ask("POST", "/api/sessions", {}, token=tokens["ana"]))[1]["id"]
        status, answer = await client.ask("POST", f"/api/sessions/{own}/prompt", {"text": "x"}, token=tokens["ana"])
        assert status == 409 and "the team red" in answer["error"]["message"], answer
        users.put_team(ServerTeam(name="red"))
        status, _ = await client.ask("POST", f"/api/sessions/{own}/prompt", {"text": "x"}, token=tokens["ana"])
        assert status == 202
        stored = users.get("vic")
        assert stored is not None
        users.put(ServerUser(name="vic", role="viewer", tokens=stored.tokens, rate=1))
        seen = [(await client.ask("GET", "/api/me", token=tokens["vic"]))[0] for _ in range(12)]
        assert seen[0] == 200 and seen[-1] == 429
        assert (await client.ask("GET", "/api/me", token=tokens["ana"]))[0] == 200


async def test_sessions_of_a_user_stay_in_the_folder_of_the_user(tmp_path):
    folder, other = tmp_path / "ana", tmp_path / "other"
    (folder / "app").mkdir(parents=True)
    other.mkdir()
    (folder / "out").symlink_to(other)
    users, tokens = directory_of(tmp_path, ServerUser(name="ana", workspace=str(folder)))
    async with served(tmp_path, [], users=users) as client:
        made = (await client.ask("POST", "/api/sessions", {}, token=tokens["ana"]))[1]
        assert made["workspace_directory"] == str(folder)
        inside = await client.ask("POST", "/api/sessions", {"workspace": str(folder / "app")}, token=tokens["ana"])
        assert inside[0] == 201
        for wrong in (other, folder / "out", folder / ".." / "other"):
            status, _ = await client.ask("POST", "/api/sessions", {"workspace": str(wrong)}, token=tokens["ana"])
            assert status == 403, wrong
            assert (await client.ask("GET", f"/api/folders?path={wrong}", token=tokens["ana"]))[0] == 403
        assert (await client.ask("POST", "/api/sessions", {"workspace": str(other)}))[0] == 201, "the server's token"
        (other / "notes.txt").write_text("of another user")
        (folder / "app").rmdir()
        (folder / "app").symlink_to(other)
        path = f"/api/sessions/{inside[1]['id']}"
        message = {"role": "user", "content": "go"}
        chat = {"model": "writer", "messages": [message], "session_id": inside[1]["id"]}
        for method, route, body in (
            ("GET", f"{path}/file?path=notes.txt", None),
            ("POST", f"{path}/prompt", {"text": "read it"}),
            ("POST", "/v1/chat/completions", chat),
        ):
            status, answer = await client.ask(method, route, body, token=tokens["ana"])
            assert status == 403 and "not in" in answer["error"]["message"], (route, answer)
        assert (await client.ask("GET", f"/api/sessions/{made['id']}/tree", token=tokens["ana"]))[0] == 200


async def test_a_removed_user_a_revoked_token_and_an_expired_one_end_at_once(tmp_path):
    now = [1000.0]
    users = UserDirectory(tmp_path / "server" / "users.json", clock=lambda: now[0])
    users.put(ANA)
    users.put(BEN)
    first, second = users.create_token("ana"), users.create_token("ana", days=1)
    assert first not in (tmp_path / "server" / "users.json").read_text()
    async with served(tmp_path, [], users=users) as client:
        link = (await client.ask("POST", "/api/login-links?user=ana"))[1]["url"]
        async with client.http.get(link, allow_redirects=False) as answer:
            login = answer.headers["Location"].removeprefix("/#/sign-in/")
        assert (await client.ask("GET", "/api/me", token=login))[1]["name"] == "ana"
        assert (await client.ask("POST", "/api/login-links?user=ben", token=first))[0] == 403
        other_directory = UserDirectory(tmp_path / "server" / "users.json")  # as `outrider users` would
        stored = other_directory.get("ana")
        assert stored is not None and other_directory.revoke_token("ana", stored.tokens[0].id)
        assert (await client.ask("GET", "/api/me", token=first))[0] == 401
        assert (await client.ask("GET", "/api/me", token=second))[0] == 200
        now[0] += 86_401
        assert (await client.ask("GET", "/api/me", token=second))[0] == 401
        assert (await client.ask("GET", "/api/me", token=login))[0] == 200
        other_directory.remove("ana")
        assert (await client.ask("GET", "/api/me", token=login))[0] == 401
        assert (await client.ask("GET", "/api/me", token=TOKEN))[1]["role"] == "admin"


def test_names_and_roles_are_checked_and_the_file_is_private(tmp_path):
    users = UserDirectory(tmp_path / "users.json")
    for name in ("", "server", "*", "team:red", "a b", "../x", "-x"):
        with pytest.raises(ConfigurationError, match="name"):
            users.put(ServerUser(name=name))
    with pytest.raises(ConfigurationError, match="role"):
        users.put(ServerUser(name="ana", role="owner"))  # pyright: ignore[reportArgumentType]
    users.put(ANA)
    assert (tmp_path / "users.json").stat().st_mode & 0o077 == 0
    (tmp_path / "users.json").chmod(0o644)
    with pytest.raises(ConfigurationError, match="readable by other users"):
        _ = UserDirectory(tmp_path / "users.json").users


def test_the_command_line_manages_users_and_prints_the_audit_log(tmp_path):
    def outrider(*arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "OUTRIDER_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-m", "outrider", *arguments]
        return subprocess.run(
            command, check=False, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
        )

    token = outrider("users", "add", "ana", "--team", "red", "--budget", "12.50").stdout.strip()
    assert token.startswith("otr_")
    assert outrider("users", "add", "ana").returncode == 2
    assert outrider("users", "set", "ana", "--role", "viewer").returncode == 0
    other = outrider("users", "token", "ana", "--label", "laptop").stdout.strip()
    listed = json.loads(outrider("users", "list", "--json").stdout)
    assert (listed["role"], listed["team"], listed["budget"]) == ("viewer", "red", "12.50")
    assert [one["label"] for one in listed["tokens"]] == ["", "laptop"] and other not in json.dumps(listed)
    assert "laptop" in outrider("users").stdout
    assert outrider("users", "revoke", "ana", listed["tokens"][0]["id"]).returncode == 0
    AuditLog(tmp_path / "home" / "server" / "audit.jsonl").write("sign-in", user="ana", client="203.0.113.9")
    AuditLog(tmp_path / "home" / "server" / "audit.jsonl").write("denied", user="ben", reason="forbidden")
    assert "ana  sign-in  client=203.0.113.9" in outrider("audit").stdout
    assert json.loads(outrider("audit", "--user", "ben", "--json").stdout)["reason"] == "forbidden"
    assert outrider("users", "remove", "ana").returncode == 0
    assert outrider("users", "remove", "ana").returncode == 2


async def wait_for_approval(client: Client, token: str) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while not (asked := (await client.ask("GET", "/api/approvals", token=token))[1]):
            await asyncio.sleep(0.01)
    return asked[0]


async def test_an_answer_to_an_own_approval_answers_no_approval_of_another_user(tmp_path):
    users, tokens = directory_of(tmp_path, ANA, BEN)
    script = [call("launch", where="mars"), *[call("launch", where="moon"), "done"] * 3]

    async def ask_for_approval(name: str) -> str:
        own = (await client.ask("POST", "/api/sessions", {}, token=tokens[name]))[1]["id"]
        await client.ask("POST", f"/api/sessions/{own}/prompt", {"text": "go"}, token=tokens[name])
        return (await wait_for_approval(client, tokens[name]))["id"]

    async with served(tmp_path, script, [launch], users=users) as client:
        other = await ask_for_approval("ana")
        for kind in ("chat", "responses", "ag-ui"):
            ids = [await ask_for_approval("ben"), other]
            tool_messages = [{"role": "tool", "tool_call_id": one, "content": "allow"} for one in ids]
            chat = {
                "model": "writer",
                "messages": tool_messages,
                "tools": [{"function": {"name": "outrider_approval"}}],
            }
            items = [{"type": "mcp_approval_response", "approval_request_id": one, "approve": True} for one in ids]
            entries = [{"interruptId": one, "status": "resolved", "payload": {"approved": True}} for one in ids]
            path, body = {
                "chat": ("/v1/chat/completions", chat),
                "responses": ("/v1/responses", {"model": "writer", "input": items}),
                "ag-ui": ("/agui/writer", {"threadId": "t", "runId": "r", "resume": entries}),
            }[kind]
            status, answer = await client.ask("POST", path, body, token=tokens["ben"])
            assert status == 200, answer
            still_open = [one.id for one in await client.engine.approvals()]
            assert still_open == [other], kind


async def test_a_lasting_answer_of_an_operator_does_not_allow_calls_of_other_users(tmp_path):
    folders = [tmp_path / "ana", tmp_path / "ben"]
    for folder in folders:
        folder.mkdir()
    ana, ben = [ServerUser(name=folder.name, workspace=str(folder)) for folder in folders]
    users, tokens = directory_of(tmp_path, ana, ben, ADA)
    script = [call("launch", where="mars"), "done", call("launch", where="mars"), "done"]
    async with served(tmp_path, script, [launch], users=users) as client:
        own = (await client.ask("POST", "/api/sessions", {}, token=tokens["ana"]))[1]["id"]
        await client.ask("POST", f"/api/sessions/{own}/prompt", {"text": "go"}, token=tokens["ana"])
        asked = await wait_for_approval(client, tokens["ana"])
        answer = {"allow": True, "scope": "always"}
        status, answered = await client.ask("POST", f"/api/approvals/{asked['id']}", answer, token=tokens["ana"])
        assert (status, answered["scope"]) == (200, "project")
        async with asyncio.timeout(30):  # both sessions read the same script
            while client.engine.live[own].is_busy:
                await asyncio.sleep(0.01)
        other = (await client.ask("POST", "/api/sessions", {}, token=tokens["ben"]))[1]["id"]
        await client.ask("POST", f"/api/sessions/{other}/prompt", {"text": "go"}, token=tokens["ben"])
        asked = await wait_for_approval(client, tokens["ben"])
        status, answered = await client.ask("POST", f"/api/approvals/{asked['id']}", answer, token=tokens["ada"])
        assert (status, answered["scope"]) == (200, "always")


async def test_a_budget_includes_deleted_sessions_and_holds_for_those_that_a_session_is_shared_with(tmp_path):
    users, tokens = directory_of(tmp_path, ServerUser(name="ana", budget=Decimal(1)), BEN)
    async with served(tmp_path, ["one", "two"], users=users) as client:
        own = (await client.ask("POST", "/api/sessions", {}, token=tokens["ana"]))[1]["id"]
        path, prompt = f"/api/sessions/{own}", {"text": "go", "wait": True}
        assert (await client.ask("POST", f"{path}/prompt", prompt, token=tokens["ana"]))[0] == 202
        model, now = ModelRef("scripted", "model-1"), MessageTime(now_ms())
        spent = Message("assistant", [TextPart("so")], session_id=own, time=now, model=model, cost=Decimal(2))
        await client.engine.close(own)
        await client.engine.store.append(own, [spent])
        await client.ask("POST", f"{path}/shares", {"to": "ben", "level": "write"}, token=tokens["ana"])
        message = {"role": "user", "content": "go"}
        for name in ("ana", "ben"):
            for route, body in (
                (f"{path}/prompt", prompt),
                ("/v1/chat/completions", {"model": "writer", "messages": [message], "session_id": own}),
                ("/agui/writer", {"threadId": own, "runId": "r", "messages": [message]}),
            ):
                status, answer = await client.ask("POST", route, body, token=tokens[name])
                assert status == 409 and "dollars per month for ana" in answer["error"]["message"], (
                    name,
                    route,
                    answer,
                )
        assert (await client.ask("DELETE", path, token=tokens["ana"]))[0] == 204
        own = (await client.ask("POST", "/api/sessions", {}, token=tokens["ana"]))[1]["id"]
        assert (await client.ask("POST", f"/api/sessions/{own}/prompt", prompt, token=tokens["ana"]))[0] == 409
        own = (await client.ask("POST", "/api/sessions", {}, token=tokens["ben"]))[1]["id"]
        assert (await client.ask("POST", f"/api/sessions/{own}/prompt", prompt, token=tokens["ben"]))[0] == 202


async def test_a_stream_ends_with_the_access_and_reports_nothing_about_deleted_sessions_of_others(tmp_path):
    users, tokens = directory_of(tmp_path, ANA, BEN, VIC)
    async with served(tmp_path, ["one"], users=users) as client:
        own, other = [(await client.ask("POST", "/api/sessions", {}, token=tokens["ana"]))[1]["id"] for _ in range(2)]
        path = f"/api/sessions/{own}"
        await client.ask("POST", f"{path}/shares", {"to": "ben"}, token=tokens["ana"])
        await client.ask("POST", f"{path}/shares", {"to": "vic"}, token=tokens["ana"])
        seen: dict[str, bytes] = {}

        async def read(name: str, route: str) -> None:
            headers = {"Authorization": f"Bearer {tokens[name]}"}
            async with client.http.get(client.address.url + route, headers=headers) as answer:
                assert answer.status == 200
                async for line in answer.content:
                    seen[name + route] = seen.get(name + route, b"") + line

        readers = [
            asyncio.create_task(read(name, route))
            for name in ("ben", "vic")
            for route in (f"{path}/events", f"/api/events?follow={own}:0", f"/api/events?follow={own}:0&views=true")
        ]
        async with asyncio.timeout(60):
            while len(seen) < len(readers) or not all(own.encode() in text for text in seen.values()):
                await asyncio.sleep(0.01)
            assert (await client.ask("DELETE", f"/api/sessions/{other}", token=tokens["ana"]))[0] == 204
            await asyncio.sleep(ACCESS_SECONDS)
            await client.ask("DELETE", f"{path}/shares/ben", token=tokens["ana"])
            users.remove("vic")
            await client.ask("PATCH", path, {"title": "a secret title"}, token=tokens["ana"])
            await asyncio.gather(*readers)
        for text in seen.values():
            assert b"secret" not in text and other.encode() not in text


def oidc_logins(users: UserDirectory, metadata: ProviderMetadata | None = None) -> OidcLogins:
    settings = OidcSettings(issuer="https://login.example", client_id="outrider", roles={"ops": "operator"})
    return OidcLogins(settings, users, "https://agents.example/login/callback", metadata=metadata)


def test_no_other_user_gets_the_name_of_a_removed_one_who_comes_back_with_the_same_limits(tmp_path):
    users = UserDirectory(tmp_path / "users.json")
    logins = oidc_logins(users)
    ana = {"iss": "https://login.example", "sub": "7", "preferred_username": "ana", "groups": ["ops"]}
    eve = ana | {"sub": "8"}
    stored = logins.store_user(ana)
    users.put(msgspec.structs.replace(stored, budget=Decimal(5), workspace="/srv/ana"))
    users.create_token("ana")
    with pytest.raises(AccessDeniedError, match="no role"):
        logins.store_user(ana | {"groups": [{"name": "ops"}]})
    assert users.get("ana") is None
    with pytest.raises(AccessDeniedError, match="another user ana"):
        logins.store_user(eve)
    logins.store_user(ana)
    found = UserDirectory(tmp_path / "users.json").get("ana")
    assert found is not None and (found.budget, found.workspace, found.tokens) == (Decimal(5), "/srv/ana", ())
    assert users.remove("ana") and not users.remove("ana")
    with pytest.raises(AccessDeniedError, match="another user ana"):
        logins.store_user(eve)
    assert users.remove("ana", forget=True)
    assert logins.store_user(eve).subject == "https://login.example 8"
    with pytest.raises(AccessDeniedError, match="another user ana"):
        logins.store_user(ana)


async def test_a_login_of_a_removed_user_is_not_one_of_the_next_user_of_that_name(tmp_path):
    now = [time.time() - 100]
    users = UserDirectory(tmp_path / "server" / "users.json", clock=lambda: now[0])
    users.put(ANA)
    async with served(tmp_path, [], users=users) as client:
        link = (await client.ask("POST", "/api/login-links?user=ana"))[1]["url"]
        async with client.http.get(link, allow_redirects=False) as answer:
            login = answer.headers["Location"].removeprefix("/#/sign-in/")
        users.put(msgspec.structs.replace(ANA, role="viewer"))
        assert (await client.ask("GET", "/api/me", token=login))[1]["role"] == "viewer"
        users.remove("ana")
        now[0] += 200
        users.put(ANA)
        assert (await client.ask("GET", "/api/me", token=login))[0] == 401


async def test_a_login_answer_with_a_strange_cookie_is_refused(tmp_path):
    metadata = ProviderMetadata("https://login.example", "https://login.example/a", "https://x/t")
    logins = oidc_logins(UserDirectory(tmp_path / "users.json"), metadata)
    state = parse_qs(urlsplit((await logins.start()).url).query)["state"][0]
    with pytest.raises(AccessDeniedError, match="not started in this browser"):
        await logins.finish({"state": state, "code": "x"}, "\xe9")


async def test_a_login_ends_with_the_token_that_it_was_made_with(tmp_path):
    now = [time.time()]
    users = UserDirectory(tmp_path / "server" / "users.json", clock=lambda: now[0])
    users.put(ANA)
    users.put(ADA)
    token, admin = users.create_token("ana", days=1), users.create_token("ada")
    async with served(tmp_path, [], users=users) as client:

        async def sign_in(url: str) -> str:
            async with client.http.get(url, allow_redirects=False) as answer:
                return answer.headers["Location"].removeprefix("/#/sign-in/")

        async def make_link(given: str, query: str = "") -> str:
            return (await client.ask("POST", f"/api/login-links{query}", token=given))[1]["url"]

        direct = await sign_in(f"{client.address.url}/?token={token}")
        second = await sign_in(await make_link(direct))
        others = await sign_in(await make_link(admin, "?user=ana"))
        unused = await make_link(token)
        for login in (direct, second, others):
            assert (await client.ask("GET", "/api/me", token=login))[1]["name"] == "ana"
        now[0] += 86_401
        answers = [(await client.ask("GET", "/api/me", token=login))[0] for login in (direct, second, others)]
        assert answers == [401, 401, 200]
        async with client.http.get(unused, allow_redirects=False) as answer:
            assert answer.status == 401
        assert (await client.ask("POST", "/api/login-links?user=server", token=admin))[0] == 403


async def test_a_link_of_a_removed_user_is_not_one_of_the_next_user_of_that_name(tmp_path):
    now = [time.time() - 100]
    users = UserDirectory(tmp_path / "server" / "users.json", clock=lambda: now[0])
    users.put(ANA)
    async with served(tmp_path, [], users=users) as client:
        link = (await client.ask("POST", "/api/login-links?user=ana"))[1]["url"]
        users.remove("ana")
        now[0] += 200
        users.put(ANA)
        async with client.http.get(link, allow_redirects=False) as answer:
            assert answer.status == 401


async def test_a_session_of_a_removed_user_can_only_be_read_and_stays_limited(tmp_path):
    users, tokens = directory_of(tmp_path, msgspec.structs.replace(ANA, workspace=str(tmp_path / "ana")), BEN)
    async with served(tmp_path, ["one", "two"], users=users) as client:
        made = (await client.ask("POST", "/api/sessions", {}, token=tokens["ana"]))[1]["id"]
        shared = {"to": "ben", "level": "write"}
        assert (await client.ask("POST", f"/api/sessions/{made}/shares", shared, token=tokens["ana"]))[0] == 201
        path, sent = f"/api/sessions/{made}/prompt", {"text": "go", "wait": True}
        assert (await client.ask("POST", path, sent, token=tokens["ben"]))[0] == 202
        users.remove("ana")
        assert (await client.ask("GET", f"/api/sessions/{made}", token=tokens["ben"]))[0] == 200
        assert (await client.ask("POST", path, sent, token=tokens["ben"]))[0] == 403
        assert str(tmp_path / "ana") in (users.limits_of_owner("ben") or OwnerLimits()).hidden
        users.remove("ben")
        assert users.users == ()
        assert users.limits_of_owner("ana") is not None
