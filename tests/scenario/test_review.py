"""The changes of a session are reviewed by turn, file and hunk, and single files and hunks are undone exactly."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from outrider import Engine, TextPart
from outrider.engine.review import ChangeReview, commit_files, review_changes, undo_part
from outrider.errors import ConfigurationError, ProcessError
from tests.scenario.scripted_runs import call
from tests.scenario.test_undo import contents, engine, parts, shell

LINES = [f"line {number}" for number in range(1, 41)]


def text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "long.txt").write_text(text(LINES))
    (folder / "notes.txt").write_text("remember the milk\n")
    return folder


def edit(old: str, new: str) -> Any:
    """Use one call for each step: calls of one answer run at the same time, and two of these would lose a change."""
    return shell(f"sed -i 's/^{old}$/{new}/' long.txt")


def by_path(review: ChangeReview) -> dict[str, Any]:
    return {file.path: file for file in review.files}


async def start(held: Engine, workspace: Path, *prompts: str) -> str:
    session_id = await held.create(workspace=str(workspace))
    for prompt in prompts:
        await held.prompt(session_id, prompt)
    return session_id


async def test_changes_are_listed_by_turn_file_and_hunk(workspace, tmp_path):
    script = [
        [edit("line 3", "third"), call("write", file_path="new.txt", content="a\nb\n")], "done",
        [edit("line 30", "thirtieth"), shell("rm notes.txt")], "done",
    ]  # fmt: skip
    async with engine(script, tmp_path) as held:
        session_id = await start(held, workspace, "first work", "second work")
        whole = await review_changes(held, session_id)
        assert [turn.title for turn in whole.turns] == ["first work", "second work"]
        files = by_path(whole)
        assert {path: file.status for path, file in files.items()} == {
            "long.txt": "changed", "new.txt": "added", "notes.txt": "deleted",
        }  # fmt: skip
        first, second = files["long.txt"].hunks
        changed = [(line.kind, line.text, line.old, line.new) for line in second.lines if line.kind != "context"]
        assert changed == [("removed", "line 30", 30, 0), ("added", "thirtieth", 0, 30)]
        assert (files["new.txt"].added, files["new.txt"].removed) == (2, 0)
        only = by_path(await review_changes(held, session_id, whole.turns[1].message_id))
        assert sorted(only) == ["long.txt", "notes.txt"] and len(only["long.txt"].hunks) == 1
        assert all(hunk.can_undo for hunk in (first, second, *only["long.txt"].hunks))
        with pytest.raises(ConfigurationError):
            await review_changes(held, session_id, "no such message")


async def test_one_hunk_is_undone_and_the_model_reads_of_it(workspace, tmp_path):
    script = [[edit("line 3", "third")], [edit("line 30", "thirtieth")], "done"]
    async with engine(script, tmp_path) as held:
        session_id = await start(held, workspace, "work")
        (file,) = (await review_changes(held, session_id)).files
        done = await undo_part(held, session_id, "long.txt", hunk=file.hunks[0].id)
        assert done.changed == ("long.txt",) and not done.off
        assert (workspace / "long.txt").read_text() == text([*LINES[:29], "thirtieth", *LINES[30:]])
        (left,) = (await review_changes(held, session_id)).files
        assert [hunk.id for hunk in left.hunks] == [file.hunks[1].id]
        notes = [part.text for part in await parts(held, session_id, TextPart) if part.synthetic]
        assert any("undone a part of the changes in these files: long.txt" in text for text in notes)
        again = await undo_part(held, session_id, "long.txt", hunk=file.hunks[0].id)
        assert again.conflicts == ("long.txt",) and "out of date" in again.off
        # The whole turn can still be undone and redone: what was undone manually stays undone then.
        assert (await held.file_changes(session_id).undo()).changed == ("long.txt",)
        assert (workspace / "long.txt").read_text() == text(LINES)
        assert (await held.file_changes(session_id).redo()).changed == ("long.txt",)
        assert (workspace / "long.txt").read_text() == text([*LINES[:29], "thirtieth", *LINES[30:]])


async def test_files_are_undone_one_by_one_with_those_that_were_made_and_removed(workspace, tmp_path):
    script = [[shell("rm notes.txt; mkdir d; printf x > d/made.txt; chmod +x long.txt")], "done"]
    before = contents(workspace)
    async with engine(script, tmp_path) as held:
        session_id = await start(held, workspace, "work")
        for path in ("d/made.txt", "notes.txt", "long.txt"):
            assert (await undo_part(held, session_id, path)).off == ""
        assert contents(workspace) == before and not (workspace / "d").exists()
        assert (workspace / "long.txt").stat().st_mode & 0o111 == 0
        assert (await review_changes(held, session_id)).files == ()
        assert "no change of this file" in (await undo_part(held, session_id, "notes.txt")).off


async def test_lines_of_other_people_survive_the_undo_of_a_hunk(workspace, tmp_path):
    script = [[edit("line 3", "third")], [edit("line 30", "thirtieth")], "done"]
    async with engine(script, tmp_path) as held:
        session_id = await start(held, workspace, "work")
        own = text(["at the top", *LINES[:2], "third", *LINES[3:28], "by hand", "thirtieth", *LINES[30:]])
        (workspace / "long.txt").write_text(own)
        (file,) = (await review_changes(held, session_id)).files
        assert file.changed_since and not file.can_undo
        assert [hunk.can_undo for hunk in file.hunks] == [True, False]
        assert "changed since" in (await undo_part(held, session_id, "long.txt")).off
        assert "changed since" in (await undo_part(held, session_id, "long.txt", hunk=file.hunks[1].id)).off
        assert (workspace / "long.txt").read_text() == own
        assert (await undo_part(held, session_id, "long.txt", hunk=file.hunks[0].id)).off == ""
        assert (workspace / "long.txt").read_text() == own.replace("third\n", "line 3\n")


async def test_a_hunk_of_an_earlier_turn_is_undone_under_later_changes(workspace, tmp_path):
    script = [[edit("line 3", "third")], "done", [edit("line 30", "thirtieth")], "done"]
    async with engine(script, tmp_path) as held:
        session_id = await start(held, workspace, "one", "two")
        turns = (await review_changes(held, session_id)).turns
        (file,) = (await review_changes(held, session_id, turns[0].message_id)).files
        done = await undo_part(held, session_id, "long.txt", hunk=file.hunks[0].id, turn=turns[0].message_id)
        assert done.off == ""
        assert (workspace / "long.txt").read_text() == text([*LINES[:29], "thirtieth", *LINES[30:]])
        (file,) = (await review_changes(held, session_id, turns[0].message_id)).files
        assert [hunk.can_undo for hunk in file.hunks] == [False]


async def test_binary_large_and_odd_files_are_listed_and_bytes_are_preserved(workspace, tmp_path):
    (workspace / "latin.txt").write_bytes(b"caf\xe9\r\nold\r\nlast")
    commands = "printf '\\0' > b.bin; seq 100000 > big.txt; sed -i 's/old/new/' latin.txt; ln -s notes.txt link"
    async with engine([[shell(commands)], "done"], tmp_path) as held:
        session_id = await start(held, workspace, "work")
        files = by_path(await review_changes(held, session_id))
        notes = {path: file.note for path, file in files.items() if path != "latin.txt"}
        assert notes == {"b.bin": "not a text", "big.txt": "too large to show", "link": "not a regular file"}
        (hunk,) = files["latin.txt"].hunks
        assert [line.text for line in hunk.lines] == ["caf�", "old", "new", "last"]
        assert (await undo_part(held, session_id, "latin.txt", hunk=hunk.id)).off == ""
        assert (workspace / "latin.txt").read_bytes() == b"caf\xe9\r\nold\r\nlast"
        for path in notes:
            assert (await undo_part(held, session_id, path)).off == ""
            assert not (workspace / path).exists()


async def test_reviewed_files_are_committed_and_nothing_else(workspace, tmp_path, monkeypatch):
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", workspace, *arguments], check=True, capture_output=True, text=True)
        return done.stdout

    identity = tmp_path / "gitconfig"
    identity.write_text("[user]\nname = A\nemail = a@example.com\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(identity))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".gitconfig").write_text(identity.read_text())
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    hook = workspace / ".git" / "hooks" / "pre-commit"
    hook.write_text("#!/bin/sh\ntouch hook-ran\n")
    hook.chmod(0o755)
    script = [[shell("printf x > made.txt; rm notes.txt; printf y > other.txt")], "done"]
    async with engine(script, tmp_path) as held:
        session_id = await start(held, workspace, "work")
        assert (await review_changes(held, session_id)).can_commit
        made = await commit_files(held, session_id, ["made.txt", "notes.txt"], "Replace the notes")
        assert git("log", "-1", "--format=%h %s").strip() == f"{made.hash} Replace the notes"
        assert git("show", "--name-status", "--format=").split() == ["A", "made.txt", "D", "notes.txt"]
        assert git("status", "--porcelain").strip() == "?? other.txt" and not (workspace / "hook-ran").exists()
        with pytest.raises(ConfigurationError):
            await commit_files(held, session_id, ["../outside.txt"], "no")
        with pytest.raises(ProcessError):
            await commit_files(held, session_id, ["made.txt"], "nothing to commit")
        with pytest.raises(ProcessError):
            await commit_files(held, session_id, ["other.txt"], "  ")  # git refuses an empty message
        assert git("status", "--porcelain").strip() == "?? other.txt"
