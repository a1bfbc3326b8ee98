"""Merges files, environment and flags into one immutable Settings value."""

import os
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import msgspec

from outrider.config.environment import EnvironmentVariables
from outrider.config.file import (
    AgentTable,
    BackgroundTable,
    CompactionTable,
    ConfigFile,
    LimitsTable,
    RetentionTable,
    RulesTable,
    SandboxTable,
    read_config_file,
    suggest_name,
)
from outrider.config.paths import AppFolders, find_app_folders
from outrider.config.project import (
    PermissionSettings,
    project_agents,
    project_ceiling,
    read_project_config,
    restrict_agent,
    tighten_permissions,
)
from outrider.config.providers import DEFAULT_AGENT, NO_PROVIDER_MESSAGE, AgentBuilder, ProviderRegistry
from outrider.errors import ConfigurationError
from outrider.types.agents import Agent, Limits, Provider
from outrider.types.modes import MODES, Mode


def check_rules(rules: RulesTable, where: str) -> tuple[str, ...]:
    """Check rules and return notices about unknown tools. `where` is the location that messages name. Raises
    ConfigurationError for a rule that cannot be parsed: an ignored deny rule would be dangerous."""
    if rules == RulesTable():
        return ()
    return tuple(notice for kind in RulesTable.__struct_fields__ for notice in _check_rule_list(rules, kind, where))


def _check_rule_list(rules: RulesTable, kind: str, where: str) -> Iterator[str]:
    from outrider.permissions.rules import parse_rule
    from outrider.tools import builtin
    from outrider.types.tool_declaration import KNOWN_NAMES, canonical_tool

    known = {*KNOWN_NAMES, *(module.name for module in iter_modules(builtin.__path__))}
    for text in getattr(rules, kind):
        rule = parse_rule(text)
        if rule.parse_error:
            raise ConfigurationError(f"{where}.{kind}: {text!r} is not a rule: {rule.parse_error}; write tool(pattern)")
        hint = suggest_name(canonical_tool(rule.tool), known)
        if hint and canonical_tool(rule.tool) not in known:
            yield f"{where}.{kind}: {text!r} names no built-in tool{hint}"


class CommandFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Values from the command line; they override all other sources."""

    model: str | None = None
    mode: str | None = None
    agent: str | None = None
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    max_turns: int | None = None
    max_cost: Decimal | None = None
    max_seconds: float | None = None


_NO_FLAGS = CommandFlags()


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a process. `model` is that of the first agent as PROVIDER/MODEL, or "" if none is reachable. The
    first of `agents` is the entry agent. `missing` describes missing credentials, `notices` are shown to the user. API
    keys are only in `providers` and `environ`, whose reprs hide them."""

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
    sandbox: SandboxTable = SandboxTable()
    background: BackgroundTable = BackgroundTable()
    mcp: dict[str, dict[str, Any]] = {}
    models: dict[str, dict[str, Any]] = {}
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
    """Read all sources. Raises ConfigurationError, which names the file and the key, for invalid settings."""
    workspace = _resolve_workspace(cwd)
    folders = find_app_folders(environ)
    own, project = read_config_file(folders.config_file), read_project_config(workspace, folders)
    file, source = own.content, str(folders.config_file)
    users = PermissionSettings(
        _resolve_mode(flags, environ, file), _merge_rules(flags, file), _resolve_limits(flags, file)
    )
    providers = ProviderRegistry(file.providers, environ, source)
    wanted = flags.model or environ.get("OUTRIDER_MODEL", "").strip()
    if wanted:
        providers.resolve_model(wanted, "--model or OUTRIDER_MODEL")
    builder = AgentBuilder(
        providers,
        model=wanted or file.model or providers.default_model(),
        mode=users.mode,
        limits=users.limits,
        prompts=folders.prompts_folder,
        source=source,
    )
    tables = _order_agents(file, flags, wanted)
    ceiling = project_ceiling(project.content)
    rights = tighten_permissions(users, ceiling)
    agents = (
        *(restrict_agent(agent, ceiling) for agent in builder.build_agents(tables)),
        *(restrict_agent(agent, rights) for agent in builder.build_agents(project_agents(project.content, tables))),
    )
    reachable, missing = _required_providers(agents, providers)
    noticed = (*own.notices, *project.notices, *_missing_key_notices(agents, providers, source))
    return Settings(
        folders=folders,
        workspace=workspace,
        environ=EnvironmentVariables(environ),
        model=f"{agents[0].provider}/{agents[0].model}".rstrip("/"),
        mode=agents[0].mode,
        agents=agents,
        providers=reachable,
        rules=rights.rules,
        limits=agents[0].limits,
        compaction=file.compaction,
        retention=file.retention,
        sandbox=file.sandbox,
        background=file.background,
        mcp=file.mcp,
        models=file.models,
        missing=missing,
        notices=(*noticed, *_setting_notices(flags, file, environ, source)),
    )


def _setting_notices(flags: CommandFlags, file: ConfigFile, environ: Mapping[str, str], source: str) -> Iterator[str]:
    """Yield notices about settings that are valid but have less effect than expected."""
    yield from check_rules(RulesTable(allow=flags.allow, ask=flags.ask, deny=flags.deny), "flags")
    yield from check_rules(file.rules, f"{source}: rules")
    for name, table in file.agents.items():
        yield from check_rules(table.permissions, f"{source}: agents.{name}.permissions")
    if file.mcp:
        from outrider.project.mcp import user_servers

        yield from user_servers(file.mcp, source, environ).problems


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
    given = flags.mode or environ.get("OUTRIDER_MODE", "").strip()
    for mode in MODES:
        if mode == (given or file.mode or "agent"):
            return mode
    raise ConfigurationError(f"no mode is called {given!r}{suggest_name(given, MODES)}; modes: {', '.join(MODES)}")


def _resolve_limits(flags: CommandFlags, file: ConfigFile) -> Limits:
    given = LimitsTable(turns=flags.max_turns, cost=flags.max_cost, seconds=flags.max_seconds)
    return given.apply_to(file.limits.apply_to(Limits()))


def _merge_rules(flags: CommandFlags, file: ConfigFile) -> RulesTable:
    """Merge the rules of all sources; a deny rule wins wherever it comes from."""
    return RulesTable(
        allow=(*flags.allow, *file.rules.allow),
        ask=(*flags.ask, *file.rules.ask),
        deny=(*flags.deny, *file.rules.deny),
    )


def _order_agents(file: ConfigFile, flags: CommandFlags, model: str) -> dict[str, AgentTable]:
    """Return the user's agent tables, the entry agent first. A model or mode from a flag or the environment applies to
    it alone."""
    tables = {DEFAULT_AGENT: AgentTable(), **file.agents}
    name = flags.agent or file.agent or DEFAULT_AGENT
    if name not in tables:
        raise ConfigurationError(
            f"there is no agent {name!r}{suggest_name(name, tables)} (there are: {', '.join(tables)})"
        )
    table = tables.pop(name)
    overrides = {"model": model or table.model, "mode": None if flags.mode else table.mode}
    return {name: msgspec.structs.replace(table, **overrides), **tables}


def _required_providers(agents: tuple[Agent, ...], providers: ProviderRegistry) -> tuple[tuple[Provider, ...], str]:
    """Return the providers of the agents and all usable ones, and a message about missing credentials."""
    needed = {agent.provider: providers.find_provider(agent.provider) for agent in agents if agent.provider}
    missing = NO_PROVIDER_MESSAGE if not agents[0].provider else ""
    for provider in needed.values():
        missing = missing or providers.missing_credentials(provider) or ""
    return tuple((needed | {provider.name: provider for provider in providers.usable_providers()}).values()), missing
