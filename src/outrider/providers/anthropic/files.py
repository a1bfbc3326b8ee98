"""A file as a content block: an image, a document, or words that say what the model cannot be shown."""

from typing import Any

from outrider.providers.writing import file_id, inline, plain_text

_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_PDF = "application/pdf"


def file_block(mime: str, url: str, filename: str | None) -> dict[str, Any]:
    mime = mime.partition(";")[0].strip().lower()
    mime = "image/jpeg" if mime == "image/jpg" else mime
    kind = "image" if mime.startswith("image/") else "document"
    source = _source(mime, url)
    if source is None:
        return {"type": "text", "text": _unseen(mime, url, filename)}
    if source["type"] == "text":
        kind = "document"
    title = {"title": filename} if filename and kind == "document" else {}
    return {"type": kind, "source": source, **title}


def _source(mime: str, url: str) -> dict[str, Any] | None:
    if (uploaded := file_id(url)) is not None:
        return {"type": "file", "file_id": uploaded}
    if url.startswith(("https:", "http:")):
        seen = mime.startswith("image/") or mime == _PDF
        return {"type": "url", "url": url} if seen else None
    if mime in _IMAGES or mime == _PDF:
        data = inline(url)
        return {"type": "base64", "media_type": mime, "data": data} if data is not None else None
    text = plain_text(mime, url)
    return {"type": "text", "media_type": "text/plain", "data": text} if text else None


def _unseen(mime: str, url: str, filename: str | None) -> str:
    name = filename or "a file"
    where = f" at {url}" if not url.startswith("data:") else ""
    return f"({name} of type {mime or 'unknown'}{where} was attached, but this model cannot read such files)"
