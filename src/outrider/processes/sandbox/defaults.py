"""Where secrets and steering files usually lie, and the policy that follows from it."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from outrider.processes.sandbox.sandbox import Bounds, Network, Policy

# In the user's folder. Keys, tokens, cookies, mail, and the logins of agents.
_SECRETS = """
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

# Readable by the superuser even without any capability.
_SYSTEM_SECRETS = """
/etc/shadow /etc/shadow- /etc/gshadow /etc/gshadow- /etc/sudoers /etc/sudoers.d /etc/ssl/private /etc/krb5.keytab
/etc/NetworkManager/system-connections /etc/wireguard /var/lib/docker /var/lib/containerd /var/lib/kubelet
/var/spool/cron /var/mail /var/spool/mail /sys/kernel/debug /sys/kernel/tracing /sys/kernel/security /sys/fs/bpf
"""

# In the workspace: what git, editors, agents and continuous integration obey.
_STEERING = """
.git/config .git/config.worktree .git/hooks .git/modules .git/commondir .git/info .git/objects/info/alternates
.gitmodules .gitattributes .githooks .husky .lefthook.yml lefthook.yml .pre-commit-config.yaml .vscode .idea .zed
.fleet .devcontainer .cursor .cursorrules .windsurf .windsurfrules .kiro .roo .cline .clinerules .continue .claude
.codex .gemini .agents .outrider .opencode opencode.json .aider.conf.yml .goosehints .mcp.json AGENTS.md CLAUDE.md
GEMINI.md .github/workflows .github/actions .github/copilot-instructions.md .gitlab-ci.yml .circleci .travis.yml
Jenkinsfile azure-pipelines.yml .envrc .direnv .mise.toml mise.toml .tool-versions .bashrc .bash_profile .profile
.zshrc .zshenv sitecustomize.py usercustomize.py .cargo/config .cargo/config.toml
"""


def secrets_of(home: Path) -> tuple[Path, ...]:
    keys = tuple(Path("/etc/ssh").glob("ssh_host_*_key"))
    return (*(home / name for name in _SECRETS.split()), *map(Path, _SYSTEM_SECRETS.split()), *keys)


def steering_files(workspace: Path) -> tuple[Path, ...]:
    """Also those that do not exist; whoever runs a command can ask afterwards whether it planted one."""
    return tuple(workspace / name for name in _STEERING.split())


def usual_policy(
    workspace: Path,
    *,
    writable: bool,
    home: Path,
    own_files: Iterable[Path] = (),
    network: Network = "off",
    bounds: Bounds | None = None,
    temporary: Path | None = None,
) -> Policy:
    """`own_files` are Outrider's own data and configuration: they are hidden."""
    return Policy(
        workspace=workspace,
        writable=writable,
        read_only=steering_files(workspace),
        hidden=(*secrets_of(home), *own_files),
        temporary=temporary,
        network=network,
        bounds=bounds or Bounds(),
    )


def absent_places(policy: Policy) -> tuple[Path, ...]:
    """Asked before a command starts: places that it must not change and that do not exist."""
    if not policy.writable:
        return ()
    return tuple(path for path in policy.read_only if not os.path.lexists(path))


def remove_planted(absent: Iterable[Path], keep_in: Path) -> tuple[Path, ...]:
    """Asked after it ended: which of them exist now. They are moved away, not deleted, so that nothing is lost."""
    planted = [path for path in absent if os.path.lexists(path)]
    for path in planted:
        keep_in.mkdir(parents=True, exist_ok=True)
        _move(path, keep_in)
    return tuple(planted)


def _move(path: Path, keep_in: Path) -> None:
    try:
        path.rename(_free_name(keep_in, path.name))
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # On another disk it would have to be copied, whatever its size; under another name nobody obeys it.
        path.rename(_free_name(path.parent, f"{path.name}.planted"))


def planted_words(planted: Iterable[Path], keep_in: Path) -> str:
    """What is said of them to whoever ran the command."""
    names = ", ".join(str(path) for path in planted)
    return f"not allowed here, and moved away (see {keep_in}): {names}" if names else ""


def _free_name(folder: Path, name: str) -> Path:
    count = 0
    while os.path.lexists(place := folder / (f"{name}.{count}" if count else name)):
        count += 1
    return place
