"""A server with many tools: `large_catalog.py NAME COUNT [GATE]`. With a gate it answers after that file
exists; a line in the file renames the tools, another one changes their descriptions."""

import json
import sys
import time
from pathlib import Path

NAME, COUNT = sys.argv[1], int(sys.argv[2])
GATE = Path(sys.argv[3]) if len(sys.argv) > 3 else None
VERBS = ("create", "list", "update", "delete", "close", "assign")
NOUNS = ("ticket", "invoice", "branch", "calendar", "deployment")


def write(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def listed():
    commands = GATE.read_text().split() if GATE else []
    prefix = "renamed_" if "rename" in commands else ""
    more = " It has changed." if "change" in commands else ""
    pairs = [(verb, noun) for noun in NOUNS for verb in VERBS][:COUNT]
    about = "The result has the id, the owner and the history of what was changed, in the order of the changes. "
    return [
        {
            "name": f"{prefix}{verb}_{noun}",
            "description": f"{verb.title()} one {noun} of the {NAME} system. {about * 3}{more}",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "description": f"the id of the {noun}"},
                    "note": {"type": "string", "description": "why it is done"},
                },
                "required": ["id"],
            },
        }
        for verb, noun in pairs
    ]


def answer(request):
    number, params = request.get("id"), request.get("params") or {}
    match request["method"]:
        case "initialize":
            result = {"protocolVersion": params["protocolVersion"], "serverInfo": {"name": NAME, "version": "1"}}
            write(id=number, result={**result, "capabilities": {"tools": {"listChanged": True}}})
        case "tools/list":
            write(id=number, result={"tools": listed()})
        case "tools/call":
            if params["name"].endswith("close_ticket"):
                write(method="notifications/tools/list_changed")
            text = f"{NAME} {params['name']} {json.dumps(params.get('arguments'))}"
            write(id=number, result={"content": [{"type": "text", "text": text}]})
        case _ if number is not None:
            write(id=number, error={"code": -32601, "message": "no such method"})


while GATE and not GATE.exists():
    time.sleep(0.02)
for line in sys.stdin:
    answer(json.loads(line))
