"""Reads one configuration file: what is wrong in it is said by file, key and expectation; what is unknown is passed
over with a notice, so that the file of a newer version does not lose everything."""

import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import msgspec

from outrider.errors import ConfigurationError
from outrider.types.agents import Limits, Mode
from outrider.types.request import ReasoningEffort

Kind = Literal["anthropic", "openai", "openai-responses", "google", "local", "outrider", "scripted"]
Texts = tuple[str, ...]
Count = Annotated[int, msgspec.Meta(ge=1)]


class ProviderTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[providers.NAME]`. The key stays in the environment: `api_key_env` names the variable that holds it."""

    kind: Kind | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = {}
    options: dict[str, Any] = {}
    model: str | None = None


class RulesTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[rules]`, each one written as tool(pattern)."""

    allow: Texts = ()
    ask: Texts = ()
    deny: Texts = ()


class LimitsTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[limits]`: bounds over a turn and all agents in it; what is left out stays as it is."""

    turns: Count | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    tokens: Count | None = None
    cost: Decimal | Annotated[float, msgspec.Meta(ge=0)] | None = None
    depth: Annotated[int, msgspec.Meta(ge=0)] | None = None
    parallel_calls: Count | None = None

    def over(self, limits: Limits) -> Limits:
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        if isinstance(given.get("cost"), float):
            given["cost"] = Decimal(str(given["cost"]))
        return msgspec.structs.replace(limits, **given)


def lower_of(one: Limits, other: Limits) -> Limits:
    """Of two bounds the lower one; None is no bound."""
    return Limits(**{name: _lower(getattr(one, name), getattr(other, name)) for name in Limits.__struct_fields__})


def _lower(one: Any, other: Any) -> Any:
    return min((bound for bound in (one, other) if bound is not None), default=None)


class AgentTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[agents.NAME]`. Without instructions it is the default agent under another name."""

    role: str = ""
    instructions: str | None = None
    instructions_file: str | None = None
    model: str | None = None
    mode: Mode | None = None
    tools: Texts | None = None
    permissions: RulesTable = RulesTable()
    limits: LimitsTable | None = None
    max_output_tokens: int | None = None
    reasoning: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    reasoning_budget: int | None = None
    temperature: float | None = None
    stream: bool | None = None
    extra: dict[str, Any] = {}


class CompactionTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[compaction]`: whether a conversation is shortened before it fills the model's context, or only when the model
    refuses it or somebody asks for it."""

    automatic: bool = True


class RetentionTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[retention]`: sessions that nobody used for so many days are forgotten; without it none is."""

    days: Annotated[int, msgspec.Meta(ge=0)] | None = None


class SandboxTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[sandbox]`: the hosts that confined commands may reach."""

    hosts: Texts = ()


class BoundsTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[background.queues.NAME]`, `[background.providers.NAME]`: how many runs may be under way at once, over all
    workers, and how many may start in a time; what is left out is no bound."""

    at_once: Count | None = None
    starts: Count | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0)] = 60


class BackgroundTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[background]`: how many `runs` a worker has at once, and bounds for queues and for providers. A run counts for
    the provider of the agent that it begins with. Workers that share a database should agree on the bounds. `webhooks`
    are the hosts of an inner network that may be told of ends; public ones may always."""

    runs: Count = 4
    webhooks: tuple[str, ...] = ()
    queues: dict[str, BoundsTable] = {}
    providers: dict[str, BoundsTable] = {}


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file. `mcp` holds servers as `.mcp.json` writes them, `models` facts of models by their names."""

    model: str | None = None
    agent: str | None = None
    mode: Mode | None = None
    providers: dict[str, ProviderTable] = {}
    agents: dict[str, AgentTable] = {}
    rules: RulesTable = RulesTable()
    limits: LimitsTable = LimitsTable()
    compaction: CompactionTable = CompactionTable()
    retention: RetentionTable = RetentionTable()
    sandbox: SandboxTable = SandboxTable()
    background: BackgroundTable = BackgroundTable()
    mcp: dict[str, dict[str, Any]] = {}
    models: dict[str, dict[str, Any]] = {}


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
