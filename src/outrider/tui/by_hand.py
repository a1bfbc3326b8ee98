"""Commands that people run themselves with `!`: shown as they run, and told to the model with what is said next."""

import asyncio
from collections.abc import Callable

from outrider.app.bridges.bridge import Bridge
from outrider.errors import OutriderError
from outrider.tui.conversation.entries import Ran
from outrider.types.parts import TextPart

TOLD = 20_000  # characters of a command's output that go along


class ByHand:
    def __init__(self) -> None:
        self._parts: list[TextPart] = []
        self._running: asyncio.Future[str] | None = None

    async def run(self, bridge: Bridge, session_id: str, ran: Ran, changed: Callable[[], None]) -> None:
        def on_output(text: str) -> None:
            ran.output(text)
            changed()

        self._running = asyncio.ensure_future(bridge.run_by_hand(session_id, ran.command, on_output))
        try:
            ran.end(await self._running)
        except OutriderError as error:
            ran.end(error.message)
            return  # it did not run, so there is nothing to tell of it
        except asyncio.CancelledError:
            ran.end("interrupted")
            if (task := asyncio.current_task()) and task.cancelling():
                raise
        finally:
            changed()
        said = f"The user ran a command: {ran.command}\n{ran.text[-TOLD:]}\n({ran.exit})"
        kept = {"command": ran.command, "output": ran.text}
        self._parts.append(TextPart(said, synthetic=True, id=ran.id, metadata=kept))

    def interrupt(self) -> None:
        if self._running is not None:
            self._running.cancel()

    def take(self) -> list[TextPart]:
        """What goes along with the next message."""
        parts, self._parts = self._parts, []
        return parts
