"""What a command does over an overlay and what is committed equals what it does without one."""

import importlib
import os
import shutil
import signal
from pathlib import Path

import msgspec
import pytest

from outrider.outcomes.commit import commit_outcome, find_conflicts, remove_staged
from outrider.outcomes.pending import OutcomeFolder, PendingOutcome
from outrider.processes.sandbox.sandbox import Sandbox
from outrider.sessions import failpoints
from tests.unit.outcomes.overlays import OverlayRun, run_plainly, tree_of

SETUP = """
    mkdir -p src/deep full empty 'a b'
    echo one > one.txt; echo two > src/two.txt; echo three > src/deep/three.txt; echo x > full/x; echo y > full/y
    echo spaced > 'a b/c d.txt'; ln -s one.txt link; ln -s src folder_link; chmod 640 one.txt
"""
SCRIPTS = {
    "create": "echo new > new.txt; mkdir made; echo in > made/in.txt",
    "empty folders": "mkdir -p e1/e2/e3; mkdir -m 700 private",
    "modify": "echo more >> one.txt; echo other > src/deep/three.txt",
    "same size": "printf 'eno\\n' > one.txt",
    "delete": "rm one.txt src/two.txt link",
    "delete folders": "rm -r src full empty",
    "opaque folder": "rm -r full; mkdir full; echo z > full/z; echo new > full/x",
    "opaque nested": "rm -r src; mkdir -p src/deep; echo 1 > src/deep/four.txt",
    "file becomes folder": "rm one.txt; mkdir one.txt; echo in > one.txt/in",
    "folder becomes file": "rm -r src; echo flat > src",
    "folder becomes link": "rm -r full; ln -s src full",
    "file becomes link": "rm one.txt; ln -s src/two.txt one.txt",
    "link becomes file": "rm link; echo own > link",
    "link becomes folder": "rm folder_link; mkdir folder_link; echo x > folder_link/x",
    "links": "ln -sfn src/deep folder_link; ln -s /nowhere dangling; ln -s .. up",
    "modes": "chmod 755 one.txt; chmod 700 full; chmod 600 src/two.txt",
    "read-only folder": "mkdir locked; echo x > locked/x; chmod 500 locked; chmod 500 full",
    "setuid": "cp one.txt s; chmod 4755 s",
    "move file": "mv one.txt renamed.txt; mv src/two.txt full/two.txt",
    "move folder": "mv src moved; mv full moved/full",
    "swap": "mv one.txt t; mv src/two.txt one.txt; mv t src/two.txt",
    "odd names": "echo 1 > 'with space'; echo 2 > $'new\\nline'; echo 3 > -dash; echo 4 > 'é'; echo 5 > 'a:b*?[c]'",
    "non UTF-8": "echo 1 > $'bad\\xff'; mkdir $'dir\\xfe'; echo 2 > $'dir\\xfe/in'",
    "non UTF-8 removed": "rm $'old\\xff'",
    "hard links": "ln one.txt hard; echo changed > hard",
    "special": "mkfifo pipe; echo ok > ok.txt",
    "large": "head -c 3000000 /dev/zero > large; truncate -s 5M sparse",
    "touched only": "touch one.txt; cat one.txt > t; cat t > one.txt; rm t",
    "through a link": "rm folder_link; mkdir folder_link; echo mine > folder_link/two.txt",
    "nothing": "true",
    "all at once": "rm -r src; echo a > src; rm one.txt; mkdir one.txt; mv full f2; chmod 700 empty; ln -s f2 full",
}
SCRIPTS_WITH_OLD_NAME = {"non UTF-8 removed"}


def prepare(sandbox: Sandbox, root: Path, name: str = "") -> OverlayRun:
    found = OverlayRun(sandbox, root)
    run_plainly(SETUP + ("touch $'old\\xff'" if name in SCRIPTS_WITH_OLD_NAME else ""), found.workspace)
    shutil.copytree(found.workspace, root / "plain", symlinks=True)
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_committed_outcome_equals_a_plain_run(name: str, sandbox: Sandbox, tmp_path: Path):
    run = prepare(sandbox, tmp_path, name)
    before = tree_of(run.workspace)
    changes = run.run(SCRIPTS[name])
    assert tree_of(run.workspace) == before, "the workspace changed before the commit"
    run_plainly(SCRIPTS[name], tmp_path / "plain")
    assert [change.path for change in changes] == sorted(change.path for change in changes)
    assert not find_conflicts(run.workspace, run.upper, changes)
    done = commit_outcome(run.workspace, run.upper, changes)
    assert not done.conflicts
    assert tree_of(run.workspace) == tree_of(tmp_path / "plain")
    again = commit_outcome(run.workspace, run.upper, changes)
    assert (again.committed, again.conflicts) == ((), ())
    assert tree_of(run.workspace) == tree_of(tmp_path / "plain")


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_outcome_is_stored_as_it_is(name: str, sandbox: Sandbox, tmp_path: Path):
    run = prepare(sandbox, tmp_path, name)
    changes = run.run(SCRIPTS[name])
    folder = OutcomeFolder(tmp_path / "data", "session", run.workspace)
    folder.prepare("call")
    pending = PendingOutcome(
        session_id="session", call_id="call", workspace=str(run.workspace), changes=tuple(changes), content="x\udcff"
    )
    folder.save(pending)
    assert folder.load("call") == pending


def commit_with_fault(run: OverlayRun, folder: OutcomeFolder, fault: str) -> bool:
    """Repeats the commit of a stored outcome in a separate process; returns whether a failpoint killed it."""
    pid = os.fork()
    if pid == 0:
        try:
            os.environ["OUTRIDER_FAULT"] = fault
            importlib.reload(failpoints)
            changes = folder.load("call").changes
            remove_staged(run.workspace, changes)
            commit_outcome(run.workspace, run.upper, changes)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), "the commit failed"
    return code != 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_killed_commit_is_completed_by_the_next(name: str, sandbox: Sandbox, tmp_path: Path):
    """After each kill every file has its old or its new content, and the last attempt leaves no temporary files."""
    run = prepare(sandbox, tmp_path, name)
    before = tree_of(run.workspace)
    changes = run.run(SCRIPTS[name])
    run_plainly(SCRIPTS[name], tmp_path / "plain")
    wanted = tree_of(tmp_path / "plain")
    folder = OutcomeFolder(tmp_path / "data", "session", run.workspace)
    folder.prepare("call")
    folder.save(
        PendingOutcome(
            session_id="session", call_id="call", workspace=str(run.workspace), changes=tuple(changes), content=""
        )
    )
    contents = sum(change.kind != "deleted" and change.file in ("file", "link") for change in changes)
    faults = [f"FP-outcome-staging@{visit}" for visit in range(1, min(contents, 3) + 1)]
    faults += ["FP-outcome-staged", *(f"FP-mid-outcome@{visit}" for visit in range(1, 40))]
    kills = 0
    for fault in faults:
        # Each kill hits the state that the kill before has left. The last fault is never reached.
        if not commit_with_fault(run, folder, fault):
            break
        kills += 1
        for path, entry in tree_of(run.workspace).items():
            is_whole = entry in (before.get(path), wanted.get(path)) or entry[0] == "folder"
            assert is_whole or path.endswith(".tmp"), (fault, path)
    assert kills > len(faults) - 40 or not changes
    assert not commit_outcome(run.workspace, run.upper, changes).conflicts
    assert tree_of(run.workspace) == wanted


CONFLICTS = {
    # script of the command, what the user does meanwhile, paths in conflict
    "both modify": ("echo a >> one.txt", "echo b >> one.txt", {"one.txt"}),
    "same change": ("echo a > one.txt", "echo a > one.txt", set()),
    "user deletes": ("echo a >> one.txt", "rm one.txt", {"one.txt"}),
    "both delete": ("rm one.txt", "rm one.txt", set()),
    "command deletes": ("rm one.txt", "echo b >> one.txt", {"one.txt"}),
    "both create": ("echo a > new", "echo b > new", {"new"}),
    "both create alike": ("echo a > new", "echo a > new", set()),
    "user changes mode": ("echo a >> one.txt", "chmod 600 one.txt", {"one.txt"}),
    "another file": ("echo a >> one.txt", "echo b >> src/two.txt; echo c > src/new", set()),
    "same folder": ("echo a > src/new", "echo b > src/other", set()),
    "user makes it a folder": ("echo a >> one.txt", "rm one.txt; mkdir one.txt", {"one.txt"}),
    "folder and file": ("mkdir made; echo a > made/a", "echo b > made", {"made", "made/a"}),
    "file and folder": ("echo a > made", "mkdir made; echo b > made/b", {"made"}),
    "both make a folder": ("mkdir made; echo a > made/a", "mkdir made; echo b > made/b", set()),
    "user adds to a deleted folder": ("rm -r full", "echo b > full/b", {"full"}),
    "user adds to a replaced folder": ("rm -r full; echo a > full", "echo b > full/b", {"full"}),
    "user removes the folder": ("echo a > full/a", "rm -r full", set()),
    "user replaces the folder": ("echo a > full/a", "rm -r full; echo b > full", {"full/a"}),
    "user links the folder away": ("echo a > full/a", "mv full ../away; ln -s ../away full", {"full/a"}),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_what_the_user_changed_meanwhile_stays(name: str, sandbox: Sandbox, tmp_path: Path):
    script, meanwhile, paths = CONFLICTS[name]
    run = prepare(sandbox, tmp_path)
    changes = run.run(f"{script}; echo ok > ok.txt")
    run_plainly(meanwhile, run.workspace)
    theirs = tree_of(run.workspace)
    away = tree_of(tmp_path / "away") if (tmp_path / "away").exists() else {}
    done = commit_outcome(run.workspace, run.upper, changes)
    assert set(done.conflicts) == paths
    now = tree_of(run.workspace)
    for path in paths:
        assert now.get(path) == theirs.get(path), path
    assert (run.workspace / "ok.txt").read_text() == "ok\n"
    assert not [path for path in now if path.endswith(".tmp")], "temporary files are left"
    if away:
        assert tree_of(tmp_path / "away") == away


def test_nothing_changes_if_new_contents_cannot_be_written(sandbox: Sandbox, tmp_path: Path):
    run = prepare(sandbox, tmp_path)
    before = tree_of(run.workspace)
    changes = run.run("rm -r full; echo a > a; echo b > z")
    (run.upper / "z").unlink()
    with pytest.raises(OSError, match="No such file"):
        commit_outcome(run.workspace, run.upper, changes)
    assert tree_of(run.workspace) == before


def test_times_and_attributes_are_preserved_and_those_of_the_overlay_are_not(sandbox: Sandbox, tmp_path: Path):
    run = prepare(sandbox, tmp_path)
    changes = run.run("echo x > new; touch -d 2001-02-03T04:05:06Z new; echo more >> one.txt")
    commit_outcome(run.workspace, run.upper, changes)
    assert (run.workspace / "new").stat().st_mtime == 981173106
    for name in ("new", "one.txt"):
        assert not [attribute for attribute in os.listxattr(run.workspace / name) if "overlay" in attribute]


def test_a_special_file_is_listed_and_never_committed(sandbox: Sandbox, tmp_path: Path):
    run = prepare(sandbox, tmp_path)
    changes = run.run("mkfifo pipe")
    assert [(change.path, change.file) for change in changes] == [("pipe", "special")]
    assert msgspec.json.decode(msgspec.json.encode(changes), type=list[type(changes[0])]) == changes
    commit_outcome(run.workspace, run.upper, changes)
    assert not (run.workspace / "pipe").exists()
