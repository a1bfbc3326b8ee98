"""Which calls print nothing but names of files below the folder they run in, separated by NUL bytes."""

from collections.abc import Sequence

from outrider.permissions.shell.values import Arg

_PRINT: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    # program: one of these options lists names, one of those separates them by NUL
    "rg": (frozenset({"-l", "--files-with-matches", "--files"}), frozenset({"-0", "--null"})),
    "fd": (frozenset(), frozenset({"-0", "--print0"})),
    "fdfind": (frozenset(), frozenset({"-0", "--print0"})),
}
_KEEP: dict[str, frozenset[str]] = {
    "sort": frozenset({"-z", "--zero-terminated"}),
    "uniq": frozenset({"-z", "--zero-terminated"}),
    "head": frozenset({"-z", "--zero-terminated"}),
    "tail": frozenset({"-z", "--zero-terminated"}),
}


def prints_names(name: str, args: Sequence[Arg]) -> bool:
    words = [arg.text for arg in args]
    if name == "git":
        return words == ["ls-files", "-z"]
    lists, separates = _PRINT.get(name, (frozenset[str](), frozenset[str]()))
    return bool(separates & set(words)) and (not lists or bool(lists & set(words)))


def keeps_names(name: str, args: Sequence[Arg]) -> bool:
    """Filters that pass whole names on; one that is given a file reads that instead."""
    words = [arg.text for arg in args]
    return bool(_KEEP.get(name, frozenset[str]()) & set(words)) and all(word and word.startswith("-") for word in words)
