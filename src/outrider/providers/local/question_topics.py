"""The topics of questions about a project: where each is answered, and which lines of a long file matter for it.

A small model chooses badly where to look. For a question with a known topic the looks are chosen here.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Final, Literal, cast

import msgspec

Place = Literal["list", "search", "readme", "manifest", "license", "contributing", "sources"]
MAX_LOOKS: Final = 4
_MAX_READ_SOURCES, _MAX_DESCRIBED_SOURCES = 3, 4
_MAX_LISTED_FILES = 60  # a deeper listing would be longer than a small model reads reliably
_MAX_DEPTH = 3
_MAX_READ_BYTES = 100_000
_MAX_NAMED = 20


class ReadCall(msgspec.Struct, frozen=True):
    """A read-only call: a tool and its arguments."""

    tool: str
    arguments: Mapping[str, str | int]


class QuestionPlan(msgspec.Struct, frozen=True):
    """How a question is answered: the read-only calls that it needs, facts about the project, the form of the answer,
    and the files whose purpose it states."""

    looks: Sequence[ReadCall] = ()
    facts: Sequence[str] = ()
    form: str = ""
    described_files: Sequence[str] = ()


class QuestionTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic of questions.

    - `question`: matches such a question.
    - `places`: are read in this order.
    - `fallback_places`: are read if the project has none of `places`.
    - `lines`: matches the lines of a long file that matter.
    - `search`: the pattern for the place "search", without backslashes and quotes, which the runtime does not reproduce
      in a constant.
    - `empty_answer`: the answer if the search has no match, or if only the manifest would answer and it is missing.
    - `command`: the kind of command that answers the question.
    - `form`: describes the answer.
    - `describes`: the answer has an item for each of these files, since a small model otherwise describes only the last
      file that it read.
    """

    question: re.Pattern[str]
    places: tuple[Place, ...]
    fallback_places: tuple[Place, ...] = ()
    lines: re.Pattern[str] | None = None
    search: str = ""
    empty_answer: str = ""
    command: Literal["", "test", "install", "build", "run"] = ""
    form: str = ""
    describes: Literal["", "main files", "sources"] = ""


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(patterns)})\b", re.IGNORECASE)


_DEFINITION = re.compile(
    r"^\s*(?:export |default |pub(?:\([a-z]+\))? |public |private |protected |static |abstract |async |unsafe |final )*"
    r"(?:class|def|fn|func|function|struct|enum|union|trait|interface|type|typedef|impl|module|namespace|object)\b"
    r"|^\s*export\b|^(?:static |inline |extern |const |unsigned )*[A-Za-z_]\w*[\s*]+\w+\([^;]*\)\s*\{?$"
    r"|^#define \w+\(|^package \w+|^module\.exports"
)
_TOPICS: Final = (
    QuestionTopic(
        question=_any(
            r"to-?dos?", "fixmes?", "left to do", "left to be done", "unfinished", "incomplete", "remaining work"
        ),
        places=("search",),
        search="TODO|FIXME|XXX|HACK",
        empty_answer="No file has a TODO, FIXME, XXX or HACK: the code notes nothing that is left to do.",
        form="Say what is left to do and in which file, or that nothing is.",
    ),
    QuestionTopic(
        question=re.compile(
            r"\b(?:which|what|list|show|name)\b[^.?]*\b(?:files|folders|directories)\b"
            r"(?: (?:are|is|do|does|in|here|there|exist|of|we|you|I|this|the|it|have|has|contains?|\w*project|repo\w*"
            r"|folder|directory|workspace))*\W*$",
            re.IGNORECASE,
        ),
        places=("list",),
        form="Name all of these files.",
    ),
    QuestionTopic(
        question=_any("licen[sc]es?", "licen[sc]ed", "licensing", "copyright"),
        places=("manifest", "license", "readme"),
        lines=_any("licen[sc]e", "copyright"),
        form="Name the license.",
    ),
    QuestionTopic(
        question=re.compile(r"\bwho (?:wrote|made|maintains|created|is the author)\b|\bauthors?\b", re.IGNORECASE),
        places=("manifest", "license", "readme"),
        lines=re.compile(r"author|maintain|copyright|contribut|written by|created by", re.IGNORECASE),
        form="Name the authors.",
    ),
    QuestionTopic(
        question=_any("dependenc(?:y|ies)", "depends? on", "requirements?", "(?:libraries|packages) does it use"),
        places=("manifest",),
        fallback_places=("readme", "sources"),
        empty_answer="This project has no manifest: it declares no dependencies.",
        form="Name the dependencies, or say that there are none.",
        lines=re.compile(
            r"depend|require|include|import|^use |\buse \w+::|[\"']?[\w-]+[\"']?\s*[:=]\s*[\"'][\^~<>=\d]"
        ),
    ),
    QuestionTopic(
        question=re.compile(
            r"\b(?:how|where|which|what|(?:are|is) there|has|have)\b.*\btest(?:s|ed|ing)?\b", re.IGNORECASE
        ),
        places=("manifest", "contributing", "readme"),
        lines=re.compile(r"(?<![a-z])test|pytest|unittest|\btox\b|\bnox\b|\bspec\b|\bjest\b|scripts", re.IGNORECASE),
        command="test",
        form="Say in one sentence with which command.",
    ),
    QuestionTopic(
        question=_any("install(?:ed|ing|ation)?", "set ?up", "get started", "download"),
        places=("readme", "manifest"),
        lines=re.compile(r"install|\bget\b|download|compile|copy|drop|\badd\b|^\W*name\b", re.IGNORECASE),
        command="install",
        form="Give the command, or say what to copy.",
    ),
    QuestionTopic(
        question=re.compile(r"\bhow\b.*\b(?:build|built|compiled?)\b", re.IGNORECASE),
        places=("manifest", "readme", "contributing"),
        lines=re.compile(r"build|compil|make|scripts", re.IGNORECASE),
        command="build",
        form="Give the command, or say what to compile.",
    ),
    QuestionTopic(
        question=_any(
            "how (?:do|can|could|should|would) (?:I|we|you|one) (?:run|start|launch|use|call|execute)",
            "how to (?:run|use)",
        ),
        places=("readme", "manifest"),
        lines=re.compile(r"usage|\brun\b|example|start|scripts|import|^\s*\$|^#", re.IGNORECASE),
        command="run",
        form="Give a short example.",
    ),
    QuestionTopic(
        question=_any("entry ?points?", "starts?", "begins?", "main (?:file|function|method|program|module|script)"),
        places=("manifest", "search"),
        lines=re.compile(r"main|exports|\bbin\b|scripts|^\W*name\b|description", re.IGNORECASE),
        search="main[(]|__main__|console_scripts|[.]scripts[]]",
        empty_answer=(
            "No file has a main function or states an entry point: this is a library, which other programs use."
        ),
        form="Name the file and the function, or say that it is a library.",
    ),
    QuestionTopic(
        question=re.compile(r"\bversion\b(?! of (?!this|the|it))", re.IGNORECASE),
        places=("search", "manifest"),
        lines=re.compile(r"version|requires|engines|edition|^go \d", re.IGNORECASE),
        search="[Vv]ersion(__)?.? *[:=]|VERSION",
        empty_answer="No file states a version of the project.",
        form="Name the file and the version.",
    ),
    QuestionTopic(
        question=_any("errors?", "exceptions?", "failures?", "panics?"),
        places=("sources",),
        lines=re.compile(
            r"\braise\b|\bthrow|\bcatch\b|\bexcept\b|\bpanic|\bErr\b|Result<|[Ee]rror|Exception|abort\(|\bexit\(|errno|fail"
            r"|return -1"
        ),
        form="Say which errors are raised or returned in which file, and where they are caught. Do not judge the code.",
        describes="sources",
    ),
    QuestionTopic(
        question=_any(
            "classes", "functions", "methods", "structs", "interfaces", "modules", "types", "components", "api"
        ),
        places=("sources",),
        lines=_DEFINITION,
        form="Say in one sentence what they are for, then name the classes and functions of each file.",
        describes="sources",
    ),
    QuestionTopic(
        question=re.compile(
            r"put together|structure|architecture|organi[sz]ed|laid out|layout|how does (?:it|this|the \w+) work"
            r"|explain (?:this|the|how)",
            re.IGNORECASE,
        ),
        places=("list", "readme", "sources"),
        lines=_DEFINITION,
        form="Say in one sentence what the project does, then what each of the files is for.",
        describes="main files",
    ),
    QuestionTopic(
        question=re.compile(
            r"\bwhat(?:'s| is| does| can| are| do) (?:it|this|the (?:project|program|app|application|library|package"
            r"|tool|code|repo|repository))\b|\bwhat (?:it|this|the)(?: \w+)? (?:does|is)\b"
            r"|\b(?:purpose|overview|summari[sz]e|describe)\b",
            re.IGNORECASE,
        ),
        places=("readme", "manifest"),
        fallback_places=("list", "sources"),
        lines=re.compile(r"^#|^\w+.*\w{3,}.*\w{3,}|description|^\W*name\b"),
        form="Say it in two or three sentences.",
    ),
)


def find_topic(question: str) -> QuestionTopic | None:
    """Returns the topic of a question about the project, None for an unknown one."""
    return next((topic for topic in _TOPICS if topic.question.search(question)), None)


_MANIFESTS = (
    "pyproject.toml", "package.json", "cargo.toml", "go.mod", "setup.cfg", "setup.py", "pom.xml", "build.gradle",
    "composer.json", "gemfile", "cmakelists.txt", "makefile", "requirements.txt",
)  # fmt: skip
_PYTHON_MANIFESTS = ("pyproject.toml", "setup.cfg", "setup.py")
_SOURCE_SUFFIXES = frozenset((
    ".py", ".js", ".ts", ".tsx", ".jsx", ".mjs", ".go", ".rs", ".c", ".cc", ".cpp", ".h", ".java", ".kt", ".rb",
    ".php", ".cs", ".swift", ".sh", ".lua", ".ex", ".hs",
))  # fmt: skip
_LICENSES = ("license", "licence", "copying")
_NOT_SOURCE = re.compile(r"(?:^|[/_.-])(?:tests?|testing|spec|bench\w*|examples?|docs?)(?=[/_.-]|$)|conf\.py$|\.d\.ts$")
_TEST_FILE = re.compile(r"(?:^|[/_.-])(?:tests?|spec)[/_.-]")
_NOT_SEARCHED = re.compile(r"\.(?:md|rst|txt|lock|svg)$|-lock\.|\.sum$")


def is_source(path: str) -> bool:
    """Returns whether a file has code of the project itself, and not tests, examples or documentation."""
    return _is_code(path) and not _NOT_SOURCE.search(path.lower())


def _is_code(path: str) -> bool:
    return PurePosixPath(path).suffix in _SOURCE_SUFFIXES


class ProjectFiles:
    """The files of a project by their purpose. `paths` are relative to the folder; `preferred` are looked at first."""

    def __init__(self, folder: Path, paths: Sequence[str], preferred: Sequence[str] = ()) -> None:
        self._folder = folder
        self._preferred = preferred
        self._paths = sorted(paths, key=lambda path: (path.count("/"), path))

    def plan_question(self, topic: QuestionTopic) -> QuestionPlan:
        """Returns how a question of this topic is answered."""
        looks, described = self.plan_looks(topic), list[str]()
        if topic.describes == "main files":
            described = self._main_files()
        elif topic.describes == "sources":
            described = [str(look.arguments["file_path"]) for look in looks if look.tool == "read"]
        form = topic.form
        if topic.command == "test" and not self._test_files():  # some languages have their tests in the sources
            form = "Say with which command, or that there are no tests."
        return QuestionPlan(looks, self.state_facts(topic), form, described)

    def plan_looks(self, topic: QuestionTopic) -> list[ReadCall]:
        """Returns the looks that answer a question of this topic."""
        looks = list(self._list_looks(topic.places, topic))
        looks = (
            looks or list(self._list_looks(topic.fallback_places, topic)) or list(self._list_looks(("list",), topic))
        )
        return looks[:MAX_LOOKS]

    def _list_looks(self, places: Sequence[Place], topic: QuestionTopic) -> Iterator[ReadCall]:
        for place in places:
            if place == "list":
                yield ReadCall("list", {"path": ".", "depth": self._listing_depth()})
            elif place == "search":
                yield ReadCall("grep", {"pattern": topic.search})
            else:
                paths = self.find(place)
                if place in ("readme", "contributing") and topic.lines is not _DEFINITION:
                    paths = [path for path in paths if self._mentions(path, topic)]
                if place == "sources":
                    mentioned = (path for path in paths if self._mentions(path, topic))
                    paths = list(islice(mentioned, _MAX_READ_SOURCES)) or paths[:1]
                yield from (ReadCall("read", {"file_path": path}) for path in paths)

    def find(self, place: Place) -> list[str]:
        """Returns the files of a kind, the best ones first."""
        match place:
            case "readme" | "contributing":
                return [path for path in self._paths if PurePosixPath(path).name.lower().startswith(place)][:1]
            case "license":
                return [path for path in self._paths if path.lower().startswith(_LICENSES)][:1]
            case "manifest":
                return [path for name in _MANIFESTS for path in self._paths if path.lower() == name][:1]
            case "sources":
                sources = [path for path in self._paths if is_source(path)]
                return sorted(
                    sources,
                    key=lambda path: (path not in self._preferred, path.count("/") > _MAX_DEPTH, -self._size(path)),
                )
            case "list" | "search":
                return []

    def _main_files(self) -> list[str]:
        tests = sorted(filter(_is_code, self._test_files()), key=self._size, reverse=True)
        return [*self.find("sources")[:_MAX_DESCRIBED_SOURCES], *tests[:1], *self.find("manifest")]

    def overview(self) -> list[str]:
        """Returns the files that describe the project as a whole."""
        return [*self.find("readme"), *self.find("manifest"), *self.find("sources")]

    def state_facts(self, topic: QuestionTopic) -> list[str]:
        """Returns sentences with the facts about a topic that the file names and the manifest contain."""
        facts: list[str] = []
        if topic.command == "test":
            tests = self._test_files()
            facts.append(f"Files with tests: {', '.join(tests[:5])}." if tests else "This project has no test files.")
            if not tests:
                return facts
        if topic.command and (command := self.list_commands().get(topic.command)):
            facts.append(f"The usual command to {topic.command} it is `{command}`.")
        if topic.places == ("manifest",):
            manifests = self.find("manifest")
            facts += _state_dependencies(manifests[0], self._read(manifests[0])) if manifests else [topic.empty_answer]
        return facts

    def list_commands(self) -> Mapping[str, str]:
        """Returns the commands that the project's manifest provides, by their purpose. A makefile adds its targets;
        its tests come first in a Python project, where every project runs its tests differently."""
        manifest = next(iter(self.find("manifest")), None)
        if manifest is None:
            return {}
        commands = _conventional_commands(manifest.lower(), self._read(manifest))
        makefile = next((path for path in self._paths if path.lower() == "makefile"), None)
        targets = _make_targets(self._read(makefile)) if makefile else {}
        if manifest.lower() in _PYTHON_MANIFESTS and "test" in targets:
            commands = {**commands, "test": targets["test"]}
        return {**targets, **commands}

    def _test_files(self) -> list[str]:
        return [path for path in self._paths if _TEST_FILE.search(path.lower())]

    def _listing_depth(self) -> int:
        for depth in range(_MAX_DEPTH, 1, -1):
            if sum(path.count("/") < depth for path in self._paths) <= _MAX_LISTED_FILES:
                return depth
        return 1

    def _size(self, path: str) -> int:
        try:
            return (self._folder / path).stat().st_size
        except OSError:
            return 0

    def _mentions(self, path: str, topic: QuestionTopic) -> bool:
        return topic.lines is None or any(map(topic.lines.search, self._read(path).splitlines()))

    def _read(self, path: str) -> str:
        try:
            with (self._folder / path).open("rb") as file:
                return file.read(_MAX_READ_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""


_COMMANDS: Final[Mapping[str, Mapping[str, str]]] = {
    "cargo.toml": {
        "test": "cargo test",
        "install": "cargo install --path .",
        "build": "cargo build",
        "run": "cargo run",
    },
    "cmakelists.txt": {"build": "cmake -B build && cmake --build build", "test": "ctest --test-dir build"},
    "pom.xml": {"test": "mvn test", "build": "mvn package"},
    "build.gradle": {"test": "gradle test", "build": "gradle build"},
    "gemfile": {"install": "bundle install"},
    "composer.json": {"install": "composer install"},
    "requirements.txt": {"install": "pip install -r requirements.txt"},
}


def _conventional_commands(manifest: str, text: str) -> Mapping[str, str]:
    match manifest:
        case "pyproject.toml" | "setup.cfg" | "setup.py":
            test = "python -m pytest" if "pytest" in text else "python -m unittest"
            return {"test": test, "install": "pip install .", "build": "python -m build"}
        case "package.json":
            return _script_commands(text)
        case "go.mod":
            module = re.search(r"^module (\S+)", text, re.MULTILINE)
            install = {"install": f"go get {module[1]}"} if module else {}
            return {"test": "go test ./...", "build": "go build ./...", **install}
        case "makefile":
            return {"build": "make"} | _make_targets(text)
        case _:
            return _COMMANDS.get(manifest, {})


def _make_targets(text: str) -> dict[str, str]:
    targets = set(re.findall(r"^([\w-]+):(?!=)", text, re.MULTILINE))
    return {name: f"make {name}" for name in ("test", "install", "run") if name in targets}


def _state_dependencies(path: str, text: str) -> list[str]:
    """Returns sentences with the dependencies that a manifest declares; none for a manifest in an unknown format."""
    needed, development = _declared_dependencies(path.lower(), text) or (None, ())
    if needed is None:
        return []
    facts = [f"{path} declares {_name_all(needed)} as dependencies." if needed else f"{path} declares no dependencies."]
    return facts + ([f"Only for development: {_name_all(development)}."] if development else [])


def _declared_dependencies(manifest: str, text: str) -> tuple[Sequence[str], Sequence[str]] | None:
    """Returns the names of the dependencies, and of those for development."""
    if manifest == "go.mod":
        return re.findall(r"^(?:require\s+|\t)([\w.-]+\.[\w.-]+/\S+) v", text, re.MULTILINE), ()
    if manifest not in ("package.json", "cargo.toml", "pyproject.toml"):
        return None
    try:
        table: Any = json.loads(text) if manifest == "package.json" else tomllib.loads(text)
    except ValueError:
        return None
    if manifest == "pyproject.toml":
        groups = _names_in(table, "dependency-groups").values()
        development = [name for group in groups for name in _requirement_names(group)]
        return _requirement_names(_names_in(table, "project").get("dependencies")), list(dict.fromkeys(development))
    development = [*_names_in(table, "devDependencies"), *_names_in(table, "dev-dependencies")]
    return list(_names_in(table, "dependencies")), development


def _names_in(table: Any, key: str) -> dict[str, Any]:
    inner: Any = cast("dict[str, Any]", table).get(key) if isinstance(table, dict) else None
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else {}


def _requirement_names(requirements: Any) -> list[str]:
    entries = cast("list[Any]", requirements) if isinstance(requirements, list) else []
    names = (re.match(r"[\w.-]+", entry) for entry in entries if isinstance(entry, str))
    return [name[0] for name in names if name]


def _name_all(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMED]) + (f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else "")


def _script_commands(text: str) -> Mapping[str, str]:
    try:
        manifest: Any = json.loads(text)
    except ValueError:
        return {}
    names = set(_names_in(manifest, "scripts"))
    commands = {"test": "npm test", "build": "npm run build", "run": "npm start"}
    return {"install": "npm install"} | {
        purpose: command for purpose, command in commands.items() if {"run": "start"}.get(purpose, purpose) in names
    }


_MAX_CONTEXT_LINES = 2  # around a line that matters, fewer if that is too long


_DECORATION = re.compile(r"^\s*(?:<[^>]*>\s*)+$|^\s*(?:\[?!\[[^\]]*\]\S*\s*)+$|^\[[^\]]+\]: \S+$", re.MULTILINE)
_GAP = "…"
_DOCUMENT_SUFFIXES = {".md", ".rst", ".txt"}


def focus_file(path: str, content: str, topic: QuestionTopic, max_characters: int) -> str:
    """Returns a long file without the lines that do not matter for a topic, in at most `max_characters`. A document is
    read from its start if the topic is in the code."""
    is_document = PurePosixPath(path).suffix.lower() in _DOCUMENT_SUFFIXES
    if is_document:
        content = re.sub(r"\n{3,}", "\n\n", _DECORATION.sub("", content)).strip()
    if len(content) <= max_characters or topic.lines is None:
        return content
    selected: list[str] = []
    for context in () if is_document and topic.lines is _DEFINITION else range(_MAX_CONTEXT_LINES, -1, -1):
        selected = _lines_around(content.splitlines(), topic.lines, context)
        if sum(len(line) + 1 for line in selected) <= max_characters:
            break
    text = "\n".join(selected or content.splitlines())
    return text if len(text) <= max_characters else text[:max_characters].rpartition("\n")[0] + "\n… (more follows)"


def _lines_around(all_lines: Sequence[str], lines: re.Pattern[str], context: int) -> list[str]:
    """Returns the lines that matter, each with its definition and some lines around it."""
    selected: set[int] = set()
    definition = -1
    for number, line in enumerate(all_lines):
        definition = number if _DEFINITION.search(line) else definition
        if lines.search(line):
            lines_before = 0 if definition == number else context
            selected |= {definition, *range(number - lines_before, number + context + 1)}
    numbers = [number for number in sorted(selected) if 0 <= number < len(all_lines) and all_lines[number].strip()]
    follows = [0, *(number + 1 for number in numbers)]
    return [
        f"{_GAP}\n{all_lines[number]}" if number > expected and context else all_lines[number]
        for number, expected in zip(numbers, follows, strict=False)
    ]


def focus_matches(content: str, topic: QuestionTopic) -> str:
    """Returns the matches of a search in code and manifests; if there are none, the answer that follows from that."""
    blocks = [block for block in content.split("\n\n") if not _is_aside(block.partition("\n")[0])]
    if not blocks or content.startswith("No matches"):
        return f"No matches. {topic.empty_answer}"
    return "\n\n".join(blocks)


def _is_aside(path: str) -> bool:
    return bool(_NOT_SEARCHED.search(path) or _NOT_SOURCE.search(path.lower()))
