"""A session's trace, as a tree in the terminal or as a page."""

from argparse import Namespace

from outrider.cli import registry as exits
from outrider.cli.commands.sessions import written
from outrider.cli.output import Console
from outrider.cli.setup import with_archive
from outrider.engine.archive import Archive
from outrider.engine.session_trace import stored_trace


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
