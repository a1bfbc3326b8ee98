"""Self-contained HTML pages: one frame, one policy, light and dark colours, and the map of a context."""

import base64
import hashlib
import re

import pytest

from outrider.evals.cases import EvalVariant
from outrider.evals.results import EvalRun, to_html
from outrider.models.context_ledger import SourceShare
from outrider.presentation.html_page import render_page
from outrider.presentation.share_page import render_share_page
from outrider.presentation.treemap import split_area, treemap_boxes, treemap_page
from outrider.sessions.records import SessionTranscript, StoredSession
from outrider.tracing.trace import EventLog, Trace

SHARES = [
    SourceShare("file", "<a>.py", 300, 75),
    SourceShare("system", "", 900, 225),
    SourceShare("file", "b.py", 0, 0),
]
HOSTILE = "<script>alert(1)</script>\u202e"
PAGES = {
    "frame": lambda: render_page(HOSTILE, "p { margin: 0 }", "<p>text {braces}</p>", script="let a = {};"),
    "share": lambda: render_share_page(SessionTranscript(StoredSession(id="s", title=HOSTILE), ())),
    "timeline": lambda: Trace(EventLog()).to_html(HOSTILE),
    "treemap": lambda: treemap_page(HOSTILE, SHARES),
    "evaluation": lambda: to_html(a_run()),
}


def a_run() -> EvalRun:
    return EvalRun(suite=HOSTILE, variants=(EvalVariant(agent="v"),), cases=("c",), attempts=())


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_and_loads_only_what_is_written_in_it(page: str):
    html = PAGES[page]()
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="(.*?)">', html)
    assert policy.startswith("default-src &#x27;none&#x27;;")
    assert "unsafe" not in policy
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        for text in re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL):
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"{directive} &#x27;sha256-{digest}&#x27;" in policy
    assert not re.search(r"<[a-z][^>]*\s(style|on\w+)=", html)
    assert "alert(1)</script>" not in html
    assert "\u202e" not in html


@pytest.mark.parametrize("page", PAGES)
def test_a_page_follows_the_colours_of_the_system(page: str):
    assert "prefers-color-scheme: dark" in PAGES[page]()


def test_the_area_of_a_box_is_its_share_and_the_largest_source_is_first():
    boxes = treemap_boxes(SHARES)
    assert [box.text for box in boxes] == ["system · 225 tokens", "file: <a>.py · 75 tokens", "file: b.py · 0 tokens"]
    assert [round(box.width * box.height) for box in boxes] == [7500, 2500, 0]
    assert boxes[1].hue == boxes[2].hue != boxes[0].hue


@pytest.mark.parametrize("sizes", [[], [0], [5], [0, 0], [1] * 7, [1000, 1, 1]])
def test_an_area_is_split_completely(sizes: list[int]):
    areas = split_area(sizes, (0.0, 0.0, 10.0, 6.0))
    assert len(areas) == len(sizes)
    if sum(sizes):
        assert sum(width * height for _, _, width, height in areas) == pytest.approx(60)
