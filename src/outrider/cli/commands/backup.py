"""`outrider backup` and `outrider restore`: copy the data folder to an archive, and back."""

from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path

from outrider.cli import exit_codes
from outrider.cli.main import program_version
from outrider.cli.output import Console
from outrider.cli.setup import user_folders
from outrider.engine.backup import BackupManifest, create_backup, restore_backup
from outrider.errors import ConfigurationError
from outrider.presentation.formats import format_bytes, format_count


def run_backup(arguments: Namespace) -> int:
    """Writes the archive, and prints what it contains."""
    target = Path(arguments.file)
    manifest = create_backup(user_folders(), target, version=program_version(), replace=arguments.yes)
    size = format_bytes(target.stat().st_size)
    Console().print_stderr(f"{target}: {_describe_backup(manifest)}, {size}; all databases passed the integrity check")
    return exit_codes.SUCCESS


def run_restore(arguments: Namespace) -> int:
    """Replaces the data folder's content, and prints where the previous files are."""
    _require_no_worker()
    manifest, aside = restore_backup(user_folders(), Path(arguments.file), replace=arguments.yes)
    console = Console()
    console.print_stderr(f"Restored {_describe_backup(manifest)} to {user_folders().data}")
    if aside is not None:
        console.print_stderr(f"The previous files are in {aside}")
    return exit_codes.SUCCESS


def _describe_backup(manifest: BackupManifest) -> str:
    return f"{format_count(manifest.sessions, 'session')}, {format_count(len(manifest.files), 'file')}"


def _require_no_worker() -> None:
    """Raises ConfigurationError if the resident worker is running: it would continue to write to the previous files."""
    if find_spec("dbos") is None:
        return
    from outrider.background.local_worker import WorkerLock  # lazy: it imports DBOS

    if holder := WorkerLock(user_folders().data).holder():
        raise ConfigurationError(f"a worker is running (process {holder.pid}); stop it first: outrider worker --stop")
