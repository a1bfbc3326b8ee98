"""The engine of a server, held from here: what people do goes there, what happens there is heard here."""

from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec

from outrider.agents.turn_state import TurnEnd
from outrider.engine.archive import Archive
from outrider.engine.plans import Plan
from outrider.engine.undo_history import Restored
from outrider.errors import OutriderError, ServerAwayError, StoreError
from outrider.event_bus import EventBus, EventStream
from outrider.providers.transport.sse import EventReader, ServerEvent
from outrider.remote.client import Answer, Client
from outrider.remote.followed_session import (
    Following,
    HeldSession,
    Standing,
    Turns,
    messages,
    path_of,
    recent,
    stored,
    whole_transcript,
)
from outrider.sessions.records import (
    Approval,
    ApprovalScope,
    Delivery,
    Grouping,
    InboxItem,
    SearchHit,
    SessionFilter,
    SessionPage,
    SessionUpdate,
    StoredSession,
    Transcript,
    UsageRow,
)
from outrider.sessions.session import Session
from outrider.sessions.snapshots.restore import Direction
from outrider.types.agents import Agent, Mode
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.parts import PartBase, TextPart

if TYPE_CHECKING:
    from outrider.sessions.store import Store


class _Output(msgspec.Struct, frozen=True):
    text: str


class _Ended(msgspec.Struct, frozen=True):
    words: str


async def run_there(client: Client, session_id: str, command: str, on_output: Callable[[str], object]) -> str:
    """How it ended, in words. Whoever stops waiting ends it there too."""
    async with client.opened("POST", f"{path_of(session_id)}/commands", {"command": command}) as answer:
        async for name, raw in _events(answer):
            if name == "output":
                on_output(msgspec.json.decode(raw, type=_Output).text)
            elif name == "ended":
                return msgspec.json.decode(raw, type=_Ended).words
    raise ServerAwayError(f"{client.place.url} hung up while the command ran")


async def _events(answer: Answer) -> AsyncGenerator[ServerEvent, None]:
    reader = EventReader()
    while piece := await answer.read():
        for event in reader.feed(piece):
            yield event


class RemoteFiles:
    def __init__(self, client: Client, session_id: str) -> None:
        self._client = client
        self._path = f"{path_of(session_id)}/files"

    async def preview(self, direction: Direction = "undo") -> Restored:
        return await self._client.get(self._path, Restored, direction=direction)

    async def undo(self) -> Restored:
        return await self._client.post(self._path, {"direction": "undo"}, Restored)

    async def redo(self) -> Restored:
        return await self._client.post(self._path, {"direction": "redo"}, Restored)


MOST_FOLLOWED = 8


class Shortened(msgspec.Struct, frozen=True):
    """Tokens before and after a compaction."""

    tokens_before: int | None = None
    tokens_after: int | None = None


class _Waiting(msgspec.Struct, frozen=True):
    id: str
    text: str
    delivery: Delivery
    sender: str


class RemoteEngine:
    """Open it with `async with`; the server's own engine goes on when this one is closed. `agents` are those of the
    server, the first one is who answers in a new session."""

    def __init__(self, client: Client, agents: Sequence[Agent], *, patience: float | None = None) -> None:
        self.client = client
        self.agents = agents
        self.bus = EventBus()
        self.live: dict[str, HeldSession] = {}
        self._following = Following(client, self.bus)
        self._turns = Turns(client, patience)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._following.close()
        await self.bus.settled()
        self.live.clear()

    async def create(
        self,
        *,
        title: str = "",
        mode: Mode | None = None,
        agent: str | None = None,
        workspace: str | Path | None = None,
    ) -> str:
        """A new session there; without a workspace it works in the server's own folder."""
        place = None if workspace is None else str(workspace)
        new = {"title": title, "mode": mode, "agent": agent, "workspace": place}
        await self._make_room()
        made = await self.client.post("/api/sessions", new, StoredSession)
        held = self._held(Transcript(made, [], first=True))
        await held.look()
        await self._following.begin(held)
        return made.id

    async def open(self, session_id: str, *, take_over: bool = False) -> Session:
        held = self.live.get(session_id)
        if held is None or held.over:
            await self._make_room()
            await self.client.post(f"{path_of(session_id)}/open", {"take_over": take_over}, Standing)
            held = self._held(await recent(self.client, session_id))
            await self._following.begin(held)
        there = await held.look()
        held.mirror.in_turn = there.busy
        return held.session

    async def close(self, session_id: str) -> None:
        """Stop following it; on the server it stays as it is."""
        self.live.pop(session_id, None)
        await self._following.end(session_id)

    async def prompt(
        self,
        session_id: str,
        content: str | Sequence[str | PartBase],
        *,
        delivery: Delivery = "queue",
        input_id: str | None = None,
        sender: str = "",
    ) -> TurnEnd:
        """Put input into the session and wait for the end of the turn that takes it; the sender is the server."""
        parts = [content] if isinstance(content, str) else content
        sent = [TextPart(part) if isinstance(part, str) else part for part in parts]
        prompt: dict[str, Any] = {"parts": sent, "delivery": delivery, "id": input_id or new_id(), "wait": True}
        return await self._turns.prompt(await self._opened(session_id), prompt)

    async def go_on(self, session_id: str) -> TurnEnd:
        return await self._turns.waited(await self._opened(session_id), "continue", None)

    async def queued(self, session_id: str) -> Sequence[InboxItem]:
        waiting: list[_Waiting] = await self.client.get(f"{path_of(session_id)}/queue", list[_Waiting])
        return [
            InboxItem(
                session_id=session_id,
                message=Message("user", [TextPart(one.text)]),
                id=one.id,
                delivery=one.delivery,
                sender=one.sender,
            )
            for one in waiting
        ]

    async def withdraw(self, session_id: str, input_id: str) -> bool:
        return await self._there("DELETE", f"{path_of(session_id)}/queue/{input_id}") is not None

    async def plan(self, session_id: str) -> Plan | None:
        raw = await self._there("GET", f"{path_of(session_id)}/plan")
        return None if raw is None else msgspec.json.decode(raw, type=Plan)

    async def accept_plan(self, session_id: str, changed: str | None = None, *, by: str = "") -> TurnEnd:
        answer = {"accept": True, "changed": changed}
        return await self._turns.waited(await self._opened(session_id), "plan", answer)

    async def refuse_plan(self, session_id: str, words: str = "", *, by: str = "") -> TurnEnd:
        return await self._turns.waited(await self._opened(session_id), "plan", {"accept": False, "words": words})

    async def compact(self, session_id: str) -> Shortened | None:
        done = await self.client.post(f"{path_of(session_id)}/compact", None, Shortened, patient=True)
        return done if done.tokens_before is not None else None

    async def abort(self, session_id: str) -> None:
        if session_id:
            await self.client.post(f"{path_of(session_id)}/abort")

    async def set_mode(self, session_id: str, mode: Mode) -> None:
        await self._change(session_id, mode=mode)

    async def set_agent(self, session_id: str, agent: str) -> None:
        await self._change(session_id, agent=agent)

    async def answer(
        self, approval_id: str, *, allow: bool, scope: ApprovalScope = "once", by: str = "", words: str = ""
    ) -> Approval:
        answer = {"allow": allow, "scope": scope, "words": words}
        return await self.client.post(f"/api/approvals/{approval_id}", answer, Approval)

    async def approvals(self, session_id: str | None = None) -> Sequence[Approval]:
        return await self.client.get("/api/approvals", list[Approval], session_id=session_id)

    def file_changes(self, session_id: str) -> RemoteFiles:
        return RemoteFiles(self.client, session_id)

    def events(self, session_id: str | None = None) -> EventStream:
        return self.bus.stream(None if session_id is None else lambda event: event.session_id == session_id)

    def agent(self, name: str) -> Agent:
        return next((agent for agent in self.agents if agent.name == name), self.agents[0])

    def _held(self, transcript: Transcript) -> HeldSession:
        held = self.live[transcript.session.id] = HeldSession(self.client, transcript, self.agent)
        return held

    async def _make_room(self) -> None:
        """Of many sessions those are followed that were opened last, and those that work."""
        idle = [session_id for session_id, held in self.live.items() if held.over or not held.in_turn]
        for session_id in idle[: max(0, len(self.live) - MOST_FOLLOWED + 1)]:
            await self.close(session_id)

    async def _opened(self, session_id: str) -> HeldSession:
        if session_id not in self.live:
            await self.open(session_id)
        return self.live[session_id]

    async def _change(self, session_id: str, **changes: str) -> None:
        """What it is then is known at once, and comes with the feed too."""
        raw = await self.client.ask("PATCH", path_of(session_id), changes)
        if (held := self.live.get(session_id)) is not None:
            held.mirror.adopt(msgspec.json.decode(raw, type=StoredSession))
            await held.look()

    async def _there(self, method: str, path: str) -> bytes | None:
        """The answer; None where there is no such thing (any more)."""
        try:
            return await self.client.ask(method, path)
        except OutriderError as error:
            if error.details.get("status") == 404:
                return None
            raise


MOST = 500  # sessions or hits of one request


class RemoteArchive(Archive):
    def __init__(self, client: Client) -> None:
        # An archive asks its store for no more than this, except in the methods below.
        super().__init__(cast("Store", _Shelf(client)))
        self._client = client

    async def export(self, session_id: str) -> bytes:
        return await self._client.ask("GET", f"{path_of(session_id)}/export")

    async def answers(self) -> Sequence[Approval]:
        return await self._client.get("/api/answers", list[Approval])

    async def revoke(self, approval_id: str) -> Approval:
        known = next((one for one in await self.answers() if one.id == approval_id), None)
        if known is None:
            raise StoreError("there is no such answer any more")
        await self._client.ask("DELETE", f"/api/answers/{approval_id}")
        return msgspec.structs.replace(known, answer="revoked")


class _Shelf:
    """What a server gives out of its store."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, session_id: str) -> StoredSession:
        return await stored(self._client, session_id)

    async def list(self, asked: SessionFilter, *, limit: int, after: str | None = None) -> SessionPage:
        query: dict[str, Any] = {"workspace": asked.workspace_directory, "children": not asked.roots}
        query |= {"parent": asked.parent_id, "limit": min(limit, MOST), "after": after}
        return await self._client.get("/api/sessions", SessionPage, **query)

    async def load(self, session_id: str, *, limit: int | None = None, before: str | None = None) -> Transcript:
        if limit is None:
            return await whole_transcript(self._client, session_id)
        return await messages(self._client, session_id, min(limit, MOST), before=before)

    async def search(self, words: str, *, session_id: str | None = None, limit: int = 20) -> Sequence[SearchHit]:
        query = {"query": words, "session_id": session_id, "limit": min(limit, MOST)}
        return await self._client.get("/api/search", list[SearchHit], **query)

    async def fork(self, session_id: str, *, at: str | None = None, title: str | None = None) -> StoredSession:
        return await self._client.post(f"{path_of(session_id)}/fork", {"at": at, "title": title}, StoredSession)

    async def update(self, session_id: str, update: SessionUpdate) -> StoredSession:
        await self._client.ask("PATCH", path_of(session_id), {"title": update.title})
        return await self.get(session_id)

    async def delete(self, session_id: str) -> None:
        await self._client.ask("DELETE", path_of(session_id))

    async def statistics(
        self, by: Grouping, *, since: int | None = None, session_id: str | None = None
    ) -> Sequence[UsageRow]:
        return await self._client.get("/api/usage", list[UsageRow], by=by, since=since, session_id=session_id)
