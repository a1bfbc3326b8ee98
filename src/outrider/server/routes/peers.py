"""Agents of other servers: they ask an agent here, and hear its answer as it comes."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from decimal import Decimal
from typing import Annotated, Any

import msgspec

from outrider.app.below.terms import Terms
from outrider.app.peers.answering import Ended
from outrider.server.endpoint import Asked, Endpoint, Nothing, Number, Stream
from outrider.types.agents import Limits, Mode
from outrider.types.codec import load_part
from outrider.types.stream import Delta, delta_tag

_encode = msgspec.json.Encoder(enc_hook=lambda part: part.to_dict()).encode


class PeerCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent elsewhere asks of `agent` (""; the default), in a session of an earlier answer or a new one, with
    what is left of its limits: `depth` is how many levels of agents may be opened here. `id` is the sender's own:
    what is sent twice, since no answer came, is begun once."""

    parts: Annotated[tuple[dict[str, Any], ...], msgspec.Meta(min_length=1)]
    id: Annotated[str, msgspec.Meta(max_length=100)] = ""
    agent: str = ""
    session_id: str = ""
    mode: Mode = "agent"
    depth: Number = 0
    turns: Number | None = None
    seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    tokens: Number | None = None
    cost: Decimal | None = None
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def terms(self) -> Terms:
        limits = Limits(turns=self.turns, seconds=self.seconds, tokens=self.tokens, cost=self.cost, depth=self.depth)
        return Terms(limits, self.ask, self.deny)


async def ask_agent(asked: Asked[Nothing, PeerCall]) -> Stream:
    call = asked.body
    content = [load_part(part) for part in call.parts]
    turn = await asked.peers.begin(call.id, call.session_id, call.agent, call.mode)
    return Stream(_framed(asked.peers.answer(turn, content, call.terms())))


async def _framed(answer: AsyncGenerator[Delta | Ended, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(answer) as deltas:
        async for delta in deltas:
            name = b"Failed" if isinstance(delta, Ended) else delta_tag(delta).encode()
            yield b"event: %b\ndata: %b\n\n" % (name, _encode(delta))


PEERS = (
    Endpoint(method="POST", path="/api/peer", name="ask_agent", summary="Ask an agent on behalf of another server's",
             answer=ask_agent, body=PeerCall, gives="text/event-stream"),
)  # fmt: skip
