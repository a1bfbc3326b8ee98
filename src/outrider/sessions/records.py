"""What a store keeps besides messages and parts, and what it answers: sessions, changes, leases, inbox, approvals."""

import hashlib
from decimal import Decimal
from typing import Any, Literal

import msgspec
from msgspec.structs import force_setattr

from outrider.sessions.session import ForkPoint, Session, SessionTime
from outrider.types.codec import AnyPart
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.usage import Tokens

Delivery = Literal["steer", "queue"]
ApprovalAnswer = Literal["open", "allowed", "denied", "revoked"]
ApprovalScope = Literal["once", "session", "project", "always"]
Grouping = Literal["day", "model", "agent", "tool"]
Kept = Message | AnyPart


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session without its transcript. `seq` is the number of its last change."""

    id: str = msgspec.field(default_factory=new_id)
    title: str = ""
    workspace_directory: str = ""
    mode: str = "agent"
    agent: str = ""
    parent_id: str | None = None
    forked_from: ForkPoint | None = None
    time: SessionTime | None = None
    metadata: dict[str, Any] = {}
    seq: int = 0

    def __post_init__(self) -> None:
        force_setattr(self, "title", sayable(self.title))
        force_setattr(self, "workspace_directory", sayable(self.workspace_directory))

    @classmethod
    def of(cls, session: Session) -> "StoredSession":
        return cls(
            id=session.id,
            title=session.title,
            workspace_directory=session.workspace_directory,
            mode=session.mode,
            agent=session.agent,
            parent_id=session.parent_id,
            forked_from=session.forked_from,
            time=session.time,
        )


def sayable(text: str) -> str:
    """Text that every store can hold: no NUL, and no half of a surrogate pair."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


class SessionUpdate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What may change about a session as a whole; what is unset stays as it is."""

    title: str | msgspec.UnsetType = msgspec.UNSET
    workspace_directory: str | msgspec.UnsetType = msgspec.UNSET
    mode: str | msgspec.UnsetType = msgspec.UNSET
    agent: str | msgspec.UnsetType = msgspec.UNSET
    archived: int | msgspec.UnsetType | None = msgspec.UNSET
    compacting: int | msgspec.UnsetType | None = msgspec.UNSET
    metadata: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET

    def apply(self, session: StoredSession) -> StoredSession:
        changes = {name: value for name in _PLAIN if (value := getattr(self, name)) is not msgspec.UNSET}
        times = {name: value for name in _TIMES if (value := getattr(self, name)) is not msgspec.UNSET}
        time = session.time or SessionTime(0, 0)
        return msgspec.structs.replace(session, time=msgspec.structs.replace(time, **times), **changes)


_PLAIN = ("title", "workspace_directory", "mode", "agent", "metadata")
_TIMES = ("archived", "compacting")


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True):
    """None means any. `roots` leaves out the sessions that an agent opened for another."""

    workspace_directory: str | None = None
    parent_id: str | None = None
    roots: bool = False
    agent: str | None = None
    mode: str | None = None
    archived: bool | None = None
    active_since: int | None = None
    active_before: int | None = None


class SessionPage(msgspec.Struct, frozen=True):
    """Sessions, newest activity first; `next` is the cursor of the following page, None at the end."""

    sessions: tuple[StoredSession, ...]
    next: str | None = None


class Damaged(msgspec.Struct, frozen=True):
    """A row that cannot be read: reported, set aside, and still kept as it is."""

    kind: Literal["session", "message", "part"]
    id: str
    message_id: str
    error: str
    raw: bytes


class Transcript(msgspec.Struct, frozen=True):
    """A session with all or some of its messages. `first` and `last` say whether its ends are the session's."""

    session: StoredSession
    messages: list[Message]
    damaged: tuple[Damaged, ...] = ()
    first: bool = True
    last: bool = True
    drafts: frozenset[str] = frozenset()


class SessionChange(msgspec.Struct, frozen=True, tag="session"):
    seq: int
    session: StoredSession


class MessageChange(msgspec.Struct, frozen=True, tag="message"):
    """`message` comes without its parts; each part is a change of its own."""

    seq: int
    message: Message


class PartChange(msgspec.Struct, frozen=True, tag="part"):
    """`draft`: the part was still being written when this value was kept."""

    seq: int
    part: AnyPart
    draft: bool = False


class InboxChange(msgspec.Struct, frozen=True, tag="inbox"):
    seq: int
    item: "InboxItem"


class ApprovalChange(msgspec.Struct, frozen=True, tag="approval"):
    seq: int
    approval: "Approval"


class DamagedChange(msgspec.Struct, frozen=True, tag="damaged"):
    seq: int
    row: Damaged


class DeletedChange(msgspec.Struct, frozen=True, tag="deleted"):
    """The session is gone; nothing follows."""

    seq: int


Change = SessionChange | MessageChange | PartChange | InboxChange | ApprovalChange | DamagedChange | DeletedChange


class Owner(msgspec.Struct, frozen=True):
    """A process, named so that another one can tell whether it still lives."""

    id: str
    host: str
    pid: int
    boot: str = ""
    started: int = 0
    namespace: str = ""


class Lease(msgspec.Struct, frozen=True):
    """The right to change a session until it expires. `token` grows with every owner and is what fences."""

    session_id: str
    token: int
    owner: Owner
    since: int
    ttl_ms: int = 30_000


class InboxItem(msgspec.Struct, frozen=True, kw_only=True):
    """Input for a session from anybody. `id` is the sender's own: putting it twice puts it once."""

    session_id: str
    message: Message
    id: str = msgspec.field(default_factory=new_id)
    delivery: Delivery = "queue"
    sender: str = ""
    created: int = 0
    taken: int | None = None


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """A question about one exact call, and its answer, which may bring `words` for the model. `fingerprint` is what
    binds it to tool and input.

    `offers` are the rules that a yes for longer would keep, `contents` the hashes of files that it would approve with
    them; without either the call can be allowed once only."""

    session_id: str
    call_id: str
    tool: str
    input: dict[str, Any] = {}
    fingerprint: str = ""
    id: str = msgspec.field(default_factory=new_id)
    description: str = ""
    created: int = 0
    answer: ApprovalAnswer = "open"
    scope: ApprovalScope = "once"
    answered_by: str = ""
    words: str = ""
    answered: int | None = None
    workspace: str = ""
    offers: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()

    @property
    def can_last(self) -> bool:
        """Whether a yes can be given for longer than once."""
        return bool(self.offers or self.contents)

    def answered_with(
        self, answer: ApprovalAnswer, *, scope: ApprovalScope, by: str, words: str, at: int
    ) -> "Approval":
        """The first yes or no counts; only a revocation comes after it."""
        if self.answer == "revoked" or (self.answer != "open" and answer != "revoked"):
            return self
        return msgspec.structs.replace(
            self, answer=answer, scope=scope, answered_by=by, words=sayable(words) or self.words, answered=at
        )

    def allows(self, call_id: str, tool: str, input: dict[str, Any]) -> bool:
        """Whether this answer is a yes to exactly this call."""
        same = self.call_id == call_id and self.fingerprint == fingerprint(tool, input)
        return same and self.answer == "allowed"


def fingerprint(tool: str, input: dict[str, Any]) -> str:
    """One name for a tool with exactly this input, whatever the order of its keys."""
    text = msgspec.json.encode([tool, input], order="sorted")
    return hashlib.sha256(text).hexdigest()


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """Where the words were found; `snippet` marks them with « ». A title has no message and no part."""

    session_id: str
    title: str
    kind: Literal["title", "text", "tool"]
    snippet: str
    message_id: str = ""
    part_id: str = ""


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one day, model, agent or tool has used. `unpriced` answers have no known cost and are not in `cost`."""

    key: str
    messages: int = 0
    tokens: Tokens = Tokens()
    cost: Decimal = Decimal(0)
    unpriced: int = 0
    calls: int = 0
    errors: int = 0
    duration_ms: int = 0
