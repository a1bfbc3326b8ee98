"""The default sandbox policy: paths of secrets to hide, and workspace files to protect from changes."""

import errno
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path

from outrider.processes.sandbox.sandbox import Network, SandboxLimits, SandboxPolicy

# In the home folder: keys, tokens, cookies, mail, and the credentials of other agents.
_HOME_SECRETS = """
.ssh .gnupg .pki .aws .azure .gcloud .config/gcloud .oci .aliyun .bluemix .config/doctl .config/hcloud .config/scw
.kube .docker .config/containers .local/share/containers/auth.json .colima .lima .rd .minikube .terraform.d
.terraformrc .vault-token .config/op .1password .password-store .local/share/keyrings .local/share/kwalletd
.config/keybase .netrc .git-credentials .config/git/credentials .config/gh .config/glab-cli .config/hub .npmrc .yarnrc
.yarnrc.yml .pypirc .config/pypoetry/auth.toml .local/share/uv/credentials .cargo/credentials .cargo/credentials.toml
.gem/credentials .composer/auth.json .m2/settings.xml .gradle/gradle.properties .nuget/NuGet/NuGet.Config .pgpass
.my.cnf .mylogin.cnf .config/rclone .s3cfg .boto .databrickscfg .snowsql .config/snowflake .huggingface
.cache/huggingface/token .kaggle .config/wandb .openai .anthropic .claude .claude.json .config/claude .codex .gemini
.qwen .aider .config/github-copilot .cursor .windsurf .codeium .continue .config/opencode .local/share/opencode
.config/goose .config/crush .local/share/crush .config/amp .local/share/amp .kimi .vibe .config/Code .config/Cursor
.mozilla .config/google-chrome .config/chromium .config/BraveSoftware .config/microsoft-edge .thunderbird
.local/share/evolution .electrum .bitcoin .ethereum .bash_history .zsh_history .python_history .node_repl_history
.psql_history .mysql_history .local/share/fish/fish_history .Xauthority .ICEauthority .msmtprc .mbsyncrc .authinfo
.authinfo.gpg
"""

# Root can read these files even without capabilities.
_SYSTEM_SECRETS = """
/etc/shadow /etc/shadow- /etc/gshadow /etc/gshadow- /etc/sudoers /etc/sudoers.d /etc/ssl/private /etc/krb5.keytab
/etc/NetworkManager/system-connections /etc/wireguard /var/lib/docker /var/lib/containerd /var/lib/kubelet
/var/spool/cron /var/mail /var/spool/mail /sys/kernel/debug /sys/kernel/tracing /sys/kernel/security /sys/fs/bpf
"""

# In the workspace: files that git, editors, agents and continuous integration read and execute.
_PROTECTED_PATHS = """
.git/config .git/config.worktree .git/hooks .git/modules .git/commondir .git/info .git/objects/info/alternates
.gitmodules .gitattributes .githooks .husky .lefthook.yml lefthook.yml .pre-commit-config.yaml .vscode .idea .zed
.fleet .devcontainer .cursor .cursorrules .windsurf .windsurfrules .kiro .roo .cline .clinerules .continue .claude
.codex .gemini .agents .outrider .opencode opencode.json .aider.conf.yml .goosehints .mcp.json AGENTS.md CLAUDE.md
GEMINI.md .github/workflows .github/actions .github/copilot-instructions.md .gitlab-ci.yml .circleci .travis.yml
Jenkinsfile azure-pipelines.yml .envrc .direnv .mise.toml mise.toml .tool-versions .bashrc .bash_profile .profile
.zshrc .zshenv sitecustomize.py usercustomize.py .cargo/config .cargo/config.toml
"""


@cache
def list_secret_paths(home: Path) -> tuple[Path, ...]:
    """Returns the paths of secrets in the home folder and the system, which the default policy hides."""
    keys = tuple(Path("/etc/ssh").glob("ssh_host_*_key"))
    return (*(home / name for name in _HOME_SECRETS.split()), *map(Path, _SYSTEM_SECRETS.split()), *keys)


@lru_cache(maxsize=16)
def list_protected_paths(workspace: Path) -> tuple[Path, ...]:
    """Returns the protected paths of a workspace, including missing ones, which a command must not create."""
    return tuple(workspace / name for name in _PROTECTED_PATHS.split())


# In the home folder: what package managers and compilers download or build, and can write again.
_CACHE_FOLDERS = ".cache .npm .cargo/registry .cargo/git go/pkg/mod .gradle/caches .m2/repository .nuget/packages"


def default_policy(
    workspace: Path,
    *,
    writable: bool,
    home: Path,
    own_files: Iterable[Path] = (),
    network: Network = "off",
    limits: SandboxLimits | None = None,
    temporary: Path | None = None,
) -> SandboxPolicy:
    """Builds the default policy; `own_files` (Outrider's data and configuration) are hidden."""
    return SandboxPolicy(
        workspace=workspace,
        writable=writable,
        read_only=list_protected_paths(workspace),
        hidden=(*list_secret_paths(home), *own_files),
        caches=tuple(path for name in _CACHE_FOLDERS.split() if os.path.realpath(path := home / name) == str(path)),
        temporary=temporary,
        network=network,
        limits=limits or SandboxLimits(),
    )


def find_absent_paths(policy: SandboxPolicy) -> tuple[Path, ...]:
    """Returns the protected paths that do not exist before a command starts."""
    if not policy.writable:
        return ()
    return tuple(path for path in policy.read_only if not os.path.lexists(path))


def read_protected_links(policy: SandboxPolicy) -> dict[Path, str]:
    """Returns the protected paths that are links, with their targets. A mount protects the target, not the link."""
    return {path: os.readlink(path) for path in policy.read_only if path.is_symlink()}  # noqa: PTH115


def quarantine_planted(absent: Iterable[Path], quarantine: Path, links: Mapping[Path, str]) -> tuple[Path, ...]:
    """Moves protected paths that a command has created to the quarantine folder, and returns them. Restores the
    protected links that it has replaced or removed."""
    changed = [path for path, target in links.items() if not path.is_symlink() or os.readlink(path) != target]  # noqa: PTH115
    planted = [path for path in dict.fromkeys((*absent, *changed)) if os.path.lexists(path)]
    for path in planted:
        quarantine.mkdir(parents=True, exist_ok=True)
        _move_to_quarantine(path, quarantine)
    for path in changed:
        with suppress(OSError):
            path.symlink_to(links[path])
    return tuple(planted)


def _move_to_quarantine(path: Path, quarantine: Path) -> None:
    try:
        path.rename(_free_name(quarantine, path.name))
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # On another file system it would have to be copied. Renamed in place, no program reads it either.
        path.rename(_free_name(path.parent, f"{path.name}.planted"))


def describe_planted(planted: Iterable[Path], quarantine: Path) -> str:
    """Returns the note about quarantined files for the caller of the command."""
    names = ", ".join(str(path) for path in planted)
    return f"the sandbox does not allow these files; moved away to {quarantine}: {names}" if names else ""


def _free_name(folder: Path, name: str) -> Path:
    """Returns a path in the folder that does not exist yet; adds a number to the name if necessary."""
    number = 0
    while os.path.lexists(candidate := folder / (f"{name}.{number}" if number else name)):
        number += 1
    return candidate
