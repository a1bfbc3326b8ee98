"""Makes type adapters from type hints: dataclasses, TypedDicts, NamedTuples, pydantic models, msgspec structs, attrs
classes, enums, Literals, collections, unions, generic and recursive types, and `Annotated` with constraints."""

import collections
import collections.abc
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import Annotated, Any, ForwardRef, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec

from outrider.errors import ConfigurationError
from outrider.tools.type_adapters import (
    MISSING,
    SCALARS,
    AnyAdapter,
    ArrayAdapter,
    ChoiceAdapter,
    MappingAdapter,
    MsgspecAdapter,
    ObjectAdapter,
    PydanticAdapter,
    ScalarAdapter,
    Schema,
    SchemaDefinitions,
    TextAdapter,
    TupleAdapter,
    TypeAdapter,
    TypedField,
    UnionAdapter,
    class_description,
)
from outrider.tools.type_notes import (
    AnnotationNote,
    ConstrainedAdapter,
    ValueConstraints,
    is_pydantic_field,
    parse_docstring,
    read_metadata,
)
from outrider.types.validate import referenced_definitions

Variables = Mapping[Any, Any]  # the arguments of generic types, by type variable

_ARRAYS: dict[Any, Callable[[list[Any]], Any]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    collections.deque: collections.deque,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Collection: list,
    collections.abc.Iterable: list,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
}
_MAPPINGS: dict[Any, Callable[[dict[Any, Any]], Any]] = {
    dict: dict,
    collections.OrderedDict: collections.OrderedDict,
    collections.abc.Mapping: dict,
    collections.abc.MutableMapping: dict,
}
_TEXT_CLASSES: dict[tuple[str, str], Schema] = {
    ("ipaddress", "IPv4Address"): {"format": "ipv4"},
    ("ipaddress", "IPv6Address"): {"format": "ipv6"},
    ("ipaddress", "IPv4Network"): {},
    ("ipaddress", "IPv6Network"): {},
    ("zoneinfo", "ZoneInfo"): {},
}
_WRAPPERS = ("Required", "NotRequired", "ReadOnly", "Final", "ClassVar", "InitVar")


class UnsupportedTypeError(ConfigurationError):
    """A type hint that no JSON value can satisfy."""


class TypeCompiler:
    """Makes adapters of type hints. Each class is compiled once, so that it can refer to itself."""

    def __init__(self) -> None:
        self._objects: dict[tuple[Any, ...], TypeAdapter] = {}
        self._open: list[Any] = []

    def compile(self, hint: Any, variables: Variables | None = None) -> TypeAdapter:
        """Returns the adapter of a hint. Raises UnsupportedTypeError with the reason."""
        variables = variables or {}
        hint = _resolve(hint, variables, self._open)
        origin = get_origin(hint)
        if origin is Annotated:
            return self._compile_annotated(hint, variables)
        if hint is Any or hint is object:
            return AnyAdapter()
        if origin is Literal:
            return _literal_adapter(hint)
        if origin in (Union, types.UnionType):
            return self._compile_union(get_args(hint), variables)
        if _is_alias(hint) or _is_alias(origin):
            return self._compile_alias(hint, variables)
        return self._compile_class(hint, origin or hint, variables)

    def compile_field(
        self,
        name: str,
        hint: Any,
        variables: Variables | None = None,
        *,
        key: str = "",
        default: Any = MISSING,
        default_factory: Callable[[], Any] | None = None,
        required: bool | None = None,
        description: str = "",
    ) -> TypedField:
        """Returns a field with the description and the default of its annotation. `= Field(5)` as a default works like
        an annotation."""
        hint = _resolve(hint, variables or {}, self._open)
        if is_pydantic_field(default):
            hint, default = Annotated[hint, default], MISSING  # pyright: ignore
        note = read_metadata(get_args(hint)[1:]) if get_origin(hint) is Annotated else AnnotationNote()
        if default is MISSING and default_factory is None:
            default, default_factory = note.default, note.default_factory
        if isinstance(default, list | dict | set):
            default, default_factory = MISSING, cast("Any", default).copy  # never shared between calls
        optional = default is not MISSING or default_factory is not None
        if default_factory is not None and (empty := default_factory()) in ([], {}):
            default_factory = dict if empty == {} else list
        return TypedField(
            name=name,
            key=key or name,
            adapter=self.compile(hint, variables),
            default=default,
            default_factory=default_factory,
            required=not optional if required is None else required,
            description=note.description or description,
        )

    def _compile_annotated(self, hint: Any, variables: Variables) -> TypeAdapter:
        inner, *metadata = get_args(hint)
        note = read_metadata(metadata)
        if misfit := note.constraints.find_misfit(inner):
            raise UnsupportedTypeError(f"the constraint {misfit} does not apply to {type_label(inner)}")
        if note.for_pydantic:
            limits = read_metadata([item for item in metadata if isinstance(item, msgspec.Meta)]).constraints
            try:
                adapter = PydanticAdapter(Annotated[(inner, *note.for_pydantic)], type_label(inner))  # pyright: ignore
                return adapter if limits == ValueConstraints() else ConstrainedAdapter(adapter, limits)
            except Exception as error:
                if not type(error).__module__.startswith("pydantic"):
                    raise
        adapter = self.compile(inner, variables)
        return adapter if note.constraints == ValueConstraints() else ConstrainedAdapter(adapter, note.constraints)

    def _compile_union(self, members: Sequence[Any], variables: Variables) -> TypeAdapter:
        present = [member for member in members if member is not msgspec.UnsetType]
        compiled = [self.compile(member, variables) for member in present]
        return compiled[0] if len(compiled) == 1 else UnionAdapter(compiled)

    def _compile_alias(self, hint: Any, variables: Variables) -> TypeAdapter:
        """Compiles `type Name = …`, which may refer to itself."""
        alias = hint if _is_alias(hint) else get_origin(hint)
        arguments = tuple(_resolve(argument, variables, self._open) for argument in get_args(hint))
        key = ("alias", id(alias), *map(_hint_key, arguments))
        if key not in self._objects:
            adapter = self._objects[key] = AliasAdapter(alias, alias.__name__)
            inner = dict(zip(getattr(alias, "__type_params__", ()), arguments, strict=False))
            self._open.append(alias)
            try:
                adapter.inner = self.compile(alias.__value__, inner)
            finally:
                self._open.pop()
        return self._objects[key]

    def _compile_class(self, hint: Any, cls: Any, variables: Variables) -> TypeAdapter:
        arguments = tuple(_resolve(argument, variables, self._open) for argument in get_args(hint))
        if cls in _ARRAYS:
            return ArrayAdapter(self._compile_argument(arguments, 0, variables), _ARRAYS[cls])
        if cls in _MAPPINGS:
            key = self._compile_argument(arguments, 0, variables) if arguments else ScalarAdapter(str)
            return MappingAdapter(key, self._compile_argument(arguments, 1, variables), _MAPPINGS[cls])
        if cls is tuple:
            return self._compile_tuple(arguments, variables)
        if not isinstance(cls, type):
            raise UnsupportedTypeError(f"{type_label(hint)} is not a type of JSON values")
        return _scalar_adapter(cls) or self._compile_object(hint, cls, arguments)

    def _compile_argument(self, arguments: Sequence[Any], position: int, variables: Variables) -> TypeAdapter:
        return self.compile(arguments[position], variables) if position < len(arguments) else AnyAdapter()

    def _compile_tuple(self, arguments: Sequence[Any], variables: Variables) -> TypeAdapter:
        if not arguments or (len(arguments) == 2 and arguments[1] is Ellipsis):
            return ArrayAdapter(self._compile_argument(arguments, 0, variables), tuple)
        return TupleAdapter([self.compile(argument, variables) for argument in arguments if argument != ()])

    def _compile_object(self, hint: Any, cls: type[Any], arguments: tuple[Any, ...]) -> TypeAdapter:
        key = (cls, *map(_hint_key, arguments))
        if (compiled := self._objects.get(key)) is not None:
            return compiled
        if hasattr(cls, "__get_pydantic_core_schema__") or hasattr(cls, "__pydantic_core_schema__"):
            adapter = self._objects[key] = _pydantic_adapter(hint)
            return adapter
        describe = _find_reader(cls)
        if describe is None:
            raise UnsupportedTypeError(
                f"{type_label(hint)} is a class that JSON values cannot be converted to; use a dataclass, a TypedDict, "
                "a pydantic model or a plain type"
            )
        if issubclass(cls, msgspec.Struct) and cls.__struct_config__.array_like:
            return MsgspecAdapter(hint, type_label(hint))
        name = cls.__name__ + "".join(f"_{type_label(item)}" for item in arguments)
        documented = parse_docstring(class_description(cls))
        adapter = ObjectAdapter(cls if not arguments else key, name, _builder(cls), description=documented.summary)
        self._objects[key] = adapter
        self._open.append(cls)
        try:
            fields = list(describe(cls, self._hints_of(cls)))
            variables = _generic_arguments(cls, arguments)
            adapter.fields = [self._compile_described(cls, item, variables, documented.parameters) for item in fields]
        except BaseException:
            del self._objects[key]
            raise
        finally:
            self._open.pop()
        if issubclass(cls, msgspec.Struct):
            config = cls.__struct_config__
            adapter.closed = config.forbid_unknown_fields
            adapter.tag = (config.tag_field, config.tag) if config.tag_field else None
        adapter.positional = issubclass(cls, tuple)
        return adapter

    def _compile_described(
        self, cls: type[Any], described: dict[str, Any], variables: Variables, documented: Mapping[str, str]
    ) -> TypedField:
        name = described["name"]
        try:
            return self.compile_field(**described, variables=variables, description=documented.get(name, ""))
        except UnsupportedTypeError as error:
            raise UnsupportedTypeError(f"its field {name!r} in {cls.__name__}: {error.message}") from error

    def _hints_of(self, cls: type[Any]) -> dict[str, Any]:
        local = {known.__name__: known for known in self._open if isinstance(known, type)}
        try:
            return typing.get_type_hints(cls, localns=local, include_extras=True)
        except NameError as error:
            raise UnsupportedTypeError(
                f"a hint of {cls.__name__} names {error.name!r}, which its module does not have; define or import it "
                "there, not in a function or under TYPE_CHECKING"
            ) from error


class AliasAdapter:
    """A type that is defined with `type Name = …`. `inner` is set after its creation, because it may refer to it."""

    def __init__(self, owner: object, label: str) -> None:
        self.label = label
        self.inner: TypeAdapter = AnyAdapter()
        self._owner = owner

    def schema(self, definitions: SchemaDefinitions) -> Schema:
        return definitions.refer_to(self, self.label, lambda: self.inner.schema(definitions))

    def convert(self, value: Any, *, strict: bool = False) -> Any:
        return self.inner.convert(value, strict=strict)


def _is_alias(hint: Any) -> bool:
    return type(hint).__name__ == "TypeAliasType" and hasattr(hint, "__value__")


def _resolve(hint: Any, variables: Variables, open_classes: Sequence[Any]) -> Any:
    """Returns the hint behind type variables, NewType, wrappers such as Required, and names of open classes."""
    while True:
        if isinstance(hint, TypeVar):
            hint = _resolve_variable(hint, variables)
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif type(hint).__name__ == "InitVar":
            hint = hint.type
        elif getattr(get_origin(hint), "_name", None) in _WRAPPERS:
            hint = get_args(hint)[0]
        elif hint is None:
            return type(None)
        elif getattr(hint, "_name", None) == "LiteralString":
            return str
        elif getattr(hint, "_name", None) == "Self" and open_classes:
            return open_classes[-1]
        elif isinstance(hint, str | ForwardRef):
            hint = _evaluate(hint if isinstance(hint, str) else hint.__forward_arg__, open_classes)
        else:
            return hint


def _evaluate(text: str, open_classes: Sequence[Any]) -> Any:
    """Returns the type that a string names, as `typing.get_type_hints` does for the annotations of a class."""
    local = {open_class.__name__: open_class for open_class in open_classes}
    module = sys.modules.get(getattr(open_classes[-1], "__module__", "")) if open_classes else None
    holder = type("Holder", (), {"__annotations__": {"hint": text}})
    try:
        names = vars(module) if module else {}
        return typing.get_type_hints(holder, globalns=names, localns=local, include_extras=True)["hint"]
    except (NameError, SyntaxError, TypeError) as error:
        raise UnsupportedTypeError(f"the type hint {text!r} cannot be resolved: {error}") from error


def _resolve_variable(variable: Any, variables: Variables) -> Any:
    if variable in variables:
        return variables[variable]
    if variable.__bound__ is not None:
        return variable.__bound__
    return Union[variable.__constraints__] if variable.__constraints__ else Any  # noqa: UP007


def _hint_key(hint: Any) -> Any:
    try:
        hash(hint)
    except TypeError:
        return id(hint)
    return (type(hint), hint)


def type_label(hint: Any) -> str:
    """Returns the name of a hint for messages."""
    arguments = get_args(hint)
    if arguments and get_origin(hint) is not Literal and get_origin(hint) is not Annotated:
        name = getattr(get_origin(hint), "__name__", str(hint))
        return f"{name}[{', '.join(type_label(argument) for argument in arguments)}]"
    return getattr(hint, "__name__", None) or str(hint)


def _literal_adapter(hint: Any) -> TypeAdapter:
    choices = [(choice.value if isinstance(choice, Enum) else choice, choice) for choice in get_args(hint)]
    if wrong := [value for value, _ in choices if not isinstance(value, str | int | bool | None)]:
        raise UnsupportedTypeError(f"the value {wrong[0]!r} of a Literal is not JSON")
    return ChoiceAdapter("literal", choices)


def _scalar_adapter(cls: type[Any]) -> TypeAdapter | None:
    if cls in SCALARS:
        return ScalarAdapter(cls)
    if issubclass(cls, Enum):
        plain = all(isinstance(member.value, str | int | float | bool | None) for member in cls)
        choices = [(member.value if plain else member.name, member) for member in cls]
        if not choices:
            raise UnsupportedTypeError(f"the enum {cls.__name__} has no values")
        return ChoiceAdapter(cls.__name__, choices, cls)
    if issubclass(cls, PurePath):
        return TextAdapter(cls)
    if cls.__name__ == "PathLike" and cls.__module__ in ("os", "posix", "nt"):
        from pathlib import Path

        return TextAdapter(Path)
    if (text := _TEXT_CLASSES.get((cls.__module__, cls.__name__))) is not None:
        return TextAdapter(cls, text)
    for base in (str, int, float):
        if issubclass(cls, base) and not hasattr(cls, "__get_pydantic_core_schema__"):
            return ScalarAdapter(base, cls)
    return None


def _pydantic_adapter(hint: Any) -> TypeAdapter:
    try:
        return PydanticAdapter(hint, type_label(hint))
    except Exception as error:
        if not type(error).__module__.startswith("pydantic"):
            raise
        raise UnsupportedTypeError(
            f"pydantic cannot describe {type_label(hint)}: {str(error).splitlines()[0]}"
        ) from error


Described = dict[str, Any]  # the arguments of `compile_field`


def _find_reader(cls: type[Any]) -> "Callable[[type[Any], dict[str, Any]], Iterable[Described]] | None":
    if issubclass(cls, msgspec.Struct):
        return _read_struct
    if hasattr(cls, "__dataclass_fields__"):
        return _read_dataclass
    if hasattr(cls, "__attrs_attrs__"):
        return _read_attrs
    if hasattr(cls, "__required_keys__") and issubclass(cls, dict):
        return _read_typed_dict
    if hasattr(cls, "_fields") and hasattr(cls, "_field_defaults"):
        return _read_named_tuple
    return None


def _builder(cls: type[Any]) -> Callable[..., Any]:
    return dict if hasattr(cls, "__required_keys__") else cls


def _read_struct(cls: type[Any], hints: dict[str, Any]) -> Iterable[Described]:
    for field in msgspec.structs.fields(cls):
        factory = None if field.default_factory is msgspec.NODEFAULT else field.default_factory
        default = MISSING if field.default is msgspec.NODEFAULT else field.default
        hint = hints.get(field.name, field.type)
        yield {
            "name": field.name,
            "key": field.encode_name,
            "hint": hint,
            "default": default,
            "default_factory": factory,
        }


def _read_dataclass(cls: type[Any], hints: dict[str, Any]) -> Iterable[Described]:
    import dataclasses  # lazy: most programs describe no dataclass

    for field in dataclasses.fields(cls):
        if field.init:
            factory = None if field.default_factory is dataclasses.MISSING else field.default_factory
            default = MISSING if field.default is dataclasses.MISSING else field.default
            yield {"name": field.name, "hint": hints[field.name], "default": default, "default_factory": factory}


def _read_attrs(cls: type[Any], hints: dict[str, Any]) -> Iterable[Described]:
    for field in cast("Any", cls).__attrs_attrs__:
        if not field.init:
            continue
        factory = getattr(field.default, "factory", None)
        default = MISSING if factory or repr(field.default) == "NOTHING" else field.default
        hint = hints.get(field.name, Any)
        yield {"name": field.alias, "hint": hint, "default": default, "default_factory": factory}


def _read_typed_dict(cls: Any, hints: dict[str, Any]) -> Iterable[Described]:
    for name, hint in hints.items():
        wrapper = getattr(get_origin(hint), "_name", None)
        required = name in cls.__required_keys__ if wrapper not in ("Required", "NotRequired") else None
        yield {"name": name, "hint": hint, "required": wrapper == "Required" if required is None else required}


def _read_named_tuple(cls: Any, hints: dict[str, Any]) -> Iterable[Described]:
    for name in cls._fields:
        default = cls._field_defaults.get(name, MISSING)
        yield {"name": name, "hint": hints.get(name, Any), "default": default}


def _generic_arguments(cls: type[Any], arguments: tuple[Any, ...]) -> dict[Any, Any]:
    """Returns the arguments of a generic class and of its generic bases."""
    by_variable: dict[Any, Any] = dict(zip(getattr(cls, "__parameters__", ()), arguments, strict=False))
    for base in getattr(cls, "__orig_bases__", ()):
        origin = get_origin(base)
        if isinstance(origin, type) and origin is not cls:
            inner = tuple(by_variable.get(argument, argument) for argument in get_args(base))
            by_variable = _generic_arguments(origin, inner) | by_variable
    return by_variable


def compile_type(hint: Any) -> TypeAdapter:
    """Returns the adapter of a type hint. Raises UnsupportedTypeError with the reason."""
    if isinstance(hint, str):
        raise UnsupportedTypeError(f"{hint!r} is a string, not a type")
    return TypeCompiler().compile(hint)


def describe_type(adapter: TypeAdapter) -> Schema:
    """Returns the JSON schema of a type, with the types that it refers to in `$defs`. The root is not a
    reference."""
    definitions = SchemaDefinitions()
    return inline_root(adapter.schema(definitions), definitions)


def inline_root(root: Schema, definitions: SchemaDefinitions) -> Schema:
    """Returns the root schema with the definitions that are used; a reference at the root is replaced."""
    schemas = definitions.schemas
    if "$ref" in root:
        siblings = {key: value for key, value in root.items() if key != "$ref"}
        root = {**schemas[root["$ref"].removeprefix("#/$defs/")], **siblings}
    root = {key: value for key, value in root.items() if key != "title" or not isinstance(value, str)}
    used = referenced_definitions(root, schemas)
    return root | ({"$defs": {name: schema for name, schema in schemas.items() if name in used}} if used else {})
