"""The one way in which tools change files: planned, the old content kept, then written, one call after the other."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from outrider.errors import ToolFailure
from outrider.tools.context import ToolContext
from outrider.tools.files.commit import Change, commit
from outrider.tools.files.files import Files
from outrider.tools.files.ledger import Ledger, version_of
from outrider.tools.files.revision import Revision, Revisions
from outrider.tools.threads import Threads

T = TypeVar("T")

KeepBefore = Callable[[Path, bytes | None], Awaitable[None] | None]
"""Keeps what a file holds before it changes (None: it does not exist yet), so that the change can be undone."""


class Editor:
    """`keep_before` has kept the old content when it returns; if it fails, nothing is written."""

    def __init__(self, files: Files, keep_before: KeepBefore, ledger: Ledger | None = None) -> None:
        self.files = files
        self.ledger = ledger or Ledger()
        self._keep_before = keep_before
        self._turnstile = asyncio.Lock()
        self._threads = Threads(4)

    async def change(self, context: ToolContext, plan: Callable[[Revisions], T]) -> T:
        """Runs the plan, which opens revisions and changes them, and writes what became different. A plan that raises
        changes nothing; cancelling either comes before the first byte or waits for the last."""
        async with self._turnstile:
            revisions = Revisions(self.files, self.ledger, context.session_id)
            result: T = await self._threads.run(lambda: plan(revisions))
            changes = [revision.change() for revision in revisions.changed()]
            await self._keep(changes)
            await _whole(asyncio.ensure_future(self._threads.run(lambda: commit(changes))))
            for revision in revisions.changed():
                self._note(context.session_id, revision)
        return result

    async def _keep(self, changes: list[Change]) -> None:
        for change in changes:
            try:
                kept = self._keep_before(Path(change.place.real), change.before)
                if kept is not None:
                    await kept
            except Exception as error:
                why = getattr(error, "message", "") or str(error) or type(error).__name__
                raise ToolFailure(
                    f"{change.place.shown}: its present content could not be kept for undo ({why}). Nothing was written"
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
