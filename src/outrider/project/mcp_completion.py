"""Completes input for MCP servers: arguments of prompts, and values in the addresses of resources."""

import re
import shlex
from collections.abc import Awaitable, Callable, Iterable, Sequence
from urllib.parse import quote, unquote

import msgspec

from outrider.tools.mcp.connection import McpPrompt, McpResource, ValueQuery

MAX_CHOICES = 100
PROMPT_ARGUMENTS = re.compile(r"/(?P<server>[\w.-]+):(?P<name>[\w./-]+)\s(?P<rest>.*)", re.DOTALL)
RESOURCE_WORD = re.compile(r"(?:^|(?<=\s))@(?P<server>[\w.-]+):(?P<uri>\S*)$")
_WORD = re.compile(r"""(?:[^\s"']|"[^"]*(?:"|$)|'[^']*(?:'|$))+""")
_VARIABLE = re.compile(r"(\{[^}]*\})")
_NAME = re.compile(r"[+#]?(?P<name>[\w.]+)\*?")
_RESERVED = ":/?#[]@!$&'()*+,;="  # stay as they are in the value of `{+name}`


class InputChoice(msgspec.Struct, frozen=True):
    """A completion. `text` replaces the word, `note` describes it. With `is_open`, the word continues after the
    text."""

    text: str
    note: str = ""
    is_open: bool = False


class InputCompletion(msgspec.Struct, frozen=True):
    """The choices replace the text from the position `start` to the cursor."""

    start: int = 0
    choices: tuple[InputChoice, ...] = ()


RequestValues = Callable[[ValueQuery], Awaitable[Sequence[str]]]


async def complete_argument(prompt: McpPrompt, text: str, request: RequestValues) -> InputCompletion:
    """Completes the last word of the arguments of a prompt: its values, and the names of arguments as `NAME=`."""
    words = list(_WORD.finditer(text))
    last_word = words.pop() if words and words[-1].end() == len(text) else None
    start, typed = (last_word.start(), last_word[0]) if last_word else (len(text), "")
    complete_arguments, free = _read_arguments(prompt, [word[0] for word in words])
    name, is_named, value = typed.partition("=")
    if is_named and name in free:
        free = [name]
    else:
        name, value = (free[0] if free else ""), typed
        is_named = ""
    if not name:
        return InputCompletion()
    values = await request(ValueQuery("prompt", prompt.name, name, value.strip("\"'"), complete_arguments))
    lead = f"{name}=" if is_named else ""
    choices = [InputChoice(f"{lead}{shlex.quote(choice)}") for choice in _clean_values(values)]
    if not is_named:
        about = {
            argument.name: argument.description or ("required" if argument.required else "optional")
            for argument in prompt.arguments
        }
        choices += [
            InputChoice(f"{option}=", about[option], is_open=True) for option in free if option.startswith(typed)
        ]
    return InputCompletion(start, tuple(choices))


def _read_arguments(prompt: McpPrompt, words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Returns the arguments that are complete, and the names of the others in their order."""
    names = [argument.name for argument in prompt.arguments]
    pairs = [word.partition("=") for word in words]
    complete = {name: value.strip("\"'") for name, equals, value in pairs if equals and name in names}
    loose = [
        word.strip("\"'")
        for word, (name, equals, _) in zip(words, pairs, strict=True)
        if not (equals and name in names)
    ]
    free = [name for name in names if name not in complete]
    return complete | dict(zip(free, loose, strict=False)), free[len(loose) :]


async def complete_resource(
    server: str, uri: str, templates: Iterable[McpResource], request: RequestValues
) -> list[InputChoice]:
    """Completes the value at the end of an address that a template describes."""
    choices: list[InputChoice] = []
    for template in templates:
        reached = _find_variable(template.uri, uri)
        if reached is None:
            continue
        prefix, variable, value, following, earlier = reached
        values = await request(ValueQuery("resource", template.uri, variable.name, unquote(value), earlier))
        for choice in _clean_values(values):
            text = f"@{server}:{prefix}{quote(choice, safe=variable.safe)}{following}"
            choices.append(InputChoice(text, template.name, is_open=bool(following)))
    return choices


class _TemplateVariable(msgspec.Struct, frozen=True):
    name: str
    safe: str


def _find_variable(template: str, uri: str) -> tuple[str, _TemplateVariable, str, str, dict[str, str]] | None:
    """Finds the last variable of a template that a typed address reaches.

    Returns the address before the variable, the variable, its value so far, the text that follows it in the template,
    and the values of earlier variables; or None if the address does not have the form of the template.
    """
    pieces = _VARIABLE.split(template)
    position, earlier = 0, dict[str, str]()
    for index in range(0, len(pieces) - 1, 2):
        literal, following = pieces[index], pieces[index + 2]
        name = _NAME.fullmatch(pieces[index + 1][1:-1])
        if name is None or not uri.startswith(literal, position):
            return None
        position += len(literal)
        end = uri.find(following, position) if following else -1
        if end < 0:
            variable = _TemplateVariable(name["name"], _RESERVED if name[0].startswith(("+", "#")) else "")
            return uri[:position], variable, uri[position:], following, earlier
        earlier[name["name"]] = unquote(uri[position:end])
        position = end
    return None


def _clean_values(values: Iterable[str]) -> list[str]:
    return [value for value in values if value and value.isprintable()][:MAX_CHOICES]
