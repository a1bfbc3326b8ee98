"""Names of tools: accepted by every API, different from each other, the same in every order."""

import re

from hypothesis import given
from hypothesis import strategies as st

from outrider.tools.mcp.toolset import tool_names

origins = st.lists(st.tuples(st.text(max_size=40), st.text(max_size=80)), max_size=12)


def test_a_plain_name_is_put_together():
    assert tool_names([("files", "read-it_2")]) == {("files", "read-it_2"): "mcp__files__read-it_2"}


def test_letters_that_apis_refuse_are_replaced():
    assert tool_names([("my files", "read.it")]) == {("my files", "read.it"): "mcp__my_files__read_it"}


def test_equal_names_are_distinguished_and_the_exact_one_stays():
    names = tool_names([("s", "a b"), ("s", "a_b"), ("s", "a.b"), ("s__x", "y"), ("s", "x__y")])
    assert names["s", "a_b"] == "mcp__s__a_b"
    assert names["s", "a b"].startswith("mcp__s__a_b_")
    assert len(set(names.values())) == 5


def test_a_long_name_is_cut_and_marked():
    one, other = tool_names([("s", "x" * 100), ("s", "x" * 101)]).values()
    assert one != other
    assert len(one) == len(other) == 64


@given(origins, st.randoms())
def test_names_are_valid_unique_and_do_not_depend_on_order(found, random):
    names = tool_names(found)
    assert names.keys() == set(found)
    assert len(set(names.values())) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names.values())
    shuffled = list(found)
    random.shuffle(shuffled)
    assert tool_names(shuffled) == names
