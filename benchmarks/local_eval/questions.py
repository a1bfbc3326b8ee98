"""Questions that the files of the workspace answer, and what a correct answer contains: tasks of the suite `coding`."""

import re

import msgspec

from benchmarks.local_eval.shop import tasks


class Question(msgspec.Struct):
    prompt: str
    holds: str

    def accepts(self, answer: str) -> bool:
        return re.search(self.holds, answer, re.IGNORECASE) is not None


def read_questions(*, held_out: bool) -> tuple[Question, ...]:
    return tuple(Question(case.prompts[0], case.checks[0].matches) for case in tasks("question", held_out=held_out))


QUESTIONS = read_questions(held_out=False)
