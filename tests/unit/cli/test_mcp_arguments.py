"""`outrider mcp add` as a new user writes it, mistakes included."""

from pathlib import Path

from outrider.cli.commands.mcp import add_server
from outrider.cli.parser import find_command, parse_arguments
from outrider.errors import ConfigurationError
from outrider.tools.mcp.config import StdioServer
from tests.fixtures.cases import for_each


def test_options_of_mcp_add_are_written_before_or_after_the_name_and_the_command_after_dashes():
    command = find_command("mcp")
    assert command is not None
    for arguments in (
        ["add", "files", "--env", "A=1", "--", "npx", "-y", "server", "--url", "x"],
        ["add", "--env", "A=1", "files", "--", "npx", "-y", "server", "--url", "x"],
    ):
        given = parse_arguments(command, arguments)
        assert (given.name, given.env, given.url) == ("files", ["A=1"], None)
        assert given.command == ["npx", "-y", "server", "--url", "x"]
    assert parse_arguments(command, ["add", "files", "npx", "server"]).command == ["npx", "server"]


@for_each(
    ("arguments", "problem"),
    [
        (["x", "npx", "-y", "server"], "write a command and its options after --"),
        (["x", "--url", "https://a.example", "--env", "A=1"], "--env has no effect"),
        (["x", "--header", "A:1", "--", "ls"], "--header has no effect"),
        (["two words", "--", "ls"], "not a name of a server"),
        (["x", "--url", "https://a.example", "--", "ls"], "either a command"),
    ],
)
def test_mistakes_of_mcp_add_are_explained(arguments: list[str], problem: str, tmp_path: Path, capsys, monkeypatch):
    monkeypatch.setenv("OUTRIDER_HOME", str(tmp_path))
    command = find_command("mcp")
    assert command is not None
    try:
        add_server(parse_arguments(command, ["add", *arguments]))
        output = "nothing"
    except SystemExit:
        output = capsys.readouterr().err
    except ConfigurationError as error:
        output = error.message
    assert problem in output


@for_each(
    ("command", "shown"),
    [
        (("npx", "-y", "@org/server", "--token", "secret"), "npx -y @org/server …"),
        (("uvx", "server-time"), "uvx server-time"),
        (("uvx", "--from", "https://me:secret@git.example", "server"), "uvx …"),
        (("docker", "run", "-e", "KEY=secret", "image"), "docker run …"),
        (("./serve", "secret"), "./serve"),
    ],
)
def test_the_address_of_a_program_names_what_it_starts_without_secrets(command: tuple[str, ...], shown: str):
    assert StdioServer(name="x", command=command[0], args=command[1:]).display_address == shown
