"""What commands may ask of the screen."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import msgspec

from outrider.tui.asking.panel import Key
from outrider.tui.conversation.entries import NoteKind
from outrider.tui.helm import Helm
from outrider.tui.looks import Look
from outrider.tui.widgets.picker import Item
from outrider.tui.widgets.reader import Drawn


class Stage(Protocol):
    @property
    def helm(self) -> Helm: ...

    async def pick(self, title: str, items: Sequence[Item], current: str = "") -> str | None:
        """What somebody chose of a list."""
        ...

    def read(self, title: str, text: str | Drawn) -> None:
        """Show a page to read: Markdown, or lines that are drawn for a width."""
        ...

    def tell(self, text: str, kind: NoteKind = "quiet", body: str = "") -> None:
        """A line in the conversation, which is not stored."""
        ...

    async def confirm(self, title: str, text: str, yes: str) -> bool: ...

    async def edit(self, title: str, text: str) -> str | None:
        """A text as somebody left it, or None."""
        ...

    async def choose(self, title: str, text: str, keys: Sequence[Key]) -> tuple[str, str]:
        """The answer to a question in place of the composer, and words that came with it."""
        ...

    async def shown(self) -> None:
        """Another session is on the screen: questions of the one before go, its own are asked."""
        ...

    def redraw(self) -> None: ...

    def offer(self, text: str) -> None:
        """Put words into the composer, to be changed and said."""
        ...

    def switch_look(self, look: Look | None) -> None:
        """None stands for the other one."""
        ...

    def leave(self) -> None: ...


Run = Callable[[Stage, str], Coroutine[Any, Any, None]]


class Command(msgspec.Struct, frozen=True):
    """`argument` says what may follow the name."""

    name: str
    note: str
    run: Run
    argument: str = ""
