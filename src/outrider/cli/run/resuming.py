"""Which session a run goes on with. It is looked for first: its folder decides which settings count."""

from argparse import Namespace
from pathlib import Path
from typing import NamedTuple

from outrider.app.archive.names import short_id
from outrider.cli.store import folders
from outrider.errors import ConfigurationError


class Resumed(NamedTuple):
    id: str
    workspace: str

    def folder(self, wanted: Path | None) -> Path:
        """Where the session works; nothing else can be said about it now."""
        own = Path(self.workspace) if self.workspace else wanted or Path.cwd()
        if wanted is not None and wanted != own:
            raise ConfigurationError(f"session {short_id(self.id)} works in {own}; leave --cwd out")
        return own


async def resumed_session(arguments: Namespace) -> Resumed | None:
    if not (arguments.session or arguments.resume):
        return None
    from outrider.app.archive.archive import open_archive  # a new session needs none of it

    async with open_archive(folders().store) as archive:
        if arguments.session:
            found = await archive.find(arguments.session)
        else:
            found = await archive.newest(arguments.cwd or Path.cwd())
        return Resumed(found.id, found.workspace_directory)
