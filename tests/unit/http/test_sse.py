"""Server-sent events are decoded at any chunking and with any line ending."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import MalformedAnswerError
from outrider.http.transport import ServerEvent, ServerEventReader


def read(*chunks: bytes, limit: int = 1000) -> list[ServerEvent]:
    reader = ServerEventReader(limit)
    events = [event for chunk in chunks for event in reader.feed(chunk)]
    return events + reader.close()


def one_by_one(stream: bytes) -> list[ServerEvent]:
    return read(*(stream[position : position + 1] for position in range(len(stream))))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_ends_a_line_at_every_cut(end: bytes):
    stream = end.join([b"event: one", b"data: a", b"", b"data: b", b"data: c", b"", b""])
    expected = [("one", b"a"), ("", b"b\nc")]
    for cut in range(len(stream) + 1):
        assert read(stream[:cut], stream[cut:]) == expected
    assert one_by_one(stream) == expected


def test_line_ends_may_be_mixed():
    assert read(b"data: a\r\ndata: b\rdata: c\n\r\ndata: d\r\r") == [("", b"a\nb\nc"), ("", b"d")]


def test_an_event_is_given_out_with_the_chunk_that_ends_it():
    reader = ServerEventReader()
    assert reader.feed(b"data: a\r") == []
    assert reader.feed(b"\n\r") == [("", b"a")]
    assert reader.feed(b"\ndata: b\n\n") == [("", b"b")]


@pytest.mark.parametrize("cut", range(4))
def test_a_byte_order_mark_is_not_part_of_the_first_field(cut: int):
    stream = b"\xef\xbb\xbfdata: a\n\n"
    assert read(stream[:cut], stream[cut:]) == [("", b"a")]


def test_only_one_blank_after_the_colon_belongs_to_the_syntax():
    assert read(b"data:a\n\ndata: a\n\ndata:  a\n\n") == [("", b"a"), ("", b"a"), ("", b" a")]


def test_comments_and_unknown_fields_say_nothing():
    assert read(b": ping\n\nid: 5\nretry: 10\nfoo: bar\nfoo\nevent: e\ndata: a\n\n: bye\n\n") == [("e", b"a")]


def test_a_field_without_a_colon_has_an_empty_value():
    assert read(b"data\ndata\n\n") == [("", b"\n")]


def test_a_name_applies_to_one_event_only():
    assert read(b"event: e\n\ndata: a\n\nevent: f\ndata: b\n\ndata: c\n\n") == [("", b"a"), ("f", b"b"), ("", b"c")]


@pytest.mark.parametrize("end", [b"", b"\n", b"\r", b"\r\n"])
def test_the_last_event_needs_no_blank_line(end: bytes):
    assert read(b"data: a\n\ndata: b" + end) == [("", b"a"), ("", b"b")]


def test_a_line_that_is_a_json_object_is_a_separate_event():
    assert read(b'data: a\n\n{"error": "boom"}\n') == [("", b"a"), ("", b'{"error": "boom"}')]


def test_json_without_fields_is_one_event_up_to_a_blank_line():
    bare = b'{\n  "error": {\n    "code": 503\n  }\n}'
    for stream in (b"data: a\n\n" + bare, b"data: a\n\n" + bare + b"\n\ndata: b\n\n"):
        assert one_by_one(stream)[:2] == read(stream)[:2] == [("", b"a"), ("", bare)]
    assert read(bare + b"\n\ndata: b\n\n")[1:] == [("", b"b")]


def test_zero_bytes_before_a_field_are_no_part_of_it():
    assert read(b"\0\n\0data: a\n\n\0\0") == [("", b"a")]


def test_characters_that_only_look_like_line_ends_stay_in_the_text():
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg".encode()
    assert read(b"data: " + text + b"\n\n") == [("", text)]


def test_what_is_not_utf8_is_replaced():
    assert read(b"data: He\xfflo w\xc3\xb6rld\n\n") == [("", "He\ufffdlo wörld".encode())]


def test_a_line_without_end_is_refused_when_it_grows_too_long():
    reader = ServerEventReader(limit=100)
    with pytest.raises(MalformedAnswerError) as refused:
        for _ in range(1000):
            reader.feed(b"x" * 10)
    assert not refused.value.retryable


def test_an_event_of_too_many_lines_is_refused():
    reader = ServerEventReader(limit=100)
    with pytest.raises(MalformedAnswerError):
        for _ in range(1000):
            reader.feed(b"data: 0123456789\n")


def test_an_event_of_nearly_the_limit_is_read_in_tiny_pieces():
    stream = b"data: " + b"x" * 90 + b"\n\n"
    assert one_by_one(stream) == [("", b"x" * 90)]


lines = st.sampled_from([b"data: a", b"data:", b"data: \xc3\xb6", b"event: e", b": c", b"", b"{}", b"id", b"\0"])
ends = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(lines, ends)), st.lists(st.integers(0, 200), max_size=8))
def test_the_cuts_do_not_change_what_is_read(pieces: list[tuple[bytes, bytes]], cuts: list[int]):
    stream = b"".join(line + end for line, end in pieces)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    chunks = [stream[start:end] for start, end in pairwise(places)]
    assert read(*chunks) == read(stream) == one_by_one(stream)
