"""The gate that calls pass: a tool's own policy, the rules and the mode, and somebody to ask where they say ask."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import msgspec

from outrider.agents.crew import Seat, Verdict
from outrider.app.approvals.desk import Desk
from outrider.app.approvals.grants import Grant
from outrider.app.approvals.refusals import CONFINED, refusal
from outrider.permissions.decision import Decision
from outrider.sessions.records import Approval, fingerprint
from outrider.tools.tool import Policy, Tool
from outrider.types.events import ToolApprovalRequestedEvent, ToolApprovalResultEvent
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolPending

NOBODY_THERE = (
    "This call needs an approval, and nobody is there to give it. It was not run. Go on without it or say so."
)
_STRICTNESS: dict[str, int] = {"allow": 0, "ask": 1, "deny": 2}
_YES, _NO = True, False
NOTHING_GRANTED = Grant()
_log = logging.getLogger("outrider.approvals")


class ApprovalRequest(msgspec.Struct, frozen=True):
    """A question about one exact call: what is shown here is what would run. `offers` are rules that would allow it."""

    tool: str
    input: dict[str, Any]
    call_id: str
    agent: str
    session_id: str
    description: str = ""
    offers: tuple[str, ...] = ()


Approve = Callable[[ApprovalRequest], Any]
"""Plain or async; True or False, or a string: a no with this word to the model."""


class Rules(msgspec.Struct, frozen=True):
    """Rules as flags and configuration give them, for every call of a run or an engine."""

    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class Judge:
    """Decides without asking. One's own function runs unasked unless its policy or a rule says otherwise; built-in
    tools keep the rules of the mode. `sandbox` says whether commands are confined, and is asked only where it counts:
    finding out costs something."""

    def __init__(
        self,
        rules: Rules,
        built_in: Collection[str] = (),
        *,
        sandbox: Callable[[], bool] = lambda: False,
        search_path: str = "",
    ) -> None:
        self._rules = rules
        self._built_in = built_in
        self._sandbox = sandbox
        self._search_path = search_path

    def decide(self, call: ToolPart, tool: Tool, seat: Seat, granted: Grant = NOTHING_GRANTED) -> Decision:
        own = () if tool.name in self._built_in else (tool.name,)
        mode = seat.effective_mode
        if not own and (why := refusal(tool.name, call.state.input, mode, self._sandbox)):
            return Decision("deny", why)
        from outrider.permissions.policy import decide  # with the first call: a shell's grammar takes long to load

        decision = decide(
            tool.name,
            call.state.input,
            mode=mode,
            allow=(*self._rules.allow, *granted.rules, *own, *seat.agent.permissions.get("allow", ())),
            ask=(*self._rules.ask, *seat.ask),
            deny=(*self._rules.deny, *seat.deny),
            workspace=seat.workspace,
            approved=granted.contents,
            search_path=self._search_path,
            sandbox=mode in CONFINED and self._sandbox(),
        )
        policy: Policy = tool.policy_for(call.state.input)
        if _STRICTNESS[policy] <= _STRICTNESS[decision.effect]:
            return decision
        if getattr(tool, "has_changed", False):
            return Decision("ask", f"the tool {tool.name} is not the one that it was when somebody last approved it")
        if policy == "ask" and tool.name in granted.rules:
            return decision
        return Decision(policy, f"the tool {tool.name} says {policy} for this call")


async def _nothing_new() -> None:
    """For gates that nobody else can change the answers of."""


class AskingGate:
    """Where the judge says ask, `ask` finds out; what is asked about is what will run. `renew` looks for answers that
    were taken back elsewhere."""

    def __init__(
        self,
        judge: Judge,
        ask: "Ask",
        granted: Callable[[Seat], Grant] = lambda _: NOTHING_GRANTED,
        admitted: Callable[[ToolPart], None] = lambda _: None,
        renew: Callable[[], Awaitable[None]] = _nothing_new,
    ) -> None:
        self._judge = judge
        self._ask = ask
        self._granted = granted
        self._admitted = admitted
        self._renew = renew

    async def admit(self, call: ToolPart, tool: Tool, seat: Seat) -> Verdict:
        await self._renew()
        verdict = await self._verdict(call, tool, seat)
        if verdict.allowed:
            self._admitted(call)
        return verdict

    def decide(self, call: ToolPart, tool: Tool, seat: Seat) -> Decision:
        """What is said to a call without asking anybody."""
        return self._judge.decide(call, tool, seat, self._granted(seat))

    async def _verdict(self, call: ToolPart, tool: Tool, seat: Seat) -> Verdict:
        decision = self.decide(call, tool, seat)
        match decision.effect:
            case "allow":
                return Verdict(_YES)
            case "deny":
                return Verdict(_NO, "denied", f"This call is not allowed: {decision.reason}. It was not run.")
            case "ask":
                return await self._ask(call, tool, seat, decision)


Ask = Callable[[ToolPart, Tool, Seat, Decision], Any]


def asking_a_function(approve: Approve | None) -> Ask:
    """For runs: a function that the caller gave answers, or nobody does."""

    async def ask(call: ToolPart, tool: Tool, seat: Seat, decision: Decision) -> Verdict:
        if approve is None:
            return Verdict(_NO, "denied", NOBODY_THERE)
        from outrider.permissions.offers import offered_rules

        await _wait_in_transcript(call, seat)
        request = ApprovalRequest(
            call.tool,
            call.state.input,
            call.call_id,
            seat.agent.name,
            seat.session.id,
            decision.reason,
            offered_rules(call.tool, call.state.input, workspace=str(seat.workspace)),
        )
        named = {"call_id": call.call_id, "tool_name": call.tool}
        seat.tell(ToolApprovalRequestedEvent, description=decision.reason, tool_input=call.state.input, **named)
        with seat.states.awaiting_approval():
            answer = await answer_of(approve, request)
        seat.tell(ToolApprovalResultEvent, approved=answer is True, **named)
        return _verdict(allowed=answer is True, words=answer if isinstance(answer, str) else "")

    return ask


def asking_at(desk: Desk) -> Ask:
    """For engines: a durable question that any front end may answer, now or later."""

    async def ask(call: ToolPart, tool: Tool, seat: Seat, decision: Decision) -> Verdict:
        if not desk.attended():
            return Verdict(_NO, "denied", NOBODY_THERE)
        await _wait_in_transcript(call, seat)
        from outrider.permissions.offers import offer_for

        offer = offer_for(call.tool, call.state.input, workspace=str(seat.workspace))
        question = Approval(
            session_id=seat.session.id,
            call_id=call.call_id,
            tool=call.tool,
            input=call.state.input,
            fingerprint=fingerprint(call.tool, call.state.input),
            description=decision.reason,
            workspace=str(seat.workspace),
            offers=offer.rules,
            contents=offer.contents,
        )
        try:
            with seat.states.awaiting_approval():
                allowed, words = await desk.ask(question, seat.agent.name, seat.call_id)
        except asyncio.CancelledError:
            if not seat.comes_back:
                await asyncio.shield(desk.withdraw(question))
            raise
        return _verdict(allowed=allowed, words=words)

    return ask


async def answer_of(approve: Approve, request: ApprovalRequest) -> object:
    """Whoever cannot say yes has not said it."""
    try:
        answer = approve(request)
        return await answer if inspect.isawaitable(answer) else answer
    except Exception as error:  # noqa: BLE001  the user's own code may raise anything, and the turn goes on
        _log.exception("the function that approves calls failed")
        return f"it could not be asked about ({type(error).__name__}: {error})"


def _verdict(*, allowed: bool, words: str) -> Verdict:
    if allowed:
        return Verdict(_YES)
    return Verdict(_NO, "rejected", f"The user said no: {words}" if words else "The user said no.")


async def _wait_in_transcript(call: ToolPart, seat: Seat) -> None:
    """The question is part of the transcript, so that it survives a restart."""
    if isinstance(call.state, ToolPending) and call.state.phase != "awaiting_approval":
        message = next(message for message in reversed(seat.session.messages) if message.find_call(call.call_id))
        await seat.journal.put_part(call.update_state(call.state.await_approval()), message)
