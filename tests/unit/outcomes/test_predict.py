"""Commands that publish, deploy or install are recognized by their text, with the hosts that they need."""

from pathlib import Path

import pytest

from outrider.outcomes.predict import PackageRegistries, predict_effect
from tests.fixtures.cases import for_each

CONFIG = """[core]
    bare = false
[remote "origin"]
    url = git@github.com:someone/project.git
    fetch = +refs/heads/*:refs/remotes/origin/*
[remote "mirror"]
    url = https://git.example.org/project.git
[remote "local"]
    url = /srv/backup.git
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text(CONFIG)
    return tmp_path


@for_each(
    ("command", "hosts"),
    [
        ("git push origin main", ("github.com",)),
        ("git push mirror", ("git.example.org",)),
        ("git -C . push --force mirror HEAD", ("git.example.org",)),
        ("git push https://gitlab.com/a/b.git", ("gitlab.com",)),
        ("npm publish --access public", ("registry.npmjs.org",)),
        ("pip install requests", ("pypi.org", "files.pythonhosted.org")),
        ("python3 -m pip install -r requirements.txt", ("pypi.org", "files.pythonhosted.org")),
        ("cd web && npm ci", ("registry.npmjs.org",)),
        ("bash -c 'yarn add left-pad'", ("registry.npmjs.org",)),
        ("timeout 60 go mod download", ("proxy.golang.org", "sum.golang.org")),
        ("twine upload dist/*", ("upload.pypi.org",)),
        ("uv pip install x", ("pypi.org", "files.pythonhosted.org")),
        ("terraform apply", ()),
        ("uv sync && git push origin", ("pypi.org", "files.pythonhosted.org", "github.com")),
    ],
)
def test_a_command_that_reaches_out_is_predicted_with_its_hosts(command: str, hosts: tuple[str, ...], workspace: Path):
    effect = predict_effect(command, workspace=workspace)
    assert effect is not None
    assert effect.hosts == hosts
    assert not effect.outside


@pytest.mark.parametrize("command", ["sudo apt-get install jq", "docker push someone/image", "brew upgrade"])
def test_what_the_sandbox_cannot_do_is_predicted_as_outside(command: str, workspace: Path):
    effect = predict_effect(command, workspace=workspace)
    assert effect is not None
    assert effect.outside
    assert effect.wanted == ()


@for_each(
    "command",
    [
        "git push local",
        "git status",
        "git log --grep push",
        "npm test",
        "npm run build",
        "npm ci --offline",
        "pip list",
        "pip install --help",
        "cargo build",
        "echo pip install x",
        "grep -r 'npm publish' .",
        "kubectl get pods",
        "ls",
    ],
)
def test_other_commands_are_not_predicted(command: str, workspace: Path):
    assert predict_effect(command, workspace=workspace) is None


def test_without_a_repository_the_host_of_a_push_is_unknown(tmp_path: Path):
    effect = predict_effect("git push", workspace=tmp_path)
    assert effect is not None
    assert effect.hosts == ()
    assert [access.kind for access in effect.wanted] == ["network"]


SETTINGS = {
    ".npmrc": "registry=https://npm.corp.example/\n@team:registry=https://team.corp.example/npm/\n",
    "web/.npmrc": "registry = https://web.corp.example/\n",
    "pyproject.toml": '[[tool.uv.index]]\nname = "corp"\nurl = "https://uv.corp.example/simple"\n',
}


@pytest.mark.parametrize(
    ("command", "folder", "environment", "hosts"),
    [
        ("npm ci", "", {}, ("npm.corp.example", "team.corp.example")),
        ("npm ci", "web", {}, ("web.corp.example", "npm.corp.example", "team.corp.example")),
        ("npm i --registry http://other.example:4873/x left-pad", "", {}, ("other.example:4873", "team.corp.example")),
        ("yarn add x", "", {"npm_config_registry": "https://env.example"}, ("env.example", "team.corp.example")),
        ("pip install x", "", {}, ("pip.corp.example", "extra.corp.example", "uv.corp.example")),
        ("pip install -i https://a.example/simple x", "", {}, ("a.example", "extra.corp.example", "uv.corp.example")),
        (
            "uv sync --index-url=https://b.example/",
            "",
            {"PIP_EXTRA_INDEX_URL": "https://c.example/"},
            ("b.example", "c.example", "extra.corp.example", "uv.corp.example"),
        ),
        ("cargo add x", "", {}, ("index.crates.io", "static.crates.io", "crates.io")),
    ],
)
def test_configured_registries_replace_the_public_ones(command, folder, environment, hosts, tmp_path):
    workspace, home = tmp_path / "workspace", tmp_path / "home"
    for name, text in SETTINGS.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text(text)
    (home / ".config" / "pip").mkdir(parents=True)
    pip = "[global]\nindex-url = https://pip.corp.example/simple\nextra-index-url = https://extra.corp.example/simple\n"
    (home / ".config" / "pip" / "pip.conf").write_text(pip)
    known = PackageRegistries(workspace, home, environment)
    effect = predict_effect(command, workspace=workspace, folder=folder, registries=known)
    assert effect is not None
    assert effect.hosts == hosts
