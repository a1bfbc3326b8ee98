"""Calls written as text are found in every form that models use, at any chunking, and no other text is touched."""

import json
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.providers.stream_filters import TextSplitFilter
from outrider.providers.text_tool_calls import TextCallScanner
from outrider.types.request import InputDelta, PartEnd, PartStart, TextDelta
from tests.fixtures.cases import for_each
from tests.fixtures.soak import examples
from tests.unit.providers.stream_filters.run_filter import answer_of, chunks_of, parts_of

CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a.txt"}}\n</tool_call>'
READ = ("tool", "read", {"path": "a.txt"})


def scanner() -> TextCallScanner:
    return TextCallScanner({"seek": {"line", "exact", "where"}})


def split(text: str, size: int = 10_000) -> list[tuple[object, ...]]:
    return parts_of(scanner, chunks_of(text, size))


GOOD = {
    "as asked": (CALL, [READ]),
    "on one line": ('<tool_call>{"name":"read","arguments":{"path":"a.txt"}}</tool_call>', [READ]),
    "after words": (f"I look.\n\n{CALL}", [("text", "I look.\n\n"), READ]),
    "in a line": (
        'Sure: <tool_call>{"name":"read","arguments":{"path":"a.txt"}}</tool_call>',
        [("text", "Sure: "), READ],
    ),
    "before words": (f"{CALL}\n\nThen.", [READ, ("text", "Then.")]),
    "before indented words": (f"{CALL}\n\n  Then.", [READ, ("text", "  Then.")]),
    "twice": (f"{CALL}\n{CALL}", [READ, READ]),
    "twice in one tag": (
        '<tool_call>{"name":"a","arguments":{}}\n{"name":"b","arguments":{"x":1}}</tool_call>',
        [("tool", "a", {}), ("tool", "b", {"x": 1})],
    ),
    "as a list": (
        '<tool_calls>[{"name":"a","arguments":{}}, {"name":"b","arguments":{}}]</tool_calls>x',
        [("tool", "a", {}), ("tool", "b", {}), ("text", "x")],
    ),
    "in a fence": ('```tool_call\n{"name":"read","arguments":{"path":"a.txt"}}\n```', [READ]),
    "in a fence, words after": (
        'Go:\n```tool_call\n{"name":"read","arguments":{"path":"a.txt"}}\n```\nDone.',
        [("text", "Go:\n"), READ, ("text", "Done.")],
    ),
    "two in a fence": (
        '```tool_call\n{"name":"a","arguments":{}}\n{"name":"b","arguments":{}}\n```',
        [("tool", "a", {}), ("tool", "b", {})],
    ),
    "two fences": (
        '```tool_call\n{"name":"a"}\n```\n\n```tool_call\n{"name":"b"}\n```',
        [("tool", "a", {}), ("tool", "b", {})],
    ),
    "a fence inside the tag": (f"{CALL[:12]}```json\n{CALL[12:-13]}\n```\n</tool_call>ok", [READ, ("text", "ok")]),
    "no closing tag": (CALL.removesuffix("</tool_call>"), [READ]),
    "half a closing tag": (CALL.removesuffix("_call>"), [READ]),
    "no closing tag, words after": (f"{CALL.removesuffix('</tool_call>')}Then.", [READ, ("text", "Then.")]),
    "no closing tag, a call after": (f"{CALL.removesuffix('</tool_call>')}{CALL}", [READ, READ]),
    "a brace is missing": (
        '<tool_call>{"name":"read","arguments":{"path":"a.txt"}</tool_call>x',
        [READ, ("text", "x")],
    ),
    "a brace is missing, words after": (
        '<tool_call>{"name":"read","arguments":{"path":"a.txt"}\nSo.',
        [READ, ("text", "So.")],
    ),
    "other words for the fields": ('<tool_call>{"tool": "read", "parameters": {"path": "a.txt"}}</tool_call>', [READ]),
    "arguments first": ('<tool_call>{"arguments": {"path": "a.txt"}, "name": "read"}</tool_call>', [READ]),
    "an id in between": ('<tool_call>{"name": "read", "id": 7, "arguments": {"path": "a.txt"}}</tool_call>', [READ]),
    "more after the arguments": (
        '<tool_call>{"name": "read", "arguments": {"path": "a.txt"}, "id": "{"}</tool_call>',
        [READ],
    ),
    "OpenAI's shape": (
        '<tool_call>{"type":"function","function":{"name":"read","arguments":{"path":"a.txt"}}}</tool_call>',
        [READ],
    ),
    "flat": ('<tool_call>{"name": "read", "path": "a.txt"}</tool_call>', [READ]),
    "encoded twice": ('<tool_call>{"name": "read", "arguments": "{\\"path\\": \\"a.txt\\"}"}</tool_call>', [READ]),
    "no arguments": ('<tool_call>{"name": "now"}</tool_call>', [("tool", "now", {})]),
    "null arguments": ('<tool_call>{"name": "now", "arguments": null}</tool_call>', [("tool", "now", {})]),
    "tags in a string": (
        '<tool_call>{"name":"write","arguments":{"text":"</tool_call> \\"{\\\\"}}</tool_call>.',
        [("tool", "write", {"text": '</tool_call> "{\\'}), ("text", ".")],
    ),
    "markup": (
        "<tool_call>\n<function=read>\n<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call>",
        [READ],
    ),
    "bare markup": (
        "<function=read>\n<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call>\nOk",
        [READ, ("text", "Ok")],
    ),
    "markup with JSON": ('<function=read>{"path": "a.txt"}</function>!', [READ, ("text", "!")]),
    "markup without parameters": ("<function=now></function>", [("tool", "now", {})]),
    "markup on many lines": (
        '<function=write>\n<parameter=text>\n\n  if a < b:\n    "x"\n\n</parameter>\n'
        "<parameter=path>\nb\n</parameter>\n</function>",
        [("tool", "write", {"text": '\n  if a < b:\n    "x"\n', "path": "b"})],
    ),
    "invoke": (
        '<function_calls>\n<invoke name="read">\n<parameter name="path">a.txt</parameter>\n'
        "</invoke>\n</function_calls>",
        [READ],
    ),
    "two in markup": (
        "<tool_call><function=a></function>\n<function=b></function></tool_call>",
        [("tool", "a", {}), ("tool", "b", {})],
    ),
    "typed parameters": (
        "<function=seek><parameter=line>5</parameter><parameter=exact>true</parameter><parameter=name>5</parameter>"
        '<parameter=where>{"a": [1]}</parameter></function>',
        [("tool", "seek", {"line": 5, "exact": True, "name": "5", "where": {"a": [1]}})],
    ),
    "a typed parameter that is text": (
        "<function=seek><parameter=line>five</parameter></function>",
        [("tool", "seek", {"line": "five"})],
    ),
    "closing tag of a parameter missing": ("<function=read><parameter=path>a.txt</function>.", [READ, ("text", ".")]),
    "closing tag of a function missing": ("<function=read><parameter=path>a.txt</parameter>", [READ]),
    "after inline code": (f"`x` {CALL}", [("text", "`x` "), READ]),
    "after a fence": (f"```\nx\n```\n{CALL}", [("text", "```\nx\n```\n"), READ]),
}

DAMAGED = {
    "a comma too much": ('<tool_call>{"name":"read","arguments":{"path":"a",}}</tool_call>', "read"),
    "cut in the input": ('<tool_call>{"name":"read","arguments":{"pa', "read"),
    "cut in a string": ('<tool_call>{"name":"read","arguments":{"path":"a.t', "read"),
    "not JSON": ("<tool_call>{'name': 'read', 'arguments': {'path': 'a'}}</tool_call>", "read"),
    "keys without quotes": ('<tool_call>{name: "read", arguments: {path: "a"}}</tool_call>', "read"),
    "a value of markup was cut": ("<function=write><parameter=text>\nhalf of", "write"),
    "two braces are missing": ('<tool_call>{"name":"read","arguments":{"a":{"b":1}</tool_call>', "read"),
}

TEXT = {
    "in a sentence": "Use the <tool_call> tag for it.",
    "named in inline code": "Write `<tool_call>{}</tool_call>`.",
    "in inline code": 'Say `<tool_call>{"name": "a"}</tool_call>` and it runs.',
    "in doubled backticks": 'Say ``<tool_call>{"name": "a"}</tool_call>`` and it runs.',
    "an example in a fence": f"Like this:\n```xml\n{CALL}\n```\nDone.",
    "an example in an open fence": f"```\n{CALL}",
    "a fence in a list": f"- so:\n   ```\n   {CALL}\n   ```\n",
    "a tag that nothing follows": "<tool_call>",
    "a tag before prose": "<tool_call>\nis a tag\n</tool_call>\n",
    "an object without a name": '<tool_call>{"path": "a"}</tool_call>\nok',
    "an object that is no call, in a fence": '```tool_call\n{"path": "a"}\n```\n',
    "a fence of the language": "```tool_call\nnothing\n```\n",
    "another fence": '```json\n{"name": "read", "arguments": {}}\n```',
    "a function that is none": "<function=f> is old syntax",
    "html": "<tool> <function> <tool_caller> <b>",
    "the beginning of a tag": "so <tool_ca",
    "backticks": "```",
    "blanks": "  \n\n ",
}


@for_each("size", [1, 2, 5, 10_000])
@for_each(("text", "expected"), GOOD.values())
def test_a_call_is_found_in_every_form(text: str, expected: list[tuple[object, ...]], size: int):
    assert split(text, size) == expected


@for_each("size", [1, 3, 10_000])
@for_each(("text", "tool"), DAMAGED.values())
def test_a_damaged_call_is_still_a_call_that_describes_the_damage(text: str, tool: str, size: int):
    assert split(text, size) == [("tool", tool, {}, "damaged")]


@for_each("size", [1, 2, 10_000])
@for_each("text", TEXT.values())
def test_text_that_calls_nothing_leaves_byte_for_byte(text: str, size: int):
    assert split(text, size) == [("text", text)]


PIECES = [
    CALL,
    "<tool_call>",
    "</tool_call>",
    "<tool_calls>",
    '{"name": "a", "arguments": {"x": "<", "y": [1]}}',
    '{"name":',
    '"arguments":',
    '{"a": 1}',
    "{",
    "}",
    "[",
    "]",
    ",",
    '"',
    "\\",
    "<function=seek>",
    "</function>",
    "<parameter=line>",
    "<parameter=q>",
    "</parameter>",
    '<invoke name="b">',
    "</invoke>",
    "```tool_call\n",
    "```",
    "```py\n",
    "```json\n",
    "`",
    "``",
    "\n",
    "\n\n",
    " ",
    "text",
    "5",
    "<",
    "é😀",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=16).map("".join)


@settings(max_examples=examples(150))
@given(text=TEXTS, data=st.data())
def test_any_chunking_gives_the_same_parts(text: str, data: st.DataObject):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    chunks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parts_of(scanner, [text])
    assert parts_of(scanner, chunks) == whole
    assert parts_of(scanner, list(text)) == whole


@given(st.text(alphabet=st.characters(exclude_characters="<"), max_size=200), st.integers(1, 5))
def test_text_without_tags_leaves_byte_for_byte(text: str, size: int):
    text = text.replace("```tool", "```other")
    assert split(text, size) == ([("text", text)] if text else [])


PLAIN_TEXT = st.text(alphabet=st.characters(exclude_characters="<`"), min_size=1, max_size=60)


@given(before=PLAIN_TEXT, after=PLAIN_TEXT, size=st.integers(1, 7))
def test_text_around_a_call_leaves_byte_for_byte(before: str, after: str, size: int):
    before, after = f"x{before}", f"y{after}z"
    assert split(f"{before}{CALL}{after}", size) == [("text", before), READ, ("text", after)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@given(value=st.dictionaries(st.text(max_size=8), JSON, max_size=4), size=st.integers(1, 9), pretty=st.booleans())
def test_any_input_arrives_as_it_was_written(value: dict[str, object], size: int, pretty: bool):
    body = json.dumps({"name": "a", "arguments": value}, indent=2 if pretty else None, ensure_ascii=False)
    assert split(f"<tool_call>\n{body}\n</tool_call>", size) == [("tool", "a", value)]


@given(value=st.text(max_size=60), size=st.integers(1, 9))
def test_any_text_may_be_a_parameter_in_markup(value: str, size: int):
    value = value.replace("</", "< /")
    assert split(f"<function=a>\n<parameter=v>\n{value}\n</parameter>\n</function>", size) == [
        ("tool", "a", {"v": value})
    ]


def given_for(chunks: list[str], make: Callable[[], TextCallScanner] = scanner) -> list[list[object]]:
    stage = TextSplitFilter(make)
    list(stage.feed(PartStart(0, "text")))
    return [list(stage.feed(TextDelta(0, chunk))) for chunk in chunks]


def test_a_call_is_given_while_it_is_written():
    chunks = ["<tool_call>", '{"name": "read",', ' "arguments": {"path"', ': "a.t', 'xt"}}', "</tool_call>"]
    _, first, second, third, fourth, last = given_for(chunks)
    assert first == []
    start, started = second
    assert isinstance(start, PartStart) and (start.kind, start.tool) == ("tool", "read") and start.call_id
    assert started == InputDelta(0, '{"path"')
    assert (third, fourth, last) == ([InputDelta(0, ': "a.t')], [InputDelta(0, 'xt"}'), PartEnd(0)], [])


def test_markup_is_given_while_it_is_written():
    chunks = ["<function=write>\n<parameter=text>\n", "one ", "two\n", "three\n</parameter>", "</function>"]
    texts = [[delta.text for delta in group if isinstance(delta, InputDelta)] for group in given_for(chunks)]
    assert texts == [['{"text":"'], ["one "], ["two"], ["\\nthree", '"'], ["}"]]


def test_text_is_given_as_soon_as_it_cannot_be_a_call():
    texts = [
        [delta.text for delta in group if isinstance(delta, TextDelta)]
        for group in given_for(["a <to", "ols> ", "`", "x"])
    ]
    assert texts == [["a "], ["<tools> "], ["`"], ["x"]]


def test_every_call_has_a_unique_id_and_the_answer_ends_for_its_calls():
    answer = answer_of(scanner, [CALL, CALL])
    assert len({part.call_id for part in answer.message.parts}) == 2
    assert answer.finish == "tool_use"
    assert answer_of(scanner, ["Hello"]).finish == "stop"
