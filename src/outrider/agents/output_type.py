"""Structured output: parses the model's answer into a value of the requested type, or builds a prompt that asks for a
valid answer."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec

from outrider._lazy import lazy_pattern
from outrider._sync import CallbackRunner
from outrider.errors import CallbackError, ConfigurationError, OutputMismatch
from outrider.tools.type_adapters import TypeAdapter, accepts_text
from outrider.tools.type_hints import UnsupportedTypeError, compile_type, describe_type, type_label
from outrider.types.agents import SessionContext
from outrider.types.request import OutputSchema
from outrider.types.validate import find_json_problem, is_object

DEFAULT_ATTEMPTS = 3
_FENCE = lazy_pattern(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)
_WRAPPER_FIELD = "value"
OutputValidator = Callable[[Any], Any] | Callable[[SessionContext[Any], Any], Any]
"""A plain or async function of the value, or of a `SessionContext` and the value. It returns the value, another value,
or None to accept the value. To reject the value, it raises OutputMismatch or ValueError with a message for the model,
which then answers again."""


class OutputType:
    """A dataclass, TypedDict, msgspec Struct, pydantic model, any other type hint, or a JSON schema as a dict, with the
    functions that check its values. Vendor APIs accept object schemas only, so a schema of another type is wrapped as
    the single field of an object. For `str` the answer is plain text."""

    def __init__(
        self, output_type: Any, validators: Sequence[OutputValidator] = (), attempts: int = DEFAULT_ATTEMPTS
    ) -> None:
        self.attempts = attempts
        self.validators = validators
        self.is_text = output_type is None or output_type is str
        self._adapter = None if self.is_text or is_object(output_type) else _adapter_of(output_type)
        self._accepts_text = self._adapter is not None and accepts_text(self._adapter)
        self._value_schema: dict[str, Any] = describe_type(self._adapter) if self._adapter else _as_schema(output_type)
        self._is_wrapped = not self.is_text and self._value_schema.get("type") != "object"
        self.name = "the JSON schema" if self._adapter is None else type_label(output_type)
        self.schema = None if self.is_text else self._make_schema()
        if self._adapter is None and (problem := find_json_problem(self._value_schema)):
            raise ConfigurationError(f"the output_type is a JSON schema with values {problem}")

    def _make_schema(self) -> OutputSchema:
        name = "answer" if self._adapter is None else self.name
        schema = _wrap_schema(self._value_schema) if self._is_wrapped else self._value_schema
        short = re.sub(r"\W+", "_", name).strip("_")[:64] or "answer"
        return OutputSchema(schema, short, from_type=self._adapter is not None)

    def parse_answer(self, text: str) -> Any:
        """Returns the value in the answer. Raises OutputMismatch if the text is not JSON or does not match the type."""
        if self.is_text:
            return text
        try:
            value = _decode_json(text)
        except OutputMismatch:
            if self._accepts_text:
                return text
            raise
        is_wrapper = is_object(value) and value.keys() == {_WRAPPER_FIELD}
        if self._is_wrapped and is_wrapper:
            value = value[_WRAPPER_FIELD]
        if self._adapter is None:
            return _check_schema(value, self._value_schema)
        try:
            return self._adapter.convert(value)
        except (ValueError, RecursionError) as error:
            if is_wrapper and not self._is_wrapped:
                with suppress(ValueError, RecursionError):
                    return self._adapter.convert(value[_WRAPPER_FIELD])
            raise OutputMismatch(str(error)) from error

    async def validate(self, value: Any, callbacks: CallbackRunner, context: SessionContext[Any]) -> Any:
        """Returns the value after all validators have run. Raises OutputMismatch with the message of a validator that
        rejects it, and CallbackError for a validator that fails."""
        for function in self.validators:
            name = f"the output validator {getattr(function, '__name__', type(function).__name__)}"
            arguments = (context, value) if _takes_context(function) else (value,)
            try:
                checked = await callbacks.call(name, function, *arguments)
            except CallbackError as error:
                if isinstance(error.__cause__, OutputMismatch | ValueError | AssertionError):
                    raise OutputMismatch(_message_of(error.__cause__)) from error.__cause__
                raise
            value = value if checked is None else checked
        return value

    def parse_partial(self, text: str) -> Any:
        """Returns the value of an incomplete answer so far, or None. A list contains only its complete items."""
        beginning = text.lstrip()
        if beginning.startswith("["):
            beginning = f'{{"{_WRAPPER_FIELD}":{beginning}'
        if not beginning.startswith("{"):
            return None
        from outrider.types.partial_json import parse_partial_object

        value: Any = parse_partial_object(beginning)
        if self._is_wrapped:
            value = value.get(_WRAPPER_FIELD)
        complete: Any = cast("list[Any]", value)[:-1] if isinstance(value, list) else None
        for attempt in (cast("Any", value), complete):
            if attempt is None or self._adapter is None:
                return None if self.is_text else attempt
            with suppress(ValueError, RecursionError):
                return self._adapter.convert(attempt)
        return None

    def repair_prompt(self, problem: OutputMismatch) -> str:
        """Returns the user message that asks the model for a valid answer."""
        if self.schema is None:
            return f"Your answer was not accepted: {problem.message}. Answer again."
        schema = msgspec.json.encode(self.schema.schema).decode()
        return (
            f"Your answer does not have the wanted form: {problem.message}. "
            f"Answer again with nothing but JSON that follows this schema:\n{schema}"
        )

    def final_error(self, agent: str, problem: OutputMismatch) -> OutputMismatch:
        """Returns the error that ends a run: which agent answered, what was expected, in how many attempts, and what
        was wrong."""
        expected = "an accepted answer" if self.is_text else f"a value of {self.name}"
        times = "1 attempt" if self.attempts == 1 else f"{self.attempts} attempts"
        return OutputMismatch(
            f"agent {agent!r} gave no answer that is {expected} in {times}: {problem.message}",
            agent=agent,
            output_type=self.name,
            attempts=self.attempts,
            problem=problem.message,
        )


def as_output_type(
    output_type: Any,
    validators: OutputValidator | Sequence[OutputValidator] | None = None,
    attempts: int = DEFAULT_ATTEMPTS,
) -> OutputType | None:
    """Returns the requested type, None for plain text that no function checks. Raises ConfigurationError for a type
    that no answer can have."""
    if type(attempts) is not int or attempts < 1:
        raise ConfigurationError(f"output_attempts is a number from 1, got {attempts!r}")
    values: Any = (validators,) if callable(validators) else validators or ()
    functions: list[OutputValidator] = list(cast("Iterable[Any]", values)) if isinstance(values, Iterable) else [values]
    if wrong := [function for function in functions if not callable(function)]:
        raise ConfigurationError(
            f"output_validators are functions of the value, one or a list, got {type(wrong[0]).__name__}"
        )
    if (output_type is None or output_type is str) and not functions:
        return None
    return OutputType(output_type, functions, attempts)


def _adapter_of(output_type: Any) -> TypeAdapter:
    try:
        return compile_type(output_type)
    except (UnsupportedTypeError, TypeError) as error:
        reason = error.message if isinstance(error, UnsupportedTypeError) else str(error)
        raise ConfigurationError(
            f"no answer can be of the output_type {output_type!r}: {reason}; pass a dataclass, a TypedDict, a pydantic "
            "model, another type hint, or a JSON schema as a dict"
        ) from error


_SCHEMA_TYPES = {"object", "array", "string", "number", "integer", "boolean", "null"}


def _as_schema(output_type: Any) -> dict[str, Any]:
    schema = output_type if is_object(output_type) else {}
    if wrong := next(_find_wrong_types(schema), None):
        raise ConfigurationError(
            f"the output_type is a JSON schema with the type {wrong!r}; types: {', '.join(sorted(_SCHEMA_TYPES))}"
        )
    return schema


def _find_wrong_types(schema: Any) -> Iterator[Any]:
    if not is_object(schema):
        return
    if "type" in schema:
        declared: Any = schema["type"]
        kinds: list[Any] = cast("list[Any]", declared) if isinstance(declared, list) else [declared]
        yield from (kind for kind in kinds if not isinstance(kind, str) or kind not in _SCHEMA_TYPES)
    fields = schema.get("properties")
    inner: list[Any] = [*fields.values()] if is_object(fields) else []
    for subschema in (*inner, schema.get("items")):
        yield from _find_wrong_types(subschema)


def _takes_context(function: OutputValidator) -> bool:
    """Returns whether a validator takes the context of the session before the value."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in positional and parameter.default is parameter.empty for parameter in parameters) >= 2


def _message_of(error: BaseException) -> str:
    text = error.message if isinstance(error, OutputMismatch) else str(error)
    return text.strip().rstrip(".") or "a check of the program failed"


def _wrap_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Wraps a schema in an object. `$defs` stays at the top level, where its references resolve."""
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    outer = {"type": "object", "properties": {_WRAPPER_FIELD: inner}, "required": [_WRAPPER_FIELD]}
    return outer | ({"$defs": schema["$defs"]} if "$defs" in schema else {})


def _decode_json(text: str) -> Any:
    """Decodes the answer as JSON; a code fence around it is accepted."""
    fenced = _FENCE.search(text)
    try:
        return msgspec.json.decode((fenced.group(1) if fenced else text).strip())
    except msgspec.DecodeError as error:
        raise OutputMismatch(f"it is not JSON ({error})") from error


def _check_schema(value: Any, schema: dict[str, Any]) -> Any:
    """Returns the value without nulls for optional fields that do not accept null: models write them where the API
    requires all fields. Raises OutputMismatch if the value does not match the schema."""
    from outrider.tools.schema import find_schema_problem  # lazy: few programs pass a schema

    value = _drop_nulls(value, schema, schema)
    if (problem := find_schema_problem(value, schema)) is not None:
        raise OutputMismatch(problem)
    return value


def _resolve(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """Returns the schema that a reference names; an empty schema for a value that is not a schema."""
    for _ in range(_MAX_REFERENCES):
        if not is_object(schema):
            return {}
        if not isinstance(reference := schema.get("$ref"), str):
            return schema
        target: Any = root
        for step in reference.split("/")[1:]:
            target = target.get(step) if is_object(target) else None
        schema = target
    return {}


def _drop_nulls(value: Any, schema: Any, root: dict[str, Any]) -> Any:
    schema = _resolve(schema, root)
    if isinstance(value, list):
        return [_drop_nulls(item, schema.get("items"), root) for item in cast("list[Any]", value)]
    if not is_object(value):
        return value
    fields: dict[str, Any] = schema.get("properties") or {}
    required: Any = schema.get("required") or ()
    return {
        name: _drop_nulls(item, fields.get(name), root)
        for name, item in value.items()
        if item is not None or name in required or name not in fields or _accepts_null(fields[name], root)
    }


def _accepts_null(schema: Any, root: dict[str, Any]) -> bool:
    from outrider.tools.schema import find_schema_problem  # lazy, as above

    return find_schema_problem(None, {**_resolve(schema, root), "$defs": root.get("$defs", {})}) is None


_MAX_REFERENCES = 8
