"""Brings a call to its end: whatever a tool does, it ends exactly once, completed or in error, and is recorded."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import msgspec

from outrider.errors import ToolFailure
from outrider.tools.context import Progress, ToolContext
from outrider.tools.schema import InvalidArguments
from outrider.tools.tool import Tool, ToolResult
from outrider.types.ids import now_ms
from outrider.types.parts import ToolPart
from outrider.types.tool_state import (
    ASKS,
    LEFT_OPEN,
    REPEATABLE,
    ToolEnd,
    ToolError,
    ToolErrorReason,
    ToolPending,
    ToolRunning,
)

Save = Callable[[str], Path | None]


class OutputCap(msgspec.Struct, frozen=True):
    """How much of an output a model gets to see at once."""

    characters: int = 30_000
    lines: int = 2_000


class Truncated(msgspec.Struct, frozen=True):
    text: str
    path: Path | None = None
    characters: int = 0
    lines: int = 0


def truncate(text: str, cap: OutputCap, save: Save) -> Truncated | None:
    """None when the text fits. `save` keeps the whole text and says where, or None if it could not."""
    lines = text.count("\n") + 1
    if len(text) <= cap.characters and lines <= cap.lines:
        return None
    path = save(text)
    head, tail = _ends(text, cap)
    left_out = len(text) - len(head) - len(tail)
    where = f"the whole output is in {path}; read or search it there" if path else "the rest could not be kept"
    note = f"[… {left_out:,} of {len(text):,} characters ({lines:,} lines) left out: {where} …]"
    return Truncated(f"{head.rstrip()}\n\n{note}\n\n{tail.lstrip()}", path, len(text), lines)


def _ends(text: str, cap: OutputCap) -> tuple[str, str]:
    """Half of the room for each end, cut at line breaks where one is near."""
    room = cap.characters // 2
    head, tail = text[:room], text[-room:]
    head = "\n".join(head.split("\n")[: cap.lines // 2])
    tail = "\n".join(tail.split("\n")[-(cap.lines // 2) :])
    return _to_line_end(head), _from_line_start(tail)


def _to_line_end(text: str) -> str:
    cut = text.rfind("\n")
    return text[:cut] if cut > len(text) * 0.8 else text


def _from_line_start(text: str) -> str:
    cut = text.find("\n")
    return text[cut + 1 :] if 0 <= cut < len(text) * 0.2 else text


PARTIAL = 4_000  # characters of a call's output that are kept when it ends early

Record = Callable[[ToolPart], Awaitable[None]]
Draft = Callable[[str, int, Callable[[], ToolPart]], None]
"""A part's id, how many characters are new, and the part so far: to be kept soon."""
Around = Callable[[ToolPart, Tool], AbstractAsyncContextManager[None]]
"""Stands around a running call; what it raises before the tool starts is the call's failure."""


class After(Protocol):
    """Has the last word on what a call that ran gives back, before it is cut to size and kept."""

    async def __call__(self, call: ToolPart, output: str, *, is_error: bool) -> str: ...


async def _as_it_is(call: ToolPart, output: str, *, is_error: bool) -> str:
    return output


def _keep_nothing(*_: object) -> None:
    """For runners that were given no place for long outputs or for what is not final."""


class Runner:
    """`record` stores a part; it has done so when it returns, and only then does the tool start (a call is durable
    before its effect). `save` keeps an output that is too long and says where. `draft` keeps what a running call has
    written so far. `around` is entered when the call is kept as running, and left before its end is. `after`
    may change what the model reads of it. `unknown` may have better words for a tool that does not exist."""

    def __init__(  # noqa: PLR0913  each is one thing that a call meets on its way
        self,
        tools: Mapping[str, Tool],
        record: Record,
        *,
        cap: OutputCap | None = None,
        save: Save = _keep_nothing,
        draft: Draft = _keep_nothing,
        around: Around = lambda _, __: nullcontext(),
        after: After = _as_it_is,
        unknown: Callable[[str], str | None] = lambda _: None,
        left: Callable[[ToolPart], bool] = lambda _: False,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._left = left
        self._tools = tools
        self._record = record
        self._cap = cap or OutputCap()
        self._save = save
        self._draft = draft
        self._around = around
        self._after = after
        self._unknown = unknown
        self._clock = clock

    async def run(self, call: ToolPart, context: ToolContext) -> ToolPart:
        """A pending call, run to its end. Cancelling ends it too, as canceled, before the cancellation goes on."""
        if not isinstance(call.state, ToolPending):
            return call
        if "input_error" in call.metadata:
            return await self._end(
                call, call.state.fail(call.metadata["input_error"], self._clock(), reason="invalid_input")
            )
        tool = self._tools.get(call.tool)
        if tool is None:
            words = self._unknown(call.tool) or no_such_tool(call.tool, self._tools)
            return await self._end(call, call.state.fail(words, self._clock(), reason="invalid_input"))
        running = call.state.start(self._clock())
        call = _marked(call, tool).with_state(running)
        watched, words = _Watched(call, running, context, self._draft), "canceled before it started"
        try:
            await self._record(call)  # which may have been done when a cancellation is heard of
            words = "canceled before it finished"
            state = await self._execute(tool, watched)
        except asyncio.CancelledError:
            if self._left(call):
                await asyncio.shield(self._record(watched.left_open()))
            else:
                await asyncio.shield(self._end(call, watched.fail(words, self._clock(), "canceled")))
            raise
        return await self._end(call, state)

    async def _execute(self, tool: Tool, call: "_Watched") -> ToolEnd:
        try:
            result = await (self._called(tool, call) if tool.timeout is None else self._in_time(tool, call))
        except InvalidArguments as error:
            return await self._failed(call, error.message, "invalid_input")
        except ToolFailure as error:
            return await self._failed(call, error.message, error.reason)
        except Exception as error:  # noqa: BLE001  a tool may raise anything, and the model should know
            return await self._failed(call, _words(error), "failed")
        value = result if isinstance(result, ToolResult) else ToolResult(result)
        return self._complete(call.running, value, await self._after(call.part, value.content, is_error=False))

    async def _called(self, tool: Tool, call: "_Watched") -> str | ToolResult:
        async with self._around(call.part, tool):
            return await tool.call(call.running.input, call.context)

    async def _in_time(self, tool: Tool, call: "_Watched") -> str | ToolResult:
        limit = asyncio.timeout(tool.timeout)
        try:
            async with limit:
                return await self._called(tool, call)
        except TimeoutError as error:
            if not limit.expired():
                raise  # it is the tool's own
            raise ToolFailure(f"timed out after {tool.timeout:g} s", reason="timeout") from error

    async def _failed(self, call: "_Watched", error: str, reason: ToolErrorReason) -> ToolEnd:
        state = call.fail(error, self._clock(), reason)
        return msgspec.structs.replace(state, error=await self._after(call.part, state.error, is_error=True))

    def _complete(self, running: ToolRunning, value: ToolResult, output: str) -> ToolEnd:
        metadata = value.metadata
        cut = truncate(output, self._cap, self._save)
        if cut is not None:
            output = cut.text
            metadata = metadata | {
                "truncated": {"characters": cut.characters, "lines": cut.lines, "path": str(cut.path)}
            }
        return running.complete(
            output, self._clock(), title=value.title, metadata=metadata, attachments=value.attachments
        )

    async def _end(self, call: ToolPart, state: ToolEnd) -> ToolPart:
        ended = call.with_state(state)
        await self._record(ended)
        return ended


def no_such_tool(name: str, tools: Iterable[str]) -> str:
    names = sorted(tools)
    near = get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"There is no tool called {name!r}.{hint} The tools are: {', '.join(names) or 'none'}."


class _Watched:
    """A running call with what it has told of itself, so that an early end does not lose it."""

    def __init__(self, call: ToolPart, running: ToolRunning, context: ToolContext, draft: Draft) -> None:
        self.part = call
        self._draft = draft
        self.running = running
        self.context = msgspec.structs.replace(context, report=self._heard)
        self._report = context.report
        self._partial: deque[str] = deque()
        self._size = 0

    def fail(self, error: str, at: int, reason: ToolErrorReason) -> ToolError:
        partial = "".join(self._partial)
        if partial.strip():
            error = f"{error}\n\nIts output until then:\n{partial}"
        return self.running.fail(error, at, reason=reason)

    def left_open(self) -> ToolPart:
        """The running call as it is found again: it may go on, since its effects so far are kept elsewhere."""
        child = self.running.metadata.get("child_session_id")
        marked = msgspec.structs.replace(self.part, metadata={**self.part.metadata, REPEATABLE: True, LEFT_OPEN: child})
        return marked.update_state(self.running)

    def _heard(self, progress: Progress) -> None:
        self.running = self.running.progress(title=progress.title, metadata=progress.metadata)
        self._keep(progress.output)
        self._draft(self.part.id, len(progress.output), self._so_far)
        self._report(progress)

    def _so_far(self) -> ToolPart:
        return self.part.update_state(self.running.progress(metadata={"output": "".join(self._partial)}))

    def _keep(self, output: str) -> None:
        """The end of the output is what tells how far it got."""
        self._partial.append(output[-PARTIAL:])
        self._size += len(self._partial[-1])
        while self._size - len(self._partial[0]) >= PARTIAL:
            self._size -= len(self._partial.popleft())


def _marked(call: ToolPart, tool: Tool) -> ToolPart:
    """Kept with the call: whoever finds it open after a crash may not have its tool at hand."""
    if call.repeatable or not (tool.options.repeatable or tool.options.asks):
        return call
    marks = {REPEATABLE: True, ASKS: True} if tool.options.asks else {REPEATABLE: True}
    return msgspec.structs.replace(call, metadata={**call.metadata, **marks})


def _words(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


NAMES = ("file_path", "path", "filename")
LARGEST = 64 * 1024 * 1024


def describe_touched_files(call: ToolPart, workspace: Path) -> str:
    """One line for each file of the workspace that stands in the call's input; "" when there is none."""
    named = [value for name, value in call.state.input.items() if name in NAMES and isinstance(value, str)]
    return "\n".join(line for line in (_now(workspace, path) for path in named) if line)


def _now(workspace: Path, path: str) -> str:
    """Only what lies in the workspace is looked at: a path is the model's word."""
    try:
        place = (workspace / path).resolve()
        if not place.is_relative_to(workspace.resolve()):
            return ""
        if not place.exists():
            return f"{path} does not exist now."
        if not place.is_file() or place.stat().st_size > LARGEST:
            return ""
        content = place.read_bytes()
    except (OSError, ValueError):
        return ""
    return f"{path} now has {len(content):,} bytes, sha256 {sha256(content).hexdigest()}."
