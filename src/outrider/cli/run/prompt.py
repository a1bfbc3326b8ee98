"""What the user asks: words of the command line, stdin, files, and what is attached."""

import sys
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from outrider.errors import ConfigurationError
from outrider.types.parts import FilePart, TextPart

LARGEST = 32 * 1024 * 1024
STDIN = "-"


def prompt_parts(words: Sequence[str], files: Sequence[str]) -> list[TextPart | FilePart]:
    """Raises ConfigurationError where there is nothing to ask, or a file cannot be read."""
    text = prompt_text(words)
    if not text.strip():
        raise ConfigurationError("there is no prompt. Write one: outrider run 'say hello', or give it on stdin")
    return [TextPart(text), *(attached(file) for file in files)]


def prompt_text(words: Sequence[str]) -> str:
    """Plain words are joined as they stand; stdin and files stand on their own. Without any word stdin is the prompt,
    unless it is a terminal: a person would not know that they are waited for."""
    if not words:
        return "" if sys.stdin is None or sys.stdin.isatty() else _stdin()
    if all(not _is_read(word) for word in words):
        return " ".join(map(whole, words))
    return "\n\n".join(_said(word) for word in words)


def said(text: str) -> str:
    """The text itself, or what the file holds that it names as @FILE."""
    return _said(text) if text.startswith("@") else whole(text)


def whole(word: str) -> str:
    """Bytes of the command line that were no text where the locale takes less than UTF-8: they are read as UTF-8."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def attached(file: str) -> FilePart:
    path = Path(file).expanduser()
    content = _read(path)
    mime = _mime_of(path, content)
    return FilePart(mime, f"data:{mime};base64,{b64encode(content).decode()}", path.name)


def _said(word: str) -> str:
    if word == STDIN:
        return _stdin()
    if not _is_read(word):
        return whole(word)
    return _read(Path(word[1:]).expanduser()).decode("utf-8", "replace")


def _is_read(word: str) -> bool:
    """`@` names a file; a sentence that merely begins with it is a sentence."""
    if word == STDIN:
        return True
    return word.startswith("@") and len(word) > 1 and (" " not in word or Path(word[1:]).is_file())


def _stdin() -> str:
    content = sys.stdin.buffer.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ConfigurationError(f"stdin holds more than {LARGEST:,} bytes; that is no prompt")
    return content.decode("utf-8", "replace")


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST:
            raise ConfigurationError(f"{path} is larger than {LARGEST:,} bytes")
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from error


def _mime_of(path: Path, content: bytes) -> str:
    """By name, else by content: what is text is sent as text, whatever it is the text of."""
    from mimetypes import guess_type  # with the first attachment: it reads the system's tables

    mime = guess_type(path.name)[0] or ""
    if mime.startswith(("image/", "audio/", "video/", "application/pdf")):
        return mime
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return mime or "application/octet-stream"
    return "text/plain" if b"\0" not in content else mime or "application/octet-stream"
