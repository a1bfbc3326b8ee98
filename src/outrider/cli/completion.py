"""`outrider completion`: generates shell completion scripts from the argument parsers."""

import argparse
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, cast

from outrider.cli import exit_codes
from outrider.cli.interactive import build_top_parser
from outrider.cli.parser import COMMANDS, build_parser

OpenValue = Literal["file", "text"]
_FILE_METAVARS = ("FILE", "FOLDER")


class CompletionLevel(NamedTuple):
    """What can follow a subcommand.

    - `path`: the subcommand.
    - `words`: subcommands and choices, each with its help text.
    - `flags`: flags, each with its help text.
    - `values`: the choices of each flag that has choices.
    - `open`: the flags that accept any value, and whether the value is a file.
    """

    path: tuple[str, ...]
    words: dict[str, str]
    flags: dict[str, str]
    values: dict[str, tuple[str, ...]]
    open: dict[str, OpenValue]


def completion_levels() -> Iterator[CompletionLevel]:
    """Yields the levels of all commands and subcommands, the top level first."""
    yield _parser_level((), build_top_parser())._replace(words={command.name: command.summary for command in COMMANDS})
    for command in COMMANDS:
        yield from _parser_levels((command.name,), build_parser(command))


def _parser_levels(path: tuple[str, ...], parser: argparse.ArgumentParser) -> Iterator[CompletionLevel]:
    yield _parser_level(path, parser)
    for action in _parser_actions(parser):
        if isinstance(action.choices, dict):
            for name, inner in cast("dict[str, argparse.ArgumentParser]", action.choices).items():
                yield from _parser_levels((*path, name), inner)


def _parser_level(path: tuple[str, ...], parser: argparse.ArgumentParser) -> CompletionLevel:
    words: dict[str, str] = {}
    flags: dict[str, str] = {}
    values: dict[str, tuple[str, ...]] = {}
    open: dict[str, OpenValue] = {}
    for action in _parser_actions(parser):
        choices = tuple(str(choice) for choice in action.choices or ())
        if not action.option_strings:
            words |= _choice_help(action, choices)
        for flag in action.option_strings:
            flags[flag] = action.help or ""
            if choices:
                values[flag] = choices
            elif action.nargs != 0:
                open[flag] = "file" if action.metavar in _FILE_METAVARS else "text"
    return CompletionLevel(path, words, flags, values, open)


def _choice_help(action: argparse.Action, choices: tuple[str, ...]) -> dict[str, str]:
    """Returns the help text of each choice; only subcommands have one."""
    subcommands: list[Any] = getattr(action, "_choices_actions", [])
    return dict.fromkeys(choices, "") | {subcommand.dest: subcommand.help or "" for subcommand in subcommands}


def _parser_actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Returns the declared arguments, without hidden ones. argparse has no public API for them; `_actions` has existed
    in every version."""
    actions = parser._actions  # pyright: ignore[reportPrivateUsage]
    return [action for action in actions if action.help != argparse.SUPPRESS]


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


def print_completion_script(arguments: Namespace) -> int:
    """Prints the completion script of a shell."""
    writers = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
    sys.stdout.write(writers[arguments.shell](list(completion_levels())))
    return exit_codes.SUCCESS


def bash_script(levels: list[CompletionLevel]) -> str:
    return _fill_template(
        _BASH,
        levels,
        lambda values: f'offered="{" ".join(values)}"',
        lambda level: f'offered="{" ".join((*level.words, *level.flags))}"',
    )


def zsh_script(levels: list[CompletionLevel]) -> str:
    def describe_words(level: CompletionLevel) -> str:
        words = {**level.words, **level.flags}
        escaped = {word: _single_line_help(help).replace(":", r"\:") for word, help in words.items()}
        return f"offered=({' '.join(shlex.quote(f'{word}:{help}') for word, help in escaped.items())})"

    return _fill_template(_ZSH, levels, lambda values: f"offered=({' '.join(values)})", describe_words)


def fish_script(levels: list[CompletionLevel]) -> str:
    lines = [_FISH.replace("%PATHS%", " ".join(f'"{path}"' for path in _level_paths(levels)))]
    for level in levels:
        prefix = f"complete -c outrider -n '__outrider_at \"{_level_path(level)}\"'"
        lines += [
            f"{prefix} -f -a {word} -d {shlex.quote(_single_line_help(help))}" for word, help in level.words.items()
        ]
        for flag, help in level.flags.items():
            name = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
            lines.append(f"{prefix} {name} -d {shlex.quote(_single_line_help(help))}{_fish_value_options(level, flag)}")
    return "\n".join([*lines, ""])


def _fish_value_options(level: CompletionLevel, flag: str) -> str:
    if flag in level.values:
        return f" -x -a '{' '.join(level.values[flag])}'"
    match level.open.get(flag):
        case "file":
            return " -r -F"
        case "text":
            return " -x"
        case None:
            return ""


def _fill_template(
    template: str,
    levels: list[CompletionLevel],
    values: Callable[[tuple[str, ...]], str],
    words: Callable[[CompletionLevel], str],
) -> str:
    chosen = [
        f'    "{_level_path(level)}:{flag}") {values(level.values.get(flag, ()))} ;;'
        for level in levels
        for flag in (*level.values, *level.open)
    ]
    return (
        template.replace("%PATHS%", "|".join(f'"{path}"' for path in _level_paths(levels)))
        .replace("%VALUES%", "\n".join(chosen))
        .replace("%WORDS%", "\n".join(f'      "{_level_path(level)}") {words(level)} ;;' for level in levels))
    )


def _level_paths(levels: Iterable[CompletionLevel]) -> Iterator[str]:
    return (_level_path(level) for level in levels if level.path)


def _level_path(level: CompletionLevel) -> str:
    return "".join(f" {word}" for word in level.path)


def _single_line_help(help: str) -> str:
    """Returns a help text on one line, with argparse's `%%` replaced by `%`."""
    return " ".join(help.replace("%%", "%").split())
