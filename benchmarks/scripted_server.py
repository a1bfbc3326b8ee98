"""A model server on loopback that requests the same command a number of times and then answers."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ModelServer:
    """Serves OpenAI's chat API. `on_request` is called before each answer; `bytes` counts what clients sent."""

    def __init__(self, turns: int, on_request: Callable[[int], None] = lambda _: None) -> None:
        self.turns = turns
        self.on_request = on_request
        self.requests = 0
        self.bytes = 0
        self.url = ""

    def answer(self, body: bytes) -> bytes:
        self.on_request(self.requests)
        self.requests += 1
        done = sum(message["role"] == "tool" for message in json.loads(body)["messages"])
        if done < self.turns:
            function = {"name": "shell", "arguments": json.dumps({"command": f"echo {done}"})}
            call = {"index": 0, "id": f"call_{done}", "type": "function", "function": function}
            events = [_chunk({"role": "assistant", "tool_calls": [call]}), _chunk({}, "tool_calls")]
        else:
            chunks = [_chunk({"content": f"word{number} "}) for number in range(16)]
            events = [*chunks, _chunk({}, "stop")]
        usage = {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 8, "total_tokens": 108}}
        return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in [*events, usage]) + _END


_END = b"data: [DONE]\n\n"


def _chunk(delta: dict[str, object], finish: str | None = None) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "mock", "choices": [choice]}


@contextmanager
def serving(model: ModelServer) -> Iterator[ModelServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            model.bytes += len(body) + len(self.requestline) + len(bytes(self.headers)) + 2
            answer = model.answer(body)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    model.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
