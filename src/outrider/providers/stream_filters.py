"""Filters that rewrite the deltas of an answer while it streams: their contract, the filter that splits text parts with
a scanner, and the scanner that turns reasoning between <think> tags in plain text into reasoning parts."""

import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from functools import cache
from typing import Any, ClassVar, Literal, Protocol, TypeGuard, TypeVar, assert_never

import msgspec

from outrider._lazy import lazy_pattern
from outrider.errors import ProviderError
from outrider.types.ids import new_id
from outrider.types.request import (
    AnswerStart,
    Delta,
    Finish,
    InputDelta,
    PartEnd,
    PartStart,
    ReasoningDelta,
    RemoteEvent,
    Request,
    Retry,
    TextDelta,
    UsageReport,
)


class StreamFilter(Protocol):
    """Rewrites the deltas of one answer; buffers only text that it cannot classify yet."""

    def feed(self, delta: Delta) -> Iterable[Delta]: ...

    def close(self) -> Iterable[Delta]:
        """Returns the deltas for buffered text, at the end of the answer or after a failure."""
        ...


def apply_filter(stream_filter: StreamFilter, deltas: Iterable[Delta]) -> list[Delta]:
    return [filtered for delta in deltas for filtered in stream_filter.feed(delta)]


async def filter_stream(
    deltas: AsyncGenerator[Delta, None], stream_filter: StreamFilter
) -> AsyncGenerator[Delta, None]:
    """Filters a stream of deltas; closing the generator closes the source."""
    try:
        async for delta in deltas:
            for filtered in stream_filter.feed(delta):
                yield filtered
    except ProviderError:
        for filtered in stream_filter.close():  # emit buffered text before the error
            yield filtered
        raise
    finally:
        close = getattr(deltas, "aclose", None)  # plain iterators have no aclose
        if close is not None:
            await close()
    for filtered in stream_filter.close():
        yield filtered


Numbered = TypeVar("Numbered", bound=PartStart | TextDelta | ReasoningDelta | InputDelta | PartEnd)

_DELTAS = {"text": TextDelta, "reasoning": ReasoningDelta, "tool": InputDelta}


class PartChunk(msgspec.Struct, frozen=True):
    """Text of a part. Consecutive chunks of one kind form one part, until a PartBoundary."""

    kind: Literal["text", "reasoning", "tool"]
    text: str = ""
    tool: str = ""


class PartBoundary(msgspec.Struct, frozen=True):
    """Ends the open part; the next chunk starts a new one."""


class ReclassifyText(msgspec.Struct, frozen=True):
    """Reports that all text of the scanner so far was reasoning: `text`."""

    text: str


class TextScanner(Protocol):
    """Splits one text part into chunks of several parts; the result does not depend on how the input is divided."""

    def feed(self, text: str) -> Iterable[PartChunk | PartBoundary | ReclassifyText]: ...

    def close(self) -> Iterable[PartChunk | PartBoundary | ReclassifyText]: ...


class TextSplitFilter:
    """Runs a scanner over each text part and renumbers all parts, since one input part may become several."""

    def __init__(self, create_scanner: Callable[[], TextScanner]) -> None:
        self._create_scanner = create_scanner
        self._splitters: dict[int, _TextPartSplitter] = {}
        self._other_indexes: dict[int, int] = {}
        self._count = 0
        self._calls = 0

    def feed(self, delta: Delta) -> Iterable[Delta]:
        return self._HANDLERS[type(delta)](self, delta)

    def _start_part(self, start: PartStart) -> Iterable[Delta]:
        if start.kind != "text":
            return (_with_index(start, self._index_of(start.index)),)
        self._splitters[start.index] = _TextPartSplitter(self._create_scanner(), self)
        return ()

    def _read_text(self, delta: TextDelta) -> Iterable[Delta]:
        splitter = self._splitters.get(delta.index)
        return self._renumber_chunk(delta) if splitter is None else splitter.feed(delta.text)

    def _renumber_chunk(self, delta: TextDelta | ReasoningDelta | InputDelta) -> Iterable[Delta]:
        return (_with_index(delta, self._other_indexes[delta.index]),)

    def _end_part(self, end: PartEnd) -> Iterable[Delta]:
        splitter = self._splitters.pop(end.index, None)
        return (_with_index(end, self._other_indexes[end.index]),) if splitter is None else splitter.end_part(end)

    def _read_finish(self, finish: Finish) -> Iterable[Delta]:
        is_call = finish.reason == "stop" and self._calls
        return (*self.close(), Finish("tool_use", finish.raw) if is_call else finish)

    def _pass_through(self, delta: AnswerStart | UsageReport | RemoteEvent) -> Iterable[Delta]:
        return (delta,)

    def _start_again(self, retry: Retry) -> Iterable[Delta]:
        """Drops the state of a failed attempt; its buffered text was never emitted."""
        self._splitters, self._other_indexes, self._count, self._calls = {}, {}, 0, 0
        return (retry,)

    def close(self) -> Iterator[Delta]:
        for splitter in self._splitters.values():
            yield from splitter.close()

    def next_index(self, *, call: bool = False) -> int:
        self._calls += call
        self._count += 1
        return self._count - 1

    def _index_of(self, index: int) -> int:
        """Returns the new index of a non-text part; a text part that restarts as another kind keeps its index."""
        splitter = self._splitters.pop(index, None)
        if splitter is not None and splitter.first_index is not None:
            self._other_indexes[index] = splitter.first_index
        if index not in self._other_indexes:
            self._other_indexes[index] = self.next_index()
        return self._other_indexes[index]

    # A dispatch table is faster than `match`, and this runs for every delta. A test checks that it has all types.
    _HANDLERS: ClassVar[dict[type[Delta], Callable[[Any, Any], Iterable[Delta]]]] = {
        PartStart: _start_part,
        TextDelta: _read_text,
        ReasoningDelta: _renumber_chunk,
        InputDelta: _renumber_chunk,
        PartEnd: _end_part,
        Finish: _read_finish,
        AnswerStart: _pass_through,
        Retry: _start_again,
        UsageReport: _pass_through,
        RemoteEvent: _pass_through,
    }


def _with_index(delta: Numbered, index: int) -> Numbered:
    return delta if delta.index == index else msgspec.structs.replace(delta, index=index)


class _TextPartSplitter:
    """Turns one input text part into the output parts that its scanner finds."""

    def __init__(self, scanner: TextScanner, split_filter: TextSplitFilter) -> None:
        self._scanner = scanner
        self._split_filter = split_filter
        self._open: PartStart | None = None
        self.first_index: int | None = None

    def feed(self, text: str) -> list[Delta]:
        return [delta for chunk in self._scanner.feed(text) for delta in self._emit(chunk)]

    def close(self) -> Iterator[Delta]:
        for chunk in self._scanner.close():
            yield from self._emit(chunk)

    def end_part(self, end: PartEnd) -> Iterator[Delta]:
        """Ends the input part. Its private state is attached to the last output text part."""
        yield from self.close()
        if end.state and (self._open is None or self._open.kind != "text"):
            yield from self._emit(PartChunk("text"))
        if self._open is not None:
            yield msgspec.structs.replace(end, index=self._open.index)

    def _emit(self, chunk: PartChunk | PartBoundary | ReclassifyText) -> Iterable[Delta]:
        match chunk:
            case PartChunk():
                return self._emit_chunk(chunk)
            case PartBoundary():
                return self._close_part()
            case ReclassifyText(text):
                return self._reclassify_text(text)
            case _:
                assert_never(chunk)

    def _emit_chunk(self, chunk: PartChunk) -> Iterable[Delta]:
        start = self._open
        if start is not None and start.kind == chunk.kind:
            return (_DELTAS[chunk.kind](start.index, chunk.text),) if chunk.text else ()
        ended = self._close_part()
        start = self._open_part(chunk)
        deltas = (_DELTAS[chunk.kind](start.index, chunk.text),) if chunk.text else ()
        return (*ended, start, *deltas)

    def _open_part(self, chunk: PartChunk) -> PartStart:
        is_call = chunk.kind == "tool"
        index = self._split_filter.next_index(call=is_call)
        self.first_index = index if self.first_index is None else self.first_index
        call_id = f"call_{new_id()}" if is_call else ""
        self._open = PartStart(index, chunk.kind, call_id, chunk.tool)
        return self._open

    def _reclassify_text(self, text: str) -> Iterable[Delta]:
        """Restarts the first output part as reasoning, under the same index."""
        self._open = None
        if self.first_index is None:
            return ()
        return (
            PartStart(self.first_index, "reasoning"),
            ReasoningDelta(self.first_index, text),
            PartEnd(self.first_index),
        )

    def _close_part(self) -> Iterable[Delta]:
        ended, self._open = self._open, None
        return () if ended is None else (PartEnd(ended.index),)


_FENCE = lazy_pattern(r"[ \t>]*(?P<run>`{3,}|~{3,})(?P<rest>.*)", re.DOTALL)
_TICKS = lazy_pattern(r"`+")


class MarkdownTracker:
    """Tracks Markdown code fences and inline code in text that is added in chunks of any size."""

    __slots__ = ("_open_code", "_pieces", "_unread", "at_line_start", "fence", "last_character")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._unread: list[str] = []  # text of the line that `in_code` has not scanned
        self._open_code = ""  # the backticks that opened inline code, in the scanned text
        self.fence = ""  # the marks that opened the current fence
        self.at_line_start = True  # the line has only whitespace so far
        self.last_character = ""  # "" at the start of the text

    def add(self, text: str) -> None:
        if not text:
            return
        self.last_character = text[-1]
        if "\n" in text:
            text = self._end_lines(text)
        self._pieces.append(text)
        self._unread.append(text)
        if self.at_line_start and text and not text.isspace():
            self.at_line_start = False

    def in_code(self) -> bool:
        """Whether inline code is open; a run of backticks is closed by a run of the same length."""
        unread = "".join(self._unread)
        settled = unread.rstrip("`")
        self._open_code = _open_backticks(self._open_code, settled)
        run = unread[len(settled) :]  # more backticks may follow
        self._unread = [run]
        return bool(_open_backticks(self._open_code, run))

    def _end_lines(self, text: str) -> str:
        first, *lines = text.split("\n")
        self._update_fence("".join(self._pieces) + first)
        for line in lines[:-1]:
            self._update_fence(line)
        self._pieces.clear()
        self._unread.clear()
        self._open_code, self.at_line_start = "", True
        return lines[-1]

    def _update_fence(self, line: str) -> None:
        """Updates the fence state for a complete line, which may open or close a fence."""
        if "```" not in line and "~~~" not in line:
            return
        match = _FENCE.match(line)
        if match is None:
            return
        run, info = match["run"], match["rest"]
        if not self.fence:
            self.fence = "" if run[0] == "`" and "`" in info else run
        elif run.startswith(self.fence) and not info.strip():
            self.fence = ""


def _open_backticks(opened: str, text: str) -> str:
    """Returns the backticks that are open after the text; "" for none."""
    for run in _TICKS.findall(text):
        opened = "" if run == opened else opened or run
    return opened


TAG_NAMES = ("think", "thinking", "reason", "reasoning", "thought")
_TAGS = tuple(f"<{slash}{name}>" for name in TAG_NAMES for slash in ("", "/"))


@cache
def _tag_pattern() -> re.Pattern[str]:
    """Compiles the pattern on first use, after the request was sent, to keep start-up short."""
    return re.compile(rf"<(?P<close>/?)(?P<name>{'|'.join(TAG_NAMES)})>|(?P<cut><(?:/?[a-z]*)?)\Z", re.IGNORECASE)


def create_think_filter(request: Request) -> TextSplitFilter:
    """Returns the filter for one answer; it does not depend on the request."""
    return TextSplitFilter(ThinkTagScanner)


class ThinkTagScanner:
    """Finds reasoning between tags in text. A state machine; `_reader` is the method for the current state.

    An opening tag is recognised at the start of the text or of a line, outside of code fences, so that HTML,
    examples and tags inside a sentence remain text. Inside reasoning, the closing tag of the same name is
    recognised anywhere except between backticks. Tags of the same name may nest; an opening tag that is repeated
    directly is ignored.

    Some servers strip the opening tag. A closing tag at the start of a line without an opening one therefore means
    that all text before it was reasoning, and the part restarts as reasoning. Blank lines around reasoning are
    dropped.
    """

    def __init__(self) -> None:
        self._reader: Callable[[ThinkTagScanner], bool] = ThinkTagScanner._read_edge
        self._held = ""  # unclassified text: at most one tag and the whitespace before it
        self._out: list[PartChunk | PartBoundary | ReclassifyText] = []
        self._lines = MarkdownTracker()
        self._emitted: list[str] | None = []  # emitted text that a closing tag could reclassify as reasoning
        self._after_reasoning = False  # whether the reader is after reasoning, not at the start of the text
        self._name, self._depth, self._has_reasoning, self._blanks = "", 0, False, ""

    def feed(self, text: str) -> list[PartChunk | PartBoundary | ReclassifyText]:
        self._held += text
        while self._held and self._reader(self):
            pass
        return self._take_output()

    def close(self) -> list[PartChunk | PartBoundary | ReclassifyText]:
        """Emits an incomplete tag at the end as text or reasoning."""
        if self._reader is ThinkTagScanner._read_reasoning:
            self._emit_reasoning(len(self._held))
        elif self._reader is ThinkTagScanner._read_edge and self._after_reasoning and not self._held.strip():
            self._held = ""
        else:
            self._leave_edge()
            self._emit_text(len(self._held))
        return self._take_output()

    def _take_output(self) -> list[PartChunk | PartBoundary | ReclassifyText]:
        out, self._out = self._out, []
        return out

    def _read_edge(self) -> bool:
        """Reads at the start of the text or after reasoning; whitespace before a tag is dropped with it."""
        start = len(self._held) - len(self._held.lstrip())
        if start == len(self._held):
            return False
        tag = _tag_pattern().match(self._held, start)
        if not _is_possible_tag(tag):
            self._leave_edge()
            return True
        if tag["cut"]:
            return False
        self._held = self._held[tag.end() :]
        self._after_reasoning = True
        if not tag["close"]:
            self._start_reasoning(tag["name"])
        return True

    def _leave_edge(self) -> None:
        """Drops blank lines after reasoning, but not the indentation of the next line."""
        if self._reader is ThinkTagScanner._read_edge and self._after_reasoning:
            text = self._held.lstrip()
            blanks = self._held[: len(self._held) - len(text)]
            self._held = blanks.rpartition("\n")[2] + text if "\n" in blanks else text
        self._reader = ThinkTagScanner._read_text

    def _read_text(self) -> bool:
        tag = _tag_pattern().search(self._held) if "<" in self._held else None  # fast path: most text has no tag
        if not _is_possible_tag(tag):
            self._emit_text(len(self._held))
            return True
        self._emit_text(tag.start())
        if self._lines.fence or not self._lines.at_line_start:
            self._emit_text(len(tag[0]))
        elif tag["cut"]:
            return False
        elif not tag["close"]:
            self._drop_tag(tag)
            self._start_reasoning(tag["name"])
        elif self._emitted:
            self._drop_tag(tag)
            self._out.append(ReclassifyText("".join(self._emitted).strip()))
            self._end_reasoning()
        else:
            self._emit_text(len(tag[0]))
        return True

    def _read_reasoning(self) -> bool:
        tag = _tag_pattern().search(self._held)
        if not _is_possible_tag(tag):
            self._emit_reasoning(len(self._held))
            return True
        self._emit_reasoning(tag.start())
        if tag["cut"] or self._is_cut_off(tag):
            return False
        if tag["name"].lower() != self._name or self._is_quoted(tag):
            self._emit_reasoning(len(tag[0]))
        elif tag["close"]:
            self._leave_nested(tag)
        else:
            self._enter_nested(tag)
        return True

    def _enter_nested(self, tag: re.Match[str]) -> None:
        if not self._has_reasoning:
            self._drop_tag(tag)  # a repeated opening tag
            return
        self._depth += self._lines.at_line_start
        self._emit_reasoning(len(tag[0]))

    def _leave_nested(self, tag: re.Match[str]) -> None:
        if self._depth:
            self._depth -= 1
            self._emit_reasoning(len(tag[0]))
            return
        self._drop_tag(tag)
        self._out.append(PartBoundary())
        self._end_reasoning()

    def _is_quoted(self, tag: re.Match[str]) -> bool:
        return self._lines.last_character == "`" and self._held.startswith("`", len(tag[0]))

    def _is_cut_off(self, tag: re.Match[str]) -> bool:
        """Whether the next character, which decides if the tag is quoted, has not arrived."""
        return self._lines.last_character == "`" and len(self._held) == len(tag[0])

    def _start_reasoning(self, name: str) -> None:
        self._reader, self._lines, self._emitted = ThinkTagScanner._read_reasoning, MarkdownTracker(), None
        self._name, self._depth, self._has_reasoning, self._blanks = name.lower(), 0, False, ""

    def _end_reasoning(self) -> None:
        self._reader, self._lines = ThinkTagScanner._read_edge, MarkdownTracker()
        self._emitted, self._after_reasoning = None, True

    def _drop_tag(self, tag: re.Match[str]) -> None:
        self._held = self._held[len(tag[0]) :]

    def _emit_text(self, size: int) -> None:
        text, self._held = self._held[:size], self._held[size:]
        if text:
            self._lines.add(text)
            self._out.append(PartChunk("text", text))
            if self._emitted is not None:
                self._emitted.append(text)

    def _emit_reasoning(self, size: int) -> None:
        """Emits reasoning without leading whitespace; buffers trailing whitespace until more reasoning follows."""
        text, self._held = self._held[:size], self._held[size:]
        self._lines.add(text)
        text = self._blanks + text if self._has_reasoning else text.lstrip()
        stripped = text.rstrip()
        self._blanks = text[len(stripped) :]
        if stripped:
            self._has_reasoning = True
            self._out.append(PartChunk("reasoning", stripped))


def _is_possible_tag(match: re.Match[str] | None) -> TypeGuard[re.Match[str]]:
    """Whether a match is a tag, or an incomplete one at the end of the text."""
    return match is not None and (not match["cut"] or any(tag.startswith(match["cut"].lower()) for tag in _TAGS))
