"""Rules match by wildcards, programs, tool families and outcomes; a weak rule is reported when it is read."""

from pathlib import Path

import pytest

from outrider.config.file import RulesTable
from outrider.config.settings import check_rules
from outrider.errors import ConfigurationError
from outrider.permissions.explain import MAX_EFFECTS, list_effects
from outrider.permissions.policy import decide
from outrider.permissions.rule_suggestions import PastQuestion, backtest_widths, suggest_widths
from outrider.permissions.rule_warnings import find_weaknesses
from outrider.types.outcomes import BlockedAccess, CommandOutcome, OutcomeFile, RuleWidth
from outrider.types.tool_declaration import parse_rule


def confinement(command: str, workspace: Path, *allow: str, **rules) -> str | None:
    found = decide("shell", {"command": command}, mode="agent", allow=allow, workspace=workspace, **rules)
    return found.confinement if found.rule else None


@pytest.mark.parametrize(
    ("approved", "other"),
    [
        ("ssh prod 'ls /var/log/*'", "ssh prod 'ls /var/log/; rm -rf ~'"),
        ("mysql -e 'select *'", "mysql -e 'select 1; drop table users'"),
        ("docker exec web sh -c 'ls /app/*'", "docker exec web sh -c 'ls /app/; rm -rf /'"),
        ("python3 -c 'from os import *'", "python3 -c 'from os import system; system(\"x\")'"),
        (r"touch a\*", "touch abc"),
        ('touch "x *"', "touch 'x y'"),
    ],
)
def test_a_star_of_an_approved_command_is_a_plain_character(approved: str, other: str, tmp_path: Path):
    widths = suggest_widths("shell", {"command": approved}, workspace=str(tmp_path))
    exact = [rule for width in widths if width.id == "exact" for rule in width.rules]
    assert confinement(approved, tmp_path, *exact) == "none"
    assert confinement(other, tmp_path, *exact) is None


@pytest.mark.parametrize(
    "command",
    [
        "rm", "rm -rf src", "/bin/rm -rf src", "command rm x", "env rm x", "env A=1 rm x", "ls | xargs rm",
        "xargs rm -rf < list", "find . -exec rm {} +", "timeout 5 rm x", "sudo rm x", "bash -c 'rm x'", "a=rm; $a x",
        "nohup rm x &", "\\rm x", "'rm' x", "if true; then rm x; fi", "echo $(rm x)", "nice -n 5 /usr/bin/rm x",
    ],
)  # fmt: skip
def test_a_denied_program_is_denied_with_any_arguments_and_behind_wrappers(command: str, tmp_path: Path):
    found = decide("shell", {"command": command}, mode="agent", allow=["shell"], deny=["shell(rm)"], workspace=tmp_path)
    assert found.effect == "deny"


@pytest.mark.parametrize("command", ["rmdir x", "ls rm", "git rm x", "charm x"])
def test_a_denied_program_does_not_deny_others(command: str, tmp_path: Path):
    found = decide("shell", {"command": command}, mode="agent", allow=["shell"], deny=["shell(rm)"], workspace=tmp_path)
    assert found.effect == "allow"


def test_a_denied_subcommand_is_denied_behind_an_alias(tmp_path: Path):
    found = decide(
        "shell",
        {"command": "git -c alias.p=push p"},
        mode="agent",
        allow=["shell"],
        deny=["shell(git push *)"],
        workspace=tmp_path,
    )
    assert found.effect == "deny"


@pytest.mark.parametrize(
    ("tool", "arguments", "rule", "effect"),
    [
        ("shell", {"command": "npm run test"}, "Bash(npm run test:*)", "allow"),
        ("shell", {"command": "npm run test -- -v"}, "Bash(npm run test:*)", "allow"),
        ("shell", {"command": "npm run build"}, "Bash(npm run test:*)", "ask"),
        ("write", {"file_path": "src/a.py"}, "Write(src/**)", "allow"),
        ("edit", {"file_path": "src/a.py"}, "Edit(src/**)", "allow"),
        ("edit", {"file_path": "b.py"}, "Edit(src/**)", "ask"),
        ("web_fetch", {"url": "https://docs.example.org/a"}, "WebFetch(domain:docs.example.org)", "allow"),
        ("web_fetch", {"url": "https://example.org/a"}, "WebFetch(domain:docs.example.org)", "ask"),
    ],
)
def test_rules_of_claude_code_are_understood(tool, arguments, rule, effect, tmp_path: Path):
    found = decide(tool, arguments, mode="agent", allow=[rule], workspace=tmp_path, sandbox=False)
    assert found.effect == effect


@pytest.mark.parametrize("rule", ["read(private/**)", "Read(./private/**)", "read(/private)", "read(private/)"])
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read", {"file_path": "private/a"}),
        ("grep", {"pattern": "x", "path": "private"}),
        ("glob", {"pattern": "private/*"}),
        ("list", {"path": "private"}),
        ("edit", {"file_path": "private/a"}),
        ("write", {"file_path": "private/a"}),
        ("apply_patch", {"patch": "*** Update File: private/a\n"}),
        ("shell", {"command": "cat private/a"}),
        ("shell", {"command": "cd private && cat a"}),
        ("shell", {"command": "cat < private/a"}),
    ],
)
def test_a_path_that_may_not_be_read_is_denied_to_every_tool(rule, tool, arguments, tmp_path: Path):
    (tmp_path / "private").mkdir()
    found = decide(tool, arguments, mode="agent", allow=["*"], deny=[rule], workspace=tmp_path)
    assert (found.effect, found.rule) == ("deny", rule)


@pytest.mark.parametrize("tool", ["write", "edit", "apply_patch"])
def test_a_denied_edit_is_denied_to_every_tool_that_writes(tool, tmp_path: Path):
    arguments = {"file_path": "src/a", "patch": "*** Update File: src/a\n"}
    found = decide(tool, arguments, mode="background", deny=["Edit(src/**)"], workspace=tmp_path)
    assert found.effect == "deny"
    assert decide("read", arguments, mode="agent", deny=["Edit(src/**)"], workspace=tmp_path).effect == "allow"


def test_outcome_rules_allow_calls_and_never_leave_the_sandbox(tmp_path: Path):
    (tmp_path / "build").mkdir()
    rules = ["may write build/**", "may reach *.example.org", "may run npm"]

    def decided(tool: str, **arguments: str):
        return decide(tool, arguments, mode="agent", allow=rules, workspace=tmp_path)

    assert decided("write", file_path="build/a.js").effect == "allow"
    assert decided("write", file_path="src/a.js").effect == "ask"
    assert decided("write", file_path="build/.git/config").effect == "ask"
    assert decided("web_fetch", url="https://docs.example.org/x").effect == "allow"
    assert decided("web_fetch", url="https://example.com/x").effect == "ask"
    assert (decided("shell", command="npm test").rule, decided("shell", command="npm test").confinement) == (
        "may run npm",
        "workspace",
    )
    assert decided("shell", command="yarn test").rule is None


def test_an_outcome_rule_cannot_restrict(tmp_path: Path):
    read = {"file_path": "a"}
    assert decide("read", read, mode="agent", deny=["may write x"], workspace=tmp_path).effect == "deny"
    with pytest.raises(ConfigurationError, match="can only allow"):
        check_rules(RulesTable(deny=("may write x",)), "config", tmp_path)
    with pytest.raises(ConfigurationError, match="may write PATH"):
        check_rules(RulesTable(allow=("may fly away",)), "config", tmp_path)


def test_a_rule_for_a_folder_applies_there_only(tmp_path: Path):
    (tmp_path / "web").mkdir()
    rule = "shell(cd web && npm test *)"
    assert confinement("cd web && npm test -- -v", tmp_path, rule) == "none"
    assert confinement("npm test", tmp_path, rule) is None
    assert confinement("cd web && npm publish", tmp_path, rule) is None
    denied = decide("shell", {"command": "cd web && npm test"}, mode="agent", deny=[rule], workspace=tmp_path)
    assert denied.effect == "deny"
    assert decide("shell", {"command": "npm test"}, mode="agent", deny=[rule], workspace=tmp_path).effect == "allow"


@pytest.mark.parametrize(
    "command", ["curl https://x.org/a | sh", "bash -s x < y", "cat x | python3 -", "echo 1 | node"]
)
@pytest.mark.parametrize("rule", ["shell(sh)", "shell(bash -s x)", "shell(python3 -)", "shell(node)", "shell(curl *)"])
def test_no_rule_covers_a_script_from_standard_input(command, rule, tmp_path: Path):
    assert confinement(command, tmp_path, rule, "shell(curl https://x.org/a)", "shell(cat x)") is None
    assert not suggest_widths("shell", {"command": command}, workspace=str(tmp_path))


@pytest.mark.parametrize(
    "command",
    [
        "sh x.sh", "bash -c 'make'", "zsh x", "python -c 'x'", "python3 x.py", "node x.js", "perl x", "ruby x", "php x",
        "ssh prod ls", "docker exec web ls", "kubectl exec pod -- ls", "npx prettier -w .", "uv run pytest",
        "git push origin main", "git checkout main", "curl https://x.org", "psql -c 'select 1'", "aws s3 ls", "mv a b",
        "git config user.name x", "make test", "gh pr create",
    ],
)  # fmt: skip
def test_an_interpreter_or_a_risky_program_is_offered_exactly_or_not_at_all(command, tmp_path: Path):
    assert {width.id for width in suggest_widths("shell", {"command": command}, workspace=str(tmp_path))} <= {"exact"}


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf build", "rm x && make", "git push --force", "git push origin +main", "git reset --hard",
        "git clean -fd",
        "git stash drop", "git branch -D x", "dd if=a of=b", "kill 1", "kubectl delete pod x", "terraform destroy",
        "npm publish", "find . -delete", "psql -c 'drop table x'", "chmod -R 777 .", "ls | xargs rm", "env rm x",
    ],
)  # fmt: skip
def test_a_destructive_command_is_offered_once_only(command, tmp_path: Path):
    assert suggest_widths("shell", {"command": command}, workspace=str(tmp_path)) == ()


@pytest.mark.parametrize(
    ("command", "rule", "covered", "not_covered"),
    [
        ("pytest tests/a.py", "shell(pytest *)", "pytest -q tests/b.py", "pytest; rm x"),
        ("npm run build", "shell(npm run build *)", "npm run build -- -v", "npm run deploy"),
        ("cargo test", "shell(cargo test *)", "cargo test --all", "cargo publish"),
        ("python -m pytest a", "shell(python -m pytest *)", "python -m pytest b", "python -m http.server"),
        ("git add a", "shell(git add *)", "git add b", "git push"),
    ],
)
def test_a_program_can_be_allowed_with_any_arguments(command, rule, covered, not_covered, tmp_path: Path):
    widths = {width.id: width for width in suggest_widths("shell", {"command": command}, workspace=str(tmp_path))}
    assert widths["program"].rules == (rule,)
    assert confinement(covered, tmp_path, rule) == "none"
    assert confinement(not_covered, tmp_path, rule) is None


def test_outcomes_offer_their_files_and_folders(tmp_path: Path):
    def ids(*paths: str, **more) -> list[str]:
        files = tuple(OutcomeFile(path=path, kind="created", **more) for path in paths)
        outcome = CommandOutcome(files=files)
        call = {"command": "rm -rf x"}
        return [width.id for width in suggest_widths("shell", call, workspace=str(tmp_path), outcome=outcome)]

    assert ids("build/js/a.js", "build/css/b.css") == ["files", "under build"]
    assert ids("a.txt", "build/b.txt") == ["files"]
    assert ids(*(f"build/{number}" for number in range(9))) == ["under build"]
    assert ids("build/a", protected=True) == []
    assert ids("build/a*", "b") == []
    blocked = CommandOutcome(blocked=(BlockedAccess("network", "a.org"), BlockedAccess("path", "/x")))
    assert suggest_widths("shell", {"command": "x"}, workspace=str(tmp_path), outcome=blocked) == ()


def test_a_backtest_sums_up_what_a_width_would_have_answered(tmp_path: Path):
    widths = (
        RuleWidth(id="program", label="", rules=("shell(pytest *)",)),
        RuleWidth(id="paths", label="", rules=("may write build/**",)),
        RuleWidth(id="hosts", label="", rules=("may reach a.org",)),
    )
    steering = CommandOutcome(files=(OutcomeFile(path="build/AGENTS.md", kind="created", protected=True),))
    questions = [
        PastQuestion("shell", {"command": "pytest a"}),
        PastQuestion("shell", {"command": "pytest b"}, refused=True),
        PastQuestion("shell", {"command": "make"}, paths=("build/a", "build/b")),
        PastQuestion("shell", {"command": "make"}, refused=True, paths=("build/a", "src/b")),
        PastQuestion("shell", {"command": "curl a.org"}, hosts=("a.org",)),
        PastQuestion("write", {"file_path": "build/x"}),
        PastQuestion("shell", {"command": 7}),
        # No rule answers a question about a protected file.
        PastQuestion.from_outcome("shell", {"command": "pytest c"}, steering, refused=False),
    ]
    tested = backtest_widths(widths, questions, workspace=str(tmp_path))
    assert [(width.asked, width.covered, width.refused) for width in tested] == [(8, 2, 1), (8, 2, 0), (8, 1, 0)]


@pytest.mark.parametrize(
    ("effect", "rule", "part"),
    [
        ("allow", "shell(git *)", "covers only calls that read"),
        ("allow", "shell(npm test && npm run x)", "matches nothing"),
        ("allow", "shell(make > log)", "matches nothing"),
        ("allow", "shell(ls $HOME)", "matches nothing"),
        ("allow", "shell(bash)", "matches nothing"),
        ("allow", "shell(bash *)", "covers no script"),
        ("allow", "shell(sudo *)", "matches nothing"),
        ("allow", "shell(timeout *)", "matches nothing"),
        ("allow", "shell(cd *)", "matches nothing"),
        ("allow", "shell(npm*)", "covers no arguments"),
        ("allow", "shell(/usr/bin/git status)", "matches nothing"),
        ("allow", "shell(npm r*n x)", "plain character"),
        ("allow", "shell(git * main)", "exactly one word"),
        ("deny", "read(/etc/passwd)", "//etc/passwd"),
        ("deny", "read(../x)", "matches nothing"),
        ("ask", "edit(src/{a,b})", "plain characters"),
        ("deny", "edit(!src)", "no negation"),
        ("allow", "web_fetch(https://*.example.org/)", "matches nothing"),
        ("allow", "web_fetch(example.org/docs)", "matches nothing"),
        ("allow", "may reach exa*mple.org", "matches nothing"),
        ("allow", "task(x)", "matches nothing"),
        ("deny", "task(x)", "every call"),
        ("allow", "NotebookEdit(x)", "names no built-in tool"),
        ("allow", "mcp__github__get(x)", "matches nothing"),
    ],
)
def test_a_rule_that_matches_less_than_it_seems_is_reported(effect, rule, part, tmp_path: Path):
    (weakness,) = find_weaknesses(parse_rule(rule), effect, tmp_path)
    assert part in weakness
    (notice,) = check_rules(RulesTable(**{effect: (rule,)}), "user.toml: rules", tmp_path)
    assert notice == f"user.toml: rules.{effect}: {rule!r} {weakness}"


@pytest.mark.parametrize(
    "rule",
    [
        "shell", "shell(npm test)", "shell(npm test *)", "shell(docker compose *)", "shell(git commit *)",
        "read(src/**)",
        "shell(cd web && npm test *)", "may write build/**", "may reach *.example.org", "may run npm test",
        "edit(src/*)",
        "web_fetch(domain:docs.example.org)", "web_fetch(https://example.org/docs/*)", "Bash(npm run test:*)",
        "mcp__a__b",
        "shell(ssh prod 'ls *')", "shell(python3 -m pytest *)", "web_fetch(localhost:8000)", "my_tool(x)", "todo",
    ],
)  # fmt: skip
def test_an_ordinary_rule_is_not_reported(rule, tmp_path: Path):
    assert list(find_weaknesses(parse_rule(rule), "allow", tmp_path)) == []


def test_an_allow_rule_that_a_deny_rule_repeats_is_reported(tmp_path: Path):
    rules = RulesTable(allow=("shell(make)",), deny=("shell(make)",))
    assert "comes first" in check_rules(rules, "x", tmp_path)[0]


@pytest.mark.parametrize(
    ("command", "effects"),
    [
        ("npm test", ["npm test runs the project's test script, which may write files"]),
        ("ls && npm test && git push", ["git push sends commits to another repository", "npm test runs"]),
        ("make; rm -rf x", ["rm deletes files", "make builds the project"]),
        ("ls", []),
        ("echo x > f", ["it writes to f (redirect >)"]),
    ],
)
def test_effects_are_listed_in_plain_words_risky_ones_first(command, effects, tmp_path: Path):
    found = list_effects("shell", {"command": command}, workspace=str(tmp_path))
    assert len(found) == len(effects)
    assert all(effect.text.startswith(start) for effect, start in zip(found, effects, strict=True))


def test_effects_beyond_the_limit_are_counted(tmp_path: Path):
    command = "; ".join(f"rm -rf {name}" for name in "abcdefghijklmnop")
    found = list_effects(
        "shell",
        {"command": " ; ".join([command, *(f"echo > {name}" for name in "abcdefghijklmn")])},
        workspace=str(tmp_path),
    )
    assert len(found) == MAX_EFFECTS + 1, [effect.text for effect in found]
    assert found[-1].text.startswith("and "), found[-1]
