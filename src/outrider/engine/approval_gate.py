"""The gate that calls pass: a tool's own policy, the rules and the mode, and somebody to ask where they say ask."""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec

from outrider.agents.run_context import AgentContext, Verdict
from outrider.engine.approval_grants import Grant
from outrider.engine.approvals import ApprovalQueue, RemoteApprovals
from outrider.errors import OutriderError
from outrider.event_bus import EventBus
from outrider.permissions.modes import Decision, Mode, shape_of
from outrider.permissions.redaction.redactor import HIDDEN
from outrider.sessions.records import Approval, fingerprint
from outrider.tools.tool import Policy, Tool
from outrider.types.agents import Provider
from outrider.types.events import ToolApprovalRequestedEvent, ToolApprovalResultEvent
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolPending

CONFINED = ("plan", "background")  # modes in which nobody is asked about a command
_NO_SANDBOX = "commands run inside a sandbox only in {mode} mode, and none works on this machine"
_HOLDS_HIDDEN = f"its input holds {HIDDEN}, which stands for a secret that was not kept; it is not the secret itself"


def refusal(tool: str, given: Mapping[str, Any], mode: Mode, sandbox: Callable[[], bool]) -> str:
    """Why the call is refused; empty where it is not."""
    kind = shape_of(tool).kind
    if kind == "shell" and mode in CONFINED and not sandbox():
        return _NO_SANDBOX.format(mode=mode)
    if kind in ("write", "shell") and _holds(given, HIDDEN):
        return _HOLDS_HIDDEN
    return ""


def _holds(value: object, mark: str) -> bool:
    match value:
        case str():
            return mark in value
        case Mapping():
            return any(_holds(item, mark) for item in cast("Mapping[str, object]", value).values())
        case list():
            return any(_holds(item, mark) for item in cast("list[object]", value))
        case _:
            return False


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


class PermissionChecker:
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

    def decide(self, call: ToolPart, tool: Tool, seat: AgentContext, granted: Grant = NOTHING_GRANTED) -> Decision:
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


class ApprovalGate:
    """Where the judge says ask, `ask` finds out; what is asked about is what will run. `renew` looks for answers that
    were taken back elsewhere."""

    def __init__(
        self,
        judge: PermissionChecker,
        ask: "Ask",
        granted: Callable[[AgentContext], Grant] = lambda _: NOTHING_GRANTED,
        admitted: Callable[[ToolPart], None] = lambda _: None,
        renew: Callable[[], Awaitable[None]] = _nothing_new,
    ) -> None:
        self._judge = judge
        self._ask = ask
        self._granted = granted
        self._admitted = admitted
        self._renew = renew

    async def admit(self, call: ToolPart, tool: Tool, seat: AgentContext) -> Verdict:
        await self._renew()
        verdict = await self._verdict(call, tool, seat)
        if verdict.allowed:
            self._admitted(call)
        return verdict

    def decide(self, call: ToolPart, tool: Tool, seat: AgentContext) -> Decision:
        """What is said to a call without asking anybody."""
        return self._judge.decide(call, tool, seat, self._granted(seat))

    async def _verdict(self, call: ToolPart, tool: Tool, seat: AgentContext) -> Verdict:
        decision = self.decide(call, tool, seat)
        match decision.effect:
            case "allow":
                return Verdict(_YES)
            case "deny":
                return Verdict(_NO, "denied", f"This call is not allowed: {decision.reason}. It was not run.")
            case "ask":
                return await self._ask(call, tool, seat, decision)


Ask = Callable[[ToolPart, Tool, AgentContext, Decision], Any]


def asking_a_function(approve: Approve | None) -> Ask:
    """For runs: a function that the caller gave answers, or nobody does."""

    async def ask(call: ToolPart, tool: Tool, seat: AgentContext, decision: Decision) -> Verdict:
        if approve is None:
            return Verdict(_NO, "denied", NOBODY_THERE)
        from outrider.permissions.rule_suggestions import offered_rules

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


def asking_at(desk: ApprovalQueue) -> Ask:
    """For engines: a durable question that any front end may answer, now or later."""

    async def ask(call: ToolPart, tool: Tool, seat: AgentContext, decision: Decision) -> Verdict:
        if not desk.attended():
            return Verdict(_NO, "denied", NOBODY_THERE)
        await _wait_in_transcript(call, seat)
        from outrider.permissions.rule_suggestions import offer_for

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


async def _wait_in_transcript(call: ToolPart, seat: AgentContext) -> None:
    """The question is part of the transcript, so that it survives a restart."""
    if isinstance(call.state, ToolPending) and call.state.phase != "awaiting_approval":
        message = next(message for message in reversed(seat.session.messages) if message.find_call(call.call_id))
        await seat.journal.put_part(call.update_state(call.state.await_approval()), message)


@asynccontextmanager
async def relaying(bus: EventBus, providers: Iterable[Provider], approve: Approve) -> AsyncGenerator[None, None]:
    abroad = RemoteApprovals(bus, providers)
    asking: set[asyncio.Task[None]] = set()

    def hear(event: ToolApprovalRequestedEvent) -> None:
        if event.approval_id in abroad:
            asking.add(asyncio.create_task(_ask(event, approve, abroad)))

    unsubscribe = bus.subscribe(ToolApprovalRequestedEvent, hear)
    try:
        yield
    finally:
        unsubscribe()
        abroad.close()
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)


async def _ask(event: ToolApprovalRequestedEvent, approve: Approve, abroad: RemoteApprovals) -> None:
    request = ApprovalRequest(
        event.tool_name,
        event.tool_input,
        event.call_id,
        event.agent_name,
        event.session_id,
        event.description,
        event.offers,
    )
    answer = await answer_of(approve, request)
    if event.approval_id not in abroad:
        return  # somebody there was quicker, or the turn has ended
    try:
        await abroad.answer(event.approval_id, allow=answer is True, words=answer if isinstance(answer, str) else "")
    except OutriderError as error:
        _log.warning("an answer did not reach %s: %s", event.server, error)
