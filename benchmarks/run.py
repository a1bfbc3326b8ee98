"""Runs every `bench_*.py` in this folder, or those named as arguments, and prints their figures in one table."""

import importlib
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

from benchmarks.figure import Figure

HEADINGS = ("figure", "value", "ratio", "target", "")


def main(wanted: list[str]) -> None:
    """A missed target is marked and is no error, because figures depend on the machine and its load."""
    known = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    if unknown := [name for name in wanted if name not in known]:
        sys.exit(f"there is no benchmark {', '.join(unknown)}; there are: {', '.join(known)}")
    names = wanted or known
    figures: list[Figure] = []
    broken: list[str] = []
    for name in names:
        start = time.perf_counter()
        try:
            figures += importlib.import_module(f"benchmarks.bench_{name}").bench()
        except Exception:  # noqa: BLE001 - one broken benchmark must not hide the figures of the others
            traceback.print_exc()
            broken.append(name)
        print(f"{name}: {time.perf_counter() - start:.1f} s", file=sys.stderr)
    print(table(row(figure) for figure in figures))
    missed = [figure.name for figure in figures if figure.ok is False]
    print(f"\n{len(figures)} figures, {len(missed)} missed, {len(broken)} benchmarks broken")
    for name in broken:
        print(f"broken: {name}")


def row(figure: Figure) -> tuple[str, ...]:
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}x"
    return figure.name, f"{figure.value:,.4g} {figure.unit}", ratio, figure.target, figure.verdict


def table(rows: Iterable[tuple[str, ...]]) -> str:
    cells = [HEADINGS, *rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


if __name__ == "__main__":
    main(sys.argv[1:])
