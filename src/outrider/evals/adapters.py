"""Cases from other sources: SWE-bench instances and predictions, terminal-bench tasks, and sessions of the user."""

import asyncio
import glob
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import unified_diff
from pathlib import Path
from typing import Any, cast

import msgspec

from outrider.engine.archive import SessionArchive
from outrider.engine.undo import SnapshotStores
from outrider.errors import ConfigurationError, StoreError
from outrider.evals.cases import CommandCheck, EvalCase, EvalReference, EvalSuite, load_suite
from outrider.evals.results import EvalRun
from outrider.session_replay.recorded_session import assistant_steps, is_input
from outrider.sessions.snapshots.scanner import walk_files
from outrider.sessions.snapshots.tracker import ChangeTracker
from outrider.types.agents import Limits
from outrider.types.messages import Message
from outrider.types.parts import TextPart, ToolPart, is_withdrawn
from outrider.types.tool_state import ToolCompleted

MAX_FIXTURE_FILES = 2_000
MAX_FIXTURE_BYTES = 20_000_000
MAX_EXPECTED = 20_000
TEST_SECONDS = 900.0
MAX_PATCH_FILE = 1_000_000
_BINARY = "Binary files differ"
_PATCH_FILE = ".outrider_tests.patch"
_TESTS_FOLDER = ".outrider_tests"
_TASK_FILES = ("tests", "solution", "solution.sh", "solution.yaml", "run-tests.sh", "task.yaml", "docker-compose.yaml")
_TEST_COMMAND = re.compile(
    r"\b(pytest|unittest|tox|nox|(?:npm|yarn|pnpm|go|cargo|make|mix|bundle|dotnet|gradle|mvn)\b.*\btest)"
)


class SweBenchInstance(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a SWE-bench file; other fields are ignored."""

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    test_patch: str | None = ""
    patch: str | None = ""
    FAIL_TO_PASS: Any = ()
    PASS_TO_PASS: Any = ()

    def tests(self) -> list[str]:
        """Returns the names of the tests that must pass."""
        tests: list[str] = []
        for tests_field in (self.FAIL_TO_PASS, self.PASS_TO_PASS):
            names = (
                msgspec.json.decode(tests_field)
                if isinstance(tests_field, str) and tests_field.strip()
                else tests_field
            )
            tests += [str(name) for name in names or ()]
        return tests


def load_swe_bench(
    path: str | Path, repositories: str | Path, *, test_command: str = "", limit: int | None = None
) -> EvalSuite:
    """Reads instances of SWE-bench, one JSON object per line or an array of them, as a suite.

    `repositories` has a clone for each repository: `owner/name`, `owner__name` or `name`. The workspace is the base
    commit without the history, which would contain the solution. With `test_command` the patch of the tests is applied
    at the end and the command must succeed; `{tests}` in it are the names of the tests. Without it an attempt has no
    check; write the predictions with `write_predictions` and evaluate them with the official program."""
    file = Path(path)
    cases: list[EvalCase] = []
    for location, content in _read_instances(file):
        if limit is not None and len(cases) >= limit:
            break
        try:
            instance = msgspec.convert(msgspec.json.decode(content), SweBenchInstance)
            instance.tests()
        except msgspec.MsgspecError as error:
            raise ConfigurationError(f"{file}, {location}: it is not an instance of SWE-bench: {error}") from error
        cases.append(_instance_case(instance, _find_clone(instance.repo, Path(repositories)), test_command))
    return EvalSuite(name=file.stem, cases=tuple(cases), folder=str(file.absolute().parent))


def _read_instances(file: Path) -> Iterator[tuple[str, bytes | msgspec.Raw]]:
    """Yields the instances with their location: the lines of a file, or the members of a JSON array."""
    try:
        data = file.read_bytes()
        if data.lstrip().startswith(b"["):
            members = msgspec.json.decode(data, type=list[msgspec.Raw])
            yield from ((f"instance {number}", member) for number, member in enumerate(members, 1))
            return
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
    yield from ((f"line {number}", line) for number, line in enumerate(data.split(b"\n"), 1) if line.strip())


def _find_clone(repo: str, folder: Path) -> str:
    names = (repo, repo.replace("/", "__"), repo.rpartition("/")[2])
    clone = next((folder / name for name in names if (folder / name).is_dir()), None)
    if clone is None:
        raise ConfigurationError(f"{folder} has no clone of {repo}; clone it to {folder / names[1]}")
    return str(clone.absolute())


def _instance_case(instance: SweBenchInstance, clone: str, test_command: str) -> EvalCase:
    checks: tuple[CommandCheck, ...] = ()
    if test_command:
        tests = " ".join(map(shlex.quote, instance.tests()))
        command = test_command.replace("{tests}", tests)
        files, restored = dict[str, str](), tuple[str, ...]()
        if instance.test_patch:
            # The tests are those of the benchmark, even if the agent has changed or written files of the same names.
            files, restored = {_PATCH_FILE: instance.test_patch}, _patched_files(instance.test_patch, "--- a/")
            added_files = set(_patched_files(instance.test_patch, "+++ b/")) - set(restored)
            remove = f"rm -rf -- {' '.join(map(shlex.quote, sorted(added_files)))} && " if added_files else ""
            command = f"{remove}git apply --whitespace=nowarn {_PATCH_FILE} && {command}"
        restore = tuple(map(glob.escape, restored))
        checks = (CommandCheck(command=command, files=files, restore=restore, seconds=TEST_SECONDS),)
    reference = None
    if instance.patch:
        apply_patch = f"git apply --whitespace=nowarn - <<'OUTRIDER_PATCH'\n{instance.patch}\nOUTRIDER_PATCH"
        reference = EvalReference(commands=(apply_patch,))
    return EvalCase(
        name=instance.instance_id,
        prompt=f"Resolve this issue in the current repository. Change the code, not the tests.\n\n"
        f"{instance.problem_statement.strip()}",
        repository=clone,
        commit=instance.base_commit,
        checks=checks,
        reference=reference,
        tags=("swe-bench", instance.repo),
    )


def make_patch(baseline: Path, workspace: Path) -> str:
    """Returns the difference between two folders in the format of git, without new files that git would ignore. Files
    that are not text are named only."""
    before, after = _list_files(baseline), _list_files(workspace)
    new = {path for path, _ in walk_files(str(workspace))} if after.keys() - before.keys() else set[str]()
    names = sorted(before.keys() | (after.keys() & new))
    return "".join(_file_patch(name, baseline, workspace, before.get(name), after.get(name)) for name in names)


def _file_patch(
    name: str, baseline: Path, workspace: Path, old: os.stat_result | None, new: os.stat_result | None
) -> str:
    modes = [f"100{'755' if state.st_mode & 0o100 else '644'}" if state else "" for state in (old, new)]
    if old and new and modes[0] == modes[1] and (old.st_size, old.st_mtime_ns) == (new.st_size, new.st_mtime_ns):
        return ""
    lines = [_read_lines(folder / name) if state else [] for folder, state in ((baseline, old), (workspace, new))]
    head = f"diff --git a/{name} b/{name}\n"
    if not old or not new:
        head += f"{'new' if new else 'deleted'} file mode {modes[1] or modes[0]}\n"
    elif modes[0] != modes[1]:
        head += f"old mode {modes[0]}\nnew mode {modes[1]}\n"
    elif lines[0] is not None and lines[0] == lines[1]:
        return ""
    if lines[0] is None or lines[1] is None:
        return f"{head}{_BINARY}\n"
    files = (f"a/{name}" if old else "/dev/null", f"b/{name}" if new else "/dev/null")
    return head + "".join(map(_end_line, unified_diff(lines[0], lines[1], *files)))


def _list_files(folder: Path) -> dict[str, os.stat_result]:
    status_by_name: dict[str, os.stat_result] = {}
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in (".git", "__pycache__", ".pytest_cache")]
        for path in (Path(root, name) for name in names):
            with suppress(OSError):  # the agent may have removed the right to read it
                status_by_name[path.relative_to(folder).as_posix()] = path.lstat()
    return {name: status for name, status in status_by_name.items() if stat.S_ISREG(status.st_mode)}


def _read_lines(path: Path) -> list[str] | None:
    """Returns the lines of a text file; None for other files, and for a file that cannot be read."""
    try:
        if path.stat().st_size > MAX_PATCH_FILE:
            return None
        return re.findall(r"[^\n]*\n|[^\n]+", path.read_bytes().decode())
    except (OSError, UnicodeDecodeError):
        return None


def _end_line(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _only_texts(patch: str) -> str:
    """Returns a patch without the files that are not text: `git apply` would reject all of it."""
    files = re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)
    return "".join(file_patch for file_patch in files if _BINARY not in file_patch.splitlines())


def _patched_files(patch: str, start: str) -> tuple[str, ...]:
    return tuple(line.removeprefix(start).split("\t")[0] for line in patch.splitlines() if line.startswith(start))


def write_predictions(run: EvalRun, path: str | Path, *, variant: str = "") -> int:
    """Writes the changes of the first attempt at each case as predictions of SWE-bench, one JSON object per line, and
    returns their number. `variant` is needed if the run has several."""
    names = [variant.name for variant in run.variants]
    if not variant and len(names) > 1:
        raise ConfigurationError(f"the run has several variants; choose one of {', '.join(names)}")
    chosen = variant or names[0]
    attempts = {attempt.case: attempt for attempt in reversed(run.select(variant=chosen))}
    lines = [
        msgspec.json.encode(
            {"instance_id": case, "model_name_or_path": chosen, "model_patch": _only_texts(attempts[case].patch)}
        )
        for case in run.cases
        if case in attempts
    ]
    Path(path).write_bytes(b"".join(line + b"\n" for line in lines))
    return len(lines)


def is_terminal_bench(path: Path) -> bool:
    """Returns whether a folder is a task of terminal-bench, or has tasks."""
    return path.is_dir() and any(True for _ in _find_tasks(path))


def _find_tasks(folder: Path) -> Iterator[Path]:
    candidates = [folder, *(path for path in sorted(folder.iterdir()) if path.is_dir())]
    for path in candidates:
        if (path / "task.yaml").is_file() or ((path / "task.toml").is_file() and (path / "instruction.md").is_file()):
            yield path


def load_terminal_bench(path: str | Path, *, limit: int | None = None) -> EvalSuite:
    """Reads tasks of terminal-bench: a task folder, or a folder of them.

    There is no container: the task's folder `/app` is the workspace, and its tests run with pytest in the sandbox
    after the attempt. A task whose image installs programs has the tag `image`; it works only where they are
    installed. A task with files that are not text has the tag `incomplete` and lacks these files."""
    folder = Path(path).absolute()
    tasks = list(_find_tasks(folder))[:limit]
    if not tasks:
        raise ConfigurationError(f"{folder} has no task.yaml, and no folders with one")
    return EvalSuite(name=folder.name, cases=tuple(map(_task_case, tasks)), folder=str(folder))


def _task_case(task: Path) -> EvalCase:
    if (task / "task.yaml").is_file():
        values = _read_yaml((task / "task.yaml").read_text(encoding="utf-8"))
        instruction, build = str(values.get("instruction", "")), task
        limits = values.get("max_agent_timeout_sec"), values.get("max_test_timeout_sec")
    else:
        import tomllib

        table = tomllib.loads((task / "task.toml").read_text(encoding="utf-8"))
        instruction, build = (task / "instruction.md").read_text(encoding="utf-8"), task / "environment"
        limits = table.get("agent", {}).get("timeout_sec"), table.get("verifier", {}).get("timeout_sec")
    if not instruction.strip():
        raise ConfigurationError(f"{task}: the task has no instruction")
    files, needs_image = _read_build_files(build)
    tests = {
        f"{_TESTS_FOLDER}/{file.relative_to(task / 'tests').as_posix()}": _read(file)
        for file in sorted((task / "tests").rglob("*"))
        if file.is_file() and file.suffix != ".sh" and "__pycache__" not in file.parts
    }
    solution = next((file for name in ("solution.sh", "solution/solve.sh") if (file := task / name).is_file()), None)
    is_incomplete = any(text is None for text in (*files.values(), *tests.values()))
    tags = (*(["image"] if needs_image else []), *(["incomplete"] if is_incomplete else []))
    return EvalCase(
        name=task.name,
        prompt=_as_workspace(instruction).strip(),
        files={name: text for name, text in files.items() if text is not None},
        checks=(
            CommandCheck(
                command=f"{{python}} -m pytest -q -p no:cacheprovider {_TESTS_FOLDER}",
                files={name: _as_workspace(text) for name, text in tests.items() if text is not None},
                seconds=float(limits[1] or TEST_SECONDS),
            ),
        ),
        limits=Limits(seconds=float(limits[0] or 900)),
        reference=EvalReference(commands=(_as_workspace(_read(solution) or ""),)) if solution else None,
        tags=("terminal-bench", *tags),
    )


def _read(file: Path) -> str | None:
    """Returns the content of a text file; None for other files, because a case can contain text only."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def _as_workspace(text: str) -> str:
    """Replaces the folders of the container by those in the workspace."""
    text = re.sub(r"(?<![\w./-])/tests(?=/)", f"./{_TESTS_FOLDER}", text)
    return re.sub(r"(?<![\w./-])/app(?![\w.-])(/?)", lambda match: "./" if match[1] else ".", text)


def _read_build_files(build: Path) -> tuple[dict[str, str | None], bool]:
    """Returns the files that the image copies to its working folder, and whether it installs anything."""
    file = build / "Dockerfile"
    if not file.is_file():
        return {}, False
    lines = file.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    files: dict[str, str | None] = {}
    for line in lines:
        words = [word for word in line.split() if not word.startswith("--")]
        if len(words) >= 3 and words[0].upper() in ("COPY", "ADD"):
            for source in words[1:-1]:
                files |= _copied_files(build, source, words[-1])
    return files, any(line.strip().upper().startswith("RUN ") for line in lines)


def _copied_files(build: Path, source: str, target: str) -> dict[str, str | None]:
    inside = re.sub(r"^(?:/app(?=/|$)|\.)/?", "", target)
    if inside.startswith("/"):
        return {}
    files: dict[str, str | None] = {}
    for path in sorted(build.glob(source.lstrip("./") or "*")):
        if source.lstrip("./") == "" and path.name in _TASK_FILES:  # `COPY . /app` has them in the image of some tasks
            continue
        members = sorted(path.rglob("*")) if path.is_dir() else [path]
        for member in (path for path in members if path.is_file() and path.name != "Dockerfile"):
            name = member.relative_to(path).as_posix() if path.is_dir() else member.name
            target_path = (
                inside if path.is_file() and inside and not inside.endswith("/") else f"{inside.rstrip('/')}/{name}"
            )
            files[target_path.lstrip("/")] = _read(member)
    return files


def _read_yaml(text: str) -> dict[str, Any]:
    """Reads the top level of a simple YAML file: scalars and block strings. The fields of a task that are used have no
    other values."""
    values: dict[str, Any] = {}
    lines = iter([*text.splitlines(), "end:"])
    line = next(lines, "")
    while line != "end:":
        match = re.match(r"([\w-]+):\s*(.*)$", line)
        line = next(lines, "end:")
        if match is None:
            continue
        key, value = match[1], match[2].strip()
        block: list[str] = []
        while line != "end:" and (not line.strip() or line.startswith((" ", "-"))):
            block.append(line)
            line = next(lines, "end:")
        if value[:1] in ("|", ">"):
            values[key] = _dedent_block(block, folded=value[0] == ">")
        elif value:
            values[key] = " ".join(
                [value, *(continuation.strip() for continuation in block if continuation.startswith(" "))]
            ).strip("'\"")
    return values


def _dedent_block(lines: Sequence[str], *, folded: bool) -> str:
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    text = "\n".join(line[indent:] for line in lines).strip("\n")
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text) if folded else text


class AddedCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case that `add_session_case` created. `notes` say what must be completed manually."""

    name: str
    file: str
    fixture: str
    checks: int
    notes: tuple[str, ...] = ()


async def add_session_case(
    archive: SessionArchive, session: str, suite: str | Path, *, data: Path, name: str | None = None
) -> AddedCase:
    """Appends a case to a suite in TOML, made from a session: its inputs, the files of its workspace as they were
    before it, checks for what it achieved, and its answers as a script for runs without a model. Raises
    ConfigurationError."""
    stored = await archive.find_session(session)
    messages = (await archive.load(stored.id)).messages
    workspace = Path(stored.workspace_directory) if stored.workspace_directory else None
    changes = await _changed_files(stored.id, workspace, data)
    return await asyncio.to_thread(_write_case, Path(suite), name or stored.title, messages, workspace, changes)


def _write_case(
    file: Path, title: str, messages: Sequence[Message], workspace: Path | None, changes: "_FileChanges"
) -> AddedCase:
    if file.suffix != ".toml":
        raise ConfigurationError(f"{file}: a case can be added to a .toml file only")
    taken_names = {case.name for case in load_suite(file).cases} if file.exists() else set[str]()
    prompts = [text for message in messages if is_input(message) and (text := _input_text(message))]
    if not prompts:
        raise ConfigurationError("the session has no input")
    name, notes = _free_name(title or prompts[0], taken_names), list(changes.notes)
    fixture, script = file.parent / "fixtures" / name, file.parent / "cassettes" / f"{name}.json"
    table: dict[str, Any] = {"name": name, "prompt": prompts[0] if len(prompts) == 1 else prompts}
    if workspace is not None and workspace.is_dir():
        own_files = [path.absolute() for path in (file, fixture.parent, script.parent)]
        notes += _copy_workspace(workspace, fixture, changes.before, own_files)
        table["fixture"] = f"fixtures/{name}"
    script.parent.mkdir(parents=True, exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(list(_script_items(messages))), indent=1).decode()
    script.write_text(text.replace(str(workspace), "{workspace}") if workspace else text, encoding="utf-8")
    table["cassette"] = f"cassettes/{name}.json"
    checks = _suggest_checks(messages, changes)
    if not checks:
        checks = [{"type": "answer", "matches": "."}]
        notes.append("the session changed no file: replace the check of the answer by one that says what is correct")
    with file.open("a", encoding="utf-8") as target:
        target.write(_case_toml(table, checks, {path: new for path, new in changes.after.items() if new is not None}))
    load_suite(file)
    return AddedCase(
        name=name, file=str(file), fixture=table.get("fixture", ""), checks=len(checks), notes=tuple(notes)
    )


def _input_text(message: Message) -> str:
    texts = [part.text for part in message.get_parts_by_type(TextPart) if not part.synthetic and not part.ignored]
    return "\n\n".join(texts).strip()


def _free_name(text: str, taken_names: set[str]) -> str:
    base = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "case"
    number = 1
    while (name := base if number == 1 else f"{base}-{number}") in taken_names:
        number += 1
    return name


class _FileChanges(msgspec.Struct, frozen=True):
    """The changed files of a session: contents before it and text after it; None if there was no such file."""

    before: dict[str, bytes | None] = {}
    after: dict[str, str | None] = {}
    notes: tuple[str, ...] = ()


async def _changed_files(session_id: str, workspace: Path | None, data: Path) -> _FileChanges:
    stores = SnapshotStores(data)
    if workspace is None or not stores.has_snapshots(workspace):
        return _FileChanges()
    try:
        tracker = await stores.open_snapshots(workspace)
        if isinstance(tracker, str):
            return _FileChanges(notes=(tracker,))
        return await stores.run_in_thread(lambda: _read_changes(tracker, session_id))
    finally:
        await stores.close()


def _read_changes(tracker: ChangeTracker, session_id: str) -> _FileChanges:
    before: dict[str, bytes | None] = {}
    after: dict[str, str | None] = {}
    changes = tracker.session_changes(session_id)
    notes = [f"{path} has no copy of its content before the session" for change in changes for path in change.uncovered]
    for file in (file for change in changes for file in change.files):
        try:
            if file.path not in before:
                before[file.path] = tracker.read_content(file.before) if file.before else None
            after[file.path] = tracker.read_content(file.after).decode() if file.after else None
        except (StoreError, UnicodeDecodeError):
            after.pop(file.path, None)
            notes.append(f"{file.path} has no stored text")
    return _FileChanges(before, after, tuple(notes))


def _copy_workspace(
    workspace: Path, fixture: Path, before: Mapping[str, bytes | None], left_out: Sequence[Path]
) -> list[str]:
    """Copies the files of a workspace as they were before the session, without ignored ones; returns notes."""
    total, count = 0, 0
    for path, status in walk_files(str(workspace)):
        if any((workspace / path).is_relative_to(excluded) for excluded in left_out):
            continue
        total, count = total + status.st_size, count + 1
        if count > MAX_FIXTURE_FILES or total > MAX_FIXTURE_BYTES:
            return [f"the workspace is large: the fixture has only its first {count - 1} files; add what is missing"]
        source = workspace / path
        if path not in before and source.is_file() and not source.is_symlink():
            _write_bytes(fixture / path, source.read_bytes())
    for path, content in before.items():
        if content is not None:
            _write_bytes(fixture / path, content)
    fixture.mkdir(parents=True, exist_ok=True)
    return []


def _write_bytes(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _script_items(messages: Sequence[Message]) -> Iterator[list[dict[str, Any]]]:
    """Yields the answers of the model as items of a script."""
    for step in assistant_steps(messages):
        items: list[dict[str, Any]] = []
        for part in step.parts:
            if isinstance(part, TextPart) and part.text.strip() and not is_withdrawn(part) and not part.synthetic:
                items.append({"text": part.text})
            elif isinstance(part, ToolPart) and not is_withdrawn(part):
                items.append({"tool": part.tool, "input": part.state.input, "id": part.call_id})
        if items:
            yield items


def _suggest_checks(messages: Sequence[Message], changes: _FileChanges) -> list[dict[str, Any]]:
    """Returns checks for what the session achieved: its last successful test command, else the contents of files."""
    if not changes.after:
        return []
    commands = [
        str(call.state.input.get("command", ""))
        for step in assistant_steps(messages)
        for call in step.get_calls()
        if call.tool == "shell" and isinstance(call.state, ToolCompleted) and call.state.metadata.get("exit_code") == 0
    ]
    tests = [command for command in commands if _TEST_COMMAND.search(command)]
    if tests:
        return [{"type": "command", "command": tests[-1], "seconds": 300}]
    checks: list[dict[str, Any]] = []
    for path, text in changes.after.items():
        old = changes.before.get(path)
        if text is None:
            checks += [{"type": "file", "path": path, "exists": False}] if old is not None else []
        elif old != text.encode():
            equals = {"equals": text} if len(text) <= MAX_EXPECTED else {}
            checks.append({"type": "file", "path": path, **equals})
    return checks


def _case_toml(table: Mapping[str, Any], checks: Iterable[Mapping[str, Any]], reference: Mapping[str, str]) -> str:
    lines = ["\n[[cases]]", *(f"{key} = {_toml_value(value)}" for key, value in table.items())]
    for check in checks:
        lines += ["\n[[cases.checks]]", *(f"{key} = {_toml_value(value)}" for key, value in check.items())]
    if reference:
        lines.append("\n[cases.reference.files]")
        lines += [f"{_toml_value(path)} = {_toml_value(text)}" for path, text in reference.items()]
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    """Returns a value in TOML. JSON strings are TOML strings, except for the delete character."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, cast('Sequence[Any]', value)))}]"
    if isinstance(value, str) and "\n" in value and "'''" not in value and _is_plain(value):
        return f"'''\n{value}'''"
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def _is_plain(text: str) -> bool:
    return not text.endswith("'") and all(char >= " " or char in "\n\t" for char in text) and "\x7f" not in text
