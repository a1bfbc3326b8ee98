"""Small bugs, each with a test that fails because of it: tasks of the suite `coding`."""

import msgspec

from benchmarks.local_eval.shop import tasks


class Repair(msgspec.Struct):
    name: str
    prompt: str
    files: dict[str, str]


def read_repairs(*, held_out: bool) -> tuple[Repair, ...]:
    return tuple(
        Repair(case.name.removeprefix("repair-"), case.prompts[0], case.files)
        for case in tasks("repair", held_out=held_out)
    )


REPAIRS = read_repairs(held_out=False)
