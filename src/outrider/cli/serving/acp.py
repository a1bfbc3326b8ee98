"""Starts the agent of an editor."""

import sys
from argparse import Namespace
from functools import partial
from importlib.util import find_spec

from outrider.cli import exits
from outrider.cli.main import version
from outrider.cli.parser import named
from outrider.cli.settings import settings_of
from outrider.errors import ConfigurationError


def execute(arguments: Namespace) -> int:
    if find_spec("acp") is None:
        raise ConfigurationError("the protocol of editors is not installed: pip install 'outrider[acp]'")
    if sys.stdin.isatty():
        sys.stderr.write("outrider acp waits for an editor on stdin. To talk to the agent yourself: outrider\n")
    # By name: the two front ends do not know each other, and only one of them is loaded.
    serve_editor = named("outrider.acp.serve:serve_editor")
    serve_editor(partial(settings_of, arguments), version())
    return exits.DONE
