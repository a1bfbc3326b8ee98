"""Every program that is known by a table or a proof of its own."""

from collections.abc import Callable, Sequence

from outrider.permissions.programs.files import FILES
from outrider.permissions.programs.filters import AWK, JQ, prove_awk, prove_jq
from outrider.permissions.programs.git import git_table, prove_git, refuse_signatures
from outrider.permissions.programs.place import Place
from outrider.permissions.programs.search import SEARCH
from outrider.permissions.programs.sed import SED, prove_sed
from outrider.permissions.programs.system import SYSTEM, VERSION_CHECKS
from outrider.permissions.programs.table import Program, prove, read_use
from outrider.permissions.programs.texts import TEXTS
from outrider.permissions.shell.source import Unclear
from outrider.permissions.shell.values import Arg, literal

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
