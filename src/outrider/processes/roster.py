"""The processes that a supervisor knows, by id: all that are alive, and the last of those that have ended."""

from collections.abc import Iterator

from outrider.errors import ProcessError
from outrider.processes.supervised import Supervised


class Roster:
    def __init__(self, remembered: int) -> None:
        self._remembered = remembered
        self._known: dict[str, Supervised] = {}

    def __iter__(self) -> Iterator[Supervised]:
        """Oldest first."""
        return iter(list(self._known.values()))

    def find(self, process_id: str) -> Supervised | None:
        return self._known.get(process_id)

    def get(self, process_id: str) -> Supervised:
        found = self.find(process_id)
        if found is None:
            known = ", ".join(self._known) or "none"
            raise ProcessError(f"there is no process {process_id!r}; known are: {known}")
        return found

    def free_id(self, wanted: str) -> str:
        """Calls of different sessions may have one id; a process that is alive keeps its own."""
        name, number = wanted, 1
        while (found := self.find(name)) is not None and found.is_alive:
            number += 1
            name = f"{wanted}-{number}"
        return name

    def add(self, process: Supervised) -> None:
        before = self._known.pop(process.id, None)
        if before is not None:
            before.process.output.close()
        self._known[process.id] = process
        self._forget_oldest()

    def forget(self, process: Supervised) -> None:
        if self._known.get(process.id) is process:
            del self._known[process.id]
        process.process.output.close()

    def forget_all(self) -> None:
        for process in self:
            self.forget(process)

    def _forget_oldest(self) -> None:
        """Of what has ended, only processes in the background can still be asked for."""
        ended = [process for process in self if not process.is_alive]
        kept = [process for process in ended if process.backgrounded][-self._remembered :]
        for process in ended:
            if process not in kept:
                self.forget(process)
