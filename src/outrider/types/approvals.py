"""Parts of an approval question: what the call does, and how much a lasting answer may cover."""

import msgspec


class CallEffect(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one command of a call does, in plain words. A `risky` effect is listed first."""

    text: str
    risky: bool = False


class RuleWidth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A choice of rules that a lasting answer would store, and what it would have meant so far.

    `contents` are hashes of files that it approves too. Of the `asked` earlier questions in this workspace, these rules
    would have answered `covered`; the user had refused `refused` of those.
    """

    id: str
    label: str
    rules: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()
    asked: int = 0
    covered: int = 0
    refused: int = 0
