"""Command lines that the analyser once proved, or could prove, to only read although they have an effect.

`false_proofs.txt` has one command line per line, grouped by cause; ⏎ represents a line end.
"""

from pathlib import Path

import pytest

from outrider.permissions.shell.analysis import analyse_script

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
]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("proofs")
    for folder in ("ws/src", "out"):
        (place / folder).mkdir(parents=True)
    (place / "out" / "secret.txt").write_text("x")
    for name in ("README.md", "notes.txt", "src/app.py", ".env", "script.sh"):
        (place / "ws" / name).write_text("x\n")
    (place / "ws" / "link_out").symlink_to("../out")
    return str(place / "ws")


@pytest.mark.parametrize("command", FALSE_PROOFS)
def test_is_not_proven_read_only(command: str, workspace: str):
    assert analyse_script(command.replace("⏎", "\n"), root=workspace, cwd=workspace).unproven_reasons


@pytest.mark.parametrize("command", PROVEN)
def test_is_proven_read_only(command: str, workspace: str):
    assert analyse_script(command, root=workspace, cwd=workspace).unproven_reasons == ()
