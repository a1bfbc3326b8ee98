"""Secret formats: keys by their prefix, values by the name before them, and the rule data of gitleaks.

A format has a mark, a literal that every match contains. A text without any mark is not searched further, so the common
case costs a few substring tests.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from re import Pattern
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from outrider.permissions.redaction.gitleaks_rules import GitleaksRule


def split_names(text: str) -> frozenset[str]:
    """Returns the whitespace-separated names of a multi-line literal as a set."""
    return frozenset(text.split())


Spans = list[tuple[int, int]]
MIN_SECRET_LENGTH = 8  # shorter values occur inside ordinary words
FormatKind = Literal["key", "context", "assigned", "search"]


class SecretFormat(Struct, frozen=True):
    """One way to write a secret.

    `mark` is a literal of the format. A `key` starts with its mark and a `context` is the text before a value: the
    expression is matched at each occurrence of the mark. `assigned` is a vendor name before an assigned value. For
    `search` the mark may be anywhere, so the whole text is searched. With `ignore_case` the mark is lowercase. The
    group `secret` is redacted; for a gitleaks rule, the rule selects and checks the group."""

    mark: str
    expression: str
    ignore_case: bool = False
    kind: FormatKind = "key"
    rule: "GitleaksRule | None" = None

    def find_spans(self, text: str, lowered: str) -> Iterator[tuple[int, int]]:
        """Yields the spans of secrets in this format; `lowered` is the text in lowercase, of the same length."""
        for match in self._find_matches(text, lowered):
            span = match.span("secret") if self.rule is None else self.rule.secret_span(match)
            if span is not None:
                yield span

    def _find_matches(self, text: str, lowered: str) -> Iterator[re.Match[str]]:
        pattern = _compile_format(self.expression, ignore_case=self.ignore_case, is_rule=self.rule is not None)
        if self.kind == "search":
            yield from pattern.finditer(text)
            return
        searched = lowered if self.ignore_case else text
        at = searched.find(self.mark)
        while at >= 0:
            match = pattern.match(text, at)
            if match is not None:
                yield match
            at = searched.find(self.mark, at + 1 if match is None else match.end())


@cache
def _compile_format(expression: str, *, ignore_case: bool, is_rule: bool) -> Pattern[str]:
    """Compiled on first use: there are 300 formats, and most processes need few of them."""
    if is_rule:
        return re.compile(expression, re.ASCII)  # as RE2; a rule sets its own case flags
    return re.compile(expression, re.IGNORECASE if ignore_case else 0)


# A letter or digit before a key makes it part of a longer word, except the letter of an escape such as `\n`.
_BEGIN = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf]))"
_WITH_DIGIT = r"(?=[A-Za-z_-]{0,64}[0-9])"
_RANDOM = (
    r"(?=[^\s\"',;&]{0,64}[0-9])(?=[^\s\"',;&]{0,64}[A-Za-z])"
    r"[^\s\"',;&()\[\]{}$<>`\\]{8,1000}+(?![^\s\"',;&}\\])"
)
_QUOTED = r"(?=[^\"'\\]{0,64}[^a-z_.\"'\\])[^\s\"'\\$<>{}()]{8,1000}+"
_ASSIGNMENT = r"[A-Za-z0-9_]{0,64}\\?[\"']?\s{0,20}(?:=>?|:)\s{0,20}"
_AUTH_SCHEMES = r"(?:bearer|basic|token)\s"

# Prefixes that no ordinary word contains.
_KEY_MARKS = split_names(
    """ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- gldt- glrt- glcbt- glptt- glft- glsoat- glimt- glagent-
    xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp- shpat_ shpss_ shpca_ shppa_ pscale_tkn_ pscale_pw_ pscale_oauth_
    sq0atp- sq0csp- dp.pt. dp.st. dp.ct. hvs. hvb. dckr_pat_ whsec_ nvapi- AIza ya29. figd_ PMAK- rdme_ sntrys_ sbp_
    NRAK- ntn_ glsa_ ATATT3 AGE-SECRET-KEY-1 lin_api_ tvly- pplx- GOCSPX- EAACEdEose0cBA phc_ phx_ CFPAT- ops_eyJ"""
)
# Prefixes that may also be part of an identifier: a key has at least 16 more characters, one of them a digit.
_AMBIGUOUS_MARKS = split_names("sk- gsk_ xai- hf_ r8_ fw_ npm_ pypi- sess- key- pat- secret_ pul- dapi")
_AWS_MARKS = ("AKIA", "ASIA", "AROA", "AIDA", "ABIA", "ACCA")
_NAME_PATTERNS = {
    "key": r"(?:(?<=[_-])|(?<=api)|(?<=access)|(?<=private)|(?<=account)|(?<=secret)|(?-i:(?<![A-Za-z])(?=KEY)))key",
    "token": "token(?!s)",
    "secret": "secret",
    "passw": "passw(?:or)?d",
    "passphrase": "passphrase",
    "credential": "credentials?",
    "connectionstring": "connectionstring",
    "connection_string": "connection_string",
    "_pwd": "_pwd",
    "_dsn": "_dsn",
}
_QUERY_MARKS = ("signature=", "sig=", "key=", "code=", "auth=", "pwd=")
_BODY = r"[A-Za-z0-9_.+/=-]{10,}"


def _key_formats(marks: Iterable[str], body: str) -> Iterator[SecretFormat]:
    for mark in marks:
        yield SecretFormat(mark, rf"{_BEGIN}(?P<secret>{re.escape(mark)}{body})")


def _context_formats(marks: str | Iterable[str], pattern: str) -> Iterator[SecretFormat]:
    for mark in [marks] if isinstance(marks, str) else marks:
        yield SecretFormat(mark, pattern, ignore_case=True, kind="context")


def _named_value_formats() -> Iterator[SecretFormat]:
    """Values after the name of a secret: random-looking values, quoted ones, and any value of a shell variable."""
    variable = r"(?-i:[A-Z0-9_]{0,64})=(?P<secret>(?![$({<])[^\s\"'`;&|()<>\\]{8,}+)"
    for mark, name in _NAME_PATTERNS.items():
        yield from _context_formats(mark, rf"{name}{_ASSIGNMENT}[\"']?(?P<secret>{_RANDOM})")
        yield from _context_formats(mark, rf"{name}{_ASSIGNMENT}(?P<quote>\\?[\"'])(?P<secret>{_QUOTED})(?P=quote)")
        yield from _context_formats(mark, rf"(?-i:(?=[A-Z])){name}{variable}")


FORMATS: tuple[SecretFormat, ...] = (
    *_key_formats(_KEY_MARKS, _BODY),
    *_key_formats(["sk-"], rf"(?:ant|proj|or-v1|svcacct)-{_BODY}"),
    *_key_formats(_AMBIGUOUS_MARKS, rf"{_WITH_DIGIT}[A-Za-z0-9_-]{{16,}}"),
    *_key_formats(_AWS_MARKS, r"[A-Z0-9]{12,}"),
    *_key_formats(["SG."], r"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    *_key_formats(["eyJ"], r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*"),
    *_key_formats(["SK"], r"[0-9a-f]{32}(?![0-9A-Za-z])"),
    SecretFormat("k_live_", rf"(?<=[sr])(?P<secret>k_live_{_BODY})"),
    SecretFormat("k_test_", rf"(?<=[sr])(?P<secret>k_test_{_BODY})"),
    SecretFormat("_v1_", rf"(?<=do[por])(?P<secret>_v1_{_BODY})"),
    SecretFormat(":AA", r"(?<=[0-9]):(?P<secret>AA[A-Za-z0-9_-]{32,})"),
    SecretFormat("-us", r"(?P<secret>(?<=[0-9a-f]{32})-us[0-9]{1,2})"),
    SecretFormat(
        "-----BEGIN ",
        r"(?P<secret>-----BEGIN (?P<kind>[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?)-----[^\"'<>]*?"
        r"(?:-----END (?P=kind)-----|(?=[\"'<>])|\Z))",
    ),
    *_context_formats(
        ("bearer", "basic", "token"),
        rf"(?<![a-z]){_AUTH_SCHEMES}+(?P<secret>(?=[^\s]{{0,64}}[0-9=])[A-Za-z0-9._~+/=-]{{12,}}+)",
    ),
    *_context_formats("bearer", r"bearer\s{1,20}(?P<secret>[A-Za-z0-9._~+/=-]{16,}+)"),
    *_context_formats(
        ("authorization", "cookie"),
        rf"(?:authorization|cookie)\\?[\"']?\s*[:=](?!=)\s*\\?[\"']?(?P<secret>(?!{_AUTH_SCHEMES})(?=[^\r\n\"']{{0,200}}[0-9])"
        r"[^\r\n\"'\\]{8,4000}+)",
    ),
    *_context_formats("://", r"(?<=[a-z0-9])://[^\s/:@\"']{0,200}:(?P<secret>[^\s/@\"']{1,1000}+)(?=@)"),
    *_context_formats("://", r"(?<=[a-z0-9])://(?P<secret>(?=[^\s/:@\"']{0,200}[0-9])[^\s/:@\"']{16,1000}+)(?=@)"),
    *_context_formats("hooks.", r"hooks\.[a-z.]{1,40}/(?:services|workflows)/(?P<secret>[A-Za-z0-9/_-]{16,})"),
    *_context_formats("/api/webhooks/", r"/api/webhooks/[0-9]+/(?P<secret>[\w-]{16,})"),
    *_context_formats(_QUERY_MARKS, rf"(?<=[?&;_-])(?:signature|sig|key|code|auth|pwd)=(?P<secret>{_RANDOM})"),
    *_context_formats(
        "passw", r"passw(?:or)?d\s+(?P<secret>(?=[^\s]{0,64}[0-9])(?=[^\s]{0,64}[a-z])[^\s\"',;()]{8,1000}+)"
    ),
    *_context_formats((" -u", " --user"), r" (?:-u|--user)[ =][\"']?[^\s:\"']{1,200}:(?P<secret>[^\s\"']{4,1000}+)"),
    *_named_value_formats(),
)
# Three random words separated by dots, such as a Discord token: no part of it is a literal mark.
_DOTTED_MARK = re.compile(r"\.[\w-]{6}\.[\w-]")
_DOTTED = SecretFormat(".", r"(?<=[\w-]{23})(?P<secret>\.[\w-]{6}\.(?=[\w-]*[0-9])[\w-]{27,})", kind="context")
# Nearly every random key has a digit with seven letters or digits on one side; dates, versions and names rarely do.
_DIGIT_RUN = re.compile(r"[0-9](?:[A-Za-z0-9]{7}|(?<=[A-Za-z0-9]{7}[0-9]))")
# A value after an operator, except the minutes of a time. Only the operator is consumed: values may contain others.
_ASSIGNED_VALUE = re.compile(r"[=>:,|](?=[`'\"\s=]{0,5}(?![0-9]{2}[:.])[\w=.+/%:~|-]{14})", re.ASCII)
# A value at the end of a text, which may continue.
_OPEN_VALUE = re.compile(r"[=>:][`'\"\s=]{0,5}(?P<value>[\w.=+/%:~|-]*)\Z")
_OPEN_VALUE_LENGTH = 400
_OPERATOR_GAP = 6  # the operator and up to five quotes or spaces
_SHORTEST_MATCH = 7  # `a://:b@`
_VENDOR_NAME_LENGTH = 40  # the longest vendor name, up to 20 more characters and quotes

_ASSIGNED_NAMES = (_NAME_PATTERNS.keys() - {"token", "passw"}) | {"authorization", "cookie"}
MarkedFormats = tuple[str, bool, list[SecretFormat]]  # mark, whether it is in lowercase, its formats


class _FormatIndex:
    """All formats by mark, grouped by a cheap test that a text has to pass before its marks are searched.

    `by_tail` has the marks with a separator, by the three characters before the separator: splitting a text at its
    separators yields all such tails at once. `by_sign` has other marks by a character of the mark, `named` has names
    that need `=` or `:`. `numbered` has the rules without a separator, which need a `_DIGIT_RUN`. `vendors` is searched
    only before an `_ASSIGNED_VALUE`: a value without a digit is not a key there (gitleaks' generic rule has this
    exception)."""

    def __init__(self) -> None:
        self.by_tail: dict[str, list[MarkedFormats]] = {}
        self.named: list[MarkedFormats] = []
        self.vendors: list[MarkedFormats] = []
        self.numbered: list[MarkedFormats] = []
        signs: dict[str, list[MarkedFormats]] = {}
        for mark, ignore_case, forms in _group_by_mark((*FORMATS, *_rule_formats())):
            is_rule = forms[0].rule is not None
            sign = next((sign for sign in "=:/~-._A" if sign in mark), "")
            if tail := re.search(r"[^_.-]{3}(?=[_.-])", mark.lower()):
                group = self.by_tail.setdefault(tail[0], [])
            elif is_rule and forms[0].kind == "assigned":
                group = self.vendors
            elif is_rule and sign not in {"-", "_", ".", "~"}:
                group = self.numbered
            elif mark in _ASSIGNED_NAMES:
                group = self.named
            else:
                group = signs.setdefault(sign, [])
            group.append((mark, ignore_case, forms))
        self.by_sign = tuple(signs.items())
        self.tails = frozenset(self.by_tail)
        self.vendor_names = tuple(mark.lower() for mark, _, _ in self.vendors)


def _group_by_mark(formats: Iterable[SecretFormat]) -> Iterator[MarkedFormats]:
    marks: dict[tuple[str, bool, FormatKind, bool], list[SecretFormat]] = {}
    for form in formats:
        marks.setdefault((form.mark, form.ignore_case, form.kind, form.rule is None), []).append(form)
    for (mark, ignore_case, _, _), forms in marks.items():
        yield mark, ignore_case, forms


@cache
def _format_index() -> _FormatIndex:
    """Built with the first text, because reading the rule data takes about a millisecond."""
    return _FormatIndex()


def _rule_formats() -> Iterator[SecretFormat]:
    from outrider.permissions.redaction.gitleaks_rules import load_rules  # lazy: not every command redacts text

    for rule in load_rules():
        kind: FormatKind = "key" if rule.kind == "prefix" else rule.kind
        for mark, ignore_case in rule.marks:
            yield SecretFormat(mark, rule.regex, ignore_case, kind, rule)


def find_secret_spans(text: str) -> Spans:
    """Returns the spans of all secrets, unsorted and possibly overlapping."""
    if len(text) < _SHORTEST_MATCH or not (marked := find_marked_formats(text)):
        return []
    lowered = lowercase_same_length(text)
    return [span for form in marked for span in form.find_spans(text, lowered)]


def find_marked_formats(text: str) -> list[SecretFormat]:
    """Returns the formats whose mark is in the text; no other format can match."""
    index, lowered = _format_index(), text.lower()
    if len(lowered) != len(text):
        lowered = lowercase_same_length(text)
    # One comprehension, because this runs for every streamed chunk.
    found = [
        form
        for sign, marks in index.by_sign
        if sign in text
        for mark, ignore_case, forms in marks
        if mark in (lowered if ignore_case else text)
        for form in forms
    ]
    if "=" in text or ":" in text:
        found += _select_marked(index.named, text, lowered)
    if "_" in text or "-" in text or "." in text:
        found += _find_separated(index, text, lowered)
    if _DIGIT_RUN.search(text):
        found += _select_marked(index.numbered, text, lowered)
        if names := _names_of_values(text, lowered):
            found += _select_marked(index.vendors, names, names)
    return found


def _select_marked(marks: list[MarkedFormats], text: str, lowered: str) -> list[SecretFormat]:
    return [form for mark, ignore_case, forms in marks if mark in (lowered if ignore_case else text) for form in forms]


def _find_separated(index: _FormatIndex, text: str, lowered: str) -> list[SecretFormat]:
    words = lowered.replace("-", "_").replace(".", "_").split("_")
    words.pop()  # no separator follows it
    found: list[SecretFormat] = []
    for tail in index.tails & {word[-3:] for word in words}:
        found += _select_marked(index.by_tail[tail], text, lowered)
    if "." in text and _DOTTED_MARK.search(text):
        found.append(_DOTTED)
    return found


def _names_of_values(text: str, lowered: str) -> str:
    """Returns the words before assigned values, each once: one of them may contain the name of a vendor."""
    starts = (match.start() for match in _ASSIGNED_VALUE.finditer(text))
    before = "\n".join([lowered[max(0, start - _VENDOR_NAME_LENGTH) : start] for start in starts])
    return " ".join(set(before.split()))


def contains_key_mark(word: str) -> bool:
    """Returns whether a word may be the start of a key: it contains a mark with which keys start."""
    return any(form.kind == "key" for form in find_marked_formats(word))


def find_open_value(text: str) -> int | None:
    """Returns where the last value starts if it is assigned to a vendor's variable and may continue, or None."""
    # A value has no spaces, so the operator is in the last word or just before it.
    last_space = max(text.rfind(" "), text.rfind("\n"), len(text) - _OPEN_VALUE_LENGTH)
    value = _OPEN_VALUE.search(text, max(0, last_space - _OPERATOR_GAP))
    if value is None:
        return None
    name = text[max(0, value.start() - _VENDOR_NAME_LENGTH) :].lower()
    for vendor in _format_index().vendor_names:
        if vendor in name:
            return value.start("value")
    return None


def lowercase_same_length(text: str) -> str:
    """Returns the text in lowercase with unchanged length; a few characters have a longer lowercase form."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(char.lower() if char.isascii() else char for char in text)
