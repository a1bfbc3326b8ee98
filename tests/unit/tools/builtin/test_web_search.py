"""Search results of every service are read; what goes wrong is said to the model."""

import msgspec
import pytest

from outrider.errors import ToolFailure
from outrider.permissions import decide
from outrider.tools.builtin.web_search import SearchBackend, web_search_tool
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
