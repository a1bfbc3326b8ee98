"""Where a run works: made ready before a worker carries it, tidied up after its end."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from socket import gethostname
from typing import Any

import msgspec

from outrider.app.workspace.worktrees import Worktree
from outrider.background.runs import Job
from outrider.background.worktrees.worktrees import Changes, Worktrees
from outrider.errors import ConfigurationError, ProcessError
from outrider.sessions.records import InboxItem, SessionUpdate, StoredSession
from outrider.sessions.store import Store
from outrider.types.messages import Message
from outrider.types.parts import TextPart

KEY = "worktree"  # in the session's metadata

_log = logging.getLogger("outrider.worker")


Fitted = Callable[[Job, str], dict[str, Any]]


def as_it_is(job: Job, workspace: str) -> dict[str, Any]:
    return {}


class Ground:
    """Without `worktrees` runs work in the folders that they were submitted for. `fitted` says what an engine has to be
    made of for a job in a folder, where that is anything else than the worker's own."""

    def __init__(self, store: Store, worktrees: Worktrees | None = None, fitted: Fitted = as_it_is) -> None:
        self._store = store
        self._worktrees = worktrees
        self._fitted = fitted

    async def prepare(self, run_id: str, job: Job) -> None:
        """A run keeps its worktree for as long as it is there; on another machine it gets a new one, and is told."""
        session = await self._store.get(run_id)
        if self._worktrees is None or not job.worktree or session.mode in ("chat", "plan"):
            return
        try:
            tree = await asyncio.to_thread(self._ready, self._worktrees, session, job)
        except ProcessError as problem:
            raise ConfigurationError(f"no worktree could be made for this run: {problem}") from problem
        known = worktree_of(session)
        if tree is None or tree == known:
            return
        if known is not None:
            await self._tell(session, tree)
        metadata = {**session.metadata, KEY: msgspec.to_builtins(tree)}
        await self._store.update(run_id, SessionUpdate(workspace_directory=str(tree.folder), metadata=metadata))

    async def engine(self, run_id: str, job: Job) -> dict[str, Any]:
        """What the run's engine is made of besides the worker's own."""
        return await asyncio.to_thread(self._fit, job, (await self._store.get(run_id)).workspace_directory)

    async def tidy(self, run_id: str, job: Job) -> Changes | None:
        """Commit what the run left; a worktree in which nothing changed is removed, and the session put back."""
        session = await self._store.get(run_id)
        tree = worktree_of(session)
        if self._worktrees is None or tree is None or not self._worktrees.holds(tree):
            return None
        try:
            changes = await asyncio.to_thread(self._worktrees.commit, tree, f"{job.prompt}\n\nOutrider-Run: {run_id}")
            if not changes.commits:
                await self._forget(session, tree)
                await asyncio.to_thread(self._worktrees.remove, tree, branch=True)
        except ProcessError as problem:
            _log.warning("the worktree %s stays as it is: %s", tree.path, problem)
            return None
        return changes

    async def _forget(self, session: StoredSession, tree: Worktree) -> None:
        """Before it is removed: whoever is killed in between leaves one that is made anew, and none that is missed."""
        metadata = {key: value for key, value in session.metadata.items() if key != KEY}
        await self._store.update(session.id, SessionUpdate(workspace_directory=tree.workspace, metadata=metadata))

    def _fit(self, job: Job, workspace: str) -> dict[str, Any]:
        if workspace and not Path(workspace).is_dir():
            raise ConfigurationError(f"{workspace} is not on this machine ({gethostname()})")
        return self._fitted(job, workspace)

    def _ready(self, worktrees: Worktrees, session: StoredSession, job: Job) -> Worktree | None:
        known = worktree_of(session)
        if known is None:
            return worktrees.make(session.id, job.prompt, session.workspace_directory)
        if not worktrees.holds(known):
            return worktrees.again(session.id, known)
        worktrees.open(known)
        return known

    async def _tell(self, session: StoredSession, tree: Worktree) -> None:
        """What the model believes to have written may be gone."""
        words = (
            f"The worktree of this run is gone: the machine it was on was lost, or it was removed. It was made anew at "
            f"{tree.path} from the branch {tree.branch}, or, where that was lost too, from the commit {tree.base}. "
            f"Changes that were not committed are not in it: look at the files before you go on."
        )
        message = Message("user", [TextPart(words, synthetic=True)])
        await self._store.put_inbox(
            InboxItem(session_id=session.id, message=message, delivery="steer", sender="outrider")
        )


def worktree_of(session: StoredSession) -> Worktree | None:
    kept: Any = session.metadata.get(KEY)
    return None if kept is None else msgspec.convert(kept, Worktree)
