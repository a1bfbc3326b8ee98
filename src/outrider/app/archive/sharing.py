"""A session as one page that can be sent to somebody."""

from outrider.app.archive.archive import Archive
from outrider.sessions.transfer.page import share


async def shared_page(archive: Archive, session_id: str) -> str:
    return share(await archive.load(session_id))
