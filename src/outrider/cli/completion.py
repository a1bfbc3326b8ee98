"""What can follow what on the command line, read from the parsers themselves."""

import argparse
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, cast

from outrider.cli import registry as exits
from outrider.cli.interactive import top_parser
from outrider.cli.parser import parser_of
from outrider.cli.registry import COMMANDS

Open = Literal["file", "text"]
_FILES = ("FILE", "FOLDER")


class Level(NamedTuple):
    """What can follow some words: more words, and flags. Some of these take one of a few `values`, others any value,
    perhaps a file."""

    path: tuple[str, ...]
    words: dict[str, str]
    flags: dict[str, str]
    values: dict[str, tuple[str, ...]]
    open: dict[str, Open]


def levels() -> Iterator[Level]:
    yield _level((), top_parser())._replace(words={command.name: command.summary for command in COMMANDS})
    for command in COMMANDS:
        yield from _levels((command.name,), parser_of(command))


def _levels(path: tuple[str, ...], parser: argparse.ArgumentParser) -> Iterator[Level]:
    yield _level(path, parser)
    for action in _actions(parser):
        if isinstance(action.choices, dict):
            for name, inner in cast("dict[str, argparse.ArgumentParser]", action.choices).items():
                yield from _levels((*path, name), inner)


def _level(path: tuple[str, ...], parser: argparse.ArgumentParser) -> Level:
    words: dict[str, str] = {}
    flags: dict[str, str] = {}
    values: dict[str, tuple[str, ...]] = {}
    open: dict[str, Open] = {}
    for action in _actions(parser):
        choices = tuple(str(choice) for choice in action.choices or ())
        if not action.option_strings:
            words |= _helped(action, choices)
        for flag in action.option_strings:
            flags[flag] = action.help or ""
            if choices:
                values[flag] = choices
            elif action.nargs != 0:
                open[flag] = "file" if action.metavar in _FILES else "text"
    return Level(path, words, flags, values, open)


def _helped(action: argparse.Action, choices: tuple[str, ...]) -> dict[str, str]:
    """Sub-commands with their own lines of help, where a choice is one."""
    inner: list[Any] = getattr(action, "_choices_actions", [])
    return dict.fromkeys(choices, "") | {one.dest: one.help or "" for one in inner}


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """argparse has no public way to what it was told, and has had this one for as long as it exists."""
    return parser._actions  # pyright: ignore[reportPrivateUsage]


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
