"""Clients that public generators make from the description compile, are strictly typed and call every operation."""

import asyncio
import inspect
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from importlib import import_module, util
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import msgspec
import pytest

from outrider.server.app import ENDPOINTS
from outrider.server.openapi import EXAMPLES, TAGS, build_openapi
from tests.architecture.repository import ROOT
from tests.e2e.server.http_server import TOKEN, served

# They have no end, run a command, connect to another host, or end the sessions of the others.
NOT_CALLED = {"follow_session", "follow_all", "follow_job", "run_command", "import_from", "clear_sessions"}
TYPESCRIPT = """
import type { components, operations } from "./api";
type Part = components["schemas"]["Part"];
type Receipt = operations["prompt"]["responses"][202]["content"]["application/json"];
export function describe(part: Part): string {
  switch (part.type) {
    case "text": return part.text;
    case "tool": return part.state?.status === "completed" ? part.state.output : part.tool;
    default: return part.type;
  }
}
export const receipt = (given: Receipt): string => given.id;
// @ts-expect-error a text part has no output
export const wrong = (part: components["schemas"]["TextPart"]): string => part.output;
"""


@cache
def description() -> dict[str, Any]:
    """Not built when the tests are collected, which each worker does."""
    return build_openapi(ENDPOINTS, "0")


def schemas() -> dict[str, Any]:
    return description()["components"]["schemas"]


@cache
def described_operations() -> dict[str, Any]:
    paths = description()["paths"].values()
    return {operation["operationId"]: operation for methods in paths for operation in methods.values()}


def test_the_description_has_tags_servers_examples_and_no_untyped_part():
    assert description()["servers"] == [{"url": ".."}]
    assert {tag["name"] for tag in description()["tags"]} == set(TAGS)
    assert {tag for operation in described_operations().values() for tag in operation["tags"]} == set(TAGS)
    assert schemas()["Message"]["properties"]["parts"]["items"] == {"$ref": "#/components/schemas/Part"}
    assert schemas()["Part"]["discriminator"]["mapping"]["tool"] == "#/components/schemas/ToolPart"
    assert EXAMPLES.keys() == {name for name, operation in described_operations().items() if "requestBody" in operation}
    for union in ("Part", "Change", "Event"):
        assert all(one["$ref"].rpartition("/")[2] in schemas() for one in schemas()[union]["anyOf"])


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_is_accepted(name: str):
    endpoint = next(endpoint for endpoint in ENDPOINTS if endpoint.name == name)
    msgspec.json.decode(msgspec.json.encode(EXAMPLES[name]), type=endpoint.body)


@pytest.fixture(scope="module")
def python_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("openapi_python_client", reason="openapi-python-client is not installed")
    folder = tmp_path_factory.mktemp("client")
    (folder / "openapi.json").write_text(json.dumps(description()))
    (folder / "config.yaml").write_text("post_hooks: []\n")
    command = [sys.executable, "-W", "ignore", "-m", "openapi_python_client", "generate", "--meta", "none"]
    command += ["--path", "openapi.json", "--output-path", "api_client", "--config", "config.yaml", "--fail-on-warning"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "api_client"


@pytest.mark.slow
def test_the_python_client_is_strictly_typed(python_client: Path):
    program = python_client.parent / "program.py"
    program.write_text(
        "from api_client.models import Message, TextPart, ToolPart\n"
        "from typing import assert_type\n"
        "def describe(message: Message) -> list[str]:\n"
        "    return [part.text if isinstance(part, TextPart) else part.tool if isinstance(part, ToolPart) else ''\n"
        "            for part in message.parts or []]\n"
        "def name(part: TextPart) -> str:\n"
        "    return part.output\n"
    )
    settings = python_client.parent / "mypy.ini"
    settings.write_text("[mypy]\n[mypy-api_client.client]\nignore_errors = True\n")  # its own template is not strict
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file", str(settings)]
    checked = ["--cache-dir", os.devnull, "api_client", "program.py"]
    done = subprocess.run(
        [*command, *checked], cwd=python_client.parent, capture_output=True, text=True, timeout=200, check=False
    )
    found = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert {line.partition(": error:")[0] for line in found} == {"program.py:7"}, done.stdout + done.stderr


@pytest.mark.slow
async def test_the_python_client_calls_every_operation(python_client: Path, tmp_path: Path):
    client_module = load_package(python_client)
    operations = {path.stem: path for path in python_client.glob("api/*/*.py") if path.stem != "__init__"}
    assert operations.keys() == described_operations().keys()
    async with served(tmp_path, lambda _: "hello") as client:
        session = await client.create(title="one")
        api = client_module.AuthenticatedClient(client.address.url, TOKEN, raise_on_unexpected_status=True)
        async with api:
            for name in sorted(operations.keys() - NOT_CALLED, key=lambda name: name.startswith(("delete", "sign"))):
                module = import_module(f"api_client.api.{operations[name].parent.name}.{name}")
                given = arguments_of(module, name, session)
                answer = await asyncio.wait_for(module.asyncio_detailed(client=api, **given), 60)
                described = described_operations()[name]["responses"][str(answer.status_code.value)]
                reference = described.get("$ref", "").rpartition("/")[2]
                described = description()["components"]["responses"].get(reference, described).get("content", {})
                has_value = "application/json" in described and name != "export_session"
                assert answer.parsed is not None or not has_value, (name, answer)


def load_package(folder: Path) -> ModuleType:
    spec = util.spec_from_file_location(folder.name, folder / "__init__.py", submodule_search_locations=[str(folder)])
    assert spec and spec.loader
    module = sys.modules[folder.name] = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments_of(module: ModuleType, name: str, session: str) -> dict[str, Any]:
    """The session as every id; the example as the body."""
    parameters = inspect.signature(module.asyncio_detailed).parameters
    given: dict[str, Any] = {}
    for one in described_operations()[name]["parameters"]:
        if one["in"] == "path":
            given[one["name"]] = "writer" if one["name"] in ("agent", "model") else session
        elif one["required"]:
            given[one["name"]] = "x"
    if "body" in parameters:
        schema = described_operations()[name]["requestBody"]["content"]["application/json"]["schema"]
        # The keys and login pages of examples would be checked with their vendors.
        body = {**(sample(schema) if name in ("store_key", "import_from") else EXAMPLES[name])}
        if "model" in body and name.startswith("create_"):
            body.update(model="writer", stream=False)
        kind = inspect.get_annotations(module.asyncio_detailed)["body"]
        given["body"] = next(iter(get_args(kind)), kind).from_dict(body)  # an optional field is a union
    return given


def sample(schema: Any) -> Any:
    """The smallest value of a schema."""
    match schema:
        case {"$ref": reference}:
            return sample(schemas()[reference.rpartition("/")[2]])
        case {"anyOf": [first, *_]}:
            return sample(first)
        case {"enum": [first, *_]}:
            return first
        case {"type": "object"}:
            return {name: sample(schema["properties"][name]) for name in schema.get("required", ())}
        case {"type": kind}:
            return {"string": "x", "integer": 1, "number": 1, "boolean": True, "array": []}.get(kind)
        case _:
            return None


@pytest.mark.slow
def test_the_typescript_client_compiles_and_is_strict(tmp_path: Path):
    folder = install_generator()
    (tmp_path / "openapi.json").write_text(json.dumps(description()))
    (tmp_path / "program.ts").write_text(TYPESCRIPT)
    programs = folder / "node_modules" / ".bin"
    commands = [
        [str(programs / "openapi-typescript"), "openapi.json", "-o", "api.d.ts"],
        [str(programs / "tsc"), "--strict", "--noEmit", "program.ts"],
    ]
    for command in commands:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def install_generator() -> Path:
    """The folder of the public generator, installed once. Skips without npm or a registry."""
    folder = ROOT / ".cache" / "openapi-typescript"
    if (npm := shutil.which("npm")) is None:
        pytest.skip("npm is not installed")
    if not (folder / "node_modules" / ".bin" / "openapi-typescript").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"type": "module"}')
        command = [npm, "install", "--no-audit", "--no-fund", "--silent", "openapi-typescript@7", "typescript@5"]
        if subprocess.run(command, cwd=folder, capture_output=True, timeout=120, check=False).returncode:
            pytest.skip("openapi-typescript cannot be installed")
    return folder
