"""A policy's places on this machine: real paths, each with one access, parents before what lies in them."""

import os
from collections.abc import Iterable
from pathlib import Path

from outrider.processes.sandbox.policy import Access, Policy

_STRICTNESS: dict[Access, int] = {"writable": 0, "read-only": 1, "hidden": 2}

Zones = dict[str, Access]


def zones_of(policy: Policy, shown: Iterable[str] = ()) -> Zones:
    """Only what exists and can be reached. `shown` is what the sandbox itself needs: never hidden, never writable."""
    zones: Zones = {}
    hidden = [real for path in policy.hidden if (real := real_path(path))]
    workspace = real_path(policy.workspace) or ""
    for path, access in policy.places():
        real = real_path(path)
        if not real or (access == "read-only" and _leads_to_secrets(real, workspace, hidden)):
            continue
        if _STRICTNESS[access] >= _STRICTNESS.get(zones.get(real, "writable"), 0):
            zones[real] = access
    for path in shown:
        zones[path] = "read-only"
    return dict(sorted(zones.items(), key=lambda zone: zone[0].count("/") if zone[0] != "/" else 0))


def _leads_to_secrets(real: str, workspace: str, hidden: Iterable[str]) -> bool:
    """A file of the workspace that is to be kept from changes may be a link, and must not bring into view what is
    hidden: the deeper one would count."""
    return not is_within(real, workspace) and any(is_within(real, secret) for secret in hidden)


def real_path(path: Path) -> str | None:
    """None for what does not exist, or lies where the user cannot go and so no command can."""
    if not os.access(path, os.F_OK):  # one call, where the walk below makes one for every folder on the way
        return None
    try:
        return os.path.realpath(path, strict=True)
    except OSError:
        return None


def access_above(path: str, zones: Zones) -> Access | None:
    """The access of the nearest zone that the path lies in, itself left out."""
    parent = path
    while parent != "/":
        parent = parent_of(parent)
        if parent in zones:
            return zones[parent]
    return None


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
