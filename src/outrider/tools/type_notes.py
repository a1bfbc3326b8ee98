"""Reads descriptions, defaults and constraints of parameters and fields.

They come from docstrings and from the metadata of `Annotated`: strings, `msgspec.Meta`, annotated_types and pydantic.
"""

import inspect
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec

from outrider.tools.type_adapters import MISSING, Schema, SchemaDefinitions, TypeAdapter, ValueMismatch

_LIMITS = ("ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern", "tz")


class ValueConstraints(msgspec.Struct, frozen=True):
    """Limits of values, as `msgspec.Meta`, annotated_types and `pydantic.Field` state them."""

    ge: Any = None
    gt: Any = None
    le: Any = None
    lt: Any = None
    multiple_of: Any = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    tz: bool | None = None
    checks: tuple[Callable[[Any], Any], ...] = ()
    keywords: Mapping[str, Any] = {}  # further keywords of the schema

    def merge(self, newer: "ValueConstraints") -> "ValueConstraints":
        """Returns these constraints, with the values of the newer ones where they are set."""
        changes = {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(newer, name)) is not None and name not in ("checks", "keywords")
        }
        return msgspec.structs.replace(
            self, **changes, checks=self.checks + newer.checks, keywords={**self.keywords, **newer.keywords}
        )

    def find_misfit(self, hint: Any) -> str:
        """Returns a constraint that no value of a plain type can have, such as `ge` of a string, or ""."""
        if hint is str or hint is bytes:
            names = ("ge", "gt", "le", "lt", "multiple_of")
            return next((name for name in names if isinstance(getattr(self, name), int | float)), "")
        if hint in (int, float, bool):
            names = ("min_length", "max_length", "pattern", "tz")
            return next((name for name in names if getattr(self, name) is not None), "")
        return ""

    def find_problem(self, value: Any, label: str) -> str | None:
        """Returns what is wrong with a value; None if it is within the limits, or if they do not apply to it."""
        limits: tuple[tuple[str, Any, Callable[[Any, Any], Any]], ...] = (
            (">=", self.ge, operator.ge),
            (">", self.gt, operator.gt),
            ("<=", self.le, operator.le),
            ("<", self.lt, operator.lt),
            ("that's a multiple of", self.multiple_of, _is_multiple),
        )
        for comparison, limit, is_within in limits:
            with suppress(TypeError):  # such as None in an optional number
                if limit is not None and not is_within(value, limit):
                    return f"Expected `{label}` {comparison} {limit}"
        return self._find_length_problem(value, label) or self._find_other_problem(value, label)

    def _find_length_problem(self, value: Any, label: str) -> str | None:
        if not hasattr(value, "__len__"):
            return None
        if self.min_length is not None and len(value) < self.min_length:
            return f"Expected `{label}` of length >= {self.min_length}"
        if self.max_length is not None and len(value) > self.max_length:
            return f"Expected `{label}` of length <= {self.max_length}"
        return None

    def _find_other_problem(self, value: Any, label: str) -> str | None:
        if self.pattern is not None and isinstance(value, str) and not re.search(self.pattern, value):
            return f"Expected `{label}` matching regex {self.pattern!r}"
        has_zone = getattr(value, "tzinfo", None) is not None
        if self.tz is not None and hasattr(value, "tzinfo") and has_zone != self.tz:
            return f"Expected `{label}` {'with' if self.tz else 'without'} a timezone component"
        for check in self.checks:
            with suppress(TypeError, AttributeError):
                if not check(value):
                    return f"Expected `{label}` for which {getattr(check, '__name__', 'the check')} is true"
        return None

    def add_to(self, schema: Schema) -> Schema:
        """Returns the schema with the keywords that apply to its type."""
        if "anyOf" in schema:
            return {**schema, "anyOf": [self.add_to(form) for form in schema["anyOf"]], **self.keywords}
        kind = schema.get("type")
        limits_for_type: Schema = {}
        if kind in ("integer", "number"):
            limits = {
                "minimum": self.ge,
                "exclusiveMinimum": self.gt,
                "maximum": self.le,
                "exclusiveMaximum": self.lt,
                "multipleOf": self.multiple_of,
            }
            limits_for_type = {name: _json_number(limit) for name, limit in limits.items() if limit is not None}
        elif kind in ("string", "array", "object"):
            noun = {"string": "Length", "array": "Items", "object": "Properties"}[kind]
            lengths = {f"min{noun}": self.min_length, f"max{noun}": self.max_length}
            limits_for_type = {name: length for name, length in lengths.items() if length is not None}
            if kind == "string" and self.pattern is not None:
                limits_for_type["pattern"] = self.pattern
        return {**schema, **limits_for_type, **self.keywords}


def _is_multiple(value: Any, factor: Any) -> bool:
    return value % factor == 0


def _json_number(limit: Any) -> Any:
    return limit if isinstance(limit, int | float) else float(limit)


class ConstrainedAdapter:
    """A type with constraints."""

    def __init__(self, inner: TypeAdapter, constraints: ValueConstraints) -> None:
        self.inner = inner
        self.label = inner.label
        self._constraints = constraints

    def schema(self, definitions: SchemaDefinitions) -> Schema:
        return self._constraints.add_to(self.inner.schema(definitions))

    def convert(self, value: Any, *, strict: bool = False) -> Any:
        converted = self.inner.convert(value, strict=strict)
        problem = self._constraints.find_problem(converted, self.label)
        if problem is not None:
            raise ValueMismatch(problem)
        return converted


class AnnotationNote(msgspec.Struct, frozen=True):
    """The description, constraints and default from the metadata of `Annotated`."""

    description: str = ""
    constraints: ValueConstraints = ValueConstraints()
    default: Any = MISSING
    default_factory: Callable[[], Any] | None = None
    for_pydantic: tuple[Any, ...] = ()


def is_pydantic_field(value: Any) -> bool:
    """Returns whether a value is `pydantic.Field(…)`."""
    return type(value).__name__ == "FieldInfo" and type(value).__module__.startswith("pydantic")


def read_metadata(metadata: Sequence[Any]) -> AnnotationNote:
    """Returns the note from strings, `msgspec.Meta`, annotated_types and pydantic's metadata; ignores other objects.
    The libraries are recognised by name, because neither has to be installed."""
    note = AnnotationNote()
    texts: list[str] = []
    changes: dict[str, Any] = {}
    for item in _flatten(metadata):
        if isinstance(item, str):
            texts.append(item)
        elif isinstance(item, msgspec.Meta):
            note = _add(note, _meta_constraints(item), item.description)
        elif is_pydantic_field(item):
            inner = read_metadata(item.metadata)
            note = _add(note, inner.constraints, item.description)
            changes |= _field_defaults(item)
        elif type(item).__module__.split(".")[0] in ("annotated_types", "pydantic"):
            note = _add(note, _annotated_constraints(item), "")
        elif type(item).__name__ == "Doc" and hasattr(item, "documentation"):
            note = _add(note, ValueConstraints(), item.documentation)
    if texts:
        changes["description"] = " ".join(texts)
    if any(type(item).__module__.split(".")[0] == "pydantic" for item in metadata):
        changes["for_pydantic"] = tuple(item for item in metadata if not isinstance(item, str | msgspec.Meta))
    return msgspec.structs.replace(note, **changes)


def _flatten(metadata: Iterable[Any]) -> Iterable[Any]:
    """Yields the metadata, with groups such as `annotated_types.Interval` and `Len` taken apart."""
    for item in metadata:
        is_group = getattr(item, "__is_annotated_types_grouped_metadata__", None) is not None
        if is_group and not isinstance(item, type):
            yield from _flatten(item)
        else:
            yield item


def _add(note: AnnotationNote, constraints: ValueConstraints, description: str | None) -> AnnotationNote:
    return msgspec.structs.replace(
        note, constraints=note.constraints.merge(constraints), description=description or note.description
    )


def _meta_constraints(meta: msgspec.Meta) -> ValueConstraints:
    limits = {name: getattr(meta, name) for name in _LIMITS}
    keywords = {"title": meta.title, "examples": meta.examples, **(meta.extra_json_schema or {})}
    return ValueConstraints(**limits, keywords={name: value for name, value in keywords.items() if value is not None})


def _annotated_constraints(item: Any) -> ValueConstraints:
    limits = {name: value for name in _LIMITS if (value := getattr(item, name, None)) is not None and name != "tz"}
    if type(item).__name__ in ("Predicate", "Not"):
        return ValueConstraints(checks=(item.func if type(item).__name__ == "Predicate" else item,))
    if type(item).__name__ == "Timezone":
        return ValueConstraints(tz=item.tz is not None)
    return ValueConstraints(**limits)


def _field_defaults(field: Any) -> dict[str, Any]:
    undefined = type(field.default).__name__ == "PydanticUndefinedType" or field.default is Ellipsis
    return {"default": MISSING if undefined else field.default, "default_factory": field.default_factory}


_PARAMETERS = r"(?i:(?:keyword )?(?:arg(?:ument)?s|param(?:eter)?s)|other parameters|attributes)"
_OTHER_SECTIONS = r"(?i:returns?|yields?|receives?|raises|warns|warnings?|see also|notes?|references|examples?|methods)"
_UNDERLINE = r"(?:-{3,}|={3,})\s*$"
_NAME = r"(?:`*(?:\\?\*){0,2}\w+`*)"
_NAMES = rf"(?P<names>{_NAME}(?:\s*,\s*(?:{_NAME}|\.{{2,3}}))*)"
_GOOGLE_ENTRY = rf"(?:[-*]\s+)?{_NAMES}\s*(?:\(.*?\)\s*)?:(?:\s+(?P<text>.*)|\s*)$"
_NUMPY_ENTRY = rf"{_NAMES}\s*(?::.*)?$"
_FIELD = (
    r"[:@](?:param|parameter|arg|argument|key|keyword|var|ivar|cvar)\s+(?:[^:]*\s)?(?:\\?\*){0,2}(?P<name>\w+)\s*:"
    r"\s*(?P<text>.*)$"
)
_TYPE_FIELD = r"[:@](?:type|rtype|kwtype|vartype)\b[^:]*:"
_RESULT_FIELD = r"[:@](?P<word>return|raise|yield)s?(?P<name>\s[^:]*)?:\s*(?P<text>.*)$"


class ParsedDocstring(msgspec.Struct, frozen=True):
    """The text of a docstring without its list of parameters, and the descriptions of the parameters."""

    summary: str = ""
    parameters: dict[str, str] = {}


@lru_cache(maxsize=256)
def parse_docstring(docstring: str | None) -> ParsedDocstring:
    """Parses a docstring. Text that does not describe a parameter stays in the summary, also sections such as
    Returns."""
    lines = inspect.cleandoc(docstring or "").splitlines()
    text: list[str] = []
    entries: dict[str, list[str]] = {}
    position = 0
    while position < len(lines):
        line = lines[position]
        if title := _underlined_title(lines, position):
            position += 2
            if re.fullmatch(_PARAMETERS, title):
                read = _read_google if _indent("".join(lines[position : position + 1])) else _read_numpy
                position = read(lines, position, entries)
            else:
                text.append(f"{title}:" if re.fullmatch(_OTHER_SECTIONS, title) else title)
        elif _starts_google_section(lines, position):
            position = _read_google(lines, position + 1, entries)
        elif match := re.match(_FIELD, line.lstrip()):
            position, following = _read_indented(lines, position + 1, _indent(line))
            entries[match["name"]] = [match["text"], *following]
        elif re.match(_TYPE_FIELD, line.lstrip()):
            position, _ = _read_indented(lines, position + 1, _indent(line))
        else:
            text.append(_name_result(line))
            position += 1
    summary = re.sub(r"\n{3,}", "\n\n", "\n".join(text)).strip()
    return ParsedDocstring(
        summary, {name: description for name, entry in entries.items() if (description := _join(entry))}
    )


def _underlined_title(lines: Sequence[str], position: int) -> str:
    """Returns the title of a numpy section or another heading, whose next line is its underline, or ""."""
    title, underline = (*lines[position : position + 2], "")[:2]
    if _indent(title) or not re.match(_UNDERLINE, underline):
        return ""
    title = title.strip().rstrip(":")
    is_section = re.fullmatch(_PARAMETERS, title) or re.fullmatch(_OTHER_SECTIONS, title)
    return title if is_section or len(underline.strip()) >= len(title) else ""


def _starts_google_section(lines: Sequence[str], position: int) -> bool:
    """Returns whether this line is the title of a list of parameters, which is indented."""
    if not re.match(rf"{_PARAMETERS}\s*:\s*$", lines[position]):
        return False
    return any(_indent(line) for line in lines[position + 1 : position + 3] if line.strip())


def _name_result(line: str) -> str:
    """Rewrites a Sphinx field about the result as plain text: `:returns: x` becomes `Returns: x`."""
    match = re.match(_RESULT_FIELD, line)
    return f"{match['word'].capitalize()}s{match['name'] or ''}: {match['text']}".rstrip() if match else line


def _entry_names(names: str) -> list[str]:
    return re.findall(r"\w+", names)


def _read_google(lines: Sequence[str], position: int, entries: dict[str, list[str]]) -> int:
    """Reads the entries of a Google section and returns the position after it."""
    base: int | None = None
    current: list[list[str]] = []
    while position < len(lines):
        line = lines[position]
        if not line.strip():
            for description in current:
                description.append("")
            position += 1
            continue
        depth = _indent(line)
        if depth == 0 or (base is not None and depth < base):
            return position
        base = depth if base is None else base
        entry = re.match(_GOOGLE_ENTRY, line.strip()) if depth == base else None
        if entry:
            current = [entries.setdefault(name, []) for name in _entry_names(entry["names"])]
        for description in current:
            description.append((entry["text"] or "") if entry else line.strip())
        position += 1
    return position


def _read_numpy(lines: Sequence[str], position: int, entries: dict[str, list[str]]) -> int:
    """Reads the entries of a numpy section and returns the position after it."""
    current: list[list[str]] = []
    while position < len(lines):
        line = lines[position]
        if _underlined_title(lines, position):
            return position
        if line.strip() and _indent(line) == 0:
            entry = re.match(_NUMPY_ENTRY, line)
            if not entry:
                return position
            current = [entries.setdefault(name, []) for name in _entry_names(entry["names"])]
        else:
            for description in current:
                description.append(line.strip())
        position += 1
    return position


def _read_indented(lines: Sequence[str], position: int, depth: int) -> tuple[int, list[str]]:
    """Returns the lines that are indented deeper, with empty lines between them, and the position after them."""
    end = position
    for index in range(position, len(lines)):
        if lines[index].strip():
            if _indent(lines[index]) <= depth:
                break
            end = index + 1
    return end, [line.strip() for line in lines[position:end]]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _join(lines: Sequence[str]) -> str:
    """Joins the lines of a description; an empty line separates paragraphs."""
    paragraphs = re.split(r"\n{2,}", "\n".join(line.strip() for line in lines).strip())
    return "\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs)
