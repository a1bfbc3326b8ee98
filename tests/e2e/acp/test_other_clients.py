"""Independent clients: the official TypeScript SDK and acpx. Skipped if npm or its registry cannot be had."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.acp.editor import COMMAND, EditorHome, call

CACHE = Path(__file__).parents[3] / ".cache" / "acp-clients"
SDK, ACPX = "@agentclientprotocol/sdk@2.4.0", "acpx@0.1.15"
pytestmark = pytest.mark.slow

STEPS = (
    [call("read", file_path="notes.txt")],
    [call("shell", command="cat notes.txt; sleep 1; exit 2")],
    [call("edit", file_path="notes.txt", old_string="the bread", new_string="the jam")],
    [call("question", question="Which ones?", options=["tea", "milk"], multiple=True)],
    "Done.",
    "Again.",
)


def install(package: str) -> Path:
    """The folder of the installed packages."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("needs node and npm")
    folder = CACHE / package.strip("@").replace("/", "-")
    if not (folder / "node_modules").exists():
        folder.mkdir(parents=True, exist_ok=True)
        argv = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--silent", package]
        try:
            subprocess.run(argv, check=True, capture_output=True, timeout=100)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"needs a npm registry: {error}")
    return folder / "node_modules"


def run_node(editor_home: EditorHome, *argv: str) -> list[str]:
    ended = subprocess.run(
        ["node", *argv], env=editor_home.environ, capture_output=True, text=True, timeout=90, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_the_typescript_sdk_has_its_buffers_terminal_question_and_fork_used(editor_home: EditorHome):
    sdk = install(SDK) / "@agentclientprotocol" / "sdk" / "dist" / "v1" / "unstable" / "acp.js"
    editor_home.write_script(*STEPS)
    script = Path(__file__).with_name("sdk_client.mjs")
    report = json.loads(run_node(editor_home, str(script), str(sdk), str(editor_home.workspace), *COMMAND)[-1])
    # The unsaved text is saved first, then changed; both by the client.
    assert report["written"] == [["notes.txt", "remember the bread\n"], ["notes.txt", "remember the jam\n"]]
    assert (editor_home.workspace / "notes.txt").read_text() == "remember the jam\n"
    assert (report["printed"], report["exitCode"]) == ("remember the milk\n", 2)
    assert ["tool_call_update", "terminal"] in report["updates"]
    assert (report["forms"], report["asked"], report["auth"]) == (["Which ones?"], 1, ["login", "key"])
    assert (report["stop"], report["forked"], report["fork"], report["listed"]) == (
        "end_turn",
        True,
        "end_turn",
        [True],
    )


def test_acpx_reads_and_writes_files_and_runs_a_terminal(editor_home: EditorHome):
    program = install(ACPX) / ".bin" / "acpx"
    (editor_home.workspace / "notes.txt").write_text("remember the bread\n")
    editor_home.write_script(*STEPS)
    flags = ("--cwd", str(editor_home.workspace), "--approve-all", "--format", "json")
    lines = run_node(editor_home, str(program), "--agent", " ".join(COMMAND), *flags, "exec", "do it")
    messages = [json.loads(line) for line in lines]
    methods = {message.get("method") for message in messages}
    assert {"fs/read_text_file", "fs/write_text_file", "terminal/create", "terminal/release"} <= methods
    assert {"exitCode": 2, "signal": None} in [message.get("result") for message in messages]
    assert messages[-1]["result"]["stopReason"] == "end_turn"
    assert (editor_home.workspace / "notes.txt").read_text() == "remember the jam\n"
