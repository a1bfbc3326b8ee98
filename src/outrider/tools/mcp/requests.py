"""Requests of MCP servers to the user, asked as ordinary questions: forms, addresses to visit, and model answers.

A session registers how its questions are asked. A request belongs to the call during which it arrives; without such a
call, or without a user, it is declined.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from outrider.tools.mcp.connection import (
    CURRENT_CALL,
    Elicitation,
    ElicitationReply,
    SamplingReply,
    SamplingRequest,
    ServerFault,
    truncate_text,
)
from outrider.tools.tool import MAX_OPTIONS, AskUser, ToolContext, UserQuestion
from outrider.types.validate import is_object

DECLINE, SKIP = "Decline", "Skip"
ALLOW, ALLOW_ALWAYS, REFUSE = "Allow once", "Allow for this session", "No"
MAX_FIELDS = 20
MAX_ATTEMPTS = 3  # answers to one field that are not valid
MAX_SAMPLED_TOKENS = 8_192
_MAX_MESSAGE = 2_000
_MAX_URL = 2_000
_MAX_SAMPLE_SHOWN = 1_500
_YES, _NO = "Yes", "No"

SampleModel = Callable[[SamplingRequest, ToolContext], Awaitable[SamplingReply]]
"""Lets the model of the session of a call answer, without tools."""


class RequestHandler(msgspec.Struct):
    """How the requests of one session are answered. `is_attended` returns whether the user can be asked now.
    `sampling_allowed` are the servers that may ask the model without further questions."""

    ask: AskUser
    is_attended: Callable[[], bool]
    sample: SampleModel
    sampling_allowed: set[str] = msgspec.field(default_factory=set[str])


class ServerRequests:
    """The requests of all servers of an engine, by the session of the call."""

    def __init__(self) -> None:
        self._handlers: dict[str, RequestHandler] = {}

    def register(self, session_id: str, handler: RequestHandler) -> Callable[[], object]:
        """Answers the requests of a session and of the agents that it calls. Returns a function that ends the
        registration."""
        self._handlers[session_id] = handler
        return lambda: self._handlers.pop(session_id, None)

    async def elicit(self, elicitation: Elicitation) -> ElicitationReply:
        """Asks the user for values, or to visit an address."""
        handler, call = self._find_handler()
        if handler is None or call is None:
            return ElicitationReply("decline")
        if elicitation.url is not None:
            return await _ask_visit(elicitation, handler.ask, call)
        return await FormQuestions(elicitation, handler.ask, call).ask()

    async def sample(self, request: SamplingRequest) -> SamplingReply:
        """Lets the model answer after the user has allowed it. Raises ServerFault if the user refuses."""
        handler, call = self._find_handler()
        if handler is None or call is None:
            raise ServerFault("no user is connected who could allow it")
        if request.server not in handler.sampling_allowed:
            question = UserQuestion(_describe_sampling(request), (ALLOW, ALLOW_ALWAYS, REFUSE))
            answer = next(iter(await handler.ask(question, call) or ()), REFUSE)
            if answer not in (ALLOW, ALLOW_ALWAYS):
                raise ServerFault("the user has refused it")
            if answer == ALLOW_ALWAYS:
                handler.sampling_allowed.add(request.server)
        limited = msgspec.structs.replace(request, max_tokens=min(request.max_tokens, MAX_SAMPLED_TOKENS))
        return await handler.sample(limited, call)

    def _find_handler(self) -> tuple[RequestHandler | None, ToolContext | None]:
        call = CURRENT_CALL.get()
        handler = self._handlers.get(call.root_session_id or call.session_id) if call else None
        return (handler, call) if handler is not None and handler.is_attended() else (None, None)


async def _ask_visit(elicitation: Elicitation, ask: AskUser, call: ToolContext) -> ElicitationReply:
    """Shows the complete address. Nothing opens or fetches it, except the user."""
    url = elicitation.url or ""
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname or len(url) > _MAX_URL or not url.isprintable():
        return ElicitationReply("decline")
    message = truncate_text(elicitation.message, _MAX_MESSAGE)
    text = (
        f"The MCP server {elicitation.server} asks you to visit an address at {address.hostname}:\n\n{url}\n\n"
        f"{message}\n\nOpen it only if you expect this, and answer when you have finished there."
    )
    answers = await ask(UserQuestion(text, ("Done", DECLINE)), call)
    if not answers:
        return ElicitationReply("cancel")
    return ElicitationReply("accept" if answers[0] == "Done" else "decline")


class FormField(msgspec.Struct, frozen=True):
    """One field of a form, described by the restricted JSON schema of elicitations."""

    name: str
    schema: dict[str, Any]
    required: bool

    @property
    def choices(self) -> dict[str, Any]:
        """The values by the labels that the user chooses from; empty for free text."""
        if self.schema.get("type") == "boolean":
            return {_YES: True, _NO: False}
        source = self.schema.get("items") if self.multiple else self.schema
        source = source if is_object(source) else {}
        titled = source.get("oneOf") or source.get("anyOf")
        if isinstance(titled, list):
            entries = [entry for entry in cast("list[Any]", titled) if is_object(entry) and "const" in entry]
            return {str(entry.get("title") or entry["const"]): entry["const"] for entry in entries}
        values = _as_list(source.get("enum"))
        names = _as_list(source.get("enumNames"))
        labels = names if len(names) == len(values) else values
        return {str(label): value for label, value in zip(labels, values, strict=True)}

    @property
    def multiple(self) -> bool:
        return self.schema.get("type") == "array"

    def describe(self) -> str:
        title = str(self.schema.get("title") or self.name)
        about = str(self.schema.get("description") or "")
        rules = [f"{word} {self.schema[key]}" for key, word in _LIMIT_WORDS.items() if key in self.schema]
        kind = str(self.schema.get("format") or self.schema.get("type") or "text")
        facts = ", ".join([kind, *rules, "required" if self.required else "optional"])
        return f"{title}: {about} ({facts})" if about else f"{title} ({facts})"

    def convert(self, answers: Sequence[str]) -> Any:
        """Returns the value that the answers mean. Raises ValueError with the problem if they are not valid."""
        choices = self.choices
        if self.multiple:
            return self._convert_many([part.strip() for answer in answers for part in self._split(answer, choices)])
        answer = answers[0].strip()
        if choices:
            by_text = {str(value).lower(): value for value in choices.values()} | {
                label.lower(): value for label, value in choices.items()
            }
            if answer.lower() not in by_text:
                raise ValueError(f"choose one of: {', '.join(choices)}")
            return by_text[answer.lower()]
        return self._convert_number(answer) if self.schema.get("type") in _NUMBERS else self._check_text(answer)

    @staticmethod
    def _split(answer: str, choices: Mapping[str, Any]) -> list[str]:
        return [answer] if answer in choices else answer.split(",")

    def _convert_many(self, answers: Sequence[str]) -> list[Any]:
        choices = self.choices
        unknown = [answer for answer in answers if answer and answer not in choices]
        if choices and unknown:
            raise ValueError(f"{unknown[0]!r} is not one of: {', '.join(choices)}")
        values = [choices.get(answer, answer) for answer in answers if answer]
        minimum, maximum = self.schema.get("minItems", 0), self.schema.get("maxItems")
        if len(values) < minimum or (isinstance(maximum, int) and len(values) > maximum):
            raise ValueError(f"choose {minimum} to {maximum if maximum is not None else 'any number'}")
        return values

    def _convert_number(self, answer: str) -> int | float:
        try:
            value = int(answer) if self.schema.get("type") == "integer" else float(answer)
        except ValueError:
            raise ValueError(f"{answer!r} is not a {_NUMBERS[self.schema['type']]}") from None
        minimum, maximum = self.schema.get("minimum"), self.schema.get("maximum")
        if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
            raise ValueError(
                f"it must be {minimum if minimum is not None else '…'} to {maximum if maximum is not None else '…'}"
            )
        return value

    def _check_text(self, answer: str) -> str:
        min_length, max_length = self.schema.get("minLength", 0), self.schema.get("maxLength")
        if len(answer) < min_length or (isinstance(max_length, int) and len(answer) > max_length):
            raise ValueError(
                f"it must have {min_length} to {max_length if max_length is not None else 'any number of'} characters"
            )
        check = _FORMATS.get(str(self.schema.get("format")))
        if check is not None and not check(answer):
            raise ValueError(f"it is not a valid {self.schema['format']}")
        return answer


class FormQuestions:
    """Asks the fields of a form one after the other. An answer that is not valid is asked for again."""

    def __init__(self, elicitation: Elicitation, ask: AskUser, call: ToolContext) -> None:
        self._elicitation = elicitation
        self._ask_user = ask
        self._call = call

    async def ask(self) -> ElicitationReply:
        fields = read_fields(self._elicitation.schema or {})
        if fields is None:
            return ElicitationReply("decline")
        head = (
            f"The MCP server {self._elicitation.server} asks: {truncate_text(self._elicitation.message, _MAX_MESSAGE)}"
        )
        if not fields:
            answers = await self._ask_user(UserQuestion(head, ("Accept", DECLINE)), self._call)
            if not answers:
                return ElicitationReply("cancel")
            return ElicitationReply("accept", {}) if answers[0] == "Accept" else ElicitationReply("decline")
        content: dict[str, Any] = {}
        for number, field in enumerate(fields, 1):
            count = f" ({number} of {len(fields)})" if len(fields) > 1 else ""
            value = await self._ask_field(field, f"{head}{count}\n\n{field.describe()}")
            if isinstance(value, ElicitationReply):
                return value
            if value is not msgspec.UNSET:
                content[field.name] = value
        return ElicitationReply("accept", content)

    async def _ask_field(self, field: FormField, text: str) -> Any:
        """Returns the value of a field, its default or UNSET if the user skips it, or the reply that ends the form."""
        problem = ""
        for _ in range(MAX_ATTEMPTS):
            question = UserQuestion(
                f"{text}\n\n{problem}".rstrip(), _list_options(field), multiple=field.multiple and bool(field.choices)
            )
            answers = [answer for answer in await self._ask_user(question, self._call) or () if answer.strip()]
            if not answers:
                return ElicitationReply("cancel")
            if DECLINE in answers:
                return ElicitationReply("decline")
            if SKIP in answers and not field.required:
                return field.schema.get("default", msgspec.UNSET)
            try:
                return field.convert(answers)
            except ValueError as error:
                problem = f"Your last answer was not sent: {error}."
        return ElicitationReply("cancel")


def read_fields(schema: Mapping[str, Any]) -> list[FormField] | None:
    """Returns the fields of a form, or None if it has too many, or a field that is not a plain value."""
    properties: Any = schema.get("properties", {})
    required = _as_list(schema.get("required"))
    if not is_object(properties) or len(properties) > MAX_FIELDS:
        return None
    fields = [FormField(name, field, name in required) for name, field in properties.items() if is_object(field)]
    supported = {"string", "number", "integer", "boolean", "array", None}
    plain = all(field.schema.get("type") in supported for field in fields)
    return fields if plain and len(fields) == len(properties) else None


def _list_options(field: FormField) -> tuple[str, ...]:
    choices = list(field.choices)
    default: Any = field.schema.get("default")
    if not choices and default is not None and isinstance(default, str | int | float) and str(default).strip():
        choices = [str(default)]
    replies = [DECLINE] if field.required else [SKIP, DECLINE]
    return (*[choice for choice in choices if choice.strip()][: MAX_OPTIONS - len(replies)], *replies)


def _describe_sampling(request: SamplingRequest) -> str:
    transcript = "\n".join(f"{message.role}: {message.content.content}" for message in request.messages)
    if request.system_prompt:
        transcript = f"system prompt: {truncate_text(request.system_prompt, _MAX_SAMPLE_SHOWN // 2)}\n{transcript}"
    max_tokens = min(request.max_tokens, MAX_SAMPLED_TOKENS)
    return (
        f"The MCP server {request.server} requests an answer of your model, at your cost, with at most {max_tokens:,} "
        f"tokens. It sends:\n{truncate_text(transcript, _MAX_SAMPLE_SHOWN)}"
    )


def _as_list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _is_date(text: str) -> bool:
    return _parses(date.fromisoformat, text)


def _is_time(text: str) -> bool:
    return _parses(datetime.fromisoformat, text)


def _parses(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _is_address(text: str) -> bool:
    address = urlsplit(text)
    return bool(address.scheme and (address.netloc or address.path))


def _is_email(text: str) -> bool:
    name, separator, host = text.rpartition("@")
    return bool(name and separator and "." in host and " " not in text)


_NUMBERS = {"integer": "whole number", "number": "number"}
_LIMIT_WORDS = {
    "minimum": "at least",
    "maximum": "at most",
    "minLength": "characters at least",
    "maxLength": "characters at most",
    "pattern": "matches",  # the server checks it: an untrusted pattern can backtrack for a long time
}
_FORMATS: dict[str, Callable[[str], bool]] = {
    "date": _is_date,
    "date-time": _is_time,
    "uri": _is_address,
    "email": _is_email,
}
