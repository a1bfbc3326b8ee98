"""Prompts as files that a person can read and override."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path


@cache
def prompt_text(name: str) -> str:
    """The text of `NAME.md` beside this module."""
    return Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8").strip()


def words(name: str, prompts: Mapping[str, str], /, **fields: str) -> str:
    """A prompt as the user wants it, else ours; `{field}` in it is filled in."""
    text = prompts.get(name) or prompt_text(name)
    for field, value in fields.items():
        text = text.replace("{" + field + "}", value)
    return text
