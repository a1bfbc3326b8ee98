"""What secrets look like: keys by how they begin, passwords by the words that stand before them."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from re import Pattern

from msgspec import Struct


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


Spans = list[tuple[int, int]]
SHORTEST = 8  # a shorter secret is part of too many words


class Format(Struct, frozen=True):
    """Where the mark stands in a text, the pattern is tried from there; its group `secret` is what is hidden. A mark
    in small letters that is `folded` stands for capitals too."""

    mark: str
    written: str
    folded: bool = False

    @property
    def pattern(self) -> Pattern[str]:
        return _compiled(self.written, folded=self.folded)


@cache
def _compiled(written: str, *, folded: bool) -> Pattern[str]:
    """When its mark is first seen: there are a hundred of them, and most programs never meet any."""
    return re.compile(written, re.IGNORECASE if folded else 0)


# A letter or digit before a key makes it part of another word; the n of an escaped line end does not.
_BEGIN = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf]))"
_WITH_DIGIT = r"(?=[A-Za-z_-]{0,64}[0-9])"
_RANDOM = (
    r"(?=[^\s\"',;&]{0,64}[0-9])(?=[^\s\"',;&]{0,64}[A-Za-z])"
    r"[^\s\"',;&()\[\]{}$<>`\\]{8,1000}+(?![^\s\"',;&}\\])"
)
_QUOTED = r"(?=[^\"'\\]{0,64}[^a-z_.\"'\\])[^\s\"'\\$<>{}()]{8,1000}+"
_NAME_ENDS = r"[A-Za-z0-9_]{0,64}\\?[\"']?\s{0,20}(?:=>?|:)\s{0,20}"
_SCHEMES = r"(?:bearer|basic|token)\s"

# By mark: how a key goes on after it, where no word of any language does.
CERTAIN = {
    "xox": "[abeoprs]-", "shp": "(?:at|ss|ca|pa)_", "pscale_": "(?:tkn|pw|oauth)_", "sq0": "(?:atp|csp)-",
    "gh": "[pousr]_", "gl": "(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent)-", "dp.": "[psc]t\\.", "hv": "[sb]\\.",
}  # fmt: skip
_CERTAIN_MARKS = names(
    "github_pat_ xapp- dckr_pat_ whsec_ nvapi- AIza ya29. figd_ PMAK- rdme_ sntrys_ sbp_ NRAK- ntn_ glsa_ ATATT3 "
    "AGE-SECRET-KEY-1 lin_api_ tvly- pplx- GOCSPX- EAACEdEose0cBA phc_ phx_ CFPAT- ops_eyJ"
)
_WORDLIKE = names("sk- gsk_ xai- hf_ r8_ fw_ npm_ pypi- sess- key- pat- secret_ pul- dapi")
_OF_AMAZON = ("AKIA", "ASIA", "AROA", "AIDA", "ABIA", "ACCA")
_NAMES = {
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
_QUERY = ("signature=", "sig=", "key=", "code=", "auth=", "pwd=")
_BODY = r"[A-Za-z0-9_.+/=-]{10,}"


def _keys(marks: Iterable[str], body: str) -> Iterator[Format]:
    for mark in marks:
        yield Format(mark, rf"{_BEGIN}(?P<secret>{re.escape(mark)}{body})")


def _after(marks: str | Iterable[str], pattern: str) -> Iterator[Format]:
    for mark in [marks] if isinstance(marks, str) else marks:
        yield Format(mark, pattern, folded=True)


def _named() -> Iterator[Format]:
    """After the name of a secret: what looks random, any quoted word that is no name, and all of a shell variable."""
    variable = r"(?-i:[A-Z0-9_]{0,64})=(?P<secret>(?![$({<])[^\s\"'`;&|()<>\\]{8,}+)"
    for mark, name in _NAMES.items():
        yield from _after(mark, rf"{name}{_NAME_ENDS}[\"']?(?P<secret>{_RANDOM})")
        yield from _after(mark, rf"{name}{_NAME_ENDS}(?P<quote>\\?[\"'])(?P<secret>{_QUOTED})(?P=quote)")
        yield from _after(mark, rf"(?-i:(?=[A-Z])){name}{variable}")


FORMATS: tuple[Format, ...] = (
    *(form for mark, rest in CERTAIN.items() for form in _keys([mark], rest + _BODY)),
    *_keys(_CERTAIN_MARKS, _BODY),
    *_keys(["sk-"], rf"(?:ant|proj|or-v1|svcacct)-{_BODY}"),
    *_keys(_WORDLIKE, rf"{_WITH_DIGIT}[A-Za-z0-9_-]{{16,}}"),
    *_keys(_OF_AMAZON, r"[A-Z0-9]{12,}"),
    *_keys(["SG."], r"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    *_keys(["eyJ"], r"[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*"),
    *_keys(["SK"], r"[0-9a-f]{32}(?![0-9A-Za-z])"),
    Format("k_live_", rf"(?<=[sr])(?P<secret>k_live_{_BODY})"),
    Format("k_test_", rf"(?<=[sr])(?P<secret>k_test_{_BODY})"),
    Format("_v1_", rf"(?<=do[por])(?P<secret>_v1_{_BODY})"),
    Format(":AA", r"(?<=[0-9]):(?P<secret>AA[A-Za-z0-9_-]{32,})"),
    Format("-us", r"(?P<secret>(?<=[0-9a-f]{32})-us[0-9]{1,2})"),
    Format(
        "-----BEGIN ",
        r"(?P<secret>-----BEGIN (?P<kind>[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?)-----[^\"'<>]*?"
        r"(?:-----END (?P=kind)-----|(?=[\"'<>])|\Z))",
    ),
    *_after(
        ("bearer", "basic", "token"),
        rf"(?<![a-z]){_SCHEMES}+(?P<secret>(?=[^\s]{{0,64}}[0-9=])[A-Za-z0-9._~+/=-]{{12,}}+)",
    ),
    *_after("bearer", r"bearer\s{1,20}(?P<secret>[A-Za-z0-9._~+/=-]{16,}+)"),
    *_after(
        ("authorization", "cookie"),
        rf"(?:authorization|cookie)\\?[\"']?\s*[:=](?!=)\s*\\?[\"']?(?P<secret>(?!{_SCHEMES})(?=[^\r\n\"']{{0,200}}[0-9])"
        r"[^\r\n\"'\\]{8,4000}+)",
    ),
    *_after("://", r"(?<=[a-z0-9])://[^\s/:@\"']{0,200}:(?P<secret>[^\s/@\"']{1,1000}+)(?=@)"),
    *_after("://", r"(?<=[a-z0-9])://(?P<secret>(?=[^\s/:@\"']{0,200}[0-9])[^\s/:@\"']{16,1000}+)(?=@)"),
    *_after("hooks.", r"hooks\.[a-z.]{1,40}/(?:services|workflows)/(?P<secret>[A-Za-z0-9/_-]{16,})"),
    *_after("/api/webhooks/", r"/api/webhooks/[0-9]+/(?P<secret>[\w-]{16,})"),
    *_after(_QUERY, rf"(?<=[?&;_-])(?:signature|sig|key|code|auth|pwd)=(?P<secret>{_RANDOM})"),
    *_after("passw", r"passw(?:or)?d\s+(?P<secret>(?=[^\s]{0,64}[0-9])(?=[^\s]{0,64}[a-z])[^\s\"',;()]{8,1000}+)"),
    *_after((" -u", " --user"), r" (?:-u|--user)[ =][\"']?[^\s:\"']{1,200}:(?P<secret>[^\s\"']{4,1000}+)"),
    *_named(),
)
# Three random words between dots: nothing in it is a mark.
_DOTTED_MARK = re.compile(r"\.[\w-]{6}\.[\w-]")
_DOTTED = Format(".", r"(?<=[\w-]{23})(?P<secret>\.[\w-]{6}\.(?=[\w-]*[0-9])[\w-]{27,})")

# The rarest first: a text without a mark's sign need not be searched for the mark.
_SIGNS = "=:/_-.A"


def _by_sign() -> tuple[tuple[str, tuple[tuple[str, bool, list[Format]], ...]], ...]:
    """Signs, the marks with each sign, and the formats with each mark."""
    marks: dict[tuple[str, bool], list[Format]] = {}
    for form in FORMATS:
        marks.setdefault((form.mark, form.folded), []).append(form)
    groups: dict[str, list[tuple[str, bool, list[Format]]]] = {}
    for (mark, folded), forms in marks.items():
        groups.setdefault(next((sign for sign in _SIGNS if sign in mark), ""), []).append((mark, folded, forms))
    return tuple((sign, tuple(listed)) for sign, listed in groups.items())


_GROUPS = _by_sign()


def spans_in(text: str) -> Spans:
    """Where secrets stand, in no order and perhaps overlapping."""
    marked = marked_in(text)
    return [span for form in marked for span in _spans_of(form, text)] if marked else []


def marked_in(text: str) -> list[Format]:
    """The formats whose mark stands in the text: nothing else in it can be a secret by its look."""
    small = folded(text)
    found = [
        form
        for sign, marks in _GROUPS
        if sign in text
        for mark, in_small, forms in marks
        if mark in (small if in_small else text)
        for form in forms
    ]
    if "." in text and _DOTTED_MARK.search(text):
        found.append(_DOTTED)
    return found


def _spans_of(form: Format, text: str) -> Iterator[tuple[int, int]]:
    place = folded(text) if form.folded else text
    at = place.find(form.mark)
    while at >= 0:
        match = form.pattern.match(text, at)
        if match is not None:
            yield match.span("secret")
        at = place.find(form.mark, at + 1 if match is None else match.end())


def folded(text: str) -> str:
    """In small letters, and never longer or shorter."""
    small = text.lower()
    return small if len(small) == len(text) else "".join(char.lower() if char.isascii() else char for char in text)
