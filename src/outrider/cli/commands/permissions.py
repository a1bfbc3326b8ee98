"""Rules and answers: shown, explained, taken back, tried on what was done."""

from argparse import Namespace
from collections.abc import Sequence

import msgspec

from outrider.cli import registry as exits
from outrider.cli.output import Console, cut, table
from outrider.cli.setup import with_archive
from outrider.config.settings import Flags, Settings, read_settings
from outrider.engine.archive import Approval, Archive, Transcript, short_id
from outrider.engine.diagnostics import Policy, Verdict, explained, judged_again, summary
from outrider.errors import ConfigurationError


def list_rights(arguments: Namespace) -> int:
    console, settings = Console(), read_settings(cwd=arguments.cwd)
    answers = with_archive(Archive.answers)
    rows = [(effect, rule) for effect in ("deny", "ask", "allow") for rule in getattr(settings.rules, effect)]
    if rows:
        console.print("Rules of your settings", "bold")
    for line in table(("effect", "rule"), rows, console.width) if rows else ():
        console.print(line)
    if answers:
        console.print("\n" * bool(rows) + "Answers that still hold", "bold")
        heads = ("id", "for", "rules")
        for line in table(heads, [_row(one) for one in answers], console.width):
            console.print(line)
    if not rows and not answers:
        console.say(f"There are no rules and no answers; {settings.mode} mode decides alone.")
    return exits.DONE


def explain(arguments: Namespace) -> int:
    settings = _settings(arguments)
    tool, subject = _call(arguments.tool, arguments.subject)
    found = explained(
        tool,
        subject,
        _policy(settings),
        mode=settings.mode,
        workspace=str(settings.workspace),
        sandbox=True,
    )
    console = Console()
    console.print(found.format())
    return exits.DONE


def revoke(arguments: Namespace) -> int:
    async def work(archive: Archive) -> Sequence[Approval]:
        known = await archive.answers()
        chosen = [one for one in known if arguments.answer == "all" or one.id.endswith(arguments.answer)]
        if len(chosen) != 1 and arguments.answer != "all":
            raise ConfigurationError(
                f"{arguments.answer!r} names {len(chosen)} answers; see `outrider permissions list`"
            )
        return [await archive.revoke(one.id) for one in chosen]

    for one in with_archive(work):
        Console().say(f"revoked: {one.tool} {msgspec.json.encode(one.input).decode()}")
    return exits.DONE


def backtest(arguments: Namespace) -> int:
    settings = _settings(arguments)
    before = _policy(read_settings(cwd=arguments.cwd))

    async def work(archive: Archive) -> Transcript:
        return await archive.load((await archive.find(arguments.session)).id)

    verdicts = judged_again(with_archive(work), before, _policy(settings), settings.mode, sandbox=True)
    console = Console()
    for verdict in verdicts:
        if verdict.changed:
            console.print(cut(_change(verdict), console.width))
    for what, count in sorted(summary(verdicts).items()):
        console.print(f"{count:>6}  {what}")
    return exits.DONE


def _call(tool: str, subject: str | None) -> tuple[str, str]:
    """`shell 'git push'` or `'shell(git push)'`."""
    if subject is not None:
        return tool, subject
    name, _, rest = tool.partition("(")
    if not rest.endswith(")"):
        wanted = f"shell '{tool}'" if " " in tool else f"{tool} SUBJECT"
        raise ConfigurationError(f"which tool, and called with what? Write: outrider permissions explain {wanted}")
    return name, rest[:-1]


def _settings(arguments: Namespace) -> Settings:
    flags = Flags(
        mode=arguments.mode, allow=tuple(arguments.allow), ask=tuple(arguments.ask), deny=tuple(arguments.deny)
    )
    return read_settings(cwd=arguments.cwd, flags=flags)


def _policy(settings: Settings) -> Policy:
    return Policy(settings.rules.allow, settings.rules.ask, settings.rules.deny)


def _row(answer: Approval) -> tuple[str, ...]:
    return short_id(answer.id), answer.scope, ", ".join(answer.offers)


def _change(verdict: Verdict) -> str:
    moved = f"{verdict.before.effect} -> {verdict.after.effect}"
    given = msgspec.json.encode(verdict.call.arguments).decode()
    return f"{moved:<14} {verdict.call.tool} {given}  ({verdict.after.reason})"
