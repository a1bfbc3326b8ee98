"""A session is imported from another server; its key is sent to no other host."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from outrider.errors import PartValidationError, StoreError, StoreUnavailableError
from outrider.sessions import export as remote
from outrider.sessions.export import export_session
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import StoredSession


class Server(ThreadingHTTPServer):
    document = b""
    seen: list[tuple[str, str | None]]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.seen = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answers(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("Authorization")))
        moved = self.path == "/moved"
        self.send_response({"/export": 200, "/moved": 302}.get(self.path, 404))
        if moved:
            self.send_header("Location", "/export")
        body = self.server.document if self.path == "/export" else b""
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


async def test_a_session_comes_over_as_a_copy(server: Server):
    there, here = MemoryStore(), MemoryStore()
    session = await there.create(StoredSession(title="from afar"))
    server.document = await export_session(there, session.id)
    (copy,) = (await remote.import_from_url(here, f"{server.url}/export", key="secret")).sessions
    assert (copy.title, copy.id == session.id) == ("from afar", False)
    assert server.seen == [("/export", "Bearer secret")]


async def test_any_other_server_is_refused(server: Server):
    store = MemoryStore()
    for path in ("/moved", "/nothing"):
        with pytest.raises(StoreUnavailableError, match="answered"):
            await remote.import_from_url(store, server.url + path, key="secret")
    assert [path for path, _ in server.seen] == ["/moved", "/nothing"]
    server.document = b"<html>"
    with pytest.raises(PartValidationError):
        await remote.import_from_url(store, f"{server.url}/export")
    with pytest.raises(StoreError, match="larger than 3 bytes"):
        await remote.fetch_export(f"{server.url}/export", max_bytes=3)
    with pytest.raises(StoreError, match="not an http"):
        await remote.import_from_url(store, "file:///etc/passwd")
    with pytest.raises(StoreUnavailableError):
        await remote.import_from_url(store, "http://127.0.0.1:9/x")
