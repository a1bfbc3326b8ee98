"""Runs the shell commands of one session inside the sandbox and decides what happens to the files that they change.

A command runs over a copy-on-write view of the workspace. Without changes its result is returned without a question.
Changes are dropped in plan mode, committed in background mode and at the approval levels `edits` and `auto`, and are
the question at level `ask`. A question and its overlay survive a crash: the call is queued again, finds the stored
outcome and does not run the command a second time. On another machine, which does not have the outcome, it ends as
interrupted.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from outrider._sync import wait_to_end
from outrider.errors import FailureReason, ToolFailure
from outrider.outcomes.commit import CommitResult, commit_outcome
from outrider.outcomes.commit_selection import (
    CommitSelection,
    affects_any,
    commit_recorded,
    describe_commit,
    files_of,
    mark_unsaved,
    remove_all_staged,
    split_caches,
    split_protected,
)
from outrider.outcomes.describe import (
    MAX_OUTPUT,
    changes_question,
    describe_outcome,
    dropped_failure,
    fails_for_owner,
    find_blocked,
    is_remote_host,
    list_all_changes,
    list_changes,
    name_grants,
    needs_writable_view,
    settled_result,
    unchanged_failure,
    was_denied_writing,
    with_block,
    with_note,
)
from outrider.outcomes.git_operations import RunInView
from outrider.outcomes.pending import OutcomeFolder, PendingOutcome, overlay_storage
from outrider.outcomes.predict import PredictedEffect
from outrider.outcomes.repository import OutsideRepository
from outrider.permissions import reasons
from outrider.permissions.modes import MODE_TABLE
from outrider.permissions.rules import allows_hosts, allows_writing, match_path_rule
from outrider.processes.git import GitRunner
from outrider.processes.launch import LaunchRequest, LaunchWrapper, keep_launch_unchanged
from outrider.processes.output import append_note
from outrider.processes.sandbox.overlay import (
    OverlayChange,
    OverlayFolders,
    copy_foreign_files,
    list_foreign_files,
    read_changes,
    show_path,
)
from outrider.processes.sandbox.sandbox import Network, OverlayMount, Sandbox, SandboxPolicy
from outrider.processes.supervisor import CommandResult
from outrider.tools.edit_transaction import WorkspaceLock
from outrider.tools.tool import Progress, ToolContext, ToolResult
from outrider.types.modes import ApprovalLevel, Mode
from outrider.types.origins import NETWORK, DataFlow, make_origin
from outrider.types.outcomes import BlockedAccess, CommandOutcome, Confinement, OutcomeAnswer
from outrider.types.tool_declaration import PermissionRule

Execute = Callable[[LaunchWrapper | None], Awaitable[CommandResult]]
"""Runs a command in a launch wrapper, or with None in the writable sandbox of the session."""
FormatResult = Callable[[CommandResult], ToolResult]
RecordPaths = Callable[[ToolContext, Path, Sequence[str]], AbstractAsyncContextManager[None]]
"""Returns a context manager around a commit that stores the old contents of these paths for undo."""
RecordAll = Callable[[ToolContext], AbstractAsyncContextManager[None]]
"""Returns a context manager around an unconfined command that compares the workspace before and after, for undo."""

OpenNetwork = Callable[[Sequence[str]], AbstractAsyncContextManager[Network]]
"""Opens a network that reaches only these hosts, or every host if there are none."""

FindRepository = Callable[[], OutsideRepository | None]
"""Returns the git folder of the workspace if it is outside the workspace."""

_WANTS_TO_WRITE = (
    "it tries to change files. The workspace was read-only for it; an approval runs it again with write access"
)

_WANTS_TO_WRITE_OUTSIDE = (
    "it tries to change files. The workspace was read-only for it. The sandbox of this machine cannot protect git "
    "hooks and other files that programs execute, so an approval runs it again outside the sandbox"
)
_CANNOT_PROTECT = (
    "The command tried to change files. The sandbox of this machine cannot protect git hooks and other files that "
    "programs execute, so the workspace was read-only for it and is unchanged"
)

_OUTCOME_NOT_FOUND = (
    "This command has run, but the program stopped before its outcome was settled, and the stored outcome is not on "
    "this machine. All, some or none of its changes may be in the workspace; it was not run again. Look at the current "
    "state before you continue."
)


class AskOutcome(Protocol):
    """Asks the user about an outcome. The question is stored, so any front end can answer it, even after a restart."""

    async def __call__(self, context: ToolContext, outcome: CommandOutcome, question: str, /) -> OutcomeAnswer: ...


class MakePolicy(Protocol):
    """Returns the sandbox policy of the session's workspace."""

    def __call__(self, *, writable: bool) -> SandboxPolicy: ...


class SessionSettings(Protocol):
    """What a command depends on at the time it runs: the strictest mode and level of its agent and the callers."""

    def mode_of(self, session_id: str) -> Mode: ...
    def level_of(self, session_id: str) -> ApprovalLevel: ...


class CommandPlan(msgspec.Struct, frozen=True):
    """How an admitted call runs.

    - `confinement`: the sandbox of the command.
    - `keeps`: whether a rule or an earlier answer keeps the outcome without a question.
    - `hosts`: opens the network for these hosts, or for all hosts if it is empty; None leaves it closed.
    - `writable`: the paths outside the workspace that the command may change.
    - `predicted`: the predicted effect, about which the user is asked before the start.
    - `flow`: is set if the session has read untrusted text; the command then runs without a network, except for
      `open_hosts`.
    - `open_hosts`: the hosts that the command may reach in spite of `flow`.
    - `wanted`: the hosts that the command names.
    - `prints_remote`: whether the output may contain third-party text if the command has a network.
    """

    confinement: Confinement = "workspace"
    keeps: bool = False
    hosts: tuple[str, ...] | None = None
    writable: tuple[Path, ...] = ()
    predicted: PredictedEffect | None = None
    flow: DataFlow | None = None
    open_hosts: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
    prints_remote: bool = True

    @property
    def is_rerun(self) -> bool:
        """Whether the user has granted this command more than the default."""
        return self.hosts is not None or bool(self.writable)


FindOutcomeRules = Callable[[ToolContext], Sequence[PermissionRule]]
"""Returns the rules that apply to a call: what its command may write and reach without a question."""
FindRestrictions = Callable[[ToolContext], tuple[Sequence[str], Sequence[str]]]
"""Returns patterns of files that the command of a call must not change, and of those that are always asked about."""

Withdraw = Callable[[ToolContext], Awaitable[None]]
"""Revokes the open questions of a call."""

FindUnsaved = Callable[[Iterable[str]], Sequence[str]]
"""Returns which files of the workspace have unsaved text in the user's editor; it blocks. Raises ToolFailure if the
editor does not respond."""


async def _withdraw_nothing(_: ToolContext) -> None:
    """Does nothing: the default without stored questions."""


class SandboxedCommands:
    """The command runner of one session. `lock` serializes overlay commands, commits and edits of the workspace."""

    def __init__(
        self,
        *,
        workspace: Path,
        data: Path,
        sandbox: Sandbox,
        policy: MakePolicy,
        settings: SessionSettings,
        ask: AskOutcome,
        record_paths: RecordPaths,
        record_all: RecordAll,
        open_network: OpenNetwork,
        lock: WorkspaceLock,
        find_repository: FindRepository,
        rules: FindOutcomeRules = lambda _: (),
        restrictions: FindRestrictions = lambda _: ((), ()),
        find_unsaved: FindUnsaved = lambda _: (),
        withdraw: Withdraw = _withdraw_nothing,
    ) -> None:
        self._workspace = workspace.resolve()
        self._data = data
        self._sandbox = sandbox
        self._policy = policy
        self._settings = settings
        self._ask = ask
        self._record_paths = record_paths
        self._record_all = record_all
        self._open_network = open_network
        self._lock = lock
        self._find_repository = find_repository
        self._rules = rules
        self._restrictions = restrictions
        self._find_unsaved = find_unsaved
        self._withdraw = withdraw
        self._plans: dict[str, CommandPlan] = {}

    def plan_call(self, call_id: str, plan: CommandPlan) -> None:
        """Registers how an admitted call runs."""
        self._plans[call_id] = plan

    async def run(self, context: ToolContext, execute: Execute, format_result: FormatResult) -> ToolResult:
        """Runs a command and returns its result. Raises ToolFailure if its outcome is dropped."""
        return await self._run_as_planned(context, execute, partial(_format_with_leftovers, format_result))

    async def _run_as_planned(self, context: ToolContext, execute: Execute, format_result: FormatResult) -> ToolResult:
        plan = self._plans.pop(context.call_id, CommandPlan())
        folder = self._open_folder(context.session_id)
        if folder.has_outcome(context.call_id) and (pending := await asyncio.to_thread(folder.load, context.call_id)):
            return await self._finish(context, folder, pending, plan, execute, format_result)
        if context.has_run():
            await self._withdraw(context)
            raise ToolFailure(_OUTCOME_NOT_FOUND, reason="interrupted")
        if plan.predicted is not None and MODE_TABLE[self._settings.mode_of(context.session_id)].outcomes == "ask":
            plan = await self._ask_before_start(context, plan, plan.predicted)
        if plan.confinement == "none":
            _report_network(context, plan, ())
            async with self._record_all(context):
                return format_result(await execute(keep_launch_unchanged))
        if not self._sandbox.overlays:
            return await self._run_without_overlay(context, plan, execute, format_result)
        if plan.confinement == "read-only":
            result = await self._execute_with(context, self._read_only_policy(folder), plan, execute)
            denied = self._find_blocked(result, plan) if result.exit_code != 0 else ()
            if not denied and not needs_writable_view(result.text, result.exit_code):
                return format_result(result)
            if denied and all(access.kind == "network" for access in denied):
                # A writable view would not help, so the question comes without a second run.
                pending = self._pending_outcome(context, result, format_result(result), (), plan)
                return await self._finish(context, folder, pending, plan, execute, format_result)
        return await self._run_in_overlay(context, folder, plan, execute, format_result)

    async def run_on(self, context: ToolContext, start: Execute) -> CommandResult:
        """Starts a process that continues in the background. All changes until it ends are recorded for undo."""
        plan = self._plans.pop(context.call_id, CommandPlan())
        policy = self._policy(writable=False)
        if plan.confinement == "none" or policy.network != "off":
            _report_network(context, plan, ())
        commits = MODE_TABLE[self._settings.mode_of(context.session_id)].outcomes == "commit"
        reads_only = commits and plan.confinement != "none" and not self._sandbox.protects_files
        if self._sandbox.confines and (reads_only or plan.confinement == "read-only"):
            return await start(self._wrapper(policy))
        async with self._record_all(context):
            return await start(keep_launch_unchanged if plan.confinement == "none" else None)

    async def drop_leftovers(self, session_id: str, open_calls: Sequence[str]) -> None:
        """Deletes the overlays of all calls except the open ones."""
        folder = self._open_folder(session_id)
        if folder.root.is_dir():
            await asyncio.to_thread(folder.remove_except, open_calls)

    async def _run_without_overlay(
        self, context: ToolContext, plan: CommandPlan, execute: Execute, format_result: FormatResult
    ) -> ToolResult:
        """Runs a command with a read-only workspace. If it tries to write there, asks whether it may, unless the mode,
        the level or an earlier answer allows it."""
        outcomes = MODE_TABLE[self._settings.mode_of(context.session_id)].outcomes
        level = self._settings.level_of(context.session_id)
        keeps, protects = plan.keeps or level in ("edits", "auto"), self._sandbox.protects_files
        may_write = protects and (outcomes == "commit" or (outcomes == "ask" and keeps))
        if not may_write or plan.confinement == "read-only":
            result = await self._execute_with(context, self._policy(writable=False), plan, execute)
            if not was_denied_writing(result.text):
                return format_result(result)
            if outcomes == "drop":
                return with_note(format_result(result), "this mode does not let a command change files")
            if not may_write:
                formatted = format_result(result)
                if outcomes == "commit":
                    raise ToolFailure(f"{_CANNOT_PROTECT}. Its output was:\n{formatted.content}", reason="denied")
                access = (BlockedAccess("path", str(self._workspace), grantable=protects),)
                outcome = CommandOutcome(
                    exit_code=result.exit_code, output=formatted.content[-MAX_OUTPUT:], blocked=access
                )
                await context.wait_for_answer()
                answer = await self._ask(context, outcome, _WANTS_TO_WRITE if protects else _WANTS_TO_WRITE_OUTSIDE)
                await context.resume_work()
                if not answer.allowed:
                    raise unchanged_failure(formatted.content, answer)
                if answer.access.unconfined or not protects:
                    self.plan_call(context.call_id, CommandPlan("none", prints_remote=plan.prints_remote))
                    return await self._run_as_planned(context, execute, format_result)
        if self._policy(writable=False).network != "off":
            _report_network(context, plan, ())
        async with self._hold_lock(context), self._record_all(context):
            return format_result(await execute(None))

    async def _run_in_overlay(
        self,
        context: ToolContext,
        folder: OutcomeFolder,
        plan: CommandPlan,
        execute: Execute,
        format_result: FormatResult,
    ) -> ToolResult:
        finished = False
        try:
            # The lock is held until the command has ended: a command may not write to the workspace while the mounted
            # overlay of another command covers it.
            async with self._hold_lock(context):
                folders = await asyncio.to_thread(folder.prepare, context.call_id)
                policy = self._overlay_policy(folder, folders)
                repository, outside = await asyncio.to_thread(self._overlay_repository, folder, context.call_id)
                caches = await asyncio.to_thread(folder.open_caches, policy.caches)
                policy = msgspec.structs.replace(policy, outside=(*outside, *caches))
                result = await self._execute_with(context, policy, plan, execute)
                if await asyncio.to_thread(self._copy_foreign, folder, context.call_id, result, outside):
                    # Nothing of the first run remains, so the command can run again.
                    result = await self._execute_with(context, policy, plan, execute)
                formatted, failure = _format_or_failure(format_result, result)
                changes = await asyncio.to_thread(_read_changes, self._workspace, folders)
                recorded = await asyncio.to_thread(_read_recorded, outside)
            pending = self._pending_outcome(context, result, formatted, changes, plan)
            needs_no_question = plan.is_rerun or failure is not None
            pending = msgspec.structs.replace(
                pending, repository=repository, recorded=recorded, failure=failure, block_answered=needs_no_question
            )
            settled = await self._finish(context, folder, pending, plan, execute, format_result)
            finished = True
            return settled
        except asyncio.CancelledError:
            # If the question waits until the session is reopened, the overlay must not be deleted.
            finished = context.is_suspended()
            raise
        finally:
            if not finished:
                await asyncio.to_thread(folder.remove, context.call_id)

    def _copy_foreign(
        self, folder: OutcomeFolder, call_id: str, result: CommandResult, outside: Sequence[OverlayMount]
    ) -> bool:
        """Prepares a new overlay, in which the command may change files of other owners, for a command that failed
        because of such files. Returns False if that is not the reason for the failure."""
        if not fails_for_owner(result.text, result.exit_code):
            return False
        foreign = list_foreign_files(self._workspace)
        if foreign:
            copy_foreign_files(self._workspace, folder.prepare(call_id).upper, foreign)
            if outside:
                folder.prepare_recorded(call_id)
        return bool(foreign)

    def _pending_outcome(
        self,
        context: ToolContext,
        result: CommandResult,
        formatted: ToolResult,
        changes: Sequence[OverlayChange],
        plan: CommandPlan,
    ) -> PendingOutcome:
        return PendingOutcome(
            session_id=context.session_id,
            call_id=context.call_id,
            workspace=str(self._workspace),
            changes=tuple(changes),
            content=formatted.content,
            title=formatted.title,
            metadata=formatted.metadata,
            exit_code=result.exit_code,
            blocked=self._find_blocked(result, plan),
            left_running=result.left_running,
        )

    async def _ask_before_start(self, context: ToolContext, plan: CommandPlan, effect: PredictedEffect) -> CommandPlan:
        """Asks about the probable effect of a command before it starts. Returns the plan after an approval, which also
        answers the question about its blocked network. Raises ToolFailure after a denial."""
        if effect.hosts and not effect.outside and set(effect.hosts) <= set(plan.open_hosts):
            return plan  # these hosts are already allowed
        await context.wait_for_answer()
        flow = _flow_to(plan.flow, effect.wanted)
        description = (reasons.PREDICTED_OUTSIDE if effect.outside else reasons.PREDICTED).format(effect=effect.text)
        outcome = CommandOutcome(predicted=effect.text, blocked=effect.wanted, flow=flow)
        answer = await self._ask(context, outcome, f"{description}; {flow.description}" if flow else description)
        await context.resume_work()
        if not answer.attended:
            raise ToolFailure(reasons.UNATTENDED_PREDICTED.format(effect=effect.text), reason="denied")
        if not answer.allowed:
            reason = reasons.USER_DENIED_PREDICTED.format(effect=effect.text)
            raise ToolFailure(f"{reason}{answer.words and '. ' + answer.words}", reason="rejected")
        if effect.outside or answer.access.unconfined:
            return CommandPlan("none", prints_remote=plan.prints_remote)
        hosts = tuple(dict.fromkeys((*effect.hosts, *plan.open_hosts))) if effect.hosts else ()
        keeps = plan.keeps or effect.keeps
        return msgspec.structs.replace(plan, keeps=keeps, hosts=hosts, predicted=None, wanted=())

    def _find_blocked(self, result: CommandResult, plan: CommandPlan) -> tuple[BlockedAccess, ...]:
        """Returns the accesses that a command was denied. A command without a network may fail without a message in its
        output, such as `curl -s`."""
        accesses = name_grants(find_blocked(result.text, result.exit_code, workspace=str(self._workspace)))
        closed = plan.hosts is None and self._policy(writable=False).network == "off"
        unnamed = [host for host in plan.wanted if is_remote_host(host)] if closed else []
        if result.exit_code == 0:
            # The last program of a pipeline decides the exit code: `curl https://docs.example.org | head` succeeds.
            named = {host.partition(":")[0] for host in plan.wanted}
            hidden = find_blocked(result.text, None, workspace=str(self._workspace)) if named else ()
            accesses = tuple(access for access in hidden if access.kind == "network" and access.target in named)
            return accesses or _network_accesses(() if result.text.strip() else unnamed)
        return accesses or _network_accesses(unnamed if plan.flow is None else plan.wanted)

    async def _finish(
        self,
        context: ToolContext,
        folder: OutcomeFolder,
        pending: PendingOutcome,
        plan: CommandPlan,
        execute: Execute,
        format_result: FormatResult,
    ) -> ToolResult:
        """Asks about blocked accesses and runs the command again with them, or settles the changes of the command."""
        if pending.blocked and not pending.block_answered:
            rerun = await self._ask_about_block(context, folder, pending, plan)
            if isinstance(rerun, CommandPlan):
                await context.resume_work()
                await asyncio.to_thread(folder.remove, context.call_id)
                self.plan_call(context.call_id, msgspec.structs.replace(rerun, keeps=rerun.keeps or plan.keeps))
                return await self._run_as_planned(context, execute, format_result)
            pending = rerun
        return await self._settle(context, folder, pending, plan)

    async def _execute_with(
        self, context: ToolContext, policy: SandboxPolicy, plan: CommandPlan, execute: Execute
    ) -> CommandResult:
        if plan.writable:
            policy = msgspec.structs.replace(policy, also_writable=(*policy.also_writable, *plan.writable))
        hosts = (plan.open_hosts or None) if plan.hosts is None else plan.hosts
        if hosts is not None or policy.network != "off":
            _report_network(context, plan, hosts or ())
        if hosts is None:
            return await execute(self._wrapper(policy))
        async with self._open_network(hosts) as network:
            return await execute(self._wrapper(msgspec.structs.replace(policy, network=network)))

    async def _ask_about_block(
        self, context: ToolContext, folder: OutcomeFolder, pending: PendingOutcome, plan: CommandPlan
    ) -> CommandPlan | PendingOutcome:
        """Asks whether a blocked command may run again with the blocked accesses. Returns the plan for this, or the
        outcome with a note.

        The answer grants only what its choice names; without a choice, it grants what the question names.
        """
        access_names = ", ".join(dict.fromkeys(access.description for access in pending.blocked))
        blocked = reasons.BLOCKED.format(wanted=access_names)
        flow = _flow_to(plan.flow, pending.blocked)
        if flow is None and (granted := self._plan_by_rules(context, pending.blocked)) is not None:
            return granted
        if flow is not None:
            blocked = f"{blocked}; {flow.description}"
        match MODE_TABLE[self._settings.mode_of(context.session_id)].outcomes:
            case "drop":
                return with_block(pending, blocked)
            case "commit":
                return with_block(pending, blocked, not_approved=access_names)
            case "ask":
                pass
        await asyncio.to_thread(folder.save, pending)
        await context.wait_for_answer(has_run=True)
        outcome = CommandOutcome(
            exit_code=pending.exit_code, output=pending.content[-MAX_OUTPUT:], blocked=pending.blocked, flow=flow
        )
        answer = await self._ask(context, outcome, blocked)
        if not answer.attended:
            suffix = f"; {flow.description}" if flow else ""
            return with_block(
                pending, reasons.UNATTENDED_BLOCK.format(wanted=access_names) + suffix, not_approved=access_names
            )
        if not answer.allowed:
            return with_block(pending, f"{blocked}; the user did not allow it{answer.words and ': ' + answer.words}")
        granted = answer.access
        if granted.unconfined:
            return CommandPlan("none", prints_remote=plan.prints_remote)
        network = [access.target for access in pending.blocked if access.kind == "network"]
        paths = [
            Path(access.target)
            for access in pending.blocked
            if access.kind != "network" and access.target and access.grantable
        ]
        return CommandPlan(
            hosts=tuple(filter(None, network)) if network and granted.hosts else None,
            writable=tuple(paths) if granted.paths else (),
            flow=plan.flow,
            open_hosts=plan.open_hosts,
            prints_remote=plan.prints_remote,
        )

    def _plan_by_rules(self, context: ToolContext, blocked: Sequence[BlockedAccess]) -> CommandPlan | None:
        """Returns the plan for running a blocked command again without a question, if rules allow all blocked hosts and
        paths; else None."""
        hosts = tuple(access.target for access in blocked if access.kind == "network")
        paths = tuple(access.target for access in blocked if access.kind == "path")
        rules = self._rules(context)
        if len(hosts) + len(paths) < len(blocked) or not all((*hosts, *paths)):
            return None
        if not allows_hosts(rules, hosts) or not allows_writing(rules, paths, root=str(self._workspace)):
            return None
        return CommandPlan(hosts=hosts or None, writable=tuple(map(Path, paths)))

    async def _settle(
        self, context: ToolContext, folder: OutcomeFolder, pending: PendingOutcome, plan: CommandPlan
    ) -> ToolResult:
        """Keeps, drops or asks about the changes of a command that has ended, and returns its result."""
        if pending.committing:  # a crash interrupted the commit
            await asyncio.to_thread(remove_all_staged, pending)
            return await self._commit(context, folder, pending, pending.keep, pending.keep_recorded)
        upper = folder.upper(context.call_id)
        caches, changes = await asyncio.to_thread(split_caches, self._workspace, pending.changes, upper)
        if caches:
            async with self._hold_lock(context):  # no overlay of this workspace may start meanwhile
                await asyncio.to_thread(folder.keep_in_layer, context.call_id, caches)
        denied_paths, asked_paths = (self._matching(changes, patterns) for patterns in self._restrictions(context))
        if denied_paths:
            names = list_changes([change for change in changes if change.path in denied_paths])
            note = f"a rule forbids to change these files, so their changes are discarded: {names}"
            changes = [change for change in changes if change.path not in denied_paths]
            pending = msgspec.structs.replace(pending, content=append_note(pending.content, note))
        pending = msgspec.structs.replace(pending, changes=tuple(changes))
        if not changes and not pending.recorded:
            await asyncio.to_thread(folder.remove, context.call_id)
            return settled_result(pending)
        rights = MODE_TABLE[self._settings.mode_of(context.session_id)]
        paths, recorded, complete = await asyncio.to_thread(split_protected, pending, folder)
        paths, complete = [path for path in paths if path not in asked_paths], complete and not asked_paths
        if rights.outcomes == "drop":
            await asyncio.to_thread(folder.remove, context.call_id)
            return settled_result(pending, f"this mode discards what a command changes: {list_all_changes(pending)}")
        if rights.outcomes == "commit":
            if not complete:
                selected = {*paths, *recorded}
                dropped = [change.path for change in (*changes, *pending.recorded) if change.path not in selected]
                left_out = ", ".join(sorted(map(show_path, dropped)))
                pending = msgspec.structs.replace(pending, metadata={**pending.metadata, "not_approved": left_out})
            return await self._commit(context, folder, pending, paths, recorded)
        level = self._settings.level_of(context.session_id)
        keeps = plan.keeps or level in ("edits", "auto") or (not pending.recorded and self._may_write(context, changes))
        # A question may have been answered while the session was closed; a later rule does not replace the answer.
        if complete and keeps and not pending.asked:
            return await self._commit(context, folder, pending, paths, recorded)
        pending = msgspec.structs.replace(pending, asked=True)
        await asyncio.to_thread(folder.save, pending)
        await context.wait_for_answer(has_run=True)
        return await self._ask_and_commit(context, folder, pending)

    def _matching(self, changes: Sequence[OverlayChange], patterns: Sequence[str]) -> set[str]:
        """Returns the changed paths that match a pattern. A folder that was deleted as a whole matches if a pattern may
        name something in it."""
        root = str(self._workspace)
        return {
            change.path
            for change in changes
            for pattern in patterns
            if match_path_rule(pattern, f"{root}/{change.path}", root)
            or (
                change.kind == "deleted" and change.is_only_folder and pattern.lstrip("/").startswith(change.path + "/")
            )
        }

    def _may_write(self, context: ToolContext, changes: Sequence[OverlayChange]) -> bool:
        """Returns whether rules allow writing every changed file."""
        paths = [os.path.join(self._workspace, change.path) for change in changes if not change.is_only_folder]  # noqa: PTH118
        return bool(paths) and allows_writing(self._rules(context), paths, root=str(self._workspace))

    async def _ask_and_commit(self, context: ToolContext, folder: OutcomeFolder, pending: PendingOutcome) -> ToolResult:
        upper, recorded_upper = folder.upper(context.call_id), folder.upper_recorded(context.call_id)
        run = self._run_in_view(folder, pending)
        while True:
            outcome = await asyncio.to_thread(describe_outcome, pending, upper, recorded_upper, run)
            outcome = mark_unsaved(outcome, await self._unsaved_files(context, folder, pending.changes))
            answer = await self._ask(context, outcome, changes_question(outcome))
            if not answer.allowed:
                await asyncio.to_thread(folder.remove, context.call_id)
                raise dropped_failure(pending, answer)
            selected = await asyncio.to_thread(CommitSelection.choose, pending, folder, answer.keep)
            if selected.conflicts <= {file.path for file in outcome.files if file.conflict}:
                # A conflict that the question showed is the user's choice: these files stay as they are.
                return await self._commit(context, folder, pending, selected.paths, selected.recorded)

    async def _commit(
        self,
        context: ToolContext,
        folder: OutcomeFolder,
        pending: PendingOutcome,
        keep: Sequence[str],
        keep_recorded: Sequence[str] = (),
    ) -> ToolResult:
        pending = msgspec.structs.replace(
            pending, committing=True, keep=tuple(keep), keep_recorded=tuple(keep_recorded)
        )
        await asyncio.to_thread(folder.save, pending)
        await context.wait_for_answer(has_run=True)  # after a crash from here on, the commit is repeated
        try:
            result = await self._commit_with_undo(context, folder, pending)
        except OSError as error:
            await asyncio.to_thread(folder.remove, context.call_id)
            raise ToolFailure(
                f"its changes could not be written to the workspace: {error.strerror or error}"
            ) from error
        await asyncio.to_thread(folder.forget_cached, result.committed)
        await asyncio.to_thread(folder.remove, context.call_id)
        return settled_result(pending, describe_commit(result, pending))

    async def _commit_with_undo(
        self, context: ToolContext, folder: OutcomeFolder, pending: PendingOutcome
    ) -> CommitResult:
        selected = await asyncio.to_thread(
            CommitSelection.choose_paths, pending, folder, pending.keep, pending.keep_recorded
        )
        selected_paths = set(selected.paths)
        changes = [change for change in pending.changes if change.path in selected_paths]
        unsaved = await self._unsaved_files(context, folder, changes)
        changes = [change for change in changes if not affects_any(change, unsaved)]
        paths = [change.path for change in changes if not change.is_only_folder]

        async def write() -> CommitResult:
            async with self._record_paths(context, self._workspace, paths):
                result = await asyncio.to_thread(
                    commit_outcome, self._workspace, folder.upper(context.call_id), changes
                )
                further = await asyncio.to_thread(commit_recorded, pending, folder, selected)
            conflicts = tuple(sorted({*result.conflicts, *further, *selected.conflicts}))
            return CommitResult(result.committed, conflicts, unsaved)

        async with self._hold_lock(context):
            return await wait_to_end(write())

    async def _unsaved_files(
        self, context: ToolContext, folder: OutcomeFolder, changes: Sequence[OverlayChange]
    ) -> tuple[str, ...]:
        """Returns the changed files that have unsaved text in the user's editor. Drops the outcome and raises
        ToolFailure if the editor does not respond."""
        paths = (path for change in changes for path in files_of(self._workspace, change))
        try:
            return tuple(await asyncio.to_thread(self._find_unsaved, paths))
        except ToolFailure as failure:
            await asyncio.to_thread(folder.remove, context.call_id)
            raise ToolFailure(f"{failure.message}, so the changes of this command were discarded") from failure

    def _open_folder(self, session_id: str) -> OutcomeFolder:
        return OutcomeFolder(overlay_storage(self._data, self._workspace), session_id, self._workspace)

    def _overlay_policy(self, folder: OutcomeFolder, folders: OverlayFolders) -> SandboxPolicy:
        """Returns the policy for an overlay. Protected files are not mounted read-only in it: their changes are part of
        the outcome, and the user is asked about them at every level."""
        policy = self._policy(writable=False)
        return msgspec.structs.replace(policy, overlay=folders, temporary=folder.temporary, read_only=())

    def _overlay_repository(
        self, folder: OutcomeFolder, call_id: str
    ) -> tuple[OutsideRepository | None, tuple[OverlayMount, ...]]:
        """Returns the git folder of the workspace if it is outside the workspace, with an overlay in which git can
        record work."""
        repository = self._find_repository()
        if repository is None:
            return None, ()
        return repository, (OverlayMount(folder=Path(repository.folder), overlay=folder.prepare_recorded(call_id)),)

    def _run_in_view(self, folder: OutcomeFolder, pending: PendingOutcome) -> RunInView:
        """Returns a function that runs git over a read-only view of the changes of a command."""
        outside = ()
        if pending.repository is not None and pending.recorded:
            upper = folder.upper_recorded(pending.call_id)
            outside = (OverlayMount(folder=Path(pending.repository.folder), layers=(upper,)),)
        layers = (*folder.layers(), folder.upper(pending.call_id))
        policy = msgspec.structs.replace(self._policy(writable=False), layers=layers, outside=outside)
        return partial(GitRunner(self._sandbox).run_in_view, policy)

    def _read_only_policy(self, folder: OutcomeFolder) -> SandboxPolicy:
        if not folder.temporary.is_dir():
            return self._policy(writable=False)
        layers = folder.layers() if self._sandbox.overlays else ()
        return msgspec.structs.replace(self._policy(writable=False), temporary=folder.temporary, layers=layers)

    def _wrapper(self, policy: SandboxPolicy) -> LaunchWrapper:
        def wrap(launch: LaunchRequest) -> LaunchRequest:
            # The changes in an overlay are settled when the command ends, as part of its call.
            wrapped = self._sandbox.wrap(launch, policy)
            return msgspec.structs.replace(wrapped, foreground_only=policy.overlay is not None)

        return wrap

    def _hold_lock(self, context: ToolContext) -> AbstractAsyncContextManager[None]:
        return self._lock.hold(lambda note: context.report(Progress(note)))


def _read_changes(workspace: Path, folders: OverlayFolders) -> list[OverlayChange]:
    try:
        return read_changes(workspace, folders)
    except OSError as error:
        raise ToolFailure(f"what it changed was discarded, because {error.strerror or error}") from error


def _format_with_leftovers(format_result: FormatResult, result: CommandResult) -> ToolResult:
    """Returns the result with a note about processes that the command left running, which were ended with it."""
    names = ", ".join(result.left_running)
    return with_note(format_result(result), f"it left processes running, which were ended: {names}" if names else "")


def _format_or_failure(format_result: FormatResult, result: CommandResult) -> tuple[ToolResult, FailureReason | None]:
    """Returns the result of a command, and the failure reason if its call ends in an error after its outcome is
    settled."""
    try:
        return format_result(result), None
    except ToolFailure as failure:
        return ToolResult(str(failure)), failure.reason


def _read_recorded(outside: Sequence[OverlayMount]) -> tuple[OverlayChange, ...]:
    """Returns what a command changed in folders outside the workspace."""
    change_lists = (_read_changes(mount.folder, mount.overlay) for mount in outside if mount.overlay is not None)
    return tuple(change for changes in change_lists for change in changes)


def _report_network(context: ToolContext, plan: CommandPlan, hosts: Sequence[str]) -> None:
    """Labels the output of a command that has a network, because it may contain third-party text."""
    if plan.prints_remote:
        context.report(Progress(origins=tuple(make_origin("web", host) for host in hosts or [NETWORK])))


def _network_accesses(hosts: Iterable[str]) -> tuple[BlockedAccess, ...]:
    return tuple(BlockedAccess("network", host) for host in hosts)


def _flow_to(flow: DataFlow | None, blocked: Sequence[BlockedAccess]) -> DataFlow | None:
    """Returns the data flow of a blocked command with the hosts that it tried to reach; None if there are none."""
    hosts = [access.target for access in blocked if access.kind == "network"]
    if flow is None or not hosts:
        return None
    return msgspec.structs.replace(flow, destination=", ".join(filter(None, hosts)) or NETWORK)
