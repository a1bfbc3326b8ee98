"""Defines the options of tools and checks them; loads prompt files and renames arguments."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

import msgspec

from outrider._sync import describe_value
from outrider.errors import ConfigurationError
from outrider.types.origins import Origin, OriginKind, make_origin
from outrider.types.tool_declaration import UNKNOWN_TOOL, CallKind, PathOperation, ToolDeclaration, ToolKind
from outrider.types.validate import is_positive_number

Policy = Literal["allow", "ask", "deny"]
EvaluatePolicy = Callable[[Policy, dict[str, Any]], Policy | Awaitable[Policy]]
PreprocessArguments = Callable[[dict[str, Any]], dict[str, Any] | Awaitable[dict[str, Any]]]

STRICTNESS: dict[Policy, int] = {"allow": 0, "ask": 1, "deny": 2}
_DISPLAY: dict[ToolKind, CallKind] = {"read": "read", "write": "edit", "network": "fetch", "delegate": "agent"}
_OPERATIONS = get_args(PathOperation)


class ToolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a tool.

    The permission policy reads what calls do from `read_only`, `path_parameters`, `path_operation`, `network`,
    `url_parameters`, `origins` and `destination`, or from `declares` alone. `evaluate_policy` and `preprocess_args` may
    be async. If one of them fails, takes too long or returns an invalid value, the call is refused.

    - `read_only`: changes nothing, so the tool runs in plan mode.
    - `timeout`: seconds until a call is cancelled.
    - `policy`: "allow", "ask" (each call needs an approval) or "deny".
    - `evaluate_policy`: a function of the policy and the arguments, which can only make the policy stricter.
    - `preprocess_args`: a function of the arguments that returns the ones to use; it runs before the permission check.
    - `parallel`: may run concurrently with other calls.
    - `repeatable`: is safe to run twice. Such a call is run again when a turn resumes after a crash; other calls are
      reported as interrupted.
    - `asks`: only waits for a user's answer, and waits again after a restart.
    - `delegates`: waits for other agents, and does not use a slot of the concurrency limit.
    - `plan`: is offered in plan mode, where only some calls are allowed.
    - `strict`: requests that the provider enforces the schema.
    - `unsaid`: parameters that are accepted but omitted from the schema to save tokens.
    - `path_parameters`: parameters with files or folders that the tool reads, or changes unless it is `read_only`. Each
      path is checked like that of a built-in file tool.
    - `path_operation`: what happens to these paths. By default they may be files or folders, or be missing, which means
      the workspace.
    - `network`: connects to other hosts.
    - `url_parameters`: parameters with the URLs of those hosts.
    - `display`: how front ends show the calls.
    - `origins`: where the text of results comes from, as `Origin` values or kinds such as "web". By default it follows
      from the paths and URLs.
    - `destination`: who receives the arguments, such as a host name, if no URL states it.
    - `previews`: the function respects `ToolContext.preview`. It is then called before a person is asked whether a call
      may run: the `diff` in the metadata of its result is shown, and a ToolFailure ends the call without a question.
    - `declares`: a complete declaration that replaces all of these, for tools that run commands or apply patches.
    - `repeats`: the number of equal calls with equal results in a row after which a turn ends; None for no limit, as
      for a tool that polls. By default `Limits.repeats` applies.
    """

    read_only: bool = False
    timeout: float | None = None
    policy: Policy = "allow"
    evaluate_policy: EvaluatePolicy | None = None
    preprocess_args: PreprocessArguments | None = None
    parallel: bool = True
    repeatable: bool = False
    asks: bool = False
    delegates: bool = False
    plan: bool = False
    strict: bool = False
    unsaid: tuple[str, ...] = ()
    path_parameters: tuple[str, ...] = ()
    path_operation: PathOperation | None = None
    network: bool = False
    url_parameters: tuple[str, ...] = ()
    display: CallKind | None = None
    origins: tuple[Origin | OriginKind, ...] | None = None
    destination: str = ""
    previews: bool = False
    declares: ToolDeclaration | None = None
    repeats: int | msgspec.UnsetType | None = msgspec.UNSET

    def declare(self) -> ToolDeclaration:
        """Returns the declaration of what calls do. Nothing follows from the name of a tool: a tool that declares
        nothing has unknown effects."""
        network = self.network or bool(self.url_parameters)
        if self.declares is not None:
            declared = self.declares
        elif self.path_parameters:
            kind, operation = ("read", "search") if self.read_only else ("write", "change")
            declared = ToolDeclaration(
                kind, self.path_parameters, self.path_operation or operation, _DISPLAY[kind], network
            )
        elif network:
            declared = ToolDeclaration("network", self.url_parameters, display=_DISPLAY["network"])
        elif self.delegates:
            declared = ToolDeclaration("delegate", display=_DISPLAY["delegate"])
        else:
            declared = ToolDeclaration("talk") if self.read_only else UNKNOWN_TOOL
        changes: dict[str, Any] = {"display": self.display} if self.display else {}
        if self.origins is not None:
            changes["origins"] = tuple(
                origin if isinstance(origin, Origin) else make_origin(origin) for origin in self.origins
            )
        if self.destination:
            changes["destination"] = self.destination
        return msgspec.structs.replace(declared, **changes) if changes else declared


class ToolKeywords(TypedDict, total=False):
    """The keyword arguments of `Tool`, for type checkers and editors; see `ToolOptions` for their meaning."""

    read_only: bool
    timeout: float | None
    policy: Policy
    evaluate_policy: EvaluatePolicy | None
    preprocess_args: PreprocessArguments | None
    parallel: bool
    repeatable: bool
    asks: bool
    delegates: bool
    plan: bool
    strict: bool
    unsaid: tuple[str, ...]
    path_parameters: tuple[str, ...]
    path_operation: PathOperation | None
    network: bool
    url_parameters: tuple[str, ...]
    display: CallKind | None
    origins: tuple[Origin | OriginKind, ...] | None
    destination: str
    previews: bool
    declares: ToolDeclaration | None
    repeats: int | None


class NamedToolKeywords(ToolKeywords, total=False):
    """The keyword arguments of `Tool` with the name and the description, which default to those of the function."""

    name: str | None
    description: str | None


def check_declared_parameters(name: str, function: Callable[..., Any], options: ToolOptions) -> None:
    """Raises ConfigurationError for a misspelled parameter: the policy would not check it."""
    if not (options.path_parameters or options.url_parameters):
        return
    declared = {*options.path_parameters, *options.url_parameters}
    parameters = inspect.signature(function).parameters
    accepts_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if (unknown := declared - parameters.keys()) and not accepts_any:
        raise ConfigurationError(f"tool {name}: its function has no parameter {min(unknown)!r}, which it declares")


def parse_options(name: str, options: dict[str, Any]) -> ToolOptions:
    """Returns the options of a tool. Raises ConfigurationError for an option that is unknown or has a wrong value."""
    for option, value in options.items():
        expected = _OPTION_CHECKS.get(option)
        if expected is not None and not expected[0](value):
            raise ConfigurationError(f"tool {name}: {option} is {expected[1]}, got {describe_value(value)}")
    try:
        return ToolOptions(**options)
    except TypeError as error:
        names = ", ".join(ToolOptions.__struct_fields__)
        raise ConfigurationError(f"tool {name}: {error}; the options are {names}") from error


def _is_function(value: Any) -> bool:
    return value is None or callable(value)


_OPTION_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("read_only", "parallel", "repeatable", "asks", "delegates", "plan", "strict", "network", "previews"),
        (lambda value: isinstance(value, bool), "True or False"),
    ),
    "unsaid": (lambda value: not isinstance(value, str), "a tuple of names of parameters"),
    "destination": (lambda value: isinstance(value, str), "a string, such as a host name"),
    "declares": (lambda value: value is None or isinstance(value, ToolDeclaration), "a ToolDeclaration"),
    "path_operation": (lambda value: value in (None, *_OPERATIONS), f"one of {', '.join(_OPERATIONS)}"),
    "policy": (lambda value: value in STRICTNESS, "allow, ask or deny"),
    "timeout": (lambda value: value is None or is_positive_number(value), "a number of seconds, or None"),
    "repeats": (
        lambda value: value is None or value is msgspec.UNSET or (type(value) is int and value > 0),
        "a whole number of at least 1, or None for no limit",
    ),
    "evaluate_policy": (_is_function, "a function of the policy and the arguments"),
    "preprocess_args": (_is_function, "a function of the arguments"),
    "path_parameters": (lambda value: not isinstance(value, str), "a tuple of names, such as ('path',)"),
    "url_parameters": (lambda value: not isinstance(value, str), "a tuple of names, such as ('url',)"),
    "origins": (lambda value: not isinstance(value, str), "a tuple, such as ('web',)"),
    "display": (lambda value: value is None or value in get_args(CallKind), f"one of {', '.join(get_args(CallKind))}"),
}


def load_prompt(module: str, tool: str, **values: str) -> str:
    """Loads a tool's prompt file next to a module and replaces `{name}` placeholders with `values`, such as the list
    of agents."""
    text = Path(module).with_name(f"{tool}.md").read_text(encoding="utf-8").strip()
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def argument_aliases(
    names: Mapping[str, str], *, drop: frozenset[str] = frozenset()
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Returns a function for `preprocess_args` that renames arguments. An argument that already has the target name
    takes precedence."""

    def rename(arguments: dict[str, Any]) -> dict[str, Any]:
        for alias, target in names.items():
            if alias in arguments and target not in arguments:
                arguments[target] = arguments.pop(alias)
        return {name: value for name, value in arguments.items() if name not in drop}

    return rename
