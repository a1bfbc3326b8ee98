"""Lists of paths for front ends: matching of what a user types, and git's own files as one entry."""

from collections.abc import Iterable, Sequence

from outrider.presentation.formats import format_count


def match_names(typed: str, names: Sequence[str], limit: int) -> list[str]:
    """Returns the paths that contain the typed letters in order; matches in the file name rank before the folders."""
    typed = typed.strip('"').lower()
    if not typed:
        return list(names[:limit])
    scored = ((score, name) for name in names if (score := _match_score(typed, name.lower())) is not None)
    return [name for _, name in sorted(scored)[:limit]]


def _match_score(typed: str, name: str) -> tuple[int, int] | None:
    """Returns the sort key of a match (lower is better), or None if the name does not match."""
    own = name.rpartition("/")[2]
    if own.startswith(typed):
        return 0, len(name)
    if typed in own:
        return 1, len(name)
    if typed in name:
        return 2, len(name)
    return (3, len(name)) if _has_letters_in_order(typed, name) else None


def _has_letters_in_order(typed: Iterable[str], name: str) -> bool:
    letters = iter(name)
    return all(letter in letters for letter in typed)


def group_git_files(paths: Iterable[str]) -> list[str]:
    """Returns the paths with git's own files as one entry for each repository, such as `.git (11 files)`: the names of
    objects and logs say nothing to a reader."""
    groups: dict[str, int] = {}
    for path in paths:
        name = git_folder_of(path) or path
        groups[name] = groups.get(name, 0) + bool(git_folder_of(path))
    return [f"{name} ({format_count(count, 'file')})" if count else name for name, count in groups.items()]


def git_folder_of(path: str) -> str:
    """Returns the git folder that contains the file, or an empty text."""
    before, found, _ = f"/{path}".partition("/.git/")
    return f"{before}/.git".removeprefix("/") if found else ""
