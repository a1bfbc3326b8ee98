"""Secret formats: keys by their prefix, values by the name before them, and the rule data of gitleaks.

A format has a mark, a literal that every match contains. A text without any mark is not searched further, so the common
case costs a few substring tests.
"""

import math
import re
from binascii import b2a_base64
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from re import Pattern
from typing import Literal

import msgspec
from msgspec import Struct


def split_names(text: str) -> frozenset[str]:
    """Returns the whitespace-separated names of a multi-line literal as a set."""
    return frozenset(text.split())


Spans = list[tuple[int, int]]
MIN_SECRET_LENGTH = 8  # shorter values occur inside ordinary words
FormatKind = Literal["key", "context", "assigned", "search"]


class SecretFormat(Struct, frozen=True):
    """One way to write a secret.

    - `mark`: a literal that every match contains.
    - `expression`: the regular expression. Its group `secret` is redacted; for a gitleaks rule, the rule selects and
      checks the group.
    - `ignore_case`: True if case is ignored; the mark is then lowercase.
    - `kind`: where the mark is. A `key` starts with its mark and a `context` is the text before a value: the expression
      is matched at each occurrence of the mark. `assigned` is a vendor name before an assigned value. For `search` the
      mark may be anywhere, so the whole text is searched.
    - `rule`: the gitleaks rule from which the format was made.
    - `sign`: a literal that a text with this secret also contains; it is rarer than the mark.
    """

    mark: str
    expression: str
    ignore_case: bool = False
    kind: FormatKind = "key"
    rule: "GitleaksRule | None" = None
    sign: str = ""

    def find_spans(self, text: str, lowered: str, ends: Mapping[int, int]) -> Iterator[tuple[int, int]]:
        """Yields the spans of secrets in this format.

        `lowered` is the text in lowercase, of the same length. `ends` has the end of each secret that is already
        found, by its start."""
        for match in self._find_matches(text, lowered):
            if self.rule is None:
                yield match.span("secret")
            elif ends.get(match.start(), -1) < match.end() and (span := self.rule.secret_span(match)) is not None:
                yield span

    def _find_matches(self, text: str, lowered: str) -> Iterator[re.Match[str]]:
        pattern = _compile_format(self.expression, ignore_case=self.ignore_case, is_rule=self.rule is not None)
        if self.kind == "search":
            yield from pattern.finditer(text)
            return
        searched = lowered if self.ignore_case else text
        position = searched.find(self.mark)
        while position >= 0:
            match = pattern.match(text, position)
            if match is not None:
                yield match
            position = searched.find(self.mark, position + 1 if match is None else match.end())


@cache
def _compile_format(expression: str, *, ignore_case: bool, is_rule: bool) -> Pattern[str]:
    """Returns the compiled expression. It is compiled on first use: there are 300 formats, and most processes need few
    of them."""
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
_USER_PASSWORD = r"[ =][\"']?[^\s:\"']{1,200}:(?P<secret>[^\s\"']{4,1000}+)"
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


def _context_formats(marks: str | Iterable[str], pattern: str, sign: str = "") -> Iterator[SecretFormat]:
    for mark in [marks] if isinstance(marks, str) else marks:
        yield SecretFormat(mark, pattern, ignore_case=True, kind="context", sign=sign)


def _named_value_formats() -> Iterator[SecretFormat]:
    """Yields formats of values after the name of a secret: random-looking values, quoted ones, and any value of a shell
    variable."""
    variable = r"(?-i:[A-Z0-9_]{0,64})=(?P<secret>(?![$({<])[^\s\"'`;&|()<>\\]{8,}+)"
    for mark, name in _NAME_PATTERNS.items():
        yield from _context_formats(mark, rf"{name}{_ASSIGNMENT}[\"']?(?P<secret>{_RANDOM})")
        yield from _context_formats(mark, rf"{name}{_ASSIGNMENT}(?P<quote>\\?[\"'])(?P<secret>{_QUOTED})(?P=quote)")
        yield from _context_formats(mark, rf"(?-i:(?=[A-Z])){name}{variable}")


# Words that occur instead of a password in forms, schemas and messages.
_NO_PASSWORD = r"(?!\w*(?:passw|secret|token|string|required|optional|disabled|invalid|missing|changed|undefined))"
_WORD = r"[^\s\"'`;&|<>()$\\]"
_ARGUMENT = rf"[\"']?(?P<secret>(?!-|(?-i:[A-Z_]+\b)){_WORD}{{4,200}}+)"


def _password_formats() -> Iterator[SecretFormat]:
    """Yields formats of passwords that are words or letters, in places where nothing else is expected."""
    yield from _context_formats(
        "passw", rf"passw(?:or)?d{_ASSIGNMENT}(?P<quote>\\?[\"']){_NO_PASSWORD}(?P<secret>[a-z]{{8,64}})(?P=quote)"
    )
    yield from _context_formats(
        "passw", rf"passw(?:or)?d={_NO_PASSWORD}(?P<secret>[a-z]{{8,64}})(?=\\[nr]|\\?[\"']|[ \t]*(?:\n|\Z))"
    )
    for mark in ("passw", "passphrase", "secret", "token", "key"):
        element = rf"{_NAME_PATTERNS[mark]}[A-Za-z0-9_]{{0,64}}>(?P<secret>[^<>\s]{{4,200}}+)</"
        yield from _context_formats(mark, element, "</")
        encoded = rf"{_NAME_PATTERNS[mark]}%3d(?P<secret>[^\s\"'&<>]{{6,200}}+)"
        for sign in ("%3d", "%3D"):
            yield from _context_formats(mark, encoded, sign)
    pgpass = r":5432:[^\s:]{1,64}:[^\s:]{1,64}:(?P<secret>[^\s:\"']{4,200}+)"
    yield SecretFormat(":5432:", pgpass, kind="context")


# Programs for which a short option means a password.
_PASSWORD_OPTIONS = {
    "mysql": "-p", "mariadb": "-p", "sshpass": "-p ", "mongo": "-p ", " login ": "-p ", "redis-cli": "-a ",
    "ldapsearch": "-w ", "ldapadd": "-w ", "ldapmodify": "-w ", "sqlcmd": "-P ", "unzip": "-P ",
}  # fmt: skip
_OPTION_PREFIXES = ("--", "--db-", "--api-", "--auth-", "--user-", "--admin-", "--access-", "--client-", "--root-")


def _option_formats() -> Iterator[SecretFormat]:
    """Yields the formats of passwords in the options of commands."""
    after_prefix = "|".join(f"(?<= {prefix})" for prefix in _OPTION_PREFIXES)
    for mark, name in {**_NAME_PATTERNS, "key": "key", "api-key": "api-key"}.items():
        if not mark.startswith("_"):
            yield from _context_formats(mark, rf"(?:{after_prefix}){name}[ =]{_ARGUMENT}", " --")
    for program, option in _PASSWORD_OPTIONS.items():
        command = rf"{program}[\w-]{{0,20}}(?<=\w|\s)(?:[^\n|;&]{{0,200}}?\s)?(?-i:{option}){_ARGUMENT}"
        yield from _context_formats(program, command, f" {option.strip()}")


# A secret key of AWS: 40 characters without a prefix. Hashes have no capitals. Other 40 characters are common, so only
# the words before it show that it is a key.
_BARE_KEY = (
    r"(?P<secret>(?<![A-Za-z0-9/+])(?=[^\s]{0,39}[0-9])(?-i:(?=[^\s]{0,39}[A-Z])(?=[^\s]{0,39}[a-z]))"
    r"[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=_-]|\.\w))"
)
_GAP = r"[\\\"'`|,;:\s]{1,8}"


def _bare_key_formats() -> Iterator[SecretFormat]:
    """Yields formats of keys without a prefix after the name of a secret, or after the identifier that belongs to
    them."""
    labels = rf"(?:{_GAP}[A-Za-z_]{{2,12}}){{0,4}}"
    for mark in _AWS_MARKS[:2]:
        yield SecretFormat(mark, rf"{_BEGIN}{mark}[A-Z0-9]{{12,}}{labels}{_GAP}{_BARE_KEY}", kind="context")
    yield from _context_formats("secret", rf"secret(?:[ _-]?access)?(?:[ _-]?key)?(?: is)?{_GAP}{_BARE_KEY}")
    yield from _context_formats(
        "key", rf"(?:(?<=aws.)|(?<=api.)|(?<=access.)|(?<=account.)|(?<=account))key(?: is)?{_GAP}{_BARE_KEY}"
    )


_MOST_USED_MARKS = ("sk-ant-", "sk-proj-", "ghp_", "github_pat_", "glpat-", "xoxb-", "AKIA")


def _reversed_formats() -> Iterator[SecretFormat]:
    """Yields formats of keys that are written backwards, a simple way to get them past a filter."""
    for mark in _MOST_USED_MARKS:
        backwards = re.escape(mark[::-1])
        yield SecretFormat(
            mark[::-1], rf"(?P<secret>[A-Za-z0-9_.+/=-]{{16,}}{backwards})(?![A-Za-z0-9])", kind="search"
        )


def _encoded_formats() -> Iterator[SecretFormat]:
    """Yields formats of keys and PEM blocks in base64, as Kubernetes and cloud metadata contain them."""
    for prefix in (*_MOST_USED_MARKS, "-----BEGIN"):
        raw = prefix.encode()
        mark = b2a_base64(raw, newline=False)[: len(raw) * 8 // 6].decode()
        yield SecretFormat(mark, rf"{_BEGIN}(?P<secret>{re.escape(mark)}[A-Za-z0-9+/_-]{{16,}}=*)")


_CRYPT = "[./A-Za-z0-9]"
# Password hashes of `crypt`, PHC strings and Django.
_HASH = (
    rf"(?P<secret>\$(?:2[abxy]?\$[0-9]{{2}}\${_CRYPT}{{53}}|1\${_CRYPT}{{1,16}}\${_CRYPT}{{22}}|"
    rf"[56]\$(?:rounds=[0-9]{{1,9}}\$)?{_CRYPT}{{1,16}}\${_CRYPT}{{43,86}}|y\${_CRYPT}{{1,20}}\${_CRYPT}{{1,86}}\${_CRYPT}{{43}}|"
    rf"(?:argon2|scrypt|pbkdf2)[a-z0-9-]{{0,12}}\$[a-z0-9=,$]{{1,60}}\$[A-Za-z0-9+/.]{{8,200}}\$[A-Za-z0-9+/.=]{{16,200}})"
    rf"(?!{_CRYPT})|\b(?:pbkdf2|bcrypt)_sha256\$[^\s\"']{{30,300}})"
)
_HASH_MARKS = (
    "$1$",
    "$2$",
    "$2a$",
    "$2b$",
    "$2x$",
    "$2y$",
    "$5$",
    "$6$",
    "$y$",
    "$argon2",
    "$scrypt$",
    "$pbkdf2",
    "_sha256$",
)
_SEED_PHRASE = (
    r"\b(?:(?:seed|recovery|mnemonic|secret|backup)[ _-]?phrase|mnemonic)[\"']?(?: is)?\s?[:=]?\s{0,3}[\"']?"
    r"(?P<secret>(?:[a-z]{3,8}[ ,]{1,2}){11,23}[a-z]{3,8})\b"
)

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
    *(SecretFormat(f"do{kind}_v1_", rf"do{kind}(?P<secret>_v1_{_BODY})") for kind in "por"),
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
    *_context_formats("://", r"(?<=[a-z0-9])://[^\s/:@\"']{0,200}:(?P<secret>[^\s/@\"']{1,1000}+)(?=@)", "@"),
    *_context_formats("://", r"(?<=[a-z0-9])://(?P<secret>(?=[^\s/:@\"']{0,200}[0-9])[^\s/:@\"']{16,1000}+)(?=@)", "@"),
    *_context_formats("hooks.", r"hooks\.[a-z.]{1,40}/(?:services|workflows)/(?P<secret>[A-Za-z0-9/_-]{16,})"),
    *_context_formats("/api/webhooks/", r"/api/webhooks/[0-9]+/(?P<secret>[\w-]{16,})"),
    *_context_formats(_QUERY_MARKS, rf"(?<=[?&;_-])(?:signature|sig|key|code|auth|pwd)=(?P<secret>{_RANDOM})"),
    *_context_formats(
        "passw", r"passw(?:or)?d\s+(?P<secret>(?=[^\s]{0,64}[0-9])(?=[^\s]{0,64}[a-z])[^\s\"',;()]{8,1000}+)"
    ),
    *_context_formats(" -u", rf" -u{_USER_PASSWORD}", " -u"),
    *_context_formats(" --user", rf" --user{_USER_PASSWORD}", " --"),
    *_named_value_formats(),
    *_password_formats(),
    *_option_formats(),
    *_encoded_formats(),
    *_bare_key_formats(),
    *_reversed_formats(),
    *(SecretFormat(mark, _HASH, kind="search", sign="$") for mark in _HASH_MARKS),
    SecretFormat("phrase", _SEED_PHRASE, ignore_case=True, kind="search"),
    SecretFormat("mnemonic=", _SEED_PHRASE, ignore_case=True, kind="search"),
)
# Three random words separated by dots, such as a Discord token: no part of it is a literal mark.
_DOTTED_MARK = re.compile(r"\.(?<=[\w-]{23}\.)[\w-]{6}\.[\w-]")
_DOTTED = SecretFormat(".", r"(?P<secret>\.(?<=[\w-]{23}\.)[\w-]{6}\.(?=[\w-]*[0-9])[\w-]{27,})", kind="search")
# Nearly every random key has a digit with seven letters or digits on one side; dates, versions and names rarely do.
_DIGIT_RUN = re.compile(r"[0-9](?:[A-Za-z0-9]{7}|(?<=[A-Za-z0-9]{7}[0-9]))")
# A value after an operator, except the minutes of a time, in a text that is translated with `_OPERATORS`. Each pattern
# starts with one literal, because `re` finds a literal much faster than a set of characters.
_ASSIGNED_VALUES = (
    re.compile(r":[ :]{0,5}+(?=[\w.+/%:~-]{14})(?![0-9]{2}[:.])", re.ASCII),
    re.compile(r",[ :]{0,5}+(?=[\w.+/%:~-]{14})", re.ASCII),
)
# A value at the end of a text, which may continue.
_OPEN_VALUE = re.compile(r"[=>:][`'\"\s=]{0,5}(?P<value>[\w.=+/%:~|-]*)\Z")
_OPEN_VALUE_LENGTH = 400
_OPERATOR_GAP = 6  # the operator and up to five quotes or spaces
_SHORTEST_MATCH = 7  # `a://:b@`
_VENDOR_NAME_LENGTH = 40  # the longest vendor name, up to 20 more characters and quotes

_ASSIGNED_NAMES = (_NAME_PATTERNS.keys() - {"token", "passw"}) | {"authorization", "cookie", "/api/webhooks/"}
MarkedFormats = tuple[str, bool, list[SecretFormat]]  # mark, whether it is in lowercase, its formats

AnchoredFormats = list[tuple[str, list[MarkedFormats]]]

# Reduced copies of a text. `bytes.translate` takes as long as the search for one mark, so a text is reduced once and
# most marks are then searched in little text.
_LOWERCASE = "abcdefghijklmnopqrstuvwxyz"
_RARE_SIGNS = "@|%~$<"


def _reduce_char(char: str) -> str:
    """Returns a letter in lowercase, `0` for any digit, `_` for a separator, `@` for a rare sign, and a space
    otherwise."""
    if char.isascii() and char.isalpha():
        return char.lower()
    return "0" if char in "0123456789" else "_" if char in "_.-=" else "@" if char in _RARE_SIGNS else " "


def _all_except(retained: str) -> bytes:
    return bytes(set(range(256)) - set(retained.encode()))


_WORDS = "".join(map(_reduce_char, map(chr, range(256)))).encode()
_OPERATORS = bytes(
    ord(":" if char in "=>:|" else " " if char.isspace() or char in "`'\"" else char.lower()) if char.isascii() else 63
    for char in map(chr, range(256))
)
_NO_LETTERS = _all_except(_LOWERCASE + _LOWERCASE.upper() + "_.-=")
_NO_CAPITALS = _all_except(_LOWERCASE.upper() + "3")  # with the one digit that is common in marks
_NO_NAMES = _all_except("ghijklmnopqrstuvwxyz")  # without a to f, so that hexadecimal identifiers disappear
_CAPITAL_PAIR = re.compile(r"[A-Z](?:[A-Z0-9]|(?<=[JV]))")  # J and V are rare, so one is sufficient
_MANY_CAPITALS = 2_000
_LONG_TEXT = 1_000
_BLOCK, _OVERLAP = 50_000, 500  # copies of this size stay in the processor's cache
_BEFORE_SHORT_MARK = ("", *_LOWERCASE, *"0 @")
_OPTION = re.compile(" -[-A-Za-z]")  # not the arrow of a function's return type
_RULE_SIGNS = {"facebook": "|%", "Q~": "~", "sha256~": "~"}
_ANCHORS = ("phrase", "webhook")  # marks that contain one of these are found with one search


def _reduce(text: str, removed: bytes) -> str:
    return text.encode("ascii", "replace").translate(None, removed).decode("latin-1")


class _FormatIndex:
    """All formats by mark, grouped by a cheap test that a text has to pass before its marks are searched.

    - `by_tail`: marks with a separator, by the three characters before the separator. Splitting a text at its
      separators yields all such tails at once.
    - `anchored`: marks without a cheaper test, searched in every text.
    - `named`: marks that need an operator or a digit in the text.
    - `numbered`: marks of rules that need a `_DIGIT_RUN` in the text.
    - `separated`: marks with a separator and fewer than three characters before it.
    - `capitals`: marks with capitals, which are searched in the text without other characters.
    - `vendors`: names that are searched only before assigned values; a value without a digit is not a key there
      (gitleaks' generic rule has this exception).
    - `by_sign`, `by_option`: formats with a sign.
    - `ports`: formats with the port of PostgreSQL as mark.
    """

    def __init__(self) -> None:
        self.by_tail: dict[str, list[MarkedFormats]] = {}
        self.anchored: AnchoredFormats = []
        self.named: AnchoredFormats = []
        self.numbered: AnchoredFormats = []
        self.separated: AnchoredFormats = []
        self.capitals: list[tuple[str, MarkedFormats]] = []
        self.vendors: list[tuple[str, MarkedFormats]] = []
        self.by_sign: dict[str, list[MarkedFormats]] = {}
        self.by_option: dict[str, list[MarkedFormats]] = {}
        self.ports: list[MarkedFormats] = []
        for marked in _group_by_mark((*FORMATS, *_rule_formats())):
            self._add(marked)
        self.tails = frozenset(self.by_tail)
        self.any_capitals = _compile_alternatives({capitals for capitals, _ in self.capitals})
        self.vendor_names = tuple(mark for _, (mark, _, _) in self.vendors)

    def _add(self, marked: MarkedFormats) -> None:
        mark, ignore_case, forms = marked
        reduced, capitals = mark.encode().translate(_WORDS).decode(), _reduce(mark, _NO_CAPITALS)
        if sign := forms[0].sign:
            (self.by_option if sign.startswith(" -") else self.by_sign).setdefault(sign, []).append(marked)
        elif not ignore_case and _CAPITAL_PAIR.search(mark):
            self.capitals.append((capitals, marked))
        elif tails := _find_tails(reduced):
            for tail in tails:
                self.by_tail.setdefault(tail, []).append(marked)
        elif forms[0].kind == "assigned":
            self.vendors.append((_reduce(mark, _NO_NAMES), marked))
        elif mark == ":5432:":
            self.ports.append(marked)
        else:
            self._add_anchored(reduced, marked)

    def _add_anchored(self, reduced: str, marked: MarkedFormats) -> None:
        anchor = next((anchor for anchor in _ANCHORS if anchor in reduced), "" if "0" in reduced else reduced)
        for group_anchor, formats in (*self.anchored, *self.named, *self.separated):
            if group_anchor == anchor:
                formats.append(marked)
                return
        if marked[2][0].rule is not None:
            group = self.numbered
        elif "_" in anchor:
            group = self.separated
        else:
            group = self.named if marked[0] in _ASSIGNED_NAMES else self.anchored
        group.append((anchor, [marked]))


def _compile_alternatives(texts: Iterable[str]) -> Pattern[str]:
    """Returns a pattern that finds any of the texts, grouped by their first character, which `re` tries faster."""
    rests: dict[str, list[str]] = {}
    for text in sorted(texts):
        rests.setdefault(text[0], []).append(text[1:])
    return re.compile("|".join(f"{first_char}(?:{'|'.join(tails)})" for first_char, tails in rests.items()))


def _find_tails(mark: str) -> list[str]:
    """Returns what a text may have before the first separator of a mark that follows two or more other characters."""
    if tail := re.search(r"[^_]{3}(?=_)", mark):
        return [tail[0]]
    if short := re.match(r"[^_ ]{2}(?=_)", mark):
        return [char + short[0] for char in _BEFORE_SHORT_MARK]
    return []


def _group_by_mark(formats: Iterable[SecretFormat]) -> Iterator[MarkedFormats]:
    marks: dict[tuple[str, bool, FormatKind, bool, str], list[SecretFormat]] = {}
    for form in formats:
        marks.setdefault((form.mark, form.ignore_case, form.kind, form.rule is None, form.sign), []).append(form)
    for (mark, ignore_case, *_), forms in marks.items():
        yield mark, ignore_case, forms


@cache
def _format_index() -> _FormatIndex:
    """Returns the index. It is built with the first text, because reading the rule data takes about a millisecond."""
    return _FormatIndex()


def _rule_formats() -> Iterator[SecretFormat]:
    for rule in load_rules():
        kind: FormatKind = "key" if rule.kind == "prefix" else rule.kind
        for mark, ignore_case in rule.marks:
            for sign in _RULE_SIGNS.get(mark, ("",)) if kind != "assigned" else ("",):
                yield SecretFormat(mark, rule.regex, ignore_case, kind, rule, sign)


def find_secret_spans(text: str) -> Spans:
    """Returns the spans of all secrets, unsorted and possibly overlapping."""
    if len(text) < _SHORTEST_MATCH or not (marked := find_marked_formats(text)):
        return []
    lowered = lowercase_same_length(text)
    ends: dict[int, int] = {}
    for form in sorted(marked, key=_is_rule_format):  # rules last: they skip what is found, which saves their checks
        for start, end in form.find_spans(text, lowered, ends):
            ends[start] = max(end, ends.get(start, 0))
    return list(ends.items())


def _is_rule_format(form: SecretFormat) -> bool:
    return form.rule is not None


def find_marked_formats(text: str) -> list[SecretFormat]:
    """Returns the formats whose mark is in the text; no other format can match."""
    index = _format_index()
    if len(text) <= _BLOCK:
        candidates = _select_candidates(index, text)
    else:
        starts = range(0, len(text), _BLOCK)
        blocks = (_select_candidates(index, text[start : start + _BLOCK + _OVERLAP]) for start in starts)
        candidates = list({id(marked): marked for block in blocks for marked in block}.values())
    forms: list[SecretFormat] = []
    if candidates:
        lowered = lowercase_same_length(text)
        forms = [form for mark, fold, group in candidates if mark in (lowered if fold else text) for form in group]
    if "." in text and _DOTTED_MARK.search(text):
        forms.append(_DOTTED)
    return forms


def _select_candidates(index: _FormatIndex, text: str) -> list[MarkedFormats]:
    """Returns the formats whose mark may be in the text. It runs for each streamed chunk; most texts fail all tests."""
    raw = text.encode("ascii", "replace")
    reduced = letters = raw.translate(_WORDS).decode("latin-1")
    if len(text) > _LONG_TEXT:
        letters = raw.translate(_WORDS, _NO_LETTERS).decode("latin-1")
    candidates = [marked for anchor, group in index.anchored if anchor in letters for marked in group]
    has_digit = "0" in reduced
    if has_digit or "=" in text or ":" in text or ">" in text:
        candidates += [marked for anchor, group in index.named if anchor in letters for marked in group]
    if "_" in reduced:
        candidates += _find_separated(index, text, reduced)
    if "@" in reduced:
        candidates += [marked for sign, group in index.by_sign.items() if sign in text for marked in group]
    if "-" in text and _OPTION.search(text):
        candidates += [marked for option, group in index.by_option.items() if option in text for marked in group]
    if not raw.islower() and (len(text) > _LONG_TEXT or _CAPITAL_PAIR.search(text)):
        candidates += _find_capitals(index, raw)
    if has_digit and ":5432:" in text:
        candidates += index.ports
    if has_digit and _DIGIT_RUN.search(text):
        candidates += [marked for anchor, group in index.numbered if anchor in letters for marked in group]
        candidates += _find_vendors(index, raw)
    return candidates


def _find_separated(index: _FormatIndex, text: str, reduced: str) -> list[MarkedFormats]:
    """Returns the formats whose mark contains a separator and may be in the text, of which `reduced` is the
    reduction."""
    tails = index.tails.intersection([word[-3:] for word in reduced.split("_")])
    candidates = [marked for tail in tails for marked in index.by_tail[tail]] if tails else []
    if "_" in text or "-" in text:
        candidates += [marked for anchor, group in index.separated if anchor in reduced for marked in group]
    return candidates


def _find_capitals(index: _FormatIndex, raw: bytes) -> list[MarkedFormats]:
    """Returns the formats whose capitals follow each other in the text, if other characters are removed."""
    capitals = raw.translate(None, _NO_CAPITALS).decode("latin-1")
    if len(capitals) <= _MANY_CAPITALS and not index.any_capitals.search(capitals):
        return []
    return [marked for part, marked in index.capitals if part in capitals]


def _find_vendors(index: _FormatIndex, raw: bytes) -> list[MarkedFormats]:
    """Returns the vendors whose name may be just before an assigned value."""
    text = raw.translate(_OPERATORS).decode("latin-1")
    # A name contains no operator and no comma. Many texts repeat the same few names, so each is searched once.
    name_texts = {
        segment[-_VENDOR_NAME_LENGTH:].rpartition(",")[2]
        for pattern in _ASSIGNED_VALUES
        for segment in pattern.split(text)[:-1]
    }
    if not name_texts:
        return []
    names = "\n".join(name_texts)
    letters = _reduce(names, _NO_NAMES)
    return [marked for part, marked in index.vendors if part in letters and marked[0] in names]


def contains_key_mark(word: str) -> bool:
    """Returns whether a word may be the start of a key: it contains a mark with which keys start."""
    return any(form.kind == "key" for form in find_marked_formats(word))


def find_open_value(text: str) -> int | None:
    """Returns where the last value starts if it is assigned to a vendor's variable and may continue, or None."""
    # A value has no spaces, so the operator is in the last word or just before it.
    start = text.rfind(" ", -_OPEN_VALUE_LENGTH) - _OPERATOR_GAP
    tail = text[start:] if start > 0 else text[-_OPEN_VALUE_LENGTH:]
    if ("=" not in tail and ":" not in tail and ">" not in tail) or (value := _OPEN_VALUE.search(tail)) is None:
        return None
    offset = len(text) - len(tail)
    operator = offset + value.start()
    name = text[max(0, operator - _VENDOR_NAME_LENGTH) : operator].rpartition(",")[2]
    return offset + value.start("value") if _contains_vendor(name.lower()) else None


@lru_cache(maxsize=1024)
def _contains_vendor(name: str) -> bool:
    """Returns whether a variable name contains a vendor; cached, because a value is streamed in several chunks and the
    same variables recur."""
    return any(vendor in name for vendor in _format_index().vendor_names)


def lowercase_same_length(text: str) -> str:
    """Returns the text in lowercase with unchanged length; a few characters have a longer lowercase form."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(char.lower() if char.isascii() else char for char in text)


_FIRST_GROUP = -1


class GitleaksRule(msgspec.Struct, frozen=True, gc=False):
    """One rule of gitleaks: where it is tried, what it matches and what it excludes.

    - `id`: the name of the rule in gitleaks.
    - `kind`: a `prefix` rule matches at a mark. An `assigned` rule matches at a vendor's name that is followed by an
      operator and the secret. A `search` rule needs a mark anywhere in the text.
    - `marks`: the literals, each with whether case is ignored.
    - `regex`: the expression.
    - `group`: the number of the group with the secret; -1 for the first group that is not empty.
    - `entropy`: the Shannon entropy in bits per character that a secret has to exceed.
    - `allow`: expressions of placeholders.
    - `stopwords`: words that only placeholders contain.
    """

    id: str
    kind: Literal["prefix", "assigned", "search"]
    marks: tuple[tuple[str, bool], ...]
    regex: str
    group: int = 0
    entropy: float = 0
    allow: tuple[str, ...] = ()
    stopwords: tuple[str, ...] = ()

    def secret_span(self, match: re.Match[str]) -> tuple[int, int] | None:
        """Returns the span of the secret in a match of the rule, or None if it is a placeholder."""
        group = self.group
        if group == _FIRST_GROUP:
            group = next((number for number, value in enumerate(match.groups(), 1) if value), 0)
        secret = match[group]
        if self.entropy and shannon_entropy(secret) <= self.entropy:
            return None
        if _is_placeholder(secret, self.allow, self.stopwords):
            return None
        shared = _load_data().shared
        return None if _is_placeholder(secret, shared.allow, shared.stopwords) else match.span(group)


class SharedExceptions(msgspec.Struct, frozen=True):
    """The allowlist that applies to every rule."""

    allow: tuple[str, ...] = ()
    stopwords: tuple[str, ...] = ()


class RuleData(msgspec.Struct, frozen=True):
    """The content of the data file."""

    rules: tuple[GitleaksRule, ...]
    shared: SharedExceptions


def load_rules() -> tuple[GitleaksRule, ...]:
    """Returns all rules. Reads the data file on the first call."""
    return _load_data().rules


def shannon_entropy(text: str) -> float:
    """Returns the entropy of the text in bits per character."""
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values())


@cache
def _load_data() -> RuleData:
    return msgspec.json.decode(Path(__file__).with_name("gitleaks_rules.json").read_bytes(), type=RuleData)


def _is_placeholder(secret: str, allow: tuple[str, ...], stopwords: tuple[str, ...]) -> bool:
    lowered = secret.lower()
    return any(word in lowered for word in stopwords) or any(
        _compile_exception(regex).search(secret) for regex in allow
    )


@cache
def _compile_exception(regex: str) -> re.Pattern[str]:
    return re.compile(regex, re.ASCII)
