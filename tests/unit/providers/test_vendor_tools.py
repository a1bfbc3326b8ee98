"""Tools that the vendor runs: requested by name, left out where a model has none, stored and shown."""

import json
from typing import Any

import pytest

from outrider.errors import InvalidRequestError
from outrider.permissions.information_flow import DEFAULT_LABELS, ContextOrigins
from outrider.presentation.items import NoticeItem, part_item
from outrider.providers.anthropic.client import AnthropicWire
from outrider.providers.google.client import GoogleWire
from outrider.providers.google.decode import GeminiDecoder
from outrider.providers.openai.chat_client import ChatWire
from outrider.providers.openai.responses_client import ResponsesWire
from outrider.providers.provider import assemble_answer
from outrider.types.agents import Provider
from outrider.types.parts import ReasoningPart, TextPart
from outrider.types.request import ModelMessage, ModelSettings, Prompt, Request, ToolSpec

SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}}
OWN = (ToolSpec("read", "Read a file.", SCHEMA), ToolSpec("web_search", "Search with a service.", SCHEMA))
BOTH = ModelSettings(vendor_tools=("web_search", "code_execution"))
WIRES = {
    "anthropic": (AnthropicWire, "claude-sonnet-4-6"),
    "openai-responses": (ResponsesWire, "gpt-5.4"),
    "google": (GoogleWire, "gemini-3.1-pro"),
    "openai": (ChatWire, "gpt-5.4"),
}


def build(
    kind: Any, model: str = "", tools: tuple[ToolSpec, ...] = OWN, settings: ModelSettings = BOTH, wire: Any = None
):
    made, default = WIRES[kind]
    request = Request(
        model or default, Prompt([ModelMessage("user", (TextPart("Hi"),))]), tools=tools, settings=settings
    )
    wire = wire or made(Provider("vendor", kind, "key"))
    return wire, request, wire.build_request(request)


def tool_names(body: bytes) -> list[str]:
    names: list[str] = []
    for tool in json.loads(body).get("tools", []):
        declared = tool.get("functionDeclarations", [])
        names += [one["name"] for one in declared] or [
            tool.get("type") if tool.get("type") not in (None, "function") else ""
        ]
        if not names[-1]:
            names[-1] = tool.get("name") or tool.get("function", {}).get("name") or next(iter(tool))
    return names


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("anthropic", ["web_search_20250305", "code_execution_20250825", "read"]),
        ("openai-responses", ["web_search", "code_interpreter", "read"]),
        ("google", ["googleSearch", "codeExecution", "read"]),
        ("openai", ["read", "web_search"]),
    ],
)
def test_tools_of_the_vendor_come_first_and_replace_our_search(kind, expected):
    _, _, sent = build(kind)
    assert tool_names(sent.body) == expected


def test_anthropic_needs_a_beta_header_for_code_and_the_cache_mark_stays_on_the_last_tool():
    _, _, sent = build("anthropic")
    assert "code-execution-2025-08-25" in sent.headers["anthropic-beta"]
    assert ["cache_control" in tool for tool in json.loads(sent.body)["tools"]] == [False, False, True]
    assert "anthropic-beta" not in build("anthropic", settings=ModelSettings(vendor_tools=("web_search",)))[2].headers


def test_outputs_of_code_are_requested_from_openai():
    sent = json.loads(build("openai-responses")[2].body)
    assert sent["include"] == ["reasoning.encrypted_content", "code_interpreter_call.outputs"]
    assert sent["tools"][1]["container"] == {"type": "auto"}


@pytest.mark.parametrize(
    ("model", "tools", "expected"),
    [
        ("gemini-2.5-pro", OWN, ["read", "web_search"]),
        ("gemini-2.5-pro", (), ["googleSearch", "codeExecution"]),
        ("gemini-3.1-pro", (), ["googleSearch", "codeExecution"]),
    ],
)
def test_gemini_before_3_gets_functions_or_tools_of_the_vendor(model, tools, expected):
    assert tool_names(build("google", model, tools)[2].body) == expected


def test_gemini_3_is_asked_to_report_its_own_calls_next_to_functions():
    assert json.loads(build("google")[2].body)["toolConfig"] == {"includeServerSideToolInvocations": True}
    assert "toolConfig" not in json.loads(build("google", tools=())[2].body)


@pytest.mark.parametrize(
    ("kind", "message", "left"),
    [
        ("anthropic", "'claude-x' does not support tool types: web_search_20250305.", ["code_execution_20250825"]),
        ("openai-responses", "Tool 'web_search' is not supported with gpt-5.4.", ["code_interpreter"]),
        ("openai-responses", "Hosted tools are not supported with this model.", []),
        ("google", "Built-in tools and Function Calling cannot be combined in the same request.", []),
        ("google", "Code execution is not enabled for models/gemini-3.1-pro", ["googleSearch"]),
    ],
)
def test_a_refused_tool_is_left_out_of_the_next_request_and_ours_is_back(kind, message, left):
    wire, request, _ = build(kind)
    assert wire.adapt_to_error(request, InvalidRequestError(message, status=400))
    rest = ["read"] if "googleSearch" in left else ["read", "web_search"]
    assert tool_names(build(kind, wire=wire)[2].body) == [*left, *rest]
    assert not wire.adapt_to_error(request, InvalidRequestError(message, status=400))


SOURCE = {"type": "web_search_result", "title": "Cats", "url": "https://cats.example/purr", "encrypted_content": "x"}
USES = [
    (
        {"block": {"type": "server_tool_use", "name": "web_search", "input": {"query": "why cats purr"}}},
        "web_search: why cats purr",
        "",
    ),
    (
        {"block": {"type": "web_search_tool_result", "content": [SOURCE, SOURCE]}},
        "web_search: 1 sources",
        "- Cats https://cats.example/purr",
    ),
    (
        {
            "block": {
                "type": "web_search_tool_result",
                "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
            }
        },
        "web_search failed: max_uses_exceeded",
        "",
    ),
    (
        {
            "block": {
                "type": "server_tool_use",
                "name": "bash_code_execution",
                "input": {"command": "cat <<E\nx\x1b[2J\nE"},
            }
        },
        "bash_code_execution: cat <<E",
        "```\ncat <<E\nx\x1b[2J\nE\n```",
    ),
    (
        {
            "block": {
                "type": "bash_code_execution_tool_result",
                "content": {"stdout": "5.5\n", "stderr": "", "return_code": 0},
            }
        },
        "bash_code_execution: done",
        "```\n5.5\n```",
    ),
    (
        {"item": {"type": "web_search_call", "action": {"type": "search", "queries": ["a", "b"]}}},
        "web_search: a, b",
        "",
    ),
    (
        {"item": {"type": "web_search_call", "action": {"type": "open_page", "url": "https://a.example"}}},
        "web_search: https://a.example",
        "",
    ),
    (
        {"item": {"type": "code_interpreter_call", "code": "print(1)", "outputs": [{"type": "logs", "logs": "1\n"}]}},
        "code_interpreter: print(1)",
        "```\nprint(1)\n```\n\n```\n1\n```",
    ),
    ({"part": {"executableCode": {"code": "print(2)", "language": "PYTHON"}}}, "code_execution: print(2)", ""),
    (
        {"part": {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2\n"}}},
        "code_execution: done",
        "```\n2\n```",
    ),
    (
        {
            "grounding": {
                "webSearchQueries": ["ruby"],
                "groundingChunks": [{"web": {"uri": "https://r.example", "title": "r"}}],
            }
        },
        "web_search: ruby: 1 sources",
        "- r https://r.example",
    ),
]


@pytest.mark.parametrize(("state", "title", "body"), USES)
def test_calls_and_results_of_the_vendor_are_shown(state, title, body):
    item = part_item(ReasoningPart("", provider_state={"family": "f", **state}))
    assert isinstance(item, NoticeItem)
    assert (item.notice.topic, item.text, item.body) == ("tool", title, body)


@pytest.mark.parametrize(
    "state",
    [{}, {"signature": "s"}, {"block": {"type": "redacted_thinking", "data": "x"}}, {"block": None},
     {"item": {"type": "reasoning"}}, {"item": {"type": 3}}, {"part": []},
     {"block": {"type": "compaction", "content": "so far"}}],
)  # fmt: skip
def test_other_blocks_of_the_vendor_are_not_shown(state):
    assert part_item(ReasoningPart("", provider_state={"family": "f", **state})) is None


@pytest.mark.parametrize(
    "content", [None, "text", 3, [[[[[[[[{"url": "https://deep.example"}]]]]]]]], {"url": 3, "stdout": []}]
)
def test_a_result_of_any_shape_is_shown(content):
    state = {"family": "f", "block": {"type": "web_search_tool_result", "content": content}}
    assert isinstance(part_item(ReasoningPart("", provider_state=state)), NoticeItem)


def test_the_sources_of_geminis_search_are_stored_once_and_not_sent_back():
    chunk = {"content": {"parts": [{"text": "It is 4."}]}, "groundingMetadata": {}}
    metadata = {
        "webSearchQueries": ["ruby"],
        "groundingChunks": [{"web": {"uri": "https://r.example"}}],
        "searchEntryPoint": {"x": "y"},
    }
    end = {"content": {"parts": [{"text": "0"}]}, "finishReason": "STOP", "groundingMetadata": metadata}
    decoder = GeminiDecoder()
    deltas = [delta for one in (chunk, end) for delta in decoder.feed("", json.dumps({"candidates": [one]}).encode())]
    answer = assemble_answer([*deltas, *decoder.close()], "google")
    text, sources = answer.message.parts
    assert isinstance(text, TextPart)
    assert isinstance(sources, ReasoningPart)
    assert sources.provider_state == {
        "family": "google",
        "grounding": {key: metadata[key] for key in ("webSearchQueries", "groundingChunks")},
    }
    history = Prompt(
        [
            ModelMessage("user", (TextPart("Hi"),)),
            ModelMessage("assistant", (text, sources)),
            ModelMessage("user", (TextPart("x"),)),
        ]
    )
    sent = json.loads(GoogleWire(Provider("g", "google", "key")).build_request(Request("gemini-3-pro", history)).body)
    assert sent["contents"][1]["parts"] == [{"text": "It is 4.0"}]
    found = ContextOrigins().update([answer.message], DEFAULT_LABELS, "/w")
    assert [origin.kind for origin in found] == ["web"]
