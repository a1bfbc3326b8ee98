"""apply_patch: both forms of patches, every place beyond doubt, all files or none."""

from pathlib import Path

import pytest

from outrider import ToolFailure
from outrider.tools.edit_transaction import PlannedChange, commit_changes
from outrider.tools.workspace_files import FileLocation
from tests.unit.tools.builtin.tool_workspace import ToolWorkspace


def begin_patch(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


async def test_files_are_added_updated_moved_and_deleted_in_one_call(workspace: ToolWorkspace):
    workspace.write_file("update.py", "a\nb\nc\n")
    workspace.write_file("move.py", "x\ny\n").chmod(0o755)
    workspace.write_file("delete.py", "gone\n")
    output = await workspace.output_of(
        "apply_patch",
        patch=begin_patch(
            "*** Add File: new/added.py", "+one", "+", "+two",
            "*** Update File: update.py", "@@", " a", "-b", "+B", " c",
            "*** Update File: move.py", "*** Move to: new/moved.py", "@@", "-x", "+X", " y",
            "*** Delete File: delete.py",
        ),
    )  # fmt: skip
    assert output == "Done:\nA new/added.py\nM update.py\nD move.py\nA new/moved.py\nD delete.py"
    assert workspace.list_files() == ["new", "new/added.py", "new/moved.py", "update.py"]
    assert (workspace.root / "new/added.py").read_text() == "one\n\ntwo\n"
    assert (workspace.root / "update.py").read_text() == "a\nB\nc\n"
    assert (workspace.root / "new/moved.py").read_text() == "X\ny\n"
    assert (workspace.root / "new/moved.py").stat().st_mode & 0o777 == 0o755
    assert (workspace.root / "delete.py", b"gone\n") in workspace.originals


async def test_a_unified_diff_is_applied(workspace: ToolWorkspace):
    workspace.write_file("a.txt", "".join(f"{number}\n" for number in range(1, 21)))
    workspace.write_file("b.txt", "old")
    workspace.write_file("c.txt", "gone\n")
    await workspace.output_of(
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
    assert (workspace.root / "a.txt").read_text() == f"1\n2\nthree\nand more\n{middle}20\n"
    assert (workspace.root / "b.txt").read_text() == "new\n"
    assert (workspace.root / "new.txt").read_text() == "one\ntwo"
    assert not (workspace.root / "c.txt").exists()


async def test_git_renames_and_quoted_names_are_understood(workspace: ToolWorkspace):
    workspace.write_file("ä b.txt", "x\n")
    await workspace.output_of(
        "apply_patch",
        patch='diff --git a/x b/y\nsimilarity index 100%\nrename from "\\303\\244 b.txt"\nrename to plain.txt\n',
    )
    assert workspace.list_files() == ["plain.txt"]


@pytest.mark.parametrize("wrap", ["```diff\n{}\n```", "apply_patch <<'EOF'\n{}\nEOF\n", "{}\n\n"])
async def test_wrappings_around_a_patch_are_removed(workspace: ToolWorkspace, wrap: str):
    path = workspace.write_file("f", "a\n")
    patch = wrap.format(begin_patch("*** Update File: f", "@@", "-a", "+b"))
    await workspace.output_of("apply_patch", patch=patch)
    assert path.read_text() == "b\n"


async def test_a_line_that_looks_like_a_header_is_content_while_the_hunk_continues(workspace: ToolWorkspace):
    path = workspace.write_file("f", "a\n-- x\n++ y\n")
    await workspace.output_of("apply_patch", patch="--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n--- x\n+++ z\n ++ y\n")
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
async def test_hunks_find_their_place(workspace: ToolWorkspace, before: str, hunk: list[str], after: str):
    path = workspace.write_file("f", before)
    await workspace.output_of("apply_patch", patch=begin_patch("*** Update File: f", *hunk))
    assert path.read_bytes().decode() == after


async def test_context_with_other_whitespace_is_tolerated_and_preserved_once_the_file_was_read(
    workspace: ToolWorkspace,
):
    path = workspace.write_file("f", "    if a:   \n        b\n")
    patch = begin_patch("*** Update File: f", "@@", " if a:", "-    b", "+    c", "+    d")
    assert "does not fit" in await workspace.error_of("apply_patch", patch=patch)
    await workspace.output_of("read", file_path="f")
    await workspace.output_of("apply_patch", patch=patch)
    assert path.read_text() == "    if a:   \n        c\n        d\n"


@pytest.mark.parametrize(
    ("patch", "message"),
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
async def test_a_patch_in_doubt_is_refused(workspace: ToolWorkspace, patch: str, message: str):
    workspace.write_file("f", "x\ny\nx\n")
    workspace.write_file("g", "g\n")
    error = await workspace.error_of("apply_patch", patch=patch)
    assert message in error
    assert (workspace.root / "f").read_text() == "x\ny\nx\n"
    assert workspace.list_files() == ["f", "g"]
    assert workspace.originals == []


async def test_one_file_that_fails_prevents_all_changes(workspace: ToolWorkspace):
    workspace.write_file("a", "a\n")
    patch = begin_patch(
        "*** Update File: a", "-a", "+b", "*** Add File: new/b", "+b", "*** Update File: missing", "-x", "+y"
    )
    await workspace.error_of("apply_patch", patch=patch)
    assert (workspace.root / "a").read_text() == "a\n"
    assert workspace.list_files() == ["a"]


async def test_a_failure_while_writing_brings_the_files_before_it_back(workspace: ToolWorkspace):
    """Another process replaces the last file at the last moment."""
    workspace.write_file("a", "a\n")
    workspace.write_file("z", "z\n")
    save_original = workspace.save_original

    async def keep(path: Path, content: bytes | None) -> None:
        await save_original(path, content)
        if path.name == "z":
            path.write_text("other\n")

    workspace.save_original = keep
    patch = begin_patch(
        "*** Update File: a", "-a", "+b", "*** Add File: new/deep/b", "+b", "*** Update File: z", "-z", "+y"
    )
    assert "changed by another process" in await workspace.error_of("apply_patch", patch=patch)
    assert workspace.list_files() == ["a", "z"]
    assert (workspace.root / "a").read_text() == "a\n"
    assert (workspace.root / "z").read_text() == "other\n"


def test_a_failure_half_way_takes_everything_back(workspace: ToolWorkspace):
    path = workspace.write_file("a", "a\n")
    path.chmod(0o741)
    workspace.write_file("d", "d\n")

    def place(name: str) -> FileLocation:
        return workspace.files.locate(name, "create")

    changes = [
        PlannedChange(place("a"), b"a\n", b"b\n"),
        PlannedChange(place("d"), b"d\n", None),
        PlannedChange(place("new/x"), None, b"x\n"),
        PlannedChange(place("new/x"), None, b"y\n"),  # is there when its turn comes
    ]
    with pytest.raises(ToolFailure, match="changed by another process"):
        commit_changes(changes)
    assert workspace.list_files() == ["a", "d"]
    assert path.read_text() == "a\n"
    assert path.stat().st_mode & 0o777 == 0o741
    assert (workspace.root / "d").read_text() == "d\n"


async def test_a_file_named_twice_gets_both_changes(workspace: ToolWorkspace):
    path = workspace.write_file("a", "a\nb\n")
    await workspace.output_of(
        "apply_patch", patch=begin_patch("*** Update File: a", "-a", "+A", "*** Update File: ./a", "-b", "+B")
    )
    assert path.read_text() == "A\nB\n"
    assert workspace.originals == [(path, b"a\nb\n")]


async def test_a_file_that_changed_since_it_was_read_is_refused_with_a_fresh_view(workspace: ToolWorkspace):
    path = workspace.write_file("a", "a\nb\n")
    await workspace.output_of("read", file_path="a")
    path.write_text("a\nb\nc\n")
    assert "     3\tc" in await workspace.error_of("apply_patch", patch=begin_patch("*** Update File: a", "-a", "+A"))
    assert path.read_text() == "a\nb\nc\n"


async def test_a_link_is_neither_deleted_nor_moved(workspace: ToolWorkspace):
    workspace.write_file("a", "a\n")
    (workspace.root / "link").symlink_to("a")
    assert "is a link" in await workspace.error_of("apply_patch", patch=begin_patch("*** Delete File: link"))
    await workspace.output_of("apply_patch", patch=begin_patch("*** Update File: link", "-a", "+b"))
    assert (workspace.root / "link").is_symlink()
    assert (workspace.root / "a").read_text() == "b\n"
