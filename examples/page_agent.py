"""Your own agent on the page: a configuration with an agent and an MCP server as its tools, served by `outrider serve`.

The program starts the server, asks the agent over HTTP as the page does, and ends it."""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

CONFIG = """
agent = "clerk"
model = "demo/demo"

[providers.demo]                          # with a key: remove this table, and model = "anthropic/claude-sonnet-4-5"
kind = "scripted"
options = {{ script = [{{ tool = "mcp__warehouse__stock", input = {{ item = "tea" }} }}, "There are 12."] }}

[rules]
allow = ["mcp__warehouse__stock"]

[agents.clerk]
role = "answers questions about the stock"
instructions = "You answer questions about the stock, with the tools of the warehouse."

[mcp.warehouse]
command = "{python}"
args = ["{server}", "serve"]
"""


def main() -> None:
    home, folder = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
    server = Path(__file__).with_name("mcp_tools.py")
    (home / "config.toml").write_text(CONFIG.format(python=sys.executable, server=server), encoding="utf-8")
    environment = {**os.environ, "OUTRIDER_HOME": str(home)}
    command = [sys.executable, "-m", "outrider", "serve", "--port", "0", "--cwd", str(folder)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "listens on" in line)
        url = line.split()[3]
        token = (home / "server" / "token").read_text()
        try:
            session = request(url, token, "POST", "/api/sessions", {})["id"]
            prompt = {"text": "How much tea is there?", "wait": True}
            answer = request(url, token, "POST", f"/api/sessions/{session}/prompt", prompt)
            print(answer["end"]["output"])
        finally:
            process.terminate()


def request(url: str, token: str, method: str, path: str, body: object = None) -> Any:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    made = urllib.request.Request(url + path, data=data, headers=headers, method=method)
    with urllib.request.urlopen(made) as response:
        return json.loads(response.read() or b"{}")


if __name__ == "__main__":
    main()
