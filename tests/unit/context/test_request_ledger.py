"""Each cause of a cache miss is named."""

from typing import Any

import msgspec
import pytest

from outrider.context.request_ledger import RequestBody, common_prefix, explain_miss
from outrider.types.parts import CacheTokens, Tokens

SYSTEM = (
    "You are helpful.\n\n# Instructions from AGENTS.md\nUse tabs.\nRun the tests.\n\n"
    "# Instructions from docs/AGENTS.md\nWrite briefly.\n\nYou may write files."
)
TOOLS = ["read", "shell", "mcp__github__search"]
FULL = Tokens(100, cache=CacheTokens(read=5000))
UNREAD = Tokens(5100)


def tool(api: str, name: str, description: str = "does it") -> dict[str, Any]:
    if api == "anthropic":
        return {"name": name, "description": description, "input_schema": {"type": "object"}}
    if api == "chat":
        return {"type": "function", "function": {"name": name, "description": description}}
    return {"type": "function", "name": name, "description": description}


def head_of(api: str, system: str, tools: list[dict[str, Any]], **settings: Any) -> bytes:
    fields: dict[str, Any] = {"model": settings.pop("model", "m-1")}
    if api == "google":
        declared = [{key: value for key, value in one.items() if key != "type"} for one in tools]
        fields = {"systemInstruction": {"parts": [{"text": system}]}, "tools": [{"functionDeclarations": declared}]}
        return msgspec.json.encode(fields | settings | {"contents": []})[:-2]
    fields["tools"] = tools
    if api == "anthropic":
        return msgspec.json.encode(fields | {"system": [{"type": "text", "text": system}], **settings, "messages": []})[
            :-2
        ]
    if api == "responses":
        return msgspec.json.encode(fields | {"instructions": system, **settings, "input": []})[:-2]
    return msgspec.json.encode(fields | settings | {"messages": [{"role": "system", "content": system}]})[:-2]


def request(
    api: str = "anthropic",
    *,
    messages: str = '{"role":"user","content":"hello"}',
    tools: list[dict[str, Any]] | None = None,
    system: str = SYSTEM,
    at: int = 0,
    name: str = "vendor/m-1",
    rewrite: str = "",
    compaction: str = "",
    **settings: Any,
) -> RequestBody:
    head = head_of(api, system, [tool(api, one) for one in TOOLS] if tools is None else tools, **settings)
    comma = b"" if head.endswith(b"[") else b","
    return RequestBody(name, head + comma + messages.encode() + b"]}", len(head), at, rewrite, compaction)


LONGER = '{"role":"user","content":"hello"},{"role":"assistant","content":"yes"},{"role":"user","content":"go on"}'
APIS = ["anthropic", "chat", "responses", "google"]


@pytest.mark.parametrize("api", APIS)
def test_each_cause_is_named(api: str):
    tools = [tool(api, name) for name in TOOLS]
    more = [*tools, tool(api, "mcp__github__create")]
    changed = [*tools[:2], tool(api, "mcp__github__search", "another text")]
    edited = SYSTEM.replace("Run the tests.", "Run all tests.")
    dated = "Today is 2026-11-15.\n"
    causes = {
        "server adds a tool": (request(api), request(api, tools=more), "tools", "the MCP server github: added"),
        "server changes a tool": (
            request(api),
            request(api, tools=changed),
            "tools",
            "github: changed mcp__github__search",
        ),
        "program removes a tool": (request(api), request(api, tools=tools[1:]), "tools", "removed read"),
        "skills": (
            request(api, tools=[tool(api, "skill", "a")]),
            request(api, tools=[tool(api, "skill", "a, b")]),
            "skills",
            "",
        ),
        "date": (
            request(api, system=dated + SYSTEM),
            request(api, system=dated.replace("15", "16") + SYSTEM),
            "date",
            "2026-11-16",
        ),
        "AGENTS.md": (request(api), request(api, system=edited), "instructions file", "AGENTS.md, line 2"),
        "nested AGENTS.md": (
            request(api),
            request(api, system=SYSTEM.replace("briefly", "at length")),
            "instructions file",
            "docs/AGENTS.md, line 1",
        ),
        "instructions": (
            request(api),
            request(api, system=SYSTEM.replace("helpful", "rude")),
            "system prompt",
            "line 1",
        ),
        "model": (request(api), request(api, name="vendor/m-2", model="m-2"), "model", "vendor/m-1 → vendor/m-2"),
        "settings": (
            request(api, thinking={"type": "on"}),
            request(api, thinking={"type": "off"}),
            "settings",
            "thinking",
        ),
        "no cause": (request(api, max_tokens=5), request(api, max_tokens=6, messages=LONGER), "vendor", ""),
        "compaction": (
            request(api, messages=LONGER),
            request(api, messages='{"role":"user","content":"Summary"}', compaction="p1"),
            "compaction",
            "",
        ),
        "hook": (
            request(api, messages=LONGER),
            request(api, messages=LONGER.replace("yes", "no"), rewrite="before_request"),
            "hook",
            "",
        ),
        "undo": (request(api, messages=LONGER), request(api), "history", ""),
        "expiry": (request(api), request(api, messages=LONGER, at=7 * 60_000), "expired", "7 minutes"),
        "vendor": (request(api), request(api, messages=LONGER, at=9_000), "vendor", ""),
    }
    for name, (before, after, cause, detail) in causes.items():
        found = explain_miss(before, after, UNREAD)
        assert (name, found.cause) == (name, cause)
        assert detail in found.detail, name
        if name != "no cause":
            assert before.body[: found.offset] == after.body[: found.offset]
        if cause not in ("expired", "vendor"):
            assert cause in ("model", "history") or before.body[found.offset] != after.body[found.offset], name


def test_the_shares_say_what_was_and_what_could_be_cached():
    found = explain_miss(request(), request(messages=LONGER), FULL)
    assert found.cached == pytest.approx(5000 / 5100)
    assert found.achievable == pytest.approx((len(request().body) - 2) / len(request(messages=LONGER).body))


@pytest.mark.parametrize(
    ("one", "other"), [(b"", b""), (b"a", b"b"), (b"abc", b"abd"), (b"abc", b"abcd"), (b"ab", b"a")]
)
def test_the_common_prefix_is_the_longest(one: bytes, other: bytes):
    length = common_prefix(one, other)
    assert one[:length] == other[:length]
    assert one[length : length + 1] != other[length : length + 1] or length == min(len(one), len(other))
