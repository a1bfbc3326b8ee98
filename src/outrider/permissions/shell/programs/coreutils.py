"""Specifications of file, text and search programs: coreutils, archives, diff, grep, rg, fd and find expressions."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from msgspec import Struct, structs

from outrider.permissions.paths.protected import pattern_matches_secret
from outrider.permissions.redaction.secret_patterns import split_names
from outrider.permissions.shell.expansion import ExpandedArg
from outrider.permissions.shell.parser import NotProvenSafe
from outrider.permissions.shell.programs.table import ParsedArgs, PathChecker, ProgramSpec, file_operands, program_spec

_HELP = "--help --version"


def _check_followed_links(parsed: ParsedArgs, paths: PathChecker) -> None:
    """Checks a recursive listing that follows every symbolic link."""
    if parsed.has_option("-L", "--dereference") and parsed.has_option("-R", "--recursive"):
        paths.reject_outside_links(_start_paths(parsed))


def _check_measured_links(parsed: ParsedArgs, paths: PathChecker) -> None:
    if parsed.has_option("-L"):
        paths.reject_outside_links(_start_paths(parsed))


def _start_paths(parsed: ParsedArgs) -> list[str]:
    return [text for arg in parsed.operands for text in arg.values or ()] or ["."]


_LS = program_spec(
    "-aAbBcCdfFgGhHiklLmnNopqQrRsStuUvxXZ1 -I= -T= -w= --all --almost-all --author --escape --block-size= "
    "--ignore-backups --color[=] --directory --dired --classify[=] --file-type --format= --full-time "
    "--group-directories-first --no-group --human-readable --si --dereference-command-line "
    "--dereference-command-line-symlink-to-dir --hide= --hyperlink[=] --indicator-style= --inode --ignore= "
    "--kibibytes --dereference --numeric-uid-gid --literal --hide-control-chars --show-control-chars --quote-name "
    "--quoting-style= "
    f"--reverse --recursive --size --sort= --time= --time-style= --tabsize= --width= --context --zero {_HELP}",
    inert=True,
    check=_check_followed_links,
)


def _check_tar(parsed: ParsedArgs, _: PathChecker) -> None:
    """Allows only listing. With a colon in the archive name, tar connects to another machine."""
    if not parsed.has_option("-t", "--list"):
        raise NotProvenSafe("tar would do more than list an archive")
    named = [value.text for value in parsed.option_values("-f", "--file")]
    if any(name is None or ":" in name for name in named):
        raise NotProvenSafe("tar could read the archive from another machine")


def _check_unzip(parsed: ParsedArgs, _: PathChecker) -> None:
    if not parsed.has_option("-l", "-v", "-Z", "-t", "-p", "-z"):
        raise NotProvenSafe("unzip would extract files")
    if any(arg.can_be_option() for arg in parsed.operands[1:]):
        raise NotProvenSafe("unzip has an option after the archive")


def _check_compressor(parsed: ParsedArgs, _: PathChecker) -> None:
    """Allows listing and testing, which write no file unless `-d` follows."""
    only_reads = parsed.has_option("-l", "--list", "-t", "--test") and not parsed.has_option("-d", "--decompress")
    only_informs = parsed.has_option("--version", "--help") and not parsed.operands
    if not only_reads and not only_informs and not parsed.has_option("-c", "--stdout", "--to-stdout"):
        raise NotProvenSafe("it would replace files with compressed or extracted ones")


_COMPRESSOR = program_spec(
    f"-lvtcdkq --list --verbose --test --stdout --to-stdout --decompress --keep --quiet {_HELP}",
    check=_check_compressor,
)


FILE_PROGRAMS: dict[str, ProgramSpec] = {
    "ls": _LS,
    "dir": _LS,
    "vdir": _LS,
    "pwd": program_spec("-LP --logical --physical", "none", inert=True),
    "basename": program_spec(f"-az -s= --multiple --suffix= --zero {_HELP}", "text", inert=True),
    "dirname": program_spec(f"-z --zero {_HELP}", "text", inert=True),
    "realpath": program_spec(
        "-emLPqsz --canonicalize-existing --canonicalize-missing --logical --physical --quiet --relative-to=@ "
        f"--relative-base=@ --strip --no-symlinks --zero {_HELP}",
        inert=True,
    ),
    "readlink": program_spec(
        "-femnqsvz --canonicalize --canonicalize-existing --canonicalize-missing --no-newline --quiet --silent "
        f"--verbose --zero {_HELP}",
        inert=True,
    ),
    "stat": program_spec(
        f"-Lft -c= --dereference --file-system --cached= --format= --printf= --terse {_HELP}", inert=True
    ),
    "file": program_spec(
        "-bhikLNnrsv0 -F= -e= -P= --brief --mime --mime-type --mime-encoding --separator= --dereference "
        "--no-dereference --keep-going --no-pad --no-buffer --raw --print0 --extension --apple --exclude= --help "
        "--version"
    ),
    "du": program_spec(
        "-abcDhHklLmPsSx0 -d= -t= -B= --all --apparent-size --block-size= --bytes --total --dereference-args "
        "--max-depth= --human-readable --inodes --count-links --no-dereference --separate-dirs --si --summarize "
        f"--threshold= --time[=] --time-style= --one-file-system --null --exclude= -X=@ --exclude-from=@ {_HELP}",
        inert=True,
        check=_check_measured_links,
    ),
    "df": program_spec(
        "-ahHiklPTv -B= -t= -x= --all --block-size= --human-readable --si --inodes --local --portability --output[=] "
        f"--total --type= --print-type --exclude-type= {_HELP}",
        inert=True,
    ),
    "tree": program_spec(
        "-adfxqNQpughDsFvtcUriASnCJX -L= -P= -I= --prune --noreport --dirsfirst --filesfirst --sort= --du --si "
        "--gitignore --matchdirs --ignore-case --filelimit= --timefmt= --charset= --metafirst --inodes --device "
        "--help "
        "--version"
    ),
    "tar": program_spec(
        "-tvzjJaO -f=@ --list --verbose --gzip --bzip2 --xz --zstd --auto-compress --file=@ --exclude= --wildcards "
        "--no-recursion --full-time --numeric-owner --strip-components= --help --version",
        "text",
        check=_check_tar,
    ),
    "unzip": program_spec("-lvtpqZz1", check=_check_unzip, options_first=True),
    "zipinfo": program_spec("-12lsmvhtTz", options_first=True),
    **dict.fromkeys(("gzip", "gunzip", "xz", "unxz", "bzip2", "bunzip2"), _COMPRESSOR),
    "getfacl": program_spec("-acdeEstpn --access --default --omit-header --numeric", inert=True),
    "lsattr": program_spec("-RVadlpv", inert=True),
    "namei": program_spec("-xmolnv --modes --owners --long", inert=True),
    "cloc": program_spec("--help --version", "none"),
}
_NOT_OPENING_FILES = ("ls", "dir", "vdir", "stat", "du", "realpath", "readlink", "namei", "lsattr", "getfacl")
FILE_PROGRAMS.update({name: structs.replace(FILE_PROGRAMS[name], opens_files=False) for name in _NOT_OPENING_FILES})
# tree reads the value of a letter from the next word even if other letters follow it: `-Po pattern output`.
FILE_PROGRAMS["tree"] = structs.replace(FILE_PROGRAMS["tree"], short_options="letters")
FILE_PROGRAMS["tar"] = structs.replace(FILE_PROGRAMS["tar"], bundled_options=True)


_ENCODING = re.compile(r"[A-Za-z0-9_.:+-]*(?://[A-Za-z]*)*")
_HELP_TEXTS = "--help --version"
_SUMS = f"-btz --binary --text --tag --zero {_HELP}"


def _check_no_option_files(parsed: ParsedArgs, _: PathChecker) -> None:
    """Rejects `@file`, which names a file with further arguments, also in place of an option's value."""
    words = (*parsed.operands, *(value for _, value in parsed.options if value is not None))
    if any(arg.values is None or any(choice.startswith("@") for choice in arg.values) for arg in words):
        raise NotProvenSafe("it could read further arguments from a file (@file)")


def _check_encodings(parsed: ParsedArgs, _: PathChecker) -> None:
    """Rejects an encoding that is the path of a charmap file."""
    values = parsed.option_values("-f", "-t", "--from-code", "--to-code")
    if any(value.text is None or not _ENCODING.fullmatch(value.text) for value in values):
        raise NotProvenSafe("iconv could read the encoding from a file")


def _check_recursive_diff(parsed: ParsedArgs, paths: PathChecker) -> None:
    if parsed.has_option("-r", "--recursive") and not parsed.has_option("--no-dereference"):
        paths.reject_outside_links(text for arg in parsed.operands for text in arg.values or ())


_HEAD = program_spec(
    f"-n= -c= -qvz --lines= --bytes= --quiet --silent --verbose --zero-terminated {_HELP}",
    inert=True,
    numeric_options=True,
)
_TAIL = program_spec(
    "-n= -c= -qvzfF -s= --lines= --bytes= --quiet --silent --verbose --zero-terminated --follow[=] --retry --pid= "
    f"--sleep-interval= --max-unchanged-stats= {_HELP}",
    inert=True,
    numeric_options=True,
)
_CAT = program_spec(
    "-AbeEnstTuv --show-all --number-nonblank --show-ends --number --squeeze-blank --show-tabs --show-nonprinting "
    + _HELP_TEXTS,
    inert=True,
)
_BASE = program_spec(f"-di -w= --decode --ignore-garbage --wrap= {_HELP}", inert=True)
_SUM = program_spec(_SUMS, inert=True)
_FMT = program_spec(
    f"-cstu -p= -w= -g= --crown-margin --tagged-paragraph --split-only --uniform-spacing --width= {_HELP}",
    inert=True,
    numeric_options=True,
)
_DIFF = program_spec(
    "-qsuceynptiEZbwBadNrT -U= -C= -W= -I= -F= -x= -X=@ -S= -D= --brief --report-identical-files --unified[=] "
    "--context[=] --ed --rcs --side-by-side --width= --left-column --suppress-common-lines --show-c-function "
    "--show-function-line= --label= --expand-tabs --initial-tab --tabsize= --recursive --no-dereference "
    "--new-file --unidirectional-new-file --ignore-file-name-case --exclude= --exclude-from=@ --starting-file= "
    "--from-file=@ --to-file=@ --ignore-case --ignore-tab-expansion --ignore-trailing-space --ignore-space-change "
    "--ignore-all-space --ignore-blank-lines --ignore-matching-lines= --text --strip-trailing-cr --normal "
    "--minimal --speed-large-files "
    f"--color[=] --horizon-lines= --line-format= --ifdef= -L= {_HELP}",
    numeric_options=True,
    check=_check_recursive_diff,
)
_SORT = program_spec(
    "-bdfgiMhnRrVcCmsuz -k= -t= -S= --ignore-leading-blanks --dictionary-order --ignore-case --general-numeric-sort "
    "--ignore-nonprinting --month-sort --human-numeric-sort --numeric-sort --random-sort --reverse --sort= "
    "--version-sort --check[=] --merge --stable --unique --zero-terminated --key= --field-separator= --buffer-size= "
    f"--parallel= --debug {_HELP}"
)

TEXT_PROGRAMS: dict[str, ProgramSpec] = {
    "cat": _CAT,
    "tac": program_spec(f"-br -s= --before --regex --separator= {_HELP}", inert=True),
    "rev": program_spec("-Vh --version --help", inert=True),
    "nl": program_spec(
        "-b= -d= -f= -h= -i= -l= -n= -p -s= -v= -w= --body-numbering= --section-delimiter= --footer-numbering= "
        "--header-numbering= --line-increment= --join-blank-lines= --number-format= --no-renumber "
        "--number-separator= "
        f"--starting-line-number= --number-width= {_HELP}",
        inert=True,
    ),
    "head": _HEAD,
    "tail": _TAIL,
    "wc": program_spec(f"-clmLw --bytes --chars --lines --max-line-length --words --total= {_HELP}", inert=True),
    "cut": program_spec(
        "-b= -c= -d= -f= -nsz --bytes= --characters= --delimiter= --fields= --complement --only-delimited "
        f"--output-delimiter= --zero-terminated {_HELP}",
        inert=True,
    ),
    "tr": program_spec(f"-cCdst --complement --delete --squeeze-repeats --truncate-set1 {_HELP}", "text", inert=True),
    "sort": _SORT,
    "uniq": program_spec(
        "-cdDiuz -f= -s= -w= --count --repeated --all-repeated[=] --skip-fields= --group[=] --ignore-case "
        f"--skip-chars= --unique --zero-terminated --check-chars= {_HELP}",
        max_operands=1,
        options_first=True,
    ),
    "shuf": program_spec(f"-erz -i= -n= --echo --input-range= --head-count= --repeat --zero-terminated {_HELP}"),
    "paste": program_spec(f"-d= -sz --delimiters= --serial --zero-terminated {_HELP}", inert=True),
    "join": program_spec(
        "-a= -e= -i -1= -2= -j= -o= -t= -v= -z --ignore-case --check-order --nocheck-order --header "
        f"--zero-terminated {_HELP}",
        inert=True,
    ),
    "comm": program_spec(
        f"-123z --check-order --nocheck-order --output-delimiter= --total --zero-terminated {_HELP}", inert=True
    ),
    "fold": program_spec(f"-bs -w= --bytes --spaces --width= {_HELP}", inert=True, numeric_options=True),
    "fmt": _FMT,
    "expand": program_spec(f"-i -t= --initial --tabs= {_HELP}", inert=True, numeric_options=True),
    "unexpand": program_spec(f"-a -t= --all --first-only --tabs= {_HELP}", inert=True),
    "column": program_spec(
        "-texnL -s= -o= -c= -N= -R= -H= -T= -W= --table --separator= --output-separator= --output-width= "
        f"--table-columns= --table-right= --fillrows {_HELP}",
        inert=True,
    ),
    "od": program_spec(
        "-abcdfhiloOsxvD -A= -j= -N= -S= -t= -w[=] --address-radix= --skip-bytes= --read-bytes= --strings[=] "
        "--format= "
        f"--output-duplicates --width[=] --endian= {_HELP}",
        inert=True,
    ),
    "hexdump": program_spec(
        "-bcCdovx -e= -n= -s= --canonical --length= --skip= --no-squeezing --help --version", inert=True
    ),
    "hd": program_spec("-bcCdovx -e= -n= -s=", inert=True),
    "xxd": program_spec("-abeEiupd -c= -g= -l= -o= -s= -n= -R=", max_operands=1, options_first=True),
    "strings": program_spec(
        "-adfw -n= -t= -e= -T= --all --bytes= --radix= --encoding= --print-file-name --help --version",
        inert=True,
        numeric_options=True,
        check=_check_no_option_files,
    ),
    "base64": _BASE,
    "base32": _BASE,
    "diff": _DIFF,
    "cmp": program_spec(
        f"-bls -i= -n= --print-bytes --ignore-initial= --verbose --bytes= --quiet --silent {_HELP}", inert=True
    ),
    "colordiff": _DIFF,
    "zcat": program_spec("-fl", inert=True),
    "bzcat": program_spec("-s", inert=True),
    "xzcat": program_spec("-q", inert=True),
    "look": program_spec("-adf -t=", "pattern, files", inert=True),
    "pr": program_spec("-adFmtTnv -h= -l= -o= -w= -W=", inert=True, numeric_options=True),
    "tsort": program_spec(_HELP_TEXTS, inert=True),
    "bc": program_spec("-lqsw --mathlib --quiet --standard --warn --help --version", inert=True),
    "iconv": program_spec(
        "-f= -t= -cls --from-code= --to-code= --list --silent --help --version", check=_check_encodings
    ),
    "sdiff": program_spec("-abBdEHilstWZ -I= -w= --ignore-case --width= --suppress-common-lines --left-column"),
    "nm": program_spec(
        "-aABCDgnopPrsSuUvV -f= -t= --demangle --dynamic --defined-only --undefined-only", check=_check_no_option_files
    ),
    "size": program_spec("-ABGdotxV", check=_check_no_option_files),
    "readelf": program_spec(
        "-acdeghlnrsStuvVW --all --file-header --sections --symbols --wide", check=_check_no_option_files
    ),
    # These programs write files. They are listed so that an allow rule such as `tee *` does not cover that.
    "split": program_spec(_HELP_TEXTS, "none"),
    "csplit": program_spec(_HELP_TEXTS, "none"),
    "tee": program_spec(_HELP_TEXTS, max_operands=0),
    "zip": program_spec("-h --help --version", "none"),
}
TEXT_PROGRAMS.update(
    dict.fromkeys(("md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "sum"), _SUM)
)
# xxd compares whole words: `-ps` is one option, and everything behind another letter is ignored.
TEXT_PROGRAMS["xxd"] = structs.replace(
    TEXT_PROGRAMS["xxd"], short_options="separate", whole_word_options=frozenset({"-ps", "-plain"})
)
TEXT_PROGRAMS["b2sum"] = program_spec(f"{_SUMS} -l= --length=", inert=True)
TEXT_PROGRAMS["cksum"] = program_spec(
    f"{_SUMS} -a= -l= --algorithm= --length= --untagged --base64 --raw --debug", inert=True
)


def _check_grep(parsed: ParsedArgs, paths: PathChecker) -> None:
    _check_file_patterns(parsed, paths)
    if parsed.has_option("-R", "--dereference-recursive"):
        paths.reject_outside_links([text for arg in file_operands(_GREP, parsed) for text in arg.values or ()] or ["."])


def _check_file_patterns(parsed: ParsedArgs, _: PathChecker) -> None:
    """Rejects file patterns that select secret files. Searching the whole workspace is allowed."""
    for pattern in parsed.option_values("--include", "-g", "--glob", "--iglob", "--type-add"):
        if pattern.text is None:
            raise NotProvenSafe("it searches files by a pattern that is not known in advance")
        reject_secret_pattern(pattern.text)
    for kind in parsed.option_values("--type-add"):
        reject_secret_pattern((kind.text or "").partition(":")[2])


def reject_secret_pattern(pattern: str) -> None:
    if not pattern.startswith("!") and pattern_matches_secret(pattern.rpartition("/")[2]):
        raise NotProvenSafe(f"the pattern {pattern} selects protected files")


_GREP = program_spec(
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
    numeric_options=True,
    check=_check_grep,
)


# Without -L: in rg it follows symbolic links; in grep it lists files without a match.
_RG = program_spec(
    "-nNilcvwxFSsUuaoqbIHhpPV0. -e= -f=@ -A= -B= -C= -m= -g= -t= -T= -d= -j= -M= -r= -E= --regexp= --file=@ "
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
    check=_check_file_patterns,
)
_FD = program_spec(
    "-HIuUsigFap1q0V -e= -t= -d= -E= -j= -S= -c= -o= --hidden --no-ignore --no-ignore-vcs --no-ignore-parent "
    "--unrestricted --case-sensitive --ignore-case --glob --regex --fixed-strings --absolute-path --full-path "
    "--max-depth= --min-depth= --exact-depth= --extension= --type= --exclude= --size= --changed-within= "
    "--changed-before= --newer= --older= --owner= --color= --threads= --max-results= --quiet --print0 --version "
    "--help --prune --and= --strip-cwd-prefix --no-require-git --show-errors --one-file-system --format= "
    "--relative-path",
    "pattern, files",
)

SEARCH_PROGRAMS: dict[str, ProgramSpec] = {
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
    "rg": _RG,
    "fd": _FD,
    "fdfind": _FD,
}


_PLAIN_TESTS = split_names(
    """-print -print0 -ls -prune -quit -true -false -depth -d -mount -xdev -daystart -noleaf -empty -nouser
    -nogroup -readable -writable -executable -not -and -or -a -o ! ( ) , -noignore_readdir_race
    -ignore_readdir_race -warn -nowarn -help --help -version --version"""
)
_VALUE_TESTS = split_names(
    """-name -iname -path -ipath -wholename -iwholename -regex -iregex -regextype -lname -ilname -type -xtype -size
    -maxdepth -mindepth -mtime -mmin -atime -amin -ctime -cmin -used -perm -user -group -uid -gid -links -inum
    -fstype -printf -context"""
)
_ALTERNATIVES = frozenset({"-o", "-or", ",", "("})
_NEGATIONS = frozenset({"!", "-not"})
_TIME_TESTS = re.compile(r"^-newer[aBcm]t$")
_FILE_TESTS = re.compile(r"^-(?:newer|anewer|cnewer|samefile|newer[aBcm][aBcm])$")
_BEFORE_PATHS = frozenset({"-H", "-P"})
_PRINT_FORMATS: dict[tuple[str, ...], Literal["whole", "lines"]] = {
    ("-print0",): "whole",
    ("-print",): "lines",
    (): "lines",
}
FOUND_PATHS = ExpandedArg(None, multiple=True, found_paths=True, source_text="{}")


class FindExpression(Struct, frozen=True):
    """A parsed `find` call: the commands that it runs and the names that it prints."""

    commands: tuple[tuple[ExpandedArg, ...], ...] = ()
    patterns: tuple[str, ...] = ()  # every found file matches one of these; empty: no restriction
    prints_names: Literal["", "whole", "lines"] = ""  # "whole": separated by NUL bytes; "": prints other text too
    search_folders: tuple[str, ...] = (".",)
    link_folders: tuple[str, ...] = ()  # folders below which it may also find symbolic links


def parse_find(args: Sequence[ExpandedArg], paths: PathChecker) -> FindExpression:
    """Parses the arguments of `find`. Raises NotProvenSafe for actions that change files and for unapproved paths."""
    remaining = list(args)
    while remaining and remaining[0].text in _BEFORE_PATHS:
        remaining.pop(0)
    starts: list[str] = []
    while remaining and not _starts_expression(remaining[0]):
        paths.check_argument(remaining[0])
        starts += remaining.pop(0).values or ()
    parser = _FindParser(remaining, paths)
    parser.parse()
    names = () if parser.alternatives else tuple(parser.patterns)
    only_files = parser.only_files and not parser.alternatives
    below = tuple(starts) or (".",)
    return FindExpression(
        tuple(parser.commands), names, _PRINT_FORMATS.get(tuple(parser.prints), ""), below, () if only_files else below
    )


def _starts_expression(arg: ExpandedArg) -> bool:
    if arg.can_be_option() and arg.text is None:
        raise NotProvenSafe(f"{arg.source_text} could become an action of find")
    return arg.text is not None and (arg.text.startswith("-") or arg.text in {"!", "(", ")", ","})


class _FindParser:
    """Parses the expression after the search folders."""

    def __init__(self, args: list[ExpandedArg], paths: PathChecker) -> None:
        self.remaining_args, self.paths = args, paths
        self.commands: list[tuple[ExpandedArg, ...]] = []
        self.patterns: list[str] = []
        self.prints: list[str] = []
        self.alternatives = False  # the expression can match a file that matches no pattern
        self.negated = False
        self.only_files = False

    def parse(self) -> None:
        while self.remaining_args:
            arg = self.remaining_args.pop(0)
            text = arg.text
            if text in _PLAIN_TESTS:
                self.alternatives = self.alternatives or text in _ALTERNATIVES
                self.negated = text in _NEGATIONS
                self.prints += [text] if text.startswith("-print") or text == "-ls" else []
            elif text is not None and (text in _VALUE_TESTS or _TIME_TESTS.match(text)):
                self._parse_value_test(text)
            elif text is not None and _FILE_TESTS.match(text):
                self.paths.check_argument(self._take_argument(text))
            elif text == "-exec":
                self.commands.append(tuple(self._parse_exec()))
            else:
                raise NotProvenSafe(
                    "find -delete deletes files"
                    if text == "-delete"
                    else f"find {arg.source_text} can change files or run commands"
                )

    def _take_argument(self, name: str) -> ExpandedArg:
        if not self.remaining_args or self.remaining_args[0].multiple:
            raise NotProvenSafe(f"the value of find {name} is missing or not known in advance")
        return self.remaining_args.pop(0)

    def _parse_value_test(self, name: str) -> None:
        """Parses a test with a value; stores name patterns and whether `-type f` excludes symbolic links."""
        value = self._take_argument(name).text
        if name == "-printf":
            self.prints.append(name)
        if name == "-type" and value == "f" and not self.negated and not self.commands and not self.prints:
            self.only_files = True
        if name in {"-name", "-iname"} and value is not None:
            self.alternatives = self.alternatives or self.negated
            self.patterns.append(value)
        self.negated = False

    def _parse_exec(self) -> Iterator[ExpandedArg]:
        """Yields the arguments of `-exec` up to `;` or `{} +`, with `{}` replaced by FOUND_PATHS.

        A `+` that does not follow `{}` is an ordinary argument.
        """
        previous = ""
        while self.remaining_args:
            arg = self.remaining_args.pop(0)
            if arg.text == ";" or (arg.text == "+" and previous == "{}"):
                return
            if arg.values is None or arg.from_glob:
                raise NotProvenSafe("find -exec has an argument that is not known in advance and could be its end")
            if arg.text == "{}":
                yield FOUND_PATHS
            elif any("{}" in value or value in {";", "+"} for value in arg.values):
                raise NotProvenSafe("find -exec inserts a file name into another word, or has an uncertain end")
            else:
                yield arg
            previous = arg.text or ""
        raise NotProvenSafe("find -exec has no ; or + at its end")


# Programs that may run on any found file. Every other program shows file contents, so the patterns of the search must
# exclude secret files.
_SAFE_FOR_ANY_FILE = split_names(
    """grep egrep fgrep wc ls stat file du md5sum sha1sum sha256sum cksum basename dirname realpath readlink echo
    test ["""
)


_FOUND_FILES_NOT_OPENED = split_names("ls stat file du basename dirname realpath readlink echo test [")


def check_found_files(name: str, names: Sequence[str], links_below: Iterable[str], paths: PathChecker) -> None:
    """Raises NotProvenSafe if a program run on found files could show secrets or follow links out of the workspace."""
    if name not in _FOUND_FILES_NOT_OPENED:
        paths.reject_outside_links(links_below, names)
    if name in _SAFE_FOR_ANY_FILE:
        return
    if not names or any(pattern_matches_secret(pattern) or pattern in {"*", "*.*", ".*"} for pattern in names):
        raise NotProvenSafe(f"{name} could show protected files among those that are found")
