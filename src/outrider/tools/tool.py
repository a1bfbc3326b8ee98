"""The `Tool` class, which makes a tool from a function, the context of a call and its result."""

import inspect
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import aclosing, suppress
from copy import deepcopy
from functools import cached_property, partial
from pathlib import Path
from types import FunctionType, NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec

from outrider._sync import CallbackRunner, ThreadPool, describe_value
from outrider.errors import CallbackError, ConfigurationError, ToolFailure
from outrider.tools.definitions import (
    STRICTNESS,
    NamedToolKeywords,
    Policy,
    ToolKeywords,
    check_declared_parameters,
    parse_options,
)
from outrider.tools.schema import (
    ToolSignature,
    UnresolvedHintError,
    compact_schema,
    convert_arguments,
    find_object,
    function_docs,
    function_name,
    read_signature,
)
from outrider.tools.type_notes import parse_docstring
from outrider.types.agents import Deps
from outrider.types.origins import Origins
from outrider.types.request import ToolSpec
from outrider.types.tool_declaration import CallKind, ToolDeclaration, declaration_of
from outrider.types.tool_state import Attachment
from outrider.types.validate import ArgumentsMeta, find_json_problem, is_object

if TYPE_CHECKING:
    from typing import Concatenate

    from typing_extensions import ParamSpec as ParamSpecWithDefault
    from typing_extensions import TypeVar as TypeVarWithDefault

    Parameters = ParamSpecWithDefault("Parameters", default=...)
    Returned_co = TypeVarWithDefault("Returned_co", default=Any, covariant=True)
else:
    Parameters = ParamSpec("Parameters")
    Returned_co = TypeVar("Returned_co", covariant=True)
DecoratedParameters = ParamSpec("DecoratedParameters")
DecoratedReturned = TypeVar("DecoratedReturned")

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")  # the longest name that an API accepts; some accept less
_threads = ThreadPool()
MAX_PREVIEW_CHARS = 100_000


class Progress(msgspec.Struct, frozen=True, metaclass=ArgumentsMeta):
    """An update of a running call: new output, a new title, further metadata, or further origins of its result."""

    output: str = ""
    title: str | None = None
    metadata: dict[str, Any] = {}
    origins: Origins = ()


def _ignore_progress(progress: Progress) -> None:
    """Discards the value: the default progress callback."""


class WaitForAnswer(Protocol):
    """Stores that a call only waits for an answer; with `has_run`, also stores that it has done its work."""

    def __call__(self, *, has_run: bool = False) -> Awaitable[None]: ...


async def _store_nothing(*, has_run: bool = False) -> None:
    """Does nothing: the default for calls that cannot outlive their process."""


class ToolContext(msgspec.Struct, Generic[Deps], frozen=True):
    """Context of one call. A tool function receives it through a parameter of this type, which is not part of the
    schema; `ToolContext[Db]` gives `deps` a type.

    - `session_id`: the session of the call.
    - `call_id`: the id of the call.
    - `agent`: the name of the agent that made the call.
    - `workspace`: the folder of the session.
    - `report`: publishes a `Progress` while the call runs.
    - `wait_for_answer`: stores that running the call again is safe from now on, because it only waits for the user's
      answer or repeats a stored step. After a crash the call is then run again instead of being reported as
      interrupted. With `has_run=True` it also stores that the tool has done its work and that the outcome is in the
      data folder.
    - `resume_work`: undoes `wait_for_answer` before the tool does something new.
    - `has_run`: returns whether an earlier run of the call has done its work. This run may be on another machine, which
      does not have the outcome, and must not do the work again.
    - `is_suspended`: returns whether a cancelled call will be run again when its session is reopened.
    - `preview`: True if the call is not approved yet. A tool that `previews` then returns what it would do and changes
      nothing.
    - `deps`: what `run(deps=…)` or the factory of `Engine(deps=…)` provided; None without one.
    - `owner`: the owner of the session, also for called agents.
    - `metadata`: the metadata of the session, also for called agents.
    - `root_session_id`: the session of the entry agent.
    """

    session_id: str = ""
    call_id: str = ""
    agent: str = ""
    workspace: Path = Path()
    report: Callable[[Progress], None] = _ignore_progress
    wait_for_answer: WaitForAnswer = _store_nothing
    resume_work: Callable[[], Awaitable[None]] = _store_nothing
    has_run: Callable[[], bool] = lambda: False
    is_suspended: Callable[[], bool] = lambda: False
    preview: bool = False
    deps: Deps = cast("Any", None)
    owner: str = ""
    metadata: dict[str, Any] = {}
    root_session_id: str = ""


class ToolResult(msgspec.Struct, frozen=True, metaclass=ArgumentsMeta):
    """Result of a tool with attachments, a title, metadata, or origins in addition to those that the tool declares."""

    content: str
    attachments: tuple[Attachment, ...] = ()
    title: str | None = None
    metadata: dict[str, Any] = {}
    origins: Origins = ()


MAX_OPTIONS = 20  # choices of a question


class UserQuestion(msgspec.Struct, frozen=True):
    """A question with optional choices. The answer may be free text in any case."""

    text: str
    options: tuple[str, ...] = ()
    multiple: bool = False


AskUser = Callable[[UserQuestion, ToolContext], Awaitable[tuple[str, ...] | None]]
"""Callback that returns the user's answers, or None if no front end can ask."""


class Tool(Generic[Parameters, Returned_co]):
    """A function that a model can call: `@Tool`, `@Tool(timeout=5)`, `Tool(function)` or `Tool.from_schema(…)`. Calling
    the tool calls the function, with its parameters and its return type."""

    if TYPE_CHECKING:

        @overload
        def __new__(
            cls, function: Callable[Parameters, Returned_co], /, **options: Unpack[NamedToolKeywords]
        ) -> "Tool[Parameters, Returned_co]": ...
        @overload
        def __new__(cls, /, **options: Unpack[NamedToolKeywords]) -> "ToolDecorator": ...
        def __new__(cls, function: Any = None, /, **options: Any) -> Any: ...

    else:

        def __new__(cls, function=None, /, **options):
            if function is None:
                return lambda decorated: cls(decorated, **options)
            return super().__new__(cls)

        def __init__(self, function=None, /, **options) -> None:
            self._set_up(function, **options)  # mypy would take the type of the tool from a visible `__init__`

    def _set_up(
        self,
        function: Callable[Parameters, Returned_co] | None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        **options: Unpack[ToolKeywords],
    ) -> None:
        _check_function(function)
        function = cast("Callable[Parameters, Returned_co]", function)
        self.function: Callable[..., Any] = function
        self.name = name or function_name(function)
        if not isinstance(description, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"tool {self.name}: description is a string, got {description!r}")
        self.description = parse_docstring(function_docs(function)).summary if description is None else description
        self.options = parse_options(self.name, dict(options))
        _check_name(self.name)
        check_declared_parameters(self.name, function, self.options)
        self._parameters: dict[str, Any] | None = None
        self._spec: ToolSpec | None = None
        self._declaration: ToolDeclaration | None = None
        plain = _unwrap_function(function)
        self._is_async = inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain)
        self._check_signature()

    @property
    def declaration(self) -> ToolDeclaration:
        """What calls do. Computed on first use, because programs create many tools that no model calls."""
        if self._declaration is None:
            self._declaration = self.options.declare()
        return self._declaration

    @classmethod
    def from_schema(
        cls,
        name: str,
        description: str,
        parameters: dict[str, Any],
        function: Callable[..., Any],
        **options: Unpack[ToolKeywords],
    ) -> Self:
        """Creates a tool with an explicit JSON schema. The function receives the model's arguments without
        conversion."""
        if not is_object(parameters):
            raise ConfigurationError(
                f"tool {name}: its parameters are a JSON schema as a dict, got {type(parameters).__name__}"
            )
        kind = str(parameters.get("type", "object")).lower()  # schemas of Gemini have types in capitals
        if kind != "object" or not is_object(parameters.get("properties", {})):
            raise ConfigurationError(
                f"tool {name}: its parameters are of the form {{'type': 'object', 'properties': …}}"
            )
        _check_function(function)
        tool = cls(function, name=name, description=description, **options)
        tool._parameters = parameters
        return tool

    def _check_signature(self) -> None:
        """Raises ConfigurationError for a parameter that a model cannot fill in. A method in the body of its class is
        not complete yet, and hints may name classes that follow; these are checked at the first use."""
        if _is_plain_method(self.function):
            return
        with suppress(UnresolvedHintError):
            read_signature(self.function, ToolContext, self.name)

    @cached_property
    def signature(self) -> ToolSignature:
        return read_signature(self.function, ToolContext, self.name)

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type | None = None) -> Self: ...
        @overload
        def __get__(
            self: "Tool[Concatenate[Any, DecoratedParameters], DecoratedReturned]",
            instance: object,
            owner: type | None = None,
        ) -> "Tool[DecoratedParameters, DecoratedReturned]": ...
        def __get__(self, instance: object, owner: type | None = None) -> Any: ...

    else:

        def __get__(self, instance, owner=None):
            """Returns the tool of an object for a method that is decorated with `@Tool`."""
            if instance is None or not hasattr(self.function, "__get__"):
                return self
            bound = object.__new__(type(self))
            cached = ("signature", "parameters")
            bound.__dict__.update((name, value) for name, value in vars(self).items() if name not in cached)
            bound.function = self.function.__get__(instance, owner)
            bound._spec = None
            bound._check_signature()
            return bound

    @cached_property
    def parameters(self) -> dict[str, Any]:
        return self.signature.json_schema() if self._parameters is None else self._parameters

    @property
    def stored_display(self) -> CallKind | None:
        """How calls are shown, if that does not follow from the name of the tool; it is stored with each call."""
        display = self.declaration.display
        return None if display == declaration_of(self.name).display else display

    @property
    def read_only(self) -> bool:
        """True if calls change nothing, so that the tool is available in plan mode."""
        return self.options.read_only

    @property
    def timeout(self) -> float | None:
        """Seconds after which a call is cancelled; None for no limit."""
        return self.options.timeout

    def to_schema(self) -> dict[str, Any]:
        """Returns name, description and JSON schema of the parameters, as a model receives them."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def spec(self) -> ToolSpec:
        """Returns the definition for a request. The schema is compacted unless it is explicit or strict."""
        if self._spec is None or self._spec.description != self.description:
            retained = self._parameters is not None or self.options.strict
            parameters = self.parameters if retained else compact_schema(self.parameters, self.options.unsaid)
            self._spec = ToolSpec(self.name, self.description, parameters, self.options.strict)
        return self._spec

    def policy_for(self, arguments: dict[str, Any]) -> Policy:
        """Returns the tool's policy for a call, made stricter (never looser) by `evaluate_policy`."""
        base = self.options.policy
        if self.options.evaluate_policy is None:
            return base
        return self._stricter_policy(self.options.evaluate_policy(base, arguments))

    async def evaluate_policy(self, arguments: dict[str, Any], callbacks: CallbackRunner) -> Policy:
        """Returns the tool's policy for a call; `evaluate_policy` may be async. Raises CallbackError if it fails."""
        evaluate = self.options.evaluate_policy
        if evaluate is None:
            return self.options.policy
        name, copied = f"evaluate_policy of tool {self.name}", deepcopy(arguments)
        return self._stricter_policy(await callbacks.call(name, evaluate, self.options.policy, copied))

    def _stricter_policy(self, evaluated: object) -> Policy:
        if not isinstance(evaluated, str) or evaluated not in ("allow", "ask", "deny"):
            raise CallbackError(
                f"evaluate_policy of tool {self.name}",
                f'returned {describe_value(evaluated)}; it returns "allow", "ask" or "deny"',
            )
        return max(self.options.policy, evaluated, key=STRICTNESS.__getitem__)

    def prepare(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Returns the preprocessed arguments, which are used for the permission check, display and execution."""
        preprocess = self.options.preprocess_args
        return arguments if preprocess is None else self._checked_arguments(preprocess(dict(arguments)))

    async def preprocess(self, arguments: dict[str, Any], callbacks: CallbackRunner) -> dict[str, Any]:
        """Returns the preprocessed arguments; `preprocess_args` may be async. Raises CallbackError if it fails."""
        preprocess = self.options.preprocess_args
        if preprocess is None:
            return arguments
        name = f"preprocess_args of tool {self.name}"
        return self._checked_arguments(await callbacks.call(name, preprocess, deepcopy(arguments)))

    def _checked_arguments(self, prepared: object) -> dict[str, Any]:
        problem = find_json_problem(prepared)
        if not is_object(prepared) or problem:
            problem = f"returned arguments {problem}" if problem else f"returned a {type(prepared).__name__}"
            raise CallbackError(
                f"preprocess_args of tool {self.name}", f"{problem}; it returns the arguments as a dict"
            )
        return prepared

    def check_arguments(self, arguments: dict[str, Any]) -> None:
        """Raises InvalidArguments if the function cannot be called with them. An explicit schema is not checked."""
        if self._parameters is None:
            convert_arguments(self.name, self.signature, arguments, nulls=self.options.strict)

    async def preview(self, arguments: dict[str, Any], context: ToolContext) -> str:
        """Returns a unified diff of what a call would change, or "" if the tool cannot tell. Raises ToolFailure if the
        arguments are invalid or the call cannot work."""
        if not self.options.previews:
            self.check_arguments(arguments)
            return ""
        result = await self.call(arguments, msgspec.structs.replace(context, preview=True))
        diff = result.metadata.get("diff") if isinstance(result, ToolResult) else ""
        return diff if isinstance(diff, str) and len(diff) < MAX_PREVIEW_CHARS else ""

    async def execute(self, **arguments: Any) -> str | ToolResult:
        """Calls the tool outside a run, with an empty context. Raises what the function raises."""
        return await self.call(arguments, ToolContext())

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> str | ToolResult:
        """Runs the function. Raises ToolFailure with a message for the model if the arguments are invalid."""
        if self._parameters is None:
            arguments = convert_arguments(self.name, self.signature, arguments, nulls=self.options.strict)
            if self.signature.context_parameter is not None:
                arguments[self.signature.context_parameter] = context
        if self._is_async:
            value = self.function(**arguments)
            if inspect.isasyncgen(value):
                return to_tool_result(await _collect_chunks(value, context))
            return to_tool_result(await value)
        return to_tool_result(await _run_in_thread(self.function, arguments, context))

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned_co:
        """Calls the decorated function directly."""
        return self.function(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Returns how `pickle` and `copy` make a copy. A tool that decorates a function is found by the name of that
        function, which refers to the tool after the decoration."""
        module_and_name = getattr(self.function, "__module__", None) or "", getattr(self.function, "__qualname__", "")
        return (
            (find_object, module_and_name)
            if find_object(*module_and_name) is self
            else (_create_tool, (type(self),), self.__dict__)
        )

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


def _create_tool(cls: type[Tool]) -> Tool:
    return object.__new__(cls)  # Tool() without a function is a decorator


class OnDemandTool(Tool):
    """A tool that a `ForwardingTool` may call. While it `is_on_demand`, its definition is not part of requests."""

    is_on_demand = False


class ForwardingTool(Tool):
    """A tool whose calls become calls of another tool, whose rules, approvals and display then apply.

    The model calls it with a name and arguments. The function runs only if no such tool exists, and returns which tools
    exist.
    """

    def find_target(self, given: dict[str, Any], tools: "Mapping[str, Tool]") -> tuple[str, dict[str, Any]] | None:
        """Returns the tool to call and its arguments; None if there is no tool on demand with that name."""
        name, arguments = given.get("tool"), given.get("arguments", {})
        if isinstance(arguments, str):  # some models encode objects twice
            with suppress(msgspec.DecodeError):
                arguments = msgspec.json.decode(arguments)
        if not isinstance(name, str) or not is_object(arguments):
            return None
        target = tools.get(name)
        return (name, arguments) if isinstance(target, OnDemandTool) else None


if TYPE_CHECKING:

    class ToolDecorator(Tool[..., Any]):
        """What `Tool(timeout=5)` returns: it makes a tool from a function. It is not a tool; mypy needs the base
        class."""

        def __call__(
            self, function: Callable[DecoratedParameters, DecoratedReturned], /
        ) -> Tool[DecoratedParameters, DecoratedReturned]: ...


async def _run_in_thread(function: Callable[..., Any], arguments: dict[str, Any], context: ToolContext) -> Any:
    def call() -> Any:
        value = function(**arguments)
        return _collect_items(cast("Any", value), context) if isinstance(value, Generator) else value

    value = await _threads.run(call)
    if isinstance(value, AsyncGenerator):
        return await _collect_chunks(cast("Any", value), context)
    return await value if isinstance(value, Awaitable) else value  # pyright: ignore


def _collect_items(chunks: Generator[Any, Any, Any], context: ToolContext) -> Any:
    """Reports the chunks of a generator as progress. Returns its return value, or all chunks as one string."""
    texts: list[str] = []
    while True:
        try:
            chunk = next(chunks)
        except StopIteration as end:
            return "".join(texts) if end.value is None else end.value
        texts.append(_report_chunk(chunk, context))


async def _collect_chunks(chunks: AsyncGenerator[Any, Any], context: ToolContext) -> Any:
    """Reports the chunks of an async generator as progress. Returns the last chunk if it is a ToolResult, else all
    chunks as one string; an async generator has no return value."""
    texts: list[str] = []
    last_chunk: Any = None
    async with aclosing(chunks):
        async for chunk in chunks:
            last_chunk = chunk
            texts.append(_report_chunk(chunk, context))
    return last_chunk if isinstance(last_chunk, ToolResult) else "".join(texts)


def _report_chunk(chunk: Any, context: ToolContext) -> str:
    """Reports a chunk as progress and returns its text; a chunk that is not text becomes a line of JSON."""
    if isinstance(chunk, Progress):
        context.report(chunk)
        return chunk.output
    result = to_tool_result(chunk)
    text = result.content if isinstance(result, ToolResult) else result
    text = text if isinstance(chunk, str | bytes | ToolResult) else text + "\n"
    context.report(Progress(text))
    return text


def to_tool_result(value: Any) -> str | ToolResult:
    """Converts a return value to text or ToolResult. Raises ToolFailure if it cannot be encoded as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Attachment):
        value = ToolResult("", (value,))
    if _has_attachments(value):
        value = _separate_attachments(value)
    if isinstance(value, ToolResult):
        return _load_attachments(_check_result(value))
    if value is None:
        return ""
    if inspect.iscoroutine(value):
        value.close()
        raise ToolFailure("the tool returned a coroutine, which was not awaited; write `return await …` in the tool")
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    try:
        return msgspec.json.encode(value, enc_hook=_to_builtin).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolFailure(
            f"the tool returned a value of type {type(value).__name__} that cannot be written as JSON ({error})"
        ) from error


def _has_attachments(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(item, Attachment) for item in cast("list[Any]", value))


def _separate_attachments(values: list[Any]) -> ToolResult:
    texts = [to_tool_result(item) for item in values if not isinstance(item, Attachment)]
    content = "\n".join(item if isinstance(item, str) else item.content for item in texts)
    return ToolResult(content, tuple(item for item in values if isinstance(item, Attachment)))


def _check_result(result: ToolResult) -> ToolResult:
    """Returns the result of a function of the program. Raises ToolFailure if a field has a wrong type."""
    fields = {name: getattr(result, name) for name in ToolResult.__struct_fields__}
    problem = next((name for name, types in _RESULT_TYPES.items() if not isinstance(fields[name], types)), "")
    if problem:
        raise ToolFailure(f"the tool returned a ToolResult with the {problem} {describe_value(fields[problem])}")
    if bad := [file for file in result.attachments if not isinstance(file, Attachment)]:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ToolFailure(
            f"the tool returned a ToolResult with the attachment {describe_value(bad[0])}; use Attachment.from_path() "
            "or Attachment.from_bytes()"
        )
    check_metadata(result.metadata or {})
    return result


_RESULT_TYPES: dict[str, tuple[type, ...]] = {
    "content": (str,),
    "title": (str, NoneType),
    "metadata": (dict, NoneType),
    "attachments": (list, tuple),
    "origins": (str, list, tuple),
}


def check_metadata(metadata: dict[str, Any]) -> None:
    """Raises ToolFailure if metadata of a function of the program cannot be stored."""
    problem = find_json_problem(metadata)
    if problem or not all(type(name) is str for name in metadata):
        raise ToolFailure(f"the tool returned metadata {problem or 'whose names are not strings'}")


def _load_attachments(result: ToolResult) -> ToolResult:
    """Reads the files of file: URLs. Results of MCP servers, which may name any file, do not pass through here."""
    if not any(file.url and file.url.startswith("file:") for file in result.attachments):
        return result
    try:
        return msgspec.structs.replace(result, attachments=tuple(file.load() for file in result.attachments))
    except ConfigurationError as error:
        raise ToolFailure(error.message) from error


def _to_builtin(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "to_dict"):
        return value.to_dict()
    text = str(value)
    if type(value).__str__ is object.__str__ and text.startswith("<") and text.endswith(">"):
        raise TypeError(f"{type(value).__name__} has no text but {text}; return a string, a dict or a dataclass")
    return text


def _check_function(function: object) -> None:
    """Raises ConfigurationError if a value is not a function, and states what to pass instead."""
    kind = type(function).__name__
    if isinstance(function, type):
        raise ConfigurationError(
            f"a tool is made from a function, got the class {function.__name__}; pass one of its methods, an object "
            "with `__call__`, or a function that creates the object"
        )
    if isinstance(function, Tool):
        raise ConfigurationError(f"{function.name} is a tool already; pass it as it is, without a second Tool()")
    if isinstance(function, classmethod | property):
        raise ConfigurationError(f"a tool is made from a function, got a {kind}; write @{kind} above @Tool")
    if inspect.iscoroutine(function):
        function.close()
        raise ConfigurationError(
            "a tool is made from a function, got a coroutine; pass the function without calling it"
        )
    if not callable(function):
        raise ConfigurationError(
            f"a tool is made from a function, got {kind}; decorate a function with @Tool, or pass Tool(function)"
        )


def _unwrap_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function behind a partial or a callable object, to see what kind it is."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _is_plain_method(function: Callable[..., Any]) -> bool:
    """Returns whether a function was defined in the body of a class."""
    scope, _, _ = getattr(function, "__qualname__", "").rpartition(".")
    return isinstance(function, FunctionType) and bool(scope) and not scope.endswith("<locals>")


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"no model can call a tool {name!r}: a name is made of letters from a to z, digits, _ and -. "
            "Give it one: Tool(function, name=…)"
        )


def replace_function(tool: Tool, function: Callable[..., Any]) -> Tool:
    """Returns a copy of the tool with another function of the same definition, such as a closure over other values."""
    copied = object.__new__(type(tool))
    copied.__dict__.update(vars(tool), function=function)
    return copied


def tools_by_name(tools: "Iterable[Tool | Callable[..., Any]]") -> dict[str, "Tool"]:
    """Returns a dict of tools by name; plain functions are converted. Raises ConfigurationError for a
    duplicate name."""
    by_name: dict[str, Tool] = {}
    for entry in cast("Iterable[Any]", tools):
        if entry is None:  # Tool(None) is a decorator
            raise ConfigurationError("tools has None; it has functions, or tools such as Tool(function, timeout=5)")
        tool: Tool = cast("Tool", entry) if isinstance(entry, Tool) else Tool(entry)
        name = tool.name
        if name in by_name:
            raise ConfigurationError(f"two tools are called {name!r}")
        by_name[name] = tool
    return by_name
