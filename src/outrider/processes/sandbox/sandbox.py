"""The contract of a sandbox: it turns a launch into one that the operating system confines."""

from typing import Protocol

from outrider.processes.launch import Launch
from outrider.processes.sandbox.policy import Policy


class Sandbox(Protocol):
    """`gaps` says in plain words what this sandbox cannot hold back; `confines` is False for none at all."""

    @property
    def name(self) -> str: ...

    @property
    def confines(self) -> bool: ...

    @property
    def gaps(self) -> tuple[str, ...]: ...

    def wrap(self, launch: Launch, policy: Policy) -> Launch:
        """Raises ConfigurationError for a policy that this sandbox cannot keep."""
        ...
