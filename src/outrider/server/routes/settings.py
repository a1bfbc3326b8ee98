"""Endpoints for settings: rules, MCP servers, providers with their keys, webhooks, and the trust of folders."""

import asyncio
import base64
import hashlib
import secrets
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from outrider.config.file import WEBHOOK_EVENTS, WebhookEvent
from outrider.config.paths import KEYS_FILE
from outrider.config.providers import BUILT_IN_PROVIDERS, DEFAULT_MODELS, find_key_and_address, key_variable_names
from outrider.config.settings import Settings, no_key_yet, reload_providers
from outrider.config.stored_keys import KEY_PROVIDERS, KeyStore, provider_of_variable
from outrider.engine import frontend
from outrider.engine.engine import Engine
from outrider.engine.runtime import EngineRuntime
from outrider.errors import ConfigurationError, OutriderError
from outrider.project.mcp import ServerOffers
from outrider.project.mcp_completion import InputCompletion
from outrider.project.trust import WorkspaceTrust
from outrider.server.endpoint import ApiEndpoint, NoPayload, RouteRequest
from outrider.server.users import UserDirectory
from outrider.server.webhooks import ServerWebhook, TurnWebhooks
from outrider.types.agents import Provider

if TYPE_CHECKING:
    from outrider.engine.mcp_servers import ServerLogins
    from outrider.project.mcp import McpServerManager

KEY_CHECK_SECONDS = 5.0


class CompletionQuery(msgspec.Struct, frozen=True):
    """`text` is the input up to the cursor, or its end: an encoded character may take 12 bytes of the 64 KiB that a
    request line can have."""

    text: Annotated[str, msgspec.Meta(max_length=4_000)]


class RuleList(msgspec.Struct, frozen=True):
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class McpServerState(msgspec.Struct, frozen=True):
    """An MCP server.

    - `name`: its name in the configuration.
    - `state`: connecting, ready, failed or closed.
    - `error`: why it failed.
    - `tools`: the number of its tools.
    - `changed`: the tools whose definitions have changed since their last approval.
    - `address`: its URL.
    - `login`: "none", "stored", "more rights needed" or "by header"; empty for a server that cannot have a login.
    - `is_logging_in`: whether a login that was started on this server is not finished.
    - `login_error`: why the last login failed.
    - `enabled`: false if it was switched off on this server.
    """

    name: str
    state: str
    error: str = ""
    tools: int = 0
    changed: tuple[str, ...] = ()
    address: str = ""
    login: str = ""
    is_logging_in: bool = False
    login_error: str = ""
    enabled: bool = True


class ProviderState(msgspec.Struct, frozen=True, kw_only=True):
    """A provider. Keys are never returned: `has_key` is whether there is one, `variable` the name to store one under,
    and `is_stored` whether this was done; for a user who is not an administrator, whether they stored their own."""

    name: str
    kind: str
    base_url: str | None = None
    has_key: bool = False
    variable: str = ""
    is_stored: bool = False


class SettingsOverview(msgspec.Struct, frozen=True, kw_only=True):
    """`needs_key` is set if no message can be answered before a key is stored."""

    rules: RuleList
    servers: tuple[McpServerState, ...]
    providers: tuple[ProviderState, ...]
    has_jobs: bool = False
    server_notices: tuple[str, ...] = ()
    needs_key: bool = False


class ServerSwitch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether sessions use an MCP server from their next turn on."""

    name: str
    enabled: bool


class NamedServer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of an MCP server."""

    name: str


class LoginPage(msgspec.Struct, frozen=True):
    """The page on which the user logs in; it is empty if the server needs no login."""

    url: str


class LoginAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The address to which the login redirected the browser, if the browser could not open it: it begins with
    http://127.0.0.1, which is another machine for a browser that is not on the server's."""

    name: str
    address: Annotated[str, msgspec.Meta(max_length=10_000)]


class NewKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key of a provider, used from its next request on. An empty key removes it. A key that the vendor refuses is
    not stored. It is the server's key; that of a user who is not an administrator, or with `own`, is used in the
    sessions of that user only."""

    variable: str
    key: Annotated[str, msgspec.Meta(max_length=10_000)]
    own: bool = False


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


class NewWebhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A URL that receives a signed POST for each of these `events`; with `user`, only about sessions that this user can
    see. Without a `secret` one is created."""

    url: Annotated[str, msgspec.Meta(max_length=2_000)]
    events: Annotated[tuple[WebhookEvent, ...], msgspec.Meta(min_length=1)] = WEBHOOK_EVENTS
    user: str = ""
    secret: Annotated[str, msgspec.Meta(max_length=1_000)] = ""


class WebhookView(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook. Of its URL only the origin is shown, because the rest may be secret. `pending` notices wait for the
    receiver. `is_configured` is one of `config.toml`, which is removed there."""

    id: str
    origin: str
    events: tuple[WebhookEvent, ...]
    user: str = ""
    is_configured: bool = False
    pending: int = 0


class CreatedWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """A new webhook with the secret that signs its notices, which is not shown again."""

    id: str
    secret: str


async def get_settings(request: RouteRequest[NoPayload, NoPayload]) -> SettingsOverview:
    runtime = request.engine.runtime
    own_keys = request.users.keys_of_owner(request.requester.owner)
    stored: Collection[str] = own_keys
    if request.requester.is_admin and runtime.data is not None:
        stored = await asyncio.to_thread(_key_store(runtime.data).list_providers)
    servers = runtime.mcp_servers
    configured = runtime.spec.providers
    unconfigured = [Provider(name, BUILT_IN_PROVIDERS[name]) for name in KEY_PROVIDERS if name not in configured]
    providers: list[ProviderState] = []
    for provider in (*configured.values(), *(unconfigured if request.settings else ())):
        takes_key = runtime.data is not None and (provider.name in KEY_PROVIDERS or provider.base_url is None)
        variable = next(iter(key_variable_names(provider.kind)), "") if takes_key else ""
        providers.append(
            ProviderState(
                name=provider.name,
                kind=provider.kind,
                base_url=provider.base_url,
                has_key=bool(provider.api_key) or provider.name in own_keys,
                variable=variable,
                is_stored=bool(variable) and provider_of_variable(variable) in stored,
            )
        )
    rules = runtime.rules
    return SettingsOverview(
        rules=RuleList(tuple(rules.allow), tuple(rules.ask), tuple(rules.deny)),
        servers=await _list_server_states(request, servers) if servers else (),
        providers=tuple(providers),
        has_jobs=request.background is not None,
        server_notices=tuple(servers.notices) if servers else (),
        needs_key=runtime.data is not None
        and request.settings is not None
        and lacks_key(runtime)
        and runtime.spec.entry.provider not in own_keys,
    )


async def _list_server_states(
    request: RouteRequest[NoPayload, NoPayload], manager: "McpServerManager"
) -> tuple[McpServerState, ...]:
    logins = request.server_logins
    servers_by_name = {server.name: server for server in await asyncio.to_thread(logins.list_servers)} if logins else {}
    return tuple(
        McpServerState(
            server.name,
            server.state,
            server.error,
            server.tools,
            server.changed,
            address=servers_by_name[server.name].address if server.name in servers_by_name else "",
            login=servers_by_name[server.name].login if server.name in servers_by_name else "",
            is_logging_in=logins is not None and server.name in logins.open_names,
            login_error=logins.errors.get(server.name, "") if logins else "",
            enabled=server.name not in manager.switched_off,
        )
        for server in manager.describe_servers()
    )


async def start_server_login(request: RouteRequest[NoPayload, NamedServer]) -> LoginPage:
    return LoginPage(await _find_logins(request).start(request.body.name))


async def finish_server_login(request: RouteRequest[NoPayload, LoginAnswer]) -> None:
    _find_logins(request).take_address(request.body.name, request.body.address)


async def end_server_login(request: RouteRequest[NoPayload, NamedServer]) -> None:
    if await _find_logins(request).log_out(request.body.name) is None:
        raise LookupError(f"there is no stored login at {request.body.name}")


async def reconnect_server(request: RouteRequest[NoPayload, NamedServer]) -> None:
    if (manager := request.engine.runtime.mcp_servers) is None:
        raise ConfigurationError("this server has no MCP servers")
    manager.reconnect(request.body.name)


async def switch_server(request: RouteRequest[NoPayload, ServerSwitch]) -> None:
    if (manager := request.engine.runtime.mcp_servers) is None:
        raise ConfigurationError("this server has no MCP servers")
    manager.switch_server(request.body.name, on=request.body.enabled)


def _find_logins(request: RouteRequest[Any, Any]) -> "ServerLogins":
    if request.server_logins is None:
        raise ConfigurationError("this server has no MCP servers")
    return request.server_logins


async def get_offers(request: RouteRequest[NoPayload, NoPayload]) -> ServerOffers:
    return await frontend.list_offers(request.engine)


async def complete_input(request: RouteRequest[CompletionQuery, NoPayload]) -> InputCompletion:
    return await frontend.complete_input(request.engine, request.query.text)


async def store_key(request: RouteRequest[NoPayload, NewKey]) -> None:
    data, settings = request.engine.runtime.data, request.settings
    if data is None or settings is None:
        raise ConfigurationError("this server has no data folder in which a key could be stored")
    is_own = request.body.own or not request.requester.is_admin
    own_store = request.users.key_store(request.requester.name) if is_own else None
    if is_own and own_store is None:
        raise ConfigurationError("only users of the server have separate keys; see `outrider users add`")
    provider, key = provider_of_variable(request.body.variable), request.body.key.strip()
    store = own_store or _key_store(data)
    if key:
        await _check_key(settings, provider, key)
    await asyncio.to_thread(lambda: store.store(provider, key) if key else store.remove(provider))
    runtime = request.engine.runtime
    if is_own:
        await offer_providers(runtime, request.users)
        return
    await runtime.update_providers(await asyncio.to_thread(reload_providers, settings))
    if key and lacks_key(runtime):  # the first key: its provider has the default model
        runtime.use_default_model(provider, DEFAULT_MODELS[BUILT_IN_PROVIDERS[provider]])


async def offer_providers(runtime: EngineRuntime, users: UserDirectory) -> None:
    """Registers the providers for which a user has a key, but the server has none."""
    named = {name for user in users.users for name in users.keys_of_owner(user.name)}
    names = [name for name in KEY_PROVIDERS if name in named and name not in runtime.spec.providers]
    await runtime.update_providers(Provider(name, BUILT_IN_PROVIDERS[name], credentials=no_key_yet) for name in names)


def lacks_key(runtime: EngineRuntime) -> bool:
    """Returns whether the model of the entry agent needs a key and has none."""
    agent = runtime.spec.entry
    provider = runtime.spec.providers[agent.provider]
    has_function = provider.credentials not in (None, no_key_yet)
    return agent.provider in KEY_PROVIDERS and not (
        provider.api_key or provider.base_url or provider.headers or has_function
    )


async def _check_key(settings: Settings, provider: str, key: str) -> None:
    """Raises OutriderError if the vendor refuses the key. A key that cannot be checked is accepted."""
    from outrider.models.live_models import check_key  # lazy: it loads the HTTP client

    if any(character.isspace() for character in key) or not key.isprintable():
        raise ConfigurationError("this is not a key: it contains spaces")
    kind = BUILT_IN_PROVIDERS[provider]
    _, address = find_key_and_address(settings.environ, kind)
    problem = await check_key(Provider(provider, kind, key, address), KEY_CHECK_SECONDS)
    if problem.refused:
        raise OutriderError(f"{provider} refused the key: {problem.text}. It was not stored")


def _key_store(data: Path) -> KeyStore:
    return KeyStore(data / KEYS_FILE)


async def list_webhooks(request: RouteRequest[NoPayload, NoPayload]) -> list[WebhookView]:
    webhooks = _find_webhooks(request)
    pending = await webhooks.count_pending()
    return [
        WebhookView(
            id=webhook.id,
            origin="{0.scheme}://{0.netloc}".format(urlsplit(webhook.url)),
            events=webhook.events,
            user=webhook.user,
            is_configured=webhook.is_configured,
            pending=pending[webhook.id],
        )
        for webhook in await webhooks.list_webhooks()
    ]


async def add_webhook(request: RouteRequest[NoPayload, NewWebhook]) -> CreatedWebhook:
    new = request.body
    created = CreatedWebhook(id=secrets.token_hex(4), secret=new.secret or create_webhook_secret())
    await _find_webhooks(request).add(
        ServerWebhook(id=created.id, url=new.url, events=new.events, user=new.user, secret=created.secret)
    )
    return created


async def remove_webhook(request: RouteRequest[NoPayload, NoPayload]) -> None:
    if not await _find_webhooks(request).remove(request.path["webhook_id"]):
        raise LookupError(f"there is no webhook {request.path['webhook_id']}")


def create_webhook_secret() -> str:
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def _find_webhooks(request: RouteRequest[Any, Any]) -> TurnWebhooks:
    if request.webhooks is None:
        raise ConfigurationError("this server has no data folder in which webhooks could be stored")
    return request.webhooks


async def get_trust(request: RouteRequest[TrustQuery, NoPayload]) -> FolderTrust:
    if request.engine.runtime.workspace_extensions is None:
        return FolderTrust(root=request.query.path, state="nothing to trust", items=(), digest="")
    trust = _find_trust(request.engine, request.query.path)
    return await asyncio.to_thread(_describe_trust, trust)


async def decide_trust(request: RouteRequest[NoPayload, TrustDecision]) -> FolderTrust:
    trust = _find_trust(request.engine, request.body.path)
    return await asyncio.to_thread(_apply_decision, trust, request.body)


def _apply_decision(trust: WorkspaceTrust, decision: TrustDecision) -> FolderTrust:
    if not decision.trusted:
        trust.revoke_trust()
        return _describe_trust(trust)
    items = trust.list_items()
    if (
        _digest([TrustSubject(item.kind, item.name, item.content, item.executable) for item in items])
        != decision.digest
    ):
        raise OutriderError("the files of the folder have changed since they were shown; look at them again")
    trust.trust(items)
    return _describe_trust(trust)


def _find_trust(engine: Engine, path: str) -> WorkspaceTrust:
    extensions = engine.runtime.workspace_extensions
    if extensions is None:
        raise ConfigurationError(
            "this server was started without the configuration of folders, so there is nothing to trust"
        )
    return extensions.workspace_trust(Path(path))


def _describe_trust(trust: WorkspaceTrust) -> FolderTrust:
    items = tuple(TrustSubject(item.kind, item.name, item.content, item.executable) for item in trust.list_items())
    return FolderTrust(root=str(trust.project.root), state=trust.state, items=items, digest=_digest(items))


def _digest(items: "tuple[TrustSubject, ...] | list[TrustSubject]") -> str:
    return hashlib.sha256(msgspec.json.encode(items)).hexdigest()


SETTINGS_ROUTES = (
    ApiEndpoint(method="GET", path="/api/settings", name="get_settings",
                summary="Get rules, MCP servers and providers, without keys", handler=get_settings,
                response_type=SettingsOverview),
    ApiEndpoint(method="GET", path="/api/mcp-servers/offers", name="get_mcp_offers",
                summary="Get the prompts and resources of the MCP servers that are ready", handler=get_offers,
                response_type=ServerOffers),
    ApiEndpoint(method="GET", path="/api/mcp-servers/completions", name="complete_input",
                summary="Complete the end of an input: arguments of MCP prompts and values in addresses of resources",
                access="write", handler=complete_input, query=CompletionQuery, response_type=InputCompletion),
    ApiEndpoint(method="POST", path="/api/keys", name="store_key",
                summary="Store or remove the key of a provider, of the server or your own", handler=store_key,
                body=NewKey, status=204),
    ApiEndpoint(method="POST", path="/api/mcp-servers/login", name="start_server_login",
                summary="Start a login at an MCP server and get the page for it", access="admin",
                handler=start_server_login,
                body=NamedServer, response_type=LoginPage),
    ApiEndpoint(method="POST", path="/api/mcp-servers/login/answer", name="finish_server_login",
                summary="Finish a login with the address that the browser could not open", access="admin",
                handler=finish_server_login,
                body=LoginAnswer, status=204),
    ApiEndpoint(method="POST", path="/api/mcp-servers/logout", name="end_server_login",
                summary="Delete the login at an MCP server and revoke its tokens", access="admin",
                handler=end_server_login,
                body=NamedServer, status=204),
    ApiEndpoint(method="POST", path="/api/mcp-servers/switch", name="switch_server",
                summary="Switch an MCP server off or on", access="admin", handler=switch_server, body=ServerSwitch,
                status=204),
    ApiEndpoint(method="POST", path="/api/mcp-servers/reconnect", name="reconnect_server",
                summary="Connect to a failed MCP server again", access="admin", handler=reconnect_server,
                body=NamedServer,
                status=204),
    ApiEndpoint(method="GET", path="/api/webhooks", name="list_webhooks",
                summary="List the webhooks for turns of interactive sessions", access="admin", handler=list_webhooks,
                response_type=list[WebhookView]),
    ApiEndpoint(method="POST", path="/api/webhooks", name="add_webhook",
                summary="Add a webhook for turns of interactive sessions", access="admin", handler=add_webhook,
                body=NewWebhook, response_type=CreatedWebhook, status=201),
    ApiEndpoint(method="DELETE", path="/api/webhooks/{webhook_id}", name="remove_webhook", summary="Remove a webhook",
                access="admin", handler=remove_webhook, status=204),
    ApiEndpoint(method="GET", path="/api/trust", name="get_trust",
                summary="Get whether a folder is trusted, and what its trust would enable", access="admin",
                handler=get_trust,
                query=TrustQuery, response_type=FolderTrust),
    ApiEndpoint(method="POST", path="/api/trust", name="decide_trust", summary="Trust a folder, or end its trust",
                access="admin", handler=decide_trust, body=TrustDecision, response_type=FolderTrust),
)  # fmt: skip
