"""Prompts as files that a person can read and override."""

from functools import cache
from pathlib import Path


@cache
def prompt_text(name: str) -> str:
    """The text of `NAME.md` beside this module."""
    return Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8").strip()
