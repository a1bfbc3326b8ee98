"""Build hooks of the package: links and pictures of its description, the manual page and shell completions."""

import os
import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

# The repository in which a release is made; the release workflow sets it. Without it, the package has no links to it.
REPOSITORY_VARIABLE = "OUTRIDER_REPOSITORY_URL"
# Where each generated file is installed, below the prefix of the environment.
SHELL_FILES = {
    "man": "share/man/man1/outrider.1",
    "bash": "share/bash-completion/completions/outrider",
    "zsh": "share/zsh/site-functions/_outrider",
    "fish": "share/fish/vendor_completions.d/outrider.fish",
}
_IMAGE = re.compile(r"!\[(?P<text>[^\]]*)\]\((?!https?://)(?P<path>[^)\s]+)\)")
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?!https?://|#)(?P<path>[^)\s]+)\)")


class PackageDescription(MetadataHookInterface):
    """Sets the description and the URLs of the package from the README and the repository's address."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get(REPOSITORY_VARIABLE, "").strip().rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        version = f"v{metadata['version']}"
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": describe_package(text, repository, version),
        }
        metadata["urls"] = list_project_urls(repository, version)


def describe_package(text: str, repository: str, version: str) -> str:
    """Returns the README for a package index, which has no other file of the repository: links and pictures become
    absolute. Without a repository, pictures are left out and links become plain text."""
    if not repository:
        return _LINK.sub(lambda link: link["text"], re.sub(rf"^{_IMAGE.pattern}\n\n?", "", text, flags=re.MULTILINE))
    text = _IMAGE.sub(lambda image: f"![{image['text']}]({repository}/raw/{version}/{image['path']})", text)
    return _LINK.sub(lambda link: f"[{link['text']}]({repository}/blob/{version}/{link['path']})", text)


def list_project_urls(repository: str, version: str) -> dict[str, str]:
    """Returns the URLs of the package's metadata; none without a repository."""
    if not repository:
        return {}
    return {
        "Homepage": repository,
        "Documentation": f"{repository}/blob/{version}/docs/index.md",
        "Source": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/{version}/CHANGELOG.md",
    }


class ShellFiles(BuildHookInterface[Any]):
    """Generates the manual page and the completion scripts from the argument parsers, and adds them to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard" or os.name != "posix":
            return
        folder = Path(self.root) / "build" / "shell"
        folder.mkdir(parents=True, exist_ok=True)
        for kind, text in generate_shell_files(Path(self.root)).items():
            file = folder / f"outrider.{kind}"
            file.write_text(text, encoding="utf-8")
            build_data["shared_data"][str(file)] = SHELL_FILES[kind]


def generate_shell_files(root: Path) -> dict[str, str]:
    """Returns the text of each generated file, by its key in SHELL_FILES."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sys.path[:0] = [str(root / "src"), str(root / "scripts")]
    # The current settings of the machine that builds must not appear as defaults.
    database = os.environ.pop("OUTRIDER_DATABASE_URL", None)
    try:
        completion = import_module("outrider.cli.completion")
        man_page = import_module("man_page")
        levels = list(completion.completion_levels())
        return {
            "man": man_page.format_man_page(str(project["version"])),
            "bash": completion.bash_script(levels),
            "zsh": completion.zsh_script(levels),
            "fish": completion.fish_script(levels),
        }
    finally:
        del sys.path[:2]
        if database is not None:
            os.environ["OUTRIDER_DATABASE_URL"] = database
