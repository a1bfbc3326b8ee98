"""A user folder with secrets, a workspace, and marker files that show whether something was executed or read."""

import json
import os
import re
import stat
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fixtures.standard_engine import Place

SECRET = "hunter2-of-the-user"
INJECTED_TEXT = "OBEY-THE-CANARY"


class Ground(Place):
    """`canary` is a program that leaves `mark`; `url` is the address of a listener; `INJECTED_TEXT`
    must not reach a model."""

    def __init__(self, folder: Path, url: str, *, name: str = "workspace", extra: dict[str, str] | None = None) -> None:
        super().__init__(folder)
        self.workspace = folder / name
        self.workspace.mkdir(exist_ok=True)
        self.url = url
        self.mark = folder / "mark"
        self.canary = folder / "canary"
        self.outside = folder / "elsewhere"
        self.outside.mkdir()
        self.extra = extra or {}
        self._program(self.canary, f'#!/bin/sh\necho "$0 $*" >> {self.mark}\nexit 0\n')
        for secret in (".ssh/id_ed25519", ".aws/credentials", ".netrc"):
            path = self.home / secret
            path.parent.mkdir(exist_ok=True)
            path.write_text(SECRET)

    @property
    def environ(self) -> dict[str, str]:
        return {**super().environ, "PATH": os.environ["PATH"], "USER_TOKEN": SECRET, **self.extra}

    def put(self, name: str, text: str = "", *, runs: bool = False) -> Path:
        path = self.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if runs:
            self._program(path, text or f"#!/bin/sh\nexec {self.canary} {name}\n")
        else:
            path.write_text(text)
        return path

    def put_json(self, name: str, value: object) -> Path:
        return self.put(name, json.dumps(value))

    def link(self, name: str, target: Path) -> None:
        path = self.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        """As the attacker: with the attacker's own settings, far from the user."""
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            "HOME": str(self.outside),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "a",
            "GIT_AUTHOR_EMAIL": "a@example.org",
            "GIT_COMMITTER_NAME": "a",
            "GIT_COMMITTER_EMAIL": "a@example.org",
        }
        command = ["git", "-c", "protocol.file.allow=always", *arguments]
        done = subprocess.run(
            command, cwd=cwd or self.workspace, env=environ, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def repository(self, where: Path | None = None, **files: str) -> None:
        """A repository with one commit, and a file that has changed since."""
        folder = where or self.workspace
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "file.txt").write_text("before\n")
        for name, text in files.items():
            (folder / name).write_text(text)
        self.git("init", "-q", "-b", "main", cwd=folder)
        self.git("add", "-A", cwd=folder)
        self.git("commit", "-q", "-m", "first", cwd=folder)
        (folder / "file.txt").write_text("after\n")

    def configure(self, key: str, value: str, cwd: Path | None = None) -> None:
        self.git("config", key, value, cwd=cwd)

    def _program(self, path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


@dataclass
class Trap:
    """One hostile workspace. `control` is a command that springs the trap when a careless program runs it; `timeout` is
    that of each shell command."""

    name: str
    build: Callable[[Ground], None]
    control: Sequence[str] = ()
    commands: Sequence[str] = ()
    folder: str = "workspace"
    environ: Callable[[Ground], dict[str, str]] = field(default=lambda _: {})
    timeout: int = 3


TRAPS: list[Trap] = []


def trap(
    *,
    control: Sequence[str] = (),
    commands: Sequence[str] = (),
    folder: str = "workspace",
    environ: Callable[[Ground], dict[str, str]] = lambda _: {},
    timeout: int = 3,
) -> Callable[[Callable[[Ground], None]], Callable[[Ground], None]]:
    def keep(build: Callable[[Ground], None]) -> Callable[[Ground], None]:
        TRAPS.append(Trap(build.__name__, build, control, commands, folder, environ, timeout))
        return build

    return keep


def as_toml(script: str) -> str:
    """A script in JSON as TOML writes it: the colons of its tables are equals signs."""
    return re.sub(r'("(?:[^"\\]|\\.)*"): ', r"\1 = ", script)
