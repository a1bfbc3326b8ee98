"""Programs that look for files and for text in files."""

from outrider.permissions.paths.protected import matches_secret
from outrider.permissions.programs.place import Place
from outrider.permissions.programs.table import Program, Use, files_of, program
from outrider.permissions.shell.source import Unclear


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
