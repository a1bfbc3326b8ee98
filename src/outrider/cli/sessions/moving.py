"""Sessions on their way out and in: exports, imports, pages to share."""

import sys
from argparse import Namespace
from pathlib import Path

from outrider.app.archive.archive import Archive, Imported
from outrider.app.archive.sharing import shared_page
from outrider.cli import exits
from outrider.cli.console import Console
from outrider.cli.store import with_archive
from outrider.errors import ConfigurationError


def export(arguments: Namespace) -> int:
    async def work(archive: Archive) -> bytes:
        return await archive.export((await archive.find(arguments.session)).id)

    return written(with_archive(work), arguments.output)


def share(arguments: Namespace) -> int:
    async def work(archive: Archive) -> str:
        return await shared_page(archive, (await archive.find(arguments.session)).id)

    return written(with_archive(work).encode(), arguments.output)


def bring(arguments: Namespace) -> int:
    document = _read(arguments.file)

    async def work(archive: Archive) -> Imported:
        return await archive.bring(document, as_copy=arguments.copy)

    console, done = Console(), with_archive(work, make=True)
    for session in done.sessions:
        console.print(session.id)
    for what in done.left_out:
        console.say(f"left out, since it is damaged: {what}", "yellow")
    return exits.DONE


def written(content: bytes, output: str | None) -> int:
    """To a file, or as it is to stdout."""
    if output is None or output == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return exits.DONE
    try:
        Path(output).write_bytes(content)
    except OSError as error:
        raise ConfigurationError(f"{output} cannot be written: {error.strerror}") from error
    Console().say(f"written: {output}")
    return exits.DONE


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}") from error
