"""`.mcp.json`: its format, and its error messages."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigurationError
from outrider.tools.mcp.config import HttpServer, OAuthClient, StdioServer, hide_secrets, parse_config
from tests.fixtures.cases import for_each


def read(servers, environment=None):
    return parse_config(json.dumps({"mcpServers": servers}), environment or {}, "project/.mcp.json")


def problem(entry, environment=None):
    found = read({"files": entry}, environment)
    assert not found.servers
    (only,) = found.problems
    assert only.startswith("project/.mcp.json: mcpServers.files")
    return only.removeprefix("project/.mcp.json: mcpServers.files")


def test_a_program_is_read_with_its_arguments_environment_and_folder():
    entry = {"command": "npx", "args": ["-y", "server"], "env": {"MODE": "x"}, "cwd": "tools", "type": "stdio"}
    (server,) = read({"files": entry}).servers
    assert server == StdioServer(name="files", command="npx", args=("-y", "server"), env={"MODE": "x"}, cwd="tools")


@pytest.mark.parametrize(
    ("kind", "transport"), [("http", "http"), ("streamable-http", "http"), ("sse", "sse"), (None, "http")]
)
def test_an_address_is_read_with_its_headers(kind, transport):
    entry = {"url": "https://mcp.example/x", "headers": {"Authorization": "Bearer abc"}}
    (server,) = read({"web": entry | ({"type": kind} if kind else {})}).servers
    expected = HttpServer(
        name="web", url="https://mcp.example/x", headers={"Authorization": "Bearer abc"}, transport=transport
    )
    assert server == expected


def test_a_registered_client_is_read_and_its_secret_is_hidden():
    oauth = {"clientId": "abc", "clientSecret": "${SECRET}", "callbackPort": 8123, "issuer": "https://login.example"}
    (server,) = read({"web": {"url": "https://mcp.example/x", "oauth": oauth}}, {"SECRET": "s3cret-words"}).servers
    assert server.oauth == OAuthClient(
        client_id="abc", client_secret="s3cret-words", callback_port=8123, issuer="https://login.example"
    )
    assert "s3cret" not in repr(server) + repr(server.oauth)
    assert hide_secrets("it said s3cret-words", server) == "it said [hidden]"
    snake = {"client_id": "abc", "client_secret": "s3cret-words", "grant": "client_credentials", "scope": "read"}
    (machine,) = read({"web": {"url": "https://mcp.example/x", "oauth": snake}}).servers
    assert (machine.oauth.grant, machine.oauth.scope) == ("client_credentials", "read")


@pytest.mark.parametrize(
    ("oauth", "message"),
    [
        ([], ".oauth: expected an object"),
        ({}, ".oauth.clientId: is missing"),
        ({"clientId": "a", "grant": "password"}, ".oauth.grant: 'password' is not supported"),
        ({"clientId": "a", "grant": "client_credentials"}, ".oauth.clientSecret: is missing"),
        ({"clientId": "a", "callbackPort": "x"}, ".oauth.callbackPort: expected the number of a port"),
        ({"clientId": "a", "secret": "x"}, ".oauth.secret: unknown"),
    ],
)
def test_a_wrong_client_is_reported(oauth, message):
    assert problem({"url": "https://mcp.example/x", "oauth": oauth}).startswith(message)


def test_variables_are_expanded_in_every_text():
    environment = {"BIN": "/opt/bin", "KEY": "s3cret", "EMPTY": ""}
    entry = {
        "command": "${BIN}/run",
        "args": ["--key=${KEY}", "${MISSING:-none}"],
        "env": {"A": "${EMPTY:-full}${EMPTY}"},
    }
    (server,) = read({"files": entry}, environment).servers
    assert server == StdioServer(name="files", command="/opt/bin/run", args=("--key=s3cret", "none"), env={"A": "full"})
    (web,) = read({"w": {"url": "https://${HOST:-a.example}/", "headers": {"X": "${KEY}"}}}, environment).servers
    assert isinstance(web, HttpServer)
    assert (web.url, web.headers) == ("https://a.example/", {"X": "s3cret"})


def test_what_a_variable_holds_is_not_expanded_again():
    (server,) = read({"files": {"command": "${A}"}}, {"A": "${B}", "B": "no"}).servers
    assert isinstance(server, StdioServer)
    assert server.command == "${B}"


@for_each(
    ("entry", "message"),
    [
        ({}, ".command: is missing"),
        ({"command": None}, ".command: is missing"),
        ({"command": 3}, ".command: expected a string, got a number"),
        ({"command": " "}, ".command: is empty"),
        ({"command": "a\0b"}, ".command: contains a NUL character"),
        ({"command": "x", "args": "-y"}, ".args: expected a list of strings, got a string"),
        ({"command": "x", "args": ["a", True]}, ".args[1]: expected a string, got a boolean"),
        ({"command": "x", "env": ["A=1"]}, ".env: expected an object of strings, got a list"),
        ({"command": "x", "env": {"A": 1}}, ".env.A: expected a string, got a number"),
        (
            {"command": "x", "args": ["${UNSET}"]},
            ".args[0]: the variable UNSET is not set, and there is no default",
        ),
        ({"type": "carrier-pigeon"}, ".type: 'carrier-pigeon' is not a kind of server; it is stdio, http or sse"),
        ({"type": "http"}, ".url: is missing"),
        ({"url": "file:///etc/passwd"}, ".url: expected an address that begins with http:// or https://"),
        ({"url": "https://x.example", "headers": {"A": None}}, ".headers.A: expected a string, got null"),
        ("npx", ": expected an object, got a string"),
    ],
)
def test_what_is_wrong_is_reported_with_the_file_and_the_key(entry, message):
    assert problem(entry) == message


def test_one_bad_entry_costs_only_itself():
    found = read({"bad": {}, "off": {"command": "x", "disabled": True}, "good": {"command": "x", "futureKey": {}}})
    assert [server.name for server in found.servers] == ["good"]
    assert len(found.problems) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"mcpServers": []}', b"\xff\xfe", "[" * 100_000])
def test_a_file_that_is_no_configuration_is_refused_by_name(text):
    with pytest.raises(ConfigurationError, match=r"^project/\.mcp\.json: "):
        parse_config(text, {}, "project/.mcp.json")


def test_a_file_without_servers_has_none():
    assert parse_config("{}", {}).servers == ()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["command", "args", "env", "cwd", "type", "url", "headers", "disabled"])


@given(st.dictionaries(st.text(), st.dictionaries(keys, json_values) | json_values, max_size=4))
def test_every_entry_is_read_or_reported_of(servers):
    found = read(servers)
    off = sum(isinstance(entry, dict) and entry.get("disabled") is True for entry in servers.values())
    assert len(found.servers) + len(found.problems) == len(servers) - off


def test_keys_stay_out_of_messages():
    web = HttpServer(
        name="w",
        url="https://user:pass-word@x.example/mcp?api_key=q-secret-1",
        headers={"Authorization": "Bearer h-secret-2", "X-Team": "team-secret"},
    )
    text = f"{web!r} {web.display_address} h-secret-2 q-secret-1 pass-word team-secret {web.url}"
    for secret in ("h-secret-2", "q-secret-1", "pass-word", "team-secret"):
        assert secret not in hide_secrets(text, web)
        assert secret not in repr(web)
        assert secret not in web.display_address
    program = StdioServer(name="p", command="x", env={"API_TOKEN": "e-secret-3", "MODE": "visible"})
    assert "e-secret-3" not in repr(program)
    assert hide_secrets("e-secret-3 visible", program) == "[hidden] visible"
