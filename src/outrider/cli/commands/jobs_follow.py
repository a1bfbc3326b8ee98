"""`outrider jobs logs` and `follow`: what a run and the agents that it calls have said and done, and what they do."""

import asyncio
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec

from outrider.cli import registry as exits
from outrider.cli.commands.jobs_common import LEFT_ALONE, named, used, with_jobs
from outrider.cli.commands.run_output import telling
from outrider.cli.output import Console, cut
from outrider.engine.archive import short_id
from outrider.permissions.redaction.terminal import for_terminal
from outrider.types.parts import TextPart, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning

if TYPE_CHECKING:
    from outrider.background.follow import Called, Change
    from outrider.background.jobs import Jobs
    from outrider.background.records import Run


GAP = "…\n"
_TAIL = 200  # characters by which the end of what was shown is found again


class RunningOutputs:
    """Of each call what was shown of it, and the line that has no end yet."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._begun: dict[str, str] = {}

    def lines(self, call: ToolPart) -> list[str]:
        """The lines that were finished since it was looked at last; once the call has ended, the rest of them."""
        begun, shown = self._begun.get(call.id, ""), self._shown.get(call.id, "")
        match call.state:
            case ToolRunning(metadata={"output": str(written)}):
                *whole, self._begun[call.id] = (begun + news(shown, written)).split("\n")
                self._shown[call.id] = written
                return whole
            case ToolCompleted(output=output) if shown:
                rest = begun + _after(shown, output)
            case _:
                rest = begun
        return rest.strip("\n").split("\n") if rest.strip() else []

    def has_shown(self, call: ToolPart) -> bool:
        return bool(self._shown.get(call.id))


def news(before: str, now: str) -> str:
    """What `now` has that `before` had not: both are ends of one text, and the later one may begin later."""
    at = next((at for at in range(len(before)) if now.startswith(before[at:])), len(before))
    lost = GAP if before and at == len(before) else ""
    return lost + now[len(before) - at :]


def _after(shown: str, output: str) -> str:
    """A result may say more than the call wrote, and less if that was long: what cannot be found is left out."""
    tail = shown.rstrip()[-_TAIL:]
    return output.rpartition(tail)[2] if tail and tail in output else ""


class JsonPrinter:
    """One object on each line; `seq` is what `--after` takes. What a called agent does is an object in one of the type
    `called`, whose numbers are those of its own session."""

    def __init__(self) -> None:
        self._console = Console()

    def run(self, run: "Run") -> None:
        self._print({"type": "run", "run": run})

    def change(self, change: "Change | Called") -> None:
        self._print(change)

    def end(self) -> None:
        pass

    def _print(self, value: Any) -> None:
        self._console.write(msgspec.json.encode(value).decode() + "\n")


class TextPrinter:
    """Answers grow while they are written, and so does what calls write: of what was shown before, only what is new is
    printed. Called agents are indented, and named whenever one of them goes on after somebody else."""

    def __init__(self) -> None:
        self._roles: dict[str, str] = {}
        self._shown: dict[str, str] = {}
        self._outputs = RunningOutputs()
        self._page = _Page()

    def run(self, run: "Run") -> None:
        words = f"[{short_id(run.id)} is {run.state}]"
        if run.state == "waiting":
            words += f" Answer: outrider jobs approve {short_id(run.id)}"
        elif run.outcome is not None:
            words += f" {used(run.outcome)}" + (f": {run.outcome.error}" if run.outcome.error else "")
        self._page.turn_to()
        self._page.line(words, "dim")

    def change(self, change: "Change | Called") -> None:
        from outrider.background.follow import Called

        if isinstance(change, Called):
            self._page.turn_to(f"▸ {change.agent} {short_id(change.session_id)}", change.depth)
            self._change(change.change)
        else:
            self._page.turn_to()
            self._change(change)

    def end(self) -> None:
        """What is read to its end, ends with its line."""
        self._page.end()

    def _change(self, change: "Change") -> None:
        from outrider.background.follow import ApprovalChange, MessageChange, PartChange

        match change:
            case MessageChange(message=message):
                self._roles[message.id] = message.role
                if message.error is not None:
                    self._page.line(f"✗ {message.error.type}: {message.error.message}", "red")
            case PartChange(part=TextPart() as part, draft=draft):
                self._text(part, draft=draft)
            case PartChange(part=ToolPart() as part):
                self._call(part)
            case ApprovalChange(approval=asked):
                if asked.answer == "open":
                    self._page.line(f"? {asked.tool} {msgspec.json.encode(asked.input).decode()}", "yellow")
            case _:
                pass

    def _text(self, part: TextPart, *, draft: bool) -> None:
        if self._roles.get(part.message_id) == "user":
            self._page.line(f"> {part.text}", "cyan")
            return
        before = self._shown.get(part.id, "")
        if part.text == before or (draft and not self._page.is_free_for(part.id)):
            return  # who writes at the same time as another is printed when that one is done
        self._page.write(part.id, part.text.removeprefix(before))
        self._shown[part.id] = part.text
        if not draft:
            self._page.free()

    def _call(self, part: ToolPart) -> None:
        is_new = self._shown.get(part.id) != part.state.status
        self._shown[part.id] = part.state.status
        if is_new and isinstance(part.state, ToolRunning):
            self._page.line(f"· {part.tool} {_told(part)}")
        for line in self._outputs.lines(part):
            self._page.line(f"  {line}", "dim")
        if is_new:
            self._ended(part)

    def _ended(self, part: ToolPart) -> None:
        match part.state:
            case ToolCompleted(metadata={"exit_code": int(code)}) if code:
                self._page.line(f"✗ {part.tool} {_told(part)}: exit code {code}", "red")
            case ToolCompleted():
                self._page.line(f"✓ {part.tool} {_told(part)}", "green")
            case ToolError(error=words):
                said = words.partition("\n\n")[0] if self._outputs.has_shown(part) else words  # the rest stands above
                self._page.line(f"✗ {part.tool} {_told(part)}: {said}", "red")
            case ToolPending() | ToolRunning():
                pass


class _Page:
    """Lines of several speakers, of which one at a time has a line that has no end yet."""

    def __init__(self) -> None:
        self._console = Console()
        self._speaker = self._named = self._margin = ""
        self._open = ""  # the part whose last line has no end yet
        self._writing = ""  # the part that is still being written

    def turn_to(self, speaker: str = "", depth: int = 0) -> None:
        """Who speaks from now on; the name is printed with the first words."""
        self._speaker, self._margin = speaker, "  " * depth

    def line(self, text: str, style: str = "") -> None:
        self._begin()
        self._console.print(self._indented(text), style)
        self._console.write("")

    def write(self, part_id: str, text: str) -> None:
        """More of a text that may not be whole yet."""
        if self._open != part_id:
            self._begin()
            self._console.write(self._margin)
        self._console.write(text.replace("\n", f"\n{self._margin}"))
        self._open = self._writing = part_id

    def is_free_for(self, part_id: str) -> bool:
        return self._writing in ("", part_id)

    def free(self) -> None:
        self._writing = ""

    def end(self) -> None:
        if self._open:
            self._console.write("\n")
            self._open = ""

    def _begin(self) -> None:
        self.end()
        self.free()
        if self._speaker and self._speaker != self._named:
            self._console.print(self._indented(self._speaker), "dim")
        self._named = self._speaker

    def _indented(self, text: str) -> str:
        return self._margin + text.replace("\n", f"\n{self._margin}")


def _told(part: ToolPart) -> str:
    return cut(telling(part.state.input), 100)


_SECONDS = 5
_APPLE = 'on run argv\ndisplay notification (item 1 of argv) with title "Outrider"\nend run'


def ring(words: str) -> None:
    """Only at a terminal: a script hears of the end by the exit code."""
    console = Console()
    if not console.err_is_terminal:
        return
    console.err.write("\a")
    console.err.flush()
    if argv := desktop_notice(for_terminal(words, keep_lines=False), os.environ, sys.platform):
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(argv, timeout=_SECONDS, check=False, capture_output=True, stdin=subprocess.DEVNULL)


def desktop_notice(words: str, environ: Mapping[str, str], platform: str) -> Sequence[str]:
    """The command that shows it; empty where there is no desktop, or nothing that shows notices on it."""
    if platform == "darwin" and (program := shutil.which("osascript", path=environ.get("PATH"))):
        return program, "-e", _APPLE, words
    has_desktop = environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")
    if has_desktop and (program := shutil.which("notify-send", path=environ.get("PATH"))):
        return program, "--app-name=outrider", "--", "Outrider", escape(words, quote=False)
    return ()


_CODES = {"done": exits.DONE, "canceled": exits.INTERRUPTED, "waiting": exits.NOT_APPROVED}


def logs(arguments: Namespace) -> int:
    async def work(jobs: "Jobs") -> int:
        from outrider.background.follow import so_far

        run = await named(jobs, arguments.run)
        printer = _printer(arguments)
        async with aclosing(so_far(jobs, run.id, after=arguments.after)) as changes:
            async for change in changes:
                printer.change(change)
        printer.end()
        return exits.DONE

    return with_jobs(arguments, work)


def follow(arguments: Namespace) -> int:
    async def work(jobs: "Jobs") -> int:
        return await follow_run(arguments, jobs, (await named(jobs, arguments.run)).id)

    try:
        return with_jobs(arguments, work)
    except KeyboardInterrupt:
        Console().say("\nThe run goes on; this was only a look at it.")
        return exits.INTERRUPTED


async def follow_run(arguments: Namespace, jobs: "Jobs", run_id: str) -> int:
    """Until the run is over; its exit code is what the run came to."""
    from outrider.background.follow import follow as followed
    from outrider.background.records import Run

    printer, run = _printer(arguments), None
    news = aclosing(followed(jobs, run_id, after=getattr(arguments, "after", 0), called=True))
    async with _told_if_left_alone(jobs, run_id), news as changes:
        async for new in changes:
            if not isinstance(new, Run):
                printer.change(new)
            elif not (run := new).is_over:
                printer.run(run)
    if run is None:
        return exits.FAILED
    printer.run(run)  # the last word, after what was kept until then
    ring(f"{run.state}: {run.prompt}")
    return _CODES.get(run.state, _failed(run))


@asynccontextmanager
async def _told_if_left_alone(jobs: "Jobs", run_id: str) -> AsyncGenerator[None]:
    from outrider.background.follow import until_left_alone

    async def tell() -> None:
        await until_left_alone(jobs, run_id)
        Console().say(LEFT_ALONE, "yellow")

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()
        await asyncio.wait([telling])


def _failed(run: "Run") -> int:
    return exits.LIMIT if run.outcome and run.outcome.reason == "limit" else exits.FAILED


def _printer(arguments: Namespace) -> JsonPrinter | TextPrinter:
    return JsonPrinter() if arguments.json else TextPrinter()
