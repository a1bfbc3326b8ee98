"""Results of every search service are decoded; the model is informed about errors."""

import msgspec
import pytest

from outrider.errors import ToolFailure
from outrider.permissions import decide
from outrider.tools.builtin.web import SearchBackend, web_search_tool
from tests.fixtures.http_server import Reply, serving

RESULTS = [{"title": "One", "url": "https://one.example/", "content": "the  first"}, {"url": 3}]
BRAVE = {"web": {"results": [{"title": "One", "url": "https://one.example/", "description": "the first"}]}}


@pytest.mark.parametrize(
    ("service", "body", "target"),
    [
        ("searxng", {"results": RESULTS}, "/search?q=a+b&format=json"),
        ("brave", BRAVE, "/res/v1/web/search?q=a+b&count=10"),
        ("tavily", {"results": RESULTS}, "/search"),
    ],
)
async def test_a_search_returns_titles_addresses_and_texts(service, body, target):
    async with serving(Reply([msgspec.json.encode(body)])) as server:
        tool = web_search_tool(SearchBackend(service=service, base_url=server.url, api_key="secret"))
        result = await tool.execute(query="a b")
        assert result.content == "One\nhttps://one.example/\nthe first"
        assert [origin.kind for origin in result.origins] == ["web"]
        assert server.requests[0].target == target
        sent = str(server.requests[0].headers) + server.requests[0].body.decode()
        assert ("secret" in sent) is (service != "searxng")


@pytest.mark.parametrize("reply", [Reply([b"<html>"]), Reply([b"no"], status=403)])
async def test_a_service_that_fails_is_named(reply):
    async with serving(reply) as server:
        tool = web_search_tool(SearchBackend(service="searxng", base_url=server.url))
        with pytest.raises(ToolFailure, match="searxng"):
            await tool.execute(query="a")


def test_a_search_needs_approval(tmp_path):
    tool = web_search_tool(SearchBackend(service="searxng", base_url="http://127.0.0.1:9"))
    assert decide(tool, {"query": "a"}, mode="agent", workspace=str(tmp_path)).effect == "ask"
    assert decide(tool, {"query": "a"}, mode="background", workspace=str(tmp_path)).effect == "deny"


HOSTILE = {
    "results": [
        {"url": "javascript:alert(1)", "title": "script"},
        {"url": "https://x.example/\u001b]0;t\u0007", "title": "escape"},
        {"url": f"https://long.example/{'u' * 5_000}", "title": "long"},
        {
            "url": "https://good.example/",
            "title": "\u001b[31m<b>R</b>ed &amp; \u202eblue",
            "content": "a\n<em>b</em>",
        },
        {"url": "https://types.example/", "title": {"a": 1}, "content": ["x"]},
        {"url": "https://title.example/", "title": "t" * 9_000, "content": "c" * 9_000},
    ]
}


async def test_texts_of_a_service_are_plain_lines_of_limited_length():
    async with serving(Reply([msgspec.json.encode(HOSTILE)])) as server:
        tool = web_search_tool(SearchBackend(service="searxng", base_url=server.url))
        good, types, long = (await tool.execute(query="a")).content.split("\n\n")
    assert good == "Red & \ufffdblue\nhttps://good.example/\na b"
    assert types == "https://types.example/\nhttps://types.example/"
    assert long == f"{'t' * 200}\nhttps://title.example/\n{'c' * 400}"


@pytest.mark.parametrize(
    ("body", "title"),
    [
        (
            b'{"results": [{"url": "https://a.example", "title": "\\ud83d half, \\ud83d\\ude00"}]}',
            "\ufffd half, \U0001f600",
        ),
        ('{"results": [{"url": "https://a.example", "title": "caf\xe9"}]}'.encode("latin-1"), "caf\ufffd"),
    ],
)
async def test_damaged_characters_do_not_hide_the_results(body, title):
    async with serving(Reply([body])) as server:
        tool = web_search_tool(SearchBackend(service="brave", base_url=server.url, api_key="k"))
        assert (await tool.execute(query="a")).content == f"{title}\nhttps://a.example"


@pytest.mark.parametrize(
    ("body", "problem"), [(b'{"results":' + b"[" * 50_000, "JSON"), (b" " * (2 * 1024 * 1024 + 1), "larger than")]
)
async def test_an_answer_that_cannot_be_read_is_a_failure_of_the_tool(body, problem):
    async with serving(Reply([body])) as server:
        tool = web_search_tool(SearchBackend(service="tavily", base_url=server.url, api_key="k"))
        with pytest.raises(ToolFailure, match=problem):
            await tool.execute(query="a")
