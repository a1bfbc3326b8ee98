"""`outrider sessions`, `undo` and `redo`: what can be done with conversations that are kept."""

from argparse import ArgumentParser

from outrider.cli.options import add_place, at_least_one
from outrider.cli.parser import TO_DO, examples

_SESSIONS = """Sessions are kept until you delete them. Name one by its id, by the last characters of its id
(four or more), or as `last`."""
_SESSIONS_EXAMPLES = examples(
    "outrider sessions list --here",
    "outrider sessions show last",
    "outrider sessions search 'connection refused'",
    "outrider sessions fork 1a2b3c4d --title 'another way'",
    "outrider sessions share last --output talk.html",
)


def sessions(parser: ArgumentParser) -> None:
    parser.description, parser.epilog = _SESSIONS, _SESSIONS_EXAMPLES
    parser.set_defaults(usual="list")
    known = parser.add_subparsers(title=TO_DO, metavar="WHAT", required=True, parser_class=type(parser))

    def add(name: str, help: str, execute: str, *, session: bool = True) -> ArgumentParser:
        one = known.add_parser(name, help=help, description=help)
        if session:
            one.add_argument("session", metavar="SESSION", help="an id, the end of one, or `last`")
        one.set_defaults(execute=f"outrider.cli.sessions.{execute}")
        return one

    found = add("list", "list sessions, the one used last first", "listing:list_sessions", session=False)
    found.add_argument("-n", "--limit", metavar="N", type=at_least_one, default=20, help="at most so many (20)")
    found.add_argument("--here", action="store_true", help="only those of the current folder")
    found.add_argument("--children", action="store_true", help="also those that agents opened for each other")
    found.add_argument("--json", action="store_true", help="one JSON object a line")

    shown = add("show", "print a conversation", "showing:show")
    shown.add_argument("-n", "--last", metavar="N", type=at_least_one, help="only the last N messages")
    shown.add_argument("--full", action="store_true", help="tool output and reasoning in full")
    shown.add_argument("--json", action="store_true", help="one message a line, as JSON")

    search = add("search", "find words in titles, texts and tool output", "listing:search", session=False)
    search.add_argument("words", nargs="+", help='every word counts; "a phrase" and prefix* work')
    search.add_argument("-n", "--limit", metavar="N", type=at_least_one, default=20, help="at most so many (20)")
    search.add_argument("--json", action="store_true", help="one JSON object a line")

    fork = add("fork", "begin a new session with a copy of another", "changing:fork")
    fork.add_argument("--at", metavar="MESSAGE", help="copy up to and with this message (default: all)")
    fork.add_argument("--title", help="the title of the new session")

    add("rename", "give a session another title", "changing:rename").add_argument("title")

    export = add("export", "write a session as JSON, without loss", "moving:export")
    export.add_argument("-o", "--output", metavar="FILE", help="where to (default: stdout)")

    bring = add("import", "keep what an export holds", "moving:bring", session=False)
    bring.add_argument("file", metavar="FILE", help="an export, or - for stdin")
    bring.add_argument("--copy", action="store_true", help="as new sessions with ids of their own")

    share = add("share", "write a session as one HTML page that loads and runs nothing", "moving:share")
    share.add_argument("-o", "--output", metavar="FILE", help="where to (default: stdout)")

    delete = add("delete", "delete a session, and those that its agents opened", "changing:delete")
    delete.add_argument("-y", "--yes", action="store_true", help="do not ask")

    clear = add("clear", "delete every session that is not in use", "changing:clear", session=False)
    clear.add_argument("-y", "--yes", action="store_true", help="do not ask")


def undo(parser: ArgumentParser) -> None:
    parser.description = "Take back what the last turn of a session did to files. `outrider redo` does it again."
    parser.epilog = examples("outrider undo --preview", "outrider undo", "outrider undo --session 1a2b3c4d")
    _change_of_files(parser, "undo")


def redo(parser: ArgumentParser) -> None:
    parser.description = "Do again what `outrider undo` took back."
    parser.epilog = examples("outrider redo")
    _change_of_files(parser, "redo")


def what_if(parser: ArgumentParser) -> None:
    parser.description = "Run a copy of a session on from one of its steps with something otherwise, and compare."
    parser.epilog = examples(
        "outrider what-if last --at-step 3 --model openai/gpt-5.4",
        "outrider what-if 1a2b3c4d --instructions @shorter.md",
        "outrider what-if last --result CALL_ID='no such file'",
    )
    add_place(parser)
    parser.add_argument("session", metavar="SESSION", help="an id, the end of one, or `last`")
    parser.add_argument(
        "--at-step", metavar="N", type=int, help="keep the first N answers (default: as many as can stay)"
    )
    parser.add_argument("--model", metavar="PROVIDER/MODEL", help="another model")
    parser.add_argument("--agent", metavar="NAME", help="another agent")
    parser.add_argument("--instructions", metavar="TEXT", help="other instructions; @FILE reads a file")
    parser.add_argument("--result", metavar="CALL=TEXT", action="append", default=[], help="another result of a call")
    parser.set_defaults(execute="outrider.cli.sessions.otherwise:execute")


def _change_of_files(parser: ArgumentParser, what: str) -> None:
    add_place(parser)
    parser.add_argument("-s", "--session", metavar="ID", help="which session (default: the last one of this folder)")
    parser.add_argument("--preview", action="store_true", help="say which files would change, and change nothing")
    parser.set_defaults(execute=f"outrider.cli.sessions.files:{what}")
