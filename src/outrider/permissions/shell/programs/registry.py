"""The registry of known programs: looks up their specifications and checks, and what file names they print."""

import re
from collections.abc import Callable, Sequence

from msgspec import Struct

from outrider.permissions.redaction.secret_patterns import split_names
from outrider.permissions.shell.expansion import ExpandedArg, literal_arg
from outrider.permissions.shell.parser import NotProvenSafe
from outrider.permissions.shell.programs.coreutils import FILE_PROGRAMS, SEARCH_PROGRAMS, TEXT_PROGRAMS
from outrider.permissions.shell.programs.git import find_git_spec, prove_git, reject_program_formats
from outrider.permissions.shell.programs.system import SYSTEM_PROGRAMS, VERSION_CHECKS
from outrider.permissions.shell.programs.table import (
    ParsedArgs,
    PathChecker,
    ProgramSpec,
    file_operands,
    is_number,
    parse_args,
    prove_read_only,
)
from outrider.permissions.shell.programs.text_filters import AWK_SPEC, JQ_SPEC, SED_SPEC, prove_awk, prove_jq, prove_sed

PROGRAM_SPECS: dict[str, ProgramSpec] = {**SYSTEM_PROGRAMS, **TEXT_PROGRAMS, **FILE_PROGRAMS, **SEARCH_PROGRAMS}
_CUSTOM_CHECKS: dict[str, Callable[[Sequence[ExpandedArg], PathChecker], object]] = {
    "git": prove_git,
    "sed": prove_sed,
    "awk": prove_awk,
    "gawk": prove_awk,
    "mawk": prove_awk,
    "nawk": prove_awk,
    "jq": prove_jq,
}
CUSTOM_CHECK_SPECS: dict[str, ProgramSpec] = {
    "sed": SED_SPEC,
    "awk": AWK_SPEC,
    "gawk": AWK_SPEC,
    "mawk": AWK_SPEC,
    "nawk": AWK_SPEC,
    "jq": JQ_SPEC,
}
# Viewers with options that run programs. Listed here so that an allow rule such as `less *` does not cover those.
_VIEWERS = frozenset({"find", "xargs", "man", "less", "more", "most", "view"})
_SYSTEM_FOLDERS = ("/bin/", "/usr/bin/")


# What common programs do, for the approval reason. A program that is missing here gets a general reason.
KNOWN_EFFECTS: dict[str, str] = {
    **dict.fromkeys(("rm", "unlink"), "deletes files"),
    "rmdir": "deletes folders",
    "shred": "overwrites and deletes files",
    "mv": "moves files and can overwrite existing ones",
    **dict.fromkeys(("cp", "install"), "copies files and can overwrite existing ones"),
    "ln": "creates links",
    "mkdir": "creates folders",
    "touch": "creates files or changes their times",
    "truncate": "changes the size of files",
    "dd": "writes files or devices",
    "patch": "changes files",
    "chmod": "changes the permissions of files",
    **dict.fromkeys(("chown", "chgrp"), "changes the owner of files"),
    **dict.fromkeys(("kill", "pkill", "killall"), "ends processes"),
    **dict.fromkeys(("curl", "wget"), "connects to other machines and can write files"),
    **dict.fromkeys(("ssh", "scp", "sftp", "rsync", "nc", "ftp", "telnet"), "connects to other machines"),
    **dict.fromkeys(("eval", "source", "."), "runs a script in this shell"),
    **dict.fromkeys(("apt", "apt-get", "dnf", "yum", "apk", "pacman", "brew"), "installs or removes system packages"),
    "crontab": "changes scheduled jobs",
    "systemctl": "controls system services",
    **dict.fromkeys(
        ("python", "python3", "node", "deno", "perl", "ruby", "php", "lua", "bash", "sh", "dash"),
        "runs code whose effects cannot be predicted",
    ),
}


def program_name(word: str) -> str:
    """Returns the program name for a path in /bin or /usr/bin; returns any other word unchanged."""
    for folder in _SYSTEM_FOLDERS:
        if word.startswith(folder) and "/" not in word[len(folder) :]:
            return word[len(folder) :]
    return word


def is_known_reader(name: str) -> bool:
    """Returns whether the read-only calls of a program are known, so that its other calls can be recognised."""
    spec = PROGRAM_SPECS.get(name)
    return name in _CUSTOM_CHECKS or name in _VIEWERS or (spec is not None and spec.check not in VERSION_CHECKS)


def rule_covers_arguments(name: str, words: Sequence[str], named_count: int) -> bool:
    """Returns whether an allow rule that names the first arguments of a command covers all further ones.

    For a program that usually only reads, a rule such as `sort *` covers only arguments that read; an option with
    an effect must be in the rule itself.
    """
    if not is_known_reader(name):
        return True
    spec, start = _find_spec(name, words)
    if spec is None:
        return name == "git" and named_count > 1
    if spec.bundled_options and words[start].isalpha():
        words = (*words[:start], f"-{words[start]}", *words[start + 1 :])
    if any(not _has_option(spec, word) for word in words[start:named_count] if word.startswith("-")):
        return True
    try:
        parsed = parse_args(spec, [literal_arg(word) for word in words[start:]])
        reject_program_formats(parsed)
    except NotProvenSafe:
        return False
    return name == "git" and spec.operands == "text"


def _find_spec(name: str, words: Sequence[str]) -> tuple[ProgramSpec | None, int]:
    if name == "git":
        return find_git_spec(words[1:])
    return PROGRAM_SPECS.get(name) or CUSTOM_CHECK_SPECS.get(name), 1


def _has_option(spec: ProgramSpec, word: str) -> bool:
    if word.startswith("--"):
        return word.partition("=")[0] in spec.options
    return is_number(word[1:]) or f"-{word[1:2]}" in spec.options


def prove_program(name: str, args: Sequence[ExpandedArg], paths: PathChecker) -> None:
    """Raises NotProvenSafe unless the call only reads files that need no approval."""
    if name in _CUSTOM_CHECKS:
        _CUSTOM_CHECKS[name](args, paths)
    elif spec := PROGRAM_SPECS.get(name):
        try:
            prove_read_only(spec, args, paths)
        except NotProvenSafe as error:
            if spec.check in VERSION_CHECKS:  # the argument that failed explains nothing: almost every call does
                effect = KNOWN_EFFECTS.get(name, "can run programs and change files")
                raise NotProvenSafe(f"{name} {effect}") from error
            raise
    else:
        raise NotProvenSafe(f"{name} {KNOWN_EFFECTS.get(name, 'is not a program that is known to only read')}")


class PrintedNames(Struct, frozen=True):
    """The file names that a command prints, for a following `xargs`; `patterns` is None if it prints any other text."""

    patterns: tuple[str, ...] | None = None  # every name matches one of these; empty: no restriction
    link_folders: tuple[str, ...] = ()  # folders below which a name may be a symbolic link
    line_separated: bool = False
    search_folders: tuple[str, ...] = (".",)
    from_index: bool = False  # names of git's index, which need not exist as files
    is_number: bool = False  # it prints a plain number, or nothing


# Per program: the options that list file names, and the options that separate them with NUL bytes.
_NAME_LISTING_OPTIONS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "rg": (split_names("-l --files-with-matches --files"), split_names("-0 --null")),
    "fd": (frozenset(), split_names("-0 --print0")),
    "fdfind": (frozenset(), split_names("-0 --print0")),
    "grep": (split_names("-l --files-with-matches -L --files-without-match"), split_names("-Z --null")),
}
# Options that only choose the files. Any other option could change how a name is printed, or print other text.
_FILE_CHOOSING_OPTIONS = split_names(
    """-e --regexp -i --ignore-case -w --word-regexp -x --line-regexp -F --fixed-strings -E -P -v --invert-match -s -S
    --smart-case --case-sensitive -U --multiline -u --unrestricted --hidden -. -H -I --no-ignore --no-ignore-vcs -g
    --glob --iglob -t --type -T --type-not -d --max-depth --min-depth --exact-depth -r -R --recursive --include
    --exclude --exclude-dir -n --line-number --no-messages --extension --size --text --max-results -1 --sort"""
)
_NUL_OPTIONS = split_names("-z --zero-terminated")
_NUL_FILTERS = frozenset({"sort", "uniq", "head", "tail"})
_LINE_FILTER_OPTIONS: dict[str, frozenset[str]] = {
    "sort": split_names("-u -r -n -V -f --unique --reverse"),
    "uniq": frozenset(),
    "head": split_names("-n -# --lines"),
    "tail": split_names("-n -# --lines"),
    "grep": split_names("-v -i -E -F -w -e --invert-match --ignore-case"),
}


_PATH_BELOW = re.compile(r"[A-Za-z0-9_*.][A-Za-z0-9_*./-]*")
_COUNTING_OPTIONS = split_names("-c --count -i -v -w -x -E -F -P -s --ignore-case --invert-match")
_NUMBER_CALLS: dict[str, list[list[str | None]]] = {"nproc": [[]], "id": [["-u"], ["-g"]], "date": [["+%s"], ["+%Y"]]}


def names_printed_by(name: str, args: Sequence[ExpandedArg]) -> PrintedNames:
    """Returns the file names that a read-only call prints."""
    if name == "git":
        return _names_in_index([arg.text for arg in args])
    if name not in _NAME_LISTING_OPTIONS:
        return PrintedNames()
    lists, separates = _NAME_LISTING_OPTIONS[name]
    parsed = parse_args(SEARCH_PROGRAMS[name], args)
    files = file_operands(SEARCH_PROGRAMS[name], parsed)
    if (
        (lists and not parsed.has_option(*lists))
        or not {option for option, _ in parsed.options} <= _FILE_CHOOSING_OPTIONS | lists | separates
        or any(arg.values is None for arg in files)
    ):
        return PrintedNames()
    below = tuple(text for arg in files for text in arg.values or ()) or (".",)
    return PrintedNames((), (".",), not parsed.has_option(*separates), below)


def _names_in_index(words: list[str | None]) -> PrintedNames:
    """Returns the names that `git ls-files` prints, if only its separator and plain paths below are chosen."""
    paths = [word for word in words[1:] if word not in {"-z", "-c", "--cached", "--"}]
    if words[:1] != ["ls-files"] or not all(
        word and _PATH_BELOW.fullmatch(word) and ".." not in word for word in paths
    ):
        return PrintedNames()
    return PrintedNames((), (), line_separated="-z" not in words, search_folders=(), from_index=True)


def prints_number(name: str, args: Sequence[ExpandedArg]) -> bool:
    """Returns whether a read-only call prints only a plain number."""
    words = [arg.text for arg in args]
    if name == "git":
        return words[:2] == ["rev-list", "--count"] and not any(
            word is None or word.startswith("-") for word in words[2:]
        )
    if name == "wc":  # with a file it also prints the name
        return len(words) == 1 and words[0] in {"-l", "-w", "-c", "-m", "--lines", "--words", "--bytes", "--chars"}
    if name in {"grep", "egrep", "fgrep"}:
        parsed = parse_args(SEARCH_PROGRAMS[name], args)
        options = {option for option, _ in parsed.options}
        counts = bool(options & {"-c", "--count"}) and options <= _COUNTING_OPTIONS
        return counts and len(parsed.operands) <= 2 and not any(arg.multiple for arg in parsed.operands)
    return words in _NUMBER_CALLS.get(name, ())


def names_after_filter(name: str, args: Sequence[ExpandedArg], names: PrintedNames) -> PrintedNames:
    """Returns the names that remain after a filter that drops whole names, such as `head` or `grep -v`."""
    spec = TEXT_PROGRAMS.get(name) or SEARCH_PROGRAMS.get(name)
    if spec is None or names.patterns is None:
        return PrintedNames()
    parsed = parse_args(spec, args)
    if names.line_separated:
        return names if _keeps_whole_lines(name, parsed) and not parsed.has_option(*_NUL_OPTIONS) else PrintedNames()
    separated = name in _NUL_FILTERS and parsed.has_option(*_NUL_OPTIONS)
    return names if separated and _keeps_whole_lines(name, parsed) else PrintedNames()


def _keeps_whole_lines(name: str, parsed: ParsedArgs) -> bool:
    """Returns whether a filter with these arguments prints only complete input lines."""
    operands = 1 if name == "grep" and not parsed.has_option("-e") else 0
    line_options = _LINE_FILTER_OPTIONS.get(name)
    return (
        line_options is not None
        and (line_options | _NUL_OPTIONS).issuperset(option for option, _ in parsed.options)
        and len(parsed.operands) == operands
    )
