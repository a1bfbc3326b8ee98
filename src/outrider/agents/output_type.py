"""Structured output: an answer that is a value of the user's type, read from the model's text, or words to mend it."""

import re
from typing import Any, cast

import msgspec

from outrider.errors import ConfigurationError, OutputMismatch
from outrider.tools.schema import json_schema_of, read_value
from outrider.types.request import OutputSchema
from outrider.types.validate import is_object

REPAIRS = 2
_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_PACKED = "value"


class OutputType:
    """A dataclass, TypedDict, msgspec Struct, pydantic model, any other type hint, or a JSON schema as a dict. An API
    takes schemas of objects only, so that anything else is asked for as the one field of an object."""

    def __init__(self, wanted: Any) -> None:
        self._wanted = wanted
        self._is_schema = is_object(wanted)
        self._own = wanted if self._is_schema else _schema_of(wanted)
        self._is_packed = self._own.get("type") != "object"
        name = "answer" if self._is_schema else getattr(wanted, "__name__", "answer")
        self.schema = OutputSchema(_packed(self._own) if self._is_packed else self._own, re.sub(r"\W", "_", name))

    def read(self, text: str) -> Any:
        value = _json(text)
        if self._is_packed and is_object(value) and value.keys() == {_PACKED}:
            value = value[_PACKED]
        if self._is_schema:
            return _checked(value, self._own)
        try:
            return read_value(self._wanted, value)
        except (ValueError, TypeError) as error:
            raise OutputMismatch(str(error)) from error

    def repair(self, problem: OutputMismatch) -> str:
        schema = msgspec.json.encode(self.schema.schema).decode()
        return (
            f"Your answer does not have the wanted form: {problem.message}. "
            f"Answer again with nothing but JSON that follows this schema:\n{schema}"
        )


def _schema_of(wanted: Any) -> dict[str, Any]:
    try:
        return json_schema_of(wanted)
    except TypeError as error:
        raise ConfigurationError(f"no answer can be of the output_type {wanted!r}: {error}") from error


def _packed(schema: dict[str, Any]) -> dict[str, Any]:
    """What the schema names stays where its references look for it: at the top."""
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    outer = {"type": "object", "properties": {_PACKED: inner}, "required": [_PACKED]}
    return outer | ({"$defs": schema["$defs"]} if "$defs" in schema else {})


def _json(text: str) -> Any:
    """The JSON of an answer; a code fence around it is forgiven."""
    fenced = _FENCE.search(text)
    try:
        return msgspec.json.decode((fenced.group(1) if fenced else text).strip())
    except msgspec.DecodeError as error:
        raise OutputMismatch(f"it is not JSON ({error})") from error


def _checked(value: Any, schema: dict[str, Any]) -> Any:
    """What can be said of a value without a validator: its kind, and the fields that must be there."""
    if schema.get("type") == "object":
        if not is_object(value):
            raise OutputMismatch(f"expected an object, got {type(value).__name__}")
        missing = [name for name in schema.get("required", []) if name not in value]
        if missing:
            raise OutputMismatch(f"it lacks {', '.join(missing)}")
    if schema.get("type") == "array" and type(value) is not list:
        raise OutputMismatch("expected an array")
    return cast("Any", value)
