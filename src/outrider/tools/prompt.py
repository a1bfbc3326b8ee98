"""The words a model reads about a built-in tool: the `.md` file beside its module."""

from pathlib import Path


def prompt_beside(module: str, **words: str) -> str:
    """`words` fill in what is known only when the tool is made, such as the names of agents."""
    text = Path(module).with_suffix(".md").read_text(encoding="utf-8").strip()
    for name, value in words.items():
        text = text.replace("{" + name + "}", value)
    return text
