"""An open session of a server: its mirror, the task that follows it, and how far that has come."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from outrider.app.remote.client import Client
from outrider.app.remote.feeds.mirror import Mirror
from outrider.sessions.records import StoredSession, Transcript
from outrider.sessions.session import Session
from outrider.types.agents import Agent
from outrider.types.messages import Message
from outrider.types.parts import ModelRef

PAGE = 500  # messages of one request
RECENT = 100  # messages that a session is opened with; a screen shows fewer
NEWER = 50  # messages, at most, that nobody has heard of


class Standing(msgspec.Struct, frozen=True):
    """How a session stands on the server."""

    busy: bool = False
    broke_off: bool = False
    model: str = ""
    context_limit: int | None = None


class HeldSession:
    """The same face as an open session of this process."""

    def __init__(
        self,
        client: Client,
        transcript: Transcript,
        agent: Callable[[str], Agent] = lambda name: Agent(name, "", "", ""),
    ) -> None:
        self._client = client
        self._agent = agent
        self.mirror = Mirror(transcript, self._newer)
        self.standing = Standing()
        self.whole = transcript.first
        self.joined = False
        self.over = False  # nobody follows any more
        self._news = asyncio.Event()

    @property
    def session(self) -> Session:
        return self.mirror.session

    @property
    def in_turn(self) -> bool:
        return self.mirror.in_turn

    @property
    def agent(self) -> Agent:
        """The agent that answers, with the model that it has there."""
        agent = self._agent(self.session.agent)
        provider, _, model = self.standing.model.partition("/")
        return msgspec.structs.replace(agent, provider=provider, model=model) if model else agent

    async def use_model(self, model: ModelRef | None) -> None:
        name = f"{model.provider}/{model.model}" if model else ""
        self.standing = await self._client.post(f"{path_of(self.session.id)}/model", {"model": name}, Standing)

    async def look(self, *, take_over: bool = False) -> Standing:
        """How it stands there now; from then on it is open there."""
        wanted = {"take_over": take_over}
        self.standing = await self._client.post(f"{path_of(self.session.id)}/open", wanted, Standing)
        return self.standing

    def heard(self) -> None:
        """Whoever waits for something to come looks again."""
        self._news.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Returns also where nothing more will come."""
        while not (condition() or self.over):
            self._news.clear()
            await self._news.wait()

    async def _newer(self) -> Sequence[Message]:
        known = self.session.messages[-1].id if self.session.messages else None
        return (await messages(self._client, self.session.id, NEWER, after=known)).messages


async def messages(client: Client, session_id: str, limit: int, **place: Any) -> Transcript:
    """The last of them, or the last ones before a message, or the first after one."""
    return await client.get(f"{path_of(session_id)}/messages", Transcript, limit=limit, **place)


async def recent(client: Client, session_id: str) -> Transcript:
    return await messages(client, session_id, RECENT)


async def whole_transcript(client: Client, session_id: str) -> Transcript:
    """From the end to the beginning: what changes meanwhile is newer than its number, and comes with the feed."""
    newest = page = await messages(client, session_id, PAGE)
    found, drafts = list(page.messages), set(page.drafts)
    while not page.first and found:
        page = await messages(client, session_id, PAGE, before=found[0].id)
        if not page.messages:
            break
        found[:0] = page.messages
        drafts |= page.drafts
    return Transcript(newest.session, found, first=True, drafts=frozenset(drafts))


async def stored(client: Client, session_id: str) -> StoredSession:
    return await client.get(path_of(session_id), StoredSession)


def path_of(session_id: str) -> str:
    return f"/api/sessions/{session_id}"
