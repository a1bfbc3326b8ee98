"""How rules are read, and how far a rule for the shell reaches."""

from pathlib import Path

import msgspec
import pytest

from outrider.engine.child_sessions import DelegatedLimits
from outrider.permissions.rules import match_path, match_words
from outrider.types.agents import Agent
from outrider.types.tool_declaration import parse_rule
from tests.fixtures.cases import for_each
from tests.fixtures.shell_analysis import judge as decide


@pytest.mark.parametrize(
    ("text", "tool", "words", "is_open"),
    [
        ("shell(npm test)", "shell", ("npm", "test"), False),
        ("shell(npm run *)", "shell", ("npm", "run"), True),
        ("shell(npm run:*)", "shell", ("npm", "run"), True),
        ("bash(git commit -m 'a b')", "bash", ("git", "commit", "-m", "a b"), False),
        (" shell( ls ) ", "shell", ("ls",), False),
        ("shell", "shell", (), False),
        ("shell(*)", "shell", (), False),
    ],
)
def test_a_rule_for_the_shell_is_words(text: str, tool: str, words: tuple[str, ...], is_open: bool):
    rule = parse_rule(text)
    assert (rule.tool, rule.words, rule.open_ended, rule.parse_error) == (tool, words, is_open, None)


@pytest.mark.parametrize("text", ["", "shell(", "shell('a)", "a b(c)", "shell()", "shell( )", ")("])
def test_what_cannot_be_read_is_broken(text: str):
    assert parse_rule(text).parse_error


@for_each(
    ("rule", "words", "named"),
    [
        ("npm test", "npm test", 2),
        ("npm test", "npm test x", None),
        ("npm test", "npm", None),
        ("npm *", "npm", 1),
        ("npm *", "npm a b", 1),
        ("npm *", "npx", None),
        ("git status*", "git status", 2),
        ("git status*", "git status -s", None),
        ("cat src/*", "cat src/a", 2),
        ("cat src/*", "cat src/../x", None),
        ("cat src/*", "cat lib/a", None),
        ("curl http://h/*", "curl http://h/a", 2),
        ("curl http://h*", "curl http://h.evil/", None),
        ("a*b", "axb", None),
    ],
)
def test_words_match_one_by_one(rule: str, words: str, named: int | None):
    assert match_words(parse_rule(f"shell({rule})"), words.split()) == named


@for_each(
    ("pattern", "path", "matches"),
    [
        ("*.py", "a.py", True),
        ("*.py", "src/deep/a.py", True),
        ("*.py", "a.pyc", False),
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/b/a.py", False),
        ("src/**", "src/b/a.py", True),
        ("src/**", "srcx/a", False),
        ("src", "src/a/b", True),
        ("/src", "lib/src/a", False),
        ("src/", "lib/src/a", True),
        ("**/a.py", "a.py", True),
        ("**/a.py", "b/c/a.py", True),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a?.txt", "ab.txt", True),
        ("a?.txt", "a/.txt", False),
        ("**", "anything/at/all", True),
        ("./src/a", "src/a", True),
        ("a.b", "axb", False),
        ("src/**/*.py", "src/a.py", True),
        ("/", "x", True),
        ("*", "x/y", True),
    ],
)
def test_path_patterns_work_as_in_gitignore(pattern: str, path: str, matches: bool):
    assert match_path(pattern, path) is matches


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "ws" / "src").mkdir(parents=True)
    (tmp_path / "ws" / "x").write_text("x")
    return tmp_path / "ws"


@for_each(
    ("rule", "command"),
    [
        ("make *", "make test"),
        ("make *", "make -j4 all"),
        ("make *", "nice -n 5 make all"),
        ("make", "make; ls"),
        ("make *", "cd src && make x"),
        ("touch *", "touch a b"),
        ("touch *", "touch src/*.py"),
        ("rm *", "rm -rf build"),
        ("git add *", "git add src"),
        ("git commit *", "git commit -m 'a; b > c'"),
        ("git push *", "git push origin main"),
        ("sed -i *", "sed -i s/a/b/ x"),
        ("sort -o x x", "sort -o x x"),
        ("find . -delete", "find . -delete"),
        ("tar -xf *", "tar -xf a.tar"),
        ("npm run *", "npm run build -- --watch"),
        ("go test *", "go test ./..."),
        ("git ls-remote *", "git ls-remote --heads origin"),
        ("docker compose *", "docker compose up -d"),
        ("./script.sh *", "./script.sh a"),
        ("python3 -m pytest *", "python3 -m pytest -k a"),
        ("make *", "FORCE_COLOR=1 make"),
    ],
)
def test_a_rule_covers_what_it_shows(rule: str, command: str, workspace: Path):
    found = decide("shell", {"command": command}, mode="agent", allow=[f"shell({rule})"], workspace=workspace)
    assert found.effect == "allow", found.reason
    assert found.rule == f"shell({rule})"


@for_each(
    ("rule", "command"),
    [
        ("make *", "make > x"),
        ("make *", "make; rm x"),
        ("make *", "make && rm x"),
        ("make *", "make | tee x"),
        ("make *", "make $(rm x)"),
        ("make *", "make `rm x`"),
        ("make *", "A=1 make"),
        ("make *", "env A=1 make"),
        ("make *", "sudo make"),
        ("make *", "bash -c 'make'"),
        ("make *", "xargs make"),
        ("make *", "make $X"),
        ("make *", 'make "$X"'),
        ("make *", "make *"),
        ("make *", "./make"),
        ("make *", "make &> x"),
        ("make *", "eval make"),
        ("make *", "make < ../y"),
        ("timeout *", "timeout 5 make"),
        ("env *", "env make"),
        ("sudo *", "sudo make"),
        ("bash *", "bash x"),
        ("xargs *", "xargs rm"),
        ("eval *", "eval make"),
        ("cd *", "cd .."),
        ("source *", "source x"),
        ("trap *", "trap x EXIT"),
        ("alias *", "alias a=b"),
        ("touch *", "touch ../x"),
        ("touch *", "touch /tmp/x"),
        ("touch *", "touch ~/x"),
        ("touch *", "touch .git/hooks/x"),
        ("touch *", "touch .env"),
        ("touch *", "touch a/../../x"),
        ("touch *", "touch -r/etc/x a"),
        ("rm *", "rm -rf ."),
        ("rm *", "rm -rf /"),
        ("rm *", "rm -rf ~"),
        ("rm *", "rm -rf ../ws"),
        ("dd *", "dd if=x of=/dev/sda"),
        ("chmod *", "chmod -R 777 ."),
        ("sort *", "sort -o x x"),
        ("sed *", "sed -i s/a/b/ x"),
        ("sed -n *", "sed -n 'w y' x"),
        ("find *", "find . -delete"),
        ("awk *", "awk 'BEGIN{system(\"x\")}'"),
        ("git diff *", "git diff --output=x"),
        ("git *", "git push"),
        ("rg *", "rg --pre=x y"),
        ("tar -xf *", "tar -xf a --checkpoint-action=exec=x"),
        ("tar -xf *", "tar -xf a --checkpoint-a=exec=x"),
        ("git ls-remote *", "git ls-remote --upload-pack=x ."),
        ("go test *", "go test -exec x ./..."),
        ("less *", "less +!x x"),
        ("git commit *", "git commit --git-dir=../x -m y"),
        ("uniq *", "uniq x y"),
        ("hostname *", "hostname x"),
        ("zip *", "zip -TT x y"),
        ("split *", "split x"),
        ("man *", "man --html=x ls"),
        ("git commit *", 'git commit -m "$(rm x)"'),
    ],
)
def test_a_rule_covers_nothing_else(rule: str, command: str, workspace: Path):
    found = decide("shell", {"command": command}, mode="agent", allow=[f"shell({rule})"], workspace=workspace)
    assert found.effect == "ask", found


def test_several_rules_cover_a_line_together(workspace: Path):
    allow = ["shell(make test)", "shell(make lint)"]
    line = {"command": "make test && make lint; ls"}
    found = decide("shell", line, mode="agent", allow=allow, workspace=workspace)
    assert (found.effect, found.rule) == ("allow", "shell(make test), shell(make lint)")
    assert decide("shell", line, mode="agent", allow=allow[:1], workspace=workspace).effect == "ask"


def test_rules_of_callers_and_stored_agents_with_an_older_version_are_accepted():
    strict = Agent("a", "Help.", "m", "p")
    restricted = DelegatedLimits(ask=("shell(",), deny=("a b(c)",)).restrict_agent(strict)
    assert restricted.permissions == {"ask": ("shell(",), "deny": ("a b(c)",)}
    assert msgspec.convert(msgspec.to_builtins(restricted), Agent) == restricted
    assert restricted.replace(mode="plan").permissions == restricted.permissions
