"""Asks the embedded model what new users ask first: `python -m benchmarks.first_questions FOLDER… [--model 0.5b]`.

Each question is a fresh `outrider run` in a folder with a small project. An answer passes if it is not empty, does not
repeat itself, names no file and no symbol that the folder lacks, and took at most 120 s. On a machine that does other
work, CPU time divided by the number of cores is the time that counts (`--cpu-time`).
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

QUESTIONS = (
    "Explain how this project is put together",
    "What does this project do?",
    "Which files are here?",
    "How do I run the tests?",
    "Where does the program start?",
    "What are the main classes and functions?",
    "How do I install it?",
    "Which dependencies does it have?",
    "Is there anything left to do in the code?",
    "How are errors handled here?",
)
MAX_SECONDS = 120.0
MAX_TEXT_BYTES = 2_000_000
SKIPPED_FOLDERS = {".git", "node_modules", "__pycache__", ".venv"}
# A file name with an extension, or a path with a slash; a symbol in code quotes, with an underscore, with capitals
# inside, or before parentheses.
FILE_NAME = re.compile(
    r"(?<![\w/.@:-])(?:[\w.-]+/)*[\w-]*[A-Za-z_][\w-]*\.[A-Za-z]{1,6}\b(?![\w(./])|(?<![\w/.@:])(?:[\w.-]+/)+[\w.-]*"
)
QUOTED = re.compile(r"`([^`\n]+)`")
SYMBOL = re.compile(r"\b(?:[A-Za-z]+_\w+|[a-z]+[A-Z]\w*|[A-Z][a-z]+[A-Z]\w*|[A-Za-z_]\w*(?=\(\)))")
ADDRESS = re.compile(r"https?://\S+")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
ABBREVIATIONS = {"e.g", "i.e", "etc"}


@dataclass(frozen=True)
class Project:
    """The file names and the text of a folder."""

    folder: Path
    paths: frozenset[str]
    text: str

    @classmethod
    def read(cls, folder: Path) -> "Project":
        paths: set[str] = set()
        texts: list[str] = []
        for place, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if name not in SKIPPED_FOLDERS]
            for name in [*names, *folders]:
                path = Path(place, name)
                paths.add(path.relative_to(folder).as_posix())
                if path.is_file() and path.stat().st_size < MAX_TEXT_BYTES:
                    texts.append(path.read_bytes().decode("utf-8", "ignore"))
        return cls(folder, frozenset(paths), "\n".join(texts))

    def find_invented_names(self, answer: str, question: str) -> list[str]:
        """Returns the file names and symbols of an answer that neither the folder nor the question has."""
        answer = ADDRESS.sub(" ", answer)
        known = f"{self.text}\n{question}\n{self.folder.name}\n" + "\n".join(self.paths)
        return [name for name in dict.fromkeys(named(answer)) if not self._has(name, known)]

    def _has(self, name: str, known: str) -> bool:
        path = name.removeprefix("./").rstrip("/")
        own = path.removeprefix(f"{self.folder.name}/")
        if name in known or own in known or any(f"/{known_path}".endswith(f"/{own}") for known_path in self.paths):
            return True
        return name.isalpha() and name.lower() in known.lower()  # GitHub, for github.com


def named(answer: str) -> Iterator[str]:
    for found in FILE_NAME.findall(answer):
        name = found.strip(".")
        if name and name not in ABBREVIATIONS:
            yield name
    for quoted in QUOTED.findall(answer):
        words = quoted.split()
        yield from (word.strip("(),:;") for word in (words if len(words) == 1 else ()))
    yield from SYMBOL.findall(answer)


@dataclass(frozen=True)
class Verdict:
    answer: str
    seconds: float
    faults: tuple[str, ...]
    steps: str


def ask(project: Project, question: str, model: str, *, cpu_time: bool) -> Verdict:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "outrider", "run", "--model", f"local/{model}", "-o", "stream-json", "--no-deltas"]
    done = subprocess.run([*command, question], cwd=project.folder, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = spent / (os.cpu_count() or 1) if cpu_time else time.monotonic() - start
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    calls = [event for event in events if event.get("type") == "tool_call"]
    steps = " ".join(f"{call['tool']}({next(iter(call['input'].values()), '')})" for call in calls)
    answer = next(
        (event.get("output") or "" for event in reversed(events) if event.get("type") in ("finish", "end", "result")),
        "",
    )
    return Verdict(
        answer, seconds, tuple(find_faults(project, question, answer, seconds)), steps or done.stderr.strip()[-200:]
    )


def find_repetition(answer: str) -> str:
    """Returns a sentence of five words or more that an answer contains twice, a line that it contains four times, or
    the note of an answer that was stopped because it repeated itself. Returns an empty string if there is none."""
    if "repeated itself" in answer:
        return "itself"
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    sentences = [" ".join(text.lower().split()) for line in lines for text in SENTENCE_END.split(line)]
    often = [line for line, count in Counter(lines).items() if count >= 4 and line != "```"]
    twice = [text for text, count in Counter(sentences).items() if count >= 2 and text.count(" ") >= 4]
    return next(iter([*twice, *often]), "")


def find_faults(project: Project, question: str, answer: str, seconds: float) -> Iterator[str]:
    if not answer.strip():
        yield "no answer"
    if repeated := find_repetition(answer):
        yield f"repeats {repeated!r}"
    if seconds > MAX_SECONDS:
        yield f"took {seconds:.0f} s"
    yield from (f"invented {name}" for name in project.find_invented_names(answer, question))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_questions", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--model", default="1.5b")
    parser.add_argument("--matching", default="", help="only questions with this text")
    parser.add_argument("--cpu-time", action="store_true", help="judge CPU time per core instead of elapsed time")
    given = parser.parse_args()
    failed, count, slowest = 0, 0, 0.0
    for folder in given.folders:
        project = Project.read(folder.resolve())
        for question in QUESTIONS:
            if given.matching not in question:
                continue
            verdict = ask(project, question, given.model, cpu_time=given.cpu_time)
            failed, count, slowest = failed + bool(verdict.faults), count + 1, max(slowest, verdict.seconds)
            mark = "FAIL" if verdict.faults else "ok  "
            print(f"{mark} {verdict.seconds:5.1f} s  {folder.name}: {question}  [{verdict.steps}]")
            print(f"      {verdict.answer.strip()!r}", flush=True)
            for fault in verdict.faults:
                print(f"      - {fault}", flush=True)
    print(f"{count - failed} of {count} answers pass, the slowest took {slowest:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
