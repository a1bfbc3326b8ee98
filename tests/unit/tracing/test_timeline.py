"""The timeline page is one file, needs no network, executes nothing of its content, and works in a real browser."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from outrider.tracing.event_log import AgentEvent, EventLog
from outrider.tracing.html_timeline import render_timeline
from outrider.tracing.trace import Trace
from outrider.types.events import ErrorEvent, LLMResponseEvent, LoopCompletedEvent, ToolExecutionCompletedEvent
from tests.unit.tracing.event_builders import called, returned, trace_of

WRITER = {"session_id": "s1", "agent_name": "writer"}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>%%ROWS%%&quot;\"'\u2028"


class Page(HTMLParser):
    """What a browser would make of the elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._at = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._at = tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._at, []).append(data)

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def rows_in(html: str) -> list[list[object]]:
    found = re.search(r'<script type="application/json" id="rows">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


def a_page() -> str:
    return trace_of(
        LLMResponseEvent(
            timestamp=1_000, duration_ms=900, model="large", input_tokens=1_200, output_tokens=30, cost="0.5", **WRITER
        ),
        ToolExecutionCompletedEvent(
            timestamp=1_050, duration_ms=40, tool_name="read", call_id="t", output_preview="text", **WRITER
        ),
        ToolExecutionCompletedEvent(
            timestamp=1_090, duration_ms=20, tool_name="read", call_id="u", success=False, reason="timeout", **WRITER
        ),
        LoopCompletedEvent(timestamp=2_000, duration_ms=2_000, termination_reason="completed", output="done", **WRITER),
    ).to_html()


def test_every_span_is_a_row_with_depth_and_times():
    rows = rows_in(a_page())
    assert [(row[0], row[2], row[4], row[5]) for row in rows] == [
        (0, "writer", 0, 2_000), (1, "large", 100, 900), (1, "read", 1_010, 40), (1, "read", 1_070, 20),
    ]  # fmt: skip


def test_totals_and_shares_are_on_the_page_without_any_script():
    cells = Page(a_page()).texts
    assert cells["dd"][:4] == ["2.0s", "$0.5000", "1.2k", "30"]
    assert {"writer", "large", "read"} <= set(cells["th"])
    assert "✗ 1" in cells["td"]


def test_the_page_may_load_nothing_and_run_only_its_own_script():
    html = a_page()
    page = Page(html)
    (policy,) = [
        meta["content"] or "" for meta in page.attributes("meta") if meta.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy


def test_the_page_refers_to_nothing_outside():
    page = Page(a_page())
    assert not [
        value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href", "srcset")
    ]
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|https?://", a_page())
    assert not [name for _, attributes in page.tags for name in attributes if name == "style" or name.startswith("on")]


def test_text_of_models_and_tools_stays_text():
    where = {"session_id": HOSTILE, "agent_name": HOSTILE}
    html = trace_of(
        LLMResponseEvent(model=HOSTILE, stop_reason=HOSTILE, **where),
        ToolExecutionCompletedEvent(tool_name=HOSTILE, output_preview=HOSTILE, call_id=HOSTILE, **where),
        ErrorEvent(error_type=HOSTILE, message=HOSTILE, **where),
    ).to_html(title=HOSTILE)
    page = Page(html)
    assert len(page.attributes("script")) == 2
    assert not page.attributes("img")
    assert any("</script>" in str(detail) for row in rows_in(html) for detail in row[-1])


def test_a_log_that_lost_its_start_reports_it():
    log = EventLog(maximum=2)
    for number in range(5):
        log.record(AgentEvent("llm_call", "writer", number, f"m{number}"))
    assert "3 older records had been dropped" in Trace(log).to_html()


def test_more_spans_than_a_page_can_show_are_cut_with_a_note():
    html = render_timeline(Trace([called(f"c{number}", "a", number) for number in range(30)]).root, span_limit=10)
    assert len(rows_in(html)) == 10
    assert "Only the first 10 spans" in html


@pytest.mark.slow
def test_long_texts_of_many_spans_keep_the_page_light():
    records = [
        AgentEvent("tool_exec", "a", at, f"t{at}", data={"tool_name": "x", "output": "y" * 19_000})
        for at in range(3_000)
    ]
    assert len(Trace(records).to_html()) < 12_000_000


def test_the_summary_includes_an_agents_own_time_once():
    html = trace_of(
        called("c1", "outer", 0, session="s", child_session_id="o"),
        called("c2", "inner", 1_000, "c1", by="outer", session="o", child_session_id="i"),
        returned("c2", "inner", 8_000, by="outer", session="o", child_session_id="i"),
        returned("c1", "outer", 10_000, session="s", child_session_id="o"),
    ).to_html()
    assert re.search(r"inner<svg.*?</th><td>1</td><td>7\.0s</td>", html)
    assert re.search(r"outer<svg.*?</th><td>1</td><td>3\.0s</td>", html)


def test_without_script_the_page_shows_the_tree_as_text():
    (plain,) = re.findall(r"<noscript>.*?<pre>(.*?)</pre>", a_page(), re.DOTALL)
    assert "├─ tool read" in plain


chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(chromium is None, reason="needs Chromium")
def test_a_browser_draws_the_rows_of_a_large_trace(tmp_path: Path):
    records: list[AgentEvent] = []
    for number in range(10_000):
        given = {"tool_name": f"tool {number}", "started": number * 3, "output": HOSTILE}
        records.append(AgentEvent("tool_exec", "writer", number * 3 + 2, f"t{number}", data=given))
    page = tmp_path / "trace.html"
    page.write_text(Trace(records).to_html(), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [str(chromium), *flags, "--virtual-time-budget=2000", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=90, check=True,
    )  # fmt: skip
    drawn = done.stdout.partition('<script type="application/json"')[0]
    assert ">10,001 spans<" in drawn
    rows = drawn.count('role="row"')
    assert 10 < rows < 200  # only what can be seen is in the document
    assert "<b>tool 0</b>" in drawn.replace(' class=""', "")
