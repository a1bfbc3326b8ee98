"""Everything of a request body but its messages."""

from typing import Any, cast

from outrider.providers.anthropic.models import ModelTraits
from outrider.providers.tool_schemas import parameters_of
from outrider.types.request import ModelSettings, Request, ToolChoice, ToolSpec

# Asked for when nobody knows the model's maximum: the refusal names it.
PROBE = 10_000_000
# A server of another maker may take any number at its word, or refuse in words of its own.
CAUTIOUS_LIMIT = 32_000

_SMALLEST_BUDGET = 1024
_BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 24_576, "max": 32_768}
_MODES = {"auto": "auto", "required": "any", "none": "none", "tool": "tool"}
_TOP_P_WITH_THINKING = 0.95

Mark = dict[str, Any] | None
"""What is put where a cached prefix may end; None where the server does not want it."""


def head(request: Request, mark: Mark) -> dict[str, Any]:
    """What comes before the messages for the model, and so for its cache: tools, then the system prompt.

    Marks stand at the end of both and never move, so that neither depends on the other."""
    fields: dict[str, Any] = {}
    if request.tools:
        fields["tools"] = [_tool(spec) for spec in request.tools]
        fields["tools"][-1] |= _marked(mark)
    if request.system and request.system.strip():
        fields["system"] = [{"type": "text", "text": request.system, **_marked(mark)}]
    return fields


def tuning(request: Request, traits: ModelTraits, limit: int | None) -> dict[str, Any]:
    """How the model is to answer. `limit` is what the catalog says of its largest answer."""
    settings = request.settings
    unknown = PROBE if traits.version is not None else CAUTIOUS_LIMIT
    max_tokens = settings.max_output_tokens or traits.output_limit or limit or unknown
    fields: dict[str, Any] = {"max_tokens": max_tokens}
    if request.stream:
        fields["stream"] = True
    if thinking := settings.extra.get("thinking") or _thinking(settings, traits, max_tokens):
        fields["thinking"] = thinking
    form = thinking["type"] if thinking else "disabled"
    if output := _output_config(settings, traits, adaptive=form == "adaptive"):
        fields["output_config"] = output
    fields |= _sampling(settings, traits, thinks=form != "disabled")
    if settings.stop:
        fields["stop_sequences"] = list(settings.stop)
    if (choice := _choice(settings.tool_choice)) and (request.tools or "tools" in settings.extra):
        fields["tool_choice"] = choice
    return fields


def _tool(spec: ToolSpec) -> dict[str, Any]:
    tool: dict[str, Any] = {"name": spec.name}
    if spec.description:
        tool["description"] = spec.description
    tool["input_schema"] = parameters_of(spec)
    if spec.strict:
        tool["strict"] = True
    return tool


def _thinking(settings: ModelSettings, traits: ModelTraits, max_tokens: int) -> dict[str, Any] | None:
    """The API refuses thinking together with a forced call, and where there is no room for it."""
    if not settings.reasoning or settings.tool_choice.mode in ("required", "tool"):
        return None
    match traits.thinking_form(budget=settings.reasoning_budget is not None):
        case "enabled":
            budget = _budget(settings, max_tokens)
            return {"type": "enabled", "budget_tokens": budget} if budget < max_tokens else None
        case "adaptive":
            return {"type": "adaptive", "display": "summarized"} if traits.hides_thinking else {"type": "adaptive"}
        case None:
            return None


def _budget(settings: ModelSettings, max_tokens: int) -> int:
    """A budget that nobody named leaves half of the answer's tokens to the answer."""
    given = settings.reasoning_budget
    budget = min(given, max_tokens - 1) if given else min(_BUDGETS[settings.reasoning_effort], max_tokens // 2)
    return max(budget, _SMALLEST_BUDGET)


def _output_config(settings: ModelSettings, traits: ModelTraits, *, adaptive: bool) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if adaptive and settings.reasoning:
        config["effort"] = traits.effort(settings.reasoning_effort)
    if settings.output is not None:
        config["format"] = {"type": "json_schema", "schema": _closed(settings.output.schema)}
    return config


def _sampling(settings: ModelSettings, traits: ModelTraits, *, thinks: bool) -> dict[str, Any]:
    """Together with thinking the API takes only values that hardly steer."""
    fields: dict[str, Any] = {}
    if settings.temperature is not None and (not thinks or settings.temperature == 1):
        fields["temperature"] = settings.temperature
    if settings.top_p is not None and (not thinks or settings.top_p >= _TOP_P_WITH_THINKING):
        fields["top_p"] = settings.top_p
    if len(fields) > 1 and traits.samples_one_way:
        del fields["top_p"]
    return fields if traits.sampling else {}


def _choice(choice: ToolChoice) -> dict[str, Any]:
    """Empty where the API's own default says the same."""
    if choice == ToolChoice():
        return {}
    fields: dict[str, Any] = {"type": _MODES[choice.mode]}
    if choice.mode == "tool":
        fields["name"] = choice.tool
    if not choice.parallel and choice.mode != "none":
        fields["disable_parallel_tool_use"] = True
    return fields


def _closed(schema: Any) -> Any:
    """The API takes an object in a schema only if nothing else may be in it; one that says nothing of it is closed."""
    if isinstance(schema, list):
        return [_closed(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = {name: _closed(value) for name, value in cast("dict[str, Any]", schema).items()}
    return {"additionalProperties": False, **fields} if fields.get("type") == "object" else fields


def _marked(mark: Mark) -> dict[str, Any]:
    return {"cache_control": mark} if mark else {}
