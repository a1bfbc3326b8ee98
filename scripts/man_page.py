"""Formats the manual page of the program from its argument parsers: `python scripts/man_page.py` prints it."""

import argparse
import re
import sys
from collections.abc import Iterator

from outrider.cli import exit_codes
from outrider.cli.interactive import build_top_parser
from outrider.cli.parser import COMMANDS, build_parser

ENVIRONMENT = {
    "ANTHROPIC_API_KEY, OPENAI_API_KEY, GEMINI_API_KEY": "keys of the vendors; outrider login stores them instead",
    "ANTHROPIC_BASE_URL, OPENAI_BASE_URL": "another address for these APIs",
    "OUTRIDER_HOME": "one folder for settings and data (default: the folders of the platform)",
    "OUTRIDER_MODEL, OUTRIDER_MODE, OUTRIDER_APPROVAL, OUTRIDER_EFFORT": "defaults of the options with these names",
    "OUTRIDER_DATABASE_URL": "the Postgres database of background runs (default: a local file)",
    "HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE": "how other hosts are reached",
    "NO_COLOR": "print without colors",
}
FILES = {
    "config.toml": "settings; outrider config path prints where it is, outrider config init writes one with comments",
    ".outrider/config.toml": "settings of a project; they apply after outrider trust and only restrict",
    "AGENTS.md, .mcp.json": "instructions and MCP servers of a project; they apply after outrider trust",
}


def format_man_page(version: str) -> str:
    """Returns the page in the man(7) language; it is the same for every terminal, Python version and environment."""
    return "\n".join(_page_lines(version)) + "\n"


def _page_lines(version: str) -> Iterator[str]:
    top = build_top_parser()
    yield f'.TH OUTRIDER 1 "" "outrider {_escape(version)}" "User Commands"'
    yield ".SH NAME\noutrider \\- a coding agent for the terminal"
    yield '.SH SYNOPSIS\n.B outrider\n[options] ["PROMPT"]\n.br\n.B outrider\n.I COMMAND\n[options]'
    yield f".SH DESCRIPTION\n{_escape(_flow(top.description))}"
    yield ".SH OPTIONS"
    yield from _option_lines(top)
    yield ".SH COMMANDS"
    for command in COMMANDS:
        yield from _command_lines(build_parser(command), command.summary)
    yield '.SH "EXIT STATUS"'
    yield from _definitions({str(code): text for code, text in exit_codes.DESCRIPTIONS.items()})
    yield ".SH ENVIRONMENT"
    yield from _definitions(ENVIRONMENT)
    yield ".SH FILES"
    yield from _definitions(FILES)
    yield from _example_lines(top, ".SH EXAMPLES")


def _command_lines(parser: argparse.ArgumentParser, summary: str) -> Iterator[str]:
    yield f'.SS "{_escape(parser.prog)}"'
    yield _escape(_flow(parser.description) or f"{summary[:1].upper()}{summary[1:]}.")
    yield from _option_lines(parser)
    yield from _example_lines(parser, ".PP\nExamples:")
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, child in action.choices.items():
                yield from _command_lines(child, summaries.get(name, ""))


def _option_lines(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction | argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        yield ".TP"
        value = "" if action.nargs == 0 else str(action.metavar or "|".join(map(str, action.choices or ())) or "VALUE")
        if action.option_strings:
            flags = ", ".join(f"\\fB{_escape(flag)}\\fR" for flag in action.option_strings)
            yield f"{flags} \\fI{_escape(value)}\\fR" if value else flags
        else:
            yield f"\\fI{_escape(value if value != 'VALUE' else action.dest)}\\fR"
        yield _escape(_flow(str(action.help or "").replace("%%", "%")))


def _example_lines(parser: argparse.ArgumentParser, title: str) -> Iterator[str]:
    found = re.search(r"^Examples:\n((?:  .*\n?)+)", parser.epilog or "", re.MULTILINE)
    if found:
        yield f"{title}\n.nf\n{_escape(found[1].rstrip())}\n.fi"


def _definitions(rows: dict[str, str]) -> Iterator[str]:
    for name, text in rows.items():
        yield f".TP\n\\fB{_escape(name)}\\fR\n{_escape(text)}"


def _flow(text: str | None) -> str:
    return " ".join((text or "").split())


def _escape(text: str) -> str:
    """Returns text without requests of the man(7) language: no line starts with a dot or an apostrophe."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...").replace('"', "\\(dq")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


if __name__ == "__main__":
    from outrider import __version__

    sys.stdout.write(format_man_page(__version__))
