"""Command lines that the analyser once proved, or could prove, to only read although they have an effect.

`false_proofs.txt` has one command line per line, grouped by cause; ⏎ represents a line end.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from outrider.permissions.shell.analysis import analyse_script
from outrider.permissions.shell.programs.git import GIT_SUBCOMMANDS
from outrider.permissions.shell.programs.registry import CUSTOM_CHECK_SPECS, PROGRAM_SPECS
from outrider.permissions.shell.programs.table import ProgramSpec
from tests.fixtures.cases import for_each

HERE = Path(__file__).parent
FALSE_PROOFS = [
    line
    for line in HERE.joinpath("false_proofs.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("# ")
]
PROVEN = [
    "f() { ls; }; f",
    "f() { local x=1; echo $x; }; f",
    'f() { grep -n "$1" notes.txt; }; f x',
    "x=1; unset x",
    "echo ${x:-a} ${x%b} ${x//a/b}",
    "find . -name '*.py' -exec grep -n x {} +",
    "find . -name '*.py' -exec grep -n x {} \\;",
    "echo a | xargs -I X echo X",
    "echo a | xargs -n 1 echo",
    "git diff -U5",
    "git diff --unified=5",
    "git log --format=%h -n 3",
    "git log --author x --grep y",
    "git log --min-parents=2",
    "xxd -p README.md",
    "xxd -ps README.md",
    "xxd -l 16 -c8 README.md",
    "tree -L 2 -aI node_modules",
    "rg -e '-x' src",
    "rg --sort path x",
    "for _ in 1 2; do ls; done",
    "while read -r x; do echo $x; done < notes.txt",
    "while read -r; do echo $REPLY; done < notes.txt",
    "ls 2>&1 | wc -l",
    "ls >&2",
    "echo {1..3} {a,b}",
    "bash -c \"$(cat <<'E'\nls\nE\n)\"",
    "find . -type f -name '*.py' | xargs wc -l",
    "find . -name '*.py' -print0 | sort -z | xargs -0 wc -l",
    "grep --ignore x notes.txt",
    "tar tf a.tar",
    "echo a=~/x",
    "TZ=America/New_York date",
    "TZ=UTC date",
    "env TZ=Europe/Berlin date +%F",
    "bash -lc 'ls | wc -l'",
    "bash -euo pipefail -c 'ls'",
    "bash --login -c ls",
    "cat <<EOF | wc -l\nhello\nEOF",
    "cat <<'EOF' | grep x | wc -l\nhello\nEOF\nls",
    "x=$(cat <<EOF | wc -l\nhello\nEOF\n)",
    "grep -c x <<EOF | cat 2>/dev/null\n$(ls)\nEOF",
    "wc -l $(git ls-files)",
    "grep -n x $(git ls-files)",
    "cat $(find src -name '*.py')",
    "git ls-files | xargs wc -l",
    "git ls-files '*.py' src | xargs wc -l",
    "wc -l $(git ls-files -- '*.py')",
    "git ls-files | grep py | xargs wc -l",
    "n=7; [[ $n -gt 5 ]]",
    "n=$(ls | wc -l); [[ $n -gt 5 ]] && echo many",
    "n=$(wc -l < notes.txt); if [ $n -gt 5 ]; then echo many; fi",
    "n=$(grep -c x notes.txt); echo $((n * 2))",
    "[[ $# -gt 5 ]]",
    "x=abc; [[ ${#x} -eq 3 ]]",
    "ls; [[ $? -eq 0 ]]",
    "[[ $(git rev-list --count HEAD) -gt 5 ]]",
    "n=$((1 + 2)); [[ $n -eq 3 ]]",
]


def analyse(command: str, folder: Path) -> tuple[str, ...]:
    return analyse_script(command, root=str(folder), cwd=str(folder)).unproven_reasons


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("proofs")
    for folder in ("ws/src", "out"):
        (place / folder).mkdir(parents=True)
    (place / "out" / "secret.txt").write_text("x")
    for name in ("README.md", "notes.txt", "src/app.py", ".env", "script.sh"):
        (place / "ws" / name).write_text("x\n")
    subprocess.run(["git", "init", "-q"], cwd=place / "ws", check=True)
    subprocess.run(["git", "add", "-A"], cwd=place / "ws", check=True)
    return str(place / "ws")


@for_each("command", FALSE_PROOFS)
def test_is_not_proven_read_only(command: str, workspace: str):
    link = Path(workspace) / "link_out"
    link.unlink(missing_ok=True)
    found = analyse(command.replace("⏎", "\n"), Path(workspace))
    link.symlink_to("../out")  # a link out of the workspace makes some commands effectful, but no command harmless
    assert found or "link" in command or "deref" in command
    assert analyse(command.replace("⏎", "\n"), Path(workspace))


@for_each("command", PROVEN)
def test_is_proven_read_only(command: str, workspace: str):
    (Path(workspace) / "link_out").unlink(missing_ok=True)
    assert analyse_script(command, root=workspace, cwd=workspace).unproven_reasons == ()


@pytest.mark.parametrize("name", ["a b", "x /etc/passwd", "a*", "[a]", "-x", "ä", "a'b", "a\nb"])
def test_an_unusual_name_in_the_index_is_not_passed_on(name: str, tmp_path: Path):
    """The index can list a file that does not exist."""
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "plain").write_text("x")
    subprocess.run([*git, "add", "plain"], check=True)
    assert not analyse("wc -l $(git ls-files)", tmp_path)
    blob = subprocess.run(
        [*git, "hash-object", "-w", "plain"], check=True, capture_output=True, text=True
    ).stdout.strip()
    subprocess.run([*git, "update-index", "--add", "--cacheinfo", f"100644,{blob},{name}"], check=True)
    assert analyse("wc -l $(git ls-files)", tmp_path)
    assert analyse("git ls-files | xargs wc -l", tmp_path)


def test_a_link_out_of_the_workspace_in_the_index_is_not_passed_on(tmp_path: Path):
    workspace = tmp_path / "ws"
    (workspace / "src").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (workspace / "src" / "app.py").write_text("x")
    git = ["git", "-C", str(workspace)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    (workspace / "other").symlink_to("../out")
    assert not analyse("wc -l $(git ls-files)", workspace)
    (workspace / "src").rename(tmp_path / "out" / "src")
    (workspace / "src").symlink_to("../out/src")
    assert analyse("wc -l $(git ls-files)", workspace)
    assert analyse("git ls-files -z | xargs -0 wc -l", workspace)


@pytest.mark.parametrize(("name", "target"), [("a b", None), ("a*", None), ("-x", None), ("link", "/etc")])
def test_an_unusual_name_in_the_folder_is_not_passed_on(name: str, target: str | None, tmp_path: Path):
    (tmp_path / "raw_server.py").write_text("x")
    assert not analyse("wc -l $(find . -name '*.py')", tmp_path)
    if target:
        (tmp_path / name).symlink_to(target)
    else:
        (tmp_path / f"{name}").write_text("x")
    assert analyse("wc -l $(find .)", tmp_path)


def test_a_login_shell_does_not_run_start_files_of_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert not analyse("bash -lc ls", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert analyse("bash -lc ls", tmp_path)


@pytest.mark.parametrize(
    "table", [PROGRAM_SPECS, CUSTOM_CHECK_SPECS, GIT_SUBCOMMANDS], ids=["all", "own checks", "git"]
)
def test_the_options_of_every_program_are_written_correctly(table: dict[str, ProgramSpec]):
    """They are parsed on first use."""
    assert sum(len(spec.options) for spec in table.values()) > 50


GRAMMAR_PACKAGE = """
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
spec = PathFinder.find_spec("_binding", [{folder!r}])
binding = module_from_spec(spec)
spec.loader.exec_module(binding)
language = binding.language
"""


def test_a_grammar_package_without_the_private_module_is_imported(tmp_path: Path):
    installed = find_spec("tree_sitter_bash")
    assert installed is not None and installed.submodule_search_locations
    package = tmp_path / "tree_sitter_bash"
    package.mkdir()
    (package / "__init__.py").write_text(
        GRAMMAR_PACKAGE.format(folder=next(iter(installed.submodule_search_locations)))
    )
    use = "decide('shell', {'command': 'ls'}, mode='plan', workspace='.')"
    code = f"from outrider.permissions import decide; print({use}.effect)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout == "allow\n", ran.stderr
