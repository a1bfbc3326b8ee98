"""The permission gate for tool calls: applies a tool's policy, the rules and the mode, and requests an approval where
they return "ask"."""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from functools import cache, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec

from outrider._sync import (
    call_user_function,
    cancel_tasks,
    describe_exception,
    describe_value,
    is_async_function,
    run_to_end,
)
from outrider.agents.hooks import HOOK_ASKS
from outrider.agents.run_context import AgentContext, ApprovalVerdict
from outrider.engine.approvals import LASTING_SCOPES, ApprovalGrant, ApprovalQueue, PeerApprovals, RunGrants
from outrider.errors import CallbackError, ConfigurationError, OutriderError, ToolFailure
from outrider.event_bus import EventBus
from outrider.permissions import reasons
from outrider.permissions.modes import MODE_TABLE, Decision, mode_asks
from outrider.permissions.reasons import UNATTENDED_DENIAL
from outrider.permissions.redaction.redactor import HIDDEN_SECRET
from outrider.sessions.records import Approval, ApprovalScope, fingerprint_call
from outrider.sessions.store import Store
from outrider.tools.definitions import STRICTNESS, Policy
from outrider.tools.schema import InvalidArguments
from outrider.tools.tool import Tool
from outrider.types.agents import Mode, Provider
from outrider.types.events import ErrorEvent, ToolApprovalRequestedEvent, ToolApprovalResultEvent
from outrider.types.messages import Message
from outrider.types.modes import UNATTENDED_MODES
from outrider.types.origins import DataFlow, Origin
from outrider.types.outcomes import CallEffect, CommandOutcome, OutcomeAnswer, RuleWidth
from outrider.types.parts import ToolPart
from outrider.types.tool_declaration import check_rules, declaration_of
from outrider.types.tool_state import ToolPending
from outrider.types.validate import ArgumentsMeta

if TYPE_CHECKING:
    from outrider.permissions.information_flow import EgressPolicy, FlowState
    from outrider.permissions.policy import PermissionRules


def denial_reason(tool: str | Tool, tool_input: Mapping[str, Any], mode: Mode, sandbox: Callable[[], bool]) -> str:
    """Returns why a call of a built-in tool is always denied in this mode, or ""."""
    kind = declaration_of(tool).kind
    if kind == "shell" and MODE_TABLE[mode].outcomes != "ask" and not sandbox():
        return reasons.NO_SANDBOX_IN_MODE.format(mode=mode)
    if kind in ("write", "shell") and _contains_text(tool_input, HIDDEN_SECRET):
        return reasons.REDACTED_INPUT.format(mark=HIDDEN_SECRET)
    return ""


def _contains_text(value: object, mark: str) -> bool:
    match value:
        case str():
            return mark in value
        case Mapping():
            return any(_contains_text(item, mark) for item in cast("Mapping[str, object]", value).values())
        case list():
            return any(_contains_text(item, mark) for item in cast("list[object]", value))
        case _:
            return False


_log = logging.getLogger("outrider.approvals")


class ApprovalRequest(msgspec.Struct, frozen=True):
    """The request to approve one exact call.

    - `tool`: the name of the tool.
    - `input`: the arguments of the call; exactly this input runs.
    - `call_id`: the id of the call.
    - `agent`: the agent that makes the call.
    - `session_id`: the session of the agent.
    - `description`: why the call needs an approval.
    - `offers`: rules that would allow such calls.
    - `outcome`: what a command that has run in the sandbox changed or could not reach. True keeps the files that it
      changed, or runs a blocked command again with the hosts and paths that it needs.
    - `flow`: the data that the call would send after the session has read untrusted text.
    - `widths`: wider and narrower choices of rules than `offers`.
    - `effects`: what the call does in plain words, risky effects first.
    - `preview`: a unified diff of what an edit would change.
    """

    tool: str
    input: dict[str, Any]
    call_id: str
    agent: str
    session_id: str
    description: str = ""
    offers: tuple[str, ...] = ()
    outcome: CommandOutcome | None = None
    flow: DataFlow | None = None
    widths: tuple[RuleWidth, ...] = ()
    effects: tuple[CallEffect, ...] = ()
    preview: str = ""


ApproveFunction = Callable[[ApprovalRequest], bool | str | Awaitable[bool | str]]
"""A plain or async function. Returns True or "once" to allow the call, "session", "project" or "always" to allow such
calls from now on, False to deny it, or another string to deny it with this string as the reason."""


class Rules(msgspec.Struct, frozen=True, metaclass=ArgumentsMeta):
    """Permission rules from flags and configuration, for every call of a run or an engine. `readable` are folders
    outside the workspace that agents may read without a question, except protected files."""

    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            patterns = getattr(self, name)
            if not isinstance(patterns, list | tuple) or not all(
                isinstance(pattern, str) for pattern in cast("tuple[Any]", patterns)
            ):
                description = describe_value(cast("object", patterns))
                raise ConfigurationError(
                    f"Rules({name}={description}): it must be a tuple of strings, such as {name}=('shell',)"
                )
        check_rules({"allow": self.allow, "ask": self.ask, "deny": self.deny}, "Rules")


@cache
def _load_policy() -> "tuple[type[PermissionRules], Callable[..., Decision], Callable[[Tool], bool]]":
    """Imports the policy with the first call: a shell's grammar takes long to load."""
    from outrider.permissions.information_flow import can_send
    from outrider.permissions.policy import PermissionRules, decide_with_rules

    return PermissionRules, decide_with_rules, can_send


class PermissionChecker:
    """Decides about calls without user interaction. Custom functions run without approval unless their policy or a rule
    requires one; built-in tools follow the rules of the mode. `sandbox` returns whether commands can be sandboxed; it
    is called only when needed, because the detection starts processes. `egress` returns where sessions may send data
    without a question. `is_limited` returns whether calls of the session must stay in the workspace and the sandbox
    even after an approval."""

    def __init__(
        self,
        rules: Rules,
        built_in: Collection[str] = (),
        *,
        sandbox: Callable[[], bool] = lambda: False,
        unconfined: bool = False,
        search_path: str = "",
        egress: "Callable[[], EgressPolicy] | None" = None,
        is_limited: Callable[[], bool] = lambda: False,
    ) -> None:
        self._egress = egress
        self._is_limited = is_limited
        self._rules = rules
        self._built_in = built_in
        self._sandbox = sandbox
        self._unconfined = unconfined
        self._search_path = search_path

    def decide(
        self, call: ToolPart, tool: Tool, context: AgentContext, granted: ApprovalGrant, policy: Policy
    ) -> Decision:
        """Returns allow, ask or deny with a reason: the stricter of the rules' decision and the tool's `policy`."""
        custom = () if tool.name in self._built_in else (tool.name,)
        is_command = declaration_of(tool).kind == "shell"
        if not custom and is_command and self._is_limited() and not self._sandbox():
            return Decision("deny", reasons.OWNER_NEEDS_SANDBOX)  # also if a rule allows it
        mode = context.effective_mode
        sandbox = self._sandbox if not self._unconfined or mode_asks(mode) else lambda: True
        if not custom and (reason := denial_reason(tool, call.state.input, mode, sandbox)):
            return Decision("deny", reason)
        rules_type, decide_with_rules, can_send = _load_policy()
        rules = rules_type(
            allow=(*self._rules.allow, *custom),
            ask=(*self._rules.ask, *context.ask_rules),
            deny=(*self._rules.deny, *context.deny_rules),
            confined=(*granted.rules, *context.agent.permissions.get("allow", ())),
        )
        decision = decide_with_rules(
            rules,
            tool,
            call.state.input,
            mode=mode,
            workspace=context.workspace,
            approved=granted.contents,
            readable=self._rules.readable,
            search_path=self._search_path,
            level=context.effective_level,
            unconfined=self._unconfined,
            sandbox=is_command and self._sandbox(),
            flow=self._flow_state(call, context, granted) if can_send(tool) else None,
        )
        if not custom and decision.effect == "ask" and self._is_limited():
            decision = self._limit(decision, call, tool, str(context.workspace))
        has_changed = getattr(tool, "has_changed", False)
        change = reasons.TOOL_CHANGED.format(tool=tool.name)
        if has_changed and decision.effect == "ask":
            decision = msgspec.structs.replace(decision, reason=f"{change}; {decision.reason}")
        if STRICTNESS[policy] <= STRICTNESS[decision.effect]:
            return decision
        if decision.flow is not None and policy == "ask":
            return msgspec.structs.replace(decision, effect="ask", confinement=None)
        if has_changed:
            return Decision("ask", change)
        if policy == "ask" and tool.name in granted.rules:
            return decision
        return Decision(policy, reasons.TOOL_POLICY.format(tool=tool.name, policy=policy))

    def _limit(self, decision: Decision, call: ToolPart, tool: Tool, workspace: str) -> Decision:
        """Returns a denial if the call would leave the workspace after an approval, else the unchanged decision."""
        from outrider.permissions.call_assessment import FileCall, assess_call

        if declaration_of(tool).kind not in ("read", "write"):
            return decision
        assessment = assess_call(tool, call.state.input, workspace=workspace, readable=self._rules.readable)
        leaves = isinstance(assessment, FileCall) and any(target.kind == "outside" for _, target in assessment.targets)
        return Decision("deny", f"{decision.reason}; {reasons.OWNER_STAYS}", decision.rule) if leaves else decision

    def _flow_state(self, call: ToolPart, context: AgentContext, granted: ApprovalGrant) -> "FlowState | None":
        """Returns what the session has read, or None if it has read no untrusted text, or may send anything."""
        origins, has_all = context.read_origins(), context.journal.has_all_messages
        if (self._egress and self._egress().allows_all) or (
            has_all and not any(origin.untrusted for origin in origins)
        ):
            return None
        from outrider.permissions.information_flow import FlowState, WrittenTexts

        def earlier_calls() -> Iterator[ToolPart]:
            parts = (part for message in context.session.messages for part in message.get_parts_by_type(ToolPart))
            return (part for part in parts if part.call_id != call.call_id)

        def may_send(destination: str, size: int) -> bool:
            if self._egress is None or destination in granted.destinations or not has_all:
                return destination in granted.destinations  # what calls that are not in memory sent is unknown
            egress = self._egress()
            egress.count_calls(earlier_calls(), context.tools)
            return egress.may_send(destination, call.id, size)

        def was_written(text: str) -> bool:
            # Repeating a request that the user wrote could encode data in their number.
            if not has_all:
                return False
            repeated = sum(text in part.state.input.values() for part in earlier_calls())
            return repeated < MAX_REPEATED_REQUESTS and WrittenTexts(_user_texts(context))(text)

        if not has_all and not any(origin.untrusted for origin in origins):
            origins = (*origins, Origin("tool", "messages that are not in memory", untrusted=True, private=True))
        return FlowState(origins=origins, was_written=was_written, may_send=may_send)

    def charge_call(self, call: ToolPart, decision: Decision) -> None:
        """Counts the data that an allowed call sends."""
        if decision.flow is not None and self._egress is not None:
            self._egress().charge(decision.flow, call.id)


MAX_REPEATED_REQUESTS = 3


def _user_texts(context: AgentContext | None) -> Iterator[str]:
    """Returns what the user wrote in this session and in those of the callers."""
    while context is not None:
        context.read_origins()
        if context.tracked_origins is not None:
            yield from context.tracked_origins.user_texts
        context = context.caller


class AskApproval(Protocol):
    """Requests the approval of a call. `preview` is a unified diff of what it would change."""

    async def __call__(
        self, call: ToolPart, tool: Tool, context: AgentContext, decision: Decision, preview: str, /
    ) -> ApprovalVerdict: ...


AskAboutOutcome = Callable[[ToolPart, AgentContext, CommandOutcome, str], Awaitable[OutcomeAnswer]]


async def _find_no_answer(call: ToolPart, context: AgentContext) -> ApprovalVerdict | None:
    return None


async def _withdraw_nothing(session_id: str, call_id: str) -> None:
    """Default for channels without stored questions."""


class ApprovalChannel(msgspec.Struct, frozen=True):
    """How calls are approved.

    - `ask`: requests an approval of a call.
    - `ask_outcome`: requests an approval of what a command changed.
    - `find_grant`: returns the approvals in effect.
    - `refresh`: loads the approvals that another process has changed.
    - `confirm`: asks whether a call may be repeated further; returns None if no user can be asked.
    - `find_answer`: returns the stored answer about a call.
    - `withdraw`: revokes the open questions of a call.
    """

    ask: AskApproval
    ask_outcome: AskAboutOutcome
    find_grant: Callable[[AgentContext], ApprovalGrant]
    refresh: Callable[[], Awaitable[None]]
    confirm: Callable[[ToolPart, AgentContext, str], Awaitable[bool | None]]
    find_answer: Callable[[ToolPart, AgentContext], Awaitable[ApprovalVerdict | None]] = _find_no_answer
    withdraw: Callable[[str, str], Awaitable[None]] = _withdraw_nothing


def ignore_admitted_call(call: ToolPart, decision: Decision, context: AgentContext, verdict: ApprovalVerdict) -> None:
    """Does nothing: without built-in tools no call needs preparation."""


class ApprovalGate:
    """Checks each call, and requests an approval for those that need one. `on_admitted` is called for each allowed
    call."""

    def __init__(
        self,
        checker: PermissionChecker,
        channel: ApprovalChannel,
        on_admitted: Callable[[ToolPart, Decision, AgentContext, ApprovalVerdict], None] = ignore_admitted_call,
    ) -> None:
        self._checker = checker
        self._channel = channel
        self._on_admitted = on_admitted

    async def admit(self, call: ToolPart, tool: Tool, context: AgentContext) -> ApprovalVerdict:
        await self._channel.refresh()
        decision = await self.decide(call, tool, context)
        paths = _rejected_paths(call, tool, context) if decision.effect == "ask" else None
        verdict = await self._ask_if_needed(call, tool, context, decision)
        if verdict.allowed and paths is not None and _rejected_paths(call, tool, context) != paths:
            return ApprovalVerdict(
                allowed=False, reason="denied", message=reasons.DENIED_CALL.format(reason=reasons.PATH_CHANGED)
            )
        if verdict.allowed:
            self._checker.charge_call(call, decision)
            self._on_admitted(call, decision, context, verdict)
        return verdict

    async def confirm(self, call: ToolPart, context: AgentContext, question: str) -> bool | None:
        """Asks whether a call may be repeated further. Returns None if no user can be asked."""
        return await self._channel.confirm(call, context, question)

    async def decide(self, call: ToolPart, tool: Tool, context: AgentContext) -> Decision:
        """Returns the decision about a call without asking for an approval. A policy function that fails denies the
        call."""
        try:
            policy = await tool.evaluate_policy(call.state.input, context.run.program.callbacks)
        except CallbackError as error:
            _log.exception("the policy of %s failed", tool.name)
            context.emit_event(ErrorEvent, error_type="CallbackError", message=error.message, call_id=call.call_id)
            return Decision("deny", error.message)
        decision = self._checker.decide(call, tool, context, self._channel.find_grant(context), policy)
        if decision.effect == "allow" and HOOK_ASKS in call.metadata:
            return Decision("ask", reasons.HOOK_ASKS.format(reason=call.metadata[HOOK_ASKS] or "it gives no reason"))
        return decision

    async def _ask_if_needed(
        self, call: ToolPart, tool: Tool, context: AgentContext, decision: Decision
    ) -> ApprovalVerdict:
        match decision.effect:
            case "allow":
                return await self._find_answer(call, context) or ApprovalVerdict(allowed=True)
            case "deny" if decision.invalid:
                return ApprovalVerdict(
                    allowed=False, reason="invalid_input", message=reasons.INVALID_CALL.format(reason=decision.reason)
                )
            case "deny":
                return ApprovalVerdict(
                    allowed=False, reason="denied", message=reasons.DENIED_CALL.format(reason=decision.reason)
                )
            case "ask":
                try:
                    preview = await _preview_call(call, tool, context)
                except ToolFailure as error:  # the user is not asked about a call that cannot work
                    reason = "invalid_input" if isinstance(error, InvalidArguments) else "failed"
                    return ApprovalVerdict(allowed=False, reason=reason, message=error.message)
                return await self._channel.ask(call, tool, context, decision, preview)

    async def _find_answer(self, call: ToolPart, context: AgentContext) -> ApprovalVerdict | None:
        """Returns the stored answer about a call that was asked about before a restart. A rule that was added since,
        for example by the answer about another call, does not replace a denial. A yes decides about a command that
        would run without a question now and be asked about later: version 0.1 asked before the start."""
        if isinstance(call.state, ToolPending) and call.state.phase == "awaiting_approval":
            return await self._channel.find_answer(call, context)
        return None


def _rejected_paths(call: ToolPart, tool: Tool, context: AgentContext) -> set[str | None]:
    """Returns the real paths that the call names and that need an approval: a link may change while a user reads the
    question."""
    if declaration_of(tool).kind not in ("read", "write"):
        return set()
    from outrider.permissions.call_assessment import call_paths
    from outrider.permissions.paths.containment import contain

    workspace, operation = str(context.workspace), declaration_of(tool).operation
    containments = [
        contain(path, root=workspace, cwd=workspace, op=operation) for path in call_paths(tool, call.state.input)
    ]
    return {containment.real_path for containment in containments if not containment.ok}


async def _preview_call(call: ToolPart, tool: Tool, context: AgentContext) -> str:
    """Returns a diff of what the call would change. Raises ToolFailure if it cannot work.

    There is no preview if the tool may not open the path before the approval, or if an earlier call of the same answer
    may change the same file first.
    """
    described = context.tool_context(call.call_id)
    if tool.options.previews and not _can_preview(call, tool, context):
        return ""
    try:
        return await tool.preview(call.state.input, described)
    except ToolFailure:
        raise
    except Exception:  # noqa: BLE001  user code may raise anything; the call itself reports it
        _log.exception("the preview of %s failed", tool.name)
        return ""


def _can_preview(call: ToolPart, tool: Tool, context: AgentContext) -> bool:
    from outrider.permissions.call_assessment import call_paths
    from outrider.permissions.paths.containment import contain

    workspace = str(context.workspace)

    def real_paths(input: Mapping[str, Any]) -> set[str | None]:
        locations = (contain(path, root=workspace, cwd=workspace, op="edit") for path in call_paths(tool, input))
        return {location.real_path if location.ok else None for location in locations}

    paths = real_paths(call.state.input)
    message = _find_message(call, context)
    earlier = itertools.takewhile(lambda part: part.call_id != call.call_id, message.get_parts_by_type(ToolPart))
    return None not in paths and not any(
        not part.ended and part.tool == call.tool and paths & real_paths(part.state.input) for part in earlier
    )


def _find_message(call: ToolPart, context: AgentContext) -> Message:
    """Returns the message that contains the call."""
    return next(message for message in reversed(context.session.messages) if message.find_call(call.call_id))


def function_channel(approve: ApproveFunction | None, store: Store | None = None) -> ApprovalChannel:
    """Returns the channel of a run: it calls the caller's `approve` function, and denies calls if there is none. A
    plain function is called once at a time, because it may ask on the terminal. Lasting answers apply until the run
    ends. With a store, they are stored, and the lasting answers in the store apply too."""
    grants = RunGrants(store)
    one_at_a_time = nullcontext() if approve is None or is_async_function(approve) else asyncio.Lock()

    async def ask(
        call: ToolPart, tool: Tool, context: AgentContext, decision: Decision, preview: str
    ) -> ApprovalVerdict:
        if approve is None:
            return _unattended_verdict(decision)
        from outrider.permissions.explain import list_effects
        from outrider.permissions.rule_suggestions import suggest_widths

        await _store_awaiting_approval(call, context)
        widths = suggest_widths(tool, call.state.input, workspace=str(context.workspace))
        request = ApprovalRequest(
            call.tool,
            call.state.input,
            call.call_id,
            context.agent.name,
            context.session.id,
            decision.reason,
            widths[0].rules if widths else (),
            flow=decision.flow,
            widths=widths,
            effects=list_effects(tool, call.state.input, workspace=str(context.workspace)),
            preview=preview,
        )
        async with one_at_a_time:
            answer = await _ask_function(approve, request, context)
        if answer in LASTING_SCOPES:
            await grants.remember(call, context, widths, cast("ApprovalScope", answer))
        allowed = is_approval(answer)
        return _verdict_for(allowed=allowed, message=answer if isinstance(answer, str) and not allowed else "")

    async def ask_outcome(
        call: ToolPart, context: AgentContext, outcome: CommandOutcome, question: str
    ) -> OutcomeAnswer:
        if approve is None:
            return OutcomeAnswer(allowed=False, attended=False)
        request = ApprovalRequest(
            call.tool, call.state.input, call.call_id, context.agent.name, context.session.id, question, outcome=outcome
        )
        async with one_at_a_time:
            answer = await _ask_function(approve, request, context)
        allowed = is_approval(answer)
        return OutcomeAnswer(allowed, str(answer) if isinstance(answer, str) and not allowed else "")

    async def confirm(call: ToolPart, context: AgentContext, question: str) -> bool | None:
        if approve is None or context.effective_mode in UNATTENDED_MODES:
            return None
        request = ApprovalRequest(
            call.tool, call.state.input, _repetition_id(call), context.agent.name, context.session.id, question
        )
        async with one_at_a_time:
            return is_approval(await _ask_function(approve, request, context))

    return ApprovalChannel(ask, ask_outcome, grants.find_grant, grants.load, confirm)


def _repetition_id(call: ToolPart) -> str:
    """Returns the id of the question about the repetition of a call, which itself has ended."""
    return f"{call.call_id}/repeated"


def is_approval(answer: object) -> bool:
    """Returns whether an answer of an approve function allows the call: True, or a scope."""
    return answer is True or answer in ("once", *LASTING_SCOPES)


async def _ask_function(approve: ApproveFunction, request: ApprovalRequest, context: AgentContext) -> object:
    """Calls the user's function, with the events that announce the question and its answer."""
    ids = {"call_id": request.call_id, "tool_name": request.tool}
    context.emit_event(
        ToolApprovalRequestedEvent,
        description=request.description,
        tool_input=request.input,
        outcome=request.outcome,
        flow=request.flow,
        **ids,
    )
    with context.awaiting_approval():
        answer = await call_approve_function(approve, request)
    context.emit_event(ToolApprovalResultEvent, approved=is_approval(answer), **ids)
    return answer


def _unattended_verdict(decision: Decision) -> ApprovalVerdict:
    reason = f" The reason: {decision.flow.description}." if decision.flow else ""
    return ApprovalVerdict(allowed=False, reason="denied", message=UNATTENDED_DENIAL + reason)


def queue_channel(queue: ApprovalQueue) -> ApprovalChannel:
    """Returns the channel of an engine: it stores an approval request that any front end can answer, now or after a
    restart."""

    async def ask(
        call: ToolPart, tool: Tool, context: AgentContext, decision: Decision, preview: str
    ) -> ApprovalVerdict:
        if not queue.attended():
            return _unattended_verdict(decision)
        await _store_awaiting_approval(call, context)
        widths, effects = await _describe_question(queue, tool, call, context)
        question = Approval(
            session_id=context.session.id,
            call_id=call.call_id,
            tool=call.tool,
            input=call.state.input,
            fingerprint=fingerprint_call(call.tool, call.state.input),
            description=decision.reason,
            workspace=str(context.workspace),
            offers=widths[0].rules if widths else (),
            contents=widths[0].contents if widths else (),
            widths=widths if decision.flow is None else (),
            effects=effects,
            preview=preview,
            position=_position(call, context),
            flow=decision.flow,
        )
        answer = await _ask_queue(queue, question, context)
        return _verdict_for(allowed=answer.answer == "allowed", message=answer.words)

    async def ask_outcome(
        call: ToolPart, context: AgentContext, outcome: CommandOutcome, question: str
    ) -> OutcomeAnswer:
        if not queue.attended():
            return OutcomeAnswer(allowed=False, attended=False)
        # The digest binds the answer to exactly this outcome: the same question is found again after a restart.
        digest = sha256(msgspec.json.encode(outcome)).hexdigest()
        widths, effects = await _describe_question(queue, call.tool, call, context, outcome)
        approval = Approval(
            session_id=context.session.id,
            call_id=call.call_id,
            tool=call.tool,
            input=call.state.input,
            fingerprint=fingerprint_call(call.tool, {**call.state.input, "outcome": digest}),
            description=question,
            workspace=str(context.workspace),
            outcome=outcome,
            offers=widths[0].rules if widths else (),
            contents=widths[0].contents if widths else (),
            widths=widths,
            effects=effects,
            position=_position(call, context),
        )
        await queue.withdraw_others(approval)
        answer = await _ask_queue(queue, approval, context)
        return OutcomeAnswer(answer.answer == "allowed", answer.words, answer.keep, answer.choice)

    def find_grant(context: AgentContext) -> ApprovalGrant:
        # Approvals of the calling sessions apply to the called ones too.
        sessions, caller = {context.session.id}, context.caller
        while caller is not None:
            sessions.add(caller.session.id)
            caller = caller.caller
        return queue.find_grant(sessions, str(context.workspace))

    async def find_answer(call: ToolPart, context: AgentContext) -> ApprovalVerdict | None:
        fingerprint = fingerprint_call(call.tool, call.state.input)
        answer = await queue.find_answer(context.session.id, call.call_id, fingerprint)
        if answer is None:
            return None
        if answer.answer == "denied":
            return _verdict_for(allowed=False, message=answer.words)
        return ApprovalVerdict(allowed=True, by_stored_answer=True)

    return ApprovalChannel(
        ask,
        ask_outcome,
        find_grant,
        queue.refresh_grants,
        partial(_confirm_by_queue, queue),
        find_answer,
        queue.withdraw_call,
    )


async def _confirm_by_queue(queue: ApprovalQueue, call: ToolPart, context: AgentContext, question: str) -> bool | None:
    """Asks whether a call may be repeated further. Returns None if no user can be asked."""
    if not queue.attended() or context.effective_mode in UNATTENDED_MODES:
        return None
    approval = Approval(
        session_id=context.session.id,
        call_id=_repetition_id(call),
        tool=call.tool,
        input=call.state.input,
        fingerprint=fingerprint_call(call.tool, {**call.state.input, "repeated": call.call_id}),
        description=question,
        workspace=str(context.workspace),
    )
    return (await _ask_queue(queue, approval, context)).answer == "allowed"


def _position(call: ToolPart, context: AgentContext) -> int:
    """Returns the position of a call in its answer: questions of one step are shown in this order."""
    calls = _find_message(call, context).get_parts_by_type(ToolPart)
    return next(position for position, part in enumerate(calls) if part.call_id == call.call_id)


MAX_PAST_QUESTIONS = 100


async def _describe_question(
    queue: ApprovalQueue,
    tool: str | Tool,
    call: ToolPart,
    context: AgentContext,
    outcome: CommandOutcome | None = None,
) -> tuple[tuple[RuleWidth, ...], tuple[CallEffect, ...]]:
    """Returns what a lasting answer may cover, with a backtest over earlier questions, and what the call does. The
    analysis runs in a thread, because it parses earlier commands again, which takes long."""
    workspace = str(context.workspace)
    past = await queue.list_answered(workspace, MAX_PAST_QUESTIONS)

    def describe() -> tuple[tuple[RuleWidth, ...], tuple[CallEffect, ...]]:
        from outrider.permissions.explain import list_effects  # with the first question: the shell grammar loads slowly
        from outrider.permissions.rule_suggestions import PastQuestion, backtest_widths, suggest_widths

        # An answer about data that would leave covers that destination only.
        sends = outcome is not None and outcome.flow is not None
        widths = () if sends else suggest_widths(tool, call.state.input, workspace=workspace, outcome=outcome)
        questions = [
            PastQuestion.from_outcome(
                approval.tool, approval.input, approval.outcome, refused=approval.answer == "denied"
            )
            for approval in past
        ]
        # After a command has run, its changes are known; a prediction in addition could be wrong.
        has_run = outcome is not None and outcome.files and not outcome.predicted
        effects = () if has_run else list_effects(tool, call.state.input, workspace=workspace)
        return backtest_widths(widths, questions, workspace=workspace), effects

    return await asyncio.to_thread(describe)


async def _ask_queue(queue: ApprovalQueue, approval: Approval, context: AgentContext) -> Approval:
    """Waits for the answer. A cancelled call withdraws its question, unless it continues in the reopened session."""
    try:
        with context.awaiting_approval():
            return await queue.ask(approval, context.agent.name, context.call_id)
    except asyncio.CancelledError:
        if not context.will_resume:
            await run_to_end(queue.withdraw(approval))
        raise


class _NoAnswer(str):
    """Why the approve function of the program gave no answer. It denies the call; the message does not say that the
    user refused it."""

    __slots__ = ()


async def call_approve_function(approve: ApproveFunction, request: ApprovalRequest) -> object:
    """Calls the user's function. An exception or an invalid value, such as None after a forgotten `return`, denies the
    call: its text is returned as the reason. There is no time limit, because the function may ask a person."""
    try:
        answer = await call_user_function("the approve function", approve, request, seconds=None)
    except CallbackError as error:
        _log.exception("the approve function failed")
        text = describe_exception(error.__cause__ or error)
        return _NoAnswer(reasons.APPROVE_FUNCTION_FAILED.format(error=text))
    if isinstance(answer, bool | str):
        return answer
    problem = (
        f"it returned {describe_value(answer)}; it must return True, False, a scope (once, session, project, always) "
        "or a reason for the denial"
    )
    _log.error("the approve function is wrong: %s", problem)
    return _NoAnswer(reasons.APPROVE_FUNCTION_FAILED.format(error=problem))


def _verdict_for(*, allowed: bool, message: str) -> ApprovalVerdict:
    if allowed:
        return ApprovalVerdict(allowed=True)
    if isinstance(message, _NoAnswer):
        return ApprovalVerdict(allowed=False, reason="denied", message=reasons.NOT_APPROVED.format(reason=message))
    denial = reasons.USER_DENIED_BECAUSE.format(message=message) if message else reasons.USER_DENIED
    return ApprovalVerdict(allowed=False, reason="rejected", message=denial)


async def _store_awaiting_approval(call: ToolPart, context: AgentContext) -> None:
    """Stores the state "awaiting approval" in the transcript, so that the request survives a restart."""
    if isinstance(call.state, ToolPending) and call.state.phase != "awaiting_approval":
        await context.journal.put_part(call.update_state(call.state.await_approval()), _find_message(call, context))


@asynccontextmanager
async def relay_remote_approvals(
    bus: EventBus, providers: Iterable[Provider], approve: ApproveFunction
) -> AsyncGenerator[None, None]:
    """Answers the approval requests of agents on other servers with the `approve` function while the context is
    open."""
    remote = PeerApprovals(bus, providers)
    tasks: set[asyncio.Task[None]] = set()

    def on_request(event: ToolApprovalRequestedEvent) -> None:
        if event.approval_id in remote:
            task = asyncio.create_task(_answer_remotely(event, approve, remote))
            tasks.add(task)
            task.add_done_callback(on_answered)

    def on_answered(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("could not send an approval answer", exc_info=error)

    unsubscribe = bus.subscribe(ToolApprovalRequestedEvent, on_request)
    try:
        yield
    finally:
        unsubscribe()
        remote.close()
        await cancel_tasks(tasks)


async def _answer_remotely(event: ToolApprovalRequestedEvent, approve: ApproveFunction, remote: PeerApprovals) -> None:
    request = ApprovalRequest(
        event.tool_name,
        event.tool_input,
        event.call_id,
        event.agent_name,
        event.session_id,
        event.description,
        event.offers,
        event.outcome,
        event.flow,
        event.widths,
        event.effects,
        event.preview,
    )
    answer = await call_approve_function(approve, request)
    if event.approval_id not in remote:
        return  # answered on the server in the meantime, or the turn has ended
    allowed = is_approval(answer)
    scope = answer if answer in LASTING_SCOPES else "once"
    comment = str(answer) if isinstance(answer, str) and not allowed else ""
    try:
        await remote.answer(event.approval_id, allow=allowed, scope=scope, words=comment)
    except OutriderError as error:
        _log.warning("could not send the approval answer to %s: %s", event.server, error)
