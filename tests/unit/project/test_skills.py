"""Skills are found in the user's folders and, once trusted, in the project's."""

from pathlib import Path

import pytest

from outrider.errors import ToolFailure
from outrider.project.extensions import MAX_DESCRIPTION, MAX_SKILLS, find_skills, parse_front_matter
from outrider.project.trust import ProjectFolder
from outrider.tools.builtin.skill import skill_tool


def put(folder: Path, name: str, description: str = "does things", body: str = "Do it.") -> Path:
    path = folder / name / "SKILL.md"
    path.parent.mkdir(parents=True)
    path.write_text(f"---\nname: {name}\ndescription: {description}\n---\n{body}")
    return path


@pytest.fixture
def project(tmp_path: Path) -> ProjectFolder:
    (tmp_path / "ws").mkdir()
    return ProjectFolder(tmp_path / "ws", tmp_path / "ws")


def found(project: ProjectFolder, tmp_path: Path, *, trusted: bool = True):
    return find_skills(project, tmp_path / "own", tmp_path / "home", trusted=trusted)


def test_skills_come_from_the_user_and_from_a_trusted_project(project, tmp_path):
    put(tmp_path / "own", "a")
    put(tmp_path / "home" / ".agents" / "skills", "b")
    put(tmp_path / "home" / ".claude" / "skills", "c")
    for place in (".outrider", ".agents", ".claude"):
        put(project.root / place / "skills", f"p{place}")
    assert [skill.name for skill in found(project, tmp_path, trusted=False)] == ["a", "b", "c"]
    assert [skill.name for skill in found(project, tmp_path)] == ["a", "b", "c", "p.outrider", "p.agents", "p.claude"]


def test_a_project_cannot_replace_a_skill_of_the_user(project, tmp_path):
    put(tmp_path / "own", "review", "mine")
    put(project.root / ".claude" / "skills", "review", "theirs")
    (skill,) = found(project, tmp_path)
    assert skill.description == "mine"


def test_number_and_length_are_bounded(project, tmp_path):
    for number in range(MAX_SKILLS + 5):
        put(tmp_path / "own", f"s{number:03}", "x" * 2000)
    skills = found(project, tmp_path)
    assert (len(skills), len(skills[0].description)) == (MAX_SKILLS, MAX_DESCRIPTION)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\nname: a\ndescription: b\n---\nbody", {"name": "a", "description": "b"}),
        ("---\r\nname: 'it''s'\r\ndescription: \"b: c\"\r\n---\r\n", {"name": "it's", "description": "b: c"}),
        (
            "---\ndescription: >-\n  over\n  lines\nlicense: x\n  more\nname: n # why\n---",
            {"description": "over\nlines", "name": "n"},
        ),
        ("---\nname: a\nmetadata:\n  name: inner\n---", {"name": "a"}),
        ("name: a", {}),
        ("---\nname: never closed", {}),
        ("", {}),
    ],
)
def test_front_matter_is_read(text, expected):
    assert parse_front_matter(text) == expected


def test_what_does_not_say_what_it_is_good_for_is_no_skill(project, tmp_path):
    put(tmp_path / "own", "silent", "")
    put(tmp_path / "own", "odd name")
    (tmp_path / "own" / "empty").mkdir()
    assert found(project, tmp_path) == ()


async def test_a_project_s_skill_is_read_only_while_it_lies_in_the_project(project, tmp_path):
    path = put(project.root / ".agents" / "skills", "pdf", body="Use the tool.")
    tool = skill_tool(found(project, tmp_path))
    assert "Use the tool." in (await tool.execute(name="pdf")).content
    (tmp_path / "secret").write_text("private")
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(ToolFailure, match="cannot be read"):
        await tool.execute(name="pdf")
