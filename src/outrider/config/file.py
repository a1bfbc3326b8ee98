"""Parses one configuration file. Errors name the file, the key and the expected type. Unknown keys produce a notice and
not an error, so that the file of a newer version still loads."""

import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args, get_origin

import msgspec

from outrider._lazy import lazy_pattern
from outrider.errors import ConfigurationError
from outrider.types.agents import Limits, Mode, ProviderKind
from outrider.types.modes import ApprovalLevel, ReasoningEffort, VendorTool

StringTuple = tuple[str, ...]
PositiveInt = Annotated[int, msgspec.Meta(ge=1)]


class ProviderTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[providers.NAME]`. The key stays in the environment: `api_key_env` names the variable that holds it."""

    kind: ProviderKind | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = {}
    options: dict[str, Any] = {}
    model: str | None = None


class RulesTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[rules]`: lists of permission rules, each written as tool(pattern)."""

    allow: StringTuple = ()
    ask: StringTuple = ()
    deny: StringTuple = ()


class LimitsTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[limits]`: limits for a turn and all its agents. An omitted key keeps its default."""

    turns: PositiveInt | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    tokens: PositiveInt | None = None
    cost: Decimal | Annotated[float, msgspec.Meta(ge=0)] | None = None
    depth: Annotated[int, msgspec.Meta(ge=0)] | None = None
    parallel_calls: PositiveInt | None = None
    calls_per_answer: PositiveInt | None = None
    repeats: PositiveInt | None = None

    def apply_to(self, limits: Limits) -> Limits:
        """Returns the limits with the values that this table sets."""
        overrides = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        if isinstance(overrides.get("cost"), float):
            overrides["cost"] = Decimal(str(overrides["cost"]))
        return msgspec.structs.replace(limits, **overrides)


def stricter_limits(limits: Limits, other: Limits) -> Limits:
    """Returns the lower value of each limit; None means no limit."""
    return Limits(
        **{name: _lower_bound(getattr(limits, name), getattr(other, name)) for name in Limits.__struct_fields__}
    )


def _lower_bound(first: Any, second: Any) -> Any:
    return min((bound for bound in (first, second) if bound is not None), default=None)


class RetryTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[retry]`, `[agents.NAME.retry]`: how often and how long a failed model request is repeated; see RetryPolicy. An
    omitted key keeps its default."""

    attempts: PositiveInt | None = None
    first_window: Annotated[float, msgspec.Meta(ge=0)] | None = None
    largest_window: Annotated[float, msgspec.Meta(ge=0)] | None = None
    longest_wait: Annotated[float, msgspec.Meta(ge=0)] | None = None
    total: Annotated[float, msgspec.Meta(ge=0)] | None = None
    attempts_before_fallback: PositiveInt | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The values that this table sets."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}


class AgentTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[agents.NAME]`. Without instructions the agent uses those of the default agent. `model` may be a list: the next
    model answers if one is not available."""

    role: str = ""
    instructions: str | None = None
    instructions_file: str | None = None
    model: str | StringTuple | None = None
    mode: Mode | None = None
    tools: StringTuple | None = None
    permissions: RulesTable = RulesTable()
    limits: LimitsTable | None = None
    max_output_tokens: int | None = None
    reasoning: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    reasoning_budget: int | None = None
    temperature: float | None = None
    stream: bool | None = None
    vendor_tools: tuple[VendorTool, ...] | None = None
    extra: dict[str, Any] = {}
    retry: RetryTable = RetryTable()


class CompactionTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[compaction]`: whether the context is compacted before it is full, or only after an overflow or on request."""

    automatic: bool = True


class RetentionTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[retention]`: sessions that were not used for `days` days are deleted. By default none is deleted."""

    days: Annotated[int, msgspec.Meta(ge=0)] | None = None


class RecordingTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[recording]`: whether the requests of every session to its models, and the answers, are stored for `replay`."""

    enabled: bool = False


class SandboxTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[sandbox]`: the hosts that sandboxed commands may connect to. With `image` each command runs in a container of
    this image; `engine` is the program of the container engine, `options` are more options of its `run` command."""

    hosts: StringTuple = ()
    image: str = ""
    engine: str = "podman"
    options: StringTuple = ()


class BudgetTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[egress.allow.DESTINATION]`: what a session may send there without a question. An omitted key means no limit."""

    requests: PositiveInt | None = None
    bytes: PositiveInt | None = None


class EgressTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[egress]`: where a session may send data without a question after it has read untrusted text. The keys of
    `allow` are host names, `mcp:SERVER` or `tool:NAME`. Results of `private_servers` (MCP) are private data, those of
    `trusted_servers` are trusted text."""

    allow: dict[str, BudgetTable] = {}
    private_servers: StringTuple = ()
    trusted_servers: StringTuple = ()


class WebSearchTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[web_search]`: the service of the tool `web_search`, which exists only with this table. `api_key_env` names the
    variable that holds the key."""

    service: Literal["searxng", "brave", "tavily"] | None = None
    base_url: str | None = None
    api_key_env: str | None = None


class BoundsTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[background.queues.NAME]`, `[background.providers.NAME]`: the maximum number of concurrent runs over all
    workers, and of starts within `seconds`. An omitted key means no limit."""

    at_once: PositiveInt | None = None
    starts: PositiveInt | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0)] = 60


class RunRetryTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[background.retry]`: how often a run starts again after an error of a provider that passes, after the retries of
    the request itself. The wait is random within a window that doubles; a delay that the provider requests is added.
    `errors` are names of exceptions; their subclasses are included. `attempts = 1` means no retry."""

    attempts: PositiveInt = 10
    first_window: Annotated[float, msgspec.Meta(gt=0)] = 30
    largest_window: Annotated[float, msgspec.Meta(gt=0)] = 1800
    errors: StringTuple = ("RateLimitError", "OverloadedError", "ServerError", "NetworkError")


class BackgroundTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[background]`: background runs and their workers. Workers that share a database should use the same limits.

    - `runs`: the number of concurrent runs per worker.
    - `outage_seconds`: how long a turn waits for an unavailable database. Afterwards the run continues from its stored
      state when the database is available.
    - `grace_seconds`: how long running calls may take to end when their worker is stopped.
    - `retry`: how often a failed run starts again.
    - `webhooks`: hosts of a private network that may be notified; public hosts are always allowed.
    - `webhook_secret`: signs the notices.
    - `queues`: limits per queue.
    - `providers`: limits per provider. A run counts against the provider of its entry agent.
    - `user`: the name under which submitted runs take turns with those of other users.
    - `snapshot_megabytes`: up to this size the changed files of a run's worktree are stored, so that another machine
      continues with them; 0 for none.
    - `snapshot_ignored`: whether these include files that git ignores.
    """

    runs: PositiveInt = 4
    outage_seconds: Annotated[float, msgspec.Meta(ge=0)] = 600
    grace_seconds: Annotated[float, msgspec.Meta(ge=0)] = 20
    retry: RunRetryTable = RunRetryTable()
    webhooks: tuple[str, ...] = ()
    webhook_secret: str = ""
    queues: dict[str, BoundsTable] = {}
    providers: dict[str, BoundsTable] = {}
    user: str = ""
    snapshot_megabytes: Annotated[int, msgspec.Meta(ge=0)] = 20
    snapshot_ignored: bool = False


WebhookEvent = Literal["turn.completed", "turn.failed", "turn.aborted", "approval.requested", "question.asked"]
WEBHOOK_EVENTS: tuple[WebhookEvent, ...] = get_args(WebhookEvent)


class WebhookTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[webhooks.NAME]`: a URL that the server notifies about turns of interactive sessions. With `user`, only about
    sessions that this user of the server can see. The notices are signed with `secret`, or else with `[background]
    webhook_secret`; hosts of a private network must be listed in `[background] webhooks`."""

    url: str
    events: tuple[WebhookEvent, ...] = WEBHOOK_EVENTS
    user: str = ""
    secret: str = ""


class ConfigFile(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed file. `mcp` has the same entries as `mcpServers` in `.mcp.json`; `models` overrides catalog entries by
    model name. `model` may be a list: the next model answers if one is not available. With `mcp_all_sessions`, other
    agents read the sessions of all folders over MCP."""

    model: str | StringTuple | None = None
    agent: str | None = None
    mode: Mode | None = None
    approval: ApprovalLevel | None = None
    reasoning_effort: ReasoningEffort | None = None
    vendor_tools: tuple[VendorTool, ...] | None = None
    providers: dict[str, ProviderTable] = {}
    agents: dict[str, AgentTable] = {}
    rules: RulesTable = RulesTable()
    limits: LimitsTable = LimitsTable()
    retry: RetryTable = RetryTable()
    compaction: CompactionTable = CompactionTable()
    retention: RetentionTable = RetentionTable()
    recording: RecordingTable = RecordingTable()
    sandbox: SandboxTable = SandboxTable()
    web_search: WebSearchTable = WebSearchTable()
    egress: EgressTable = EgressTable()
    background: BackgroundTable = BackgroundTable()
    webhooks: dict[str, WebhookTable] = {}
    mcp: dict[str, dict[str, Any]] = {}
    mcp_all_sessions: bool = False
    models: dict[str, dict[str, Any]] = {}


MAX_FILE_BYTES = 1 << 20
_MSGSPEC_ERROR = lazy_pattern(r"^(?P<problem>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN_VALUE = lazy_pattern(r"Invalid enum value '(?P<value>.*)'", re.DOTALL)
_TYPE_NAMES = {"int": "a whole number", "float": "a number", "str": "a string", "bool": "true or false",
               "object": "a table", "array": "a list", "decimal": "a number"}  # fmt: skip
# Tables with user-chosen keys, and the struct type of their values.
_NAMED_TABLES: dict[str, type[msgspec.Struct]] = {"providers": ProviderTable, "agents": AgentTable}
_FREE_FORM_KEYS = frozenset({"headers", "options", "extra", "mcp", "models"})


class ParsedConfig(msgspec.Struct, frozen=True):
    """The content of a file and notices about its unknown keys."""

    content: ConfigFile
    notices: tuple[str, ...] = ()


def read_config_file(path: Path) -> ParsedConfig:
    """Reads and parses a file; a missing file is an empty configuration. Raises ConfigurationError for an invalid
    one."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ConfigurationError(f"{path}: is not a file")
        if status.st_size > MAX_FILE_BYTES:
            raise ConfigurationError(f"{path}: is larger than {MAX_FILE_BYTES} bytes")
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return ParsedConfig(ConfigFile())
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    return parse_config(content, str(path))


def read_servers_file(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the MCP servers that `outrider mcp add` has written. A missing file has none."""
    try:
        document = msgspec.json.decode(path.read_bytes() or b"{}", type=dict[str, Any])
        return msgspec.convert(document.get("mcpServers", {}), dict[str, dict[str, Any]])
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(
            f"{path}: expected JSON with `mcpServers`, an object of servers by name: {error}"
        ) from error


def parse_config(content: bytes, source: str) -> ParsedConfig:
    """Parses TOML text. Error messages refer to it as `source`."""
    import tomllib

    try:
        table = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{source}: is not UTF-8 (byte {error.start})") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{source}: is not valid TOML: {error}") from error
    _reject_api_keys(table, source)
    try:
        return ParsedConfig(msgspec.convert(table, ConfigFile), tuple(_unknown_keys(table, ConfigFile, source)))
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{source}: {_locate_error(table, error)}", file=source) from error


def describe_validation_error(error: msgspec.ValidationError, kind: type[msgspec.Struct], where: str = "") -> str:
    """Rewords a msgspec error: states the key, the expected type, and the allowed values."""
    match = _MSGSPEC_ERROR.match(str(error))
    problem, path = (match["problem"], match["path"] or "") if match else (str(error), "")
    key = where + path.removeprefix("$").removeprefix(".")
    problem = re.sub(r"`([a-z |]+)`", lambda types: _type_names(types[1]), problem)
    choices = _allowed_values(kind, path.removeprefix("$.").split("."))
    if value := _UNKNOWN_VALUE.match(problem):
        hint = suggest_name(value["value"], choices)
        return f"{key}: {value['value']!r} is not allowed{hint}; allowed values: {', '.join(choices)}"
    expected = f"; expected {', '.join(choices)}" if choices else ""
    return f"{key.rstrip('.') or 'the file'}: {problem[:1].lower()}{problem[1:]}{expected}"


def _type_names(types: str) -> str:
    return " or ".join(_TYPE_NAMES.get(name, name) for name in types.split(" | ") if name != "null")


def _allowed_values(kind: Any, keys: list[str]) -> list[str]:
    """Returns the literal values that a key accepts, or an empty list."""
    for key in keys:
        fields = {field.name: field.type for struct in _struct_types(kind) for field in msgspec.structs.fields(struct)}
        kind = fields.get(key)
    values = [value for option in (kind, *get_args(kind)) for value in (option, *get_args(option))]
    return [value for value in values if isinstance(value, str)]


def _locate_error(table: Mapping[str, Any], error: msgspec.ValidationError) -> str:
    """Describes an error. In a table with user-chosen names msgspec does not report the name, so a second validation
    finds it."""
    for key, kind in _NAMED_TABLES.items():
        for name, inner in _subtables(table.get(key)):
            try:
                msgspec.convert(inner, kind)
            except msgspec.ValidationError as inner_error:
                return describe_validation_error(inner_error, kind, f"{key}.{name}.")
    return describe_validation_error(error, ConfigFile)


def suggest_name(name: str, names: Iterable[str]) -> str:
    """Returns a "did you mean" hint for a misspelled name, or ""."""
    from difflib import get_close_matches

    matches = get_close_matches(name, list(names), n=3)
    swapped = [match for match in matches if sorted(match) == sorted(name)]  # `modle` means model, not mode
    return f"; did you mean {(swapped or matches)[0]}?" if matches else ""


def _reject_api_keys(table: Mapping[str, Any], source: str) -> None:
    """Rejects keys in the file, because files end up in backups, repositories and screenshots."""
    for name, provider in _subtables(table.get("providers")):
        if "api_key" in provider:
            raise ConfigurationError(
                f"{source}: providers.{name}.api_key: keys are not allowed in this file; put it into an environment "
                "variable and set api_key_env to its name"
            )


def _unknown_keys(table: Mapping[str, Any], kind: type[msgspec.Struct], source: str, where: str = "") -> Iterator[str]:
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in table.items():
        if key not in fields:
            yield f"{source}: {where}{key} is unknown and ignored{suggest_name(key, fields)}"
        elif key not in _FREE_FORM_KEYS and isinstance(value, dict):
            nested = _nested_tables(cast("dict[str, Any]", value), fields[key], f"{where}{key}.")
            for inner, inner_kind, path in nested:
                yield from _unknown_keys(inner, inner_kind, source, path)


def _nested_tables(
    table: dict[str, Any], kind: Any, where: str
) -> Iterator[tuple[dict[str, Any], type[msgspec.Struct], str]]:
    """Yields the tables inside a table with their struct types: the table itself, or its subtables with user-chosen
    names."""
    for struct in _struct_types(kind):
        if get_origin(kind) is dict:
            yield from ((inner, struct, f"{where}{name}.") for name, inner in _subtables(table))
        else:
            yield table, struct, where


def _subtables(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        for name, inner in cast("dict[str, Any]", value).items():
            if isinstance(inner, dict):
                yield name, cast("dict[str, Any]", inner)


def _struct_types(kind: Any) -> list[type[msgspec.Struct]]:
    """Returns the struct types of a field, which may be optional."""
    return [
        candidate
        for candidate in (kind, *getattr(kind, "__args__", ()))
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct)
    ]
