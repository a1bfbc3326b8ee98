"""`outrider login` and `outrider logout` as real processes, with a server that knows one key."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

RIGHT_KEY = "sk-right"


class VendorHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        right = self.headers.get("x-api-key") == RIGHT_KEY
        body = {"data": [{"id": "claude-x"}]} if right else {"error": {"message": "invalid x-api-key"}}
        self.send_response(200 if right else 401)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def vendor() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), VendorHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def outrider(home: Path, *arguments: str, given: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "outrider", *arguments],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**inherited, "OUTRIDER_HOME": str(home), "HOME": str(home), **environ},
    )


def test_a_key_is_checked_stored_listed_and_deleted(tmp_path: Path, vendor: str):
    wrong = outrider(tmp_path, "login", "anthropic", given="sk-wrong\n", ANTHROPIC_BASE_URL=vendor)
    assert wrong.returncode == 2
    assert "refused the key: status 401, invalid x-api-key" in wrong.stderr
    assert not (tmp_path / "keys.json").exists()

    right = outrider(tmp_path, "login", "anthropic", given=f"{RIGHT_KEY}\n", ANTHROPIC_BASE_URL=vendor)
    assert right.returncode == 0, right.stderr
    assert RIGHT_KEY not in right.stdout + right.stderr
    assert (tmp_path / "keys.json").stat().st_mode & 0o777 == 0o600

    assert outrider(tmp_path, "login", "--list").stdout.startswith("anthropic: stored in")
    shown = outrider(tmp_path, "config")
    assert "anthropic/" in shown.stdout
    assert RIGHT_KEY not in shown.stdout
    assert "deleted: anthropic" in outrider(tmp_path, "logout").stderr
    assert outrider(tmp_path, "login", "--list").stdout == ""


def test_a_key_that_cannot_be_checked_is_stored_and_an_empty_one_is_not(tmp_path: Path):
    stored = outrider(tmp_path, "login", "anthropic", given="sk-1", ANTHROPIC_BASE_URL="http://127.0.0.1:9")
    assert stored.returncode == 0
    assert "could not be checked" in stored.stderr
    assert outrider(tmp_path, "login", "openai", "--no-check", given="\n").returncode == 2
    assert outrider(tmp_path, "login", given="sk-1\n").returncode == 2
