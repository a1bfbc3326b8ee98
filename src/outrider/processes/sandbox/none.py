"""No sandbox: commands run with all the rights of the user, and whoever asks is told why and what would help."""

import msgspec

from outrider.processes.launch import Launch
from outrider.processes.sandbox.policy import Policy


class NoSandbox(msgspec.Struct, frozen=True):
    """Modes in which nobody is asked must not run commands here."""

    reason: str
    remedy: str
    name: str = "none"
    confines: bool = False

    @property
    def gaps(self) -> tuple[str, ...]:
        return (f"nothing confines commands: {self.reason}. {self.remedy}",)

    def wrap(self, launch: Launch, policy: Policy) -> Launch:
        return launch
