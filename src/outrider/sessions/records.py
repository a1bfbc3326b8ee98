"""Record types of a store: sessions, changes, leases, inbox items, approvals, search hits and usage."""

import hashlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal, cast, get_args

import msgspec
from msgspec.structs import force_setattr

from outrider._sync import describe_value
from outrider.errors import ConfigurationError
from outrider.sessions.session import ForkPoint, Session, SessionTime
from outrider.types.codec import AnyPart, load_part
from outrider.types.events import ToolApprovalRequestedEvent, ToolApprovalResultEvent
from outrider.types.ids import new_id
from outrider.types.messages import Message
from outrider.types.modes import ApprovalLevel
from outrider.types.origins import DataFlow
from outrider.types.outcomes import CallEffect, CommandOutcome, OutcomeChoice, RuleWidth
from outrider.types.parts import Tokens
from outrider.types.validate import ArgumentsMeta, is_object

Delivery = Literal["steer", "queue"]
ApprovalAnswer = Literal["open", "allowed", "denied", "revoked"]
GivenAnswer = ApprovalAnswer | Literal["withdrawn"]
ApprovalScope = Literal["once", "session", "project", "always"]
Grouping = Literal["day", "model", "agent", "tool"]
StoredValue = Message | AnyPart


class StoredSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session without its transcript. `seq` is the sequence number of its last change."""

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
    approval: ApprovalLevel = "ask"
    owner: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "title", to_storable_text(self.title))
        if self.owner or self.metadata:
            force_setattr(self, "owner", to_storable_text(self.owner))
            force_setattr(self, "metadata", _storable_json(self.metadata))
        force_setattr(self, "workspace_directory", to_storable_text(self.workspace_directory))

    @classmethod
    def from_session(cls, session: Session) -> "StoredSession":
        return cls(
            id=session.id,
            title=session.title,
            workspace_directory=session.workspace_directory,
            mode=session.mode,
            agent=session.agent,
            parent_id=session.parent_id,
            forked_from=session.forked_from,
            time=session.time,
            approval=session.approval,
            owner=session.owner,
            metadata=session.metadata,
        )


MAX_METADATA_BYTES = 16_384


def check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns metadata as a JSON object. Raises ConfigurationError if it is not a JSON object, or is too large."""
    if metadata is None:
        return {}
    if isinstance(metadata, dict) and (other_keys := [name for name in metadata if not isinstance(name, str)]):  # pyright: ignore[reportUnnecessaryIsInstance, reportUnknownVariableType]
        raise ConfigurationError(
            f"the metadata of a session has the key {describe_value(other_keys[0])}; keys must be strings"
        )
    try:
        encoded = msgspec.json.encode(metadata)
        value = msgspec.json.decode(encoded, type=dict[str, Any])
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ConfigurationError(f"the metadata of a session is not a JSON object: {error}") from error
    if len(encoded) > MAX_METADATA_BYTES:
        raise ConfigurationError(
            f"the metadata of a session has {len(encoded):,} bytes of JSON; at most {MAX_METADATA_BYTES:,} are "
            "possible. Store the data outside of the session and put its key into the metadata."
        )
    return value


def _storable_json(value: Any) -> Any:
    """Returns a copy of a JSON value with storable strings."""
    if isinstance(value, str):
        return to_storable_text(value)
    if is_object(value):
        return {to_storable_text(name): _storable_json(inner) for name, inner in value.items()}
    return [_storable_json(inner) for inner in cast("list[Any]", value)] if isinstance(value, list) else value


def to_storable_text(text: str) -> str:
    """Returns the string without NUL and lone surrogates, which Postgres and UTF-8 cannot store."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


class SessionUpdate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """New values for fields of a session; unset fields stay unchanged."""

    title: str | msgspec.UnsetType = msgspec.UNSET
    workspace_directory: str | msgspec.UnsetType = msgspec.UNSET
    mode: str | msgspec.UnsetType = msgspec.UNSET
    agent: str | msgspec.UnsetType = msgspec.UNSET
    approval: ApprovalLevel | msgspec.UnsetType = msgspec.UNSET
    archived: int | msgspec.UnsetType | None = msgspec.UNSET
    compacting: int | msgspec.UnsetType | None = msgspec.UNSET
    metadata: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET

    def apply(self, session: StoredSession) -> StoredSession:
        changes = {name: value for name in _PLAIN_FIELDS if (value := getattr(self, name)) is not msgspec.UNSET}
        times = {name: value for name in _TIME_FIELDS if (value := getattr(self, name)) is not msgspec.UNSET}
        time = session.time or SessionTime(0, 0)
        return msgspec.structs.replace(session, time=msgspec.structs.replace(time, **times), **changes)


_PLAIN_FIELDS = ("title", "workspace_directory", "mode", "agent", "metadata", "approval")
_TIME_FIELDS = ("archived", "compacting")


class SessionFilter(msgspec.Struct, frozen=True, kw_only=True, metaclass=ArgumentsMeta):
    """A query for sessions. None matches any value.

    - `workspace_directory`: the folder of the session.
    - `parent_id`: selects the child sessions of this session.
    - `roots`: excludes child sessions, which agents open for each other.
    - `agent`, `mode`: of the session.
    - `archived`: selects archived sessions (True) or sessions that are not archived (False).
    - `active_since`, `active_before`: the time of the last activity in Unix milliseconds.
    - `owner`: the user or tenant of the session.
    - `metadata`: selects sessions that have all of these values; a value is a string, a number, a boolean or None.
    """

    workspace_directory: str | None = None
    parent_id: str | None = None
    roots: bool = False
    agent: str | None = None
    mode: str | None = None
    archived: bool | None = None
    active_since: int | None = None
    active_before: int | None = None
    owner: str | None = None
    metadata: dict[str, str | int | float | bool | None] = {}

    def __post_init__(self) -> None:
        metadata: Any = self.metadata
        if not isinstance(self.owner, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"SessionFilter(): owner must be a string, got {describe_value(self.owner)}")
        if not isinstance(metadata, dict) or any(
            not isinstance(value, str | int | float | None) for value in cast("dict[str, Any]", metadata).values()
        ):
            raise ConfigurationError(
                "SessionFilter(): metadata must be a dict of strings, numbers, booleans and None, such as "
                f"{{'tenant': 'acme'}}, got {describe_value(cast('object', metadata))}"
            )


def check_filter(filter: object) -> None:
    """Raises ConfigurationError for a value that is not a filter: a store would find all sessions, or fail."""
    if not isinstance(filter, SessionFilter):
        raise ConfigurationError(f"a filter of sessions is SessionFilter(owner=…), got {describe_value(filter)}")


class ImportResult(msgspec.Struct, frozen=True):
    """The sessions of an import, and what could not be read."""

    sessions: tuple[StoredSession, ...]
    left_out: tuple[str, ...] = ()


class SessionPage(msgspec.Struct, frozen=True):
    """A list of sessions, newest activity first. `next` is the cursor of the following page; None on the last page."""

    sessions: tuple[StoredSession, ...]
    next: str | None = None


class DamagedRow(msgspec.Struct, frozen=True):
    """A row that cannot be decoded. The store reports it and leaves it unchanged."""

    kind: Literal["session", "message", "part", "input", "approval"]
    id: str
    message_id: str
    error: str
    raw: bytes


class SessionTranscript(msgspec.Struct, frozen=True):
    """A session with all or some of its messages.

    `first` and `last` are true if the list starts or ends where the session does. `drafts` are ids of draft parts.
    """

    session: StoredSession
    messages: list[Message]
    damaged: tuple[DamagedRow, ...] = ()
    first: bool = True
    last: bool = True
    drafts: frozenset[str] = frozenset()


class SessionChange(msgspec.Struct, frozen=True, tag="session"):
    seq: int
    session: StoredSession


class MessageChange(msgspec.Struct, frozen=True, tag="message"):
    """A new or changed message, without its parts: each part is a separate change."""

    seq: int
    message: Message


class PartChange(msgspec.Struct, frozen=True, tag="part"):
    """A new or changed part; with `draft`, the value is incomplete."""

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
    row: DamagedRow


class DeletedChange(msgspec.Struct, frozen=True, tag="deleted"):
    """The session was deleted; this is the last change."""

    seq: int


Change = SessionChange | MessageChange | PartChange | InboxChange | ApprovalChange | DamagedChange | DeletedChange
_CHANGE_TYPES: dict[str, type[Change]] = {str(cls.__struct_config__.tag): cls for cls in get_args(Change)}


def decode_change(value: dict[str, Any]) -> Change | None:
    """Decodes a change that another process has encoded. Returns None for an unknown kind, for example of a newer
    version. Raises ValueError for invalid data."""
    cls = _CHANGE_TYPES.get(str(value["type"]))
    if cls is None or cls is PartChange:
        return PartChange(value["seq"], load_part(value["part"]), draft=value["draft"]) if cls else None
    if cls is DamagedChange:  # a newer server may report a kind of row that is unknown here
        row = value["row"]
        names = (str(row.get(name, "")) for name in ("kind", "id", "message_id", "error"))
        return DamagedChange(value["seq"], DamagedRow(*cast(Any, names), raw=b""))
    return msgspec.convert(value, cls)


class ProcessIdentity(msgspec.Struct, frozen=True):
    """Identifies a process, so that another process can check whether it is alive.

    - `id`: the id of the lease owner; a process may have several.
    - `host`: the name of the machine.
    - `pid`: the process id.
    - `boot`: the boot id of the machine.
    - `started`: the start time in clock ticks since boot.
    - `namespace`: the PID namespace. `boot`, `started` and `namespace` detect a reused PID.
    """

    id: str
    host: str
    pid: int
    boot: str = ""
    started: int = 0
    namespace: str = ""


class Lease(msgspec.Struct, frozen=True):
    """The exclusive right to write to a session until it expires.

    `token` is a fencing token: each acquisition increments it, and the store rejects writes with an older one.
    """

    session_id: str
    token: int
    owner: ProcessIdentity
    since: int
    ttl_ms: int = 30_000


class InboxItem(msgspec.Struct, frozen=True, kw_only=True):
    """Input for a session from any process. The sender chooses `id`; storing the same id twice has no effect."""

    session_id: str
    message: Message
    id: str = msgspec.field(default_factory=new_id)
    delivery: Delivery = "queue"
    sender: str = ""
    created: int = 0
    taken: int | None = None


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """An approval request for one exact call, and its answer.

    - `session_id`, `call_id`, `tool`, `input`: the call.
    - `fingerprint`: binds the answer to the tool and its input.
    - `id`: the id of the request.
    - `description`: why the call needs an approval, or the question about an outcome.
    - `created`: the time of the request.
    - `answer`: "open", "allowed", "denied" or "revoked".
    - `scope`: how long the answer applies.
    - `answered_by`: the user who answered.
    - `words`: the user's comment, which the model reads after a denial.
    - `answered`: the time of the answer.
    - `workspace`: the folder of the session.
    - `offers`: the rules that a lasting answer would store.
    - `contents`: the hashes of files that a lasting answer would approve. Without `offers` and `contents`, the call can
      be allowed only once.
    - `outcome`: what a command changed in the sandbox; the question is then what to do with its changes.
    - `keep`: the files of the outcome to keep; None keeps all.
    - `choice`: how a blocked command runs again.
    - `widths`: what a lasting answer may cover, the narrowest first.
    - `width`: the id of the chosen width; after the answer, `offers` and `contents` are those of this width.
    - `effects`: what the call does.
    - `preview`: a diff of what the call would change.
    - `position`: the position of the call in the model's answer.
    - `flow`: the data that the call would send after the session has read untrusted text; an answer for the session
      covers the destination.
    """

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
    outcome: CommandOutcome | None = None
    keep: tuple[str, ...] | None = None
    choice: OutcomeChoice = "keep"
    widths: tuple[RuleWidth, ...] = ()
    width: str = ""
    effects: tuple[CallEffect, ...] = ()
    preview: str = ""
    position: int = 0
    flow: DataFlow | None = None

    @property
    def can_persist(self) -> bool:
        """Whether an answer can apply to more than this one call."""
        return bool(self.offers or self.contents) if self.flow is None else self.flow.can_last

    def requested_event(self, agent: str, parent_call_id: str = "") -> ToolApprovalRequestedEvent:
        """Returns the event that asks for the answer, with everything that a front end shows."""
        return ToolApprovalRequestedEvent(
            session_id=self.session_id,
            agent_name=agent,
            call_id=self.call_id,
            parent_call_id=parent_call_id,
            tool_name=self.tool,
            description=self.description,
            approval_id=self.id,
            tool_input=self.input,
            offers=self.offers,
            can_last=self.can_persist,
            outcome=self.outcome,
            contents=self.contents,
            widths=self.widths,
            effects=self.effects,
            preview=self.preview,
            position=self.position,
            flow=self.flow,
        )

    def result_event(self) -> ToolApprovalResultEvent:
        """Returns the event that reports the answer."""
        return ToolApprovalResultEvent(
            session_id=self.session_id,
            call_id=self.call_id,
            tool_name=self.tool,
            approved=self.answer == "allowed",
            approval_id=self.id,
            scope=self.scope,
            answered_by=self.answered_by,
        )

    def answered_with(
        self,
        answer: GivenAnswer,
        *,
        scope: ApprovalScope,
        by: str,
        words: str,
        at: int,
        keep: tuple[str, ...] | None = None,
        choice: OutcomeChoice = "keep",
        width: str = "",
    ) -> "Approval":
        """Returns the answered approval. The first answer is final; only `revoked` can follow it. `withdrawn` revokes
        an open request and leaves an answered one unchanged, because an answer may arrive while a question that is no
        longer needed is withdrawn. A lasting answer covers the chosen width, or else the narrowest one."""
        if self.answer == "revoked" or (self.answer != "open" and answer != "revoked"):
            return self
        chosen = next((offered for offered in self.widths if offered.id == width), None)
        return msgspec.structs.replace(
            self,
            answer="revoked" if answer == "withdrawn" else answer,
            scope=scope,
            answered_by=by,
            words=to_storable_text(words) or self.words,
            answered=at,
            keep=self.keep if keep is None else keep,
            choice=choice,
            width=chosen.id if chosen else self.width,
            offers=chosen.rules if chosen else self.offers,
            contents=chosen.contents if chosen else self.contents,
        )


def fingerprint_call(tool: str, input: dict[str, Any]) -> str:
    """Returns a hash of a tool name and its input, independent of the key order."""
    text = msgspec.json.encode([tool, input], order="sorted")
    return hashlib.sha256(text).hexdigest()


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """A search result; `snippet` marks the matches with « ». A title match has no message id and no part id."""

    session_id: str
    title: str
    kind: Literal["title", "text", "tool"]
    snippet: str
    message_id: str = ""
    part_id: str = ""


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of one day, model, agent or tool. `unpriced` is the number of responses without a known cost."""

    key: str
    messages: int = 0
    tokens: Tokens = Tokens()
    cost: Decimal = Decimal(0)
    unpriced: int = 0
    calls: int = 0
    errors: int = 0
    duration_ms: int = 0
