"""What an agent may use and do while it works for an agent of another process: its own bounds and theirs together."""

import msgspec

from outrider.agents.limits import Budget
from outrider.app.config.tables import lower_of
from outrider.types.agents import Agent, Limits
from outrider.types.stream import UsageReport
from outrider.types.usage import Usage


class Terms(msgspec.Struct):
    """The limits that are left over there, the rules of everybody who called, and what has been used under them."""

    limits: Limits = Limits()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    budgets: list[Budget] = []

    def bound(self, agent: Agent) -> Agent:
        """The agent, asking for and refusing also what those who called it would."""
        own = agent.permissions
        tighter = {"ask": (*own.get("ask", ()), *self.ask), "deny": (*own.get("deny", ()), *self.deny)}
        return msgspec.structs.replace(agent, permissions={**own, **tighter})

    def budget(self, own: Limits) -> Budget:
        self.budgets.append(Budget(lower_of(own, self.limits)))
        return self.budgets[-1]

    def used(self) -> UsageReport:
        """By the whole tree of agents here, so far."""
        usage, turns = Usage(), 0
        for budget in self.budgets:
            turns += budget.turns
            if budget.usage != Usage():
                usage = usage.plus(budget.usage.tokens, budget.usage.total_cost)
        return UsageReport(usage.tokens, usage.total_cost, max(turns, 1))
