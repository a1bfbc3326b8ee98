"""Files in a user's message: pictures, sound, films, documents and plain text."""

from typing import Any

from outrider.providers.openai.chat.dialects import Dialect
from outrider.providers.writing import can_be_fetched, file_id, inline, media_type, plain_text, unseen

Fields = dict[str, Any]

# The names by which the API knows what others call by their media types.
_PICTURES = ("png", "jpeg", "gif", "webp")
_SOUNDS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav", "x-m4a": "m4a", "mp4": "m4a"}


def file_content(mime: str, url: str, name: str | None, dialect: Dialect) -> Fields:
    """One block of content. What the API cannot carry is at least named."""
    if uploaded := file_id(url):
        return {"type": "file", "file": {"file_id": uploaded}}
    if (text := plain_text(mime, url)) is not None:
        return {"type": "text", "text": f'<file name="{name}">\n{text}\n</file>' if name else text}
    mime = media_type(mime)
    data = inline(url)
    if not _is_taken(mime, url, dialect):
        return {"type": "text", "text": unseen(mime, url, name)}
    address = f"data:{mime};base64,{data}" if data is not None else url
    match mime.partition("/")[0]:
        case "image":
            return {"type": "image_url", "image_url": {"url": address}}
        case "audio" if data is not None:
            return _sound(mime, data, dialect)
        case "video":
            return {"type": "video_url", "video_url": {"url": address}}
        case _:
            return _document(mime, address, name, dialect)


def _is_taken(mime: str, url: str, dialect: Dialect) -> bool:
    """OpenAI's own servers name what they take; what others take differs from model to model."""
    if not url.startswith("data:") and not can_be_fetched(url):
        return False
    if dialect.name not in ("openai", "azure"):
        return True
    match mime.partition("/"):
        case ("image", _, kind):
            return kind in _PICTURES or can_be_fetched(url)
        case ("audio", _, kind):
            return _SOUNDS.get(kind, kind) in ("mp3", "wav") or can_be_fetched(url)
        case (kind, _, _):
            return kind != "video"


def _sound(mime: str, data: str, dialect: Dialect) -> Fields:
    if dialect.name == "mistral":
        return {"type": "input_audio", "input_audio": data}
    kind = mime.partition("/")[2]
    return {"type": "input_audio", "input_audio": {"data": data, "format": _SOUNDS.get(kind, kind)}}


def _document(mime: str, address: str, name: str | None, dialect: Dialect) -> Fields:
    named = name or f"file.{mime.rpartition('/')[2]}"
    match dialect.documents:
        case "document_url":
            return {"type": "document_url", "document_url": address, "document_name": named}
        case "file_url":
            return {"type": "file_url", "file_url": {"url": inline(address) or address}, "file_name": named}
        case "file" if address.startswith("data:") or dialect.name != "openai":
            return {"type": "file", "file": {"filename": named, "file_data": address}}
        case "file":
            return {"type": "text", "text": f"({mime} file: {address})"}
