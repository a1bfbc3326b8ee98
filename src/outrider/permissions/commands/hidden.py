"""What the words of a command can hide: paths, and programs that it is told to run."""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from outrider.permissions.commands.wrappers import OPAQUE, OTHER_SHELLS, RUNNERS, SHELLS
from outrider.permissions.rules import Rule
from outrider.permissions.texts.names import names

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
