"""The types of the page name only fields that the server sends.

The compiler believes what `get<Type>(path)` says. This reads the types and the requests of `web/src` and compares them
with the description of the API.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from outrider.server.app import ENDPOINTS
from outrider.server.event_stream import SessionSummary
from outrider.server.openapi import build_openapi
from outrider.types import events

SOURCES = Path(__file__).parents[3] / "web" / "src"
TOKEN = re.compile(r"[A-Za-z_$][\w$]*|\"[^\"]*\"|[{}\[\]<>()|&;:,?=]")
REQUEST = re.compile(r"\b(get|post|patch)<")
Type = tuple[Any, ...]
"""("object", fields), ("list", item), ("values", item), ("union", members), ("literal", text), ("name", text) or
("field", type, name)."""


class TypeReader:
    """Reads types from TypeScript source."""

    def __init__(self, text: str) -> None:
        self.tokens = TOKEN.findall(re.sub(r"(?m)//.*$", "", text))
        self.at = 0

    def take(self, *expected: str) -> bool:
        found = self.at < len(self.tokens) and self.tokens[self.at] in expected
        self.at += found
        return found

    def next(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]

    def union(self) -> Type:
        self.take("|")
        members = [self.postfix()]
        while self.take("|", "&"):
            members.append(self.postfix())
        return members[0] if len(members) == 1 else ("union", members)

    def postfix(self) -> Type:
        found = self.primary()
        while self.take("["):
            found = ("list", found) if self.take("]") else ("field", found, self.next().strip('"'))
            self.take("]")
        return found

    def primary(self) -> Type:
        match token := self.next():
            case "{":
                return self.fields()
            case "(":
                found = self.union()
                self.take(")")
                return found
            case "readonly":
                return self.postfix()
            case _ if token.startswith('"'):
                return ("literal", token.strip('"'))
            case _ if self.take("<"):
                arguments = [self.union()]
                while self.take(","):
                    arguments.append(self.union())
                self.take(">")
                return {"Record": ("values", arguments[-1]), "Array": ("list", arguments[0])}.get(
                    token, ("name", token)
                )
            case _:
                return ("name", token)

    def fields(self) -> Type:
        """Reads up to the closing brace."""
        found: dict[str, Type] = {}
        while not self.take("}"):
            name = self.next().strip('"')
            self.take("?")
            assert self.take(":"), f"no type after {name}"
            found[name] = self.union()
            self.take(";", ",")
        return ("object", found)


@cache
def named_types() -> dict[str, Type]:
    found: dict[str, Type] = {}
    for path in sorted(SOURCES.glob("*.ts*")):
        text = path.read_text()
        for match in re.finditer(r"(?m)^(?:export )?interface (\w+) \{(?=$)", text):
            try:
                found[match[1]] = TypeReader(text[match.end() :]).fields()
            except AssertionError:
                continue  # it has functions: no value of the server
        for match in re.finditer(r"(?m)^export type (\w+) =(?= |$)", text):
            found[match[1]] = TypeReader(text[match.end() :].partition(";\n")[0]).union()
    return found


@cache
def description() -> dict[str, Any]:
    return build_openapi(ENDPOINTS, "0")


def alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    match schema:
        case {"$ref": reference}:
            return alternatives(description()["components"]["schemas"][reference.rpartition("/")[2]])
        case {"anyOf": several} | {"oneOf": several}:
            return [one for member in several for one in alternatives(member)]
        case _:
            return [schema]


def differences(wanted: Type, schema: dict[str, Any], place: str) -> Iterator[str]:
    """Yields what a type names and a schema does not have. A schema without fields may be anything."""
    match wanted:
        case ("name", name):
            yield from differences(named_types()[name], schema, place) if name in named_types() else ()
        case ("field", (_, of), name):
            yield from differences(named_types()[of][1][name], schema, place)
        case ("union", members):
            for member in members:
                yield from differences(member, schema, place)
        case ("list", item):
            yield from _differences_below(item, schema, "items", f"{place}[]")
        case ("values", item):
            yield from _differences_below(item, schema, "additionalProperties", f"{place}{{}}")
        case ("object", fields):
            yield from _field_differences(fields, schema, place)
        case ("literal", text):
            choices = [choice for one in alternatives(schema) for choice in one.get("enum", ())]
            if choices and text not in choices:
                yield f"{place} is never {text!r}"


def _differences_below(wanted: Type, schema: dict[str, Any], key: str, place: str) -> Iterator[str]:
    below = [one[key] for one in alternatives(schema) if isinstance(one.get(key), dict)]
    if below:
        yield from differences(wanted, {"anyOf": below}, place)


def _field_differences(fields: dict[str, Type], schema: dict[str, Any], place: str) -> Iterator[str]:
    objects = [one["properties"] for one in alternatives(schema) if "properties" in one]
    for name, wanted in fields.items() if objects else ():
        found = [properties[name] for properties in objects if name in properties]
        if found:
            yield from differences(wanted, {"anyOf": found}, f"{place}.{name}")
        else:
            yield f"{place}.{name} is not sent"


def requests() -> Iterator[tuple[str, str, Type, str]]:
    """Yields each request of the page: its method, path, type of the response and place."""
    for path in sorted(SOURCES.glob("*.ts*")):
        text = path.read_text()
        for match in REQUEST.finditer(text):
            rest = text[match.end() :]
            called = re.match(r"([^`(]*?)>\(\s*(`(?:[^`])*`|\"[^\"]*\"|[\w.]+)", rest)
            if called is None or called[1] == "T" or rest.startswith("T>"):
                continue  # the functions themselves
            place = f"{path.name}:{text.count(chr(10), 0, match.start()) + 1}"
            yield match[1].upper(), _path_of(called[2], text[: match.start()]), TypeReader(called[1]).union(), place


def _path_of(argument: str, before: str) -> str:
    """Returns the path with `*` for each value; a variable has the value that was assigned last."""
    assigned = re.findall(r"\bpath = (`[^`]*`|sessionPath\([^)]*\))", before)
    variable = assigned[-1] if assigned else "*"
    text = argument.replace("${this.path}", "/sessions/*").replace("${path}", variable.strip("`"))
    if argument in ("path", "this.path"):
        text = variable
    text = re.sub(r"\$\{sessionPath\([^)]*\)\}|sessionPath\([^)]*\)", "/sessions/*", text)
    return re.sub(r"\$\{[^}]*\}", "*", text).strip('`"')


def _matches(path: str, route: str) -> bool:
    mine, theirs = path.split("/"), re.sub(r"\{\w+\}", "*", route.removeprefix("/api")).split("/")
    return len(mine) == len(theirs) and all(a == b or "*" in (a, b) for a, b in zip(mine, theirs, strict=True))


def _response_schemas(method: str, path: str) -> Iterator[dict[str, Any]]:
    for route, operations in description()["paths"].items():
        for status, response in operations.get(method.lower(), {}).get("responses", {}).items():
            schema = response.get("content", {}).get("application/json", {}).get("schema")
            if status.startswith("2") and schema is not None and _matches(path, route):
                yield schema


def test_the_page_reads_only_fields_that_the_server_sends():
    found: list[str] = []
    count = 0
    for method, path, wanted, place in requests():
        several = [list(differences(wanted, schema, "it")) for schema in _response_schemas(method, path)]
        assert several, f"{place}: no route for {method} {path}"
        count += 1
        found += [f"{place}: {method} {path}: {text}" for text in min(several, key=len)]
    assert found == []
    assert count > 50


def test_the_page_reads_only_fields_of_live_events_and_summaries_that_the_server_sends():
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, events.Event)]
    sent = {field.encode_name for kind in kinds for field in msgspec.structs.fields(kind)}
    added = {"type", "notice", "shown_elsewhere", "view", "label", "countdown"}  # by `event_payload`
    assert set(named_types()["LiveEvent"][1]) <= sent | added
    assert set(named_types()["SessionSummary"][1]) <= {field.name for field in msgspec.structs.fields(SessionSummary)}


def test_a_field_that_is_not_sent_is_found():
    schema = next(_response_schemas("GET", "/answers"))
    wanted = TypeReader(
        '{ id: string; rules?: string[]; answer: "yes"; view: { text: string; risk: string } }[]'
    ).union()
    assert list(differences(wanted, schema, "it")) == [
        "it[].rules is not sent", "it[].answer is never 'yes'", "it[].view.risk is not sent",
    ]  # fmt: skip
