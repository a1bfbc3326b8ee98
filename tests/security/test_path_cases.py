"""Every case of path containment from the corpus, on a real file system."""

import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.permissions.paths.containment import PathRefused, contain, open_to_read, open_to_write, write_atomically

Case = dict[str, object]


def cases() -> list[Case]:
    shared = Path(os.environ.get("OUTRIDER_SHARED") or Path(__file__).parents[3] / "shared")
    file = shared / "corpora" / "path_cases.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


CASES = cases()
DECIDED = [case for case in CASES if case["op"] != "other" and "race" not in case]
RACES = [case for case in CASES if "race" in case]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    for name in ("ws/src/deep", "ws/.git/hooks", "out/d", "ws-evil", "home/.ssh"):
        (tmp_path / name).mkdir(parents=True)
    for name in (
        "ws/README.md", "ws/src/app.py", "ws/src/deep/x.py", "ws/.git/config", "ws/.env", "out/secret.txt",
        "ws-evil/x.txt", "home/.ssh/id_rsa",
    ):  # fmt: skip
        (tmp_path / name).write_text(name)
    yield tmp_path
    for file in tmp_path.rglob("*"):
        if not file.is_symlink():
            file.chmod(0o755)


def prepare(place: Path, step: dict[str, object]) -> None:
    match step:
        case {"symlink": str(name), "target": str(target)}:
            (place / name).symlink_to(target.replace("{B}", str(place)))
        case {"hardlink": str(name), "target": str(target)}:
            os.link(place / target, place / name)
        case {"mkdir": str(name)}:
            (place / name).mkdir(parents=True)
        case {"fifo": str(name)}:
            os.mkfifo(place / name)
        case {"socket": str(name)}:
            here = Path.cwd()
            os.chdir(place)
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(name)
            os.chdir(here)
        case {"rmtree": str(name)}:
            shutil.rmtree(place / name)
        case {"file": str(name)}:
            (place / name).write_text("x")
            if (mode := step.get("mode")) is not None:
                (place / name).chmod(int(str(mode)))
        case _:
            raise AssertionError(step)


def filled(value: object, place: Path) -> object:
    if isinstance(value, dict):
        return bytes.fromhex(str(value["bytes_hex"]))
    return value.replace("{B}", str(place)) if isinstance(value, str) else value


@pytest.mark.parametrize("case", DECIDED, ids=[str(case["id"]) for case in DECIDED])
def test_a_path_resolves_as_in_the_corpus(case: Case, place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(place / "home"))
    for step in case["setup"]:  # pyright: ignore
        prepare(place, step)
    root, cwd = str(filled(case["root"], place)), str(filled(case["cwd"], place))
    extra = [filled(name, place) for name in case.get("extra_roots", [])]  # pyright: ignore
    found = contain(filled(case["request"], place), root=root, cwd=cwd, op=str(case["op"]), extra_roots=extra)
    if "refusing is also fine" in str(case["note"]):
        assert found.kind in {case["expected"], "reject"}
        return
    assert found.kind == case["expected"], found
    if target := case.get("real_target"):
        assert found.real_path == filled(target, place) or "/proc/" in str(target)


@pytest.mark.parametrize("case", RACES, ids=[str(case["id"]) for case in RACES])
def test_a_link_planted_after_the_decision_is_never_written_through(case: Case, place: Path):
    """The swap happens at the worst moment: after the check has returned "inside"."""
    workspace, request = place / "ws", str(case["request"])
    assert contain(request, root=workspace, cwd=workspace, op="write").kind == "inside"
    first = request.split("/", maxsplit=1)[0]
    outside = place / "out" / ("d" if "/" in request else "secret.txt")
    (workspace / first).symlink_to(outside)
    before = {path: path.read_bytes() for path in (place / "out").rglob("*") if path.is_file()}
    for attempt in (
        lambda: os.close(open_to_write(request, root=str(workspace), cwd=str(workspace))),
        lambda: write_atomically(request, b"evil", root=str(workspace), cwd=str(workspace)),
        lambda: os.close(open_to_read(request, root=str(workspace), cwd=str(workspace))),
    ):
        with pytest.raises((PathRefused, OSError)):
            attempt()
    assert {path: path.read_bytes() for path in (place / "out").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("member", "expected"),
    [("../../evil.txt", "outside"), ("/etc/cron.d/x", "outside"), ("docs/ok.txt", "inside")],
)
def test_a_member_of_an_archive_is_contained_like_any_path(member: str, expected: str, place: Path):
    assert contain(member, root=place / "ws", cwd=place / "ws", op="create").kind == expected


def test_the_corpus_is_there_whole(shared_dir: Path):
    assert len(CASES) == 103, f"{shared_dir} holds {len(CASES)} path cases"
