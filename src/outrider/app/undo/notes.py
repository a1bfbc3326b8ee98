"""What the transcript says about changed files: a part beside the call, and a message for an undo or redo."""

from collections.abc import Sequence

from outrider.sessions import snapshots as kept
from outrider.sessions.journal import Journal
from outrider.types.messages import Message
from outrider.types.parts import PatchPart, TextPart

NAMED = 50  # files
_DONE = {
    "undo": "The user has undone changes. These files hold again what they held before them: {files}.",
    "redo": "The user has redone changes that had been undone, in these files: {files}.",
}
_LEFT = " Somebody else has changed these since, so they were left as they are: {files}."


async def write_down(journal: Journal, changed: "kept.ChangeSet", left: Sequence[str] = ()) -> str:
    """Once, whoever tries; says in which message."""
    messages = journal.session.messages
    for message in messages:
        if any(part.hash == changed.id for part in message.get_parts_by_type(PatchPart)):
            return message.id
    part = PatchPart(changed.id, changed.paths)
    if changed.origin.kind != "call":
        text = TextPart(_words(changed, left), synthetic=True)
        return (await journal.add_message(Message("user", [part, text]))).id
    beside = next((one for one in messages if any(known.id == changed.origin.part_id for known in one.parts)), None)
    if beside is None:
        return ""
    await journal.put_part(part, beside)
    return beside.id


def _words(changed: "kept.ChangeSet", left: Sequence[str]) -> str:
    done = _DONE[changed.origin.kind].format(files=_named(changed.paths))
    return done + (_LEFT.format(files=_named(left)) if left else "")


def _named(files: Sequence[str]) -> str:
    more = f" and {len(files) - NAMED} more" if len(files) > NAMED else ""
    return (", ".join(files[:NAMED]) or "none") + more
