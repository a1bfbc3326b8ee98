"""The steps of docs/deploy.md, run natively: the server's command of the compose file, then users and links."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server.test_serve_command import start
from tests.e2e.server.test_server_health import fetch

DEPLOY = Path(__file__).parents[3] / "deploy"
HOST = "agents.example"
FORWARDED = {"Host": HOST, "X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https"}


@contextmanager
def ended(server: "subprocess.Popen[str]") -> Iterator[None]:
    """Ends the server also if the test fails."""
    with server:
        try:
            yield
        finally:
            server.kill()


def compose() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_the_compose_file_runs_the_server_for_its_proxy_only():
    services, networks = compose()["services"], compose()["networks"]
    assert set(services) == {"postgres", "worker", "server", "caddy"}
    command = services["server"]["command"]
    subnet = networks["proxy"]["ipam"]["config"][0]["subnet"]
    assert command[command.index("--trusted-proxy") + 1] == subnet
    assert "ports" not in services["server"] and services["caddy"]["networks"] == ["proxy"]
    port = command[command.index("--port") + 1]
    assert f"server:{port}" in (DEPLOY / "Caddyfile").read_text()
    for service in ("server", "worker"):
        assert "/livez" in services[service]["healthcheck"]["test"][-1]
        assert "--no-sandbox" not in services[service]["command"]
        assert {"seccomp=unconfined", "systempaths=unconfined"} <= set(services[service]["security_opt"])


def test_a_server_without_a_sandbox_warns_that_operators_run_no_commands(tmp_path):
    environment = {**os.environ, "OUTRIDER_HOME": str(tmp_path / "home")}

    def outrider(*arguments: str) -> str:
        given = [sys.executable, "-m", "outrider", *arguments]
        return subprocess.run(given, check=False, env=environment, capture_output=True, text=True, timeout=60).stdout

    outrider("users", "add", "ada", "--role", "admin")
    for has_operators in (False, True):
        server = start(tmp_path, "--port", "0", "--no-sandbox")
        assert server.stderr is not None
        with ended(server):
            first = server.stderr.readline()
            assert ("Warning: --no-sandbox was given, so commands of operators are denied" in first) is has_operators
        assert ("commands of operators are denied: the server" in outrider("doctor")) is has_operators
        outrider("users", "add", "ana")
    (tmp_path / "home" / "server" / "users.json").write_text("damaged")
    assert "users.json is damaged" in outrider("doctor")


def test_the_command_of_the_compose_file_serves_users_behind_the_proxy(tmp_path):
    command = [
        word.replace("${PUBLIC_HOST:?set it in .env}", HOST) for word in compose()["services"]["server"]["command"]
    ]
    command[command.index("--port") + 1] = "0"
    server = start(tmp_path, *command[1:])
    assert server.stderr is not None
    with ended(server):
        port = re.search(r"http://0\.0\.0\.0:(\d+)", server.stderr.readline())
        assert port is not None
        assert f"https://{HOST}/?code=" in server.stderr.readline()
        url = f"http://127.0.0.1:{port[1]}"
        assert fetch(f"{url}/livez")[0] == 200

        def outrider(*arguments: str) -> str:
            environment = {**os.environ, "OUTRIDER_HOME": str(tmp_path / "home")}
            given = [sys.executable, "-m", "outrider", *arguments]
            done = subprocess.run(given, check=True, env=environment, capture_output=True, text=True, timeout=60)
            return done.stdout.strip()

        token = outrider("users", "add", "you", "--role", "admin")
        assert json.loads(fetch(f"{url}/api/me", token, **FORWARDED)[1])["role"] == "admin"
        link = outrider("users", "link", "you", "--port", port[1])
        assert link.startswith(f"https://{HOST}/?code=")
        assert fetch(f"{url}/api/me", token, **(FORWARDED | {"X-Forwarded-Proto": "http"}))[0] == 403
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0


def test_the_guide_has_the_configuration_of_nginx_and_secrets_are_in_the_data_folder():
    guide = (DEPLOY.parent / "docs" / "deploy.md").read_text()
    assert (DEPLOY / "nginx.conf").read_text().partition("\n")[2] in guide
    for name in ("server", "worker"):
        unit = (DEPLOY / "systemd" / f"outrider-{name}.service").read_text()
        home = re.findall(r"OUTRIDER_HOME=(.+)", unit)[0]
        # Sessions must not work in the data folder, and commands can read every other folder.
        assert not re.findall(r"WorkingDirectory=(.+)", unit)[0].startswith(home)
        assert re.findall(r"OUTRIDER_DATABASE_URL=@(\S+)/database", unit) == [home]
        assert f"OUTRIDER_DATABASE_URL=@{home}/database\n" in guide


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker is not installed")
def test_the_compose_file_is_valid(tmp_path):
    environment = {**os.environ, "POSTGRES_PASSWORD": "x", "PUBLIC_HOST": HOST}
    command = ["docker", "compose", "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=60)
    if "is not a docker command" in done.stderr or "unknown" in done.stderr:
        pytest.skip("docker has no compose command here")
    assert done.returncode == 0, done.stderr
