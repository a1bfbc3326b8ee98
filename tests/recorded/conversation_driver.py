"""Runs a recorded conversation through the public library, with its input and tool results."""

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec.structs import replace

from outrider import (
    Agent,
    Attachment,
    Engine,
    FilePart,
    Limits,
    Message,
    OutriderError,
    Provider,
    Session,
    TextPart,
    Tool,
    ToolFailure,
    ToolPart,
    ToolPending,
    ToolResult,
    async_run,
)
from outrider.sessions.records import InboxItem, StoredSession
from outrider.sessions.store import Store
from outrider.types.ids import new_id
from outrider.types.parts import ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, Request, ToolSpec
from tests.recorded.api_adapters import SPOKEN, Spoken, answered_in
from tests.recorded.request_chains import Conversation

END = "(the recording ends here)"


class Driven:
    """What came of it: the session, how each turn ended, and the error if one did end it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.before = len(session.messages)
        self.outputs: list[str] = []
        self.error: OutriderError | None = None

    @property
    def answers(self) -> list[Message]:
        return [message for message in self.session.messages[self.before :] if message.role == "assistant"]


class Book:
    """What every call gave when it was recorded, by its tool and arguments, in the order of the calls; and what was
    sent to the model together with the results of a step."""

    def __init__(self, conversation: Conversation, spoken: Spoken) -> None:
        self._pages: dict[str, deque[tuple[int, ToolResultPart]]] = {}
        self._inputs: dict[int, list[Any]] = {}
        self.interject: Callable[[list[Any]], Awaitable[None]] | None = None
        for step, (before, after) in enumerate(conversation.steps()):
            given, input_parts = answered_in(list(spoken.request(after).prompt))
            if input_parts:
                self._inputs[step] = [_own(part) for part in input_parts]
            for call, result in _matched(before["expected"]["tool_calls"], given):
                self._pages.setdefault(_name(call["name"], call["arguments"]), deque()).append((step, result))

    @property
    def interrupts(self) -> bool:
        return bool(self._inputs)

    def tools(self, specs: Sequence[ToolSpec]) -> list[Tool]:
        return [
            Tool.from_schema(
                spec.name, spec.description, spec.parameters, self._function(spec.name), strict=spec.strict
            )
            for spec in specs
        ]

    def _function(self, name: str) -> Any:
        async def give(**arguments: Any) -> ToolResult | str:
            pages = self._pages.get(_name(name, arguments))
            if not pages:
                return END
            step, result = pages.popleft()
            input_parts = self._inputs.pop(step, None)
            if input_parts and self.interject:
                await self.interject(input_parts)
            if result.is_error:
                raise ToolFailure(result.content)
            return ToolResult(result.content, result.attachments)

        return give


class Stage:
    """All that a conversation needs to be driven: its agent, provider and tools as they were when it began."""

    def __init__(self, conversation: Conversation, base_url: str) -> None:
        self.conversation = conversation
        self.spoken = SPOKEN[conversation.api]
        self.book = Book(conversation, self.spoken)
        first = self.spoken.request(conversation.first)
        self.agent = agent_of(first)
        specs = {spec.name: spec for one in conversation.exchanges for spec in self.spoken.request(one).tools}
        specs |= {spec.name: spec for spec in first.tools}
        self.tools = self.book.tools(list(specs.values()))
        options = self.spoken.options(conversation.first) | {"retry": {"attempts": 1}}
        self.provider = Provider("recorded", self.spoken.kind, "key", base_url + self.spoken.suffix, options=options)

    def asked(self, turn: int) -> tuple[list[ModelMessage], list[Any]]:
        """The history before a turn, and its user input."""
        prompt = list(self.spoken.request(self.conversation.turns[turn][0]).prompt)
        if not prompt or prompt[-1].role != "user":
            return prompt, []
        results = tuple(part for part in prompt[-1].content if isinstance(part, ToolResultPart))
        input_parts = [_own(part) for part in prompt[-1].content if not isinstance(part, ToolResultPart)]
        return [*prompt[:-1], *([ModelMessage("user", results)] if results else [])], input_parts


async def through_run(stage: Stage) -> Driven:
    """Plays a conversation with one `async_run` for each turn. It takes a text and files, so earlier parts are
    history."""
    history, input_parts = stage.asked(0)
    driven = Driven(Session(messages=transcript(history)))
    for number, turn in enumerate(stage.conversation.turns):
        before, text, files = _message(input_parts if not number else stage.asked(number)[1])
        if before:
            driven.session.add_message(Message("user", before))
        try:
            result = await async_run(
                stage.agent,
                text,
                [stage.agent],
                stage.tools,
                [stage.provider],
                session=driven.session,
                attachments=files,
                limits=Limits(turns=len(turn)),
            )
        except OutriderError as error:
            driven.error = error
            break
        driven.outputs.append(result.output)
    return driven


async def through_engine(stage: Stage, store: Store) -> Driven:
    """An `Engine` over a store: every part as it was; input that came with results steers the turn."""
    history, input_parts = stage.asked(0)
    driven = Driven(Session(messages=transcript(history)))
    session_id = driven.session.id
    await store.create(StoredSession.from_session(driven.session))
    if driven.session.messages:
        await store.append(session_id, driven.session.messages)

    async def interject(parts: list[Any]) -> None:
        await store.put_inbox(InboxItem(session_id=session_id, message=Message("user", parts), delivery="steer"))

    stage.book.interject = interject
    for number, turn in enumerate(stage.conversation.turns):
        limits = Limits(turns=len(turn))
        async with Engine([stage.agent], [stage.provider], stage.tools, store=store, limits=limits) as engine:
            end = await engine.prompt(session_id, input_parts if not number else stage.asked(number)[1])
            driven.session = await engine.open(session_id)
            while engine.live[session_id].is_busy:  # input that this turn did not take has a separate turn
                await asyncio.sleep(0.001)
        driven.outputs.append(end.output)
        if end.reason == "error":
            driven.error = end.error
            break
    return driven


def agent_of(request: Request) -> Agent:
    settings = request.settings
    return Agent(
        "assistant",
        request.system or "",
        request.model,
        "recorded",
        max_output_tokens=settings.max_output_tokens,
        reasoning=settings.reasoning,
        reasoning_effort=settings.reasoning_effort,
        reasoning_budget=settings.reasoning_budget,
        temperature=settings.temperature,
        extra=settings.extra,
        stream=request.stream,
    )


def transcript(messages: Sequence[ModelMessage]) -> list[Message]:
    """Returns the messages as a session stores them: a call and its result are one part."""
    session = Session()
    for message in messages:
        results = [part for part in message.content if isinstance(part, ToolResultPart)]
        others = [_own(part) for part in message.content if not isinstance(part, ToolResultPart)]
        if results:
            session.add_tool_results(results)
        if others:
            session.add_message(Message(message.role, others))
    return session.messages


def _message(input_parts: list[Any]) -> tuple[list[Any], str, list[Attachment]]:
    """Returns the last text, the parts before it, and the files after it."""
    at = max((place for place, part in enumerate(input_parts) if isinstance(part, TextPart)), default=len(input_parts))
    files = [part for part in input_parts[at + 1 :] if isinstance(part, FilePart)]
    text = input_parts[at].text if at < len(input_parts) else ""
    return input_parts[:at], text, [Attachment(part.mime, url=part.url, name=part.filename) for part in files]


def _own(part: Any) -> Any:
    """A part that belongs to no message yet."""
    if isinstance(part, ToolUsePart):
        return ToolPart(part.tool_id, part.tool_name, ToolPending(part.tool_input, phase="ready"), part.metadata)
    return replace(part, id=new_id(), message_id="", session_id="")


def _matched(calls: list[Any], given: list[ToolResultPart]) -> list[tuple[Any, ToolResultPart]]:
    """Returns results by the id of their call, or by tool and position for clients that create ids."""
    left = list(given)
    pairs: list[tuple[Any, ToolResultPart]] = []
    for call in calls:
        ids = {call["id"], call.get("item_id")} - {None}
        found = next((result for result in left if result.tool_use_id in ids), None)
        found = found or next((result for result in left if result.tool_name == call["name"]), None)
        found = found or next((result for result in left if not result.tool_name), None)
        if found is not None:
            left = [result for result in left if result is not found]
            pairs.append((call, found))
    return pairs


def _name(tool: str, arguments: Any) -> str:
    return f"{tool} {json.dumps(arguments or {}, sort_keys=True)}"
