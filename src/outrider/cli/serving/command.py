"""`outrider acp`: what it takes."""

from argparse import ArgumentParser

from outrider.cli.options import add_terms
from outrider.cli.parser import examples

_ACP = """\
Work for an editor: it starts this command, and the two speak the Agent Client Protocol on stdin and stdout.
The editor names the folders and the sessions, shows what happens, and asks you before it matters.
What is said here holds for all of them; words for people go to stderr."""


def acp(parser: ArgumentParser) -> None:
    parser.description = _ACP
    parser.epilog = examples("outrider acp", "outrider acp --model anthropic/claude-sonnet-4-5 --mode plan")
    add_terms(parser)
    parser.set_defaults(execute="outrider.cli.serving.acp:execute")
