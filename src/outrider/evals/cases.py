"""Cases of evaluations: prompts, fixtures and checks, the matrix they run over, and suites in TOML or Python files."""

import fnmatch
import re
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import msgspec

from outrider.agents.output_type import as_output_type
from outrider.config.file import suggest_name
from outrider.errors import ConfigurationError, OutputMismatch
from outrider.processes.supervisor import CommandResult
from outrider.sessions.session import Session
from outrider.types.agents import Limits
from outrider.types.messages import Message
from outrider.types.modes import ApprovalLevel, Mode
from outrider.types.parts import ToolPart, Usage
from outrider.types.tool_state import ToolPending
from outrider.types.validate import ArgumentsMeta

BUILT_IN_FOLDER = Path(__file__).parent / "suites"
MAX_DETAIL = 2_000
MAX_CHECKED_FILE = 50_000_000
SUITE_FILE = "suite.toml"
Texts = str | tuple[str, ...]


class CheckResult(msgspec.Struct, frozen=True):
    """What one check found; `detail` says why it failed."""

    name: str
    passed: bool
    detail: str = ""


class EvalOutcome(Protocol):
    """What an attempt left behind, for checks.

    - `case`: the case of the attempt.
    - `workspace`: the folder in which the agent worked.
    - `baseline`: a folder with the untouched fixture.
    - `answer`: the final answer.
    - `session`: the transcript.
    - `usage`: tokens and cost.
    - `steps`: the number of model answers of all agents.
    - `seconds`: the time of the agents.
    - `calls`: the tool calls of all agents.
    - `patch`: the difference between the fixture and the workspace."""

    case: "EvalCase"
    workspace: Path
    baseline: Path
    answer: str
    session: Session
    usage: Usage
    steps: int
    seconds: float
    calls: list[ToolPart]

    @property
    def patch(self) -> str:
        """The changed files as a patch of git."""
        ...

    async def run_command(self, command: str, *, seconds: float) -> CommandResult:
        """Runs a command in the workspace, inside the sandbox."""
        ...

    async def ask_judge(self, model: str, criterion: str) -> tuple[bool, str]:
        """Lets a model decide whether the attempt fulfils a criterion; returns the decision and its reason."""
        ...


class _Check(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    metaclass=ArgumentsMeta,
):
    pass


class FileCheck(_Check, frozen=True, tag="file"):
    """Checks a file of the workspace.

    - `path`: the path in the workspace.
    - `exists`: whether the file must exist.
    - `contains`, `lacks`: strings that the file must contain, or must not contain.
    - `matches`: a regular expression that matches somewhere in the file.
    - `equals`: the complete content, apart from whitespace around it."""

    path: str
    exists: bool = True
    contains: Texts = ()
    lacks: Texts = ()
    matches: str = ""
    equals: str | None = None

    @property
    def title(self) -> str:
        """How reports name the check."""
        return f"file {self.path}"

    async def find_problem(self, outcome: EvalOutcome) -> str:
        """Returns why the outcome does not pass, "" if it does."""
        if not (outcome.workspace / self.path).is_file():
            return "it does not exist" if self.exists else ""
        if not self.exists:
            return "it exists"
        text, problem = _read_checked(outcome.workspace, self.path)
        return problem or _text_problem(text, self.contains, self.lacks, self.matches, self.equals)


class AnswerCheck(_Check, frozen=True, tag="answer"):
    """Checks the final answer.

    - `contains`, `lacks`: strings that the answer must contain, or must not contain.
    - `matches`: a regular expression that matches somewhere in the answer.
    - `equals`: the complete answer, apart from whitespace around it.
    - `ignore_case`: whether case is ignored, except by `equals`."""

    contains: Texts = ()
    lacks: Texts = ()
    matches: str = ""
    equals: str | None = None
    ignore_case: bool = True

    @property
    def title(self) -> str:
        """How reports name the check."""
        return "answer"

    async def find_problem(self, outcome: EvalOutcome) -> str:
        """Returns why the outcome does not pass, "" if it does."""
        problem = _text_problem(
            outcome.answer, self.contains, self.lacks, self.matches, self.equals, ignore_case=self.ignore_case
        )
        return problem and f"{problem}; it is {outcome.answer[:200]!r}"


class CommandCheck(_Check, frozen=True, tag="command"):
    """Runs a command in the workspace after the attempt.

    - `command`: the command; `{python}` in it is this Python interpreter.
    - `exit_code`: the expected exit code.
    - `matches`: a regular expression for its output.
    - `seconds`: the time limit.
    - `restore`: patterns of files of the fixture that get their original contents before the command runs.
    - `files`: files that are written before the command runs; the agent could not see them."""

    command: str
    exit_code: int = 0
    matches: str = ""
    seconds: float = 60.0
    restore: Texts = ()
    files: dict[str, str] = {}

    @property
    def title(self) -> str:
        """How reports name the check."""
        return f"command {self.command.strip().splitlines()[0][:60]}"

    async def find_problem(self, outcome: EvalOutcome) -> str:
        """Returns why the outcome does not pass, "" if it does."""
        restore_files(outcome.baseline, outcome.workspace, _as_tuple(self.restore))
        write_files(outcome.workspace, self.files, replace=True)
        command = self.command.replace("{python}", f"'{sys.executable}'")
        result = await outcome.run_command(command, seconds=self.seconds)
        output = result.text[-MAX_DETAIL:].strip()
        if result.exit_code != self.exit_code:
            end = f"exit code {result.exit_code}" if result.exit_code is not None else "it was stopped"
            return f"{end}, expected {self.exit_code}: {output}"
        if self.matches and not re.search(self.matches, result.text, re.MULTILINE):
            return f"the output does not match {self.matches!r}: {output}"
        return ""


class PythonCheck(_Check, frozen=True, tag="python"):
    """Python code that runs in the workspace and must end without an exception. `restore` has
    patterns of files of the fixture that get their original contents first."""

    code: str
    seconds: float = 60.0
    restore: Texts = ()

    @property
    def title(self) -> str:
        """How reports name the check."""
        return "python"

    async def find_problem(self, outcome: EvalOutcome) -> str:
        """Returns why the outcome does not pass, "" if it does."""
        file = ".outrider_check.py"
        head = "import sys\nsys.path.insert(0, '')\nsys.dont_write_bytecode = True\n"
        inner = CommandCheck(
            command=f"{{python}} {file}",
            seconds=self.seconds,
            restore=self.restore,
            files={file: head + self.code},
        )
        try:
            return await inner.find_problem(outcome)
        finally:
            (outcome.workspace / file).unlink(missing_ok=True)


class SchemaCheck(_Check, frozen=True, tag="schema"):
    """The answer, or the file at `path`, is JSON that matches a JSON schema."""

    schema: dict[str, Any]
    path: str = ""

    @property
    def title(self) -> str:
        """How reports name the check."""
        return f"schema of {self.path or 'the answer'}"

    async def find_problem(self, outcome: EvalOutcome) -> str:
        """Returns why the outcome does not pass, "" if it does."""
        text, problem = _read_checked(outcome.workspace, self.path) if self.path else (outcome.answer, "")
        if problem:
            return problem
        output_type = as_output_type(self.schema)
        assert output_type is not None
        try:
            output_type.parse_answer(text)
        except OutputMismatch as error:
            return error.message
        return ""


class CallsCheck(_Check, frozen=True, tag="calls"):
    """How often a tool was called, with arguments that match regular expressions: at least once unless a number is
    given. `at_most = 0` demands that it was not called. `tool` may have wildcards."""

    tool: str
    arguments: dict[str, str] = {}
    at_least: int | None = None
    at_most: int | None = None

    @property
    def title(self) -> str:
        """How reports name the check."""
        return f"calls of {self.tool}"

    async def find_problem(self, outcome: EvalOutcome) -> str:
        """Returns why the outcome does not pass, "" if it does."""
        matches = [call for call in outcome.calls if self._includes(call)]
        lowest = self.at_least if self.at_least is not None else int(self.at_most is None)
        if len(matches) < lowest:
            called_tools = ", ".join(dict.fromkeys(call.tool for call in outcome.calls)) or "none"
            return f"{len(matches)} calls match, expected at least {lowest}; called tools: {called_tools}"
        if self.at_most is not None and len(matches) > self.at_most:
            return f"{len(matches)} calls match, expected at most {self.at_most}"
        return ""

    def _includes(self, call: ToolPart) -> bool:
        return fnmatch.fnmatchcase(call.tool, self.tool) and all(
            re.search(pattern, str(call.state.input.get(name, "")), re.IGNORECASE)
            for name, pattern in self.arguments.items()
        )


class LimitsCheck(_Check, frozen=True, tag="limits"):
    """Upper bounds of what the attempt used. `cost` is in US dollars; an unknown cost fails."""

    steps: int | None = None
    calls: int | None = None
    seconds: float | None = None
    tokens: int | None = None
    cost: Decimal | float | None = None

    @property
    def title(self) -> str:
        """How reports name the check."""
        return "limits"

    async def find_problem(self, outcome: EvalOutcome) -> str:
        """Returns why the outcome does not pass, "" if it does."""
        usage: dict[str, Any] = {
            "steps": outcome.steps,
            "calls": len(outcome.calls),
            "seconds": outcome.seconds,
            "tokens": outcome.usage.tokens.total,
            "cost": outcome.usage.total_cost,
        }
        for name, value in usage.items():
            limit = getattr(self, name)
            if limit is not None and (value is None or float(value) > float(limit)):
                return f"{name}: {'unknown' if value is None else f'{float(value):g}'}, at most {float(limit):g}"
        return ""


class JudgeCheck(_Check, frozen=True, tag="judge"):
    """A model decides whether the answer and the changed files fulfil `criterion`. `model` is PROVIDER/MODEL; without
    it, the judge of the suite. With several `votes` the majority decides."""

    criterion: str
    model: str = ""
    votes: int = 1

    @property
    def title(self) -> str:
        """How reports name the check."""
        return f"judge: {self.criterion.strip().splitlines()[0][:60]}"

    async def find_problem(self, outcome: EvalOutcome) -> str:
        """Returns why the outcome does not pass, "" if it does."""
        verdicts = [await outcome.ask_judge(self.model, self.criterion) for _ in range(self.votes)]
        against = [reason for passed, reason in verdicts if not passed]
        return (against[0] or "rejected") if 2 * len(against) >= len(verdicts) else ""


Check = FileCheck | AnswerCheck | CommandCheck | PythonCheck | SchemaCheck | CallsCheck | LimitsCheck | JudgeCheck
CheckFunction = Callable[[EvalOutcome], "bool | str | Awaitable[bool | str | None] | None"]
"""Takes an `EvalOutcome`; returns None or True if it passes, False or a string that says why not."""


def _find_mistake(check: Check) -> str:
    """Returns what is wrong with a check, "" if it can run. A suite is examined before it costs anything."""
    names = [getattr(check, "path", ""), *getattr(check, "files", ())]
    patterns = [getattr(check, "matches", ""), *getattr(check, "arguments", {}).values()]
    for name in filter(_is_outside, names):
        return f"the path {name!r} leads out of the workspace"
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            return f"{pattern!r} is not a regular expression: {error}"
    if isinstance(check, FileCheck) and not check.path:
        return "the path is empty"
    if isinstance(check, SchemaCheck) and (wrong := _find_wrong_schema(check.schema)):
        return f"it is not a JSON schema: {wrong}"
    if isinstance(check, JudgeCheck) and check.votes < 1:
        return f"votes is a whole number of at least 1, not {check.votes}"
    if isinstance(check, CallsCheck) and None not in (check.at_least, check.at_most):
        return "at_least is more than at_most" if cast("int", check.at_least) > cast("int", check.at_most) else ""
    if isinstance(check, CommandCheck | PythonCheck) and check.seconds <= 0:
        return f"seconds is more than 0, not {check.seconds:g}"
    return ""


_JSON_TYPES = {"string", "number", "integer", "boolean", "object", "array", "null"}


def _find_wrong_schema(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "" if isinstance(schema, bool) else f"{schema!r} is not a table"
    values = cast("dict[str, Any]", schema)
    kinds: Any = values.get("type", [])
    listed = cast("list[Any]", kinds if isinstance(kinds, list) else [kinds])
    unknown = [kind for kind in listed if kind not in _JSON_TYPES]
    inner: Any = values.get("properties", {})
    if unknown or not isinstance(inner, dict):
        return f"the type {unknown[0]!r} is unknown" if unknown else "properties is not a table"
    members = [*cast("dict[str, Any]", inner).values(), *([values["items"]] if "items" in values else [])]
    return next((wrong for member in members if (wrong := _find_wrong_schema(member))), "")


def _as_tuple(value: Texts) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _text_problem(
    text: str, contains: Texts, lacks: Texts, matches: str, equals: str | None, *, ignore_case: bool = False
) -> str:
    searched = text.casefold() if ignore_case else text
    for expected in _as_tuple(contains):
        if (expected.casefold() if ignore_case else expected) not in searched:
            return f"it does not contain {expected!r}"
    for unwanted in _as_tuple(lacks):
        if (unwanted.casefold() if ignore_case else unwanted) in searched:
            return f"it contains {unwanted!r}"
    flags = re.MULTILINE | (re.IGNORECASE if ignore_case else 0)
    if matches and not re.search(matches, text, flags):
        return f"it does not match {matches!r}"
    if equals is not None and text.strip() != equals.strip():
        return f"it is not equal to {equals[:200]!r}"
    return ""


def _read_checked(workspace: Path, name: str) -> tuple[str, str]:
    """Returns the text of a file, or a problem. Links that lead out of the workspace are not followed: an agent could
    link to the solution."""
    path = workspace / name
    if not path.resolve().is_relative_to(workspace.resolve()):
        return "", "it is a link that leads out of the workspace"
    if not path.is_file():
        return "", "it does not exist"
    if (size := path.stat().st_size) > MAX_CHECKED_FILE:
        return "", f"it has {size:,} bytes; checks read files of at most {MAX_CHECKED_FILE:,} bytes"
    return path.read_text(encoding="utf-8", errors="replace"), ""


def _is_outside(name: str) -> bool:
    return Path(name).is_absolute() or ".." in Path(name).parts


def write_files(folder: Path, files: Mapping[str, str], *, replace: bool = False) -> None:
    """Writes files below a folder. Raises ConfigurationError for a path that leads out of it. With `replace`, links,
    files and folders that are in the way are removed: an agent may have created them."""
    for name, text in files.items():
        path = folder / name
        if replace and not _is_outside(name):
            _remove_obstacles(folder, Path(name).parts)
        if _is_outside(name) or not path.resolve().is_relative_to(folder.resolve()):
            raise ConfigurationError(f"the path {name!r} of an evaluation case leads out of its folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            path.unlink()
        path.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")


def _remove_obstacles(folder: Path, parts: Sequence[str]) -> None:
    path = folder
    for number, part in enumerate(parts, 1):
        path /= part
        is_folder = path.is_dir() and not path.is_symlink()
        if is_folder and number == len(parts):
            shutil.rmtree(path)
        elif not is_folder and (path.is_symlink() or path.exists()):
            path.unlink()


def restore_files(baseline: Path, workspace: Path, patterns: Iterable[str]) -> None:
    """Restores the original contents of the fixture's files that match a pattern."""
    pattern_list = list(patterns)
    for path in sorted(baseline.rglob("*")) if pattern_list else ():
        name = path.relative_to(baseline).as_posix()
        if path.is_file() and not path.is_symlink() and any(fnmatch.fnmatch(name, pattern) for pattern in pattern_list):
            _remove_obstacles(workspace, Path(name).parts)
            (workspace / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, workspace / name)


class EvalReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=ArgumentsMeta):
    """A correct solution of a case: files, commands that run in the workspace, or the answer."""

    files: dict[str, str] = {}
    commands: Texts = ()
    answer: str = ""


class EvalCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=ArgumentsMeta):
    """One task.

    - `name`: unique in the suite.
    - `prompt`: the input of the agent, or several inputs that follow each other.
    - `checks`: all must pass; in Python a check may be a function that takes an `EvalOutcome`.
    - `fixture`: a folder of which the workspace is a copy.
    - `files`: files that are added to the workspace.
    - `repository`: the path of a git repository whose files are the workspace, without its history.
    - `commit`: the commit of the repository.
    - `setup`: commands that run in the workspace first.
    - `limits`: bound the attempt.
    - `reference`: a correct solution, with which `validate_suite` tests the checks.
    - `cassette`: a recording for runs without a network: a cassette, or a script in JSON.
    - `tags`: select cases."""

    name: str
    prompt: str | tuple[str, ...]
    checks: tuple[Check | CheckFunction, ...] = ()
    fixture: str = ""
    files: dict[str, str] = {}
    repository: str = ""
    commit: str = ""
    setup: Texts = ()
    limits: Limits | None = None
    reference: EvalReference | None = None
    cassette: str = ""
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        prompt, checks = cast("tuple[Any, Any]", (self.prompt, self.checks))
        prompts: Any = (prompt,) if isinstance(prompt, str) else prompt
        if not isinstance(prompts, list | tuple) or not all(
            isinstance(prompt, str) for prompt in cast("list[Any]", prompts)
        ):
            raise ConfigurationError(f"case {self.name!r}: prompt is a string, or a tuple of strings, got {prompt!r}")
        if not isinstance(checks, list | tuple):
            raise ConfigurationError(f"case {self.name!r}: checks is a tuple; write checks=(AnswerCheck(contains=…),)")

    @property
    def prompts(self) -> tuple[str, ...]:
        """The inputs in order."""
        return _as_tuple(self.prompt)

    @property
    def setup_commands(self) -> tuple[str, ...]:
        """The commands that prepare the workspace."""
        return _as_tuple(self.setup)


class EvalPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=ArgumentsMeta):
    """The permissions of an attempt. The default mode runs everything inside the sandbox without questions."""

    mode: Mode = "background"
    approval: ApprovalLevel = "ask"
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class EvalMatrix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=ArgumentsMeta):
    """What a suite runs over: names of agents, models (PROVIDER/MODEL), instructions and permissions by name. Each
    combination is a variant. What is left out does not vary."""

    agents: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    prompts: dict[str, str] = {}
    policies: dict[str, EvalPolicy] = {}

    def variants(self) -> "list[EvalVariant]":
        """Returns every combination. A variant is named by what varies."""
        return [
            EvalVariant(agent=agent, model=model, prompt=prompt, policy=policy)
            for agent in self.agents or ("",)
            for model in self.models or ("",)
            for prompt in self.prompts or ("",)
            for policy in self.policies or ("",)
        ]


class EvalVariant(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of a matrix; empty strings mean the default."""

    agent: str = ""
    model: str = ""
    prompt: str = ""
    policy: str = ""

    @property
    def name(self) -> str:
        """The parts that are set, such as "openai/gpt-5.4, short"."""
        return ", ".join(filter(None, (self.agent, self.model, self.prompt, self.policy))) or "default"


class EvalSuite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=ArgumentsMeta):
    """Cases with the matrix that they run over.

    - `name`: the name in reports.
    - `cases`: the tasks.
    - `matrix`: the agents, models, prompts and policies that are combined.
    - `repeat`: the number of attempts for each case and variant.
    - `concurrency`: how many attempts run at the same time.
    - `max_cost`: no attempt starts after this many dollars are spent.
    - `limits`: for cases without their own limits.
    - `judge`: the model of checks that need one, as PROVIDER/MODEL.
    - `folder`: where relative paths start: the folder of the file."""

    name: str
    cases: tuple[EvalCase, ...]
    matrix: EvalMatrix = EvalMatrix()
    repeat: int = 1
    concurrency: int = 4
    max_cost: Decimal | float | None = None
    limits: Limits | None = None
    judge: str = ""
    folder: str = "."

    def __post_init__(self) -> None:
        cases: Any = self.cases
        if not isinstance(cases, list | tuple) or not all(
            isinstance(case, EvalCase) for case in cast("list[Any]", cases)
        ):
            raise ConfigurationError(
                f"suite {self.name!r}: cases is a tuple of EvalCase values; write cases=(EvalCase(name=…, prompt=…),)"
            )
        names = [case.name for case in self.cases]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigurationError(f"suite {self.name!r}: several cases are called {', '.join(twice)}")
        for name, value in (("repeat", self.repeat), ("concurrency", self.concurrency)):
            if value < 1:
                raise ConfigurationError(f"suite {self.name!r}: {name} is a whole number of at least 1, not {value}")
        for case in self.cases:
            if not case.name or not case.prompts or not all(prompt.strip() for prompt in case.prompts):
                raise ConfigurationError(f"suite {self.name!r}, case {case.name!r}: name and prompt must not be empty")
            for check in case.checks:
                if not isinstance(check, Check) and not callable(check):
                    raise ConfigurationError(
                        f"suite {self.name!r}, case {case.name!r}: a check is a FileCheck or the like, or a function, "
                        f"not {type(check).__name__}"
                    )
                if isinstance(check, Check) and (mistake := _find_mistake(check)):
                    raise ConfigurationError(f"suite {self.name!r}, case {case.name!r}, {check.title}: {mistake}")

    def select(self, patterns: Iterable[str] = (), tags: Iterable[str] = ()) -> "EvalSuite":
        """Returns the suite with the cases whose name matches a pattern and that have one of the tags. Raises
        ConfigurationError if there are none."""
        names, required_tags = tuple(patterns), set(tags)
        cases = tuple(
            case
            for case in self.cases
            if (not names or any(fnmatch.fnmatchcase(case.name, name) for name in names))
            and (not required_tags or required_tags & set(case.tags))
        )
        if not cases:
            hint = suggest_name(names[0], [case.name for case in self.cases]) if names else ""
            raise ConfigurationError(f"suite {self.name!r} has no such case{hint}")
        return msgspec.structs.replace(self, cases=cases)

    def resolve(self, path: str) -> Path:
        """Returns a path of the suite as an absolute one."""
        return (Path(self.folder) / path).absolute()


class _CaseTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case as it is in a TOML file: the limits are those that differ from the default."""

    name: str
    prompt: str | tuple[str, ...]
    checks: tuple[Check, ...] = ()
    fixture: str = ""
    files: dict[str, str] = {}
    repository: str = ""
    commit: str = ""
    setup: Texts = ()
    limits: dict[str, Any] | None = None
    reference: EvalReference | None = None
    cassette: str = ""
    tags: tuple[str, ...] = ()


class _SuiteTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str = ""
    cases: tuple[_CaseTable, ...] = ()
    fixtures: dict[str, dict[str, str]] = {}
    matrix: EvalMatrix = EvalMatrix()
    repeat: int = 1
    concurrency: int = 4
    max_cost: float | None = None
    limits: dict[str, Any] | None = None
    judge: str = ""


def load_suite(path: str | Path) -> EvalSuite:
    """Reads a suite: a TOML file, a Python file that defines `suite` or `cases`, a folder with a `suite.toml`, or the
    name of a built-in suite. Python files are executed. Raises ConfigurationError, which names the file, the case and
    the key."""
    file = _find_file(path)
    if file.suffix == ".py":
        return _load_python(file)
    try:
        return _build_suite(_decode_toml(file), file)
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error.message}") from error


def built_in_suites() -> list[str]:
    """Returns the names of the suites that are part of the package."""
    return sorted(path.stem for path in BUILT_IN_FOLDER.glob("*.toml"))


def _find_file(path: str | Path) -> Path:
    file = Path(path).expanduser()
    if file.is_dir():
        file = file / SUITE_FILE
    elif not file.exists() and str(path) in built_in_suites():
        file = BUILT_IN_FOLDER / f"{path}.toml"
    if not file.is_file() or file.suffix not in (".toml", ".py"):
        raise ConfigurationError(
            f"{path} is not a suite; pass a .toml or .py file, a folder with a {SUITE_FILE}, or one of "
            f"{', '.join(built_in_suites())}"
        )
    return file.absolute()


def _decode_toml(file: Path) -> _SuiteTable:
    import tomllib

    try:
        values = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"it is not TOML: {error}") from error
    try:
        return msgspec.convert(values, _SuiteTable)
    except msgspec.ValidationError as error:
        raise ConfigurationError(_name_case(str(error).replace("`$.", "`"), values)) from error


def _name_case(text: str, values: Mapping[str, Any]) -> str:
    """Adds the name of the case to an error that has its number."""
    position = re.search(r"`cases\[(\d+)\]", text)
    try:
        return f"{text} (case {values['cases'][int(position[1])]['name']!r})" if position else text
    except (KeyError, TypeError):
        return text


def _build_suite(table: _SuiteTable, file: Path) -> EvalSuite:
    prompts = {name: _read_text(text, file.parent) for name, text in table.matrix.prompts.items()}
    return EvalSuite(
        name=table.name or file.stem,
        cases=tuple(_build_case(case, table) for case in table.cases),
        matrix=msgspec.structs.replace(table.matrix, prompts=prompts),
        repeat=table.repeat,
        concurrency=table.concurrency,
        max_cost=table.max_cost,
        limits=_build_limits(table.limits, "limits"),
        judge=table.judge,
        folder=str(file.parent),
    )


def _build_case(table: _CaseTable, suite: _SuiteTable) -> EvalCase:
    values = {name: getattr(table, name) for name in _CaseTable.__struct_fields__}
    if table.fixture in suite.fixtures:  # files that several cases share
        values["fixture"], values["files"] = "", {**suite.fixtures[table.fixture], **table.files}
    values["limits"] = _build_limits(table.limits, f"cases.{table.name}.limits")
    return EvalCase(**values)


def _build_limits(values: dict[str, Any] | None, where: str) -> Limits | None:
    if values is None:
        return None
    unknown = values.keys() - set(Limits.__struct_fields__)
    if unknown:
        name = sorted(unknown)[0]
        raise ConfigurationError(f"{where}: unknown key {name!r}{suggest_name(name, Limits.__struct_fields__)}")
    try:
        return Limits(**values)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error.message}") from error


def _read_text(text: str, folder: Path) -> str:
    """Returns a text, or for `@FILE` the content of the file."""
    if not text.startswith("@"):
        return text
    try:
        return (folder / text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"matrix.prompts: {text[1:]} cannot be read: {error}") from error


def _load_python(file: Path) -> EvalSuite:
    import runpy
    import traceback

    sys.path.insert(0, str(file.parent))  # as for a program: a suite may import files next to it
    try:
        names = runpy.run_path(str(file))
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        location = f"{file}, line {lines[-1]}" if lines else str(file)
        raise ConfigurationError(f"{location}: {type(error).__name__}: {error}") from error
    finally:
        with suppress(ValueError):
            sys.path.remove(str(file.parent))
    suite = names.get("suite")
    if isinstance(suite, EvalSuite):
        return suite if suite.folder != "." else msgspec.structs.replace(suite, folder=str(file.parent))
    cases = names.get("cases")
    if not isinstance(cases, list | tuple) or not all(
        isinstance(case, EvalCase) for case in cast("Iterable[object]", cases)
    ):
        raise ConfigurationError(f"{file}: it defines neither `suite = EvalSuite(…)` nor `cases = [EvalCase(…), …]`")
    return EvalSuite(name=file.stem, cases=tuple(cast("list[EvalCase]", cases)), folder=str(file.parent))


async def evaluate_check(check: Check | CheckFunction, outcome: EvalOutcome) -> CheckResult:
    """Runs one check. An exception of a check function is a failed check."""
    if isinstance(check, Check):
        try:
            problem = await check.find_problem(outcome)
        except OSError as error:  # the agent may have left anything in the workspace
            problem = f"{type(error).__name__}: {error}"
        return CheckResult(check.title, not problem, problem[:MAX_DETAIL])
    name = getattr(check, "__name__", type(check).__name__)
    try:
        verdict = check(outcome)
        if isinstance(verdict, Awaitable):
            verdict = cast("object", await verdict)
    except (Exception, SystemExit) as error:  # noqa: BLE001  code of the user may raise anything
        return CheckResult(name, False, f"{type(error).__name__}: {error}"[:MAX_DETAIL])  # noqa: FBT003
    passed = verdict is None or verdict is True
    return CheckResult(name, passed, "" if passed else str(verdict or "")[:MAX_DETAIL])


def list_calls(messages: Iterable[Message]) -> Iterator[ToolPart]:
    """Yields the tool calls of a transcript that were executed or refused."""
    for message in messages:
        yield from (call for call in message.get_calls() if not isinstance(call.state, ToolPending))


CassetteMode = Literal["off", "record", "replay"]
