"""Chooses which changes of an outcome are committed: the changes that the answer keeps, without conflicts. A git folder
is committed as a whole or not at all."""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from outrider.outcomes.commit import CommitResult, commit_outcome, find_conflicts, remove_staged
from outrider.outcomes.describe import expand_selection, ignored_paths, is_cache, list_changes
from outrider.outcomes.pending import OutcomeFolder, PendingOutcome
from outrider.outcomes.repository import OverlayView, RepositoryChanges, list_protected, sort_changes, sort_recorded
from outrider.processes.sandbox.overlay import OverlayChange, parents_of, show_path
from outrider.types.outcomes import CommandOutcome


class CommitSelection(msgspec.Struct, frozen=True):
    """The paths of the workspace, and of a git folder outside it (`recorded`), that are committed. `conflicts` are the
    entries of the question that another program has changed meanwhile. If a file of a git folder is among them, nothing
    of this folder is committed, because its files depend on each other."""

    paths: tuple[str, ...]
    recorded: tuple[str, ...] = ()
    conflicts: frozenset[str] = frozenset()

    @classmethod
    def choose(cls, pending: PendingOutcome, folder: OutcomeFolder, keep: Sequence[str] | None) -> "CommitSelection":
        """Returns what an answer keeps; None keeps everything."""
        if keep is None:
            return cls.choose_paths(
                pending,
                folder,
                [change.path for change in pending.changes],
                [change.path for change in pending.recorded],
            )
        view = OverlayView(Path(pending.workspace), folder.upper(pending.call_id))
        paths = expand_selection(pending.changes, keep, sort_changes(view, pending.changes).entries)
        if pending.repository is None:
            return cls.choose_paths(pending, folder, paths, ())
        repository, data = pending.repository.folder, _sort_recorded(pending, folder).data
        below = [path.removeprefix(f"{repository}/") for path in keep if path.startswith(f"{repository}/")]
        recorded = expand_selection(pending.recorded, [*below, *([""] if repository in keep else ())], data)
        return cls.choose_paths(pending, folder, paths, recorded)

    @classmethod
    def choose_paths(
        cls, pending: PendingOutcome, folder: OutcomeFolder, paths: Sequence[str], recorded: Sequence[str]
    ) -> "CommitSelection":
        """Returns the selection of these paths without paths in conflict, and without paths in a new folder that the
        answer drops."""
        paths, recorded = _without_missing(pending.changes, paths), _without_missing(pending.recorded, recorded)
        view = OverlayView(Path(pending.workspace), folder.upper(pending.call_id))
        data = sort_changes(view, pending.changes).entries
        selected_changes = [change for change in pending.changes if change.path in set(paths)]
        conflicts = {data.get(path, path) for path in find_conflicts(view.lower, view.upper, selected_changes)}
        committed_paths = tuple(path for path in paths if data.get(path, path) not in conflicts)
        if pending.repository is None or not recorded:
            return cls(committed_paths, (), frozenset(map(show_path, conflicts)))
        repository, data = pending.repository.folder, _sort_recorded(pending, folder).data
        selected_changes = [change for change in pending.recorded if change.path in set(recorded)]
        further = {
            data.get(path, path)
            for path in find_conflicts(Path(repository), folder.upper_recorded(pending.call_id), selected_changes)
        }
        names = {show_path(f"{repository}/{path}".rstrip("/")) for path in further}
        selected = tuple(path for path in recorded if data.get(path, path) not in further)
        return cls(committed_paths, selected, frozenset({*map(show_path, conflicts), *names}))


def _without_missing(changes: Iterable[OverlayChange], paths: Sequence[str]) -> list[str]:
    """Returns the paths whose parent folders exist or are committed too."""
    selected = set(paths)
    missing = {
        change.path
        for change in changes
        if change.file == "folder" and (change.kind == "created" or change.changes_type) and change.path not in selected
    }
    return [path for path in paths if missing.isdisjoint(parents_of(path))]


def _sort_recorded(pending: PendingOutcome, folder: OutcomeFolder) -> RepositoryChanges:
    if pending.repository is None:
        return RepositoryChanges()
    view = OverlayView(Path(pending.repository.folder), folder.upper_recorded(pending.call_id))
    return sort_recorded(view, pending.recorded, pending.repository)


def split_caches(
    workspace: Path, changes: Sequence[OverlayChange], upper: Path
) -> tuple[list[OverlayChange], list[OverlayChange]]:
    """Separates by-products of tools from other changes. Ignored files are by-products if nothing else changed."""
    caches = [change for change in changes if is_cache(change.path)]
    other_changes = [change for change in changes if not is_cache(change.path)]
    ignored = ignored_paths(workspace, other_changes) - list_protected(workspace, upper, other_changes)
    if all(change.path in ignored for change in other_changes):
        return list(changes), []
    return caches, other_changes


def split_protected(pending: PendingOutcome, folder: OutcomeFolder) -> tuple[list[str], list[str], bool]:
    """Returns the changed paths of the workspace and of the git folder outside it that need no question at the levels
    `edits` and `auto`, and whether these are all changes."""
    protected = list_protected(Path(pending.workspace), folder.upper(pending.call_id), pending.changes)
    steering = _sort_recorded(pending, folder).steering
    paths = [change.path for change in pending.changes if change.path not in protected]
    recorded = [change.path for change in pending.recorded if change.path not in steering]
    return paths, recorded, not protected and not steering


def commit_recorded(pending: PendingOutcome, folder: OutcomeFolder, selected: CommitSelection) -> tuple[str, ...]:
    """Commits what git recorded outside the workspace. Returns the paths in conflict."""
    changes = [change for change in pending.recorded if change.path in set(selected.recorded)]
    if pending.repository is None or not changes:
        return ()
    repository = pending.repository.folder
    result = commit_outcome(Path(repository), folder.upper_recorded(pending.call_id), changes)
    return tuple(f"{repository}/{path}" for path in result.conflicts)


def remove_all_staged(pending: PendingOutcome) -> None:
    """Removes temporary files that a killed commit left."""
    remove_staged(Path(pending.workspace), pending.changes)
    if pending.repository is not None:
        remove_staged(Path(pending.repository.folder), pending.recorded)


def files_of(workspace: Path, change: OverlayChange) -> Iterator[str]:
    """Yields the file of a change, and the files of a folder that is deleted or replaced."""
    if change.base is None or not change.base.is_folder:
        if change.file != "folder":
            yield change.path
    elif change.kind == "deleted" or change.file != "folder":
        for directory, _, names in os.walk(workspace / change.path):
            yield from (os.path.relpath(os.path.join(directory, name), workspace) for name in names)  # noqa: PTH118


def affects_any(change: OverlayChange, paths: Sequence[str]) -> bool:
    """Returns whether a change replaces or deletes one of the files."""
    replaces_folder = change.kind == "deleted" or change.file != "folder"
    return any(path == change.path or (replaces_folder and path.startswith(f"{change.path}/")) for path in paths)


def mark_unsaved(outcome: CommandOutcome, unsaved: Sequence[str]) -> CommandOutcome:
    """Returns the outcome with a note at files that will not be changed, because the editor has unsaved text of
    them."""
    if not unsaved:
        return outcome
    names = set(map(show_path, unsaved))
    files = [
        msgspec.structs.replace(file, note="; ".join(filter(None, (file.note, _UNSAVED_NOTE))))
        if file.path in names or any(name.startswith(f"{file.path}/") for name in names if file.kind == "deleted")
        else file
        for file in outcome.files
    ]
    return msgspec.structs.replace(outcome, files=tuple(files))


_UNSAVED_NOTE = "unsaved in the editor: this change is not applied"


def describe_commit(result: CommitResult, pending: PendingOutcome) -> str:
    """Returns a note for the model about what a commit has left out."""
    notes: list[str] = []
    dropped = [change for change in pending.changes if change.path not in set(pending.keep)]
    further = [change for change in pending.recorded if change.path not in set(pending.keep_recorded)]
    if dropped or further:
        notes.append(f"these changes were not applied: {list_changes([*dropped, *further])}")
    if result.conflicts:
        names = ", ".join(map(show_path, result.conflicts))
        notes.append(f"these files were changed by another program and are left as they are: {names}")
    if result.unsaved:
        names = ", ".join(map(show_path, result.unsaved))
        notes.append(
            f"these files have unsaved text in the user's editor and are left as they are: {names}. Use the edit tool, "
            "which changes the text in the editor, or ask the user to save them, and run the command again"
        )
    return "; ".join(notes)
