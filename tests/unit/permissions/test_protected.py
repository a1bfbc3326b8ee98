"""Protected names: files that configure programs or hold secrets, also in other spellings."""

from pathlib import Path

import pytest

from outrider.permissions import contain
from outrider.permissions.paths.protected import (
    find_linked_git_folder,
    find_protected_name,
    fold_name,
    may_create_bare_repository,
    pattern_matches_secret,
)
from tests.fixtures.cases import for_each


@for_each(
    ("path", "read", "write"),
    [
        (".env", True, True),
        ("src/.env", True, True),
        (".env.local", True, True),
        (".env.example", False, False),
        ("server.pem", True, True),
        ("server.pub", False, False),
        ("key.pub.pem", False, False),
        (".env.example/server.pem", True, True),
        ("a/b/.config/gcloud", True, True),
        ("gcloud/.config", False, False),
        ("workflows/.github", False, False),
        (".github", False, False),
        ("id_rsa", True, True),
        (".ssh/known", True, True),
        (".config/gcloud/x", True, True),
        (".config/other", False, False),
        (".cargo/credentials", True, True),
        (".cargo/config.toml", False, True),
        (".cargo/registry", False, False),
        (".git/config", False, True),
        ("a/.git/hooks/x", False, True),
        (".github/workflows/x.yml", False, True),
        (".github/ISSUE.md", False, False),
        ("AGENTS.md", False, True),
        ("agents.md", False, True),
        ("Git~1/config", False, True),
        (".GIT/config", False, True),
        (".env.", True, True),
        (".env ", True, True),
        (".ENV", True, True),
        (".\uff45nv", True, True),
        (".\uff45nv.", True, True),
        (".e\u200bnv", True, True),
        (".gi\u0301t/config", False, True),
        (".g\u200cit/config", False, True),
        (".env~", True, True),
        (".env-prod", True, True),
        ("prod.env", True, True),
        ("example.env", False, False),
        (".env.example.md", False, False),
        ("import.env.d.ts", False, False),
        ("vite-env.d.ts", False, False),
        ("id_rsa.bak", True, True),
        ("id_ed25519.pub", False, False),
        ("AuthKey.p8", True, True),
        ("ENV~1", True, True),
        ("GITATT~1", False, True),
        (".git::$INDEX_ALLOCATION/config", False, True),
        ("CLAUDE.local.md", False, True),
        (".yarn/releases/yarn.cjs", False, True),
        (".yarn/cache/x.zip", False, False),
        (".nvim.lua", False, True),
        ("x.code-workspace", False, True),
        (".github/instructions/x.md", False, True),
        ("README.md", False, False),
        ("environment", False, False),
        ("...", False, False),
    ],
)
def test_a_path_is_protected_for_reading_or_for_writing(path: str, read: bool, write: bool):
    parts = path.split("/")
    assert (find_protected_name(parts, "read") is not None) is read
    assert (find_protected_name(parts, "write") is not None) is write


def test_the_name_that_protects_a_path_is_reported():
    assert find_protected_name(["a", ".Git", "config"], "write") == ".Git"
    assert find_protected_name([".cargo", "credentials"], "read") == ".cargo"


@for_each(
    ("pattern", "secrets"),
    [
        (".env", True),
        (".env*", True),
        ("*.pem", True),
        ("*.key", True),
        ("id_*", True),
        ("*rsa", True),
        (".env.l*", True),
        ("secrets.*", True),
        ("*", False),
        ("*.*", False),
        ("*.md", False),
        ("r*", False),
        ("*.py", False),
        (".github", False),
        (".SSH", True),
    ],
)
def test_a_pattern_picks_out_secrets_unless_it_takes_everything(pattern: str, secrets: bool):
    assert pattern_matches_secret(pattern) is secrets


def test_names_are_compared_as_careless_file_systems_do():
    assert fold_name("A.TXT. .") == "a.txt"
    assert fold_name("...") == "..."
    assert fold_name("\uff21\u0301.") == "a"
    assert fold_name("Straße") == "strasse"


@pytest.mark.parametrize(
    ("there", "written", "plants"),
    [
        ((), "HEAD", True),
        ((), "config", False),
        (("HEAD",), "config", False),
        (("HEAD", "objects"), "config", True),
        (("objects", "refs"), "config.worktree", True),
        (("HEAD", "refs"), "hooks/pre-commit", True),
        (("HEAD", "refs"), "other/pre-commit", False),
        (("HEAD", "refs"), "notes.txt", False),
    ],
)
def test_what_would_make_a_folder_a_repository_is_noticed(
    there: tuple[str, ...], written: str, plants: bool, tmp_path: Path
):
    for name in there:
        (tmp_path / name).mkdir()
    assert may_create_bare_repository(tmp_path / written) is plants


def test_a_git_file_resolves_to_the_folder_that_it_names(tmp_path: Path):
    assert find_linked_git_folder(tmp_path) is None
    marker = tmp_path / ".git"
    for text, folder in (
        ("gitdir: real\n", tmp_path / "real"),
        ("gitdir: /elsewhere/x\nmore", Path("/elsewhere/x")),
        ("something else", None),
        ("", None),
    ):
        marker.write_text(text)
        assert find_linked_git_folder(tmp_path) == folder
    marker.unlink()
    marker.mkdir()
    assert find_linked_git_folder(tmp_path) is None


def test_the_folder_behind_a_git_file_is_protected_too(tmp_path: Path):
    (tmp_path / "real").mkdir()
    assert contain("real/x", root=tmp_path, cwd=tmp_path, op="write").kind == "inside"
    (tmp_path / ".git").write_text("gitdir: real\n")
    assert contain("real/x", root=tmp_path, cwd=tmp_path, op="write").kind == "protected"
    assert contain("real/x", root=tmp_path, cwd=tmp_path, op="read").kind == "inside"
    assert contain("other/x", root=tmp_path, cwd=tmp_path, op="write").kind == "inside"


@pytest.mark.parametrize("path", ["a.txt/b", "a.txt/../a.txt", "x" * 300, "a.txt/"])
def test_what_no_file_system_would_open_is_refused(path: str, tmp_path: Path):
    (tmp_path / "a.txt").write_text("x")
    assert contain(path, root=tmp_path, cwd=tmp_path, op="read").kind == "reject"
