"""Arguments that a model wrote, read by a tool's hints, or words that say exactly what is wrong with them."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import fields

from outrider.errors import ToolFailure
from outrider.tools.schema import Signature, read_value

_SHOWN = 120


def read_arguments(tool: str, signature: Signature, given: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments for the function. All that is wrong is reported at once, argument by argument."""
    try:
        values = msgspec.structs.asdict(read_value(signature.arguments, given))
    except (ValueError, TypeError, RecursionError) as error:  # also pydantic's, which is a ValueError
        problems = list(_problems(tool, signature, given)) or [_why(error)]
        raise InvalidArguments(f"Invalid arguments for {tool}: {'; '.join(problems)}. Nothing was run.") from error
    if signature.takes_more:
        values.update((name, value) for name, value in given.items() if name not in values)
    return values


def _problems(tool: str, signature: Signature, given: dict[str, Any]) -> Iterator[str]:
    known = {field.name: field for field in fields(signature.arguments)}
    for name, field in known.items():
        if name not in given:
            if field.required:
                yield f"`{name}` is missing"
            continue
        try:
            read_value(field.type, given[name])
        except (ValueError, TypeError, RecursionError) as error:
            yield f"`{name}`: {_why(error)}; got {_shown(given[name])}"
    if not signature.takes_more:
        for name in given.keys() - known.keys():
            yield f"`{name}` is not an argument of {tool}; it takes {_listed(known)}"


class InvalidArguments(ToolFailure):
    """The call never ran: its input does not fit the tool's parameters."""


def _why(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    if isinstance(error, msgspec.ValidationError):
        text = text.replace("`$.", "`").replace("`$[", "`[").replace(" - at `$`", "").replace(" - at `", " at `")
    return text[:1].lower() + text[1:]


def _shown(value: object) -> str:
    """A value in so many words as help, with its JSON type."""
    kinds: dict[type, str] = {
        str: "a string",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        list: "an array",
        dict: "an object",
    }
    if value is None:
        return "null"
    text = repr(value)
    return f"{kinds.get(type(value), 'something else')} ({text if len(text) <= _SHOWN else text[:_SHOWN] + '…'})"


def _listed(names: dict[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "no arguments"
