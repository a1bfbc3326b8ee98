"""`outrider run --input-format stream-json`: prompts, answers and interrupts as JSON lines on stdin.

docs/stream-json.md describes the lines. A line that cannot be used is reported as an `input_error` and has no other
effect."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from threading import Thread
from typing import Any, Literal, Protocol, assert_never

import msgspec

from outrider.cli.commands.run_output import RunPrinter, RunTarget
from outrider.errors import ConfigurationError, OutriderError
from outrider.presentation.approvals import (
    UNATTENDED_DENIAL,
    UNATTENDED_OUTCOME,
    ApprovalView,
    choice_by_id,
    requested_approval_view,
)
from outrider.types.events import Event, SessionUpdatedEvent, ToolApprovalRequestedEvent, ToolApprovalResultEvent
from outrider.types.modes import ApprovalLevel, Mode
from outrider.types.parts import FilePart, PartBase, TextPart

MAX_LINE_BYTES = 32 * 1024 * 1024
_CHUNK = 1 << 16
_SENDER = "stdin"


class PromptInput(msgspec.Struct, frozen=True, tag_field="type", tag="prompt", forbid_unknown_fields=True):
    """A prompt. With the `delivery` "queue" it waits for the end of the running turn, with "steer" it is added to that
    turn. `files` are paths."""

    text: str = ""
    files: tuple[str, ...] = ()
    delivery: Literal["queue", "steer"] = "queue"
    id: str = ""


class ApprovalInput(msgspec.Struct, frozen=True, tag_field="type", tag="approval", forbid_unknown_fields=True):
    """The answer to an `approval_request`.

    - `approval_id`: the approval that is answered.
    - `choice`: the id of one of its choices.
    - `allow`: a plain yes or no, instead of a choice.
    - `reason`: what the model reads after a no.
    - `files`: the files to keep, for a choice that picks files.
    - `width`: the id of what a lasting answer covers.
    - `id`: identifies the input line in reports about it.
    """

    approval_id: str
    choice: str = ""
    allow: bool | None = None
    reason: str = ""
    files: tuple[str, ...] | None = None
    width: str = ""
    id: str = ""


class AnswerInput(msgspec.Struct, frozen=True, tag_field="type", tag="answer", forbid_unknown_fields=True):
    """The answers to a `question`; an empty tuple means that the user gives no answer."""

    question_id: str
    answers: tuple[str, ...] = ()
    id: str = ""


class SettingsInput(msgspec.Struct, frozen=True, tag_field="type", tag="settings", forbid_unknown_fields=True):
    """Changes the mode or the approval level of the session."""

    mode: Mode | None = None
    approval: ApprovalLevel | None = None
    id: str = ""


class InterruptInput(msgspec.Struct, frozen=True, tag_field="type", tag="interrupt", forbid_unknown_fields=True):
    """Aborts the running turn. Later prompts are processed."""

    id: str = ""


class EndInput(msgspec.Struct, frozen=True, tag_field="type", tag="end", forbid_unknown_fields=True):
    """No more input follows, as at the end of stdin. Prompts that were read are processed."""

    id: str = ""


class MessageInput(msgspec.Struct, frozen=True):
    """A prompt whose parts were decoded already."""

    parts: tuple[PartBase, ...]
    id: str = ""


class GreetingInput(msgspec.Struct, frozen=True):
    """A request of another dialect that is only confirmed."""

    id: str = ""


InputCommand = (
    PromptInput | ApprovalInput | AnswerInput | SettingsInput | InterruptInput | EndInput | MessageInput | GreetingInput
)
_NativeCommand = PromptInput | ApprovalInput | AnswerInput | SettingsInput | InterruptInput | EndInput


class InputProblem(OutriderError):
    """An input line that cannot be used. `request_id` is set if the line is a request of another dialect."""

    def __init__(self, message: str, request_id: str = "") -> None:
        super().__init__(message)
        self.request_id = request_id


class StreamPrinter(RunPrinter, Protocol):
    """A printer that can report about input. `confirm` answers a request that has an id."""

    def report_input_error(self, number: int, message: str, text: str, request_id: str = "") -> None: ...

    def confirm(self, request_id: str) -> None: ...

    def decode_input(self, line: bytes) -> InputCommand: ...


def decode_native_line(line: bytes) -> InputCommand:
    """Decodes a line. Raises InputProblem if it is not one of the documented objects."""
    try:
        return msgspec.json.decode(line, type=_NativeCommand)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputProblem(str(error)) from error


class _ReadPrompt(msgspec.Struct, frozen=True):
    number: int
    parts: Sequence[PartBase]
    id: str


class StreamInput:
    """Executes the input lines of a run: prompts one after the other, everything else at once. After the end of the
    input, calls that need an answer are denied, as in a run without an input stream."""

    def __init__(
        self, target: RunTarget, printer: StreamPrinter, attach: Callable[[str], FilePart], stop: asyncio.Event
    ) -> None:
        self._target = target
        self._printer = printer
        self._attach = attach
        self._stop = stop
        self._prompts: asyncio.Queue[_ReadPrompt | None] = asyncio.Queue()
        self._approvals: dict[str, ApprovalView] = {}
        self._questions: set[str] = set()
        self._ended = False
        self._in_turn = False
        self._tasks: asyncio.TaskGroup

    async def run(
        self, first: Sequence[PartBase], run_turn: Callable[[Sequence[PartBase], str], Awaitable[None]]
    ) -> None:
        """Runs a turn for each prompt until the input ends or the user interrupts the program."""
        self._target.subscribe(self._on_event)
        if first:
            self._prompts.put_nowait(_ReadPrompt(0, first, ""))
        async with asyncio.TaskGroup() as self._tasks:
            reader = self._tasks.create_task(self._read_input())
            while (prompt := await self._next_prompt()) is not None:
                self._in_turn = True
                try:
                    await run_turn(prompt.parts, prompt.id)
                finally:
                    self._in_turn = False
            reader.cancel()

    async def _next_prompt(self) -> _ReadPrompt | None:
        """Returns the next prompt; None at the end of the input or after a signal."""
        next_prompt = asyncio.ensure_future(self._prompts.get())
        stop = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((next_prompt, stop), return_when=asyncio.FIRST_COMPLETED)
            return next_prompt.result() if next_prompt.done() and not self._stop.is_set() else None
        finally:
            next_prompt.cancel()
            stop.cancel()

    async def _read_input(self) -> None:
        number = 0
        lines = read_stdin_lines()
        while (line := await lines.get()) is not None and not self._ended:
            number += 1
            if line.strip():
                await self._handle_line(number, line)
        self._end_input()

    async def _handle_line(self, number: int, line: bytes) -> None:
        request_id = ""
        try:
            if len(line) > MAX_LINE_BYTES:
                raise InputProblem(f"the line has more than {MAX_LINE_BYTES:,} bytes")
            command = self._printer.decode_input(line)
            request_id = command.id
            await self._execute_command(number, command)
        except OutriderError as error:
            request_id = getattr(error, "request_id", "") or request_id
            self._printer.report_input_error(number, error.message, line.decode("utf-8", "replace"), request_id)

    async def _execute_command(self, number: int, command: InputCommand) -> None:
        """Executes a command. Raises OutriderError if that is not possible."""
        match command:
            case PromptInput():
                self._add_prompt(number, command)
            case MessageInput():
                self._prompts.put_nowait(_ReadPrompt(number, command.parts, command.id))
            case ApprovalInput():
                await self._answer_approval(command)
            case AnswerInput():
                await self._target.answer_question(command.question_id, command.answers)
            case SettingsInput():
                await self._change_settings(command)
            case InterruptInput():
                await self._target.abort()
                self._printer.confirm(command.id)
            case GreetingInput():
                self._printer.confirm(command.id)
            case EndInput():
                self._end_input()
            case _:
                assert_never(command)

    def _add_prompt(self, number: int, command: PromptInput) -> None:
        if not command.text.strip() and not command.files:
            raise InputProblem("the prompt is empty")
        parts = [*([TextPart(command.text)] if command.text else []), *map(self._attach, command.files)]
        if command.delivery == "steer" and self._in_turn:
            self._tasks.create_task(self._steer_turn(number, command, parts))
        else:
            self._prompts.put_nowait(_ReadPrompt(number, parts, command.id))

    async def _steer_turn(self, number: int, command: PromptInput, parts: Sequence[PartBase]) -> None:
        """Adds input to the running turn. It has no separate result: the result of the turn includes it."""
        try:
            await self._target.steer(parts)
        except OutriderError as error:
            self._printer.report_input_error(number, error.message, command.text)

    async def _answer_approval(self, command: ApprovalInput) -> None:
        view = self._approvals.get(command.approval_id)
        if view is None:
            raise InputProblem(f"there is no open approval {command.approval_id!r}")
        choice = command.choice or self._plain_choice(view, command.allow)
        if choice_by_id(view.choices, choice) is None:
            offered = ", ".join(offered_choice.id for offered_choice in view.choices)
            raise InputProblem(f"there is no choice {choice!r}; the choices are {offered}")
        answer = view.answer(choice, command.reason, command.files, width=command.width)
        await self._target.answer(view.id, by=_SENDER, **answer)

    @staticmethod
    def _plain_choice(view: ApprovalView, allow: bool | None) -> str:  # noqa: FBT001
        if allow is None:
            raise InputProblem("an approval needs `choice` or `allow`")
        kind = "allow" if allow else "deny"
        return next(choice.id for choice in view.choices if choice.kind == kind)

    async def _change_settings(self, command: SettingsInput) -> None:
        if command.mode is not None:
            await self._target.set_mode(command.mode)
        if command.approval is not None:
            await self._target.set_approval(command.approval)
        self._printer.confirm(command.id)

    def _on_event(self, event: Event) -> None:
        match event:
            case ToolApprovalRequestedEvent():
                self._approvals[event.approval_id] = requested_approval_view(event)
                self._refuse_if_ended()
            case ToolApprovalResultEvent():
                self._approvals.pop(event.approval_id, None)
            case SessionUpdatedEvent(changes={"question": {"id": str() as question_id}}):
                self._questions.add(question_id)
                self._refuse_if_ended()
            case SessionUpdatedEvent(changes={"settled": str() as question_id}):
                self._questions.discard(question_id)
            case _:
                pass

    def _end_input(self) -> None:
        if not self._ended:
            self._ended = True
            self._prompts.put_nowait(None)
            self._refuse_if_ended()

    def _refuse_if_ended(self) -> None:
        if self._ended and (self._approvals or self._questions):
            self._tasks.create_task(self._refuse_open_requests())

    async def _refuse_open_requests(self) -> None:
        """Denies calls and questions that wait for an answer that can no longer arrive."""
        for view in list(self._approvals.values()):
            reason = UNATTENDED_OUTCOME if view.outcome and view.outcome.files else UNATTENDED_DENIAL
            await _ignore_settled(self._target.answer(view.id, allow=False, by=_SENDER, words=reason))
        for question_id in list(self._questions):
            await _ignore_settled(self._target.answer_question(question_id, ()))


async def _ignore_settled(answer: Awaitable[Any]) -> None:
    """Ignores the error of an answer that is no longer needed: another front end has answered, or the turn has
    ended."""
    try:
        await answer
    except OutriderError:
        return


def read_stdin_lines() -> "asyncio.Queue[bytes | None]":
    """Returns a queue of the lines of stdin; None marks the end. A daemon thread reads the file descriptor, not
    `sys.stdin`: it neither delays the end of the program nor holds a lock of `sys.stdin` at that time. A line that is
    too long is truncated."""
    if sys.stdin is None:
        raise ConfigurationError("--input-format stream-json reads stdin, which is closed")
    loop, lines, descriptor = asyncio.get_running_loop(), asyncio.Queue[bytes | None](), sys.stdin.fileno()

    def pass_on(line: bytes | None) -> None:
        try:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        except RuntimeError:  # the loop is closed: the program ends
            return

    def read_descriptor() -> None:
        line_start = b""
        while chunk := _read_chunk(descriptor):
            *complete, tail = chunk.split(b"\n")
            for line in complete:
                pass_on(line_start + line)
                line_start = b""
            if len(line_start) <= MAX_LINE_BYTES:
                line_start += tail
        if line_start:
            pass_on(line_start)
        pass_on(None)

    Thread(target=read_descriptor, name="stdin", daemon=True).start()
    return lines


def _read_chunk(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK)
    except OSError:
        return b""
