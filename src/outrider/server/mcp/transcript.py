"""A session as text that another agent can read."""

from collections.abc import Iterable

from outrider.app.archive.archive import Transcript
from outrider.types.messages import Message
from outrider.types.parts import FilePart, TextPart, ToolPart, tool_result

LONGEST_OUTPUT = 2_000  # characters of one call's output


def as_text(transcript: Transcript) -> str:
    session = transcript.session
    head = f"# {session.title or 'untitled'}\nsession {session.id}, in {session.workspace_directory or 'no folder'}"
    earlier = [] if transcript.first else ["(earlier messages are left out)"]
    return valid("\n\n".join([head, *earlier, *(_told(message) for message in transcript.messages)]))


def _told(message: Message) -> str:
    who = "user" if message.role == "user" else message.agent or "assistant"
    return "\n".join([f"## {who}", *_lines(message)])


def _lines(message: Message) -> Iterable[str]:
    for part in message.parts:
        match part:
            case TextPart(synthetic=False, text=text) if text.strip():
                yield text
            case FilePart():
                yield f"[file {part.filename or part.mime}]"
            case ToolPart():
                yield _call(part)
            case _:
                pass
    if message.error is not None:
        yield f"[broke off: {message.error.message}]"


def _call(call: ToolPart) -> str:
    result = tool_result(call)
    if result is None:
        return f"[{call.tool} {call.state.input}: {call.state.status}]"
    text = result.content
    shown = text if len(text) <= LONGEST_OUTPUT else f"{text[:LONGEST_OUTPUT]}… ({len(text)} characters)"
    return f"[{call.tool} {call.state.input}: {call.state.status}]\n{shown}"


def valid(text: str) -> str:
    """Half a surrogate pair is no text."""
    return text.encode("utf-8", "replace").decode()
