"""The user's own prompts: `NAME.md` in the folder `prompts` takes the place of the one that Outrider brings."""

from pathlib import Path

from outrider.context.prompts import prompt_text

LARGEST = 200_000
AGENT = "agent"


def read_prompts(folder: Path) -> dict[str, str]:
    """By name: those of tools have the tool's name; an empty file is taken at its word."""
    return {path.stem: _text(path) for path in sorted(folder.glob("*.md")) if path.is_file()}


def default_instructions(folder: Path) -> str:
    own = folder / f"{AGENT}.md"
    return _text(own) if own.is_file() else prompt_text(AGENT)


def _text(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(LARGEST).removeprefix("\ufeff").strip()
