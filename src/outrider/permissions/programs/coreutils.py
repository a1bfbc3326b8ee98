"""Programs that tell about files and folders without opening them for writing."""

from msgspec import structs

from outrider.permissions.paths.protected import matches_secret
from outrider.permissions.programs.table import Place, Program, Use, files_of, program
from outrider.permissions.shell.parser import Unclear

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


_HELP_TEXTS = "--help --version"
_SUMS = f"-btz --binary --text --tag --zero {_HELP}"


def _no_option_files(use: Use, _: Place) -> None:
    """What begins with @ names a file with further arguments."""
    if any(arg.choices is None or any(choice.startswith("@") for choice in arg.choices) for arg in use.operands):
        raise Unclear("it could be told to read its arguments from a file")


def _links_in_folders(use: Use, place: Place) -> None:
    if use.has("-r", "--recursive") and not use.has("--no-dereference"):
        place.refuse_links(text for arg in use.operands for text in arg.choices or ())


_HEAD = program(
    f"-n= -c= -qvz --lines= --bytes= --quiet --silent --verbose --zero-terminated {_HELP}", inert=True, numbers=True
)
_TAIL = program(
    "-n= -c= -qvzfF -s= --lines= --bytes= --quiet --silent --verbose --zero-terminated --follow[=] --retry --pid= "
    f"--sleep-interval= --max-unchanged-stats= {_HELP}",
    inert=True,
    numbers=True,
)
_CAT = program(
    "-AbeEnstTuv --show-all --number-nonblank --show-ends --number --squeeze-blank --show-tabs --show-nonprinting "
    + _HELP_TEXTS,
    inert=True,
)
_BASE = program(f"-di -w= --decode --ignore-garbage --wrap= {_HELP}", inert=True)
_SUM = program(_SUMS, inert=True)
_FMT = program(
    f"-cstu -p= -w= -g= --crown-margin --tagged-paragraph --split-only --uniform-spacing --width= {_HELP}",
    inert=True,
    numbers=True,
)
_DIFF = program(
    "-qsuceynptiEZbwBadNrT -U= -C= -W= -I= -F= -x= -X=@ -S= -D= --brief --report-identical-files --unified[=] "
    "--context[=] --ed --rcs --side-by-side --width= --left-column --suppress-common-lines --show-c-function "
    "--show-function-line= --label= --expand-tabs --initial-tab --tabsize= --recursive --no-dereference "
    "--new-file --unidirectional-new-file --ignore-file-name-case --exclude= --exclude-from=@ --starting-file= "
    "--from-file=@ --to-file=@ --ignore-case --ignore-tab-expansion --ignore-trailing-space --ignore-space-change "
    "--ignore-all-space --ignore-blank-lines --ignore-matching-lines= --text --strip-trailing-cr --normal "
    "--minimal --speed-large-files "
    f"--color[=] --horizon-lines= --line-format= --ifdef= -L= {_HELP}",
    numbers=True,
    check=_links_in_folders,
)
_SORT = program(
    "-bdfgiMhnRrVcCmsuz -k= -t= -S= --ignore-leading-blanks --dictionary-order --ignore-case --general-numeric-sort "
    "--ignore-nonprinting --month-sort --human-numeric-sort --numeric-sort --random-sort --reverse --sort= "
    "--version-sort --check[=] --merge --stable --unique --zero-terminated --key= --field-separator= --buffer-size= "
    f"--parallel= --debug {_HELP}"
)

TEXTS: dict[str, Program] = {
    "cat": _CAT,
    "tac": program(f"-br -s= --before --regex --separator= {_HELP}", inert=True),
    "rev": program("-Vh --version --help", inert=True),
    "nl": program(
        "-b= -d= -f= -h= -i= -l= -n= -p -s= -v= -w= --body-numbering= --section-delimiter= --footer-numbering= "
        "--header-numbering= --line-increment= --join-blank-lines= --number-format= --no-renumber "
        "--number-separator= "
        f"--starting-line-number= --number-width= {_HELP}",
        inert=True,
    ),
    "head": _HEAD,
    "tail": _TAIL,
    "wc": program(f"-clmLw --bytes --chars --lines --max-line-length --words --total= {_HELP}", inert=True),
    "cut": program(
        "-b= -c= -d= -f= -nsz --bytes= --characters= --delimiter= --fields= --complement --only-delimited "
        f"--output-delimiter= --zero-terminated {_HELP}",
        inert=True,
    ),
    "tr": program(f"-cCdst --complement --delete --squeeze-repeats --truncate-set1 {_HELP}", "text", inert=True),
    "sort": _SORT,
    "uniq": program(
        "-cdDiuz -f= -s= -w= --count --repeated --all-repeated[=] --skip-fields= --group[=] --ignore-case "
        f"--skip-chars= --unique --zero-terminated --check-chars= {_HELP}",
        most=1,
        options_first=True,
    ),
    "shuf": program(f"-erz -i= -n= --echo --input-range= --head-count= --repeat --zero-terminated {_HELP}"),
    "paste": program(f"-d= -sz --delimiters= --serial --zero-terminated {_HELP}", inert=True),
    "join": program(
        "-a= -e= -i -1= -2= -j= -o= -t= -v= -z --ignore-case --check-order --nocheck-order --header "
        f"--zero-terminated {_HELP}",
        inert=True,
    ),
    "comm": program(
        f"-123z --check-order --nocheck-order --output-delimiter= --total --zero-terminated {_HELP}", inert=True
    ),
    "fold": program(f"-bs -w= --bytes --spaces --width= {_HELP}", inert=True, numbers=True),
    "fmt": _FMT,
    "expand": program(f"-i -t= --initial --tabs= {_HELP}", inert=True, numbers=True),
    "unexpand": program(f"-a -t= --all --first-only --tabs= {_HELP}", inert=True),
    "column": program(
        "-texnL -s= -o= -c= -N= -R= -H= -T= -W= --table --separator= --output-separator= --output-width= "
        f"--table-columns= --table-right= --fillrows {_HELP}",
        inert=True,
    ),
    "od": program(
        "-abcdfhiloOsxvD -A= -j= -N= -S= -t= -w[=] --address-radix= --skip-bytes= --read-bytes= --strings[=] "
        "--format= "
        f"--output-duplicates --width[=] --endian= {_HELP}",
        inert=True,
    ),
    "hexdump": program(
        "-bcCdovx -e= -n= -s= --canonical --length= --skip= --no-squeezing --help --version", inert=True
    ),
    "hd": program("-bcCdovx -e= -n= -s=", inert=True),
    "xxd": program("-abeEiupd -c= -g= -l= -o= -s= -n= -R=", most=1, options_first=True),
    "strings": program(
        "-adfw -n= -t= -e= -T= --all --bytes= --radix= --encoding= --print-file-name --help --version",
        inert=True,
        numbers=True,
        check=_no_option_files,
    ),
    "base64": _BASE,
    "base32": _BASE,
    "diff": _DIFF,
    "cmp": program(
        f"-bls -i= -n= --print-bytes --ignore-initial= --verbose --bytes= --quiet --silent {_HELP}", inert=True
    ),
    "colordiff": _DIFF,
    "zcat": program("-fl", inert=True),
    "bzcat": program("-s", inert=True),
    "xzcat": program("-q", inert=True),
    "look": program("-adf -t=", "pattern, files", inert=True),
    "pr": program("-adFmtTnv -h= -l= -o= -w= -W=", inert=True, numbers=True),
    "tsort": program(_HELP_TEXTS, inert=True),
    "bc": program("-lqsw --mathlib --quiet --standard --warn --help --version", inert=True),
    "iconv": program("-f= -t= -cls --from-code= --to-code= --list --silent --help --version"),
    "sdiff": program("-abBdEHilstWZ -I= -w= --ignore-case --width= --suppress-common-lines --left-column"),
    "nm": program(
        "-aABCDgnopPrsSuUvV -f= -t= --demangle --dynamic --defined-only --undefined-only", check=_no_option_files
    ),
    "size": program("-ABGdotxV", check=_no_option_files),
    "readelf": program("-acdeghlnrsStuvVW --all --file-header --sections --symbols --wide", check=_no_option_files),
    # These write files by nature; what they are is known, so that no rule for "anything" reaches that.
    "split": program(_HELP_TEXTS, "none"),
    "csplit": program(_HELP_TEXTS, "none"),
    "tee": program(_HELP_TEXTS, most=0),
    "zip": program("-h --help --version", "none"),
}
TEXTS.update(dict.fromkeys(("md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "sum"), _SUM))
TEXTS["b2sum"] = program(f"{_SUMS} -l= --length=", inert=True)
TEXTS["cksum"] = program(f"{_SUMS} -a= -l= --algorithm= --length= --untagged --base64 --raw --debug", inert=True)


def _greps(use: Use, place: Place) -> None:
    _selects_no_secret(use, place)
    if use.has("-R", "--dereference-recursive"):
        place.refuse_links([text for arg in files_of(_GREP, use) for text in arg.choices or ()] or ["."])


def _selects_no_secret(use: Use, _: Place) -> None:
    """Searching everything is reading the workspace; a pattern that picks out a secret is reading the secret."""
    for pattern in use.values("--include", "-g", "--glob", "--iglob", "--type-add"):
        if pattern.text is None:
            raise Unclear("a pattern for file names that is unknown")
        refuse_secret_pattern(pattern.text)
    for kind in use.values("--type-add"):
        refuse_secret_pattern((kind.text or "").partition(":")[2])


def refuse_secret_pattern(pattern: str) -> None:
    if not pattern.startswith("!") and matches_secret(pattern.rpartition("/")[2]):
        raise Unclear(f"{pattern} picks out protected files")


_GREP = program(
    "-EFGPiyvwxcLlqsbHhnTZzoaIUruR -e= -f=@ -A= -B= -C= -m= -D= -d= --extended-regexp --fixed-strings "
    "--basic-regexp --perl-regexp --regexp= --file=@ --ignore-case --no-ignore-case --invert-match --word-regexp "
    "--line-regexp --count --color[=] --colour[=] --files-without-match --files-with-matches --max-count= "
    "--only-matching --quiet --silent --no-messages --byte-offset --with-filename --no-filename --label= "
    "--line-number --initial-tab --null --after-context= --before-context= --context= --group-separator= "
    "--no-group-separator --text --binary-files= --devices= --directories= --exclude= --exclude-from=@ "
    "--exclude-dir= --include= --recursive --dereference-recursive --line-buffered --binary --null-data --help "
    "--version -V",
    "pattern, files",
    inert=True,
    numbers=True,
    check=_greps,
)


_RG = program(
    "-nNilLcvwxFSsUuaoqbIHhpPV0. -e= -f=@ -A= -B= -C= -m= -g= -t= -T= -d= -j= -M= -r= -E= --regexp= --file=@ "
    "--line-number --no-line-number --ignore-case --files-with-matches --files-without-match --count "
    "--count-matches --invert-match --word-regexp --line-regexp --fixed-strings --smart-case --case-sensitive "
    "--multiline --multiline-dotall --unrestricted --text --only-matching --quiet --byte-offset --no-filename "
    "--with-filename --heading --no-heading --pretty --pcre2 --auto-hybrid-regex --engine= --version --help "
    "--null --null-data --hidden --no-hidden --no-ignore --no-ignore-vcs --no-ignore-parent --no-ignore-dot "
    "--no-ignore-global --no-ignore-files --no-ignore-exclude --ignore-file=@ --after-context= --before-context= "
    "--context= --context-separator= --field-match-separator= --field-context-separator= --max-count= --glob= "
    "--iglob= --glob-case-insensitive --type= --type-not= --type-list --type-add= --type-clear= --max-depth= "
    "--max-filesize= --max-columns= --max-columns-preview --threads= --replace= --encoding= --color= --colors= "
    "--column --no-column --crlf --trim --vimgrep --stats --json --files --sort= --sortr= --path-separator= "
    "--passthru --line-buffered --block-buffered --no-messages --no-mmap --mmap --one-file-system --no-config "
    "--no-follow --binary --no-unicode --regex-size-limit= --dfa-size-limit= --stop-on-nonmatch --include-zero "
    "--no-require-git --hyperlink-format=",
    "pattern, files",
    check=_selects_no_secret,
)
# -L means "follow links" there, unlike in grep.
del _RG.options["-L"]

_FD = program(
    "-HIuUsigFap1q0V -e= -t= -d= -E= -j= -S= -c= -o= --hidden --no-ignore --no-ignore-vcs --no-ignore-parent "
    "--unrestricted --case-sensitive --ignore-case --glob --regex --fixed-strings --absolute-path --full-path "
    "--max-depth= --min-depth= --exact-depth= --extension= --type= --exclude= --size= --changed-within= "
    "--changed-before= --newer= --older= --owner= --color= --threads= --max-results= --quiet --print0 --version "
    "--help --prune --and= --strip-cwd-prefix --no-require-git --show-errors --one-file-system --format= "
    "--relative-path",
    "pattern, files",
)

SEARCH: dict[str, Program] = {
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
    "rg": _RG,
    "fd": _FD,
    "fdfind": _FD,
}
