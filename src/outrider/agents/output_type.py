"""Structured output: parses the model's answer into a value of the requested type, or builds a prompt that asks for a
valid answer."""

import re
from contextlib import suppress
from typing import Any, cast

import msgspec

from outrider.errors import ConfigurationError, OutputMismatch
from outrider.tools.schema import convert_value, schema_for_type
from outrider.types.partial_json import parse_partial_object
from outrider.types.request import OutputSchema
from outrider.types.validate import is_object

MAX_REPAIRS = 2
_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_WRAPPER_FIELD = "value"


class OutputType:
    """A dataclass, TypedDict, msgspec Struct, pydantic model, any other type hint, or a JSON schema as a dict. Vendor
    APIs accept object schemas only, so a schema of another type is wrapped as the single field of an object."""

    def __init__(self, output_type: Any) -> None:
        self._type = output_type
        self._is_schema = is_object(output_type)
        self._value_schema = output_type if self._is_schema else _schema_of(output_type)
        self._is_wrapped = self._value_schema.get("type") != "object"
        name = "answer" if self._is_schema else getattr(output_type, "__name__", "answer")
        self.name = "the JSON schema" if self._is_schema else getattr(output_type, "__name__", str(output_type))
        self.schema = OutputSchema(
            _wrap_schema(self._value_schema) if self._is_wrapped else self._value_schema, re.sub(r"\W", "_", name)
        )

    def parse_answer(self, text: str) -> Any:
        """Return the value in the answer. Raises OutputMismatch if the text is not JSON or does not match the type."""
        value = _decode_json(text)
        if self._is_wrapped and is_object(value) and value.keys() == {_WRAPPER_FIELD}:
            value = value[_WRAPPER_FIELD]
        if self._is_schema:
            return _check_schema(value, self._value_schema)
        try:
            return convert_value(self._type, value)
        except (ValueError, TypeError) as error:
            raise OutputMismatch(str(error)) from error

    def parse_partial(self, text: str) -> Any:
        """Return the value that the beginning of an answer has so far, or None. A list has its complete items."""
        beginning = text.lstrip()
        if beginning.startswith("["):
            beginning = f'{{"{_WRAPPER_FIELD}":{beginning}'
        if not beginning.startswith("{"):
            return None
        value: Any = parse_partial_object(beginning)
        if self._is_wrapped:
            value = value.get(_WRAPPER_FIELD)
        complete: Any = cast("list[Any]", value)[:-1] if isinstance(value, list) else None
        for attempt in (cast("Any", value), complete):
            if attempt is None or self._is_schema:
                return attempt
            with suppress(ValueError, TypeError):
                return convert_value(self._type, attempt)
        return None

    def repair_prompt(self, problem: OutputMismatch) -> str:
        """Return the user message that asks the model for a valid answer."""
        schema = msgspec.json.encode(self.schema.schema).decode()
        return (
            f"Your answer does not have the wanted form: {problem.message}. "
            f"Answer again with nothing but JSON that follows this schema:\n{schema}"
        )


def as_output_type(output_type: Any) -> OutputType | None:
    """Return the requested type, None for plain text."""
    return None if output_type is None or output_type is str else OutputType(output_type)


def _schema_of(wanted: Any) -> dict[str, Any]:
    try:
        return schema_for_type(wanted)
    except TypeError as error:
        raise ConfigurationError(f"no answer can be of the output_type {wanted!r}: {error}") from error


def _wrap_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Wrap a schema in an object. `$defs` stays at the top level, where its references resolve."""
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    outer = {"type": "object", "properties": {_WRAPPER_FIELD: inner}, "required": [_WRAPPER_FIELD]}
    return outer | ({"$defs": schema["$defs"]} if "$defs" in schema else {})


def _decode_json(text: str) -> Any:
    """Decode the answer as JSON; a code fence around it is accepted."""
    fenced = _FENCE.search(text)
    try:
        return msgspec.json.decode((fenced.group(1) if fenced else text).strip())
    except msgspec.DecodeError as error:
        raise OutputMismatch(f"it is not JSON ({error})") from error


def _check_schema(value: Any, schema: dict[str, Any]) -> Any:
    """Check type and required fields only. A full JSON schema validation would need another dependency."""
    if schema.get("type") == "object":
        if not is_object(value):
            raise OutputMismatch(f"expected an object, got {type(value).__name__}")
        missing = [name for name in schema.get("required", []) if name not in value]
        if missing:
            raise OutputMismatch(f"it lacks {', '.join(missing)}")
    if schema.get("type") == "array" and type(value) is not list:
        raise OutputMismatch("expected an array")
    return cast("Any", value)
