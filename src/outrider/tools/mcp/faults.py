"""What goes wrong with servers, in words that a model and a person can use."""

from outrider.errors import ToolFailure


class ServerFault(ToolFailure):
    """The server cannot be used, or did not do what was asked."""


class LinkLost(ServerFault):
    """The connection ended while an answer was awaited."""


class SessionForgotten(LinkLost):
    """The server no longer knows this connection; it has done nothing of what was asked."""


def cut(text: str, most: int) -> str:
    """A text in no more than so many characters; its end is left out."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"
