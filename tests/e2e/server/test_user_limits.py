"""Sessions of users who are not administrators cannot leave their folder and the sandbox."""

import asyncio
import shutil
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from outrider import Provider, Tool
from outrider.engine.approval_gate import Rules
from outrider.engine.archive import SessionFilter
from outrider.engine.session_tools import ToolEnvironment, limit_answer
from outrider.event_bus import EventBus
from outrider.processes.git import GitRunner
from outrider.processes.sandbox.sandbox import NoSandbox, Sandbox
from outrider.project.extensions import UserPaths, WorkspaceExtensions
from outrider.project.trust import TrustList
from outrider.providers.scripted import call
from outrider.server.endpoint import ACCESS_SECONDS
from outrider.server.routes.sessions import MAX_SEARCHED, find_original
from outrider.server.state import BudgetWatcher
from outrider.server.users import ClientRateLimits, ServerUser, UserDirectory, UserLimits
from outrider.sessions.records import StoredSession
from outrider.types.outcomes import BlockedAccess, CommandOutcome, OutcomeAnswer, OutcomeChoice
from tests.e2e.server.http_server import TOKEN, Client, served
from tests.e2e.server.test_users import ADA, ANA, BEN, VIC, directory_of

SECRET = "the-token-of-the-administrator"


@asynccontextmanager
async def limited(
    tmp_path: Path,
    sandbox: Sandbox,
    script: Any,
    users: UserDirectory,
    extensions: WorkspaceExtensions | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Client, Path]]:
    data = tmp_path / "home"
    data.mkdir(exist_ok=True)
    (data / "secret").write_text(SECRET)
    environment = ToolEnvironment(
        sandbox=sandbox,
        data=data,
        home=tmp_path,
        bus=EventBus(),
        limits_of_owner=users.limits_of_owner,
        extensions=extensions,
    )
    async with served(tmp_path, script, users=users, surroundings=environment, **options) as client:
        yield client, data / "secret"


async def start(client: Client, token: str, folder: Path, mode: str = "agent") -> str:
    status, made = await client.ask("POST", "/api/sessions", {"workspace": str(folder), "mode": mode}, token=token)
    assert status == 201, made
    return made["id"]


async def test_commands_and_calls_of_an_operator_do_not_leave_the_workspace(tmp_path: Path, sandbox: Sandbox):
    folder = tmp_path / "ana"
    folder.mkdir()
    users, tokens = directory_of(tmp_path, msgspec.structs.replace(ANA, workspace=str(folder)), ADA)
    async with limited(tmp_path, sandbox, ["hi"], users) as (client, secret):
        own, token = await start(client, tokens["ana"], folder), tokens["ana"]
        typed = {"command": f"cat {secret}; echo made > made.txt"}
        status, shown = await client.ask("POST", f"/api/sessions/{own}/commands", typed, token=token)
        assert status == 200
        assert SECRET.encode() not in shown
        assert (folder / "made.txt").read_text() == "made\n"
        read = {"tool": "read", "input": {"path": str(secret)}}
        status, ended = await client.ask("POST", f"/api/sessions/{own}/calls", read, token=token)
        assert status == 200
        assert ended["state"]["status"] == "error"
        assert "stay in their workspace" in ended["state"]["error"]
        assert (await client.ask("GET", "/api/approvals", token=token))[1] == []
        theirs = await start(client, tokens["ada"], folder)
        shown = (await client.ask("POST", f"/api/sessions/{theirs}/commands", typed, token=tokens["ada"]))[1]
        assert SECRET.encode() in shown
        users.put(msgspec.structs.replace(users.get("ana") or ANA, role="admin"))
        assert SECRET.encode() in (await client.ask("POST", f"/api/sessions/{own}/commands", typed, token=token))[1]


@pytest.mark.parametrize("accepted", [False, True], ids=["none works", "--no-sandbox"])
@pytest.mark.parametrize("mode", ["agent", "background"])
async def test_an_operator_without_a_sandbox_runs_no_commands(tmp_path: Path, mode: str, *, accepted: bool):
    users, tokens = directory_of(tmp_path, ANA, ADA)
    folder = tmp_path / "work"
    folder.mkdir()
    sandbox = NoSandbox("none is wanted", "", accepted=accepted)
    script = [call("shell", command="touch made; echo made"), "done"]
    rules = Rules(allow=("shell(touch *)", "shell(echo *)", "shell(id)"))
    async with limited(tmp_path, sandbox, script, users, rules=rules) as (client, _):
        own, token = await start(client, tokens["ana"], folder, mode), tokens["ana"]
        for typed in ("id", "touch made"):
            answer = (await client.ask("POST", f"/api/sessions/{own}/commands", {"command": typed}, token=token))[1]
            assert b"commands of this user run only in a sandbox" in answer, typed
            shell = {"tool": "shell", "input": {"command": typed}}
            status, ended = await client.ask("POST", f"/api/sessions/{own}/calls", shell, token=token)
            assert (status, ended["state"]["status"]) == (200, "error")
            assert "commands of this user run only in a sandbox" in ended["state"]["error"]
        sent = {"text": "go", "wait": True}
        assert (await client.ask("POST", f"/api/sessions/{own}/prompt", sent, token=token))[0] == 202
        assert not (folder / "made").exists()
        users.put(msgspec.structs.replace(users.get("ana") or ANA, role="admin"))
        await client.ask("POST", f"/api/sessions/{own}/commands", {"command": "touch made"}, token=token)
        assert (folder / "made").exists()


async def test_a_link_that_changes_after_the_question_gives_no_access(tmp_path: Path, sandbox: Sandbox):
    folder = tmp_path / "ana"
    folder.mkdir()
    (folder / "inside").mkdir()
    (folder / "link").symlink_to("inside")
    users, tokens = directory_of(tmp_path, msgspec.structs.replace(ANA, workspace=str(folder)))
    written = call("write", path="link/made.txt", content="new")
    async with limited(tmp_path, sandbox, [written, "done"], users) as (client, secret):
        own, token = await start(client, tokens["ana"], folder), tokens["ana"]
        await client.ask("POST", f"/api/sessions/{own}/prompt", {"text": "go"}, token=token)
        async with asyncio.timeout(30):
            while not (asked := (await client.ask("GET", "/api/approvals", token=token))[1]):
                await asyncio.sleep(0.02)
        (folder / "link").unlink()
        (folder / "link").symlink_to(secret.parent)
        answer = {"allow": True}
        assert (await client.ask("POST", f"/api/approvals/{asked[0]['id']}", answer, token=token))[0] == 200
        async with asyncio.timeout(30):
            while client.engine.live[own].in_turn:
                await asyncio.sleep(0.02)
        assert not (secret.parent / "made.txt").exists()


async def test_folders_of_other_users_are_hidden_from_tools_commands_and_routes(tmp_path: Path, sandbox: Sandbox):
    shared, folder = tmp_path / "work", tmp_path / "work" / "ana"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text(SECRET)
    owner = ServerUser(name="ana", workspace=str(folder))
    users, tokens = directory_of(tmp_path, owner, msgspec.structs.replace(BEN, workspace=str(shared)))
    async with limited(tmp_path, sandbox, ["hi"], users) as (client, _):
        own, token = await start(client, tokens["ben"], shared), tokens["ben"]
        status, answer = await client.ask("GET", f"/api/sessions/{own}/file?path=ana/notes.txt", token=token)
        assert status == 400, answer
        typed = {"command": "cat ana/notes.txt"}
        assert SECRET.encode() not in (await client.ask("POST", f"/api/sessions/{own}/commands", typed, token=token))[1]
        for tool, given in (("read", {"path": "ana/notes.txt"}), ("grep", {"pattern": "token"})):
            asked = {"tool": tool, "input": given}
            ended = (await client.ask("POST", f"/api/sessions/{own}/calls", asked, token=token))[1]
            assert SECRET not in str(ended["state"]), tool
        chosen = {"workspace": str(folder)}
        assert (await client.ask("POST", "/api/sessions", chosen, token=token))[0] == 403
        theirs = await start(client, tokens["ana"], folder)
        shown = await client.ask("GET", f"/api/sessions/{theirs}/file?path=notes.txt", token=tokens["ana"])
        assert shown[1]["text"] == SECRET


async def test_a_commit_takes_no_files_of_other_folders_and_writes_to_no_other_repository(tmp_path: Path):
    folder, other = tmp_path / "ana", tmp_path / "other"
    users, tokens = directory_of(tmp_path, msgspec.structs.replace(ANA, workspace=str(folder)))
    for place in (folder, other):
        place.mkdir()
        GitRunner().run(place, "init", "--quiet")
        for key, value in (("user.name", "Ana"), ("user.email", "ana@example.com")):
            GitRunner().run(place, "config", key, value)
    (folder / "secret").write_text("own")
    async with limited(tmp_path, NoSandbox("none is wanted", ""), ["hi"], users) as (client, secret):
        own, token = await start(client, tokens["ana"], folder), tokens["ana"]
        wanted = {"message": "take it", "paths": [secret.name]}
        path = f"/api/sessions/{own}/review/commit"
        assert (await client.ask("POST", path, wanted, token=token))[0] == 201
        GitRunner().run(folder, "config", "core.worktree", str(secret.parent))
        status, answer = await client.ask("POST", path, wanted, token=token)
        assert status == 404
        assert "work tree in another folder" in answer["error"]["message"]
        shutil.rmtree(folder / ".git")
        (folder / ".git").write_text(f"gitdir: {other}/.git\n")
        status, answer = await client.ask("POST", path, wanted, token=token)
        assert "is in another folder" in answer["error"]["message"]


async def test_the_folder_of_the_server_itself_is_no_workspace(tmp_path: Path):
    users, tokens = directory_of(tmp_path, msgspec.structs.replace(ANA, workspace=str(tmp_path / "home")))
    async with limited(tmp_path, NoSandbox("none is wanted", ""), ["hi"], users) as (client, _):
        status, answer = await client.ask("POST", "/api/sessions", {}, token=tokens["ana"])
        assert (status, answer["error"]["type"]) == (403, "forbidden")
        assert "outrider users set ana --workspace" in answer["error"]["message"]


async def test_users_without_a_workspace_get_a_folder_of_their_name(tmp_path: Path):
    users = UserDirectory(tmp_path / "server" / "users.json", folders=tmp_path / "people")
    for user in (ANA, BEN):
        users.put(user)
    tokens = {name: users.create_token(name) for name in ("ana", "ben")}
    async with served(tmp_path, ["hi"], users=users) as client:
        for name in ("ana", "ben"):
            made = (await client.ask("POST", "/api/sessions", {}, token=tokens[name]))[1]
            assert made["workspace_directory"] == str(tmp_path / "people" / name)
        other = {"workspace": str(tmp_path / "people" / "ben")}
        assert (await client.ask("POST", "/api/sessions", other, token=tokens["ana"]))[0] == 403
        listed = (await client.ask("GET", "/api/folders", token=tokens["ana"]))[1]
        assert listed["path"] == str(tmp_path / "people" / "ana")
        status, _ = await client.ask("GET", f"/api/folders?path={tmp_path}", token=tokens["ana"])
        users.put(VIC)
        assert (await client.ask("GET", "/api/folders", token=users.create_token("vic")))[0] == 403
        assert status == 403
        assert (await client.ask("GET", f"/api/folders?path={tmp_path}", token=TOKEN))[0] == 200


async def test_requests_of_a_user_have_the_key_of_that_user(tmp_path: Path):
    users, tokens = directory_of(tmp_path, ANA, BEN)
    keys: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        keys.append(request.headers["Authorization"])
        return web.json_response({"error": {"message": "no", "type": "invalid_request_error"}}, status=400)

    site = web.Application()
    site.router.add_post("/v1/chat/completions", refuse)
    environment = ToolEnvironment(
        sandbox=NoSandbox("none is wanted", ""), data=tmp_path / "home", home=tmp_path, bus=EventBus()
    )
    async with (
        TestServer(site) as model,
        served(tmp_path, ["hi"], users=users, surroundings=environment) as client,
    ):
        runtime = client.engine.runtime
        await runtime.update_providers([Provider("openai", "openai", "server-key", str(model.make_url("/v1")))])
        runtime.keys_of_owner = users.keys_of_owner
        own = users.key_store("ana")
        assert own is not None
        own.store("openai", "key-of-ana")

        async def send(name: str) -> str:
            made = (await client.ask("POST", "/api/sessions", {}, token=tokens[name]))[1]["id"]
            chosen = {"model": "openai/gpt-5"}
            assert (await client.ask("POST", f"/api/sessions/{made}/model", chosen, token=tokens[name]))[0] == 200
            sent = {"text": "hello", "wait": True}
            assert (await client.ask("POST", f"/api/sessions/{made}/prompt", sent, token=tokens[name]))[0] == 202
            return keys[-1]

        assert await send("ana") == "Bearer key-of-ana"
        assert await send("ben") == "Bearer server-key"
        shown = (await client.ask("GET", "/api/settings", token=tokens["ana"]))[1]["providers"]
        assert [one["is_stored"] for one in shown if one["name"] == "openai"] == [True]
        removed = {"variable": "OPENAI_API_KEY", "key": ""}
        assert (await client.ask("POST", "/api/keys", removed, token=tokens["ana"]))[0] == 204
        assert await send("ana") == "Bearer server-key"
        own.store("openai", "key-of-ana")
        users.remove("ana")
        assert users.keys_of_owner("ana") == {}
        assert (await client.ask("POST", "/api/keys", {**removed, "own": True}, token=TOKEN))[0] == 400


async def test_a_what_if_has_the_key_of_the_owner(tmp_path: Path):
    users, tokens = directory_of(tmp_path, ANA)
    keys: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        keys.append(request.headers["Authorization"])
        return web.json_response({"error": {"message": "no", "type": "invalid_request_error"}}, status=400)

    site = web.Application()
    site.router.add_post("/v1/chat/completions", refuse)
    async with TestServer(site) as model, served(tmp_path, ["hi"], users=users) as client:
        runtime, token = client.engine.runtime, tokens["ana"]
        await runtime.update_providers([Provider("openai", "openai", "server-key", str(model.make_url("/v1")))])
        runtime.keys_of_owner = users.keys_of_owner
        own = users.key_store("ana")
        assert own is not None
        own.store("openai", "key-of-ana")
        made = (await client.ask("POST", "/api/sessions", {}, token=token))[1]["id"]
        sent = {"text": "hello", "wait": True}
        assert (await client.ask("POST", f"/api/sessions/{made}/prompt", sent, token=token))[0] == 202
        change = {"model": "openai/gpt-5"}
        status, answer = await client.ask("POST", f"/api/sessions/{made}/what-if", change, token=token)
        assert status == 200, answer
        assert set(keys) == {"Bearer key-of-ana"}


async def test_copies_belong_to_the_owner_and_only_the_owner_deletes(tmp_path: Path):
    users, tokens = directory_of(tmp_path, ANA, BEN)
    async with served(tmp_path, ["hi"], users=users) as client:
        headers = {"Idempotency-Key": "one"}
        own = (await client.ask("POST", "/api/sessions", {}, token=tokens["ana"], headers=headers))[1]["id"]
        sent = {"text": "hello", "wait": True}
        assert (await client.ask("POST", f"/api/sessions/{own}/prompt", sent, token=tokens["ana"]))[0] == 202
        shared = {"to": "ben", "level": "write"}
        assert (await client.ask("POST", f"/api/sessions/{own}/shares", shared, token=tokens["ana"]))[0] == 201
        status, copy = await client.ask("POST", f"/api/sessions/{own}/fork", {}, token=tokens["ben"])
        assert (status, copy["owner"]) == (201, "ana")
        assert (await client.ask("GET", f"/api/sessions/{copy['id']}", token=tokens["ben"]))[0] == 200
        for one in (own, copy["id"]):
            status, answer = await client.ask("DELETE", f"/api/sessions/{one}", token=tokens["ben"])
            assert (status, answer["error"]["message"]) == (403, "only the owner of a session can delete it")
        assert (await client.ask("DELETE", f"/api/sessions/{copy['id']}/shares/ben", token=tokens["ana"]))[0] == 204
        assert (await client.ask("GET", f"/api/sessions/{copy['id']}", token=tokens["ben"]))[0] == 404
        again = await find_original(client.engine, SessionFilter(metadata={"idempotency_key": "one"}, owner="ana"))
        assert again is not None
        assert again.id == own


async def test_a_stream_of_a_protocol_ends_with_the_access(tmp_path: Path):
    users, tokens = directory_of(tmp_path, ANA, BEN)
    async with served(tmp_path, [call("wait_long"), "done"], [wait_long], users=users) as client:
        own = (await client.ask("POST", "/api/sessions", {}, token=tokens["ana"]))[1]["id"]
        shared = {"to": "ben", "level": "write"}
        assert (await client.ask("POST", f"/api/sessions/{own}/shares", shared, token=tokens["ana"]))[0] == 201
        body = {"model": "writer", "stream": True, "session_id": own, "messages": [{"role": "user", "content": "go"}]}
        headers = {"Authorization": f"Bearer {tokens['ben']}"}
        url = f"{client.address.url}/v1/chat/completions"
        async with client.http.post(url, json=body, headers=headers) as answer, asyncio.timeout(30):
            assert answer.status == 200
            await answer.content.readline()
            assert (await client.ask("DELETE", f"/api/sessions/{own}/shares/ben", token=tokens["ana"]))[0] == 204
            RELEASED.set()
            rest = await answer.content.read()
        assert b"done" not in rest


RELEASED = threading.Event()


@Tool
def wait_long() -> str:
    """Wait."""
    RELEASED.wait(20)
    time.sleep(ACCESS_SECONDS)
    return "waited"


def test_changes_of_two_processes_are_not_lost(tmp_path: Path):
    first, second = (UserDirectory(tmp_path / "users.json") for _ in range(2))
    first.put(ANA)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: (first, second)[number % 2].create_token("ana"), range(40)))
    assert len((second.get("ana") or ANA).tokens) == 40
    assert all(first.find_by_token(token) for token in made)
    second.change("ana", lambda user: msgspec.structs.replace(user, role="viewer"))
    assert (first.get("ana") or ANA).role == "viewer"


def test_one_client_does_not_use_up_the_logins_of_others():
    limits = ClientRateLimits(per_second=0.001, burst=2)
    assert [limits.allow_request("192.0.2.1") for _ in range(3)] == [True, True, False]
    assert limits.allow_request("192.0.2.2")
    assert [limits.allow_request(f"2001:db8:1:2::{number}") for number in range(3)] == [True, True, False]
    assert [limits.allow_request(f"2001:db8::{number}") for number in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("blocked", "choice", "granted"),
    [
        ((), "keep", "keep"),
        ((BlockedAccess("network", "example.org"),), "keep", "keep"),
        ((BlockedAccess("path", "/etc"),), "keep", ""),
        ((BlockedAccess("path", "/etc"), BlockedAccess("network")), "keep", "hosts"),
        ((BlockedAccess("path", "/etc"), BlockedAccess("network")), "paths", ""),
        ((BlockedAccess("path", "/folder"),), "keep", "keep"),
        ((BlockedAccess("path", "/folder", grantable=False),), "keep", ""),
        ((BlockedAccess("socket"),), "keep", ""),
        ((BlockedAccess("network"),), "outside", ""),
    ],
)
def test_a_yes_of_a_limited_owner_grants_hosts_and_nothing_outside(
    blocked: tuple[BlockedAccess, ...], choice: OutcomeChoice, granted: str
):
    answer = limit_answer(OutcomeAnswer(allowed=True, choice=choice), CommandOutcome(blocked=blocked), "/folder")
    assert (answer.choice if answer.allowed else "") == granted


@pytest.mark.parametrize("removed", [False, True], ids=["user", "removed user"])
async def test_a_turn_ends_before_its_next_request_when_the_budget_is_spent(tmp_path: Path, *, removed: bool):
    users, tokens = directory_of(tmp_path, msgspec.structs.replace(ANA, budget=Decimal(5)))
    steps: list[int] = []

    @Tool
    async def step() -> str:
        """Work."""
        steps.append(len(steps))
        if len(steps) == 2:
            users.change("ana", lambda user: msgspec.structs.replace(user, budget=Decimal(0)))
            if removed:
                users.remove("ana")
        await asyncio.sleep(0 if len(steps) < 3 else 60)
        return "did it"

    async with (
        served(tmp_path, [*[call("step")] * 5, "done"], [step], users=users) as client,
        BudgetWatcher(client.engine, UserLimits(users, client.engine), users),
    ):
        made = (await client.ask("POST", "/api/sessions", {}, token=tokens["ana"]))[1]["id"]
        sent = {"text": "go", "wait": True}
        async with asyncio.timeout(50):
            status, answer = await client.ask("POST", f"/api/sessions/{made}/prompt", sent, token=tokens["ana"])
        assert (status, answer["end"]["reason"]) == (202, "aborted")
        assert len(steps) <= 3


@pytest.mark.parametrize(("name", "is_read"), [("ana", False), ("ada", True)])
async def test_git_reads_the_state_of_the_workspace_for_administrators_only(
    tmp_path: Path, name: str, *, is_read: bool
):
    """Git would run outside the sandbox, in a repository that commands of the user change meanwhile."""
    folder = tmp_path / "work"
    folder.mkdir()
    GitRunner().run(folder, "init", "--quiet")
    (folder / "new.txt").write_text("x")
    GitRunner().run(folder, "add", "new.txt")
    users, tokens = directory_of(tmp_path, msgspec.structs.replace(ANA, workspace=str(folder)), ADA)
    paths = UserPaths(tmp_path, tmp_path / "AGENTS.md", tmp_path / "skills", tmp_path / "trust.json")
    TrustList(paths.trust).trust(folder, time=1)
    extensions = WorkspaceExtensions(paths, {}, {})
    async with limited(tmp_path, NoSandbox("none", ""), ["hi"], users, extensions=extensions) as (client, _):
        own = await start(client, tokens[name], folder)
        sent = {"text": "go", "wait": True}
        assert (await client.ask("POST", f"/api/sessions/{own}/prompt", sent, token=tokens[name]))[0] == 202
        stored = str((await client.engine.store.load(own)).messages)
    assert ("A  new.txt" in stored) is is_read


async def test_a_viewer_opens_no_session_and_a_user_finds_own_sessions_among_many(tmp_path: Path):
    users, tokens = directory_of(tmp_path, ANA, BEN, VIC)
    async with served(tmp_path, lambda _: "the word", users=users) as client:
        sent, ids = {"text": "word", "wait": True}, dict[str, str]()
        for name in ("ben", "ana"):
            ids[name] = (await client.ask("POST", "/api/sessions", {}, token=tokens[name]))[1]["id"]
            await client.ask("POST", f"/api/sessions/{ids[name]}/prompt", sent, token=tokens[name])
        for _ in range(MAX_SEARCHED):  # all hits that are read are of another user
            await client.engine.store.create(StoredSession(owner="ana", title="word"))
        hits = (await client.ask("GET", "/api/search?query=word&limit=1", token=tokens["ben"]))[1]
        assert [hit["session_id"] for hit in hits] == [ids["ben"]]
        await client.ask("POST", f"/api/sessions/{ids['ana']}/shares", {"to": "*"}, token=tokens["ana"])
        await client.engine.close(ids["ana"])
        for path, expected in (("tools", 403), ("plan", 404), ("messages", 200)):
            status, _ = await client.ask("GET", f"/api/sessions/{ids['ana']}/{path}", token=tokens["vic"])
            assert status == expected, path
        assert ids["ana"] not in client.engine.live
        assert (await client.ask("GET", f"/api/sessions/{ids['ana']}/tools", token=tokens["ana"]))[0] == 200
        assert (await client.ask("GET", f"/api/sessions/{ids['ana']}/tools", token=tokens["vic"]))[0] == 200


async def test_no_answer_of_an_operator_lets_a_fetch_reach_the_network_of_the_server(tmp_path: Path, sandbox: Sandbox):
    users, tokens = directory_of(tmp_path, msgspec.structs.replace(ANA, workspace=str(tmp_path / "ana")), ADA)

    async def show(_: web.Request) -> web.Response:
        return web.Response(text=SECRET)

    inside = web.Application()
    inside.router.add_get("/", show)
    async with limited(tmp_path, sandbox, ["hi"], users) as (client, _), TestServer(inside) as server:
        fetch = {"tool": "web_fetch", "input": {"url": str(server.make_url("/"))}}

        async def answer(token: str) -> None:
            async with asyncio.timeout(30):
                while not (asked := (await client.ask("GET", "/api/approvals", token=token))[1]):
                    await asyncio.sleep(0.02)
            lasting = {"allow": True, "scope": "project", "width": asked[0]["widths"][0]["id"]}
            assert (await client.ask("POST", f"/api/approvals/{asked[0]['id']}", lasting, token=token))[0] == 200

        for name, is_shown in (("ana", False), ("ada", True)):
            token = tokens[name]
            own = (await client.ask("POST", "/api/sessions", {}, token=token))[1]["id"]
            for attempt in range(2):
                answering = asyncio.create_task(answer(token) if attempt == 0 else asyncio.sleep(0))
                ended = (await client.ask("POST", f"/api/sessions/{own}/calls", fetch, token=token))[1]
                await answering
                assert (SECRET in str(ended["state"])) is is_shown, (name, attempt)
