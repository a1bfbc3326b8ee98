"""The ledger of MCP tools' fingerprints, kept from one engine to the next, so that a changed tool is noticed."""

import os
import secrets
from collections.abc import Iterator, MutableMapping
from pathlib import Path

import msgspec

MOST = 10_000


class KeptLedger(MutableMapping[str, str]):
    """Entries are `server/tool`; each is kept under where its server comes from, since names are not unique."""

    def __init__(self, file: Path, origins: dict[str, str]) -> None:
        self._file = file
        self._origins = origins
        self._kept = _read(file)

    def __getitem__(self, entry: str) -> str:
        return self._kept[self._place(entry)]

    def __setitem__(self, entry: str, fingerprint: str) -> None:
        self._kept[self._place(entry)] = fingerprint
        self._write()

    def __delitem__(self, entry: str) -> None:
        del self._kept[self._place(entry)]
        self._write()

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def _place(self, entry: str) -> str:
        server = max((name for name in self._origins if entry.startswith(f"{name}/")), key=len, default="")
        return f"{self._origins.get(server, '')}: {entry}"

    def _write(self) -> None:
        """Others may write at the same time: what they entered stays, unless it is about the same tool."""
        self._kept = {**_read(self._file), **self._kept}
        for oldest in list(self._kept)[:-MOST]:
            del self._kept[oldest]
        temporary = self._file.with_name(f".{self._file.name}.{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(self._kept)))
        temporary.replace(self._file)


def _read(file: Path) -> dict[str, str]:
    """A file that is missing or damaged is empty: every tool counts as new then, and is asked about by its mode."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}
