"""A file as a content block: an image, a document, or words that say what the model cannot be shown."""

from typing import Any

from outrider.providers.writing import file_id, inline, media_type, plain_text, unseen

_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_PDF = "application/pdf"


def file_block(mime: str, url: str, filename: str | None) -> dict[str, Any]:
    mime = media_type(mime)
    kind = "image" if mime.startswith("image/") else "document"
    source = _source(mime, url)
    if source is None:
        return {"type": "text", "text": unseen(mime, url, filename)}
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
