"""Names under which a model sees the tools of servers: `mcp__server__tool`, in the letters that every API takes."""

import re
from collections import defaultdict
from collections.abc import Iterable
from hashlib import sha256

LONGEST = 64
_MARK = 8  # letters of a hash, which tells apart what would have one name
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")

Origin = tuple[str, str]
"""A server's name and the tool's own."""


def tool_names(origins: Iterable[Origin]) -> dict[Origin, str]:
    """A name for each, the same whatever the order; what would collide or be too long gets a mark of its own."""
    alike: defaultdict[str, list[Origin]] = defaultdict(list)
    for origin in sorted(set(origins)):
        alike[_plain(origin)].append(origin)
    names: dict[Origin, str] = {}
    for plain, found in alike.items():
        exact = [origin for origin in found if f"mcp__{origin[0]}__{origin[1]}" == plain and len(plain) <= LONGEST]
        keeps = exact[0] if exact else (found[0] if len(found) == 1 and len(plain) <= LONGEST else None)
        names.update((origin, plain if origin == keeps else _marked(plain, origin)) for origin in found)
    return names


def _plain(origin: Origin) -> str:
    server, tool = origin
    return _FOREIGN.sub("_", f"mcp__{server}__{tool}")


def _marked(plain: str, origin: Origin) -> str:
    mark = sha256("\0".join(origin).encode("utf-8", "surrogatepass")).hexdigest()[:_MARK]
    return f"{plain[: LONGEST - _MARK - 1]}_{mark}"
