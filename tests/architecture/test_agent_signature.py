"""The constructor that type checkers see of Agent has the fields of the struct, in their order."""

import ast
import inspect

import msgspec

from outrider import Agent
from outrider.types import agents


def test_the_declared_constructor_has_all_fields():
    (declared,) = [node for node in ast.walk(ast.parse(inspect.getsource(agents))) if is_agent(node)]
    (method,) = [node for node in ast.walk(declared) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    fields = {node.target.id: node for node in declared.body if isinstance(node, ast.AnnAssign)}
    arguments = method.args.args[1:]
    assert [argument.arg for argument in arguments] == [field.name for field in msgspec.structs.fields(Agent)]
    required = len(arguments) - len(method.args.defaults)
    for argument, default in zip(arguments[required:], method.args.defaults, strict=True):
        assert ast.unparse(default) == ast.unparse(fields[argument.arg].value or ast.Constant(None)), argument.arg
    types = {argument.arg: ast.unparse(argument.annotation) for argument in arguments if argument.annotation}
    assert types.pop("model") == "str | Sequence[str]"
    assert types == {name: ast.unparse(node.annotation) for name, node in fields.items() if name != "model"}


def is_agent(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and node.name == "Agent"


def test_a_list_of_models_is_a_model_and_its_fallbacks():
    agent = Agent("a", "", ["one", "p/two"], "q", fallback_models=("three",))
    assert (agent.model, agent.fallback_models) == ("one", ("p/two", "three"))
    assert agent.provider_names == ("q", "p")
    assert str(agent.model_ref) == "q/one"
    assert msgspec.json.decode(msgspec.json.encode(agent), type=Agent) == agent
