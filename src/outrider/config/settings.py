"""Everything that the user said before the engine starts: files, environment and flags, read once into one value."""

import os
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, get_args

import msgspec

from outrider.config.environment import Environment
from outrider.config.file import (
    AgentTable,
    BackgroundTable,
    CompactionTable,
    ConfigFile,
    LimitsTable,
    RetentionTable,
    RulesTable,
    SandboxTable,
    closest,
    read_file,
)
from outrider.config.paths import Folders, find_folders
from outrider.config.project import Rights, ceiling_of, held, project_agents, read_project, tightened
from outrider.config.providers import DEFAULT, NO_PROVIDER, AgentBuilder, Providers
from outrider.errors import ConfigurationError
from outrider.types.agents import Agent, Limits, Mode, Provider


def check_rules(rules: RulesTable, where: str) -> tuple[str, ...]:
    """`where` is what errors and notices call the place. A misspelt allow would only never hold; a misspelt deny would
    not be noticed before it is too late."""
    if rules == RulesTable():
        return ()
    return tuple(notice for kind in RulesTable.__struct_fields__ for notice in _check(rules, kind, where))


def _check(rules: RulesTable, kind: str, where: str) -> Iterator[str]:
    from outrider.permissions.modes import TOOLS, canonical
    from outrider.permissions.rules import parse_rule

    for text in getattr(rules, kind):
        rule = parse_rule(text)
        if rule.broken:
            raise ConfigurationError(f"{where}.{kind}: {text!r} is not a rule: {rule.broken}; write tool(pattern)")
        hint = closest(canonical(rule.tool), TOOLS)
        if hint and canonical(rule.tool) not in TOOLS:
            yield f"{where}.{kind}: {text!r} is for a tool that Outrider does not bring along{hint}"


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """What a command line says; it goes before everything else."""

    model: str | None = None
    mode: str | None = None
    agent: str | None = None
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    max_turns: int | None = None
    max_cost: Decimal | None = None
    max_seconds: float | None = None


_NO_FLAGS = Flags()


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`model` is the first agent's, as PROVIDER/MODEL; "" where no model can be reached. The first of `agents` is the
    one that starts. `missing` says what stands between the agents and their models, `notices` are for the user to
    read. Keys are inside `providers` and `environ` only, and those do not print them."""

    folders: Folders
    workspace: Path
    environ: Environment
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
    def data(self) -> Path:
        return self.folders.data

    @property
    def home(self) -> Path:
        return self.folders.home

    @property
    def prompts(self) -> Path:
        return self.folders.prompts


def read_settings(
    *, cwd: str | Path | None = None, environ: Mapping[str, str] = os.environ, flags: Flags = _NO_FLAGS
) -> Settings:
    """Raises ConfigurationError, which names the file and the key, for settings that cannot work."""
    workspace = _workspace(cwd)
    folders = find_folders(environ)
    own, project = read_file(folders.config_file), read_project(workspace, folders)
    file, source = own.content, str(folders.config_file)
    users = Rights(_mode(flags, environ, file), _rules(flags, file), _limits(flags, file))
    providers = Providers(file.providers, environ, source)
    wanted = flags.model or environ.get("OUTRIDER_MODEL", "").strip()
    if wanted:
        providers.route(wanted, "the model that was asked for")
    builder = AgentBuilder(
        providers,
        model=wanted or file.model or providers.default_model(),
        mode=users.mode,
        limits=users.limits,
        prompts=folders.prompts,
        source=source,
    )
    tables = _led(file, flags, wanted)
    ceiling = ceiling_of(project.content)
    rights = tightened(users, ceiling)
    agents = (
        *(held(agent, ceiling) for agent in builder.build(tables)),
        *(held(agent, rights) for agent in builder.build(project_agents(project.content, tables))),
    )
    reachable, missing = _needed(agents, providers)
    noticed = (*own.notices, *project.notices, *_keyless(agents, providers, source))
    return Settings(
        folders=folders,
        workspace=workspace,
        environ=Environment(environ),
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
        notices=(*noticed, *_checked(flags, file, environ, source)),
    )


def _checked(flags: Flags, file: ConfigFile, environ: Mapping[str, str], source: str) -> Iterator[str]:
    """Notices about what could be read and still means less than it says."""
    yield from check_rules(RulesTable(allow=flags.allow, ask=flags.ask, deny=flags.deny), "flags")
    yield from check_rules(file.rules, f"{source}: rules")
    for name, table in file.agents.items():
        yield from check_rules(table.permissions, f"{source}: agents.{name}.permissions")
    if file.mcp:
        from outrider.project.mcp import users_servers

        yield from users_servers(file.mcp, source, environ).problems


def _keyless(agents: tuple[Agent, ...], providers: Providers, source: str) -> Iterator[str]:
    for name in dict.fromkeys(agent.provider for agent in agents):
        if variable := providers.keyless(name):
            yield f"{source}: providers.{name}.api_key_env: ${variable} is not set, so {name} is asked without a key"


def _workspace(cwd: str | Path | None) -> Path:
    folder = Path(cwd or Path.cwd()).absolute()
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is not a folder that can be worked in")
    return folder


def _mode(flags: Flags, environ: Mapping[str, str], file: ConfigFile) -> Mode:
    given = flags.mode or environ.get("OUTRIDER_MODE", "").strip()
    for mode in get_args(Mode):
        if mode == (given or file.mode or "agent"):
            return mode
    raise ConfigurationError(
        f"no mode is called {given!r}{closest(given, get_args(Mode))}; modes: {', '.join(get_args(Mode))}"
    )


def _limits(flags: Flags, file: ConfigFile) -> Limits:
    given = LimitsTable(turns=flags.max_turns, cost=flags.max_cost, seconds=flags.max_seconds)
    return given.over(file.limits.over(Limits()))


def _rules(flags: Flags, file: ConfigFile) -> RulesTable:
    """All of them together: deny wins, wherever it comes from."""
    return RulesTable(
        allow=(*flags.allow, *file.rules.allow),
        ask=(*flags.ask, *file.rules.ask),
        deny=(*flags.deny, *file.rules.deny),
    )


def _led(file: ConfigFile, flags: Flags, model: str) -> dict[str, AgentTable]:
    """The user's agents, the one that starts first; a model or mode that was asked for just now is meant for it."""
    tables = {DEFAULT: AgentTable(), **file.agents}
    name = flags.agent or file.agent or DEFAULT
    if name not in tables:
        raise ConfigurationError(f"there is no agent {name!r}{closest(name, tables)} (there are: {', '.join(tables)})")
    table = tables.pop(name)
    asked = {"model": model or table.model, "mode": None if flags.mode else table.mode}
    return {name: msgspec.structs.replace(table, **asked), **tables}


def _needed(agents: tuple[Agent, ...], providers: Providers) -> tuple[tuple[Provider, ...], str]:
    """The providers that agents think with and those that could be switched to; and what is missing to ask them."""
    needed = {agent.provider: providers.find(agent.provider) for agent in agents if agent.provider}
    missing = NO_PROVIDER if not agents[0].provider else ""
    for provider in needed.values():
        missing = missing or providers.missing(provider) or ""
    return tuple((needed | {provider.name: provider for provider in providers.usable()}).values()), missing
