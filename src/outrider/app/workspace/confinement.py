"""The sandbox of this machine, looked for when the first command needs it: trying one out starts processes."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from outrider.processes.launch import Launch
from outrider.processes.sandbox.policy import Policy
from outrider.processes.sandbox.sandbox import Sandbox


class FoundSandbox:
    """Stands for whatever `find_sandbox` will find on the search path that commands have by then."""

    def __init__(self, scratch: Path, search_path: Callable[[], str]) -> None:
        self._scratch = scratch
        self._search_path = search_path

    @cached_property
    def found(self) -> Sandbox:
        from outrider.processes.sandbox.detect import find_sandbox

        return find_sandbox(self._scratch, self._search_path())

    @property
    def name(self) -> str:
        return self.found.name

    @property
    def confines(self) -> bool:
        return self.found.confines

    @property
    def gaps(self) -> tuple[str, ...]:
        return self.found.gaps

    def wrap(self, launch: Launch, policy: Policy) -> Launch:
        return self.found.wrap(launch, policy)
