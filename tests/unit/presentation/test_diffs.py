"""Diffs, patches and arguments become one kind of value."""

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.presentation.diffs import (
    is_complete_patch,
    parse_unified_diff,
    patch_rows,
    preview_patch,
    replacement_diff,
    text_rows,
)

TWO_FILES = """--- a.txt
+++ a.txt
@@ -1,3 +1,3 @@ def main
 one
-two
+zwei
 three
@@ -10 +10,2 @@
 ten
+eleven
--- /dev/null
+++ new.txt
@@ -0,0 +1,2 @@
+-- a line that looks like a header
+b
"""


def test_a_unified_diff_gives_files_hunks_and_line_numbers():
    first, second = parse_unified_diff(TWO_FILES)
    assert (first.old_path, first.new_path, first.added, first.removed) == ("a.txt", "a.txt", 2, 1)
    assert [(line.sign, line.text, line.number) for line in first.hunks[0].lines] == [
        (" ", "one", 1),
        ("-", "two", 2),
        ("+", "zwei", 2),
        (" ", "three", 3),
    ]
    assert first.hunks[0].heading == "def main"
    assert [(line.kind, line.number) for line in first.hunks[1].lines] == [("context", 10), ("added", 11)]
    assert (second.old_path, second.path, second.added) == (None, "new.txt", 2)


def test_a_removed_line_that_looks_like_a_header_stays_a_line():
    diff = "--- a.sql\n+++ a.sql\n@@ -1,2 +1,1 @@\n--- drop\n keep\n"
    (file,) = parse_unified_diff(diff)
    assert [(line.kind, line.text) for line in file.hunks[0].lines] == [("removed", "-- drop"), ("context", "keep")]


def test_the_prefixes_of_git_are_removed_and_a_real_folder_is_preserved():
    (git,) = parse_unified_diff("diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n")
    (real,) = parse_unified_diff("--- a/x.py\n+++ a/x.py\n@@ -1 +1 @@\n-a\n+b\n")
    (created,) = parse_unified_diff("diff --git a/n b/n\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+b\n")
    assert (git.path, real.path, created.old_path, created.path) == ("x.py", "a/x.py", None, "n")


def test_a_note_about_a_missing_newline_is_no_line():
    (file,) = parse_unified_diff("--- a\n+++ a\n@@ -1 +1 @@\n-x\n\\ No newline at end of file\n+y\n")
    assert [line.text for line in file.hunks[0].lines] == ["x", "y"]


def test_a_patch_of_a_model_gives_the_files_that_it_names():
    patch = """*** Begin Patch
*** Update File: src/a.py
*** Move to: src/b.py
@@ def main():
-    old
+    new
*** Add File: n.txt
+hello
*** Delete File: gone.txt
*** End Patch"""
    update, add, delete = preview_patch(patch)
    assert (update.old_path, update.new_path, update.added, update.removed) == ("src/a.py", "src/b.py", 1, 1)
    assert update.hunks[0].heading == "def main():"
    assert (add.old_path, add.new_path, add.added) == (None, "n.txt", 1)
    assert (delete.old_path, delete.new_path, delete.hunks) == ("gone.txt", None, ())


def test_a_diff_that_mentions_a_patch_header_is_still_a_diff():
    (file,) = preview_patch("--- a\n+++ a\n@@ -0,0 +1 @@\n+*** Update File: b\n")
    assert (file.path, file.added) == ("a", 1)


HEAD = "--- a\n+++ a\n"


@pytest.mark.parametrize(
    ("patch", "complete"),
    [
        (HEAD + "@@ -1 +1 @@\n-x\n+y\n", True),
        ("diff --git a/a b/a\nindex 1..2\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-x\n+y\n\\ No newline at end of file\n", True),
        (HEAD + "@@ -1 +1 @@\n-x\n+y\n+beyond the counts\n", False),
        (HEAD + "@@\n-x\n+y\n", False),
        ("rename from a\nrename to b\n" + HEAD + "@@ -1 +1 @@\n-x\n+y\n", False),
        ("*** Begin Patch\n*** Add File: a\n+x\n*** End Patch", True),
        ("*** Begin Patch\n+x\n*** Add File: a\n+x\n*** End Patch", False),
        ("*** Update File: a\n+x\n" + HEAD + "@@ -1 +1 @@\n-x\n+y\n", False),
    ],
)
def test_a_patch_that_a_diff_would_not_show_completely_is_recognised(patch: str, complete: bool):
    assert is_complete_patch(patch) is complete


def test_a_patch_names_the_path_that_is_written():
    (created,) = preview_patch("--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n")
    (output,) = parse_unified_diff("--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+x\n")
    assert (created.path, output.path) == ("n", "b/n")


def test_the_rows_of_a_patch_are_complete():
    rows = patch_rows("*** Update File: a\n@@\n same\n-x\n+y\n\n+outside of any hunk")
    assert [(row.sign, row.text) for row in rows] == [
        (" ", "*** Update File: a"),
        (" ", "@@"),
        (" ", "same"),
        ("-", "x"),
        ("+", "y"),
        (" ", ""),
        ("+", "outside of any hunk"),
    ]


def test_a_replacement_shows_both_texts_without_line_numbers():
    diff = replacement_diff("a.py", "x\ny\n", "z")
    assert [(line.sign, line.text, line.number) for line in diff.hunks[0].lines] == [
        ("-", "x", None),
        ("-", "y", None),
        ("+", "z", None),
    ]


lines = st.lists(
    st.text(st.characters(blacklist_characters="\n\r", blacklist_categories=["Cs"]), max_size=8), max_size=12
)


@given(lines, lines)
def test_both_sides_of_any_diff_are_read_back(old: list[str], new: list[str]):
    diff = "\n".join(difflib.unified_diff(old, new, "f", "f", lineterm="", n=1000))
    files = parse_unified_diff(diff)
    if old == new:
        assert not files
    else:
        (file,) = files
        assert file.hunks[0].old_text.split("\n") == (old or [""])
        assert file.hunks[0].new_text.split("\n") == (new or [""])


@given(st.text(max_size=300))
def test_any_text_can_be_read_as_a_diff_or_a_patch(text: str):
    parse_unified_diff(text)
    preview_patch(f"*** Update File: x\n{text}")


@given(st.lists(st.sampled_from(["--- a", "+++ a", "@@ -1 +1 @@", "@@", "-x", "+y", " z", "", "*** Add File: b"])))
def test_a_patch_that_is_reported_as_complete_has_lost_no_line(rows: list[str]):
    text = "\n".join(rows)
    if is_complete_patch(text):
        changed = sum(file.added + file.removed for file in preview_patch(text))
        headers = sum(row.startswith(("--- ", "+++ ")) for row in rows)
        assert changed >= sum(row[:1] in "+-" for row in rows if row) - headers


def test_every_line_of_a_text_with_a_diff_is_a_row_of_its_kind():
    text = """Two files:
- the first
+ the second
diff --git a/q.sql b/q.sql
--- a/q.sql
+++ b/q.sql
@@ -1,3 +1,3 @@
--- a comment of SQL
+++ no header
 + context
\\ No newline at end of file
-last
+end
- done"""
    rows = [(row.kind, row.text) for row in text_rows(text)]
    assert "\n".join(shown for _, shown in rows) == text
    kinds = "context context context file file file place removed added context context removed added context"
    assert [kind for kind, _ in rows] == kinds.split()


def test_the_signs_decide_in_an_excerpt_without_hunks():
    assert [row.kind for row in text_rows("-a\n+b\n c\n")] == ["removed", "added", "context"]


def test_a_text_whose_middle_was_left_out_has_its_next_file():
    text = "@@ -1,9 +1,9 @@\n-a\n… left out …\ndiff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-b"
    kinds = [row.kind for row in text_rows(text)]
    assert kinds == ["place", "removed", "context", "file", "file", "file", "place", "removed"]


@given(st.text("+- @\\-\nab", max_size=60))
def test_no_line_is_lost(text: str):
    assert "\n".join(row.text for row in text_rows(text)) == text.removesuffix("\n")
