"""Values that describe a run: the submitted job, its state and its outcome."""

from decimal import Decimal
from typing import Any, Literal

import msgspec

from outrider.agents.turn_state import TerminationReason
from outrider.errors import ConfigurationError
from outrider.types.agents import Limits
from outrider.types.parts import Tokens
from outrider.types.validate import ArgumentsMeta

RunState = Literal["delayed", "queued", "running", "waiting", "done", "failed", "canceled"]
EndReason = TerminationReason | Literal["waiting"]
FINAL_STATES: tuple[RunState, ...] = ("done", "failed", "canceled")


RUN_QUEUE_NAME = "runs"  # the DBOS queue of runs that no worker has; no worker listens to it


class QueuePlacement(msgspec.Struct, frozen=True, kw_only=True, metaclass=ArgumentsMeta):
    """When a run may start.

    - `queue`: the queue of the run; the users of a queue take turns.
    - `user`: whose run it is.
    - `priority`: among the runs of one user, a smaller one starts first.
    - `after`: seconds that must pass before the run starts.
    - `after_run`: the id of a run that must be over before this one starts.
    """

    queue: str = RUN_QUEUE_NAME
    user: str = ""
    priority: int = 100
    after: float = 0
    after_run: str = ""

    def __post_init__(self) -> None:
        _check_types(self, queue=str, user=str, priority=int, after=int | float, after_run=str)


class JobOverrides(msgspec.Struct, frozen=True, kw_only=True, metaclass=ArgumentsMeta):
    """Values from the command line that take precedence over the worker's settings.

    - `model`: PROVIDER/MODEL.
    - `effort`: the reasoning effort.
    - `allow`, `ask`, `deny`: permission rules.
    """

    model: str = ""
    effort: str = ""
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_types(self, model=str, effort=str, allow=list | tuple, ask=list | tuple, deny=list | tuple)


def _check_types(value: msgspec.Struct, **expected: Any) -> None:
    """Raises ConfigurationError for a field of the wrong type, which a worker would find only when it reads the job."""
    for name, kind in expected.items():
        if not isinstance(field_value := getattr(value, name), kind) or isinstance(field_value, bool):
            type_name = getattr(kind, "__name__", None) or str(kind)
            raise ConfigurationError(
                f"{type(value).__name__}({name}={field_value!r}): it is a value of the type {type_name}"
            )


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The submitted job, stored as the workflow's input.

    - `prompt`: the input of the run.
    - `queue`: the queue of the run.
    - `user`: whose run it is.
    - `limits`: apply to the whole run, however many workers execute it.
    - `worktree`: whether a run in a git repository works in its own checkout, or in the folder that it was submitted
      for.
    - `webhook`: a URL that receives a POST when the run ends.
    - `terms`: the model and the rules that replace the worker's settings.
    - `output_schema`: the JSON schema of the answer; without it the answer is text.
    """

    prompt: str
    queue: str
    user: str = ""
    limits: Limits | None = None
    worktree: bool = True
    webhook: str = ""
    terms: JobOverrides = JobOverrides()
    output_schema: dict[str, Any] | None = None


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker stores when it releases a run: because the run has ended, waits for an approval, or is retried
    later.

    - `reason`: why the worker released the run.
    - `output`: the answer so far.
    - `error`: the message of the error that ended the run.
    - `steps`: the number of model answers.
    - `tokens`: the tokens that were used.
    - `cost`: in US dollars; None if a price is unknown.
    - `seconds`: the time in which models and tools worked.
    - `retry_at`: when the run starts again after an error of its provider, in Unix milliseconds.
    - `provider`: the provider that failed.
    """

    reason: EndReason
    output: str = ""
    error: str = ""
    steps: int = 0
    tokens: Tokens = Tokens()
    cost: Decimal | None = None
    seconds: float = 0.0
    retry_at: int | None = None
    provider: str = ""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run and its state. Times are Unix milliseconds.

    - `id`: the id of the run and of its session.
    - `state`: delayed, queued, running, waiting (for an approval), done, failed or canceled.
    - `prompt`: the input of the run.
    - `queue`, `user`, `priority`: the position in the queue, as submitted.
    - `worker`: the id of the worker that has the run, or had it last.
    - `attempts`: how often a worker started the run.
    - `created`: when the run was submitted.
    - `ended`: when its last execution ended.
    - `begins`: when a delayed run starts.
    - `after_run`: the run that must be over before a delayed run starts.
    - `outcome`: the outcome of the last execution.
    - `waiting_for`: what an active run cannot continue without: "database", or "provider NAME".
    """

    id: str
    state: RunState
    prompt: str
    queue: str
    user: str = ""
    priority: int = 0
    worker: str = ""
    attempts: int = 0
    created: int | None = None
    ended: int | None = None
    begins: int | None = None
    after_run: str = ""
    outcome: RunOutcome | None = None
    waiting_for: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the run is done, failed or canceled."""
        return self.state in FINAL_STATES


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects runs. `since` is a time in Unix milliseconds: a run that is over matches if it ended later, another one
    if it was submitted later. An empty value matches all runs."""

    states: tuple[str, ...] = ()
    since: int = 0
    queue: str = ""
    user: str = ""

    def matches(self, run: Run) -> bool:
        """Returns whether the filter selects the run."""
        return (
            (not self.states or run.state in self.states)
            and ((run.ended if run.is_over else None) or run.created or 0) >= self.since
            and self.queue in ("", run.queue)
            and self.user in ("", run.user)
        )


_END_TEXTS: dict[EndReason, str] = {
    "limit": "a limit of the run was reached",
    "repetition": "the model repeated the same call without progress",
    "empty_answers": "the model sent empty answers only",
    "refusal": "the model refused to answer",
    "length": "the answer was longer than the model may write",
    "aborted": "the run was canceled",
}
NO_REASON = "the run ended without a stored reason; the log of its worker may have more"


def describe_failure(outcome: RunOutcome | None) -> str:
    """Returns why a run failed; never an empty string."""
    if outcome is None:
        return NO_REASON
    return outcome.error or _END_TEXTS.get(outcome.reason, NO_REASON)


def derive_run_state(status: str, outcome: RunOutcome | None) -> RunState:
    """Returns the state of a run from its DBOS workflow status and the outcome that its worker stored."""
    match status:
        case "DELAYED":
            return "delayed"
        case "ENQUEUED":
            return "queued"
        case "PENDING":
            return "running"
        case "CANCELLED":
            return "canceled"
        case "SUCCESS" if outcome is not None and outcome.retry_at is not None:
            return "delayed"
        case "SUCCESS" if outcome is not None:
            return _state_after_end(outcome.reason)
        case _:
            return "failed"


def _state_after_end(reason: EndReason) -> RunState:
    match reason:
        case "waiting":
            return "waiting"
        case "completed":
            return "done"
        case "aborted":
            return "canceled"
        case "limit" | "repetition" | "empty_answers" | "refusal" | "length" | "error":
            return "failed"
