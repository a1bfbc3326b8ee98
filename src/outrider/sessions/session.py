"""The in-memory session: transcript, token usage, and conversion from and to the Anthropic message format."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Never, Protocol, Self, cast

import msgspec

from outrider.errors import ConfigurationError, PartValidationError, SessionInUseError
from outrider.event_bus import EventBus
from outrider.types.codec import AnyPart
from outrider.types.events import MessageAddedEvent
from outrider.types.ids import new_id, now_ms
from outrider.types.messages import Message, MessageTime
from outrider.types.modes import ApprovalLevel, Mode
from outrider.types.parts import PartBase, TextPart, Tokens, ToolResultPart, Usage
from outrider.types.validate import check_names, validation_error

if TYPE_CHECKING:
    from outrider.sessions.message_formats import MessageFormat

FORMAT_VERSION = 1


class ContentBlock(Protocol):
    """A content block of an SDK, such as a `ToolUseBlock` of Anthropic's."""

    @property
    def type(self) -> str: ...


class VendorResponse(Protocol):
    """A response object of an SDK, whose content is a list of blocks."""

    @property
    def content(self) -> Any: ...


AssistantBlock = AnyPart | Mapping[str, Any] | ContentBlock


class SessionTime(msgspec.Struct, frozen=True):
    """Timestamps of a session in Unix milliseconds. `compacting` is the time of its last compaction."""

    created: int
    updated: int
    compacting: int | None = None
    archived: int | None = None


class ForkPoint(msgspec.Struct, frozen=True):
    """The origin of a fork: the source session and the last message that both sessions share."""

    session_id: str
    message_id: str


class Session:
    """A conversation. It works without a store. With an `event_bus` it publishes an event for each added message.
    `owner` names the user or tenant that the session belongs to; `metadata` is a small JSON object of the program."""

    def __init__(
        self,
        *,
        id: str | None = None,
        title: str = "",
        workspace_directory: str = "",
        mode: Mode = "agent",
        agent: str = "",
        approval: ApprovalLevel = "ask",
        parent_id: str | None = None,
        forked_from: ForkPoint | None = None,
        owner: str = "",
        metadata: Mapping[str, Any] | None = None,
        messages: Iterable[Message] = (),
        event_bus: EventBus | None = None,
        clock: Callable[[], int] = now_ms,
        **unknown: Never,
    ) -> None:
        if unknown:
            check_names("Session()", unknown, sorted(vars(self.__class__)["__init__"].__kwdefaults__))
        message_list: list[Any] = list(messages) if isinstance(messages, Iterable) else [messages]  # pyright: ignore
        if not all(isinstance(message, Message) for message in message_list):
            raise ConfigurationError(
                "Session(): messages must be a list of Message values; messages of an API are added with "
                "set_messages(…)"
            )
        texts = {"title": title, "owner": owner, "agent": agent, "workspace_directory": workspace_directory}
        for name, text in texts.items():
            if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"Session(): {name} must be a string, got {type(text).__name__}")
        if not isinstance(metadata, Mapping | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"Session(): metadata must be a dict, got {type(metadata).__name__}")
        if not isinstance(event_bus, EventBus | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"Session(): event_bus must be an event bus, such as EventBus(), got {type(event_bus).__name__}"
            )
        self.id = id or new_id()
        self.title = title
        self.workspace_directory = workspace_directory
        self.mode: Mode = mode
        self.agent = agent
        self.approval: ApprovalLevel = approval
        self.parent_id = parent_id
        self.forked_from = forked_from
        self.owner = owner
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.messages: list[Message] = message_list
        self.derived: dict[str, object] = {}
        """What other modules have computed from the messages and may compute again. It is not stored."""
        for message in self.messages:
            message.join(self.id)
            message.time = message.time or MessageTime(created=clock())
        self._runs: dict[int, object] = {}  # the run that uses the session, by the id of this object: a copy has none
        self._bus = event_bus
        self._clock = clock
        created = clock()
        self.time = SessionTime(created=created, updated=created)

    @property
    def usage(self) -> Usage:
        """The sum over all responses and summaries. The cost is unknown if one of them has no price."""
        usage = Usage()
        for message in self.messages:
            if message.tokens.total or message.cost is not None:
                usage = usage.plus(message.tokens, message.cost)
        return usage

    @contextmanager
    def reserve(self) -> Generator[None]:
        """Reserves this object for one run, in any thread. Raises SessionInUseError while another run uses it."""
        run = object()
        if self._runs.setdefault(id(self), run) is not run:  # one atomic operation, so that only one thread succeeds
            raise SessionInUseError(
                f"session {self.id} is used by another run of this program; wait for its end, give each run a "
                "separate Session, or use an Engine, which queues input"
            )
        try:
            yield
        finally:
            self._runs.clear()

    def add_user_message(self, content: str | AnyPart | Sequence[str | AnyPart]) -> Message:
        """Appends a message of the user: a string, a part, or a list of both."""
        parts = _content_list(content)
        return self.add_message(Message("user", [TextPart(part) if isinstance(part, str) else part for part in parts]))

    def add_assistant_message(
        self,
        content: "str | AssistantBlock | Iterable[AssistantBlock] | VendorResponse",
        *,
        tokens: Tokens | None = None,
        cost: Decimal | None = None,
        finish: str | None = None,
    ) -> Message:
        """Adds a response: a string, parts, content blocks (SDK objects or dicts), or an SDK response object."""
        for name, value, kinds, example in (
            ("tokens", tokens, Tokens, "Tokens(input=42, output=9)"),
            ("cost", cost, (Decimal, int), 'Decimal("0.01")'),
            ("finish", finish, str, '"stop"'),
        ):
            if value is not None and not isinstance(value, kinds):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise PartValidationError(f"add_assistant_message({name}={value!r}): write {example}", field=name)
        message = _assistant_message(getattr(content, "content", content))
        message.tokens, message.cost, message.finish = tokens or Tokens(), cost, finish
        now = self._clock()
        message.time = MessageTime(created=now, completed=now)
        return self.add_message(message)

    def add_tool_results(self, results: Iterable[ToolResultPart | Mapping[str, Any] | ContentBlock]) -> Message:
        """Ends open tool calls with their results: ToolResultParts, tool_result blocks, or dicts with tool_use_id and
        content. Raises PartValidationError for a result without an open call."""
        from outrider.sessions.anthropic_format import apply_tool_result, result_parts  # lazy: also below

        if not isinstance(results, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PartValidationError(
                f"add_tool_results() takes a list of results, such as [ToolResultPart(…)], got {type(results).__name__}"
            )
        parts = result_parts(results)
        calls = [self._find_open_call(part.tool_use_id) for part in parts]
        now = self._clock()
        for (message, call_id), result in zip(calls, parts, strict=True):
            apply_tool_result(message, call_id, result, now)
        carrier = Message("user", metadata={"results": [part.tool_use_id for part in parts]})
        return self.add_message(carrier)

    def add_message(self, message: Message) -> Message:
        """Appends a message and publishes it. Messages without a time get the current one."""
        message.join(self.id)
        if message.time is None:
            message.time = MessageTime(created=self._clock())
        self.messages.append(message)
        self.time = msgspec.structs.replace(self.time, updated=max(self.time.updated, message.time.created))
        if self._bus is not None:
            self._bus.publish(
                MessageAddedEvent(
                    role=message.role,
                    part_count=len(message.parts) + len(message.metadata.get("results", ())),
                    message_id=message.id,
                    session_id=self.id,
                )
            )
        return message

    def update_part(self, part_id: str, change: Callable[[Any], AnyPart]) -> AnyPart:
        """Replaces a part with `change(part)` and returns it. Raises PartValidationError for an unknown id."""
        for message in reversed(self.messages):
            if any(part.id == part_id for part in message.parts):
                return message.update_part(part_id, change)
        raise PartValidationError(f"session {self.id} has no part {part_id}", field="id")

    def get_messages(self, format: "MessageFormat" = "anthropic") -> list[dict[str, Any]]:
        """Returns the transcript as messages of Anthropic ("anthropic"), OpenAI's Chat Completions ("openai") or
        Responses ("openai-responses"), or contents of Gemini ("google")."""
        if format == "anthropic":
            return self.to_api_format()
        from outrider.sessions.message_formats import write_messages  # lazy: rarely needed

        return write_messages(self.messages, format)

    def set_messages(
        self, api_messages: Iterable[Mapping[str, Any]], format: "MessageFormat | None" = "anthropic"
    ) -> None:
        """Replaces the transcript with messages in one of the formats of `get_messages`; None detects the format. For
        an invalid message, raises PartValidationError and changes nothing."""
        now = self._clock()
        if format == "anthropic":
            from outrider.sessions.anthropic_format import read_api_messages

            messages = read_api_messages(api_messages, now)
        else:
            from outrider.sessions.message_formats import read_messages  # lazy: rarely needed

            messages = read_messages(api_messages, now, format)
        self.messages = []
        for message in messages:
            self.add_message(message)

    def to_api_format(self) -> list[dict[str, Any]]:
        """Returns the transcript in the Anthropic message format."""
        from outrider.sessions.anthropic_format import write_api_messages

        return write_api_messages(self.messages)

    def clear(self) -> None:
        """Starts a new conversation: removes all messages from memory and assigns a new id. Messages that are stored
        under the old id stay in the store."""
        self.messages = []
        self.id = new_id()

    def to_dict(self) -> dict[str, Any]:
        """Returns the session with all messages as plain values; `from_dict` reads them."""
        return {
            "format": FORMAT_VERSION,
            "id": self.id,
            "title": self.title,
            "workspace_directory": self.workspace_directory,
            "mode": self.mode,
            "agent": self.agent,
            "parent_id": self.parent_id,
            "forked_from": msgspec.to_builtins(self.forked_from),
            "time": msgspec.to_builtins(self.time),
            "usage": msgspec.to_builtins(self.usage),
            "messages": [message.to_dict() for message in self.messages],
            **({"owner": self.owner} if self.owner else {}),
            **({"metadata": self.metadata} if self.metadata else {}),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any], *, event_bus: EventBus | None = None) -> Self:
        """Returns a session from the output of `to_dict`. Raises PartValidationError for a newer format version."""
        if not isinstance(value, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise PartValidationError(
                f"a session is read from a dict, as to_dict() returns it, got {type(value).__name__}"
            )
        if value.get("format", FORMAT_VERSION) > FORMAT_VERSION:
            raise PartValidationError(
                f"this session has format {value['format']}; this version reads up to {FORMAT_VERSION}"
            )
        session = cls(event_bus=event_bus)
        for name in ("id", "title", "workspace_directory", "mode", "agent", "parent_id", "owner", "metadata"):
            if name in value:
                setattr(session, name, value[name])
        try:
            session.forked_from = msgspec.convert(value.get("forked_from"), ForkPoint | None)
            session.time = msgspec.convert(value.get("time", session.time), SessionTime)
            messages = msgspec.convert(value.get("messages", []), list[dict[str, Any]])
        except msgspec.ValidationError as error:
            raise validation_error(error, "session") from error
        session.messages = [Message.from_dict(message) for message in messages]
        return session

    def __len__(self) -> int:
        return len(self.messages)

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Session) and self.to_dict() == other.to_dict()

    __hash__ = None  # pyright: ignore[reportAssignmentType]  a session is mutable

    def __repr__(self) -> str:
        return f"Session(id={self.id!r}, title={self.title!r}, {len(self.messages)} messages)"

    def _find_open_call(self, call_id: str) -> tuple[Message, str]:
        for message in reversed(self.messages):
            call = message.find_call(call_id)
            if call is not None and not call.ended:
                return message, call_id
        raise PartValidationError(f"no open call {call_id!r} in this session", field="tool_use_id")


def _assistant_message(content: Any) -> Message:
    if isinstance(content, str):
        return Message("assistant", [TextPart(content)])
    blocks = _content_list(content)
    if any(isinstance(block, PartBase) for block in blocks):
        return Message("assistant", blocks)
    return Message.from_anthropic_response("assistant", blocks)


def _content_list(content: Any) -> list[Any]:
    """Returns message content as a list; accepts a string, a part, a block, or a sequence or iterator of them."""
    if isinstance(content, Sequence) and not isinstance(content, str):
        return list(cast("Sequence[Any]", content))
    if content is None or isinstance(content, Message):
        raise PartValidationError(f"the content of a message is text or parts, got {type(content).__name__}")
    return list(cast("Iterator[Any]", content)) if isinstance(content, Iterator) else [content]
