"""Which runs are begun next: a pure choice, so that fairness can be judged by its order."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import msgspec

Share = tuple[str, str]
"""A queue and one of its users: what is fair is said between these."""
Group = tuple[str, str]
"""("queue", its name) or ("provider", its name): what may have a bound."""


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """A run in line. A smaller `priority` comes first among the runs of one user; `number` is its place in time."""

    id: str
    queue: str
    user: str
    provider: str
    priority: int
    number: int

    @property
    def share(self) -> Share:
        return self.queue, self.user

    @property
    def groups(self) -> tuple[Group, Group]:
        return ("queue", self.queue), ("provider", self.provider)


class Standing(msgspec.Struct, kw_only=True):
    """How things stand before a choice: `room` for more runs in groups that have a bound, how many runs of each share
    are `running`, and in which order shares were `served` last (the larger, the later)."""

    room: dict[Group, int] = {}
    running: Counter[Share] = msgspec.field(default_factory=Counter)
    served: dict[Share, int] = {}


def choose(tickets: Sequence[Ticket], places: int, standing: Standing) -> list[Ticket]:
    """The next runs, in order. The user who has the fewest running is next; of several the one who waited longest
    for a turn. So everybody's first run comes before anybody's second, however many one has submitted."""
    lines = _lines(tickets)
    room, running = dict(standing.room), Counter(standing.running)
    served = defaultdict(int, standing.served)
    chosen: list[Ticket] = []
    while len(chosen) < places:
        heads = [head for line in lines.values() if (head := _first(line, room)) is not None]
        if not heads:
            break
        ticket = min(heads, key=lambda head: (running[head.share], served[head.share], head.number, head.id))
        lines[ticket.share].remove(ticket)
        running[ticket.share] += 1
        served[ticket.share] = max(served.values(), default=0) + 1
        for group in ticket.groups:
            if group in room:
                room[group] -= 1
        chosen.append(ticket)
    return chosen


def _lines(tickets: Sequence[Ticket]) -> dict[Share, list[Ticket]]:
    lines: dict[Share, list[Ticket]] = {}
    for ticket in sorted(tickets, key=lambda ticket: (ticket.priority, ticket.number, ticket.id)):
        lines.setdefault(ticket.share, []).append(ticket)
    return lines


def _first(line: Sequence[Ticket], room: Mapping[Group, int]) -> Ticket | None:
    """The first one that may begin: behind a run whose provider is busy, another one need not wait."""
    return next((ticket for ticket in line if all(room.get(group, 1) > 0 for group in ticket.groups)), None)
