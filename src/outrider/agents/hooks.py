"""Hooks: small callables of a program's own, before and after a call, on a message, on stop."""

from collections.abc import Callable
from typing import Any

import msgspec

from outrider.types.messages import Message


class HookedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call as a hook sees it; `output` and `is_error` are known once it has run."""

    tool: str
    input: dict[str, Any]
    call_id: str
    agent: str
    session_id: str
    output: str = ""
    is_error: bool = False


class HookedStop(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that is about to stop (`reason` completed) or had to; `output` is its last word."""

    agent: str
    session_id: str
    reason: str
    output: str = ""


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """Plain or async; plain ones run in the event loop, so they are quick. One that raises is told of as an error and
    never ends a turn. Agents that other agents call have the same hooks.

    `before_call` gives back nothing, another input, or a string: then the call is refused, and the model reads why. If
    it raises, the call is refused. What is decided on, shown and run is the input after it.
    `after_call` gives back nothing, or a string that takes the place of what the tool said before it is kept. If it
    raises, the result stays as it is. A call that was refused or canceled does not get here.
    `on_message` sees each message of a turn once it is whole (an answer: once its calls have ended).
    `on_stop` gives back nothing, or a string that sends an agent on which is done: it reads it as the user's words.
    After a limit, an error or another early end it is only told; an abort waits for no hook.
    """

    before_call: Callable[[HookedCall], Any] | None = None
    after_call: Callable[[HookedCall], Any] | None = None
    on_message: Callable[[Message], Any] | None = None
    on_stop: Callable[[HookedStop], Any] | None = None
