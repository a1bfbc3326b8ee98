"""What the rules say about one call."""

from typing import Literal, get_args

from msgspec import Struct

Effect = Literal["allow", "ask", "deny"]
Mode = Literal["chat", "plan", "agent", "background"]
MODES: tuple[str, ...] = get_args(Mode)


class Decision(Struct, frozen=True):
    """`rule` is the rule that decided, as it was written; None: the mode, or a protection that no rule lifts."""

    effect: Effect
    reason: str
    rule: str | None = None
