"""What happens in a session, as updates for its client: a fold over events, and over messages that are kept."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import acp
import msgspec
from acp.helpers import ContentBlock
from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    Cost,
    PlanEntry,
    SessionInfoUpdate,
    ToolCallProgress,
    ToolCallStart,
    Usage,
    UsageUpdate,
    UserMessageChunk,
)

from outrider.acp.tool_calls import MOST_OUTPUT, Shown, block_of, shown, valid
from outrider.engine.engine import Engine
from outrider.engine.frontend import context_limit
from outrider.types.events import (
    AgentCalledEvent,
    DeltasDroppedEvent,
    Event,
    LLMResponseEvent,
    PartDeltaEvent,
    PartUpdatedEvent,
    SessionUpdatedEvent,
    ToolOutputEvent,
)
from outrider.types.messages import Message
from outrider.types.parts import FilePart, ModelRef, ReasoningPart, TextPart, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolRunning
from outrider.types.usage import Tokens

Update = (
    UserMessageChunk
    | AgentMessageChunk
    | AgentThoughtChunk
    | ToolCallStart
    | ToolCallProgress
    | AgentPlanUpdate
    | SessionInfoUpdate
)
_FINISH = "finish"
_ITEM = re.compile(r"^(?:\d+[.)]|[-*])\s+(?:\[.\]\s+)?(?P<item>\S.*)")


class Call(msgspec.Struct):
    """A call that the client knows; `output` is the end of what it has written while it runs."""

    part: ToolPart
    agent: str = ""
    output: str = ""


class Telling:
    """Agents that were called are seen by their calls: they stand beside those of the session's own agent."""

    def __init__(self, session_id: str, folder: Path) -> None:
        self._session_id = session_id
        self._folder = folder
        self._callees: dict[str, str] = {}  # names of agents that were called, by their sessions
        self._calls: dict[tuple[str, str], Call] = {}
        self._said: dict[str, str] = {}  # texts as far as the client has them
        self._missed = False  # whether pieces of the text that is being written were dropped

    def concerns(self, session_id: str) -> bool:
        return session_id == self._session_id or session_id in self._callees

    def call(self, session_id: str, call_id: str) -> Shown | None:
        known = self._calls.get((session_id, call_id))
        return self._shown(known) if known else None

    def replay(self, messages: Iterable[Message]) -> Iterator[Update]:
        """Everything that was said and done, as if it happened now."""
        for message in messages:
            for part in message.parts:
                if message.role == "assistant":
                    yield from self._kept(part, self._session_id)
                elif isinstance(part, TextPart | FilePart) and (block := block_of(part)) is not None:
                    yield UserMessageChunk(session_update="user_message_chunk", content=block, message_id=message.id)

    def hear(self, event: Event) -> Iterator[Update]:
        if isinstance(event, DeltasDroppedEvent):
            self._missed = True
        elif self.concerns(event.session_id):
            yield from self._hear(event, own=event.session_id == self._session_id)

    def _hear(self, event: Event, *, own: bool) -> Iterator[Update]:
        match event:
            case AgentCalledEvent():
                self._callees[event.child_session_id] = event.callee
            case PartDeltaEvent() if own and not self._missed:
                self._said[event.part_id] = self._said.get(event.part_id, "") + event.delta
                yield _chunk(acp.text_block(valid(event.delta)), event.message_id, thought=event.field == "reasoning")
            case PartUpdatedEvent() if own or isinstance(event.part, ToolPart):
                yield from self._kept(event.part, event.session_id)
            case ToolOutputEvent():
                yield from self._output(event)
            case SessionUpdatedEvent(changes={"title": str(title)}) if own:
                yield SessionInfoUpdate(session_update="session_info_update", title=valid(title))
            case _:
                pass

    def _kept(self, part: object, session_id: str) -> Iterator[Update]:
        match part:
            case TextPart(synthetic=False) | ReasoningPart():
                yield from self._rest(part)
            case FilePart():
                if (block := block_of(part)) is not None:
                    yield _chunk(block, part.message_id)
            case ToolPart():
                yield from self._call(part, session_id)
            case _:
                pass

    def _rest(self, part: TextPart | ReasoningPart) -> Iterator[Update]:
        """What was not said yet of a text that is whole now: pieces may have been dropped on the way."""
        said, self._said[part.id], self._missed = self._said.get(part.id, ""), part.text, False
        thought = isinstance(part, ReasoningPart)
        # Where the answer began a part anew, thoughts that were taken for text were read already.
        anew = "" if thought else f"\n\n{part.text}"
        rest = part.text[len(said) :] if part.text.startswith(said) else anew
        if rest:
            yield _chunk(acp.text_block(valid(rest)), part.message_id, thought=thought)

    def _call(self, part: ToolPart, session_id: str) -> Iterator[Update]:
        if part.tool == _FINISH:
            yield from self._last_words(part, session_id)
            return
        key = session_id, part.call_id
        known = self._calls.get(key)
        call = self._calls[key] = Call(part, self._callees.get(session_id, ""), known.output if known else "")
        yield self._shown(call).changed() if known else self._shown(call).started()
        if isinstance(part.state, ToolCompleted) and "todos" in part.state.metadata and session_id == self._session_id:
            yield plan_of_todos(part.state.metadata["todos"])

    def _last_words(self, part: ToolPart, session_id: str) -> Iterator[Update]:
        """An agent that works with others ends with a call; what it says there is its answer."""
        words = str(part.state.input.get("message") or "")
        if session_id == self._session_id and isinstance(part.state, ToolCompleted) and part.id not in self._said:
            self._said[part.id] = words
            yield _chunk(acp.text_block(valid(words)), part.message_id)

    def _output(self, event: ToolOutputEvent) -> Iterator[Update]:
        call = self._calls.get((event.session_id, event.call_id))
        if call is not None and isinstance(call.part.state, ToolRunning):
            call.output = (call.output + event.output)[-MOST_OUTPUT:]
            yield self._shown(call).changed()

    def _shown(self, call: Call) -> Shown:
        return shown(call.part, self._folder, call.output, call.agent)


def plan_of_todos(todos: Iterable[Any]) -> AgentPlanUpdate:
    """The agent's own list; what it gave up is no longer part of the plan."""
    entries = [
        PlanEntry(content=valid(str(todo["content"])), priority="medium", status=todo.get("status", "pending"))
        for todo in todos
        if todo.get("status") != "cancelled"
    ]
    return AgentPlanUpdate(session_update="plan", entries=entries)


def plan_of_text(text: str) -> AgentPlanUpdate:
    """A plan as its author wrote it: the items of its lists, or the whole of it where it has none."""
    items = [found["item"] for line in text.splitlines() if (found := _ITEM.match(line)) is not None]
    entries = [PlanEntry(content=valid(item), priority="medium", status="pending") for item in items or [text]]
    return AgentPlanUpdate(session_update="plan", entries=entries)


def _chunk(block: ContentBlock, message_id: str, *, thought: bool = False) -> AgentMessageChunk | AgentThoughtChunk:
    if thought:
        return AgentThoughtChunk(session_update="agent_thought_chunk", content=block, message_id=message_id)
    return AgentMessageChunk(session_update="agent_message_chunk", content=block, message_id=message_id)


class Spending:
    """Of one session, with the agents that it called."""

    def __init__(self, session_id: str, engine: Engine) -> None:
        self._session_id = session_id
        self._engine = engine
        self._turn = Tokens()

    def begin(self) -> None:
        self._turn = Tokens()

    def hear(self, answer: LLMResponseEvent) -> UsageUpdate | None:
        """Only the session's own answers fill its context; where nobody knows how much that holds, nothing is said."""
        self._turn += answer.tokens
        size = self._size()
        if answer.session_id != self._session_id or size is None:
            return None
        used = answer.tokens.prompt + answer.tokens.output
        return UsageUpdate(session_update="usage_update", used=used, size=size, cost=self._cost())

    def turn(self) -> Usage | None:
        tokens = self._turn
        if not tokens.total:
            return None
        return Usage(
            total_tokens=tokens.total,
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            thought_tokens=tokens.reasoning,
            cached_read_tokens=tokens.cache.read,
            cached_write_tokens=tokens.cache.write,
        )

    def _size(self) -> int | None:
        agent = self._engine.live[self._session_id].agent
        return context_limit(self._engine.staff.plan.providers.values(), ModelRef(agent.provider, agent.model))

    def _cost(self) -> Cost | None:
        cost = self._engine.live[self._session_id].journal.session.usage.total_cost
        return None if cost is None else Cost(amount=float(cost), currency="USD")
