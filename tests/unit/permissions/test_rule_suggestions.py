"""The smallest sufficient rule is suggested; explanations and backtests name the deciding rule."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outrider.permissions.explain import PastCall, backtest_rules, count_changes, explain_decision, past_calls
from outrider.permissions.policy import PermissionRules
from outrider.permissions.rule_suggestions import suggest_for_call, suggested_rules
from outrider.types.messages import Message
from outrider.types.parts import TextPart, ToolPart
from outrider.types.tool_state import ToolPending
from tests.fixtures.shell_analysis import judge as decide


@pytest.mark.parametrize(
    ("tool", "arguments", "rules"),
    [
        ("shell", {"command": "make test"}, ("shell(make test)",)),
        ("shell", {"command": "cd src && make test 2>&1 | tail -5"}, ("shell(make test)",)),
        ("shell", {"command": "make a && make b && make a"}, ("shell(make a)", "shell(make b)")),
        ("shell", {"command": "git commit -m 'a b'"}, ("shell(git commit -m 'a b')",)),
        ("shell", {"command": "make > x"}, ()),
        ("shell", {"command": "make $X"}, ()),
        ("shell", {"command": "sudo make"}, ()),
        ("shell", {"command": "A=1 make"}, ()),
        ("shell", {"command": "rm -rf /"}, ()),
        ("shell", {"command": "make \u200b"}, ()),
        ("shell", {"command": "make " + "x" * 3000}, ()),
        ("shell", {"command": "echo 'a*' > x"}, ()),
        ("shell", {"command": "make 'a*'"}, ("shell(make 'a*')",)),
        ("shell", {"command": "eval x"}, ()),
        ("write", {"file_path": "src/a.py"}, ("write(/src/a.py)",)),
        ("write", {"file_path": "src/../b.py"}, ("write(/b.py)",)),
        ("write", {"file_path": "src/[a].py"}, ()),
        ("write", {"file_path": "a.py", "content": "x" * 5000}, ("write(/a.py)",)),
        ("write", {"file_path": "a.py", "content": "\u202e"}, ("write(/a.py)",)),
        ("shell", {"command": "make ${!x}"}, ()),
        ("write", {"file_path": ".git/config"}, ()),
        ("read", {"file_path": "../x"}, ()),
        ("apply_patch", {"patch": "*** Add File: a\n"}, ("apply_patch(/a)",)),
        (
            "apply_patch",
            {"patch": "*** Add File: a\n*** Update File: src/b\n"},
            ("apply_patch(/a)", "apply_patch(/src/b)"),
        ),
        ("apply_patch", {"patch": "*** Add File: a\n*** Update File: .git/config\n"}, ()),
        ("apply_patch", {"patch": "*** Add File: a\n*** Update File: ../b\n"}, ()),
        ("web_fetch", {"url": "https://docs.example.org/a"}, ("web_fetch(docs.example.org)",)),
        ("web_fetch", {"url": "https://a@docs.example.org/a"}, ()),
        ("web_fetch", {"url": "not an address"}, ()),
        ("shell", {"command": "make 'a *'"}, ("shell(make 'a *')",)),
        ("shell", {"command": "make 'a\nb'"}, ()),
        ("shell", {"command": "timeout 5 make"}, ("shell(make)",)),
        ("shell", {"command": "make x && A=1 make"}, ()),
        ("shell", {"command": "make x; eval y"}, ()),
        ("shell", {"command": "make x; ls ${!y}"}, ()),
        ("shell", {"command": "ls"}, ()),
        ("shell", {"command": ["make", "x"]}, ()),
        ("shell", {"command": "make " + "x" * 1995}, ("shell(make " + "x" * 1995 + ")",)),
        ("write", {"file_path": "src/a(1).py"}, ()),
        ("patch", {"patch": "*** Add File: a\n"}, ("apply_patch(/a)",)),
        ("fetch", {"url": "https://docs.example.org/a"}, ("web_fetch(docs.example.org)",)),
        ("web_fetch", {"url": "https://:x@docs.example.org/a"}, ()),
        ("mcp__x__y", {"a": ["ok", {"\u202e": 1}]}, ()),
        ("mcp__x__y", {"a": ["x" * 1500, "y" * 1500]}, ()),
        ("shell", {"command": "make x; make $Y"}, ()),
        ("mcp__x__y", {"a": 1}, ("mcp__x__y",)),
        ("mcp__x__y", {"a": "\u202e"}, ()),
        ("mcp__x__y", {"a": "x" * 3000}, ()),
        ("mcp x", {"a": 1}, ()),
        ("todo", {"todos": []}, ()),
        ("shell", {}, ()),
        ("shell", {"command": "make x", "workdir": "src\u200b"}, ()),
        ("shell", {"command": "login --key ghp_" + "a1B2" * 9}, ()),
    ],
)
def test_the_smallest_rule_is_offered_or_none(
    tool: str, arguments: dict[str, str], rules: tuple[str, ...], tmp_path: Path
):
    (tmp_path / "src").mkdir()
    assert suggested_rules(tool, arguments, workspace=str(tmp_path)) == rules
    if rules:
        found = decide(tool, arguments, mode="agent", allow=rules, workspace=tmp_path)
        assert (found.effect, found.confinement) == ("allow", "none" if tool == "shell" else None)


def test_a_yes_for_longer_covers_the_files_that_steer_the_program_as_they_are_now(tmp_path: Path):
    (tmp_path / "conftest.py").write_text("x = 1")
    call = {"command": "pytest -q"}
    offer = suggest_for_call("shell", call, workspace=str(tmp_path))
    assert offer.rules == ("shell(pytest -q)",)
    assert len(offer.contents) == 1
    decided = partial(decide, "shell", call, mode="agent", allow=offer.rules, workspace=tmp_path)
    assert decided().effect == "ask"
    assert decided(approved=offer.contents).effect == "allow"
    (tmp_path / "conftest.py").write_text("x = 2")
    assert decided(approved=offer.contents).effect == "ask"


def test_a_command_that_reads_needs_no_rule_but_a_yes_to_what_steers_it(tmp_path: Path):
    (tmp_path / "go.mod").write_text("module x\ngo 1.22\n")
    offer = suggest_for_call("shell", {"command": "go version"}, workspace=str(tmp_path))
    assert (offer.rules, len(offer.contents), bool(offer)) == ((), 1, True)


def explain(command: str, workspace: Path, mode: Any = "agent", **more: Any) -> str:
    return explain_decision("shell", {"command": command}, mode=mode, workspace=str(workspace), **more).format()


def test_an_explanation_names_what_decided_and_what_each_command_does(tmp_path: Path):
    assert explain("ls && timeout 5 make x", tmp_path).splitlines() == [
        "allow, inside the sandbox (its changes need approval): make x builds the project and writes build files",
        "  ls: reads only",
        "  timeout 5 make x (behind timeout): make can run programs and change files",
        '"always" would add shell(make x)',
    ]
    text = explain_decision(
        "shell", {"command": "timeout 5 make x"}, mode="agent", workspace=str(tmp_path), sandbox=False
    ).format()
    assert text.splitlines() == [
        "ask: make x builds the project and writes build files; there is no sandbox to run it in",
        "  timeout 5 make x (behind timeout): make can run programs and change files",
        '"always" would add shell(make x)',
    ]
    assert "  the whole line: it contains a ${…} expansion that could run a command" in explain("ls ${!x}", tmp_path)
    text = explain_decision("read", {"path": "a"}, mode="plan", deny=["read(a)"], workspace=str(tmp_path)).format()
    assert text == "deny: a rule forbids it: read(a)"
    text = explain_decision("write", {"file_path": "a"}, mode="agent", workspace=str(tmp_path)).format()
    assert text == 'ask: it changes files of the workspace\n"always" would add write(/a)'


def test_an_explanation_names_where_a_command_runs_and_what_becomes_of_its_changes(tmp_path: Path):
    def first_words(command: str, mode: Any = "agent", **more: Any) -> str:
        return explain(command, tmp_path, mode, **more).partition(":")[0]

    assert first_words("ls") == "allow, inside the sandbox (it can only read)"
    assert first_words("make") == "allow, inside the sandbox (its changes need approval)"
    assert first_words("make", "plan") == "allow, inside the sandbox (its changes are discarded)"
    assert first_words("make", "plan", allow=["shell"]) == "allow, inside the sandbox (its changes are discarded)"
    assert first_words("make", "background") == "allow, inside the sandbox (its changes are applied)"
    assert first_words("make", level="edits") == "allow, inside the sandbox (its changes are applied)"
    assert first_words("make", confined=["shell(make)"]) == "allow, inside the sandbox (its changes are applied)"
    assert explain("make", tmp_path, allow=["shell(make)"]).splitlines()[0] == (
        "allow, outside the sandbox: a rule allows it: shell(make)"
    )
    assert first_words("make", ask=["shell(make)"]) == "ask"
    assert first_words("make", sandbox=False) == "ask"
    assert first_words("make", "plan", sandbox=False) == "deny"


def test_rules_are_offered_only_where_something_is_asked(tmp_path: Path):
    added = '"always" would add shell(make)'
    assert added in explain("make", tmp_path)
    assert added in explain("make", tmp_path, sandbox=False)
    assert "always" not in explain("ls", tmp_path)
    assert "always" not in explain("make", tmp_path, level="auto")
    assert "always" not in explain("make", tmp_path, "background")
    assert "always" not in explain("make", tmp_path, allow=["shell(make)"])


def test_an_explanation_is_safe_to_show(tmp_path: Path):
    text = explain_decision("shell", {"command": "rm \x1b[2J"}, mode="agent", workspace=str(tmp_path)).format()
    assert "\x1b" not in text


def test_past_calls_are_judged_again_under_other_rules(tmp_path: Path):
    calls = [
        ToolPart(call_id=str(n), tool="shell", state=ToolPending(input={"command": c}))
        for n, c in enumerate(["ls", "make", "rm x"])
    ]
    found = list(past_calls([Message("assistant", [TextPart(text="x"), *calls])]))
    assert found[1] == PastCall("shell", {"command": "make"}, "1")
    after = PermissionRules(allow=("shell(make)",), deny=("shell(rm *)",))
    verdicts = backtest_rules(found, before=PermissionRules(), after=after, mode="agent", workspace=str(tmp_path))
    assert [verdict.changed for verdict in verdicts] == [False, True, True]
    assert count_changes(verdicts) == {
        "allow inside the sandbox": 1,
        "allow inside the sandbox -> allow outside the sandbox": 1,
        "allow inside the sandbox -> deny": 1,
    }
    verdicts = backtest_rules(
        found, before=PermissionRules(), after=after, mode="agent", workspace=str(tmp_path), sandbox=False
    )
    assert count_changes(verdicts) == {"ask": 1, "ask -> allow outside the sandbox": 1, "ask -> deny": 1}
