"""The contract of a tool, and `@Tool`, which makes one from any function."""

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, overload

import msgspec

from outrider.errors import ConfigurationError, ToolFailure
from outrider.tools.context import ToolContext
from outrider.tools.schema import Signature, compact_schema, read_arguments, signature_of, summary_of
from outrider.tools.threads import Threads
from outrider.types.request import ToolSpec
from outrider.types.tool_state import Attachment

Policy = Literal["allow", "ask", "deny"]
EvaluatePolicy = Callable[[Policy, dict[str, Any]], Policy]
PreprocessArguments = Callable[[dict[str, Any]], dict[str, Any]]

_STRICTNESS: dict[Policy, int] = {"allow": 0, "ask": 1, "deny": 2}
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")  # beyond this no API takes a name; some take less
_threads = Threads()


class ToolResult(msgspec.Struct, frozen=True):
    """What a tool gives back when text alone is not enough."""

    content: str
    attachments: tuple[Attachment, ...] = ()
    title: str | None = None
    metadata: dict[str, Any] = {}


class ToolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`read_only` tools run in plan mode; `parallel` ones beside others; calls of `repeatable` ones, which are safe to
    run twice, are run again when a turn goes on after a crash, and calls of all others are reported as interrupted;
    `asks` ones only wait for a person's answer, and do so again when their session is opened after a restart;
    `delegates` ones wait for calls of other agents, and so take no place among those that run; `strict` ones ask the
    provider to hold the model to the schema; `plan` ones are offered in plan mode too, where only some calls pass.
    Models that know the parameters in `unsaid` may use them; the others are not told, since it is seldom worth it.

    `evaluate_policy(base, args)` may only tighten; `preprocess_args(args)` comes before anything is decided.
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


class Tool:
    """A function that a model can call: `@Tool`, `@Tool(timeout=5)`, `Tool(function)`, `Tool.from_schema(…)`."""

    @overload
    def __new__(cls, function: Callable[..., Any], /, **options: Any) -> Self: ...
    @overload
    def __new__(cls, /, **options: Any) -> Callable[[Callable[..., Any]], Self]: ...
    def __new__(cls, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        if function is None:
            return lambda decorated: cls(decorated, **options)  # pyright: ignore
        return super().__new__(cls)

    def __init__(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        **options: Any,
    ) -> None:
        if not callable(function):
            raise ConfigurationError(f"a tool is made from a function, got {type(function).__name__}")
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self.description = summary_of(inspect.getdoc(function) or "") if description is None else description
        self.options = _options(self.name, options)
        _require_sayable(self.name)
        self._parameters: dict[str, Any] | None = None
        self._spec: ToolSpec | None = None
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    @classmethod
    def from_schema(
        cls,
        name: str,
        description: str,
        parameters: dict[str, Any],
        function: Callable[..., Any],
        **options: Any,
    ) -> Self:
        """A tool whose JSON schema comes from elsewhere; the function gets the arguments as the model wrote them."""
        tool = cls(function, name=name, description=description, **options)
        tool._parameters = parameters
        return tool

    @cached_property
    def signature(self) -> Signature:
        return signature_of(self.function)

    @cached_property
    def parameters(self) -> dict[str, Any]:
        return self.signature.json_schema() if self._parameters is None else self._parameters

    @property
    def read_only(self) -> bool:
        return self.options.read_only

    @property
    def timeout(self) -> float | None:
        return self.options.timeout

    def to_schema(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def spec(self) -> ToolSpec:
        """As it is offered to a model. A schema that was given, or that a provider must hold it to, stays as it is."""
        if self._spec is None or self._spec.description != self.description:
            kept = self._parameters is not None or self.options.strict
            parameters = self.parameters if kept else compact_schema(self.parameters, self.options.unsaid)
            self._spec = ToolSpec(self.name, self.description, parameters, self.options.strict)
        return self._spec

    def policy_for(self, arguments: dict[str, Any]) -> Policy:
        """The tool's own word on a call: its policy, tightened (never loosened) for these arguments."""
        base = self.options.policy
        if self.options.evaluate_policy is None:
            return base
        return max(base, self.options.evaluate_policy(base, arguments), key=_STRICTNESS.__getitem__)

    def prepare(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments that will run: what is decided on, shown and executed."""
        preprocess = self.options.preprocess_args
        return arguments if preprocess is None else preprocess(dict(arguments))

    async def execute(self, **arguments: Any) -> str | ToolResult:
        return await self.call(arguments, ToolContext())

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> str | ToolResult:
        """Run the function; wrong arguments raise ToolFailure with words for the model."""
        if self._parameters is None:
            arguments = read_arguments(self.name, self.signature, arguments)
            if self.signature.context_parameter is not None:
                arguments[self.signature.context_parameter] = context
        if self._is_async:
            return as_result(await self.function(**arguments))
        return as_result(await _in_thread(self.function, arguments))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A decorated function can still be called as before."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


async def _in_thread(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    value = await _threads.run(lambda: function(**arguments))
    return await value if isinstance(value, Awaitable) else value  # pyright: ignore


def as_result(value: Any) -> str | ToolResult:
    """Whatever a function returns, as something a model can read."""
    if isinstance(value, str | ToolResult):
        return value
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    try:
        return msgspec.json.encode(value, enc_hook=_plain).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolFailure(f"the tool returned a {type(value).__name__} that cannot be written as JSON") from error


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return str(value)


def _require_sayable(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"no model can call a tool {name!r}: a name is made of letters from a to z, digits, _ and -. "
            "Give it one: Tool(function, name=…)"
        )


def _options(name: str, options: dict[str, Any]) -> ToolOptions:
    try:
        return ToolOptions(**options)
    except TypeError as error:
        known = ", ".join(ToolOptions.__struct_fields__)
        raise ConfigurationError(f"tool {name}: {error}; the options are {known}") from error


def named(tools: "Iterable[Tool | Callable[..., Any]]") -> dict[str, "Tool"]:
    """Tools by name, also from plain functions; two of one name cannot be told apart by a model."""
    by_name: dict[str, Tool] = {}
    for given in tools:
        tool = given if isinstance(given, Tool) else Tool(given)
        if tool.name in by_name:
            raise ConfigurationError(f"two tools are called {tool.name!r}")
        by_name[tool.name] = tool
    return by_name


def prompt_beside(module: str, **words: str) -> str:
    """`words` fill in what is known only when the tool is made, such as the names of agents."""
    text = Path(module).with_suffix(".md").read_text(encoding="utf-8").strip()
    for name, value in words.items():
        text = text.replace("{" + name + "}", value)
    return text


def argument_aliases(
    names: Mapping[str, str], *, drop: frozenset[str] = frozenset()
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """For `preprocess_args`: an argument that has our name already wins over one to be renamed."""

    def rename(arguments: dict[str, Any]) -> dict[str, Any]:
        for other, ours in names.items():
            if other in arguments and ours not in arguments:
                arguments[ours] = arguments.pop(other)
        return {name: value for name, value in arguments.items() if name not in drop}

    return rename
