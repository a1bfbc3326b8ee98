"""What a turn uses: how full the context is after each answer, and the tokens of all that worked in it."""

from acp.schema import Cost, Usage, UsageUpdate

from outrider.app.engine import Engine
from outrider.app.views.models import context_limit
from outrider.types.events import LLMResponseEvent
from outrider.types.parts import ModelRef
from outrider.types.usage import Tokens


class Spending:
    """Of one session, with the agents that it called."""

    def __init__(self, session_id: str, engine: Engine) -> None:
        self._session_id = session_id
        self._engine = engine
        self._turn = Tokens()

    def begin(self) -> None:
        self._turn = Tokens()

    def hear(self, answer: LLMResponseEvent) -> UsageUpdate | None:
        """Only the session's own answers fill its context; where nobody knows how much that holds, nothing is said."""
        self._turn += answer.tokens
        size = self._size()
        if answer.session_id != self._session_id or size is None:
            return None
        used = answer.tokens.prompt + answer.tokens.output
        return UsageUpdate(session_update="usage_update", used=used, size=size, cost=self._cost())

    def turn(self) -> Usage | None:
        tokens = self._turn
        if not tokens.total:
            return None
        return Usage(
            total_tokens=tokens.total,
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            thought_tokens=tokens.reasoning,
            cached_read_tokens=tokens.cache.read,
            cached_write_tokens=tokens.cache.write,
        )

    def _size(self) -> int | None:
        agent = self._engine.live[self._session_id].agent
        return context_limit(self._engine.staff.plan.providers.values(), ModelRef(agent.provider, agent.model))

    def _cost(self) -> Cost | None:
        cost = self._engine.live[self._session_id].journal.session.usage.total_cost
        return None if cost is None else Cost(amount=float(cost), currency="USD")
