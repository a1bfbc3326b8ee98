"""Questions that the client puts to its user: about calls, about plans, and those of a model."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

import acp
import msgspec
from acp import RequestError
from acp.schema import AllowedOutcome, PermissionOption, ToolCallUpdate

from outrider.acp.tool_calls import Shown, one_line, valid
from outrider.engine.engine import Engine
from outrider.engine.frontend import ApprovalScope, Question
from outrider.errors import OutriderError
from outrider.types.ids import new_id

_log = logging.getLogger("outrider.acp")

BY = "editor"
NO_ANSWER = "no-answer"
_SCOPES: dict[str, ApprovalScope] = {"once": "once", "session": "session", "always": "always"}


class PermissionView(msgspec.Struct, frozen=True):
    """A question about a call; `offers` are the rules that a yes for longer would keep."""

    id: str
    session_id: str
    call: Shown
    why: str = ""
    offers: tuple[str, ...] = ()
    can_last: bool = False


class Questions:
    """Of one session. `session_id` is what the client knows it by, also for agents that were called in it."""

    def __init__(self, session_id: str, engine: Engine, client: acp.Client, tasks: asyncio.TaskGroup) -> None:
        self._session_id = session_id
        self._engine = engine
        self._client = client
        self._tasks = tasks
        self._waiting: dict[str, asyncio.Task[None]] = {}

    def ask_about(self, asked: PermissionView) -> None:
        if asked.id not in self._waiting:
            task = self._tasks.create_task(_until_closed(self._approve(asked)))
            self._waiting[asked.id] = task
            task.add_done_callback(lambda _: self._waiting.pop(asked.id, None))

    def drop(self, approval_id: str) -> None:
        """Somebody else has answered, or nobody needs to any more."""
        if (task := self._waiting.pop(approval_id, None)) is not None:
            task.cancel()

    def close(self) -> None:
        for approval_id in list(self._waiting):
            self.drop(approval_id)

    async def ask_model_question(self, question: Question) -> tuple[str, ...] | None:
        """Only one that has options, and of which one is chosen: the protocol has no other answers."""
        if not question.options or question.multiple:
            return None
        options = [_option(str(number), text, "allow_once") for number, text in enumerate(question.options)]
        options.append(_option(NO_ANSWER, "No answer", "reject_once"))
        call = ToolCallUpdate(tool_call_id=new_id(), title=one_line(question.text), kind="other", status="pending")
        try:
            chosen = await self.choose(call, options)
        except OutriderError:
            return None
        except ConnectionError:
            return await _left_open()
        return (question.options[int(chosen)],) if chosen is not None and chosen != NO_ANSWER else None

    async def choose(self, call: ToolCallUpdate, options: Sequence[PermissionOption]) -> str | None:
        """The option that the user chose; None if the turn is cancelled instead. Raises OutriderError where the client
        cannot ask, or answers something else."""
        try:
            answer = await self._client.request_permission(self._session_id, call, list(options))
        except (RequestError, ValueError) as error:
            raise OutriderError(f"the editor could not ask: {error}") from error
        if not isinstance(answer.outcome, AllowedOutcome):
            return None
        known = {option.option_id for option in options}
        return answer.outcome.option_id if answer.outcome.option_id in known else NO_ANSWER

    async def _approve(self, asked: PermissionView) -> None:
        """A client that cannot ask means no; one that goes away leaves the question open."""
        try:
            chosen = await self.choose(asked.call.asked(valid(asked.why)), _options(asked))
        except OutriderError as error:
            await self._engine.answer(asked.id, allow=False, by=BY, words=error.message)
            return
        if chosen is None:
            await self._cancel(asked)
            return
        await self._engine.answer(asked.id, allow=chosen in _SCOPES, scope=_SCOPES.get(chosen, "once"), by=BY)

    async def _cancel(self, asked: PermissionView) -> None:
        """The client gave up the turn. Once it has ended, the question is closed and nothing is left to end."""
        if any(found.id == asked.id for found in await self._engine.approvals(asked.session_id)):
            await self._engine.abort(self._session_id)


async def _left_open() -> None:
    """The editor went, and the program ends: until then nobody answers, and the next one is asked."""
    await asyncio.Event().wait()


def _options(asked: PermissionView) -> list[PermissionOption]:
    options = [_option("once", "Yes, once", "allow_once")]
    if asked.can_last:
        covered = f" ({', '.join(asked.offers)})" if asked.offers else ""
        options.append(_option("session", f"Yes, in this session{covered}", "allow_always"))
        options.append(_option("always", f"Yes, always{covered}", "allow_always"))
    return [*options, _option("no", "No", "reject_once")]


def _option(option_id: str, name: str, kind: Any) -> PermissionOption:
    return PermissionOption(option_id=option_id, name=one_line(name), kind=kind)


async def _until_closed(work: Coroutine[Any, Any, None]) -> None:
    """One question that cannot be answered does not end all others."""
    try:
        await work
    except ConnectionError:
        pass  # the client has gone; the question is asked when somebody opens the session again
    except OutriderError as error:
        _log.error("an answer could not be kept: %s", error)
