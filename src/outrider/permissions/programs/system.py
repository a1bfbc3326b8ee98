"""Programs that tell about the machine, and interpreters and compilers asked for nothing but their version."""

from msgspec import structs

from outrider.permissions.programs.table import Place, Program, Use, program
from outrider.permissions.redaction.secret_patterns import names
from outrider.permissions.shell.parser import Unclear

_HELP = "--help --version"


def _date(use: Use, _: Place) -> None:
    """A bare number sets the clock; only a format may follow."""
    if any(arg.choices is None or not all(choice.startswith("+") for choice in arg.choices) for arg in use.operands):
        raise Unclear("an operand of date that is no format could set the clock")


def _numeric(use: Use, _: Place) -> None:
    if not use.has("-n", "--numeric"):
        raise Unclear("it would ask for the names of other machines")


def _seconds(use: Use, _: Place) -> None:
    if any(arg.text is None for arg in use.operands):
        raise Unclear("how long it would sleep is unknown")


def asked_for_its_version(use: Use, _: Place) -> None:
    """Without an option it would start, and read what to do from its input or a file."""
    if not use.options:
        raise Unclear("only asking for its version is known to be harmless")


def checked_or_asked_for_its_version(use: Use, place: Place) -> None:
    """With `-n` a shell only reads a script."""
    asked_for_its_version(use, place)
    if use.operands and not use.has("-n"):
        raise Unclear("it would run a script")
    if any(choice.startswith("+") for arg in use.operands[:1] for choice in arg.choices or ()):
        raise Unclear("with + an option is taken back")


def _no_environment(use: Use, _: Place) -> None:
    if any(arg.text is None or "e" in arg.text for arg in use.operands):
        raise Unclear("it would show the environment of other processes")


def asked_go_for_its_version(use: Use, _: Place) -> None:
    if [arg.text for arg in use.operands] != ["version"]:
        raise Unclear("only asking go for its version is known to be harmless")


def _shows_network(use: Use, _: Place) -> None:
    """`ip addr`, or with `show` whatever follows that."""
    kind, verb = (*(arg.text for arg in use.operands[:2]), "show", "show")[:2]
    if kind not in _NETWORK_PARTS or verb not in {"show", "list", "ls"}:
        raise Unclear("only showing addresses, links and routes is known to be harmless")


_IP_OPTIONS = names("-4 -6 -br -brief -c -color -d -details -h -human -j -json -o -oneline -p -pretty -s -stats -V")
_NETWORK_PARTS = names("a addr address l link r route n neigh neighbour rule")


def _version(options: str) -> Program:
    return program(options, "none", check=asked_for_its_version)


_VERSION_ONLY = _version("--version")
_PROCESSES = program(
    "-aAcdefFHjlLMNnTuvwxXyZ -C= -G= -g= -O= -o= -p= -q= -s= -t= -U= --cols= --columns= --cumulative --deselect "
    "--forest --format= --group= --Group= --headers --no-headers --lines= --pid= --ppid= --quick-pid= --rows= "
    "--sid= --sort= --tty= --user= --User= --width= --help --version --info",
    "text",
    check=_no_environment,
)

SYSTEM: dict[str, Program] = {
    "date": program(
        "-uR -d= -r=@ -I[=] --date= --debug --iso-8601[=] --reference=@ --rfc-2822 --rfc-email --rfc-3339= "
        "--universal "
        f"--utc --resolution {_HELP}",
        "text",
        check=_date,
    ),
    "cal": program("-13jmsyYw -A= -B= -n=", "text", inert=True),
    "uname": program(
        "-asnrvmpio --all --kernel-name --nodename --kernel-release --kernel-version --machine --processor "
        f"--hardware-platform --operating-system {_HELP}",
        "none",
        inert=True,
    ),
    "arch": program(_HELP, "none", inert=True),
    "hostname": program("-sI --short --all-ip-addresses --help --version", "none"),
    "whoami": program(_HELP, "none", inert=True),
    "logname": program(_HELP, "none", inert=True),
    "id": program(f"-agGnruzZ --context --group --groups --name --real --user --zero {_HELP}", "text", inert=True),
    "groups": program(_HELP, "text", inert=True),
    "users": program(_HELP, "none", inert=True),
    "who": program("-abdHlmpqrstTuw --all --boot --count --heading", "none", inert=True),
    "w": program("-hsfoiV --no-header --short --help --version", "none", inert=True),
    "uptime": program("-psV --pretty --since --help --version", "none", inert=True),
    "tty": program(f"-s --silent --quiet {_HELP}", "none", inert=True),
    "nproc": program(f"--all --ignore= {_HELP}", "none", inert=True),
    "free": program(
        "-bkmghltvw -s= -c= --bytes --kibi --mebi --gibi --human --lohi --total --wide --si --help --version", "none"
    ),
    "lscpu": program(
        "-abcCeJpsxy --all --bytes --caches --extended[=] --json --parse[=] --hex --help --version", "none", inert=True
    ),
    "lsblk": program(
        "-aAbDdfiJlmnpPrSstTz -o= -e= -I= -x= --all --bytes --fs --json --list --paths --help --version",
        "text",
        inert=True,
    ),
    "lsmem": program("-abJnPr --all --json --help --version", "none", inert=True),
    "vmstat": program("-adfmnstw -S=", "text", inert=True),
    "ps": _PROCESSES,
    "pgrep": program(
        "-acfilnovwxL -d= -G= -P= -s= -t= -u= -U= --list-name --list-full --full --count --newest --oldest "
        "--exact --ignore-case --help --version",
        "text",
    ),
    "pidof": program("-scx", "text", inert=True),
    "pstree": program("-acglnpstTuU --arguments --compact-not --show-pids", "text", inert=True),
    "ss": program(
        "-tulnpaxs46eoimwOHhV --tcp --udp --listening --numeric --processes --all --unix --summary --ipv4 --ipv6 "
        "--no-header --extended --options --memory --help --version",
        "none",
    ),
    "netstat": program(
        "-tulnpaxs46einrW --tcp --udp --listening --numeric --programs --all --route --interfaces --statistics --wide",
        "none",
        check=_numeric,
    ),
    "mount": program("-l --version --help", "none"),
    "ip": structs.replace(program("", "text", check=_shows_network), words=_IP_OPTIONS),
    "locale": program("-akcm --all-locales --charmaps", "text", inert=True),
    "getconf": program("-a", "text", inert=True),
    "printenv": program(f"-0 --null {_HELP}", "text", inert=True),
    "seq": program(f"-w -f= -s= --equal-width --format= --separator= {_HELP}", "text", inert=True, numbers=True),
    "expr": program(_HELP, "text", inert=True, numbers=True),
    "factor": program(_HELP, "text", inert=True),
    "numfmt": program(
        "-d= -z --from= --to= --field= --format= --grouping --header[=] --invalid= --padding= --round= "
        f"--suffix= {_HELP}",
        "text",
        inert=True,
    ),
    "yes": program(_HELP, "text", inert=True),
    "sleep": program(_HELP, "text", inert=True, check=_seconds),
    "true": program("", "text", inert=True),
    "false": program("", "text", inert=True),
    "which": program("-as", "text", inert=True),
    "whereis": program("-bmsul", "text"),
    "lsb_release": program("-acdirsv --all --codename --description --id --release --short", "none"),
    "dpkg": program("-lLsS --list --listfiles --status --search --print-architecture --version --help", "text"),
    "dpkg-query": program("-lLWsS -f= --list --show --showformat= --version", "text"),
    "rpm": _VERSION_ONLY,
    **dict.fromkeys(
        ("bash", "sh", "dash"), program("-n --version", check=checked_or_asked_for_its_version, options_first=True)
    ),
    "node": _version("-vh --version --help"),
    "npm": _version("-v --version"),
    "npx": _version("-v --version"),
    **dict.fromkeys(("gcc", "g++", "cc", "c++", "clang", "clang++"), _version("-v --version")),
    "python": _version("-Vh --version --help"),
    "python3": _version("-Vh --version --help"),
    "perl": _version("-v --version"),
    "ruby": _version("-v --version"),
    "php": _version("-v --version"),
    "java": structs.replace(_VERSION_ONLY, words=frozenset({"-version"})),
    "javac": structs.replace(_VERSION_ONLY, words=frozenset({"-version"})),
    "cargo": _version("-V --version"),
    "rustc": _version("-V --version"),
    "go": program("", "text", check=asked_go_for_its_version),
    "make": _version("-v --version"),
    "tmux": _version("-V"),
    "man": _VERSION_ONLY,
    "less": _version("-V --version"),
    "curl": _version("-V --version"),
    "wget": _version("-V --version"),
    "ssh": _version("-V"),
}
# Not among them: flake8, poetry, dotnet and others that load parts of a workspace even to say their version.
_ASKED_FOR_VERSIONS = names(
    """cpp ld as gdb cmake ninja meson autoconf automake pkg-config pip pip3 uv ruff
    mypy black isort pylint pipenv docker podman helm psql sqlite3 mysql
    redis-server zsh fish vim nvim nano emacs deno bun tsc yq zstd swift lua gh protoc bat
    eza shellcheck hadolint pandoc ffmpeg convert inkscape nginx git-lfs"""
)
SYSTEM.update(dict.fromkeys(_ASKED_FOR_VERSIONS, _VERSION_ONLY))
# Programs that do something else as a rule: knowing their version says nothing about the rest of what they can do.
VERSION_CHECKS = (asked_for_its_version, asked_go_for_its_version, checked_or_asked_for_its_version)
