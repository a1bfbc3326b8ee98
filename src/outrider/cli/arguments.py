"""Declares the arguments of most commands; `cli/parser.py` refers to these functions by name.

A command's `execute` default names the function that runs it, so that the implementation is imported only when needed.
"""

from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction
from collections.abc import Callable

from outrider.cli.parser import (
    SUBCOMMANDS_TITLE,
    add_agent_options,
    add_archive_options,
    add_cwd_option,
    add_database_option,
    add_health_options,
    add_server_options,
    add_session_options,
    format_examples,
    parse_database_url,
    parse_duration,
    parse_folder,
    parse_positive_int,
    parse_prompt,
    parse_web_url,
)
from outrider.types.modes import MODES

FORMATS = ("text", "json", "stream-json", "claude-stream-json")
_RUN_DESCRIPTION = """\
Run one prompt without the terminal application. The final answer is printed to stdout, everything else to stderr.
There are no approval questions: a call that needs approval is denied, and the exit code is 3. Allow calls with --allow,
or use --mode background, which runs everything inside the sandbox."""
_RUN_EXIT_CODES = """\
Exit codes: 0 success, 1 failure, 2 usage error, 3 a call was denied because it needs approval, 4 limit reached,
5 provider error, 130 interrupted."""


def declare_run(parser: ArgumentParser) -> None:
    parser.description = _RUN_DESCRIPTION
    parser.epilog = f"{_RUN_EXAMPLES}\n\n{_RUN_EXIT_CODES}"
    parser.add_argument(
        "prompt", metavar="PROMPT", nargs="*", help="the prompt; - reads stdin, @FILE reads a file; several are joined"
    )
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        action="append",
        default=[],
        help="attach an image or a document; may be repeated",
    )
    parser.add_argument("-o", "--output-format", choices=FORMATS, default="text", help="output format (default: text)")
    parser.add_argument(
        "--input-format",
        choices=("text", "stream-json"),
        default="text",
        help="stream-json: read prompts, answers and interrupts from stdin, one JSON object per line",
    )
    parser.add_argument(
        "--deltas",
        "--include-partial-messages",
        action=BooleanOptionalAction,
        help="print chunks of answers as they arrive, besides complete messages (default for stream-json)",
    )
    parser.add_argument(
        "--output-schema", metavar="FILE", help="a JSON schema: the answer is a value of it, printed as JSON"
    )
    parser.add_argument("--system", metavar="TEXT", help="replace the agent's instructions; @FILE reads a file")
    add_session_options(parser)
    add_server_options(parser)
    parser.add_argument(
        "--wait-for-approval",
        action="store_true",
        help="with --attach: wait until a user of the web page or a terminal answers, instead of denying the call",
    )
    verbosity = parser.add_mutually_exclusive_group()
    verbosity.add_argument("-q", "--quiet", action="store_true", help="print only the last answer, and only errors")
    verbosity.add_argument("-v", "--verbose", action="store_true", help="print progress to stderr, terminal or not")
    verbosity.add_argument("--debug", action="store_true", help="print every event to stderr, with inputs and outputs")
    parser.set_defaults(execute="outrider.cli.commands.run:run_prompt")


_RUN_EXAMPLES = format_examples(
    "outrider run 'why does the build fail?'",
    "git diff | outrider run 'review this change' -",
    "outrider run @task.md --file screenshot.png",
    "outrider run --allow 'shell(make test)' 'run the tests and fix what fails'",
    "outrider run --continue 'and now the documentation'",
    "outrider run -o json 'count the TODOs' | jq .output",
    "outrider run --attach http://127.0.0.1:8765 --continue 'continue'",
)


_SESSIONS_DESCRIPTION = """\
Sessions are stored until you delete them. Select one by its id, by the last characters of its id (four or more), or as
`last`."""
_SESSIONS_EXAMPLES = format_examples(
    "outrider sessions list --here",
    "outrider sessions show last",
    "outrider sessions search 'connection refused'",
    "outrider sessions fork 1a2b3c4d --title 'another way'",
    "outrider sessions share last --output talk.html",
)


def declare_sessions(parser: ArgumentParser) -> None:
    parser.description, parser.epilog = _SESSIONS_DESCRIPTION, _SESSIONS_EXAMPLES
    parser.set_defaults(default_subcommand="list")
    subparsers = parser.add_subparsers(
        title=SUBCOMMANDS_TITLE, metavar="WHAT", required=True, parser_class=type(parser)
    )

    def add_subcommand(name: str, help: str, execute: str, *, takes_session: bool = True) -> ArgumentParser:
        subparser = subparsers.add_parser(name, help=help, description=help)
        if takes_session:
            subparser.add_argument("session", metavar="SESSION", help="an id, the end of one, or `last`")
        add_archive_options(subparser)
        subparser.set_defaults(execute=f"outrider.cli.commands.{execute}")
        return subparser

    list_parser = add_subcommand(
        "list", "list sessions, most recently used first", "sessions:list_sessions", takes_session=False
    )
    list_parser.add_argument(
        "-n", "--limit", metavar="N", type=parse_positive_int, default=20, help="maximum number (20)"
    )
    list_parser.add_argument("--here", action="store_true", help="only sessions of the current folder")
    list_parser.add_argument(
        "--children", action="store_true", help="include sessions that agents opened for each other"
    )
    list_parser.add_argument("--json", action="store_true", help="print one JSON object per line")

    show_parser = add_subcommand("show", "print a conversation", "sessions:show_session")
    show_parser.add_argument("-n", "--last", metavar="N", type=parse_positive_int, help="only the last N messages")
    show_parser.add_argument("--full", action="store_true", help="print tool output and reasoning in full")
    show_parser.add_argument("--json", action="store_true", help="print one JSON message per line")

    search_parser = add_subcommand(
        "search", "search titles, messages and tool output", "sessions:search_sessions", takes_session=False
    )
    search_parser.add_argument("words", nargs="+", help='all words must match; "a phrase" and prefix* are supported')
    search_parser.add_argument(
        "-n", "--limit", metavar="N", type=parse_positive_int, default=20, help="maximum number (20)"
    )
    search_parser.add_argument("--json", action="store_true", help="print one JSON object per line")

    fork_parser = add_subcommand("fork", "copy a session into a new one", "sessions:fork_session")
    fork_parser.add_argument("--at", metavar="MESSAGE", help="copy up to and including this message (default: all)")
    fork_parser.add_argument("--title", help="the title of the new session")

    add_subcommand("rename", "change the title of a session", "sessions:rename_session").add_argument("title")

    export_parser = add_subcommand("export", "write a complete session as JSON", "sessions:export_session")
    export_parser.add_argument("-o", "--output", metavar="FILE", help="the output file (default: stdout)")

    import_parser = add_subcommand(
        "import",
        "import exported sessions, or those of other programs",
        "sessions:import_sessions",
        takes_session=False,
    )
    import_parser.add_argument(
        "file",
        metavar="FILE|URL",
        help="an export of Outrider, a session of Claude Code, Codex, Gemini CLI or opencode, a JSON list of messages "
        "of a model API, a URL of one of these, or - for stdin",
    )
    import_parser.add_argument("--copy", action="store_true", help="import as new sessions with new ids")

    share_parser = add_subcommand(
        "share", "write a session as one self-contained HTML page without scripts", "sessions:share_session"
    )
    share_parser.add_argument("-o", "--output", metavar="FILE", help="the output file (default: stdout)")

    delete_parser = add_subcommand(
        "delete", "delete a session and the sessions that its agents opened", "sessions:delete_session"
    )
    delete_parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")

    clear_parser = add_subcommand(
        "clear", "delete every session that is not in use", "sessions:clear_sessions", takes_session=False
    )
    clear_parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")


def declare_undo(parser: ArgumentParser) -> None:
    parser.description = "Revert the file changes of a session's last turn. `outrider redo` applies them again."
    parser.epilog = format_examples("outrider undo --preview", "outrider undo", "outrider undo --session 1a2b3c4d")
    _add_restore_options(parser, "undo")


def declare_redo(parser: ArgumentParser) -> None:
    parser.description = "Apply the file changes again that `outrider undo` reverted."
    parser.epilog = format_examples("outrider redo")
    _add_restore_options(parser, "redo")


def _add_restore_options(parser: ArgumentParser, direction: str) -> None:
    """Adds the options that `undo` and `redo` share."""
    add_cwd_option(parser)
    add_server_options(parser)
    parser.add_argument("-s", "--session", metavar="ID", help="the session (default: the last one of this folder)")
    parser.add_argument(
        "--preview", action="store_true", help="list the files that would change, without changing them"
    )
    parser.set_defaults(execute=f"outrider.cli.commands.undo:{direction}_turn")


_JOBS_DESCRIPTION = """\
Submit and manage background runs, which continue after the terminal closes. A worker process executes them; on one
machine it starts automatically, and several machines can share a database (see `outrider worker --help`). Every run is
a session: `outrider sessions show ID` and `outrider trace ID` show what it did."""
_WORKER_DESCRIPTION = """\
Execute submitted runs until stopped. If a worker is killed, another one resumes its runs. Any number of workers can
share one Postgres server. Runs of a queue are started round-robin by user, however many runs one user submitted.

Limits in the settings, per worker, and across all workers per queue and provider:

  [background]
  runs = 4
  [background.queues.runs]
  at_once = 20
  [background.providers.anthropic]
  at_once = 5
  starts = 30       # in
  seconds = 60"""


_RUN_ID_HELP = "the id, or the end of it"

AddSubcommand = Callable[[str, str, str], ArgumentParser]


def declare_jobs(parser: ArgumentParser) -> None:
    parser.description = _JOBS_DESCRIPTION
    parser.epilog = format_examples(
        "outrider jobs submit 'update the dependencies and fix what breaks'",
        "outrider jobs submit 'look for dead links' --after 22:30 --max-cost 1",
        "outrider jobs schedule '0 7 * * 1-5' 'summarise what was merged yesterday'",
        "outrider jobs follow RUN",
        "outrider jobs approve RUN",
    )
    parser.set_defaults(default_subcommand="list")
    subparsers = parser.add_subparsers(
        title=SUBCOMMANDS_TITLE, metavar="WHAT", required=True, parser_class=type(parser)
    )

    def add_subcommand(name: str, help: str, function: str) -> ArgumentParser:
        subparser = subparsers.add_parser(name, help=help, description=help)
        subparser.set_defaults(execute=f"outrider.cli.commands.{function}")
        subparser.add_argument("--json", action="store_true", help="print one JSON object per line")
        add_database_option(subparser)
        if function.startswith("jobs:") and function != "jobs:remove_worktree":
            add_server_options(subparser)
        else:  # they need the store, or the worktree, of this machine
            subparser.set_defaults(attach=None)
        return subparser

    _add_submit_commands(add_subcommand)
    _add_view_commands(add_subcommand)
    _add_control_commands(add_subcommand)


def _add_submit_commands(add: AddSubcommand) -> None:
    """Adds the subcommands that create runs and schedules, and those that control schedules."""
    submit_parser = add("submit", "submit a prompt; the next free worker starts it", "jobs:submit_run")
    submit_parser.add_argument("prompt", metavar="PROMPT", type=parse_prompt, help="the prompt")
    submit_parser.add_argument(
        "--after", default="", metavar="WHEN", help="start after 90s, 15m or 2h, at 22:30, or when another run ends"
    )
    submit_parser.add_argument("--wait", action="store_true", help="follow the run until it ends")
    _add_run_options(submit_parser)
    schedule_parser = add("schedule", "submit a prompt on a schedule", "jobs:schedule_run")
    schedule_parser.add_argument("cron", metavar="CRON", help="minute, hour, day, month and weekday: '0 7 * * *'")
    schedule_parser.add_argument("prompt", metavar="PROMPT", type=parse_prompt, help="the prompt")
    schedule_parser.add_argument(
        "--timezone", default="", metavar="ZONE", help="e.g. Europe/Berlin (default: this machine's)"
    )
    _add_run_options(schedule_parser)
    add("schedules", "list schedules and when each runs next", "jobs:list_schedules")
    pause_parser = add("pause", "stop submitting runs of a schedule until it is resumed", "jobs:pause_schedule")
    resume_parser = add("resume", "resume a paused schedule at its next time", "jobs:resume_schedule")
    _add_no_worker_option(resume_parser)
    unschedule_parser = add("unschedule", "delete a schedule; runs that it submitted continue", "jobs:delete_schedule")
    for subparser in (pause_parser, resume_parser, unschedule_parser):
        subparser.add_argument("schedule", metavar="SCHEDULE", help=_RUN_ID_HELP)


def _add_view_commands(add: AddSubcommand) -> None:
    """Adds the subcommands that only read runs."""
    list_parser = add("list", "list the newest runs and their states", "jobs:list_runs")
    list_parser.add_argument(
        "-n", "--limit", type=parse_positive_int, default=20, metavar="N", help="maximum number (20)"
    )
    _add_run_filters(list_parser)
    show_parser = add("show", "show the state, worktree and result of a run", "jobs:show_run")
    show_parser.add_argument("--diff", action="store_true", help="print its changes as a git diff")
    show_parser.add_argument("--trace", action="store_true", help="print its trace, step by step")
    logs_parser = add("logs", "print the messages and calls of a run so far", "jobs_follow:show_logs")
    follow_parser = add(
        "follow", "follow a run until it ends; Ctrl+C stops following, not the run", "jobs_follow:follow_run"
    )
    for subparser in (logs_parser, follow_parser):
        subparser.add_argument(
            "--after", type=int, default=0, metavar="N", help="only changes with a higher number than N"
        )
    for subparser in (show_parser, logs_parser, follow_parser):
        subparser.add_argument("run", metavar="RUN", help=_RUN_ID_HELP)


def _add_control_commands(add: AddSubcommand) -> None:
    """Adds the subcommands that change the state of a run."""
    for name, help, function in (
        ("cancel", "cancel a run; its session and changes stay", "jobs:cancel_run"),
        ("clean", "remove the worktree of an ended run; its branch is preserved", "jobs:remove_worktree"),
        ("retry", "resume a run that failed or was canceled", "jobs:retry_run"),
        ("approve", "approve the calls that a run is waiting for", "jobs:approve_calls"),
        ("deny", "deny the calls that a run is waiting for", "jobs:deny_calls"),
    ):
        control_parser = add(name, help, function)
        if name in ("cancel", "retry"):
            control_parser.add_argument("run", metavar="RUN", nargs="*", help=f"{_RUN_ID_HELP}; or use the filters")
            _add_run_filters(control_parser)
        else:
            control_parser.add_argument("run", metavar="RUN", help=_RUN_ID_HELP)
        if name in ("approve", "deny"):
            _add_answer_options(control_parser, name)
        _add_no_worker_option(control_parser)


def _add_answer_options(parser: ArgumentParser, name: str) -> None:
    parser.add_argument(
        "--call",
        metavar="NUMBER",
        type=int,
        action="append",
        default=[],
        help="answer only this call, as `jobs show` numbers it (repeatable; default: all)",
    )
    if name == "approve":
        parser.add_argument(
            "--for",
            dest="scope",
            choices=("once", "session", "project", "always"),
            default="once",
            help="how long the answer lasts: once (default), this run's session, this folder, or always",
        )
        parser.add_argument(
            "--width", metavar="ID", default="", help="what a lasting answer covers, as `jobs show` lists it"
        )
        parser.add_argument(
            "--outside", action="store_true", help="let a blocked command run again outside the sandbox"
        )
        parser.add_argument(
            "--choice",
            metavar="ID",
            default="",
            help="give this answer, as `jobs show` lists it, for example keep, hosts or session (instead of --for)",
        )
        parser.add_argument(
            "--keep",
            metavar="NAME",
            action="append",
            default=[],
            help="keep only this file of those that a command changed: a path or a pattern (repeatable)",
        )
    else:
        parser.add_argument("--reason", metavar="TEXT", default="", help="why not; the model reads it")


def _add_run_filters(parser: ArgumentParser) -> None:
    """Adds the options that select runs by state, time, queue and user."""
    parser.add_argument(
        "--state",
        action="append",
        default=[],
        choices=("delayed", "queued", "running", "waiting", "done", "failed", "canceled"),
        help="only runs in this state; repeatable",
    )
    parser.add_argument(
        "--failed", dest="state", action="append_const", const="failed", help="the same as --state failed"
    )
    parser.add_argument(
        "--since", type=parse_duration, metavar="TIME", help="only runs that ended, or were submitted, within 15m or 2h"
    )
    parser.add_argument("--queue", metavar="NAME", help="only runs of this queue")
    parser.add_argument("--user", metavar="NAME", help="only runs of this user")


def _add_run_options(parser: ArgumentParser) -> None:
    """Adds the options that submitted and scheduled runs share."""
    parser.add_argument(
        "--priority",
        type=parse_positive_int,
        default=100,
        metavar="N",
        help="lower starts sooner among your own runs (100)",
    )
    parser.add_argument(
        "--user", default="", metavar="NAME", help="users of a queue take turns (OUTRIDER_USER; your login name)"
    )
    parser.add_argument("--queue", default="runs", metavar="NAME", help="the queue; settings can limit it (runs)")
    parser.add_argument(
        "--no-worktree", dest="worktree", action="store_false", help="run in the folder itself, not in a git worktree"
    )
    parser.add_argument(
        "--webhook", type=parse_web_url, metavar="URL", help="POST the result there as JSON when the run ends"
    )
    _add_no_worker_option(parser)
    add_cwd_option(parser)
    add_agent_options(parser)


def declare_worker(parser: ArgumentParser) -> None:
    parser.description = _WORKER_DESCRIPTION
    parser.epilog = format_examples(
        "outrider worker",
        "outrider worker --database postgresql://runs.example/outrider",
        "outrider worker --print-unit",
    )
    parser.add_argument(
        "--runs", type=parse_positive_int, metavar="N", help="concurrent runs (default: [background] runs, else 4)"
    )
    add_database_option(parser)
    add_cwd_option(parser)
    add_agent_options(parser)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--status", action="store_true", help="show the workers of all machines of the database")
    action.add_argument("--stop", action="store_true", help="stop the worker; another one resumes its runs")
    action.add_argument("--restart", action="store_true", help="restart the worker with the current keys and settings")
    action.add_argument(
        "--print-unit",
        action="store_true",
        help="print a service unit that starts a worker at boot (systemd, or launchd on macOS)",
    )
    action.add_argument("--resident", action="store_true", help=SUPPRESS)
    from outrider.config.environment import read_option_defaults  # lazy: most commands need no defaults

    service = parser.add_argument_group("service")
    service.add_argument(
        "--grace",
        type=parse_duration,
        metavar="TIME",
        help="time for running calls to end when the worker is stopped (default: [background] grace_seconds, else 20s)",
    )
    add_health_options(service)
    service.add_argument(
        "--listen-url",
        type=parse_database_url,
        metavar="URL",
        default=read_option_defaults().listen_url or None,
        help="direct address of a server behind PgBouncer, for notifications; @FILE reads it (OUTRIDER_LISTEN_URL)",
    )
    parser.add_argument("--supervised", action="store_true", help=SUPPRESS)
    parser.add_argument("--idle", type=parse_duration, default=300, help=SUPPRESS)
    parser.set_defaults(execute="outrider.cli.commands.worker:run_worker", attach=None)


def _add_no_worker_option(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--no-worker",
        dest="worker",
        action="store_false",
        help="do not start a worker if none is running on this machine",
    )


def declare_models(parser: ArgumentParser) -> None:
    parser.description = (
        "List the models of the configured providers and the local models; download and remove local models."
    )
    parser.epilog = format_examples("outrider models list", "outrider models list anthropic", "outrider models pull")
    parser.set_defaults(default_subcommand="list")
    subparsers = parser.add_subparsers(
        title=SUBCOMMANDS_TITLE, metavar="WHAT", required=True, parser_class=type(parser)
    )
    list_parser = subparsers.add_parser("list", help="list models with limits and prices in dollars per million tokens")
    list_parser.add_argument("provider", metavar="PROVIDER", nargs="?", help="only models of this provider")
    list_parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    list_parser.set_defaults(execute="outrider.cli.commands.models:list_models")
    servers_parser = subparsers.add_parser("servers", help="find model servers running on this machine")
    servers_parser.description = (
        "Queries the default ports of Ollama, llama.cpp, LM Studio and vLLM on this machine only."
    )
    servers_parser.set_defaults(execute="outrider.cli.commands.models:list_servers")
    for name, help in (("pull", "download a local model, which needs no key"), ("remove", "delete a downloaded model")):
        subparser = subparsers.add_parser(name, help=help, description=help)
        subparser.add_argument(
            "model", metavar="MODEL", nargs="?", default="", help="a name from `outrider models list local`"
        )
        subparser.set_defaults(execute=f"outrider.cli.commands.models:{name}_model")


def declare_login(parser: ArgumentParser) -> None:
    from outrider.config.stored_keys import KEY_PROVIDERS

    parser.description = (
        "Store the API key of a provider: in the system's keyring if there is one, else in a file that only you can "
        "read. The key is read from the terminal without echo, or from a pipe."
    )
    parser.epilog = format_examples("outrider login anthropic", "pass show openai | outrider login openai")
    parser.add_argument("provider", nargs="?", choices=KEY_PROVIDERS, help="the provider of the key")
    parser.add_argument("--no-check", action="store_true", help="store the key without asking the vendor")
    parser.add_argument("--list", action="store_true", help="print which keys are stored, and where")
    parser.set_defaults(execute="outrider.cli.commands.login:log_in")


def declare_logout(parser: ArgumentParser) -> None:
    from outrider.config.stored_keys import KEY_PROVIDERS

    parser.description = "Delete the stored API key of a provider, or all of them."
    parser.epilog = format_examples("outrider logout anthropic", "outrider logout")
    parser.add_argument("provider", nargs="?", choices=KEY_PROVIDERS, help="the provider of the key")
    parser.set_defaults(execute="outrider.cli.commands.login:log_out")


def declare_config(parser: ArgumentParser) -> None:
    parser.description = (
        "Settings come from flags, the environment, your settings file, and the file of a trusted folder."
    )
    parser.epilog = format_examples("outrider config", "outrider config init", "$EDITOR $(outrider config path)")
    add_cwd_option(parser)
    action = parser.add_argument("what", nargs="?", choices=("show", "path", "init"), default="show")
    action.help = "show the settings in effect (default), print the path of your file, or create a commented file"
    parser.set_defaults(execute="outrider.cli.commands.config:run_config")


def declare_doctor(parser: ArgumentParser) -> None:
    parser.description = (
        "Check the installation and print a fix for every problem. The exit code is 1 if there is a problem."
    )
    parser.epilog = format_examples(
        "outrider doctor", "outrider doctor --network", "outrider doctor --repair --compact"
    )
    add_cwd_option(parser)
    parser.add_argument("--network", action="store_true", help="also request the model list of each provider")
    parser.add_argument("--repair", action="store_true", help="repair a damaged store without losing data")
    parser.add_argument("--compact", action="store_true", help="free the disk space of deleted sessions")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.set_defaults(execute="outrider.cli.commands.doctor:run_doctor")


def declare_backup(parser: ArgumentParser) -> None:
    parser.description = (
        "Write sessions, background runs, stored outputs and undo data of this machine to one archive (tar.gz). Other\n"
        "Outrider processes may run meanwhile. Every database in the archive has passed an integrity check."
    )
    _add_archive_arguments(parser, "backup", file="the archive to create", yes="replace the file if it exists")


def declare_restore(parser: ArgumentParser) -> None:
    parser.description = (
        "Replace the stored data with those of an archive of `outrider backup`. The archive is checked first; the\n"
        "previous files are moved to a folder of the data folder. Stop other Outrider processes before."
    )
    _add_archive_arguments(parser, "restore", file="the archive", yes="replace existing data, which is moved aside")


def _add_archive_arguments(parser: ArgumentParser, command: str, *, file: str, yes: str) -> None:
    parser.epilog = format_examples(f"outrider {command} outrider.tar.gz", f"outrider {command} --yes outrider.tar.gz")
    parser.add_argument("file", metavar="FILE", help=file)
    parser.add_argument("-y", "--yes", action="store_true", help=yes)
    parser.set_defaults(execute=f"outrider.cli.commands.backup:run_{command}")


_RULES_HELP = """\
Rules have the form tool(pattern): shell(git status *), write(/docs/**), web_fetch(example.com).
Outcome rules allow what may result: may write build/**, may reach example.com, may run npm test.
Deny takes precedence over ask, and ask over allow; without a matching rule the mode decides."""


def declare_permissions(parser: ArgumentParser) -> None:
    parser.description = f"Show and explain which calls may run without asking.\n{_RULES_HELP}"
    parser.epilog = format_examples(
        "outrider permissions list",
        "outrider permissions explain shell 'git push origin main'",
        "outrider permissions explain 'write(notes.md)' --mode plan",
        "outrider permissions revoke 1a2b3c4d",
        "outrider permissions backtest last --deny 'shell(rm *)'",
    )
    parser.set_defaults(default_subcommand="list")
    subparsers = parser.add_subparsers(
        title=SUBCOMMANDS_TITLE, metavar="WHAT", required=True, parser_class=type(parser)
    )

    def add_subcommand(name: str, help: str, function: str) -> ArgumentParser:
        subparser = subparsers.add_parser(name, help=help, description=help)
        subparser.set_defaults(execute=f"outrider.cli.commands.permissions:{function}")
        return subparser

    list_parser = add_subcommand("list", "list the rules of your settings and the stored approvals", "list_permissions")
    add_cwd_option(list_parser)
    explain_parser = add_subcommand("explain", "show the decision about a call, and its reason", "explain_decision")
    explain_parser.add_argument(
        "tool", metavar="TOOL", help="shell, write, read, web_fetch …; or a call in rule syntax"
    )
    explain_parser.add_argument(
        "subject", metavar="SUBJECT", nargs="?", help="the command, path or URL; or the complete input as JSON"
    )
    backtest_parser = add_subcommand(
        "backtest", "decide the calls of a session again, under other rules", "backtest_rules"
    )
    backtest_parser.add_argument("session", metavar="SESSION", help="an id, the end of one, or `last`")
    for subparser in (explain_parser, backtest_parser):
        add_cwd_option(subparser)
        subparser.add_argument("--mode", choices=MODES, help="assume this mode")
        for effect in ("allow", "ask", "deny"):
            subparser.add_argument(
                f"--{effect}", metavar="RULE", action="append", default=[], help=f"assume this {effect} rule"
            )
    revoke_parser = add_subcommand(
        "revoke", "revoke a stored approval; the next such call asks again", "revoke_answers"
    )
    revoke_parser.add_argument("answer", metavar="ID", help="an id from `outrider permissions list`, or `all`")


def declare_trust(parser: ArgumentParser) -> None:
    parser.description = (
        "Show the settings, instructions, skills and servers that a folder defines, and allow them to take effect."
    )
    parser.epilog = format_examples("outrider trust", "outrider trust ~/project --yes")
    _add_folder_argument(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    parser.set_defaults(execute="outrider.cli.commands.permissions:trust_folder")


def declare_distrust(parser: ArgumentParser) -> None:
    parser.description = "Stop trusting a folder: its settings, instructions, skills and servers are ignored again."
    parser.epilog = format_examples("outrider distrust", "outrider distrust ~/project")
    _add_folder_argument(parser)
    parser.set_defaults(execute="outrider.cli.commands.permissions:distrust_folder")


def _add_folder_argument(parser: ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="FOLDER", nargs="?", type=parse_folder, help="the folder (default: the current one)"
    )


SHELLS = ("bash", "zsh", "fish")


def declare_completion(parser: ArgumentParser) -> None:
    parser.description = "Print a script that completes commands and flags in your shell."
    parser.epilog = format_examples(
        'eval "$(outrider completion bash)"      a line for ~/.bashrc',
        'eval "$(outrider completion zsh)"       a line for ~/.zshrc',
        "outrider completion fish > ~/.config/fish/completions/outrider.fish",
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")
    parser.set_defaults(execute="outrider.cli.completion:print_completion_script")
