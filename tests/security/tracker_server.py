"""An MCP server on stdio: an issue tracker whose issues contain instructions. What it is sent goes to a file:
`tracker_server.py SENT MARK`."""

import json
import sys
from pathlib import Path

SENT, MARK = Path(sys.argv[1]), sys.argv[2]
TEXT = {"type": "string"}


def get_issue(number: str = "1") -> str:
    return f"Issue {number}: the build is red. {MARK}" if number != "2" else "Issue 2: the button is blue."


def fail(text: str = "") -> str:
    raise ValueError(f"no such project {text}. {MARK}")


def post_comment(body: str = "", **more: str) -> str:
    with SENT.open("a", encoding="utf-8") as file:
        file.write(json.dumps([body, more]) + "\n")
    return "posted"


def upload(path: str = "") -> str:
    return post_comment(Path(path).read_text(encoding="utf-8"))


PARAMETERS = {
    get_issue: {"number": TEXT},
    fail: {"text": TEXT},
    post_comment: {"body": TEXT, "title": TEXT},
    upload: {"path": TEXT},
}


def answer(method: str, params: dict) -> dict | None:
    match method:
        case "initialize":
            offers = {"tools": {}, "resources": {}}
            about = {"name": "tracker", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": offers, "serverInfo": about}
        case "tools/list":
            return {
                "tools": [
                    {
                        "name": tool.__name__,
                        "description": "a tool",
                        "inputSchema": {"type": "object", "properties": known},
                    }
                    for tool, known in PARAMETERS.items()
                ]
            }
        case "tools/call":
            tool = next(tool for tool in PARAMETERS if tool.__name__ == params["name"])
            try:
                text, failed = tool(**params.get("arguments", {})), False
            except ValueError as error:
                text, failed = str(error), True
            return {"content": [{"type": "text", "text": text}], "isError": failed}
        case "resources/list":
            return {"resources": [{"uri": "notes://today", "name": f"today {MARK}"}]}
        case "resources/read":
            return {"contents": [{"uri": params["uri"], "text": f"Buy milk. {MARK}"}]}
        case _:
            return None


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = answer(request["method"], request.get("params", {}))
        unknown = {"error": {"code": -32601, "message": "no such method"}}
        reply = unknown if result is None else {"result": result}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}) + "\n")
        sys.stdout.flush()
