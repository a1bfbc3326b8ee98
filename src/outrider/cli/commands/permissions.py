"""`outrider permissions`: lists rules and stored approvals, explains decisions, revokes approvals, backtests
rules; `trust` and `distrust`: whether the files of a folder may configure the program."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import msgspec

from outrider.cli import exit_codes
from outrider.cli.commands.sessions import confirm_action
from outrider.cli.output import Console, format_table, truncate_text
from outrider.cli.setup import run_with_archive, user_folders
from outrider.config.settings import CommandFlags, Settings, read_settings
from outrider.engine.archive import Approval, SessionArchive, SessionTranscript
from outrider.engine.permission_explanations import (
    BacktestResult,
    PermissionRules,
    count_changes,
    explain_call,
    recheck_session,
)
from outrider.errors import ConfigurationError
from outrider.presentation.formats import short_id
from outrider.project.trust import WorkspaceTrust, find_project


def list_permissions(arguments: Namespace) -> int:
    """Prints the rules of the settings and the stored approvals."""
    console, settings = Console(), read_settings(cwd=arguments.cwd)
    for notice in settings.notices:
        console.print_stderr(f"outrider: {notice}", "yellow")
    answers = run_with_archive(SessionArchive.lasting_approvals)
    rows = [(effect, rule) for effect in ("deny", "ask", "allow") for rule in getattr(settings.rules, effect)]
    if rows:
        console.print("Rules in your settings", "bold")
    for line in format_table(("effect", "rule"), rows, console.width) if rows else ():
        console.print(line)
    if answers:
        console.print("\n" * bool(rows) + "Stored approvals", "bold")
        heads = ("id", "for", "covers")
        for line in format_table(heads, [_answer_row(approval) for approval in answers], console.width):
            console.print(line)
    if not rows and not answers:
        console.print_stderr(f"There are no rules and no stored approvals; {settings.mode} mode decides.")
    return exit_codes.SUCCESS


def explain_decision(arguments: Namespace) -> int:
    """Prints the decision about one call, with the rule or mode that causes it."""
    settings = _settings_with_flags(arguments)
    tool, subject = _parse_call(arguments.tool, arguments.subject)
    explanation = explain_call(
        tool,
        subject,
        _policy_from_settings(settings),
        mode=settings.mode,
        level=settings.approval,
        workspace=str(settings.workspace),
        sandbox=True,
    )
    console = Console()
    console.print(explanation.format())
    return exit_codes.SUCCESS


def revoke_answers(arguments: Namespace) -> int:
    """Revokes one stored approval by id, or all of them."""

    async def revoke_chosen(archive: SessionArchive) -> Sequence[Approval]:
        approvals = await archive.lasting_approvals()
        matches = [
            approval for approval in approvals if arguments.answer == "all" or approval.id.endswith(arguments.answer)
        ]
        if len(matches) != 1 and arguments.answer != "all":
            raise ConfigurationError(
                f"{arguments.answer!r} matches {len(matches)} stored approvals; see `outrider permissions list`"
            )
        return [await archive.revoke_approval(approval.id) for approval in matches]

    for approval in run_with_archive(revoke_chosen):
        Console().print_stderr(f"revoked: {approval.tool} {msgspec.json.encode(approval.input).decode()}")
    return exit_codes.SUCCESS


def backtest_rules(arguments: Namespace) -> int:
    """Decides the calls of a stored session again under other rules, and prints the changed decisions."""
    settings = _settings_with_flags(arguments)
    before = _policy_from_settings(read_settings(cwd=arguments.cwd))

    async def load_transcript(archive: SessionArchive) -> SessionTranscript:
        return await archive.load((await archive.find_session(arguments.session)).id)

    verdicts = recheck_session(
        run_with_archive(load_transcript), before, _policy_from_settings(settings), settings.mode, sandbox=True
    )
    console = Console()
    for verdict in verdicts:
        if verdict.changed:
            console.print(truncate_text(_format_change(verdict), console.width))
    for change, count in sorted(count_changes(verdicts).items()):
        console.print(f"{count:>6}  {change}")
    return exit_codes.SUCCESS


def _parse_call(tool: str, subject: str | None) -> tuple[str, str]:
    """Returns tool and subject, given as `shell 'git push'` or as `'shell(git push)'`."""
    if subject is not None:
        return tool, subject
    name, _, arguments = tool.partition("(")
    if not arguments.endswith(")"):
        example = f"shell '{tool}'" if " " in tool else f"{tool} SUBJECT"
        raise ConfigurationError(f"a tool and its subject are required: outrider permissions explain {example}")
    return name, arguments[:-1]


def _settings_with_flags(arguments: Namespace) -> Settings:
    flags = CommandFlags(
        mode=arguments.mode, allow=tuple(arguments.allow), ask=tuple(arguments.ask), deny=tuple(arguments.deny)
    )
    return read_settings(cwd=arguments.cwd, flags=flags)


def _policy_from_settings(settings: Settings) -> PermissionRules:
    return PermissionRules(settings.rules.allow, settings.rules.ask, settings.rules.deny)


def _answer_row(answer: Approval) -> tuple[str, ...]:
    from outrider.presentation.approvals import grant_text  # lazy, as below: only stored approvals need it
    from outrider.presentation.tool_calls import call_title

    text = grant_text(answer)
    if not answer.offers:  # no rule names the call
        text = f"{call_title(answer.tool, answer.input)}: {text}"
    return short_id(answer.id), answer.scope, text  # programs read the scope, so it is the stored word


def _format_change(verdict: BacktestResult) -> str:
    transition = " -> ".join(verdict.transition)
    tool_input = msgspec.json.encode(verdict.call.arguments).decode()
    return f"{transition:<14} {verdict.call.tool} {tool_input}  ({verdict.after.reason})"


PREVIEW_LINES = 30


def trust_folder(arguments: Namespace) -> int:
    """Prints the configuration items of a folder, asks for confirmation, and stores the trust for exactly these
    items."""
    console, workspace_trust = Console(), _workspace_trust(arguments)
    items = workspace_trust.list_items()
    if not items:
        console.print_stderr(f"{workspace_trust.project.root} contains no configuration that needs trust.")
    for item in items:
        console.print(f"{item.kind} {item.name}", "bold")
        for line in item.content.splitlines()[:PREVIEW_LINES]:
            console.print(f"  {line}")
        if item.executable:
            console.print("  this starts a program or connects to an address when a session starts", "yellow")
    if not confirm_action(f"Trust {workspace_trust.project.root} and apply all of this?", yes=arguments.yes):
        return exit_codes.FAILURE
    workspace_trust.trust(items)
    console.print_stderr(f"trusted: {workspace_trust.project.root}")
    return exit_codes.SUCCESS


def distrust_folder(arguments: Namespace) -> int:
    workspace_trust = _workspace_trust(arguments)
    workspace_trust.revoke_trust()
    Console().print_stderr(f"no longer trusted: {workspace_trust.project.root}")
    return exit_codes.SUCCESS


def _workspace_trust(arguments: Namespace) -> WorkspaceTrust:
    folders = user_folders()
    return WorkspaceTrust(find_project(arguments.folder or Path.cwd(), folders.home), folders.trust_file)
