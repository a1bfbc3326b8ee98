"""The four APIs of recorded conversations: how requests are converted, and which of their fields must be equal."""

import json
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from outrider.providers.anthropic.client import AnthropicWire
from outrider.providers.google.client import FAMILY as GOOGLE
from outrider.providers.openai.chat_encode import DIALECTS
from outrider.providers.openai.responses_client import FAMILY as RESPONSES
from outrider.sessions.session import Session
from outrider.types.agents import Provider, ProviderKind
from outrider.types.parts import ToolResultPart
from outrider.types.request import ModelMessage, ModelSettings, Prompt, Request, ToolSpec
from tests.recorded import (
    anthropic_requests,
    chat_requests,
    google_requests,
    responses_requests,
    test_anthropic_requests,
    test_google,
    test_openai_chat,
    test_openai_responses,
)
from tests.recorded.exchanges import Exchange

Fields = dict[str, Any]

_IN_RESULTS = ("text", "image", "document")
_RUN_BY_CLIENTS = ("tool_search_call", "tool_search_output", "additional_tools", "mcp_approval_response")


class Spoken(Protocol):
    """One API. `request` is the recorded request in our types; fields without an equivalent are in `extra`."""

    kind: ProviderKind
    suffix: str

    def options(self, exchange: Exchange) -> Fields: ...
    def request(self, exchange: Exchange) -> Request: ...
    def beyond_us(self, exchange: Exchange) -> str | None: ...
    def rewritten(self, before: Exchange, after: Exchange) -> str | None: ...
    def problems(self, ours: Fields, exchange: Exchange, earlier: list[Exchange]) -> list[str]: ...
    def settings(self, body: Fields) -> Fields: ...


class Anthropic:
    kind: ProviderKind = "anthropic"
    suffix = ""
    _wire = AnthropicWire(Provider("anthropic", "anthropic", api_key="k"))

    def options(self, exchange: Exchange) -> Fields:
        return {}

    def request(self, exchange: Exchange) -> Request:
        body, session = exchange["request"]["body"], Session()
        session.set_messages(body["messages"])
        request = anthropic_requests.request_from(body, session, self._wire, test_anthropic_requests.model_of(body))
        moved = {name: body[name] for name in ("top_p", "stop_sequences", "tool_choice") if name in body}
        if anthropic_requests.output_config(body).get("format"):
            moved["output_config"] = anthropic_requests.output_config(body)
        return _with_extra(request, moved)

    def beyond_us(self, exchange: Exchange) -> str | None:
        body = exchange["request"]["body"]
        if any(block["type"] not in _IN_RESULTS for block in _inside_results(body)):
            return "a result holds blocks that only this API knows: results here are text and files"
        return test_anthropic_requests.beyond_us(body)

    def rewritten(self, before: Exchange, after: Exchange) -> str | None:
        came = test_anthropic_requests.as_it_came(before, after)
        return None if came is None else "the client sent back another conversation than it had received"

    def problems(self, ours: Fields, exchange: Exchange, earlier: list[Exchange]) -> list[str]:
        found, wanted = (
            [_with_plain_results(message) for message in anthropic_requests.messages_meaning(body["messages"])]
            for body in (ours, exchange["request"]["body"])
        )
        return _first_difference(found, wanted)

    def settings(self, body: Fields) -> Fields:
        fields = anthropic_requests.meaning(body, like={})
        fields["system"] = fields.get("system", "").strip()
        return {name: value for name, value in fields.items() if name != "messages" and value}


class Chat:
    kind: ProviderKind = "openai"
    suffix = "/v1"
    _own = ("model", "messages", "stream", "stream_options", "temperature", "tools", "functions")
    _limits = ("max_completion_tokens", "max_tokens")

    def options(self, exchange: Exchange) -> Fields:
        vendor = test_openai_chat.ROWS.get(exchange["vendor"], exchange["vendor"])
        return {"dialect": vendor if vendor in {row.name for row in DIALECTS} else "compatible"}

    def request(self, exchange: Exchange) -> Request:
        body = exchange["request"]["body"]
        family = test_openai_chat.wire_for(exchange).model_family(body.get("model") or "m")
        limit = next((body[name] for name in self._limits if body.get(name)), None)
        extra = {name: value for name, value in body.items() if name not in (*self._own, *self._limits)}
        if others := [tool for tool in body.get("tools") or [] if "function" not in tool]:
            extra["tools"] = others
        return Request(
            body.get("model") or "m",
            Prompt(chat_requests.model_messages(body["messages"], family)),
            chat_requests.system_of(body["messages"]),
            tuple(_function(function) for function in self._functions(body)),
            ModelSettings(max_output_tokens=limit, temperature=body.get("temperature"), extra=extra),
            stream=exchange["streaming"],
        )

    def beyond_us(self, exchange: Exchange) -> str | None:
        roles = [m["role"] for m in exchange["request"]["body"]["messages"] if m["role"] not in ("system", "developer")]
        return "begins with the assistant" if roles[:1] == ["assistant"] else None

    def rewritten(self, before: Exchange, after: Exchange) -> str | None:
        return test_openai_chat.rewritten(before, after)

    def problems(self, ours: Fields, exchange: Exchange, earlier: list[Exchange]) -> list[str]:
        found, wanted = (
            [_without_blank_text(message) for message in chat_requests.meaning(body["messages"])]
            for body in (ours, exchange["request"]["body"])
        )
        return _first_difference(*([m for m in one if m["role"] != "system"] for one in (found, wanted)))

    def settings(self, body: Fields) -> Fields:
        fields = {name: value for name, value in body.items() if name not in (*self._own, *self._limits)}
        fields.pop("prompt_cache_key", None)
        if fields.get("tool_choice") == "auto":
            del fields["tool_choice"]
        fields["limit"] = next((body[name] for name in self._limits if body.get(name)), None)
        fields["temperature"] = body.get("temperature")
        fields["system"] = (chat_requests.system_of(body["messages"]) or "").split()
        fields["tools"] = [
            (tool["name"], tool.get("description") or "", tool.get("parameters") or {})
            for tool in self._functions(body)
        ]
        return {name: value for name, value in fields.items() if value not in (None, [], {})}

    def _functions(self, body: Fields) -> list[Fields]:
        tools = [tool["function"] for tool in body.get("tools") or [] if "function" in tool]
        return tools + (body.get("functions") or [])


class Responses:
    kind: ProviderKind = "openai-responses"
    suffix = "/v1"

    def options(self, exchange: Exchange) -> Fields:
        return {}

    def request(self, exchange: Exchange) -> Request:
        body = exchange["request"]["body"]
        messages = responses_requests.messages_of(responses_requests.items_of(body), RESPONSES)
        names = ("top_p", "tool_choice", "parallel_tool_calls", "text", "include")
        request = responses_requests.request_of(body, messages)
        return _with_extra(request, {name: body[name] for name in names if body.get(name) is not None})

    def beyond_us(self, exchange: Exchange) -> str | None:
        body = exchange["request"]["body"]
        if body.get("conversation"):
            return "the conversation is kept by the server"
        if any(item.get("type") in _RUN_BY_CLIENTS for item in responses_requests.items_of(body)):
            return "the client runs a tool of this API's own, with items of its own"
        return None

    def rewritten(self, before: Exchange, after: Exchange) -> str | None:
        if test_openai_responses.changed_by_client(before, after):
            return "the client sent back another call than it had received"
        if "previous_response_id" in after["request"]["body"]:
            return None
        asked, again = (_numbered(list(_recorded_atoms(exchange, []))) for exchange in (before, after))
        return None if _starts_with(again, asked) else "the earlier messages are others"

    def problems(self, ours: Fields, exchange: Exchange, earlier: list[Exchange]) -> list[str]:
        found, wanted = responses_requests.atoms(ours["input"]), list(_recorded_atoms(exchange, earlier))
        found, wanted = _numbered(found), _numbered(wanted)
        # A client may have left out reasoning or text next to the calls; we never do.
        found = [atom for atom in found if atom in wanted or atom[0] not in ("reasoning", "assistant", "own item")]
        return _first_difference(found, wanted)

    def settings(self, body: Fields) -> Fields:
        fields = responses_requests.settings_meaning(body)
        return fields | {"previous": None, "system": (fields["system"] or "").strip()}


class Google:
    kind: ProviderKind = "google"
    suffix = ""

    def options(self, exchange: Exchange) -> Fields:
        return {}

    def request(self, exchange: Exchange) -> Request:
        body = google_requests.camel(exchange["request"]["body"])
        messages = google_requests.messages_of(body["contents"], GOOGLE)
        model = test_google.model_of(exchange)
        request = google_requests.request_of(body, model, messages, stream=exchange["streaming"])
        moved: Fields = {}
        config = body.get("generationConfig") or {}
        names = ("topP", "stopSequences", "responseJsonSchema", "responseSchema", "responseMimeType")
        if subset := {name: config[name] for name in names if name in config}:
            moved["generationConfig"] = request.settings.extra.get("generationConfig", {}) | subset
        if body.get("toolConfig"):
            moved["toolConfig"] = body["toolConfig"]
        return _with_extra(request, moved)

    def beyond_us(self, exchange: Exchange) -> str | None:
        contents = exchange["request"]["body"]["contents"]
        return "begins with the model" if contents and contents[0].get("role") == "model" else None

    def rewritten(self, before: Exchange, after: Exchange) -> str | None:
        asked, again = (
            [atom[:-1] for atom in self._atoms(exchange["request"]["body"])] for exchange in (before, after)
        )
        if not _starts_with(again, asked):
            return "the earlier messages are others"
        received = [
            (call["name"], json.dumps(call["arguments"], sort_keys=True)) for call in before["expected"]["tool_calls"]
        ]
        sent = [atom[2:4] for atom in again[len(asked) :] if atom[1] == "call"]
        return None if sent == received else "the client sent back other calls than it had received"

    def problems(self, ours: Fields, exchange: Exchange, earlier: list[Exchange]) -> list[str]:
        found, wanted = test_google.lenient(self._atoms(ours), self._atoms(exchange["request"]["body"]))
        return _first_difference(found, wanted)

    def settings(self, body: Fields) -> Fields:
        fields = google_requests.settings_meaning(google_requests.camel(body))
        return fields | {"system": (fields["system"] or "").strip()}

    def _atoms(self, body: Fields) -> list[Any]:
        """Results of one answer in the order of their names: names distinguish them, not their order."""
        found: list[Any] = []
        results: list[Any] = []
        for atom in google_requests.atoms(google_requests.camel(body)["contents"]):
            if atom[1] == "result":
                results.append(atom)
                continue
            found += sorted(results)
            results = []
            found.append(atom)
        return found + sorted(results)


SPOKEN: dict[str, Spoken] = {
    "anthropic-messages": Anthropic(),
    "anthropic-compatible": Anthropic(),
    "openai-chat": Chat(),
    "openai-compatible": Chat(),
    "openai-responses": Responses(),
    "openai-responses-compatible": Responses(),
    "gemini": Google(),
}


def answered_in(messages: list[ModelMessage]) -> tuple[list[ToolResultPart], list[Any]]:
    """The results that a request carries for the last answer in it, and what is next to them."""
    last = max((at for at, message in enumerate(messages) if message.role == "assistant"), default=-1)
    parts = [part for message in messages[last + 1 :] for part in message.content]
    return (
        [part for part in parts if isinstance(part, ToolResultPart)],
        [part for part in parts if not isinstance(part, ToolResultPart)],
    )


def _recorded_atoms(exchange: Exchange, earlier: list[Exchange]) -> Iterator[Any]:
    """Returns the content of a request, including the earlier items that its server stores."""
    body = exchange["request"]["body"]
    previous = body.get("previous_response_id")
    if previous and earlier:
        yield from _recorded_atoms(earlier[-1], earlier[:-1])
        for call in earlier[-1]["expected"]["tool_calls"]:
            arguments = responses_requests.meaning_of(json.dumps(call["arguments"]))
            yield ("call", call["id"], call["name"], call.get("namespace"), arguments)
    yield from responses_requests.atoms(responses_requests.items_of(body))


def _numbered(atoms: list[Any]) -> list[Any]:
    """Ids of calls only connect; some clients know a call by the id of its item, and the API takes either."""
    ids: dict[str, int] = {}
    waiting: list[int] = []
    found: list[Any] = []
    for atom in atoms:
        if atom[0] == "assistant":
            found.append((atom[0], atom[2]))  # the phase of an answer goes back from us; some clients lost it
        elif atom[0] in ("call", "custom call"):
            ids[atom[1]] = len(ids)
            waiting.append(ids[atom[1]])
            found.append((atom[0], ids[atom[1]], *atom[2:]))
        elif atom[0] == "output":
            number = ids.get(atom[2], waiting[0] if waiting else -1)
            if number in waiting:
                waiting.remove(number)
            found.append((*atom[:2], number, *atom[3:]))
        else:
            found.append(atom)
    return found


def _inside_results(body: Fields) -> Iterator[Fields]:
    for message in body["messages"]:
        for block in anthropic_requests.content(message):
            if block["type"] == "tool_result" and isinstance(block.get("content"), list):
                yield from block["content"]


def _starts_with(atoms: list[Any], start: list[Any]) -> bool:
    return atoms[: len(start)] == start


def _with_plain_results(message: Fields) -> Fields:
    """A result of ours has one text; several are joined, and stand before its files."""
    return message | {"content": [_plain_result(block) for block in message["content"]]}


def _plain_result(block: Fields) -> Fields:
    if block["type"] != "tool_result":
        return block
    texts = [inner["text"] for inner in block["content"] if inner["type"] == "text"]
    return block | {"content": ["\n".join(texts), *(i for i in block["content"] if i["type"] != "text")]}


def _without_blank_text(message: Fields) -> Fields:
    blank = isinstance(message.get("text"), str) and message["role"] == "assistant" and not message["text"].strip()
    return {name: value for name, value in message.items() if name != "text"} if blank else message


def _with_extra(request: Request, moved: Fields) -> Request:
    """Returns the request with these fields in the extra settings of the provider."""
    extra = {**request.settings.extra, **moved}
    return msgspec.structs.replace(request, settings=msgspec.structs.replace(request.settings, extra=extra))


def _function(function: Fields) -> ToolSpec:
    strict = bool(function.get("strict"))
    return ToolSpec(function["name"], function.get("description") or "", function.get("parameters") or {}, strict)


def _first_difference(found: list[Any], wanted: list[Any]) -> list[str]:
    if found == wanted:
        return []
    return [f"messages {test_google.first_difference(found, wanted)}"]
