"""Only `config/` reads settings from the environment; other packages receive values."""

import ast
import re
from collections.abc import Iterator

from tests.architecture.repository import PACKAGE, modules_under

VARIABLE = re.compile(r"OUTRIDER_[A-Z_]*")
# Modules that name a variable: they set it for a program that they start, compare environments, or print its name.
NAMES_OF_VARIABLES = {
    "background/local_worker.py": {"OUTRIDER_", "OUTRIDER_HOME", "OUTRIDER_USER"},  # compares environments
    "cli/commands/worker.py": {"OUTRIDER_HOME"},  # writes it to a service unit
    "engine/diagnostics.py": {"OUTRIDER_", "OUTRIDER_HOME"},  # prints which variable a setting comes from
    "project/hooks.py": {"OUTRIDER_HOOK_ID"},  # set for the commands of hooks
    "sessions/failpoints.py": {"OUTRIDER_FAULT"},  # set by tests
    "testing/contracts.py": {"OUTRIDER_FAULT"},
}
# Commands pass the environment on and read variables of the terminal; the other modules start programs, find a sandbox,
# read the time zone of the system, or keep models.
READERS_OF_THE_SYSTEM = (
    "background/schedules.py",
    "background/worktrees.py",
    "cli/",
    "config/",
    "evals/runner.py",
    "mcp.py",
    "models/local_download.py",
    "processes/",
    "providers/local/model_pool.py",
    "sessions/failpoints.py",
    "testing/contracts.py",
    "tui/desktop.py",
)


def modules_with(text: str) -> Iterator[tuple[str, ast.Module]]:
    for file in modules_under(PACKAGE):
        if text in (source := file.read_text(encoding="utf-8")):
            yield file.relative_to(PACKAGE).as_posix(), ast.parse(source)


def named_variables(module: ast.Module) -> set[str]:
    texts = [node.value for node in ast.walk(module) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {text for text in texts if VARIABLE.fullmatch(text)}


def reads_environment(module: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in ("environ", "environb", "getenv")
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        for node in ast.walk(module)
    )


def test_only_the_configuration_names_the_variables_of_settings():
    named = {path: names for path, module in modules_with("OUTRIDER_") if (names := named_variables(module))}
    others = {path: names for path, names in named.items() if not path.startswith("config/")}
    assert others == NAMES_OF_VARIABLES, "read the variable in config/ (environment.py, settings.py) and pass the value"


def test_only_listed_modules_read_the_environment():
    readers = [path for path, module in modules_with("env") if reads_environment(module)]
    unlisted = [path for path in readers if not path.startswith(READERS_OF_THE_SYSTEM)]
    assert not unlisted, f"pass the environment as an argument: {unlisted}"
    unused = [entry for entry in READERS_OF_THE_SYSTEM if not any(path.startswith(entry) for path in readers)]
    assert not unused, f"these entries are not needed: {unused}"
