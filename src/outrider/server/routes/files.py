"""What agents did to files: looked at, undone and redone."""

from typing import Literal

import msgspec

from outrider.app.undo.file_changes import Restored
from outrider.server.endpoint import Asked, Endpoint, Nothing
from outrider.server.routes.sessions import ONE


class LookQuery(msgspec.Struct, frozen=True):
    """`to` is a message or a call: everything from there on; without it, the last turn."""

    direction: Literal["undo", "redo"] = "undo"
    to: str | None = None


class Restore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`doubtful` takes along files that perhaps no agent changed."""

    direction: Literal["undo", "redo"]
    to: str | None = None
    doubtful: bool = False


async def look(asked: Asked[LookQuery, Nothing]) -> Restored:
    changes = asked.engine.file_changes(asked.path["session_id"])
    return await changes.preview(asked.query.direction, to=asked.query.to)


async def restore(asked: Asked[Nothing, Restore]) -> Restored:
    changes, wanted = asked.engine.file_changes(asked.path["session_id"]), asked.body
    if wanted.direction == "undo":
        return await changes.undo(wanted.to, doubtful=wanted.doubtful)
    return await changes.redo(doubtful=wanted.doubtful)


FILES = (
    Endpoint(method="GET", path=f"{ONE}/files", name="look_at_files", summary="What an undo or redo would do",
             answer=look, query=LookQuery, gives=Restored),
    Endpoint(method="POST", path=f"{ONE}/files", name="restore_files", summary="Undo or redo changes of files",
             answer=restore, body=Restore, gives=Restored),
)  # fmt: skip
