"""Starts the server."""

import asyncio
import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

from outrider.cli import exits
from outrider.cli.main import version
from outrider.cli.parser import named
from outrider.cli.settings import settings_of
from outrider.errors import ConfigurationError


def execute(arguments: Namespace) -> int:
    if find_spec("uvicorn") is None or find_spec("starlette") is None:
        raise ConfigurationError("the server is not installed: pip install 'outrider[server]'")
    if arguments.mcp and find_spec("mcp") is None:
        raise ConfigurationError("the Model Context Protocol is not installed: pip install 'outrider[mcp]'")
    options = named("outrider.server.serve:ServeOptions")(
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
    serve = named("outrider.server.serve:serve")
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
