"""The one way in which tools change files: planned, the old content kept, then written, one call after the other."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from typing import TypeVar

from outrider.errors import ToolFailure
from outrider.tools.context import ToolContext
from outrider.tools.files.commit import Change, commit
from outrider.tools.files.files import Files
from outrider.tools.files.ledger import Ledger, version_of
from outrider.tools.files.revision import Revision, Revisions
from outrider.tools.threads import Threads

T = TypeVar("T")

Keep = Callable[[ToolContext, Sequence[Change]], AbstractAsyncContextManager[None]]
"""Stands around the writing of changes: entered, it has kept what the files hold, so that the changes can be undone;
left, it sees what has become of them."""


def keep_nothing(context: ToolContext, changes: Sequence[Change]) -> AbstractAsyncContextManager[None]:
    """For editors whose changes nobody wants to undo."""
    return nullcontext()


class Editor:
    """If the old contents cannot be kept, nothing is written."""

    def __init__(self, files: Files, keep: Keep = keep_nothing, ledger: Ledger | None = None) -> None:
        self.files = files
        self.ledger = ledger or Ledger()
        self._keep = keep
        self._turnstile = asyncio.Lock()
        self._threads = Threads(4)

    async def change(self, context: ToolContext, plan: Callable[[Revisions], T]) -> T:
        """Runs the plan, which opens revisions and changes them, and writes what became different. A plan that raises
        changes nothing; cancelling either comes before the first byte or waits for the last."""
        async with self._turnstile:
            revisions = Revisions(self.files, self.ledger, context.session_id)
            result: T = await self._threads.run(lambda: plan(revisions))
            changes = [revision.change() for revision in revisions.changed()]
            async with AsyncExitStack() as kept:
                await self._enter(kept, context, changes)
                await _whole(asyncio.ensure_future(self._threads.run(lambda: commit(changes))))
            for revision in revisions.changed():
                self._note(context.session_id, revision)
        return result

    async def _enter(self, kept: AsyncExitStack, context: ToolContext, changes: list[Change]) -> None:
        try:
            await kept.enter_async_context(self._keep(context, changes))
        except Exception as error:
            why = getattr(error, "message", "") or str(error) or type(error).__name__
            shown = ", ".join(change.place.shown for change in changes)
            raise ToolFailure(
                f"{shown}: its present content could not be kept for undo ({why}). Nothing was written"
            ) from error

    def _note(self, session_id: str, revision: Revision) -> None:
        if revision.after is None:
            self.ledger.forget(session_id, revision.place.real)
        else:
            self.ledger.saw(session_id, revision.place.real, version_of(revision.after))


async def _whole(writing: "asyncio.Future[None]") -> None:
    """Once begun, writing is not left half way: what is reported about it must be true."""
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait([writing])
        if not writing.cancelled():
            writing.exception()
        raise
