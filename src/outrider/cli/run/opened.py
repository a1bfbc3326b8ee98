"""A session in which one prompt is worked on, wherever its engine runs."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from outrider.app.archive.ends import TurnEnd
from outrider.cli.run.result import Begun
from outrider.types.events import Event
from outrider.types.parts import PartBase


class Opened(NamedTuple):
    """`subscribe` lets a listener hear everything that happens; `prompt` gives the end of the turn."""

    begun: Begun
    subscribe: Callable[[Callable[[Event], None]], object]
    prompt: Callable[[Sequence[PartBase]], Awaitable[TurnEnd]]
    abort: Callable[[], Awaitable[None]]
