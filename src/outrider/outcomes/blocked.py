"""Finds in the output of a failed command what the sandbox has denied it. The result words a question; it grants
nothing."""

import os
import re
from collections.abc import Iterable, Iterator

from outrider.types.outcomes import BlockedAccess

# Repetitions are bounded, because outputs can be hostile.
_HOST = r"(?P<host>[a-z0-9][a-z0-9-]{0,62}(?:\.[a-z0-9-]{1,63}){1,10}|localhost)"
_QUOTE = "[\"'`\u2018\u201c\u00ab]?"
_NETWORK_PATTERNS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"could not resolve (?:host|hostname|proxy)(?: name)?:? {_QUOTE}{_HOST}",
        rf"(?:unable|failed) to (?:resolve|look ?up)(?: host)?(?: address)?:? {_QUOTE}{_HOST}",
        rf"(?:temporary failure resolving|error resolving|cannot resolve|can't resolve(?: hostname)?) {_QUOTE}{_HOST}",
        rf"(?:getaddrinfo|querya|querysrv|dns lookup)[a-z ]*(?:enotfound|eai_again|econnrefused)? {_QUOTE}{_HOST}",
        rf"lookup {_HOST}(?: on |:)",
        rf"host=['\"]{_HOST}['\"]",
        rf"(?<![a-z0-9.-]){_HOST}(?::\d+)?: "
        "(?:temporary failure in name resolution|name or service not known|network is unreachable)",
        rf"(?:failed to connect to|connect to|connecting to) {_QUOTE}{_HOST}(?:[ :]|$)",
        rf"(?:error fetching|failed to (?:fetch|download)|fetch failed)[^\n]{{0,40}}https?://{_HOST}",
    )
)
_NETWORK_SIGNS = re.compile(
    r"temporary failure in name resolution|name or service not known|network is unreachable|could not resolve"
    r"|eai_again|enotfound|enetunreach|getaddrinfo|no address associated with hostname|err_internet_disconnected"
    r"|name resolution|dns error|resolve host|failure resolving",
    re.IGNORECASE,
)
_READ_ONLY_SIGNS = re.compile(r"read-only file ?system|EROFS", re.IGNORECASE)
_DENIED_SIGNS = re.compile(r"read-only file ?system|EROFS|permission denied|EACCES", re.IGNORECASE)
_OWNER_SIGNS = re.compile(r"value too large for (?:defined )?data type|EOVERFLOW", re.IGNORECASE)
_ROOT_OWNER_SIGNS = re.compile(rf"{_OWNER_SIGNS.pattern}|permission denied|EACCES", re.IGNORECASE)
_PATH_IN_LINE = re.compile(r"(?P<path>(?:/|~/)[^\s'\"`:,;)\]\u2018\u2019]+)")
_SOCKET = re.compile(
    r"(?:cannot|can't|could not|unable to|failed to) connect to (?:the )?(?:docker daemon|server|local|podman)[^\n]*?"
    r"(?P<path>/[^\s'\"`:,;)\]]+\.(?:sock|socket)[^\s'\"`:,;)\]]*)",
    re.IGNORECASE,
)
_METADATA_NETWORK = "169.254."  # services of clouds that hand out credentials; never offered
_MAX_TARGETS = 8
_SCANNED = 40_000  # characters at each end of the output
_SCANNED_OF_LINE = 1_000  # characters at each end of a line


def find_blocked(output: str, exit_code: int | None, *, workspace: str) -> tuple[BlockedAccess, ...]:
    """Returns what a command was probably denied, an empty tuple if it succeeded."""
    if exit_code == 0:
        return ()
    text = output if len(output) <= 2 * _SCANNED else f"{output[:_SCANNED]}\n{output[-_SCANNED:]}"
    text = "\n".join(map(_shorten_line, text.splitlines()))
    found = [*_blocked_hosts(text), *_blocked_sockets(text), *_blocked_paths(text, workspace)]
    return tuple(dict.fromkeys(found))[:_MAX_TARGETS]


def _shorten_line(line: str) -> str:
    return line if len(line) <= 2 * _SCANNED_OF_LINE else f"{line[:_SCANNED_OF_LINE]} {line[-_SCANNED_OF_LINE:]}"


def needs_writable_view(output: str, exit_code: int | None) -> bool:
    """Returns whether a command failed because a file system was mounted read-only."""
    return exit_code != 0 and _READ_ONLY_SIGNS.search(output[-_SCANNED:]) is not None


def fails_for_owner(output: str, exit_code: int | None) -> bool:
    """Returns whether a command may have failed because a file belongs to a user or group that its user namespace
    lacks. The superuser has no capabilities there, so such files deny him access."""
    signs = _ROOT_OWNER_SIGNS if os.geteuid() == 0 else _OWNER_SIGNS
    return exit_code != 0 and signs.search(output[-_SCANNED:]) is not None


def was_denied_writing(output: str) -> bool:
    """Returns whether a command without a copy-on-write view was probably denied a write. Its exit code does not tell:
    a later command may have succeeded."""
    return _DENIED_SIGNS.search(output[-_SCANNED:]) is not None


def _blocked_hosts(text: str) -> Iterator[BlockedAccess]:
    if _NETWORK_SIGNS.search(text) is None:
        return
    hosts = {
        match["host"].lower().rstrip(".")
        for pattern in _NETWORK_PATTERNS
        for match in pattern.finditer(text)
        if match["host"].lower() != "localhost" and not match["host"].startswith(_METADATA_NETWORK)
    }
    yield from (BlockedAccess("network", host) for host in sorted(hosts)) if hosts else [BlockedAccess("network")]


def _blocked_sockets(text: str) -> Iterator[BlockedAccess]:
    for match in _SOCKET.finditer(text):
        yield BlockedAccess("socket", f"/{match['path'].strip('/?.')}")


def _blocked_paths(text: str, workspace: str) -> Iterator[BlockedAccess]:
    for line in text.splitlines():
        if not _READ_ONLY_SIGNS.search(line):
            continue
        named = list(_PATH_IN_LINE.finditer(line))
        if len(named) > 1 and named[0].start() == 0 and line.startswith(":", named[0].end()):
            del named[0]  # the program that prints the message
        for match in named:
            path = os.path.expanduser(match["path"].rstrip("."))  # noqa: PTH111
            if path.isprintable() and path != workspace and not path.startswith(f"{workspace}/"):
                yield BlockedAccess("path", path)


def name_grants(blocked: Iterable[BlockedAccess]) -> tuple[BlockedAccess, ...]:
    """Returns the accesses with what would have to be writable for them: for a new file its folder. The question shows
    where links lead, because that is what becomes writable.

    The root and the home directory are too much for one file; a new file there cannot be granted.
    """
    too_wide = ("/", os.path.expanduser("~"))  # noqa: PTH111
    named: dict[BlockedAccess, None] = {}
    for access in blocked:
        if access.kind != "path":
            named[access] = None
            continue
        target = os.path.realpath(access.target)
        folder = os.path.dirname(target)  # noqa: PTH120
        is_new = os.path.isdir(folder) and not os.path.lexists(target)  # noqa: PTH112
        if is_new and folder not in too_wide:
            named[BlockedAccess("path", folder)] = None
        else:
            named[BlockedAccess("path", target, grantable=not is_new)] = None
    return tuple(named)
