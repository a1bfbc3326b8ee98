"""The queue of approval requests: stored, published as events, answered by any front end. The first answer wins.

A lasting answer is a grant: its rule, its scope, and the query for the grants in effect.
"""

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec.structs import replace

from outrider.errors import ConfigurationError, NotFoundError
from outrider.event_bus import EventBus
from outrider.models.clients import find_peers, send_to_peer
from outrider.sessions.failpoints import failpoint
from outrider.sessions.records import Approval, ApprovalScope, fingerprint_call
from outrider.sessions.store import Store
from outrider.types.agents import Provider
from outrider.types.events import LoopCompletedEvent, ToolApprovalRequestedEvent, ToolApprovalResultEvent
from outrider.types.outcomes import OutcomeChoice, RuleWidth
from outrider.types.parts import ToolPart
from outrider.types.tool_declaration import declaration_of

if TYPE_CHECKING:
    from outrider.agents.run_context import AgentContext


LASTING_SCOPES = ("session", "project", "always")


class ApprovalGrant(msgspec.Struct, frozen=True):
    """Allow rules, hashes of approved file contents that can change what a program does, and destinations to which
    the session may send data."""

    rules: tuple[str, ...] = ()
    contents: frozenset[str] = frozenset()
    destinations: frozenset[str] = frozenset()

    @classmethod
    def from_approvals(cls, approvals: Iterable[Approval]) -> Self:
        """Combines the rules and contents of approvals."""
        listed = list(approvals)
        rules = dict.fromkeys(rule for approval in listed for rule in approval.offers)
        return cls(
            tuple(rules),
            frozenset(content for approval in listed for content in approval.contents),
            frozenset(approval.flow.destination for approval in listed if approval.flow and approval.flow.can_last),
        )


_NO_GRANT = ApprovalGrant()


def applies_here(approval: Approval, sessions: Collection[str], workspace: str) -> bool:
    """Returns whether an approval applies. An approval about files applies only in its workspace, whatever its
    scope."""
    if approval.scope == "session":
        return approval.session_id in sessions
    if approval.scope == "project" or _is_about_files(approval):
        return os.path.realpath(approval.workspace) == os.path.realpath(workspace)
    return True


def in_workspace(approvals: Iterable[Approval], workspace: str) -> list[Approval]:
    """Returns the approvals that were asked for in this workspace."""
    real = os.path.realpath(workspace)
    return [approval for approval in approvals if os.path.realpath(approval.workspace) == real]


def _is_about_files(approval: Approval) -> bool:
    """Returns whether an approval is about files. True if unsure: a rule for an unknown tool may contain a relative
    path in its pattern."""
    if any(rule.startswith(("may write ", "shell(cd ")) for rule in approval.offers):
        return True
    match declaration_of(approval.tool).kind:
        case "read" | "write":
            return True
        case "unknown":
            return bool(approval.contents) or any("(" in rule for rule in approval.offers)
        case _:
            return bool(approval.contents)


async def lasting_approvals(store: Store) -> Sequence[Approval]:
    """Returns all approvals in effect for more than one call, oldest first."""
    return [
        approval
        for approval in await store.approvals()
        if approval.answer == "allowed" and approval.scope in LASTING_SCOPES and approval.can_persist
    ]


class RunGrants:
    """Lasting answers of the `approve` function of a run. With a store, they are stored, and the lasting answers in the
    store apply too."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._lasting: list[Approval] = []
        self._is_loaded = store is None

    async def load(self) -> None:
        """Reads the stored approvals, once."""
        if not self._is_loaded and self._store is not None:
            self._is_loaded = True
            self._lasting += await lasting_approvals(self._store)

    async def remember(
        self, call: ToolPart, context: "AgentContext", widths: tuple[RuleWidth, ...], scope: ApprovalScope
    ) -> None:
        """Allows such calls from now on, or only the exact call if no rule can describe it."""
        approval = Approval(
            session_id=context.root.session.id,
            call_id=call.call_id,
            tool=call.tool,
            input=call.state.input,
            fingerprint=fingerprint_call(call.tool, call.state.input),
            workspace=str(context.workspace),
            offers=widths[0].rules if widths else (),
            contents=widths[0].contents if widths else (),
            widths=widths,
        )
        self._lasting.append(msgspec.structs.replace(approval, answer="allowed", scope=scope))
        if self._store is not None:
            stored = await self._store.ask(approval)
            await self._store.answer(stored.id, "allowed", scope=scope, by="approve")

    def find_grant(self, context: "AgentContext") -> ApprovalGrant:
        """Returns what the answers allow this agent."""
        sessions, workspace = {context.session.id, context.root.session.id}, str(context.workspace)
        return ApprovalGrant.from_approvals(
            approval for approval in self._lasting if applies_here(approval, sessions, workspace)
        )


_decode_approval = msgspec.json.Decoder(Approval).decode


def check_scope(question: Approval, scope: ApprovalScope, width: str) -> ApprovalScope:
    """Returns the scope of an answer: "once" if no rule can describe the call, and at most "session" for data that the
    session may send. Raises ConfigurationError for a width that is not offered."""
    if width and not any(offered.id == width for offered in question.widths):
        ids = ", ".join(offered.id for offered in question.widths) or "none"
        raise ConfigurationError(f"the approval offers no width {width!r}; it offers {ids}")
    if scope not in LASTING_SCOPES:
        return scope
    return "once" if not question.can_persist else "session" if question.flow else scope


class PeerApprovals:
    """Approval requests of agents that run on other servers. The remote server stores them and accepts the first
    answer; this class caches them while the requesting turn runs."""

    def __init__(self, bus: EventBus, providers: Iterable[Provider]) -> None:
        self._bus = bus
        self._peers = find_peers(providers)
        self._open: dict[str, tuple[Approval, str]] = {}
        self._unsubscribe = self._subscribe_events() if self._peers else ()

    def close(self) -> None:
        """Unsubscribes from the event bus."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()

    def __contains__(self, approval_id: object) -> bool:
        return approval_id in self._open

    def open_approvals(self, session_id: str | None = None) -> list[Approval]:
        """Returns the open requests, oldest first, of one session or of all."""
        return [request for request, _ in self._open.values() if session_id in (None, request.session_id)]

    async def answer(self, approval_id: str, **answer: Any) -> Approval:
        """Sends the answer to the server and returns the approval that is in effect there: an earlier answer wins."""
        request, server = self._open[approval_id]
        try:
            raw = await send_to_peer(self._peers[server], f"/api/approvals/{approval_id}", answer)
        except NotFoundError:
            if approval_id in self._open:
                self._expire_approval(approval_id)
            raise
        self._open.pop(approval_id, None)
        from outrider.providers.response_json import decode_json

        return replace(decode_json(_decode_approval, raw), session_id=request.session_id)

    def _subscribe_events(self) -> tuple[Any, ...]:
        return (
            self._bus.subscribe(ToolApprovalRequestedEvent, self._on_requested),
            self._bus.subscribe(ToolApprovalResultEvent, self._on_answered),
            self._bus.subscribe(LoopCompletedEvent, self._on_turn_end),
        )

    def _on_requested(self, event: ToolApprovalRequestedEvent) -> None:
        if event.server in self._peers:
            request = Approval(
                session_id=event.session_id,
                call_id=event.call_id,
                tool=event.tool_name,
                input=event.tool_input,
                id=event.approval_id,
                description=event.description,
                offers=event.offers,
                outcome=event.outcome,
                contents=event.contents,
                widths=event.widths,
                effects=event.effects,
                preview=event.preview,
                position=event.position,
                flow=event.flow,
            )
            self._open[event.approval_id] = request, event.server

    def _on_answered(self, event: ToolApprovalResultEvent) -> None:
        self._open.pop(event.approval_id, None)

    def _on_turn_end(self, event: LoopCompletedEvent) -> None:
        for request in self.open_approvals(event.session_id):
            self._expire_approval(request.id)

    def _expire_approval(self, approval_id: str) -> None:
        """Removes a request that no longer needs an answer, and publishes that to front ends."""
        request, _ = self._open.pop(approval_id)
        self._bus.publish(
            ToolApprovalResultEvent(
                session_id=request.session_id,
                call_id=request.call_id,
                tool_name=request.tool,
                approved=False,
                approval_id=request.id,
            )
        )


class ApprovalQueue:
    """Approval requests of an engine. `attended` returns whether a user can answer; if not, requests are denied.

    Another process may store an answer, so the store is polled every `poll` seconds, and it may revoke an approval, so
    the cached ones expire after `refresh` seconds."""

    def __init__(
        self,
        store: Store,
        bus: EventBus,
        attended: Callable[[], bool],
        remote: PeerApprovals | None = None,
        *,
        poll: float = 0.5,
        refresh: float = 2.0,
    ) -> None:
        self._store = store
        self._bus = bus
        self._remote = remote or PeerApprovals(bus, ())
        self.attended = attended
        self._poll, self._refresh = poll, refresh
        self._waiting: dict[str, asyncio.Event] = {}
        self._lasting: dict[str, Approval] = {}
        self._loaded = 0.0

    async def load(self) -> None:
        """Loads the approvals in effect: approvals without expiry, and approvals of sessions that may continue."""
        self._loaded = monotonic()
        for approval in await self._store.approvals():
            self._cache_lasting(approval)

    async def ask(self, question: Approval, agent: str, parent_call_id: str = "") -> Approval:
        """Stores and publishes the request, then waits for the answer without a timeout. Returns the answered request;
        an answer that belongs to another input denies the call."""
        request = await self._store.ask(question)
        if request.answer == "open":
            self._bus.publish(request.requested_event(agent, parent_call_id))
            failpoint("FP-mid-approval")
            request = await self._wait_for_answer(request)
        return request if request.fingerprint == question.fingerprint else replace(request, answer="denied")

    async def answer(
        self,
        approval_id: str,
        *,
        allow: bool,
        scope: ApprovalScope = "once",
        by: str = "",
        words: str = "",
        keep: tuple[str, ...] | None = None,
        choice: OutcomeChoice = "keep",
        width: str = "",
    ) -> Approval:
        """Stores an answer and returns the one in effect: the first answer wins. A lasting scope is reduced to "once"
        if no rule describes what it would cover, and to "session" for data that a session may send. `keep` and `choice`
        answer a question about an outcome. `width` is the id of an offered width. Raises ConfigurationError for an
        unknown width."""
        # A store or server of version 0.1 has no such parameters, so they are passed only if they are not the default.
        added: dict[str, Any] = {} if keep is None else {"keep": keep}
        added |= ({} if choice == "keep" else {"choice": choice}) | ({"width": width} if width else {})
        if approval_id in self._remote:
            return await self._remote.answer(approval_id, allow=allow, scope=scope, words=words, **added)
        if scope in LASTING_SCOPES or width:
            scope = check_scope(await self._find_approval(approval_id), scope, width)
        answer = "allowed" if allow else "denied"
        approval = await self._store.answer(approval_id, answer, scope=scope, by=by, words=words, **added)
        self._cache_lasting(approval)
        waiting = self._waiting.get(approval_id)
        if waiting is not None:
            waiting.set()
        return approval

    async def find_answer(self, session_id: str, call_id: str, fingerprint: str) -> Approval | None:
        """Returns the answered request of a call that was asked about before it started: a denial of the call, else the
        approval of exactly this input. If there is neither, the call starts without a question, so its open request is
        revoked, unless an answer arrives at the same time. Questions about its outcome stay open."""
        approvals = await self._store.approvals(session_id)
        requests = [request for request in approvals if request.call_id == call_id and request.outcome is None]
        if decisive := _decisive_answer(requests, fingerprint):
            return decisive
        return _decisive_answer([await self._revoke_open(request) for request in requests], fingerprint)

    async def open_approvals(self, session_id: str | None = None) -> list[Approval]:
        """Returns unanswered requests, including those of agents on other servers."""
        return [*await self._store.approvals(session_id, only_open=True), *self._remote.open_approvals(session_id)]

    def close(self) -> None:
        self._remote.close()

    async def withdraw_others(self, question: Approval) -> None:
        """Revokes the open requests of the same call with another question. The question may have changed, for example
        because the user has edited a file that a command changed too."""
        await self.withdraw_call(question.session_id, question.call_id, except_for=question.fingerprint)

    async def withdraw_call(self, session_id: str, call_id: str, *, except_for: str = "") -> None:
        """Revokes the open requests of a call, except for the one with this fingerprint."""
        for request in await self._store.approvals(session_id, only_open=True):
            if request.call_id == call_id and request.fingerprint != except_for:
                await self._revoke_open(request)

    async def withdraw(self, question: Approval) -> None:
        """Revokes the open request of a call that was cancelled."""
        await self._revoke_open(await self._store.ask(question))

    async def _revoke_open(self, request: Approval) -> Approval:
        """Revokes a request if it is open, and returns the stored request: an answer that arrives meanwhile applies."""
        if request.answer != "open":
            return request
        stored = await self._store.answer(request.id, "withdrawn")
        self._cache_lasting(stored)
        self._publish_result(stored)
        return stored

    async def revoke(self, approval_id: str) -> Approval:
        """Revokes an approval and removes it from the cache."""
        self._lasting.pop(approval_id, None)
        return await self._store.answer(approval_id, "revoked")

    async def refresh_grants(self) -> None:
        """Reloads lasting approvals if the cached ones have expired: another process may have revoked one."""
        if self._lasting and monotonic() - self._loaded > self._refresh:
            await self.load()

    def find_grant(self, sessions: Collection[str], workspace: str) -> ApprovalGrant:
        """Returns the combined grant that applies to these sessions in this workspace."""
        if not self._lasting:
            return _NO_GRANT
        applicable = [approval for approval in self._lasting.values() if applies_here(approval, sessions, workspace)]
        return ApprovalGrant.from_approvals(applicable)

    async def list_answered(self, workspace: str, limit: int) -> list[Approval]:
        """Returns the newest answered requests of a workspace, for a backtest of rules."""
        answered = [approval for approval in await self._store.approvals() if approval.answer in ("allowed", "denied")]
        return in_workspace(answered, workspace)[-limit:]

    async def _find_approval(self, approval_id: str) -> Approval:
        matches = (approval for approval in await self._store.approvals() if approval.id == approval_id)
        return next(matches, Approval(session_id="", call_id="", tool=""))

    async def _wait_for_answer(self, request: Approval) -> Approval:
        answer_event = self._waiting.setdefault(request.id, asyncio.Event())
        try:
            while request.answer == "open":
                await self._wait_or_poll(answer_event)
                approvals = await self._store.approvals(request.session_id)
                request = next((approval for approval in approvals if approval.id == request.id), request)
        finally:
            self._waiting.pop(request.id, None)
        self._cache_lasting(request)
        self._publish_result(request)
        return request

    async def _wait_or_poll(self, answer_event: asyncio.Event) -> None:
        """Waits for an answer in this process, at most until the next poll of the store."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._poll):
                await answer_event.wait()

    def _publish_result(self, request: Approval) -> None:
        self._bus.publish(request.result_event())

    def _cache_lasting(self, approval: Approval) -> None:
        if approval.answer == "allowed" and approval.scope in LASTING_SCOPES:
            self._lasting[approval.id] = approval
        else:
            self._lasting.pop(approval.id, None)


def _decisive_answer(requests: Sequence[Approval], fingerprint: str) -> Approval | None:
    """Returns a denial, else the approval of exactly this input."""
    denials = (request for request in requests if request.answer == "denied")
    exact = (request for request in requests if request.answer == "allowed" and request.fingerprint == fingerprint)
    return next(denials, None) or next(exact, None)
