"""Completion of arguments of MCP prompts and of values in addresses of resources."""

from collections.abc import Sequence

from outrider.project.mcp_completion import complete_argument, complete_resource
from outrider.tools.mcp.connection import McpPrompt, McpResource, PromptArgument, ValueQuery

PROMPT = McpPrompt(
    "docs", "explain", "", (PromptArgument("topic", "what to explain", required=True), PromptArgument("level"))
)


class KnownValues:
    """Answers like a server that completes arguments."""

    def __init__(self, **values: Sequence[str]) -> None:
        self.values = values
        self.queries: list[ValueQuery] = []

    async def __call__(self, query: ValueQuery) -> Sequence[str]:
        self.queries.append(query)
        return [value for value in self.values.get(query.argument, ()) if value.startswith(query.value)]


async def complete(rest: str, known: KnownValues) -> tuple[int, list[str]]:
    found = await complete_argument(PROMPT, rest, known)
    return found.start, [choice.text for choice in found.choices]


async def test_values_come_before_the_names_of_arguments():
    known = KnownValues(topic=["git", "go lang"], level=["high", "low"])
    assert await complete("", known) == (0, ["git", "'go lang'", "topic=", "level="])
    assert await complete("g", known) == (0, ["git", "'go lang'"])
    assert await complete("t", known) == (0, ["topic="])
    assert await complete("git ", known) == (4, ["high", "low", "level="])


async def test_a_named_argument_is_completed_with_the_others_as_context():
    known = KnownValues(topic=["git"], level=["high", "low"])
    assert await complete("level=low topic=", known) == (10, ["topic=git"])
    assert await complete("'go lang' level=h", known) == (10, ["level=high"])
    assert known.queries[-1] == ValueQuery("prompt", "explain", "level", "h", {"topic": "go lang"})
    assert await complete('topic="gi', known) == (0, ["topic=git"])


async def test_nothing_is_completed_after_the_last_argument():
    known = KnownValues(topic=["git"], level=["high"])
    assert await complete("git high mo", known) == (0, [])
    assert await complete("topic=git topic=", known) == (10, [])
    assert not any(query.argument == "" for query in known.queries)


async def test_values_that_cannot_be_typed_are_left_out_and_long_lists_are_cut():
    known = KnownValues(topic=["a\nb", "\x1b[31m", "", *(f"v{number}" for number in range(500))])
    _, choices = await complete("", known)
    assert choices[:2] == ["v0", "v1"]
    assert len(choices) == 102  # with the names


def template(uri: str) -> McpResource:
    return McpResource("docs", uri, "files", is_template=True)


async def test_each_place_of_an_address_is_completed():
    known = KnownValues(owner=["ada", "a/b"], name=["engine v1"], path=["src/a b"])
    repository = [template("repo://{owner}/{name}/files/{+path}"), template("other://{name}")]

    async def choices(uri: str) -> list[tuple[str, bool]]:
        return [(one.text, one.is_open) for one in await complete_resource("docs", uri, repository, known)]

    assert await choices("repo://a") == [("@docs:repo://ada/", True), ("@docs:repo://a%2Fb/", True)]
    assert await choices("repo://a%2Fb/") == [("@docs:repo://a%2Fb/engine%20v1/files/", True)]
    assert known.queries[-1].given == {"owner": "a/b"}
    assert await choices("repo://ada/x/files/s") == [("@docs:repo://ada/x/files/src/a%20b", False)]
    assert await choices("repo:/") == await choices("file://x") == []


async def test_templates_with_other_operators_are_not_completed():
    known = KnownValues(q=["x"])
    assert await complete_resource("docs", "find://", [template("find://{?q}"), template("plain://")], known) == []
