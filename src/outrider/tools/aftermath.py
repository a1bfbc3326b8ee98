"""What is there now of the files that a call named, for a call that was interrupted and whose effects are unknown."""

from hashlib import sha256
from pathlib import Path

from outrider.types.parts import ToolPart

NAMES = ("file_path", "path", "filename")
LARGEST = 64 * 1024 * 1024


def aftermath(call: ToolPart, workspace: Path) -> str:
    """One line for each file of the workspace that stands in the call's input; "" when there is none."""
    named = [value for name, value in call.state.input.items() if name in NAMES and isinstance(value, str)]
    return "\n".join(line for line in (_now(workspace, path) for path in named) if line)


def _now(workspace: Path, path: str) -> str:
    """Only what lies in the workspace is looked at: a path is the model's word."""
    try:
        place = (workspace / path).resolve()
        if not place.is_relative_to(workspace.resolve()):
            return ""
        if not place.exists():
            return f"{path} does not exist now."
        if not place.is_file() or place.stat().st_size > LARGEST:
            return ""
        content = place.read_bytes()
    except (OSError, ValueError):
        return ""
    return f"{path} now has {len(content):,} bytes, sha256 {sha256(content).hexdigest()}."
