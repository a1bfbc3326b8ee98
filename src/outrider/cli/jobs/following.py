"""A run as text while it goes on: what was said, which tools were called, and how that ended."""

import asyncio
from argparse import Namespace
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from outrider.app.archive.names import short_id
from outrider.cli import exits
from outrider.cli.console import Console
from outrider.cli.jobs.outputs import RunningOutputs
from outrider.cli.jobs.reaching import LEFT_ALONE, named, used, with_jobs
from outrider.cli.jobs.ringing import ring
from outrider.cli.run.progress import telling
from outrider.cli.tables import cut
from outrider.types.parts import TextPart, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning

if TYPE_CHECKING:
    from outrider.background.follow import Change
    from outrider.background.jobs import Jobs
    from outrider.background.runs import Run

_CODES = {"done": exits.DONE, "canceled": exits.INTERRUPTED, "waiting": exits.NOT_APPROVED}


def logs(arguments: Namespace) -> int:
    async def work(jobs: "Jobs") -> int:
        run = await named(jobs, arguments.run)
        printer = _printer(arguments)
        async with aclosing(jobs.store.changes(run.id, after=arguments.after, follow=False)) as changes:
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
    from outrider.background.runs import Run

    printer, run = _printer(arguments), None
    news = aclosing(followed(jobs, run_id, after=getattr(arguments, "after", 0)))
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


def _printer(arguments: Namespace) -> "Printer":
    return JsonPrinter() if arguments.json else TextPrinter()


class JsonPrinter:
    """One object on each line; `seq` is what `--after` takes."""

    def __init__(self) -> None:
        self._console = Console()

    def run(self, run: "Run") -> None:
        self._print({"type": "run", "run": run})

    def change(self, change: "Change") -> None:
        self._print(change)

    def end(self) -> None:
        pass

    def _print(self, value: Any) -> None:
        self._console.write(msgspec.json.encode(value).decode() + "\n")


class TextPrinter:
    """Answers grow while they are written, and so does what calls write: of what was shown before, only what is new is
    printed."""

    def __init__(self) -> None:
        self._console = Console()
        self._roles: dict[str, str] = {}
        self._shown: dict[str, str] = {}
        self._outputs = RunningOutputs()
        self._open = ""  # the part whose last line has no end yet

    def run(self, run: "Run") -> None:
        words = f"[{short_id(run.id)} is {run.state}]"
        if run.state == "waiting":
            words += f" Answer: outrider jobs approve {short_id(run.id)}"
        elif run.outcome is not None:
            words += f" {used(run.outcome)}" + (f": {run.outcome.error}" if run.outcome.error else "")
        self._line(words, "dim")

    def change(self, change: "Change") -> None:
        from outrider.background.follow import ApprovalChange, MessageChange, PartChange

        match change:
            case MessageChange(message=message):
                self._roles[message.id] = message.role
                if message.error is not None:
                    self._line(f"✗ {message.error.type}: {message.error.message}", "red")
            case PartChange(part=TextPart() as part):
                self._text(part)
            case PartChange(part=ToolPart() as part):
                self._call(part)
            case ApprovalChange(approval=asked):
                if asked.answer == "open":
                    self._line(f"? {asked.tool} {msgspec.json.encode(asked.input).decode()}", "yellow")
            case _:
                pass

    def _text(self, part: TextPart) -> None:
        if self._roles.get(part.message_id) == "user":
            self._line(f"> {part.text}", "cyan")
            return
        before = self._shown.get(part.id, "")
        if not part.text.startswith(before) or (self._open != part.id and before and part.text != before):
            before = ""
        if part.text == before:
            return
        if self._open != part.id:
            self.end()
        self._console.write(part.text[len(before) :])
        self._shown[part.id], self._open = part.text, part.id

    def _call(self, part: ToolPart) -> None:
        is_new = self._shown.get(part.id) != part.state.status
        self._shown[part.id] = part.state.status
        if is_new and isinstance(part.state, ToolRunning):
            self._line(f"· {part.tool} {_told(part)}")
        for line in self._outputs.lines(part):
            self._line(f"  {line}", "dim")
        if is_new:
            self._ended(part)

    def _ended(self, part: ToolPart) -> None:
        match part.state:
            case ToolCompleted(metadata={"exit_code": int(code)}) if code:
                self._line(f"✗ {part.tool} {_told(part)}: exit code {code}", "red")
            case ToolCompleted():
                self._line(f"✓ {part.tool} {_told(part)}", "green")
            case ToolError(error=words):
                said = words.partition("\n\n")[0] if self._outputs.has_shown(part) else words  # the rest stands above
                self._line(f"✗ {part.tool} {_told(part)}: {said}", "red")
            case ToolPending() | ToolRunning():
                pass

    def _line(self, text: str, style: str = "") -> None:
        self.end()
        self._console.print(text, style)
        self._console.write("")

    def end(self) -> None:
        """What is read to its end, ends with its line."""
        if self._open:
            self._console.write("\n")
            self._open = ""


Printer = TextPrinter | JsonPrinter


def _told(part: ToolPart) -> str:
    return cut(telling(part.state.input), 100)
