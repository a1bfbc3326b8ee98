"""Programs that run another program: what they run, and whether they themselves stay harmless."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from outrider.permissions.programs.table import Program, program, read_use
from outrider.permissions.redaction.secret_patterns import names
from outrider.permissions.rules import Rule
from outrider.permissions.shell.command import refuse_exported
from outrider.permissions.shell.expansion import Arg, literal
from outrider.permissions.shell.parser import Unclear

_NUMBER = re.compile(r"^[0-9]+(?:\.[0-9]+)?[smhd]?$")
_ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.DOTALL)


Separator = Literal["NUL", "blank", "other"]


class Wrapped(Struct, frozen=True):
    """What a wrapper runs; `barrier` says why no rule may reach through it this time."""

    argv: tuple[Arg, ...]
    barrier: str | None = None


def _split(spec: Program, args: Sequence[Arg]) -> tuple[Sequence[Arg], tuple[Arg, ...]]:
    """Options up to the first operand, and the rest: wrappers stop there, since what follows belongs to another."""
    at = 0
    while at < len(args):
        text = args[at].text
        if text is None:
            raise Unclear("what a wrapper runs is unknown")
        if text == "--":
            return args[:at], tuple(args[at + 1 :])
        if not text.startswith("-") or text == "-":
            break
        at += _width(spec, text)
    return args[:at], tuple(args[at:])


def _width(spec: Program, text: str) -> int:
    """How many words an option takes."""
    if text.startswith("--"):
        return 2 if spec.options.get(text) == "value" else 1
    if spec.numbers and text[1:].isdigit():
        return 1
    for place, letter in enumerate(text[1:]):
        if spec.options.get(f"-{letter}") == "value":
            return 2 if place == len(text) - 2 else 1
    return 1


def _plain(spec: Program) -> Callable[[Sequence[Arg]], Wrapped]:
    def unwrap(args: Sequence[Arg]) -> Wrapped:
        options, rest = _split(spec, args)
        read_use(spec, options)
        return Wrapped(rest)

    return unwrap


_TIMEOUT = program("-s= -k= -v --signal= --kill-after= --preserve-status --foreground --verbose")
_ENV = program("-i0 -u= --ignore-environment --unset= --null")
_LOOKUP = program("-pvV", "text")
_XARGS = program(
    "-0rtx -I= -n= -P= -L= -s= -d= --null --no-run-if-empty --verbose --max-args= --max-procs= --max-lines= "
    "--delimiter= --exit"
)
_SHELL = program("-ceuf")


def _timeout(args: Sequence[Arg]) -> Wrapped:
    options, rest = _split(_TIMEOUT, args)
    read_use(_TIMEOUT, options)
    if not rest or rest[0].text is None or not _NUMBER.match(rest[0].text):
        raise Unclear("how long timeout waits is unknown")
    return Wrapped(rest[1:])


def _env(args: Sequence[Arg]) -> Wrapped:
    options, rest = _split(_ENV, args)
    read_use(_ENV, options)
    barrier = None
    while rest and (text := rest[0].text) is not None and (found := _ASSIGNMENT.match(text)):
        try:
            refuse_exported(found[1], literal(found[2]))
        except Unclear as unclear:
            barrier = str(unclear)
        rest = rest[1:]
    return Wrapped(rest, barrier)


def _command(args: Sequence[Arg]) -> Wrapped:
    options, rest = _split(_LOOKUP, args)
    if read_use(_LOOKUP, options).has("-v", "-V"):
        return Wrapped(())
    return Wrapped(rest)


WRAPPERS: dict[str, Callable[[Sequence[Arg]], Wrapped]] = {
    "timeout": _timeout,
    "env": _env,
    "command": _command,
    "nice": _plain(program("-n= --adjustment=", numbers=True)),
    "ionice": _plain(program("-c= -n= -t --class= --classdata= --ignore")),
    "nohup": _plain(program("")),
    "stdbuf": _plain(program("-i= -o= -e= --input= --output= --error=")),
    "time": _plain(program("-p")),
    "builtin": _plain(program("")),
    "exec": _plain(program("")),
}
# These run another program with other rights or elsewhere: followed only to find what is forbidden.
OPAQUE: dict[str, Callable[[Sequence[Arg]], Wrapped]] = {
    name: _plain(program("-nEHSbkPAisww -u= -g= -c= -o= -p= -w= -q"))
    for name in ("sudo", "doas", "setsid", "chroot", "unshare", "strace", "watch", "flock", "su", "runuser", "nsenter",
                 "ltrace", "gdb", "script", "chrt", "taskset", "parallel", "proot", "fakeroot", "busybox", "toybox",
                 "run-parts", "systemd-run", "firejail", "bwrap", "eatmydata", "unbuffer", "catchsegv", "valgrind")
}  # fmt: skip
SHELLS = frozenset({"bash", "sh", "dash"})
OTHER_SHELLS = frozenset({"zsh", "ksh", "mksh", "fish", "csh", "tcsh", "ash", "pwsh"})
RUNNERS = frozenset({*WRAPPERS, *OPAQUE, *SHELLS, *OTHER_SHELLS, "xargs", "find", "eval", "trap"})


def unwrap_xargs(args: Sequence[Arg]) -> tuple[Callable[[Arg], tuple[Arg, ...]], Separator]:
    """What xargs runs, given what it reads, and where it takes that apart."""
    options, rest = _split(_XARGS, args)
    use = read_use(_XARGS, options)
    argv = rest or (literal("echo"),)
    marks = use.values("-I")
    separator = "NUL" if use.has("-0", "--null") else "blank"
    if any(value.text != "\\n" for value in use.values("-d", "--delimiter")):
        separator = "other"
    if not marks:
        return (lambda given: (*argv, given)), separator
    mark = marks[-1].text
    if not mark:
        raise Unclear("what xargs replaces is unknown")
    return (lambda given: tuple(_filled(arg, mark, given) for arg in argv)), separator


def _filled(arg: Arg, mark: str, given: Arg) -> Arg:
    if arg.text is None or mark not in arg.text:
        return arg
    return given if arg.text == mark else Arg(None, lead=arg.text.partition(mark)[0], shown=arg.shown)


def shell_text(args: Sequence[Arg]) -> tuple[str, tuple[Arg, ...]] | None:
    """The script after `-c` and its arguments; None: this is no such call."""
    if args and args[0].text in {"--version", "-n"}:
        return None
    options, rest = _split(_SHELL, args)
    if not read_use(_SHELL, options).has("-c"):
        return None
    if not rest or rest[0].text is None:
        raise Unclear("the script for another shell is unknown")
    return rest[0].text, rest[1:]


_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_LOCAL_URL = re.compile(r"^file:/*", re.IGNORECASE)
_LETTERS = re.compile(r"^-[A-Za-z0-9]+")
_TRANSPORT = re.compile(r"^[A-Za-z0-9]+::")
# Options by which all kinds of programs are told to run another one, or where to write.
_TELLS = names(
    """--checkpoint-action --to-command --use-compress-program --rsh-command --exec --exec-path --pre
    --hostname-bin --upload-pack --receive-pack --open-files-in-pager --ext-diff --textconv --output
    --compress-program --html --pager --extcmd --config-env --toolexec --script-shell
    --eval --unzip-command --info-script --new-volume-script -exec -execdir -toolexec -vettool -ok -okdir -TT --plugin
    --require --import --loader --node-options --git-dir --work-tree --rsh --rsync-path --execute --use-askpass"""
)
_TELLS_IN_FULL = frozenset({"--rcfile", "--init-file"})  # bash takes no abbreviations
# The letters that mean the same to one program.
_LETTERS_THAT_TELL = {
    "tar": "IF", "rsync": "e", "ssh": "oF", "scp": "oSF", "sftp": "oSF", "man": "PH", "wget": "e", "tcpdump": "z",
    "git rebase": "x", "git difftool": "x",
}  # fmt: skip
_REACHING_OUT = frozenset({"fetch", "pull", "push", "clone", "ls-remote", "remote", "submodule"})
# They run their words, or what they read, whichever words those are.
_WORD_RUNNERS = RUNNERS | names(
    """ssh rsh mosh npx bunx pipx uvx screen expect at batch nix-shell alias coproc perf xvfb-run dbus-run-session
    faketime python python2 python3 perl ruby node php lua awk gawk mawk nawk osascript vim vi nvim ex emacs"""
)
_VERBS_THAT_RUN: dict[str, frozenset[str]] = {
    "git": names("-c bisect submodule rebase filter-branch difftool"),
    **dict.fromkeys(("docker", "podman", "nerdctl", "kubectl", "oc"), names("run exec debug compose")),
    **dict.fromkeys(("uv", "poetry", "pipenv", "conda", "hatch", "pdm", "rye", "nix"), names("run shell develop")),
    **dict.fromkeys(("npm", "yarn", "pnpm", "bun", "bundle", "deno"), names("exec x dlx")),
    "tmux": names("new new-session new-window split-window run run-shell send-keys"),
}
_SCHEDULERS = frozenset({"at", "batch"})
_INTERPRETERS = SHELLS | OTHER_SHELLS | names("python python2 python3 perl ruby node php")


def tells(name: str, words: Sequence[str], named: int) -> bool:
    """Whether a word beyond the named ones tells the program to run another one, or where to write."""
    verb = words[1] if name == "git" and len(words) > 1 else ""
    letters = frozenset(_LETTERS_THAT_TELL.get(f"{name} {verb}".strip(), ""))
    further = words[named:]
    if verb in _REACHING_OUT and any(_TRANSPORT.match(word) for word in further):
        return True
    return any(_is_telling(word) or not letters.isdisjoint(_letters(word)) for word in further)


def _letters(word: str) -> str:
    """The letters after one dash: options, the last of which may have the rest as its value."""
    found = _LETTERS.match(word)
    return found[0] if found else ""


def _is_telling(word: str) -> bool:
    """Whether a word is such an option, written out, abbreviated or with its value."""
    option = word.partition("=")[0]
    if not option.startswith("-") or len(option) < 3:
        return False
    if option in _TELLS_IN_FULL:
        return True
    return any(known == option or (len(option) > 4 and known.startswith(option)) for known in _TELLS)


def paths_in(word: str) -> Iterator[str]:
    """What in a word may be a path: the word, what follows an equals sign, an at sign or an option's letters."""
    if local := _LOCAL_URL.match(word):
        yield "/" + word[local.end() :]
    if _URL.match(word) or not word:
        return
    if not word.startswith("-"):
        yield word.removeprefix("@") or word
    # How many of the letters are options, and where the value of the last one begins, only the program knows.
    yield from (word[at:].removeprefix("@") for at in range(2, min(len(_letters(word)), 12) + 1) if word[at:])
    for piece in word.split(","):
        value = piece.partition("=")[2]
        if value and not _URL.match(value):
            yield value.lstrip("@<") or value


def mentions(rule: Rule, text: str) -> bool:
    """Whether a text holds the words of a rule, one after the other, as words."""
    at = 0
    for word in rule.words:
        found = _as_word(word).search(text, at)
        if not found:
            return False
        at = found.end()
    return True


@lru_cache(maxsize=256)
def _as_word(word: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.-]){re.escape(word.rstrip('*') or word)}(?![\w.-])")


def runs_its_words(name: str, words: Sequence[str]) -> bool:
    """Whether what a program runs stands in its words, or may."""
    verbs = _VERBS_THAT_RUN.get(name)
    return name in _WORD_RUNNERS or (verbs is not None and not verbs.isdisjoint(words)) or tells(name, words, 1)


def reads_commands(name: str, words: Sequence[str]) -> bool:
    """Whether it is an interpreter that takes what it runs from its input."""
    return name in _SCHEDULERS or (name in _INTERPRETERS and all(word.startswith("-") for word in words[1:]))


def runs_anything(name: str) -> bool:
    return name in SHELLS or name in OTHER_SHELLS or name in OPAQUE
