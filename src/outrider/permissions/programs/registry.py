"""Every program that is known by a table or a proof of its own."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from outrider.permissions.programs.awk_jq import AWK, JQ, prove_awk, prove_jq
from outrider.permissions.programs.coreutils import FILES, SEARCH, TEXTS
from outrider.permissions.programs.git import git_table, prove_git, refuse_signatures
from outrider.permissions.programs.sed import SED, prove_sed
from outrider.permissions.programs.system import SYSTEM, VERSION_CHECKS
from outrider.permissions.programs.table import Place, Program, Use, files_of, prove, read_use
from outrider.permissions.redaction.secret_patterns import names
from outrider.permissions.shell.expansion import Arg, literal
from outrider.permissions.shell.parser import Unclear

TABLES: dict[str, Program] = {**SYSTEM, **TEXTS, **FILES, **SEARCH}
_PROOFS: dict[str, Callable[[Sequence[Arg], Place], object]] = {
    "git": prove_git,
    "sed": prove_sed,
    "awk": prove_awk,
    "gawk": prove_awk,
    "mawk": prove_awk,
    "nawk": prove_awk,
    "jq": prove_jq,
}
OPTION_TABLES: dict[str, Program] = {"sed": SED, "awk": AWK, "gawk": AWK, "mawk": AWK, "nawk": AWK, "jq": JQ}
# They show files but can be told to run programs; known so that a rule for "any further arguments" stops there.
_VIEWERS = frozenset({"find", "xargs", "man", "less", "more", "most", "view"})
_FOLDERS = ("/bin/", "/usr/bin/")


def program_name(word: str) -> str:
    """The name behind a path of the system's own programs; any other path stays what it is."""
    for folder in _FOLDERS:
        if word.startswith(folder) and "/" not in word[len(folder) :]:
            return word[len(folder) :]
    return word


def is_reader(name: str) -> bool:
    """Whether the program is known by its reading uses, so that its other uses can be told apart."""
    spec = TABLES.get(name)
    return name in _PROOFS or name in _VIEWERS or (spec is not None and spec.check not in VERSION_CHECKS)


def reaches(name: str, words: Sequence[str], named: int) -> bool:
    """Whether a rule that names the first words of a command, and then any further ones, covers all of them.

    For a program that reads, "any further arguments" means those under which it goes on reading; an option with
    an effect must stand in the rule itself.
    """
    if not is_reader(name):
        return True
    spec, start = _spec_of(name, words)
    if spec is None:
        return name == "git" and named > 1
    if spec.bundled and words[start].isalpha():
        words = (*words[:start], f"-{words[start]}", *words[start + 1 :])
    if any(not _has_option(spec, word) for word in words[start:named] if word.startswith("-")):
        return True
    try:
        use = read_use(spec, [literal(word) for word in words[start:]])
        refuse_signatures(use)
    except Unclear:
        return False
    return name == "git" and spec.operands == "text"


def _spec_of(name: str, words: Sequence[str]) -> tuple[Program | None, int]:
    if name == "git":
        return git_table(words[1:])
    return TABLES.get(name) or OPTION_TABLES.get(name), 1


def _has_option(spec: Program, word: str) -> bool:
    if word.startswith("--"):
        return word.partition("=")[0] in spec.options
    return word[1:].isdigit() or f"-{word[1:2]}" in spec.options


def prove_program(name: str, args: Sequence[Arg], place: Place) -> None:
    """Raises Unclear unless the call is proven to read only what may be read unasked."""
    if name in _PROOFS:
        _PROOFS[name](args, place)
    elif spec := TABLES.get(name):
        prove(spec, args, place)
    else:
        raise Unclear(f"{name} is not known to be harmless")


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
