"""`outrider jobs --attach`: background runs and schedules of a server, with the interface of `JobClient`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from outrider.background.records import Run, RunFilter
from outrider.background.reports import JobReport
from outrider.background.schedules import Schedule
from outrider.background.worktrees import WorktreeChanges
from outrider.engine.archive import Approval
from outrider.engine.session_trace import stored_trace
from outrider.errors import ConfigurationError
from outrider.project.sandbox import RunWorktree
from outrider.remote.engine import RemoteArchive, RemoteEngine

if TYPE_CHECKING:
    from outrider.background.jobs import JobOptions, QueuePlacement

_MAX_RUNS = 500  # that a server lists in one answer
_USUAL_SCHEDULE = {"mode": "background", "queue": "runs"}


class _RunDetails(msgspec.Struct, frozen=True, kw_only=True):
    run: Run
    approvals: tuple[Approval, ...] = ()
    diff: str = ""
    stat: str = ""
    worktree: str = ""
    branch: str = ""


class _ListedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    cron: str
    timezone: str
    prompt: str
    due: int
    paused: bool = False
    workspace: str = ""

    def to_schedule(self) -> Schedule:
        order = {"workspace": self.workspace}
        return Schedule(
            id=self.id,
            cron=self.cron,
            timezone=self.timezone,
            prompt=self.prompt,
            due=self.due,
            paused=self.paused,
            order=order,
        )


class RemoteJobs:
    """The runs of a server. It starts its workers itself, so no run waits for one of this machine."""

    is_shared = True

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine
        self._client = engine.client

    async def find_runs(self, selection: RunFilter, *, limit: int | None = None) -> Sequence[Run]:
        listed = await self._client.get("/api/jobs", list[Run], limit=_MAX_RUNS)
        return [run for run in listed if selection.matches(run)][:limit]

    async def find_run_ids(self, ending: str) -> Sequence[str]:
        return [run.id for run in await self.find_runs(RunFilter()) if run.id.endswith(ending)]

    async def get_run(self, run_id: str) -> Run:
        return (await self._details(run_id)).run

    async def get_report(self, run_id: str) -> JobReport | None:
        details = await self._details(run_id)
        if details.run.outcome is None or not details.run.is_over:
            return None
        changes = WorktreeChanges(diff=details.diff, stat=details.stat) if details.worktree else None
        return JobReport(outcome=details.run.outcome, changes=changes)

    async def get_worktree(self, run_id: str) -> RunWorktree | None:
        details = await self._details(run_id)
        if not details.worktree:
            return None
        return RunWorktree(
            path=details.worktree, branch=details.branch, base="", repository="", workspace="", common="", own=""
        )

    async def get_snapshot(self, run_id: str) -> None:
        """Returns None: the server does not report what it has stored for other machines."""

    async def load_trace(self, run_id: str) -> Any:
        return await stored_trace(RemoteArchive(self._client), run_id)

    async def open_approvals(self, run_id: str) -> Sequence[Approval]:
        return (await self._details(run_id)).approvals

    async def answer_approval(self, approval_id: str, *, by: str, **answer: Any) -> Approval:
        return await self._engine.answer(approval_id, by=by, **answer)

    async def cancel_run(self, run_id: str) -> Run:
        return await self._client.post(f"/api/jobs/{run_id}/cancel", None, Run)

    async def retry_run(self, run_id: str) -> Run:
        return await self._client.post(f"/api/jobs/{run_id}/retry", None, Run)

    async def submit_run(self, prompt: str, **order: Unpack["JobOptions"]) -> Run:
        return await self._client.post("/api/jobs", {"prompt": prompt, **_order_fields(order)}, Run)

    async def add_schedule(
        self, cron: str, prompt: str, *, timezone: str = "", **order: Unpack["JobOptions"]
    ) -> Schedule:
        fields = _order_fields(order)
        new = {"cron": cron, "prompt": prompt, "timezone": timezone}
        new |= {name: fields[name] for name in ("agent", "priority", "worktree", "approval") if name in fields}
        # An older server rejects these fields.
        new |= {name: fields[name] for name, usual in _USUAL_SCHEDULE.items() if fields[name] != usual}
        return (await self._client.post("/api/schedules", new, _ListedSchedule)).to_schedule()

    async def list_schedules(self) -> Sequence[Schedule]:
        listed = await self._client.get("/api/schedules", list[_ListedSchedule])
        return [schedule.to_schedule() for schedule in listed]

    async def pause_schedule(self, schedule_id: str) -> Schedule:
        return (await self._client.post(f"/api/schedules/{schedule_id}/pause", None, _ListedSchedule)).to_schedule()

    async def resume_schedule(self, schedule_id: str) -> Schedule:
        return (await self._client.post(f"/api/schedules/{schedule_id}/resume", None, _ListedSchedule)).to_schedule()

    async def remove_schedule(self, schedule_id: str) -> None:
        await self._client.send_request("DELETE", f"/api/schedules/{schedule_id}")

    async def needs_cleanup(self, run_id: str) -> bool:
        return not run_id  # the server cleans up

    async def list_paused_providers(self) -> dict[str, int]:
        return {}

    async def unattended_runs(self, runs: Sequence[Run]) -> Sequence[Run]:
        return runs[:0]

    async def _details(self, run_id: str) -> _RunDetails:
        return await self._client.get(f"/api/jobs/{run_id}", _RunDetails)


def _order_fields(order: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a run as fields of the server's API. Raises ConfigurationError for options that can only
    be chosen on the server's machine."""
    placement: QueuePlacement = order["place"]
    terms = order["terms"]
    if placement.after_run or order["webhook"] or terms.model or terms.effort or terms.allow or terms.ask or terms.deny:
        raise ConfigurationError(
            "with --attach, a run has the model, rules and webhooks of the server; omit --model, --effort, --allow, "
            "--ask, --deny, --webhook and --after RUN"
        )
    fields = {"agent": order["agent"], "mode": order["mode"], "worktree": order["worktree"], "queue": placement.queue}
    if "approval" in order:  # an older server rejects the field
        fields["approval"] = order["approval"]
    return fields | {"user": placement.user, "priority": placement.priority, "after": placement.after}
