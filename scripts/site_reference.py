"""mkdocs hook: generates the reference pages of the documentation site from the code."""

import argparse
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from outrider import errors
from outrider.cli import exit_codes
from outrider.cli.parser import COMMANDS, build_parser
from outrider.config.file import ConfigFile
from outrider.engine.runtime import EngineOptions
from outrider.engine.session_tools import list_built_in_tools
from outrider.server.app import ENDPOINTS
from outrider.server.openapi import build_openapi
from outrider.tools.tool import ToolOptions
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
}
# The weight of pages with names in the search; explanations have 1.
NAME_PAGES_BOOST = 0.05
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
    "Errors": ("errors",),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    pages = {
        "reference/cli.md": "\n".join(_command_line()),
        "reference/errors.md": "\n".join(_errors()),
        "reference/events.md": "\n".join(_events()),
        "reference/exit-codes.md": "\n".join(_exit_codes()),
        "reference/http-api.md": "\n".join(_http_api()),
        "reference/terminal.md": "\n".join(_terminal()),
        "reference/tools.md": "\n".join(_tools()),
        **_python_pages(),
    }
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    schema = msgspec.json.format(msgspec.json.encode(msgspec.json.schema(ConfigFile)), indent=2)
    files.append(File.generated(config, "reference/config.schema.json", content=schema.decode()))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """Puts the preparation of queries before the search program of the theme."""
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


def _events() -> Iterator[str]:
    yield "# Events\n"
    yield "Every event has the fields of `Event`. Events are published on the event bus, sent to front ends, put into"
    yield "event logs: see [events, traces and telemetry](python/outrider-events-traces-and-telemetry.md).\n"
    for kind in EVENT_TYPES.values():
        yield f"## {kind.__name__}\n\n{inspect.getdoc(kind) or ''}\n"
        yield from _field_table(kind)


def _field_table(kind: type) -> Iterator[str]:
    yield "| field | type | |\n|---|---|---|"
    for field in msgspec.structs.fields(kind):
        yield f"| `{field.encode_name}` | `{_type_name(field.type)}` | {'required' if field.required else 'optional'} |"
    yield ""


def _option_list(name: str, options: type[msgspec.Struct]) -> Iterator[str]:
    """Annotations are printed as they are written, because some of their names are imported for type checkers only."""
    yield f"### Options of {name}\n\n{inspect.getdoc(options)}\n\n| option | type | default |\n|---|---|---|"
    defaults = dict(zip(options.__struct_fields__[::-1], options.__struct_defaults__[::-1], strict=False))
    for option in options.__struct_fields__:
        hint = _type_name(options.__annotations__[option]).strip("'")
        yield f"| `{option}` | `{hint}` | `{str(defaults.get(option)).replace('|', '')}` |"
    yield ""


def _type_name(hint: Any) -> str:
    text = hint.__name__ if inspect.isclass(hint) and not getattr(hint, "__args__", ()) else str(hint)
    return text.replace("typing.", "").replace("outrider.", "").replace("|", "\\|")


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
    yield "`outrider serve` serves this API with its description under `/api/openapi.json`. Every request needs the"
    yield "token as `Authorization: Bearer …`. Errors are JSON objects with `error` and `message`.\n"
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            yield f"## {method.upper()} {path}\n"
            yield (operation.get("description") or operation.get("summary") or "") + "\n"
            yield from _parameter_table(operation.get("parameters", []))


def _parameter_table(parameters: list[dict[str, Any]]) -> Iterator[str]:
    if parameters:
        yield "| parameter | in | |\n|---|---|---|"
        for parameter in parameters:
            required = "required" if parameter.get("required") else "optional"
            yield f"| `{parameter['name']}` | {parameter['in']} | {required} |"
        yield ""


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
    # Names of the reference match many words of a question; pages that explain come first.
    yield f"---\nsearch: {{ boost: {NAME_PAGES_BOOST} }}\n---\n\n# {title}\n"
    if module != "outrider":
        yield f"{inspect.getdoc(loaded) or ''}\n"
    for name in names:
        value = getattr(loaded, name)
        defined = getattr(value, "__module__", "")
        yield f"## {name}\n\n`from {module} import {name}`\n"
        if (inspect.isclass(value) or inspect.isfunction(value)) and "<locals>" not in value.__qualname__:
            if inspect.isclass(value) and issubclass(value, msgspec.Struct):
                yield from _field_table(value)
            yield f"::: {defined}.{value.__qualname__}\n"
            if name in OPTIONS:
                yield from _option_list(name, OPTIONS[name])
        elif inspect.isfunction(value):
            yield f"`{name}{inspect.signature(value)}`\n\n{inspect.getdoc(value) or ''}\n"
        else:
            yield f"`{_type_name(value)[:400]}`\n"
