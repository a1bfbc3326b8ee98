"""Rules of the model APIs for models, their settings, tools and JSON schemas, in the words of the vendors."""

import base64
import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

Body = dict[str, Any]
Problems = Iterator[str]


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


_NOT_STRICT = _words(
    "allOf not dependentRequired dependentSchemas if then else patternProperties oneOf "
    "minProperties maxProperties propertyNames uniqueItems contains unevaluatedProperties prefixItems"
)
_ANTHROPIC_FORMATS = _words("date-time time date duration email hostname uri ipv4 ipv6 uuid")
_ANTHROPIC = _words(
    "type description title enum const anyOf allOf $ref $defs definitions properties required items default format "
    "additionalProperties minItems"
)
_GOOGLE = _words(
    "type description title enum const anyOf oneOf $ref $defs $id $anchor $schema properties required items "
    "prefixItems format additionalProperties minItems maxItems minimum maximum propertyOrdering default pattern"
)
_REFERENCE_SIBLINGS = _words("title description default")


def strict_problems(subject: str, schema: Body) -> Problems:
    """Yields why OpenAI rejects a schema in strict mode."""
    for path, inner in schemas_in(schema, ()):
        head = f"Invalid schema for {subject}: In context={path}"
        yield from (f"{head}, '{word}' is not permitted." for word in sorted(inner.keys() & _NOT_STRICT))
        if "$ref" in inner and (beside := sorted(inner.keys() - {"$ref", "$defs"})):
            yield f"{head}, $ref cannot have keywords {set(beside)}."
        if not inner.keys() & {"type", "anyOf", "$ref", "enum", "const"}:
            yield f"{head}, schema must have a 'type' key."
        if inner.get("type") == "array" and "items" not in inner:
            yield f"{head}, array schema missing items."
        if inner.get("type") != "object":
            continue
        if inner.get("additionalProperties") is not False:
            yield f"{head}, 'additionalProperties' is required to be supplied and to be false."
        if set(inner.get("required", ())) != set(inner.get("properties", ())):
            missing_names = sorted(set(inner.get("properties", ())) - set(inner.get("required", ())))
            yield (
                f"{head}, 'required' is required to be supplied and to be an array including every key in properties. "
                f"Missing '{missing_names[0] if missing_names else ''}'."
            )


def anthropic_problems(subject: str, schema: Body) -> Problems:
    """Yields why Anthropic rejects a schema that it has to enforce."""
    for _, inner in schemas_in(schema, ()):
        kind = inner.get("type")
        for word in sorted(inner.keys() - _ANTHROPIC):
            yield f"{subject}: For '{kind}' type, property '{word}' is not supported"
        if inner.get("minItems", 0) > 1:
            yield f"{subject}: For 'array' type, 'minItems' values other than 0 or 1 are not supported"
        if inner.get("format", "date") not in _ANTHROPIC_FORMATS:
            yield f"{subject}: '{inner['format']}' is not a supported string format"
        if kind == "object" and inner.get("additionalProperties") is not False:
            yield f"{subject}: For 'object' type, 'additionalProperties' must be explicitly set to false"
        if not inner.keys() & {"type", "anyOf", "allOf", "$ref", "enum", "const"}:
            yield f"{subject}: a schema must have a 'type'"
    definitions: Body = schema.get("$defs", {})
    if any(name in _references(definitions[name], definitions) for name in definitions):
        yield f"{subject}: Circular reference detected in schema definitions"


def google_problems(subject: str, schema: Body) -> Problems:
    """Yields why Gemini rejects the JSON schema of a response."""
    for path, inner in schemas_in(schema, ()):
        here = ".".join((subject, *path))
        yield from (f"{here}: the keyword {word} is not supported" for word in sorted(inner.keys() - _GOOGLE))
        if "$ref" in inner and any(not word.startswith("$") for word in inner.keys() - _REFERENCE_SIBLINGS):
            yield f"{here}: a schema with $ref must not have other properties"


def _references(schema: Any, definitions: Body, visited: frozenset[str] = frozenset()) -> frozenset[str]:
    """Returns the names of all definitions that a schema refers to."""
    for _, inner in schemas_in(schema, ()):
        name = str(inner.get("$ref", "")).removeprefix("#/$defs/")
        if name in definitions and name not in visited:
            visited = _references(definitions[name], definitions, visited | {name})
    return visited


def array_problems(subject: str, schema: Any, path: tuple[str, ...]) -> Problems:
    """Yields why OpenAI rejects the arrays of a schema."""
    for inner_path, inner in schemas_in(schema, path):
        if inner.get("type") == "array" and "items" not in inner and "prefixItems" not in inner:
            yield f"Invalid schema for {subject}: In context={inner_path}, array schema missing items."


def schemas_in(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Body]]:
    """Yields every schema inside of a schema, with its path."""
    if not isinstance(value, dict):
        return
    schema = cast("Body", value)
    yield path, schema
    for word in ("properties", "$defs", "definitions"):
        for name, inner in cast("Body", schema.get(word) or {}).items():
            yield from schemas_in(inner, (*path, word, name))
    for word in ("items", "additionalProperties", "not"):
        yield from schemas_in(schema.get(word), (*path, word))
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for number, inner in enumerate(cast("list[Any]", schema.get(word) or [])):
            yield from schemas_in(inner, (*path, word, str(number)))


def as_table(value: Any) -> Body:
    return value or {}


def as_list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def find_duplicates(ids: list[str]) -> list[str]:
    return sorted({name for name in ids if ids.count(name) > 1}) if len(set(ids)) < len(ids) else []


def claude_version(model: str) -> tuple[int, int]:
    """Returns the version in the name of a Claude model; an unknown name has the newest."""
    newer = re.search(r"claude-[a-z]+-(\d+)(?:-(\d{1,2})(?!\d))?", model)
    older = re.search(r"claude-(\d)(?:[.-](\d)(?!\d))?", model)
    named = newer or older
    return (int(named[1]), int(named[2] or 0)) if named else (99, 0)


def anthropic_tools(tools: list[Body]) -> Problems:
    for index, tool in enumerate(tools):
        where, schema = f"tools.{index}.custom", as_table(tool.get("input_schema"))
        if not (IDENTIFIER.fullmatch(tool["name"]) and len(tool["name"]) <= 128):
            yield f"{where}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
        if "type" not in schema:
            yield f"{where}.input_schema.type: Field required"
        elif schema["type"] != "object":
            yield f"{where}.input_schema.type: Input should be 'object'"
        if schema.keys() & {"oneOf", "allOf", "anyOf"}:
            yield f"{where}.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
        if tool.get("strict"):
            yield from anthropic_problems(f"{where}.input_schema", schema)
            yield from _complexity_problems(schema)
    if find_duplicates([tool["name"] for tool in tools]):
        yield "tools: Tool names must be unique."


_CHAT_EFFORTS: Mapping[str, tuple[str, ...]] = {
    "gpt-4.1": (),
    "gpt-5.1": ("none", "low", "medium", "high"),
    "gpt-5.4": ("none", "low", "medium", "high", "xhigh"),
    "gpt-5.6-terra": ("none", "low", "medium", "high", "xhigh", "max"),
}


RESPONSES_EFFORTS: Mapping[str, tuple[str, ...]] = {
    "gpt-4.1": (),
    "gpt-5": ("minimal", "low", "medium", "high"),
    "gpt-5.1": ("none", "low", "medium", "high"),
    "gpt-5.4": ("none", "low", "medium", "high", "xhigh"),
    "gpt-5-chat-latest": (),
    "gpt-7-mini": ("low", "high"),
}


def effort_problems(effort: str | None, model: str, levels: Mapping[str, tuple[str, ...]], name: str) -> Problems:
    supported = levels.get(model)
    if effort is None or supported is None or effort in supported:
        return
    if not supported:
        yield f"Unsupported parameter: '{name}' is not supported with this model."
        return
    listed = ", ".join(repr(level) for level in supported)
    yield f"Unsupported value: '{effort}' is not supported with the '{model}' model. Supported values are: {listed}."


def chat_effort(body: Body, model: str) -> Problems:
    effort, tools = body.get("reasoning_effort"), body.get("tools")
    yield from effort_problems(effort, model, _CHAT_EFFORTS, "reasoning_effort")
    message = f"Function tools with reasoning_effort are not supported for {model} in /v1/chat/completions."
    if model == "gpt-5.4" and tools and effort not in (None, "none"):
        yield message
    if model == "gpt-5.6-terra" and tools and effort != "none":
        yield message + " To use function tools, use /v1/responses or set reasoning_effort to 'none'."


def openai_tools(functions: list[Body], where: str) -> Problems:
    if len(functions) > 128:
        yield (
            "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length "
            f"{len(functions)} instead."
        )
    for index, function in enumerate(functions):
        name: str = function["name"]
        schema = as_table(function.get("parameters", {"type": "object", "properties": {}}))
        if not IDENTIFIER.fullmatch(name):
            yield (
                f"Invalid '{where.format(index)}': string does not match pattern. Expected a string that matches the "
                "pattern '^[a-zA-Z0-9_-]+$'."
            )
        if len(name) > 64:
            yield too_long(where.format(index), 64, len(name))
        schema_type = schema.get("type")
        if schema_type != "object":
            yield (
                f"Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"', got "
                f"'type: \"{schema_type}\"'."
            )
        elif "properties" not in schema and not function.get("strict"):
            yield f"Invalid schema for function '{name}': In context=(), object schema missing properties."
        yield from array_problems(f"function '{name}'", schema, ())
        if function.get("strict"):
            yield from strict_problems(f"function '{name}'", schema)
    if find_duplicates([function["name"] for function in functions]):
        yield "Duplicate function names are not allowed in 'tools'."


def too_long(where: str, max_length: int, length: int) -> str:
    return (
        f"Invalid '{where}': string too long. Expected a string with maximum length {max_length}, but got a string "
        f"with length {length} instead."
    )


def outside_range(value: float) -> str:
    bound = "above maximum value. Expected a value <= 2" if value > 2 else "below minimum value. Expected a value >= 0"
    return f"Invalid 'temperature': decimal {bound}, but got {value} instead."


def gemini_thinking(config: Body, model: str) -> Problems:
    level, budget = config.get("thinkingLevel"), config.get("thinkingBudget")
    if config and model == "gemini-2.0-flash":
        yield "Thinking is not enabled for models/gemini-2.0-flash"
    if level and model.startswith("gemini-2"):
        yield "Thinking level is not supported for this model."
    if level == "minimal" and model in ("gemini-3.1-pro", "gemini-3.8-flash"):
        yield "Thinking level MINIMAL is not supported for this model. Please retry with other thinking level."
    if model == "gemini-2.5-pro" and budget is not None and not 128 <= budget <= 32768:
        yield f"The thinking budget {budget} is invalid. Please choose a value between 128 and 32768."
    if level and budget is not None:
        yield "You can only set only one of thinking budget and thinking level."


def google_tools(tools: list[Body]) -> Problems:
    declared = [function for tool in tools for function in tool.get("functionDeclarations") or ()]
    for index, function in enumerate(declared):
        where = f"tools[0].function_declarations[{index}]"
        if not _GOOGLE_NAME.fullmatch(function["name"]):
            yield (
                f"* GenerateContentRequest.{where}.name: Invalid function name. Must start with a letter or an "
                "underscore. Must be alphameric (a-z, A-Z, 0-9), underscores (_), dots (.), colons (:), or dashes (-), "
                "with a maximum length of 64.\n"
            )
        yield from google_schema(function.get("parameters"), f"{where}.parameters")
    yield from (
        f"Duplicate function declaration found: {name}"
        for name in find_duplicates([function["name"] for function in declared])
    )


def google_schema(schema: Any, where: str) -> Problems:
    """Yields why Gemini rejects a schema in one of the older fields, which accept only a part of JSON Schema."""
    for path, inner in schemas_in(schema, ()):
        here = ".".join((where, *path))
        yield from (unknown_name(word, here) for word in sorted(set(inner) - _GOOGLE_SCHEMA))
        kind = str(inner.get("type", "")).lower()
        if kind == "array" and "items" not in inner:
            yield f"* GenerateContentRequest.{here}.items: missing field.\n"
        if "enum" in inner and kind != "string":
            yield f"* GenerateContentRequest.{here}.enum: only allowed for STRING type\n"
        for number, name in enumerate(inner.get("required") or ()):
            if name not in as_table(inner.get("properties")):
                yield f"* GenerateContentRequest.{here}.required[{number}]: property is not defined\n"


_GOOGLE_SCHEMA = _words(
    "type format title description nullable enum maxItems minItems properties required minProperties maxProperties "
    "minLength maxLength pattern example anyOf propertyOrdering default items minimum maximum"
)


_GOOGLE_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")


IDENTIFIER = re.compile(r"[a-zA-Z0-9_-]+")


def unknown_name(name: str, path: str = "") -> str:
    where = f" at '{path}'" if path else ""
    return f'Invalid JSON payload received. Unknown name "{name}"{where}: Cannot find field.'


def _complexity_problems(schema: Body) -> Problems:
    """Yields a problem of a schema with too many optional parameters or unions: Anthropic compiles it to a grammar."""
    objects = [inner for _, inner in schemas_in(schema, ()) if "properties" in inner]
    optional = sum(len(inner["properties"].keys() - set(inner.get("required") or ())) for inner in objects)
    fields = [as_table(field) for inner in objects for field in inner["properties"].values()]
    unions = sum("anyOf" in field or isinstance(field.get("type"), list) for field in fields)
    if optional >= 24 or unions >= 16:
        yield "Schema is too complex for compilation. Try reducing the number of tools or simplifying tool schemas."


_OPENAI_WORDS = _words(
    "mini nano pro turbo preview latest audio realtime search transcribe instruct chat codex max spark vision image "
    "deep research tts diarize 16k 32k api lite alpha beta rosalind"
)
_CLAUDE_FAMILIES = _words("opus sonnet haiku")
_GEMINI_WORDS = _words(
    "flash pro lite ultra nano preview latest exp experimental thinking image tts live native audio dialog customtools "
    "computer use 8b robotics er generation"
)
_OPENAI_BASE = re.compile(
    r"(gpt-\d[\d.]*o?|gpt-(audio|realtime|image|oss|rosalind|daybreak)|o\d|chatgpt-\d[\d.]*o?|codex|computer-use)(-|$)"
)
_GEMINI_BASE = re.compile(r"(models/|tunedModels/)?(gemini-\d[\d.]*|gemini|gemma-\d\w*|learnlm-\d[\d.]*)(-|$)")


_OTHER_FAMILIES = _words(
    "deepseek ministral mistral magistral codestral devstral pixtral voxtral open-mi llama meta qwen qwq grok sonar "
    "gemma gemini claude kimi moonshot zai glm command compound phi nova minimax granite gpt-oss venice openrouter "
    "smollm hermes nemotron databricks snowflake cohere jamba falcon dolphin lfm olmo allam muse"
)
_OTHER_NAME = re.compile(rf".*[/:].*|[a-z]+\.[a-z].*|({'|'.join(_OTHER_FAMILIES)})(\b|\d).*", re.IGNORECASE)


def is_other_vendors(kind: str, model: str) -> bool:
    """Returns whether a model is served by a gateway or by another vendor, with the API of this one. Each of them has
    fields and models that the vendor does not have."""
    own_prefixes = {"anthropic": ("claude",), "google": ("gemini", "gemma", "models/")}.get(kind, ("ft:",))
    return not model.startswith(own_prefixes) and _OTHER_NAME.fullmatch(model) is not None


def model_exists(kind: str, model: str) -> bool:
    """Returns whether a name can be one of this vendor's models.

    New models appear every week, so the rule is how the vendors build names: a family with a version, then known words,
    dates and at most one short code name that is not a misspelling of a known
    word."""
    if "/" in model.removeprefix("models/") or model.startswith(("ft:", "models/gemma", "gemma")):
        return True
    if kind == "anthropic":
        return _claude_exists(model)
    base, words = (_GEMINI_BASE, _GEMINI_WORDS) if kind == "google" else (_OPENAI_BASE, _OPENAI_WORDS)
    named = base.match(model)
    if named is None or (named[0].rstrip("-") == "gemini" and not model.endswith("-latest")):
        return False
    if kind == "openai" and model.endswith("-instruct"):  # for the older API of completions
        return False
    suffixes = [word for word in model[named.end() :].split("-") if word]
    unknown = [word for word in suffixes if word not in words and not re.fullmatch(r"\d{2,4}|\d{6}|\d{8}|v\d", word)]
    return not unknown or (len(unknown) == 1 and len(unknown[0]) <= 6 and not _is_misspelled(unknown[0], words))


def _claude_exists(model: str) -> bool:
    if re.fullmatch(r"claude-(2|instant|3)\b.*", model):
        return True
    named = re.fullmatch(r"claude-([a-z]+)-(\d(-\d{1,2})?(-\d{8}|-latest|-fast)?|preview)(@\w+)?", model)
    return named is not None and (named[1] in _CLAUDE_FAMILIES or not _is_misspelled(named[1], _CLAUDE_FAMILIES))


def _is_misspelled(word: str, known_words: frozenset[str]) -> bool:
    return bool(difflib.get_close_matches(word, known_words, 1, 0.75))


def chat_settings(body: Body, model: str) -> Problems:
    """Yields the settings of a Chat Completions request that a reasoning model does not support."""
    for index, message in enumerate(body["messages"]):
        if model.startswith("o1-mini") and message["role"] in ("system", "developer"):
            yield f"Unsupported value: 'messages[{index}].role' does not support '{message['role']}' with this model."
    if not re.match(r"o\d|gpt-5", model) or "chat" in model:
        return
    if body.get("max_tokens") is not None:
        yield (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
    if not _reasons_on_request(model):
        for name in ("stop", "logprobs", "top_logprobs", "logit_bias", "presence_penalty", "frequency_penalty"):
            if body.get(name):
                yield f"Unsupported parameter: '{name}' is not supported with this model."


def sampling_problems(body: Body, model: str) -> Problems:
    """Yields the sampling settings that a reasoning model of OpenAI does not support."""
    if not re.match(r"o\d|gpt-5", model) or "chat" in model or _reasons_on_request(model):
        return
    for name in ("temperature", "top_p"):
        if body.get(name, 1) not in (None, 1):
            yield (
                f"Unsupported value: '{name}' does not support {body[name]} with this model. Only the default (1) "
                "value is supported."
            )


def _reasons_on_request(model: str) -> bool:
    """Returns whether a model reasons only if the request asks for it, and accepts the settings of other models:
    GPT-5.1 and newer do."""
    return re.match(r"gpt-5\.\d", model) is not None


_IMAGE_STARTS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF")


def image_problems(url: str) -> Problems:
    """Yields why OpenAI rejects the data of an image."""
    head, separator, data = url.partition(";base64,")
    if not (separator and head.startswith("data:")):
        return
    try:
        start = base64.b64decode(data[:64][: len(data[:64]) // 4 * 4])
    except ValueError:
        start = b""
    if not start.startswith(_IMAGE_STARTS):
        yield (
            "You uploaded an unsupported image. Please make sure your image has of one the following formats: ['png', "
            "'jpeg', 'gif', 'webp']."
        )
