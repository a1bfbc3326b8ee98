"""When a worker that nobody started by hand ends itself."""

import asyncio
from pathlib import Path
from time import monotonic

from outrider.background.jobs import Jobs
from outrider.background.resident.log import bound
from outrider.background.resident.post import Post

MINUTES = 5.0
_LOOK = 2.0


async def until_idle(
    jobs: Jobs, post: Post, *, seconds: float = MINUTES * 60, look: float = _LOOK, log: Path | None = None
) -> None:
    """Returns, with the post left, once there was nothing to do for so long. A run that waits for an answer is nothing
    to do: whoever answers starts a worker again."""
    while True:
        since = monotonic()
        while monotonic() - since < seconds:
            if log is not None:
                await asyncio.to_thread(bound, log)
            if await jobs.busy():
                since = monotonic()
            await asyncio.sleep(min(look, seconds))
        # Whoever submits looks for a worker afterwards: what was submitted while this one had the post is seen here.
        post.leave()
        if not await jobs.busy() or not post.take():
            return
