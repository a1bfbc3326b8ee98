"""File changes of tools can be listed, undone and redone without overwriting changes of others."""

import os
import shutil
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from hashlib import sha256
from pathlib import Path

import pytest

from outrider.errors import ConfigurationError, StorageFullError, StoreError
from outrider.permissions.paths.gitignore import IgnoreRules, parse_ignore_lines, temporary_name
from outrider.sessions.snapshots.changes import (
    DATABASE_NAME,
    ChangeOrigin,
    ChangeSet,
    ParentCall,
    ScanCache,
    enforce_total_quota,
    tracked_sessions,
)
from outrider.sessions.snapshots.scanner import SnapshotDatabase, SnapshotLimits
from outrider.sessions.snapshots.tracker import ChangeTracker

Limited = Callable[[SnapshotLimits], ChangeTracker]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.py").write_text("one\ntwo\n")
    (folder / "b.txt").write_text("b")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("b.txt")
    return folder


@pytest.fixture
def snapshots(workspace: Path, tmp_path: Path) -> Iterator[ChangeTracker]:
    opened = ChangeTracker(tmp_path / "kept", workspace)
    yield opened
    opened.close()


@pytest.fixture
def limited(workspace: Path, tmp_path: Path) -> Iterator[Limited]:
    with ExitStack() as stack:

        def open_with(limits: SnapshotLimits) -> ChangeTracker:
            return stack.enter_context(closing(ChangeTracker(tmp_path / "kept", workspace, limits=limits)))

        yield open_with


def open_database(folder: Path) -> closing[SnapshotDatabase]:
    return closing(SnapshotDatabase(folder / "kept" / DATABASE_NAME))


def used_bytes(folder: Path) -> int:
    with open_database(folder) as database:
        return database.used_bytes()


def contents(folder: Path) -> dict[str, object]:
    """Everything about a folder that undoing has to bring back."""
    return {
        path.relative_to(folder).as_posix(): (path.lstat().st_mode, inside(path))
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def inside(path: Path) -> object:
    return path.readlink() if path.is_symlink() else path.read_bytes()


def command(workspace: Path, snapshots: ChangeTracker, script: str) -> ChangeSet | None:
    before = snapshots.take_snapshot()
    subprocess.run(["sh", "-ec", script], cwd=workspace, check=True)
    return snapshots.record_changes(before)


SCRIPT = """
printf 'one\\n2\\n' > src/a.py
rm b.txt link
mkdir -p new/deep && printf x > new/deep/c
chmod 644 run.sh
ln -s src other
"""


def test_a_command_is_undone_and_redone_exactly(workspace: Path, snapshots: ChangeTracker):
    before = contents(workspace)
    changed = command(workspace, snapshots, SCRIPT)
    after = contents(workspace)
    assert changed is not None
    assert [file.path for file in changed.files] == [
        "b.txt", "link", "new/deep/c", "other", "run.sh", "src/a.py",
    ]  # fmt: skip
    assert snapshots.apply_restore([changed.id])[0].conflicts == ()
    assert contents(workspace) == before
    assert not (workspace / "new").exists()
    assert snapshots.get_change(changed.id).undone
    assert snapshots.apply_restore([changed.id], "redo")[0].conflicts == ()
    assert contents(workspace) == after
    assert not snapshots.get_change(changed.id).undone


def test_nothing_changed_is_no_change(workspace: Path, snapshots: ChangeTracker):
    assert command(workspace, snapshots, "cat src/a.py > /dev/null; touch b.txt") is None


def test_a_preview_shows_what_would_happen_and_touches_nothing(workspace: Path, snapshots: ChangeTracker):
    changed = command(workspace, snapshots, SCRIPT)
    after = contents(workspace)
    actions = {action.path: action for action in snapshots.preview_restore([changed.id]).actions}
    assert {path: action.action for path, action in actions.items()} == {
        "b.txt": "create", "link": "create", "new/deep/c": "delete", "other": "delete", "run.sh": "change",
        "src/a.py": "change",
    }  # fmt: skip
    assert actions["src/a.py"].diff == "--- a/src/a.py\n+++ b/src/a.py\n@@ -1,2 +1,2 @@\n one\n-2\n+two\n"
    assert contents(workspace) == after


def test_a_file_that_another_process_changed_since_is_reported_and_left_alone(
    workspace: Path, snapshots: ChangeTracker
):
    changed = command(workspace, snapshots, SCRIPT)
    (workspace / "src" / "a.py").write_text("mine")
    (workspace / "b.txt").write_text("made anew by hand")
    report, _ = snapshots.apply_restore([changed.id])
    assert report.conflicts == ("b.txt", "src/a.py")
    assert (workspace / "src" / "a.py").read_text() == "mine"
    assert (workspace / "b.txt").read_text() == "made anew by hand"
    assert not (workspace / "new").exists()


def test_several_changes_are_undone_together_and_a_change_back_is_nothing(workspace: Path, snapshots: ChangeTracker):
    before = contents(workspace)
    changes = [command(workspace, snapshots, f"printf {text} > b.txt; printf {text} > n{text}") for text in "xyz"]
    ids = [change.id for change in changes]
    snapshots.apply_restore(ids)
    assert contents(workspace) == before
    assert {action.action for action in snapshots.preview_restore(ids).actions} == {"nothing"}
    snapshots.apply_restore(ids, "redo")
    assert (workspace / "b.txt").read_text() == "z"
    snapshots.apply_restore(ids[2:])
    assert (workspace / "b.txt").read_text() == "y"
    assert not (workspace / "nz").exists()


def test_a_tool_that_knows_what_it_writes_needs_no_look_at_everything(workspace: Path, snapshots: ChangeTracker):
    before = snapshots.take_snapshot(["b.txt", workspace / "new.txt"])
    assert list(before.images) == ["b.txt"]
    (workspace / "b.txt").write_text("B")
    (workspace / "new.txt").write_text("N")
    (workspace / "src" / "a.py").write_text("not by this tool")
    changed = snapshots.record_changes(before)
    assert [file.path for file in changed.files] == ["b.txt", "new.txt"]
    snapshots.apply_restore([changed.id])
    assert (workspace / "b.txt").read_text() == "b"
    with pytest.raises(ConfigurationError):
        snapshots.take_snapshot(["../outside"])


def test_ignored_files_do_not_count(workspace: Path, snapshots: ChangeTracker):
    (workspace / ".gitignore").write_text("*.log\nbuild/\n!keep.log\n")
    (workspace / ".git").mkdir()
    changed = command(
        workspace,
        snapshots,
        "mkdir -p build .git && touch a.log keep.log build/x .git/y src/b.log && mkdir sub/ && touch sub/z",
    )
    assert [file.path for file in changed.files] == ["keep.log", "sub/z"]


def test_what_a_tool_is_about_to_put_in_the_place_of_a_file_does_not_count(workspace: Path, snapshots: ChangeTracker):
    staged = temporary_name("b.txt")
    (workspace / staged).write_text("half")
    assert command(workspace, snapshots, f"rm {staged}") is None


def test_installed_dependencies_are_not_scanned_even_if_not_ignored(workspace: Path, snapshots: ChangeTracker):
    changed = command(
        workspace, snapshots, "mkdir -p node_modules/x src/__pycache__; touch node_modules/x/y node_modules.txt"
    )
    assert changed.paths == ("node_modules.txt",)


def test_each_content_is_preserved_once(workspace: Path, snapshots: ChangeTracker, tmp_path: Path):
    noise = os.urandom(100_000)
    for number in range(5):
        (workspace / f"same-{number}").write_bytes(noise)
    snapshots.take_snapshot()
    assert used_bytes(tmp_path) < 150_000
    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "kept").rglob("*")}
    assert modes == {0}


def test_what_is_too_large_is_named_and_never_half_undone(workspace: Path, limited: Limited):
    snapshots = limited(SnapshotLimits(file_bytes=1000))
    (workspace / "large").write_bytes(b"x" * 2000)
    changed = command(workspace, snapshots, "printf y >> large; printf z > b.txt")
    assert changed.uncovered == ("large",)
    assert [file.path for file in changed.files] == ["b.txt"]
    os.mkfifo(workspace / "pipe")
    assert "pipe" in snapshots.take_snapshot().uncovered


def test_a_look_is_bounded_in_number_and_time(workspace: Path, limited: Limited):
    for number in range(50):
        (workspace / f"f{number:02}").write_text(str(number))
    for limits in (SnapshotLimits(files=10), SnapshotLimits(seconds=0), SnapshotLimits(bytes=20)):
        snapshot = limited(limits).take_snapshot()
        assert len(snapshot.images) < 30
        assert snapshot.cut


def test_a_quota_forgets_the_oldest_changes_first(workspace: Path, limited: Limited, tmp_path: Path):
    snapshots = limited(SnapshotLimits(quota_bytes=300_000))
    ids = []
    for _ in range(8):
        before = snapshots.take_snapshot(["b.txt"])
        (workspace / "b.txt").write_bytes(os.urandom(60_000))
        ids.append(snapshots.record_changes(before).id)
    assert used_bytes(tmp_path) <= 300_000
    with pytest.raises(StoreError, match="not stored"):
        snapshots.get_change(ids[0])
    assert snapshots.apply_restore(ids[-1:])[0].conflicts == ()


def test_what_a_running_call_may_need_is_preserved_beyond_the_quota(workspace: Path, tmp_path: Path):
    with closing(ChangeTracker(tmp_path / "kept", workspace, limits=SnapshotLimits(quota_bytes=200_000))) as snapshots:
        (workspace / "large").write_bytes(os.urandom(150_000))
        running = snapshots.take_snapshot()
        for _ in range(4):
            before = snapshots.take_snapshot(["b.txt"])
            (workspace / "b.txt").write_bytes(os.urandom(60_000))
            snapshots.record_changes(before)
        (workspace / "large").unlink()
        changed = snapshots.record_changes(running)
        snapshots.apply_restore([changed.id])
        assert (workspace / "large").stat().st_size == 150_000


@pytest.mark.parametrize("place", ["/", "~", "~/.."])
def test_a_home_directory_or_a_root_is_refused(tmp_path: Path, place: str):
    with pytest.raises(ConfigurationError, match="not tracked"):
        ChangeTracker(tmp_path / "kept", Path(place).expanduser())


def test_snapshots_inside_their_workspace_are_refused(workspace: Path):
    with pytest.raises(ConfigurationError):
        ChangeTracker(workspace / "kept", workspace)


def test_nothing_is_restored_through_a_link_that_took_a_folders_place(
    workspace: Path, snapshots: ChangeTracker, tmp_path: Path
):
    changed = command(workspace, snapshots, "printf changed > src/a.py")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.py").write_text("changed")
    (outside / "a.py").chmod((workspace / "src" / "a.py").stat().st_mode & 0o777)
    shutil.rmtree(workspace / "src")
    (workspace / "src").symlink_to(outside)
    assert snapshots.apply_restore([changed.id])[0].conflicts == ("src/a.py",)
    assert (outside / "a.py").read_text() == "changed"
    assert list(outside.iterdir()) == [outside / "a.py"]


def test_sf_042_a_disk_that_is_full_changes_nothing(workspace: Path, tmp_path: Path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", disk], check=False, capture_output=True
    ).returncode:
        pytest.skip("may not mount a small disk here")
    snapshots = ChangeTracker(tmp_path / "kept", disk)
    try:
        (disk / "a").write_bytes(os.urandom(150_000))
        (disk / "b").write_bytes(os.urandom(150_000))
        before = snapshots.take_snapshot()
        (disk / "a").write_bytes(b"a")
        (disk / "b").write_bytes(b"b")
        changed = snapshots.record_changes(before)
        (disk / "ballast").write_bytes(b"x" * 200_000)
        with pytest.raises(OSError):
            snapshots.apply_restore([changed.id])
        assert {path.name for path in disk.iterdir()} == {"a", "b", "ballast"}
        assert ((disk / "a").read_bytes(), (disk / "b").read_bytes()) == (b"a", b"b")
        (disk / "ballast").unlink()
        (workspace / "big").write_bytes(os.urandom(600_000))
        with closing(ChangeTracker(disk / "kept", workspace)) as full, pytest.raises(StorageFullError):
            full.take_snapshot()
    finally:
        snapshots.close()
        subprocess.run(["umount", "-l", disk], check=True)


def test_a_damaged_content_is_an_error_and_not_a_wrong_file(workspace: Path, snapshots: ChangeTracker, tmp_path: Path):
    changed = command(workspace, snapshots, "printf changed > b.txt")
    with open_database(tmp_path) as database, database.transaction() as db:
        db.execute("UPDATE objects SET body = ?", (b"broken",))
    with pytest.raises(StoreError, match="damaged"):
        snapshots.apply_restore([changed.id])
    assert (workspace / "b.txt").read_text() == "changed"


PATTERNS = """*.log|/top|folder/|a/b|**/deep|deep/**|a/**/z|!kept.log|# comment||sp ace |trail\\ |*|!*/|[ab].txt
[!ab].md|?.c|\\!bang|\\#hash|a*b|**|/*|!/src|x/|[z-a]|dir/*.py""".replace("\n", "|").split("|")
PATHS = """a.log|kept.log|top|sub/top|folder/x|sub/folder/x|a/b|q/a/b|deep/x|q/deep/x|a/z|a/m/n/z|trail |sp ace
a.txt|c.txt|a.md|c.md|x.c|xx.c|!bang|#hash|aXb|ab/c|src/m.py|x|x/y|dir/a.py
dir/sub/a.py""".replace("\n", "|").split("|")


@pytest.mark.skipif(not shutil.which("git"), reason="git is the judge")
@pytest.mark.parametrize("round", range(20))
def test_ignore_rules_match_as_in_git(tmp_path: Path, round: int):
    lines = [PATTERNS[(round * 7 + step * (round + 3)) % len(PATTERNS)] for step in range(5)]
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("\n".join(lines) + "\n")
    rules = IgnoreRules("", parse_ignore_lines(lines))
    for path in PATHS:
        judged = (
            subprocess.run(["git", "check-ignore", "-q", "--no-index", path], cwd=tmp_path, check=False).returncode == 0
        )
        assert is_ignored(rules, path) is judged, (lines, path)


def is_ignored(rules: IgnoreRules, path: str) -> bool:
    """A file in an ignored folder is ignored even if another rule includes it."""
    parts = path.split("/")
    folders = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
    return any(rules.ignores(folder, is_folder=True) for folder in folders) or rules.ignores(path, is_folder=False)


def test_files_that_are_only_ignored_since_are_neither_deleted_nor_made_anew(workspace: Path, snapshots: ChangeTracker):
    (workspace / "a.log").write_text("kept")
    changed = command(workspace, snapshots, "printf '*.log\\n' > .gitignore")
    assert changed.paths == (".gitignore",)
    snapshots.apply_restore([changed.id])
    snapshots.apply_restore([changed.id], "redo")
    assert (workspace / "a.log").read_text() == "kept"


def test_files_that_are_no_longer_ignored_are_not_reported_as_new(workspace: Path, snapshots: ChangeTracker):
    """Undoing would delete what was there long before."""
    (workspace / ".gitignore").write_text("secret/\n*.log\n")
    (workspace / "secret").mkdir()
    (workspace / "secret" / "key").write_text("mine")
    (workspace / "src" / "a.log").write_text("mine")
    changed = command(workspace, snapshots, "rm .gitignore; printf x > new.txt")
    assert changed.paths == (".gitignore", "new.txt")
    assert changed.uncovered == ("secret/key", "src/a.log")
    snapshots.apply_restore([changed.id])
    assert (workspace / "secret" / "key").read_text() == "mine"


def test_what_an_incomplete_scan_missed_is_not_reported_as_deleted_or_new(workspace: Path, limited: Limited):
    for number in range(30):
        (workspace / f"f{number:02}").write_text(str(number))
    snapshots = limited(SnapshotLimits(files=20))
    before = snapshots.take_snapshot()
    assert before.cut
    for number in range(15):
        (workspace / f"a{number:02}").write_text("pushes others past the bound")
    (workspace / "f00").write_text("changed")
    changed = snapshots.record_changes(before)
    assert changed.paths == ("f00",)
    assert "everything after it" in changed.uncovered[-1]


def test_a_change_belongs_to_one_call_only(workspace: Path, snapshots: ChangeTracker):
    slow, quick = snapshots.take_snapshot(), snapshots.take_snapshot(["b.txt"])
    (workspace / "b.txt").write_text("quick")
    assert snapshots.record_changes(quick).paths == ("b.txt",)
    (workspace / "run.sh").write_text("slow")
    assert snapshots.record_changes(slow).paths == ("run.sh",)


def test_a_secret_file_that_another_call_names_during_a_command_is_not_stored_by_later_scans(
    workspace: Path, snapshots: ChangeTracker, tmp_path: Path
):
    secret = workspace / ".env"
    secret.write_text("KEY=before")
    command_started, edit_started = snapshots.take_snapshot(), snapshots.take_snapshot([".env"])
    secret.write_text("KEY=named")
    assert snapshots.record_changes(edit_started).paths == (".env",)
    assert snapshots.record_changes(command_started) is None
    secret.write_text("KEY=never-named")
    later = snapshots.take_snapshot()
    assert ".env" not in later.images
    assert later.uncovered == (".env",)
    with open_database(tmp_path) as database:
        stored = {zlib.decompress(body) for (body,) in database.fetch_all("SELECT body FROM objects")}
    assert {b"KEY=before", b"KEY=named"} <= stored
    assert b"KEY=never-named" not in stored


def test_a_file_in_the_place_of_a_folder_and_a_folder_in_the_place_of_a_file_are_undone(
    workspace: Path, snapshots: ChangeTracker
):
    before = contents(workspace)
    changed = command(workspace, snapshots, "rm -r src; printf f > src; rm b.txt; mkdir b.txt; printf x > b.txt/x")
    after = contents(workspace)
    assert snapshots.apply_restore([changed.id])[0].conflicts == ()
    assert contents(workspace) == before
    snapshots.apply_restore([changed.id], "redo")
    assert contents(workspace) == after
    (workspace / "b.txt" / "mine").write_text("not to be lost")
    assert snapshots.apply_restore([changed.id])[0].conflicts == ("b.txt",)
    assert (workspace / "b.txt" / "mine").read_text() == "not to be lost"


def test_an_empty_folder_in_the_place_of_a_file_does_not_stop_an_undo_and_a_link_in_it_does(
    workspace: Path, snapshots: ChangeTracker
):
    changed = command(workspace, snapshots, "rm b.txt run.sh; mkdir -p b.txt/x/y run.sh")
    (workspace / "run.sh" / "mine").symlink_to("..")
    report, _ = snapshots.apply_restore([changed.id])
    assert (report.changed, report.conflicts) == (("b.txt",), ("run.sh",))
    assert (workspace / "b.txt").read_text() == "b"
    assert (workspace / "run.sh" / "mine").is_symlink()


def test_a_name_that_is_no_text_is_named_and_not_covered(workspace: Path, snapshots: ChangeTracker):
    os.close(os.open(os.fsencode(workspace) + b"/\xff\xfe", os.O_CREAT | os.O_WRONLY))
    changed = command(workspace, snapshots, "printf x > b.txt")
    assert changed.paths == ("b.txt",)
    assert len(changed.uncovered) == 1


def test_what_was_known_of_files_is_known_to_the_next_program_too(workspace: Path, tmp_path: Path):
    for number in range(600):
        (workspace / f"f{number:03}").write_text(str(number))
    time.sleep(0.1)
    with closing(ChangeTracker(tmp_path / "kept", workspace)) as first:
        first.take_snapshot()
    with open_database(tmp_path) as database:
        assert len(ScanCache(database).scanned) >= 600
    with closing(ChangeTracker(tmp_path / "kept", workspace)) as second:
        (workspace / "f001").write_text("other")
        assert second.take_snapshot().images["f001"].hash == sha256(b"other").hexdigest()


def test_what_another_program_gave_up_is_read_again(workspace: Path, tmp_path: Path):
    time.sleep(0.1)
    with closing(ChangeTracker(tmp_path / "kept", workspace)) as first:
        first.discard_snapshot(first.take_snapshot())
        with closing(ChangeTracker(tmp_path / "kept", workspace, limits=SnapshotLimits(quota_bytes=1))) as second:
            command(workspace, second, "printf x > other.txt")
        changed = command(workspace, first, "printf y > b.txt")
        first.apply_restore([changed.id])
        assert (workspace / "b.txt").read_text() == "b"


def test_changes_belong_to_a_session_and_to_those_that_called_it(workspace: Path, snapshots: ChangeTracker):
    origin = ChangeOrigin(session_id="child", call_id="c2", callers=(ParentCall("parent", "c1"),))
    before = snapshots.take_snapshot(["b.txt"], origin)
    (workspace / "b.txt").write_text("B")
    changed = snapshots.record_changes(before)
    assert snapshots.session_changes("child") == snapshots.session_changes("parent") == [changed]
    assert snapshots.session_changes("other") == []


def test_what_was_under_way_when_a_program_ended_is_doubtful_unless_it_is_as_it_was_planned(
    workspace: Path, tmp_path: Path
):
    origin = ChangeOrigin(session_id="s", call_id="c")
    with closing(ChangeTracker(tmp_path / "kept", workspace)) as first:
        planned = {workspace / "b.txt": sha256(b"B").hexdigest(), workspace / "run.sh": sha256(b"R").hexdigest()}
        first.take_snapshot(planned, origin, planned)
        (workspace / "b.txt").write_text("B")
        (workspace / "run.sh").write_text("by somebody else")
    with closing(ChangeTracker(tmp_path / "kept", workspace)) as second:
        assert second.recover_interrupted("another") == []
        (changed,) = second.recover_interrupted("s")
        assert changed.paths == ("b.txt", "run.sh")
        assert changed.doubtful == ("run.sh",)
        assert second.recover_interrupted("s") == []
        report, _ = second.apply_restore([changed.id])
        assert (report.changed, report.doubtful) == (("b.txt",), ("run.sh",))


def test_many_programs_open_the_same_place_at_once(workspace: Path, tmp_path: Path):
    def use(number: int) -> int:
        with closing(ChangeTracker(tmp_path / "kept", workspace)) as opened:
            before = opened.take_snapshot([f"by-{number}"])
            (workspace / f"by-{number}").write_text(str(number))
            return len(opened.record_changes(before).files)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(use, range(16))) == [1] * 16


def test_a_file_that_a_tool_writes_may_be_larger_than_those_that_are_looked_at(workspace: Path, limited: Limited):
    snapshots = limited(SnapshotLimits(file_bytes=1000, written_bytes=3000))
    (workspace / "large").write_bytes(b"x" * 2000)
    before = snapshots.take_snapshot(["large"])
    (workspace / "large").write_bytes(b"y" * 2500)
    changed = snapshots.record_changes(before)
    assert changed.uncovered == ()
    assert snapshots.apply_restore([changed.id])[0].changed == ("large",)
    assert (workspace / "large").read_bytes() == b"x" * 2000


def test_over_all_workspaces_those_go_that_were_not_used_for_longest(tmp_path: Path):
    for number in range(3):
        workspace = tmp_path / f"w{number}"
        workspace.mkdir()
        (workspace / "noise").write_bytes(os.urandom(100_000))
        with closing(ChangeTracker(tmp_path / "kept" / str(number), workspace)) as opened:
            before = opened.take_snapshot(["noise"], ChangeOrigin(session_id=f"s{number}"))
            (workspace / "noise").unlink()
            assert opened.record_changes(before)
        time.sleep(0.02)
    enforce_total_quota(tmp_path / "kept", 300_000)
    assert [tracked_sessions(tmp_path / "kept" / str(number)) for number in range(3)] == [set(), {"s1"}, {"s2"}]
    assert (tmp_path / "kept" / "0" / "snapshots.db").stat().st_size < 60_000
