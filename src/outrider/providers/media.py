"""Files on their way to a model: what a data: address holds."""

from base64 import b64decode, b64encode
from binascii import Error as DamagedBase64
from urllib.parse import unquote, unquote_to_bytes

_TEXTUAL = (
    "application/json",
    "application/xml",
    "application/yaml",
    "application/x-yaml",
    "application/toml",
    "application/javascript",
)


def inline(url: str) -> str | None:
    """The base64 of a data: address; None for any other address."""
    if not url.startswith("data:"):
        return None
    head, _, payload = url.partition(",")
    return payload if head.endswith(";base64") else b64encode(unquote_to_bytes(payload)).decode()


def plain_text(mime: str, url: str) -> str | None:
    """The text of a data: address that holds text, for models that read text better than files."""
    if not url.startswith("data:") or not (mime.startswith("text/") or mime in _TEXTUAL):
        return None
    head, _, payload = url.partition(",")
    if not head.endswith(";base64"):
        return unquote(payload)
    try:
        return b64decode(payload, validate=True).decode()
    except (DamagedBase64, UnicodeDecodeError):
        return None


def file_id(url: str) -> str | None:
    """The provider's own name of an uploaded file; None for any other address."""
    return url.removeprefix("file-id:") if url.startswith("file-id:") else None
