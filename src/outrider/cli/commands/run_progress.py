"""Progress of `outrider run` on stderr: one line per tool call and notice, and a status line on a terminal."""

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, assert_never, cast

from outrider.cli.output import NOTICE_STYLES, STATUS_STYLES, Console, truncate_text
from outrider.presentation.formats import clean_line, format_elapsed, format_tokens
from outrider.presentation.items import Notice, event_notice, file_summary, vendor_tool_notice
from outrider.presentation.tool_calls import call_line, call_title, status_tone
from outrider.presentation.turn_updates import CallEnded, CallReporter, CallStarted
from outrider.types.codec import AnyPart
from outrider.types.events import (
    BudgetExceededEvent,
    ErrorEvent,
    Event,
    LLMResponseEvent,
    LoopCompletedEvent,
    PartUpdatedEvent,
    ToolApprovalRequestedEvent,
)
from outrider.types.parts import (
    STORED_KINDS,
    AgentPart,
    CompactionPart,
    FilePart,
    Part,
    PatchPart,
    ReasoningPart,
    RetryPart,
    SnapshotPart,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    ToolPart,
    is_withdrawn,
)
from outrider.types.tool_state import ToolError, ToolRunning

if TYPE_CHECKING:
    from outrider.presentation.activity import SessionActivity

_STATUS_SECONDS = 0.25
_SUMMARIZED_EVENTS = (ErrorEvent, BudgetExceededEvent, LoopCompletedEvent)  # printed after the run, with its exit code


def printed_notice(event: Event, *, verbose: bool) -> Notice | None:
    """Returns the notice that `outrider run` prints for an event; None if the last lines of the run report it, or if it
    is a detail and `verbose` is not set."""
    if isinstance(event, _SUMMARIZED_EVENTS):
        return None
    if isinstance(event, ToolApprovalRequestedEvent) and not event.server:
        return None  # this process answers it
    if isinstance(event, PartUpdatedEvent) and isinstance(event.part, FilePart):
        return file_notice(event.part)
    notice = event_notice(event)
    return None if notice is None or (notice.level == "detail" and not verbose) else notice


def file_notice(part: FilePart) -> Notice | None:
    """Returns the notice about a file that a model has sent; None if its answer is withdrawn."""
    return None if is_withdrawn(part) else Notice("info", "files", f"file: {file_summary(part)}")


class ProgressPrinter:
    """Prints one line per tool call to stderr, another one if the call fails, and a line per notice. Notices of level
    `detail` are only printed with `verbose`. `session_id` is the session of the main agent, whose text before calls is
    printed too. On a terminal, the last line shows what the main agent does, for how long, and the tokens so far."""

    def __init__(self, console: Console, *, verbose: bool, session_id: str = "") -> None:
        self._console = console
        self._verbose = verbose
        self._session = session_id
        self._calls = CallReporter("running")
        self._text = ""  # of the main agent; printed when a call follows, because the last one goes to stdout
        self._activity = _create_activity() if console.err_is_terminal and session_id else None
        self._timer: asyncio.TimerHandle | None = None

    def on_event(self, event: Event) -> None:
        self._print_event(event)
        if self._activity is not None:
            self._activity.apply(event, is_shown_session=event.session_id == self._session)
            self._show_activity(self._activity)

    def _show_activity(self, activity: "SessionActivity") -> None:
        """Shows the activity four times a second while a turn runs."""
        if not activity.busy:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._console.clear_status()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_STATUS_SECONDS, self._tick, activity)

    def _tick(self, activity: "SessionActivity") -> None:
        self._timer = None
        tokens = f" · {format_tokens(activity.tokens)} tokens" if activity.tokens else ""
        elapsed = format_elapsed(activity.seconds)
        self._console.show_status(f"{activity.retry_text or activity.label} · {elapsed}{tokens}")
        self._show_activity(activity)

    def _print_event(self, event: Event) -> None:
        if isinstance(event, PartUpdatedEvent):
            self._print_part(event.part)
        elif isinstance(event, LLMResponseEvent):
            if event.session_id == self._session and not event.has_tool_use:
                self._text = ""
        elif (notice := printed_notice(event, verbose=self._verbose)) is not None:
            self._print_notice(notice)

    def _print_part(self, part: AnyPart) -> None:
        if type(part) not in STORED_KINDS:
            self._print_notice(Notice("detail", "custom", clean_line(part.type or "part", 100)))
        else:
            self._print_standard_part(cast("Part", part))

    def _print_standard_part(self, part: Part) -> None:
        match part:
            case ToolPart():
                self._print_call(part)
            case ReasoningPart():
                self._print_reasoning(part)
            case TextPart():
                if part.session_id == self._session and not part.synthetic:
                    self._text = "" if part.ignored else part.text
            case RetryPart() | CompactionPart() | SubtaskPart():
                return  # an event reports it too
            case FilePart():
                if (notice := file_notice(part)) is not None:
                    self._print_notice(notice)
            case PatchPart() | AgentPart() | StepStartPart() | StepFinishPart() | SnapshotPart():
                return  # a call reports what it changes; the other parts are bookkeeping
            case _:
                assert_never(part)

    def _print_reasoning(self, part: ReasoningPart) -> None:
        if (notice := vendor_tool_notice(part)) is not None and not is_withdrawn(part):
            self._print_notice(notice)
        elif self._verbose and part.time and part.time.end:
            self._print_line(f"(thought: {part.text})")

    def _print_call(self, call: ToolPart) -> None:
        for update in self._calls.call_updates(call):
            match update:
                case CallStarted():
                    if isinstance(call.state, ToolRunning):  # the line of the error names a call that never ran
                        self._print_intermediate_text(call)
                        self._print_line(f"▸ {call_title(call.tool, call.state.input)}")
                case CallEnded(state=ToolError(error=error)):
                    self._print_line(call_line(call, call.tool, error), STATUS_STYLES[status_tone(call)])
                case CallEnded():
                    pass  # only a failure has a line
                case _:
                    assert_never(update)

    def _print_intermediate_text(self, call: ToolPart) -> None:
        if self._text.strip() and call.session_id == self._session:
            self._console.print_stderr(self._text.strip())
            self._text = ""

    def _print_notice(self, notice: Notice) -> None:
        if notice.level != "detail" or self._verbose:
            self._print_line(f"▸ {notice.text}", NOTICE_STYLES[notice.level])

    def _print_line(self, text: str, style: str = "dim") -> None:
        self._console.print_stderr(truncate_text(text, self._console.width), style)


def _create_activity() -> "SessionActivity":
    from outrider.presentation.activity import SessionActivity  # lazy: pipes need none

    return SessionActivity(monotonic)
