"""`outrider serve`, `users`, `audit`, `acp` and `mcp`: start servers, and manage the users of the HTTP server."""

import asyncio
import json
import os
import ssl
import sys
import urllib.parse
from argparse import Namespace
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from outrider.cli import exit_codes
from outrider.cli.main import program_version
from outrider.cli.output import Console, format_table
from outrider.cli.parser import import_object
from outrider.cli.setup import settings_from_arguments
from outrider.config.environment import read_option_defaults
from outrider.config.paths import find_app_folders
from outrider.errors import ConfigurationError, NetworkError
from outrider.presentation.formats import format_cost


def start_server(arguments: Namespace) -> int:
    """Runs the HTTP server until it is stopped. Raises ConfigurationError if an optional dependency is missing."""
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        raise ConfigurationError("the server is not installed: pip install 'outrider[server]'")
    if arguments.mcp and find_spec("mcp") is None:
        raise ConfigurationError("the Model Context Protocol is not installed: pip install 'outrider[mcp]'")
    if arguments.link:
        return print_login_link(arguments)
    options = import_object("outrider.server.server:ServeOptions")(
        host=arguments.host,
        port=arguments.port,
        socket=_absolute_path(arguments.socket),
        names=tuple(arguments.name),
        expose=arguments.expose,
        certificate=_absolute_path(arguments.tls_cert),
        key=_absolute_path(arguments.tls_key),
        mcp=arguments.mcp,
        database=arguments.database,
        new_token=arguments.new_token,
        public_url=arguments.public_url or "",
        proxies=tuple(arguments.trusted_proxy),
        health=arguments.health,
        grace=arguments.grace,
        json_log=arguments.log_format == "json",
        oidc=_read_oidc_options(arguments),
        user_folders=_absolute_path(arguments.user_folders),
    )
    serve = import_object("outrider.server.server:run_server")
    try:
        asyncio.run(serve(settings_from_arguments(arguments), options, program_version(), _print_status))
    except KeyboardInterrupt:
        return exit_codes.SUCCESS  # Ctrl+C is the normal way to stop a server
    except ssl.SSLError as error:
        raise ConfigurationError(f"--tls-cert and --tls-key are not a certificate and its key: {error}") from error
    except OSError as error:
        where = f"port {arguments.port}" if arguments.port else "this address"
        raise ConfigurationError(f"the server cannot listen on {where}: {error.strerror or error}") from error
    return exit_codes.SUCCESS


def _read_oidc_options(arguments: Namespace) -> dict[str, Any] | None:
    if not arguments.oidc_issuer:
        return None
    pairs = [pair.rpartition("=") for pair in arguments.oidc_role]
    if wrong := next((role for role, pair in zip(arguments.oidc_role, pairs, strict=True) if not pair[0]), None):
        raise ConfigurationError(f"--oidc-role {wrong} is not VALUE=ROLE")
    options = {
        "issuer": arguments.oidc_issuer,
        "client_id": arguments.oidc_client_id or "",
        "client_secret": read_option_defaults().oidc_client_secret,
        "roles": {value: role for value, _, role in pairs},
        "default_role": arguments.oidc_default_role,
        "role_claim": arguments.oidc_role_claim,
        "name_claim": arguments.oidc_name_claim,
    }
    return {name: value for name, value in options.items() if value is not None}


def print_login_link(arguments: Namespace) -> int:
    """Asks the running server for a link, with the token that only its owner can read. `name` is the user of the
    link; without it, the holder of the token."""
    from outrider.remote.client import fetch_url  # lazy: a server that starts does not need it

    default_port = import_object("outrider.server.server:DEFAULT_PORT")
    read_token = import_object("outrider.server.auth:read_token")
    url = f"{'https' if arguments.tls_cert else 'http'}://{arguments.host}:{arguments.port or default_port}"
    headers = {"content-type": "application/json", "authorization": f"Bearer {read_token(_server_folder() / 'token')}"}
    user = urllib.parse.urlencode({"user": arguments.name}) if isinstance(arguments.name, str) else ""
    request = fetch_url(f"{url}/api/login-links?{user}", headers, b"{}", seconds=10, max_bytes=1 << 16)
    try:
        status, body = asyncio.run(request)
        answer = json.loads(body)
        text = answer["url"] if status < 300 else answer["error"]["message"]
    except (NetworkError, TimeoutError, ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(
            f"no Outrider server answers on {url}: {str(error) or 'no answer in time'}. If it listens on another port, "
            "name it with --port"
        ) from error
    if status >= 300:
        raise ConfigurationError(f"the server on {url} gives no link: {text}")
    sys.stdout.write(f"{text}\n")
    return exit_codes.SUCCESS


def _absolute_path(path: str | None) -> Path | None:
    return Path(path).expanduser().absolute() if path else None


def _print_status(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def serve_acp(arguments: Namespace) -> int:
    """Runs the Agent Client Protocol agent on stdin and stdout until the editor closes the connection."""
    if find_spec("acp") is None:
        raise ConfigurationError("the Agent Client Protocol is not installed: pip install 'outrider[acp]'")
    if arguments.login:
        return import_object("outrider.cli.commands.login:log_in")(Namespace(list=False, provider="", no_check=False))
    if sys.stdin.isatty():
        sys.stderr.write("outrider acp waits for an editor on stdin. To use the agent yourself: outrider\n")
    # Imported by name: front ends must not import each other, and only the one in use is loaded.
    serve_editor = import_object("outrider.acp.agent:serve_editor")
    serve_editor(partial(settings_from_arguments, arguments), program_version())
    return exit_codes.SUCCESS


def serve_mcp(arguments: Namespace) -> int:
    """Runs the MCP server on stdin and stdout until the client closes the connection."""
    if find_spec("mcp") is None:
        raise ConfigurationError("the Model Context Protocol is not installed: pip install 'outrider[mcp]'")
    serve_agents = import_object("outrider.server.mcp:serve_mcp_stdio")
    asyncio.run(serve_agents(settings_from_arguments(arguments), program_version()))
    return exit_codes.SUCCESS


def _open_directory() -> Any:
    return import_object("outrider.server.users:UserDirectory")(_server_folder() / "users.json")


def _server_folder() -> Path:
    return find_app_folders(os.environ).data / "server"


def add_user(arguments: Namespace) -> int:
    """Adds a user and prints a token, unless the user signs in at a login provider."""
    directory, console = _open_directory(), Console()
    if directory.get(arguments.name) is not None:
        raise ConfigurationError(f"there is a user {arguments.name} already; `outrider users set` changes a user")
    user = import_object("outrider.server.users:ServerUser")(name=arguments.name, role=arguments.role or "operator")
    directory.put(_apply_user_options(user, arguments))
    console.print_stderr(f"Added {arguments.name} ({arguments.role or 'operator'}).")
    if arguments.no_token:
        return exit_codes.SUCCESS
    return create_token(arguments)


def change_user(arguments: Namespace) -> int:
    """Changes the role, team, folder or limits of a user; running servers notice it with the next request."""
    directory = _open_directory()
    directory.change(arguments.name, partial(_apply_user_options, arguments=arguments))
    return exit_codes.SUCCESS


def _apply_user_options(user: Any, arguments: Namespace) -> Any:
    from msgspec.structs import replace

    names = ("role", "team", "workspace", "budget", "rate")
    changes = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if changes.get("workspace"):
        changes["workspace"] = str(_absolute_path(changes["workspace"]))
    return replace(user, **changes)


def create_token(arguments: Namespace) -> int:
    """Prints a new token of a user, which cannot be read again later."""
    console = Console()
    console.print(_open_directory().create_token(arguments.name, label=arguments.label, days=arguments.days))
    console.print_stderr("This token cannot be shown again.")
    return exit_codes.SUCCESS


def revoke_token(arguments: Namespace) -> int:
    """Revokes one token of a user."""
    if not _open_directory().revoke_token(arguments.name, arguments.token):
        raise ConfigurationError(f"{arguments.name} has no token {arguments.token}")
    return exit_codes.SUCCESS


def remove_user(arguments: Namespace) -> int:
    """Removes a user; tokens and logins end at once."""
    if not _open_directory().remove(arguments.name, forget=arguments.forget):
        raise ConfigurationError(f"there is no user {arguments.name!r}; `outrider users list` prints them")
    return exit_codes.SUCCESS


def change_team(arguments: Namespace) -> int:
    """Sets the limits that the users of a team share."""
    team = import_object("outrider.server.users:ServerTeam")
    _open_directory().put_team(team(name=arguments.name, budget=arguments.budget, rate=arguments.rate))
    return exit_codes.SUCCESS


def list_users(arguments: Namespace) -> int:
    """Prints the users, without tokens."""
    import msgspec

    console, users = Console(), sorted(_open_directory().users, key=lambda user: user.name)
    if arguments.json:
        for user in users:
            fields = msgspec.to_builtins(user) | {"tokens": [_describe_token(token) for token in user.tokens]}
            console.print(msgspec.json.encode(fields).decode())
        return exit_codes.SUCCESS
    if not users:
        console.print_stderr("There are no users: the holder of the server's token may do everything.")
        return exit_codes.SUCCESS
    rows = [
        (user.name, user.role, user.team, "" if user.budget is None else format_cost(user.budget), _list_tokens(user))
        for user in users
    ]
    for line in format_table(("name", "role", "team", "monthly budget", "tokens"), rows, console.width):
        console.print(line)
    return exit_codes.SUCCESS


def _describe_token(token: Any) -> dict[str, Any]:
    return {"id": token.id, "label": token.label, "created": token.created, "expires": token.expires}


def _list_tokens(user: Any) -> str:
    return ", ".join(f"{token.id} {token.label}".strip() for token in user.tokens)


def show_audit(arguments: Namespace) -> int:
    """Prints what users did and what was denied, newest last."""
    console = Console()
    since = datetime.fromtimestamp(datetime.now(UTC).timestamp() - arguments.since, UTC).isoformat()
    entries: list[dict[str, Any]] = [
        entry
        for entry in import_object("outrider.server.users:AuditLog")(_server_folder() / "audit.jsonl").read()
        if entry.get("time", "") >= since
        and arguments.user in (None, entry.get("user"), entry.get("by"))
        and arguments.action in (None, entry.get("action"))
    ]
    for entry in islice(entries, max(0, len(entries) - arguments.limit), None):
        console.print(json.dumps(entry) if arguments.json else _format_entry(entry))
    return exit_codes.SUCCESS


def _format_entry(entry: dict[str, Any]) -> str:
    name = entry.get("user") or entry.get("by") or "-"
    hidden = ("time", "action", "user", "by")
    fields = " ".join(f"{key}={value}" for key, value in entry.items() if key not in hidden and value not in ("", None))
    return f"{str(entry.get('time', ''))[:19]}  {name}  {entry.get('action', '')}  {fields}"
