"""Message: a role, its parts, and metadata such as agent, model, tokens and cost."""

from collections.abc import Callable, Sequence
from decimal import Decimal
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, get_args

import msgspec

from outrider.errors import ConfigurationError, PartValidationError
from outrider.types.codec import AnyPart, load_part, set_part_owner, to_plain_values
from outrider.types.ids import are_ids, is_id, new_id
from outrider.types.parts import WITHDRAWN, ModelRef, PartBase, TextPart, Tokens, ToolPart, ToolUsePart, is_withdrawn
from outrider.types.tool_state import ToolPending
from outrider.types.validate import ArgumentsMeta, convert

Role = Literal["user", "assistant"]
P = TypeVar("P")

_ROLES = get_args(Role)

# Held only while one element of a list of parts is replaced.
_part_lock = RLock()


class MessageTime(msgspec.Struct, frozen=True):
    """When a message was created and completed, in Unix milliseconds."""

    created: int
    completed: int | None = None


# Keys in the metadata of a message or a part.
MCP_SERVERS = "mcp_servers"  # in an input: what the model knows about the MCP servers
WORKSPACE_STATE = "workspace_state"  # in the text about the workspace in the first user message
PLAN_ANSWER = "plan_answer"  # in an input that answers a plan: accepted, changed or refused
INSTRUCTIONS = "instructions"  # in instructions for the model, and in the messages to which they belong


def _is_added(part: TextPart) -> bool:
    has_mark = INSTRUCTIONS in part.metadata or MCP_SERVERS in part.metadata
    return part.ignored or (part.synthetic and (bool(part.origins) or has_mark))


class MessagePath(msgspec.Struct, frozen=True):
    """The folders of a message: the current one and the root of the workspace."""

    cwd: str
    root: str


class MessageError(msgspec.Struct, frozen=True):
    """Why an answer ended early: the error's class name and message."""

    type: str
    message: str
    status: int | None = None


class Message(msgspec.Struct, forbid_unknown_fields=True, metaclass=ArgumentsMeta):
    """One message of a transcript. Parts are immutable; `add_part` appends a part, `update_part` replaces a part.

    Of the fields after `metadata`, those up to `summary` belong to user messages, and those from `parent_id` on to
    answers of the assistant.
    """

    role: Role
    if TYPE_CHECKING:
        parts: list[AnyPart] = []
    else:
        parts: list[Any] = []
    id: str = msgspec.field(default_factory=new_id)
    session_id: str = ""
    time: MessageTime | None = None
    metadata: dict[str, Any] = {}
    agent: str = ""
    model: ModelRef | None = None
    mode: str | None = None
    system: str | None = None
    tools: dict[str, bool] | None = None
    variant: str | None = None
    summary: str | None = None
    parent_id: str | None = None
    path: MessagePath | None = None
    cost: Decimal | None = None
    tokens: Tokens = Tokens()
    finish: str | None = None
    error: MessageError | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            role: Role,
            parts: Sequence[AnyPart | dict[str, Any]] = (),
            id: str = "",
            session_id: str = "",
            time: MessageTime | None = None,
            metadata: dict[str, Any] = {},  # noqa: B006  msgspec copies it
            agent: str = "",
            model: ModelRef | None = None,
            mode: str | None = None,
            system: str | None = None,
            tools: dict[str, bool] | None = None,
            variant: str | None = None,
            summary: str | None = None,
            parent_id: str | None = None,
            path: MessagePath | None = None,
            cost: Decimal | None = None,
            tokens: Tokens = Tokens(),  # noqa: B008  immutable
            finish: str | None = None,
            error: MessageError | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.role not in _ROLES:
            raise PartValidationError(f"the role must be user or assistant, got {self.role!r}", field="role")
        self.parts = [self._own(_as_stored(part)) for part in self.parts] if self.parts else []
        self._check_unique_ids()

    def add_part(self, part: AnyPart | dict[str, Any]) -> AnyPart:
        """Appends a part and sets its owner ids. Raises PartValidationError if its id exists in this message."""
        with _part_lock:
            part = _as_stored(part)
            if any(other.id == getattr(part, "id", None) for other in self.parts):
                raise PartValidationError(f"message {self.id} already has a part {part.id}", field="id")
            self.parts.append(owned := self._own(part))
        return owned

    def put_part(self, part: AnyPart) -> None:
        """Replaces the part with the same id, or appends the part."""
        with _part_lock:
            for position, other in enumerate(self.parts):
                if other.id == part.id:
                    self.parts[position] = part
                    return
            self.parts.append(self._own(part))

    def update_part(self, part_id: str, change: Callable[[Any], AnyPart]) -> AnyPart:
        """Replaces a part with `change(part)` under a lock, so that updates from several threads do not overlap."""
        with _part_lock:
            for position, part in enumerate(self.parts):
                if part.id == part_id:
                    self.parts[position] = changed = change(part)
                    return changed
        raise PartValidationError(f"message {self.id} has no part {part_id}", field="id")

    def join(self, session_id: str) -> None:
        """Sets the session id of this message and of its parts. Raises PartValidationError for an invalid id."""
        if not are_ids(self.id, *[part.id for part in self.parts]):
            for value in (self, *self.parts):
                _check_id(value.id)
        self.session_id = session_id
        for part in self.parts:
            set_part_owner(part, self.id, session_id)

    def get_parts_by_type(self, cls: type[P]) -> list[P]:
        """Returns the parts of one class, in order."""
        try:
            return [part for part in self.parts if isinstance(part, cls)]
        except TypeError as error:
            raise ConfigurationError(f"get_parts_by_type() takes a class, such as TextPart, got {cls!r}") from error

    def get_text_content(self) -> str:
        """Returns the texts of all parts that are not ignored, one per line, without the texts that the program added
        for the model."""
        return "\n".join(self._texts())

    def join_text(self) -> str:
        """Returns the texts of `get_text_content` without line breaks between them, because the parts of an answer may
        begin in the middle of a line."""
        return "".join(self._texts())

    def _texts(self) -> list[str]:
        return [part.text for part in self.parts if isinstance(part, TextPart) and not _is_added(part)]

    def get_tool_uses(self) -> list[ToolUsePart]:
        """Returns the calls of the message without their results."""
        return [part.use() for part in self.get_calls()]

    def get_calls(self) -> list[ToolPart]:
        """Returns the tool calls of the answer, without those of a failed attempt, which are withdrawn."""
        return [
            part
            for part in self.parts
            if isinstance(part, ToolPart) and not (part.metadata and part.metadata.get(WITHDRAWN))
        ]

    def find_call(self, call_id: str) -> ToolPart | None:
        """Returns the call with this id, or None."""
        return next((call for call in self.get_calls() if call.call_id == call_id), None)

    def to_api_format(self) -> dict[str, Any]:
        """Returns this message in the neutral (Anthropic) format; results of its calls belong to the next message."""
        if self.metadata.get("content") == "string":
            return {"role": self.role, "content": self.join_text()}
        visible = (part for part in self.parts if isinstance(part, PartBase) and _is_visible(part))
        return {"role": self.role, "content": [block for part in visible if (block := _block(part))]}

    def to_dict(self) -> dict[str, Any]:
        """Returns the message as plain data. The `to_dict` of each part, which a custom class may override, converts
        the part."""
        return to_plain_values(msgspec.structs.asdict(self) | {"parts": [part.to_dict() for part in self.parts]})

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Self:
        """Reads a message from the values of `to_dict`."""
        return convert(value, cls)

    @classmethod
    def from_anthropic_response(cls, role: Role, content: Any) -> Self:
        """Builds a message from API content: a string, SDK objects or dicts. A tool use becomes a pending call."""
        from outrider.types.anthropic_blocks import content_blocks, part_from_anthropic  # lazy: for imports only

        message = cls(role, [part_from_anthropic(block) for block in content_blocks(content)])
        if isinstance(content, str):
            message.metadata["content"] = "string"
        return message

    def validate(self) -> None:
        """Checks the message before it is stored. Raises PartValidationError that names the field."""
        if not are_ids(self.id, self.session_id):
            field = "session_id" if is_id(self.id) else "id"
            raise PartValidationError(f"message: `{field}` must be a UUID, got {getattr(self, field)!r}", field=field)
        if self.time is None:
            raise PartValidationError("message: missing required field `time`", field="time")
        if self.role == "assistant" and self.finish is not None and self.time.completed is None:
            raise PartValidationError("message: a finished answer needs `time.completed`", field="time.completed")
        self._check_unique_ids()

    def _own(self, part: AnyPart) -> AnyPart:
        owner = getattr(part, "message_id", "")
        if owner not in ("", self.id):
            raise PartValidationError(f"part {part.id} belongs to message {owner}", field="message_id")
        if self.session_id and hasattr(part, "id"):
            _check_id(part.id)
        set_part_owner(part, self.id, self.session_id)
        return part

    def _check_unique_ids(self) -> None:
        if len(self.parts) > 1 and len({part.id for part in self.parts}) != len(self.parts):
            raise PartValidationError(f"message {self.id}: two parts have the same id", field="id")


def _check_id(value: str) -> None:
    if not is_id(value):
        raise PartValidationError(f"`id` must be a UUID, got {value!r}", field="id")


def text_message(role: Role, text: str) -> Message:
    return Message(role, [TextPart(text)])


def _is_visible(part: PartBase) -> bool:
    return not getattr(part, "ignored", False) and not is_withdrawn(part)


def _block(part: PartBase) -> dict[str, Any] | None:
    to_api_format = getattr(part, "to_api_format", None)
    return to_api_format() if to_api_format else None


def _as_stored(part: AnyPart | dict[str, Any]) -> AnyPart:
    if isinstance(part, dict):
        part = load_part(part)
    return _pending(part) if isinstance(part, ToolUsePart) else part


def _pending(use: ToolUsePart) -> ToolPart:
    """Converts a tool use of a model to a stored call."""
    return ToolPart(
        call_id=use.tool_id,
        tool=use.tool_name,
        state=ToolPending(input=use.tool_input, phase="ready"),
        metadata=use.metadata,
    )
