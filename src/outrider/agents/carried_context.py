"""What a compaction carries over word for word, in addition to the model's summary.

A summary is written by a model and may leave out anything. This module reads the removed messages without a model and
adds what the summary lacks: the user's constraints and messages, the plan, open items, statements and decisions of the
agent, the files it touched, and names that occur in the removed messages. It also builds the tool with which the model
searches the removed messages.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, wraps
from itertools import accumulate
from typing import Annotated, Any, TypeVar, assert_never, cast

import msgspec

from outrider.context.lower import convert_custom_part
from outrider.tools.tool import Tool, ToolResult
from outrider.types.messages import PLAN_ANSWER, Message
from outrider.types.parts import CompactionPart, TextPart, ToolPart, is_standard_part
from outrider.types.tool_declaration import call_subjects, declaration_of
from outrider.types.tool_state import ToolCompleted, ToolError, ToolPending, ToolRunning

SEARCH_TOOL = "search_conversation"
OPEN_ITEMS = "Open items"
MIN_CHARACTERS = 6_000
CONTEXT_SHARE = 0.12  # of the context window that carried text may fill
MAX_MESSAGE = 2_000  # characters of one user message; the rest is found with the search tool
MAX_SENTENCE = 500
MAX_SENTENCES_PER_MESSAGE = 30  # a pasted document has many sentences that look like constraints
MAX_OPEN_ITEMS = 60
MAX_FILES = 80
MAX_PLAN = 4_000
MAX_SEARCHED, MAX_SEARCHED_TEXTS = 200_000, 2_000  # characters and texts, for names, statements and open items
MAX_USER_CHARACTERS, MAX_USER_TEXTS = 1_000_000, 2_000  # of the user; half remains when there are more
RECENT_QUESTIONS = 3  # answers whose questions to the user may still be open

_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s+|(?<=[。！？；])\s*|\n+")
_CONSTRAINT = re.compile(
    r"\b(?:must|never|always|do not|don['’]?t|only|should|shall|need(?:s|ed)? to|requir\w+|prefer\w*|avoid|without|"
    r"instead of|rather than|make sure|ensure|remember|keep|important|rules?|from now on|no longer|not allowed|"
    r"forbidden|may not|can(?:not|['’]t)|mustn['’]?t|shouldn['’]?t|at most|at least|not? more than|stick to|"
    r"convention\w*|use|policy|limit(?:ed)?|deadline|until|unless|except|leave|"
    r"i want|every|treat|"
    r"muss|müssen|nie|niemals|immer|nicht|nur|bitte|darf|dürfen|soll|kein\w*|ohne|ab jetzt|"
    r"jamais|toujours|doi[ts]|doivent|ne|sans|seulement|interdit\w*|nunca|siempre|debe\w*|sin|solo|prohibid\w*|hasta|"
    r"non|mai|sempre|deve|senza|não|nem|sem|нельзя|никогда|всегда|только|не|без|должн\w*|надо|нужно)\b"
    r"|^no\b|必须|必須|不要|不得|不能|不可|请|務必|务必|只能|永远|总是|禁止|絶対|必ず|常に|しないで|ください|だけ|항상|절대|마세요|반드시",
    re.IGNORECASE,
)
_OPEN = re.compile(
    r"^\s*(?:[-*]\s*)?\[ \]|\b(?:TODO|FIXME|open (?:question|item|point|issue)s?|still (?:open|to do|missing)|"
    r"remain(?:s|ing)|next steps?|to do|not (?:yet|done)|pending|blocked (?:on|by)|waiting for|follow[- ]?up|later|"
    r"unresolved|outstanding|undecided|still (?:have|has|need|needs) to|not \w+ yet|"
    r"offen|ausstehend|noch (?:nicht|zu)|klären|à faire|en attente|reste à|pendiente|por hacer|falta|da fare|"
    r"осталось|не решено|ожида\w+)\b"
    r"|待办|待辦|未完成|未解决|待确认|未定|要確認|保留中|残り|미정|남은",
    re.IGNORECASE,
)
_TASK_MARK = re.compile(r"^\s*[-*]?\s*\[ \]\s*")
_CLOSED = re.compile(r"^\s*(?:[-*]\s*)?\[[xX]\]\s*(.*)$")
_STATEMENT = re.compile(
    r"\b(?:decid\w+|decision|chose\w*|choos\w+|agreed|root cause|because|found|turn(?:s|ed) out|confirmed|measured|"
    r"results?|fixed|fails?|failed|concluded?|conclusion|named|called|renamed|is now|equals|set to|version|port|"
    r"deadline|note)\b|\d",
    re.IGNORECASE,
)
_NAMES = re.compile(
    r"https?://[^\s)>\]\"'`]+"
    r"|(?:~|\.{1,2})?/?[\w.-]+(?:/[\w.-]+)+"  # paths
    r"|\b[\w-]+\.(?:[a-z]{1,5}|[a-z]+\d)\b"  # file names
    r"|\b[A-Z][A-Z0-9]+-\d+\b"  # tickets
    r"|\b[a-zA-Z]\w*_\w+\b|\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+\b|\b[a-z]+(?:[A-Z][a-z0-9]+)+\b"  # identifiers
    r"|\bv?\d+\.\d+(?:\.\d+)*\b|\b[0-9a-f]{7,40}\b"  # versions and hashes
)
_WORD = re.compile(r"[^\W_]+(?:[-_.][^\W_]+)*")

_DIGITS = re.compile(r"\d+")
MAX_CACHED_LENGTH = 1024  # characters of a text whose results are cached
MAX_CACHED_TEXTS = 16_384
Result = TypeVar("Result")


def _cache_short_texts(read: Callable[[str], Result]) -> Callable[[str], Result]:
    """Caches the results for short texts: every compaction of a session reads the same texts again, so its cost would
    grow with the age of the session. Long texts are not cached, to limit the memory."""
    cached = lru_cache(MAX_CACHED_TEXTS)(read)

    @wraps(read)
    def read_text(text: str) -> Result:
        return cached(text) if len(text) < MAX_CACHED_LENGTH else read(text)

    return read_text


def carried_budget(context_limit: int | None) -> int:
    """Returns how many characters of carried text a model with this context window gets."""
    return max(MIN_CHARACTERS, int((context_limit or 50_000) * 4 * CONTEXT_SHARE))


def carry_over(summary: str, removed: "RemovedTexts", *, characters: int, without: str = "") -> str:
    """Returns the summary with sections for what it lacks of the removed messages, within `characters`. `without` is a
    user message that the caller adds itself."""
    writer = _SectionWriter(summary, characters)
    if characters <= 0:
        return writer.text()
    by_user = {text: times for text, times in removed.by_user.items() if text != without}
    recent = removed.by_agent.newest()
    names = _names(_newest_texts([*by_user]), recent)
    writer.add_list("Constraints of the user, word for word", _constraints(by_user), 0.4)
    writer.add_list(OPEN_ITEMS, _open_items(removed), 0.3)
    writer.add_list("Plan that the user accepted", [removed.plan[:MAX_PLAN]], 0.3)
    writer.add_list("Files that were read or changed", removed.list_files(), 0.2)
    writer.add_list("Sentences of the user, word for word", _distinct_sentences(by_user), 0.35)
    writer.add_list("Messages of the user, word for word", map(_shorten, by_user), 0.6, left_out=removed.dropped)
    writer.add_list("Statements of the assistant, word for word", _statements(recent), 0.7)
    writer.add_names(names)
    return writer.text()


class _NewestTexts:
    """The last texts of a role, of at most MAX_SEARCHED characters: neither the cost of a compaction nor the memory of
    a session may grow with its age."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._characters = 0

    def add(self, text: str) -> None:
        self._texts.append(text)
        self._characters += len(text)
        if len(self._texts) > 2 * MAX_SEARCHED_TEXTS or self._characters > 2 * MAX_SEARCHED:
            self._texts = [*self.newest()]
            self._characters = sum(map(len, self._texts))

    def newest(self) -> Sequence[str]:
        return _newest_texts(self._texts)


class RemovedTexts:
    """What compactions carry over of the messages that they remove. Each message is read once: the next compaction
    reads only the messages that were removed since then.

    `by_user` has the texts of the user and how often each was written. When there are too many, those without a
    constraint and with frequent words are dropped; `dropped` is their number."""

    def __init__(self) -> None:
        self._count, self._last_id = 0, ""
        self.by_user: dict[str, int] = {}
        self._user_characters = 0
        self.dropped = 0
        self.by_agent, self.by_all = _NewestTexts(), _NewestTexts()
        self.plan = ""  # the last plan that the user accepted or changed
        self.todos: list[Any] = []
        self.summary = ""  # of the last compaction
        self._files: dict[str, bool] = {}
        self._last_answer = ""

    def read(self, removed: Sequence[Message]) -> "RemovedTexts":
        """Reads the messages that were not read before, and returns this object. Returns a new one if the messages that
        it has read are no longer the first of `removed`."""
        read_count = self._count
        if read_count > len(removed) or (read_count and removed[read_count - 1].id != self._last_id):
            return RemovedTexts().read(removed)
        for message in removed[read_count:]:
            self._read_message(message)
        self._count, self._last_id = len(removed), removed[-1].id if removed else ""
        return self

    def list_files(self) -> list[str]:
        """Returns the paths of file tools' calls, the last used ones last, marked "(changed)" if a call wrote them."""
        return [f"{path} (changed)" if changed else path for path, changed in self._files.items()][-MAX_FILES:]

    def _read_message(self, message: Message) -> None:
        if compactions := message.get_parts_by_type(CompactionPart):
            self.summary = next((part.summary for part in reversed(compactions) if part.summary), self.summary)
            return
        text = _spoken_text(message)
        match message.metadata.get(PLAN_ANSWER):
            case "changed":
                self.plan = text
            case "accepted":
                self.plan = self._last_answer
            case _:
                pass
        if message.role == "assistant":
            self._last_answer = text
        for part in message.parts:
            if isinstance(part, ToolPart) and isinstance(part.state, ToolCompleted):
                self._read_call(part, part.state)
        if text.strip():
            self.by_all.add(text)
            if message.role == "assistant":
                self.by_agent.add(text)
            else:
                self._add_user_text(text)

    def _read_call(self, part: ToolPart, state: ToolCompleted) -> None:
        if isinstance(state.metadata.get("todos"), list):
            self.todos = cast("list[Any]", state.metadata["todos"])
        if (kind := declaration_of(part.tool).kind) in ("read", "write"):
            for path in _call_paths(part):
                self._files[path] = self._files.pop(path, False) or kind == "write"
            if len(self._files) > 20 * MAX_FILES:
                self._files = dict([*self._files.items()][-10 * MAX_FILES :])

    def _add_user_text(self, text: str) -> None:
        if text not in self.by_user:
            self._user_characters += len(text)
        self.by_user[text] = self.by_user.get(text, 0) + 1
        if len(self.by_user) > MAX_USER_TEXTS or self._user_characters > MAX_USER_CHARACTERS:
            self._drop_user_texts()

    def _drop_user_texts(self) -> None:
        """Keeps half of the texts: the newest ones, then those with a constraint and those with rare words."""
        texts = [*self.by_user]
        rarity = _rate_rarity(texts)
        newest = range(len(texts) - 1, -1, -1)
        rules = [any(map(_is_constraint, _sentences(text))) for text in texts]
        best = sorted(newest, key=lambda position: (rules[position], rarity[position]), reverse=True)
        retained, size = set[int](), 0
        for order, share in ((newest, 4), (best, 2)):
            for position in order:
                if len(retained) >= MAX_USER_TEXTS // share:
                    break
                if position not in retained and size + len(texts[position]) <= MAX_USER_CHARACTERS // share:
                    retained.add(position)
                    size += len(texts[position])
        self.dropped += len(texts) - len(retained)
        self.by_user = {texts[position]: self.by_user[texts[position]] for position in sorted(retained)}
        self._user_characters = size


class _SectionWriter:
    """Appends sections to a summary, within a number of characters, and leaves out what the text already contains."""

    def __init__(self, summary: str, characters: int) -> None:
        self._sections = [summary]
        self._summary = _normalize(summary)
        self._added: set[str] = set()
        self._space = characters

    def add_list(self, title: str, entries: Iterable[str], share: float, *, left_out: int | None = None) -> None:
        """Adds the entries that fit into a share of the remaining space, in their order. With `left_out`, the number of
        entries that the caller has left out already, the section also says how many entries are missing."""
        new = [entry for entry in dict.fromkeys(entries) if self._is_new(entry)]
        chosen = _select_entries(new, int(self._space * share))
        self._added.update(map(_normalize, chosen))
        lines = [f"- {entry.strip()}" for entry in chosen]
        if left_out is not None and self._space and (omitted := left_out + len(new) - len(chosen)):
            lines.insert(0, f"- ({omitted} more; `{SEARCH_TOOL}` finds them)")
        self._add_section(title, "\n".join(lines))

    def add_names(self, names: Iterable[str]) -> None:
        """Adds the names that do not occur in the text yet."""
        text, space = _normalize("\n".join(self._sections)), self._space
        chosen: list[str] = []
        for name in names:
            if len(name) + 2 < space and _normalize(name) not in text:
                space -= len(name) + 2
                chosen.append(name)
        self._add_section("Also mentioned", ", ".join(chosen))

    def _is_new(self, entry: str) -> bool:
        return (text := _normalize(entry)) not in self._added and text not in self._summary

    def _add_section(self, title: str, text: str) -> None:
        if text.strip():
            self._sections.append(f"## {title}\n{text}")
            self._space = max(0, self._space - len(text))

    def text(self) -> str:
        pointer = f"The removed messages are stored; `{SEARCH_TOOL}` finds details in them."
        return "\n\n".join([*self._sections, pointer])


def _select_entries(entries: Sequence[str], characters: int) -> list[str]:
    """Returns the entries that fit. If not all do, half of the space is for the newest ones, and half for those whose
    words are rare among the entries: a rule occurs once, "next" occurs often."""
    if sum(map(len, entries)) <= characters:
        return list(entries)
    rarity = _rate_rarity(entries)
    newest = range(len(entries) - 1, -1, -1)
    chosen: set[int] = set()
    size = 0
    for order, limit in (
        (newest, characters // 2),
        (sorted(newest, key=lambda position: -rarity[position]), characters),
    ):
        for position in order:
            if position not in chosen and size + len(entries[position]) <= limit:
                chosen.add(position)
                size += len(entries[position])
    return [entries[position] for position in sorted(chosen)]


def _rate_rarity(entries: Sequence[str]) -> list[float]:
    """Returns how rare the words of each entry are among all entries, 1 if no other entry has any."""
    words_by_entry = [_words(entry) for entry in entries]
    spread = Counter(word for words in words_by_entry for word in words)
    return [sum(1 / spread[word] for word in words) / (len(words) or 1) for words in words_by_entry]


@_cache_short_texts
def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(_DIGITS.sub("0", text.lower())))


@_cache_short_texts
def _normalize(text: str) -> str:
    return " ".join(text.lower().split())


def _spoken_text(message: Message) -> str:
    """Returns what the user or the model wrote, without texts that the program added."""
    parts = message.get_parts_by_type(TextPart)
    return "\n".join(part.text for part in parts if not part.synthetic and not part.ignored)


@_cache_short_texts
def _sentences(text: str) -> tuple[str, ...]:
    sentences = (sentence.strip() for sentence in _SENTENCE_END.split(_FENCE.sub("\n", text)))
    return tuple(sentence[:MAX_SENTENCE] for sentence in sentences if sentence)


def _shorten(text: str) -> str:
    if len(text) <= MAX_MESSAGE:
        return text
    return f"{text[:MAX_MESSAGE]}… (shortened; `{SEARCH_TOOL}` finds the rest of its {len(text):,} characters)"


def _constraints(by_user: Iterable[str]) -> Iterator[str]:
    for text in by_user:
        constraints = [sentence for sentence in _sentences(text) if _is_constraint(sentence)]
        yield from constraints[:MAX_SENTENCES_PER_MESSAGE]


@_cache_short_texts
def _is_constraint(sentence: str) -> bool:
    return _CONSTRAINT.search(sentence) is not None


def _distinct_sentences(by_user: Mapping[str, int]) -> Iterator[str]:
    """Yields the other sentences that the user wrote once: rules have no certain words, but they are not repeated. Of a
    long text, such as a pasted document, only the beginning and the end are used."""
    texts = [[(sentence, _shape(sentence)) for sentence in _sentences(text)] for text in by_user]
    counts = Counter[str]()
    for sentences, times in zip(texts, by_user.values(), strict=True):
        for _, shape in sentences:
            counts[shape] += times
    for sentences in texts:
        single = [sentence for sentence, shape in sentences if counts[shape] == 1 and len(sentence) < MAX_SENTENCE]
        surplus = len(single) > MAX_SENTENCES_PER_MESSAGE
        half = MAX_SENTENCES_PER_MESSAGE // 2
        for sentence in [*single[:half], *single[-half:]] if surplus else single:
            if not _is_constraint(sentence):
                yield sentence


@_cache_short_texts
def _shape(sentence: str) -> str:
    return _DIGITS.sub("0", _normalize(sentence))


def _statements(by_agent: Iterable[str]) -> Iterator[str]:
    for text in by_agent:
        statements = [sentence for sentence in _sentences(text) if _is_statement(sentence)]
        yield from statements[:MAX_SENTENCES_PER_MESSAGE]


@_cache_short_texts
def _is_statement(sentence: str) -> bool:
    return _STATEMENT.search(sentence) is not None


def _earlier_open_items(summary: str) -> list[str]:
    """Returns the open items of the last compaction: the messages that contain them may be too old to be searched."""
    _, title, section = summary.rpartition(f"## {OPEN_ITEMS}\n")
    lines = section.partition("\n\n")[0].split("\n") if title else []
    return [line.removeprefix("- ") for line in lines if line.startswith("- ")]


def _open_items(removed: RemovedTexts) -> list[str]:
    """Returns lines that name open work, also those of the last compaction, questions of the last answers, and open
    entries of the todo list."""
    closed: set[str] = set()
    open_lines: list[str] = []
    for text in reversed(removed.by_all.newest()):
        for sentence in reversed(_sentences(text)):
            if closed_item := _CLOSED.match(sentence):
                closed.add(_normalize(closed_item[1]))
            elif _is_open(sentence) and _normalize(_TASK_MARK.sub("", sentence)) not in closed:
                open_lines.append(sentence)
    earlier = reversed(_earlier_open_items(removed.summary))
    open_lines += [item for item in earlier if _normalize(_TASK_MARK.sub("", item)) not in closed]
    answers = removed.by_agent.newest()[-RECENT_QUESTIONS:]
    questions = [sentence for text in answers for sentence in _sentences(text) if sentence.endswith(("?", "？"))]
    todos = [f"[ ] {entry['content']}" for entry in removed.todos if _is_open_todo(entry)]
    return [*reversed(open_lines[:MAX_OPEN_ITEMS]), *questions, *todos]


@_cache_short_texts
def _is_open(sentence: str) -> bool:
    return _OPEN.search(sentence) is not None


def _is_open_todo(entry: Any) -> bool:
    match entry:
        case {"content": str(), "status": "completed" | "cancelled"}:
            return False
        case {"content": str()}:
            return True
        case _:
            return False


def _call_paths(part: ToolPart) -> Iterator[str]:
    """Yields the paths that a call changed, or that its arguments name. A patch names them in its metadata."""
    changed = part.state.metadata.get("files") if isinstance(part.state, ToolCompleted) else None
    listed = cast("list[object]", changed) if isinstance(changed, list) else []
    for path in listed or call_subjects(part.tool, part.state.input):
        if isinstance(path, str) and 0 < len(path) < MAX_SENTENCE and "\n" not in path:
            yield path


def _newest_texts(texts: Sequence[str]) -> Sequence[str]:
    """Returns the last texts, at least one, of at most MAX_SEARCHED characters."""
    newest = texts[-MAX_SEARCHED_TEXTS:]
    fitting = sum(size <= MAX_SEARCHED for size in accumulate(len(text) for text in reversed(newest)))
    return newest[-max(1, fitting) :]


def _names(by_user: Iterable[str], by_agent: Iterable[str]) -> list[str]:
    """Returns paths, identifiers, versions and the like, most frequent first; those of the user before others."""
    counts = [Counter(name for text in texts for name in _find_names(text)) for texts in (by_user, by_agent)]
    return list(dict.fromkeys(name for count in counts for name, _ in count.most_common() if 2 < len(name) < 200))


@_cache_short_texts
def _find_names(text: str) -> tuple[str, ...]:
    return tuple(name.rstrip(".,:;") for name in _NAMES.findall(text))


EXCERPT = 600
MIN_STEM = 4
_UNSPACED = re.compile(r"([\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0eff]+)")  # kana, Han, Thai and Lao
MAX_RESULTS = 20


class _TextPassage(msgspec.Struct):
    """A text of the conversation, with the message that contains it."""

    place: str
    text: str


def conversation_search_tool(load_messages: Callable[[], Awaitable[Sequence[Message]]]) -> Tool:
    """Builds the tool that searches all stored messages of the agent's session."""

    async def search_conversation(
        query: Annotated[str, "words that occur in what you look for"], limit: Annotated[int, "results"] = 8
    ) -> ToolResult:
        """Search this whole conversation, also messages and tool outputs that a summary replaced."""
        matches = search_messages(await load_messages(), query)[: max(1, min(limit, MAX_RESULTS))]
        content = "\n\n".join(f"[{place}]\n{excerpt}" for place, excerpt in matches)
        return ToolResult(content or "Nothing in this conversation contains these words.", title=query[:80])

    return Tool(search_conversation, name=SEARCH_TOOL, read_only=True, repeatable=True, parallel=True, display="search")


def search_messages(messages: Sequence[Message], query: str) -> list[tuple[str, str]]:
    """Returns (place, excerpt) of the passages that contain most words of the query, the newest first among equals."""
    phrase, passages = _normalize(query), [*_passages(messages)]
    texts = [passage.text.lower() for passage in passages]
    words = list(dict.fromkeys(_known_form(word, texts) for word in _query_words(query)))
    if not words:
        return []
    spread = Counter(word for text in texts for word in words if word in text)
    weights = {word: len(passages) / (1 + spread[word]) + 1 for word in words}  # rare words count more
    scored: list[tuple[float, int, _TextPassage]] = []
    for position, (passage, lowered) in enumerate(zip(passages, texts, strict=True)):
        score = sum(weights[word] for word in words if word in lowered)
        if score:
            exact = sum(weights.values()) if phrase in _normalize(lowered) else 0
            scored.append((score + exact, position, passage))
    scored.sort(key=lambda entry: entry[:2], reverse=True)
    return [(passage.place, _excerpt(passage.text, words, weights)) for _, _, passage in scored[:MAX_RESULTS]]


def _query_words(query: str) -> Iterator[str]:
    """Yields the words of a query. Scripts without spaces between words are split into pairs of characters."""
    for word in _WORD.findall(query.lower()):
        for run in _UNSPACED.split(word):
            if len(run) > 2 and _UNSPACED.fullmatch(run):
                yield from (run[start : start + 2] for start in range(len(run) - 1))
            elif run:
                yield run


def _known_form(word: str, texts: Sequence[str]) -> str:
    """Returns a word, or its longest beginning that occurs, with up to three letters less: "retri" for "retries"."""
    for end in range(len(word), max(len(word) - 4, MIN_STEM - 1), -1):
        if any(word[:end] in text for text in texts):
            return word[:end]
    return word


def _passages(messages: Sequence[Message]) -> Iterator[_TextPassage]:
    for number, message in enumerate(messages, 1):
        for part in message.parts:
            place = f"message {number}, {message.role}"
            if isinstance(part, ToolPart) and part.tool != SEARCH_TOOL:
                called = msgspec.json.encode(part.state.input, enc_hook=str).decode()
                yield _TextPassage(f"message {number}, call of {part.tool}", f"{called}\n{_output(part)}")
            elif isinstance(part, TextPart) and not part.synthetic:
                yield _TextPassage(place, part.text)
            elif not is_standard_part(part) and isinstance(sent := convert_custom_part(part), TextPart):
                yield _TextPassage(place, sent.text)


def _output(part: ToolPart) -> str:
    match part.state:
        case ToolCompleted(output=text) | ToolError(error=text):
            return text
        case ToolPending() | ToolRunning():
            return ""
        case _:
            assert_never(part.state)


def _excerpt(text: str, words: Sequence[str], weights: dict[str, float]) -> str:
    """Returns the part of a text in which most words of the query occur close together."""
    if len(text) <= EXCERPT:
        return text
    lowered = text.lower()
    positions = sorted(match.start() for word in words for match in re.finditer(re.escape(word), lowered))[:200]

    def weight(start: int) -> float:
        window = lowered[max(0, start - EXCERPT // 3) : start + EXCERPT]
        return sum(weights[word] for word in words if word in window)

    start = max(0, max(positions, key=weight, default=0) - EXCERPT // 3)
    end = min(len(text), start + EXCERPT)
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
