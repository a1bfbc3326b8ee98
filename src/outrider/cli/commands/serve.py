"""`outrider serve`, `acp` and `mcp`: start the HTTP server, the editor agent and the MCP server."""

import asyncio
import json
import sys
import urllib.request
from argparse import Namespace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from outrider.cli import exit_codes
from outrider.cli.main import program_version
from outrider.cli.parser import import_object
from outrider.cli.setup import settings_from_arguments
from outrider.errors import ConfigurationError


def start_server(arguments: Namespace) -> int:
    """Run the HTTP server until it is stopped. Raises ConfigurationError if an optional dependency is missing."""
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        raise ConfigurationError("the server is not installed: pip install 'outrider[server]'")
    if arguments.mcp and find_spec("mcp") is None:
        raise ConfigurationError("the Model Context Protocol is not installed: pip install 'outrider[mcp]'")
    if arguments.link:
        return _print_login_link(arguments)
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
    )
    serve = import_object("outrider.server.server:run_server")
    try:
        asyncio.run(serve(settings_from_arguments(arguments), options, program_version(), _print_status))
    except KeyboardInterrupt:
        return exit_codes.SUCCESS  # Ctrl+C is the normal way to stop a server
    except OSError as error:
        raise ConfigurationError(f"the server cannot listen on this address: {error}") from error
    return exit_codes.SUCCESS


def _print_login_link(arguments: Namespace) -> int:
    """Ask the running server for a link, with the token that only its owner can read."""
    default_port = import_object("outrider.server.server:DEFAULT_PORT")
    read_token = import_object("outrider.server.auth:read_token")
    folder = settings_from_arguments(arguments).data_folder
    url = f"{'https' if arguments.tls_cert else 'http'}://{arguments.host}:{arguments.port or default_port}"
    headers = {"Authorization": f"Bearer {read_token(folder / 'server' / 'token')}"}
    request = urllib.request.Request(f"{url}/api/login-links", method="POST", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            link = json.load(response)["url"]
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"no Outrider server with this token answers on {url}: {error}") from error
    sys.stdout.write(f"{link}\n")
    return exit_codes.SUCCESS


def _absolute_path(path: str | None) -> Path | None:
    return Path(path).expanduser().absolute() if path else None


def _print_status(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def serve_acp(arguments: Namespace) -> int:
    """Run the Agent Client Protocol agent on stdin and stdout until the editor closes the connection."""
    if find_spec("acp") is None:
        raise ConfigurationError("the Agent Client Protocol is not installed: pip install 'outrider[acp]'")
    if sys.stdin.isatty():
        sys.stderr.write("outrider acp waits for an editor on stdin. To use the agent yourself: outrider\n")
    # Imported by name: front ends must not import each other, and only the one in use is loaded.
    serve_editor = import_object("outrider.acp.agent:serve_editor")
    serve_editor(partial(settings_from_arguments, arguments), program_version())
    return exit_codes.SUCCESS


def serve_mcp(arguments: Namespace) -> int:
    """Run the MCP server on stdin and stdout until the client closes the connection."""
    if find_spec("mcp") is None:
        raise ConfigurationError("the Model Context Protocol is not installed: pip install 'outrider[mcp]'")
    serve_agents = import_object("outrider.server.mcp:serve_mcp_stdio")
    asyncio.run(serve_agents(settings_from_arguments(arguments), program_version()))
    return exit_codes.SUCCESS
