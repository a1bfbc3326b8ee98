"""The values of the information flow policy: where the text of a part comes from, and where a call sends data."""

from collections.abc import Iterable
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from outrider.types.validate import ArgumentsMeta

OriginKind = Literal["user", "workspace", "outside", "secret", "web", "mcp", "tool"]
"""The user, a file of the workspace, a path outside it, a secret, a web page, an MCP server, another tool."""
_UNTRUSTED = frozenset({"web", "mcp"})
_PRIVATE = frozenset({"workspace", "outside", "secret"})
_SHOWN_AS = {
    "workspace": "workspace file",
    "outside": "outside the workspace",
    "mcp": "MCP server",
    "user": "attached by the user",
}
MAX_SOURCE = 200  # characters of a source
MAX_ORIGINS = 24  # of one part


class Origin(Struct, frozen=True, omit_defaults=True):
    """One origin of a text. `kind` is an `OriginKind`, `source` its path, URL or name.

    `untrusted`: a third party may have written the text, so it may contain instructions to the model.
    `private`: the text may contain data that must not leave the machine without the user's consent.
    """

    kind: str
    source: str = ""
    untrusted: bool = False
    private: bool = False

    @property
    def description(self) -> str:
        """The source and its kind, such as `https://example.org/ (web)`."""
        kind = _SHOWN_AS.get(self.kind, self.kind)
        return f"{self.source} ({kind})" if self.source else kind


Origins = tuple[Origin, ...]
StoredOrigins = Origins | UnsetType
"""The type of the field in a part. The field is left out of stored data while it is unset."""


def make_origin(kind: OriginKind, source: str = "") -> Origin:
    """Returns an origin with the usual properties of its kind. The caller marks text of a folder that the user does not
    trust as untrusted."""
    short_source = " ".join(source.split()) if len(source) < MAX_SOURCE else f"{source[: MAX_SOURCE - 1]}…"
    return Origin(kind, short_source, kind in _UNTRUSTED, kind in _PRIVATE)


def describe_origins(origins: StoredOrigins) -> tuple[str, ...]:
    """Returns the descriptions of origins, for traces."""
    return tuple(origin.description for origin in origins) if origins is not UNSET else ()


def merge_origins(*groups: Iterable[Origin] | UnsetType) -> Origins:
    """Returns all origins without repetitions. If there are more than `MAX_ORIGINS`, an origin without a source
    represents further origins of a kind."""
    merged = dict.fromkeys(origin for group in groups if group is not UNSET for origin in group)  # pyright: ignore
    if len(merged) > MAX_ORIGINS:
        kinds = dict.fromkeys(Origin(origin.kind, "", origin.untrusted, origin.private) for origin in merged)
        listed = [origin for origin in merged if origin.source][: MAX_ORIGINS - len(kinds)]
        return (*listed, *kinds)
    return tuple(merged)


class EgressBudget(Struct, frozen=True, kw_only=True, metaclass=ArgumentsMeta):
    """What a session may send to a destination without a question. None means no limit."""

    requests: int | None = None
    bytes: int | None = None


class FlowSettings(Struct, frozen=True, kw_only=True, metaclass=ArgumentsMeta):
    """Settings of the information flow policy. `allowed` are destinations that get data without a question: a host name
    (`*.example.org` for subdomains), `mcp:SERVER` or `tool:NAME`, each with a budget per session; `*` for all.

    `private_servers` and `trusted_servers` name MCP servers whose results are private, or written by the user only.
    """

    allowed: dict[str, EgressBudget] = {}
    private_servers: tuple[str, ...] = ()
    trusted_servers: tuple[str, ...] = ()


NETWORK = "the network"
PROCESS = "a running process"


class ApprovalFact(Struct, frozen=True, omit_defaults=True):
    """One line about what a call would send, needs or has changed. Front ends mark `risky` lines."""

    text: str
    risky: bool = False


class DataFlow(Struct, frozen=True, omit_defaults=True):
    """Data that a call would send after the session has read untrusted text. `untrusted` and `private` are the origins
    that it has read; `destination` is a host, `mcp:SERVER`, `tool:NAME` or `the network`."""

    destination: str
    characters: int = 0
    untrusted: Origins = ()
    private: Origins = ()

    @property
    def can_last(self) -> bool:
        """Whether an answer can apply to further calls of the session: only for a named destination."""
        return self.destination not in (NETWORK, PROCESS)

    @property
    def description(self) -> str:
        """Why the call needs an answer, as one sentence."""
        private = _name_some(self.private, "private") if self.private else "private files, which the call can reach"
        shared = [origin for origin in self.untrusted if origin in self.private]
        read = (
            _name_some(self.private, "untrusted and private")
            if len(shared) == len(self.private) == len(self.untrusted)
            else f"{_name_some(self.untrusted, 'untrusted')} and {private}"
        )
        size = f"sends {self.characters:,} characters" if self.characters else "can send data"
        return f"this session has read {read}; the call {size} to {self.destination}"

    @property
    def facts(self) -> tuple[ApprovalFact, ...]:
        """The facts of `description`, line by line."""
        size = f"{self.characters:,} characters" if self.characters else "data"
        facts = [ApprovalFact(f"sends: {size} to {self.destination}", risky=True)]
        for origin in dict.fromkeys((*self.untrusted, *self.private)):
            labels = ["untrusted"] * (origin in self.untrusted) + ["private"] * (origin in self.private)
            facts.append(ApprovalFact(f"read, {' and '.join(labels)}: {origin.description}"))
        return tuple(facts)


def _name_some(origins: Origins, word: str) -> str:
    named = [f"{origin.source or origin.kind} ({_words_of(origin, word)})" for origin in origins[:2]]
    suffix = f" and {len(origins) - 2} more" if len(origins) > 2 else ""
    return ", ".join(named) + suffix


def _words_of(origin: Origin, word: str) -> str:
    return origin.kind if origin.kind in ("web", "secret") else f"{_SHOWN_AS.get(origin.kind, origin.kind)}, {word}"
