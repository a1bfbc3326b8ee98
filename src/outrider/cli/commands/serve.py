"""Starts the server."""

import asyncio
import sys
from argparse import Namespace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from outrider.cli import registry as exits
from outrider.cli.main import version
from outrider.cli.parser import named
from outrider.cli.setup import settings_of
from outrider.errors import ConfigurationError


def execute(arguments: Namespace) -> int:
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        raise ConfigurationError("the server is not installed: pip install 'outrider[server]'")
    if arguments.mcp and find_spec("mcp") is None:
        raise ConfigurationError("the Model Context Protocol is not installed: pip install 'outrider[mcp]'")
    options = named("outrider.server.server:ServeOptions")(
        host=arguments.host,
        port=arguments.port,
        socket=_path(arguments.socket),
        names=tuple(arguments.name),
        expose=arguments.expose,
        certificate=_path(arguments.tls_cert),
        key=_path(arguments.tls_key),
        mcp=arguments.mcp,
        database=arguments.database,
    )
    serve = named("outrider.server.server:serve")
    try:
        asyncio.run(serve(settings_of(arguments), options, version(), _tell))
    except KeyboardInterrupt:
        return exits.DONE  # that is how a server is ended
    except OSError as error:
        raise ConfigurationError(f"the server cannot listen there: {error}") from error
    return exits.DONE


def _path(given: str | None) -> Path | None:
    return Path(given).expanduser().absolute() if given else None


def _tell(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


def execute_acp(arguments: Namespace) -> int:
    if find_spec("acp") is None:
        raise ConfigurationError("the protocol of editors is not installed: pip install 'outrider[acp]'")
    if sys.stdin.isatty():
        sys.stderr.write("outrider acp waits for an editor on stdin. To talk to the agent yourself: outrider\n")
    # By name: the two front ends do not know each other, and only one of them is loaded.
    serve_editor = named("outrider.acp.agent:serve_editor")
    serve_editor(partial(settings_of, arguments), version())
    return exits.DONE


def execute_mcp(arguments: Namespace) -> int:
    if find_spec("mcp") is None:
        raise ConfigurationError("the Model Context Protocol is not installed: pip install 'outrider[mcp]'")
    serve_agents = named("outrider.server.mcp:serve_agents")
    asyncio.run(serve_agents(settings_of(arguments), version()))
    return exits.DONE
