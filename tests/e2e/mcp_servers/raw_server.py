"""A server without the SDK, which starts fast and misbehaves as its first argument specifies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

MODE = sys.argv[1] if len(sys.argv) > 1 else "normal"
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
about = {"description": "a tool"}


def write(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def say(number, text):
    write(id=number, result={"content": [{"type": "text", "text": text}]})


# Tools: each gets the number of its call and its text.


def echo(number, text):
    say(number, text)


def die(number, text):
    sys.stderr.write("I am dying\n")
    sys.stderr.flush()
    os._exit(3)


def hang(number, text):
    """No answer, ever."""


def environment(number, text):
    say(number, json.dumps(dict(os.environ)))


def garble(number, text):
    sys.stdout.write('{"jsonrpc": "2.0", "id": \n\x00\xff nonsense\n')
    say(number, "after garbage")


def wrong_id(number, text):
    write(id=number + 1000, result={})
    write(id="no such", result={})


def huge(number, text):
    say(number, "x" * int(text))


def pid(number, text):
    say(number, str(os.getpid()))


def change(number, text):
    about["description"] = "another tool"
    write(method="notifications/tools/list_changed")
    say(number, "changed")


def log_flood(number, text):
    for line in range(int(text)):
        write(method="notifications/message", params={"level": "info", "data": f"{line} " + "x" * 500})
    say(number, "flooded")


def breed(number, text):
    """A child in a separate session, which a signal to our group does not reach."""
    script = "import os, time; os.setsid(); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-S", "-c", script], stdin=subprocess.DEVNULL)
    say(number, str(child.pid))


def ask(number, text):
    """Sends the request in the text to the client and returns the response."""
    write(id="asked", **json.loads(text))
    while (answered := json.loads(sys.stdin.readline())).get("id") != "asked":
        answer(answered)
    say(number, json.dumps(answered.get("result") or answered["error"]))


def visit(number, text):
    """Works after the user has visited an address."""
    if about.setdefault("visits", 0):
        say(number, "visited")
        return
    about["visits"] += 1
    wanted = {"mode": "url", "message": "Grant access", "url": text, "elicitationId": "1"}
    write(id=number, error={"code": -32042, "message": "visit first", "data": {"elicitations": [wanted]}})


TOOLS = (echo, die, hang, environment, garble, wrong_id, huge, pid, change, log_flood, breed, ask, visit)


def listed():
    return [{"name": tool.__name__, "inputSchema": SCHEMA, "description": about["description"]} for tool in TOOLS]


def answer(request):
    number, params = request.get("id"), request.get("params") or {}
    match request["method"]:
        case "initialize":
            capabilities = {"tools": {"listChanged": True}, "logging": {}}
            info = {"name": "plain", "version": "1"}
            version = params["protocolVersion"]
            write(id=number, result={"protocolVersion": version, "capabilities": capabilities, "serverInfo": info})
        case "tools/list":
            write(id=number, result={"tools": listed()})
        case "tools/call":
            tools = {tool.__name__: tool for tool in TOOLS}
            tools[params["name"]](number, (params.get("arguments") or {}).get("text", ""))
        case "server/discover" if MODE == "brittle":
            os._exit(1)
        case _ if number is not None:
            write(id=number, error={"code": -32601, "message": "no such method"})


# Modes: what is done before serving.


def once():
    """Serves the first time only."""
    mark = Path(sys.argv[2])
    if mark.exists():
        sys.exit("only once")
    mark.touch()


def garbage():
    while True:
        sys.stdout.write("this is not MCP " * 4096 + "\n")


def endless_line():
    while True:
        sys.stdout.write("x" * 65536)


def silent():
    sys.stdin.read()


def banner():
    sys.stdout.write("Welcome!\n\nlistening\n")


def stderr():
    sys.stderr.write("y" * 50_000_000 + "the end\n")


def stubborn():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


MODES = (once, garbage, endless_line, silent, banner, stderr, stubborn)

{mode.__name__: mode for mode in MODES}.get(MODE, lambda: None)()
for line in sys.stdin:
    answer(json.loads(line))
while MODE == "stubborn":
    time.sleep(1)
