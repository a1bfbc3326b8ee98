"""A server whose answers are damaged at random, the same way each time for the same number given as argument."""

import json
import random
import sys

chance = random.Random(int(sys.argv[1]))
KEYS = (
    "content",
    "tools",
    "name",
    "inputSchema",
    "type",
    "text",
    "isError",
    "structuredContent",
    "_meta",
    "nextCursor",
)
BLOCKS = ("text", "image", "audio", "resource", "resource_link", "unheard of")
UNASKED = ("message", "progress", "tools/list_changed", "cancelled", "unheard of")
REQUESTS = ("sampling/createMessage", "roots/list", "elicitation/create", "ping", "unheard of")


def anything(depth=0):
    match chance.randrange(9 if depth < 4 else 6):
        case 0:
            return None
        case 1:
            return True
        case 2:
            return chance.randrange(-(2**70), 2**70)
        case 3:
            return chance.random() * 1e308
        case 4:
            return "x" * chance.randrange(30)
        case 5:
            return "\ud800" if chance.random() < 0.2 else "é\0"
        case 6:
            return [anything(depth + 1) for _ in range(chance.randrange(4))]
        case 7:
            return {chance.choice(KEYS): anything(depth + 1) for _ in range(chance.randrange(4))}
        case _:
            fields = {name: anything(depth + 1) for name in ("text", "data", "mimeType", "resource")}
            return {"type": chance.choice(BLOCKS), "uri": "http://[", "name": "n", **fields}


def damaged(value):
    if chance.random() < 0.15:
        return anything()
    if isinstance(value, dict):
        return {name: damaged(inner) for name, inner in value.items() if chance.random() > 0.05}
    return [damaged(inner) for inner in value] if isinstance(value, list) else value


def write(message):
    text = json.dumps({"jsonrpc": "2.0", **message})
    if chance.random() < 0.1:
        text = text[: chance.randrange(len(text))]
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def proper(request):
    match request["method"]:
        case "initialize":
            version = request["params"]["protocolVersion"]
            info = {"name": "random", "version": "1"}
            capabilities = {"tools": {"listChanged": True}, "resources": {}, "prompts": {}}
            return {"protocolVersion": version, "serverInfo": info, "capabilities": capabilities}
        case "tools/list":
            return {"tools": [{"name": "t", "description": "d", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            return {"content": [{"type": "text", "text": "fine"}], "structuredContent": {"a": 1}}
        case _:
            return {"resources": [], "resourceTemplates": [], "prompts": []}


for line in sys.stdin:
    request = json.loads(line)
    if "method" not in request:  # an answer to a question of ours
        continue
    number = request.get("id")
    for _ in range(chance.randrange(3)):
        known = {"level": "info", "data": anything(), "progressToken": number, "progress": anything()}
        write({"method": f"notifications/{chance.choice(UNASKED)}", "params": chance.choice([known, anything()])})
    if chance.random() < 0.3:
        write({"id": anything(), "method": chance.choice(REQUESTS), "params": anything()})
    if number is not None and request["method"] == "server/discover":
        write({"id": number, "error": {"code": -32601, "message": "no such method"}})
    elif number is not None:
        often = 0.5 if request["method"] == "tools/call" else 0.15
        answer = proper(request)
        write({"id": number, "result": damaged(answer) if chance.random() < often else answer})
