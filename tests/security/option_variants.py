"""Makes calls of every known program: each option, pairs of options, joined letters, attached and separate values."""

import random
import shlex
import shutil
from collections.abc import Iterator

from outrider.permissions.shell.programs.git import GIT_SUBCOMMANDS, find_git_spec
from outrider.permissions.shell.programs.registry import CUSTOM_CHECK_SPECS, PROGRAM_SPECS
from outrider.permissions.shell.programs.table import OptionValue, ProgramSpec

FILES = ["README.md", "notes.txt", "src/app.py", "data.csv", "a.tar", "a.gz", "src"]
# Words that have an effect, or read a file outside, where a program takes them for something else than a value.
BAIT = """PWNED notes.txt README.md ../out/secret.txt ./script.sh touch tee --output=PWNED --output PWNED -oPWNED -o
-i -x -d -I./script.sh --pre=./script.sh --pre --exec -exec --exec=touch -delete -fprint --in-place --to-command=touch
-O -C -s -w -e -f -m -r -R -T -X + ; {} -- - @options 1 5 0 x auto =1 /etc/passwd ../out link_out/secret.txt""".split()  # noqa: SIM905
VALUES = ["1", "x", "3", "auto", "always", "0", "../out/secret.txt", "PWNED", "notes.txt", "touch", "%s", "n"]
SCRIPTS: dict[str, list[str]] = {
    "sed": ["p", "s/x/y/", "w PWNED", "1d"],
    **{name: ["{print}", "{print $1}", 'BEGIN{print > "PWNED"}', "1"] for name in ("awk", "gawk", "mawk", "nawk")},
    "jq": [".", ".name", "keys"],
    "date": ["+%F"],
    "tr": ["a", "b"],
    "expr": ["1", "+", "2"],
    "ip": ["a", "show"],
    "go": ["version"],
}
INNER = [["ls"], ["cat", "notes.txt"], ["echo"], ["wc"], ["touch", "PWNED"], ["tee"], ["grep", "x"], ["./script.sh"]]
# Options of the programs that run another one. An option that takes a value has one in this list.
WRAPPER_OPTIONS: dict[str, list[list[str]]] = {
    "xargs": [
        *([word] for word in "-0 -r -t -x --null --no-run-if-empty --verbose --exit --max-lines --max-lines=1".split()),  # noqa: SIM905
        *([name, value] for name in ("-I", "-n", "-P", "-L", "-s", "-d") for value in ("1", "X", "touch", "{}", "99")),
        *([f"-I{value}"] for value in ("X", "n", "touch")),
        *([f"{name}={value}"] for name in ("--max-args", "--max-procs", "--delimiter") for value in ("1", "x")),
        *(
            [name, value]
            for name in ("--max-args", "--max-procs", "--max-lines", "--delimiter")
            for value in ("1", "tee")
        ),
    ],
    "env": [
        ["-i"],
        ["-0"],
        ["-u", "X"],
        ["-uX"],
        ["--unset=X"],
        ["--unset", "X"],
        ["LANG=C"],
        ["--null"],
        ["X=1"],
        ["-"],
    ],
    "timeout": [["5"], ["-s", "TERM"], ["-k", "1"], ["-v"], ["--signal=TERM"], ["--foreground"], ["0.5s"], ["-sTERM"]],
    "nice": [["-n", "5"], ["-n5"], ["-5"], ["--adjustment=5"], ["--adjustment", "5"], ["--5"]],
    "nohup": [["--"]],
    "stdbuf": [["-oL"], ["-o", "L"], ["-i0"], ["--output=L"], ["--error", "0"]],
    "ionice": [["-c", "3"], ["-c3"], ["-n", "5"], ["-t"], ["--class", "idle"], ["--ignore"]],
    "command": [["-p"], ["-v"], ["-V"], ["-pv"], ["--"]],
    "time": [["-p"], ["--"]],
    "exec": [["--"]],
    "builtin": [["--"]],
}
FIND_TESTS = """-name -iname -path -regex -type -size -maxdepth -mindepth -mtime -newer -samefile -perm -user -printf
-newermt -regextype -lname -used -links""".split()  # noqa: SIM905
FIND_PLAIN = "-print -print0 -ls -prune -quit -true -depth -empty -not ! ( ) -o -a , -xdev -daystart -H -P".split()  # noqa: SIM905
# What has an effect in each program, or reads a file outside, when the program does not take it for a value.
EFFECTS: dict[str, list[list[str]]] = {
    "git": [["--output=PWNED"], ["--output", "PWNED"], ["PWNED"], ["-d", "x"], ["--unset", "user.name"]],
    "sort": [["-oPWNED"], ["--output=PWNED"], ["-o", "PWNED"]],
    "shuf": [["-oPWNED"], ["--output=PWNED"]],
    **{name: [["notes.txt", "PWNED"], ["PWNED"], ["notes.txt"]] for name in ("xxd", "uniq")},
    "tree": [["-o", "PWNED"], ["-oPWNED"]],
    "tar": [["-I./script.sh"], ["-x"], ["--to-command=./script.sh"], ["--use-compress-program=./script.sh"]],
    "sed": [["-i"], ["--in-place"], ["-s"], ["-e", "w PWNED"], ["w PWNED"]],
    **{name: [["-f", "script.sh"], ['BEGIN{system("touch PWNED")}']] for name in ("awk", "mawk", "gawk", "nawk")},
    **{name: [["-d"], ["-f"], ["-k"], ["notes.txt"]] for name in ("gzip", "gunzip", "xz", "unxz", "bzip2", "bunzip2")},
    "iconv": [["-o", "PWNED"], ["--output=PWNED"]],
    "file": [["-C"], ["-m", "../out/secret.txt"], ["-f", "../out/secret.txt"]],
    "rg": [["--pre=./script.sh"], ["--pre", "./script.sh"]],
    "fd": [["-x", "touch"], ["--exec", "touch"]],
    "sdiff": [["-o", "PWNED", "notes.txt"]],
    "unzip": [["-o"], ["-d", "PWNED"]],
}
OUTSIDE = [["../out/secret.txt"], ["link_out/secret.txt"], ["@options"]]
GIT_VERBS = [
    *("remote show", "remote get-url", "stash list", "stash show", "worktree list"),
    *("notes show", "notes list", "bisect log", "reflog show"),
]
# Calls that run until they are stopped, so that a test would wait for each of them.
_ENDLESS = {"yes", "sleep", "vmstat", "free", "top", "tail"}
_KEEPING = {"java", "javac"}  # the Java runtime writes a file to /tmp, even to print its version


def installed_specs() -> list[tuple[list[str], ProgramSpec]]:
    """The words that start a call and its specification, for every known program on this machine."""
    found: list[tuple[list[str], ProgramSpec]] = [
        ([name], spec)
        for name, spec in {**PROGRAM_SPECS, **CUSTOM_CHECK_SPECS}.items()
        if shutil.which(name) and name not in _ENDLESS | _KEEPING
    ]
    if shutil.which("git"):
        found += [(["git", name], spec) for name, spec in GIT_SUBCOMMANDS.items()]
        for words in (verb.split() for verb in GIT_VERBS):
            spec, _ = find_git_spec(words)
            found += [(["git", *words], spec)] if spec else []
    return found


def option_forms(name: str, takes: OptionValue, value: str) -> Iterator[list[str]]:
    """The ways to write one option: alone, with a separate value, with an attached value."""
    yield [name]
    if takes != "nothing":
        yield [name, value]
        yield [f"{name}={value}" if name.startswith("--") else f"{name}{value}"]


class CallGenerator:
    """Makes random calls of the known programs; the same seed makes the same calls."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.specs = installed_specs()

    def make(self) -> str:
        kind = self.chance.random()
        if kind < 0.15:
            return self._wrapped()
        if kind < 0.22:
            return self._find()
        # Programs that can write or run something come more often than those that cannot.
        active = [entry for entry in self.specs if entry[0][0] in EFFECTS]
        return self._program(*self.chance.choice(active if self.chance.random() < 0.6 else self.specs))

    def each_option(self) -> Iterator[str]:
        """Every option of every program once in every form, each with a random rest."""
        for start, spec in self.specs:
            effects: list[list[str]] = [[], *EFFECTS.get(start[0], []), *OUTSIDE]
            for name, takes in spec.options.items():
                for words in option_forms(name, takes, self.chance.choice(VALUES)):
                    yield from (shlex.join([*start, *words, *effect, *self._rest(start)]) for effect in effects)

    def _rest(self, start: list[str]) -> list[str]:
        scripts = SCRIPTS.get(start[0], [])
        pattern = ["x"] if start[-1] in {"grep", "egrep", "fgrep", "rg", "fd", "look"} else []
        files = [self.chance.choice([*FILES, *BAIT] if self.chance.random() < 0.4 else FILES)]
        rest = [*([self.chance.choice(scripts)] if scripts else []), *pattern, *files]
        if self.chance.random() < 0.3:
            rest.append(self.chance.choice(["notes.txt", "PWNED", "src/util.py"]))
        return rest if self.chance.random() < 0.85 else rest[: self.chance.randint(0, 2)]

    def _option(self, spec: ProgramSpec) -> list[str]:
        if not spec.options:
            return [self.chance.choice(sorted(spec.whole_word_options) or BAIT)]
        name = self.chance.choice(list(spec.options))
        value = self.chance.choice([*VALUES, *BAIT])
        return self.chance.choice(list(option_forms(name, spec.options[name], value)))

    def _joined(self, spec: ProgramSpec) -> list[str]:
        """Two or three letters as one word, perhaps with a value."""
        letters = [name[1:] for name in spec.options if not name.startswith("--")]
        if len(letters) < 2:
            return self._option(spec)
        word = "-" + "".join(self.chance.choice(letters) for _ in range(self.chance.choice([2, 2, 3])))
        return [word, self.chance.choice([*VALUES, *BAIT])] if self.chance.random() < 0.5 else [word]

    def _program(self, start: list[str], spec: ProgramSpec) -> str:
        words: list[str] = []
        for _ in range(self.chance.choice([1, 2, 2, 2, 3])):
            words += self._joined(spec) if self.chance.random() < 0.35 else self._option(spec)
        kind = self.chance.random()
        if kind < 0.15:
            words.insert(self.chance.randint(0, len(words)), self.chance.choice(BAIT))
        elif kind < 0.75:
            at = len(words) if self.chance.random() < 0.7 else self.chance.randint(0, len(words))
            words[at:at] = self.chance.choice([*EFFECTS.get(start[0], []), *EFFECTS.get(start[0], []), *OUTSIDE])
        rest = self._rest(start)
        words = [*rest, *words] if self.chance.random() < 0.15 else [*words, *rest]
        return shlex.join([*start, *words])

    def _wrapped(self) -> str:
        name = self.chance.choice(list(WRAPPER_OPTIONS))
        words = [name, *(["5"] if name == "timeout" and self.chance.random() < 0.7 else [])]
        for _ in range(self.chance.randint(0, 3)):
            words[1:1] = self.chance.choice(WRAPPER_OPTIONS[name])
        if self.chance.random() < 0.2:
            words.append(self.chance.choice(["touch", "PWNED", "tee", "X", "--", "{}"]))
        call = shlex.join([*words, *self.chance.choice(INNER)])
        return (
            self.chance.choice(["echo PWNED | ", "find . -name '*.py' | ", "ls | "]) + call if name == "xargs" else call
        )

    def _find(self) -> str:
        words = ["find", self.chance.choice([".", "src", "README.md"])]
        for _ in range(self.chance.randint(1, 4)):
            kind = self.chance.random()
            if kind < 0.35:
                words.append(self.chance.choice(FIND_PLAIN))
            elif kind < 0.7:
                words += [self.chance.choice(FIND_TESTS), self.chance.choice([*VALUES, *BAIT, "*.py", "f"])]
            else:
                inner = self.chance.choice([*INNER, ["sed", "s/x/y/"], ["sort"], ["head"]])
                tail = [self.chance.choice(["{}", "+", ";", "notes.txt", "-delete", "x"]) for _ in range(2)]
                words += ["-exec", *inner, *tail, *self.chance.choice([["{}", "+"], [";"], ["+"], ["{}", ";"], []])]
        return shlex.join(words)
