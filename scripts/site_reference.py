"""mkdocs hook: generates the reference pages of the documentation site from the code."""

import argparse
import inspect
import json
import re
from collections.abc import Iterator
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from outrider import __version__, errors
from outrider.cli import exit_codes
from outrider.cli.parser import COMMANDS, build_parser
from outrider.config.file import ConfigFile
from outrider.engine.runtime import EngineOptions
from outrider.engine.session_tools import list_built_in_tools
from outrider.presentation.items import REMEDIES
from outrider.server.app import ENDPOINTS
from outrider.server.openapi import ERROR_DESCRIPTIONS, build_openapi
from outrider.tools.definitions import ToolOptions
from outrider.tui.commands import COMMANDS as SLASH_COMMANDS
from outrider.tui.commands import help_text
from outrider.types.events import EVENT_TYPES

# Public modules, in the order of the site, with the title of their page.
PUBLIC_MODULES = {
    "outrider": "outrider",
    "outrider.events": "outrider.events",
    "outrider.stores": "outrider.stores",
    "outrider.workspace": "outrider.workspace",
    "outrider.mcp": "outrider.mcp",
    "outrider.providers": "outrider.providers",
    "outrider.permissions": "outrider.permissions",
    "outrider.testing": "outrider.testing",
    "outrider.evals": "outrider.evals",
}
# The weights of pages in the search, by the start of their path; others have 1. Names match many words of a question,
# so pages that explain come first.
SEARCH_WEIGHTS = {
    "reference/python/": 0.05,
    "reference/http-schemas": 0.05,
    "reference/events": 0.3,
    "internals/": 0.3,
    "reference/": 0.6,
    "migrate/": 0.3,
    "how-to/": 1.5,
}
# The weight of headings. The theme's own, 1000, would ignore the text.
SEARCH_TITLE_WEIGHT = 10
# The keyword arguments of public classes, which are fields of another class.
OPTIONS = {"Engine": EngineOptions, "Tool": ToolOptions}
# Topics of the names of the package `outrider`, by the module that defines them.
TOPICS = {
    "Runs and agents": ("engine.run", "engine.results", "types.agents", "agents.", "models.complete"),
    "Engine and sessions": ("engine.", "sessions."),
    "Tools": ("tools.", "types.tool_state"),
    "Messages and parts": ("types.messages", "types.parts", "types.codec", "types.anthropic_blocks", "types.ids"),
    "Requests and usage": ("types.request", "types.usage", "types.deltas", "context."),
    "Events, traces and telemetry": ("types.events", "event_bus", "tracing."),
    "Permissions and information flow": ("permissions.", "types.origins"),
    "Replay and what-if": ("session_replay.",),
    "Background runs": ("background.",),
    "Server": ("server",),
    "Errors": ("errors",),
}


# What to do about errors that end no turn; `REMEDIES` has the others. A new class without an entry fails the build.
OTHER_REMEDIES = {
    "PartValidationError": "set the field that `details` names before the part is stored",
    "InvalidStateTransition": "use the transitions in `details`; a call that has ended stays as it is",
    "ToolFailure": "nothing, if your tool raised it: the model reads the message and continues",
    "OutputMismatch": "nothing: the model is asked for a correction; raise `output_attempts`, or simplify the type",
    "OutputUnavailableError": "look at `reason` and `result.text`; raise the limit, or run again",
    "CallbackError": "fix the function that `callback` names; its exception is the `__cause__`",
    "ListenerOverflow": "make the handler faster, or let it put events into a queue; then subscribe again",
    "SessionNotFoundError": "`outrider sessions list` prints the ids; it may be in another store or data folder",
    "SessionInUseError": "close the session in the process that `details` names, or attach to it",
    "LeaseLostError": "open the session again; nothing was written by this process after the loss",
    "StorageFullError": "free disk space or raise the quota, then continue",
    "StoreUnavailableError": "check address, permissions and locks of the database, then try again",
    "StoreVersionError": "install the version that wrote the store, or restore a backup of before",
    "StoreDamagedError": "`outrider doctor --repair`; restore a backup if rows are missing",
    "ServerAwayError": "start the server (`outrider serve`), or check its URL and token; then try again",
    "WeightsError": "`outrider models pull`, with a network; or name another model",
    "ProcessError": "check that the program and the folder exist; `details` has both",
    "ConfigurationError": "change what the message names; `outrider config` shows every value and its source",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    pages = {
        "reference/cli.md": "\n".join(_command_line()),
        "reference/errors.md": "\n".join(_errors()),
        "reference/events.md": "\n".join(_events()),
        "reference/exit-codes.md": "\n".join(_exit_codes()),
        "reference/configuration.md": "\n".join(_configuration()),
        "reference/http-api.md": "\n".join(_http_api()),
        "reference/http-schemas.md": "\n".join(_http_schemas()),
        "reference/terminal.md": "\n".join(_terminal()),
        "reference/tools.md": "\n".join(_tools()),
        **_python_pages(),
    }
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    schema = msgspec.json.format(msgspec.json.encode(msgspec.json.schema(ConfigFile)), indent=2)
    files.append(File.generated(config, "reference/config.schema.json", content=schema.decode()))
    openapi = msgspec.json.format(msgspec.json.encode(build_openapi(ENDPOINTS, __version__)), indent=2)
    files.append(File.generated(config, "reference/openapi.json", content=openapi.decode()))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """Sets the weights of the search, and puts the preparation of queries before the search program of the theme."""
    search = Path(config.site_dir) / "search"
    index = json.loads((search / "search_index.json").read_text(encoding="utf-8"))
    index["config"]["fields"]["title"]["boost"] = SEARCH_TITLE_WEIGHT
    for entry in index["docs"]:
        entry["boost"] = next(
            (boost for start, boost in SEARCH_WEIGHTS.items() if entry["location"].startswith(start)), 1
        )
    text = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    (search / "search_index.json").write_text(text, encoding="utf-8")
    (search / "search_index.js").write_text(f"var __index = {text}", encoding="utf-8")
    prepare = (Path(config.docs_dir) / "assets" / "search-query.js").read_text(encoding="utf-8")
    (program,) = (Path(config.site_dir) / "assets" / "javascripts" / "workers").glob("search.*.js")
    program.write_text(prepare + program.read_text(encoding="utf-8"), encoding="utf-8")


def _command_line() -> Iterator[str]:
    yield "# Command line\n"
    yield "Generated from the parser: `outrider COMMAND --help` prints the same. Without a command, `outrider` opens"
    yield "the [terminal application](../start/terminal.md). [Exit codes](exit-codes.md) are common to all commands.\n"
    for command in COMMANDS:
        yield f"## outrider {command.name}\n"
        yield f"{command.summary[0].upper()}{command.summary[1:]}.\n"
        yield from _parser_text(build_parser(command))


def _parser_text(parser: argparse.ArgumentParser) -> Iterator[str]:
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    text = parser.format_help().rstrip()
    yield f"```text\n{text}\n```\n"
    for action in nested:
        seen: set[int] = set()
        for name, child in action.choices.items():
            if id(child) in seen:
                continue
            seen.add(id(child))
            yield f"### {parser.prog} {name}\n"
            yield from _parser_text(child)


def _errors() -> Iterator[str]:
    yield "# Errors\n"
    yield "Every exception that Outrider raises is an `OutriderError`. `message` is the text, which says what happened"
    yield "and what to do; `details` has values for programs.\n"
    yield "```text\n" + inspect.cleandoc(errors.__doc__ or "").split("\n\n", 1)[1] + "\n```\n"
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, Exception) and value.__module__ == errors.__name__:
            base = value.__mro__[1].__name__
            yield f"## {name}\n\n*A subclass of `{base}`.* {inspect.getdoc(value) or ''}\n"
            if not value.__subclasses__() or name in REMEDIES:
                remedy = REMEDIES.get(name) or OTHER_REMEDIES[name]
                yield f"**What to do:** {remedy}{'' if remedy.endswith('.') else '.'}\n"


def _events() -> Iterator[str]:
    yield "# Events\n"
    yield "Every event has the fields of `Event`. Events are published on the event bus, sent to front ends, put into"
    yield "event logs: see [events, traces and telemetry](python/outrider-events-traces-and-telemetry.md).\n"
    for kind in EVENT_TYPES.values():
        yield f"## {kind.__name__}\n\n{inspect.getdoc(kind) or ''}\n"
        yield from _field_table(kind)


def _field_table(kind: type) -> Iterator[str]:
    fields = msgspec.structs.fields(kind)
    if fields:
        yield "| field | type | |\n|---|---|---|"
    for field in fields:
        needed = "required" if field.required else f"default {_code(_field_default(field))}"
        yield f"| `{field.encode_name}` | {_code(_type_name(field.type))} | {needed} |"
    yield ""


def _field_default(field: msgspec.structs.FieldInfo) -> str:
    if field.default is not msgspec.NODEFAULT:
        return _hide_address(repr(field.default))
    made = getattr(field.default_factory, "__name__", "")
    return {"list": "[]", "dict": "{}", "set": "set()", "tuple": "()"}.get(made, "a new one")


def _hide_address(text: str) -> str:
    """Returns the text of a value, with the name of a function or class in place of its address in memory."""
    text = re.sub(r"<function [^<>]*<lambda> at 0x\w+>", "a function", text)
    return re.sub(r"<(?:function |bound method )?(?:\w+\.)*(\w+)[^<>]* at 0x\w+>+", r"\1", text)


def _code(text: str) -> str:
    """Returns code for a cell of a table, where a backslash before a bar would be shown."""
    return f"<code>{escape(text, quote=False).replace('|', '&#124;')}</code>"


def _signature_text(name: str, value: Any) -> str:
    """Returns a call with all parameters, one on each line if there are several."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name not in ("self", "cls")]
    returned = "" if inspect.isclass(value) or signature.return_annotation is inspect.Signature.empty else "X"
    short = signature.replace(
        parameters=[one.replace(annotation=_short_annotation(one.annotation)) for one in parameters],
        return_annotation=_short_annotation(signature.return_annotation) if returned else inspect.Signature.empty,
    )
    text = _hide_address(f"{name}{short}")
    if len(text) <= 100:
        return text
    # The arguments on separate lines; marks such as `*` are parameters of the text only.
    lines, marked = [], False
    for one in short.parameters.values():
        if one.kind is inspect.Parameter.VAR_POSITIONAL:
            marked = True
        elif one.kind is inspect.Parameter.KEYWORD_ONLY and not marked:
            lines.append("    *,")
            marked = True
        lines.append(_hide_address(f"    {one},"))
    end = f" -> {inspect.formatannotation(short.return_annotation)}" if returned else ""
    return "\n".join([f"{name}(", *lines, f"){end}"])


class _Annotation:
    """An annotation that is printed as it is written, without the names of modules."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _short_annotation(annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty or "Unpack" in str(annotation) or str(annotation).startswith("*"):
        return inspect.Parameter.empty
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text)
    text = re.sub(r"Optional\[(Literal\[[^\]]*\])\]", r"\1 | None", text)
    return _Annotation(re.sub(r"\b(?:[a-z_0-9]+\.)+(?=[A-Za-z])", "", text))


def _option_list(name: str, options: type[msgspec.Struct]) -> Iterator[str]:
    """Annotations are printed as they are written, because some of their names are imported for type checkers only."""
    yield f"### Options of {name}\n\n{inspect.getdoc(options)}\n\n| option | type | default |\n|---|---|---|"
    defaults = dict(zip(options.__struct_fields__[::-1], options.__struct_defaults__[::-1], strict=False))
    for option in options.__struct_fields__:
        hint = _type_name(options.__annotations__[option]).strip("'")
        yield f"| `{option}` | {_code(hint)} | {_code(_hide_address(str(defaults.get(option))))} |"
    yield ""


def _type_name(hint: Any) -> str:
    text = hint.__name__ if inspect.isclass(hint) and not getattr(hint, "__args__", ()) else str(hint)
    return re.sub(r"\b(?:[a-z_0-9]+\.)+(?=[A-Za-z])", "", text)


def _exit_codes() -> Iterator[str]:
    yield "# Exit codes\n\n| code | name | meaning |\n|---|---|---|"
    for name, value in vars(exit_codes).items():
        if isinstance(value, int):
            yield f"| {value} | `{name}` | {exit_codes.DESCRIPTIONS[value]} |"


def _terminal() -> Iterator[str]:
    yield "# Terminal commands and keys\n\nThe help page of the terminal application, which F1 shows.\n"
    yield f"{help_text(SLASH_COMMANDS)}\n"
    yield "A Markdown file in `.outrider/commands` or `.claude/commands` is a command with the name of the file; its"
    yield "text is the prompt, and `$ARGUMENTS` in it is what follows the name.\n"


def _http_api() -> Iterator[str]:
    description = build_openapi(ENDPOINTS, "")
    yield "# HTTP API\n"
    yield "`outrider serve` serves this API, with its [OpenAPI description](openapi.json) under `/api/openapi.json`."
    yield "Every request needs the token as `Authorization: Bearer …`. The page [HTTP schemas](http-schemas.md) has"
    yield "the values of requests and responses.\n"
    yield "```\noutrider serve --port 8765                 # prints the address; the token file is in the data folder"
    yield 'curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8765/api/sessions\n```\n'
    yield "An error has the status below and a body such as"
    yield '`{"error": {"type": "SessionNotFoundError", "message": "…", "details": {}}}`.\n'
    yield "| status | meaning |\n|---|---|"
    for status, meaning in ERROR_DESCRIPTIONS.items():
        yield f"| {status} | {meaning} |"
    yield ""
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            yield f"## {method.upper()} {path}\n"
            yield f"{operation.get('description') or operation.get('summary') or ''}.\n".replace("..", ".")
            yield from _parameter_table(operation.get("parameters", []))
            body = _content_schema(operation.get("requestBody", {}))
            if body:
                yield f"Body: {_schema_text(body, links=True)}\n"
            answer = _content_schema(next((value for key, value in operation["responses"].items() if key < "300"), {}))
            if answer:
                yield f"Answer: {_schema_text(answer, links=True)}\n"


def _parameter_table(parameters: list[dict[str, Any]]) -> Iterator[str]:
    if parameters:
        yield "| parameter | in | type | |\n|---|---|---|---|"
        for parameter in parameters:
            schema = parameter.get("schema", {})
            required = "required" if parameter.get("required") else _default_text(schema)
            yield f"| `{parameter['name']}` | {parameter['in']} | {_schema_text(schema)} | {required} |"
        yield ""


def _content_schema(holder: dict[str, Any]) -> dict[str, Any]:
    return next((content.get("schema", {}) for content in holder.get("content", {}).values()), {})


def _http_schemas() -> Iterator[str]:
    yield "# HTTP schemas\n"
    yield "The values of requests and responses of the [HTTP API](http-api.md), generated from the code.\n"
    for name, schema in sorted(build_openapi(ENDPOINTS, "")["components"]["schemas"].items()):
        yield f"## {name}\n\n{schema.get('description', '').split(chr(10) * 2)[0]}\n"
        if schema.get("properties"):
            yield from _property_table(schema, links=True)
        else:
            yield f"{_schema_text(schema, links=True)}\n"


def _property_table(schema: dict[str, Any], *, links: bool) -> Iterator[str]:
    yield "| field | type | |\n|---|---|---|"
    for field, kind in schema["properties"].items():
        required = "required" if field in schema.get("required", ()) else _default_text(kind)
        yield f"| `{field}` | {_schema_text(kind, links=links)} | {required} |"
    yield ""


def _schema_text(schema: Any, *, links: bool = False) -> str:
    """Returns a JSON schema in one line. References are links to the page of schemas."""
    if not isinstance(schema, dict) or not schema:
        return "any value"
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return f"[{name}](http-schemas.md#{name.lower()})" if links else f"`{name}`"
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_schema_text(one, links=links) for one in schema[key]))
    if schema.get("type") == "array":
        return f"list of {_schema_text(schema.get('items'), links=links)}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_schema_text(schema['additionalProperties'], links=links)}"
    return str(schema.get("type", "any value"))


def _default_text(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    return f"optional, default `{json.dumps(default)}`" if default not in (None, "", [], {}) else "optional"


def _configuration() -> Iterator[str]:
    """One table for each table of the configuration file."""
    schema = msgspec.json.schema(ConfigFile)
    definitions = schema["$defs"]
    yield "# Configuration keys\n"
    yield "Every key of `config.toml` with its type and default, generated from the code."
    yield "[Configuration](../configuration.md) explains them in one annotated file;"
    yield "the [JSON schema](config.schema.json) gives completion in editors (`#:schema FILE` in the first line).\n"
    waiting, seen = [("", "ConfigFile")], set[str]()
    while waiting:
        path, name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        yield f"## {f'[{path}]' if path else 'Top level'}\n"
        yield f"{definitions[name].get('description', '').split(chr(10) * 2)[0]}\n"
        yield "| key | type | |\n|---|---|---|"
        for key, kind in definitions[name]["properties"].items():
            found = [(one, many) for one, many in _tables_of(kind) if definitions[one].get("properties")]
            for one, many in found:
                waiting.append((f"{path}.{key}".lstrip(".") + (".NAME" if many else ""), one))
            if found:
                yield f"| `{key}` | table | optional |"
                continue
            required = "required" if key in definitions[name].get("required", ()) else _default_text(kind)
            yield f"| `{key}` | {_schema_text(kind)} | {required} |"
        yield ""


def _tables_of(schema: Any, *, many: bool = False) -> Iterator[tuple[str, bool]]:
    """Yields the names of the tables that a key can have, each with whether the key has several of them by name."""
    if not isinstance(schema, dict):
        return
    if "$ref" in schema:
        yield str(schema["$ref"]).rpartition("/")[2], many
    for one in schema.get("anyOf", ()):
        yield from _tables_of(one, many=many)
    yield from _tables_of(schema.get("additionalProperties"), many=True)


def _tools() -> Iterator[str]:
    yield "# Built-in tools\n"
    yield "The tools of an agent in a workspace, as a model sees them. [Permissions](../permissions.md) says what runs"
    yield "without a question.\n"
    for name, tool in list_built_in_tools("/workspace").items():
        yield f"## {name}\n\n{tool.description}\n"
        schema = msgspec.json.format(msgspec.json.encode(tool.parameters), indent=2).decode()
        yield f"```json\n{schema}\n```\n"


def _python_pages() -> dict[str, str]:
    pages: dict[str, str] = {}
    for module, title in PUBLIC_MODULES.items():
        try:
            loaded = import_module(module)
        except ModuleNotFoundError:
            continue
        names = sorted(getattr(loaded, "__all__", ()))
        if not names:
            continue
        if module != "outrider":
            pages[f"reference/python/{module.replace('.', '-')}.md"] = "\n".join(_python_page(title, module, names))
            continue
        remaining = dict.fromkeys(names)
        for topic, prefixes in TOPICS.items():
            chosen = [name for name in remaining if _defined_in(getattr(loaded, name)).startswith(prefixes)]
            for name in chosen:
                del remaining[name]
            pages[f"reference/python/{_page_name(topic)}.md"] = "\n".join(_python_page(topic, module, chosen))
        pages["reference/python/outrider-other.md"] = "\n".join(_python_page("Other names", module, list(remaining)))
    return pages


def _page_name(topic: str) -> str:
    return "outrider-" + topic.lower().replace(",", "").replace(" ", "-")


def _defined_in(value: Any) -> str:
    return str(getattr(value, "__module__", "")).removeprefix("outrider.")


def _python_page(title: str, module: str, names: list[str]) -> Iterator[str]:
    loaded = import_module(module)
    yield f"# {title}\n"
    if module != "outrider":
        yield f"{inspect.getdoc(loaded) or ''}\n"
    for name in names:
        value = getattr(loaded, name)
        value = value if inspect.isclass(value) else inspect.unwrap(value)  # a cached function
        defined = getattr(value, "__module__", "")
        yield f"## {name}\n\n`from {module} import {name}`\n"
        if (inspect.isclass(value) or inspect.isfunction(value)) and "<locals>" not in value.__qualname__:
            if inspect.isclass(value) and issubclass(value, msgspec.Struct):
                yield from _field_table(value)
            elif not inspect.isclass(value) or (
                "__init__" in vars(value) and not getattr(value, "_is_protocol", False)
            ):
                yield f"```python\n{_signature_text(name, value)}\n```\n"
            yield f"::: {defined}.{value.__qualname__}\n"
            if name in OPTIONS:
                yield from _option_list(name, OPTIONS[name])
        elif inspect.isfunction(value):
            yield f"`{name}{inspect.signature(value)}`\n\n{inspect.getdoc(value) or ''}\n"
        else:
            yield f"`{_type_name(value)[:400]}`\n"
