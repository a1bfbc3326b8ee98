"""Hooks from settings: commands of the user that run on events of a session, with the events and the JSON of Claude
Code.

They are read from the user's `hooks.json`, and from files of a trusted workspace whose content the user approved. A
command that hangs, fails or prints unexpected output is reported and cannot break a turn.
"""

import asyncio
import hashlib
import logging
import os
import re
import signal
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from outrider.agents.hooks import HookDecision, HookedCall, HookedCompaction, HookedPrompt, HookedStop, Hooks
from outrider.errors import ConfigurationError
from outrider.event_bus import EventBus
from outrider.processes.platform import list_descendants, list_marked, send_signal
from outrider.project.trust import WorkspaceTrust, decode_approved_hooks, hook_items
from outrider.types.events import ErrorEvent, ToolApprovalRequestedEvent
from outrider.types.ids import new_id
from outrider.types.tool_declaration import canonical_tool
from outrider.types.validate import is_object

_log = logging.getLogger("outrider.hooks")

EVENTS = (
    "PreToolUse",
    "PostToolUse",
    "UserPromptSubmit",
    "SessionStart",
    "Stop",
    "SubagentStop",
    "PreCompact",
    "Notification",
)
DEFAULT_SECONDS = 60.0
MAX_SECONDS = 600.0
MAX_OUTPUT_BYTES = 1 << 20
MAX_SPOOLED_BYTES = 32 << 20
"""A command that prints more is stopped, so that it cannot fill the disk."""
_SIZE_CHECK_SECONDS = 0.1
_MAX_KILL_ROUNDS = 20
_HOOK_VARIABLE = "OUTRIDER_HOOK_ID"  # in the environment of a command and of all that it starts
MAX_CONTEXT_CHARS = 10_000
MAX_FILE_BYTES = 1 << 20
MAX_STOPS = 8  # consecutive times that a Stop hook can make an agent continue
BLOCK_EXIT_CODE = 2
# Claude Code's names of tools, which the hooks of its users expect.
_CLAUDE_NAMES = {
    "shell": "Bash",
    "read": "Read",
    "edit": "Edit",
    "write": "Write",
    "glob": "Glob",
    "grep": "Grep",
    "list": "LS",
    "web_fetch": "WebFetch",
    "web_search": "WebSearch",
    "todo": "TodoWrite",
    "task": "Task",
}


_MATCHES_ALL = ("", "*")  # as in Claude Code


class HookCommand(msgspec.Struct, frozen=True):
    """One command of a hook; it is run by the shell. `timeout` is in seconds."""

    command: str
    type: str = "command"
    timeout: Annotated[float, msgspec.Meta(gt=0)] = DEFAULT_SECONDS
    approved_files: dict[str, str] = {}
    """The SHA-256 of the files of the workspace that the command may run, by path; set for hooks of a workspace."""


class HookMatcher(msgspec.Struct, frozen=True):
    """The commands for the tools, or other subjects of an event, that the regular expression `matcher` matches."""

    hooks: tuple[HookCommand, ...]
    matcher: str = ""

    def matches(self, *names: str) -> bool:
        if self.matcher in _MATCHES_ALL or not names:  # UserPromptSubmit has no subject
            return True
        pattern = re.compile(self.matcher)
        return any(pattern.fullmatch(name) for name in names)


HookTable = dict[str, tuple[HookMatcher, ...]]


class ConfiguredHooks(msgspec.Struct, frozen=True):
    """The hooks of all files, and notices about entries that are ignored."""

    table: HookTable = {}
    notices: tuple[str, ...] = ()


def read_hooks(user_file: Path, trust: WorkspaceTrust | None) -> ConfiguredHooks:
    """Reads the user's file and the approved files of a trusted workspace. Raises ConfigurationError if the user's file
    is invalid, because silently omitting a check would be dangerous."""
    table: HookTable = {}
    notices: list[str] = []
    content = _read_user_file(user_file)
    if content is not None:
        _add_hooks(table, notices, content, str(user_file))
    for item in hook_items(trust.project) if trust is not None and trust.trusted else ():
        if trust is not None and trust.is_approved(item):
            try:
                approved = decode_approved_hooks(item)
                files = {str(trust.project.root / name): digest for name, digest in approved.files.items()}
                _add_hooks(table, notices, approved.hooks, item.key, files)
            except ConfigurationError as error:
                notices.append(f"{error.message}; its hooks are ignored")
    return ConfiguredHooks(table, tuple(notices))


def _read_user_file(path: Path) -> Any:
    try:
        content = path.read_bytes()[:MAX_FILE_BYTES]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        document: Any = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path}: is not valid JSON: {error}") from error
    return document.get("hooks", document) if is_object(document) else document


def _add_hooks(
    table: HookTable, notices: list[str], content: Any, source: str, files: Mapping[str, str] = MappingProxyType({})
) -> None:
    if not is_object(content):
        raise ConfigurationError(f"{source}: hooks must be an object with the names of events")
    for event, entries in content.items():
        if event not in EVENTS:
            notices.append(f"{source}: there is no hook event {event!r}, it is ignored; events: {', '.join(EVENTS)}")
            continue
        try:
            matchers = msgspec.convert(entries, tuple[HookMatcher, ...])
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"{source}: hooks.{event}: {error}") from error
        for matcher in matchers:
            _check_matcher(matcher.matcher, f"{source}: hooks.{event}")
        unknown = {command.type for matcher in matchers for command in matcher.hooks} - {"command"}
        notices += [f"{source}: {event}: hooks of type {kind!r} are ignored" for kind in sorted(unknown)]
        table[event] = (*table.get(event, ()), *(_bind_files(matcher, files) for matcher in matchers))


def _check_matcher(pattern: str, where: str) -> None:
    try:
        if pattern not in _MATCHES_ALL:
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigurationError(
            f"{where}: the matcher {pattern!r} is not a valid regular expression ({error}); "
            'write one, such as "Edit|Write" or "mcp__.*", or "*" for all'
        ) from error


def _bind_files(matcher: HookMatcher, files: Mapping[str, str]) -> HookMatcher:
    commands = (replace(command, approved_files=dict(files)) for command in matcher.hooks)
    return replace(matcher, hooks=tuple(commands))


class HookOutcome(msgspec.Struct, frozen=True):
    """How one command ended.

    - `code`: the exit code.
    - `text`: what it printed.
    - `error`: its error output.
    - `answer`: the JSON object that it printed.
    - `failure`: why it gave no usable answer; empty if it gave one.
    """

    code: int = 0
    text: str = ""
    error: str = ""
    answer: dict[str, Any] = {}
    failure: str = ""

    @property
    def specific(self) -> dict[str, Any]:
        output = self.answer.get("hookSpecificOutput")
        return output if is_object(output) else {}

    @property
    def blocks(self) -> bool:
        stops = self.answer.get("continue") is False
        return self.code == BLOCK_EXIT_CODE or stops or self.answer.get("decision") in ("block", "deny")

    @property
    def reason(self) -> str:
        answers = (self.answer.get("reason"), self.answer.get("stopReason"), self.error)
        return next((str(text).strip() for text in answers if text), "") or "a hook blocked it"

    @property
    def context(self) -> str:
        """The text for the model: `additionalContext`, or else what was printed, if it is not JSON."""
        additional = self.specific.get("additionalContext")
        return str(additional) if additional else "" if self.answer else self.text


async def run_hook(
    command: HookCommand, payload: Mapping[str, Any], *, folder: Path, environ: Mapping[str, str]
) -> HookOutcome:
    """Runs one command with the payload on its stdin, and returns how it ended. Its input and output are temporary
    files, so that neither a command that does not read nor a process that it leaves behind can block."""
    if (changed := await asyncio.to_thread(_find_changed_file, command)) is not None:
        return HookOutcome(failure=f"was not run: {changed} has changed since it was approved")
    try:
        return await _run_command(command, msgspec.json.encode(payload), folder, environ)
    except (OSError, ValueError) as error:  # a full disk, a missing folder, a command with a null character
        return HookOutcome(failure=f"cannot be started: {error}")


def _find_changed_file(command: HookCommand) -> str | None:
    for path, digest in command.approved_files.items():
        try:
            content = Path(path).read_bytes()[:MAX_FILE_BYTES]
        except OSError:
            return path
        if hashlib.sha256(content).hexdigest() != digest:
            return path
    return None


async def _run_command(command: HookCommand, payload: bytes, folder: Path, environ: Mapping[str, str]) -> HookOutcome:
    with (
        tempfile.TemporaryFile() as payload_file,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        payload_file.write(payload)
        payload_file.seek(0)
        shell = ("/bin/sh", "-c", command.command)
        env = {**environ, _HOOK_VARIABLE: (mark := new_id())}
        options: dict[str, Any] = {"cwd": folder, "env": env, "start_new_session": True}
        process = await asyncio.create_subprocess_exec(
            *shell, stdin=payload_file, stdout=output, stderr=errors, **options
        )
        ended = asyncio.create_task(_wait_for_end(process, seconds := min(command.timeout, MAX_SECONDS), mark))
        if not await _watch_output(ended, output, errors):
            return HookOutcome(failure=f"printed more than {MAX_SPOOLED_BYTES >> 20} MB and was stopped")
        code = ended.result()
        if code is None:
            return HookOutcome(failure=f"did not end within {seconds:g} s and was stopped")
        return parse_outcome(code, _read_output(output), _read_output(errors))


async def _wait_for_end(process: asyncio.subprocess.Process, seconds: float, mark: str) -> int | None:
    """Returns the exit code, or None after the limit. The processes of a command that has not ended are killed, also
    those that have left its process group."""
    try:
        async with asyncio.timeout(seconds):
            return await process.wait()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            await asyncio.shield(_kill_processes(process, mark))


async def _kill_processes(process: asyncio.subprocess.Process, mark: str) -> None:
    """Kills a command and all processes that it has started, repeatedly, because a process may fork meanwhile."""
    for _ in range(_MAX_KILL_ROUNDS):
        processes = await asyncio.to_thread(
            lambda: [*list_descendants(process.pid), *list_marked(_HOOK_VARIABLE, mark)]
        )
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for process_instance in processes:
            send_signal(process_instance, signal.SIGKILL)
        await process.wait()
        if not processes:
            return


async def _watch_output(ended: asyncio.Task[int | None], *files: Any) -> bool:
    """Waits for the end of a command. Returns False if it prints too much. The command is killed in that case, and when
    the wait is cancelled."""
    try:
        while not (await asyncio.wait((ended,), timeout=_SIZE_CHECK_SECONDS))[0]:
            if any(os.fstat(file.fileno()).st_size > MAX_SPOOLED_BYTES for file in files):
                return False
        return True
    finally:
        ended.cancel()
        await asyncio.wait((ended,))


def _read_output(file: Any) -> str:
    file.seek(0)
    return file.read(MAX_OUTPUT_BYTES).decode("utf-8", "replace").strip()


def parse_outcome(code: int, text: str, error: str) -> HookOutcome:
    """Returns the outcome of a command from its exit code and output, by the rules of Claude Code."""
    if code not in (0, BLOCK_EXIT_CODE):
        return HookOutcome(code, text, error, failure=f"ended with exit code {code}: {(error or text)[:500]}")
    if code != 0 or not text.startswith("{"):
        return HookOutcome(code, text, error)
    try:
        answer: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return HookOutcome(code, failure="printed invalid JSON")
    return HookOutcome(code, text, error, answer) if is_object(answer) else HookOutcome(code, text, error)


class CommandHooks:
    """Runs the configured commands on the events of an engine's sessions. `environ` returns their environment for a
    workspace, without keys."""

    def __init__(
        self, table: HookTable, bus: EventBus, workspace: Path, root: Path, environ: Callable[[Path], dict[str, str]]
    ) -> None:
        self._table = table
        self._bus = bus
        self._folder = workspace
        self._root = root
        self._environ = environ
        self._started: set[str] = set()
        self._stops: dict[str, int] = {}

    def build_hooks(self) -> Hooks:
        """Returns the hooks for the events that commands are configured for."""
        has = self._table.keys()
        return Hooks(
            before_call=self.before_call if "PreToolUse" in has else None,
            after_call=self.after_call if "PostToolUse" in has else None,
            on_stop=self.on_stop if has & {"Stop", "SubagentStop"} else None,
            on_prompt=self.on_prompt if has & {"UserPromptSubmit", "SessionStart", "Stop"} else None,
            on_compaction=self.on_compaction if "PreCompact" in has else None,
        )

    def attach(self) -> Callable[[], None]:
        """Runs Notification hooks when a call waits for an approval. Returns a function that detaches them."""
        if "Notification" not in self._table:
            return lambda: None
        return self._bus.subscribe(ToolApprovalRequestedEvent, self._notify)

    async def before_call(self, call: HookedCall) -> dict[str, Any] | HookDecision | None:
        """Returns another input, a decision that denies or asks, or None. "allow" changes nothing: rules are the
        user's way to allow calls."""
        outcomes = await self._run_event("PreToolUse", call.session_id, _call_names(call.tool), self._describe(call))
        asks: HookDecision | None = None
        changed: dict[str, Any] | None = None
        for outcome in outcomes:
            decision = outcome.specific.get("permissionDecision")
            reason = str(outcome.specific.get("permissionDecisionReason") or outcome.reason)
            if outcome.failure and not outcome.code:
                return HookDecision("deny", f"the hook for it {outcome.failure}")
            if outcome.blocks or decision == "deny":
                return HookDecision("deny", reason)
            if decision == "ask":
                asks = HookDecision("ask", str(outcome.specific.get("permissionDecisionReason") or ""))
            if is_object(updated := outcome.specific.get("updatedInput")):
                changed = updated
        return asks or changed

    async def after_call(self, call: HookedCall) -> str | None:
        """Returns the output with the notes that hooks add for the model, or None if they add none."""
        payload = {**self._describe(call), "tool_response": {"output": call.output, "is_error": call.is_error}}
        outcomes = await self._run_event("PostToolUse", call.session_id, _call_names(call.tool), payload)
        added = [outcome.reason if outcome.blocks else str(outcome.specific.get("additionalContext") or "")
                 for outcome in outcomes if not outcome.failure]  # fmt: skip
        notes = "\n".join(f"[hook] {text[:MAX_CONTEXT_CHARS]}" for text in added if text)
        return f"{call.output}\n\n{notes}" if notes else None

    async def on_stop(self, stop: HookedStop) -> str | None:
        """Returns the text with which a hook makes the agent continue, or None."""
        event = "SubagentStop" if stop.parent_session_id else "Stop"
        count = self._stops.get(stop.session_id, 0)
        payload = {"stop_hook_active": count > 0, "reason": stop.reason, "agent": stop.agent}
        outcomes = await self._run_event(event, stop.session_id, (stop.agent,), payload)
        blocked = next(
            (outcome for outcome in outcomes if outcome.blocks and outcome.answer.get("continue") is not False), None
        )
        if blocked is None or count >= MAX_STOPS:
            self._stops.pop(stop.session_id, None)
            return None
        self._stops[stop.session_id] = count + 1
        return blocked.reason

    async def on_prompt(self, prompt: HookedPrompt) -> str | HookDecision | None:
        """Returns text for the model or the decision to refuse the input. The first input of a session in this process
        runs the hooks of its start."""
        self._stops.pop(prompt.session_id, None)
        outcomes: list[HookOutcome] = []
        if prompt.session_id not in self._started:
            self._started.add(prompt.session_id)
            source = "startup" if prompt.is_first else "resume"
            outcomes += await self._run_event("SessionStart", prompt.session_id, (source,), {"source": source})
        refused: HookDecision | None = None
        for outcome in await self._run_event("UserPromptSubmit", prompt.session_id, (), {"prompt": prompt.text}):
            if outcome.blocks:
                refused = refused or HookDecision("deny", outcome.reason)
            outcomes.append(outcome)
        texts = [outcome.context[:MAX_CONTEXT_CHARS] for outcome in outcomes if not outcome.failure and outcome.context]
        return refused or "\n\n".join(texts) or None

    async def on_compaction(self, compaction: HookedCompaction) -> None:
        trigger = "auto" if compaction.auto else "manual"
        payload = {"trigger": trigger, "custom_instructions": compaction.instructions}
        await self._run_event("PreCompact", compaction.session_id, (trigger,), payload)

    async def _notify(self, event: ToolApprovalRequestedEvent) -> None:
        message = f"Outrider needs your permission to use {_CLAUDE_NAMES.get(event.tool_name, event.tool_name)}"
        payload = {"message": message, "notification_type": "permission_prompt"}
        await self._run_event("Notification", event.session_id or "", ("permission_prompt",), payload)

    async def _run_event(
        self, event: str, session_id: str, names: tuple[str, ...], payload: Mapping[str, Any]
    ) -> list[HookOutcome]:
        """Runs the commands for an event at the same time and returns their outcomes in the order of the files."""
        commands = [
            command
            for matcher in self._table.get(event, ())
            if matcher.matches(*names)
            for command in matcher.hooks
            if command.type == "command"
        ]
        if not commands:
            return []
        common = {"session_id": session_id, "transcript_path": "", "cwd": str(self._folder), "hook_event_name": event}
        environ = self._environ(self._folder) | {"CLAUDE_PROJECT_DIR": str(self._root)}
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(run_hook(command, {**common, **payload}, folder=self._folder, environ=environ))
                for command in commands
            ]
        outcomes = [task.result() for task in tasks]
        for command, outcome in zip(commands, outcomes, strict=True):
            self._report(event, session_id, command, outcome)
        return outcomes

    def _report(self, event: str, session_id: str, command: HookCommand, outcome: HookOutcome) -> None:
        command_text = command.command if len(command.command) <= 80 else f"{command.command[:79]}…"
        text = (
            f"the {event} hook `{command_text}` {outcome.failure}"
            if outcome.failure
            else outcome.answer.get("systemMessage")
        )
        if text:
            _log.warning("%s", text)
            self._bus.publish(ErrorEvent(session_id=session_id, error_type="HookFailed", message=str(text)))

    def _describe(self, call: HookedCall) -> dict[str, Any]:
        name = canonical_tool(call.tool)
        tool_input = dict(call.input)
        if isinstance(path := tool_input.get("file_path"), str):
            tool_input["file_path"] = os.path.normpath(self._folder / path)
        return {
            "tool_name": _CLAUDE_NAMES.get(name, call.tool),
            "tool_input": tool_input,
            "tool_use_id": call.call_id,
            "agent": call.agent,
        }


def _call_names(tool: str) -> tuple[str, ...]:
    """Returns the names by which a matcher may select a tool: ours and Claude Code's."""
    return tuple(dict.fromkeys((tool, _CLAUDE_NAMES.get(canonical_tool(tool), tool))))
