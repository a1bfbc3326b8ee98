"""Webhooks for interactive turns: what is posted to a real receiver, signed, filtered, and after a restart."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("sqlalchemy", reason="SKIPPED: no tests of webhooks, since sqlalchemy is not installed")

from outrider import Agent, Engine, Provider, Tool
from outrider.background.webhooks import sign_notice
from outrider.engine.archive import StoredSession
from outrider.errors import ConfigurationError, StoreError
from outrider.providers.scripted import call
from outrider.server.users import ServerUser, UserDirectory
from outrider.server.webhooks import TurnNotice, TurnWebhooks, WebhookSession
from outrider.sessions.memory_store import MemoryStore
from outrider.types.events import ErrorEvent, LoopCompletedEvent, SessionUpdatedEvent
from outrider.types.ids import new_id
from tests.e2e.server.http_server import Client, served, server_settings

SECRET = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@Tool(policy="ask")
def launch(where: str) -> str:
    """Launch it."""
    return f"launched to {where}"


class Receiver:
    """Answers with the given statuses, then with 200, and passes on what it received."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.received: asyncio.Queue[tuple[dict[str, str], str]] = asyncio.Queue()
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n"))}
        body = (await reader.readexactly(int(headers["content-length"]))).decode()
        status = self.statuses.pop(0) if self.statuses else 200
        writer.write(f"HTTP/1.1 {status} x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        self.received.put_nowait((headers, body))

    async def next(self) -> dict[str, Any]:
        """Returns the next notice, after a check of its headers and its schema."""
        headers, body = await asyncio.wait_for(self.received.get(), 60)
        decoded = msgspec.json.decode(body, type=TurnNotice)
        assert headers["webhook-id"] == headers["idempotency-key"] == decoded.notice
        return {"headers": headers, "raw": body, **msgspec.json.decode(body)}

    def config(self, *webhooks: str) -> str:
        return f'[background]\nwebhooks = ["127.0.0.1:{self.port}"]\nwebhook_secret = "shared"\n' + "".join(webhooks)

    def table(self, name: str, more: str = "") -> str:
        return f'[webhooks.{name}]\nurl = "http://127.0.0.1:{self.port}/{name}"\n{more}\n'


@asynccontextmanager
async def receiving(*statuses: int) -> AsyncIterator[Receiver]:
    receiver = Receiver(*statuses)
    async with await asyncio.start_server(receiver.answer, "127.0.0.1", 0) as server:
        receiver.port = server.sockets[0].getsockname()[1]
        yield receiver


async def prompt(client: Client, session: str, *, token: str | None = None) -> Any:
    given = {} if token is None else {"token": token}
    return await client.ask("POST", f"/api/sessions/{session}/prompt", {"text": "go", "wait": True}, **given)


async def test_the_end_of_a_turn_is_posted_with_a_valid_signature_and_without_secrets(tmp_path: Path):
    key = "sk-ant-api03-" + "Q7xJ" * 20
    async with receiving() as receiver:
        config = receiver.config(receiver.table("ci", f'secret = "{SECRET}"'))
        async with served(tmp_path, [f"The key is {key}."], webhook_config=config) as client:
            session = await client.create(title="Release notes")
            await prompt(client, session)
            notice = await receiver.next()
    assert (notice["event"], notice["reason"]) == ("turn.completed", "completed")
    assert (notice["session"]["id"], notice["session"]["title"]) == (session, "Release notes")
    assert notice["output"].startswith("The key is ")
    assert key not in notice["raw"]
    seconds = int(notice["headers"]["webhook-timestamp"])
    signed = sign_notice(SECRET, notice["notice"], notice["raw"], seconds)
    assert notice["headers"]["webhook-signature"] == signed["webhook-signature"]


async def test_failures_approvals_and_aborted_turns_have_their_events(tmp_path: Path):
    async with receiving() as receiver:
        config = receiver.config(receiver.table("all"))
        script = [[call("launch", where="orbit")], "done"]
        async with served(tmp_path, script, [launch], webhook_config=config) as client:
            session = await client.create()
            turn = asyncio.create_task(prompt(client, session))
            asked = await receiver.next()
            assert (asked["event"], asked["approval"]["tool"]) == ("approval.requested", "launch")
            answered = await client.ask("POST", f"/api/approvals/{asked['approval']['id']}", {"allow": True})
            assert answered[0] == 200
            await turn
            assert (await receiver.next())["event"] == "turn.completed"
            await prompt(client, session)
            failed = await receiver.next()
            assert (failed["event"], failed["reason"], failed["error"]["type"]) == (
                "turn.failed", "error", "InvalidRequestError",
            )  # fmt: skip
            signed = sign_notice("shared", failed["notice"], failed["raw"], int(failed["headers"]["webhook-timestamp"]))
            assert failed["headers"]["webhook-signature"] == signed["webhook-signature"]
            client.engine.bus.publish(LoopCompletedEvent(session_id=session, termination_reason="aborted"))
            assert (await receiver.next())["event"] == "turn.aborted"


async def test_a_notice_has_only_the_error_that_ended_its_own_turn(tmp_path: Path):
    async with receiving() as receiver:
        config = receiver.config(receiver.table("all"))
        async with served(tmp_path, [], webhook_config=config) as client:
            session = await client.create()
            publish = client.engine.bus.publish
            publish(ErrorEvent(session_id=session, error_type="HookFailed", message="the hook failed"))
            publish(LoopCompletedEvent(session_id=session, termination_reason="completed"))
            publish(LoopCompletedEvent(session_id=session, termination_reason="error"))
            publish(ErrorEvent(session_id=session, error_type="ProviderError", message="no answer"))
            publish(LoopCompletedEvent(session_id=session, termination_reason="error"))
            notices = sorted([await receiver.next() for _ in range(3)], key=lambda notice: notice["notice"])
    ends = [(notice["event"], notice.get("error", {}).get("type")) for notice in notices]
    assert ends == [("turn.completed", None), ("turn.failed", None), ("turn.failed", "ProviderError")]


class StoreWithUnreadableSession(MemoryStore):
    unreadable = ""

    async def get(self, session_id: str) -> StoredSession:
        if session_id == self.unreadable:
            raise StoreError("the disk cannot be read")
        return await super().get(session_id)


async def test_a_notice_whose_session_cannot_be_read_is_posted_later_and_does_not_disturb_others(tmp_path: Path):
    store = StoreWithUnreadableSession()
    sessions = [StoredSession(), StoredSession()]
    for session in sessions:
        await store.create(session)
    store.unreadable = sessions[0].id
    agent = Agent("writer", "You write.", "model-1", "scripted")
    async with receiving() as receiver, Engine([agent], [Provider("scripted", "scripted")], store=store) as engine:
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "config.toml").write_text(receiver.config(receiver.table("ci")))
        webhooks = TurnWebhooks(engine, UserDirectory(), tmp_path / "home" / "server", server_settings(tmp_path))
        await webhooks.count_pending()  # creates the file
        with sqlite3.connect(tmp_path / "home" / "server" / "webhooks.sqlite") as db:
            for session in sessions:
                notice = TurnNotice(
                    notice=f"{new_id()}:ci", event="turn.completed", time=1, session=WebhookSession(id=session.id)
                )
                row = (notice.notice, "http://ignored", msgspec.json.encode(notice).decode())
                db.execute("INSERT INTO notices VALUES (?, ?, ?, 0, 1)", row)
        async with webhooks:
            assert (await receiver.next())["session"]["id"] == sessions[1].id
    ((_, tries),) = pending_rows(tmp_path)
    assert tries == 1


async def test_only_chosen_events_are_posted_and_called_agents_belong_to_the_turn_of_their_caller(tmp_path: Path):
    async with receiving() as receiver:
        config = receiver.config(receiver.table("asked", 'events = ["question.asked"]'), receiver.table("ended"))
        async with served(tmp_path, ["hi"], webhook_config=config) as client:
            session = await client.create(title="Caller")
            child = StoredSession(parent_id=session)
            await client.engine.store.create(child)
            client.engine.bus.publish(LoopCompletedEvent(session_id=child.id, termination_reason="completed"))
            question = {"id": new_id(), "session_id": child.id, "text": "Which one?", "options": ["a", "b"]}
            client.engine.bus.publish(SessionUpdatedEvent(session_id=child.id, changes={"question": question}))
            both = [await receiver.next(), await receiver.next()]
            assert {notice["notice"].partition(":")[2] for notice in both} == {"asked", "ended"}
            for notice in both:
                assert (notice["event"], notice["session"]["id"]) == ("question.asked", session)
                assert notice["question"] == {"id": question["id"], "text": "Which one?", "options": ["a", "b"]}
            await prompt(client, session)
            assert (await receiver.next())["notice"].endswith(":ended")
    assert receiver.received.empty()


async def test_the_webhook_of_a_user_gets_only_sessions_that_the_user_can_see(tmp_path: Path):
    users = UserDirectory(tmp_path / "home" / "server" / "users.json")
    users.put(ServerUser(name="ana"))
    users.put(ServerUser(name="ben"))
    tokens = {name: users.create_token(name) for name in ("ana", "ben")}
    async with receiving() as receiver:
        config = receiver.config(receiver.table("ana", 'user = "ana"'), receiver.table("team"))
        async with served(tmp_path, ["hi"] * 9, users=users, webhook_config=config) as client:
            created = {
                name: (await client.ask("POST", "/api/sessions", {}, token=token))[1]["id"]
                for name, token in tokens.items()
            }

            async def webhooks_of_turns(count: int) -> list[tuple[str, str]]:
                """Runs a turn of each, and returns who received how many notices of whose session."""
                for name in ("ben", "ana"):
                    await prompt(client, created[name], token=tokens[name])
                received = [await receiver.next() for _ in range(count)]
                return sorted((one["session"]["owner"], one["notice"].partition(":")[2]) for one in received)

            own = [("ana", "ana"), ("ana", "team"), ("ben", "team")]
            assert await webhooks_of_turns(3) == own
            shares = f"/api/sessions/{created['ben']}/shares"
            assert (await client.ask("POST", shares, {"to": "ana"}, token=tokens["ben"]))[0] == 201
            assert await webhooks_of_turns(4) == sorted([*own, ("ben", "ana")])
    assert receiver.received.empty()


def pending_rows(tmp_path: Path) -> list[tuple[str, int]]:
    with sqlite3.connect(tmp_path / "home" / "server" / "webhooks.sqlite") as db:
        return db.execute("SELECT id, tries FROM notices WHERE due IS NOT NULL").fetchall()


async def test_a_notice_that_was_not_accepted_is_posted_again_after_a_restart_with_the_same_id(tmp_path: Path):
    async with receiving(500) as receiver:
        config = receiver.config(receiver.table("ci"))
        async with served(tmp_path, ["hi"], webhook_config=config) as client:
            await prompt(client, await client.create())
            first = await receiver.next()
        ((notice_id, tries),) = pending_rows(tmp_path)
        assert (notice_id, tries) == (first["notice"], 1)
        with sqlite3.connect(tmp_path / "home" / "server" / "webhooks.sqlite") as db:
            db.execute("UPDATE notices SET due = 1 WHERE due IS NOT NULL")  # without the wait for the next attempt
        async with served(tmp_path, ["hi"], webhook_config=config):
            again = await receiver.next()
        assert (again["notice"], again["raw"]) == (first["notice"], first["raw"])
    assert not pending_rows(tmp_path)


async def test_administrators_add_and_remove_webhooks_of_a_running_server(tmp_path: Path):
    users = UserDirectory(tmp_path / "home" / "server" / "users.json")
    users.put(ServerUser(name="ana"))
    token = users.create_token("ana")
    async with receiving() as receiver:
        config = receiver.config(receiver.table("ci", 'events = ["turn.failed"]'))
        async with served(tmp_path, ["hi"] * 3, users=users, webhook_config=config) as client:
            url = f"http://127.0.0.1:{receiver.port}/hook?key=hidden"
            assert (await client.ask("GET", "/api/webhooks", token=token))[0] == 403
            assert (await client.ask("POST", "/api/webhooks", {"url": url}, token=token))[0] == 403
            status, created = await client.ask("POST", "/api/webhooks", {"url": url, "user": "ana"})
            assert status == 201
            assert created["secret"].startswith("whsec_")
            listed = (await client.ask("GET", "/api/webhooks"))[1]
            assert [(one["id"], one["is_configured"]) for one in listed] == [("ci", True), (created["id"], False)]
            assert "hidden" not in str(listed)
            assert created["secret"] not in str(listed)
            file = tmp_path / "home" / "server" / "webhooks.sqlite"
            assert file.stat().st_mode & 0o077 == 0
            own = (await client.ask("POST", "/api/sessions", {}, token=token))[1]["id"]
            await prompt(client, own, token=token)
            notice = await receiver.next()
            seconds = int(notice["headers"]["webhook-timestamp"])
            signed = sign_notice(created["secret"], notice["notice"], notice["raw"], seconds)
            assert notice["headers"]["webhook-signature"] == signed["webhook-signature"]
            with sqlite3.connect(file) as db:
                row = (f"{new_id()}:{created['id']}", url, notice["raw"], 10**15)
                db.execute("INSERT INTO notices VALUES (?, ?, ?, 1, ?)", row)
            assert (await client.ask("DELETE", f"/api/webhooks/{created['id']}"))[0] == 204
            assert not pending_rows(tmp_path)
            assert (await client.ask("DELETE", f"/api/webhooks/{created['id']}"))[0] == 404
            assert (await client.ask("DELETE", "/api/webhooks/ci"))[0] == 400
            for wrong in ({"url": "ftp://x"}, {"url": url, "user": "zoe"}, {"url": url, "secret": "whsec_?"}):
                assert (await client.ask("POST", "/api/webhooks", wrong))[0] == 400, wrong
            await prompt(client, own, token=token)
    assert receiver.received.empty()


async def test_a_wrong_webhook_of_the_configuration_is_reported_at_the_start(tmp_path: Path):
    config = '[webhooks.ci]\nurl = "https://ci.example/hook"\nuser = "zoe"\n'
    with pytest.raises(ConfigurationError, match="the webhook ci: there is no user 'zoe'"):
        async with served(tmp_path, [], webhook_config=config):
            pass
