"""How much Gemini thinks: a budget in tokens up to generation 2.5, a level from generation 3 on."""

import re
from typing import Any

from outrider.types.request import ModelSettings, ReasoningEffort

_BUDGETS: dict[ReasoningEffort, int] = {
    "minimal": 512,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
    "xhigh": 24576,
    "max": 24576,
}
_LEVELS: dict[ReasoningEffort, str] = {
    "minimal": "minimal",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}


def generation_of(model: str) -> float:
    """`gemini-2.5-flash` is 2.5. The latest, whatever it is, has levels; any other name that does not tell is 2.5."""
    found = re.search(r"gemini-(\d+(?:\.\d+)?)", model)
    if found:
        return float(found[1])
    return 3.1 if model.endswith("-latest") else 2.5


def thinking(settings: ModelSettings, model: str, generation: float) -> dict[str, Any] | None:
    """A budget that is given counts in any case (0 turns thinking off where a model allows it). Without `reasoning`
    a model does as it is used to, and its thoughts are not shown."""
    budget = settings.reasoning_budget
    if not settings.reasoning:
        return {"thinkingBudget": 0} if budget == 0 else None
    shown: dict[str, Any] = {"includeThoughts": True}
    if budget is not None:
        return shown | {"thinkingBudget": budget}
    if generation < 3:
        return shown | {"thinkingBudget": _BUDGETS[settings.reasoning_effort]}
    return shown | {"thinkingLevel": _level(settings.reasoning_effort, model, generation)}


def _level(effort: ReasoningEffort, model: str, generation: float) -> str:
    """The larger models know no minimal level, and the first of them only two."""
    level = _LEVELS[effort]
    if "pro" not in model:
        return level
    if level == "minimal":
        return "low"
    return "high" if level == "medium" and generation < 3.1 else level
