"""Runs a tool call and records its state: each call ends exactly once, completed or with an error."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from outrider._sync import describe_exception, describe_value, is_interruption, run_to_end
from outrider.errors import ToolFailure
from outrider.tools.schema import InvalidArguments
from outrider.tools.tool import Progress, Tool, ToolContext, ToolResult, check_metadata
from outrider.types.ids import now_ms
from outrider.types.origins import Origin, Origins, make_origin, merge_origins
from outrider.types.parts import ToolPart
from outrider.types.tool_state import (
    ASKS,
    HAS_RUN,
    LEFT_OPEN,
    REPEATABLE,
    ToolEnd,
    ToolError,
    ToolErrorReason,
    ToolPending,
    ToolRunning,
)

if TYPE_CHECKING:
    from outrider.permissions.information_flow import OriginLabels

SaveOutput = Callable[[str], Path | None]

_COMPARED_TAIL = 200


class OutputCap(msgspec.Struct, frozen=True):
    """Maximum size of the output that a model receives."""

    characters: int = 30_000
    lines: int = 2_000


class TruncatedOutput(msgspec.Struct, frozen=True):
    text: str
    path: Path | None = None
    characters: int = 0
    lines: int = 0


def truncate_output(text: str, cap: OutputCap, save: SaveOutput) -> TruncatedOutput | None:
    """Shortens the text to head and tail. Returns None if it fits. The callback `save` stores the full text and returns
    its path, or None on failure."""
    lines = text.count("\n") + 1
    if len(text) <= cap.characters and lines <= cap.lines:
        return None
    path = save(text)
    head, tail = _head_and_tail(text, cap)
    left_out = len(text) - len(head) - len(tail)
    location = f"the whole output is in {path}; read or search it there" if path else "the rest could not be stored"
    note = f"[… {left_out:,} of {len(text):,} characters ({lines:,} lines) left out: {location} …]"
    return TruncatedOutput(f"{head.rstrip()}\n\n{note}\n\n{tail.lstrip()}", path, len(text), lines)


def _head_and_tail(text: str, cap: OutputCap) -> tuple[str, str]:
    """Returns head and tail of equal size, cut at a line break if one is near."""
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


MAX_PARTIAL_OUTPUT = 4_000  # characters of output to store if the call is cancelled or fails

RecordPart = Callable[[ToolPart], Awaitable[None]]
SaveDraft = Callable[[str, int, Callable[[], ToolPart]], None]
"""Callback with a part id, the number of new characters and a function that returns the current part; the draft is
stored later."""
CallScope = Callable[[ToolPart, Tool], AbstractAsyncContextManager[None]]
"""Returns a context manager around a running call; an exception on entry fails the call."""


class ResultFilter(Protocol):
    """Callback that may change the result text before it is truncated and recorded."""

    async def __call__(self, call: ToolPart, output: str, *, is_error: bool) -> str: ...


async def _keep_output(call: ToolPart, output: str, *, is_error: bool) -> str:
    return output


def _discard(*_: object) -> None:
    """Stores nothing: the default callback."""


class ToolRunner:
    """Runs tool calls and records their states.

    - `tools`: the tools by name.
    - `record`: stores a part. The running state is durable before the tool starts, so that a crash cannot hide an
      effect.
    - `output_cap`: the maximum size of the output that a model receives.
    - `save_output`: stores an output that exceeds the cap and returns its path.
    - `save_draft`: stores the partial output of a running call.
    - `call_scope`: a context manager that is entered after the running state is recorded and exited before the end
      state is recorded.
    - `filter_result`: may change the text that the model receives.
    - `explain_unknown`: returns an error message for an unknown tool, or None.
    - `is_left_open`: returns whether a cancelled call stays open, because it is run again when its session is reopened.
    - `labels`: derives the origins of results, which are stored with the call.
    - `clock`: returns the time in milliseconds.
    """

    def __init__(  # one parameter per stage of a call
        self,
        tools: Mapping[str, Tool],
        record: RecordPart,
        *,
        output_cap: OutputCap | None = None,
        save_output: SaveOutput = _discard,
        save_draft: SaveDraft = _discard,
        call_scope: CallScope = lambda _, __: nullcontext(),
        filter_result: ResultFilter = _keep_output,
        explain_unknown: Callable[[str], str | None] = lambda _: None,
        is_left_open: Callable[[ToolPart], bool] = lambda _: False,
        labels: "Callable[[], OriginLabels | None]" = lambda: None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._labels = labels
        self._is_left_open = is_left_open
        self._tools = tools
        self._record = record
        self._output_cap = output_cap or OutputCap()
        self._save_output = save_output
        self._save_draft = save_draft
        self._call_scope = call_scope
        self._filter_result = filter_result
        self._explain_unknown = explain_unknown
        self._clock = clock

    async def run(self, call: ToolPart, context: ToolContext) -> ToolPart:
        """Runs a pending call to its end. On cancellation the call is recorded as canceled before CancelledError is
        raised again."""
        if not isinstance(call.state, ToolPending):
            return call
        if "input_error" in call.metadata:
            return await self._record_end(
                call, call.state.fail(call.metadata["input_error"], self._clock(), reason="invalid_input")
            )
        tool = self._tools.get(call.tool)
        if tool is None:
            message = self._explain_unknown(call.tool) or unknown_tool_message(call.tool, self._tools)
            return await self._record_end(call, call.state.fail(message, self._clock(), reason="invalid_input"))
        running = call.state.start(self._clock())
        call = self._mark_origins(_mark_for_recovery(call, tool), tool, context).with_state(running)
        running_call = _RunningCall(call, running, context, self._save_draft, self._record, self._is_left_open)
        message = "canceled before it started"
        try:
            await self._record(call)  # a cancelled write may have been stored, so its end is recorded in any case
            message = "canceled before it finished"
            state = await self._execute(tool, running_call)
        except asyncio.CancelledError:
            if self._is_left_open(running_call.part):
                await run_to_end(self._record(running_call.as_left_open()))
            else:
                state = running_call.fail(message, self._clock(), "canceled")
                await run_to_end(self._record_end(self._with_all_origins(running_call, state), state))
            raise
        return await self._record_end(self._with_all_origins(running_call, state), state)

    def _mark_origins(self, call: ToolPart, tool: Tool, context: ToolContext) -> ToolPart:
        """Stores the declared origins with the start of the call: a crash may leave its partial output."""
        labels = self._labels()
        origins = labels.of_call(tool, call.state.input, str(context.workspace)) if labels else ()
        return msgspec.structs.replace(call, origins=origins) if origins else call

    def _with_all_origins(self, call: "_RunningCall", state: ToolEnd) -> ToolPart:
        """Adds the origins that the tool has reported, and secrets in its result."""
        labels, part = self._labels(), call.without_wait_marks()
        if labels is None:
            return part
        origins = labels.with_secrets(merge_origins(part.origins, call.origins), state.text)
        return part if origins == (part.origins or ()) else msgspec.structs.replace(part, origins=origins)

    async def _execute(self, tool: Tool, call: "_RunningCall") -> ToolEnd:
        task = asyncio.current_task()
        try:
            result = await (
                self._call_in_scope(tool, call) if tool.timeout is None else self._call_with_timeout(tool, call)
            )
        except InvalidArguments as error:
            return await self._fail_call(call, error.message, "invalid_input")
        except ToolFailure as error:
            return await self._fail_call(call, error.message, error.reason)
        except BaseException as error:  # a tool may raise any exception; the model gets the message
            if is_interruption(error, task):
                raise
            return await self._fail_call(call, describe_exception(error), "failed")
        value = result if isinstance(result, ToolResult) else ToolResult(result)
        call.add_origins(value.origins)
        return self._complete_call(
            call.running, value, await self._filter_result(call.part, value.content, is_error=False)
        )

    async def _call_in_scope(self, tool: Tool, call: "_RunningCall") -> str | ToolResult:
        async with self._call_scope(call.part, tool):
            return await tool.call(call.running.input, call.make_context())

    async def _call_with_timeout(self, tool: Tool, call: "_RunningCall") -> str | ToolResult:
        limit = asyncio.timeout(tool.timeout)
        try:
            async with limit:
                return await self._call_in_scope(tool, call)
        except TimeoutError as error:
            if not limit.expired():
                raise  # raised by the tool itself
            raise ToolFailure(f"timed out after {tool.timeout:g} s", reason="timeout") from error

    async def _fail_call(self, call: "_RunningCall", error: str, reason: ToolErrorReason) -> ToolEnd:
        state = call.fail(error, self._clock(), reason)
        return msgspec.structs.replace(state, error=await self._filter_result(call.part, state.error, is_error=True))

    def _complete_call(self, running: ToolRunning, value: ToolResult, output: str) -> ToolEnd:
        metadata = value.metadata
        cut = truncate_output(output, self._output_cap, self._save_output)
        if cut is not None:
            output = cut.text
            metadata = metadata | {
                "truncated": {"characters": cut.characters, "lines": cut.lines, "path": str(cut.path)}
            }
        return running.complete(
            output, self._clock(), title=value.title, metadata=metadata, attachments=value.attachments
        )

    async def _record_end(self, call: ToolPart, state: ToolEnd) -> ToolPart:
        ended = call.with_state(state)
        await self._record(ended)
        return ended


def unknown_tool_message(name: str, tools: Iterable[str]) -> str:
    names = sorted(tools)
    from difflib import get_close_matches  # lazy: only for mistakes

    near = get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"There is no tool called {name!r}.{hint} The tools are: {', '.join(names) or 'none'}."


class _RunningCall:
    """A running call with its reported progress, so that a failure or cancellation can include the partial output."""

    def __init__(
        self,
        call: ToolPart,
        running: ToolRunning,
        context: ToolContext,
        draft: SaveDraft,
        record: RecordPart,
        is_left_open: Callable[[ToolPart], bool],
    ) -> None:
        self.part = call
        self._metadata = call.metadata
        self._save_draft = draft
        self._record = record
        self.running = running
        self._context = context
        self._is_left_open = is_left_open
        self.origins: Origins = ()
        self._partial: list[str] = []  # a deque needs ten times the memory, and most calls report nothing
        self._size = 0

    def make_context(self) -> ToolContext:
        """Returns the context for the tool. It is not stored here: it refers to this call, which would be a cycle."""
        return msgspec.structs.replace(
            self._context,
            report=self._on_progress,
            wait_for_answer=self._wait_for_answer,
            resume_work=self._resume_work,
            has_run=self._has_run,
            is_suspended=self._is_suspended,
        )

    def _is_suspended(self) -> bool:
        return self._is_left_open(self.part)

    def add_origins(self, origins: Iterable[object]) -> None:
        """Adds the origins that a tool reports. A value of another type is a mistake of the tool, so the call goes
        through and the value becomes an origin of the kind "tool"."""
        if origins:
            valid = (origin if isinstance(origin, Origin) else make_origin("tool", str(origin)) for origin in origins)
            self.origins = merge_origins(self.origins, valid)

    def fail(self, error: str, time: int, reason: ToolErrorReason) -> ToolError:
        partial = "".join(self._partial)
        visible = partial.strip()
        if visible and visible[-_COMPARED_TAIL:] not in error:  # the error of a dropped outcome contains the output
            error = f"{error}\n\nIts output until then:\n{partial}"
        return self.running.fail(error, time, reason=reason)

    def as_left_open(self) -> ToolPart:
        """Returns the call in a resumable state: its effects are stored in the child session."""
        child = self.running.metadata.get("child_session_id")
        marked = msgspec.structs.replace(self.part, metadata={**self.part.metadata, REPEATABLE: True, LEFT_OPEN: child})
        return marked.update_state(self.running)

    def without_wait_marks(self) -> ToolPart:
        """Returns the call without the marks of a question: an ended call waits for no answer."""
        if not self.part.asks:
            return self.part
        marks = (REPEATABLE, ASKS, HAS_RUN)
        metadata = {name: value for name, value in self.part.metadata.items() if name not in marks}
        return msgspec.structs.replace(self.part, metadata=metadata)

    def _has_run(self) -> bool:
        return HAS_RUN in self.part.metadata

    async def _wait_for_answer(self, *, has_run: bool = False) -> None:
        """Marks the call as one that only waits for an answer, and stores that before the question is asked."""
        if not self.part.asks or (has_run and not self._has_run()):
            marks = {REPEATABLE: True, ASKS: True, **({HAS_RUN: True} if has_run else {})}
            self.part = msgspec.structs.replace(self.part, metadata={**self._metadata, **marks})
            await self._record(self.part.update_state(self.running))

    async def _resume_work(self) -> None:
        """Removes the mark before the tool does something that must not be repeated."""
        if self.part.asks:
            self.part = self.without_wait_marks()
            await self._record(self.part.update_state(self.running))

    def _on_progress(self, progress: Progress) -> None:
        fields = (progress.output, progress.title or "") if isinstance(progress, Progress) else (None,)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not all(isinstance(field, str) for field in fields):
            raise ToolFailure(f"the tool reported {describe_value(progress)}; it reports Progress(text)")
        if progress.metadata:
            check_metadata(progress.metadata)
        self.running = self.running.progress(title=progress.title, metadata=progress.metadata)
        self.add_origins(progress.origins)
        self._append_output(progress.output)
        self._save_draft(self.part.id, len(progress.output), self._draft_part)
        self._context.report(progress)

    def _draft_part(self) -> ToolPart:
        return self.part.update_state(self.running.progress(metadata={"output": "".join(self._partial)}))

    def _append_output(self, output: str) -> None:
        """Buffers the last characters of the output, which show how far the call got."""
        self._partial.append(output[-MAX_PARTIAL_OUTPUT:])
        self._size += len(self._partial[-1])
        while self._size - len(self._partial[0]) >= MAX_PARTIAL_OUTPUT:
            self._size -= len(self._partial.pop(0))


def _mark_for_recovery(call: ToolPart, tool: Tool) -> ToolPart:
    """Stores the recovery options in the part: after a crash the process that resumes it may not have the tool."""
    if call.repeatable or not (tool.options.repeatable or tool.options.asks):
        return call
    marks = {REPEATABLE: True, ASKS: True} if tool.options.asks else {REPEATABLE: True}
    return msgspec.structs.replace(call, metadata={**call.metadata, **marks})


PATH_ARGUMENTS = ("file_path", "path", "filename")
MAX_HASHED_FILE = 64 * 1024 * 1024


def describe_touched_files(call: ToolPart, workspace: Path) -> str:
    """Returns one line per workspace file in the call's input; an empty string if there is none."""
    named = [value for name, value in call.state.input.items() if name in PATH_ARGUMENTS and isinstance(value, str)]
    return "\n".join(line for line in (_describe_file(workspace, path) for path in named) if line)


def _describe_file(workspace: Path, path: str) -> str:
    """Describes a file inside the workspace. Other paths are ignored, because the model chose the path."""
    try:
        resolved = (workspace / path).resolve()
        if not resolved.is_relative_to(workspace.resolve()):
            return ""
        if not resolved.exists():
            return f"{path} does not exist now."
        if not resolved.is_file() or resolved.stat().st_size > MAX_HASHED_FILE:
            return ""
        content = resolved.read_bytes()
    except (OSError, ValueError):
        return ""
    return f"{path} now has {len(content):,} bytes, sha256 {sha256(content).hexdigest()}."
