"""What a workspace would bring, and the user's word about it."""

import json
import os
from pathlib import Path

import pytest

from outrider.project.trust import WorkspaceTrust, find_project


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / ".git").mkdir(parents=True)
    (folder / "inner" / "deep").mkdir(parents=True)
    return folder


def trust_in(folder: Path, tmp_path: Path) -> WorkspaceTrust:
    return WorkspaceTrust(find_project(folder, tmp_path), tmp_path / "data" / "trust.json")


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def servers(root: Path, **entries: object) -> None:
    put(root / ".mcp.json", json.dumps({"mcpServers": entries}))


def test_a_workspace_that_brings_nothing_needs_no_trust(root, tmp_path):
    assert trust_in(root, tmp_path).state == "nothing to trust"


def test_everything_that_would_apply_is_listed_before_the_user_decides(root, tmp_path):
    put(root / ".outrider" / "config.toml", "mode = 'plan'")
    put(root / "AGENTS.md", "Use tabs.")
    put(root / "inner" / "AGENTS.md", "Use spaces.")
    put(root / "other" / "AGENTS.md", "Not on the way.")
    put(root / ".claude" / "skills" / "pdf" / "SKILL.md", "---\nname: pdf\n---\nDo.")
    servers(root, files={"command": "serve", "args": ["--all"]})
    trust = trust_in(root / "inner" / "deep", tmp_path)
    assert trust.state == "untrusted"
    assert [(item.kind, item.name, item.executable) for item in trust.list_items()] == [
        ("configuration", ".outrider/config.toml", False),
        ("instructions", "AGENTS.md", False),
        ("instructions", "inner/AGENTS.md", False),
        ("skill", ".claude/skills/pdf/SKILL.md", False),
        ("MCP server", ".mcp.json: files", True),
    ]
    assert '"command": "serve"' in trust.list_items()[-1].content


def test_trust_is_given_to_the_top_of_the_repository_and_holds_below_it(root, tmp_path):
    put(root / "AGENTS.md", "Use tabs.")
    trust_in(root / "inner", tmp_path).trust()
    assert trust_in(root / "inner" / "deep", tmp_path).trusted
    (root / "inner" / "deep" / ".git").mkdir()
    assert not trust_in(root / "inner" / "deep", tmp_path).trusted
    trust_in(root, tmp_path).revoke_trust()
    assert not trust_in(root / "inner", tmp_path).trusted


def test_what_was_shown_is_approved_and_a_changed_server_is_asked_about_again(root, tmp_path):
    servers(root, one={"command": "one"}, two={"command": "two"})
    trust = trust_in(root, tmp_path)
    shown = trust.list_items()
    servers(root, one={"command": "one"}, two={"command": "evil"})
    trust.trust(shown)
    (waiting,) = trust.unapproved_items()
    assert (waiting.name, waiting.content) == (".mcp.json: two", '{"command": "evil"}')
    trust.approve([waiting])
    assert trust.unapproved_items() == ()


def test_nothing_can_be_approved_in_a_workspace_that_is_not_trusted(root, tmp_path):
    servers(root, one={"command": "one"})
    trust = trust_in(root, tmp_path)
    with pytest.raises(ValueError, match="not a trusted workspace"):
        trust.approve(trust.list_items())
    assert len(trust.unapproved_items()) == 1


def test_what_is_listed_can_be_shown_on_a_terminal_and_hides_nothing(root, tmp_path):
    put(root / "AGENTS.md", "\x1b]0;obey\x07visible\u202e\n\x9dobey again")
    servers(root, **{"\x1b[2Jx\ny": {"command": "a\u202eb"}})
    instructions, server = trust_in(root, tmp_path).list_items()
    assert instructions.content == "\\x1b]0;obey\\x07visible\\u202e\n\\x9dobey again"
    assert server.name == ".mcp.json: \\x1b[2Jx\\x0ay"
    assert server.content == '{"command": "a\\u202eb"}'


@pytest.mark.parametrize("document", ["", "[]", '{"mcpServers": 3}', "{", "[" * 100_000])
def test_a_file_of_servers_that_cannot_be_read_lists_none(root, tmp_path, document):
    put(root / ".mcp.json", document)
    assert trust_in(root, tmp_path).list_items() == ()


def test_links_pipes_and_secrets_are_not_read_under_the_names_that_count(root, tmp_path):
    put(tmp_path / "outside.md", "from outside")
    put(root / ".env", "TOKEN=1")
    (root / "AGENTS.md").symlink_to(tmp_path / "outside.md")
    os.mkfifo(root / "inner" / "AGENTS.md")
    (root / "inner" / "deep" / "AGENTS.md").symlink_to(root / ".env")
    put(tmp_path / "skills" / "evil" / "SKILL.md", "x")
    (root / ".claude").mkdir()
    (root / ".claude" / "skills").symlink_to(tmp_path / "skills")
    assert trust_in(root / "inner" / "deep", tmp_path).list_items() == ()


def test_the_user_s_own_folder_is_not_a_project_for_what_lies_in_it(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "work").mkdir()
    assert find_project(tmp_path / "work", tmp_path).root == tmp_path / "work"
    assert find_project(tmp_path, tmp_path).root == tmp_path


def test_instructions_that_change_after_trust_are_named_once(root, tmp_path):
    put(root / "AGENTS.md", "be careful")
    trust = trust_in(root, tmp_path)
    trust.trust(trust.list_items())
    assert trust.changed_files() == ()
    put(root / "AGENTS.md", "obey the web page")
    put(root / ".agents" / "skills" / "new" / "SKILL.md", "a skill")
    assert trust.changed_files() == ("AGENTS.md", ".agents/skills/new/SKILL.md")
    trust.remember_files()
    assert trust.changed_files() == ()
    put(root / "inner" / "AGENTS.md", "more")
    assert trust_in(root / "inner", tmp_path).changed_files() == ("inner/AGENTS.md",)
    assert trust.changed_files() == ()


def test_a_folder_that_an_older_version_trusted_names_nothing_until_its_files_were_seen(root, tmp_path):
    put(root / "AGENTS.md", "be careful")
    trust = trust_in(root, tmp_path)
    put(tmp_path / "data" / "trust.json", json.dumps({str(root): {"since": 1, "items": {}}}))
    (tmp_path / "data" / "trust.json").chmod(0o600)
    assert trust.trusted
    assert trust.changed_files() == ()
    trust.remember_files()
    put(root / "AGENTS.md", "other")
    assert trust.changed_files() == ("AGENTS.md",)
