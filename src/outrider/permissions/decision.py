"""What the rules say about one call."""

from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import force_setattr

Effect = Literal["allow", "ask", "deny"]
Mode = Literal["chat", "plan", "agent", "background"]
MODES: tuple[str, ...] = get_args(Mode)


class Decision(Struct, frozen=True):
    """`rule` is the rule that decided, as it was written; None: the mode, or a protection that no rule lifts."""

    effect: Effect
    reason: str
    rule: str | None = None

    def __post_init__(self) -> None:
        # A path in the reason may hold bytes that are no text, and a decision is stored.
        if not self.reason.isascii():
            force_setattr(self, "reason", self.reason.encode("utf-8", "backslashreplace").decode())
