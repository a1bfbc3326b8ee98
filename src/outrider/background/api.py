"""The public Python API for background runs: `Background`, which gives an engine `submit`, and `RunHandle`."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, Generic, Never, Self, Unpack, cast, overload

from outrider.agents.output_type import OutputType, as_output_type
from outrider.engine.engine import Engine
from outrider.engine.results import Out
from outrider.engine.runtime import check_arguments
from outrider.errors import ConfigurationError, OutputMismatch, OutputUnavailableError
from outrider.types.validate import check_mode, check_names

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from outrider.background.follow import ChildChange
    from outrider.background.jobs import JobClient, JobOptions
    from outrider.background.records import Run
    from outrider.background.reports import JobReport
    from outrider.sessions.records import Change


class RunHandle(Generic[Out]):
    """A handle to one run in any process. `Background.run(id)` returns a new handle for the same `id`."""

    def __init__(self, run_id: str, jobs: "JobClient", output_type: OutputType | None = None) -> None:
        self.id = run_id
        self._job_client = jobs
        self._output_type = output_type

    async def show(self) -> "Run":
        """Returns the current state of the run."""
        return await self._job_client.get_run(self.id)

    async def result(self) -> "JobReport":
        """Waits until the run ends and returns its report: `summary`, `outcome` (end reason, tokens, cost) and
        `changes` (a diff). It also waits while the run itself waits for an approval."""
        async with aclosing(self.events()) as news:
            async for _ in news:
                pass
        return await self._job_client.get_report(self.id) or _report_without_worker(await self.show())

    async def output(self) -> Out:
        """Waits until the run ends and returns its answer: a value of the `output_type`, else the text so far. Raises
        OutputUnavailableError if the run failed or ended without an answer."""
        report = await self.result()
        outcome, problem, expected = report.outcome, report.outcome.error, "an answer"
        if self._output_type is not None:
            expected = f"a value of {self._output_type.name}"
            if outcome.reason == "completed":
                try:
                    return self._output_type.parse_answer(outcome.output)
                except OutputMismatch as error:
                    problem = error.message
        elif outcome.reason == "completed" or (outcome.output and outcome.reason != "error"):
            return cast("Out", outcome.output)
        raise OutputUnavailableError(
            f"run {self.id} ended with the reason {outcome.reason!r} before there was {expected}"
            f"{f': {problem}' if problem else ''}",
            reason=outcome.reason,
            result=report,
        )

    def events(self, *, after: int = 0, called: bool = False) -> "AsyncGenerator[Change | ChildChange | Run, None]":
        """Streams the `Run` object whenever its state changes, and every session change with a sequence number above
        `after`. With `called`, the stream includes changes of child sessions, which called agents open."""
        from outrider.background.follow import follow_run

        return follow_run(self._job_client, self.id, after=after, called=called)

    async def cancel(self) -> None:
        """Cancels the run; everything that is stored stays stored."""
        await self._job_client.cancel_run(self.id)


def _report_without_worker(run: "Run") -> "JobReport":
    """Returns a report for a run that ended before a worker started it, or that no worker could finish."""
    from outrider.background.records import RunOutcome
    from outrider.background.reports import JobReport

    if run.outcome is None:
        return JobReport(outcome=RunOutcome(reason="aborted" if run.state == "canceled" else "error"))
    return JobReport(outcome=run.outcome)


class Background:
    """Stores runs for an engine, and executes them while it is open:

    async with Engine(agents, providers, store=store) as engine, Background(engine, "sqlite:////data/runs.sqlite"):
    handle = await engine.submit("look for dead links", workspace="/home/me/site") print((await
    handle.result()).summary)

    Runs that are not finished when it closes continue when a `Background` with the same database opens again, also on
    another machine. This requires a persistent `store` and a `database` URL that both processes share. With
    `works=False` it only submits and reads runs, and workers in other processes execute them.
    """

    def __init__(self, engine: Engine, database: str, *, works: bool = True, **unknown: Never) -> None:
        check_names("Background()", unknown, ("works",))
        if not isinstance(engine, Engine):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"Background() takes an Engine, got {type(engine).__name__}")
        self._engine = engine
        self._url = database
        self._runs_worker = works
        self._exit_stack = AsyncExitStack()
        self._client: JobClient | None = None

    async def __aenter__(self) -> Self:
        _require_extra()
        from outrider.background.database import RunDatabase
        from outrider.background.jobs import open_job_client
        from outrider.background.worker import Worker

        async with AsyncExitStack() as opening:
            database = RunDatabase(self._url)
            opening.callback(database.close)
            self._client = await opening.enter_async_context(open_job_client(database, self._engine.store))
            if self._runs_worker:
                await opening.enter_async_context(Worker(self._engine, database))
            self._engine.background = self
            self._exit_stack = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._engine.background = self._client = None
        await self._exit_stack.aclose()

    @property
    def jobs(self) -> "JobClient":
        """The client of the queue, while it is open."""
        if self._client is None:
            raise ConfigurationError("this Background is not open; use it inside `async with Background(engine, …):`")
        return self._client

    @overload
    async def submit(
        self, prompt: str, *, output_type: None = None, **order: "Unpack[JobOptions]"
    ) -> RunHandle[str]: ...
    @overload
    async def submit(
        self, prompt: str, *, output_type: "TypeForm[Out]", **order: "Unpack[JobOptions]"
    ) -> RunHandle[Out]: ...
    @overload
    async def submit(
        self, prompt: str, *, output_type: dict[str, Any], **order: "Unpack[JobOptions]"
    ) -> RunHandle[Any]: ...
    async def submit(self, prompt: str, *, output_type: Any = None, **order: "Unpack[JobOptions]") -> RunHandle[Any]:
        """Stores a run and returns its handle.

        - `output_type`: the type of the answer. Its schema is stored with the run, and `handle.output()` returns a
          value of it.
        - `workspace`: the folder to work in.
        - `agent`: the name of the agent that starts.
        - `mode`: the mode of its session.
        - `limits`: apply to the whole run.
        - `place`: a `QueuePlacement` with its position in the queue.
        - `run_id`: a UUID; the same one submits a run only once.
        - `worktree`: whether it works in its own checkout of the workspace's repository.
        - `webhook`: a URL that receives a POST when the run ends.
        - `terms`: a `JobOverrides` with its model and rules.
        - `owner`: the owner of its session, by default the user of the place.
        - `metadata`: the metadata of its session.
        - `approval`: which calls need an approval in agent mode.
        """
        check_order(prompt, order)
        output = as_output_type(output_type)
        if output is not None and output.schema is not None:
            order["output_schema"] = output.schema.schema
        return RunHandle((await self.jobs.submit_run(prompt, **order)).id, self.jobs, output)

    @overload
    def run(self, run_id: str, output_type: None = None) -> RunHandle[str]: ...
    @overload
    def run(self, run_id: str, output_type: "TypeForm[Out]") -> RunHandle[Out]: ...
    @overload
    def run(self, run_id: str, output_type: dict[str, Any]) -> RunHandle[Any]: ...
    def run(self, run_id: str, output_type: Any = None) -> RunHandle[Any]:
        """Returns the handle of a run that was submitted before."""
        return RunHandle(run_id, self.jobs, as_output_type(output_type))


def _require_extra() -> None:
    """Raises ConfigurationError if the extra with the queue is not installed."""
    from importlib.util import find_spec

    missing = next((name for name in ("dbos", "sqlalchemy") if find_spec(name) is None), None)
    if missing is not None:
        raise ConfigurationError(
            f"Background needs the extra `background` ({missing} is missing): pip install 'outrider[background]'"
        )


def check_order(prompt: object, order: "JobOptions") -> None:
    """Raises ConfigurationError for an argument of `submit` that does not exist or has a wrong type."""
    _require_extra()
    from outrider.background.jobs import JobOptions
    from outrider.background.records import JobOverrides, QueuePlacement

    check_names(
        "submit()", order, ("output_type", *(name for name in JobOptions.__annotations__ if name != "output_schema"))
    )
    check_arguments("submit()", {**order, "message": prompt})
    check_mode(order.get("mode"), "submit()")
    if prompt is None or prompt == "":
        raise ConfigurationError("submit(): the prompt is empty; pass a string")
    for name, expected_type in (("place", QueuePlacement), ("terms", JobOverrides)):
        if not isinstance(value := order.get(name, expected_type()), expected_type):
            raise ConfigurationError(f"submit(): {name} is a {expected_type.__name__}(…), got {type(value).__name__}")
    webhook: Any = order.get("webhook", "")
    if webhook and (not isinstance(webhook, str) or not webhook.startswith(("http://", "https://"))):
        raise ConfigurationError(f"submit(): webhook is an http(s) URL, got {webhook!r}")
