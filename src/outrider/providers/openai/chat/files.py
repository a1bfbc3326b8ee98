"""Files in a user's message: pictures, sound, films, documents and plain text."""

from typing import Any

from outrider.providers.openai.chat.dialects import Dialect
from outrider.providers.writing import file_id, inline, plain_text

Fields = dict[str, Any]

# The names by which the API knows what others call by their media types.
_SOUNDS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav", "x-m4a": "m4a", "mp4": "m4a"}


def file_content(mime: str, url: str, name: str | None, dialect: Dialect) -> Fields:
    """One block of content. What the API cannot carry is at least named."""
    if uploaded := file_id(url):
        return {"type": "file", "file": {"file_id": uploaded}}
    if (text := plain_text(mime, url)) is not None:
        return {"type": "text", "text": f'<file name="{name}">\n{text}\n</file>' if name else text}
    data = inline(url)
    address = f"data:{mime};base64,{data}" if data is not None else url
    match mime.partition("/")[0]:
        case "image":
            return {"type": "image_url", "image_url": {"url": address}}
        case "audio" if data is not None:
            return _sound(mime, data, dialect)
        case "video" if dialect.name not in ("openai", "azure"):
            return {"type": "video_url", "video_url": {"url": address}}
        case _:
            return _document(mime, address, name, dialect)


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
