"""What a server says it offers, as values, and the fingerprint by which a changed tool is known again."""

from collections.abc import MutableMapping
from hashlib import sha256
from typing import Any

import msgspec


class Definition(msgspec.Struct, frozen=True):
    """One tool as its server describes it. `hints` are the server's own claims (read-only and the like): they are
    shown, and nothing is decided by them."""

    server: str
    name: str
    description: str
    parameters: dict[str, Any]
    title: str | None = None
    hints: dict[str, Any] = {}

    @property
    def fingerprint(self) -> str:
        """Of all that a model reads; the order of a schema's keys is no change."""
        seen = [self.name, self.description, self.parameters]
        return sha256(msgspec.json.encode(seen, order="sorted")).hexdigest()


class Resource(msgspec.Struct, frozen=True):
    """Something to read. In a template's `uri`, parts in braces stand for what the reader chooses."""

    server: str
    uri: str
    name: str
    description: str = ""
    mime_type: str | None = None
    size: int | None = None
    is_template: bool = False


class PromptArgument(msgspec.Struct, frozen=True):
    name: str
    description: str = ""
    required: bool = False


class Prompt(msgspec.Struct, frozen=True):
    server: str
    name: str
    description: str = ""
    arguments: tuple[PromptArgument, ...] = ()


Ledger = MutableMapping[str, str]
"""Fingerprints by `server/tool`. The caller keeps it, so that a change is noticed from one session to the next."""


def has_changed(definition: Definition, ledger: Ledger) -> bool:
    """Whether the tool is another than the one that is in the ledger. One that was never seen is entered."""
    return ledger.setdefault(_entry(definition), definition.fingerprint) != definition.fingerprint


def accept(definition: Definition, ledger: Ledger) -> None:
    """Somebody has looked at the tool as it is now."""
    ledger[_entry(definition)] = definition.fingerprint


def _entry(definition: Definition) -> str:
    return f"{definition.server}/{definition.name}"
