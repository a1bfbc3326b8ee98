"""What deleted sessions had kept for an undo is deleted, too."""

import asyncio
from pathlib import Path

from outrider.engine.undo import FOLDER
from outrider.errors import SessionNotFoundError, StoreError
from outrider.sessions import snapshots as kept
from outrider.sessions.store import Store


async def forget_lost(data: Path, store: Store) -> None:
    """In every workspace. One whose file cannot be read is left as it is."""
    for file in sorted((data / FOLDER).glob(f"*/{kept.FILE}")):
        try:
            gone = [one for one in await asyncio.to_thread(kept.sessions_in, file.parent) if await _is_gone(one, store)]
            if gone:
                await asyncio.to_thread(kept.forget_sessions, file.parent, gone)
        except StoreError:
            continue


async def _is_gone(session_id: str, store: Store) -> bool:
    try:
        await store.get(session_id)
    except SessionNotFoundError:
        return True
    return False
