"""Logins of MCP servers: the program against a real authorization server, and what is left of the tokens."""

import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.house import ROOT

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

SERVER = ROOT / "tests" / "e2e" / "mcp_servers" / "oauth.py"


def free_ports() -> list[int]:
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in (one, other)]


class ProtectedServer:
    """The server, its authorization server, and a user with a home folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.workspace = home / "workspace"
        self.workspace.mkdir()
        self.port, self.login_port = free_ports()
        command = [sys.executable, str(SERVER), str(self.port), str(self.login_port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for port in (self.port, self.login_port):
            self._wait_for(port)

    def _wait_for(self, port: int) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError("the server did not start")

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home),
            "OUTRIDER_HOME": str(self.home),
            "LANG": "C.UTF-8",
        }
        command = [sys.executable, "-m", "outrider", *arguments]
        return subprocess.Popen(
            command,
            cwd=self.workspace,
            env={**environment, "PYTHONPATH": str(ROOT / "src")},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def outrider(self, *arguments: str) -> tuple[int, str]:
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=90)
        return process.returncode, output

    def log_in(self) -> str:
        """Run the login, and visit the printed address as a browser does."""
        process = self.start("mcp", "login", "secure", "--no-browser")
        assert process.stdout is not None
        address = ""
        while line := process.stdout.readline():
            if found := re.search(r"http://\S*/authorize\S*", line):
                address = found[0]
                break
        with urllib.request.urlopen(address, timeout=30) as page:
            assert "logged in" in page.read().decode()
        rest = process.communicate(timeout=60)[0]
        assert process.returncode == 0, rest
        return address

    def administer(self, what: str) -> None:
        request = urllib.request.Request(f"http://127.0.0.1:{self.login_port}/admin/{what}", method="POST")
        urllib.request.urlopen(request, timeout=30).close()

    def call(self, tool: str) -> str:
        """Let a scripted agent call a tool of the server."""
        script = f'[[{{ tool = "mcp__secure__{tool}", input = {{ name = "x" }} }}], "Done."]'
        (self.home / "config.toml").write_text(
            f'model = "s/m"\n[providers.s]\nkind = "scripted"\nmodel = "m"\n[providers.s.options]\nscript = {script}\n'
        )
        _, output = self.outrider("run", "go", "--allow", "mcp__secure__*", "--output-format", "stream-json")
        return output


@pytest.fixture
def protected(tmp_path: Path) -> Iterator[ProtectedServer]:
    server = ProtectedServer(tmp_path)
    try:
        code, output = server.outrider("mcp", "add", "secure", "--url", f"http://127.0.0.1:{server.port}/mcp")
        assert code == 0, output
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def test_a_server_names_the_login_that_it_needs_and_works_after_it(protected: ProtectedServer):
    code, output = protected.outrider("mcp", "test", "secure")
    assert (code, "it needs a login: outrider mcp login secure" in output) == (1, True), output
    address = protected.log_in()
    assert "code_challenge_method=S256" in address
    assert "resource=" in address
    code, output = protected.outrider("mcp", "test", "secure")
    assert (code, "2 tools" in output) == (0, True), output
    assert "Hello x." in protected.call("greet")
    stored = protected.home / "mcp_logins.json"
    assert stored.stat().st_mode & 0o777 == 0o600
    tokens = re.findall(rb"(?:access|refresh)-[0-9a-f]{32}", stored.read_bytes())
    assert len(tokens) == 2
    for file in protected.home.rglob("*"):
        if file.is_file() and file != stored:
            assert not any(token in file.read_bytes() for token in tokens), file


def test_tokens_that_end_or_are_revoked_are_refreshed_and_a_lost_login_is_named(protected: ProtectedServer):
    protected.administer("short")
    protected.log_in()
    time.sleep(1.2)
    assert "Hello x." in protected.call("greet"), "the access token has ended"
    protected.administer("expire")
    assert "Hello x." in protected.call("greet"), "the access token was revoked"
    protected.administer("revoke")
    code, output = protected.outrider("mcp", "test", "secure")
    assert (code, "outrider mcp login secure" in output) == (1, True), output
    protected.log_in()
    assert "Hello x." in protected.call("greet"), "a new registration and login"
    assert protected.outrider("mcp", "logout", "secure")[0] == 0
    assert protected.outrider("mcp", "test", "secure")[0] == 1


def test_a_call_that_needs_more_rights_says_so_and_the_next_login_asks_for_them(protected: ProtectedServer):
    protected.log_in()
    output = protected.call("delete")
    assert "more rights (read write)" in output
    assert "outrider mcp login secure" in output
    assert "more rights needed" in protected.outrider("mcp", "list")[1]
    assert "scope=read+write" in protected.log_in()
    assert "x is deleted." in protected.call("delete")
