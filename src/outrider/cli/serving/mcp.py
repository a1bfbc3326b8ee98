"""Starts the MCP server."""

import asyncio
from argparse import Namespace
from importlib.util import find_spec

from outrider.cli import exits
from outrider.cli.main import version
from outrider.cli.parser import named
from outrider.cli.settings import settings_of
from outrider.errors import ConfigurationError


def execute(arguments: Namespace) -> int:
    if find_spec("mcp") is None:
        raise ConfigurationError("the Model Context Protocol is not installed: pip install 'outrider[mcp]'")
    serve_agents = named("outrider.server.mcp.serve:serve_agents")
    asyncio.run(serve_agents(settings_of(arguments), version()))
    return exits.DONE
