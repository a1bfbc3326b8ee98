"""Thousands of edits over encodings, line endings, marks, links and modes: no byte changes outside the place."""

import os
import random
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from outrider import ToolCompleted
from tests.unit.tools.builtin.tool_workspace import ToolWorkspace

SOAK = bool(os.environ.get("OUTRIDER_SOAK"))
CASES = 10_000 if SOAK else 200
BATCHES = 10

ENCODINGS = {
    "utf-8": b"", "utf-8 with BOM": b"\xef\xbb\xbf", "utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff",
    "utf-32-le": b"\xff\xfe\0\0", "latin-1": b"", "cp1252": b"",
}  # fmt: skip
TOKENS = ["if", "return", "value", "(x)", "=", "{", "}", "'", '"', "#", "\\n", "$1", r"\1", "0", "a.b", "--", "+", "*"]
BEYOND = {"latin-1": ["é", "ü", "ß"], "cp1252": ["€", "é", "“"]}
EVERYWHERE = ["é", "日本", "€", "🙂", "\u2028", "e\u0301"]
INDENTS = ["", "", "  ", "    ", "\t", "\t\t", "        "]
MODES = [0o644, 0o600, 0o755, 0o444, 0o640]


@dataclass
class Made:
    """A file and an edit of it: `lines` have their endings; the edit is meant for lines[first:last]."""

    encoding: str
    bom: bytes
    lines: list[str]
    text: str

    def encode(self, text: str) -> bytes:
        return text.encode(self.encoding)

    @property
    def raw(self) -> bytes:
        return self.bom + self.encode(self.text)


def made(rng: random.Random) -> Made:
    name = rng.choice(list(ENCODINGS))
    encoding = name.removesuffix(" with BOM")
    endings = rng.choice([["\n"], ["\r\n"], ["\r"], ["\n", "\r\n"]])
    tokens = TOKENS + BEYOND.get(encoding, EVERYWHERE)
    lines = [line_of(rng, tokens) + rng.choice(endings) for _ in range(rng.randint(1, 25))]
    if encoding in BEYOND:
        lines[0] = f"caf\xe9 {BEYOND[encoding][0]} " + lines[0]  # else it would be ASCII, which is UTF-8 as well
    if rng.random() < 0.4:
        lines[-1] = lines[-1].rstrip("\r\n")
    return Made(encoding, ENCODINGS[name], lines, "".join(lines))


def line_of(rng: random.Random, tokens: list[str]) -> str:
    if rng.random() < 0.15:
        return rng.choice(["", "  ", "\t"])
    body = " ".join(rng.choice(tokens) for _ in range(rng.randint(1, 5)))
    return rng.choice(INDENTS) + body + rng.choice(["", "", "", " ", "\t ", f" {rng.randint(0, 999)}"])


def plain(text: str) -> str:
    return re.sub(r"\r\n|\r", "\n", text)


def occurrences(text: str, part: str) -> int:
    return sum(text.startswith(part, at) for at in range(len(text) - len(part) + 1))


def put(workspace: ToolWorkspace, case: Made, rng: random.Random, number: int) -> tuple[str, Path, int]:
    mode = rng.choice(MODES)
    target = workspace.write_file(f"d{number}/target", case.raw)
    target.chmod(mode)
    if rng.random() < 0.2:
        (target.parent / "link").symlink_to("target")
        return f"d{number}/link", target, mode
    return f"d{number}/target", target, mode


def check_attributes(path: Path, mode: int, name: str, workspace: ToolWorkspace) -> None:
    assert path.stat().st_mode & 0o7777 == mode
    if name.endswith("link"):
        assert (workspace.root / name).is_symlink()
    assert {one.name for one in path.parent.iterdir()} <= {"target", "link"}


@pytest.mark.soak
@pytest.mark.parametrize("batch", range(BATCHES))
async def test_an_exact_edit_changes_its_place_and_nothing_else(workspace: ToolWorkspace, batch: int):
    rng = random.Random(batch)
    applied = 0
    for number in range(CASES // BATCHES):
        case = made(rng)
        shown = plain(case.text)
        start = rng.randrange(len(shown)) if shown else 0
        end = min(len(shown), start + rng.choice([1, 3, 10, 40]))
        old = shown[start:end]
        new = "".join(rng.choice(["\n", "x", "  y", case.lines[0][:3].strip("\r\n") or "z", ""]) for _ in range(4))
        name, path, mode = put(workspace, case, rng, number)
        await workspace.output_of("read", file_path=name)
        part = await workspace.call("edit", file_path=name, old_string=old, new_string=new)
        result = path.read_bytes()
        check_attributes(path, mode, name, workspace)
        if not isinstance(part.state, ToolCompleted):
            assert result == case.raw
            in_doubt = old == new or not old or occurrences(shown, old) != 1
            assert in_doubt or not mode & 0o200, (part.state, case, old, new)
            continue
        applied += 1
        assert occurrences(shown, old) == 1
        before, after = original_around(case.text, start, end)
        head, tail = case.bom + case.encode(before), case.encode(after)
        assert result.startswith(head), (case, old, new)
        assert result.endswith(tail), (case, old, new)
        middle = result[len(head) : len(result) - len(tail)].decode(case.encoding)
        assert plain(middle) == new, (case, old, new, middle)
        written = set(re.findall(r"\r\n|\r|\n", middle))
        assert written <= (set(re.findall(r"\r\n|\r|\n", case.text)) or {"\n"}), (case, old, new, middle)
    assert applied > CASES // BATCHES * 0.4


def original_around(text: str, start: int, end: int) -> tuple[str, str]:
    """Returns the original text before and after a piece of the normalised text, found character by character."""
    places = [0]
    at = 0
    while at < len(text):
        at += 2 if text.startswith("\r\n", at) else 1
        places.append(at)
    return text[: places[start]], text[places[end] :]


@pytest.mark.soak
@pytest.mark.parametrize("batch", range(BATCHES))
async def test_a_tolerant_edit_preserves_every_line_that_it_does_not_change(workspace: ToolWorkspace, batch: int):
    rng = random.Random(1_000 + batch)
    applied = 0
    for number in range(CASES // BATCHES):
        case = made(rng)
        first = rng.randrange(len(case.lines))
        last = min(len(case.lines), first + rng.randint(1, 6))
        piece = [plain(line).rstrip("\n") for line in case.lines[first:last]]
        wanted = loosened(rng, piece)
        changed = rng.randrange(len(wanted))
        if not wanted[0] or not wanted[changed]:
            continue  # a text that starts with a line ending starts at the end of the previous line
        new = [*wanted[:changed], wanted[changed] + " more", *wanted[changed + 1 :]]
        name, path, mode = put(workspace, case, rng, number)
        await workspace.output_of("read", file_path=name)
        part = await workspace.call("edit", file_path=name, old_string="\n".join(wanted), new_string="\n".join(new))
        result = path.read_bytes()
        check_attributes(path, mode, name, workspace)
        if not isinstance(part.state, ToolCompleted):
            assert result == case.raw
            continue
        lines = split(result[len(case.bom) :].decode(case.encoding))
        if len(lines) != len(case.lines):
            continue  # a piece of a line that matched exactly; the other test judges those
        applied += 1
        differing = [n for n, (a, b) in enumerate(zip(lines, case.lines, strict=True)) if a != b]
        assert len(differing) <= 1, (case, wanted, new, lines)
        for n in differing:
            assert lines[n].split() == [*case.lines[n].split(), "more"] or " more" in lines[n], (case, wanted, lines)
            assert lines[n].startswith(case.lines[n].rstrip()[: len(case.lines[n]) - len(case.lines[n].lstrip())])
    assert applied > CASES // BATCHES * 0.15


def loosened(rng: random.Random, lines: list[str]) -> list[str]:
    """As a model might write them from memory: without whitespace at the end, or with less indentation."""
    trimmed = [line.rstrip() for line in lines]
    if rng.random() < 0.5:
        return trimmed
    filled = [line for line in trimmed if line]
    indents = [line[: len(line) - len(line.lstrip())] for line in filled]
    common = min(indents, key=len, default="")
    common = common if all(indent.startswith(common) for indent in indents) else ""
    return [line.removeprefix(common) for line in trimmed]


def split(text: str) -> list[str]:
    return [line for line in re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", text) if line]
