"""Where questions about a project are answered, and what a small model sees of long files."""

from pathlib import Path

import pytest

from outrider.providers.local.prompt import flatten_listing
from outrider.providers.local.question_topics import (
    ProjectFiles,
    QuestionTopic,
    ReadCall,
    find_topic,
    focus_file,
    focus_matches,
)


def topic_of(question: str) -> QuestionTopic:
    topic = find_topic(question)
    assert topic is not None, question
    return topic


def project(folder: Path, **contents: str) -> ProjectFiles:
    """A project with these files; `__` in a name is a slash and `_` a dot."""
    paths = [name.replace("__", "/").replace("_", ".") for name in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    return ProjectFiles(folder, paths)


def looks(files: ProjectFiles, question: str) -> list[str]:
    return [str(next(iter(look.arguments.values()))) for look in files.plan_looks(topic_of(question))]


@pytest.mark.parametrize(
    ("question", "places"),
    [
        ("What license is this under?", ["Cargo.toml", "LICENSE"]),
        ("Which dependencies does it have?", ["Cargo.toml"]),
        ("How do I build it?", ["Cargo.toml"]),
        ("How do I use it?", ["README.md", "Cargo.toml"]),
        ("What are the main functions?", ["src/lib.rs", "src/main.rs"]),
        ("How are errors handled?", ["src/lib.rs"]),
        ("Is there anything left to do?", ["TODO|FIXME|XXX|HACK"]),
        ("Which files are in this folder?", ["."]),
    ],
)
def test_each_topic_has_its_places(question, places, tmp_path):
    files = project(
        tmp_path,
        LICENSE="MIT",
        README_md="# Tea",
        Cargo_toml="[package]",
        src__main_rs="fn main() {}",
        src__lib_rs="fn boil() -> Result<(), Error> { Err(Error) }",
        tests__boil_rs="fn test_boil() { panic!() }",
    )
    assert looks(files, question) == places


def test_other_places_are_looked_at_if_the_first_are_missing(tmp_path):
    files = project(tmp_path, README_md="# Tea", tea_c="#include <stdio.h>\nint main(void) {\n}")
    assert looks(files, "Which dependencies does it have?") == ["tea.c"]


@pytest.mark.parametrize(
    "question",
    [
        "Why is the tea cold?",
        "Which files import asyncio?",
        "Do the tests pass?",
        "Which version of node is installed here",
    ],
)
def test_the_model_chooses_for_other_questions(question):
    topic = find_topic(question)
    assert topic is None or "install" in question


@pytest.mark.parametrize(
    ("manifest", "content", "commands"),
    [
        ("package.json", '{"scripts": {"test": "ava"}}', {"install": "npm install", "test": "npm test"}),
        ("package.json", "damaged", {}),
        ("Makefile", "CC := gcc\ntest: all\n\t./t\n", {"build": "make", "test": "make test"}),
        (
            "go.mod",
            "module x.org/tea",
            {"test": "go test ./...", "build": "go build ./...", "install": "go get x.org/tea"},
        ),
        ("notes.txt", "", {}),
    ],
)
def test_a_manifest_provides_commands(manifest, content, commands, tmp_path):
    (tmp_path / manifest).write_text(content)
    assert ProjectFiles(tmp_path, [manifest]).list_commands() == commands


@pytest.mark.parametrize(
    ("manifest", "content", "facts"),
    [
        (
            "package.json",
            '{"dependencies": {"queue": "1"}, "devDependencies": {"ava": "2"}}',
            ["package.json declares queue as dependencies.", "Only for development: ava."],
        ),
        ("package.json", "[]", ["package.json declares no dependencies."]),
        ("Cargo.toml", '[dependencies]\nclap = "4"', ["Cargo.toml declares clap as dependencies."]),
        (
            "pyproject.toml",
            '[project]\ndependencies = ["msgspec>=0.19"]\n[dependency-groups]\ndev = ["ruff", {a = "b"}]',
            ["pyproject.toml declares msgspec as dependencies.", "Only for development: ruff."],
        ),
        ("go.mod", "module a.b/c\n\nrequire x.org/y v0.1.0\n", ["go.mod declares x.org/y as dependencies."]),
        ("Makefile", "all:\n", []),
        ("pyproject.toml", "= damaged", []),
        ("tea.c", "", ["This project has no manifest: it declares no dependencies."]),
    ],
)
def test_the_declared_dependencies_are_stated(manifest, content, facts, tmp_path):
    (tmp_path / manifest).write_text(content)
    files = ProjectFiles(tmp_path, [manifest])
    assert files.state_facts(topic_of("Which dependencies does it have?")) == facts


def test_whether_there_are_tests_and_how_they_run_is_stated(tmp_path):
    asked = topic_of("How do I run the tests?")
    assert project(tmp_path, Cargo_toml="", src__lib_rs="").state_facts(asked) == ["This project has no test files."]
    assert project(tmp_path, Cargo_toml="", tests__a_rs="").state_facts(asked) == [
        "Files with tests: tests/a.rs.",
        "The usual command to test it is `cargo test`.",
    ]


def test_an_answer_may_say_that_there_are_no_tests_only_if_no_file_has_tests(tmp_path):
    asked = topic_of("How do I run the tests?")
    without_tests = project(tmp_path, Cargo_toml="", src__lib_rs="")
    assert "no tests" in without_tests.plan_question(asked).form
    with_tests = project(tmp_path, Cargo_toml="", tests__a_rs="")
    assert "no tests" not in with_tests.plan_question(asked).form


def test_a_makefile_adds_its_targets_to_the_commands_of_a_manifest(tmp_path):
    python = project(tmp_path, pyproject_toml="", makefile="test:\n\tpytest\nrun:\n\tpython main.py\n")
    assert python.list_commands() == {
        "test": "make test",
        "run": "make run",
        "install": "pip install .",
        "build": "python -m build",
    }
    rust = project(tmp_path, Cargo_toml="", makefile="test:\n\tcargo test --all\n")
    assert rust.list_commands()["test"] == "cargo test", "every Rust project runs its tests in this way"


def test_a_long_source_file_is_reduced_to_what_the_question_is_about():
    body = "".join(f"    step_{number} = boil(kettle, {number})\n" for number in range(40))
    content = f"class Kettle:\n    def fill(self):\n{body}        raise EmptyError\n{body}"
    outline = focus_file("tea.py", content, topic_of("What are the main classes and functions?"), 300)
    assert outline.startswith("class Kettle:\n    def fill(self):")
    assert len(outline) <= 300
    errors = focus_file("tea.py", content, topic_of("How are errors handled?"), 300)
    assert "def fill(self):\n…\n" in errors
    assert "raise EmptyError" in errors
    assert focus_file("tea.py", content, topic_of("How are errors handled?"), 10_000) == content


def test_a_document_is_read_from_its_start_without_badges():
    content = "[![Build](https://x.org/a.svg)](https://x.org)\n<img src=a>\n# Tea\n\nIt boils.\n" + "More text.\n" * 100
    assert focus_file("README.md", content, topic_of("Explain how this is put together"), 200).startswith(
        "# Tea\n\nIt boils."
    )


def test_matches_outside_of_the_code_do_not_count():
    topic = topic_of("Where does the program start?")
    found = "README.md\n3:func main() {\n\nsrc/main.go\n7:func main() {\n\ntests/a_test.go\n9:main()"
    assert focus_matches(found, topic) == "src/main.go\n7:func main() {"
    assert focus_matches("README.md\n3:func main() {", topic) == f"No matches. {topic.empty_answer}"
    assert focus_matches("No matches.", topic) == f"No matches. {topic.empty_answer}"


def test_a_listing_is_deeper_in_a_small_project(tmp_path):
    asked = topic_of("Which files are here?")
    small = ProjectFiles(tmp_path, ["a", "b/c", "b/d/e"])
    large = ProjectFiles(tmp_path, ["a", *(f"b/c/{number}" for number in range(100))])
    assert small.plan_looks(asked) == [ReadCall("list", {"path": ".", "depth": 3})]
    assert large.plan_looks(asked) == [ReadCall("list", {"path": ".", "depth": 2})]


def test_a_listing_is_shown_as_paths():
    listing = ".git/\nsrc/\n  tea/\n    a.py (1,200 bytes)\n  b.py (3 bytes)\n  empty/\nREADME.md (9 bytes)"
    assert flatten_listing(listing).splitlines() == ["src/tea/a.py", "src/b.py", "src/empty/", "README.md"]


def test_an_explanation_of_the_structure_describes_the_main_files(tmp_path):
    files = project(
        tmp_path, README_md="x", go_mod="x", a_go="func a() {", b_go="func bb() {", a__test_go="x", z_txt="x"
    )
    plan = files.plan_question(topic_of("Explain how this project is put together"))
    assert plan.described_files == ["b.go", "a.go", "a/test.go", "go.mod"]
    assert files.plan_question(topic_of("What are the main functions?")).described_files == ["b.go", "a.go"]
    assert not files.plan_question(topic_of("What is this?")).described_files


def test_the_search_patterns_can_be_constants_of_a_grammar():
    questions = ("Is there anything left to do?", "Where does the program start?", "Where is the version defined?")
    assert all(topic_of(question).search.isascii() for question in questions)
    assert not any(set(topic_of(question).search) & {"\\", '"'} for question in questions)


def test_a_document_without_the_topic_is_not_read(tmp_path):
    question = "How do I run the tests?"
    files = project(tmp_path, README_md="# Tea\nDownload the latest kettle.", Cargo_toml="[package]")
    assert looks(files, question) == ["Cargo.toml"]
    assert looks(project(tmp_path, README_md="# Tea\nRun the tests.", Cargo_toml=""), question)[1:] == ["README.md"]
    assert looks(project(tmp_path, README_md="# Tea", tea_c=""), question) == ["."]
