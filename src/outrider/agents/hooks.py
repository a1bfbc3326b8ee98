"""Hooks: callables of the embedding program that run before and after tool calls, on messages and on stop."""

from collections.abc import Callable
from typing import Any

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
    last text."""

    agent: str
    session_id: str
    reason: str
    output: str = ""


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """Functions, plain or async, that observe or change a run. Plain ones run in the event loop and must not block. An
    exception in a hook is published as an error event and never ends a turn. Agents that other agents call have the
    same hooks.

    `before_call` returns None, another input, or a string. A string denies the call, and the model reads it as the
    reason. An exception denies the call too. The input that the hook returns is the one that is checked, shown and run.

    `after_call` returns None, or a string that replaces the tool's output before it is stored. After an exception the
    output stays unchanged. Denied and cancelled calls do not reach this hook.

    `on_message` receives each message of a turn once it is complete (an answer: once its calls have ended).

    `on_stop` returns None, or a string that makes a completed agent continue: the agent reads it as a user message.
    After a limit, an error or another early end the return value is ignored. A cancelled turn does not call the hook.
    """

    before_call: Callable[[HookedCall], Any] | None = None
    after_call: Callable[[HookedCall], Any] | None = None
    on_message: Callable[[Message], Any] | None = None
    on_stop: Callable[[HookedStop], Any] | None = None
