"""`outrider serve`, the real program: it prints its address, checks the token, and stops on request."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

CONFIG = """\
model = "demo/demo"
[providers.demo]
kind = "scripted"
[providers.demo.options]
script = ["hello"]
"""


def start(tmp_path: Path, *flags: str, config: str = CONFIG) -> "subprocess.Popen[str]":
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "config.toml").write_text(config)
    environment = {**os.environ, "OUTRIDER_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "outrider", "serve", *flags]
    return subprocess.Popen(command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True)


def test_serve_prints_its_address_and_accepts_the_token_until_it_is_stopped(tmp_path):
    (tmp_path / "project").mkdir()
    with start(tmp_path, "--cwd", str(tmp_path / "project")) as server:
        assert server.stderr is not None
        url = re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline())
        assert url is not None
        token_file = tmp_path / "home" / "server" / "token"
        assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
        headers = {"Authorization": f"Bearer {token_file.read_text()}", "Content-Type": "application/json"}
        with urllib.request.urlopen(
            urllib.request.Request(f"{url[0]}/api/health", headers=headers), timeout=60
        ) as output:
            assert b'"ok":true' in output.read()
        asked = urllib.request.Request(f"{url[0]}/api/sessions", b"{}", headers)
        with urllib.request.urlopen(asked, timeout=60) as made:
            assert json.load(made)["workspace_directory"] == str(tmp_path / "project")
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--host", "0.0.0.0"), "--expose"),
        (("--host", "0.0.0.0", "--expose"), "TLS"),
        (("--port", "notaport"), "is not a port"),
    ],
)
def test_what_would_let_others_in_is_refused(flags, message, tmp_path):
    with start(tmp_path, *flags) as server:
        assert server.stderr is not None
        output = server.stderr.read()
        assert server.wait(60) == 2
        assert message in output


def test_a_unix_socket_is_for_its_owner_only(tmp_path):
    path = tmp_path / "s" / "outrider.sock"
    with start(tmp_path, "--socket", str(path)) as server:
        assert server.stderr is not None
        assert "outrider.sock" in server.stderr.readline()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    assert not path.exists()
