"""Builds the OpenAPI 3.1 document from the endpoint tables."""

import re
from collections.abc import Iterable
from typing import Any, cast

import msgspec

from outrider.server.endpoint import ApiEndpoint, NoPayload

REFERENCE_TEMPLATE = "#/components/schemas/{name}"
ERROR_SCHEMA = {
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
ERROR_DESCRIPTIONS = {
    "400": "the request is invalid",
    "401": "the token is missing or wrong",
    "403": "cross-site request",
    "404": "not found",
    "405": "method not allowed for this path",
    "409": "the session is in use by another process, or its state does not allow this",
    "413": "the body is too large",
    "415": "the body is not JSON",
    "421": "the Host header does not name this server",
    "429": "too many requests",
    "502": "a provider returned an error",
    "503": "the store is unavailable",
    "507": "the disk or the quota is full",
}


def build_openapi(endpoints: Iterable[ApiEndpoint], version: str) -> dict[str, Any]:
    endpoints = list(endpoints)
    types = _schema_types(endpoints)
    schemas, components = msgspec.json.schema_components(types, ref_template=REFERENCE_TEMPLATE)
    schema_of = dict(zip(map(_type_key, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _build_operation(endpoint, schema_of, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Outrider", "version": version, "license": {"name": "MIT", "identifier": "MIT"}},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Refusal": ERROR_SCHEMA, **_allow_decimal_numbers(components)},
        },
    }


def _allow_decimal_numbers(schema: Any) -> Any:
    """Decimals are encoded as strings to keep their precision; the decoder accepts numbers as well."""
    match schema:
        case {"type": "string", "format": "decimal"}:
            return {**schema, "type": ["string", "number"]}
        case dict():
            return {name: _allow_decimal_numbers(inner) for name, inner in cast("dict[str, Any]", schema).items()}
        case list():
            return [_allow_decimal_numbers(inner) for inner in cast("list[Any]", schema)]
        case _:
            return schema


def _schema_types(endpoints: list[ApiEndpoint]) -> list[Any]:
    """Returns each type once. Generic types such as list[X] cannot be dict keys by identity, so their repr is the
    key."""
    named = [
        schema_type for e in endpoints for schema_type in (e.query, e.body, e.response_type) if schema_type is not None
    ]
    return list(
        {_type_key(schema_type): schema_type for schema_type in named if not isinstance(schema_type, str)}.values()
    )


def _type_key(schema_type: Any) -> str:
    return f"{getattr(schema_type, '__module__', '')}.{schema_type!r}"


def _build_operation(endpoint: ApiEndpoint, schema_of: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "parameters": [*_path_parameters(endpoint), *_query_parameters(endpoint, schema_of, components)],
        "responses": {str(endpoint.status): _success_response(endpoint, schema_of), **_error_responses()},
    }
    if endpoint.body is not NoPayload:
        schema = {"type": "object"} if endpoint.body is msgspec.Raw else schema_of[_type_key(endpoint.body)]
        content = {"application/json": {"schema": schema}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _path_parameters(endpoint: ApiEndpoint) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", endpoint.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(
    endpoint: ApiEndpoint, schema_of: dict[str, Any], components: dict[str, Any]
) -> list[dict[str, Any]]:
    if endpoint.query is NoPayload:
        return []
    reference = schema_of[_type_key(endpoint.query)]["$ref"].rpartition("/")[2]
    schema = components[reference]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": value_schema}
        for name, value_schema in schema["properties"].items()
    ]


def _success_response(endpoint: ApiEndpoint, schema_of: dict[str, Any]) -> dict[str, Any]:
    if endpoint.response_type is None:
        return {"description": "done"}
    if isinstance(endpoint.response_type, str):
        schema = {"type": "object"} if endpoint.response_type == "application/json" else {"type": "string"}
        return {"description": "done", "content": {endpoint.response_type: {"schema": schema}}}
    return {
        "description": "done",
        "content": {"application/json": {"schema": schema_of[_type_key(endpoint.response_type)]}},
    }


def _error_responses() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": REFERENCE_TEMPLATE.format(name="Refusal")}}}
    return {
        status: {"description": description, "content": content} for status, description in ERROR_DESCRIPTIONS.items()
    }
