"""Compact prompts for small models: short tool descriptions, few parameters, and names of existing files."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, Protocol, assert_never

import msgspec

from outrider.providers.local.question_topics import QuestionPlan, ReadCall
from outrider.providers.local.runtime import PromptPrefix
from outrider.types.parts import FilePart, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, Request, ToolSpec

ANSWER, TOOL, SAY = "answer", "tool", "say"
_ALTERNATIVE_KEYWORDS = {ANSWER: "reply", TOOL: "use_tool"}  # used when a tool or parameter has the same name
_MAX_DESCRIPTION_CHARACTERS = 160
_COMMAND_WORD = re.compile(r"(?<![\w-])[A-Za-z]{5,}")
_HOW_TO = re.compile(
    r"\s*(?:and |so |please )?(?:how (?:do|does|can|could|should|would|to)\b|what (?:is|are) the steps)", re.IGNORECASE
)

# The beginning of a request that only asks for information.
_QUESTION = re.compile(
    r"\s*(?:and |so |please )?"
    r"(?:(?:can|could|would|will) you (?:please )?(?=explain|describe|summari[sz]e|tell|show|list))?"
    r"(?:what|which|where|who|whose|why|how|when|is|are|does|do|did|has|have|was|were|explain|describe|summari[sz]e|"
    r"outline|tell|show|list|give me an overview)\b",
    re.IGNORECASE,
)


class CompactTool(msgspec.Struct, frozen=True, kw_only=True):
    """The compact form of a tool.

    - `description`: the text that replaces the tool's description.
    - `parameters`: the offered parameters, in order.
    - `file_parameter`: the parameter that must name an existing file.
    - `subject_parameter`: calls in a row with the same value of this parameter are treated as a loop.
    - `shows`: the tool is read-only, and its result has the names or facts that a question asks for.
    - `changes`: the tool changes files, and is not offered for a question.
    - `acts`: the tool runs something, and is not offered for a question that asks how that is done.
    - `render_result`: simplifies a result for a small model.
    """

    description: str
    parameters: tuple[str, ...]
    file_parameter: str = ""
    subject_parameter: str = ""
    shows: Literal["", "names", "facts"] = ""
    changes: bool = False
    acts: bool = False
    render_result: Callable[[str], str] | None = None


class CompactToolPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt for tools. Tools without a compact form are offered by their schema.

    - `tools`: compact forms by tool name.
    - `examples`: included for the tools that are offered.
    - `max_result_characters`, `max_system_characters`, `max_answer_characters`: longer texts are shortened.
    - `max_answer_sentences`: the sentences of an answer outside of lists and code.
    - `max_introduction_sentences`: the sentences before a list of files.
    - `max_looks`, `max_looked_characters`: after this many read-only calls in a row, or results of this length, the
      model has to act or to answer; otherwise a small model reads one file after another.
    - `allows_text`: a call may start with a text to the user.
    """

    tools: Mapping[str, CompactTool] = {}
    examples: tuple[tuple[str, dict[str, Any]], ...] = ()
    max_result_characters: int = 6_000
    max_system_characters: int = 6_000
    max_answer_characters: int = 2_000
    max_answer_sentences: int = 5
    max_introduction_sentences: int = 3
    max_looks: int = 3
    max_looked_characters: int = 6_000
    allows_text: bool = False

    def describe_tool(self, spec: ToolSpec) -> str:
        compact = self.tools.get(spec.name)
        return compact.description if compact else _first_sentence(spec.description)

    def offered_parameters(self, spec: ToolSpec) -> dict[str, Any]:
        """Returns the offered properties by name; for unknown tools the required ones first, then the others."""
        properties = schema_properties(spec)
        compact = self.tools.get(spec.name)
        if compact is not None:
            return {name: properties[name] for name in compact.parameters if name in properties}
        required = required_parameters(spec)
        return {name: properties[name] for name in sorted(properties, key=lambda name: name not in required)}

    def file_parameter(self, spec: ToolSpec) -> str:
        compact = self.tools.get(spec.name)
        return compact.file_parameter if compact else ""

    def only_looks(self, tool: str) -> bool:
        compact = self.tools.get(tool)
        return compact is not None and bool(compact.shows)

    def shown_by(self, tools: Sequence[str]) -> str:
        """Returns what the results of these tools show, "" if one of the tools is not read-only."""
        shown = [compact.shows if (compact := self.tools.get(tool)) else "" for tool in tools]
        return " and ".join(dict.fromkeys(shown)) if all(shown) else ""

    def list_example_words(self) -> set[str]:
        """Returns the words of commands in the examples, which a small model repeats as if they were the user's."""
        calls = (call for _, call in self.examples if (compact := self.tools.get(call[TOOL])) and compact.acts)
        texts = (str(value) for call in calls for name, value in call.items() if name != TOOL)
        return {word.lower() for text in texts for word in _COMMAND_WORD.findall(text)}

    def render_result(self, tool: str, content: str) -> str:
        compact = self.tools.get(tool)
        return compact.render_result(content) if compact and compact.render_result else content

    def clip_result(self, content: str) -> str:
        return clip_text(content, self.max_result_characters)


class ProtocolKeywords(msgspec.Struct, frozen=True):
    """The two keywords of the JSON protocol, chosen so that they differ from all tool and parameter names."""

    answer: str
    tool: str

    @classmethod
    def for_tools(cls, tools: tuple[ToolSpec, ...]) -> "ProtocolKeywords":
        parameters = {name for spec in tools for name in schema_properties(spec)}
        answer_taken = any(spec.name == ANSWER for spec in tools)
        return cls(
            _ALTERNATIVE_KEYWORDS[ANSWER] if answer_taken else ANSWER,
            _ALTERNATIVE_KEYWORDS[TOOL] if TOOL in parameters else TOOL,
        )


def schema_properties(spec: ToolSpec) -> dict[str, Any]:
    return spec.parameters.get("properties") or {}


def required_parameters(spec: ToolSpec) -> set[str]:
    return set(spec.parameters.get("required") or ())


def clip_text(text: str, max_characters: int) -> str:
    """Shortens a long text to its head and tail; the end of an output often contains the result."""
    if len(text) <= max_characters:
        return text
    head, tail = max_characters * 3 // 4, max_characters // 4
    return f"{text[:head]}\n[{len(text) - head - tail} characters left out]\n{text[-tail:]}"


def _first_sentence(text: str) -> str:
    sentence = text.strip().partition("\n")[0].partition(". ")[0].strip()
    return sentence if len(sentence) <= _MAX_DESCRIPTION_CHARACTERS else f"{sentence[:_MAX_DESCRIPTION_CHARACTERS]}…"


def build_prefix(system: str, tools: tuple[ToolSpec, ...], tool_prompt: CompactToolPrompt) -> PromptPrefix | None:
    """Builds the shared prefix: instructions, tools and examples; the rest of the system text describes the workspace.

    Examples are messages of a conversation, which small models follow better than descriptions.
    """
    instructions, gap, workspace_text = clip_text(system.strip(), tool_prompt.max_system_characters).partition("\n\n")
    if not tools:
        text = system.strip()
        return PromptPrefix((("system", text),)) if text else None
    keywords = ProtocolKeywords.for_tools(tools)
    system_text = "\n\n".join(filter(None, (instructions, _tool_section(tools, tool_prompt, keywords))))
    return PromptPrefix(
        (("system", system_text), *_example_messages(tools, tool_prompt, keywords)), workspace_text + gap
    )


def _tool_section(tools: tuple[ToolSpec, ...], tool_prompt: CompactToolPrompt, keywords: ProtocolKeywords) -> str:
    lines = [_tool_line(spec, tool_prompt, keywords) for spec in tools]
    lines.append(
        f"{encode_object({keywords.tool: keywords.answer, 'text': '…'})} says something to the user and ends your work"
    )
    return _protocol_prompt().format(tools="\n".join(lines), answer=keywords.answer)


def _tool_line(spec: ToolSpec, tool_prompt: CompactToolPrompt, keywords: ProtocolKeywords) -> str:
    shape = {name: "…" for name in tool_prompt.offered_parameters(spec)}
    return f"{encode_object({keywords.tool: spec.name, **shape})} {tool_prompt.describe_tool(spec)}"


def _example_messages(
    tools: tuple[ToolSpec, ...], tool_prompt: CompactToolPrompt, keywords: ProtocolKeywords
) -> Iterator[tuple[str, str]]:
    offered = {spec.name for spec in tools} | {keywords.answer}
    for user_text, call in tool_prompt.examples:
        if call[TOOL] in offered:
            arguments = {name: value for name, value in call.items() if name != TOOL}
            yield from (("user", user_text), ("assistant", encode_object({keywords.tool: call[TOOL], **arguments})))


def encode_object(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False)


@cache
def _protocol_prompt() -> str:
    return Path(__file__).with_name("compact.md").read_text(encoding="utf-8").strip()


_MAX_REMINDER_CHARACTERS = 400  # of the request, repeated after each result


class ChatTranscript:
    """Encodes the messages of a request.

    `keywords` is None if no tools are offered. Each tool result ends with the request again, because small models
    lose track of it after long results. `workspace_text` is put before the first message.
    """

    def __init__(
        self,
        keywords: ProtocolKeywords | None,
        tool_prompt: CompactToolPrompt,
        request: Request,
        file_names: "FileNameSource",
        workspace_text: str = "",
    ) -> None:
        self._keywords = keywords
        self._tool_prompt = tool_prompt
        self._request = request
        self._file_names = file_names
        self._workspace_text = workspace_text
        self._calls: dict[str, ToolUsePart] = {}
        self._request_texts: dict[int, str] = {}
        self._first = 0

    def encode_messages(self) -> bytes:
        """Returns all messages as comma-separated JSON.

        The prompt caches earlier messages, so files that are created or deleted do not change the evaluated prefix.
        """
        request_text, prompt = "", self._request.prompt
        for message in prompt:
            request_text = request_of(message) or request_text
            self._request_texts[id(message)] = request_text
            self._calls |= {part.tool_id: part for part in message.content if isinstance(part, ToolUsePart)}
        self._first = id(prompt[0]) if len(prompt) else 0
        keywords = self._keywords
        form = f"local {keywords.tool} {keywords.answer}" if keywords else "local"
        return bytes(prompt.encoded(form, self._encode_message))

    def _encode_message(self, message: ModelMessage) -> bytes:
        content = (
            self._render_answer(message)
            if message.role == "assistant"
            else "\n\n".join(self._render_user_texts(message))
        )
        if self._workspace_text and id(message) == self._first:
            content = f"{self._workspace_text}{content}"
        return msgspec.json.encode({"role": message.role, "content": content})

    def _render_answer(self, message: ModelMessage) -> str:
        text = "\n\n".join(part.text for part in message.content if isinstance(part, TextPart) and part.text.strip())
        keywords = self._keywords or ProtocolKeywords.for_tools(())
        calls = [_to_call_object(part, keywords) for part in message.content if isinstance(part, ToolUsePart)]
        if not calls:
            return encode_object({keywords.tool: keywords.answer, "text": text}) if self._keywords else text
        first: dict[str, Any] = {SAY: text} if text else {}
        return "\n".join(encode_object(call) for call in [first | calls[0], *calls[1:]])

    def _render_user_texts(self, message: ModelMessage) -> Iterator[str]:
        for part in message.content:
            match part:
                case TextPart(text=text):
                    yield text
                case ToolResultPart():
                    yield self._render_result(part, self._request_texts.get(id(message), ""))
                case FilePart(mime=mime, filename=name):
                    yield f"(a file is attached that you cannot see: {name or 'without a name'}, {mime})"
                case ToolUsePart() | ReasoningPart():
                    pass
                case _:
                    assert_never(part)
        yield from self._render_reminder(message)

    def _render_result(self, result: ToolResultPart, request_text: str) -> str:
        call = self._calls.get(result.tool_use_id)
        tool = call.tool_name if call else "the tool"
        content = self._tool_prompt.render_result(tool, result.content)
        if call is not None and not result.is_error:
            content = self._file_names.focus_result(
                self._request, request_text, ReadCall(tool, call.tool_input), content
            )
        return f"{tool} {'failed' if result.is_error else 'gave'}:\n{self._tool_prompt.clip_result(content)}"

    def _render_reminder(self, message: ModelMessage) -> Iterator[str]:
        request_text = self._request_texts.get(id(message), "")
        if not self._keywords or not request_text:
            return
        plan = self._file_names.plan_question(self._request, request_text)
        if not request_of(message):
            results = (part for part in message.content if isinstance(part, ToolResultPart))
            calls = (self._calls.get(part.tool_use_id) for part in results if not part.is_error)
            tools = [call.tool_name if call else "" for call in calls]
            yield request_reminder(request_text, self._tool_prompt.shown_by(tools), plan.form)
        elif plan.facts:
            yield f"({' '.join(plan.facts)})"
        elif names := self._file_names.suggest_files(self._request, request_text):
            yield files_hint(names)


def request_of(message: ModelMessage) -> str:
    """Returns the last text of the user in a message, without the texts that the engine has added. A message may also
    have an earlier request that was interrupted."""
    if message.role != "user":
        return ""
    texts = [part.text for part in message.content if isinstance(part, TextPart) and not part.synthetic]
    return texts[-1] if texts else ""


def asks_how(request_text: str) -> bool:
    """Returns whether a request asks how something is done."""
    return _HOW_TO.match(request_text) is not None


def asks_question(request_text: str) -> bool:
    """Returns whether a request only asks for information."""
    return _QUESTION.match(request_text) is not None


def files_hint(names: Sequence[str]) -> str:
    """Returns the note after a request that seems to refer to files."""
    return f"(These files exist, and must be read before they are changed: {', '.join(names)})"


def request_reminder(request_text: str, shown: str = "", form: str = "") -> str:
    """Returns the note after each tool result. `shown` names the content of the result of a read-only tool: without
    it, a small model counts the files of a listing and does not name them. `form` describes the answer."""
    reminder = f"The request was: {request_text[:_MAX_REMINDER_CHARACTERS]}"
    if form:
        return f"{reminder}\nAnswer only with what is above. {form}"
    answer = f"If this answers it, answer with the {shown} above." if shown else "If all of it is done, answer."
    return f"{reminder}\n{answer} Otherwise: what is the next step?"


def _to_call_object(use: ToolUsePart, keywords: ProtocolKeywords) -> dict[str, Any]:
    return {keywords.tool: use.tool_name, **use.tool_input}


class FileNameSource(Protocol):
    """Provides the names of workspace files for prompts and grammars."""

    def list_files(self, request: Request) -> Sequence[str]:
        """Returns all files that the model may name; empty if there are too many."""
        ...

    def match_files(self, request: Request, text: str) -> Sequence[str]:
        """Returns the few files that a text may refer to."""
        ...

    def suggest_files(self, request: Request, text: str) -> Sequence[str]:
        """Returns the files to read for a request: those that it may refer to, else those that describe the whole."""
        ...

    def has_file(self, request: Request, name: str) -> bool:
        """Returns whether the workspace has a file or folder of this name."""
        ...

    def refers_to_workspace(self, request: Request, text: str) -> bool:
        """Returns whether a request cannot be answered without a look at the files."""
        ...

    def plan_question(self, request: Request, text: str) -> QuestionPlan:
        """Returns how a question is answered; an empty plan if the model has to choose where to look."""
        ...

    def focus_result(self, request: Request, text: str, look: ReadCall, content: str) -> str:
        """Returns the part of a result that matters for a question."""
        ...


class NoFileNames:
    """A source without files, for clients that have no workspace."""

    def list_files(self, request: Request) -> Sequence[str]:
        return ()

    def match_files(self, request: Request, text: str) -> Sequence[str]:
        return ()

    def suggest_files(self, request: Request, text: str) -> Sequence[str]:
        return ()

    def has_file(self, request: Request, name: str) -> bool:
        return False

    def refers_to_workspace(self, request: Request, text: str) -> bool:
        return False

    def plan_question(self, request: Request, text: str) -> QuestionPlan:
        return QuestionPlan()

    def focus_result(self, request: Request, text: str, look: ReadCall, content: str) -> str:
        return content


_LISTING_QUESTION = "Which files are there?"
_PAINT_FILE = "colour = blue\nowner = Kim"
_AREA_FILE = "def area(width, height):\n    return width {} height"
_FAILING_TEST = "The test in test_area.py fails. Find the bug, mend it and run the test."
_SIZE = re.compile(r" \([\d,]+ bytes\)$", re.MULTILINE)
_LINE_NUMBER = re.compile(r"^ *\d+\t", re.MULTILINE)


def strip_line_numbers(content: str) -> str:
    """Removes line numbers from file content; a small model would write them back into the file."""
    return _LINE_NUMBER.sub("", content)


def flatten_listing(content: str) -> str:
    """Returns a listing as paths: a small model does not combine the names of nested folders, and counts sizes instead
    of naming the files. Leaves out the version control folder."""
    folders: list[str] = []
    paths: list[str] = []
    for line in _SIZE.sub("", content).splitlines():
        name = line.lstrip(" ")
        if not name or name == ".git/":
            continue
        depth = (len(line) - len(name)) // 2
        path = "".join(folders[:depth]) + name
        if depth and paths and paths[-1] == "".join(folders[:depth]):
            paths.pop()  # its entries name the folder
        folders[depth:] = [name] if name.endswith("/") else []
        paths.append(path)
    return "\n".join(paths)


_COMPACT_TOOLS: Final = {
    "list": CompactTool(
        description="shows the names of the files in a folder",
        parameters=("path",),
        subject_parameter="path",
        shows="names",
        render_result=flatten_listing,
    ),
    "read": CompactTool(
        description="shows what is in a file",
        parameters=("file_path",),
        file_parameter="file_path",
        subject_parameter="file_path",
        shows="facts",
        render_result=strip_line_numbers,
    ),
    "grep": CompactTool(
        description="finds the lines of all files that hold a text",
        parameters=("pattern",),
        subject_parameter="pattern",
        shows="facts",
    ),
    "glob": CompactTool(
        description="finds files by a pattern of their names",
        parameters=("pattern",),
        subject_parameter="pattern",
        shows="names",
    ),
    "write": CompactTool(
        description="writes a file: its whole new content, from the first line to the last",
        parameters=("file_path", "content"),
        subject_parameter="file_path",
        changes=True,
    ),
    "edit": CompactTool(
        description="replaces a piece of a file",
        parameters=("file_path", "old_string", "new_string"),
        file_parameter="file_path",
        changes=True,
    ),
    "shell": CompactTool(
        description="runs a command, such as a test",
        parameters=("command",),
        subject_parameter="command",
        acts=True,
    ),
}


def _result_message(tool: str, content: str, request_text: str) -> str:
    shown = compact.shows if (compact := _COMPACT_TOOLS.get(tool)) else ""
    return f"{tool} gave:\n{content}\n\n{request_reminder(request_text, shown)}"


LOCAL_TOOL_PROMPT: Final = CompactToolPrompt(
    tools=_COMPACT_TOOLS,
    examples=(
        ("Hello!", {"tool": "answer", "text": "Hello! What shall I look at?"}),
        (_LISTING_QUESTION, {"tool": "list", "path": "."}),
        (
            _result_message("list", "brushes/flat.txt\nbrushes/round.txt\npaint.txt", _LISTING_QUESTION),
            {"tool": "answer", "text": "The files are paint.txt, brushes/flat.txt and brushes/round.txt."},
        ),
        (f"What does the app do?\n\n{files_hint(['src/app.py'])}", {"tool": "read", "file_path": "src/app.py"}),
        ("Where is the port set?", {"tool": "grep", "pattern": "port"}),
        ("Which version of node is this?", {"tool": "shell", "command": "node --version"}),
        ("Create notes.txt with the line hello.", {"tool": "write", "file_path": "notes.txt", "content": "hello\n"}),
        (f"Who owns the paint?\n\n{files_hint(['paint.txt'])}", {"tool": "read", "file_path": "paint.txt"}),
        (_result_message("read", _PAINT_FILE, "Who owns the paint?"), {"tool": "answer", "text": "Kim owns it."}),
        (f"{_FAILING_TEST}\n\n{files_hint(['test_area.py', 'area.py'])}", {"tool": "read", "file_path": "area.py"}),
        (
            _result_message("read", _AREA_FILE.format("+"), _FAILING_TEST),
            {"tool": "write", "file_path": "area.py", "content": f"{_AREA_FILE.format('*')}\n"},
        ),
        (
            _result_message("write", "Overwrote area.py (2 lines).", _FAILING_TEST),
            {"tool": "shell", "command": "python -m pytest -q"},
        ),
        (
            _result_message("shell", "1 passed in 0.02s", _FAILING_TEST),
            {"tool": "answer", "text": "area.py added where it should multiply. It is mended, and the test passes."},
        ),
    ),
)
