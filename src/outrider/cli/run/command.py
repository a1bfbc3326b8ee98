"""`outrider run`: what it takes."""

from argparse import ArgumentParser

from outrider.cli.options import add_conversation, add_server
from outrider.cli.parser import examples

FORMATS = ("text", "json", "stream-json")
_DESCRIPTION = """\
Work on one prompt without a screen. The answer goes to stdout as it is written, everything else to stderr.
Nobody is asked: a call that would need an approval is refused, and the exit code is 3. Say with --allow what may run,
or with --mode background that everything may, inside the sandbox."""
_EPILOG = """\
Exit codes: 0 done, 1 failed, 2 usage, 3 a call was refused for want of approval, 4 a limit was reached,
5 the provider failed, 130 interrupted."""


def run(parser: ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.epilog = f"{_EXAMPLES}\n\n{_EPILOG}"
    parser.add_argument(
        "prompt", metavar="PROMPT", nargs="*", help="what to do; - reads stdin, @FILE reads a file; several are joined"
    )
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        action="append",
        default=[],
        help="attach an image or a document; may be repeated",
    )
    parser.add_argument("-o", "--output-format", choices=FORMATS, default="text", help="what to print (default: text)")
    parser.add_argument(
        "--system", metavar="TEXT", help="instructions in the place of the agent's own; @FILE reads a file"
    )
    add_conversation(parser)
    add_server(parser)
    parser.add_argument(
        "--wait-for-approval",
        action="store_true",
        help="a call that needs an approval waits until somebody else answers, on the page or in a terminal",
    )
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument("-q", "--quiet", action="store_true", help="only the last answer, and only errors on stderr")
    loudness.add_argument("-v", "--verbose", action="store_true", help="say on stderr what happens, terminal or not")
    parser.set_defaults(execute="outrider.cli.run.work:execute")


_EXAMPLES = examples(
    "outrider run 'why does the build fail?'",
    "git diff | outrider run 'review this change' -",
    "outrider run @task.md --file screenshot.png",
    "outrider run --allow 'shell(make test)' 'run the tests and mend what fails'",
    "outrider run --continue 'and now the documentation'",
    "outrider run -o json 'count the TODOs' | jq .output",
    "outrider run --attach http://127.0.0.1:8765 --continue 'go on'",
)
