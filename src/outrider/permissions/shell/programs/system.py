"""Specifications of programs that show system information, and of version queries to interpreters and compilers."""

from msgspec import structs

from outrider.permissions.redaction.secret_patterns import split_names
from outrider.permissions.shell.parser import NotProvenSafe
from outrider.permissions.shell.programs.table import ParsedArgs, PathChecker, ProgramSpec, program_spec

_HELP = "--help --version"


def _check_date(parsed: ParsedArgs, _: PathChecker) -> None:
    """Allows only a `+format` operand, because a bare number sets the clock."""
    if any(arg.values is None or not all(choice.startswith("+") for choice in arg.values) for arg in parsed.operands):
        raise NotProvenSafe("date could set the system clock")


def _check_numeric_output(parsed: ParsedArgs, _: PathChecker) -> None:
    if not parsed.has_option("-n", "--numeric"):
        raise NotProvenSafe("it would resolve host names over the network (without -n)")


def _check_sleep(parsed: ParsedArgs, _: PathChecker) -> None:
    if any(arg.text is None for arg in parsed.operands):
        raise NotProvenSafe("it would sleep for a time that is not known in advance")


def check_version_query(parsed: ParsedArgs, _: PathChecker) -> None:
    """Requires one version or help option; without it the program starts and reads its input.

    Two different options can mean more than each alone: `gcc --version -v` starts the assembler and the linker.
    """
    if len({name for name, _ in parsed.options}) != 1:
        raise NotProvenSafe("it does more than print its version")


def check_shell_query(parsed: ParsedArgs, paths: PathChecker) -> None:
    """Allows a version query, or a syntax check of a script with `-n`."""
    check_version_query(parsed, paths)
    if parsed.operands and not parsed.has_option("-n"):
        raise NotProvenSafe("it would run a shell script")
    if any(choice.startswith("+") for arg in parsed.operands[:1] for choice in arg.values or ()):
        raise NotProvenSafe("an argument that starts with + could switch off the option -n")


def _check_ps(parsed: ParsedArgs, _: PathChecker) -> None:
    if any(arg.text is None or "e" in arg.text for arg in parsed.operands):
        raise NotProvenSafe("ps would show the environment of other processes, which can contain secrets")


def check_go_version_query(parsed: ParsedArgs, _: PathChecker) -> None:
    if [arg.text for arg in parsed.operands] != ["version"]:
        raise NotProvenSafe("go does more than print its version")


def _check_ip(parsed: ParsedArgs, _: PathChecker) -> None:
    """Allows `ip addr` and `ip addr show …`, and the same for links, routes and neighbours."""
    kind, verb = (*(arg.text for arg in parsed.operands[:2]), "show", "show")[:2]
    if kind not in _NETWORK_PARTS or verb not in {"show", "list", "ls"}:
        raise NotProvenSafe("ip does more than show addresses, links and routes")


_IP_OPTIONS = split_names(
    "-4 -6 -br -brief -c -color -d -details -h -human -j -json -o -oneline -p -pretty -s -stats -V"
)
_NETWORK_PARTS = split_names("a addr address l link r route n neigh neighbour rule")


def _version_spec(options: str) -> ProgramSpec:
    return program_spec(options, "none", check=check_version_query)


_VERSION_ONLY = _version_spec("--version")
_PS = program_spec(
    "-aAcdefFHjlLMNnTuvwxXyZ -C= -G= -g= -O= -o= -p= -q= -s= -t= -U= --cols= --columns= --cumulative --deselect "
    "--forest --format= --group= --Group= --headers --no-headers --lines= --pid= --ppid= --quick-pid= --rows= "
    "--sid= --sort= --tty= --user= --User= --width= --help --version --info",
    "text",
    check=_check_ps,
)

SYSTEM_PROGRAMS: dict[str, ProgramSpec] = {
    "date": program_spec(
        "-uR -d= -r=@ -I[=] --date= --debug --iso-8601[=] --reference=@ --rfc-2822 --rfc-email --rfc-3339= "
        "--universal "
        f"--utc --resolution {_HELP}",
        "text",
        check=_check_date,
    ),
    "cal": program_spec("-13jmsyYw -A= -B= -n=", "text", inert=True),
    "uname": program_spec(
        "-asnrvmpio --all --kernel-name --nodename --kernel-release --kernel-version --machine --processor "
        f"--hardware-platform --operating-system {_HELP}",
        "none",
        inert=True,
    ),
    "arch": program_spec(_HELP, "none", inert=True),
    "hostname": program_spec("-sI --short --all-ip-addresses --help --version", "none"),
    "whoami": program_spec(_HELP, "none", inert=True),
    "logname": program_spec(_HELP, "none", inert=True),
    "id": program_spec(f"-agGnruzZ --context --group --groups --name --real --user --zero {_HELP}", "text", inert=True),
    "groups": program_spec(_HELP, "text", inert=True),
    "users": program_spec(_HELP, "none", inert=True),
    "who": program_spec("-abdHlmpqrstTuw --all --boot --count --heading", "none", inert=True),
    "w": program_spec("-hsfoiV --no-header --short --help --version", "none", inert=True),
    "uptime": program_spec("-psV --pretty --since --help --version", "none", inert=True),
    "tty": program_spec(f"-s --silent --quiet {_HELP}", "none", inert=True),
    "nproc": program_spec(f"--all --ignore= {_HELP}", "none", inert=True),
    "free": program_spec(
        "-bkmghltvw -s= -c= --bytes --kibi --mebi --gibi --human --lohi --total --wide --si --help --version", "none"
    ),
    "lscpu": program_spec(
        "-abcCeJpsxy --all --bytes --caches --extended[=] --json --parse[=] --hex --help --version", "none", inert=True
    ),
    "lsblk": program_spec(
        "-aAbDdfiJlmnpPrSstTz -o= -e= -I= -x= --all --bytes --fs --json --list --paths --help --version",
        "text",
        inert=True,
    ),
    "lsmem": program_spec("-abJnPr --all --json --help --version", "none", inert=True),
    "vmstat": program_spec("-adfmnstw -S=", "text", inert=True),
    "ps": _PS,
    "pgrep": program_spec(
        "-acfilnovwxL -d= -G= -P= -s= -t= -u= -U= --list-name --list-full --full --count --newest --oldest "
        "--exact --ignore-case --help --version",
        "text",
    ),
    "pidof": program_spec("-scx", "text", inert=True),
    "pstree": program_spec("-acglnpstTuU --arguments --compact-not --show-pids", "text", inert=True),
    "ss": program_spec(
        "-tulnpaxs46eoimwOHhV --tcp --udp --listening --numeric --processes --all --unix --summary --ipv4 --ipv6 "
        "--no-header --extended --options --memory --help --version",
        "none",
    ),
    "netstat": program_spec(
        "-tulnpaxs46einrW --tcp --udp --listening --numeric --programs --all --route --interfaces --statistics --wide",
        "none",
        check=_check_numeric_output,
    ),
    "mount": program_spec("-l --version --help", "none"),
    "ip": structs.replace(program_spec("", "text", check=_check_ip), whole_word_options=_IP_OPTIONS),
    "locale": program_spec("-akcm --all-locales --charmaps", "text", inert=True),
    "getconf": program_spec("-a", "text", inert=True),
    "printenv": program_spec(f"-0 --null {_HELP}", "text", inert=True),
    "seq": program_spec(
        f"-w -f= -s= --equal-width --format= --separator= {_HELP}", "text", inert=True, numeric_options=True
    ),
    "expr": program_spec(_HELP, "text", inert=True, numeric_options=True),
    "factor": program_spec(_HELP, "text", inert=True),
    "numfmt": program_spec(
        "-d= -z --from= --to= --field= --format= --grouping --header[=] --invalid= --padding= --round= "
        f"--suffix= {_HELP}",
        "text",
        inert=True,
    ),
    "yes": program_spec(_HELP, "text", inert=True),
    "sleep": program_spec(_HELP, "text", inert=True, check=_check_sleep),
    "true": program_spec("", "text", inert=True),
    "false": program_spec("", "text", inert=True),
    "which": program_spec("-as", "text", inert=True),
    "whereis": program_spec("-bmsul", "text"),
    "lsb_release": program_spec("-acdirsv --all --codename --description --id --release --short", "none"),
    "dpkg": program_spec("-lLsS --list --listfiles --status --search --print-architecture --version --help", "text"),
    "dpkg-query": program_spec("-lLWsS -f= --list --show --showformat= --version", "text"),
    "rpm": _VERSION_ONLY,
    **dict.fromkeys(("bash", "sh", "dash"), program_spec("-n --version", check=check_shell_query, options_first=True)),
    "node": _version_spec("-vh --version --help"),
    "npm": _version_spec("-v --version"),
    "npx": _version_spec("-v --version"),
    **dict.fromkeys(("gcc", "g++", "cc", "c++", "clang", "clang++"), _version_spec("-v --version")),
    "python": _version_spec("-Vh --version --help"),
    "python3": _version_spec("-Vh --version --help"),
    "perl": _version_spec("-v --version"),
    "ruby": _version_spec("-v --version"),
    "php": _version_spec("-v --version"),
    "java": structs.replace(_VERSION_ONLY, whole_word_options=frozenset({"-version"})),
    "javac": structs.replace(_VERSION_ONLY, whole_word_options=frozenset({"-version"})),
    "cargo": _version_spec("-V --version"),
    "rustc": _version_spec("-V --version"),
    "go": program_spec("", "text", check=check_go_version_query),
    "make": _version_spec("-v --version"),
    "tmux": _version_spec("-V"),
    "man": _VERSION_ONLY,
    "less": _version_spec("-V --version"),
    "curl": _version_spec("-V --version"),
    "wget": _version_spec("-V --version"),
    "ssh": _version_spec("-V"),
}
# flake8, poetry, dotnet and others are missing here: they load workspace files even to print their version.
_VERSION_QUERY_PROGRAMS = split_names(
    """cpp ld as gdb cmake ninja meson autoconf automake pkg-config pip pip3 uv ruff
    mypy black isort pylint pipenv docker podman helm psql sqlite3 mysql
    redis-server zsh fish vim nvim nano emacs deno bun tsc yq zstd swift lua gh protoc bat
    eza shellcheck hadolint pandoc ffmpeg convert inkscape nginx git-lfs"""
)
SYSTEM_PROGRAMS.update(dict.fromkeys(_VERSION_QUERY_PROGRAMS, _VERSION_ONLY))
# Only the version query of these programs is known. `is_known_reader` is False for them.
VERSION_CHECKS = (check_version_query, check_go_version_query, check_shell_query)
