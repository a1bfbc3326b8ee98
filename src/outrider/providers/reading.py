"""What vendors share when they read an answer: JSON with the damage that real servers do to it."""

import json


def mended_json(data: bytes) -> bytes | None:
    """JSON that a strict reader takes, or None where there is no saving it: bytes that are no UTF-8 and halves of
    surrogate pairs are replaced, raw control characters in strings are kept."""
    try:
        value = json.loads(data.decode("utf-8", "replace"), strict=False)
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
