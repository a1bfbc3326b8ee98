"""Programs that read text and print text."""

from outrider.permissions.programs.place import Place
from outrider.permissions.programs.table import Program, Use, program
from outrider.permissions.shell.source import Unclear

_HELP = "--help --version"
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
    + _HELP,
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
    "tsort": program(_HELP, inert=True),
    "bc": program("-lqsw --mathlib --quiet --standard --warn --help --version", inert=True),
    "iconv": program("-f= -t= -cls --from-code= --to-code= --list --silent --help --version"),
    "sdiff": program("-abBdEHilstWZ -I= -w= --ignore-case --width= --suppress-common-lines --left-column"),
    "nm": program(
        "-aABCDgnopPrsSuUvV -f= -t= --demangle --dynamic --defined-only --undefined-only", check=_no_option_files
    ),
    "size": program("-ABGdotxV", check=_no_option_files),
    "readelf": program("-acdeghlnrsStuvVW --all --file-header --sections --symbols --wide", check=_no_option_files),
    # These write files by nature; what they are is known, so that no rule for "anything" reaches that.
    "split": program(_HELP, "none"),
    "csplit": program(_HELP, "none"),
    "tee": program(_HELP, most=0),
    "zip": program("-h --help --version", "none"),
}
TEXTS.update(dict.fromkeys(("md5sum", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "sum"), _SUM))
TEXTS["b2sum"] = program(f"{_SUMS} -l= --length=", inert=True)
TEXTS["cksum"] = program(f"{_SUMS} -a= -l= --algorithm= --length= --untagged --base64 --raw --debug", inert=True)
