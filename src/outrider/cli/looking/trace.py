"""A session's trace, as a tree in the terminal or as a page."""

from argparse import Namespace

from outrider.app.archive.archive import Archive
from outrider.app.archive.traces import stored_trace
from outrider.cli import exits
from outrider.cli.console import Console
from outrider.cli.sessions.moving import written
from outrider.cli.store import with_archive


def execute(arguments: Namespace) -> int:
    console = Console()

    async def work(archive: Archive) -> str:
        found = await archive.find(arguments.session)
        trace = await stored_trace(archive, found.id)
        return trace.to_html(found.title) if arguments.html else trace.format_tree(console.width)

    text = with_archive(work)
    if arguments.html:
        return written(text.encode(), arguments.html)
    console.print(text)
    return exits.DONE
