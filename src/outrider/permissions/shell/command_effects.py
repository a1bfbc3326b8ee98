"""Describes in plain words what a command does, whether it destroys something, and how far its rule may be widened."""

import re
from collections.abc import Sequence

from outrider.permissions.redaction.secret_patterns import split_names
from outrider.permissions.shell.command import ScriptAnalysis
from outrider.permissions.shell.programs.registry import KNOWN_EFFECTS, program_name
from outrider.permissions.shell.wrappers import runs_its_arguments
from outrider.types.outcomes import CallEffect

_TEST_SCRIPT = "runs the project's test script, which may write files"
_SCRIPT = "runs a script of the project, which may write files"
_INSTALL = "downloads packages and writes them to disk; their install scripts can run code"
_BUILD = "builds the project and writes build files"
_TESTS = "runs the project's tests, which may write files"
_PUBLISH = "publishes the package for everyone"
_LINT = "checks the code and may write a cache"
_FORMAT = "rewrites source files"

# By program, or by program and subcommand.
_EFFECTS: dict[str, str] = {
    **dict.fromkeys(("npm test", "npm t", "yarn test", "pnpm test", "bun test"), _TEST_SCRIPT),
    **dict.fromkeys(("npm run", "yarn run", "pnpm run", "bun run", "npm start", "yarn start", "pnpm start"), _SCRIPT),
    **dict.fromkeys(
        ("npm install", "npm i", "npm ci", "npm add", "yarn", "yarn install", "yarn add", "pnpm install", "pnpm add",
         "bun install", "bun add", "pip install", "pip3 install", "uv sync", "uv add", "uv pip", "poetry install",
         "poetry add", "cargo add", "cargo install", "go get", "go install", "gem install", "bundle install",
         "composer install"),
        _INSTALL,
    ),
    **dict.fromkeys(
        ("make", "cargo build", "go build", "npm build", "dotnet build", "gradle", "./gradlew", "mvn", "cmake", "ninja",
         "bazel build", "tsc", "webpack", "vite build"),
        _BUILD,
    ),
    **dict.fromkeys(
        ("pytest", "cargo test", "go test", "tox", "nox", "jest", "vitest", "mocha", "rspec", "phpunit", "dotnet test",
         "make test", "mvn test", "gradle test", "./gradlew test", "python -m pytest", "python3 -m pytest",
         "python -m unittest", "python3 -m unittest"),
        _TESTS,
    ),
    **dict.fromkeys(("npm publish", "yarn publish", "pnpm publish", "cargo publish", "poetry publish"), _PUBLISH),
    "twine": _PUBLISH,
    "twine upload": _PUBLISH,
    **dict.fromkeys(("mypy", "pyright", "basedpyright", "eslint", "flake8", "pylint", "ruff check", "cargo check",
                     "cargo clippy", "go vet", "golangci-lint"), _LINT),
    **dict.fromkeys(("prettier", "black", "isort", "ruff format", "gofmt", "rustfmt", "cargo fmt", "go fmt"), _FORMAT),
    "git push": "sends commits to another repository",
    "git stash": "moves changes of the working tree into the stash",
    "git stash drop": "deletes a stash",
    "git stash clear": "deletes all stashes",
    "git reset": "moves the branch and can discard changes",
    "git clean": "deletes files that git does not track",
    "docker": "controls the Docker service, which can change the whole machine",
    "docker compose": "starts or stops containers",
    "docker run": "starts a container",
    "docker build": "builds an image, which runs the commands of its Dockerfile",
    "kubectl": "sends requests to a cluster",
    "kubectl apply": "changes a cluster",
    "kubectl delete": "deletes objects of a cluster",
    "terraform apply": "changes real infrastructure",
    "terraform destroy": "deletes real infrastructure",
    "npx": "downloads and runs a package",
    "uvx": "downloads and runs a package",
    "pipx": "downloads and runs a package",
    "gh": "uses your GitHub account",
    "tee": "writes its input to files",
    "tar": "packs or unpacks files and can overwrite existing ones",
    "unzip": "unpacks files and can overwrite existing ones",
    **dict.fromkeys(("psql", "mysql", "mariadb", "mongosh", "redis-cli"), "can change a database"),
    "xargs": "runs a program for each item of its input",
    **dict.fromkeys(("sudo", "doas", "su"), "runs a program with the rights of another user"),
    "eval": "runs text as a command",
}  # fmt: skip

_DESTRUCTIVE_PROGRAMS = split_names(
    """rm rmdir unlink shred dd truncate wipefs fdisk parted mkfs kill pkill killall reboot shutdown halt poweroff chown
    chgrp chmod crontab userdel groupdel dropdb dropuser srm"""
)
_DESTRUCTIVE_VERBS: dict[str, frozenset[str]] = {
    "git": split_names("clean filter-branch gc prune reflog update-ref"),
    **dict.fromkeys(("docker", "podman", "nerdctl"), split_names("rm rmi prune kill system volume")),
    **dict.fromkeys(("kubectl", "oc"), split_names("delete drain replace")),
    **dict.fromkeys(("terraform", "tofu", "pulumi", "cdk"), split_names("destroy apply up")),
    "helm": split_names("uninstall delete rollback"),
    **dict.fromkeys(("npm", "yarn", "pnpm"), split_names("unpublish publish deprecate")),
    "cargo": split_names("publish yank"),
    "twine": split_names("upload"),
    "poetry": split_names("publish"),
    **dict.fromkeys(("apt", "apt-get", "dnf", "yum", "apk", "brew", "pacman"), split_names("remove purge erase -R")),
    "systemctl": split_names("stop disable mask poweroff reboot"),
}
# Options and words that make a call of a program destructive.
_DESTRUCTIVE_WORDS: dict[tuple[str, ...], re.Pattern[str]] = {
    ("git", "push"): re.compile(r"-f|--force.*|--mirror|--delete|-d|--prune|\+.*|:.+"),
    ("git", "reset"): re.compile(r"--hard|--merge|--keep"),
    ("git", "checkout"): re.compile(r"-f|--force|--|\."),
    ("git", "restore"): re.compile(r".*"),
    ("git", "switch"): re.compile(r"-f|--force|--discard-changes|-C"),
    ("git", "branch"): re.compile(r"-[a-zA-Z]*[dDfM][a-zA-Z]*|--delete|--force"),
    ("git", "tag"): re.compile(r"-d|--delete|-f|--force"),
    ("git", "stash"): re.compile(r"drop|clear|pop"),
    ("git", "worktree"): re.compile(r"remove|prune"),
    ("git", "remote"): re.compile(r"rm|remove|prune|set-url"),
    ("gh",): re.compile(r"delete|archive|transfer|merge|close"),
    ("find",): re.compile(r"-delete|-exec(dir)?|-ok(dir)?"),
    ("rsync",): re.compile(r"--del.*|--remove-source-files"),
    ("mv",): re.compile(r"/|~|/dev/.*"),
}
_DESTRUCTIVE_SQL = re.compile(r"\b(?:drop|truncate|delete\s+from|alter\s+table)\b", re.IGNORECASE)
# With other arguments these can destroy something, send data away or run any code.
_NEVER_WIDENED = split_names(
    """mv cp install ln aws gcloud az psql mysql mariadb mongosh mongo redis-cli sqlite3 curl wget ssh scp sftp rsync nc
    ftp telnet systemctl launchctl apt apt-get dnf yum apk pacman gh glab terraform tofu pulumi helm ansible
    ansible-playbook tee patch git-lfs mount umount iptables ip busybox toybox openssl gpg nix make"""
)
_NEVER_WIDENED_VERBS = frozenset(
    ("git", verb)
    for verb in split_names(
        """push reset checkout restore switch branch tag stash worktree remote config rebase submodule bisect difftool
        clean gc reflog update-ref filter-branch am apply rm mv"""
    )
)
# Programs whose first argument is a subcommand; a rule names it.
_WITH_SUBCOMMANDS = split_names(
    """git npm yarn pnpm bun cargo go pip pip3 uv poetry pdm hatch rye conda dotnet composer bundle rails rake mix gem
    gradle ./gradlew mvn flutter dart swift bazel just pre-commit alembic docker podman kubectl"""
)
_WITH_TWO_SUBCOMMANDS = frozenset({
    ("npm", "run"), ("yarn", "run"), ("pnpm", "run"), ("bun", "run"), ("go", "mod"), ("uv", "pip"),
})  # fmt: skip
_NAMED_WITH_SUBCOMMAND = _WITH_SUBCOMMANDS | {"gh", "make", "twine", "terraform", "ruff", "vite"}
_RISKS = ("connects to", "sends", "publishes", "cannot be predicted", "runs a package", "account", "rights of")
_SUBCOMMAND = re.compile(r"[a-z][a-zA-Z0-9:._-]*")
_PYTHON = re.compile(r"python(?:[23](?:\.\d+)?)?")
_CHECKING_MODULES = split_names(
    "pytest unittest mypy ruff black isort flake8 pylint pyright basedpyright coverage build"
)


def describe_command(words: Sequence[str]) -> CallEffect | None:
    """Returns in plain words what a command does, or None if nothing is known about it."""
    named = _named_words(words)
    for count in range(min(len(named), 3), 0, -1):
        key = " ".join(named[:count])
        effect = _EFFECTS.get(key) or KNOWN_EFFECTS.get(key)
        if effect is not None:
            call = " ".join(named[: 3 if count == 3 or named[1:2] in (["run"], ["-m"]) else 2])
            risky = is_destructive(words) or any(risk in effect for risk in _RISKS)
            return CallEffect(f"{call} {effect}", risky)
    return None


def list_effects(script: ScriptAnalysis) -> tuple[CallEffect, ...]:
    """Returns in plain words what a command line does, risky effects first; empty if it is proven to only read."""
    effects = [CallEffect(problem) for problem in script.problems]
    for command in script.commands:
        words = tuple(arg.text or "" for arg in command.argv)
        if reason := command.unproven_reason:
            described = describe_command(words)
            effects.append(described or CallEffect(script.name_program(command, reason), is_destructive(words)))
        effects += [CallEffect(script.name_program(command, barrier)) for barrier in command.barriers]
    return tuple(dict.fromkeys(sorted(effects, key=lambda effect: not effect.risky)))


def _named_words(words: Sequence[str]) -> list[str]:
    """Returns the program and its subcommands: the words that determine the kind of call."""
    if not words:
        return []
    name = program_name(words[0])
    named = [name]
    for word in words[1:3]:
        is_module = _PYTHON.fullmatch(name) and (word == "-m" or named[-1] == "-m")
        if not is_module and not (name in _NAMED_WITH_SUBCOMMAND and _SUBCOMMAND.fullmatch(word)):
            break
        named.append(word)
    return named


def is_destructive(words: Sequence[str]) -> bool:
    """Returns whether a command deletes, discards or publishes something that an undo does not bring back."""
    if not words:
        return False
    name, args = program_name(words[0]), words[1:]
    if name.rpartition("/")[2] in _DESTRUCTIVE_PROGRAMS or name.startswith("mkfs"):
        return True
    if any(word in _DESTRUCTIVE_VERBS.get(name, ()) for word in args[:2]):
        return True
    for start, pattern in _DESTRUCTIVE_WORDS.items():
        if (name, *args[: len(start) - 1]) == start and any(map(pattern.fullmatch, args[len(start) - 1 :])):
            return True
    return any(_DESTRUCTIVE_SQL.search(word) for word in args)


def widened_words(words: Sequence[str]) -> tuple[str, ...] | None:
    """Returns the words that a rule for this program with any arguments names, or None if no such rule is offered.

    No rule is offered for interpreters, for programs that run their arguments, and for programs that other arguments
    could make destroy something or connect to other machines.
    """
    if not words or is_destructive(words):
        return None
    name = program_name(words[0])
    if _PYTHON.fullmatch(name) and words[1:2] == ("-m",) and words[2:3] and words[2] in _CHECKING_MODULES:
        return (name, "-m", words[2])
    if name in _NEVER_WIDENED or runs_its_arguments(name, words):
        return None
    if name not in _WITH_SUBCOMMANDS:
        return (name,)
    verbs = 2 if (name, *words[1:2]) in _WITH_TWO_SUBCOMMANDS else 1
    named = tuple(words[1 : 1 + verbs])
    if len(named) < verbs or not all(map(_SUBCOMMAND.fullmatch, named)) or (name, named[0]) in _NEVER_WIDENED_VERBS:
        return None
    return (name, *named)
