"""apply_patch: both forms of patches, every place beyond doubt, all files or none."""

from pathlib import Path

import pytest

from outrider import ToolFailure
from outrider.tools.edit_transaction import PlannedChange, commit_changes
from outrider.tools.workspace_files import FileLocation
from tests.unit.tools.builtin.desk import Desk, keeping


def begin_patch(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


async def test_files_are_added_updated_moved_and_deleted_in_one_call(desk: Desk):
    desk.put("update.py", "a\nb\nc\n")
    desk.put("move.py", "x\ny\n").chmod(0o755)
    desk.put("delete.py", "gone\n")
    told = await desk.done(
        "apply_patch",
        patch=begin_patch(
            "*** Add File: new/added.py", "+one", "+", "+two",
            "*** Update File: update.py", "@@", " a", "-b", "+B", " c",
            "*** Update File: move.py", "*** Move to: new/moved.py", "@@", "-x", "+X", " y",
            "*** Delete File: delete.py",
        ),
    )  # fmt: skip
    assert told == "Done:\nA new/added.py\nM update.py\nD move.py\nA new/moved.py\nD delete.py"
    assert desk.names() == ["new", "new/added.py", "new/moved.py", "update.py"]
    assert (desk.root / "new/added.py").read_text() == "one\n\ntwo\n"
    assert (desk.root / "update.py").read_text() == "a\nB\nc\n"
    assert (desk.root / "new/moved.py").read_text() == "X\ny\n"
    assert (desk.root / "new/moved.py").stat().st_mode & 0o777 == 0o755
    assert (desk.root / "delete.py", b"gone\n") in desk.kept


async def test_a_unified_diff_is_applied(desk: Desk):
    desk.put("a.txt", "".join(f"{number}\n" for number in range(1, 21)))
    desk.put("b.txt", "old")
    desk.put("c.txt", "gone\n")
    await desk.done(
        "apply_patch",
        patch="""\
diff --git a/a.txt b/a.txt
index 1..2 100644
--- a/a.txt
+++ b/a.txt
@@ -2,3 +2,4 @@ heading
 2
-3
+three
+and more
 4
@@ -18,3 +19,2 @@
 18
-19
 20
--- a/b.txt
+++ b/b.txt
@@ -1 +1 @@
-old
\\ No newline at end of file
+new
--- /dev/null
+++ b/new.txt
@@ -0,0 +1,2 @@
+one
+two
\\ No newline at end of file
--- a/c.txt
+++ /dev/null
@@ -1 +0,0 @@
-gone
""",
    )
    middle = "".join(f"{number}\n" for number in range(4, 19))
    assert (desk.root / "a.txt").read_text() == f"1\n2\nthree\nand more\n{middle}20\n"
    assert (desk.root / "b.txt").read_text() == "new\n"
    assert (desk.root / "new.txt").read_text() == "one\ntwo"
    assert not (desk.root / "c.txt").exists()


async def test_git_renames_and_quoted_names_are_understood(desk: Desk):
    desk.put("ä b.txt", "x\n")
    await desk.done(
        "apply_patch",
        patch='diff --git a/x b/y\nsimilarity index 100%\nrename from "\\303\\244 b.txt"\nrename to plain.txt\n',
    )
    assert desk.names() == ["plain.txt"]


@pytest.mark.parametrize("wrap", ["```diff\n{}\n```", "apply_patch <<'EOF'\n{}\nEOF\n", "{}\n\n"])
async def test_wrappings_around_a_patch_are_taken_off(desk: Desk, wrap: str):
    path = desk.put("f", "a\n")
    patch = wrap.format(begin_patch("*** Update File: f", "@@", "-a", "+b"))
    await desk.done("apply_patch", patch=patch)
    assert path.read_text() == "b\n"


async def test_a_line_that_looks_like_a_header_is_content_while_the_hunk_continues(desk: Desk):
    path = desk.put("f", "a\n-- x\n++ y\n")
    await desk.done("apply_patch", patch="--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n--- x\n+++ z\n ++ y\n")
    assert path.read_text() == "a\n++ z\n++ y\n"


@pytest.mark.parametrize(
    ("before", "hunk", "after"),
    [
        ("a\r\nb\r\n", ["-b", "+c", "+d"], "a\r\nc\r\nd\r\n"),
        ("a\nb", ["-b", "+c"], "a\nc"),
        ("a\nb", [" b", "+c"], "a\nb\nc"),
        ("a\n", ["+b"], "a\nb\n"),
        ("", ["+b"], "b\n"),
        (
            "def f():\n    x\ndef g():\n    x\n",
            ["@@ def g():", "-    x", "+    y"],
            "def f():\n    x\ndef g():\n    y\n",
        ),
        ("x\ny\nx\n", ["-x", "+z", "*** End of File"], "x\ny\nz\n"),
        ("a\n\nb\n", [" a", "", "-b", "+c"], "a\n\nc\n"),
        ("a\nb\n", ["@@ a", "+new"], "a\nnew\nb\n"),
        ("1\n2\n1\n2\n3\n", ["@@", " 1", "-2", "+x", " 1", "@@", "-2", "+y", " 3"], "1\nx\n1\ny\n3\n"),
    ],
)
async def test_hunks_find_their_place(desk: Desk, before: str, hunk: list[str], after: str):
    path = desk.put("f", before)
    await desk.done("apply_patch", patch=begin_patch("*** Update File: f", *hunk))
    assert path.read_bytes().decode() == after


async def test_context_with_other_whitespace_is_tolerated_and_preserved_once_the_file_was_read(desk: Desk):
    path = desk.put("f", "    if a:   \n        b\n")
    patch = begin_patch("*** Update File: f", "@@", " if a:", "-    b", "+    c", "+    d")
    assert "does not fit" in await desk.refused("apply_patch", patch=patch)
    await desk.done("read", file_path="f")
    await desk.done("apply_patch", patch=patch)
    assert path.read_text() == "    if a:   \n        c\n        d\n"


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        (begin_patch("*** Update File: f", "@@", "-x", "+y"), "hunk 1 fits at lines 1, 3"),
        (begin_patch("*** Update File: f", "@@", "-zzz", "+y"), "hunk 1 does not fit"),
        (begin_patch("*** Update File: f", "@@ nowhere", "-x", "+y"), "`@@ nowhere` is not in the rest"),
        (begin_patch("*** Update File: f"), "does not say what to change"),
        (begin_patch("*** Update File: missing", "-x", "+y"), "missing does not exist"),
        (begin_patch("*** Add File: f", "+y"), "f exists already"),
        (begin_patch("*** Update File: f", "*** Move to: g"), "g exists already"),
        (begin_patch("*** Delete File: missing"), "does not exist"),
        (begin_patch("*** Delete File: ../outside"), "outside the workspace"),
        (begin_patch("*** Rename File: f"), "line 2 of the patch: expected"),
        (begin_patch("*** Update File: f", "@@", "?x"), "line 4 of the patch: expected a line that begins with"),
        ("*** Begin Patch\n*** Update File: f\n@@\n-x\n+y\n", "not whole"),
        ("--- a/f\n+++ b/f\n@@ -9,1 +9,1 @@\n-x\n+y\n", "fits at lines 1, 3"),
        ("@@ -1 +1 @@\n-x\n+y\n", "before `--- file`"),
        ("diff --git a/f b/f\nGIT binary patch\nliteral 3\n", "binary patch"),
        ("--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n-x\n+y\n!!\n", "not a line of a diff"),
    ],
)
async def test_a_patch_in_doubt_is_refused(desk: Desk, patch: str, words: str):
    desk.put("f", "x\ny\nx\n")
    desk.put("g", "g\n")
    error = await desk.refused("apply_patch", patch=patch)
    assert words in error
    assert (desk.root / "f").read_text() == "x\ny\nx\n"
    assert desk.names() == ["f", "g"]
    assert desk.kept == []


async def test_one_file_that_fails_keeps_every_file_from_changing(desk: Desk):
    desk.put("a", "a\n")
    patch = begin_patch(
        "*** Update File: a", "-a", "+b", "*** Add File: new/b", "+b", "*** Update File: missing", "-x", "+y"
    )
    await desk.refused("apply_patch", patch=patch)
    assert (desk.root / "a").read_text() == "a\n"
    assert desk.names() == ["a"]


async def test_a_failure_while_writing_brings_the_files_before_it_back(desk: Desk):
    """The last file is replaced by somebody else at the last moment."""
    desk.put("a", "a\n")
    desk.put("z", "z\n")
    kept = desk.keep

    async def keep(path: Path, content: bytes | None) -> None:
        await kept(path, content)
        if path.name == "z":
            path.write_text("other\n")

    desk.editor._save_originals = keeping(keep)  # pyright: ignore[reportPrivateUsage]
    patch = begin_patch(
        "*** Update File: a", "-a", "+b", "*** Add File: new/deep/b", "+b", "*** Update File: z", "-z", "+y"
    )
    assert "changed by another process" in await desk.refused("apply_patch", patch=patch)
    assert desk.names() == ["a", "z"]
    assert (desk.root / "a").read_text() == "a\n"
    assert (desk.root / "z").read_text() == "other\n"


def test_a_failure_half_way_takes_everything_back(desk: Desk):
    path = desk.put("a", "a\n")
    path.chmod(0o741)
    desk.put("d", "d\n")

    def place(name: str) -> FileLocation:
        return desk.files.locate(name, "create")

    changes = [
        PlannedChange(place("a"), b"a\n", b"b\n"),
        PlannedChange(place("d"), b"d\n", None),
        PlannedChange(place("new/x"), None, b"x\n"),
        PlannedChange(place("new/x"), None, b"y\n"),  # is there when its turn comes
    ]
    with pytest.raises(ToolFailure, match="changed by another process"):
        commit_changes(changes)
    assert desk.names() == ["a", "d"]
    assert path.read_text() == "a\n"
    assert path.stat().st_mode & 0o777 == 0o741
    assert (desk.root / "d").read_text() == "d\n"


async def test_a_file_named_twice_gets_both_changes(desk: Desk):
    path = desk.put("a", "a\nb\n")
    await desk.done(
        "apply_patch", patch=begin_patch("*** Update File: a", "-a", "+A", "*** Update File: ./a", "-b", "+B")
    )
    assert path.read_text() == "A\nB\n"
    assert desk.kept == [(path, b"a\nb\n")]


async def test_a_file_that_changed_since_it_was_read_is_refused_with_a_fresh_view(desk: Desk):
    path = desk.put("a", "a\nb\n")
    await desk.done("read", file_path="a")
    path.write_text("a\nb\nc\n")
    assert "     3\tc" in await desk.refused("apply_patch", patch=begin_patch("*** Update File: a", "-a", "+A"))
    assert path.read_text() == "a\nb\nc\n"


async def test_a_link_is_neither_deleted_nor_moved(desk: Desk):
    desk.put("a", "a\n")
    (desk.root / "link").symlink_to("a")
    assert "is a link" in await desk.refused("apply_patch", patch=begin_patch("*** Delete File: link"))
    await desk.done("apply_patch", patch=begin_patch("*** Update File: link", "-a", "+b"))
    assert (desk.root / "link").is_symlink()
    assert (desk.root / "a").read_text() == "b\n"
