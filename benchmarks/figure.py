"""A measured figure and its target."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """`ratio` compares with a peer measured in the same run; `ok` is None if there is no target."""

    name: str
    value: float
    unit: str
    ratio: float | None = None
    target: str = ""
    ok: bool | None = None

    @property
    def verdict(self) -> str:
        return {True: "reached", False: "MISSED", None: ""}[self.ok]
