"""The tasks of the suite `coding` that embedded models get, and the small workspace for choosing and answering."""

from pathlib import Path

from outrider.evals import EvalCase, load_suite

_SUITE = load_suite("coding")


def tasks(tag: str, *, held_out: bool) -> list[EvalCase]:
    return [case for case in _SUITE.cases if tag in case.tags and ("held-out" in case.tags) == held_out]


FILES = tasks("question", held_out=False)[0].files


def lay_out(folder: Path, files: dict[str, str] = FILES) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
