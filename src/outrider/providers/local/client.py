"""The client of the embedded model: builds a compact prompt and a grammar, and decodes the output into deltas."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import PurePath
from typing import Any, Protocol

import msgspec

from outrider.errors import NotFoundError, OutriderError, ProviderError
from outrider.providers.local.constrained_output import (
    AnswerReader,
    CallSchema,
    FileNameCheck,
    RecentCalls,
    build_grammar,
    has_to_look,
    output_schema,
    seen_text,
    select_tools,
)
from outrider.providers.local.model_pool import LoadedModel
from outrider.providers.local.prompt import ChatTranscript, CompactToolPrompt, FileNameSource, NoFileNames, build_prefix
from outrider.providers.local.runtime import error_from_runtime
from outrider.types.events import ModelProgressEvent
from outrider.types.parts import CacheTokens, Tokens
from outrider.types.request import (
    AnswerStart,
    Delta,
    Finish,
    FinishReason,
    ModelSettings,
    PartEnd,
    RemoteEvent,
    Request,
    TextDelta,
    UsageReport,
)

_FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class _ContentDelta(msgspec.Struct):
    content: str | None = None


class _ChunkChoice(msgspec.Struct):
    delta: _ContentDelta = msgspec.field(default_factory=_ContentDelta)
    finish_reason: str | None = None


class _ChunkPromptDetails(msgspec.Struct):
    cached_tokens: int = 0


class _ChunkUsage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _ChunkPromptDetails = msgspec.field(default_factory=_ChunkPromptDetails)

    def to_tokens(self) -> Tokens:
        cached = self.prompt_tokens_details.cached_tokens
        return Tokens(self.prompt_tokens - cached, self.completion_tokens, cache=CacheTokens(read=cached))


class _PromptProgress(msgspec.Struct):
    total: int = 0
    processed: int = 0


class _CompletionChunk(msgspec.Struct):
    id: str = ""
    model: str = ""
    choices: list[_ChunkChoice] = []
    usage: _ChunkUsage | None = None
    error: dict[str, Any] | None = None
    prompt_progress: _PromptProgress | None = None


_chunk_decoder = msgspec.json.Decoder(_CompletionChunk)


_MARK_CHARS = 40  # the end of the text; its previous occurrence gives the length of a repeated passage
_CHECK_CHARS = 48  # between two checks
_MIN_REPEATED_CHARS = 240
_LONG_PASSAGE = 200  # a passage of this length is a loop when it occurs three times, a shorter one later


class TextRepetitionDetector:
    """Detects that a small model repeats the same passage without end, which it would do until its output limit."""

    def __init__(self) -> None:
        self._text = ""
        self._checked = 0

    def add(self, text: str) -> bool:
        """Adds text of the answer; returns whether its end repeats the passage before it."""
        self._text += text
        if len(self._text) - self._checked < _CHECK_CHARS:
            return False
        self._checked = len(self._text)
        return self._is_repeating()

    def _is_repeating(self) -> bool:
        text = self._text
        start = len(text) - _MARK_CHARS
        earlier = text.rfind(text[start:], 0, len(text) - 1)
        if start <= 0 or earlier < 0 or not any(character.isalpha() for character in text[start:]):
            return False  # lines, tables and numbers may be regular
        period = start - earlier
        passage, count = text[-period:], 1
        while text[: len(text) - count * period].endswith(passage):
            count += 1
        return count >= 3 and (period >= _LONG_PASSAGE or count * period >= _MIN_REPEATED_CHARS)


REPETITION_NOTE = "\n\n(The answer repeated itself and was stopped.)"


async def decode_chunks(chunks: AsyncGenerator[str, None], reader: AnswerReader) -> AsyncGenerator[Delta, None]:
    """Decodes the runtime's JSON chunks into deltas; ends with usage and finish reason. Raises ProviderError."""
    started, raw, tokens = False, "", Tokens()
    async for text in chunks:
        chunk = _chunk_decoder.decode(text)
        if chunk.error is not None:
            raise error_from_runtime(chunk.error)
        if (progress := chunk.prompt_progress) is not None:
            yield RemoteEvent(ModelProgressEvent(stage="reading", done=progress.processed, total=progress.total))
            continue
        if not started:
            started = True
            yield AnswerStart(chunk.id, PurePath(chunk.model).stem)
        for choice in chunk.choices:
            for delta in reader.feed(choice.delta.content or ""):
                yield delta
            raw = choice.finish_reason or raw
        tokens = chunk.usage.to_tokens() if chunk.usage else tokens
    reason = _FINISH_REASONS.get(raw, "other")
    for delta in reader.finish(complete=reason == "stop"):
        yield delta
    yield UsageReport(tokens)
    yield Finish("tool_use" if reader.called and reason == "stop" else reason, raw)


async def stop_repetition(deltas: AsyncGenerator[Delta, None]) -> AsyncGenerator[Delta, None]:
    """Yields the deltas of an answer, and ends it with a note when its text repeats itself. The runtime reports no
    usage then; a delta has about one token."""
    detector, delta_count = TextRepetitionDetector(), 0
    async for delta in deltas:
        yield delta
        if isinstance(delta, TextDelta):
            delta_count += 1
            if detector.add(delta.text):
                yield TextDelta(delta.index, REPETITION_NOTE)
                yield PartEnd(delta.index)
                yield UsageReport(Tokens(0, delta_count))
                yield Finish("stop", "repetition")
                return


async def check_names(deltas: AsyncGenerator[Delta, None], check: FileNameCheck) -> AsyncGenerator[Delta, None]:
    """Yields the deltas of an answer without the sentences that do not pass; ends an answer that is too long.

    A repeated sentence does not pass, so that an answer which was stopped for its repetition needs no note.
    """
    delta_count = 0
    async for delta in deltas:
        match delta:
            case TextDelta(text=text) if text == REPETITION_NOTE:
                check.drop_rest()
            case TextDelta(index, text):
                delta_count += 1
                if passed := check.feed(text):
                    yield TextDelta(index, passed)
                if check.is_full:
                    yield TextDelta(index, check.finish())
                    yield PartEnd(index)
                    yield UsageReport(Tokens(0, delta_count))
                    yield Finish("stop", "answer limit")
                    return
            case PartEnd(index) if delta_count:
                if remaining := check.finish():
                    yield TextDelta(index, remaining)
                yield delta
            case _:
                yield delta


MAX_ANSWER_TOKENS = 2048  # a small model may generate up to the end of its context without stopping


class ModelSource(Protocol):
    """Loads and unloads models by name."""

    def acquire(self, name: str) -> LoadedModel:
        """Loads the model; blocks meanwhile. Raises OutriderError if the weights are missing."""
        ...

    def release(self, name: str) -> None: ...


class LocalClient:
    """Streams answers from models that run inside this process."""

    def __init__(
        self,
        name: str,
        models: ModelSource,
        tool_prompt: CompactToolPrompt,
        file_names: FileNameSource = NoFileNames(),  # noqa: B008  stateless
    ) -> None:
        self.repeats_requests = True
        self.name = name
        self._models = models
        self._tool_prompt = tool_prompt
        self._file_names = file_names
        self._acquired: dict[str, asyncio.Future[LoadedModel]] = {}

    def model_family(self, model: str) -> str:
        return "local"

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        try:
            if request.model not in self._acquired:
                yield RemoteEvent(ModelProgressEvent(stage="loading"))
            model = await self._acquire_model(request.model)
            runtime_request = RuntimeRequest(request, self._tool_prompt, self._file_names)
            chunks = model.stream(runtime_request.body, runtime_request.prefix, request.conversation)
            async with contextlib.aclosing(chunks):
                deltas = stop_repetition(decode_chunks(chunks, runtime_request.reader))
                if (check := runtime_request.answer_check) is not None:
                    deltas = check_names(deltas, check)
                async for delta in deltas:
                    yield delta
        except ProviderError as error:
            error.provider = error.provider or self.name
            raise

    async def aclose(self) -> None:
        while self._acquired:
            name, loading = self._acquired.popitem()
            with contextlib.suppress(OutriderError):  # the load failed, so there is nothing to release
                await loading
                await asyncio.to_thread(self._models.release, name)

    async def _acquire_model(self, name: str) -> LoadedModel:
        """Loads the model once; a cancelled request does not cancel the load, which the next request reuses."""
        if name not in self._acquired:
            self._acquired[name] = asyncio.ensure_future(asyncio.to_thread(self._models.acquire, name))
        try:
            return await asyncio.shield(self._acquired[name])
        except OutriderError as error:
            self._acquired.pop(name, None)
            if isinstance(error, ProviderError):
                raise
            raise NotFoundError(error.message, **error.details) from error


class RuntimeRequest:
    """The runtime's JSON body for a request, and the reader for its answer."""

    def __init__(self, request: Request, tool_prompt: CompactToolPrompt, file_names: FileNameSource) -> None:
        self._tool_prompt = tool_prompt
        self._schema = CallSchema(request.tools, tool_prompt)
        self.prefix = build_prefix(request.system or "", request.tools, tool_prompt)
        workspace_text = self.prefix.workspace_text if self.prefix else ""
        keywords = self._schema.keywords if request.tools else None
        self.reader = AnswerReader(keywords)
        transcript = ChatTranscript(keywords, tool_prompt, request, file_names, workspace_text)
        self.answer_check = self._build_check(request, file_names)
        messages = transcript.encode_messages()
        if self.prefix is not None:
            messages = msgspec.json.encode(self.prefix.as_chat())[1:-1] + b"," + messages
        options = msgspec.json.encode(_sampling_options(request.settings) | self._build_constraint(request, file_names))
        self.body = f'{{"messages":[{messages.decode()}],{options.decode()[1:]}'

    def _build_check(self, request: Request, file_names: FileNameSource) -> FileNameCheck | None:
        """Returns the check of an answer about the workspace; other answers and values have nothing to compare with."""
        request_text = RecentCalls(request.prompt).request_text
        if not request.tools or request.settings.output or not file_names.refers_to_workspace(request, request_text):
            return None
        plan, prompt = file_names.plan_question(request, request_text), self._tool_prompt
        known_text = "\n".join((request.system or "", seen_text(request.prompt, prompt), *plan.facts))
        has_items = bool(plan.described_files)
        return FileNameCheck(
            known_text,
            lambda name: file_names.has_file(request, name),
            prompt.max_answer_characters,
            prompt.list_example_words(),
            prompt.max_introduction_sentences if has_items else prompt.max_answer_sentences,
            has_items=has_items,
        )

    def _build_constraint(self, request: Request, file_names: FileNameSource) -> dict[str, Any]:
        settings = request.settings
        if request.tools:
            offered = select_tools(request, self._tool_prompt, file_names)
            must_look = has_to_look(request, self._tool_prompt, file_names, offered)
            plan = file_names.plan_question(request, RecentCalls(request.prompt).request_text)
            schema = self._schema.answer_schema(
                offered,
                settings.tool_choice,
                settings.output,
                has_to_look=must_look,
                described_files=plan.described_files,
            )
            return {"grammar": build_grammar(schema)}
        return {"grammar": build_grammar(output_schema(settings.output))} if settings.output else {}


def _sampling_options(settings: ModelSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,  # one chunk per prompt batch; the request can be cancelled at each
        "cache_prompt": True,
        "max_tokens": min(settings.max_output_tokens or MAX_ANSWER_TOKENS, MAX_ANSWER_TOKENS),
        "temperature": settings.temperature or 0.0,
    }
    if settings.top_p is not None:
        options["top_p"] = settings.top_p
    if settings.stop:
        options["stop"] = list(settings.stop)
    return options | settings.extra
