"""Text of models and tools on a page: Markdown is rendered, and HTML in it is escaped."""

from html.parser import HTMLParser

import pytest

from outrider.presentation.diffs import parse_unified_diff, replacement_diff
from outrider.presentation.share_page import (
    SHOWN_CHARACTERS,
    escape_invisible,
    render_code,
    render_diffs,
    render_markdown,
)
from tests.fixtures.cases import for_each

ALLOWED_TAGS = frozenset(
    (
        *("a", "blockquote", "br", "code", "em", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s", "span", "strong"),
        *("table", "tbody", "td", "th", "thead", "tr", "ul"),
    )
)


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a\nb\n\nc", "<p>a<br>\nb</p>\n<p>c</p>\n"),
        ("# T\n## U\n#### V", "<h4>T</h4>\n<h5>U</h5>\n<h6>V</h6>\n"),
        ("1. x\n2. y", "<ol>\n<li>x</li>\n<li>y</li>\n</ol>\n"),
        ("~~~\n<x>\n", "<pre>&lt;x&gt;\n</pre>"),
        ("`<a>` **b** ~~c~~", "<p><code>&lt;a&gt;</code> <strong>b</strong> <s>c</s></p>\n"),
        ("```diff\n-a\n```", '<pre class="diff"><span class="removed">-a</span>\n</pre>'),
        (
            "See https://a.example/b?c=1.",
            '<p>See <a href="https://a.example/b?c=1" rel="noreferrer noopener">https://a.example/b?c=1</a>.</p>\n',
        ),
        (
            "[x](mailto:a@b.example)",
            '<p><a href="mailto:a@b.example" rel="noreferrer noopener">x</a></p>\n',
        ),
    ],
)
def test_markdown_becomes_html(text: str, html: str):
    assert render_markdown(text) == html


def test_a_table_is_aligned_by_classes():
    html = render_markdown("| a | b |\n|---|--:|\n| 1 | 2 |")
    assert '<th class="right">b</th>' in html
    assert "style" not in html


@for_each(
    "hostile",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "a\n\n<div onclick='x'>\n\nb",
        "[x](javascript:alert(1))",
        "[x](JaVaScRiPt&colon;alert(1))",
        "[x](data:text/html;base64,PHNjcmlwdD4=)",
        "[x](vbscript:x)",
        "[x](//evil.example/y)",
        "[x]( javascript:alert(1) 'title')",
        "[x][y]\n\n[y]: javascript:alert(1)",
        "<javascript:alert(1)>",
        "![x](https://evil.example/pixel.png)",
        '[x](https://a.example ""onmouseover=alert(1) x="")',
        'https://a.example/"onmouseover=alert(1)',
        '```"><script>\nx\n```',
        "| <b> | `</td><script>` |\n|---|---|\n| </table> | &lt;script&gt; |",
        "&lt;script&gt;alert(1)&lt;/script&gt; &#60;script&#62;",
    ],
)
def test_nothing_in_a_text_is_obeyed(hostile: str):
    page = Tags(render_markdown(hostile))
    assert set(page.tags) <= ALLOWED_TAGS
    for name, value in page.attributes:
        assert name in {"class", "href", "rel", "title", "start"}
        assert name != "href" or (value or "").startswith(("http://", "https://", "mailto:"))


def test_invisible_characters_are_shown_as_escapes():
    assert escape_invisible("a\u202eb\tc\n") == "a\\u202eb\tc\n"
    html = render_markdown("a\u202eb &#x202e; [x](https://a.example/\u202e '\u2066') `\x1b`\n\n    \u200b")
    for character in "\u202e\u2066\x1b\u200b":
        assert character not in html


def test_code_and_changes_have_a_class_for_each_kind_of_line():
    assert render_code("plain <b>") == "<pre>plain &lt;b&gt;</pre>"
    files = parse_unified_diff("--- a/x.py\n+++ b/x.py\n@@ -1,2 +1,2 @@ def f\n-old <b>\n+new\n same\n")
    assert render_diffs(files) == (
        '<pre class="diff"><span class="file">x.py</span>\n<span class="place">@@ -1 +1 @@ def f</span>\n'
        '<span class="removed">-old &lt;b&gt;</span>\n<span class="added">+new</span>\n'
        '<span class="context"> same</span>\n</pre>'
    )
    assert "y.py (new file)" in render_diffs([replacement_diff("y.py", "", "one", creates=True)])


def test_very_long_texts_are_cut():
    long = "x" * (SHOWN_CHARACTERS + 1000)
    assert "1,000 characters are left out" in render_markdown(long)
    assert "1,000 characters are left out" in render_code(long)
    assert "left out" in render_diffs([replacement_diff("y", "", "line\n" * SHOWN_CHARACTERS)])
    assert len(render_markdown("[" * 50_000)) < 200_000


def test_a_removed_comment_of_a_diff_is_no_header_and_a_list_no_change():
    shown = render_code("--- a.sql\n+++ a.sql\n@@ -1,2 +1 @@\n--- a comment\n one\n- a list\n")
    assert '<span class="removed">--- a comment</span>' in shown
    assert '<span class="context">- a list</span>' in shown
