"""What can follow what on the command line, read from the parsers themselves."""

import argparse
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, cast

from outrider.cli.commands import COMMANDS
from outrider.cli.interactive import top_parser
from outrider.cli.parser import parser_of

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
