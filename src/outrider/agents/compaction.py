"""Builds model requests and compacts the context: a summary by the same model replaces old messages in the prompt.
Stored messages are not deleted."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import assert_never

from msgspec import UNSET
from msgspec.structs import replace

from outrider.agents.budget import BudgetReservation
from outrider.agents.hooks import HookedCompaction
from outrider.agents.instructions import renew_system_prompt
from outrider.agents.run_context import AgentContext, RunContext, fallback_agent
from outrider.context.lower import (
    PromptProjection,
    apply_compaction,
    convert_custom_part,
    end_with_user,
    has_compaction,
    lower,
)
from outrider.context.prompts import render_prompt
from outrider.context.request_ledger import record_single
from outrider.errors import CallbackError, ConfigurationError, ContextOverflowError, ProviderError
from outrider.providers.provider import AnswerAssembler, ModelClient
from outrider.sessions.records import SessionUpdate
from outrider.types.agents import Agent
from outrider.types.codec import AnyPart
from outrider.types.events import ContextCompactionEvent, ErrorEvent, RetryScheduledEvent
from outrider.types.messages import WORKSPACE_STATE, Message, text_message
from outrider.types.origins import merge_origins
from outrider.types.parts import (
    AgentPart,
    AnswerPart,
    CompactionPart,
    FilePart,
    PatchPart,
    ReasoningPart,
    RetryPart,
    SentRequestRecord,
    SnapshotPart,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    Tokens,
    ToolPart,
    ToolResultPart,
    is_standard_part,
    is_withdrawn,
)
from outrider.types.request import BodyLayout, ModelSettings, Prompt, Request, RequestAllowance, Retry, ToolChoice
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning, ToolState

CHARACTERS_PER_TOKEN = 4
TOKENS_PER_FILE = 1_500


def estimate_tokens(history: Sequence[Message], *, overhead: int = 0, result_limit: int | None = None) -> int:
    """Estimates the tokens of the prompt for this history. `overhead` is the size of system prompt and tools, used
    until the first answer reports real numbers. Numbers reported before a compaction are ignored. `result_limit` is
    how many characters of each tool result the client sends."""
    since = 0
    for position in range(len(history) - 1, -1, -1):
        message = history[position]
        if has_compaction(message):
            return since + overhead + _estimate_history(history[: position + 1], result_limit)
        counted = _answer_tokens(message) if message.role == "assistant" else 0
        if counted:
            return since + counted + _result_tokens(message, result_limit)
        since += estimate_message_tokens(message, result_limit)
    return since + overhead


def _answer_tokens(message: Message) -> int:
    """Returns the tokens of the request that succeeded; those of withdrawn attempts are not part of the prompt."""
    retries = message.get_parts_by_type(RetryPart)
    return message.tokens.total - sum(retry.tokens.total for retry in retries if retry.tokens is not None)


def estimate_text_tokens(text: str) -> int:
    """Estimates the tokens of a text."""
    return len(text) // CHARACTERS_PER_TOKEN


def estimate_message_tokens(message: Message, result_limit: int | None = None) -> int:
    """Estimates the tokens of one message."""
    return _result_tokens(message, result_limit) + sum([_part_tokens(part, result_limit) for part in message.parts])


def _part_tokens(part: AnyPart, result_limit: int | None) -> int:
    """Estimates what the prompt contains of a part, except for calls: `_result_tokens` estimates their results."""
    if not is_standard_part(part):
        return _custom_tokens(part, result_limit)
    match part:
        case TextPart():
            return 0 if part.ignored else estimate_text_tokens(part.text)
        case ReasoningPart():
            return 0 if is_withdrawn(part) else estimate_text_tokens(part.text)
        case FilePart():
            return TOKENS_PER_FILE
        case ToolPart() | StepStartPart() | StepFinishPart() | SnapshotPart() | PatchPart() | AgentPart():
            return 0
        case SubtaskPart() | RetryPart() | CompactionPart():
            return 0
        case _:
            assert_never(part)


def _custom_tokens(part: AnyPart, result_limit: int | None) -> int:
    """Estimates a part of a registered kind, or the imported result of a call."""
    if isinstance(part, ToolResultPart):
        return estimate_text_tokens(part.content[:result_limit]) + TOKENS_PER_FILE * len(part.attachments)
    sent = convert_custom_part(part)
    return _part_tokens(sent, result_limit) if sent is not None else 0


def _result_tokens(message: Message, result_limit: int | None) -> int:
    """Estimates the results of an answer's calls, which the answer's reported tokens do not include."""
    return sum([_state_tokens(part.state, result_limit) for part in message.get_calls()])


def _state_tokens(state: ToolState, result_limit: int | None = None) -> int:
    """Estimates a call's result; 0 if its output was removed from the prompt."""
    match state:
        case ToolCompleted(output=text, attachments=attachments):
            if state.time.compacted is not None:
                return 0
            return estimate_text_tokens(text[:result_limit]) + TOKENS_PER_FILE * len(attachments)
        case ToolError(error=text):
            return estimate_text_tokens(text[:result_limit])
        case ToolPending() | ToolRunning():
            return 0


FULL_SHARE = 0.85  # of the context window without the room for an answer: above it, a compaction starts
TAIL_SHARE = 0.2  # of the context window that is not summarised, at most
PINNED_CHARACTERS = 8_000  # of the user's last input that are appended to a summary
PINNED_TEXT = "{summary}\n\n## The user's last message, verbatim\n{message}"
PINNED_CUT = "… (shortened; `search_conversation` finds the rest of its {length:,} characters)"


def needs_compaction(tokens: int, context_limit: int | None, output_limit: int | None) -> bool:
    if context_limit is None:
        return False
    room = context_limit - min(output_limit or 0, context_limit // 4)
    return tokens > room * FULL_SHARE


def find_tail_start(
    history: Sequence[Message],
    context_limit: int | None,
    *,
    share: float = TAIL_SHARE,
    result_limit: int | None = None,
) -> int:
    """Returns the position of the first message that is not summarised: as many of the last messages as fit, at least
    those since the last user input, or only the last message. Messages before an earlier compaction stay summarised.

    Calls and their results are one part, so a cut between messages never separates them."""
    allowance = int((context_limit or 50_000) * share)
    newer = range(len(history) - 1, last_compaction_position(history), -1)
    inputs = [position for position in newer if _is_input(history[position])]
    start, size = inputs[0] if inputs else max(len(history) - 1, 0), 0
    for position in newer:
        size += estimate_message_tokens(history[position], result_limit)
        if size > allowance:
            break
        if _is_input(history[position]):
            start = position
    return start


def last_compaction_position(history: Sequence[Message]) -> int:
    for position in range(len(history) - 1, -1, -1):
        if any(isinstance(part, CompactionPart) and part.summary for part in history[position].parts):
            return position
    return 0


def pinned_input(history: Sequence[Message], start: int) -> str:
    """Returns the user's last input if it is not in the messages from `start` on, else ""."""
    if any(_is_input(message) for message in history[start:]):
        return ""
    return next((_user_text(message) for message in reversed(history[:start]) if _is_input(message)), "").strip()


def _is_input(message: Message) -> bool:
    return message.role == "user" and not any(isinstance(part, CompactionPart) for part in message.parts)


def _user_text(message: Message) -> str:
    return "\n".join(part.text for part in message.get_parts_by_type(TextPart) if not part.synthetic)


def estimate_failed_tokens(context: AgentContext, assembler: AnswerAssembler, history: Sequence[Message]) -> Tokens:
    """Returns the tokens of an attempt that was withdrawn. Providers charge for what they sent, so what they did not
    report is estimated."""
    tokens = assembler.withdrawn_tokens
    received = sum(map(_text_length, assembler.withdrawn)) // CHARACTERS_PER_TOKEN
    if assembler.withdrawn and not tokens.prompt:
        tokens += Tokens(input=estimate_prompt_tokens(context, history))
    return tokens + Tokens(output=max(received - tokens.output - tokens.reasoning, 0))


def _text_length(part: AnswerPart) -> int:
    match part:
        case TextPart(text=text) | ReasoningPart(text=text):
            return len(text)
        case ToolPart(state=ToolPending(raw=raw)):
            return len(raw)
        case ToolPart() | FilePart():
            return 0
        case _:
            assert_never(part)


TOKENS_PER_TOOL = 100  # rough size of a tool schema, used until a response reports the real prompt size


def build_request(
    context: AgentContext,
    history: Sequence[Message] | None = None,
    *,
    on_sent: Callable[[bytes, BodyLayout], None] | None = None,
) -> tuple[Request, BudgetReservation]:
    """Builds the next model request of an agent for `history`, or else for its current history, and reserves budget for
    it. `on_sent` receives its body.

    The caller settles the reservation after the request, also when it failed."""
    agent, run = context.agent, context.run
    messages = context.session.messages if history is None else history
    reservation = _reserve_budget(context)
    request = Request(
        agent.model,
        end_with_user(context.projection.prompt(messages), messages),
        context.system_prompt or None,
        context.tool_specs,
        model_settings(context, reservation.max_output_tokens if _has_usage_limits(run) else agent.max_output_tokens),
        stream=agent.stream,
        conversation=context.session.id,
        workspace=str(context.workspace),
        # A callable, because only a client for a remote agent needs the value.
        allowance=lambda: _remaining_allowance(context, reservation),
        retry=agent.retry,
        has_fallback=bool(agent.fallback_models),
        on_sent=on_sent,
    )
    return request, reservation


def _remaining_allowance(context: AgentContext, reservation: BudgetReservation) -> RequestAllowance:
    limits = context.run.budget.remaining_allowance(context.depth, reservation)
    return RequestAllowance(mode=context.effective_mode, ask=context.ask_rules, deny=context.deny_rules, **limits)


def estimate_prompt_tokens(
    context: AgentContext, history: Sequence[Message] | None = None, *, result_limit: int | None = None
) -> int:
    """Estimates the prompt size of the agent for `history`, or else for its current history."""
    overhead = estimate_text_tokens(context.system_prompt) + TOKENS_PER_TOOL * len(context.tool_specs)
    messages = context.session.messages if history is None else history
    return estimate_tokens(messages, overhead=overhead, result_limit=result_limit)


def model_settings(context: AgentContext, max_output_tokens: int | None) -> ModelSettings:
    agent = context.agent
    return ModelSettings(
        max_output_tokens=max_output_tokens,
        reasoning=agent.reasoning,
        reasoning_effort=agent.reasoning_effort,
        reasoning_budget=agent.reasoning_budget,
        temperature=agent.temperature,
        output=context.output_schema,
        extra=agent.extra,
        vendor_tools=agent.vendor_tools,
    )


def _reserve_budget(context: AgentContext) -> BudgetReservation:
    # Prompt size and price lookups are skipped when no token or cost limit needs them.
    agent, run = context.agent, context.run
    if not _has_usage_limits(run):
        return run.budget.reserve(0, agent.max_output_tokens, None)
    price = run.models.pricing.price(agent)
    if price is None and run.budget.limits.cost:  # a limit that is used up is reported as reached
        raise ConfigurationError(
            f"Limits(cost={run.budget.limits.cost}) cannot be enforced: agent {agent.name!r} uses the model "
            f"{agent.model!r}, whose price is not known. Use Limits(tokens=…) instead, or a model with a known price, "
            f'or set it in the configuration: [models."{agent.model}"], prices = {{ input = "0.2", output = "0.6" }}; '
            f"in a program: Engine(catalog=ModelCatalog.from_config({{{agent.model!r}: {{'prices': {{…}}}}}}))"
        )
    return run.budget.reserve(estimate_prompt_tokens(context), _max_output_tokens(agent, run), price)


async def wait_for_budget(context: AgentContext) -> None:
    """Waits while agents that work in parallel have reserved what the next request of this agent needs."""
    run = context.run
    if _has_usage_limits(run):
        await run.budget.wait_for_reservations(estimate_prompt_tokens(context), run.models.pricing.price(context.agent))


def _has_usage_limits(run: RunContext) -> bool:
    return run.budget.limits.cost is not None or run.budget.limits.tokens is not None


def _max_output_tokens(agent: Agent, run: RunContext) -> int | None:
    return agent.max_output_tokens or run.models.pricing.output_limit(agent)


MIN_TOKENS_TO_COMPACT = 2_000  # smaller than every model's context, so the catalog lookup is skipped
MESSAGES_TO_RETRY = 10  # after a compaction that shortened nothing
# The session must not be blocked by a model that writes no summary; what is carried over word for word follows.
NO_SUMMARY = "(The model wrote no summary of the earlier messages.)"
MIN_TOKENS_WITH_INPUT = 200  # estimated tokens of messages with the last input that a summary can shorten
MAX_SHORT_SUMMARY = 200  # characters
MAX_TOOL_OUTPUT = 600  # characters of each tool output in the summary request of an overflowing context
MAX_TEXT = 2_000  # characters of each text in a summary request that is still too long
SUMMARY_SHARES = (0.5, 0.1)  # of the context window that the newest messages fill in the last summary requests
SUMMARY_INSTRUCTIONS = "{prompt}\n\nThe user adds, about this summary:\n{instructions}"
LAST_INPUT_TOO_LONG = "the last input alone is too long for {model}; send it in parts, or as a file: {message}"


class ContextCompactor:
    """Compacts the context of one agent: when it is nearly full, after an overflow, or on request."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._run = context.run
        self._sent: SentRequestRecord | None = None
        self._instructions = ""

    def is_due(self) -> bool:
        """Returns whether the prompt is close to the context limit of the model."""
        pricing, agent = self._run.models.pricing, self._context.agent
        if estimate_prompt_tokens(self._context) < MIN_TOKENS_TO_COMPACT or not self._run.auto_compact:
            return False
        tried = self._context.not_shortened_at
        if tried and len(self._context.session.messages) < tried + MESSAGES_TO_RETRY:
            return False  # the last compaction shortened nothing
        tokens = self._prompt_tokens()
        return (
            needs_compaction(tokens, pricing.context_limit(agent), pricing.output_limit(agent)) and self.can_compact()
        )

    def can_compact(self, *, auto: bool = True, whole: bool = False) -> bool:
        """Returns whether there are messages before the tail that are not summarized yet."""
        start = self._tail_start(auto=auto, whole=whole)
        return start > last_compaction_position(self._context.session.messages)

    async def make_room(self, error: ContextOverflowError, *, again: bool) -> None:
        """Shortens the prompt that the model has rejected: removes outputs of the last calls if they fill it, else
        compacts it, also with the last input if that makes it shorter. `again` is set if the prompt was shortened
        before. Raises the error if nothing is shortened."""
        context = self._context
        # Some servers report too few tokens.
        size = max(self._prompt_tokens(), self._history_tokens(context.session.messages))
        limits, model = context.overflow_sizes, str(context.agent.model_ref)
        if again or self._run.models.pricing.context_limit(context.agent) is not None:
            limits[model] = min(size, limits.get(model, size))
        if self._remove_last_outputs(size):
            return
        history = context.session.messages
        last_input = next((message for message in reversed(history) if _is_input(message)), None)
        for whole in (False, True):
            if self._can_shorten(whole=whole) and await self.compact(overflow=True, whole=whole) is not None:
                return
        if last_input is not None and estimate_message_tokens(last_input, self._result_limit) * 2 > size:
            text = LAST_INPUT_TOO_LONG.format(model=model, message=error.message)
            raise ContextOverflowError(text, provider=error.provider, status=error.status) from error
        raise error

    def _can_shorten(self, *, whole: bool) -> bool:
        """Returns whether a compaction can shorten the prompt. If it replaces the last input, it must replace a long
        text. The state of the workspace is not part of that length: otherwise a long path would turn a short question
        into a summary."""
        if not self.can_compact(whole=whole):
            return False
        history, start = self._context.session.messages, self._tail_start(auto=True, whole=whole)
        if not pinned_input(history, start):
            return True
        replaced = apply_compaction(history[:start])
        texts = [part for message in replaced for part in message.get_parts_by_type(TextPart)]
        state = sum(estimate_text_tokens(part.text) for part in texts if WORKSPACE_STATE in part.metadata)
        size = sum(estimate_message_tokens(message, self._result_limit) for message in replaced)
        return size - state > MIN_TOKENS_WITH_INPUT

    def _remove_last_outputs(self, size: int) -> bool:
        """Removes the longest outputs of the last answer's calls from the prompt, if they are more than half of it.
        They stay in the transcript. Returns whether outputs were removed."""
        context = self._context
        answer = next((message for message in reversed(context.session.messages) if message.get_calls()), None)
        calls = [] if answer is None else sorted(answer.get_calls(), key=self._call_tokens, reverse=True)
        if answer is None or sum(map(self._call_tokens, calls)) * 2 <= size:
            return False
        removed = 0
        for call in calls:
            if isinstance(call.state, ToolCompleted) and removed * 2 < size and (tokens := self._call_tokens(call)):
                removed += tokens
                state = call.state.compact(context.run.clock())
                context.journal.put_part_soon(replace(call, state=state), answer)
        context.projection = PromptProjection(context.projection.family)
        return removed > 0

    async def compact(
        self, *, auto: bool = True, overflow: bool = False, whole: bool = False, instructions: str = ""
    ) -> CompactionPart | None:
        """Summarizes all messages except the tail, or with `whole` all except the last one, and stores the summary with
        what must survive word for word. `instructions` are added to the request for the summary.

        Returns None if the summary is not shorter than what it replaces; nothing is stored then. Raises
        ContextOverflowError when nothing can be summarized."""
        history = self._context.session.messages
        before = self._prompt_tokens()
        start = self._tail_start(auto=auto, whole=whole)
        if not self.can_compact(auto=auto, whole=whole):
            raise ContextOverflowError("the context is full, and the last messages alone fill it")
        await self._call_hook(auto=auto, instructions=instructions)
        self._sent, self._instructions = None, instructions
        answer = await self._request_summary(history[:start], overflow=overflow)
        part = await self._build_part(answer.join_text().strip(), start, before)
        if part is None:
            self._context.not_shortened_at = len(history)
            return None
        origins = merge_origins(self._context.read_origins()) or UNSET
        part = replace(part, auto=auto, overflow=overflow, message_id="", origins=origins)
        part = replace(part, instructions=instructions) if instructions else part
        await self._context.journal.add_message(self._summary_message(part, answer))
        await self._context.journal.update_session(SessionUpdate(compacting=self._context.run.clock()))
        offer_conversation_search(self._context)
        renew_system_prompt(self._context)
        self._context.emit_event(
            ContextCompactionEvent, tokens_before=before, tokens_after=part.tokens_after, messages_removed=start
        )
        return part

    async def _call_hook(self, *, auto: bool, instructions: str) -> None:
        hook, context = self._run.program.hooks.on_compaction, self._context
        if hook is None:
            return
        compaction = HookedCompaction(
            session_id=context.session.id, agent=context.agent.name, auto=auto, instructions=instructions
        )
        try:
            await self._run.program.callbacks.call("the hook on_compaction", hook, compaction)
        except CallbackError as error:
            context.emit_event(ErrorEvent, error_type="HookFailed", message=error.message)

    async def _build_part(self, summary: str, start: int, before: int) -> CompactionPart | None:
        """Returns the compaction with as much carried text as possible, but shorter than what it replaces; None if it
        is longer even without carried text."""
        from outrider.agents.carried_context import RemovedTexts, carried_budget, carry_over  # lazy: rarely needed

        history = self._context.session.messages
        tail_id = history[start].id if start < len(history) else None
        budget = carried_budget(self._context_limit())
        pinned = pinned_input(history, start)
        size = self._history_tokens(history)
        # In threads: the first compaction of a long session that was opened again reads thousands of turns.
        # A cancelled compaction leaves its thread running, so no other one may use the same texts meanwhile.
        earlier, self._context.removed_texts = self._context.removed_texts, None
        removed = await asyncio.to_thread((earlier or RemovedTexts()).read, history[:start])
        self._context.removed_texts = removed
        for characters in (budget, budget // 4, 0):
            carried = await asyncio.to_thread(carry_over, summary, removed, characters=characters, without=pinned)
            text = PINNED_TEXT.format(summary=carried, message=_shorten_pinned(pinned)) if pinned else carried
            part = CompactionPart(summary=text, tail_start_id=tail_id, tokens_before=before)
            compacted = [*history, Message("user", [part])]
            # Two estimates are compared; `before` may be the number of tokens that the provider has reported.
            if self._history_tokens(compacted) < size:
                return replace(part, tokens_after=self._prompt_tokens(compacted), message_id="")
        return None

    def _summary_message(self, part: CompactionPart, answer: Message) -> Message:
        """Returns the message that carries the summary. It has the user role, the summary request and its usage."""
        agent = self._context.agent
        model = agent.model_ref
        parts = [StepStartPart(request=self._sent), part] if self._sent else [part]
        message = Message("user", parts, agent=agent.name, model=model, tokens=answer.tokens, cost=answer.cost)
        message.summary = _first_line(part.summary)
        return message

    def _tail_start(self, *, auto: bool, whole: bool = False) -> int:
        """Returns the index of the first message that stays in the prompt. A compaction on request keeps only the last
        turn."""
        messages = self._context.session.messages
        if whole:
            return max(len(messages) - 1, 0)
        share = TAIL_SHARE if auto else 0
        return find_tail_start(messages, self._context_limit(), share=share, result_limit=self._result_limit)

    @property
    def _result_limit(self) -> int | None:
        return self._run.models.pricing.result_limit(self._context.agent)

    def _prompt_tokens(self, history: Sequence[Message] | None = None) -> int:
        """Estimates the prompt as the client sends it, with shortened tool results. The limit needs a lookup in the
        catalog, which `estimate_prompt_tokens` without a limit does not."""
        return estimate_prompt_tokens(self._context, history, result_limit=self._result_limit)

    def _history_tokens(self, history: Sequence[Message]) -> int:
        return _estimate_history(history, self._result_limit)

    def _call_tokens(self, call: ToolPart) -> int:
        return _state_tokens(call.state, self._result_limit)

    def _context_limit(self) -> int | None:
        """Returns the context window of the model, or the size of the smallest prompt that was too long for it: servers
        may have smaller windows than the catalog says."""
        agent = self._context.agent
        limits = (self._run.models.pricing.context_limit(agent), self._context.overflow_sizes.get(str(agent.model_ref)))
        return min((limit for limit in limits if limit is not None), default=None)

    async def _request_summary(self, old: list[Message], *, overflow: bool) -> Message:
        """Returns the summary of the messages. If they are too long for one request, they are shortened; on an outage,
        the next model of the agent's list writes the summary and continues."""
        histories = self._summary_histories(old, overflow=overflow)
        history = next(histories)
        while True:
            try:
                return await self._summarize(history)
            except ContextOverflowError:
                shorter = next(histories, None)
                if shorter is None:
                    return Message("assistant", [TextPart(NO_SUMMARY)], finish="other")
                history = shorter
            except ProviderError as error:
                fallback = fallback_agent(self._context, error)
                if fallback is None:
                    raise
                self._continue_with(fallback, str(error))

    def _summary_histories(self, old: Sequence[Message], *, overflow: bool) -> Iterator[list[Message]]:
        """Yields the messages to summarize, each time shorter."""
        history = apply_compaction(old)
        if not overflow:
            yield history
        yield [_truncate_message(message) for message in history]
        short = [_truncate_message(message, MAX_TEXT) for message in history]
        yield short
        for share in SUMMARY_SHARES:
            allowance, newest = int((self._context_limit() or 50_000) * share), list[Message]()
            for message in reversed(short):
                allowance -= estimate_message_tokens(message)
                if allowance < 0:
                    break
                newest.insert(0, message)
            yield newest

    def _continue_with(self, agent: Agent, error: str) -> None:
        context, client = self._context, self._run.client_for(agent)
        context.agent, context.projection = agent, PromptProjection(client.model_family(agent.model))
        self._context.emit_event(
            RetryScheduledEvent, attempt=1, delay_ms=0, error=error, max_attempts=1, model=str(agent.model_ref)
        )

    async def _summarize(self, history: Sequence[Message]) -> Message:
        await wait_for_budget(self._context)
        request, reservation = build_request(self._context)
        client = self._run.client_for(self._context.agent)
        instruction = render_prompt("compaction", self._run.prompts.overrides)
        if self._instructions:
            instruction = SUMMARY_INSTRUCTIONS.format(prompt=instruction, instructions=self._instructions)
        prompt = lower([*history, text_message("user", instruction)], family=client.model_family(request.model))
        settings = replace(request.settings, tool_choice=ToolChoice("none"), output=None)
        on_sent = partial(self._record_request, request.prompt)
        summary_request = replace(
            request, prompt=prompt, settings=settings, allowance=RequestAllowance, on_sent=on_sent
        )
        assembler = AnswerAssembler(client.model_family(request.model))
        used = Tokens()
        try:
            used += await self._read_summary(client, summary_request, assembler)
            if not _summary_text(assembler):
                from outrider.providers.text_tool_calls import (
                    render_tools_as_text,  # lazy: rarely needed
                )

                # Some servers ignore the tool choice, and the model calls a tool. Without tools it cannot.
                used, assembler = used + assembler.tokens, AnswerAssembler(assembler.family)
                without_tools = render_tools_as_text(replace(summary_request, tools=()))
                used += await self._read_summary(client, without_tools, assembler)
        finally:
            used += assembler.tokens
            cost = assembler.cost
            if cost is None or used != assembler.tokens:  # the response does not report the cost of failed attempts
                cost = self._run.models.pricing.cost(self._context.agent, assembler.model, used)
            self._run.budget.settle(reservation, used, cost)
        text = _summary_text(assembler) or NO_SUMMARY
        return Message("assistant", [TextPart(text)], tokens=used, cost=cost, finish=assembler.finish or "other")

    def _record_request(self, prompt: Prompt, body: bytes, layout: BodyLayout) -> None:
        """Stores what is needed to rebuild the body of the summary request."""
        self._sent = record_single(body, layout, prompt, self._context.session.id)

    async def _read_summary(self, client: ModelClient, request: Request, assembler: AnswerAssembler) -> Tokens:
        """Reads the stream into the assembler; returns the tokens of attempts that failed."""
        failed = Tokens()
        async with aclosing(client.stream(request)) as deltas:
            async for delta in deltas:
                assembler.add(delta)
                if type(delta) is Retry:
                    failed += estimate_failed_tokens(self._context, assembler, self._context.session.messages)
                    fields = {name: getattr(delta, name) for name in ("attempt", "delay_ms", "error", "max_attempts")}
                    self._context.emit_event(RetryScheduledEvent, **fields)
        return failed


def _first_line(summary: str) -> str:
    """Returns the first line of a summary that is not a heading; it is the short summary of its message."""
    lines = (line.strip() for line in summary.splitlines())
    return _cut(next((line for line in lines if line and not line.startswith("#")), ""), MAX_SHORT_SUMMARY)


def _shorten_pinned(text: str) -> str:
    if len(text) <= PINNED_CHARACTERS:
        return text
    return text[:PINNED_CHARACTERS] + PINNED_CUT.format(length=len(text))


def _summary_text(assembler: AnswerAssembler) -> str:
    return "".join(part.text for part in assembler.list_parts() if isinstance(part, TextPart)).strip()


def _estimate_history(history: Sequence[Message], result_limit: int | None) -> int:
    return sum(estimate_message_tokens(message, result_limit) for message in apply_compaction(history))


def offer_conversation_search(context: AgentContext) -> None:
    """Gives the agent the tool that searches its conversation, if a compaction removed messages from its prompt."""
    messages = context.session.messages
    if context.mode == "chat" or not any(has_compaction(message) for message in messages):
        return
    from outrider.agents.carried_context import SEARCH_TOOL, conversation_search_tool

    if SEARCH_TOOL not in context.tools:
        tool = conversation_search_tool(context.journal.load_messages)
        context.tools[SEARCH_TOOL] = tool
        context.tool_specs = (*context.tool_specs, tool.spec())


def _truncate_message(message: Message, max_length: int | None = None) -> Message:
    """Truncates long tool outputs, so that an overflowing context fits into the summary request. With `max_length`,
    texts and inputs of calls are truncated to this number of characters too, and files are left out."""
    parts = [_truncate_call(part, max_length) if isinstance(part, ToolPart) else part for part in message.parts]
    if max_length is not None:
        parts = [
            replace(part, text=_cut(part.text, max_length)) if isinstance(part, TextPart) else part for part in parts
        ]
        parts = [part for part in parts if not isinstance(part, FilePart | ReasoningPart)]
    return replace(message, parts=parts)


def _truncate_call(part: ToolPart, max_length: int | None) -> ToolPart:
    state = part.state
    if isinstance(state, ToolCompleted) and len(state.output) > MAX_TOOL_OUTPUT:
        state = replace(state, output=_cut(state.output, MAX_TOOL_OUTPUT), attachments=())
    if max_length is not None:
        state = replace(state, input={name: _cut_value(value, max_length) for name, value in state.input.items()})
    return part if state is part.state else replace(part, state=state)


def _cut_value(value: object, max_length: int) -> object:
    return _cut(value, max_length) if isinstance(value, str) else value


def _cut(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else f"{text[:max_length]}…"
