"""`FileToolLedger`: the fingerprints of MCP tools in a file that several processes change."""

import threading
from pathlib import Path

import msgspec
import pytest

from outrider.permissions.paths.containment import lock_file
from outrider.project.mcp import FileToolLedger

ORIGINS = {"git": "the user", "web": "/home/me/project"}


def read(file: Path) -> dict[str, str]:
    return msgspec.json.decode(file.read_bytes(), type=dict[str, str])


def test_a_ledger_is_a_mapping_of_the_tools_of_its_servers(tmp_path: Path):
    file = tmp_path / "tools.json"
    other = FileToolLedger(file, {"web": "/home/me/other"})
    other["web/get"] = "9"
    ledger = FileToolLedger(file, ORIGINS)
    ledger.update({"git/log": "1", "web/get": "2", "unknown/tool": "3"})
    expected = {"git/log": "1", "web/get": "2", "unknown/tool": "3"}
    assert dict(ledger.items()) == dict(FileToolLedger(file, ORIGINS).items()) == expected
    assert len(ledger) == 3
    assert ledger.pop("git/log") == "1"
    assert set(ledger) == set(FileToolLedger(file, ORIGINS)) == {"web/get", "unknown/tool"}
    with pytest.raises(KeyError):
        del ledger["git/log"]
    assert dict(other.items()) == {"web/get": "9"}


def test_an_older_process_does_not_undo_what_another_one_has_stored(tmp_path: Path):
    file = tmp_path / "tools.json"
    one = FileToolLedger(file, ORIGINS)
    one["git/log"] = "1"
    older = FileToolLedger(file, ORIGINS)
    one["git/log"] = "2"  # the user has accepted the change
    older["git/show"] = "1"
    assert dict(FileToolLedger(file, ORIGINS).items()) == {"git/log": "2", "git/show": "1"}


def test_a_change_waits_for_that_of_another_process(tmp_path: Path):
    file = tmp_path / "tools.json"
    ledger = FileToolLedger(file, ORIGINS)
    change = threading.Thread(target=ledger.__setitem__, args=("git/log", "1"))
    with lock_file(file):
        entries = read(file) if file.exists() else {}
        change.start()
        change.join(0.1)  # it would end here without the lock, and be overwritten
        file.write_bytes(msgspec.json.encode(entries | {"the user: git/show": "2"}))
    change.join(10)
    assert read(file) == {"the user: git/show": "2", "the user: git/log": "1"}
