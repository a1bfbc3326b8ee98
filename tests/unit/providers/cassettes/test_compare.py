"""Bodies that mean the same are equal; otherwise the first difference is named."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.cassettes.replay import first_difference, replace_own_ids
from outrider.types.ids import new_id

BODY = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "n": 1}


def changed(**fields: object) -> dict[str, object]:
    return {**BODY, **fields}


def test_the_order_of_fields_means_nothing():
    assert first_difference(BODY, dict(reversed(BODY.items()))) is None


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (changed(model="x"), "model: recorded 'm', sent 'x'"),
        (changed(n=2), "n: recorded 1, sent 2"),
        (changed(n=True), "n: recorded 1, sent True"),
        (changed(n="1"), "n: recorded 1, sent '1'"),
        (changed(extra=None), "extra: not recorded, sent None"),
        ({name: value for name, value in BODY.items() if name != "n"}, "n: recorded 1, not sent"),
        (changed(messages=[]), "messages: recorded 1 items, sent 0"),
        (
            changed(messages=[{"role": "user", "content": [{"type": "text", "text": "Ho"}]}]),
            "messages[0].content[0].text: recorded 'Hi', sent 'Ho'",
        ),
        ("text", "body: recorded {"),
    ],
)
def test_the_first_difference_is_named_by_its_place(sent: object, message: str):
    assert (first_difference(BODY, sent) or "").startswith(message)


def test_long_texts_are_shown_from_where_they_part():
    message = first_difference({"a": "x" * 500 + "one"}, {"a": "x" * 500 + "two"}) or ""
    assert "from character 500" in message and "one" in message and "two" in message and len(message) < 200


@pytest.mark.parametrize("ignore", [("messages.content.text",), ("messages",), ("messages.content",)])
def test_fields_that_are_ignored_may_differ(ignore: tuple[str, ...]):
    sent = changed(messages=[{"role": "user", "content": [{"type": "text", "text": "Ho"}]}])
    assert first_difference(BODY, sent, ignore) is None


def test_fields_that_are_ignored_may_be_missing():
    assert first_difference({"a": 1, "id": 5}, {"a": 1}, ("id",)) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON)
def test_two_bodies_differ_exactly_when_their_json_does(first: object, second: object):
    same = json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    assert (first_difference(first, second) is None) == same


def conversation(first: str, second: str, answered: str) -> object:
    return replace_own_ids([{"calls": [f"call_{first}", second.replace("-", "")]}, {"call_id": f"call_{answered}"}])


def test_ids_of_ours_may_be_new_as_long_as_the_same_things_belong_together():
    a, b, c, d = (new_id() for _ in range(4))
    assert conversation(a, b, a) == conversation(c, d, c)
    assert conversation(a, b, a) != conversation(c, d, d)


def test_ids_of_others_are_left_alone():
    theirs = {"id": "9b2f1c1e-7d3a-4c1b-8a51-0f6a3a1f2b3c", "call": "toolu_01A09q90qw90lq917835lq9"}
    assert replace_own_ids(theirs) == theirs


def test_the_order_of_fields_does_not_number_ids_differently():
    a, b = new_id(), new_id()
    assert replace_own_ids({"x": a, "y": b}) == replace_own_ids({"y": b, "x": a})
