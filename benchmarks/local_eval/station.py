"""The workspace of the tasks that no prompt was tuned on."""

from benchmarks.local_eval.shop import tasks

STATION = tasks("question", held_out=True)[0].files
