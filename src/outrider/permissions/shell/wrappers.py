"""Programs that run another program: how to find the inner command, and which options name a program or an output."""

import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Literal

from msgspec import Struct

from outrider.permissions.redaction.secret_patterns import split_names
from outrider.permissions.shell.command import check_exported_variable
from outrider.permissions.shell.expansion import ExpandedArg, literal_arg
from outrider.permissions.shell.parser import NotProvenSafe
from outrider.permissions.shell.programs.table import ProgramSpec, is_number, parse_args, program_spec
from outrider.types.tool_declaration import PermissionRule

_DURATION = re.compile(r"^[0-9]+(?:\.[0-9]+)?[smhd]?$")
_ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.DOTALL)


Separator = Literal["NUL", "blank", "other"]


class WrappedCommand(Struct, frozen=True):
    """The command that a wrapper runs; `barrier` is the reason why no allow rule may apply to it."""

    argv: tuple[ExpandedArg, ...]
    barrier: str | None = None


def _split_at_operand(
    spec: ProgramSpec, args: Sequence[ExpandedArg]
) -> tuple[Sequence[ExpandedArg], tuple[ExpandedArg, ...]]:
    """Splits arguments into the wrapper's own options and the inner command, which starts at the first operand."""
    index = 0
    while index < len(args):
        text = args[index].text
        if text is None:
            raise NotProvenSafe("it runs a command that is not known in advance")
        if text == "--":
            return args[:index], tuple(args[index + 1 :])
        if not text.startswith("-") or text == "-":
            break
        index += _option_width(spec, text)
    return args[:index], tuple(args[index:])


def _option_width(spec: ProgramSpec, text: str) -> int:
    """Returns how many arguments an option occupies, its value included."""
    if text.startswith("--"):
        return 2 if spec.options.get(text) == "value" else 1
    if spec.numeric_options and is_number(text[1:]):
        return 1
    for index, letter in enumerate(text[1:]):
        if spec.options.get(f"-{letter}") == "value":
            return 2 if index == len(text) - 2 else 1
    return 1


def _make_unwrapper(spec: ProgramSpec) -> Callable[[Sequence[ExpandedArg]], WrappedCommand]:
    """Returns an unwrap function for a wrapper whose arguments are options and then a command."""

    def unwrap(args: Sequence[ExpandedArg]) -> WrappedCommand:
        options, inner = _split_at_operand(spec, args)
        parse_args(spec, options)
        return WrappedCommand(inner)

    return unwrap


_TIMEOUT_SPEC = program_spec("-s= -k= -v --signal= --kill-after= --preserve-status --foreground --verbose")
_ENV_SPEC = program_spec("-i0 -u= --ignore-environment --unset= --null")
_COMMAND_SPEC = program_spec("-pvV", "text")
_XARGS_SPEC = program_spec(
    "-0rtx -I= -n= -P= -L= -s= -d= --null --no-run-if-empty --verbose --max-args= --max-procs= --max-lines[=] "
    "--delimiter= --exit"
)
_SHELL_SPEC = program_spec("-ceuflvx -o= --login --norc --noprofile")
_SHELL_OPTIONS = frozenset({"pipefail", "errexit", "nounset", "noglob"})


def _unwrap_timeout(args: Sequence[ExpandedArg]) -> WrappedCommand:
    options, inner = _split_at_operand(_TIMEOUT_SPEC, args)
    parse_args(_TIMEOUT_SPEC, options)
    if not inner or inner[0].text is None or not _DURATION.match(inner[0].text):
        raise NotProvenSafe("timeout has a duration that is not known in advance")
    return WrappedCommand(inner[1:])


def _unwrap_env(args: Sequence[ExpandedArg]) -> WrappedCommand:
    """Unwraps `env name=value command`; an unsafe variable becomes a barrier."""
    options, inner = _split_at_operand(_ENV_SPEC, args)
    parsed = parse_args(_ENV_SPEC, options)
    removed = [value.text or "GIT_" for value in parsed.option_values("-u", "--unset")]
    barrier = None
    if parsed.has_option("-i", "--ignore-environment") or any(name.startswith("GIT_") for name in removed):
        # Without GIT_OPTIONAL_LOCKS=0, `git status` rewrites the index.
        barrier = "env removes variables that keep programs from writing files"
    while inner and (text := inner[0].text) is not None and (match := _ASSIGNMENT.match(text)):
        try:
            check_exported_variable(match[1], literal_arg(match[2]))
        except NotProvenSafe as error:
            barrier = str(error)
        inner = inner[1:]
    return WrappedCommand(inner, barrier)


def _unwrap_command(args: Sequence[ExpandedArg]) -> WrappedCommand:
    """Unwraps `command`; `command -v name` only prints a path and runs nothing."""
    options, inner = _split_at_operand(_COMMAND_SPEC, args)
    if parse_args(_COMMAND_SPEC, options).has_option("-v", "-V"):
        return WrappedCommand(())
    return WrappedCommand(inner)


WRAPPERS: dict[str, Callable[[Sequence[ExpandedArg]], WrappedCommand]] = {
    "timeout": _unwrap_timeout,
    "env": _unwrap_env,
    "command": _unwrap_command,
    "nice": _make_unwrapper(program_spec("-n= --adjustment=", numeric_options=True)),
    "ionice": _make_unwrapper(program_spec("-c= -n= -t --class= --classdata= --ignore")),
    "nohup": _make_unwrapper(program_spec("")),
    "stdbuf": _make_unwrapper(program_spec("-i= -o= -e= --input= --output= --error=")),
    "time": _make_unwrapper(program_spec("-p")),
    "builtin": _make_unwrapper(program_spec("")),
    "exec": _make_unwrapper(program_spec("")),
}
# Wrappers that run a program with other rights or in another environment. They are never proven to only read; their
# arguments are parsed only to match deny and ask rules.
OPAQUE_WRAPPERS: dict[str, Callable[[Sequence[ExpandedArg]], WrappedCommand]] = {
    name: _make_unwrapper(program_spec("-nEHSbkPAisww -u= -g= -c= -o= -p= -w= -q"))
    for name in ("sudo", "doas", "setsid", "chroot", "unshare", "strace", "watch", "flock", "su", "runuser", "nsenter",
                 "ltrace", "gdb", "script", "chrt", "taskset", "parallel", "proot", "fakeroot", "busybox", "toybox",
                 "run-parts", "systemd-run", "firejail", "bwrap", "eatmydata", "unbuffer", "catchsegv", "valgrind")
}  # fmt: skip
SHELLS = frozenset({"bash", "sh", "dash"})
OTHER_SHELLS = frozenset({"zsh", "ksh", "mksh", "fish", "csh", "tcsh", "ash", "pwsh"})
COMMAND_RUNNERS = frozenset({*WRAPPERS, *OPAQUE_WRAPPERS, *SHELLS, *OTHER_SHELLS, "xargs", "find", "eval", "trap"})


def unwrap_xargs(args: Sequence[ExpandedArg]) -> tuple[Callable[[ExpandedArg], tuple[ExpandedArg, ...]], Separator]:
    """Returns a function that builds the argv that xargs runs from its input, and the separator of that input."""
    options, inner = _split_at_operand(_XARGS_SPEC, args)
    use = parse_args(_XARGS_SPEC, options)
    argv = inner or (literal_arg("echo"),)
    marks = use.option_values("-I")
    separator = "NUL" if use.has_option("-0", "--null") else "blank"
    delimiters = use.option_values("-d", "--delimiter")
    if delimiters and (separator == "NUL" or any(value.text != "\\n" for value in delimiters)):
        separator = "other"
    if not marks:
        return (lambda item: (*argv, item)), separator
    mark = marks[-1].text
    if not mark:
        raise NotProvenSafe("xargs -I has a placeholder that is not known in advance")
    if use.has_option("-n", "-L", "--max-args", "--max-lines"):
        raise NotProvenSafe("xargs combines -I with an option that can switch it off")
    return (lambda item: tuple(_replace_mark(arg, mark, item) for arg in argv)), separator


def _replace_mark(arg: ExpandedArg, mark: str, item: ExpandedArg) -> ExpandedArg:
    if arg.text is None:  # an uncertain value can contain the placeholder
        return (
            arg
            if arg.values and not any(mark in value for value in arg.values)
            else ExpandedArg(None, multiple=True, source_text=arg.source_text)
        )
    if mark not in arg.text:
        return arg
    return (
        item if arg.text == mark else ExpandedArg(None, prefix=arg.text.partition(mark)[0], source_text=arg.source_text)
    )


def parse_shell_script(args: Sequence[ExpandedArg], root: str) -> tuple[str, tuple[ExpandedArg, ...]] | None:
    """Returns the script of `sh -c` and its arguments, or None if the call has no `-c`.

    A login shell (`-l`) also runs the user's own start files; they must not be part of the workspace.
    """
    if args and args[0].text in {"--version", "-n"}:
        return None
    options, inner = _split_at_operand(_SHELL_SPEC, args)
    parsed = parse_args(_SHELL_SPEC, options)
    if not parsed.has_option("-c"):
        return None
    if any(value.text not in _SHELL_OPTIONS for value in parsed.option_values("-o")):
        raise NotProvenSafe("it changes the options of the shell")
    home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111
    if parsed.has_option("-l", "--login") and f"{home}/".startswith(f"{os.path.realpath(root)}/"):
        raise NotProvenSafe("a login shell would run start files of the workspace")
    if not inner or inner[0].text is None:
        raise NotProvenSafe("it runs a shell script that is not known in advance")
    return inner[0].text, inner[1:]


_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_LOCAL_URL = re.compile(r"^file:/*", re.IGNORECASE)
_SHORT_OPTIONS = re.compile(r"^-[A-Za-z0-9]+")
_TRANSPORT = re.compile(r"^[A-Za-z0-9]+::")
# Options of various programs that name a program to run or a file to write.
_EXEC_OR_OUTPUT_OPTIONS = split_names(
    """--checkpoint-action --to-command --use-compress-program --rsh-command --exec --exec-path --pre
    --hostname-bin --upload-pack --receive-pack --open-files-in-pager --ext-diff --textconv --output
    --compress-program --html --pager --extcmd --config-env --toolexec --script-shell
    --eval --unzip-command --info-script --new-volume-script -exec -execdir -toolexec -vettool -ok -okdir -TT --plugin
    --require --import --loader --node-options --git-dir --work-tree --rsh --rsync-path --execute --use-askpass"""
)
_UNABBREVIATED_OPTIONS = frozenset({"--rcfile", "--init-file"})  # bash accepts no abbreviations
# Short options with that meaning, per program.
_EXEC_OR_OUTPUT_LETTERS = {
    "tar": "IF", "rsync": "e", "ssh": "oF", "scp": "oSF", "sftp": "oSF", "man": "PH", "wget": "e", "tcpdump": "z",
    "git rebase": "x", "git difftool": "x",
}  # fmt: skip
_GIT_REMOTE_VERBS = frozenset({"fetch", "pull", "push", "clone", "ls-remote", "remote", "submodule"})
# Programs that run their arguments or their input as commands.
_ARGUMENT_RUNNERS = COMMAND_RUNNERS | split_names(
    """ssh rsh mosh npx bunx pipx uvx screen expect at batch nix-shell alias coproc perf xvfb-run dbus-run-session
    faketime python python2 python3 perl ruby node php lua awk gawk mawk nawk osascript vim vi nvim ex emacs"""
)
_RUNNING_VERBS: dict[str, frozenset[str]] = {
    "git": split_names("-c bisect submodule rebase filter-branch difftool"),
    **dict.fromkeys(("docker", "podman", "nerdctl", "kubectl", "oc"), split_names("run exec debug compose")),
    **dict.fromkeys(
        ("uv", "poetry", "pipenv", "conda", "hatch", "pdm", "rye", "nix"), split_names("run shell develop")
    ),
    **dict.fromkeys(("npm", "yarn", "pnpm", "bun", "bundle", "deno"), split_names("exec x dlx")),
    "tmux": split_names("new new-session new-window split-window run run-shell send-keys"),
}
_SCHEDULERS = frozenset({"at", "batch"})
_READS_STDIN = re.compile(r"-[a-z]*s[a-z]*")
_RUNS_NO_STDIN = split_names("--version -V --help --test --check")
_INTERPRETERS = SHELLS | OTHER_SHELLS | split_names("python python2 python3 perl ruby node php")


def has_exec_or_output_option(name: str, words: Sequence[str], named: int) -> bool:
    """Returns whether a word after the first `named` ones names a program to run or a file to write."""
    verb = words[1] if name == "git" and len(words) > 1 else ""
    letters = frozenset(_EXEC_OR_OUTPUT_LETTERS.get(f"{name} {verb}".strip(), ""))
    further = words[named:]
    if verb in _GIT_REMOTE_VERBS and any(_TRANSPORT.match(word) for word in further):
        return True
    return any(
        _is_exec_or_output_option(word) or not letters.isdisjoint(_short_option_letters(word)) for word in further
    )


def _short_option_letters(word: str) -> str:
    """Returns the letters after a single dash; the last option may take the rest of the word as its value."""
    match = _SHORT_OPTIONS.match(word)
    return match[0] if match else ""


def _is_exec_or_output_option(word: str) -> bool:
    """Returns whether a word is such an option: in full, abbreviated or with a value."""
    option = word.partition("=")[0]
    if not option.startswith("-") or len(option) < 3:
        return False
    if option in _UNABBREVIATED_OPTIONS:
        return True
    return any(
        listed == option or (len(option) > 4 and listed.startswith(option)) for listed in _EXEC_OR_OUTPUT_OPTIONS
    )


def candidate_paths(word: str) -> Iterator[str]:
    """Yields the parts of a word that may be a path: the word, or the text after `=`, `@` or option letters."""
    if local := _LOCAL_URL.match(word):
        yield "/" + word[local.end() :]
    if _URL.match(word) or not word:
        return
    if not word.startswith("-"):
        yield word.removeprefix("@") or word
    # Only the program knows how many of the letters are options and where the value starts, so try every position.
    yield from (
        word[index:].removeprefix("@")
        for index in range(2, min(len(_short_option_letters(word)), 12) + 1)
        if word[index:]
    )
    for element in word.split(","):
        value = element.partition("=")[2]
        if value and not _URL.match(value):
            yield value.lstrip("@<") or value


def contains_rule_words(rule: PermissionRule, text: str) -> bool:
    """Returns whether a string contains each word of a rule, in order and as a whole word."""
    position = 0
    for word in rule.words:
        match = _whole_word_pattern(word).search(text, position)
        if not match:
            return False
        position = match.end()
    return True


@lru_cache(maxsize=256)
def _whole_word_pattern(word: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.-]){re.escape(word.rstrip('*') or word)}(?![\w.-])")


def runs_its_arguments(name: str, words: Sequence[str]) -> bool:
    """Returns whether a program runs, or may run, its arguments as a command."""
    verbs = _RUNNING_VERBS.get(name)
    return (
        name in _ARGUMENT_RUNNERS
        or (verbs is not None and not verbs.isdisjoint(words))
        or has_exec_or_output_option(name, words, 1)
    )


def reads_commands_from_stdin(name: str, words: Sequence[str]) -> bool:
    """Returns whether a call starts an interpreter that reads its script from standard input."""
    if name not in _INTERPRETERS:
        return name in _SCHEDULERS
    options = list(itertools.takewhile(lambda word: word.startswith("-"), words[1:]))
    if name in SHELLS | OTHER_SHELLS and any(_READS_STDIN.fullmatch(word) for word in options):
        return True
    return "-" in options or (len(options) == len(words) - 1 and _RUNS_NO_STDIN.isdisjoint(options))


def runs_any_program(name: str) -> bool:
    """Returns whether a program is a shell or an opaque wrapper."""
    return name in SHELLS or name in OTHER_SHELLS or name in OPAQUE_WRAPPERS
