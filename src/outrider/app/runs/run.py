"""`run`: agents at work on one message, from plain code, from async code, or as a stream."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import msgspec

from outrider.agents.ends import TurnEnd
from outrider.agents.output_type import OutputType
from outrider.agents.terms.hooks import Hooks
from outrider.app.approvals.gate import Approve
from outrider.app.plain_code import in_plain_code
from outrider.app.runs.results import RunResult
from outrider.app.runs.streaming import StreamEvent, Translator
from outrider.app.runs.workshop import RunPlan, Workshop, open_workshop
from outrider.bus import EventBus
from outrider.sessions.session import Session
from outrider.sessions.store import Store
from outrider.tools.tool import Tool
from outrider.tracing.event_log import EventLog
from outrider.tracing.logger import EventLogger
from outrider.types.agents import Agent, Limits, Mode, Provider
from outrider.types.events import Event
from outrider.types.tool_state import Attachment

Taken = ParamSpec("Taken")
Given = TypeVar("Given")


async def async_run(  # noqa: PLR0913  they are what can be said about a run
    entry: Agent | str,
    message: str,
    agents: Iterable[Agent] = (),
    tools: Iterable[Tool | Callable[..., Any]] = (),
    providers: Iterable[Provider] = (),
    *,
    attachments: Sequence[Attachment] | None = None,
    debug: bool = False,
    mode: Mode | None = None,
    session: Session | str | None = None,
    store: Store | None = None,
    bus: EventBus | None = None,
    limits: Limits | None = None,
    approve: Approve | None = None,
    output_type: Any = None,
    hooks: Hooks | None = None,
) -> RunResult:
    """Let agents work on a message. With `output_type` the output is a value of that type.

    What a model or a tool does wrong comes back to the model; what it cannot mend is raised as an OutriderError whose
    `details["result"]` holds all that was done."""
    plan = RunPlan.of(
        entry,
        agents,
        tools,
        providers,
        mode=mode,
        limits=limits,
        approve=approve,
        output=None if output_type in (None, str) else OutputType(output_type),
        hooks=hooks or Hooks(),
    )
    run_bus, log = _bus(bus, debug=debug), EventLog()
    log.attach(run_bus)
    async with open_workshop(plan, run_bus, store=store, session=session) as workshop:
        end = await workshop.work(message, attachments or ())
        result = _result(workshop, end, log)
    await run_bus.settled()
    if end.reason == "error" and end.error is not None:
        end.error.details["result"] = result
        raise end.error
    return result


def _taking_what(like: Callable[Taken, Any]) -> Callable[[Callable[..., Given]], Callable[Taken, Given]]:
    """A function with the parameters of another one, for editors, type checkers and `help` too."""

    def named(function: Callable[..., Given]) -> Callable[Taken, Given]:
        function.__wrapped__ = like  # type: ignore[attr-defined]  where `inspect` finds the parameters
        return cast("Callable[Taken, Given]", function)

    return named


@_taking_what(async_run)
def run(*given: Any, **options: Any) -> RunResult:
    """`async_run` for plain code; it also works where an event loop already runs, as in a notebook."""
    return in_plain_code(lambda: async_run(*given, **options))


@_taking_what(async_run)
async def async_run_stream(
    *given: Any, bus: EventBus | None = None, debug: bool = False, **options: Any
) -> AsyncGenerator[StreamEvent, None]:
    """What happens, as it happens; the last event is the entry agent's finish or error. Leaving early ends the run."""
    run_bus, translator = _bus(bus, debug=debug), Translator()
    queue: asyncio.Queue[StreamEvent | None] = asyncio.Queue()

    def pass_on(event: Event) -> None:
        for translated in translator.translate(event):
            queue.put_nowait(translated)

    run_bus.subscribe_all(pass_on)
    working = asyncio.create_task(async_run(*given, bus=run_bus, **options))
    working.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        told = False
        while (event := await queue.get()) is not None:
            told = event.type in ("finish", "error")
            yield event
        if not told:
            working.result()
    finally:
        working.cancel()
        await asyncio.wait([working])
        if not working.cancelled():
            working.exception()


def _bus(outer: EventBus | None, *, debug: bool) -> EventBus:
    """A bus of the run's own, so that its log and stream hear this run only; the caller's bus hears all of it."""
    own = EventBus()
    if outer is not None:
        own.subscribe_all(outer.publish)
    if debug:
        EventLogger(verbose=True).attach(own)
    return own


def _result(workshop: Workshop, end: TurnEnd, log: EventLog) -> RunResult:
    return RunResult(
        output=end.output if workshop.value is msgspec.UNSET else workshop.value,
        messages=workshop.crew.forwards,
        event_log=log,
        session=workshop.journal.session,
        usage=workshop.crew.budget.usage,
        termination_reason=end.reason,
    )
