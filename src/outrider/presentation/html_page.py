"""What self-contained HTML pages share: escaped text, tiles with figures, and a policy that allows only their code."""

import base64
import hashlib
import re
from functools import cache
from html import escape
from importlib.resources import files

# Control, zero-width and bidirectional characters: invisible, or they change the displayed order of a text.
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


def escape_invisible(text: str) -> str:
    return _INVISIBLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text.replace("\r\n", "\n"))


def escape_text(text: str) -> str:
    """Returns the text for the content of an element or a quoted attribute; invisible characters become visible."""
    return escape(escape_invisible(text), quote=True)


def render_tile(label: str, value: str, note: str = "") -> str:
    """Returns an entry of the list of figures at the top of a page; `label` is HTML."""
    small = f"<small>{escape_text(note)}</small>" if note else ""
    return f"<div><dt>{label}</dt><dd>{escape_text(value)}{small}</dd></div>"


def render_page(title: str, style: str, body: str, *, script: str = "", images: str = "") -> str:
    """Returns a complete page. `style` follows the colours of all pages, light and dark; `body` is HTML; the script
    runs after it. Nothing else may run or be loaded, except images from the sources `images`."""
    css = f"{_load_colours()}\n{style.strip()}"
    policy = escape_text(content_policy(css, script=script, images=images))
    return _PAGE.format(
        policy=policy,
        title=escape_text(title),
        style=css,
        body=body.strip(),
        script=f"<script>{script}</script>\n" if script else "",
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<title>{title}</title><style>{style}</style></head>
<body>
{body}
{script}</body></html>
"""


@cache
def _load_colours() -> str:
    return files("outrider.presentation").joinpath("assets", "page.css").read_text(encoding="utf-8").strip()


def content_policy(style: str, *, script: str = "", images: str = "") -> str:
    """Returns the Content-Security-Policy of a page that loads nothing: exactly this style and script may run, and
    images may have the sources `images`."""
    rules = ["default-src 'none'", f"style-src {_hash_source(style)}"]
    rules += [f"script-src {_hash_source(script)}"] if script else []
    rules += [f"img-src {images}"] if images else []
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
