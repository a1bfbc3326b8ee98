"""A run as it goes on, seen from anywhere: what its sessions keep, in order, and where the run stands."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from sqlalchemy.exc import SQLAlchemyError

from outrider.background.following.called import Called
from outrider.background.following.reader import Reader
from outrider.background.jobs import Jobs
from outrider.background.runs import Run
from outrider.errors import OutriderError
from outrider.sessions.records import ApprovalChange, Change, MessageChange, PartChange, SessionChange

__all__ = [
    "ApprovalChange",
    "Called",
    "Change",
    "MessageChange",
    "PartChange",
    "SessionChange",
    "follow",
    "so_far",
    "until_left_alone",
]

POLL = 0.5


async def follow(
    jobs: Jobs, run_id: str, *, after: int = 0, called: bool = False, poll: float = POLL
) -> AsyncGenerator[Change | Called | Run, None]:
    """The run first and whenever it stands somewhere else, and every change newer than `after`, drafts of answers
    included; it ends when the run is over. With `called` also what the agents do that it calls. Whoever leaves and
    comes back gives the last number of the run's own that was seen, and hears again of the agents that are at work.
    To leave does nothing to the run."""
    run = await jobs.show(run_id)
    yield run
    async with Reader(jobs.store, run_id, after=after, pause=poll, called=called) as reader:
        while not run.is_over:
            if change := await reader.next(poll):
                yield change
                continue
            now = await jobs.show(run_id)
            if now.state != run.state:
                yield now
            run = now
    async with aclosing(reader.rest()) as rest:
        async for change in rest:
            yield change


def so_far(jobs: Jobs, run_id: str, *, after: int = 0) -> AsyncGenerator[Change | Called, None]:
    """What was kept of a run and of the agents that it called, until now."""
    return Reader(jobs.store, run_id, after=after, called=True).rest()


async def until_left_alone(jobs: Jobs, run_id: str, *, pause: float = 5.0) -> None:
    """Returns once a run was found twice in a row to have nobody who goes on with it."""
    found = 0
    while found < 2:
        await asyncio.sleep(pause)
        try:
            found = found + 1 if await jobs.left_alone([await jobs.show(run_id)]) else 0
        except (SQLAlchemyError, OutriderError):
            found = 0  # whoever follows the run hears of it there
