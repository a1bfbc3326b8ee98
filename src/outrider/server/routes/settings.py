"""Endpoints for settings: rules, MCP servers, providers with their keys, and the trust of folders."""

import asyncio
import hashlib
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from outrider.config.environment import key_variable_names
from outrider.config.paths import KEYS_FILE
from outrider.config.stored_keys import KeyStore, provider_of_variable
from outrider.engine.engine import Engine
from outrider.engine.frontend import list_offers
from outrider.errors import ConfigurationError, OutriderError
from outrider.project.mcp import ServerOffers
from outrider.project.trust import WorkspaceTrust
from outrider.server.endpoint import ApiEndpoint, NoPayload, RouteRequest


class RuleList(msgspec.Struct, frozen=True):
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class McpServerState(msgspec.Struct, frozen=True):
    """An MCP server. `state` is connecting, ready, failed or closed; `changed` names tools whose definitions have
    changed since their last approval."""

    name: str
    state: str
    error: str = ""
    tools: int = 0
    changed: tuple[str, ...] = ()


class ProviderState(msgspec.Struct, frozen=True, kw_only=True):
    """A provider. Keys are never returned: `has_key` is whether there is one, `variable` the name to store one under,
    and `is_stored` whether this was done."""

    name: str
    kind: str
    base_url: str | None = None
    has_key: bool = False
    variable: str = ""
    is_stored: bool = False


class SettingsOverview(msgspec.Struct, frozen=True, kw_only=True):
    rules: RuleList
    servers: tuple[McpServerState, ...]
    providers: tuple[ProviderState, ...]
    has_jobs: bool = False


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key of a provider, used from the next start of the server on. An empty key removes it."""

    variable: str
    key: Annotated[str, msgspec.Meta(max_length=10_000)]


class TrustQuery(msgspec.Struct, frozen=True):
    path: str


class TrustSubject(msgspec.Struct, frozen=True):
    """One thing that a trusted folder adds. An `executable` one starts a program or opens a connection."""

    kind: str
    name: str
    content: str
    executable: bool


class FolderTrust(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the files of a project may configure the agent, and what they contain. `digest` names this content."""

    root: str
    state: Literal["trusted", "untrusted", "nothing to trust"]
    items: tuple[TrustSubject, ...]
    digest: str


class TrustDecision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Trusts a folder with the content that was shown, or ends its trust."""

    path: str
    trusted: bool
    digest: str = ""


async def get_settings(request: RouteRequest[NoPayload, NoPayload]) -> SettingsOverview:
    runtime = request.engine.runtime
    stored = await asyncio.to_thread(_key_store(runtime.data).list_providers) if runtime.data else {}
    servers = runtime.mcp_servers.describe_servers() if runtime.mcp_servers else []
    providers: list[ProviderState] = []
    for provider in runtime.spec.providers.values():
        variable = next(iter(key_variable_names(provider.kind)), "")
        providers.append(
            ProviderState(
                name=provider.name,
                kind=provider.kind,
                base_url=provider.base_url,
                has_key=bool(provider.api_key),
                variable=variable if runtime.data else "",
                is_stored=bool(variable) and provider_of_variable(variable) in stored,
            )
        )
    rules = runtime.rules
    return SettingsOverview(
        rules=RuleList(tuple(rules.allow), tuple(rules.ask), tuple(rules.deny)),
        servers=tuple(McpServerState(*msgspec.structs.astuple(found)) for found in servers),
        providers=tuple(providers),
        has_jobs=request.background is not None,
    )


async def get_offers(request: RouteRequest[NoPayload, NoPayload]) -> ServerOffers:
    return await list_offers(request.engine)


async def store_key(request: RouteRequest[NoPayload, NewKey]) -> None:
    data = request.engine.runtime.data
    if data is None:
        raise ConfigurationError("this server has no data folder in which a key could be stored")
    store, provider, key = _key_store(data), provider_of_variable(request.body.variable), request.body.key.strip()
    await asyncio.to_thread(lambda: store.store(provider, key) if key else store.remove(provider))


def _key_store(data: Path) -> KeyStore:
    return KeyStore(data / KEYS_FILE)


async def get_trust(request: RouteRequest[TrustQuery, NoPayload]) -> FolderTrust:
    if request.engine.runtime.workspace_extensions is None:
        return FolderTrust(root=request.query.path, state="nothing to trust", items=(), digest="")
    found = _find_trust(request.engine, request.query.path)
    return await asyncio.to_thread(_describe_trust, found)


async def decide_trust(request: RouteRequest[NoPayload, TrustDecision]) -> FolderTrust:
    found = _find_trust(request.engine, request.body.path)
    return await asyncio.to_thread(_apply_decision, found, request.body)


def _apply_decision(found: WorkspaceTrust, decision: TrustDecision) -> FolderTrust:
    if not decision.trusted:
        found.revoke_trust()
        return _describe_trust(found)
    items = found.list_items()
    if _digest([TrustSubject(one.kind, one.name, one.content, one.executable) for one in items]) != decision.digest:
        raise OutriderError("the files of the folder have changed since they were shown; look at them again")
    found.trust(items)
    return _describe_trust(found)


def _find_trust(engine: Engine, path: str) -> WorkspaceTrust:
    extensions = engine.runtime.workspace_extensions
    if extensions is None:
        raise ConfigurationError("this server uses no configuration of folders")
    return extensions.workspace_trust(Path(path))


def _describe_trust(found: WorkspaceTrust) -> FolderTrust:
    items = tuple(TrustSubject(one.kind, one.name, one.content, one.executable) for one in found.list_items())
    return FolderTrust(root=str(found.project.root), state=found.state, items=items, digest=_digest(items))


def _digest(items: "tuple[TrustSubject, ...] | list[TrustSubject]") -> str:
    return hashlib.sha256(msgspec.json.encode(items)).hexdigest()


SETTINGS_ROUTES = (
    ApiEndpoint(method="GET", path="/api/settings", name="get_settings",
                summary="Get rules, MCP servers and providers, without keys", handler=get_settings,
                response_type=SettingsOverview),
    ApiEndpoint(method="GET", path="/api/mcp", name="get_mcp_offers",
                summary="Get the prompts and resources of the MCP servers that are ready", handler=get_offers,
                response_type=ServerOffers),
    ApiEndpoint(method="POST", path="/api/keys", name="store_key", summary="Store or remove the key of a provider",
                handler=store_key, body=NewKey, status=204),
    ApiEndpoint(method="GET", path="/api/trust", name="get_trust",
                summary="Get whether a folder is trusted, and what its trust would enable", handler=get_trust,
                query=TrustQuery, response_type=FolderTrust),
    ApiEndpoint(method="POST", path="/api/trust", name="decide_trust", summary="Trust a folder, or end its trust",
                handler=decide_trust, body=TrustDecision, response_type=FolderTrust),
)  # fmt: skip
