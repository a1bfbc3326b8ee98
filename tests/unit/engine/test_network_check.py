"""What `outrider doctor --network` reports about the address and key of a provider."""

import pytest

from outrider.engine.diagnostics import check_network
from outrider.types.agents import Provider
from tests.fixtures.http_server import Reply, serving


@pytest.mark.parametrize(
    ("status", "finding", "text"),
    [(200, "ok", "takes the key"), (401, "problem", "refuses the key"), (404, "note", "lists no models"),
     (302, "problem", "redirects"), (500, "problem", "answers 500")],
)  # fmt: skip
async def test_the_status_decides_and_the_key_stays_at_its_address(status: int, finding: str, text: str):
    async with serving(Reply([b"{}"])) as other:
        async with serving(Reply([b"{}"], status, {"location": other.url})) as server:
            found = await check_network(Provider("mine", "openai", "key", f"{server.url}/v1/"))
        assert (found.status, text in found.says) == (finding, True)
        assert [(seen.target, seen.headers["authorization"]) for seen in server.requests] == [
            ("/v1/models", "Bearer key")
        ]
        assert other.requests == []


async def test_an_address_that_cannot_be_reached_is_a_problem():
    for address in ("http://127.0.0.1:1", "http://nowhere.invalid/v1", "ftp://nothing"):
        found = await check_network(Provider("mine", "openai", "key", address))
        assert (found.status, found.says.startswith(address)) == ("problem", True)
        assert found.remedy
