"""A home, a workspace and a scripted model for every test, and terminals that are closed after it."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.tui.terminal import Terminal, Tmux, XServer, Xterm, has_programs

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
    """Writes a configuration with a scripted model."""
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


def environment(home: Path, **more: str) -> dict[str, str]:
    names = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG")
    inherited = {name: os.environ[name] for name in names if name in os.environ}
    return {**inherited, "OUTRIDER_HOME": str(home), "HOME": str(home), "TERM": "xterm-256color", **more}


@pytest.fixture
def open_terminal(home: Path, workspace: Path) -> Iterator[Open]:
    opened: list[Terminal] = []

    def open_one(*arguments: str, size: tuple[int, int] = (100, 32), **environ: str) -> Terminal:
        terminal = Terminal(list(arguments), cwd=workspace, environ=environment(home, **environ), size=size)
        opened.append(terminal)
        return terminal

    yield open_one
    for terminal in opened:
        terminal.close()


@pytest.fixture
def open_tmux(home: Path, workspace: Path) -> Iterator[Callable[..., Tmux]]:
    if not has_programs("tmux"):
        pytest.skip("tmux is not installed")
    opened: list[Tmux] = []

    def open_one(*arguments: str, size: tuple[int, int] = (80, 24), **environ: str) -> Tmux:
        opened.append(Tmux(list(arguments), cwd=workspace, environ=environment(home, **environ), size=size))
        return opened[-1]

    yield open_one
    for terminal in opened:
        terminal.close()


@pytest.fixture(scope="session")
def x_server() -> Iterator[XServer]:
    if not has_programs("Xvfb", "xterm", "xdotool", "xclip"):
        pytest.skip("Xvfb, xterm, xdotool or xclip is not installed")
    server = XServer()
    yield server
    server.close()


@pytest.fixture
def open_xterm(x_server: XServer, home: Path, workspace: Path) -> Iterator[Callable[..., Xterm]]:
    opened: list[Xterm] = []

    def open_one(*arguments: str, size: tuple[int, int] = (100, 32), **environ: str) -> Xterm:
        given = environment(home, **environ)
        opened.append(Xterm(x_server, list(arguments), cwd=workspace, environ=given, size=size))
        return opened[-1]

    yield open_one
    for terminal in opened:
        terminal.close()
