"""The server follows its OpenAPI document for generated requests; `scripts/try-api` sends more of them."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any
from urllib.parse import quote, unquote, urlencode

import jsonschema
import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider import Agent, Engine, Provider
from outrider.server.app import ENDPOINTS, create_app
from outrider.server.auth import ListenAddress
from outrider.server.endpoint import ApiEndpoint, NoPayload, encode_response
from outrider.server.event_stream import SessionFeedRegistry
from outrider.server.openapi import EXAMPLES, build_openapi
from tests.e2e.server.http_server import TOKEN
from tests.fixtures.cases import for_each

ADDRESS = ListenAddress(port=80)
TEXT = st.text(max_size=8)
HEADERS = [
    (b"host", b"localhost"),
    (b"authorization", f"Bearer {TOKEN}".encode()),
    (b"content-type", b"application/json"),
]
# Two responses do not end, and one route sends requests to other machines.
TRIED = [one for one in ENDPOINTS if one.name not in ("follow_session", "follow_all", "import_from")]


@cache
def description() -> dict[str, Any]:
    """Not built when the tests are collected, which each worker does."""
    return build_openapi(ENDPOINTS, "0")


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that follow a schema of the kinds that the description is made of."""
    match schema:
        case {"$ref": reference}:
            return values(description()["components"]["schemas"][reference.rpartition("/")[2]])
        case {"anyOf": several}:
            return st.one_of(*map(values, several))
        case {"enum": choices}:
            return st.sampled_from(choices)
        case {"type": "object", "properties": fields}:
            must = {name: values(of) for name, of in fields.items() if name in schema.get("required", ())}
            may = {name: values(of) for name, of in fields.items() if name not in must}
            return st.fixed_dictionaries(must, optional=may)
        case {"type": "array", "items": of}:
            return st.lists(values(of), min_size=schema.get("minItems", 0), max_size=2)
        case {"type": "integer"}:
            return st.integers(schema.get("minimum"), schema.get("maximum"))
        case {"type": "string", "pattern": pattern}:
            return st.from_regex(pattern, fullmatch=False)
        case {"format": "decimal"}:
            return st.decimals(0, 100, places=2).map(str) | st.integers(0, 9)
        case {"type": kind}:
            kinds = {"string": TEXT, "boolean": st.booleans(), "null": st.none(), "number": st.floats(0, 1e6)}
            return kinds.get(kind, st.dictionaries(TEXT, TEXT, max_size=2))
        case _:
            return TEXT


def anything() -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
    return st.recursive(
        leaves, lambda of: st.lists(of, max_size=2) | st.dictionaries(TEXT, of, max_size=3), max_leaves=5
    )


@st.composite
def requests(draw: st.DrawFn) -> tuple[ApiEndpoint, str, str, bytes]:
    """A request to a route, with a path, a query and a body that are valid or invalid."""
    endpoint = draw(st.sampled_from(TRIED))
    operation = description()["paths"][endpoint.path][endpoint.method.lower()]
    path = re.sub(
        r"{\w+}", lambda _: quote(draw(st.just("SESSION") | st.text(min_size=1, max_size=8)), safe=""), endpoint.path
    )
    wanted = [one for one in operation["parameters"] if one["in"] == "query"]
    query = {
        one["name"]: draw(values(one["schema"]) | TEXT) for one in wanted if one["required"] or draw(st.booleans())
    }
    body = b""
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        body = draw(st.one_of(values(schema).map(_json), anything().map(_json), st.binary(max_size=9)))
    return endpoint, path, urlencode({name: str(value) for name, value in query.items() if value is not None}), body


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


async def ask(app: Any, method: str, path: str, query: str, body: bytes) -> tuple[int, str, bytes]:
    """The application without a network between."""
    sent: list[Any] = []
    messages = [{"type": "http.request", "body": body}]
    scope = {
        "type": "http",
        "asgi": {"spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "server": ("localhost", 80),
        "root_path": "",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [*HEADERS, (b"content-length", str(len(body)).encode())],
    }

    async def receive() -> Any:
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    headers = dict(sent[0]["headers"])
    kind = headers.get(b"content-type", b"").decode().partition(";")[0]
    return sent[0]["status"], kind, b"".join(message.get("body", b"") for message in sent[1:])


def resolve(response: dict[str, Any]) -> dict[str, Any]:
    """The response that a reference names."""
    name = response.get("$ref", "").rpartition("/")[2]
    return description()["components"]["responses"][name] if name else response


def judge(endpoint: ApiEndpoint, status: int, kind: str, answer: bytes) -> None:
    described = description()["paths"][endpoint.path][endpoint.method.lower()]["responses"]
    assert str(status) in described, (endpoint.name, status, answer)
    content = resolve(described[str(status)]).get("content", {})
    assert kind in content or (not content and not answer), (endpoint.name, status, kind)
    if kind == "application/json":
        schema = {**content[kind]["schema"], "components": description()["components"]}
        jsonschema.Draft202012Validator(schema).validate(msgspec.json.decode(answer))


@settings(max_examples=100, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
async def test_every_answer_is_one_that_the_description_has(data):
    provider = Provider("scripted", "scripted", options={"script": lambda _: "hello"})
    async with Engine([Agent("writer", "You write.", "model-1", "scripted")], [provider]) as engine:
        feeds = SessionFeedRegistry(engine)
        app = create_app(engine, feeds, address=ADDRESS, token=TOKEN, version="0")
        session = await engine.create()
        for _ in range(4):
            endpoint, path, query, body = data.draw(requests())
            status, kind, answer = await ask(app, endpoint.method, path.replace("SESSION", session), query, body)
            judge(endpoint, status, kind, answer)
        await feeds.close()


def described_contents() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every content of a request and a response: where it is, its media type, and its description."""
    for endpoint in ENDPOINTS:
        operation = description()["paths"][endpoint.path][endpoint.method.lower()]
        for status, one in {"body": operation.get("requestBody", {}), **operation["responses"]}.items():
            for media_type, content in resolve(one).get("content", {}).items():
                yield f"{endpoint.name} {status}", media_type, content
    notice = description()["webhooks"]["turn"]["post"]["requestBody"]["content"]["application/json"]
    yield "webhook", "application/json", notice


def test_every_request_and_response_has_an_example_that_follows_its_schema():
    contents = list(described_contents())
    assert len(contents) > 1_300
    for place, media_type, content in contents:
        assert content.get("example") is not None, f"{place} has no example of {media_type}"
        if media_type == "application/json":
            schema = {**content["schema"], "components": description()["components"]}
            errors = list(jsonschema.Draft202012Validator(schema).iter_errors(content["example"]))
            assert not errors, f"{place}: {errors[0].message} at {list(errors[0].path)}"


@for_each("name", [one.name for one in ENDPOINTS if not isinstance(one.response_type, str | None)])
def test_an_example_is_what_the_codec_of_the_server_writes(name: str):
    endpoint = next(one for one in ENDPOINTS if one.name == name)
    operation = description()["paths"][endpoint.path][endpoint.method.lower()]
    example = operation["responses"][str(endpoint.status)]["content"]["application/json"]["example"]
    value = msgspec.json.decode(_json(example), type=endpoint.response_type, strict=False)
    assert msgspec.json.decode(encode_response(value)) == example


def differences(real: Any, example: Any, place: str) -> list[str]:
    """Fields and types of a real response that its example does not have. Empty values have no type."""
    if isinstance(real, dict) and isinstance(example, dict) and real and example:
        missing = [f"{place}.{name} is missing" for name in real.keys() - example.keys()]
        inner = [differences(real[name], example[name], f"{place}.{name}") for name in real.keys() & example.keys()]
        return [*missing, *(one for several in inner for one in several)]
    if isinstance(real, list) and isinstance(example, list) and real and example:
        return differences(real[0], example[0], f"{place}[]")
    is_other = type(real) is not type(example) and real not in (None, [], {}) and example not in (None, [], {})
    return [f"{place} is {real!r}, in the example {example!r}"] if is_other else []


async def test_real_responses_have_the_fields_and_types_of_their_examples():
    provider = Provider("scripted", "scripted", options={"script": lambda _: "hello"})
    async with Engine([Agent("writer", "You write.", "model-1", "scripted")], [provider]) as engine:
        feeds = SessionFeedRegistry(engine)
        app = create_app(engine, feeds, address=ADDRESS, token=TOKEN, version="0")
        compared: list[str] = []
        session = await engine.create()
        await engine.prompt(session, "hello")
        bodies = {"create_session": {}, "create_chat_completion": {"stream": False}, "create_response": {}}
        for endpoint in ENDPOINTS:
            is_read = endpoint.method == "GET" and endpoint.query is NoPayload and endpoint.response_type != "text/html"
            if endpoint.name in ("follow_session", "follow_all", "follow_job") or not (
                is_read or endpoint.name in bodies
            ):
                continue
            path = (
                endpoint.path.replace("{session_id}", session).replace("{model}", "writer").replace("{agent}", "writer")
            )
            given = {**EXAMPLES.get(endpoint.name, {}), **bodies.get(endpoint.name, {})}
            if "model" in given:
                given["model"] = "writer"
            status, kind, answer = await ask(app, endpoint.method, path, "", _json(given) if given else b"")
            if status != endpoint.status or kind != "application/json" or endpoint.name == "export_session":
                continue
            operation = description()["paths"][endpoint.path][endpoint.method.lower()]
            example = operation["responses"][str(status)]["content"][kind]["example"]
            assert not differences(msgspec.json.decode(answer), example, endpoint.name)
            compared.append(endpoint.name)
        await feeds.close()
    assert len(compared) > 20, compared
