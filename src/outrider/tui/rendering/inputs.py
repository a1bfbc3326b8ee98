"""What a call is about, in a line, and what it will do, in full: from its input, also while that is being written."""

import json
from typing import Any

import msgspec
from rich.text import Text

from outrider.tui.rendering.code import coloured
from outrider.tui.rendering.diffs import patch, replaced
from outrider.tui.rendering.lines import clean, clean_line, wrapped
from outrider.tui.rendering.palette import Palette
from outrider.types.parts import ToolPart
from outrider.types.tool_state import ToolPending

_SUBJECTS = ("description", "file_path", "path", "pattern", "command", "url", "query", "name", "agent_name", "question")


def subject(part: ToolPart, raw: str = "") -> str:
    """The few words that tell this call from others."""
    given = given_so_far(part, raw)
    match part.tool:
        case "grep" | "glob":
            where = given.get("path") or given.get("include") or ""
            return clean_line(f"{given.get('pattern', '')} {f'in {where}' if where else ''}".strip())
        case "call_agent":
            return clean_line(f"{given.get('agent_name', '')}: {given.get('message', '')}")
        case "process":
            return clean_line(" ".join(str(value) for value in given.values() if isinstance(value, str | int)))
        case "apply_patch":
            return clean_line(", ".join(_patched(str(given.get("patch", given.get("input", ""))))))
        case "todo":
            return ""
        case _:
            found = next((given[name] for name in _SUBJECTS if given.get(name)), None)
            return clean_line(str(found)) if found is not None else clean_line(_compact(given))


def command_of(part: ToolPart, raw: str = "") -> str:
    return str(given_so_far(part, raw).get("command", ""))


def given_so_far(part: ToolPart, raw: str) -> dict[str, Any]:
    """The input; while it is being written, what can be read of it."""
    if part.state.input:
        return part.state.input
    text = raw or (part.state.raw if isinstance(part.state, ToolPending) else "")
    return unfinished(text) if text else {}


def unfinished(text: str) -> dict[str, Any]:
    """An object that is cut off somewhere, with the last string as far as it goes."""
    for closing in ("", '"}', "}", '"]}', "]}", '"}]}', "null}", '""}'):
        try:
            found = json.loads(text + closing, strict=False)
        except ValueError:
            continue
        return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    return {}


def effect(tool: str, given: dict[str, Any], width: int, palette: Palette) -> list[Text]:
    """Exactly what will run or be written, nothing left out."""
    match tool:
        case "shell":
            shown = [
                piece
                for found in coloured(clean(str(given.get("command", ""))), "bash", palette)
                for piece in wrapped(found, width)
            ]
            return shown + _others(given, {"command", "description"}, width, palette)
        case "edit":
            rest = _others(given, {"old_string", "new_string", "file_path"}, width, palette)
            return rest + replaced(str(given.get("old_string", "")), str(given.get("new_string", "")), width, palette)
        case "write":
            return replaced("", str(given.get("content", "")), width, palette)
        case "apply_patch":
            return patch(str(given.get("patch", given.get("input", ""))), width, palette)
        case _:
            return _others(given, set(), width, palette)


def _others(given: dict[str, Any], without: set[str], width: int, palette: Palette) -> list[Text]:
    lines: list[Text] = []
    for name, value in given.items():
        if name in without:
            continue
        text = value if isinstance(value, str) else _json(value)
        label = Text.assemble((f"{clean_line(name)}: ", palette.style("quiet")), (clean(text), palette.style("text")))
        lines += wrapped(label, width)
    return lines


def _patched(text: str) -> list[str]:
    marks = ("*** Update File: ", "*** Add File: ", "*** Delete File: ", "+++ ")
    return [row[len(mark) :] for row in text.split("\n") for mark in marks if row.startswith(mark)]


def _compact(given: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value if isinstance(value, str) else _json(value)}" for name, value in given.items())


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
