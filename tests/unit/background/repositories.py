"""Creates real git repositories and commits."""

import os
import subprocess
from pathlib import Path

from outrider.config.paths import AppFolders


def run_git(folder: Path, *arguments: str) -> str:
    people = [f"GIT_{who}_{what}" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")]
    author = dict.fromkeys(people, "somebody@example.org")
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=os.environ | author, capture_output=True, text=True, check=True
    )
    return done.stdout


def repository(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    run_git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / "src").mkdir()
    (folder / "src" / "tea.txt").write_text("green\n")
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "--message", "begin")
    return folder


def folders_in(folder: Path) -> AppFolders:
    return AppFolders(folder / "own", folder / "own", folder)
