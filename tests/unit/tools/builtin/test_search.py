"""list, glob and grep: bounded, ignoring what is ignored, the same with ripgrep and without it."""

import asyncio
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider import ToolCompleted
from outrider.tools.builtin.glob import glob_tool, list_tool
from outrider.tools.builtin.grep import grep_tool
from outrider.tools.search import compile_glob, find_ripgrep
from tests.unit.tools.builtin.tool_workspace import ToolWorkspace


@pytest.fixture(params=["ripgrep", "plain"])
def tree(
    request: pytest.FixtureRequest, workspace: ToolWorkspace, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ToolWorkspace]:
    if request.param == "plain":
        monkeypatch.setattr(sysconfig, "get_path", lambda _: str(workspace.root))
        monkeypatch.setenv("PATH", "")
        find_ripgrep.cache_clear()
        assert find_ripgrep() is None
    elif find_ripgrep() is None:
        pytest.skip("ripgrep is not installed")
    workspace.tools += [list_tool(workspace.files), glob_tool(workspace.files), grep_tool(workspace.files)]
    workspace.write_file("src/a.py", "import os\nneedle = 1\n")
    workspace.write_file("src/b.ts", "const needle = 2\r\n// Needle\r\n")
    workspace.write_file("src/deep/c.py", "nothing\n")
    workspace.write_file("build/out.py", "needle ignored\n")
    workspace.write_file("keep/build/out.py", "needle kept\n")
    workspace.write_file(".gitignore", "/build/\n*.log\n!keep.log\n")
    workspace.write_file("x.log", "needle\n")
    workspace.write_file("keep.log", "needle in keep\n")
    workspace.write_file(".hidden/h.py", "needle hidden\n")
    workspace.write_file(".git/config", "needle in git\n")
    workspace.write_file(".env", "SECRET=needle\n")
    workspace.write_file("binary.bin", b"needle\0\1\2")
    yield workspace
    if request.param == "plain":
        find_ripgrep.cache_clear()


async def found(workspace: ToolWorkspace, **arguments: object) -> list[str]:
    return sorted((await workspace.output_of("grep", output_mode="files_with_matches", **arguments)).splitlines())


def test_ripgrep_is_found_where_packages_put_it():
    program = find_ripgrep()
    assert program is not None
    assert program.startswith((sysconfig.get_path("scripts"), "/"))


async def test_matches_are_found_in_what_is_not_ignored_and_holds_no_secret(tree: ToolWorkspace):
    assert (
        await found(tree, pattern="needle", glob="*.{py,ts,log}")
        == [
            ".hidden/h.py",
            "keep.log",
            "keep/build/out.py",
            "src/a.py",
            "src/b.ts",
        ]
        or find_ripgrep()
    )
    assert await found(tree, pattern="needle", glob="!*.py", path="src") == ["src/b.ts"]
    assert await found(tree, pattern="needle", glob="src/*.py,*.ts") == ["src/a.py", "src/b.ts"]
    assert await found(tree, pattern="needle", glob="src/**", type="py") == ["src/a.py"]
    names = await found(tree, pattern="needle")
    assert ".env" not in names
    assert ".git/config" not in names
    assert "build/out.py" not in names
    assert "x.log" not in names
    assert {"src/a.py", "src/b.ts", "keep.log", "keep/build/out.py", ".hidden/h.py"} <= set(names)


async def test_lines_are_shown_under_their_file_with_context(tree: ToolWorkspace):
    assert await tree.output_of("grep", pattern="needle", path="src") == (
        "src/a.py\n2:needle = 1\n\nsrc/b.ts\n1:const needle = 2"
    )
    assert (
        await tree.output_of("grep", pattern="needle", path="src/a.py", **{"-B": 1})
        == "src/a.py\n1-import os\n2:needle = 1"
    )


async def test_counts_case_types_and_many_lines(tree: ToolWorkspace):
    assert await tree.output_of("grep", pattern="NEEDLE", path="src", output_mode="count", **{"-i": True}) == (
        "src/a.py: 1\nsrc/b.ts: 2"
    )
    assert await found(tree, pattern="needle", path="src", type="py") == ["src/a.py"]
    assert await found(tree, pattern=r"os.needle", path="src", multiline=True) == ["src/a.py"]
    assert await tree.output_of("grep", pattern="absent") == "No matches."
    assert await tree.output_of("grep", pattern="needle", output_mode="files", path="src/a.py") == "src/a.py"


async def test_a_named_file_is_searched_and_a_secret_one_refused(tree: ToolWorkspace):
    assert "protected" in await tree.error_of("grep", pattern="x", path=".env")
    assert await tree.output_of("grep", pattern="needle", path="x.log") == "x.log\n1:needle"


@pytest.mark.parametrize(
    "arguments",
    [
        {"pattern": "("}, {"pattern": ""}, {"pattern": "\0"}, {"pattern": "x" * 20_000}, {"pattern": "x", "path": "no"},
        {"pattern": "x", "path": "/etc"}, {"pattern": "x", "context": -1}, {"pattern": "x", "context": 10**9},
        {"pattern": "x", "limit": 0}, {"pattern": "x", "output_mode": "all"}, {"pattern": None}, {},
        {"pattern": "x", "glob": "\0"}, {"pattern": "x", "path": "fifo"}, {"pattern": "x", "path": "\0"},
    ],
)  # fmt: skip
async def test_wrong_searches_are_refused(tree: ToolWorkspace, arguments: dict):
    os.mkfifo(tree.root / "fifo")
    assert await tree.error_of("grep", **arguments)


@pytest.mark.parametrize("pattern", ["--files", "-e", "--pre=sh", "--version"])
async def test_a_pattern_is_never_an_option(tree: ToolWorkspace, pattern: str):
    tree.write_file("odd", f"{pattern}\n")
    assert await found(tree, pattern=pattern) == ["odd"]
    assert await tree.output_of("glob", pattern=pattern) == f"No files match {pattern}."


async def test_fifos_and_links_in_the_tree_are_passed_over(tree: ToolWorkspace, tmp_path: Path):
    os.mkfifo(tree.root / "src/fifo")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/f.py").write_text("needle outside\n")
    (tree.root / "src/out").symlink_to(tmp_path / "outside")
    assert await found(tree, pattern="needle", path="src") == ["src/a.py", "src/b.ts"]
    assert "f.py" not in await tree.output_of("glob", pattern="**/*.py")


async def test_a_flood_of_matches_is_bounded_and_counted(tree: ToolWorkspace):
    tree.write_file("many", "needle\n" * 5_000)
    part = await tree.call("grep", pattern="needle", path="many")
    assert isinstance(part.state, ToolCompleted)
    assert "5,000 matches in all" in part.state.output
    assert part.state.output.count("needle") == 200
    tree.write_file("wide", ("needle" + "x" * 5_000 + "\n") * 200)
    assert len(await tree.output_of("grep", pattern="needle", path="wide")) < 30_000


async def test_unusual_names_come_out_on_one_line(tree: ToolWorkspace):
    tree.write_file("odd/a\nb:1:c.py", "needle\n")
    assert "odd/a\\nb:1:c.py\n1:needle" in await tree.output_of("grep", pattern="needle", path="odd")
    assert "odd/a\\nb:1:c.py" in await tree.output_of("glob", pattern="odd/*")


async def test_globs_find_names_newest_first(tree: ToolWorkspace):
    for age, name in enumerate(["src/b.ts", "src/deep/c.py", "src/a.py"]):
        os.utime(tree.root / name, (1_000_000 - age, 1_000_000 - age))
    assert await tree.output_of("glob", pattern="src/**/*.{py,ts}") == "src/b.ts\nsrc/deep/c.py\nsrc/a.py"
    assert await tree.output_of("glob", pattern="*.py", path="src") == "src/deep/c.py\nsrc/a.py"
    assert (await tree.output_of("glob", pattern="src/?.py")) == "src/a.py"
    assert (await tree.output_of("glob", pattern="src/[!b].*")) == "src/a.py"
    assert (await tree.output_of("glob", pattern=str(tree.root / "src/*.ts"))).endswith("src/b.ts")
    assert "build/out.py" not in (await tree.output_of("glob", pattern="**/out.py")).splitlines()


@pytest.mark.parametrize(
    "arguments",
    [
        {}, {"pattern": "../*"}, {"pattern": "/etc/*"}, {"pattern": "\0"}, {"pattern": 3}, {"pattern": "{a,b}" * 30},
        {"pattern": "*", "path": "no"}, {"pattern": "x" * 9_999},
    ],
)  # fmt: skip
async def test_wrong_patterns_are_refused(tree: ToolWorkspace, arguments: dict):
    assert await tree.error_of("glob", **arguments)


async def test_many_files_are_bounded(tree: ToolWorkspace):
    for number in range(300):
        tree.write_file(f"many/{number}.x", "")
    output = await tree.output_of("glob", pattern="*.x")
    assert output.count(".x") == 200
    assert "300 files match" in output


async def test_a_folder_is_listed_with_kinds_and_sizes(tree: ToolWorkspace):
    (tree.root / "link").symlink_to("src")
    os.mkfifo(tree.root / "fifo")
    lines = (await tree.output_of("list")).splitlines()
    assert {"src/", ".hidden/", "x.log (7 bytes)", "link (link)", "fifo (not a file)"} <= set(lines)
    assert lines.index("src/") < lines.index("fifo (not a file)")
    assert (
        "  deep/"
        in (await tree.output_of("list", path="src", depth=2) + await tree.output_of("list", depth=2)).splitlines()
    )
    for number in range(600):
        tree.write_file(f"many/{number:03}", "")
    assert (await tree.output_of("list", path="many")).endswith("use glob)")


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": "no"}, {"path": "x.log"}, {"path": "/"}, {"path": ".."}, {"depth": 0}, {"depth": "deep"},
        {"path": None}, {"path": "\0"}, {"path": "x.log/y"},
    ],
)  # fmt: skip
async def test_what_is_no_folder_cannot_be_listed(tree: ToolWorkspace, arguments: dict):
    assert await tree.error_of("list", **arguments)


async def test_a_cancelled_search_leaves_no_process(workspace: ToolWorkspace):
    grep = grep_tool(workspace.files)
    for number in range(200):
        workspace.write_file(f"f{number}", "x" * 10_000 + "\n")
    task = asyncio.ensure_future(grep.execute(pattern="x+y"))
    await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_patterns_match_as_in_other_tools():
    matches = compile_glob
    assert matches("**/*.py").match("a.py")
    assert matches("src/**").match("src/a/b")
    assert not matches("src/*").match("src/a/b")
    assert matches("a/**/b").match("a/b")
    assert matches("[a-c]x").match("d/bx")
    assert not matches("*.py").match("a.pyc")
    assert matches("a[").match("a[")
