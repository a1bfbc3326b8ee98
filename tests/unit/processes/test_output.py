"""Output is limited in memory and on disk; every byte is shown, stored in a file or counted."""

import contextlib
import os
import re
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.processes.output import OutputFolder, OutputLimits, ProcessOutputBuffer, decode_output

SMALL = OutputLimits(head=10, tail=10, file=100, files=150)


def written(*chunks: bytes, folder: Path | None = None, limits: OutputLimits = SMALL) -> ProcessOutputBuffer:
    output = ProcessOutputBuffer(OutputFolder(folder, limits), "call_1")
    for chunk in chunks:
        output.write(chunk)
    return output


def stars_for_keys(raw: bytes) -> list[tuple[int, int]]:
    return [found.span() for found in re.finditer(rb"key-[0-9]{12}", raw)]


def test_secrets_become_stars_in_the_file_and_nothing_else_moves(tmp_path: Path):
    text = (b"x" * 70_000) + b" key-123456789012 " + (b"y" * 70_000) + b" key-210987654321"
    for size in (7, 1000, 64 * 1024, len(text)):
        output = ProcessOutputBuffer(OutputFolder(tmp_path, OutputLimits(head=10, tail=10), stars_for_keys), "call")
        for at in range(0, len(text), size):
            output.write(text[at : at + size])
        path = output.text().path
        output.close()
        assert path is not None
        assert path.read_bytes() == re.sub(rb"key-[0-9]{12}", b"*" * 16, text)


def read_all(output: ProcessOutputBuffer, most: int = 7) -> tuple[str, int]:
    """The text of every slice, and how many bytes were forgotten."""
    text, skipped, place = "", 0, 0
    while (piece := output.read(place, most, complete=True)).end > place:
        text, skipped, place = text + piece.text, skipped + piece.skipped, piece.end
    return text, skipped


def test_little_output_is_whole_and_makes_no_file(tmp_path: Path):
    text = written(b"hello ", b"world", folder=tmp_path).text()
    assert (str(text), text.left_out, text.size, text.path) == ("hello world", 0, 11, None)
    assert list(tmp_path.iterdir()) == []


def test_of_much_output_the_ends_stay_in_memory_and_the_whole_is_in_a_private_file(tmp_path: Path):
    output = written(*[b"%02d," % number for number in range(30)], folder=tmp_path / "new")
    text = output.text()
    assert text.head == "00,01,02,0"
    assert text.tail.endswith("28,29,")
    assert text.left_out == 90 - 10 - len(text.tail)
    assert f"{text.left_out} of 90 bytes left out" in str(text)
    assert text.path is not None
    assert text.path.read_bytes() == b"".join(b"%02d," % number for number in range(30))
    assert stat.S_IMODE(text.path.stat().st_mode) == 0o600
    output.close()


def test_a_file_ends_at_its_limit_and_reports_it(tmp_path: Path):
    output = written(b"x" * 1000, folder=tmp_path)
    text = output.text()
    assert text.path is not None
    assert text.path_size == text.path.stat().st_size == 100
    assert text.size == 1000
    output.close()


def test_all_files_together_have_a_limit(tmp_path: Path):
    folder = OutputFolder(tmp_path, SMALL)
    outputs = [ProcessOutputBuffer(folder, "same name") for _ in range(3)]
    for output in outputs:
        output.write(b"y" * 1000)
    assert [output.text().path_size for output in outputs] == [100, 50, 0]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 150
    for output in outputs:
        output.close()


def test_a_folder_holds_more_than_a_thousand_files_of_one_name(tmp_path: Path):
    folder = OutputFolder(tmp_path, OutputLimits())
    assert len({folder.store_text("output", str(number)) for number in range(1_200)} - {None}) == 1_200
    again = OutputFolder(tmp_path, OutputLimits()).store_text("output", "one more")
    assert again is not None
    assert again.read_text() == "one more"


def test_a_folder_that_cannot_be_written_costs_only_the_file(tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    text = written(b"z" * 1000, folder=blocked).text()
    assert (text.path, text.size, text.head) == (None, 1000, "z" * 10)


def opened_path(fd: Path) -> Path | None:
    with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
        return fd.readlink()
    return None


def test_a_full_disk_ends_the_file_and_nothing_else(tmp_path: Path):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    output = written(b"a" * 15, folder=tmp_path)
    output.write(b"b" * 15)
    full = os.open("/dev/full", os.O_RDWR)
    (descriptor,) = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if opened_path(fd) == output.text().path]
    os.dup2(full, descriptor)
    os.close(full)
    output.write(b"c" * 30)
    text = output.text()
    assert (text.size, text.path_size, text.tail[-1]) == (60, 30, "c")
    output.close()


def test_a_name_cannot_lead_out_of_the_folder(tmp_path: Path):
    output = ProcessOutputBuffer(OutputFolder(tmp_path / "in", SMALL), "../../etc/passwd")
    output.write(b"x" * 50)
    path = output.text().path
    assert path is not None
    assert path.parent == tmp_path / "in"
    output.close()


def test_what_is_no_utf8_is_replaced_and_counted():
    assert decode_output(b"caf\xe9 \xff\xfe!") == ("caf� ��!", 3)
    assert decode_output("�".encode() + b"\x80") == ("��", 1)
    assert decode_output(b"\xe2\x82") == ("�", 2)


def test_a_letter_is_not_cut_in_two_where_bytes_are_left_out():
    euro = "€".encode()
    text = written(b"x" * 8 + euro + b"." * 50 + euro * 4).text()
    assert "�" not in text.head + text.tail
    assert text.replaced == 0
    assert len(text.head.encode()) + len(text.tail.encode()) + text.left_out == text.size


def test_a_letter_of_which_a_part_has_come_waits_for_the_rest():
    output = written(b"ab\xe2\x82")
    assert output.read(0, 100).text == "ab"
    output.write(b"\xac")
    assert output.read(2, 100).text == "€"
    assert written(b"ab\xe2\x82").read(0, 100, complete=True).text == "ab�"


def test_reading_beyond_the_end_gives_nothing():
    piece = written(b"abc").read(99, 10)
    assert (piece.text, piece.start, piece.end, piece.skipped) == ("", 3, 3, 0)


def test_what_memory_and_file_forgot_is_counted_as_skipped():
    output = written(*[bytes([65 + number % 26]) for number in range(500)])
    text, skipped = read_all(output)
    assert len(text) + skipped == 500
    assert skipped > 0


@given(st.lists(st.binary(max_size=60), max_size=30), st.integers(4, 50))
def test_slices_join_to_the_whole_where_nothing_is_forgotten(chunks: list[bytes], most: int):
    limits = OutputLimits(head=2000, tail=2000)
    raw = b"".join(chunks)
    assert read_all(written(*chunks, limits=limits), most)[0] == raw.decode("utf-8", "replace")


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=40))
def test_memory_stays_within_its_limits_for_any_output(chunks: list[bytes]):
    output = written(*chunks)
    text = output.text()
    assert output.size == sum(map(len, chunks))
    assert text.size - text.left_out <= SMALL.head + 2 * SMALL.tail
