"""Constrained output of local models: the JSON schema of an answer, and the reader that decodes it into deltas.

The schema is a flat union of the offered tools. The runtime enforces it while sampling, so every call parses.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Literal, assert_never, cast

import msgspec

from outrider.providers.local.prompt import (
    SAY,
    CompactToolPrompt,
    FileNameSource,
    ProtocolKeywords,
    asks_how,
    asks_question,
    request_of,
    required_parameters,
)
from outrider.providers.local.question_topics import QuestionPlan
from outrider.types.ids import new_id
from outrider.types.partial_json import read_string
from outrider.types.parts import FilePart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import (
    Delta,
    InputDelta,
    OutputSchema,
    PartEnd,
    PartStart,
    Prompt,
    Request,
    TextDelta,
    ToolChoice,
    ToolSpec,
)

_SAY_HEAD = re.compile(rf'\s*\{{\s*"{SAY}"\s*:\s*"')
_VALUE_HEAD = re.compile(r'"(text|value)"\s*:\s*(?=("?))')

_ITEM_HEAD = re.compile(r'\s*,\s*"((?:[^"\\]|\\.)*)"\s*:\s*"')
_END = re.compile(r"\s*\}")

ReaderMode = Literal["head", "say", "text", "items", "value", "input", "plain", "over"]


class AnswerReader:
    """Decodes the JSON text of an answer incrementally; `keywords` is None for an answer that is plain text.

    Properties after the text of an answer become the items of a list.
    """

    def __init__(self, keywords: ProtocolKeywords | None) -> None:
        self._answer = keywords.answer if keywords else ""
        self._head = re.compile(
            rf'\s*[{{,]\s*"{keywords.tool if keywords else ""}"\s*:\s*"((?:[^"\\]|\\.)*)"\s*([,}}])\s*'
        )
        self._mode: ReaderMode = "head" if keywords else "plain"
        self._buffer = ""
        self._index = -1
        self._is_open = False
        self._has_items = False
        self.called = False

    def feed(self, text: str) -> Iterator[Delta]:
        self._buffer += text
        mode = None
        while self._buffer and mode != self._mode:
            mode = self._mode
            match mode:
                case "head":
                    yield from self._read_head()
                case "say" | "text":
                    yield from self._read_string()
                case "items":
                    yield from self._read_item()
                case "value":
                    yield from self._emit_raw(TextDelta, held=1)
                case "input":
                    yield from self._emit_raw(InputDelta)
                case "plain":
                    yield from self._emit_plain()
                case "over":
                    self._buffer = ""

    def finish(self, *, complete: bool) -> Iterator[Delta]:
        """Ends the open part; a call in an incomplete answer stays open, because its input is truncated."""
        if self._mode == "head" and self._buffer and self._index < 0:
            yield from self._emit_plain()
        if self._is_open and (complete or not self.called):
            yield from self._close_part()

    def _read_head(self) -> Iterator[Delta]:
        if match := _SAY_HEAD.match(self._buffer):
            yield from self._open_part("say", self._buffer[match.end() :])
        elif match := self._head.match(self._buffer):
            name, tail = json.loads(f'"{match[1]}"'), self._buffer[match.end() :]
            if name != self._answer:
                self.called = True
                yield from self._open_part("input", "{" + tail if match[2] == "," else "{}", name)
            elif value := _VALUE_HEAD.match(tail):
                yield from self._open_answer(value[1], value[2], tail[value.end() :])

    def _open_answer(self, name: str, quote: str, tail: str) -> Iterator[Delta]:
        if name == "value" and tail:
            yield from self._open_part("value", tail)
        elif name == "text" and quote:
            yield from self._open_part("text", tail[1:])

    def _open_part(self, mode: ReaderMode, buffered: str, tool: str = "") -> Iterator[Delta]:
        self._mode, self._buffer, self._is_open = mode, buffered, True
        self._index += 1
        yield PartStart(self._index, "tool", f"call_{new_id()}", tool) if tool else PartStart(self._index, "text")

    def _close_part(self, next_mode: ReaderMode = "over") -> Iterator[Delta]:
        self._mode, self._is_open = next_mode, False
        yield PartEnd(self._index)

    def _read_string(self) -> Iterator[Delta]:
        """Emits the decoded string; buffers an incomplete escape or surrogate pair."""
        text, length, ended = read_string(self._buffer)
        self._buffer = self._buffer[length + ended :]
        if text:
            yield TextDelta(self._index, text)
        if ended and self._mode == "say":
            yield from self._close_part("head")
        elif ended:
            self._mode = "items"

    def _read_item(self) -> Iterator[Delta]:
        if match := _ITEM_HEAD.match(self._buffer):
            self._mode, self._buffer = "text", self._buffer[match.end() :]
            gap, name = "\n" if self._has_items else "\n\n", json.loads(f'"{match[1]}"')
            self._has_items = True
            yield TextDelta(self._index, f"{gap}- {name}: ")
        elif _END.match(self._buffer):
            yield from self._close_part()

    def _emit_raw(self, delta: type[TextDelta] | type[InputDelta], held: int = 0) -> Iterator[Delta]:
        """Emits the buffer unchanged, without its last `held` characters (the brace that closes the object)."""
        text = self._buffer[: len(self._buffer) - held]
        self._buffer = self._buffer[len(text) :]
        if text:
            yield delta(self._index, text)

    def _emit_plain(self) -> Iterator[Delta]:
        if not self._is_open:
            yield from self._open_part("plain", self._buffer)
        yield TextDelta(self._index, self._buffer)
        self._buffer = ""


class RecentCalls:
    """The calls since the last user message.

    - `calls`: the latest first.
    - `request_text`: the text of the last user message.
    - `known_text`: `request_text` and the results since.
    - `is_question`: whether the message only asks for information.
    - `asks_how`: whether it asks how something is done.
    - `result_characters`: the length of the results since.
    """

    def __init__(self, prompt: Prompt) -> None:
        self.calls: list[ToolUsePart] = []
        self.request_text = ""
        results: list[str] = []
        for message in reversed(prompt):
            self.calls += [part for part in reversed(message.content) if isinstance(part, ToolUsePart)]
            results += [part.content for part in message.content if isinstance(part, ToolResultPart)]
            if text := request_of(message):
                self.request_text = text
                break
        self.known_text = "\n".join((self.request_text, *results))
        self.is_question = asks_question(self.request_text)
        self.asks_how = asks_how(self.request_text)
        self.result_characters = sum(map(len, results))

    def recent_values(self, tool: str, parameter: str) -> list[str]:
        """Returns the parameter's values in the uninterrupted run of calls of this tool at the end."""
        calls = takewhile(lambda call: call.tool_name == tool, self.calls)
        return [str(call.tool_input.get(parameter)) for call in calls]

    def count_looks(self, tool_prompt: CompactToolPrompt) -> int:
        """Returns the number of calls since the last one that was not read-only."""
        return len(list(takewhile(lambda call: tool_prompt.only_looks(call.tool_name), self.calls)))


_SENTENCE_END = re.compile(r"(?<=[.!?:])(?<!\n\d\.)(?<!\A\d\.)\s+|\n+")
_LIST_ITEM = re.compile(r"\s*(?:[-*•]|\d+\.)\s")
_FENCE = "```"
_ADDRESS = re.compile(r"https?://\S+")
_FILE_NAME = re.compile(
    r"(?<![\w/.@:-])(?:[\w.-]+/)*[\w-]*[A-Za-z_][\w-]*\.[A-Za-z]\w{0,9}\b|(?<![\w/.@:])(?:[\w.-]+/)+[\w.-]*"
)
_QUOTED_NAME = re.compile(r"`([^`\s]+)`|'([\w./-]*[._/(][\w./()-]*)'|\"([\w./-]*[._/(][\w./()-]*)\"")
_SYMBOL = re.compile(r"\b(?:[A-Za-z]+_\w+|[a-z]+[A-Z]\w*|[A-Z][a-z]+[A-Z]\w*|[A-Za-z_]\w*(?=\(\)))")
_NO_NAMES = frozenset({"e.g", "i.e", "etc", "and/or", "yes/no"})
_MIN_COMPARED_CHARACTERS = 20
_MAX_DROPPED_SENTENCES = 4  # a model that repeats or invents more than this does not return to the facts
# A command in a text: a program with one of the words that follow its name.
_COMMAND = re.compile(
    r"\b(?:npm|npx|yarn|pnpm|pip3?|pipx|poetry|uv|tox|nox|make|cmake|ninja|meson|cargo|rustup|go|mvn|gradle|bundle|gem|"
    r"composer|dotnet|swift|docker|git|brew|apt|apt-get|dnf|pacman|conda|python3?|node|deno|bun) "
    r"(?:install|add|i|ci|test|tests|run|build|get|start|check|exec|clean|clone|update|mod|vet|fmt|bench|compile|"
    r"package|sync|-[\w-]+)\b"
)
_SPAN = re.compile(r"`([^`\n]+)`")
_MARKS = re.compile(r"[\s\"',\[\]]+")


class FileNameCheck:
    """Passes those sentences of an answer whose file names, symbols and commands the model has seen, each once.

    A small model invents names. Text that only introduces something (a sentence that ends in a colon, the start of a
    code block) passes together with the text that follows it.

    - `known_text`: everything that was sent to the model in this conversation.
    - `has_file`: returns whether the workspace has a file of a name.
    - `max_characters`: the maximum length of the answer.
    - `example_words`: words in the examples of the prompt. A sentence with one of them is not about this workspace,
      unless the model has read the word there.
    - `max_sentences`: how many sentences may be outside of lists and code: a small model states what it knows in a few
      sentences, and then starts to invent. Further ones end the answer.
    - `has_items`: a list follows, so further sentences are left out instead.
    """

    def __init__(
        self,
        known_text: str,
        has_file: Callable[[str], bool],
        max_characters: int,
        example_words: Iterable[str] = (),
        max_sentences: int = 1_000,
        *,
        has_items: bool = False,
    ) -> None:
        self._has_items = has_items
        self._known_text = known_text
        self._known_words = _MARKS.sub(" ", known_text)
        self._lowered_text = known_text.lower()
        self._foreign_words = [word for word in example_words if word not in self._lowered_text]
        self._has_file = has_file
        self._remaining_characters = max_characters
        self._remaining_sentences = max_sentences
        self._buffer = ""
        self._passed: set[str] = set()
        self._gap = ""  # the white space after the last sentence that passed
        self._introduction = ""
        self._rejected_count = 0
        self._dropped_count = 0  # left out or repeated
        self._is_code = False
        self._is_item = False  # of a list
        self._has_code = False  # a line of the code block has passed

    @property
    def is_full(self) -> bool:
        has_all_sentences = self._remaining_sentences <= 0 and not self._has_items
        return self._remaining_characters <= 0 or has_all_sentences or self._dropped_count >= _MAX_DROPPED_SENTENCES

    def feed(self, text: str) -> str:
        """Returns the sentences that are complete now and pass."""
        self._buffer += text
        passed, start = "", 0
        for sentence_end in _SENTENCE_END.finditer(self._buffer, 0, max(len(self._buffer) - 1, 0)):
            passed += self._pass_sentence(self._buffer[start : sentence_end.start()], sentence_end[0])
            start = sentence_end.end()
        self._buffer = self._buffer[start:]
        return passed

    def drop_rest(self) -> None:
        """Drops the sentence that is not complete, because the answer was stopped in it."""
        self._buffer = ""
        self._rejected_count += not self._passed

    def finish(self) -> str:
        """Returns the remaining text, with a note for the user if sentences did not pass."""
        remaining, self._buffer = self._buffer, ""
        passed = self._pass_sentence(remaining, "") if remaining else ""
        if self._is_code and self._has_code:
            passed += f"\n{_FENCE}"
        if not self._rejected_count:
            return passed + ("" if _LIST_ITEM.match(self._introduction) else self._introduction)
        if not self._passed:
            return "I do not know: the files that I read do not answer this."
        statements = "a statement" if self._rejected_count == 1 else f"{self._rejected_count} statements"
        return f"{passed.rstrip()}\n\n(I left out {statements} with names that are in none of the files that I read.)"

    def _pass_sentence(self, sentence: str, gap: str) -> str:
        if self.is_full:
            return ""
        if sentence.lstrip().startswith(_FENCE):
            return self._pass_fence(sentence, gap)
        is_item = bool(_LIST_ITEM.match(sentence)) or (self._is_item and "\n" not in self._gap)
        if self._remaining_sentences <= 0 and not (is_item or self._is_code):
            self._gap = "\n\n"  # before the list that follows
            return ""
        compared = " ".join(sentence.split()).lower()
        is_repeated = len(compared) >= _MIN_COMPARED_CHARACTERS and compared in self._passed
        if is_repeated or not self._has_known_names(sentence):
            self._dropped_count += 1
            self._rejected_count += not is_repeated
            return ""
        self._is_item = is_item
        if sentence.endswith(":") and not self._is_code:
            self._introduce(sentence, gap)
            return ""
        if compared:
            self._passed.add(compared)
        self._has_code = self._is_code
        self._remaining_sentences -= not (self._is_code or self._is_item) and sentence.endswith((".", "!", "?"))
        return self._take_introduction() + self._spaced(sentence, gap)

    def _pass_fence(self, fence: str, gap: str) -> str:
        """Passes the two ends of a code block, unless nothing in it has passed."""
        self._is_code, was_code = not self._is_code, self._is_code
        if not was_code:
            self._has_code = False
            self._introduction += self._spaced(fence, gap)
            return ""
        if self._has_code:
            return self._spaced(fence, gap)
        self._introduction = ""
        return ""

    def _introduce(self, sentence: str, gap: str) -> None:
        """Holds a sentence back until something follows it. The next list item replaces one that nothing follows."""
        previous = self._introduction
        spaced = self._spaced(sentence, gap)
        if _LIST_ITEM.match(previous) and _LIST_ITEM.match(sentence):
            self._introduction = previous[: len(previous) - len(previous.lstrip())] + sentence
        else:
            self._introduction += spaced

    def _take_introduction(self) -> str:
        introduction, self._introduction = self._introduction, ""
        return introduction

    def _spaced(self, sentence: str, gap: str) -> str:
        self._remaining_characters -= len(sentence)
        previous_gap, self._gap = self._gap, gap
        return previous_gap + sentence

    def _has_known_names(self, sentence: str) -> bool:
        lowered = sentence.lower()
        return (
            all(map(self._is_known, find_names(sentence)))
            and all(address.rstrip(".,;:)>*`") in self._known_text for address in _ADDRESS.findall(sentence))
            and not any(word in lowered for word in self._foreign_words)
            and all(_MARKS.sub(" ", command).strip() in self._known_words for command in self._find_commands(sentence))
        )

    def _find_commands(self, sentence: str) -> Iterator[str]:
        """Yields the commands in code completely, and those in prose up to their first argument."""
        spans = [sentence] if self._is_code else _SPAN.findall(sentence)
        for span in spans:
            if _COMMAND.match(command := span.strip().removeprefix("$ ").removeprefix("sudo ")):
                yield command
        yield from _COMMAND.findall(_SPAN.sub(" ", sentence))

    def _is_known(self, name: str) -> bool:
        if name in self._known_text or self._has_file(name):
            return True
        return name.isalpha() and name.lower() in self._lowered_text  # GitHub, for github.com


def find_names(text: str) -> Iterator[str]:
    """Yields what looks like a file name or a symbol: a word with an extension or a slash, a quoted word, a word with
    an underscore or with capitals inside, or a word before parentheses."""
    text = _ADDRESS.sub(" ", text)
    quoted = ("".join(groups) for groups in _QUOTED_NAME.findall(text))
    names = (*_FILE_NAME.findall(text), *quoted, *_SYMBOL.findall(text))
    for name in dict.fromkeys(name.strip(".,:;()*") for name in names):
        if len(name) > 1 and name not in _NO_NAMES and any(character.isalpha() for character in name):
            yield name


def seen_text(prompt: Prompt, tool_prompt: CompactToolPrompt) -> str:
    """Returns the texts, the calls and the results of a conversation, as they are and as the model has seen them."""
    texts: list[str] = []
    tools: dict[str, str] = {}
    for message in prompt:
        for part in message.content:
            match part:
                case TextPart(text=text) if message.role == "user":
                    texts.append(text)
                case ToolResultPart(content=content):
                    texts += (content, tool_prompt.render_result(tools.get(part.tool_use_id, ""), content))
                case ToolUsePart(tool_input=arguments):
                    tools[part.tool_id] = part.tool_name
                    texts += (str(value) for value in arguments.values())
                case TextPart() | ReasoningPart() | FilePart():
                    continue
                case _:
                    assert_never(part)
    return "\n".join(texts)


_MAX_REPEATED_CALLS = 2  # calls with the same subject in a row


class ToolOffer(msgspec.Struct, frozen=True):
    """A tool that the model may call. `paths` are the allowed values of its file parameter, () for any. `arguments`, if
    there are any, are the only allowed ones."""

    tool: ToolSpec
    paths: Sequence[str] = ()
    arguments: Mapping[str, str | int] = {}


def select_tools(request: Request, tool_prompt: CompactToolPrompt, file_names: FileNameSource) -> list[ToolOffer]:
    """Returns the tools that the model may call next; in mode "auto", without calls that only repeat earlier ones."""
    choice, paths = request.settings.tool_choice, file_names.list_files(request)
    match choice.mode:
        case "none":
            return []
        case "required":
            return [ToolOffer(tool, paths) for tool in request.tools]
        case "tool":
            return [ToolOffer(tool, paths) for tool in request.tools if tool.name == choice.tool]
        case "auto":
            latest = RecentCalls(request.prompt)
            planned = _offer_plan(request, tool_prompt, file_names.plan_question(request, latest.request_text), latest)
            if planned is not None:
                return planned
            if latest.is_question and (suggested := file_names.suggest_files(request, latest.request_text)):
                likely, paths = suggested, [path for path in paths if path in suggested] or paths
            else:
                likely = file_names.match_files(request, latest.known_text) if latest.calls else ()
            offers = (_offer_tool(tool, tool_prompt, latest, paths, likely) for tool in request.tools)
            return [offer for offer in offers if offer is not None]
        case _:
            assert_never(choice.mode)


def _offer_plan(
    request: Request, tool_prompt: CompactToolPrompt, plan: QuestionPlan, latest: RecentCalls
) -> list[ToolOffer] | None:
    """Returns the next look of a plan. After the last one, returns the tools that neither look nor act; returns None if
    the plan covers only the first looks, because the question has no known topic."""
    offered = {tool.name: tool for tool in request.tools}
    looks = [look for look in plan.looks if look.tool in offered]
    for look in looks[len(latest.calls) :]:
        return [ToolOffer(offered[look.tool], (), look.arguments)]
    if not looks or not plan.form:
        return None
    return [ToolOffer(tool) for tool in request.tools if tool.name not in tool_prompt.tools]


def _offer_tool(
    tool: ToolSpec, tool_prompt: CompactToolPrompt, latest: RecentCalls, paths: Sequence[str], likely: Sequence[str]
) -> ToolOffer | None:
    compact = tool_prompt.tools.get(tool.name)
    if compact and (_has_seen_enough(tool_prompt, latest) if compact.shows else compact.changes and latest.is_question):
        return None
    if compact and compact.acts and latest.asks_how:
        return None
    recent_values = (
        latest.recent_values(tool.name, compact.subject_parameter) if compact and compact.subject_parameter else []
    )
    if compact and recent_values and paths and compact.subject_parameter == compact.file_parameter:
        unread = [
            path for path in paths if path not in recent_values and (path in likely or path in latest.request_text)
        ]
        return ToolOffer(tool, unread) if unread else None
    goes_in_circles = len(recent_values) >= _MAX_REPEATED_CALLS and len(set(recent_values[:_MAX_REPEATED_CALLS])) == 1
    return None if goes_in_circles else ToolOffer(tool, paths)


def _has_seen_enough(tool_prompt: CompactToolPrompt, latest: RecentCalls) -> bool:
    looks = latest.count_looks(tool_prompt)
    return looks >= tool_prompt.max_looks or (
        looks == len(latest.calls) and latest.result_characters >= tool_prompt.max_looked_characters
    )


def has_to_look(
    request: Request, tool_prompt: CompactToolPrompt, file_names: FileNameSource, offered: Sequence[ToolOffer]
) -> bool:
    """Returns whether the model may not answer yet: the request is about the workspace, and nothing was looked at."""
    if request.settings.tool_choice.mode != "auto" or not any(
        tool_prompt.only_looks(offer.tool.name) for offer in offered
    ):
        return False
    if any(offer.arguments for offer in offered):
        return True
    latest = RecentCalls(request.prompt)
    return not latest.calls and file_names.refers_to_workspace(request, latest.request_text)


# The separators of the prompt encoder: generated calls must equal the bytes that are sent back (prefix cache).
_SEPARATORS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# The grammar cannot enforce other keywords; the tool validates them when it is called.
_ENFORCED_KEYWORDS = (
    "type", "enum", "const", "required", "additionalProperties",
    "minimum", "maximum", "minItems", "maxItems", "minLength", "maxLength",
)  # fmt: skip


# The purpose of a file, as a sentence. Otherwise a small model may copy the definitions of the file.
_PURPOSE = "^(It|This file|The) [^{}]{12,300}$"


class CallSchema:
    """Builds the answer schema for one set of tools."""

    def __init__(self, tools: tuple[ToolSpec, ...], tool_prompt: CompactToolPrompt) -> None:
        self._tool_prompt = tool_prompt
        self.keywords = ProtocolKeywords.for_tools(tools)

    def answer_schema(
        self,
        offered: Sequence[ToolOffer],
        choice: ToolChoice,
        output: OutputSchema | None,
        *,
        has_to_look: bool = False,
        described_files: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Returns the schema of the next step; an answer has an item for each of `described_files`."""
        definitions: dict[str, Any] = {}
        branches = [
            self._fixed_branch(offer) if offer.arguments else self._tool_branch(offer.tool, offer.paths, definitions)
            for offer in offered
        ]
        if choice.mode in ("auto", "none") and not has_to_look:
            branches.append(self._answer_branch(output, definitions, described_files))
        schema: dict[str, Any] = {"x-guidance": _SEPARATORS, "anyOf": branches}
        return schema | {"$defs": definitions} if definitions else schema

    def _tool_branch(self, spec: ToolSpec, paths: Sequence[str], definitions: dict[str, Any]) -> dict[str, Any]:
        definitions |= _collect_definitions(spec.parameters, spec.name)
        offered = {
            name: enforceable_schema(part, spec.name)
            for name, part in self._tool_prompt.offered_parameters(spec).items()
        }
        if paths and (existing := self._tool_prompt.file_parameter(spec)) in offered:
            offered[existing] = {"enum": list(paths)}
        required = [name for name in offered if name in required_parameters(spec)]
        return self._object_schema(spec.name, offered, required)

    def _fixed_branch(self, offer: ToolOffer) -> dict[str, Any]:
        fixed = {name: {"const": value} for name, value in offer.arguments.items()}
        return self._object_schema(offer.tool.name, fixed, list(fixed))

    def _answer_branch(
        self, output: OutputSchema | None, definitions: dict[str, Any], described_files: Sequence[str]
    ) -> dict[str, Any]:
        if output is None:
            purpose = {"type": "string", "pattern": _PURPOSE}
            texts = {"text": {"type": "string"}, **dict.fromkeys(described_files, purpose)}
            return self._object_schema(self.keywords.answer, texts, list(texts))
        definitions |= _collect_definitions(output.schema, "output")
        return self._object_schema(
            self.keywords.answer, {"value": enforceable_schema(output.schema, "output")}, ["value"]
        )

    def _object_schema(self, name: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
        tool_keyword = self.keywords.tool
        return {
            "type": "object",
            "properties": {**self._say_property(name), tool_keyword: {"const": name}, **properties},
            "required": [tool_keyword, *required],
            "additionalProperties": False,
        }

    def _say_property(self, name: str) -> dict[str, Any]:
        return {SAY: {"type": "string"}} if self._tool_prompt.allows_text and name != self.keywords.answer else {}


def build_grammar(schema: dict[str, Any]) -> str:
    """Returns an llguidance grammar, which enforces the separators; llama.cpp's own schema conversion would allow
    unlimited white space."""
    return f"%llguidance {{}}\nstart: %json {msgspec.json.encode(schema).decode()}"


def output_schema(output: OutputSchema) -> dict[str, Any]:
    """Returns the schema for an answer that is only the output value."""
    definitions = _collect_definitions(output.schema, "output")
    schema = {"x-guidance": _SEPARATORS, **enforceable_schema(output.schema, "output")}
    return schema | {"$defs": definitions} if definitions else schema


def enforceable_schema(schema: Any, owner: str) -> dict[str, Any]:
    """Returns the enforceable part of a schema; references are renamed to the definitions of the union."""
    if not isinstance(schema, dict):
        return {}
    keywords = cast("dict[str, Any]", schema)
    if isinstance(reference := keywords.get("$ref"), str):
        return {"$ref": f"#/$defs/{owner}.{reference.rpartition('/')[2]}"}
    result = {name: keywords[name] for name in _ENFORCED_KEYWORDS if name in keywords}
    if isinstance(result.get("additionalProperties"), dict):
        result["additionalProperties"] = enforceable_schema(result["additionalProperties"], owner)
    if isinstance(choices := keywords.get("anyOf") or keywords.get("oneOf"), list):
        result["anyOf"] = [enforceable_schema(choice, owner) for choice in cast("list[Any]", choices)]
    if isinstance(properties := keywords.get("properties"), dict):
        subschemas = cast("dict[str, Any]", properties)
        result["properties"] = {name: enforceable_schema(part, owner) for name, part in subschemas.items()}
        result.setdefault("additionalProperties", False)
    if "items" in keywords:
        result["items"] = enforceable_schema(keywords["items"], owner)
    return result


def _collect_definitions(schema: dict[str, Any], owner: str) -> dict[str, Any]:
    definitions: dict[str, Any] = {**(schema.get("definitions") or {}), **(schema.get("$defs") or {})}
    return {f"{owner}.{name}": enforceable_schema(definition, owner) for name, definition in definitions.items()}
