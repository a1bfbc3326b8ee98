"""`outrider trace`, `stats`, `models`, `config` and `doctor`: what they take."""

from argparse import ArgumentParser

from outrider.cli.options import add_place, at_least_one
from outrider.cli.parser import TO_DO, examples

_SESSION = "an id, the end of one, or `last` (the default)"


def trace(parser: ArgumentParser) -> None:
    parser.description = "Show what a session did: every answer of a model and every call, with time, tokens and cost."
    parser.epilog = examples("outrider trace", "outrider trace 1a2b3c4d --html trace.html")
    parser.add_argument("session", metavar="SESSION", nargs="?", default="last", help=_SESSION)
    parser.add_argument("--html", metavar="FILE", help="write a page with a timeline instead (- for stdout)")
    parser.set_defaults(execute="outrider.cli.looking.trace:execute")


def stats(parser: ArgumentParser) -> None:
    parser.description = "What was used, by day, model, agent and tool. Days are those of UTC."
    parser.epilog = examples("outrider stats", "outrider stats --by model --days 7", "outrider stats --session last")
    parser.add_argument("--by", choices=("day", "model", "agent", "tool"), help="one table only")
    parser.add_argument("-d", "--days", metavar="N", type=at_least_one, default=30, help="the last N days (30)")
    parser.add_argument("-s", "--session", metavar="ID", help="of one session only")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(execute="outrider.cli.looking.stats:execute")


def models(parser: ArgumentParser) -> None:
    parser.description = "The models of the providers that are set up, and those that run inside this program."
    parser.epilog = examples("outrider models list", "outrider models list anthropic", "outrider models pull")
    parser.set_defaults(usual="list")
    known = parser.add_subparsers(title=TO_DO, metavar="WHAT", required=True, parser_class=type(parser))
    listed = known.add_parser("list", help="models, their limits, and their prices in dollars per million tokens")
    listed.add_argument("provider", metavar="PROVIDER", nargs="?", help="only those of this provider")
    listed.add_argument("--json", action="store_true", help="one JSON object a line")
    listed.set_defaults(execute="outrider.cli.looking.models:list_models")
    found = known.add_parser("servers", help="look for programs on this machine that serve models")
    found.description = "Asks the usual ports of Ollama, llama.cpp, LM Studio and vLLM on this machine, and no other."
    found.set_defaults(execute="outrider.cli.looking.models:servers")
    for name, help in (("pull", "fetch a model that needs no key"), ("remove", "delete a model that was fetched")):
        one = known.add_parser(name, help=help, description=help)
        one.add_argument(
            "model", metavar="MODEL", nargs="?", default="", help="as `outrider models list local` names it"
        )
        one.set_defaults(execute=f"outrider.cli.looking.models:{name}")


def config(parser: ArgumentParser) -> None:
    parser.description = "Settings come from flags, the environment, your own file, and the file of a trusted folder."
    parser.epilog = examples("outrider config", "outrider config init", "$EDITOR $(outrider config path)")
    add_place(parser)
    what = parser.add_argument("what", nargs="?", choices=("show", "path", "init"), default="show")
    what.help = "show what counts here (default), print the path of your file, or write a commented one"
    parser.set_defaults(execute="outrider.cli.looking.config:execute")


def doctor(parser: ArgumentParser) -> None:
    parser.description = "Look at everything that has to be in order. Exit code 1 says that something is not."
    parser.epilog = examples("outrider doctor", "outrider doctor --network", "outrider doctor --repair --compact")
    add_place(parser)
    parser.add_argument("--network", action="store_true", help="also ask each provider for its models")
    parser.add_argument("--repair", action="store_true", help="mend the store where it is damaged; nothing is lost")
    parser.add_argument("--compact", action="store_true", help="give disk space back that deleted sessions used")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(execute="outrider.cli.looking.doctor:execute")
