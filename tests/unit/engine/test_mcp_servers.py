"""Servers of other tools' configuration files become entries of ours."""

import json
from pathlib import Path

import pytest

from outrider.config.settings import read_settings
from outrider.engine.mcp_servers import add_entry, import_servers, list_configured, read_foreign_file, remove_entry
from outrider.errors import ConfigurationError

STDIO = {"command": "npx", "args": ["-y", "server"], "env": {"KEY": "${KEY}"}}
FILES = {
    ".claude.json": json.dumps({"projects": {}, "mcpServers": {"one": {"type": "stdio", **STDIO}}}),
    ".cursor/mcp.json": json.dumps({"mcpServers": {"one": STDIO}}),
    ".gemini/settings.json": json.dumps({"mcpServers": {"web": {"httpUrl": "https://a.example/mcp"}}}),
    ".codex/config.toml": '[mcp_servers.one]\ncommand = "npx"\nargs = ["-y", "server"]\nenv = { KEY = "${KEY}" }\n',
    ".config/opencode/opencode.json": json.dumps(
        {"mcp": {"one": {"type": "local", "command": ["npx", "-y", "server"], "environment": {"KEY": "${KEY}"}}}}
    ),
    ".config/Code/User/mcp.json": '// servers\n{"servers": {"web": {"type": "http", "url": "https://a.example/mcp"}}}',
    ".config/zed/settings.json": json.dumps(
        {"context_servers": {"one": {"command": {"path": "npx", "args": ["-y", "server"], "env": {"KEY": "${KEY}"}}}}}
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_servers_of_other_tools_are_read(name: str, tmp_path: Path):
    file = tmp_path / Path(name).name
    file.write_text(FILES[name])
    expected = {"one": STDIO} if "npx" in FILES[name] else {"web": {"type": "http", "url": "https://a.example/mcp"}}
    assert read_foreign_file(file) == expected


async def test_servers_are_added_once_imported_and_removed(tmp_path: Path):
    for name, content in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    settings = read_settings(
        cwd=tmp_path, environ={"OUTRIDER_HOME": str(tmp_path / "o"), "HOME": str(tmp_path), "KEY": "k"}
    )
    add_entry(settings.folders.servers_file, "web", {"url": "https://b.example/mcp"}, {})
    with pytest.raises(ConfigurationError, match="already"):
        add_entry(settings.folders.servers_file, "web", {"url": "https://c.example/mcp"}, {})
    with pytest.raises(ConfigurationError, match="url"):
        add_entry(settings.folders.servers_file, "bad", {"url": "ftp://c.example"}, {})
    lines = import_servers(settings)
    assert sum("was imported" in line for line in lines) == 1
    assert any("web" in line and "another server has that name" in line for line in lines)
    settings = read_settings(cwd=tmp_path, environ={**settings.environ})
    assert {server.name: server.address for server in list_configured(settings)[0]} == {
        "web": "https://b.example/mcp",
        "one": "npx -y server",
    }
    await remove_entry(settings, settings.folders.servers_file, "one")
    with pytest.raises(ConfigurationError, match="no server"):
        await remove_entry(settings, settings.folders.servers_file, "one")


def test_a_damaged_file_is_named_and_not_overwritten(tmp_path: Path):
    file = tmp_path / "mcp.json"
    file.write_text("{")
    with pytest.raises(ConfigurationError, match=r"mcp\.json"):
        add_entry(file, "web", {"url": "https://b.example/mcp"}, {})
    assert file.read_text() == "{"


def test_a_damaged_file_does_not_prevent_the_import_of_others_and_what_is_missing_is_named(tmp_path: Path):
    home, workspace = tmp_path / "home", tmp_path / "workspace"
    files = {
        ".cursor/mcp.json": "{",
        ".claude.json": json.dumps({"projects": {str(workspace): {"mcpServers": {"local": {"command": "serve"}}}}}),
        ".config/Code/User/mcp.json": """{
            /* a server */ "servers": {"code": {"command": "serve", // with a key
                "args": ["--url=https://a.example//x", "${workspaceFolder}", "${input:key}"],
                "env": {"KEY": "${env:NOT_SET}"},
            },},}""",
        ".codex/config.toml": '[mcp_servers.web]\nurl = "https://a.example"\nbearer_token_env_var = "TOKEN"\n',
    }
    for name, content in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(content)
    workspace.mkdir()
    environ = {"HOME": str(home), "OUTRIDER_HOME": str(tmp_path / "data"), "TOKEN": "t"}
    lines = import_servers(read_settings(cwd=workspace, environ=environ))
    assert any(line.startswith("not imported: ") and ".cursor/mcp.json: is not valid" in line for line in lines)
    assert any(line.startswith("code was imported") and "in place of ${input:key}" in line for line in lines)
    settings = read_settings(cwd=workspace, environ=environ)
    assert settings.mcp["local"] == {"command": "serve", "args": []}
    assert settings.mcp["web"]["headers"] == {"Authorization": "Bearer ${TOKEN}"}
    assert settings.mcp["code"]["args"] == ["--url=https://a.example//x", ".", "${input:key}"]
    assert {server.name for server in list_configured(settings)[0]} == {"local", "web"}
    assert [notice for notice in settings.notices if "mcp.code.env.KEY: the variable NOT_SET is not set" in notice]
