"""The order of decisions: deny, protected, ask, allow, mode; in every mode, for every kind of tool."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ConfigurationError
from outrider.permissions import Decision
from outrider.permissions import decide as decide_call
from outrider.permissions.paths.containment import MAX_SCANNED_ENTRIES
from outrider.types.modes import APPROVAL_LEVELS, MODES
from tests.fixtures.cases import for_each
from tests.fixtures.shell_analysis import judge as decide


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "ws" / "src").mkdir(parents=True)
    (tmp_path / "ws" / "README.md").write_text("x")
    (tmp_path / "ws" / ".env").write_text("x")
    (tmp_path / "secret.txt").write_text("x")
    return tmp_path / "ws"


def judged(workspace: Path, tool: str, arguments: dict[str, Any], mode: Any = "agent", **rules: Any) -> str:
    return decide(tool, arguments, mode=mode, workspace=workspace, **rules).effect


TABLE = [
    # tool, arguments: chat, plan, agent, background; for commands without a rule, the verdict of the analysis
    ("read", {"file_path": "README.md"}, "deny allow allow allow"),
    ("read", {"path": "README.md"}, "deny allow allow allow"),
    ("list", {"path": "src"}, "deny allow allow allow"),
    ("list", {}, "deny allow allow allow"),
    ("glob", {"pattern": "**/*.py"}, "deny allow allow allow"),
    ("grep", {"pattern": "x", "path": "."}, "deny allow allow allow"),
    ("grep", {"pattern": "../x", "path": "."}, "deny allow allow allow"),
    ("glob", {"pattern": "src/*.py", "path": "."}, "deny allow allow allow"),
    ("glob", {"pattern": "../*", "path": "src"}, "deny allow allow allow"),
    ("glob", {"pattern": "../*"}, "deny ask ask deny"),
    ("glob", {"pattern": "/etc/*"}, "deny ask ask deny"),
    ("glob", {"pattern": "*/../../*"}, "deny ask ask deny"),
    ("read", {"file_path": "../secret.txt"}, "deny ask ask deny"),
    ("read", {"file_path": ".env"}, "deny ask ask deny"),
    ("write", {"file_path": "new.py", "content": ""}, "deny deny ask allow"),
    ("edit", {"file_path": "README.md", "old_string": "a", "new_string": "b"}, "deny deny ask allow"),
    ("write", {"file_path": "../new.py", "content": ""}, "deny deny ask deny"),
    ("write", {"file_path": ".git/config", "content": ""}, "deny deny ask deny"),
    ("apply_patch", {"patch": "*** Begin Patch\n*** Add File: a.py\n+x\n*** End Patch"}, "deny deny ask allow"),
    ("apply_patch", {"patch": "*** Begin Patch\n*** Add File: .git/x\n+x\n*** End Patch"}, "deny deny ask deny"),
    ("apply_patch", {"patch": "--- a/README.md\n+++ b/../x\n@@ -1 +1 @@\n-x\n+y\n"}, "deny deny ask deny"),
    ("shell", {"command": "ls"}, "deny allow allow allow"),
    ("bash", {"command": "ls"}, "deny allow allow allow"),
    ("shell", {"command": "rm x"}, "deny deny ask deny"),
    ("shell", {"command": "ls", "cwd": "src"}, "deny allow allow allow"),
    ("shell", {"command": "ls", "cwd": ".."}, "deny deny ask deny"),
    ("web_fetch", {"url": "https://example.org"}, "deny ask ask deny"),
    ("todo", {"items": []}, "deny allow allow allow"),
    ("task", {"prompt": "x"}, "deny allow allow allow"),
    ("mcp__server__tool", {"x": 1}, "deny ask ask deny"),
    ("process", {"action": "list"}, "deny allow allow allow"),
    ("process", {"action": "read", "process_id": "1"}, "deny allow allow allow"),
    ("process", {"action": "wait", "process_id": "1"}, "deny allow allow allow"),
    ("process", {"action": "kill", "process_id": "1"}, "deny allow allow allow"),
    ("process", {"action": "write", "process_id": "1", "input": "x"}, "deny deny ask allow"),
    ("process", {"action": "new"}, "deny deny ask allow"),
    ("process", {}, "deny deny ask allow"),
    ("process", {"command": "rm x"}, "deny deny ask deny"),
]


@for_each(("tool", "arguments", "effects"), TABLE)
def test_every_mode_treats_every_kind_of_call_as_in_the_table(
    tool: str, arguments: dict[str, Any], effects: str, workspace: Path
):
    assert [judged(workspace, tool, arguments, mode) for mode in MODES] == effects.split()


@for_each(
    ("tool", "arguments"),
    [
        ("read", {}), ("read", {"file_path": 7}), ("read", {"file_path": ""}), ("write", {"file_path": "a\0b"}),
        ("shell", {}), ("shell", {"command": ["ls"]}), ("shell", {"command": "  "}), ("apply_patch", {"patch": ""}),
        ("apply_patch", {"patch": "nothing"}), ("read", {"file_path": "file:///etc/passwd"}),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_judged_never_runs(tool: str, arguments: dict[str, Any], workspace: Path):
    for mode in MODES:
        assert judged(workspace, tool, arguments, mode, allow=[tool, f"{tool}(*)"]) == "deny"


def test_an_unknown_mode_is_an_error(workspace: Path):
    with pytest.raises(ValueError, match="unknown permission mode"):
        judged(workspace, "read", {"path": "README.md"}, "yolo")


COMMANDS = [
    # command: the confinement without a rule
    ("ls", "read-only"),
    ("git status", "read-only"),
    ("cd src && ls | wc -l", "read-only"),
    ("rm x", "workspace"),
    ("make > x", "workspace"),
    ("echo x > x", "workspace"),
    ("curl https://example.org", "workspace"),
    ("sudo id", "workspace"),
    ("cat ../secret.txt", "workspace"),
    ("cat .env", "workspace"),
    ("${!x}", "workspace"),
    ("echo 'unclosed", "workspace"),
]


@for_each(("command", "confinement"), COMMANDS)
@for_each("mode", ["plan", "agent", "background"])
def test_a_command_without_a_rule_runs_inside_the_sandbox(command: str, confinement: str, mode: Any, workspace: Path):
    for level in APPROVAL_LEVELS:
        for tool in ("shell", "bash", "process"):
            found = decide_call(tool, {"command": command}, mode=mode, workspace=workspace, level=level)
            assert (found.effect, found.rule, found.confinement) == ("allow", None, confinement), (tool, level)


@for_each(("command", "_"), COMMANDS)
def test_no_command_without_a_rule_runs_where_there_is_no_sandbox(command: str, _: str, workspace: Path):
    for mode, effect in (("plan", "deny"), ("agent", "ask"), ("background", "deny")):
        for level in APPROVAL_LEVELS:
            found = decide_call(
                "shell", {"command": command}, mode=mode, workspace=workspace, level=level, sandbox=False
            )
            assert (found.effect, found.confinement) == (effect, None), (mode, level)
            assert "there is no sandbox" in found.reason


@pytest.mark.parametrize("command", ["rm x", "npm run dev"])
def test_a_command_that_stays_running_is_asked_about_before_it_starts(command: str, workspace: Path):
    """Its changes cannot be an outcome, because they reach the workspace while it runs."""

    def found(mode: Any = "agent", value: Any = True, name: str = "background", **more: Any) -> str:
        return decide_call("shell", {"command": command, name: value}, mode=mode, workspace=workspace, **more).effect

    for name in ("background", "run_in_background", "is_background"):
        for value in (True, "true", "True", 1, "yes", ["x"]):
            assert found(name=name, value=value) == "ask"
        for value in (False, None, "false", "False", 0, ""):
            assert found(name=name, value=value) == "allow"
    assert [found(level=level) for level in APPROVAL_LEVELS] == ["ask", "allow", "allow"]
    assert [found("plan"), found("background")] == ["allow", "allow"]  # in plan mode the workspace is read-only
    assert found("plan", sandbox=False) == "deny"
    assert found(allow=["shell"]) == "allow"
    assert found(allow=["shell"], deny=["shell"]) == "deny"


def test_without_a_sandbox_the_input_of_a_process_is_not_given_unasked(workspace: Path):
    call = {"action": "write", "process_id": "1", "input": "x"}
    for mode, inside, outside in (("plan", "deny", "deny"), ("agent", "ask", "ask"), ("background", "allow", "deny")):
        assert decide_call("process", call, mode=mode, workspace=workspace).effect == inside
        assert decide_call("process", call, mode=mode, workspace=workspace, sandbox=False).effect == outside


def test_the_user_can_state_that_the_machine_is_the_sandbox(workspace: Path):
    def found(mode: Any, **options: Any) -> tuple[str, str | None]:
        options = {"sandbox": False, "unconfined": True, **options}
        decision = decide_call("shell", {"command": "make"}, mode=mode, workspace=workspace, **options)
        return decision.effect, decision.confinement

    assert found("plan") == ("deny", None)
    assert found("agent") == ("ask", None)
    assert found("agent", level="auto") == ("ask", None)
    assert found("background") == ("allow", "none")
    assert found("background", sandbox=True) == ("allow", "workspace")


def test_only_a_rule_of_the_user_lets_a_command_leave_the_sandbox(workspace: Path):
    def confinement(command: str, mode: Any = "agent", **rules: Any) -> str | None:
        return decide_call("shell", {"command": command}, mode=mode, workspace=workspace, **rules).confinement

    for rule in ("shell(make x)", "shell(make *)", "shell"):
        assert confinement("make x", allow=[rule]) == "none"
        assert confinement("make x", "background", allow=[rule]) == "none"
        assert confinement("make x", "plan", allow=[rule]) == "workspace"  # changes are dropped in any case
        assert confinement("make x", confined=[rule]) == "workspace"
        assert confinement("make x", allow=[rule], confined=[rule]) == "none"
    assert confinement("make y", allow=["shell(make x)"]) == "workspace"
    assert confinement("make x > y", allow=["shell(make x)"]) == "workspace"
    assert confinement("make x && make y", allow=["shell(make x)"], confined=["shell(make y)"]) == "workspace"
    assert confinement("make x", allow=["read", "write", "process"]) == "workspace"
    assert confinement("make x", allow=["shell('unclosed"]) == "workspace"
    assert confinement("make x", allow=["shell"], sandbox=False) == "none"


def test_rules_restrict_a_command_that_the_sandbox_would_catch(workspace: Path):
    for level in APPROVAL_LEVELS:
        make = partial(decide_call, "shell", {"command": "make x"}, workspace=workspace, level=level)
        assert make(mode="agent", deny=["shell(make *)"]).effect == "deny"
        assert make(mode="agent", ask=["shell(make *)"]) == Decision(
            "ask", "a rule requires approval: shell(make *)", "shell(make *)"
        )
        assert make(mode="agent", ask=["shell(make *)"], allow=["shell"]).effect == "ask"
        assert make(mode="background", ask=["shell(make *)"]).effect == "deny"


def test_a_level_allows_edits_inside_the_workspace_and_nothing_else(workspace: Path):
    def effects(tool: str, arguments: dict[str, Any], mode: Any = "agent") -> list[str]:
        found = [decide_call(tool, arguments, mode=mode, workspace=workspace, level=level) for level in APPROVAL_LEVELS]
        assert {decision.confinement for decision in found} == {None}
        return [decision.effect for decision in found]

    assert effects("write", {"file_path": "new.py"}) == ["ask", "allow", "allow"]
    assert effects("apply_patch", {"patch": "*** Add File: a.py\n+x\n"}) == ["ask", "allow", "allow"]
    assert effects("write", {"file_path": "new.py"}, "plan") == ["deny", "deny", "deny"]
    assert effects("write", {"file_path": "../new.py"}) == ["ask", "ask", "ask"]
    assert effects("write", {"file_path": ".git/config"}) == ["ask", "ask", "ask"]
    assert effects("read", {"file_path": ".env"}) == ["ask", "ask", "ask"]
    assert effects("web_fetch", {"url": "https://example.org"}) == ["ask", "ask", "ask"]
    assert effects("mcp__server__tool", {}) == ["ask", "ask", "ask"]
    assert effects("process", {"action": "write", "process_id": "1"}) == ["ask", "ask", "ask"]


def test_deny_wins_over_everything(workspace: Path):
    call = ("write", {"file_path": "src/a.py", "content": ""})
    rules = {"allow": ["write(src/**)"], "ask": ["write(src/**)"], "deny": ["write(src/a.py)"]}
    found = decide(*call, mode="agent", workspace=workspace, **rules)
    assert found == Decision("deny", "a rule forbids it: write(src/a.py)", "write(src/a.py)")


def test_a_protected_file_is_asked_about_even_if_rules_allow_it(workspace: Path):
    for allow in (["write(**)"], ["write"], ["write(.git/config)"], ["*"]):
        assert judged(workspace, "write", {"file_path": ".git/config"}, allow=allow) == "ask"
    assert judged(workspace, "read", {"file_path": ".env"}, allow=["read(.env)"]) == "ask"


def test_ask_wins_over_allow(workspace: Path):
    found = decide("read", {"path": "README.md"}, mode="agent", allow=["read"], ask=["read(*.md)"], workspace=workspace)
    assert (found.effect, found.rule) == ("ask", "read(*.md)")


def test_no_question_is_asked_in_background_mode(workspace: Path):
    found = decide("read", {"path": "README.md"}, mode="background", ask=["read"], workspace=workspace)
    assert found.effect == "deny"
    assert "cannot ask for approval" in found.reason


def test_allow_wins_over_the_mode(workspace: Path):
    assert judged(workspace, "write", {"file_path": "src/a.py"}, allow=["write(src/**)"]) == "allow"
    assert judged(workspace, "shell", {"command": "make test"}, "plan", allow=["shell(make test)"]) == "allow"


def test_no_rule_brings_back_tools_that_a_mode_does_not_have(workspace: Path):
    assert judged(workspace, "write", {"file_path": "src/a.py"}, "plan", allow=["write(src/**)"]) == "deny"
    assert judged(workspace, "read", {"file_path": "README.md"}, "chat", allow=["read"]) == "deny"


def test_paths_outside_are_allowed_only_by_name(workspace: Path):
    outside = {"file_path": str(workspace.parent / "secret.txt")}
    assert judged(workspace, "read", outside, allow=["read", "read(**)", "read(secret.txt)"]) == "ask"
    assert judged(workspace, "read", outside, allow=[f"read(/{workspace.parent}/secret.txt)"]) == "allow"
    assert judged(workspace, "read", outside, "background", allow=[f"read(/{workspace.parent}/*.txt)"]) == "allow"


def test_a_link_is_judged_by_its_target(workspace: Path):
    (workspace / "docs").symlink_to("src")
    (workspace / "leak").symlink_to("..")
    assert judged(workspace, "write", {"file_path": "docs/a.py"}, allow=["write(docs/**)"]) == "ask"
    assert judged(workspace, "write", {"file_path": "docs/a.py"}, allow=["write(src/**)"]) == "allow"
    assert judged(workspace, "write", {"file_path": "docs/a.py"}, deny=["write(docs/**)"]) == "deny"
    assert judged(workspace, "write", {"file_path": "docs/a.py"}, deny=["write(src/**)"]) == "deny"
    assert judged(workspace, "read", {"file_path": "leak/secret.txt"}) == "ask"


def test_every_file_of_a_patch_needs_its_rule(workspace: Path):
    patch = {"patch": "*** Update File: src/a.py\n*** Move to: lib/b.py\n"}
    assert judged(workspace, "apply_patch", patch, allow=["apply_patch(src/**)"]) == "ask"
    assert judged(workspace, "apply_patch", patch, allow=["apply_patch(src/**)", "apply_patch(lib/**)"]) == "allow"
    assert judged(workspace, "apply_patch", patch, deny=["apply_patch(lib/**)"]) == "deny"


def test_a_patch_may_delete_and_create(workspace: Path):
    patch = {"patch": "--- a/src/old.py\n+++ /dev/null\n--- /dev/null\n+++ b/src/new.py\n"}
    assert judged(workspace, "apply_patch", patch, allow=["apply_patch(src/**)"]) == "allow"


@for_each(
    ("url", "pattern", "effect"),
    [
        ("https://docs.example.org/a", "docs.example.org", "allow"),
        ("https://docs.example.org/a", "domain:docs.example.org", "allow"),
        ("https://docs.example.org/a", "*.example.org", "allow"),
        ("https://a.b.example.org/a", "*.example.org", "allow"),
        ("https://example.org/a", "*.example.org", "ask"),
        ("https://notexample.org/a", "*.example.org", "ask"),
        ("https://docs.example.org.evil.example/a", "docs.example.org", "ask"),
        ("https://docs.example.org@evil.example/", "docs.example.org", "ask"),
        ("https://docs.example.org:x@evil.example/", "docs.example.org", "ask"),
        ("https://evil.example\\@docs.example.org/", "docs.example.org", "ask"),
        ("https://DOCS.example.org./a", "docs.example.org", "allow"),
        ("https://docs.example.org:8443/", "docs.example.org:8443", "allow"),
        ("https://docs.example.org:8443/", "docs.example.org:443", "ask"),
        ("file:///etc/passwd", "docs.example.org", "ask"),
        ("https://docs.example.org/a/b", "https://docs.example.org/a/*", "allow"),
        ("https://docs.example.org/b", "https://docs.example.org/a/*", "ask"),
        ("https://docs.example.org/a/../b", "https://docs.example.org/a/*", "ask"),
        ("http://docs.example.org/a/b", "https://docs.example.org/a/*", "ask"),
        ("https://docs.example.org/", "https://docs.example.org*", "ask"),
        ("https://[bad", "docs.example.org", "ask"),
        ("https://x.example:99999/", "x.example", "ask"),
    ],
)
def test_hosts_are_compared_by_parts_of_the_address(url: str, pattern: str, effect: str, workspace: Path):
    assert judged(workspace, "web_fetch", {"url": url}, allow=[f"web_fetch({pattern})"]) == effect


def test_what_could_be_a_forbidden_host_is_forbidden(workspace: Path):
    for url in ("https://evil.example/", "https://a.evil.example/", "https://ok.example/?to=evil.example"):
        assert (
            judged(workspace, "web_fetch", {"url": url}, allow=["web_fetch"], deny=["web_fetch(evil.example)"])
            == "deny"
        )


def test_tools_of_servers_are_allowed_by_name_and_glob(workspace: Path):
    for rule in ("mcp__db__read", "mcp__db__*", "mcp__*"):
        assert judged(workspace, "mcp__db__read", {}, allow=[rule]) == "allow"
    assert judged(workspace, "mcp__web__read", {}, allow=["mcp__db__*"]) == "ask"
    assert judged(workspace, "mcp__db__read", {}, allow=["mcp__db__*"], deny=["mcp__db__read"]) == "deny"
    assert judged(workspace, "mcp__db__read", {"a": 1}, allow=["mcp__db__read(a)"]) == "ask"


@pytest.mark.parametrize("rules", ["allow", "ask", "deny", "confined"])
def test_a_rule_that_is_no_text_is_an_error(rules: str, workspace: Path):
    wrong: Any = 3
    with pytest.raises(ConfigurationError, match=f"a rule of {rules} is a string, got 3"):
        decide_call("shell", {"command": "ls"}, mode="agent", workspace=workspace, **{rules: [wrong]})
    with pytest.raises(ConfigurationError, match=f"{rules} is a list of rules, got 3"):
        decide_call("shell", {"command": "ls"}, mode="agent", workspace=workspace, **{rules: wrong})


def test_a_broken_rule_never_allows_and_always_forbids(workspace: Path):
    for broken in ("shell('unclosed", "shell(make 'x)", "not a rule at all"):
        assert judged(workspace, "shell", {"command": "make x"}, allow=[broken]) == "ask"
    assert judged(workspace, "shell", {"command": "ls"}, deny=["shell(make 'x)"]) == "deny"
    assert judged(workspace, "shell", {"command": "ls"}, ask=["shell(make 'x)"]) == "ask"
    assert judged(workspace, "read", {"path": "README.md"}, deny=["no rule"]) == "deny"


@for_each(
    "command",
    [
        "rm x", "/bin/rm x", "sudo rm x",
        "env rm x", "timeout 5 rm x",
        "bash -c 'rm x'", "ls; rm x", "ls && rm x",
        "echo $(rm x)",
        "cat <(rm x)", "find . -exec rm {} \\;", "xargs rm < README.md", "nohup rm x", "if true; then rm x; fi",
        "f() { rm x; }; f",
        "timeout $X rm x", "doas rm x", "sudo -n rm x", "watch rm x", "setsid rm x",
        "git status; \\rm x", "r''m x", "ls | (rm x)",
        "rm x ${!y}", "echo `echo \\`rm x\\``", "{ rm x; } 2> y",
    ],
)  # fmt: skip
def test_a_forbidden_command_is_found_behind_everything(command: str, workspace: Path):
    for mode in ("plan", "agent", "background"):
        found = judged(
            workspace, "shell", {"command": command}, mode, deny=["shell(rm *)"], allow=["shell"], sandbox=True
        )
        assert found == "deny", mode


def test_a_forbidden_subcommand_is_found_behind_global_options(workspace: Path):
    for command in ("git push", "git -C src push", "git -c a.b=c push origin"):
        assert judged(workspace, "shell", {"command": command}, deny=["shell(git push *)"], allow=["shell"]) == "deny"
    assert judged(workspace, "shell", {"command": "git status"}, deny=["shell(git push *)"]) == "allow"


def test_a_file_that_may_not_be_read_may_not_be_named_in_the_shell(workspace: Path):
    assert judged(workspace, "shell", {"command": "cat src/key.txt"}, deny=["read(src/**)"]) == "deny"
    assert judged(workspace, "shell", {"command": "cat README.md"}, deny=["read(src/**)"]) == "allow"


def test_only_a_rule_without_a_pattern_allows_what_is_not_understood(workspace: Path):
    for command in ("make", "make > x", "${!x}", "echo 'unclosed"):
        for rule in ("shell", "shell(*)"):
            assert judged(workspace, "shell", {"command": command}, allow=[rule]) == "allow"
    for command in ("make > x", "${!x}", "echo 'unclosed"):
        assert judged(workspace, "shell", {"command": command}, allow=["shell(make *)", "shell(echo *)"]) == "ask"
    assert judged(workspace, "shell", {"command": "${!x}"}, allow=["process"]) == "ask"


@pytest.mark.parametrize(
    ("rule", "action", "held"),
    [
        ("process", "write", True),
        ("process(write)", "write", True),
        ("process(write)", "kill", False),
        ("process(kill)", "kill", True),
        ("shell", "write", False),
        ("process('", "kill", True),
    ],
)
def test_rules_about_processes_name_what_is_done_with_them(rule: str, action: str, held: bool, workspace: Path):
    denied = judged(workspace, "process", {"action": action, "process_id": "1"}, deny=[rule])
    assert (denied == "deny") is held


def test_an_allow_rule_lets_a_process_be_given_input(workspace: Path):
    call = {"action": "write", "process_id": "1"}
    assert judged(workspace, "process", call, allow=["process(write)"]) == "allow"
    assert judged(workspace, "process", call, allow=["process"]) == "allow"
    assert judged(workspace, "process", call, allow=["process(kill)"]) == "ask"
    assert judged(workspace, "process", call, allow=["process(write x)"]) == "ask"
    assert judged(workspace, "process", call, allow=["process('"]) == "ask"


OPENING = [
    "find . -name '*.py' -exec cat {} +",
    "find . -name '*.py' -exec grep -l x {} ';'",
    "find src -name '*.py' -print0 | xargs -0 wc -l",
    "diff -r src src",
    "ls -LR",
    "du -L",
]


@pytest.mark.parametrize("command", OPENING)
def test_found_files_are_opened_only_if_no_link_points_outside(command: str, workspace: Path):
    (workspace / "src" / "app.py").write_text("x")
    (workspace / "src" / "inside.py").symlink_to("app.py")
    assert judged(workspace, "shell", {"command": command}, "plan") == "allow"
    (workspace / "src" / "leak.py").symlink_to("../../secret.txt")
    assert judged(workspace, "shell", {"command": command}, "plan") == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "find . -type f -name '*.py' -exec cat {} +",
        "find . -name '*.py' -type f -print0 | xargs -0 wc -l",
        "find . -name '*.py' -exec ls -l {} +",
        "diff -r --no-dereference src src",
        "grep -r x .",
        "ls -R",
    ],
)
def test_a_link_that_is_not_followed_does_not_matter(command: str, workspace: Path):
    (workspace / "src" / "leak.py").symlink_to("../../secret.txt")
    assert judged(workspace, "shell", {"command": command}, "plan") == "allow"


@pytest.mark.parametrize(
    "command",
    [
        "find . ! -type f -name '*.py' -exec cat {} +",
        "find . -type d -name '*.py' -exec cat {} +",
        "find . -name '*.py' -exec cat {} + -type f",
        "find . -type f -o -name '*.py' -exec cat {} +",
        "find . -name '*.py' -print0 -type f | xargs -0 wc -l",
    ],
)
def test_only_an_effective_test_excludes_links(command: str, workspace: Path):
    (workspace / "src" / "leak.py").symlink_to("../../secret.txt")
    assert judged(workspace, "shell", {"command": command}, "plan") == "deny"


def test_folders_that_are_not_there_and_links_in_a_circle_are_no_reason_to_ask(workspace: Path):
    (workspace / "src" / "circle").symlink_to("..")
    assert judged(workspace, "shell", {"command": "find nope -name '*.py' -exec cat {} +"}, "plan") == "allow"
    assert judged(workspace, "shell", {"command": "find . -name '*.py' -exec cat {} +"}, "plan") == "allow"


def test_so_many_files_are_looked_at_and_more_may_hold_such_a_link(workspace: Path):
    command = {"command": "find . -name '*.py' -exec cat {} +"}
    for number in range(MAX_SCANNED_ENTRIES - 1 - len(list(workspace.rglob("*")))):
        (workspace / "src" / f"{number}.txt").touch()
    assert judged(workspace, "shell", command, "plan") == "allow"
    (workspace / "src" / "one more").touch()
    assert judged(workspace, "shell", command, "plan") == "deny"
    assert judged(workspace, "shell", {"command": "find . -type f -name '*.py' -exec cat {} +"}, "plan") == "allow"


def test_patterns_are_read_as_every_shell_may_read_them(workspace: Path):
    """Older ones let `.?` match the folder above, and a range of capitals for small letters."""
    assert judged(workspace, "shell", {"command": "cat .?/secret.txt"}, "plan") == "deny"
    assert judged(workspace, "shell", {"command": "cat .[D-F]nv"}, "plan") == "deny"
    assert judged(workspace, "shell", {"command": "cat [Q-S]EADME.md"}, "plan") == "allow"


HARD = [
    "x=a; " + "x=$x$x; " * 40 + "echo $x",
    "cd src; " * 200 + "ls",
    "git " + "-C . " * 900 + "status",
    "cat " + "src/*/*.py " * 200,
    "grep " + "-e x " * 1500 + "README.md",
    "echo " + "$(echo " * 20 + ")" * 20,
    "ls " + "{a,b}" * 500,
]


@pytest.mark.parametrize("command", HARD)
def test_no_command_line_takes_long_to_judge(command: str, workspace: Path):
    start = time.process_time()
    decide("shell", {"command": command}, mode="plan", workspace=workspace)
    assert time.process_time() - start < 5  # far less on an idle machine; what grows without bound takes minutes


def test_what_is_too_large_to_check_is_asked_about_even_if_a_rule_allows_it(workspace: Path):
    for command in ("grep " + "-e x " * 600 + "README.md", "cd src; " * 20 + "ls"):
        assert judged(workspace, "shell", {"command": command}, "plan") == "deny"
    assert judged(workspace, "shell", {"command": "make " + "x " * 600}, allow=["shell(make *)"]) == "ask"


def test_a_program_of_the_workspace_does_not_pass_for_a_known_one(workspace: Path):
    program = workspace / "node_modules" / ".bin" / "ls"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\ntouch PWNED\n")
    path = f"/nowhere:{program.parent}:/usr/bin"
    assert judged(workspace, "shell", {"command": "ls"}, "plan", search_path=path) == "allow"
    program.chmod(0o755)
    assert judged(workspace, "shell", {"command": "ls"}, "plan", search_path=path) == "deny"
    assert judged(workspace, "shell", {"command": "ls"}, search_path=path, allow=["shell(cat *)"]) == "ask"
    assert judged(workspace, "shell", {"command": "/bin/cat README.md"}, "plan", search_path=path) == "allow"
    assert judged(workspace, "shell", {"command": "cat README.md"}, "plan", search_path=path) == "allow"
    assert judged(workspace, "shell", {"command": "ls"}, "plan", search_path="/usr/bin") == "allow"
