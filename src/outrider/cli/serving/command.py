"""`outrider serve`, `outrider acp` and `outrider mcp`: what they take."""

from argparse import ArgumentParser

from outrider.cli.options import add_database, add_place, add_terms, port
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


_SERVE = """\
Serve the engine over HTTP, with a web page, on this machine only: the link that is printed opens it in a browser.
Every request needs the token, which is kept in a file that only you can read."""


def serve(parser: ArgumentParser) -> None:
    parser.description = _SERVE
    parser.epilog = examples(
        "outrider serve",
        "outrider serve --port 8765",
        "outrider serve --socket ~/.outrider.sock",
        "outrider serve --database postgresql://runs.example/outrider",
        "outrider serve --host 0.0.0.0 --name build.example --expose --tls-cert c.pem --tls-key k.pem",
    )
    add_place(parser)
    place = parser.add_argument_group("where it listens")
    place.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="the address to listen on")
    place.add_argument("--port", type=port, default=0, metavar="N", help="the port (0: any free one)")
    place.add_argument("--socket", metavar="PATH", help="listen on a Unix socket instead")
    place.add_argument("--expose", action="store_true", help="let other machines come in; needs TLS")
    place.add_argument("--name", action="append", default=[], metavar="HOST", help="a name that clients may use for it")
    place.add_argument("--tls-cert", metavar="FILE", help="certificate, as PEM")
    place.add_argument("--tls-key", metavar="FILE", help="its key, as PEM")
    add_database(parser)
    parser.add_argument("--mcp", action="store_true", help="also work for other agents, as an MCP server at /mcp")
    add_terms(parser)
    parser.set_defaults(execute="outrider.cli.serving.http:execute")


_MCP = """\
Work for other agents, as an MCP server on stdin and stdout: they may run an agent in this folder, and search and read
your sessions. Nobody is asked: a call that would need an approval is refused. Say with --allow what may run."""


def mcp(parser: ArgumentParser) -> None:
    parser.description = _MCP
    parser.epilog = examples("outrider mcp", "outrider mcp --cwd ~/project --mode plan")
    add_place(parser)
    add_terms(parser)
    parser.set_defaults(execute="outrider.cli.serving.mcp:execute")
