"""Merges files, environment and flags into one immutable Settings value.

The file of a project is read only if the user trusts the workspace, and it can only make the settings stricter."""

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from outrider.config.file import (
    AgentTable,
    BackgroundTable,
    CompactionTable,
    ConfigFile,
    EgressTable,
    LimitsTable,
    ParsedConfig,
    RecordingTable,
    RetentionTable,
    RetryTable,
    RulesTable,
    SandboxTable,
    WebhookTable,
    WebSearchTable,
    parse_config,
    read_config_file,
    read_servers_file,
    stricter_limits,
    suggest_name,
)
from outrider.config.paths import AppFolders, find_app_folders
from outrider.config.providers import (
    BUILT_IN_PROVIDERS,
    DEFAULT_AGENT,
    DEFAULT_MODELS,
    NO_PROVIDER_MESSAGE,
    AgentBuilder,
    EnvironmentVariables,
    ProviderRegistry,
)
from outrider.errors import ConfigurationError
from outrider.project.trust import CONFIG_FILE, MAX_FILE_BYTES, WorkspaceTrust, find_project
from outrider.types.agents import Agent, Limits, Provider
from outrider.types.modes import APPROVAL_LEVELS, MODES, REASONING_EFFORTS, ApprovalLevel, Mode, ReasoningEffort
from outrider.types.tool_declaration import Effect

MAX_LISTED_NAMES = 5
# The keys that a project file may set. Models, providers, addresses, hosts, servers and allow rules could send data
# to a third party or run programs, so only the user can set them.
_ALLOWED_KEYS = {"mode", "rules", "limits", "agents"}
_ALLOWED_AGENT_KEYS = {"role", "instructions", "mode", "tools", "permissions", "limits"}
_NO_LIMITS = Limits(turns=None, depth=sys.maxsize, parallel_calls=sys.maxsize, calls_per_answer=sys.maxsize)


class PermissionSettings(msgspec.Struct, frozen=True):
    """The settings that the user and a project can both restrict."""

    mode: Mode
    rules: RulesTable
    limits: Limits


def read_project_config(workspace: Path, folders: AppFolders) -> ParsedConfig:
    """Reads the project's file if the workspace is trusted. Raises ConfigurationError for an invalid file instead of
    ignoring it, because it may contain deny rules."""
    trust = WorkspaceTrust(find_project(workspace, folders.home), folders.trust_file)
    if not trust.trusted:
        return ParsedConfig(ConfigFile(), tuple(_untrusted_notice(trust.list_names())))
    ignored = (
        f"{item.name} is ignored: it is new or has changed since you trusted" for item in trust.unapproved_items()
    )
    changed = (
        f"{name} is new or has changed since you trusted this folder, and applies; `outrider trust` shows it"
        for name in trust.changed_files()
    )
    trust_notices = (*ignored, *changed)
    path = trust.project.root / CONFIG_FILE
    if not os.path.lexists(path):
        return ParsedConfig(ConfigFile(), trust_notices)
    content = trust.project.read_file(path, MAX_FILE_BYTES)
    if content is None:
        reason = f"{path} is ignored: it is a link to a path outside the workspace, or not a regular file"
        return ParsedConfig(ConfigFile(), (*trust_notices, reason))
    parsed = parse_config(content, str(path))
    return ParsedConfig(parsed.content, (*trust_notices, *parsed.notices, *_disallowed_keys(parsed.content, path)))


def remember_shown_files(workspace: Path, folders: AppFolders) -> None:
    """Stores that the user has read the notices about changed files, so that they are shown once."""
    trust = WorkspaceTrust(find_project(workspace, folders.home), folders.trust_file)
    if trust.trusted:
        trust.remember_files()


def _untrusted_notice(names: list[str]) -> Iterator[str]:
    if names:
        suffix = f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else ""
        shown_names = ", ".join(names[:MAX_LISTED_NAMES])
        yield f"this workspace is not trusted, so its files are ignored ({shown_names}{suffix}); see `outrider trust`"


def project_ceiling(project: ConfigFile) -> PermissionSettings:
    """Returns the loosest permissions that a project file allows."""
    rules = RulesTable(ask=project.rules.ask, deny=project.rules.deny)
    return PermissionSettings(project.mode or "background", rules, project.limits.apply_to(_NO_LIMITS))


def tighten_permissions(user: PermissionSettings, ceiling: PermissionSettings) -> PermissionSettings:
    """Returns the user's permissions, restricted by the project's."""
    rules = RulesTable(
        allow=user.rules.allow,
        ask=tuple(dict.fromkeys((*user.rules.ask, *ceiling.rules.ask))),
        deny=tuple(dict.fromkeys((*user.rules.deny, *ceiling.rules.deny))),
    )
    return PermissionSettings(
        _stricter_mode(user.mode, ceiling.mode), rules, stricter_limits(user.limits, ceiling.limits)
    )


def project_agents(project: ConfigFile, taken: Collection[str]) -> dict[str, AgentTable]:
    """Returns the agents that a project adds. They use the user's model and cannot have allow rules."""
    return {
        name: AgentTable(
            role=table.role,
            instructions=table.instructions,
            mode=table.mode,
            tools=table.tools,
            permissions=RulesTable(ask=table.permissions.ask, deny=table.permissions.deny),
            limits=table.limits,
        )
        for name, table in project.agents.items()
        if name not in taken
    }


def restrict_agent(agent: Agent, by: PermissionSettings) -> Agent:
    """Returns the agent with a mode and limits that are at least as strict as the given ones."""
    limits = stricter_limits(agent.limits, by.limits)
    return msgspec.structs.replace(agent, mode=_stricter_mode(agent.mode, by.mode), limits=limits)


def _disallowed_keys(file: ConfigFile, path: Path) -> Iterator[str]:
    defaults, agent_defaults = ConfigFile(), AgentTable()
    for name in ConfigFile.__struct_fields__:
        if name not in _ALLOWED_KEYS and getattr(file, name) != getattr(defaults, name):
            yield f"{path}: {name} is ignored here; set it in your own configuration"
    if file.rules.allow:
        yield f"{path}: rules.allow is ignored here: a project can only make rules stricter"
    for agent, table in file.agents.items():
        for name in AgentTable.__struct_fields__:
            if name not in _ALLOWED_AGENT_KEYS and getattr(table, name) != getattr(agent_defaults, name):
                yield f"{path}: agents.{agent}.{name} is ignored here; set it in your own configuration"


def _stricter_mode(mode: Mode, other: Mode) -> Mode:
    """Returns the stricter mode. `MODES` lists the strictest one first."""
    return MODES[min(MODES.index(mode), MODES.index(other))]


def check_rules(rules: RulesTable, where: str, workspace: Path) -> tuple[str, ...]:
    """Checks rules and returns notices about unknown tools, and about rules that match nothing or less than they seem
    to. `where` is the location that messages name. Raises ConfigurationError for a rule that cannot be parsed."""
    if rules == RulesTable():
        return ()
    effects: tuple[Effect, ...] = ("allow", "ask", "deny")
    return tuple(notice for effect in effects for notice in _check_rule_list(rules, effect, where, workspace))


def _check_rule_list(rules: RulesTable, kind: Effect, where: str, workspace: Path) -> Iterator[str]:
    from pkgutil import iter_modules

    from outrider.permissions.rule_warnings import find_weaknesses
    from outrider.tools import builtin
    from outrider.types.tool_declaration import KNOWN_NAMES, canonical_tool, check_rule

    tool_names = {*KNOWN_NAMES, *(module.name for module in iter_modules(builtin.__path__))}
    for text in getattr(rules, kind):
        rule = check_rule(text, kind, where)
        hint = suggest_name(canonical_tool(rule.tool), tool_names)
        if hint and not rule.right and canonical_tool(rule.tool) not in tool_names:
            yield f"{where}.{kind}: {text!r} names no built-in tool{hint}"
        elif kind == "allow" and text in (*rules.deny, *rules.ask):
            yield f"{where}.{kind}: {text!r} matches nothing: a rule to deny or ask of the same text comes first"
        else:
            yield from (f"{where}.{kind}: {text!r} {weak}" for weak in find_weaknesses(rule, kind, workspace))


class CommandFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Values from the command line; they override all other sources."""

    model: str | None = None
    mode: str | None = None
    approval: str | None = None
    effort: str | None = None
    no_sandbox: bool = False
    agent: str | None = None
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    max_turns: int | None = None
    max_cost: Decimal | None = None
    max_seconds: float | None = None
    retry_attempts: int | None = None
    retry_seconds: float | None = None

    @property
    def retry(self) -> dict[str, Any]:
        """The values of the retry policy that flags set."""
        return RetryTable(attempts=self.retry_attempts, total=self.retry_seconds).given


_NO_FLAGS = CommandFlags()


def parse_effort(name: str) -> ReasoningEffort:
    """Returns the effort of that name. Raises ConfigurationError with the valid names."""
    for effort in REASONING_EFFORTS:
        if effort == name:
            return effort
    hint = suggest_name(name, REASONING_EFFORTS)
    raise ConfigurationError(f"no reasoning effort is called {name!r}{hint}; levels: {', '.join(REASONING_EFFORTS)}")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a process. API keys are only in `environ` and `providers`, whose reprs hide them.

    - `model`: the model of the first agent as PROVIDER/MODEL, or "" if none is reachable.
    - `agents`: the first one is the entry agent.
    - `missing`: describes missing credentials.
    - `notices`: are shown to the user.
    """

    folders: AppFolders
    workspace: Path
    environ: EnvironmentVariables
    model: str
    mode: Mode
    agents: tuple[Agent, ...]
    providers: tuple[Provider, ...]
    rules: RulesTable = RulesTable()
    limits: Limits = Limits()
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
    approval: ApprovalLevel = "ask"
    no_sandbox: bool = False
    missing: str = ""
    notices: tuple[str, ...] = ()

    @property
    def data_folder(self) -> Path:
        return self.folders.data

    @property
    def home_folder(self) -> Path:
        return self.folders.home

    @property
    def prompts_folder(self) -> Path:
        return self.folders.prompts_folder


def read_settings(
    *, cwd: str | Path | None = None, environ: Mapping[str, str] = os.environ, flags: CommandFlags = _NO_FLAGS
) -> Settings:
    """Reads all sources. Raises ConfigurationError, which names the file and the key, for invalid settings."""
    workspace = _resolve_workspace(cwd)
    folders = find_app_folders(environ)
    user_config, project = read_config_file(folders.config_file), read_project_config(workspace, folders)
    file, source = user_config.content, str(folders.config_file)
    user_permissions = PermissionSettings(
        _resolve_mode(flags, environ, file), _merge_rules(flags, file), _resolve_limits(flags, file)
    )
    providers = ProviderRegistry(file.providers, _with_stored_keys(environ, folders.keys_file), source)
    model = flags.model or environ.get("OUTRIDER_MODEL", "").strip()
    if model:
        providers.resolve_models(model, "--model or OUTRIDER_MODEL")
    builder = AgentBuilder(
        providers,
        model=model or file.model or _remembered_model(folders, providers) or providers.default_model(),
        mode=user_permissions.mode,
        limits=user_permissions.limits,
        prompts=folders.prompts_folder,
        source=source,
        model_source="--model or OUTRIDER_MODEL" if model else f"{source}: model",
        retry=file.retry.given,
        retry_flags=flags.retry,
        effort=file.reasoning_effort,
        vendor_tools=file.vendor_tools,
    )
    tables = _order_agents(file, flags, model, _resolve_effort(flags, environ))
    ceiling, added_agents = project_ceiling(project.content), project_agents(project.content, tables)
    # The rules are checked here, because the agents would raise errors that do not name the file.
    setting_notices = tuple(_setting_notices(flags, file, environ, source, workspace))
    project_notices = (
        *check_rules(ceiling.rules, f"{CONFIG_FILE}: rules", workspace),
        *_agent_rule_notices(added_agents, str(CONFIG_FILE), workspace),
    )
    rights = tighten_permissions(user_permissions, ceiling)
    agents = (
        *(restrict_agent(agent, ceiling) for agent in builder.build_agents(tables)),
        *(restrict_agent(agent, rights) for agent in builder.build_agents(added_agents)),
    )
    reachable, missing = _required_providers(agents, providers)
    reachable = tuple(_with_retry(provider, file.retry.given, flags.retry) for provider in reachable)
    added_servers = read_servers_file(folders.servers_file)
    file_notices = (*user_config.notices, *project.notices, *_missing_key_notices(agents, providers, source))
    return Settings(
        folders=folders,
        workspace=workspace,
        environ=EnvironmentVariables(environ),
        model=str(agents[0].model_ref),
        mode=agents[0].mode,
        approval=_resolve_approval(flags, environ, file),
        no_sandbox=flags.no_sandbox,
        agents=agents,
        providers=reachable,
        rules=rights.rules,
        limits=agents[0].limits,
        compaction=file.compaction,
        retention=file.retention,
        recording=file.recording,
        sandbox=file.sandbox,
        web_search=file.web_search,
        egress=file.egress,
        background=file.background,
        webhooks=file.webhooks,
        mcp={**added_servers, **file.mcp},
        mcp_all_sessions=file.mcp_all_sessions,
        models=file.models,
        missing=missing,
        notices=(
            *file_notices,
            *setting_notices,
            *_server_notices(added_servers, file, environ, folders),
            *project_notices,
        ),
    )


def no_key_yet() -> str:
    """Raises ConfigurationError: the key function of a provider whose key is not stored yet."""
    raise ConfigurationError("no key is stored yet: enter one on the first page or in the settings of the page")


def with_first_vendor(settings: Settings) -> Settings:
    """Returns settings that an engine accepts although no model is configured: the key can be stored later, and then
    the model of its vendor is used. Other settings are returned unchanged."""
    if not settings.missing or settings.agents[0].provider:
        return settings
    name, kind = next(iter(BUILT_IN_PROVIDERS.items()))
    agents = tuple(
        agent if agent.provider else msgspec.structs.replace(agent, provider=name, model=DEFAULT_MODELS[kind])
        for agent in settings.agents
    )
    providers = (
        *settings.providers,
        *([] if name in {provider.name for provider in settings.providers} else [Provider(name, kind, no_key_yet)]),
    )
    return msgspec.structs.replace(settings, agents=agents, providers=providers, missing="")


def reload_providers(settings: Settings) -> tuple[Provider, ...]:
    """Returns the providers with the keys that are stored now. A provider whose key was removed has none. Raises
    ConfigurationError if the configuration file has become invalid."""
    folders = settings.folders
    file = read_config_file(folders.config_file).content
    environ = _with_stored_keys(settings.environ, folders.keys_file)
    registry = ProviderRegistry(file.providers, environ, str(folders.config_file))
    current = {provider.name: provider for provider in _required_providers(settings.agents, registry)[0]}
    previous = {provider.name: provider for provider in settings.providers}
    return (
        *(
            msgspec.structs.replace(old, api_key=current[name].api_key if name in current else None)
            for name, old in previous.items()
        ),
        *(_with_retry(new, file.retry.given, {}) for name, new in current.items() if name not in previous),
    )


def _with_stored_keys(environ: Mapping[str, str], file: Path) -> Mapping[str, str]:
    """Returns the environment with the keys that `outrider login` has stored."""
    if not file.exists():
        return environ
    from outrider.config.stored_keys import KeyStore, add_stored_keys  # lazy: most users set variables

    return add_stored_keys(environ, KeyStore(file))


CHOSEN_MODEL_FILE = "chosen_model"


def remember_model(data_folder: Path, model: str) -> None:
    """Stores the model that the user chose, for sessions that are started without naming one."""
    with suppress(OSError):  # without the file the default model is used
        (data_folder / CHOSEN_MODEL_FILE).write_text(f"{model}\n", encoding="utf-8")


def _remembered_model(folders: AppFolders, providers: ProviderRegistry) -> str:
    """Returns the model that the user chose last, or "" if it cannot be reached any more."""
    try:
        model = (folders.data / CHOSEN_MODEL_FILE).read_text(encoding="utf-8").strip()
        name, _ = providers.resolve_model(model, CHOSEN_MODEL_FILE)
        return "" if providers.missing_credentials(providers.find_provider(name)) else model
    except (OSError, UnicodeDecodeError, ConfigurationError):
        return ""


def _agent_rule_notices(tables: Mapping[str, AgentTable], source: str, workspace: Path) -> Iterator[str]:
    for name, table in tables.items():
        yield from check_rules(table.permissions, f"{source}: agents.{name}.permissions", workspace)


def _setting_notices(
    flags: CommandFlags, file: ConfigFile, environ: Mapping[str, str], source: str, workspace: Path
) -> Iterator[str]:
    """Yields notices about settings that are valid but have less effect than expected."""
    yield from check_rules(RulesTable(allow=flags.allow, ask=flags.ask, deny=flags.deny), "flags", workspace)
    yield from check_rules(file.rules, f"{source}: rules", workspace)
    yield from _agent_rule_notices(file.agents, source, workspace)
    if file.mcp:
        from outrider.project.mcp import user_servers

        yield from user_servers(file.mcp, source, environ).problems


def _server_notices(
    added: Mapping[str, dict[str, Any]], file: ConfigFile, environ: Mapping[str, str], folders: AppFolders
) -> Iterator[str]:
    """Yields notices about servers of `outrider mcp add` and `import` that cannot be used as they are written."""
    entries = {name: entry for name, entry in added.items() if name not in file.mcp}
    if entries:
        from outrider.project.mcp import user_servers

        yield from user_servers(entries, str(folders.servers_file), environ).problems


def _missing_key_notices(agents: tuple[Agent, ...], providers: ProviderRegistry, source: str) -> Iterator[str]:
    for name in dict.fromkeys(agent.provider for agent in agents):
        if variable := providers.missing_key_variable(name):
            yield f"{source}: providers.{name}.api_key_env: ${variable} is not set, so {name} is used without a key"


def _resolve_workspace(cwd: str | Path | None) -> Path:
    folder = Path(cwd or Path.cwd()).absolute()
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is not a folder; pass an existing one as workspace")
    return folder


def _resolve_mode(flags: CommandFlags, environ: Mapping[str, str], file: ConfigFile) -> Mode:
    name = flags.mode or environ.get("OUTRIDER_MODE", "").strip()
    for mode in MODES:
        if mode == (name or file.mode or "agent"):
            return mode
    hint = suggest_name(name, MODES)
    raise ConfigurationError(f"--mode or OUTRIDER_MODE: no mode is called {name!r}{hint}; modes: {', '.join(MODES)}")


def _resolve_approval(flags: CommandFlags, environ: Mapping[str, str], file: ConfigFile) -> ApprovalLevel:
    name = flags.approval or environ.get("OUTRIDER_APPROVAL", "").strip()
    for level in APPROVAL_LEVELS:
        if level == (name or file.approval or "ask"):
            return level
    levels, hint = ", ".join(APPROVAL_LEVELS), suggest_name(name, APPROVAL_LEVELS)
    where = "--approval or OUTRIDER_APPROVAL"
    raise ConfigurationError(f"{where}: no approval level is called {name!r}{hint}; levels: {levels}")


def _resolve_effort(flags: CommandFlags, environ: Mapping[str, str]) -> ReasoningEffort | None:
    name = flags.effort or environ.get("OUTRIDER_EFFORT", "").strip()
    try:
        return parse_effort(name) if name else None
    except ConfigurationError as error:
        raise ConfigurationError(f"--effort or OUTRIDER_EFFORT: {error}") from None


def _resolve_limits(flags: CommandFlags, file: ConfigFile) -> Limits:
    flag_limits = LimitsTable(turns=flags.max_turns, cost=flags.max_cost, seconds=flags.max_seconds)
    return flag_limits.apply_to(file.limits.apply_to(Limits()))


def _merge_rules(flags: CommandFlags, file: ConfigFile) -> RulesTable:
    """Merges the rules of all sources; a deny rule wins wherever it comes from."""
    return RulesTable(
        allow=(*flags.allow, *file.rules.allow),
        ask=(*flags.ask, *file.rules.ask),
        deny=(*flags.deny, *file.rules.deny),
    )


def _order_agents(
    file: ConfigFile, flags: CommandFlags, model: str, effort: ReasoningEffort | None
) -> dict[str, AgentTable]:
    """Returns the user's agent tables, the entry agent first. A model, mode or effort from a flag or the environment
    applies to it alone."""
    tables = {DEFAULT_AGENT: AgentTable(), **file.agents}
    name = flags.agent or file.agent or DEFAULT_AGENT
    if name not in tables:
        raise ConfigurationError(
            f"there is no agent {name!r}{suggest_name(name, tables)} (there are: {', '.join(tables)})"
        )
    table = tables.pop(name)
    overrides = {"model": model or table.model, "mode": None if flags.mode else table.mode}
    if effort is not None:
        overrides |= {"reasoning_effort": effort, "reasoning": None}
    return {name: msgspec.structs.replace(table, **overrides), **tables}


def _required_providers(agents: tuple[Agent, ...], providers: ProviderRegistry) -> tuple[tuple[Provider, ...], str]:
    """Returns the providers of the agents and all usable ones, and a message about missing credentials."""
    needed = {agent.provider: providers.find_provider(agent.provider) for agent in agents if agent.provider}
    fallbacks = {name: providers.find_provider(name) for agent in agents for name in agent.provider_names if name}
    missing = NO_PROVIDER_MESSAGE if not agents[0].provider else ""
    for provider in needed.values():
        missing = missing or providers.missing_credentials(provider) or ""
    usable = {provider.name: provider for provider in providers.usable_providers()}
    return tuple((needed | fallbacks | usable).values()), missing


def _with_retry(provider: Provider, defaults: Mapping[str, Any], flags: Mapping[str, Any]) -> Provider:
    """Returns the provider with the retry policy of all sources; flags win, then its own options."""
    retry = {**defaults, **provider.options.get("retry", {}), **flags}
    if not retry or provider.kind in ("local", "scripted"):
        return provider
    return msgspec.structs.replace(provider, options={**provider.options, "retry": retry})
