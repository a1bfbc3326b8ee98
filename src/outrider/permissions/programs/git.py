"""Subcommands of git that only read, and the options under which they do; what a repository's files make of it is in
`steering`."""

import re
from collections.abc import Sequence

from outrider.permissions.paths.protected import protecting
from outrider.permissions.programs.table import Place, Program, Use, program, prove, read_use
from outrider.permissions.shell.expansion import Arg, literal
from outrider.permissions.shell.parser import Unclear

_IMPLY_LISTING = ("--contains", "--no-contains", "--merged", "--no-merged", "--points-at")
_CONFIGURING_VERBS = frozenset({"set", "unset", "edit", "rename-section", "remove-section"})
# Settings for one call that change at most how its output looks.
_HARMLESS_SETTING = re.compile(
    r"^(?:(?:color\.[a-z.]+|core\.(?:quotepath|abbrev)|log\.date|advice\.[a-z]+|diff\.(?:renames|context|noprefix))=[\w-]*"
    r"|core\.pager=(?:cat)?)$",
    re.IGNORECASE,
)
_SIGNATURE = re.compile(r"%G|signature|%\(\s*trailers:.*command", re.IGNORECASE)
_DIFF = (
    "-pusRabwWz0123456789 -U= -B[=] -M[=] -C[=] -D -l= -S= -G= -O=@ -X[=] --patch --no-patch --unified= --raw "
    "--minimal --patience --histogram --anchored= --diff-algorithm= --stat[=] --stat-width= --stat-name-width= "
    "--stat-count= --compact-summary --numstat --shortstat --dirstat[=] --summary --patch-with-stat "
    "--patch-with-raw --name-only --name-status --submodule=  --color[=] --no-color --color-moved[=] "
    "--no-color-moved --word-diff[=] --word-diff-regex= --color-words[=] --no-renames --rename-empty "
    "--no-rename-empty --check --full-index --binary --abbrev[=] --break-rewrites[=] --find-renames[=] "
    "--find-copies[=] --find-copies-harder --irreversible-delete --diff-filter= --pickaxe-all --pickaxe-regex "
    "--skip-to= --rotate-to= --relative[=] --no-relative --text --ignore-cr-at-eol --ignore-space-at-eol "
    "--ignore-space-change --ignore-all-space --ignore-blank-lines --ignore-matching-lines= -I= "
    "--inter-hunk-context= --function-context --exit-code --quiet --no-ext-diff --no-textconv "
    "--ignore-submodules[=] --src-prefix= --dst-prefix= --no-prefix --default-prefix --line-prefix= "
    "--ita-invisible-in-index"
)
_COMMITS = (
    "-n= -i -E -F -P -q -L= -g --max-count= --skip= --since= --after= --until= --before= --since-as-filter= "
    "--author= --committer= --grep= --grep-reflog= --all-match --invert-grep --regexp-ignore-case --basic-regexp "
    "--extended-regexp --fixed-strings --perl-regexp --merges --no-merges --min-parents= --max-parents= "
    "--no-min-parents --no-max-parents --first-parent --exclude-first-parent-only --not --all --branches[=] "
    "--tags[=] --remotes[=] --glob= --exclude= --reflog --walk-reflogs --boundary --simplify-by-decoration "
    "--show-pulls --full-history --dense --sparse --simplify-merges --ancestry-path[=] --date-order "
    "--author-date-order --topo-order --reverse --no-walk[=] --do-walk --pretty[=] --format= --abbrev-commit "
    "--no-abbrev-commit --oneline --encoding= --expand-tabs[=] --no-expand-tabs --notes[=] --no-notes "
    "--relative-date --date= --parents --children --left-right --graph --no-graph --show-linear-break[=] "
    "--cherry-pick --cherry-mark --cherry --left-only --right-only --ignore-missing --decorate[=] --no-decorate "
    "--decorate-refs= --decorate-refs-exclude= --source --mailmap --no-mailmap --use-mailmap --log-size --follow "
    "--full-diff --stdin --cc -c -m -t --combined-all-paths --diff-merges= --no-diff-merges "
    "--count"
)
_REFS = (
    "-i --format= --sort= --points-at[=] --contains[=] --no-contains[=] --merged[=] --no-merged[=] --count= "
    "--color[=] --no-color --ignore-case --column[=] --no-column --omit-empty --exclude="
)


def _paths_and_revisions(use: Use, place: Place) -> None:
    """An operand is a revision, a path, or `revision:path`, and `-L` takes `range:path`; none may lead to a protected
    file."""
    refuse_signatures(use)
    for arg in (*use.operands, *use.values("-L")):
        place.check(arg)
        for choice in arg.choices or ():
            path = choice.rpartition(":")[2]
            if name := protecting(path.strip("/").split("/"), "read"):
                raise Unclear(f"{name} is protected")


def refuse_signatures(use: Use) -> None:
    """Formats can ask for signatures and merges can be repeated; git runs other programs for both."""
    for name, value in use.options:
        text = value.text if value is not None else ""
        if text is None or _SIGNATURE.search(text) or (name == "--diff-merges" and text.startswith("r")):
            raise Unclear(f"the value of {name} could make git run a program")


def _lists_branches(use: Use, _: Place) -> None:
    """A name without an option that lists would make a branch."""
    refuse_signatures(use)
    if use.operands and not use.has("-l", "--list", *_IMPLY_LISTING):
        raise Unclear("it would make a branch")


def _lists_tags(use: Use, _: Place) -> None:
    refuse_signatures(use)
    if use.operands and not use.has("-l", "--list", "-n", *_IMPLY_LISTING):
        raise Unclear("it would make a tag")


def _reads_one_name(use: Use, _: Place) -> None:
    if len(use.operands) != 1 or use.operands[0].many:
        raise Unclear("with a second name it would write")


def _reads_configuration(use: Use, _: Place) -> None:
    """A name alone is read, one with a value is written; newer versions take a verb first, and a verb has no dot."""
    reading = use.has("--get", "--get-all", "--get-regexp", "--get-urlmatch", "-l", "--list", "--get-color")
    first = use.operands[0].text if use.operands else ""
    if first in {"get", "list"} or (reading and first not in _CONFIGURING_VERBS):
        return
    if len(use.operands) != 1 or first is None or "." not in first:
        raise Unclear("it would change the configuration")


def _asks_another_machine(_: Use, __: Place) -> None:
    """Known only so that a rule for "any further arguments" does not reach the options that name programs."""
    raise Unclear("it talks to another machine or writes")


def _git(options: str, check: object = _paths_and_revisions, *, numbers: bool = False) -> Program:
    return program(options, "text", check=check, numbers=numbers)  # pyright: ignore[reportArgumentType]


_LOG = _git(f"{_DIFF} {_COMMITS} -h", numbers=True)

GIT: dict[str, Program] = {
    "status": _git(
        "-sbvz -u[=] --short --branch --show-stash --porcelain[=] --long --verbose --untracked-files[=] --ignored[=] "
        "--ignore-submodules[=] --column[=] --no-column --ahead-behind --no-ahead-behind --renames --no-renames "
        "--find-renames[=]"
    ),
    "log": _LOG,
    "show": _LOG,
    "whatchanged": _LOG,
    "reflog": _LOG,
    "diff": _git(f"{_DIFF} --cached --staged --merge-base --cc -c -m --base --ours --theirs -h"),
    "diff-tree": _git(
        f"{_DIFF} -rtmcv -s --root --stdin --no-commit-id --cc --pretty[=] --format= --merge-base --always"
    ),
    "diff-index": _git(f"{_DIFF} -mc --cached --merge-base"),
    "diff-files": _git(f"{_DIFF} -cq --cc"),
    "range-diff": _git(f"{_DIFF} --creation-factor= --no-dual-color --left-only --right-only"),
    "shortlog": _git(f"{_COMMITS} -nsec -w[=] --numbered --summary --email --group= --committer"),
    "rev-list": _git(
        f"{_COMMITS} --objects --header --timestamp --count --disk-usage[=] --quiet --no-commit-header", numbers=True
    ),
    "rev-parse": _git(
        "-q --verify --quiet --short[=] --abbrev-ref[=] --symbolic --symbolic-full-name --all --branches[=] "
        "--tags[=] --remotes[=] --show-toplevel --show-prefix --show-cdup --git-dir --git-common-dir "
        "--absolute-git-dir --is-inside-work-tree --is-inside-git-dir --is-bare-repository "
        "--is-shallow-repository --show-superproject-working-tree --show-object-format[=] --revs-only --no-revs "
        "--flags --no-flags --default= --sq --not --since= --until= --after= --before= --path-format= --git-path= "
        "--local-env-vars"
    ),
    "branch": _git(
        f"{_REFS} -alrvq --all --list --remotes --verbose --show-current --abbrev[=] --no-abbrev", _lists_branches
    ),
    "tag": _git(f"{_REFS} -l -n[=] --list", _lists_tags),
    "for-each-ref": _git(f"{_REFS} --shell --perl --python --tcl"),
    "show-ref": _git(
        "-dqs --head --heads --branches --tags --dereference --hash[=] --verify --abbrev[=] --quiet --exists"
    ),
    "symbolic-ref": _git("-q --quiet --short --recurse --no-recurse", _reads_one_name),
    "show-branch": _git(
        "-arg --all --remotes --topo-order --date-order --sparse --current --list --independent --merge-base --no-name "
        "--sha1-name --topics --color[=] --no-color --more[=]"
    ),
    "name-rev": _git("--tags --refs= --exclude= --all --name-only --no-undefined --always"),
    "describe": _git(
        "--dirty[=] --broken[=] --all --tags --contains --abbrev= --candidates= --exact-match --debug --long "
        "--match= --exclude= --always --first-parent"
    ),
    "ls-files": _git(
        "-cdmoiskuzvft -x= -X=@ --cached --deleted --modified --others --ignored --stage --killed --unmerged "
        "--directory --no-empty-directory --eol --exclude= --exclude-from=@ --exclude-per-directory= "
        "--exclude-standard --error-unmatch --with-tree= --full-name --abbrev[=] --debug --deduplicate --sparse "
        "--recurse-submodules --format="
    ),
    "ls-tree": _git(
        "-drtlz --long --name-only --name-status --object-only --full-name --full-tree --abbrev[=] --format="
    ),
    "blame": _git(
        "-bsltfnpcewMC -L= -S=@ --root --show-stats --reverse --porcelain --line-porcelain --incremental "
        "--encoding= --date= --score-debug --show-name --show-number --show-email --abbrev= --color-lines "
        "--color-by-age --first-parent --ignore-rev= --no-progress --minimal"
    ),
    "annotate": _git("-bltw -L= --date= --porcelain"),
    "grep": _git(
        "-aiIvwhHEGPFnlLzcpqWor -e= -f=@ -A= -B= -C= -m= --cached --untracked --recurse-submodules --text "
        "--ignore-case --word-regexp --invert-match --full-name --extended-regexp --basic-regexp --perl-regexp "
        "--fixed-strings --line-number --column --files-with-matches --name-only --files-without-match --null "
        "--only-matching --count --color[=] --no-color --break --heading --show-function --context= "
        "--after-context= --before-context= --function-context --threads= --and --or --not --all-match --quiet "
        "--max-depth= --recursive --no-recursive --max-count= --exclude-standard --no-exclude-standard "
        "--no-textconv",
        numbers=True,
    ),
    "cat-file": _git("-tsep --allow-unknown-type --batch-check[=] --batch[=] --buffer --batch-all-objects --unordered"),
    "hash-object": _git("-t= --stdin --path=@ --no-filters --literally"),
    "merge-base": _git("-a --all --octopus --independent --is-ancestor --fork-point"),
    "count-objects": _git("-vH --verbose --human-readable"),
    "check-ignore": _git("-qvzn --quiet --verbose --stdin --non-matching --no-index"),
    "check-attr": _git("-az --all --cached --stdin"),
    "cherry": _git("-v --verbose --abbrev[=]"),
    "var": _git("-l"),
    "config": _git(
        "-lz --get --get-all --get-regexp --list --local --global --system --worktree --show-origin --show-scope "
        "--name-only --null --type= --bool --int --path --default= --includes --no-includes --get-urlmatch --all "
        "--regexp --show-names --no-show-names",
        _reads_configuration,
    ),
    "version": _git("--build-options"),
    "remote": _git("-v --verbose", None),
    "stash": _git("", None),
    "worktree": _git("", None),
    "notes": _git("", None),
    "submodule": _git("", None),
    "bisect": _git("", None),
    "help": program("-agc", "none"),
    "ls-remote": program(
        "-htq --heads --tags --branches --refs --quiet --get-url --sort= --symref --exit-code",
        "text",
        check=_asks_another_machine,
    ),
    "fetch": program(
        "-avqpnft -j= --all --verbose --quiet --prune --prune-tags --tags --no-tags --dry-run --depth= "
        "--deepen= --unshallow --force --jobs= --progress",
        "text",
        check=_asks_another_machine,
    ),
    "archive": program("-lv --list", "text", check=_asks_another_machine),
}
# Subcommands whose first word says what they do: each with the ones that read.
_VERBS: dict[str, dict[str, Program]] = {
    "remote": {"show": _git("-n"), "get-url": _git("--push --all")},
    "stash": {"list": _LOG, "show": _git(f"{_DIFF} --include-untracked --only-untracked -u")},
    "worktree": {"list": _git("-vz --porcelain --verbose")},
    "notes": {"show": _LOG, "list": _LOG},
    "submodule": {},
    "bisect": {"log": _git(""), "terms": _git("--term-good --term-bad --term-old --term-new")},
    "reflog": {"show": _LOG, "exists": _git("")},
}
_WRITING_VERBS = frozenset({"expire", "delete", "drop", "write"})
_GLOBAL = program(
    "-Pvh -C=@ -c= --no-pager --no-optional-locks --literal-pathspecs --no-replace-objects --version --help "
    "--no-lazy-fetch --icase-pathspecs --noglob-pathspecs --glob-pathspecs"
)


def prove_git(args: Sequence[Arg], place: Place) -> Place:
    """Raises Unclear unless the call only reads; the answer is where it runs, after every `-C`."""
    place, rest = leave_globals(args, place)
    if not rest:
        return place
    name = rest[0].text
    if name is None or name not in GIT:
        raise Unclear(f"git {rest[0].shown} is not known to be harmless")
    _prove_subcommand(name, rest[1:], place)
    return place


def git_table(words: Sequence[str]) -> tuple[Program | None, int]:
    """The table for a call that begins with these words after `git`, and the place of what it speaks about."""
    name, verb = (*words, "", "")[:2]
    verbs = _VERBS.get(name)
    return (GIT.get(name), 2) if verbs is None or name == "reflog" else (verbs.get(verb), 3)


def leave_globals(args: Sequence[Arg], place: Place) -> tuple[Place, list[Arg]]:
    """The options before the subcommand, followed; the subcommand and what comes after it."""
    rest = list(args)
    while rest and (text := rest[0].text) is not None and text.startswith("-"):
        taken = 2 if text in {"-C", "-c"} else 1
        use = read_use(_GLOBAL, rest[:taken])
        for setting in use.values("-c"):
            if setting.text is None or not _HARMLESS_SETTING.match(setting.text):
                raise Unclear("a setting for git that could make it run something")
        for folder in use.values("-C"):
            place.check(folder)
            if folder.text is None:
                raise Unclear("the folder after -C is unknown")
            place = place.at(tuple(f"{cwd}/{folder.text}" for cwd in place.cwds))
        rest = rest[taken:]
        if use.has("--version", "--help", "-v", "-h"):
            if use.has("--help", "-h") and rest:
                raise Unclear("it would open a manual page")
            return place, []
    return place, rest


def _prove_subcommand(name: str, args: Sequence[Arg], place: Place) -> None:
    verb = args[0].text if args else None
    if name == "reflog" and verb in _WRITING_VERBS:
        raise Unclear(f"git reflog {verb} changes the reflog")
    spec = _VERBS.get(name, {}).get(verb or "")
    if spec is not None:
        if name == "remote" and verb == "show" and not _says(args, "-n") and len(args) > 1:
            raise Unclear("it would ask the other side")
        prove(spec, args[1:], place)
        return
    if name in _VERBS and name != "reflog" and (name != "remote" or _operands(args)):
        raise Unclear(f"git {name} {verb or ''} is not known to be harmless")
    if name == "grep":
        args = _grep_paths(args, place)
    prove(GIT[name], args, place)


def _grep_paths(args: Sequence[Arg], place: Place) -> Sequence[Arg]:
    """The first operand of git grep is a pattern, unless one is given as an option: it is no path to be checked."""
    use = read_use(GIT["grep"], args)
    if use.has("-e", "-f") or not use.operands:
        return args
    _paths_and_revisions(Use((), use.operands[1:]), place)
    return [literal("--"), *use.operands[1:]]


def _operands(args: Sequence[Arg]) -> bool:
    return any(arg.text is None or not arg.text.startswith("-") for arg in args)


def _says(args: Sequence[Arg], option: str) -> bool:
    return any(arg.text == option for arg in args)
