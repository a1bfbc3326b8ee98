"""What a Claude model takes: told by its version, corrected by what the API refuses."""

import re
from functools import lru_cache
from typing import Literal

import msgspec
from msgspec.structs import replace

from outrider.types.request import ReasoningEffort

ThinkingForm = Literal["enabled", "adaptive"]

_VERSION = re.compile(r"(?<!\d)(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_NEWEST: tuple[int, int] = (99, 0)  # a Claude without a number is the latest one
_LEVELS = ("low", "medium", "high", "xhigh", "max")

_TOO_MANY_TOKENS = re.compile(r"max_tokens: \d+ > (\d+)")
_FORM_REFUSED = re.compile(r"thinking\.type\.(enabled|adaptive)\W* is not supported")
_LEVELS_TAKEN = re.compile(r"Supported levels: ([\w, ]+)")
_SAMPLING_REFUSED = re.compile(r"(temperature|top_p)\W.{0,40}(deprecated|not supported|not permitted)")


class ModelTraits(msgspec.Struct, frozen=True):
    """`version` is None for a model of another maker behind the same API. `efforts` are the levels it knows."""

    version: tuple[int, int] | None
    output_limit: int | None = None
    refused: frozenset[str] = frozenset()
    efforts: tuple[str, ...] = _LEVELS
    sampling: bool = True

    def thinking_form(self, *, budget: bool) -> ThinkingForm | None:
        """How thinking is asked for, with or without a budget that was named; None where it cannot be."""
        return next((form for form in self._forms(budget=budget) if form not in self.refused), None)

    @property
    def hides_thinking(self) -> bool:
        """Whether the text of thinking comes only when it is asked for."""
        return self.version is not None and self.version >= (4, 7)

    @property
    def interleaves_on_request(self) -> bool:
        """Whether thinking between calls needs a beta header: later models do it by themselves."""
        return self.version is not None and (4, 0) <= self.version < (4, 6)

    @property
    def samples_one_way(self) -> bool:
        """Whether temperature and top_p exclude each other."""
        return self.version is not None and self.version >= (4, 1)

    def effort(self, wanted: ReasoningEffort) -> str:
        """The level itself, or the next lower one that the model knows."""
        place = _LEVELS.index(wanted) if wanted in _LEVELS else 0
        known = [level for level in _LEVELS[: place + 1] if level in self.efforts]
        return known[-1] if known else self.efforts[0]

    def after(self, refusal: str) -> "ModelTraits":
        """The traits, corrected by the words of a refusal; the same when there is nothing to learn from it."""
        if found := _TOO_MANY_TOKENS.search(refusal):
            return replace(self, output_limit=int(found[1]))
        if found := _FORM_REFUSED.search(refusal):
            return replace(self, refused=self.refused | {found[1]})
        if found := _LEVELS_TAKEN.search(refusal):
            taken = tuple(level for level in _LEVELS if level in found[1].replace(",", " ").split())
            return replace(self, efforts=taken or self.efforts)
        if _SAMPLING_REFUSED.search(refusal):
            return replace(self, sampling=False)
        return self

    def _forms(self, *, budget: bool) -> tuple[ThinkingForm, ...]:
        version = self.version
        if version is None:
            return ("enabled",)
        if version < (3, 7):
            return ()
        if version < (4, 6) or (version < (4, 7) and budget):
            return ("enabled", "adaptive")
        return ("adaptive", "enabled")


@lru_cache(maxsize=64)
def traits_of(model: str) -> ModelTraits:
    _, claude, rest = model.lower().partition("claude")
    if not claude:
        return ModelTraits(None)
    found = _VERSION.search(rest)
    version = (int(found[1]), int(found[2] or 0)) if found else _NEWEST
    efforts = _LEVELS if version >= (4, 7) else tuple(level for level in _LEVELS if level != "xhigh")
    return ModelTraits(version, efforts=efforts, sampling=version < (4, 7))
