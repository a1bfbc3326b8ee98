"""Hooks: callables of the embedding program that run on input, before and after tool calls, on messages and on stop."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from outrider.types.messages import Message


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
    """A compaction that is about to start, as passed to `on_compaction`. `auto` is False if the user requested it."""

    session_id: str
    agent: str
    auto: bool = True


class HookDecision(msgspec.Struct, frozen=True):
    """What a hook may return: `deny` refuses the call or the input, `ask` requires an approval of the call."""

    effect: Literal["ask", "deny"]
    reason: str = ""


HOOK_ASKS = "hook_asks"  # key in the metadata of a call for which a hook requires an approval


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """Functions, plain or async, that observe or change a run. Plain ones run in the event loop and must not block. An
    exception in a hook is published as an error event and never ends a turn. Agents that other agents call have the
    same hooks.

    `before_call` returns None, another input, a string or a HookDecision. A string denies the call, and the model reads
    it as the reason; a HookDecision denies it or requires an approval. An exception denies the call too. The input that
    the hook returns is the one that is checked, shown and run.

    `after_call` returns None, or a string that replaces the tool's output before it is stored. After an exception the
    output stays unchanged. Denied and cancelled calls do not reach this hook.

    `on_message` receives each message of a turn once it is complete (an answer: once its calls have ended).

    `on_stop` returns None, or a string that makes a completed agent continue: the agent reads it as a user message.
    After a limit, an error or another early end the return value is ignored. A cancelled turn does not call the hook.

    `on_prompt` receives the input of a user before it is stored. It returns None, or a string that the model reads
    after the input. A HookDecision that denies, or an exception, refuses the input: it is not stored.

    `on_compaction` is called before messages are summarised. Its return value is ignored.
    """

    before_call: Callable[[HookedCall], Any] | None = None
    after_call: Callable[[HookedCall], Any] | None = None
    on_message: Callable[[Message], Any] | None = None
    on_stop: Callable[[HookedStop], Any] | None = None
    on_prompt: Callable[[HookedPrompt], Any] | None = None
    on_compaction: Callable[[HookedCompaction], Any] | None = None
