"""Programs that tell about files and folders without opening them for writing."""

from msgspec import structs

from outrider.permissions.programs.place import Place
from outrider.permissions.programs.table import Program, Use, program
from outrider.permissions.shell.source import Unclear

_HELP = "--help --version"


def _followed_links(use: Use, place: Place) -> None:
    """Going through folders and following every link may lead anywhere."""
    if use.has("-L", "--dereference") and use.has("-R", "--recursive"):
        place.refuse_links(_starts(use))


def _measured_links(use: Use, place: Place) -> None:
    if use.has("-L"):
        place.refuse_links(_starts(use))


def _starts(use: Use) -> list[str]:
    return [text for arg in use.operands for text in arg.choices or ()] or ["."]


_LS = program(
    "-aAbBcCdfFgGhHiklLmnNopqQrRsStuUvxXZ1 -I= -T= -w= --all --almost-all --author --escape --block-size= "
    "--ignore-backups --color[=] --directory --dired --classify[=] --file-type --format= --full-time "
    "--group-directories-first --no-group --human-readable --si --dereference-command-line "
    "--dereference-command-line-symlink-to-dir --hide= --hyperlink[=] --indicator-style= --inode --ignore= "
    "--kibibytes --dereference --numeric-uid-gid --literal --hide-control-chars --show-control-chars --quote-name "
    "--quoting-style= "
    f"--reverse --recursive --size --sort= --time= --time-style= --tabsize= --width= --context --zero {_HELP}",
    inert=True,
    check=_followed_links,
)


def _archive(use: Use, _: Place) -> None:
    """Only listing; a colon in the name would make tar call another machine."""
    if not use.has("-t", "--list"):
        raise Unclear("only listing an archive is known to be harmless")
    named = [value.text for value in use.values("-f", "--file")]
    if any(name is None or ":" in name for name in named):
        raise Unclear("an archive on another machine")


def _unzip(use: Use, _: Place) -> None:
    if not use.has("-l", "-v", "-Z", "-t", "-p", "-z"):
        raise Unclear("it would unpack files")
    if any(arg.can_be_option() for arg in use.operands[1:]):
        raise Unclear("an option behind the archive")


def _packed(use: Use, _: Place) -> None:
    """Listing and testing leave files alone, unless `-d` takes that back."""
    looks = use.has("-l", "--list", "-t", "--test") and not use.has("-d", "--decompress")
    if not looks and not use.has("-c", "--stdout", "--to-stdout", "--version", "--help"):
        raise Unclear("it would replace files")


_PACKED = program(
    f"-lvtcdkq --list --verbose --test --stdout --to-stdout --decompress --keep --quiet {_HELP}", check=_packed
)


FILES: dict[str, Program] = {
    "ls": _LS,
    "dir": _LS,
    "vdir": _LS,
    "pwd": program("-LP --logical --physical", "none", inert=True),
    "basename": program(f"-az -s= --multiple --suffix= --zero {_HELP}", "text", inert=True),
    "dirname": program(f"-z --zero {_HELP}", "text", inert=True),
    "realpath": program(
        "-emLPqsz --canonicalize-existing --canonicalize-missing --logical --physical --quiet --relative-to=@ "
        f"--relative-base=@ --strip --no-symlinks --zero {_HELP}",
        inert=True,
    ),
    "readlink": program(
        "-femnqsvz --canonicalize --canonicalize-existing --canonicalize-missing --no-newline --quiet --silent "
        f"--verbose --zero {_HELP}",
        inert=True,
    ),
    "stat": program(f"-Lft -c= --dereference --file-system --cached= --format= --printf= --terse {_HELP}", inert=True),
    "file": program(
        "-bhikLNnrsv0 -F= -e= -P= --brief --mime --mime-type --mime-encoding --separator= --dereference "
        "--no-dereference --keep-going --no-pad --no-buffer --raw --print0 --extension --apple --exclude= --help "
        "--version"
    ),
    "du": program(
        "-abcDhHklLmPsSx0 -d= -t= -B= --all --apparent-size --block-size= --bytes --total --dereference-args "
        "--max-depth= --human-readable --inodes --count-links --no-dereference --separate-dirs --si --summarize "
        f"--threshold= --time[=] --time-style= --one-file-system --null --exclude= -X=@ --exclude-from=@ {_HELP}",
        inert=True,
        check=_measured_links,
    ),
    "df": program(
        "-ahHiklPTv -B= -t= -x= --all --block-size= --human-readable --si --inodes --local --portability --output[=] "
        f"--total --type= --print-type --exclude-type= {_HELP}",
        inert=True,
    ),
    "tree": program(
        "-adfxqNQpughDsFvtcUriASnCJX -L= -P= -I= --prune --noreport --dirsfirst --filesfirst --sort= --du --si "
        "--gitignore --matchdirs --ignore-case --filelimit= --timefmt= --charset= --metafirst --inodes --device "
        "--help "
        "--version"
    ),
    "tar": program(
        "-tvzjJaO -f=@ --list --verbose --gzip --bzip2 --xz --zstd --auto-compress --file=@ --exclude= --wildcards "
        "--no-recursion --full-time --numeric-owner --strip-components= --help --version",
        "text",
        check=_archive,
    ),
    "unzip": program("-lvtpqZz1", check=_unzip, options_first=True),
    "zipinfo": program("-12lsmvhtTz", options_first=True),
    **dict.fromkeys(("gzip", "gunzip", "xz", "unxz", "bzip2", "bunzip2"), _PACKED),
    "getfacl": program("-acdeEstpn --access --default --omit-header --numeric", inert=True),
    "lsattr": program("-RVadlpv", inert=True),
    "namei": program("-xmolnv --modes --owners --long", inert=True),
    "cloc": program("--help --version", "none"),
}
_LOOKING = ("ls", "dir", "vdir", "stat", "du", "realpath", "readlink", "namei", "lsattr", "getfacl")
FILES.update({name: structs.replace(FILES[name], opens=False) for name in _LOOKING})
FILES["tar"] = structs.replace(FILES["tar"], bundled=True)
