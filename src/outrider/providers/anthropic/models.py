"""Capabilities of Claude models, derived from the version in the name and corrected by error responses."""

import re
from functools import lru_cache
from typing import Literal

import msgspec
from msgspec.structs import replace

from outrider.types.modes import ReasoningEffort

ThinkingForm = Literal["enabled", "adaptive"]  # values of `thinking.type` that turn it on

_VERSION = re.compile(r"(?<!\d)(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_LATEST_VERSION: tuple[int, int] = (99, 0)  # a Claude name without a version is the latest model
_EFFORT_LEVELS = ("low", "medium", "high", "xhigh", "max")

_TOO_MANY_TOKENS = re.compile(r"(?:max_tokens: \d+ >|maximum tokens.{0,40}exceeds the model limit of) (\d+)")
_FORM_REJECTED = re.compile(r"thinking\.type\.(enabled|adaptive|disabled)\W* is not supported")
_UNKNOWN_FORM = re.compile(r"thinking.{0,30}Input tag '(enabled|adaptive|disabled)'")
_KNOWN_FORMS = re.compile(r"thinking\.type: Input should be ((?:'\w+'(?: or |, )?)+)")
_OFF_REJECTED = re.compile(r"thinking.{0,40}(cannot|can not|can't|may not|must not) be disabled", re.IGNORECASE)
_THINKING_REJECTED = re.compile(r"not support.{0,40}\bthinking\b|\bthinking\b.{0,60}not (supported|permitted|allowed)")
_EFFORT_REJECTED = re.compile(
    r"not support.{0,20}\beffort\b(?! level)|\b(effort|output_config)\b.{0,60}not (supported|permitted|allowed)"
)
_TOP_MARK_REJECTED = re.compile(r"^cache_control\b.{0,40}not (permitted|allowed|supported)", re.IGNORECASE)
_BLOCK_MARK_REJECTED = re.compile(r"\.cache_control\b.{0,40}not (permitted|allowed|supported)", re.IGNORECASE)
_SUPPORTED_LEVELS = re.compile(r"Supported levels: ([\w, ]+)")
_SAMPLING_REJECTED = re.compile(r"(temperature|top_p)\W.{0,40}(deprecated|not supported|not permitted)")


class ModelTraits(msgspec.Struct, frozen=True):
    """Capabilities of one model. `version` is None for models of other vendors; `efforts` lists the supported effort
    levels."""

    version: tuple[int, int] | None
    output_limit: int | None = None
    rejected_forms: frozenset[str] = frozenset()
    efforts: tuple[str, ...] = _EFFORT_LEVELS
    sampling: bool = True
    block_marks: bool = False  # whether the server rejects a cache mark outside of blocks
    rejected_tools: frozenset[str] = frozenset()  # tools of the vendor
    marks: bool = True  # whether the server accepts cache marks

    def thinking_form(self, *, budget: bool) -> ThinkingForm | None:
        """Returns the `thinking.type` value to request, depending on an explicit budget; None if thinking is not
        supported."""
        return next((form for form in self._thinking_forms(budget=budget) if form not in self.rejected_forms), None)

    @property
    def thinks_by_default(self) -> bool:
        """Returns True if a request without `thinking` reasons, so that reasoning must be turned off explicitly."""
        return self.version is not None and self.version >= (5, 0)

    @property
    def hides_thinking(self) -> bool:
        """Returns True if the API returns thinking text only on request."""
        return self.version is not None and self.version >= (4, 7)

    @property
    def interleaves_on_request(self) -> bool:
        """Returns True if thinking between tool calls needs a beta header; later models do it by default."""
        return self.version is not None and (4, 0) <= self.version < (4, 6)

    @property
    def has_exclusive_sampling(self) -> bool:
        """Returns True if the API rejects temperature together with top_p."""
        return self.version is not None and self.version >= (4, 1)

    def supported_effort(self, wanted: ReasoningEffort) -> str | None:
        """Returns the requested level, or the next lower level that the model supports; None if it supports none."""
        index = _EFFORT_LEVELS.index(wanted) if wanted in _EFFORT_LEVELS else 0
        known = [level for level in _EFFORT_LEVELS[: index + 1] if level in self.efforts]
        return known[-1] if known else next(iter(self.efforts), None)

    def updated_from_error(self, message: str) -> "ModelTraits":
        """Returns traits corrected by an error message, or the same traits if the message matches no known pattern."""
        if found := _TOO_MANY_TOKENS.search(message):
            return replace(self, output_limit=int(found[1]))
        if found := _FORM_REJECTED.search(message):
            return replace(self, rejected_forms=self.rejected_forms | {found[1]})
        if found := _SUPPORTED_LEVELS.search(message):
            taken = tuple(level for level in _EFFORT_LEVELS if level in found[1].replace(",", " ").split())
            return replace(self, efforts=taken or self.efforts)
        if _SAMPLING_REJECTED.search(message):
            return replace(self, sampling=False)
        if _TOP_MARK_REJECTED.search(message):
            return replace(self, block_marks=True)
        if _BLOCK_MARK_REJECTED.search(message):
            return replace(self, marks=False)
        return self._without_rejected_reasoning(message)

    def _without_rejected_reasoning(self, message: str) -> "ModelTraits":
        if found := _UNKNOWN_FORM.search(message):
            return replace(self, rejected_forms=self.rejected_forms | {found[1]})
        if found := _KNOWN_FORMS.search(message):
            unknown = {"enabled", "adaptive", "disabled"} - set(re.findall(r"\w+", found[1]))
            return replace(self, rejected_forms=self.rejected_forms | unknown)
        if _OFF_REJECTED.search(message):
            return replace(self, rejected_forms=self.rejected_forms | {"disabled"})
        if _EFFORT_REJECTED.search(message):
            return replace(self, efforts=())
        if _THINKING_REJECTED.search(message):
            return replace(self, rejected_forms=frozenset({"enabled", "adaptive", "disabled"}))
        return self

    def _thinking_forms(self, *, budget: bool) -> tuple[ThinkingForm, ...]:
        version = self.version
        if version is None:
            return ("enabled",)
        if version < (3, 7):
            return ()
        if version < (4, 6) or (version < (4, 7) and budget):
            return ("enabled", "adaptive")
        return ("adaptive", "enabled")


@lru_cache(maxsize=64)
def traits_for_model(model: str) -> ModelTraits:
    _, claude, rest = model.lower().partition("claude")
    if not claude:
        return ModelTraits(None)
    found = _VERSION.search(rest)
    version = (int(found[1]), int(found[2] or 0)) if found else _LATEST_VERSION
    efforts = _EFFORT_LEVELS if version >= (4, 7) else tuple(level for level in _EFFORT_LEVELS if level != "xhigh")
    # These models always reason; the API rejects `thinking.type` "disabled".
    always_thinks = "fable" in rest or "mythos" in rest or ("opus" in rest and version >= (5, 5))
    rejected = frozenset({"disabled"}) if always_thinks else frozenset[str]()
    return ModelTraits(version, efforts=efforts, sampling=version < (4, 7), rejected_forms=rejected)
