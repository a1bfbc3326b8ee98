"""Predicts from the text of a command that it will publish, deploy or install something, so that the user is asked
before it starts. A prediction may be wrong, and grants nothing."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from outrider.permissions.redaction.secret_patterns import split_names
from outrider.types.outcomes import BlockedAccess

_NPM, _PYPI = ("registry.npmjs.org",), ("pypi.org", "files.pythonhosted.org")
_PYPI_UPLOAD, _CRATES = ("upload.pypi.org",), ("index.crates.io", "static.crates.io", "crates.io")
_GO, _GITHUB = ("proxy.golang.org", "sum.golang.org"), ("github.com", "api.github.com")
_INSTALLS, _PUBLISHES, _DEPLOYS = "downloads and installs packages", "publishes a package", "changes a deployment"
_SYSTEM = "installs or removes system packages, which the sandbox cannot do"


class PredictedEffect(msgspec.Struct, frozen=True):
    """What a command will probably do, and the hosts that it needs for that.

    `keeps`: the changed files belong to the effect, so an approval keeps them. `outside`: the command cannot work
    inside the sandbox, whatever hosts it may reach.
    """

    text: str
    hosts: tuple[str, ...] = ()
    keeps: bool = False
    outside: bool = False

    @property
    def wanted(self) -> tuple[BlockedAccess, ...]:
        """The network access that the question offers; access to all hosts if the hosts are not known."""
        if self.outside:
            return ()
        return tuple(BlockedAccess("network", host) for host in self.hosts) or (BlockedAccess("network"),)


class _EffectRow(msgspec.Struct, frozen=True):
    """The subcommands of some programs with one effect; no subcommands means every call of the program."""

    programs: frozenset[str]
    subcommands: frozenset[str]
    effect: PredictedEffect


def _row(programs: str, subcommands: str, effect: PredictedEffect) -> _EffectRow:
    # A subcommand of two words is written with a dot.
    return _EffectRow(split_names(programs), split_names(subcommands), effect)


_ROWS = (
    _row("npm pnpm yarn bun lerna vsce", "publish", PredictedEffect(_PUBLISHES, _NPM, keeps=True)),
    _row("npm", "install i ci add update up upgrade install-test", PredictedEffect(_INSTALLS, _NPM, keeps=True)),
    _row("pnpm bun", "install i add update up upgrade dlx", PredictedEffect(_INSTALLS, _NPM, keeps=True)),
    _row("yarn", "install add up upgrade dlx", PredictedEffect(_INSTALLS, _NPM, keeps=True)),
    _row("pip pip3", "install download wheel", PredictedEffect(_INSTALLS, _PYPI, keeps=True)),
    _row("uv", "sync add lock pip.install tool.install", PredictedEffect(_INSTALLS, _PYPI, keeps=True)),
    _row("poetry pdm pipenv pipx hatch", "install add update lock sync", PredictedEffect(_INSTALLS, _PYPI, keeps=True)),
    _row("twine", "upload", PredictedEffect(_PUBLISHES, _PYPI_UPLOAD, keeps=True)),
    _row("uv poetry flit hatch pdm", "publish", PredictedEffect(_PUBLISHES, _PYPI_UPLOAD, keeps=True)),
    _row("cargo", "install fetch update add", PredictedEffect(_INSTALLS, _CRATES, keeps=True)),
    _row("cargo", "publish", PredictedEffect(_PUBLISHES, _CRATES, keeps=True)),
    _row("go", "get install mod.download mod.tidy", PredictedEffect(_INSTALLS, _GO, keeps=True)),
    _row(
        "gem bundle", "install update", PredictedEffect(_INSTALLS, ("rubygems.org", "index.rubygems.org"), keeps=True)
    ),
    _row("gem", "push", PredictedEffect(_PUBLISHES, ("rubygems.org",), keeps=True)),
    _row(
        "composer", "install update require", PredictedEffect(_INSTALLS, ("repo.packagist.org", *_GITHUB), keeps=True)
    ),
    _row("conda mamba", "install create update env.create", PredictedEffect(_INSTALLS, ("conda.anaconda.org",))),
    _row(
        "apt apt-get aptitude dnf yum apk zypper",
        "install remove update upgrade purge dist-upgrade add del",
        PredictedEffect(_SYSTEM, outside=True),
    ),
    _row("brew", "install update upgrade uninstall", PredictedEffect(_SYSTEM, outside=True)),
    _row(
        "docker podman buildah",
        "push image.push compose.push",
        PredictedEffect("publishes a container image", outside=True),
    ),
    _row("kubectl oc", "apply create delete replace patch scale rollout", PredictedEffect(_DEPLOYS)),
    _row("helm", "install upgrade uninstall rollback push", PredictedEffect(_DEPLOYS)),
    _row("terraform tofu", "apply destroy", PredictedEffect(_DEPLOYS)),
    _row("pulumi", "up destroy", PredictedEffect(_DEPLOYS)),
    _row(
        "fly flyctl vercel netlify wrangler firebase serverless sls cdk sam",
        "deploy publish",
        PredictedEffect(_DEPLOYS),
    ),
    _row("ansible-playbook", "", PredictedEffect(_DEPLOYS)),
    _row("mvn", "deploy", PredictedEffect(_PUBLISHES)),
    _row("gradle gradlew", "publish", PredictedEffect(_PUBLISHES)),
    _row(
        "gh",
        "pr.create pr.merge pr.comment issue.create issue.comment release.create repo.create repo.delete api",
        PredictedEffect("changes something on github.com", _GITHUB),
    ),
)
_PROGRAMS = frozenset(program for row in _ROWS for program in row.programs) | {"git", "python", "python3"}
_NAMES = re.compile(rf"(?<![\w-])(?:{'|'.join(sorted(map(re.escape, _PROGRAMS), key=len, reverse=True))})(?![\w-])")
_STAYS_LOCAL = split_names("--offline --dry-run --no-index --help -h --version --frozen-offline --package-lock-only")
_GIT_VALUE_OPTIONS = split_names("-C -c --git-dir --work-tree --namespace --exec-path")
_REMOTE_URL = re.compile(
    r'^\s*\[remote "([^"\n]{1,200})"\]|^\s*(?:push)?url\s*=\s*(\S{1,500})', re.MULTILINE | re.IGNORECASE
)
_SCP_ADDRESS = re.compile(r"(?:[\w.-]+@)?([\w.-]+\.[\w.-]+):(?!//)")


class PackageRegistries:
    """The package registries that commands use instead of the public ones.

    Options of the command name them, or variables of `environment`, the environment of the command, or settings of the
    workspace and of the home folder that a sandboxed command can read. Only text is read; no package manager runs.
    """

    def __init__(self, workspace: Path, home: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._folders = (workspace, *([home] if home else ()))
        self._workspace, self._environment = workspace, environment or {}

    def replace_hosts(self, hosts: tuple[str, ...], arguments: Sequence[str], folder: str) -> tuple[str, ...]:
        """Returns the hosts of the configured registries in place of the public ones. `folder` is the working directory
        of the command."""
        if hosts not in (_NPM, _PYPI):
            return hosts
        url_lists = self._find_npm(arguments, folder) if hosts == _NPM else self._find_pypi(arguments, folder)
        replacing, adding = ([host for url in urls if (host := _authority_of(url))] for urls in url_lists)
        return tuple(dict.fromkeys((*(replacing or hosts), *adding)))

    def _find_npm(self, arguments: Sequence[str], folder: str) -> tuple[list[str], list[str]]:
        """Returns the URLs that replace the public registry, and the URLs of scopes."""
        named = _option_values(arguments, "--registry")
        for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
            named = named or self._environment.get(name, "").split()
        # The .npmrc of the home folder is hidden from commands.
        files = (self._workspace / folder / ".npmrc", self._workspace / ".npmrc", self._workspace / ".yarnrc.yml")
        listed = _NPM_REGISTRY.findall("\n".join(map(_read_settings, dict.fromkeys(files))))
        return named or [url for scope, url in listed if not scope], [url for scope, url in listed if scope]

    def _find_pypi(self, arguments: Sequence[str], folder: str) -> tuple[list[str], list[str]]:
        """Returns the URLs that replace the public index, and additional ones."""
        named = _option_values(arguments, "-i", "--index-url", "--default-index", "--index")
        for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
            named = named or self._environment.get(name, "").split()
        extra = (
            _option_values(arguments, "--extra-index-url") + self._environment.get("PIP_EXTRA_INDEX_URL", "").split()
        )
        names = ("pip.conf", ".config/pip/pip.conf", ".pip/pip.conf", "uv.toml", "pyproject.toml")
        paths = [path / name for path in (self._workspace / folder, *self._folders) for name in names]
        settings = "\n".join(map(_read_settings, dict.fromkeys((*paths, Path("/etc/pip.conf")))))
        listed = _PYPI_INDEX.findall(settings)
        extra += [url for kind, url in listed if kind] + _PYPI_SOURCE.findall(settings)
        return named or [url for kind, url in listed if not kind], extra


_NPM_REGISTRY = re.compile(
    r"^\s*(?:(@[\w.-]+:)?registry\s*=|npmRegistryServer:)\s*[\"']?(https?://[^\s\"']+)", re.MULTILINE
)
_PYPI_INDEX = re.compile(r"^\s*(extra-)?index-url\s*=\s*\[?\s*[\"']?(https?://[^\s\"',]+)", re.MULTILINE)
_PYPI_SOURCE = re.compile(  # of uv, poetry and pdm
    r"^\s*\[\[tool\.(?:uv\.index|poetry\.source|pdm\.source)\]\][^\[]*?\burl\s*=\s*[\"'](https?://[^\s\"']+)",
    re.MULTILINE,
)
_MAX_SETTINGS = 100_000


def _authority_of(url: str) -> str:
    """Returns the host of a registry, with its port if it is not a usual one."""
    try:
        port = urlsplit(url).port
    except ValueError:
        return ""
    host = _host_of(url)
    return f"{host}:{port}" if host and port not in (None, 80, 443) else host


def _option_values(arguments: Sequence[str], *names: str) -> list[str]:
    pairs = [word.partition("=") for word in arguments]
    values = [value for name, equals, value in pairs if equals and name in names]
    return values + [after for word, after in pairwise(arguments) if word in names]


def _read_settings(path: Path) -> str:
    try:
        if not path.is_file():
            return ""
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_SETTINGS)
    except OSError:
        return ""


def predict_effect(
    command: str, *, workspace: Path, folder: str = "", registries: PackageRegistries | None = None
) -> PredictedEffect | None:
    """Returns what a command will probably publish, deploy or install; None if its text does not show this."""
    if _NAMES.search(command) is None:
        return None
    from outrider.permissions.shell.analysis import analyse_script

    root = str(workspace)
    script = analyse_script(command, root=root, cwd=os.path.join(root, folder))  # noqa: PTH118
    effects = [
        effect
        for analysed in script.commands
        if (words := [arg.values[0] if arg.values and arg.values[0] else arg.source_text for arg in analysed.argv])
        and (effect := _effect_of(words, workspace, registries or PackageRegistries(workspace), folder)) is not None
    ]
    if not effects:
        return None
    if len(effects) == 1:
        return effects[0]
    hosts = dict.fromkeys(host for effect in effects for host in effect.hosts)
    return PredictedEffect(
        ", then ".join(dict.fromkeys(effect.text for effect in effects)),
        tuple(hosts) if all(effect.hosts for effect in effects) else (),  # an unknown host needs the whole network
        keeps=all(effect.keeps for effect in effects),
        outside=any(effect.outside for effect in effects),
    )


def _effect_of(
    words: Sequence[str], workspace: Path, registries: PackageRegistries, folder: str
) -> PredictedEffect | None:
    program, arguments = Path(words[0]).name, list(words[1:])
    if not _STAYS_LOCAL.isdisjoint(arguments):
        return None
    if program in ("python", "python3") and arguments[:1] == ["-m"] and len(arguments) > 1:
        program, arguments = arguments[1], arguments[2:]
    if program == "git":
        return _push_effect(arguments, workspace)
    plain = [word for word in arguments if not word.startswith("-")]
    names = {plain[0] if plain else "", ".".join(plain[:2])}
    if program == "yarn" and not plain:
        names = {"install"}
    for row in _ROWS:
        if program in row.programs and (not row.subcommands or not row.subcommands.isdisjoint(names)):
            invocation = " ".join([program, *plain[: 2 if ".".join(plain[:2]) in row.subcommands else 1]])
            hosts = registries.replace_hosts(row.effect.hosts, arguments, folder)
            return msgspec.structs.replace(row.effect, text=f"`{invocation}` {row.effect.text}", hosts=hosts)
    return None


def _push_effect(arguments: list[str], workspace: Path) -> PredictedEffect | None:
    """Returns the effect of `git push`, with the host of its remote."""
    while arguments and arguments[0].startswith("-"):
        arguments = arguments[2 if arguments[0] in _GIT_VALUE_OPTIONS else 1 :]
    if arguments[:1] != ["push"]:
        return None
    remote = next((word for word in arguments[1:] if not word.startswith("-")), "")
    urls = [remote] if _host_of(remote) else list(_remote_urls(workspace, remote))
    hosts = [host for url in urls if (host := _host_of(url))]
    if urls and not hosts:
        return None  # a folder of this machine
    destination = " and ".join(dict.fromkeys(hosts)) or "another repository"
    return PredictedEffect(f"`git push` sends commits to {destination}", tuple(dict.fromkeys(hosts)), keeps=True)


def _remote_urls(workspace: Path, remote: str) -> Iterator[str]:
    """Yields the URLs of a remote; of all remotes if the name is empty. Reads the configuration as text, without
    running git."""
    section = ""
    for match in _REMOTE_URL.finditer(_read_settings(workspace / ".git" / "config")):
        if match[1]:
            section = match[1]
        elif section and remote in ("", section):
            yield match[2].strip('"')


def _host_of(address: str) -> str:
    """Returns the host of a URL or of an address such as git@host:path; "" if it has none."""
    if "://" in address:
        try:
            return urlsplit(address).hostname or ""
        except ValueError:
            return ""
    match = _SCP_ADDRESS.match(address)
    return match[1] if match else ""
