"""The scripts: what each shell needs to be told."""

import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator

from outrider.cli import exits
from outrider.cli.completion.levels import Level, levels

_BASH = """\
_outrider() {
  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} at="" word offered=""
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$at $word" in
      %PATHS%) at="$at $word" ;;
    esac
  done
  case "$at:$before" in
%VALUES%
    *) case "$at" in
%WORDS%
    esac ;;
  esac
  COMPREPLY=($(compgen -W "$offered" -- "$current"))
}
complete -o default -F _outrider outrider
"""
_ZSH = """\
#compdef outrider
_outrider() {
  local at="" word
  local -a offered
  for word in ${words[2,CURRENT-1]}; do
    case "$at $word" in
      %PATHS%) at="$at $word" ;;
    esac
  done
  case "$at:$words[CURRENT-1]" in
%VALUES%
    *) case "$at" in
%WORDS%
    esac ;;
  esac
  _describe outrider offered || _files
}
compdef _outrider outrider
"""
_FISH = """\
function __outrider_at
    set -l at ""
    for word in (commandline -opc)[2..-1]
        contains -- "$at $word" %PATHS%; and set at "$at $word"
    end
    test "$at" = "$argv[1]"
end
"""


def execute(arguments: Namespace) -> int:
    writers = {"bash": bash, "zsh": zsh, "fish": fish}
    sys.stdout.write(writers[arguments.shell](list(levels())))
    return exits.DONE


def bash(levels: list[Level]) -> str:
    return _filled(
        _BASH,
        levels,
        lambda values: f'offered="{" ".join(values)}"',
        lambda level: f'offered="{" ".join((*level.words, *level.flags))}"',
    )


def zsh(levels: list[Level]) -> str:
    def described(level: Level) -> str:
        known = {**level.words, **level.flags}
        told = {word: _plain(help).replace(":", r"\:") for word, help in known.items()}
        return f"offered=({' '.join(shlex.quote(f'{word}:{help}') for word, help in told.items())})"

    return _filled(_ZSH, levels, lambda values: f"offered=({' '.join(values)})", described)


def fish(levels: list[Level]) -> str:
    lines = [_FISH.replace("%PATHS%", " ".join(f'"{path}"' for path in _paths(levels)))]
    for level in levels:
        here = f"complete -c outrider -n '__outrider_at \"{_path(level)}\"'"
        lines += [f"{here} -f -a {word} -d {shlex.quote(_plain(help))}" for word, help in level.words.items()]
        for flag, help in level.flags.items():
            name = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            lines.append(f"{here} {name} -d {shlex.quote(_plain(help))}{_fish_value(level, flag)}")
    return "\n".join([*lines, ""])


def _fish_value(level: Level, flag: str) -> str:
    if flag in level.values:
        return f" -x -a '{' '.join(level.values[flag])}'"
    match level.open.get(flag):
        case "file":
            return " -r -F"
        case "text":
            return " -x"
        case None:
            return ""


def _filled(
    template: str, levels: list[Level], values: Callable[[tuple[str, ...]], str], words: Callable[[Level], str]
) -> str:
    chosen = [
        f'    "{_path(level)}:{flag}") {values(level.values.get(flag, ()))} ;;'
        for level in levels
        for flag in (*level.values, *level.open)
    ]
    return (
        template.replace("%PATHS%", "|".join(f'"{path}"' for path in _paths(levels)))
        .replace("%VALUES%", "\n".join(chosen))
        .replace("%WORDS%", "\n".join(f'      "{_path(level)}") {words(level)} ;;' for level in levels))
    )


def _paths(levels: Iterable[Level]) -> Iterator[str]:
    return (_path(level) for level in levels if level.path)


def _path(level: Level) -> str:
    return "".join(f" {word}" for word in level.path)


def _plain(help: str) -> str:
    """One line, as argparse would print it."""
    return " ".join(help.replace("%%", "%").split())
