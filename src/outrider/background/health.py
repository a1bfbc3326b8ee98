"""Health and metrics of a worker."""

from collections import Counter
from time import monotonic


class WorkerMetrics:
    """Counters of one worker process."""

    def __init__(self) -> None:
        self.ended_runs = Counter[str]()
        self.run_seconds = 0.0
        self.failed_tasks = 0
        self.last_heartbeat = monotonic()

    def record_run(self, state: str, seconds: float) -> None:
        """Counts an execution that ended with the given state of its run."""
        self.ended_runs[state] += 1
        self.run_seconds += seconds
