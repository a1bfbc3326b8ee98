"""Incomplete JSON: objects that are cut off anywhere, strings in chunks, and the end of a value."""

import json
import time

from outrider.types.partial_json import JsonSpan, find_json_objects, find_value_end, parse_partial_object, read_string
from tests.fixtures.cases import for_each

WHOLE = '{"a": "x\\n\\u00e9\\ud83d\\ude00", "b": [1, {"c": null}, "d,]"], "e": {"f": true}}'


@for_each(
    ("text", "value"),
    [
        ('{"command": "ls -', {"command": "ls -"}),
        ('{"comm', {}),
        ('{"a": [1, 2', {"a": [1, 2]}),
        ("[1", {}),
        ("", {}),
        ("no json", {}),
        ('{"a": "x", ', {"a": "x"}),
        ('{"a": "x", "b', {"a": "x"}),
        ('{"a": "x", "b":', {"a": "x"}),
        ('{"a": tr', {}),
        ('{"a": {"b": "c', {"a": {"b": "c"}}),
        ('{"a": [{"b": "c"}, {"d', {"a": [{"b": "c"}, {}]}),
        ('{"a": "x\\', {"a": "x"}),
        ('{"a": "x\\u00', {"a": "x"}),
        ('{"a": "x\\ud83d', {"a": "x"}),
        ('{"a": "x\\ud83d\\ude', {"a": "x"}),
    ],
)
def test_a_cut_off_object_is_read_as_far_as_it_goes(text: str, value: object):
    assert parse_partial_object(text) == value


def test_an_object_that_grows_is_read_at_every_length():
    whole = json.loads(WHOLE)
    for length in range(1, len(WHOLE)):
        found = parse_partial_object(WHOLE[:length])
        assert set(found) <= set(whole)
        assert whole["a"].startswith(found.get("a", ""))
    assert parse_partial_object(WHOLE) == whole


def test_a_string_in_chunks_is_decoded_once_and_completely():
    body, buffer, found = json.dumps('a\n"é😀\\ end')[1:], "", ""
    for char in body + "rest":
        buffer += char
        text, length, ended = read_string(buffer)
        found, buffer = found + text, buffer[length:]
        if ended:
            break
    assert (found, buffer) == ('a\n"é😀\\ end', '"')


def test_the_end_of_a_value_is_found_in_chunks_of_any_size():
    for size in (1, 3, 50):
        span, read = JsonSpan(), 0
        for start in range(0, len(WHOLE) + 9, size):
            end = span.find_end((WHOLE + " and more")[start : start + size])
            if end is not None:
                read = start + end
                break
        assert read == len(WHOLE)


def test_objects_between_text_are_found_and_a_cut_off_one_is_not():
    assert find_json_objects(b'data: {"a": 1}\n\ndata: {"b": {}}\ndata: {"c"') == [b'{"a": 1}', b'{"b": {}}']
    assert find_value_end('{"a": 1} x') == 8
    assert find_value_end('{"a": ') is None


def test_reading_takes_linear_time():
    text = '{"a": "' + "x\\n" * 200_000
    start = time.process_time()
    parse_partial_object(text)
    span = JsonSpan()
    for at in range(0, len(text), 10):
        span.find_end(text[at : at + 10])
    assert time.process_time() - start < 3
