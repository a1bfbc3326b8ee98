"""`outrider trace`: prints the trace of a session as a tree, or writes it as an HTML page."""

from argparse import Namespace

from outrider.cli import exit_codes
from outrider.cli.commands.sessions import write_output
from outrider.cli.output import Console
from outrider.cli.setup import run_with_archive
from outrider.engine.archive import SessionArchive
from outrider.engine.session_trace import stored_trace


def show_trace(arguments: Namespace) -> int:
    """Print the trace as a tree for the terminal width, or write it as an HTML page."""
    console = Console()

    async def render_trace(archive: SessionArchive) -> str:
        found = await archive.find_session(arguments.session)
        trace = await stored_trace(archive, found.id)
        return trace.to_html(found.title) if arguments.html else trace.format_tree(console.width)

    text = run_with_archive(render_trace)
    if arguments.html:
        return write_output(text.encode(), arguments.html)
    console.print(text)
    return exit_codes.SUCCESS
