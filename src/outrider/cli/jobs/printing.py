"""A run as text while it goes on: what was said, which tools were called, and how that ended."""

from typing import TYPE_CHECKING, Any

import msgspec

from outrider.app.archive.names import short_id
from outrider.cli.console import Console
from outrider.cli.jobs.outputs import RunningOutputs
from outrider.cli.jobs.reaching import used
from outrider.cli.run.progress import telling
from outrider.cli.tables import cut
from outrider.types.parts import TextPart, ToolPart
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning

if TYPE_CHECKING:
    from outrider.background.following.follow import Called, Change
    from outrider.background.runs import Run


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
        from outrider.background.following.follow import Called

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
        from outrider.background.following.follow import ApprovalChange, MessageChange, PartChange

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
