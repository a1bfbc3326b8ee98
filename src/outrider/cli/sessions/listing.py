"""Lists of sessions: all of them, or where words were found."""

from argparse import Namespace
from pathlib import Path

import msgspec

from outrider.app.archive.archive import Archive, SearchHit, StoredSession
from outrider.app.archive.names import short_id
from outrider.cli import exits
from outrider.cli.console import Console
from outrider.cli.store import with_archive
from outrider.cli.tables import ago, cut, table
from outrider.types.ids import now_ms


def list_sessions(arguments: Namespace) -> int:
    async def work(archive: Archive) -> list[StoredSession]:
        workspace = Path.cwd() if arguments.here else None
        return list(await archive.sessions(arguments.limit, workspace=workspace, children=arguments.children))

    console, found = Console(), with_archive(work)
    if arguments.json:
        for session in found:
            console.print(msgspec.json.encode(session).decode())
    elif not found:
        console.say("There is no session yet. Begin one: outrider run 'say hello', or just: outrider")
    else:
        heads, rows = ("id", "used", "mode", "folder", "title"), [_row(one) for one in found]
        for line in table(heads, rows, console.width, narrow=(0, 1, 4)):
            console.print(line)
    return exits.DONE


def search(arguments: Namespace) -> int:
    words = " ".join(arguments.words)

    async def work(archive: Archive) -> list[SearchHit]:
        return list(await archive.search(words, limit=arguments.limit))

    console, hits = Console(), with_archive(work)
    if arguments.json:
        for hit in hits:
            console.print(msgspec.json.encode(hit).decode())
        return exits.DONE if hits else exits.FAILED
    for hit in hits:
        console.print(cut(f"{short_id(hit.session_id)}  {hit.title or '(no title)'}", console.width), "bold")
        console.print(f"  {hit.kind}: {cut(hit.snippet, console.width - len(hit.kind) - 4)}")
    if not hits:
        console.say(f"{words!r} was not found.")
    return exits.DONE if hits else exits.FAILED


def _row(session: StoredSession) -> tuple[str, ...]:
    used = ago(session.time.updated, now_ms()) if session.time else ""
    home, folder = str(Path.home()), session.workspace_directory
    shown = f"~{folder.removeprefix(home)}" if folder == home or folder.startswith(f"{home}/") else folder
    return short_id(session.id), used, session.mode, shown, session.title or "(no title)"
