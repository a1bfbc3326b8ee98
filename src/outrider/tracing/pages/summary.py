"""Adds up where time, tokens and money went: by agent, by model, by tool."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal

from outrider.tracing.span import Span
from outrider.types.usage import Tokens


@dataclass(slots=True)
class Share:
    """`time` adds up every span of that name, so calls that ran side by side count for each."""

    name: str
    calls: int = 0
    failed: int = 0
    time: int = 0
    longest: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    known_cost: Decimal = Decimal(0)
    answers: int = 0
    unpriced: int = 0

    def add_time(self, span: Span, time: int) -> None:
        self.calls += 1
        self.failed += span.status == "failed"
        self.time += time
        self.longest = max(self.longest, span.duration)

    def add_usage(self, span: Span) -> None:
        self.tokens += span.tokens
        self.known_cost += span.known_cost
        self.answers += span.answers
        self.unpriced += span.unpriced


@dataclass(frozen=True, slots=True)
class Summary:
    agents: list[Share]
    models: list[Share]
    tools: list[Share]


def summarise(spans: Iterable[Span]) -> Summary:
    """Agents count what they did themselves, without the agents that they called; else work would count twice."""
    agents: dict[str, Share] = {}
    models: dict[str, Share] = {}
    tools: dict[str, Share] = {}
    for span in spans:
        match span.kind:
            case "agent":
                _share(agents, span.name).add_time(span, span.time_outside(span.agent_calls))
            case "model":
                _share(models, span.name).add_time(span, span.duration)
                _share(models, span.name).add_usage(span)
                _share(agents, span.agent_name or "agent").add_usage(span)
            case "tool":
                _share(tools, span.name).add_time(span, span.duration)
            case "run":
                pass
    return Summary(*(sorted(shares.values(), key=_by_time) for shares in (agents, models, tools)))


def _share(shares: dict[str, Share], name: str) -> Share:
    return shares.setdefault(name, Share(name))


def _by_time(share: Share) -> tuple[int, str]:
    return -share.time, share.name
