"""Values are compared with a JSON schema as a complete implementation would."""

import re

from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from outrider.tools.schema import find_schema_problem
from tests.fixtures.cases import for_each

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "pattern": "^[a-z]"},
        "age": {"type": ["integer", "null"], "minimum": 0, "exclusiveMaximum": 200},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "maxItems": 2},
        "parent": {"$ref": "#/$defs/person"},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"person": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}},
}
SCHEMAS = [
    PERSON,
    {"type": "array", "prefixItems": [{"const": 1}], "items": {"type": "number", "multipleOf": 0.5}, "minItems": 1},
    {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
    {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}], "not": {"const": "no"}},
    {"allOf": [{"type": "object"}, {"minProperties": 1}], "patternProperties": {"^x": {"type": "boolean"}}},
    {"$ref": "#"},
    {"enum": [1, "a", [True]]},
    {"type": "array", "uniqueItems": True},
    {},
]
TEXTS = st.sampled_from([0.5, 2.0, "", "no", "a", "B", "abc"])
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 250), st.sampled_from([0.5, 2.0, "", "no", "a", "B", "abc"])
)
NAMES = st.sampled_from(["name", "age", "tags", "parent", "x1", "y"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))


@given(st.sampled_from(SCHEMAS), VALUES)
def test_a_value_is_accepted_if_the_reference_implementation_accepts_it(schema, value):
    expected = schema == {"$ref": "#"} or Draft202012Validator(schema).is_valid(value)
    assert (find_schema_problem(value, schema) is None) == expected


@for_each(
    ("value", "message"),
    [
        ({}, "it lacks name"),
        ({"name": 3}, "`name` must be string, not integer"),
        ({"name": "a", "parent": {"name": None}}, "`parent.name` must be string, not null"),
        ({"name": "a", "tags": ["a", "c"]}, "`tags[1]` must be one of 'a', 'b'"),
        ({"name": "a", "more": 1}, "`more` is not expected"),
        ({"name": "a", "age": -1}, "`age` must be at least 0"),
    ],
)
def test_a_problem_names_its_place(value, message):
    assert find_schema_problem(value, PERSON) == message


def test_the_whole_message_fits_into_a_prompt():
    assert re.fullmatch(r".{1,200}", find_schema_problem("x" * 10_000, {"type": "integer"}) or "")
