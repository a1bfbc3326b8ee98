"""Reads one configuration file: what is wrong in it is said by file, key and expectation; what is unknown is passed
over with a notice, so that the file of a newer version does not lose everything."""

import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast, get_args, get_origin

import msgspec

from outrider.app.config.tables import AgentTable, ConfigFile, ProviderTable
from outrider.errors import ConfigurationError

LARGEST = 1 << 20
_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_NAMES = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false", "object": "a table",
          "array": "a list", "decimal": "a number"}  # fmt: skip
# Tables whose keys are names that people choose, with what each of them holds.
_NAMED: dict[str, type[msgspec.Struct]] = {"providers": ProviderTable, "agents": AgentTable}
_FREE = frozenset({"headers", "options", "extra", "mcp", "models"})


class ReadFile(msgspec.Struct, frozen=True):
    """A file's content, and sentences about keys in it that mean nothing."""

    content: ConfigFile
    notices: tuple[str, ...] = ()


def read_file(path: Path) -> ReadFile:
    """What a file says; one that does not exist says nothing."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ConfigurationError(f"{path}: is not a file")
        if found.st_size > LARGEST:
            raise ConfigurationError(f"{path}: is larger than {LARGEST} bytes")
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return ReadFile(ConfigFile())
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    return read_text(content, str(path))


def read_text(content: bytes, source: str) -> ReadFile:
    """`source` is what errors call the file."""
    import tomllib

    try:
        table = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{source}: is not UTF-8 (byte {error.start})") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{source}: is not valid TOML: {error}") from error
    _refuse_keys(table, source)
    try:
        return ReadFile(msgspec.convert(table, ConfigFile), tuple(_unknown(table, ConfigFile, source)))
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{source}: {_blame(table, error)}", file=source) from error


def wording(error: msgspec.ValidationError, kind: type[msgspec.Struct], where: str = "") -> str:
    """msgspec's words as ours: the key, what was expected, what is there."""
    found = _WHERE.match(str(error))
    what, path = (found["what"], found["path"] or "") if found else (str(error), "")
    key = where + path.removeprefix("$").removeprefix(".")
    what = re.sub(r"`([a-z |]+)`", lambda words: _named(words[1]), what)
    choices = _choices(kind, path.removeprefix("$.").split("."))
    expected = f"; expected {', '.join(choices)}" if choices else ""
    return f"{key.rstrip('.') or 'the file'}: {what[:1].lower()}{what[1:]}{expected}"


def _named(words: str) -> str:
    return " or ".join(_NAMES.get(word, word) for word in words.split(" | ") if word != "null")


def _choices(kind: Any, keys: list[str]) -> list[str]:
    """The words that a key may have, where it takes only certain ones."""
    for key in keys:
        fields = {field.name: field.type for one in _structs(kind) for field in msgspec.structs.fields(one)}
        kind = fields.get(key)
    words = [word for one in (kind, *get_args(kind)) for word in (one, *get_args(one))]
    return [word for word in words if isinstance(word, str)]


def _blame(table: Mapping[str, Any], error: msgspec.ValidationError) -> str:
    """The words for a mistake; inside a table that people name themselves, with that name."""
    for key, kind in _NAMED.items():
        for name, inner in _tables(table.get(key)):
            try:
                msgspec.convert(inner, kind)
            except msgspec.ValidationError as inner_error:
                return wording(inner_error, kind, f"{key}.{name}.")
    return wording(error, ConfigFile)


def closest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt word, or nothing."""
    near = get_close_matches(word, list(known), n=3)
    swapped = [one for one in near if sorted(one) == sorted(word)]  # `modle` is nearer to model than to mode
    return f"; did you mean {(swapped or near)[0]}?" if near else ""


def _refuse_keys(table: Mapping[str, Any], source: str) -> None:
    """A key in a file ends up in backups, repositories and screenshots."""
    for name, provider in _tables(table.get("providers")):
        if "api_key" in provider:
            raise ConfigurationError(
                f"{source}: providers.{name}.api_key: keys do not belong into this file; put it into an environment "
                "variable and name that in api_key_env"
            )


def _unknown(table: Mapping[str, Any], kind: type[msgspec.Struct], source: str, where: str = "") -> Iterator[str]:
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in table.items():
        if key not in fields:
            yield f"{source}: {where}{key} is not known and does not count{closest(key, fields)}"
        elif key not in _FREE and isinstance(value, dict):
            for inner, inner_kind, place in _inner(cast("dict[str, Any]", value), fields[key], f"{where}{key}."):
                yield from _unknown(inner, inner_kind, source, place)


def _inner(table: dict[str, Any], kind: Any, where: str) -> Iterator[tuple[dict[str, Any], type[msgspec.Struct], str]]:
    """The tables in a table with what each may hold: itself, or those in it that people name themselves."""
    for struct in _structs(kind):
        if get_origin(kind) is dict:
            yield from ((inner, struct, f"{where}{name}.") for name, inner in _tables(table))
        else:
            yield table, struct, where


def _tables(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        for name, inner in cast("dict[str, Any]", value).items():
            if isinstance(inner, dict):
                yield name, cast("dict[str, Any]", inner)


def _structs(kind: Any) -> list[type[msgspec.Struct]]:
    """The struct that a field holds, also where it may be left out."""
    return [
        one
        for one in (kind, *getattr(kind, "__args__", ()))
        if isinstance(one, type) and issubclass(one, msgspec.Struct)
    ]
