"""Changes to sessions as a whole: fork, rename, delete."""

import sys
from argparse import Namespace

from outrider.app.archive.archive import Archive
from outrider.app.archive.names import short_id
from outrider.cli import exits
from outrider.cli.console import Console
from outrider.cli.store import with_archive
from outrider.errors import ConfigurationError


def fork(arguments: Namespace) -> int:
    async def work(archive: Archive) -> str:
        found = await archive.find(arguments.session)
        return (await archive.fork(found.id, at=arguments.at, title=arguments.title)).id

    Console().print(with_archive(work))
    return exits.DONE


def rename(arguments: Namespace) -> int:
    async def work(archive: Archive) -> None:
        await archive.rename((await archive.find(arguments.session)).id, arguments.title)

    with_archive(work)
    return exits.DONE


def delete(arguments: Namespace) -> int:
    async def work(archive: Archive) -> int:
        found = await archive.find(arguments.session)
        if not sure(f"Delete {short_id(found.id)} {found.title!r}? It cannot be brought back.", yes=arguments.yes):
            return exits.FAILED
        await archive.delete(found.id)
        return exits.DONE

    return with_archive(work)


def clear(arguments: Namespace) -> int:
    if not sure("Delete every session that is not in use? They cannot be brought back.", yes=arguments.yes):
        return exits.FAILED
    count = with_archive(Archive.clear)
    Console().say(f"{count} deleted")
    return exits.DONE


def sure(question: str, *, yes: bool) -> bool:
    """Asked only where somebody can answer; elsewhere the flag must say it."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError(f"{question} Nobody can be asked here; say it with --yes")
    Console().err.write(f"{question} [y/N] ")
    Console().err.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
