"""A run as people see it: what was asked for, where it stands, and what came of it."""

from decimal import Decimal
from typing import Literal

import msgspec

from outrider.agents.turn_state import TerminationReason
from outrider.types.agents import Limits
from outrider.types.usage import Tokens

RunState = Literal["delayed", "queued", "running", "waiting", "done", "failed", "canceled"]
EndReason = TerminationReason | Literal["waiting"]
OVER: tuple[RunState, ...] = ("done", "failed", "canceled")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a command line said about the model and the rules of a run; it goes before a worker's own settings."""

    model: str = ""
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, as the durable engine keeps it. With `worktree` a run in a repository gets a checkout of its
    own; without, it works where it was submitted. `webhook` is an address that is told of its end."""

    prompt: str
    queue: str
    user: str = ""
    limits: Limits | None = None
    worktree: bool = True
    webhook: str = ""
    terms: Terms = Terms()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker leaves behind when it lets go of a run: at its end, or because somebody has to answer first."""

    reason: EndReason
    output: str = ""
    error: str = ""
    steps: int = 0
    tokens: Tokens = Tokens()
    cost: Decimal | None = None
    seconds: float = 0.0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """`id` is the session's too. `attempts` counts the workers that were given it; times are Unix milliseconds. What is
    delayed begins at the time `begins`, or when the run `after_run` is over."""

    id: str
    state: RunState
    prompt: str
    queue: str
    user: str = ""
    priority: int = 0
    worker: str = ""
    attempts: int = 0
    created: int | None = None
    ended: int | None = None
    begins: int | None = None
    after_run: str = ""
    outcome: Outcome | None = None

    @property
    def is_over(self) -> bool:
        return self.state in OVER


def state_of(status: str, outcome: Outcome | None) -> RunState:
    """Where a run stands, from what the durable engine says and what the worker left behind."""
    match status:
        case "DELAYED":
            return "delayed"
        case "ENQUEUED":
            return "queued"
        case "PENDING":
            return "running"
        case "CANCELLED":
            return "canceled"
        case "SUCCESS" if outcome is not None:
            return _after(outcome.reason)
        case _:
            return "failed"


def _after(reason: EndReason) -> RunState:
    match reason:
        case "waiting":
            return "waiting"
        case "completed":
            return "done"
        case "aborted":
            return "canceled"
        case _:
            return "failed"
