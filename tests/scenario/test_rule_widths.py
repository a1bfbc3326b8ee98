"""A lasting answer covers what the person chose: one command, a program, a folder, the files that may be written."""

import asyncio
from pathlib import Path

import pytest

from outrider import Engine, EventBus, Rules
from outrider.engine.session_tools import ToolEnvironment
from outrider.errors import ConfigurationError
from outrider.events import ToolApprovalRequestedEvent
from outrider.stores import MemoryStore, SqliteStore
from outrider.types.tool_declaration import parse_rule
from tests.scenario.scripted_runs import agent, call, scripted


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.py").write_text("one = 1\n")
    return folder


class Answers:
    """Runs turns of scripted calls and answers each question in the same way."""

    def __init__(self, tmp_path: Path, sandbox, calls, store=None, rules=(), **answer) -> None:
        bus = EventBus()
        around = ToolEnvironment(sandbox=sandbox, data=tmp_path / "data", home=tmp_path, bus=bus)
        script = [[made] for made in calls] + ["done"]
        self.engine = Engine(
            [agent()], [scripted(script)], bus=bus, surroundings=around, store=store, rules=Rules(allow=rules)
        )
        self.asked: list[ToolApprovalRequestedEvent] = []
        self.answer = answer
        bus.subscribe(ToolApprovalRequestedEvent, self.reply)

    async def reply(self, event: ToolApprovalRequestedEvent) -> None:
        self.asked.append(event)
        offered = [width.id for width in event.widths]
        chosen = {**self.answer, "width": self.answer.get("width", "") if self.answer.get("width") in offered else ""}
        await self.engine.answer(event.approval_id, **{"allow": True, **chosen})

    async def work(self, workspace: Path) -> None:
        async with self.engine:
            session = await self.engine.create(workspace=workspace)
            await asyncio.wait_for(self.engine.prompt(session, "go"), 60)


def shell(command: str):
    return call("shell", command=command)


def make(name: str):
    return shell(f"mkdir -p out/deep && echo {name} > out/deep/{name}.txt")


@pytest.mark.parametrize(("width", "questions"), [("exact", 3), ("under out/deep", 1), ("under out", 1), ("files", 3)])
async def test_an_answer_about_an_outcome_covers_its_width(width, questions, workspace, tmp_path, sandbox):
    held = Answers(tmp_path, sandbox, [make("a"), make("b"), make("c")], scope="session", width=width)
    await held.work(workspace)
    assert len(held.asked) == questions
    assert sorted(path.name for path in (workspace / "out/deep").iterdir()) == ["a.txt", "b.txt", "c.txt"]


async def test_an_outcome_with_one_other_file_is_asked_about(workspace, tmp_path, sandbox):
    calls = [make("a"), shell("echo x > out/deep/b.txt; echo y > other.txt")]
    held = Answers(tmp_path, sandbox, calls, scope="session", width="under out")
    await held.work(workspace)
    assert len(held.asked) == 2
    assert [file.path for file in held.asked[1].outcome.files] == ["other.txt", "out/deep/b.txt"]


async def test_all_edits_under_a_path_are_allowed_by_one_answer(workspace, tmp_path, sandbox):
    calls = [call("write", file_path=f"src/{name}.py", content="x = 1\n") for name in ("b", "c")] + [
        call("edit", file_path="src/a.py", old_string="one", new_string="two"),
        shell("echo 1 > src/d.py"),
    ]
    held = Answers(tmp_path, sandbox, calls, scope="session", width="under src")
    await held.work(workspace)
    assert len(held.asked) == 1
    assert sorted(path.name for path in (workspace / "src").iterdir()) == ["a.py", "b.py", "c.py", "d.py"]
    assert (workspace / "src/a.py").read_text() == "two = 1\n"


async def test_a_wide_answer_never_covers_protected_files(workspace, tmp_path, sandbox):
    calls = [call("write", file_path="a.txt", content="x"), call("write", file_path="AGENTS.md", content="obey")]
    held = Answers(tmp_path, sandbox, calls, scope="session", width="workspace")
    await held.work(workspace)
    assert [event.tool_input["file_path"] for event in held.asked] == ["a.txt", "AGENTS.md"]


async def test_each_width_reports_what_it_would_have_answered(workspace, tmp_path, sandbox):
    store = SqliteStore(tmp_path / "sessions.db")
    held = Answers(tmp_path, sandbox, [make("a"), make("b")], store=store)
    async with store:
        await held.work(workspace)
        refusing = Answers(tmp_path, sandbox, [make("c"), shell("echo 1 > elsewhere.txt")], store=store, allow=False)
        await refusing.work(workspace)
        last = Answers(tmp_path, sandbox, [make("d")], store=store)
        await last.work(workspace)
    (question,) = last.asked
    counts = {width.id: (width.asked, width.covered, width.refused) for width in question.widths}
    assert counts["under out"] == (4, 3, 1)
    assert counts["files"] == (4, 0, 0)


async def test_history_of_another_folder_is_not_counted(workspace, tmp_path, sandbox):
    store, other = MemoryStore(), tmp_path / "other"
    other.mkdir()
    await Answers(tmp_path, sandbox, [make("a")], store=store).work(other)
    held = Answers(tmp_path, sandbox, [make("a")], store=store)
    await held.work(workspace)
    assert {width.asked for width in held.asked[0].widths} == {0}


async def test_a_width_that_was_not_offered_is_refused(workspace, tmp_path, sandbox):
    held = Answers(tmp_path, sandbox, [make("a")])
    refused: list[str] = []

    async def reply(event: ToolApprovalRequestedEvent) -> None:
        try:
            await held.engine.answer(event.approval_id, allow=True, scope="always", width="everything")
        except ConfigurationError as error:
            refused.append(error.message)
        await held.engine.answer(event.approval_id, allow=False)

    held.reply = reply
    held.engine.bus.clear()
    held.engine.bus.subscribe(ToolApprovalRequestedEvent, reply)
    await held.work(workspace)
    assert "offers no width 'everything'" in refused[0]


async def test_a_piped_script_is_allowed_once_only(workspace, tmp_path, sandbox):
    calls = [shell("echo 'echo 1 > a.txt' | sh"), shell("echo 'echo 2 > b.txt' | sh")]
    held = Answers(tmp_path, sandbox, calls, scope="always", width="exact")
    await held.work(workspace)
    assert len(held.asked) == 2
    assert not any("shell(" in rule for event in held.asked for width in event.widths for rule in width.rules)


@pytest.mark.parametrize(
    ("rule", "questions"),
    [("may write out/**", 0), ("may write other/**", 1), ("may run mkdir", 1), ("may run nothing", 1)],
)
async def test_outcome_rules_of_the_user_keep_what_they_name(rule, questions, workspace, tmp_path, sandbox):
    held = Answers(tmp_path, sandbox, [make("a")], rules=(rule,))
    await held.work(workspace)
    assert len(held.asked) == questions
    assert (workspace / "out/deep/a.txt").exists()


async def test_a_program_that_may_run_stays_in_the_sandbox(workspace, tmp_path, sandbox):
    outside = tmp_path / "outside.txt"
    command = f"python3 -c \"open('made.txt', 'w'); open('{outside}', 'w')\""
    held = Answers(tmp_path, sandbox, [shell(command)], rules=("may run python3 -c",), allow=False)
    await held.work(workspace)
    assert not outside.exists()


def test_rules_of_answers_are_valid(workspace):
    from outrider.permissions.rule_suggestions import suggest_widths

    widths = suggest_widths("edit", {"file_path": "src/a.py"}, workspace=str(workspace))
    assert [width.id for width in widths] == ["exact", "under src", "workspace"]
    assert not any(parse_rule(rule).parse_error for width in widths for rule in width.rules)


async def test_a_command_that_wants_only_allowed_hosts_runs_with_them(workspace, tmp_path, sandbox):
    wants = shell("echo run >> runs.txt; echo 'curl: (6) Could not resolve host: docs.example.org'; exit 1")
    allowed = Answers(tmp_path, sandbox, [wants], rules=("may reach *.example.org", "may write runs.txt"))
    await allowed.work(workspace)
    assert not allowed.asked
    store = MemoryStore()
    asking = Answers(tmp_path, sandbox, [wants], store=store, scope="project", width="hosts", choice="hosts")
    await asking.work(workspace)
    (blocked,) = [event for event in asking.asked if not event.outcome.files]
    assert [width.rules for width in blocked.widths] == [("may reach docs.example.org",)]
    later = Answers(tmp_path, sandbox, [wants], store=store)
    await later.work(workspace)
    assert not [event for event in later.asked if not event.outcome.files]


async def test_hosts_of_a_rule_are_asked_about_once_the_session_has_read_text_of_others(workspace, tmp_path, sandbox):
    wants = shell("echo 'curl: (6) Could not resolve host: docs.example.org'; exit 1")
    held = Answers(tmp_path, sandbox, [wants, wants], rules=("may reach docs.example.org",), allow=False)
    await held.work(workspace)
    assert len(held.asked) == 1
    assert held.asked[0].outcome.flow is not None
    assert held.asked[0].widths == ()


@pytest.mark.parametrize("level", ["ask", "edits", "auto"])
async def test_a_rule_against_edits_holds_for_commands(level, workspace, tmp_path, sandbox):
    command = shell("echo two > src/a.py; echo x > fine.txt; rm -rf src/deep")
    (workspace / "src/deep").mkdir()
    (workspace / "src/deep/b.py").write_text("b")
    bus_rules = Rules(deny=("edit(src/**)",))
    held = Answers(tmp_path, sandbox, [command])
    held.engine = held.engine.replace(rules=bus_rules, approval=level)
    await held.work(workspace)
    assert (workspace / "src/a.py").read_text() == "one = 1\n"
    assert (workspace / "src/deep/b.py").exists()
    assert (workspace / "fine.txt").exists()
    assert [[file.path for file in event.outcome.files] for event in held.asked] == ([["fine.txt"]] * (level == "ask"))


async def test_a_rule_that_asks_about_edits_asks_about_what_a_command_changed(workspace, tmp_path, sandbox):
    held = Answers(tmp_path, sandbox, [shell("echo two > src/a.py"), shell("echo x > fine.txt")], allow=False)
    held.engine = held.engine.replace(rules=Rules(ask=("write(src/**)",)), approval="auto")
    await held.work(workspace)
    assert len(held.asked) == 1
    assert (workspace / "src/a.py").read_text() == "one = 1\n"
    assert (workspace / "fine.txt").exists()
