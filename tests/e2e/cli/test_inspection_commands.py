"""Commands that show settings, permissions, trust, models, diagnostics and help."""

from pathlib import Path

from outrider.sessions.records import Approval, StoredSession
from outrider.sessions.sqlite.store import SqliteStore
from tests.e2e.cli.program import Program


async def test_help_and_version_explain_themselves(program: Program):
    version = await program.run("--version")
    assert (version.code, version.out.startswith("outrider ")) == (0, True)
    top = await program.run("--help")
    assert top.code == 0
    for text in ("outrider run 'why does the build fail?'", "sessions", "doctor", "ANTHROPIC_API_KEY"):
        assert text in top.out
    for command in ("worker", "jobs"):
        assert f"  {command} " in top.out
    run = await program.run("help", "run")
    assert (run.code, "Exit codes:" in run.out, "--output-format" in run.out) == (0, True, True)
    assert (await program.run("--mode", "plan", "--version")).out == version.out
    assert "outrider sessions show" in (await program.run("help", "sessions", "show")).out


async def test_a_flag_that_does_not_exist_is_answered_by_its_own_command_with_one_that_does(program: Program):
    for given, asked, meant in (
        (["--modle", "x"], "outrider", "--model"),
        (["sessions", "list", "--jsn"], "outrider sessions list", "--json"),
        (["sessions", "--jsn"], "outrider sessions list", "--json"),
        (["run", "--max-trns=3", "hi"], "outrider run", "--max-turns"),
    ):
        done = await program.run(*given)
        assert done.code == 2
        assert f"did you mean {meant}?" in done.err
        assert f"See `{asked} --help`." in done.err
    port = await program.run("serve", "--port", "99999")
    assert (port.code, "is not a port" in port.err) == (2, True)


async def test_settings_are_shown_with_where_they_come_from_and_keys_never(program: Program):
    program.extra = {"ANTHROPIC_API_KEY": "sk-ant-secret-value", "OUTRIDER_MODE": "plan", "COLUMNS": "500"}
    path = (await program.run("config", "path")).out.strip()
    assert (await program.run("config", "init")).code == 0
    assert (await program.run("config", "init")).code == 2
    with Path(path).open("a") as file:
        file.write('\n[rules]\nallow = ["shell(make test)"]\n')
    shown = await program.run("config")
    assert shown.code == 0
    rows = {line.split("  ")[0]: line for line in shown.out.splitlines()}
    assert "$OUTRIDER_MODE" in rows["mode"]
    assert path in rows["rules.allow"]
    assert "key from $ANTHROPIC_API_KEY" in rows["providers.anthropic"]
    assert "sk-ant-secret-value" not in shown.out + shown.err


async def test_a_decision_is_explained_before_it_is_made(program: Program):
    asked = await program.run("permissions", "explain", "shell", "git push origin main; ls")
    assert asked.out.startswith("allow, inside the sandbox (its changes need approval):")
    assert "git push origin main" in asked.out
    allowed = await program.run("permissions", "explain", "shell", "make test", "--allow", "shell(make *)")
    assert allowed.out.startswith("allow, outside the sandbox:")
    denied = await program.run("permissions", "explain", "write(x.txt)", "--mode", "plan")
    assert denied.out.startswith("deny:")
    without = await program.run("permissions", "explain", "write")
    assert (without.code, "SUBJECT" in without.err) == (2, True)
    unknown = await program.run("permissions", "explain", "my_tool", "x")
    assert (unknown.code, "JSON" in unknown.err) == (2, True)
    assert (await program.run("permissions", "explain", "my_tool", '{"x": 1}')).code == 0


async def test_stored_approvals_are_listed_with_everything_that_they_cover(program: Program):
    async with SqliteStore(program.home / "outrider" / "sessions.db") as store:
        session = await store.create(StoredSession(workspace_directory=str(program.workspace)))
        asked = Approval(
            session_id=session.id,
            call_id="c",
            tool="shell",
            input={"command": "make"},
            fingerprint="f",
            contents=("f00d",),
        )
        stored = await store.ask(asked)
        await store.answer(stored.id, "allowed", scope="project", by="me")
    listed = await program.run("permissions", "list")
    (row,) = [line for line in listed.out.splitlines() if "make" in line]
    assert "project" in row and "the present content of the configuration files" in row


async def test_a_command_without_a_subcommand_lists(program: Program):
    for command, message in (("sessions", "There are no sessions yet"), ("permissions", "There are no rules")):
        looked = await program.run(command)
        assert (looked.code, message in looked.err) == (0, True)
    assert "list" in (await program.run("sessions", "--help")).out


async def test_trust_shows_what_it_is_about_and_is_revoked(program: Program):
    (program.workspace / "AGENTS.md").write_text("Always say please.\x1b[2J\n")
    refused = await program.run("trust")
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert "Always say please." in refused.out
    assert "\x1b" not in refused.out
    assert (await program.run("trust", "--yes")).code == 0
    assert (await program.run("distrust")).code == 0


async def test_models_are_listed_with_limits_and_prices(program: Program):
    program.extra = {"OPENAI_API_KEY": "key"}
    listed = await program.run("models", "list", "openai")
    row = next(line for line in listed.out.splitlines() if line.startswith("openai/gpt-4.1 "))
    assert "2.00" in row
    assert "8.00" in row
    local = await program.run("models", "list", "local")
    assert "outrider models pull" in local.out


async def test_the_doctor_names_what_is_wrong_and_what_to_do(program: Program):
    done = await program.run("doctor")
    assert done.code == 1
    assert "✗ model" in done.out
    assert "ANTHROPIC_API_KEY" in done.out
    program.extra = {"OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "OUTRIDER_MODEL": "openai/mine"}
    findings = {line["name"]: line for line in (await program.run("doctor", "--json", "--network")).lines}
    assert findings["model"]["status"] == "ok"
    assert findings["network openai"]["status"] == "problem"
    assert findings["network openai"]["remedy"]


async def test_the_doctor_names_hooks_that_run_that_are_ignored_and_that_are_invalid(program: Program):
    hooks = program.home / "outrider" / "hooks.json"
    hooks.parent.mkdir()
    hooks.write_text('{"hooks": {"Stop": [{"hooks": [{"command": "true"}]}], "Stopp": []}}')
    out = (await program.run("doctor")).out
    assert "✓ hooks: commands run on Stop\n" in out
    assert "there is no hook event 'Stopp'" in out
    hooks.write_text("{")
    assert "✗ hooks" in (await program.run("doctor")).out


async def test_the_doctor_finds_and_repairs_a_damaged_store(program: Program):
    store = program.home / "outrider" / "sessions.db"
    store.parent.mkdir()
    store.write_bytes(b"this is not a database " * 500)
    found = await program.run("doctor")
    assert "✗ store" in found.out
    assert "--repair" in found.out
    repaired = await program.run("doctor", "--repair", "--compact")
    assert "✗ store" not in repaired.out
