"""What agents on a server did to files there: looked at, undone and redone."""

from outrider.app.remote.client import Client
from outrider.app.remote.feeds.held import path_of
from outrider.app.undo.file_changes import Restored
from outrider.sessions.snapshots.undoing import Direction


class RemoteFiles:
    def __init__(self, client: Client, session_id: str) -> None:
        self._client = client
        self._path = f"{path_of(session_id)}/files"

    async def preview(self, direction: Direction = "undo") -> Restored:
        return await self._client.get(self._path, Restored, direction=direction)

    async def undo(self) -> Restored:
        return await self._client.post(self._path, {"direction": "undo"}, Restored)

    async def redo(self) -> Restored:
        return await self._client.post(self._path, {"direction": "redo"}, Restored)
