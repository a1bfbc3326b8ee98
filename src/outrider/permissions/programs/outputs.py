"""Which calls print nothing but names of files below the folder they run in, and how these are told apart."""

from collections.abc import Sequence

from msgspec import Struct

from outrider.permissions.programs.search import SEARCH
from outrider.permissions.programs.table import Use, files_of, read_use
from outrider.permissions.programs.texts import TEXTS
from outrider.permissions.shell.values import Arg
from outrider.permissions.texts.names import names


class Found(Struct, frozen=True):
    """What a command prints: names of files, separated by NUL bytes or line ends, or, with `names` None, any text."""

    names: tuple[str, ...] | None = None  # patterns of which every name matches one, where there are any
    links_below: tuple[str, ...] = ()  # folders in which the names may be those of links
    lines: bool = False
    below: tuple[str, ...] = (".",)


# program: one of these options lists names, one of those separates them by NUL bytes
_PRINT: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "rg": (names("-l --files-with-matches --files"), names("-0 --null")),
    "fd": (frozenset(), names("-0 --print0")),
    "fdfind": (frozenset(), names("-0 --print0")),
    "grep": (names("-l --files-with-matches -L --files-without-match"), names("-Z --null")),
}
_PRINT_MORE = names(
    "-c --count --count-matches --json --stats --format --path-separator --color --hyperlink-format -p -a"
)
_KEEP_NAMES: dict[str, frozenset[str]] = dict.fromkeys(("sort", "uniq", "head", "tail"), names("-z --zero-terminated"))
_KEEP_LINES: dict[str, frozenset[str]] = {
    "sort": names("-u -r -n -V -f --unique --reverse"),
    "uniq": frozenset(),
    "head": names("-n -# --lines"),
    "tail": names("-n -# --lines"),
    "grep": names("-v -i -E -F -w -e --invert-match --ignore-case"),
}


def printed_names(name: str, args: Sequence[Arg]) -> Found:
    """What a call that is proven to read prints."""
    if name == "git":
        return Found((), (".",)) if [arg.text for arg in args] == ["ls-files", "-z"] else Found()
    if name not in _PRINT:
        return Found()
    lists, separates = _PRINT[name]
    use = read_use(SEARCH[name], args)
    files = files_of(SEARCH[name], use)
    if (lists and not use.has(*lists)) or use.has(*_PRINT_MORE) or any(arg.choices is None for arg in files):
        return Found()
    below = tuple(text for arg in files for text in arg.choices or ()) or (".",)
    return Found((), (".",), not use.has(*separates), below)


def kept_names(name: str, args: Sequence[Arg], given: Found) -> Found:
    """What a filter leaves of the names that it is given: some of them, but each as a whole."""
    spec = TEXTS.get(name) or SEARCH.get(name)
    if spec is None or given.names is None:
        return Found()
    use = read_use(spec, args)
    if given.lines:
        return given if _keeps_lines(name, use) else Found()
    return given if use.has(*_KEEP_NAMES.get(name, ())) and not use.operands else Found()


def _keeps_lines(name: str, use: Use) -> bool:
    operands = 1 if name == "grep" and not use.has("-e") else 0
    known = _KEEP_LINES.get(name)
    return known is not None and known.issuperset(option for option, _ in use.options) and len(use.operands) == operands
