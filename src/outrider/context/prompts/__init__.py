"""Prompts as files that a person can read and override."""

from functools import cache
from importlib.resources import files


@cache
def prompt_text(name: str) -> str:
    """The text of `NAME.md` beside this module."""
    return (files(__name__) / f"{name}.md").read_text(encoding="utf-8").strip()
