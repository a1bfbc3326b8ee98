"""Small files that several programs change at once stay complete, and no entry is lost."""

import contextlib
from pathlib import Path

import msgspec

from outrider.project.trust import TrustList
from tests.fault.processes import read_line, send_newline, worker


def test_sf_032_five_programs_change_the_list_of_trusted_folders_and_no_entry_is_lost(tmp_path: Path):
    path = tmp_path / "own" / "trusted.json"
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(worker("trusting", path, f"p{number}")) for number in range(5)]
        for child in children:
            assert read_line(child) == {"ready": True}
        for child in children:
            send_newline(child)
        reads = 0
        while any(child.poll() is None for child in children):
            if path.exists():
                assert isinstance(msgspec.json.decode(path.read_bytes()), dict)
                reads += 1
        assert [read_line(child) for child in children] == [{"done": True}] * 5
    listed = TrustList(path).load()
    assert set(listed) == {f"/projects/p{program}/{number}" for program in range(5) for number in range(20)}
    assert all(entry.items for entry in listed.values())
    assert reads
    assert {file.name for file in path.parent.iterdir()} == {"trusted.json", "trusted.json.lock"}
