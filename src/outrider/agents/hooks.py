"""Hooks: callables of the embedding program that run on input, before requests, around tool calls, on messages and on
stop."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Literal, Self, TypedDict, Unpack

import msgspec

from outrider._sync import CallbackRunner
from outrider.errors import CallbackError, ConfigurationError
from outrider.providers.provider import ModelClient
from outrider.types.events import RequestChangedEvent
from outrider.types.messages import Message
from outrider.types.parts import TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import Delta, ModelMessage, Prompt, Request, ToolSpec
from outrider.types.validate import ArgumentsMeta, replace_fields


class RequestKeywords(TypedDict, total=False):
    """What a hook may change in a request."""

    messages: Sequence[ModelMessage]
    system: str | None
    tools: Sequence[ToolSpec]


class HookedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a model as passed to `before_request`, and as the hook returns it. `messages` have alternating
    roles, and every call has its result in the next message. `deps` are those of the run."""

    messages: tuple[ModelMessage, ...]
    system: str | None
    tools: tuple[ToolSpec, ...]
    model: str
    agent: str
    session_id: str
    deps: Any = None

    def replace(self, **changes: Unpack[RequestKeywords]) -> Self:
        """Returns the request with other `messages`, `system` or `tools`."""
        return replace_fields(self, changes)

    def with_text(self, text: str) -> Self:
        """Returns the request with `text` at the end of the last message, for example documents that match it.
        Everything before it stays in the cache of the provider."""
        *earlier, last_message = self.messages
        extended = msgspec.structs.replace(
            last_message, content=(*last_message.content, TextPart(text, synthetic=True))
        )
        return self.replace(messages=(*earlier, extended))


class HookedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call as passed to a hook. `output` and `is_error` are set for `after_call` only."""

    tool: str
    input: dict[str, Any]
    call_id: str
    agent: str
    session_id: str
    output: str = ""
    is_error: bool = False


class HookedStop(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an agent's turn as passed to `on_stop`. `reason` is "completed" or why it ended early; `output` is its
    last text. `parent_session_id` is that of the agent that called this one, or ""."""

    agent: str
    session_id: str
    reason: str
    output: str = ""
    parent_session_id: str = ""


class HookedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a user as passed to `on_prompt`, before it is stored. `is_first` is set if the session has no messages
    yet."""

    text: str
    session_id: str
    is_first: bool = False


class HookedCompaction(msgspec.Struct, frozen=True, kw_only=True):
    """A compaction that is about to start, as passed to `on_compaction`. `auto` is False if the user requested it;
    `instructions` say what the user wants in the summary."""

    session_id: str
    agent: str
    auto: bool = True
    instructions: str = ""


class HookDecision(msgspec.Struct, frozen=True):
    """What a hook may return: `deny` refuses the call or the input, `ask` requires an approval of the call."""

    effect: Literal["ask", "deny"]
    reason: str = ""

    def __post_init__(self) -> None:
        if self.effect not in ("ask", "deny"):
            raise ConfigurationError(
                f"HookDecision({self.effect!r}): the effect is 'ask' or 'deny'; to allow a call, return None"
            )


HOOK_ASKS = "hook_asks"  # key in the metadata of a call for which a hook requires an approval


_BeforeCall = Mapping[str, Any] | str | HookDecision | None
_OnPrompt = str | HookDecision | None
_BeforeRequest = HookedRequest | None


class Hooks(msgspec.Struct, frozen=True, kw_only=True, metaclass=ArgumentsMeta):
    """Functions, plain or async, that observe or change a run. Plain ones run in a thread, one at a time. An exception
    in a hook is published as an error event and, except in `before_request`, does not end the turn. Agents that other
    agents call have the same hooks.

    - `before_call`: returns None, another input, a string or a HookDecision. A string denies the call, and the model
      reads it as the reason; a HookDecision denies it or requires an approval. An exception denies the call too. The
      input that the hook returns is the one that is checked, shown and run.
    - `after_call`: returns None, or a string that replaces the tool's output before it is stored. After an exception
      the output stays unchanged. Denied and cancelled calls do not reach this hook.
    - `on_message`: receives each message of a turn once it is complete. An answer is complete when its calls have
      ended.
    - `on_stop`: returns None, or a string that makes a completed agent continue: the agent reads it as a user message.
      After a limit, an error or another early end the return value is ignored. A cancelled turn does not call the hook.
    - `on_prompt`: receives the input of a user before it is stored. It returns None, or a string that the model reads
      after the input. A HookDecision that denies, or an exception, refuses the input: it is not stored.
    - `on_compaction`: is called before messages are summarised. Its return value is ignored.
    - `before_request`: receives each request to a model, also those for summaries, and returns None, or the request
      with other messages, instructions or tools. The transcript stays as it is. An exception, or an invalid request,
      ends the turn with a CallbackError, and nothing is sent. A RequestChangedEvent reports what the change does to the
      prompt cache of the provider.
    """

    before_call: Callable[[HookedCall], _BeforeCall | Awaitable[_BeforeCall]] | None = None
    after_call: Callable[[HookedCall], str | Awaitable[str | None] | None] | None = None
    on_message: Callable[[Message], Any] | None = None
    on_stop: Callable[[HookedStop], str | Awaitable[str | None] | None] | None = None
    on_prompt: Callable[[HookedPrompt], _OnPrompt | Awaitable[_OnPrompt]] | None = None
    on_compaction: Callable[[HookedCompaction], Any] | None = None
    before_request: Callable[[HookedRequest], _BeforeRequest | Awaitable[_BeforeRequest]] | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if (hook := getattr(self, name)) is not None and not callable(hook):
                raise ConfigurationError(f"Hooks({name}={hook!r}): a hook is a function; write {name}=function")


_HOOK = "the hook before_request"


class SentRequest(msgspec.Struct):
    """The last request of a conversation as it was sent. `prompt` is None if no hook changed the request."""

    messages: Sequence[ModelMessage]
    system: str | None
    tools: tuple[ToolSpec, ...]
    prompt: Prompt | None = None


SentRequests = dict[tuple[str, str, str | None], SentRequest]
"""The last request by conversation, model and the instructions before the hook changed them."""


class HookedClient:
    """A model client that passes every request to the hook `before_request` first."""

    repeats_requests = True

    def __init__(
        self,
        client: ModelClient,
        hook: Callable[[HookedRequest], Any],
        callbacks: CallbackRunner,
        sent: SentRequests,
        publish: Callable[[RequestChangedEvent], None],
        *,
        agent: str,
        deps: Any = None,
    ) -> None:
        self.name = client.name
        self._client = client
        self._hook = hook
        self._callbacks = callbacks
        self._sent = sent
        self._publish = publish
        self._agent = agent
        self._deps = deps

    def model_family(self, model: str) -> str:
        return self._client.model_family(model)

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        changed = await self._change_request(request)
        async with aclosing(self._client.stream(changed)) as deltas:
            async for delta in deltas:
                yield delta

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _change_request(self, request: Request) -> Request:
        original = HookedRequest(
            messages=tuple(request.prompt),
            system=request.system,
            tools=request.tools,
            model=request.model,
            agent=self._agent,
            session_id=request.conversation,
            deps=self._deps,
        )
        returned = await self._callbacks.call(_HOOK, self._hook, original)
        changed = original if returned is None else _check_request(returned)
        key = (request.conversation, request.model, request.system)
        previous = self._sent.get(key)
        is_changed = changed is not original and _content(changed) != _content(original)
        prompt = _extend_prompt(previous.prompt if previous else None, changed.messages) if is_changed else None
        self._sent[key] = SentRequest(changed.messages, changed.system, changed.tools, prompt)
        if prompt is None and (previous is None or previous.prompt is None):
            return request
        self._report_change(original, changed, previous)
        if prompt is None:
            return request
        return msgspec.structs.replace(request, prompt=prompt, system=changed.system, tools=changed.tools)

    def _report_change(self, original: HookedRequest, changed: HookedRequest, previous: SentRequest | None) -> None:
        retained = _count_equal(previous.messages, changed.messages) if previous else 0
        if previous and (previous.system, previous.tools) != (changed.system, changed.tools):
            retained = 0
        event = RequestChangedEvent(
            session_id=original.session_id,
            agent_name=original.agent,
            messages_before=len(original.messages),
            messages_after=len(changed.messages),
            previous_messages=len(previous.messages) if previous else 0,
            cached_messages=retained,
        )
        self._publish(event)


def _content(request: HookedRequest) -> tuple[object, ...]:
    return request.messages, request.system, request.tools


def _extend_prompt(previous: Prompt | None, messages: Sequence[ModelMessage]) -> Prompt:
    """Returns the previous prompt with the new messages if it is the start of `messages`, so that its encoded bytes are
    reused; else a new prompt."""
    if previous is None or _count_equal(previous, messages) < len(previous):
        return Prompt(messages)
    for message in messages[len(previous) :]:
        previous.append(message)
    return previous


def _count_equal(before: Sequence[ModelMessage], now: Sequence[ModelMessage]) -> int:
    count = 0
    for earlier, later in zip(before, now, strict=False):
        if earlier is not later and earlier != later:
            break
        count += 1
    return count


def _check_request(returned: object) -> HookedRequest:
    """Returns the request of a hook. Raises CallbackError if a model would reject it."""
    if not isinstance(returned, HookedRequest):
        raise CallbackError(_HOOK, f"returned {type(returned).__name__}; it returns a HookedRequest or None")
    request = returned.replace(messages=tuple(returned.messages), tools=tuple(returned.tools))
    if not request.messages or not all(isinstance(message, ModelMessage) for message in request.messages):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise CallbackError(_HOOK, "returned messages that are not a list of at least one ModelMessage")
    expected, open_calls = "user", set[str]()
    for number, message in enumerate(request.messages):
        results = {part.tool_use_id for part in message.content if isinstance(part, ToolResultPart)}
        if message.role != expected or not message.content:
            raise CallbackError(_HOOK, f"returned messages[{number}] without content or with the role {message.role!r}")
        if results != open_calls:
            raise CallbackError(_HOOK, f"returned messages[{number}] without the results of the calls before it")
        open_calls = {part.tool_id for part in message.content if isinstance(part, ToolUsePart)}
        expected = "assistant" if expected == "user" else "user"
    if expected == "user":
        raise CallbackError(_HOOK, "returned messages that end with the assistant; the last one must be from the user")
    return request
