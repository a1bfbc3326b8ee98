"""Probes, metrics, log lines and the drain of a server, as a service manager and a scraper use them."""

import json
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.e2e.server.test_serve_command import CONFIG, start

SLOW = CONFIG.replace('script = ["hello"]', 'script = ["hello there, this takes a while"]\ndelay = 0.3')


def fetch(url: str, token: str = "", body: Any = None, **headers: str) -> tuple[int, str]:
    if token:
        headers |= {"Authorization": f"Bearer {token}"}
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        headers |= {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def read_address(server: Any) -> str:
    while True:
        line = server.stderr.readline()
        assert line, "the server ended"
        if found := re.search(r"http://127\.0\.0\.1:\d+(?= \(token)", line):
            return found[0]


def test_probes_need_no_token_metrics_do_and_requests_are_logged_as_json(tmp_path: Path):
    with start(tmp_path, "--port", "0", "--log-format", "json", "--health", "127.0.0.1:0") as server:
        assert server.stderr is not None
        health = re.search(r"http://127\.0\.0\.1:\d+", server.stderr.readline())
        assert health is not None
        url = read_address(server)
        token = (tmp_path / "home" / "server" / "token").read_text()
        assert fetch(f"{url}/livez", Host="10.1.2.3") == (200, "ok\n")
        assert fetch(f"{url}/readyz") == (200, "ok\n")
        assert fetch(f"{url}/metrics")[0] == 401
        status, text = fetch(f"{url}/metrics", token)
        assert status == 200 and 'outrider_server_denied_total{reason="no_token"} 1' in text
        assert fetch(f"{health[0]}/metrics")[0] == 200
        assert fetch(f"{health[0]}/readyz") == (200, "ok\n")
        server.send_signal(signal.SIGTERM)
        lines = [json.loads(line) for line in server.stderr.read().splitlines() if line.startswith("{")]
        assert server.wait(60) == 0
    logged = [(line["method"], line["path"], line["status"]) for line in lines]
    assert ("GET", "/metrics", 401) in logged and ("GET", "/metrics", 200) in logged
    assert all(line["client"] == "127.0.0.1" and line["level"] == "info" for line in lines)


def test_a_server_that_is_stopped_ends_its_turns_first(tmp_path: Path):
    with start(tmp_path, "--port", "0", "--grace", "60s", config=SLOW) as server:
        url, token = read_address(server), (tmp_path / "home" / "server" / "token").read_text()
        session = json.loads(fetch(f"{url}/api/sessions", token, {})[1])["id"]
        ends: list[tuple[int, str]] = []
        prompt = f"{url}/api/sessions/{session}/prompt"
        turn = threading.Thread(target=lambda: ends.append(fetch(prompt, token, {"text": "go", "wait": True})))
        turn.start()
        while "outrider_server_running_turns 1" not in fetch(f"{url}/metrics", token)[1]:
            time.sleep(0.02)
        server.send_signal(signal.SIGTERM)
        while fetch(f"{url}/readyz") != (503, "draining\n"):
            time.sleep(0.02)
        assert fetch(f"{url}/livez")[0] == 200
        status, refused = fetch(prompt, token, {"text": "one more"})
        assert status == 503 and "being stopped" in refused
        turn.join(60)
        assert server.wait(60) == 0
    assert json.loads(ends[0][1])["end"]["output"].startswith("hello there")
