"""`outrider permissions`, `trust` and `distrust`: what they take."""

from argparse import ArgumentParser

from outrider.cli.options import MODES, add_place, folder
from outrider.cli.parser import TO_DO, examples

_RULES = """\
Rules are written as tool(pattern): shell(git status *), write(/docs/**), web_fetch(example.com).
Deny wins over ask, ask over allow; what no rule names is decided by the mode."""


def permissions(parser: ArgumentParser) -> None:
    parser.description = f"What may run unasked, and why.\n{_RULES}"
    parser.epilog = examples(
        "outrider permissions list",
        "outrider permissions explain shell 'git push origin main'",
        "outrider permissions explain 'write(notes.md)' --mode plan",
        "outrider permissions revoke 1a2b3c4d",
        "outrider permissions backtest last --deny 'shell(rm *)'",
    )
    parser.set_defaults(usual="list")
    known = parser.add_subparsers(title=TO_DO, metavar="WHAT", required=True, parser_class=type(parser))

    def add(name: str, help: str, function: str = "") -> ArgumentParser:
        one = known.add_parser(name, help=help, description=help)
        one.set_defaults(execute=f"outrider.cli.rights.permissions:{function or name}")
        return one

    listed = add("list", "rules of your settings, and answers that still hold", "list_rights")
    add_place(listed)
    explained = add("explain", "what would be decided about a call, and by what")
    explained.add_argument("tool", metavar="TOOL", help="shell, write, read, web_fetch …; or a call as rules write it")
    explained.add_argument(
        "subject", metavar="SUBJECT", nargs="?", help="its command, path or address; or its whole input as JSON"
    )
    judged = add("backtest", "judge the calls of a session again, under other rules")
    judged.add_argument("session", metavar="SESSION", help="an id, the end of one, or `last`")
    for one in (explained, judged):
        add_place(one)
        one.add_argument("--mode", choices=MODES, help="as if in this mode")
        for effect in ("allow", "ask", "deny"):
            one.add_argument(
                f"--{effect}", metavar="RULE", action="append", default=[], help=f"with this {effect} rule"
            )
    revoked = add("revoke", "take an answer back; the next such call is asked about again")
    revoked.add_argument("answer", metavar="ID", help="as `outrider permissions list` shows it; `all` for every one")


def trust(parser: ArgumentParser) -> None:
    parser.description = "Show what a folder brings along (settings, instructions, skills, servers), and let it count."
    parser.epilog = examples("outrider trust", "outrider trust ~/project --yes")
    _folder(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.set_defaults(execute="outrider.cli.rights.trusting:trust")


def distrust(parser: ArgumentParser) -> None:
    parser.description = "Forget that a folder was trusted: nothing that it brings along counts any more."
    parser.epilog = examples("outrider distrust", "outrider distrust ~/project")
    _folder(parser)
    parser.set_defaults(execute="outrider.cli.rights.trusting:distrust")


def _folder(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", nargs="?", type=folder, help="default: the current one")
