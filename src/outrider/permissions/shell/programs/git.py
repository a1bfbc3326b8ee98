"""Specifications of the git subcommands that only read.

Repository files that change what git does are checked separately, in `workspace_config`.
"""

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from msgspec import structs

from outrider.permissions.paths.protected import find_protected_name
from outrider.permissions.shell.expansion import ExpandedArg, literal_arg
from outrider.permissions.shell.parser import NotProvenSafe
from outrider.permissions.shell.programs.table import (
    ParsedArgs,
    PathChecker,
    ProgramSpec,
    parse_args,
    program_spec,
    prove_read_only,
)
from outrider.permissions.shell.programs.workspace_config import (
    find_git_folder,
    find_worktree_root,
    read_index_entries,
)

_IMPLY_LISTING = ("--contains", "--no-contains", "--merged", "--no-merged", "--points-at")
_CONFIG_WRITING_VERBS = frozenset({"set", "unset", "edit", "rename-section", "remove-section"})
# Values of `git -c` that change only the output format.
_HARMLESS_SETTING = re.compile(
    r"^(?:(?:color\.[a-z.]+|core\.(?:quotepath|abbrev)|log\.date|advice\.[a-z]+|diff\.(?:renames|context|noprefix))=[\w-]*"
    r"|core\.pager=(?:cat)?)$",
    re.IGNORECASE,
)
MAX_INDEX_ENTRIES = 20_000
# Path segments of plain characters. git quotes any other character, and a shell splits or expands some of them.
_PLAIN_PATH = re.compile(r"(?!-)[A-Za-z0-9_.,+=@%^~#:()-]+(?:/[A-Za-z0-9_.,+=@%^~#:()-]+)*")
_SPECIAL_SEGMENTS = frozenset({".", "..", ".git"})
_PROGRAM_FORMAT = re.compile(r"%G|signature|%\(\s*trailers:.*command", re.IGNORECASE)
_DIFF_OPTIONS = (
    "-pusRabwWz0123456789 -U[=] -B[=] -M[=] -C[=] -D -l= -S= -G= -O=@ -X[=] --patch --no-patch --unified[=] --raw "
    "--minimal --patience --histogram --anchored= --diff-algorithm= --stat[=] --stat-width= --stat-name-width= "
    "--stat-count= --compact-summary --numstat --shortstat --dirstat[=] --summary --patch-with-stat "
    "--patch-with-raw --name-only --name-status --submodule[=] --color[=] --no-color --color-moved[=] "
    "--no-color-moved --word-diff[=] --word-diff-regex= --color-words[=] --no-renames --rename-empty "
    "--no-rename-empty --check --full-index --binary --abbrev[=] --break-rewrites[=] --find-renames[=] "
    "--find-copies[=] --find-copies-harder --irreversible-delete --diff-filter= --pickaxe-all --pickaxe-regex "
    "--skip-to= --rotate-to= --relative[=] --no-relative --text --ignore-cr-at-eol --ignore-space-at-eol "
    "--ignore-space-change --ignore-all-space --ignore-blank-lines --ignore-matching-lines= -I= "
    "--inter-hunk-context= --function-context --exit-code --quiet --no-ext-diff --no-textconv "
    "--ignore-submodules[=] --src-prefix= --dst-prefix= --no-prefix --default-prefix --line-prefix= "
    "--ita-invisible-in-index"
)
_COMMIT_OPTIONS = (
    "-n= -i -E -F -P -q -g --max-count= --skip= --since= --after= --until= --before= --since-as-filter= "
    "--author= --committer= --grep= --grep-reflog= --all-match --invert-grep --regexp-ignore-case --basic-regexp "
    "--extended-regexp --fixed-strings --perl-regexp --merges --no-merges --min-parents[=] --max-parents[=] "
    "--no-min-parents --no-max-parents --first-parent --exclude-first-parent-only --not --all --branches[=] "
    "--tags[=] --remotes[=] --glob= --exclude= --reflog --walk-reflogs --boundary --simplify-by-decoration "
    "--show-pulls --full-history --dense --sparse --simplify-merges --ancestry-path[=] --date-order "
    "--author-date-order --topo-order --reverse --no-walk[=] --do-walk --pretty[=] --format[=] --abbrev-commit "
    "--no-abbrev-commit --oneline --encoding= --expand-tabs[=] --no-expand-tabs --notes[=] --no-notes "
    "--relative-date --date= --parents --children --left-right --graph --no-graph --show-linear-break[=] "
    "--cherry-pick --cherry-mark --cherry --left-only --right-only --ignore-missing --decorate[=] --no-decorate "
    "--decorate-refs= --decorate-refs-exclude= --source --mailmap --no-mailmap --use-mailmap --log-size --follow "
    "--full-diff --stdin --cc -c -m -t --combined-all-paths --diff-merges= --no-diff-merges "
    "--count"
)
_REF_OPTIONS = (
    "-i --format= --sort= --points-at[=] --contains[=] --no-contains[=] --merged[=] --no-merged[=] --count= "
    "--color[=] --no-color --ignore-case --column[=] --no-column --omit-empty --exclude="
)


def _check_paths_and_revisions(parsed: ParsedArgs, paths: PathChecker) -> None:
    """Checks operands (a revision, a path or `revision:path`) and `-L range:path` for protected files."""
    reject_program_formats(parsed)
    for arg in (*parsed.operands, *parsed.option_values("-L")):
        paths.check_argument(arg)
        for choice in arg.values or ():
            path = choice.rpartition(":")[2]
            if name := find_protected_name(path.strip("/").split("/"), "read"):
                raise NotProvenSafe(f"it would show {name}, which is a protected file")


def reject_program_formats(parsed: ParsedArgs) -> None:
    """Rejects option values that make git run a program: signatures in formats, and remerge diffs."""
    for name, value in parsed.options:
        text = value.text if value is not None else ""
        if text is None or _PROGRAM_FORMAT.search(text) or (name == "--diff-merges" and text.startswith("r")):
            raise NotProvenSafe(f"the value of git's option {name} could make git run a program")


def _check_branch(parsed: ParsedArgs, _: PathChecker) -> None:
    """Requires a listing option if there is an operand; otherwise `git branch name` creates a branch."""
    reject_program_formats(parsed)
    if parsed.operands and not parsed.has_option("-l", "--list", *_IMPLY_LISTING):
        raise NotProvenSafe("it would create a git branch")


def _check_tag(parsed: ParsedArgs, _: PathChecker) -> None:
    reject_program_formats(parsed)
    if parsed.operands and not parsed.has_option("-l", "--list", "-n", *_IMPLY_LISTING):
        raise NotProvenSafe("it would create a git tag")


def _check_symbolic_ref(parsed: ParsedArgs, _: PathChecker) -> None:
    if len(parsed.operands) != 1 or parsed.operands[0].multiple:
        raise NotProvenSafe("it would change a symbolic ref")


def _check_config(parsed: ParsedArgs, _: PathChecker) -> None:
    """Allows reading: `git config name`, a `--get` option, or the verbs `get` and `list` of newer versions.

    A name with a value writes. A verb contains no dot, a setting does.
    """
    reading = parsed.has_option("--get", "--get-all", "--get-regexp", "--get-urlmatch", "-l", "--list", "--get-color")
    name_or_verb = parsed.operands[0].text if parsed.operands else ""
    if name_or_verb in {"get", "list"} or (reading and name_or_verb not in _CONFIG_WRITING_VERBS):
        return
    if len(parsed.operands) != 1 or name_or_verb is None or "." not in name_or_verb:
        raise NotProvenSafe("it would change the git configuration")


def _reject_remote_access(_: ParsedArgs, __: PathChecker) -> None:
    """Rejects every call. The subcommand is listed so that `git fetch *` does not cover options that name programs."""
    raise NotProvenSafe("git would connect to another machine or write files")


def _git_spec(
    options: str,
    check: object = _check_paths_and_revisions,
    *,
    numeric_options: bool = False,
    options_first: bool = False,
) -> ProgramSpec:
    spec = program_spec(options, "text", check=check, numeric_options=numeric_options, options_first=options_first)  # pyright: ignore[reportArgumentType]
    # Several parsers of git read the options of log and diff one after the other. They disagree about joined letters.
    return structs.replace(spec, short_options="first")


_LOG = _git_spec(f"{_DIFF_OPTIONS} {_COMMIT_OPTIONS} -L= -h", numeric_options=True)

GIT_SUBCOMMANDS: dict[str, ProgramSpec] = {
    "status": _git_spec(
        "-sbvz -u[=] --short --branch --show-stash --porcelain[=] --long --verbose --untracked-files[=] --ignored[=] "
        "--ignore-submodules[=] --column[=] --no-column --ahead-behind --no-ahead-behind --renames --no-renames "
        "--find-renames[=]"
    ),
    "log": _LOG,
    "show": _LOG,
    "whatchanged": _LOG,
    "reflog": _LOG,
    "diff": _git_spec(f"{_DIFF_OPTIONS} --cached --staged --merge-base --cc -c -m --base --ours --theirs -h"),
    "diff-tree": _git_spec(
        f"{_DIFF_OPTIONS} -rtmcv -s --root --stdin --no-commit-id --cc --pretty[=] --format[=] --merge-base --always"
    ),
    "diff-index": _git_spec(f"{_DIFF_OPTIONS} -mc --cached --merge-base"),
    "diff-files": _git_spec(f"{_DIFF_OPTIONS} -cq --cc"),
    "range-diff": _git_spec(f"{_DIFF_OPTIONS} --creation-factor= --no-dual-color --left-only --right-only"),
    "shortlog": _git_spec(f"{_COMMIT_OPTIONS} -nsec -w[=] --numbered --summary --email --group= --committer"),
    "rev-list": _git_spec(
        f"{_COMMIT_OPTIONS} --objects --header --timestamp --count --disk-usage[=] --quiet --no-commit-header",
        numeric_options=True,
    ),
    "rev-parse": _git_spec(
        "-q --verify --quiet --short[=] --abbrev-ref[=] --symbolic --symbolic-full-name --all --branches[=] "
        "--tags[=] --remotes[=] --show-toplevel --show-prefix --show-cdup --git-dir --git-common-dir "
        "--absolute-git-dir --is-inside-work-tree --is-inside-git-dir --is-bare-repository "
        "--is-shallow-repository --show-superproject-working-tree --show-object-format[=] --revs-only --no-revs "
        "--flags --no-flags --default= --sq --not --since[=] --until[=] --after[=] --before[=] --path-format[=] "
        "--git-path= --local-env-vars"
    ),
    "branch": _git_spec(
        f"{_REF_OPTIONS} -alrvq --all --list --remotes --verbose --show-current --abbrev[=] --no-abbrev", _check_branch
    ),
    "tag": _git_spec(f"{_REF_OPTIONS} -l -n[=] --list", _check_tag),
    "for-each-ref": _git_spec(f"{_REF_OPTIONS} --shell --perl --python --tcl"),
    "show-ref": _git_spec(
        "-dqs --head --heads --branches --tags --dereference --hash[=] --verify --abbrev[=] --quiet --exists"
    ),
    "symbolic-ref": _git_spec("-q --quiet --short --recurse --no-recurse", _check_symbolic_ref),
    "show-branch": _git_spec(
        "-arg --all --remotes --topo-order --date-order --sparse --current --list --independent --merge-base --no-name "
        "--sha1-name --topics --color[=] --no-color --more[=]"
    ),
    "name-rev": _git_spec("--tags --refs= --exclude= --all --name-only --no-undefined --always"),
    "describe": _git_spec(
        "--dirty[=] --broken[=] --all --tags --contains --abbrev[=] --candidates= --exact-match --debug --long "
        "--match= --exclude= --always --first-parent"
    ),
    "ls-files": _git_spec(
        "-cdmoiskuzvft -x= -X=@ --cached --deleted --modified --others --ignored --stage --killed --unmerged "
        "--directory --no-empty-directory --eol --exclude= --exclude-from=@ --exclude-per-directory= "
        "--exclude-standard --error-unmatch --with-tree= --full-name --abbrev[=] --debug --deduplicate --sparse "
        "--recurse-submodules --format="
    ),
    "ls-tree": _git_spec(
        "-drtlz --long --name-only --name-status --object-only --full-name --full-tree --abbrev[=] --format="
    ),
    "blame": _git_spec(
        "-bsltfnpcewMC -L= -S=@ --root --show-stats --reverse --porcelain --line-porcelain --incremental "
        "--encoding= --date= --score-debug --show-name --show-number --show-email --abbrev[=] --color-lines "
        "--color-by-age --first-parent --ignore-rev= --no-progress --minimal"
    ),
    "annotate": _git_spec("-bltw -L= --date= --porcelain"),
    "grep": _git_spec(
        "-aiIvwhHEGPFnlLzcpqWor -e= -f=@ -A= -B= -C= -m= --cached --untracked --recurse-submodules --text "
        "--ignore-case --word-regexp --invert-match --full-name --extended-regexp --basic-regexp --perl-regexp "
        "--fixed-strings --line-number --column --files-with-matches --name-only --files-without-match --null "
        "--only-matching --count --color[=] --no-color --break --heading --show-function --context= "
        "--after-context= --before-context= --function-context --threads= --and --or --not --all-match --quiet "
        "--max-depth= --recursive --no-recursive --max-count= --exclude-standard --no-exclude-standard "
        "--no-textconv",
        numeric_options=True,
    ),
    "cat-file": _git_spec(
        "-tsep --allow-unknown-type --batch-check[=] --batch[=] --buffer --batch-all-objects --unordered"
    ),
    "hash-object": _git_spec("-t= --stdin --path=@ --no-filters --literally"),
    "merge-base": _git_spec("-a --all --octopus --independent --is-ancestor --fork-point"),
    "count-objects": _git_spec("-vH --verbose --human-readable"),
    "check-ignore": _git_spec("-qvzn --quiet --verbose --stdin --non-matching --no-index"),
    "check-attr": _git_spec("-az --all --cached --stdin"),
    "cherry": _git_spec("-v --verbose --abbrev[=]"),
    "var": _git_spec("-l"),
    "config": _git_spec(
        "-lz --get --get-all --get-regexp --list --local --global --system --worktree --show-origin --show-scope "
        "--name-only --null --type= --bool --int --path --default= --includes --no-includes --get-urlmatch --all "
        "--regexp --show-names --no-show-names",
        _check_config,
        options_first=True,
    ),
    "version": _git_spec("--build-options"),
    "remote": _git_spec("-v --verbose", None),
    "stash": _git_spec("", None),
    "worktree": _git_spec("", None),
    "notes": _git_spec("", None),
    "submodule": _git_spec("", None),
    "bisect": _git_spec("", None),
    "help": program_spec("-agc", "none"),
    "ls-remote": program_spec(
        "-htq --heads --tags --branches --refs --quiet --get-url --sort= --symref --exit-code",
        "text",
        check=_reject_remote_access,
    ),
    "fetch": program_spec(
        "-avqpnft -j= --all --verbose --quiet --prune --prune-tags --tags --no-tags --dry-run --depth= "
        "--deepen= --unshallow --force --jobs= --progress",
        "text",
        check=_reject_remote_access,
    ),
    "archive": program_spec("-lv --list", "text", check=_reject_remote_access),
}
GIT_SUBCOMMANDS["grep"] = structs.replace(GIT_SUBCOMMANDS["grep"], short_options="getopt")
# Subcommands with verbs, and the verbs that only read.
_SUBCOMMAND_VERBS: dict[str, dict[str, ProgramSpec]] = {
    "remote": {"show": _git_spec("-n"), "get-url": _git_spec("--push --all")},
    "stash": {"list": _LOG, "show": _git_spec(f"{_DIFF_OPTIONS} --include-untracked --only-untracked -u")},
    "worktree": {"list": _git_spec("-vz --porcelain --verbose")},
    "notes": {"show": _LOG, "list": _LOG},
    "submodule": {},
    "bisect": {"log": _git_spec(""), "terms": _git_spec("--term-good --term-bad --term-old --term-new")},
    "reflog": {"show": _LOG, "exists": _git_spec("")},
}
_REFLOG_WRITING_VERBS = frozenset({"expire", "delete", "drop", "write"})
_GLOBAL_OPTIONS = program_spec(
    "-Pvh -C=@ -c= --no-pager --no-optional-locks --literal-pathspecs --no-replace-objects --version --help "
    "--no-lazy-fetch --icase-pathspecs --noglob-pathspecs --glob-pathspecs"
)


# What common subcommands do, for the approval reason.
_WRITING_SUBCOMMANDS: dict[str, str] = {
    "add": "changes the index",
    "commit": "creates a commit",
    "push": "sends commits to another repository",
    "pull": "fetches commits and changes files of the working tree",
    "clone": "copies a repository, usually from another machine",
    "init": "creates a repository",
    "clean": "deletes untracked files",
    "reset": "changes the index, and with --hard discards changes of the working tree",
    **dict.fromkeys(("checkout", "switch", "restore", "apply"), "changes files of the working tree"),
    **dict.fromkeys(("merge", "rebase", "cherry-pick", "revert", "am"), "creates commits and changes the working tree"),
    **dict.fromkeys(("rm", "mv"), "changes the index and the working tree"),
}


def prove_git(args: Sequence[ExpandedArg], paths: PathChecker) -> PathChecker:
    """Raises NotProvenSafe unless the git call only reads; returns the paths as seen after every `-C`."""
    paths, words = skip_global_options(args, paths)
    if not words:
        return paths
    name = words[0].text
    if name is None or name not in GIT_SUBCOMMANDS:
        raise NotProvenSafe(
            f"git {words[0].source_text} {_WRITING_SUBCOMMANDS.get(name or '', 'is not known to only read')}"
        )
    _prove_subcommand(name, words[1:], paths)
    return paths


def find_git_spec(words: Sequence[str]) -> tuple[ProgramSpec | None, int]:
    """Returns the specification for the words after `git`, and the index of the subcommand's first argument."""
    name, verb = (*words, "", "")[:2]
    verbs = _SUBCOMMAND_VERBS.get(name)
    return (GIT_SUBCOMMANDS.get(name), 2) if verbs is None or name == "reflog" else (verbs.get(verb), 3)


def skip_global_options(args: Sequence[ExpandedArg], paths: PathChecker) -> tuple[PathChecker, list[ExpandedArg]]:
    """Checks the options before the subcommand; returns the paths after `-C`, and the subcommand with its arguments."""
    remaining = list(args)
    while remaining and (text := remaining[0].text) is not None and text.startswith("-"):
        width = 2 if text in {"-C", "-c"} else 1
        parsed = parse_args(_GLOBAL_OPTIONS, remaining[:width])
        for setting in parsed.option_values("-c"):
            if setting.text is None or not _HARMLESS_SETTING.match(setting.text):
                raise NotProvenSafe("git -c sets an option that could make git run a program")
        for folder in parsed.option_values("-C"):
            paths.check_argument(folder)
            if folder.text is None:
                raise NotProvenSafe("git -C names a folder that is not known in advance")
            paths = paths.with_cwds(tuple(f"{cwd}/{folder.text}" for cwd in paths.cwds))
        remaining = remaining[width:]
        if parsed.has_option("--version", "--help", "-v", "-h"):
            if parsed.has_option("--help", "-h") and remaining:
                raise NotProvenSafe("git would open a manual page, which starts a pager or browser")
            return paths, []
    return paths, remaining


def _prove_subcommand(name: str, args: Sequence[ExpandedArg], paths: PathChecker) -> None:
    """Checks the arguments of a subcommand, or of its verb if it has verbs."""
    verb = args[0].text if args else None
    if name == "reflog" and verb in _REFLOG_WRITING_VERBS:
        raise NotProvenSafe(f"git reflog {verb} changes the reflog")
    spec = _SUBCOMMAND_VERBS.get(name, {}).get(verb or "")
    if spec is not None:
        if name == "remote" and verb == "show" and not _has_word(args, "-n") and len(args) > 1:
            raise NotProvenSafe("git remote show would connect to the remote (without -n)")
        prove_read_only(spec, args[1:], paths)
        return
    if name in _SUBCOMMAND_VERBS and name != "reflog" and (name != "remote" or _has_operands(args)):
        raise NotProvenSafe(f"git {name} {verb or ''} is not known to only read")
    if name == "grep":
        args = _grep_paths(args, paths)
    prove_read_only(GIT_SUBCOMMANDS[name], args, paths)


def _grep_paths(args: Sequence[ExpandedArg], paths: PathChecker) -> Sequence[ExpandedArg]:
    """Drops the first operand of `git grep`, which is the pattern unless `-e` or `-f` gives one."""
    parsed = parse_args(GIT_SUBCOMMANDS["grep"], args)
    if parsed.has_option("-e", "-f") or not parsed.operands:
        return args
    _check_paths_and_revisions(ParsedArgs((), parsed.operands[1:]), paths)
    return [literal_arg("--"), *parsed.operands[1:]]


def _has_operands(args: Sequence[ExpandedArg]) -> bool:
    return any(arg.text is None or not arg.text.startswith("-") for arg in args)


def _has_word(args: Sequence[ExpandedArg], option: str) -> bool:
    return any(arg.text == option for arg in args)


def reject_unsafe_index(paths: PathChecker) -> None:
    """Raises NotProvenSafe if a name in git's index is not a plain relative path, or a link out of the workspace."""
    for cwd in paths.cwds:
        folder = find_git_folder(Path(cwd))
        if folder is None:
            continue
        entries = list(islice(read_index_entries(folder / "index"), MAX_INDEX_ENTRIES))
        if None in entries or len(entries) == MAX_INDEX_ENTRIES or any(folder.glob("sharedindex.*")):
            raise NotProvenSafe("the index of the git repository is too large, or in a format that is not understood")
        checked: set[str] = set()
        for name in (entry[0] for entry in entries if entry is not None):
            if not _PLAIN_PATH.fullmatch(name) or not _SPECIAL_SEGMENTS.isdisjoint(name.split("/")):
                raise NotProvenSafe(f"the name {name!r} in the git index would be split or expanded")
            _reject_linked_path(str(find_worktree_root(Path(cwd))), name, checked, paths)


def _reject_linked_path(top: str, name: str, checked: set[str], paths: PathChecker) -> None:
    """Checks a path and its folders that are symbolic links; `checked` has the paths that need no second look."""
    while name and name not in checked:
        checked.add(name)
        if Path(path := f"{top}/{name}").is_symlink():
            paths.check_path(path)
        name = name.rpartition("/")[0]
