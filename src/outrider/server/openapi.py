"""The description of the API (OpenAPI 3.1), made from the table of routes so that it cannot differ from them."""

import re
from collections.abc import Iterable
from typing import Any, cast

import msgspec

from outrider.server.routing import Endpoint, Nothing

REFERENCES = "#/components/schemas/{name}"
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}, "details": {"type": "object"}},
        }
    },
}
REFUSED = {
    "400": "the request cannot be read, or asks for what cannot be",
    "401": "the token is missing or wrong",
    "403": "a request of another site",
    "404": "there is no such thing",
    "405": "there is such a path, but not for this method",
    "409": "somebody else has the session, or it is not in a state for this",
    "413": "the body is too large",
    "415": "the body is not JSON",
    "421": "the server does not go by that name",
    "429": "too many requests",
    "502": "a provider refused or failed",
    "503": "the store cannot be reached",
    "507": "the disk or the quota is full",
}


def describe(endpoints: Iterable[Endpoint], version: str) -> dict[str, Any]:
    endpoints = list(endpoints)
    types = _types(endpoints)
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCES)
    schema_of = dict(zip(map(_key, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schema_of, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Outrider", "version": version, "license": {"name": "MIT", "identifier": "MIT"}},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Refusal": ERROR, **_with_numbers(components)},
        },
    }


def _with_numbers(schema: Any) -> Any:
    """A decimal is written as text, so that nothing of it is lost; as a number it is read, too."""
    match schema:
        case {"type": "string", "format": "decimal"}:
            return {**schema, "type": ["string", "number"]}
        case dict():
            return {name: _with_numbers(inner) for name, inner in cast("dict[str, Any]", schema).items()}
        case list():
            return [_with_numbers(inner) for inner in cast("list[Any]", schema)]
        case _:
            return schema


def _types(endpoints: list[Endpoint]) -> list[Any]:
    """Every type once; types such as lists cannot be hashed by what they are, so by how they are written."""
    named = [kind for e in endpoints for kind in (e.query, e.body, e.gives) if kind is not None]
    return list({_key(kind): kind for kind in named if not isinstance(kind, str)}.values())


def _key(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}.{kind!r}"


def _operation(endpoint: Endpoint, schema_of: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint, schema_of, components)],
        "responses": {str(endpoint.status): _success(endpoint, schema_of), **_refusals()},
    }
    if endpoint.body is not Nothing:
        schema = {"type": "object"} if endpoint.body is msgspec.Raw else schema_of[_key(endpoint.body)]
        content = {"application/json": {"schema": schema}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _path_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", endpoint.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(
    endpoint: Endpoint, schema_of: dict[str, Any], components: dict[str, Any]
) -> list[dict[str, Any]]:
    if endpoint.query is Nothing:
        return []
    reference = schema_of[_key(endpoint.query)]["$ref"].rpartition("/")[2]
    schema = components[reference]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": of}
        for name, of in schema["properties"].items()
    ]


def _success(endpoint: Endpoint, schema_of: dict[str, Any]) -> dict[str, Any]:
    if endpoint.gives is None:
        return {"description": "done"}
    if isinstance(endpoint.gives, str):
        schema = {"type": "object"} if endpoint.gives == "application/json" else {"type": "string"}
        return {"description": "done", "content": {endpoint.gives: {"schema": schema}}}
    return {"description": "done", "content": {"application/json": {"schema": schema_of[_key(endpoint.gives)]}}}


def _refusals() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": REFERENCES.format(name="Refusal")}}}
    return {status: {"description": words, "content": content} for status, words in REFUSED.items()}
