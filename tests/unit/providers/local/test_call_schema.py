"""The schema of an answer is a flat union of the offered tools."""

import msgspec
import pytest

from outrider.providers.local.constrained_output import CallSchema, ToolOffer, build_grammar, output_schema
from outrider.providers.local.prompt import CompactTool, CompactToolPrompt
from outrider.types.request import OutputSchema, ToolChoice, ToolSpec

READ = ToolSpec(
    "read",
    "Reads a file.",
    {
        "type": "object",
        "properties": {"limit": {"type": "integer"}, "file_path": {"type": "string", "format": "path"}},
        "required": ["file_path"],
    },
)
SHELL = ToolSpec(
    "shell", "Runs.", {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
)
NESTED = ToolSpec(
    "plan",
    "Plans.",
    {
        "type": "object",
        "properties": {"steps": {"type": "array", "items": {"$ref": "#/$defs/Step"}}},
        "$defs": {"Step": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}},
        "required": ["steps"],
    },
)
KNOWN = CompactToolPrompt(
    tools={"read": CompactTool(description="reads", parameters=("file_path",), file_parameter="file_path")}
)


PLAIN, FREE = CompactToolPrompt(), ToolChoice()


def schema_of(*tools: ToolSpec, choice=FREE, paths=(), primer=PLAIN, output=None) -> dict:
    return CallSchema(tools, primer).answer_schema([ToolOffer(tool, paths) for tool in tools], choice, output)


def branches(*tools: ToolSpec, **options) -> dict:
    return {branch["properties"]["tool"]["const"]: branch for branch in schema_of(*tools, **options)["anyOf"]}


def test_every_tool_and_the_answer_are_one_branch_each():
    assert list(branches(READ, SHELL)) == ["read", "shell", "answer"]


def test_the_tool_is_named_first_then_what_is_required():
    assert list(branches(READ)["read"]["properties"]) == ["tool", "file_path", "limit"]
    assert branches(READ)["read"]["required"] == ["tool", "file_path"]


def test_a_known_tool_is_offered_with_the_parameters_that_matter_and_paths_that_exist():
    read = branches(READ, primer=KNOWN, paths=["a.py", "b.py"])["read"]
    assert read["properties"] == {"tool": {"const": "read"}, "file_path": {"enum": ["a.py", "b.py"]}}


def test_a_path_is_free_where_no_names_are_known():
    assert branches(READ, primer=KNOWN)["read"]["properties"]["file_path"] == {"type": "string"}


def test_an_answer_is_no_choice_where_a_call_is_required():
    assert list(branches(READ, SHELL, choice=ToolChoice("required"))) == ["read", "shell"]


def test_definitions_of_several_tools_do_not_meet():
    other = msgspec.structs.replace(NESTED, name="other")
    schema = schema_of(NESTED, other)
    assert set(schema["$defs"]) == {"plan.Step", "other.Step"}
    assert schema["anyOf"][1]["properties"]["steps"]["items"] == {"$ref": "#/$defs/other.Step"}


def test_keywords_that_tools_use_are_replaced():
    tool = ToolSpec("answer", "", {"type": "object", "properties": {"tool": {"type": "string"}}})
    schema = schema_of(tool)
    assert [branch["properties"]["use_tool"]["const"] for branch in schema["anyOf"]] == ["answer", "reply"]


def test_an_answer_that_must_follow_a_schema_carries_the_value():
    wanted = OutputSchema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "title": "N"})
    schema = schema_of(READ, output=wanted)
    assert schema["anyOf"][-1]["properties"]["value"]["properties"] == {"n": {"type": "integer"}}
    assert "title" not in output_schema(wanted)


def test_the_runtime_takes_the_same_grammar_for_a_schema():
    runtime = pytest.importorskip("xllamacpp")
    schema = schema_of(READ, SHELL, NESTED, primer=KNOWN, paths=["a.py"])
    assert build_grammar(schema).split() == runtime.json_schema_to_grammar(schema).split()


def test_an_answer_that_describes_files_has_a_text_and_one_purpose_for_each():
    schema = CallSchema((), CompactToolPrompt()).answer_schema([], ToolChoice(), None, described_files=("a.py", "b.py"))
    (answer,) = schema["anyOf"]
    assert list(answer["properties"]) == ["tool", "text", "a.py", "b.py"]
    assert answer["required"] == ["tool", "text", "a.py", "b.py"]


def test_a_planned_call_has_exactly_its_arguments():
    tool = ToolSpec("grep", "", {"properties": {"pattern": {"type": "string"}, "glob": {"type": "string"}}})
    offer = ToolOffer(tool, (), {"pattern": "TODO", "context": 2})
    schema = CallSchema((tool,), CompactToolPrompt()).answer_schema([offer], ToolChoice(), None, has_to_look=True)
    (call,) = schema["anyOf"]
    fixed = {"pattern": {"const": "TODO"}, "context": {"const": 2}}
    assert call["properties"] == {"tool": {"const": "grep"}, **fixed}
    assert call["required"] == ["tool", "pattern", "context"]
