"""The package as its users get it: what the wheel and the source distribution contain, how large they are, and that the
wheel works in environments that have nothing else."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from email import message_from_string
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest

from tests.architecture.repository import ROOT

pytest.importorskip("hatchling", reason="hatchling is not installed")
pytestmark = pytest.mark.slow

REPOSITORY = "https://repository.test/owner/outrider"
# Bytes. An installation is the package and what it needs without an extra, without bytecode.
LARGEST_WHEEL, LARGEST_SDIST = 3_000_000, 8_000_000
LARGEST_INSTALLATION = 25_000_000


def load_function(script: str, name: str) -> Callable[..., Any]:
    return run_path(str(ROOT / "scripts" / script))[name]


def build(folder: Path, **environment: str) -> tuple[Path, Path]:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    environ = {name: value for name, value in os.environ.items() if name != "OUTRIDER_REPOSITORY_URL"} | environment
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(built: tuple[Path, Path]) -> Path:
    return built[0]


def read_metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode())


def test_the_wheel_has_every_file_of_the_package(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("outrider/")}
    source = ROOT / "src"
    expected = {
        file.relative_to(source).as_posix()
        for file in (source / "outrider").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert packed == expected
    assert wheel.stat().st_size < LARGEST_WHEEL


def test_the_source_distribution_has_what_the_make_targets_use(built: tuple[Path, Path]):
    with tarfile.open(built[1]) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git repository")
    missing = {name for name in listed.stdout.splitlines() if (ROOT / name).exists()} - packed
    assert missing == set()
    assert built[1].stat().st_size < LARGEST_SDIST


def test_a_package_index_shows_pictures_and_links_of_the_repository(tmp_path: Path):
    wheel, _ = build(tmp_path, OUTRIDER_REPOSITORY_URL=REPOSITORY + "/")
    metadata = read_metadata(wheel)
    text = str(metadata.get_payload())
    version = f"v{metadata['Version']}"
    assert f"]({REPOSITORY}/raw/{version}/docs/screens/conversation.svg)" in text
    assert f"[Contributing]({REPOSITORY}/blob/{version}/CONTRIBUTING.md)" in text
    assert "](docs/" not in text
    urls = dict(value.split(", ", 1) for value in metadata.get_all("Project-URL") or ())
    assert urls["Source"] == REPOSITORY
    assert urls["Changelog"] == f"{REPOSITORY}/blob/{version}/CHANGELOG.md"


def test_without_a_repository_the_description_has_no_dead_link(wheel: Path):
    metadata = read_metadata(wheel)
    text = str(metadata.get_payload())
    assert "](docs/" not in text
    assert "![" not in text
    assert "Contributing" in text
    assert metadata.get_all("Project-URL") is None
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_the_classifiers_name_the_supported_python_versions(wheel: Path):
    classifiers = read_metadata(wheel).get_all("Classifier") or []
    for minor in (11, 12, 13, 14):
        assert f"Programming Language :: Python :: 3.{minor}" in classifiers


def test_the_manual_page_names_every_command_and_flag(wheel: Path):
    from outrider.cli.completion import completion_levels

    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith("share/man/man1/outrider.1")]
        page = archive.read(names[0]).decode().replace("\\-", "-")
    missing = [f"outrider {' '.join(level.path)}" for level in completion_levels() if level.path]
    missing = [name for name in missing if f'.SS "{name}"' not in page]
    assert missing == []
    flags = {flag for level in completion_levels() for flag in level.flags} - {"-h", "--help"}
    assert {flag for flag in flags if f"\\fB{flag}\\fR" not in page} == set()


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_manual_page_is_formatted_without_a_warning(wheel: Path, tmp_path: Path):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("man1/outrider.1"))
        (tmp_path / "outrider.1").write_bytes(archive.read(name))
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-P-c", "-P-b", "-P-u", "-ww", str(tmp_path / "outrider.1")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert "EXIT STATUS" in done.stdout


def test_an_installation_of_the_core_stays_small():
    """The sizes of what is installed: the package and what it needs without an extra."""
    resolve = load_function("sbom", "resolve_packages")
    sizes = {name: installed_size(name) for name in resolve("outrider", set()) if name != "outrider"}
    sizes["outrider"] = sum(file.stat().st_size for file in (ROOT / "src").rglob("*") if file.suffix != ".pyc")
    assert sum(sizes.values()) < LARGEST_INSTALLATION, sizes


def installed_size(name: str) -> int:
    files = [Path(str(file.locate())) for file in distribution(name).files or ()]
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.exists())


def test_the_bill_of_materials_has_every_dependency(wheel: Path):
    command = [sys.executable, str(ROOT / "scripts" / "sbom"), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert len(bill["metadata"]["component"]["hashes"]) == 1
    names = {component["name"] for component in bill["components"]}
    assert {"msgspec", "tree-sitter", "textual", "starlette", "dbos", "preact"} <= names
    assert not {"pytest", "ruff", "esbuild"} & names
    references = {component["bom-ref"] for component in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    assert {one for edge in bill["dependencies"] for one in (edge["ref"], *edge["dependsOn"])} <= references


def test_a_release_needs_the_version_in_four_places(tmp_path: Path):
    check = load_function("check-release", "check_release")
    (tmp_path / "src" / "outrider").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    scores = tmp_path / "docs" / "local-model.md"
    scores.write_text("| release | score |\n|---|---|\n| 1.2.0 | 3 of 4 |\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    module, changelog = tmp_path / "src" / "outrider" / "__init__.py", tmp_path / "CHANGELOG.md"
    module.write_text('__version__ = "1.2.0"\n')
    changelog.write_text("# Changelog\n\n## 1.2.0 (2030-01-31)\n\n- New.\n\n## 1.1.0 (2029-01-31)\n\n- Old.\n")
    assert check("v1.2.0", tmp_path) == ("- New.", [])
    assert "the tag is v1.2.1" in check("v1.2.1", tmp_path)[1][0]
    scores.write_text("| 1.1.0 | 3 of 4 |\n")
    assert "no score of the embedded models for 1.2.0" in check("v1.2.0", tmp_path)[1][0]
    scores.write_text("| 1.2.0 | 3 of 4 |\n")
    changelog.write_text("# Changelog\n\n## 1.2.0 (unreleased)\n\n- New.\n")
    module.write_text('__version__ = "1.1.0"\n')
    wrong_version, no_date = check("v1.2.0", tmp_path)[1]
    assert "__version__" in wrong_version
    assert "has no date" in no_date


def test_the_release_workflow_builds_once_and_attests():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    workflows = {file.stem: yaml.safe_load(file.read_text()) for file in (ROOT / ".github" / "workflows").glob("*.yml")}
    jobs = workflows["release"]["jobs"]
    text = {name: json.dumps(job) for name, job in jobs.items()}
    assert [name for name in jobs if "make package" in text[name]] == ["build"]
    assert "attest-build-provenance" in text["build"]
    assert "attest-sbom" in text["build"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = [line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    assert workflows["checks"]["jobs"]["tests"]["strategy"]["matrix"]["python"] == supported
    systems = {job["runs-on"] for job in workflows["checks"]["jobs"].values()}
    assert {"ubuntu-latest", "macos-latest", "windows-latest"} <= systems


PROGRAM = """
from outrider import Agent, Provider, run
script = [{"tool": "add", "input": {"a": 20, "b": 22}}, "It is 42."]
model = Provider("demo", kind="scripted", options={"script": script})
def add(a: int, b: int) -> int: return a + b
print(run(Agent("helper", "Help.", model="demo", provider="demo"), "20 + 22?", tools=[add], providers=[model]).output)
"""


def install(command: list[str], environ: dict[str, str]) -> None:
    """Runs an installer, and skips the test if it cannot download what the package needs."""
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{Path(command[0]).name} did not download the dependencies within 200 s")
    output = (done.stdout + done.stderr).lower()
    if done.returncode and any(
        text in output for text in ("connection", "no matching distribution", "dns error", "timed out")
    ):
        pytest.skip(f"{Path(command[0]).name} cannot download the dependencies: {output.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment without the settings of this one; what pip and uv are configured with stays."""
    dropped = {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME"}
    inherited = {name: value for name, value in os.environ.items() if name not in dropped}
    return inherited | {"OUTRIDER_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}


def output(command: list[str], environ: dict[str, str], cwd: Path) -> str:
    done = subprocess.run(command, env=environ, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_works_in_a_clean_environment(wheel: Path, environ: dict[str, str], tmp_path: Path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=120)
    python = str(venv / "bin" / "python")
    install([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", str(wheel)], environ)
    assert output([python, "-c", PROGRAM], environ, tmp_path) == "It is 42.\n"
    assert output([str(venv / "bin" / "outrider"), "--version"], environ, tmp_path).startswith("outrider ")
    assert (venv / "share" / "man" / "man1" / "outrider.1").is_file()
    assert (venv / "share" / "bash-completion" / "completions" / "outrider").is_file()
    size = sum(file.stat().st_size for file in (venv / "lib").rglob("*") if file.is_file())
    assert size < 2 * LARGEST_INSTALLATION, "with bytecode"


@pytest.mark.skipif(shutil.which("uvx") is None, reason="uvx is not installed")
def test_uvx_runs_the_wheel(wheel: Path, environ: dict[str, str], tmp_path: Path):
    command = ["uvx", "--python", sys.executable, "--from", str(wheel), "outrider"]
    install([*command, "--version"], environ)
    assert output([*command, "--version"], environ, tmp_path).startswith("outrider ")
    assert "usage: outrider run" in output([*command, "run", "--help"], environ, tmp_path)


@pytest.mark.skipif(shutil.which("pipx") is None, reason="pipx is not installed")
def test_pipx_installs_the_program_and_its_manual_page(wheel: Path, environ: dict[str, str], tmp_path: Path):
    environ |= {
        "PIPX_HOME": str(tmp_path / "pipx"),
        "PIPX_BIN_DIR": str(tmp_path / "bin"),
        "PIPX_MAN_DIR": str(tmp_path / "man"),
    }
    install(["pipx", "install", "--python", sys.executable, str(wheel)], environ)
    assert output([str(tmp_path / "bin" / "outrider"), "--version"], environ, tmp_path).startswith("outrider ")
    assert (tmp_path / "man" / "man1" / "outrider.1").exists()
