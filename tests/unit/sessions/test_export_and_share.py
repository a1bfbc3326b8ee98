"""Exports can be imported without loss; a shared page shows everything and executes and loads nothing."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import tracemalloc
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path

import pytest

from outrider.errors import PartValidationError, StoreError, StoreVersionError
from outrider.presentation.share_page import render_share_page
from outrider.sessions.export import export_session, import_session, stream_export
from outrider.sessions.memory_store import MemoryStore
from outrider.sessions.records import DamagedRow, SessionTranscript, StoredSession
from outrider.sessions.session import SessionTime
from outrider.sessions.sqlite.store import SqliteStore
from outrider.types.codec import UnknownPart
from outrider.types.ids import new_id
from outrider.types.messages import Message, MessageTime
from outrider.types.parts import (
    CompactionPart,
    FilePart,
    ModelRef,
    ReasoningPart,
    RetryPart,
    RetryTime,
    StepFinishPart,
    SubtaskPart,
    TextPart,
    Tokens,
    ToolPart,
)
from outrider.types.tool_state import EndedTime, ToolCompleted, ToolError, ToolPending

START = 1_700_000_000_000
HOSTILE = "</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'{title}\u202e\x1b[31m"
DIFF = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-old <b>\n+new\n same"


def a_session(hostile: str = "") -> SessionTranscript:
    session = StoredSession(title=f"Mend it {hostile}", agent="writer", time=SessionTime(START, START + 9000))
    question = Message("user", [TextPart(f"Please mend `x.py`. {hostile}")], time=MessageTime(START))
    answer = Message(
        "assistant",
        [
            ReasoningPart(f"Hm. {hostile}"),
            TextPart(f"# Plan\n\n- look\n- mend **it**\n\n```diff\n{DIFF}\n```\nSee https://example.org/a?b=1."),
            ToolPart(
                call_id="c1",
                tool=f"shell{hostile}",
                state=ToolCompleted({"command": f"ls {hostile}"}, f"out {hostile}", EndedTime(START + 10, START + 500)),
            ),
            ToolPart(call_id="c2", tool="edit", state=ToolError({"a": 1}, "no", EndedTime(START + 600, START + 700))),
            ToolPart(call_id="c3", tool="open", state=ToolPending({}, "", "ready")),
            FilePart(mime="image/png", url="data:image/png;base64,iVBORw0KGgo=", filename=f"a.png{hostile}"),
            FilePart(mime="image/png", url=f"https://example.org/{hostile}"),
            CompactionPart(summary=f"short {hostile}"),
            SubtaskPart(agent="reviewer", description="look", prompt=f"look {hostile}"),
            RetryPart(attempt=1, error=f"busy {hostile}", time=RetryTime(START)),
            StepFinishPart(reason="stop", cost=Decimal("0.25"), tokens=Tokens(10, 5)),
            UnknownPart({"type": "hologram", "id": new_id(), "depth": 1.5, "said": hostile}),
        ],
        agent="writer",
        model=ModelRef("p", "m"),
        tokens=Tokens(1000, 50),
        cost=Decimal("0.25"),
        finish="stop",
        time=MessageTime(START + 5, START + 900),
    )
    for message in (question, answer):
        message.join(session.id)
    return SessionTranscript(session, [question, answer])


async def stored(store: MemoryStore | SqliteStore) -> str:
    transcript = a_session()
    await store.create(transcript.session)
    await store.append(transcript.session.id, transcript.messages)
    child = await store.create(StoredSession(title="child", parent_id=transcript.session.id))
    draft = Message("assistant", [TextPart("unfin")], time=MessageTime(START))
    draft.join(child.id)
    await store.append(child.id, [draft])
    await store.append(child.id, draft.parts, draft=True)
    return transcript.session.id


async def test_an_export_that_is_imported_into_another_store_exports_to_the_same_bytes(tmp_path: Path):
    first = MemoryStore()
    session_id = await stored(first)
    exported = await export_session(first, session_id)
    async with SqliteStore(tmp_path / "sessions.db") as second:
        imported = await import_session(second, exported)
        assert [session.title for session in imported.sessions] == ["Mend it ", "child"]
        assert imported.left_out == ()
        assert (await second.load(session_id)).messages == (await first.load(session_id)).messages
        again = await export_session(second, session_id)
    for document in (exported, again):
        assert json.loads(document)["outrider_export"] == 1
    assert without_numbers(again) == without_numbers(exported)


@pytest.mark.slow
async def test_an_export_is_read_page_by_page_with_bounded_memory(tmp_path: Path):
    text = "word " * 40_000
    async with SqliteStore(tmp_path / "sessions.db") as store:
        session = await store.create(StoredSession(title="long"))
        child = await store.create(StoredSession(title="child", parent_id=session.id))
        for number in range(150):
            message = Message("user", [TextPart(f"{number} {text}")], time=MessageTime(1))
            message.join(session.id)
            await store.append(session.id, [message])
        tracemalloc.start()
        size, pieces = 0, 0
        async for piece in stream_export(store, session.id):
            size, pieces = size + len(piece), pieces + 1
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert size > 150 * len(text)
        assert peak < size / 2
        exported = json.loads(await export_session(store, session.id))
    assert [one["session"]["id"] for one in exported["sessions"]] == [session.id, child.id]
    texts = [message["parts"][0]["text"].split(" ")[0] for message in exported["sessions"][0]["messages"]]
    assert texts == [str(number) for number in range(150)]


def without_numbers(document: bytes) -> object:
    """Sequence numbers and the time of the last activity belong to a store, not to a session."""
    value = json.loads(document)
    for one in value["sessions"]:
        one["session"].pop("seq")
        one["session"]["time"].pop("updated")
    return value


async def test_an_import_does_not_overwrite_but_can_be_a_copy():
    store = MemoryStore()
    exported = await export_session(store, await stored(store))
    with pytest.raises(StoreError, match="exists already"):
        await import_session(store, exported)
    root, child = (await import_session(store, exported, as_copy=True)).sessions
    assert child.parent_id == root.id
    loaded = await store.load(root.id)
    assert {part.session_id for message in loaded.messages for part in message.parts} == {root.id}


@pytest.mark.parametrize(
    ("document", "error"),
    [
        (b'{"outrider_export": 2, "sessions": []}', StoreVersionError),
        (b'{"sessions": []}', PartValidationError),
        (b'{"outrider_export": 1, "sessions": [{}]}', PartValidationError),
        (b"[1]", PartValidationError),
        (b"\xff", PartValidationError),
    ],
)
async def test_what_is_not_an_export_is_refused(document: bytes, error: type[Exception]):
    with pytest.raises(error):
        await import_session(MemoryStore(), document)


class Page(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br", "img", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "br", "img"):
            if tag == "line":
                return
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_everything_is_on_the_page_and_calls_are_folded():
    html = render_share_page(a_session())
    page = Page(html)
    assert page.open == []
    for text in ("Mend it", "Please mend", "Hm.", "ls", "out", "hologram", "reviewer", "short", "busy", "$0.2500"):
        assert text in page.text
    assert page.tags.count("details") == 7
    assert "open" not in [name for name, _ in page.attributes]
    assert page.tags.count("rect") == 4
    assert '<span class="removed">-old &lt;b&gt;</span>' in html
    assert '<span class="added">+new</span>' in html
    assert '<a href="https://example.org/a?b=1" rel="noreferrer noopener">' in html
    assert page.tags.count("img") == 1


def test_nothing_on_the_page_is_obeyed():
    plain, page = Page(render_share_page(a_session())), Page(render_share_page(a_session(HOSTILE)))
    assert page.tags == plain.tags
    assert "script" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "\u202e" not in page.text
    assert "\x1b" not in page.text


def test_the_page_may_load_and_run_nothing():
    html = render_share_page(a_session())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)[1].replace("&#x27;", "'")
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    )
    assert not re.search(r'(?:src|href)="(?!data:image/png|https://example.org/a)', html)
    assert "style=" not in html


def test_an_empty_session_and_a_damaged_one_can_be_shared():
    assert "A session" in render_share_page(SessionTranscript(StoredSession(), []))
    damaged = DamagedRow("part", "p", "m", "no <JSON>", b"{")
    assert "a damaged part is skipped: no &lt;JSON&gt;" in render_share_page(
        SessionTranscript(StoredSession(), [], (damaged,))
    )


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="needs Chromium to draw the page")
def test_a_real_browser_draws_the_page_without_complaint(tmp_path: Path):
    file = tmp_path / "share.html"
    file.write_text(render_share_page(a_session(HOSTILE)), encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    done = subprocess.run(
        [*command, f"--user-data-dir={tmp_path / 'profile'}", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Please mend" in done.stdout
    assert "Refused to" not in done.stderr
