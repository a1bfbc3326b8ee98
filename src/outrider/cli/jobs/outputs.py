"""What running calls write, line by line: a store keeps the end of it, and keeps that anew while it grows."""

from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolCompleted, ToolRunning

GAP = "…\n"
_TAIL = 200  # characters by which the end of what was shown is found again


class RunningOutputs:
    """Of each call what was shown of it, and the line that has no end yet."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._begun: dict[str, str] = {}

    def lines(self, call: ToolPart) -> list[str]:
        """The lines that were finished since it was looked at last; once the call has ended, the rest of them."""
        begun, shown = self._begun.get(call.id, ""), self._shown.get(call.id, "")
        match call.state:
            case ToolRunning(metadata={"output": str(written)}):
                *whole, self._begun[call.id] = (begun + news(shown, written)).split("\n")
                self._shown[call.id] = written
                return whole
            case ToolCompleted(output=output) if shown:
                rest = begun + _after(shown, output)
            case _:
                rest = begun
        return rest.strip("\n").split("\n") if rest.strip() else []

    def has_shown(self, call: ToolPart) -> bool:
        return bool(self._shown.get(call.id))


def news(before: str, now: str) -> str:
    """What `now` has that `before` had not: both are ends of one text, and the later one may begin later."""
    at = next((at for at in range(len(before)) if now.startswith(before[at:])), len(before))
    lost = GAP if before and at == len(before) else ""
    return lost + now[len(before) - at :]


def _after(shown: str, output: str) -> str:
    """A result may say more than the call wrote, and less if that was long: what cannot be found is left out."""
    tail = shown.rstrip()[-_TAIL:]
    return output.rpartition(tail)[2] if tail and tail in output else ""
