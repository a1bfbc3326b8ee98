"""For runs: the function that approves their calls is asked about those of agents on other servers too."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

from outrider.app.approvals.abroad import Abroad
from outrider.app.approvals.gate import ApprovalRequest, Approve, answer_of
from outrider.bus import EventBus
from outrider.errors import OutriderError
from outrider.types.agents import Provider
from outrider.types.events import ToolApprovalRequestedEvent

_log = logging.getLogger("outrider.approvals")


@asynccontextmanager
async def relaying(bus: EventBus, providers: Iterable[Provider], approve: Approve) -> AsyncGenerator[None, None]:
    abroad = Abroad(bus, providers)
    asking: set[asyncio.Task[None]] = set()

    def hear(event: ToolApprovalRequestedEvent) -> None:
        if event.approval_id in abroad:
            asking.add(asyncio.create_task(_ask(event, approve, abroad)))

    unsubscribe = bus.subscribe(ToolApprovalRequestedEvent, hear)
    try:
        yield
    finally:
        unsubscribe()
        abroad.close()
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)


async def _ask(event: ToolApprovalRequestedEvent, approve: Approve, abroad: Abroad) -> None:
    request = ApprovalRequest(
        event.tool_name,
        event.tool_input,
        event.call_id,
        event.agent_name,
        event.session_id,
        event.description,
        event.offers,
    )
    answer = await answer_of(approve, request)
    if event.approval_id not in abroad:
        return  # somebody there was quicker, or the turn has ended
    try:
        await abroad.answer(event.approval_id, allow=answer is True, words=answer if isinstance(answer, str) else "")
    except OutriderError as error:
        _log.warning("an answer did not reach %s: %s", event.server, error)
