"""A home, a workspace and a scripted model for every test, and terminals that are closed after it."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.tui.terminal import Terminal

pytest.importorskip("textual", reason="the extra `terminal` is not installed")
pytest.importorskip("pyte", reason="pyte is not installed")

Open = Callable[..., Terminal]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "notes.txt").write_text("remember the milk\n")
    return folder


def write_script(home: Path, script: list[Any], *, delay: float = 0.0) -> None:
    """A configuration whose only model says what is written."""
    answers = ",\n  ".join(_toml(answer) for answer in script)
    (home / "config.toml").write_text(
        f'model = "script/demo"\n[providers.script]\nkind = "scripted"\nmodel = "demo"\n'
        f"[providers.script.options]\ndelay = {delay}\nscript = [\n  {answers}\n]\n"
    )


def _toml(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + ", ".join(_toml(one) for one in value) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def call(tool: str, **given: Any) -> dict[str, Any]:
    return {"tool": tool, "input": given}


@pytest.fixture
def open_terminal(home: Path, workspace: Path) -> Iterator[Open]:
    opened: list[Terminal] = []

    def open_one(*arguments: str, size: tuple[int, int] = (100, 32), **environ: str) -> Terminal:
        names = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG")
        kept = {name: os.environ[name] for name in names if name in os.environ}
        given = {**kept, "OUTRIDER_HOME": str(home), "HOME": str(home), "TERM": "xterm-256color", **environ}
        terminal = Terminal(list(arguments), cwd=workspace, environ=given, size=size)
        opened.append(terminal)
        return terminal

    yield open_one
    for terminal in opened:
        terminal.close()
