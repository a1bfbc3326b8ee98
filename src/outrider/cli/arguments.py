"""`outrider run`: what it takes."""

from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable

from outrider.cli.parser import (
    MODES,
    TO_DO,
    add_conversation,
    add_database,
    add_place,
    add_server,
    add_terms,
    at_least_one,
    examples,
    folder,
    port,
    seconds,
)

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
    parser.set_defaults(execute="outrider.cli.commands.run:execute")


_EXAMPLES = examples(
    "outrider run 'why does the build fail?'",
    "git diff | outrider run 'review this change' -",
    "outrider run @task.md --file screenshot.png",
    "outrider run --allow 'shell(make test)' 'run the tests and mend what fails'",
    "outrider run --continue 'and now the documentation'",
    "outrider run -o json 'count the TODOs' | jq .output",
    "outrider run --attach http://127.0.0.1:8765 --continue 'go on'",
)


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
        one.set_defaults(execute=f"outrider.cli.commands.{execute}")
        return one

    found = add("list", "list sessions, the one used last first", "sessions:list_sessions", session=False)
    found.add_argument("-n", "--limit", metavar="N", type=at_least_one, default=20, help="at most so many (20)")
    found.add_argument("--here", action="store_true", help="only those of the current folder")
    found.add_argument("--children", action="store_true", help="also those that agents opened for each other")
    found.add_argument("--json", action="store_true", help="one JSON object a line")

    shown = add("show", "print a conversation", "sessions:show")
    shown.add_argument("-n", "--last", metavar="N", type=at_least_one, help="only the last N messages")
    shown.add_argument("--full", action="store_true", help="tool output and reasoning in full")
    shown.add_argument("--json", action="store_true", help="one message a line, as JSON")

    search = add("search", "find words in titles, texts and tool output", "sessions:search", session=False)
    search.add_argument("words", nargs="+", help='every word counts; "a phrase" and prefix* work')
    search.add_argument("-n", "--limit", metavar="N", type=at_least_one, default=20, help="at most so many (20)")
    search.add_argument("--json", action="store_true", help="one JSON object a line")

    fork = add("fork", "begin a new session with a copy of another", "sessions:fork")
    fork.add_argument("--at", metavar="MESSAGE", help="copy up to and with this message (default: all)")
    fork.add_argument("--title", help="the title of the new session")

    add("rename", "give a session another title", "sessions:rename").add_argument("title")

    export = add("export", "write a session as JSON, without loss", "sessions:export")
    export.add_argument("-o", "--output", metavar="FILE", help="where to (default: stdout)")

    bring = add("import", "keep what an export holds", "sessions:bring", session=False)
    bring.add_argument("file", metavar="FILE", help="an export, or - for stdin")
    bring.add_argument("--copy", action="store_true", help="as new sessions with ids of their own")

    share = add("share", "write a session as one HTML page that loads and runs nothing", "sessions:share")
    share.add_argument("-o", "--output", metavar="FILE", help="where to (default: stdout)")

    delete = add("delete", "delete a session, and those that its agents opened", "sessions:delete")
    delete.add_argument("-y", "--yes", action="store_true", help="do not ask")

    clear = add("clear", "delete every session that is not in use", "sessions:clear", session=False)
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
    parser.set_defaults(execute="outrider.cli.commands.what_if:execute")


def _change_of_files(parser: ArgumentParser, what: str) -> None:
    add_place(parser)
    parser.add_argument("-s", "--session", metavar="ID", help="which session (default: the last one of this folder)")
    parser.add_argument("--preview", action="store_true", help="say which files would change, and change nothing")
    parser.set_defaults(execute=f"outrider.cli.commands.undo:{what}")


_JOBS = """\
Runs that go on when the terminal is closed. A worker carries them on: on one machine it starts by itself, and many
machines share a database (see `outrider worker --help`). A run is a session too: `outrider sessions show ID` and
`outrider trace ID` show what it did."""
_WORKER = """\
Carry on the runs that were submitted, until it is stopped; it can be killed at any moment, and another goes on.
Any number of workers may share one Postgres server. Users of a queue take turns, however many runs one has submitted.

The settings may bound a worker, and over all workers a queue and a provider:

  [background]
  runs = 4
  [background.queues.runs]
  at_once = 20
  [background.providers.anthropic]
  at_once = 5
  starts = 30       # in
  seconds = 60"""


_RUN = "its id, or the end of it"

Add = Callable[[str, str, str], ArgumentParser]


def jobs(parser: ArgumentParser) -> None:
    parser.description = _JOBS
    parser.epilog = examples(
        "outrider jobs submit 'update the dependencies and mend what breaks'",
        "outrider jobs submit 'look for dead links' --after 22:30 --max-cost 1",
        "outrider jobs schedule '0 7 * * 1-5' 'summarise what was merged yesterday'",
        "outrider jobs follow RUN",
        "outrider jobs approve RUN",
    )
    parser.set_defaults(usual="list")
    known = parser.add_subparsers(title=TO_DO, metavar="WHAT", required=True, parser_class=type(parser))

    def add(name: str, help: str, function: str) -> ArgumentParser:
        one = known.add_parser(name, help=help, description=help)
        one.set_defaults(execute=f"outrider.cli.commands.{function}")
        one.add_argument("--json", action="store_true", help="one JSON object on each line")
        add_database(one)
        return one

    _add_submitting(add)
    _add_looking(add)
    _add_ordering(add)


def _add_submitting(add: Add) -> None:
    submitted = add("submit", "submit a prompt; it is begun as soon as a worker has time", "jobs:submit")
    submitted.add_argument("prompt", metavar="PROMPT", type=words, help="what to do")
    submitted.add_argument(
        "--after", default="", metavar="WHEN", help="not before 90s, 15m or 2h are over, 22:30, or another run's end"
    )
    submitted.add_argument("--wait", action="store_true", help="follow it until it is over")
    _add_order(submitted)
    scheduled = add("schedule", "submit a prompt again and again", "jobs:schedule")
    scheduled.add_argument("cron", metavar="CRON", help="minute, hour, day, month and weekday: '0 7 * * *'")
    scheduled.add_argument("prompt", metavar="PROMPT", type=words, help="what to do")
    scheduled.add_argument("--timezone", default="", metavar="ZONE", help="like Europe/Berlin (this machine's)")
    _add_order(scheduled)
    add("schedules", "what is submitted again and again, and when", "jobs:schedules")
    paused = add("pause", "submit no runs of a schedule until it is resumed", "jobs:pause")
    resumed = add("resume", "submit runs of a schedule again, from its next time on", "jobs:resume")
    _add_no_worker(resumed)
    unscheduled = add("unschedule", "end a schedule; runs that it submitted go on", "jobs:unschedule")
    for one in (paused, resumed, unscheduled):
        one.add_argument("schedule", metavar="SCHEDULE", help=_RUN)


def _add_looking(add: Add) -> None:
    listed = add("list", "the newest runs, and where they stand", "jobs:list_runs")
    listed.add_argument("-n", "--limit", type=at_least_one, default=20, metavar="N", help="at most so many")
    shown = add("show", "one run: where it stands, where it works, and what came of it", "jobs:show")
    shown.add_argument("--diff", action="store_true", help="print what it changed, as git does")
    shown.add_argument("--trace", action="store_true", help="print what it did, step by step")
    logged = add("logs", "what a run has said and done so far", "jobs_follow:logs")
    followed = add("follow", "watch a run until it is over; Ctrl+C leaves it alone", "jobs_follow:follow")
    for one in (logged, followed):
        one.add_argument("--after", type=int, default=0, metavar="N", help="only what is newer than this number")
    for one in (shown, logged, followed):
        one.add_argument("run", metavar="RUN", help=_RUN)


def _add_ordering(add: Add) -> None:
    for name, help, function in (
        ("cancel", "end a run, with everything kept", "jobs:cancel"),
        ("clean", "remove the worktree of a run that has ended; its branch stays", "jobs:clean"),
        ("retry", "let a run go on that failed or was canceled", "jobs:retry"),
        ("approve", "say yes to what a run waits for", "jobs:approve"),
        ("deny", "say no to what a run waits for", "jobs:deny"),
    ):
        ordered = add(name, help, function)
        ordered.add_argument("run", metavar="RUN", help=_RUN)
        _add_no_worker(ordered)


def _add_order(parser: ArgumentParser) -> None:
    """What may be said about a run, whenever it begins."""
    parser.add_argument(
        "--priority", type=at_least_one, default=100, metavar="N", help="smaller is begun sooner (100), among your own"
    )
    parser.add_argument("--queue", default="runs", metavar="NAME", help="one that the settings may bound (runs)")
    parser.add_argument(
        "--no-worktree", dest="worktree", action="store_false", help="work in the folder itself, not in a git worktree"
    )
    parser.add_argument("--webhook", type=web_address, metavar="URL", help="POST its end there, as JSON")
    _add_no_worker(parser)
    add_place(parser)
    add_terms(parser)


def worker(parser: ArgumentParser) -> None:
    parser.description = _WORKER
    parser.epilog = examples(
        "outrider worker",
        "outrider worker --database postgresql://runs.example/outrider",
        "outrider worker --print-unit",
    )
    parser.add_argument(
        "--runs", type=at_least_one, metavar="N", help="so many runs at once (as [background] says, else 4)"
    )
    add_database(parser)
    add_place(parser)
    add_terms(parser)
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--status", action="store_true", help="say whether a worker is at work on this machine")
    one.add_argument("--stop", action="store_true", help="end it; another one goes on with its runs")
    one.add_argument("--restart", action="store_true", help="end it, and start one with the keys and settings of now")
    one.add_argument(
        "--print-unit",
        action="store_true",
        help="print what has the system start a worker whenever the machine starts (systemd, or launchd on a Mac)",
    )
    one.add_argument("--resident", action="store_true", help=SUPPRESS)
    parser.add_argument("--idle", type=seconds, default=300, help=SUPPRESS)
    parser.set_defaults(execute="outrider.cli.commands.worker:worker")


def words(text: str) -> str:
    if not text.strip():
        raise ArgumentTypeError("it is empty; say what to do")
    return text


def web_address(text: str) -> str:
    from urllib.parse import urlsplit

    if urlsplit(text).scheme not in ("http", "https") or not urlsplit(text).hostname:
        raise ArgumentTypeError(f"{text!r} is no address of the web")
    return text


def _add_no_worker(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--no-worker", dest="worker", action="store_false", help="start no worker, if none is at work on this machine"
    )


_SESSION = "an id, the end of one, or `last` (the default)"


def trace(parser: ArgumentParser) -> None:
    parser.description = "Show what a session did: every answer of a model and every call, with time, tokens and cost."
    parser.epilog = examples("outrider trace", "outrider trace 1a2b3c4d --html trace.html")
    parser.add_argument("session", metavar="SESSION", nargs="?", default="last", help=_SESSION)
    parser.add_argument("--html", metavar="FILE", help="write a page with a timeline instead (- for stdout)")
    parser.set_defaults(execute="outrider.cli.commands.trace:execute")


def stats(parser: ArgumentParser) -> None:
    parser.description = "What was used, by day, model, agent and tool. Days are those of UTC."
    parser.epilog = examples("outrider stats", "outrider stats --by model --days 7", "outrider stats --session last")
    parser.add_argument("--by", choices=("day", "model", "agent", "tool"), help="one table only")
    parser.add_argument("-d", "--days", metavar="N", type=at_least_one, default=30, help="the last N days (30)")
    parser.add_argument("-s", "--session", metavar="ID", help="of one session only")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(execute="outrider.cli.commands.stats:execute")


def models(parser: ArgumentParser) -> None:
    parser.description = "The models of the providers that are set up, and those that run inside this program."
    parser.epilog = examples("outrider models list", "outrider models list anthropic", "outrider models pull")
    parser.set_defaults(usual="list")
    known = parser.add_subparsers(title=TO_DO, metavar="WHAT", required=True, parser_class=type(parser))
    listed = known.add_parser("list", help="models, their limits, and their prices in dollars per million tokens")
    listed.add_argument("provider", metavar="PROVIDER", nargs="?", help="only those of this provider")
    listed.add_argument("--json", action="store_true", help="one JSON object a line")
    listed.set_defaults(execute="outrider.cli.commands.models:list_models")
    found = known.add_parser("servers", help="look for programs on this machine that serve models")
    found.description = "Asks the usual ports of Ollama, llama.cpp, LM Studio and vLLM on this machine, and no other."
    found.set_defaults(execute="outrider.cli.commands.models:servers")
    for name, help in (("pull", "fetch a model that needs no key"), ("remove", "delete a model that was fetched")):
        one = known.add_parser(name, help=help, description=help)
        one.add_argument(
            "model", metavar="MODEL", nargs="?", default="", help="as `outrider models list local` names it"
        )
        one.set_defaults(execute=f"outrider.cli.commands.models:{name}")


def config(parser: ArgumentParser) -> None:
    parser.description = "Settings come from flags, the environment, your own file, and the file of a trusted folder."
    parser.epilog = examples("outrider config", "outrider config init", "$EDITOR $(outrider config path)")
    add_place(parser)
    what = parser.add_argument("what", nargs="?", choices=("show", "path", "init"), default="show")
    what.help = "show what counts here (default), print the path of your file, or write a commented one"
    parser.set_defaults(execute="outrider.cli.commands.config:execute")


def doctor(parser: ArgumentParser) -> None:
    parser.description = "Look at everything that has to be in order. Exit code 1 says that something is not."
    parser.epilog = examples("outrider doctor", "outrider doctor --network", "outrider doctor --repair --compact")
    add_place(parser)
    parser.add_argument("--network", action="store_true", help="also ask each provider for its models")
    parser.add_argument("--repair", action="store_true", help="mend the store where it is damaged; nothing is lost")
    parser.add_argument("--compact", action="store_true", help="give disk space back that deleted sessions used")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.set_defaults(execute="outrider.cli.commands.doctor:execute")


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
        one.set_defaults(execute=f"outrider.cli.commands.permissions:{function or name}")
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
    parser.set_defaults(execute="outrider.cli.commands.trust:trust")


def distrust(parser: ArgumentParser) -> None:
    parser.description = "Forget that a folder was trusted: nothing that it brings along counts any more."
    parser.epilog = examples("outrider distrust", "outrider distrust ~/project")
    _folder(parser)
    parser.set_defaults(execute="outrider.cli.commands.trust:distrust")


def _folder(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", nargs="?", type=folder, help="default: the current one")


_ACP = """\
Work for an editor: it starts this command, and the two speak the Agent Client Protocol on stdin and stdout.
The editor names the folders and the sessions, shows what happens, and asks you before it matters.
What is said here holds for all of them; words for people go to stderr."""


def acp(parser: ArgumentParser) -> None:
    parser.description = _ACP
    parser.epilog = examples("outrider acp", "outrider acp --model anthropic/claude-sonnet-4-5 --mode plan")
    add_terms(parser)
    parser.set_defaults(execute="outrider.cli.commands.serve:execute_acp")


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
    parser.set_defaults(execute="outrider.cli.commands.serve:execute")


_MCP = """\
Work for other agents, as an MCP server on stdin and stdout: they may run an agent in this folder, and search and read
your sessions. Nobody is asked: a call that would need an approval is refused. Say with --allow what may run."""


def mcp(parser: ArgumentParser) -> None:
    parser.description = _MCP
    parser.epilog = examples("outrider mcp", "outrider mcp --cwd ~/project --mode plan")
    add_place(parser)
    add_terms(parser)
    parser.set_defaults(execute="outrider.cli.commands.serve:execute_mcp")


SHELLS = ("bash", "zsh", "fish")


def completion(parser: ArgumentParser) -> None:
    parser.description = "Print a script that lets a shell complete commands and flags."
    parser.epilog = examples(
        'eval "$(outrider completion bash)"      a line for ~/.bashrc',
        'eval "$(outrider completion zsh)"       a line for ~/.zshrc',
        "outrider completion fish > ~/.config/fish/completions/outrider.fish",
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")
    parser.set_defaults(execute="outrider.cli.completion:execute")
