"""The states of a turn, and how it can end."""

from typing import Literal

import msgspec

from outrider.errors import OutriderError

TurnState = Literal["idle", "calling_model", "running_tools", "compacting", "done", "failed", "aborted"]
TerminationReason = Literal[
    "completed", "limit", "repetition", "empty_answers", "refusal", "length", "error", "aborted"
]


class TurnEnd(msgspec.Struct, frozen=True):
    """How a turn ended, and its last words. What was done is kept and can be continued."""

    reason: TerminationReason
    output: str = ""
    error: OutriderError | None = None
