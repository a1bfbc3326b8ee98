"""`outrider jobs logs` and `follow`: print the stored and live changes of a run and of the agents that it calls."""

import asyncio
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from html import escape
from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from outrider.cli import exit_codes
from outrider.cli.commands.jobs_common import (
    NO_WORKER_MESSAGE,
    find_run,
    format_failure,
    format_usage,
    run_with_jobs,
)
from outrider.cli.output import NOTICE_STYLES, STATUS_STYLES, Console
from outrider.cli.setup import user_folders
from outrider.presentation.formats import sanitize_for_terminal, short_id, shorten
from outrider.presentation.items import (
    CommandItem,
    FileItem,
    NoticeItem,
    ReasoningItem,
    TextItem,
    ToolCallItem,
    TranscriptItem,
    UserItem,
    damage_notice,
    file_summary,
    message_error_notice,
    part_item,
)
from outrider.presentation.tool_calls import call_line, call_title, status_tone
from outrider.presentation.turn_updates import missing_text
from outrider.types.codec import AnyPart
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning

if TYPE_CHECKING:
    from outrider.background.follow import Change, ChildChange
    from outrider.background.jobs import JobClient
    from outrider.background.records import Run


GAP_MARK = "…\n"
_TITLE_CHARS = 100
_THOUGHT_CHARS = 200
_OVERLAP_CHARS = 200  # characters of printed output that are searched for in the final result


class CallOutputTracker:
    """Tracks the printed output of each running call, and its last line until that line is complete."""

    def __init__(self) -> None:
        self._shown_outputs: dict[str, str] = {}
        self._partial_lines: dict[str, str] = {}

    def new_lines(self, call: ToolPart) -> list[str]:
        """Returns the output lines completed since the last check; after the tool call ended, all remaining lines."""
        partial, printed = self._partial_lines.get(call.id, ""), self._shown_outputs.get(call.id, "")
        match call.state:
            case ToolRunning(metadata={"output": str(written)}):
                *complete, self._partial_lines[call.id] = (partial + appended_text(printed, written)).split("\n")
                self._shown_outputs[call.id] = written
                return complete
            case ToolCompleted(output=output) if printed:
                remaining = partial + _text_after(printed, output)
            case ToolPending() | ToolRunning() | ToolCompleted() | ToolError():
                remaining = partial
        return remaining.strip("\n").split("\n") if remaining.strip() else []

    def has_shown(self, call: ToolPart) -> bool:
        return bool(self._shown_outputs.get(call.id))


def appended_text(before: str, now: str) -> str:
    """Returns what `now` has after the end of `before`.

    Both are tails of one growing output, and `now` may have lost its beginning. If the two do not overlap, output was
    dropped in between, and the result starts with GAP_MARK.
    """
    start = next((start for start in range(len(before)) if now.startswith(before[start:])), len(before))
    gap = GAP_MARK if before and start == len(before) else ""
    return gap + now[len(before) - start :]


def _text_after(printed: str, output: str) -> str:
    """Returns the part of the final output after the printed text; empty if that text is not found in a shortened
    output."""
    tail = printed.rstrip()[-_OVERLAP_CHARS:]
    return output.rpartition(tail)[2] if tail and tail in output else ""


class JobJsonPrinter:
    """Prints one JSON object per line; `--after` takes a `seq` number. A change of a called agent is wrapped in an
    object of type `called`, and its `seq` numbers belong to that agent's session."""

    def __init__(self) -> None:
        self._console = Console()

    def print_run(self, run: "Run") -> None:
        """Prints the state of the run."""
        self._print_json({"type": "run", "run": run})

    def print_change(self, change: "Change | ChildChange") -> None:
        """Prints a stored change of the run or of an agent that it has called."""
        self._print_json(change)

    def finish(self) -> None:
        """Does nothing: every change is already printed."""

    def _print_json(self, value: Any) -> None:
        self._console.write(msgspec.json.encode(value).decode() + "\n")


class JobTextPrinter:
    """Prints changes as text. Answers and call outputs grow with every change, so only the new part is printed. Called
    agents are indented, and a heading is printed whenever the output switches to another agent."""

    def __init__(self) -> None:
        self._roles: dict[str, str] = {}
        self._shown: dict[str, str] = {}
        self._outputs = CallOutputTracker()
        self._output = _AgentOutput()

    def print_run(self, run: "Run") -> None:
        """Prints the state of the run."""
        text = f"[{short_id(run.id)} is {run.state}]"
        if run.waiting_for:
            text = f"[{short_id(run.id)} is {run.state}, waiting for {run.waiting_for}]"
        elif run.state == "waiting":
            text += f" Answer: outrider jobs approve {short_id(run.id)}"
        elif run.outcome is not None:
            text += f" {format_usage(run.outcome)}"
            text += f" {format_failure(run.outcome)}" if run.state == "failed" else ""
        self._output.select_agent()
        self._output.print_line(text, "dim")

    def print_change(self, change: "Change | ChildChange") -> None:
        """Prints a stored change of the run or of an agent that it has called."""
        from outrider.background.follow import ChildChange

        if isinstance(change, ChildChange):
            self._output.select_agent(f"▸ {change.agent} {short_id(change.session_id)}", change.depth)
            self._print_session_change(change.change)
        else:
            self._output.select_agent()
            self._print_session_change(change)

    def finish(self) -> None:
        """Ends an unfinished last line."""
        self._output.end_line()

    def _print_session_change(self, change: "Change") -> None:
        from outrider.background.follow import (
            ApprovalChange,
            DamagedChange,
            DeletedChange,
            InboxChange,
            MessageChange,
            PartChange,
            SessionChange,
        )

        match change:
            case MessageChange(message=message):
                self._roles[message.id] = message.role
                if (notice := message_error_notice(message)) is not None:
                    self._output.print_line(f"✗ {notice.text}", NOTICE_STYLES[notice.level])
            case PartChange(part=part, draft=draft):
                self._print_part(part, draft=draft)
            case ApprovalChange(approval=approval):
                if approval.answer == "open":
                    from outrider.presentation.approvals import approval_view, question_text  # lazy: few runs ask

                    self._output.print_line(f"? {question_text(approval_view(approval))}", "yellow")
            case DamagedChange(row=row):
                notice = damage_notice(row.kind, row.error)
                self._output.print_line(notice.text, NOTICE_STYLES[notice.level])
            case DeletedChange():
                self._output.print_line("the session was deleted", "yellow")
            case SessionChange() | InboxChange():
                return  # a queued input is printed as the message that it becomes
            case _:
                assert_never(change)

    def _print_item(self, item: TranscriptItem, *, draft: bool) -> None:
        match item:
            case ToolCallItem():
                self._print_call(item.part)
            case ReasoningItem():
                if not draft:
                    self._print_once(item, shorten(f"(thought: {item.text})", _THOUGHT_CHARS), "dim")
            case TextItem():
                if self._roles.get(item.message_id) == "user":
                    self._print_once(item, f"> {item.text}", "cyan")
                else:
                    self._print_text(item, draft=draft)
            case FileItem():
                self._print_once(item, f"[file {file_summary(item.part)}]", "blue")
            case NoticeItem():
                self._print_once(item, f"[{item.text}]", NOTICE_STYLES[item.level])
            case CommandItem():
                self._print_once(item, f"$ {item.command}", "cyan")
            case UserItem():
                return  # an item of whole messages; here each part is a separate change
            case _:
                assert_never(item)

    def _print_part(self, part: AnyPart, *, draft: bool) -> None:
        item = part_item(part)
        if item is not None and item.withdrawn:
            self._withdraw_item(item)
        elif item is not None:
            self._print_item(item, draft=draft)

    def _withdraw_item(self, item: TranscriptItem) -> None:
        """Reports that a text or call that was printed belongs to a failed attempt; its retry has a separate line."""
        if self._shown.pop(item.id, None):
            self._output.print_line("[the text above is withdrawn]", "yellow")

    def _print_once(self, item: TranscriptItem, text: str, style: str) -> None:
        if self._shown.get(item.id) != text:
            self._shown[item.id] = text
            self._output.print_line(text, style)

    def _print_text(self, item: TextItem, *, draft: bool) -> None:
        """Prints the new part of a text; the draft of a second streaming part is held back."""
        before = self._shown.get(item.id, "")
        if item.text == before or (draft and not self._output.is_free_for(item.id)):
            return  # another part is streaming; this one is printed when it is complete
        missing = missing_text(before, item.text)
        self._output.write(item.id, item.text if missing is None else missing)
        self._shown[item.id] = item.text
        if not draft:
            self._output.release()

    def _print_call(self, part: ToolPart) -> None:
        """Prints the start, new output lines and end of a call, each once."""
        is_new = self._shown.get(part.id) != part.state.status
        self._shown[part.id] = part.state.status
        title = call_title(part.tool, part.state.input, limit=_TITLE_CHARS)
        if is_new and isinstance(part.state, ToolRunning):
            self._output.print_line(f"· {title}")
        for line in self._outputs.new_lines(part):
            self._output.print_line(f"  {line}", "dim")
        if is_new:
            self._print_call_end(part, title)

    def _print_call_end(self, part: ToolPart, title: str) -> None:
        if not part.ended:
            return
        detail = part.state.error if isinstance(part.state, ToolError) else ""
        if self._outputs.has_shown(part):
            # The part after the blank line repeats the output, which has been printed already.
            detail = detail.partition("\n\n")[0]
        self._output.print_line(call_line(part, title, detail), STATUS_STYLES[status_tone(part)])


class _AgentOutput:
    """Prints the interleaved output of several agents; at most one part has an unfinished line at a time."""

    def __init__(self) -> None:
        self._console = Console()
        self._heading = self._printed_heading = self._margin = ""
        self._open_part = ""  # the part whose last line is not ended yet
        self._writing_part = ""  # the part that is still streaming

    def select_agent(self, heading: str = "", depth: int = 0) -> None:
        """Selects the agent that the following output belongs to; its heading is printed with the first output."""
        self._heading, self._margin = heading, "  " * depth

    def print_line(self, text: str, style: str = "") -> None:
        self._start_line()
        self._console.print(self._indent(text), style)
        self._console.write("")

    def write(self, part_id: str, text: str) -> None:
        """Prints the next chunk of a streaming text."""
        if self._open_part != part_id:
            self._start_line()
            self._console.write(self._margin)
        self._console.write(text.replace("\n", f"\n{self._margin}"))
        self._open_part = self._writing_part = part_id

    def is_free_for(self, part_id: str) -> bool:
        return self._writing_part in ("", part_id)

    def release(self) -> None:
        self._writing_part = ""

    def end_line(self) -> None:
        if self._open_part:
            self._console.write("\n")
            self._open_part = ""

    def _start_line(self) -> None:
        self.end_line()
        self.release()
        if self._heading and self._heading != self._printed_heading:
            self._console.print(self._indent(self._heading), "dim")
        self._printed_heading = self._heading

    def _indent(self, text: str) -> str:
        return self._margin + text.replace("\n", f"\n{self._margin}")


_NOTIFY_SECONDS = 5
_APPLE_SCRIPT = 'on run argv\ndisplay notification (item 1 of argv) with title "Outrider"\nend run'


def notify_run_end(text: str) -> None:
    """Rings the bell and shows a desktop notification, but only at a terminal: scripts use the exit code."""
    console = Console()
    if not console.err_is_terminal:
        return
    console.err.write("\a")
    console.err.flush()
    if argv := notification_command(sanitize_for_terminal(text, keep_lines=False), os.environ, sys.platform):
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(argv, timeout=_NOTIFY_SECONDS, check=False, capture_output=True, stdin=subprocess.DEVNULL)


def notification_command(text: str, environ: Mapping[str, str], platform: str) -> Sequence[str]:
    """Returns the command that shows a desktop notification; empty without a desktop or a notification program."""
    if platform == "darwin" and (program := shutil.which("osascript", path=environ.get("PATH"))):
        return program, "-e", _APPLE_SCRIPT, text
    has_desktop = environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")
    if has_desktop and (program := shutil.which("notify-send", path=environ.get("PATH"))):
        return program, "--app-name=outrider", "--", "Outrider", escape(text, quote=False)
    return ()


_EXIT_CODES = {"done": exit_codes.SUCCESS, "canceled": exit_codes.INTERRUPTED, "waiting": exit_codes.NOT_APPROVED}


def show_logs(arguments: Namespace) -> int:
    """Prints the stored changes of a run, and returns the exit code."""

    async def print_stored_changes(jobs: "JobClient") -> int:
        from outrider.background.follow import stored_changes

        run = await find_run(jobs, arguments.run)
        printer = _create_printer(arguments)
        async with aclosing(stored_changes(jobs, run.id, after=arguments.after)) as changes:
            async for change in changes:
                printer.print_change(change)
        printer.finish()
        return exit_codes.SUCCESS

    return run_with_jobs(arguments, print_stored_changes)


def follow_run(arguments: Namespace) -> int:
    """Follows a run until it ends; Ctrl+C stops following and returns INTERRUPTED."""

    async def follow_found(jobs: "JobClient") -> int:
        return await follow_until_end(arguments, jobs, (await find_run(jobs, arguments.run)).id)

    try:
        return run_with_jobs(arguments, follow_found)
    except KeyboardInterrupt:
        Console().print_stderr("\nStopped following; the run continues.")
        return exit_codes.INTERRUPTED


async def follow_until_end(arguments: Namespace, jobs: "JobClient", run_id: str) -> int:
    """Prints changes until the run ends, and returns the exit code for its final state."""
    from outrider.background.follow import follow_run as followed
    from outrider.background.records import Run

    printer, run = _create_printer(arguments), None
    change_stream = aclosing(followed(jobs, run_id, after=getattr(arguments, "after", 0), called=True))
    async with _missing_worker_warning(arguments, jobs, run_id), change_stream as changes:
        async for item in changes:
            if not isinstance(item, Run):
                printer.print_change(item)
            elif not (run := item).is_over:
                printer.print_run(run)
    if run is None:
        return exit_codes.FAILURE
    printer.print_run(run)  # after all stored changes, so that the final state is the last line
    notify_run_end(f"{run.state}: {run.prompt}")
    return _EXIT_CODES.get(run.state, _failure_code(run))


@asynccontextmanager
async def _missing_worker_warning(arguments: Namespace, jobs: "JobClient", run_id: str) -> AsyncGenerator[None]:
    """Prints a warning in a background task if no worker handles the run, and restarts a resident worker that was
    killed. The task is cancelled on exit."""
    from outrider.background.follow import wait_until_unattended
    from outrider.background.local_worker import WorkerLock, ensure_worker

    async def warn_when_idle() -> None:
        await wait_until_unattended(jobs, run_id)
        if arguments.database is None and WorkerLock(user_folders().data).has_died():
            ensure_worker(user_folders(), os.environ)
            Console().print_stderr("The worker has died; a new one is starting.", "yellow")
        else:
            Console().print_stderr(NO_WORKER_MESSAGE, "yellow")

    warning = asyncio.create_task(warn_when_idle())
    try:
        yield
    finally:
        warning.cancel()
        await asyncio.wait([warning])


def _failure_code(run: "Run") -> int:
    """Returns the exit code of a failed run."""
    return exit_codes.LIMIT_REACHED if run.outcome and run.outcome.reason == "limit" else exit_codes.FAILURE


def _create_printer(arguments: Namespace) -> JobJsonPrinter | JobTextPrinter:
    return JobJsonPrinter() if arguments.json else JobTextPrinter()
