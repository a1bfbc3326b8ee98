"""web_fetch: text of pages within limits, and never from an address that is not public."""

import asyncio
import socket
import time
import zlib
from ipaddress import ip_address

import pytest

from outrider import ToolCompleted
from outrider.http.client import is_public
from outrider.tools.builtin.web import web_fetch_tool
from outrider.tools.html_to_markdown import html_to_text
from outrider.tools.web_client import FetchLimits
from tests.fixtures.cases import for_each
from tests.fixtures.http_server import Reply, serving
from tests.unit.tools.builtin.tool_workspace import ToolWorkspace


@pytest.fixture
def web(workspace: ToolWorkspace) -> ToolWorkspace:
    """Loopback is allowed, as nothing else can be served from in a test."""
    return with_web(workspace, seconds=60)


def with_web(workspace: ToolWorkspace, seconds: float) -> ToolWorkspace:
    limits = FetchLimits(seconds=seconds, bytes=10_000, redirects=3)
    workspace.tools.append(web_fetch_tool(lambda address: address.is_loopback, limits))
    return workspace


def page(body: bytes, kind: str = "text/html", status: int = 200, **headers: str) -> Reply:
    return Reply([body], status, {"content-type": kind, **headers})


async def test_html_comes_as_markdown_text_or_as_it_is(web: ToolWorkspace):
    html = b"<title>T</title><h1>Hi</h1><p>A <a href='/x'>link</a><script>bad()</script>"
    async with serving(page(html)) as server:
        assert await web.output_of("web_fetch", url=server.url) == f"# Hi\n\nA [link]({server.url}/x)"
        assert await web.output_of("web_fetch", url=server.url, format="text") == "Hi\n\nA link"
        assert await web.output_of("web_fetch", url=server.url, format="html", prompt="sum it up") == html.decode()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("ä€".encode(), "text/plain; charset=utf-8"),
        ("ä€".encode("cp1252"), "text/html; charset=windows-1252"),
        ("<meta charset='utf-8'>ä€".encode(), "text/html"),
        ("ä€".encode(), "text/plain; charset=no-such"),
        ("\ufeffä€".encode("utf-16-le"), "text/plain"),
        ("ä€".encode(), "text/plain; charset=zlib"),
    ],
)
async def test_the_encoding_is_what_server_page_or_bytes_say(web: ToolWorkspace, body: bytes, kind: str):
    async with serving(page(body, kind)) as server:
        assert await web.output_of("web_fetch", url=server.url) == "ä€"


async def test_images_are_attached_and_other_binaries_refused(web: ToolWorkspace):
    async with serving(page(b"\x89PNG", "image/png")) as server:
        part = await web.call("web_fetch", url=f"{server.url}/a.png?x=1")
        assert isinstance(part.state, ToolCompleted)
        assert [(one.mime_type, one.name) for one in part.state.attachments] == [("image/png", "a.png")]
    async with serving(page(b"\0\1", "application/zip")) as server:
        assert "application/zip, which cannot be shown" in await web.error_of("web_fetch", url=server.url)
    async with serving(page(b"\0\1\2\3", "application/octet-stream")) as server:
        assert "is binary" in await web.error_of("web_fetch", url=server.url)


async def test_a_long_page_is_cut_and_a_bomb_stays_small(web: ToolWorkspace):
    async with serving(page(b"x" * 50_000, "text/plain")) as server:
        output = await web.output_of("web_fetch", url=server.url)
        assert "(cut here: the page is longer than 10,000 bytes)" in output
    bomb = zlib.compress(b"x" * 50_000_000)
    async with serving(page(bomb, "text/plain", **{"content-encoding": "deflate"})) as server:
        assert len(await web.output_of("web_fetch", url=server.url)) < 11_000


async def test_redirects_on_one_host_are_followed_so_many_times(web: ToolWorkspace):
    to = Reply([], 302, {"location": "/next"})
    async with serving(to, to, page(b"here", "text/plain")) as server:
        assert await web.output_of("web_fetch", url=server.url) == "here"
    async with serving(to) as server:
        assert "more than 3 redirects" in await web.error_of("web_fetch", url=server.url)


async def test_a_redirect_to_another_host_is_reported_not_followed(web: ToolWorkspace):
    async with serving(Reply([], 301, {"location": "http://localhost:1/x"})) as server:
        assert "redirects to http://localhost:1/x; fetch that" in await web.output_of("web_fetch", url=server.url)
        assert len(server.requests) == 1
    async with serving(Reply([], 301, {"location": "file:///etc/passwd"})) as server:
        assert "only http:// and https://" in await web.error_of("web_fetch", url=server.url)


async def test_what_goes_wrong_is_reported(web: ToolWorkspace):
    async with serving(page(b"<h1>Gone</h1>", status=404)) as server:
        assert "answered with status 404:\n# Gone" in await web.error_of("web_fetch", url=server.url)
    async with serving(Reply([b"half"], 200, {"content-type": "text/plain"}, after="drop")) as server:
        assert "could not be fetched" in await web.error_of("web_fetch", url=server.url)
    async with serving(Reply(raw=b"nonsense\r\n\r\n")) as server:
        assert "could not be fetched" in await web.error_of("web_fetch", url=server.url)


async def test_a_server_that_never_answers_is_waited_for_no_longer_than_the_limit(workspace: ToolWorkspace):
    async with serving(Reply([100.0], after="stall")) as server, asyncio.timeout(30):
        assert "did not answer within 1 s" in await with_web(workspace, 1).error_of("web_fetch", url=server.url)


@pytest.mark.parametrize(
    "url",
    ["", "x", "file:///etc/passwd", "ftp://h/x", "http://", "http://u:p@127.0.0.1/", "http://[::1", "http://127.0.0.1:0/",
     "http://127.0.0.1:99999/", "gopher://x", "javascript:alert(1)", "http://\0/", "http://h\r\nx: y/",
     "http://" + "h" * 5_000],
)  # fmt: skip
async def test_what_is_no_address_is_refused(web: ToolWorkspace, url: str):
    assert await web.error_of("web_fetch", url=url)


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "0", "[::1]", "[::]",
     "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"],
)  # fmt: skip
async def test_nothing_on_this_machine_is_reached(workspace: ToolWorkspace, host: str):
    """However it is spelled; the server must never see a request."""
    workspace.tools.append(web_fetch_tool(limits=FetchLimits(seconds=60)))
    async with serving(page(b"secret", "text/plain")) as server:
        error = await workspace.error_of("web_fetch", url=f"http://{host}:{server.port}/")
        assert "secret" not in error
        assert server.requests == []


async def test_a_name_that_changes_its_address_is_caught_when_the_connection_opens(
    workspace: ToolWorkspace, monkeypatch: pytest.MonkeyPatch
):
    """DNS rebinding: the address of the connection is checked, not an address that was resolved before."""
    answers = iter(["93.184.216.34", "127.0.0.1"])

    async with serving(page(b"secret", "text/plain")) as server:
        real = socket.getaddrinfo

        def rebinding(host: object, port: object, *rest: object, **more: object):
            if host == "rebind.example":
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers, "127.0.0.1"), server.port))]
            return real(host, port, *rest, **more)  # pyright: ignore

        monkeypatch.setattr(socket, "getaddrinfo", rebinding)
        assert next(answers) == "93.184.216.34"  # the lookup of a check before the request
        workspace.tools.append(web_fetch_tool(limits=FetchLimits(seconds=60)))
        error = await workspace.error_of("web_fetch", url=f"http://rebind.example:{server.port}/")
        assert "resolves to 127.0.0.1, which is not a public address" in error
        assert server.requests == []


@for_each(
    "address",
    ["10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1", "239.1.1.1",
     "240.0.0.1", "255.255.255.255", "192.0.0.1", "192.0.2.1", "198.18.0.1", "::", "::1", "fe80::1", "fc00::1",
     "fd00::1",
     "ff02::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "2001:db8::1"],
)  # fmt: skip
def test_addresses_that_are_not_public(address: str):
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_addresses_that_are_public(address: str):
    assert is_public(ip_address(address))


@for_each(
    ("html", "text"),
    [
        ("<ul><li>a<li>b<ol><li>c</ol></ul>", "- a\n- b\n  1. c"),
        ("<pre>  a\n b</pre>", "```\n  a\n b\n```"),
        ("<p>a\n  b<br>c", "a b\nc"),
        ("<table><tr><th>A<th>B</tr><tr><td>1<td>2</tr></table>", "| A | B |\n| --- | --- |\n| 1 | 2 |"),
        ("<table><thead><tr><td>h</thead><tr><td>1</table>", "| h |\n| --- |\n| 1 |"),
        ("<blockquote><p>a<p>b<ul><li>c</ul></blockquote>d", "> a\n>\n> b\n>\n> - c\n\nd"),
        ("<ol><li>x<ul><li>y<li>z</ul><li>w</ol>", "1. x\n   - y\n   - z\n2. w"),
        ("<h2>A <code>b_c*</code></h2>x_y*", "## A `b_c*`\n\nx_y*"),
        ("a<!-- no --> b<svg><path>x</svg> <b>c</b>", "a b **c**"),
        ("1 < 2 &amp;&amp; 3 > 2", "1 < 2 && 3 > 2"),
        ("<a href='#top'>up</a> <a>x</a> <a href=y>z", "up x [z](https://h.example/d/y)"),
        ("<script>if (a < b) { '</div>' }</script>ok", "ok"),
        ('<a title=">" href="t">x</a>', "[x](https://h.example/d/t)"),
        ("<title>never ends", ""),
        ("text <", "text <"),
        ("</p></ul></a></pre>x", "x"),
    ],
)
def test_invalid_html_becomes_text(html: str, text: str):
    assert html_to_text(html, "https://h.example/d/")[0] == text


@for_each(
    "piece", ["<a ", "<!--", "<", "</", "<a b='", '<a ">', "<div>", "<a href=x>", "<svg>", "<ul><li>", "&#",
              "<ol><li>x", "<li>x", "<table><tr><td>x", "<blockquote>x<br>", "<p>x", "<b>", "<dd>x", "<pre>\n"]
)  # fmt: skip
def test_a_hostile_page_takes_time_that_grows_with_its_length_only(piece: str):
    started = time.process_time()
    html_to_text(piece * (25_000 // len(piece)))
    assert time.process_time() - started < 3  # a tenth of a second; the standard parser needs six for "<a "


@pytest.mark.parametrize("tag", ["div", "blockquote", "ul", "li", "table", "b", "dd"])
def test_text_after_an_element_that_is_nested_too_deeply_is_outside_of_it(tag: str):
    text, _ = html_to_text(f"{f'<{tag}>' * 500}inner{f'</{tag}>' * 500}<p>after")
    assert "inner" in text
    assert text.endswith("\n\nafter")
    assert len(text) < 2_000


@pytest.mark.slow
def test_the_text_of_a_page_with_too_many_elements_is_complete():
    text, _ = html_to_text("<p>x" * 60_000)
    assert text.count("x") == 60_000
