"""Evaluates embedded models: `python -m benchmarks.eval_local [--model 1.5b]… [--only choices]… [--matching TEXT]`.

Choices are checked by the first call, questions by the answer, repairs by running the test. `--held-out` runs the tasks
that no prompt was tuned on.
"""

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.local_eval import choices, held_out, questions, repairs
from benchmarks.local_eval.choices import Choice
from benchmarks.local_eval.questions import Question
from benchmarks.local_eval.repairs import Repair
from benchmarks.local_eval.shop import FILES, lay_out
from benchmarks.local_eval.station import STATION
from outrider import Agent, Engine, EventBus, Limits, Provider, Rules
from outrider.config.paths import find_app_folders
from outrider.context.prompts import prompt_text
from outrider.engine.approval_gate import function_channel
from outrider.engine.session_tools import SessionTools, ToolEnvironment
from outrider.models.clients import model_client
from outrider.models.local_download import ProgressLine, pull_weights
from outrider.models.local_models import local_profile
from outrider.processes.sandbox.sandbox import NoSandbox
from outrider.providers.provider import AnswerAssembler
from outrider.sessions.session import Session
from outrider.types.parts import TextPart, ToolPart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, Prompt, Request, ToolSpec

LIMITS = Limits(turns=12, seconds=1800)
TEST_SECONDS = 30
ALLOWED = Rules(allow=("write(*)", "shell(*)"))  # the tasks are part of this repository
Verdict = tuple[str, bool, str]
"""A task, whether it passed, and its result."""


@dataclass(frozen=True)
class Tasks:
    """`files` is the workspace for choices and questions."""

    files: dict[str, str]
    choices: tuple[Choice, ...]
    questions: tuple[Question, ...]
    repairs: tuple[Repair, ...]

    def matching(self, text: str) -> "Tasks":
        """Returns the tasks whose text contains `text`."""
        return Tasks(
            self.files,
            tuple(choice for choice in self.choices if text in choice.prompt),
            tuple(question for question in self.questions if text in question.prompt),
            tuple(repair for repair in self.repairs if text in repair.prompt),
        )


USUAL = Tasks(FILES, choices.CHOICES, questions.QUESTIONS, repairs.REPAIRS)
HELD_OUT = Tasks(STATION, held_out.CHOICES, held_out.QUESTIONS, held_out.REPAIRS)


@dataclass
class Score:
    kind: str
    right: int = 0
    total: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.right} of {self.total} ({100 * self.right // max(self.total, 1)} %)"

    def add(self, verdict: Verdict) -> None:
        task, right, became = verdict
        self.right, self.total = self.right + right, self.total + 1
        print(
            f"  {'ok  ' if right else 'FAIL'} {self.kind} {task[:60]}{'' if right else f' -> {became[:400]}'}",
            flush=True,
        )


@dataclass
class Exam:
    """One model, in a separate folder."""

    model: str
    tasks: Tasks
    folder: Path
    threads: int | None = None
    bus: EventBus = field(default_factory=EventBus)

    def __post_init__(self) -> None:
        self.workspace = lay_out(self.folder / "workspace", self.tasks.files)
        self.agent = local_profile(Agent("outrider", prompt_text("agent"), self.model, "local", limits=LIMITS))
        self.provider = Provider("local", "local", options={"threads": self.threads} if self.threads else {})
        self.environment = ToolEnvironment(
            sandbox=NoSandbox("the tasks are our own", ""), data=self.folder / "data", home=self.folder, bus=self.bus
        )

    async def choices(self) -> AsyncIterator[Verdict]:
        specs = await self._offered()
        async with contextlib.aclosing(model_client(self.provider)) as client:
            for choice in self.tasks.choices:
                assembler = AnswerAssembler("local")
                prompt = conversation(choice)
                request = Request(self.model, prompt, self.agent.instructions, specs, workspace=str(self.workspace))
                async for delta in client.stream(request):
                    assembler.add(delta)
                tool, arguments = first_call(assembler)
                yield choice.prompt, choice.accepts(tool, arguments), f"{tool} {arguments}"

    async def questions(self) -> AsyncIterator[Verdict]:
        async with self._engine() as engine:
            for question in self.tasks.questions:
                answer, steps = await work(engine, question.prompt, self.workspace)
                yield question.prompt, question.accepts(answer), steps

    async def repairs(self) -> AsyncIterator[Verdict]:
        async with self._engine() as engine:
            for repair in self.tasks.repairs:
                workspace = lay_out(self.folder / repair.name, repair.files)
                _, steps = await work(engine, repair.prompt, workspace)
                yield repair.name, await asyncio.to_thread(passes, repair, workspace), steps

    async def _offered(self) -> tuple[ToolSpec, ...]:
        toolbox = SessionTools(
            Session(workspace_directory=str(self.workspace)), self.environment, function_channel(None)
        )
        try:
            return tuple(tool.spec() for name, tool in toolbox.tools.items() if name in (self.agent.tools or ()))
        finally:
            await toolbox.aclose()

    @contextlib.asynccontextmanager
    async def _engine(self) -> AsyncGenerator[Engine, None]:
        options = {"surroundings": self.environment, "rules": ALLOWED, "attended": False}
        async with Engine([self.agent], [self.provider], bus=self.bus, **options) as engine:
            yield engine


def conversation(choice: Choice) -> Prompt:
    prompt = Prompt([ModelMessage("user", (TextPart(choice.prompt),))])
    for number, (tool, arguments, result) in enumerate(choice.before):
        prompt.append(ModelMessage("assistant", (ToolUsePart(str(number), tool, arguments),)))
        prompt.append(ModelMessage("user", (ToolResultPart(str(number), result),)))
    return prompt


def first_call(assembler: AnswerAssembler) -> tuple[str, dict[str, object]]:
    for part in assembler.list_parts():
        if isinstance(part, ToolPart):
            return part.tool, part.state.input
        if isinstance(part, TextPart):
            return "answer", {"text": part.text}
    return "", {}


async def work(engine: Engine, prompt: str, workspace: Path) -> tuple[str, str]:
    """The agent's last answer, and the calls before it."""
    session = await engine.create(workspace=workspace)
    end = await engine.prompt(session, prompt)
    stored = await engine.store.load(session)
    calls = [part for message in stored.messages for part in message.get_parts_by_type(ToolPart)]
    steps = " ".join(f"{part.tool}({next(iter(part.state.input.values()), '')})" for part in calls)
    await engine.close(session)
    return end.output, f"{steps} [{end.reason}] {end.output}"


def passes(repair: Repair, workspace: Path) -> bool:
    """Runs the original test, even if the model has changed it."""
    lay_out(workspace, {name: text for name, text in repair.files.items() if name.startswith("test_")})
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(workspace),
        str(workspace),
    ]
    try:
        done = subprocess.run(command, cwd=workspace, capture_output=True, timeout=TEST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


KINDS = {"choices": Exam.choices, "questions": Exam.questions, "repairs": Exam.repairs}


async def judged(exam: Exam, kind: str) -> Score:
    score, start = Score(kind), time.monotonic()
    async for verdict in KINDS[kind](exam):
        score.add(verdict)
    score.seconds = time.monotonic() - start
    return score


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.eval_local", description=__doc__)
    parser.add_argument("--model", action="append", help="0.5b, 1.5b or PATH.gguf; may be repeated")
    parser.add_argument("--only", choices=[*KINDS], action="append")
    parser.add_argument("--matching", default="", help="only tasks whose text contains this")
    parser.add_argument("--held-out", action="store_true", help="the tasks that no prompt was tuned on")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    tasks = (HELD_OUT if given.held_out else USUAL).matching(given.matching)
    rows: dict[str, list[Score]] = {}
    for model in given.model or ["1.5b", "0.5b"]:
        if not model.endswith(".gguf"):
            pull_weights(model, find_app_folders(os.environ).data, ProgressLine(sys.stderr))
        print(f"local/{model}")
        with tempfile.TemporaryDirectory(prefix="eval-") as folder:
            exam = Exam(model, tasks, Path(folder), given.threads)
            rows[model] = [await judged(exam, kind) for kind in given.only or KINDS]
    show(rows)


def show(rows: dict[str, list[Score]]) -> None:
    kinds = [score.kind for score in next(iter(rows.values()))]
    print("\n| model | " + " | ".join(kinds) + " | minutes |\n|---|" + "---|" * (len(kinds) + 1))
    for model, scores in rows.items():
        minutes = sum(score.seconds for score in scores) / 60
        print(f"| local/{model} | " + " | ".join(map(str, scores)) + f" | {minutes:.1f} |")


if __name__ == "__main__":
    asyncio.run(main())
