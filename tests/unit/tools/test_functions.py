"""Methods, partials, generators and callable objects as tools, and docstrings of every style."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial, wraps
from typing import Any, Optional, TypedDict, Unpack, cast

import pytest

from outrider import ConfigurationError, Tool, ToolContext, ToolFailure, ToolResult
from outrider.tools.tool import tools_by_name
from outrider.tools.type_notes import parse_docstring


class Shop:
    """A shop."""

    def __init__(self, name: str) -> None:
        self.name = name

    @Tool(timeout=3)
    def price(self, item: str) -> str:
        """Return the price.

        Args:
            item: what to buy
        """
        return f"{item} of {self.name}"

    @Tool
    async def stock(self, item: str, context: Optional[ToolContext] = None) -> str:  # noqa: UP045
        return f"{item} in {self.name} {context.session_id if context else ''}"

    def plain(self, item: str) -> str:
        return f"plain {item} of {self.name}"

    @staticmethod
    def fixed(item: str) -> str:
        return f"fixed {item}"

    @classmethod
    def named(cls, item: str) -> str:
        return f"{item} of {cls.__name__}"


class Lookup:
    """Look things up."""

    def __call__(self, word: str) -> str:
        return f"found {word}"


class AsyncLookup:
    async def __call__(self, word: str) -> str:
        """Look up a word."""
        return f"found {word}"


def convert(text: str, *, unit: str, factor: int = 2) -> str:
    """Convert a text."""
    return f"{text} {unit} {factor}"


def logged(function: Any) -> Any:
    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Options(TypedDict, total=False):
    depth: int


def search(word: str, **options: Unpack[Options]) -> str:
    return f"{word} {options}"


CASES: list[tuple[Any, str, set[str], dict[str, Any], str]] = [
    (Shop("A").price, "price", {"item"}, {"item": "tea"}, "tea of A"),
    (Shop("A").stock, "stock", {"item"}, {"item": "tea"}, "tea in A "),
    (Shop("A").plain, "plain", {"item"}, {"item": "tea"}, "plain tea of A"),
    (Shop.fixed, "fixed", {"item"}, {"item": "tea"}, "fixed tea"),
    (Shop.named, "named", {"item"}, {"item": "tea"}, "tea of Shop"),
    (Lookup(), "Lookup", {"word"}, {"word": "a"}, "found a"),
    (AsyncLookup(), "AsyncLookup", {"word"}, {"word": "a"}, "found a"),
    (partial(convert, unit="km"), "convert", {"text", "factor"}, {"text": "a"}, "a km 2"),
    (partial(convert, "b", unit="km"), "convert", {"factor"}, {"factor": 3}, "b km 3"),
    (partial(Shop("A").plain), "plain", {"item"}, {"item": "tea"}, "plain tea of A"),
    (logged(Shop.fixed), "fixed", {"item"}, {"item": "tea"}, "fixed tea"),
    (search, "search", {"word", "depth"}, {"word": "a", "depth": "3"}, "a {'depth': 3}"),
]


@pytest.mark.parametrize(("function", "name", "parameters", "arguments", "result"), CASES, ids=range(len(CASES)))
async def test_every_kind_of_function_is_a_tool(function, name, parameters, arguments, result):
    (tool,) = tools_by_name([function]).values()
    assert tool.name == name
    assert tool.parameters["properties"].keys() == parameters
    assert await tool.execute(**arguments) == result


def test_descriptions_come_from_the_wrapped_function():
    assert Tool(partial(convert, unit="km")).description == "Convert a text."
    assert Tool(Lookup()).description == "Look things up."
    assert Tool(AsyncLookup()).description == "Look up a word."
    assert Shop("A").price.parameters["properties"]["item"]["description"] == "what to buy"
    assert Shop("A").price.timeout == 3


def test_two_objects_have_two_tools():
    first, second = Shop("A"), Shop("B")
    assert (first.price("tea"), second.price("tea")) == ("tea of A", "tea of B")


class Opaque:
    pass


async def coroutine() -> None: ...


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tools_by_name([Shop.price])["price"].parameters, "method without its object"),
        (lambda: Tool(Shop.plain).parameters, "method without its object"),
        (lambda: Tool(Shop), "got the class Shop; pass one of its methods"),
        (lambda: Tool(classmethod(convert)), "write @classmethod above @Tool"),
        (lambda: Tool(property(convert)), "write @property above @Tool"),
        (lambda: Tool(coroutine()), "got a coroutine; pass the function without"),
        (lambda: Tool(len), "a model cannot fill in"),
        (lambda: Tool(lambda a, /: a, name="t"), "a model cannot fill in"),
        (lambda: Tool("search"), "got str; decorate a function"),
    ],
)
def test_what_cannot_be_a_tool_is_rejected_with_a_reason(make: Any, message: str):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_hints_may_name_classes_that_are_defined_later():
    namespace: dict[str, Any] = {"Tool": Tool, "__name__": "later"}
    exec("@Tool\ndef take(value: 'Later') -> None: ...\n", namespace)
    with pytest.raises(ConfigurationError, match="a type hint names 'Later'"):
        _ = namespace["take"].parameters
    namespace["Later"] = int
    assert namespace["take"].parameters["properties"]["value"] == {"type": "integer"}


async def test_chunks_of_generators_are_progress_and_their_text_is_the_result():
    reported: list[str] = []
    context = ToolContext(report=lambda progress: reported.append(progress.output))

    def count(to: int) -> Iterator[str]:
        for number in range(to):
            yield f"{number} "

    async def slowly(to: int) -> AsyncIterator[dict[str, int]]:
        for number in range(to):
            await asyncio.sleep(0)
            yield {"n": number}

    def ends() -> Any:
        yield "working"
        return ToolResult("all of it")

    assert await Tool(count).call({"to": 3}, context) == "0 1 2 "
    assert await Tool(slowly).call({"to": 2}, context) == '{"n":0}\n{"n":1}\n'
    assert await Tool(ends).call({}, context) == ToolResult("all of it")
    assert reported == ["0 ", "1 ", "2 ", '{"n":0}\n', '{"n":1}\n', "working"]


async def test_an_object_without_a_text_is_never_sent_as_its_address():
    with pytest.raises(ToolFailure, match="returned a value of type Opaque that cannot be written as JSON"):
        await Tool(lambda: Opaque(), name="t").execute()  # noqa: PLW0108
    with pytest.raises(ToolFailure, match="list that cannot be written"):
        await Tool(lambda: [Opaque()], name="t").execute()
    for value in (len, iter([1]), threading.Lock(), re.match("a", "a")):
        with pytest.raises(ToolFailure, match=r"has no text but <.*; return a string, a dict or a dataclass"):
            await Tool(partial(lambda found: {"a": found}, value), name="t").execute()


async def test_a_coroutine_that_a_tool_did_not_await_is_an_error():
    async def read() -> str:
        return "text"

    async def look() -> object:
        return read()

    with pytest.raises(ToolFailure, match="returned a coroutine, which was not awaited; write `return await"):
        await Tool(look).execute()


async def test_a_failure_with_an_exception_as_its_message_has_the_text_of_it():
    assert ToolFailure(cast("Any", OSError("no disk"))).message == "no disk"


GOOGLE = """Search the web.

    It is fast.

    Args:
        query (str, optional): what to look for,
            in any language

            and in any form
        limit: how many
        **options: more

    Returns:
        The pages.
    """
NUMPY = """Search the web.

    It is fast.

    Parameters
    ----------
    query : str, optional
        what to look for,
        in any language

        and in any form
    limit, options
        how many

    Returns
    -------
    str
        The pages.
    """
SPHINX = """Search the web.

    It is fast.

    :param str query: what to look for,
        in any language
    :param limit: how many
    :type limit: int
    :returns: The pages.
    """


@pytest.mark.parametrize(
    ("text", "query", "limit", "rest"),
    [
        (GOOGLE, "what to look for, in any language\n\nand in any form", "how many", "Returns:\n    The pages."),
        (
            NUMPY,
            "what to look for, in any language\n\nand in any form",
            "how many",
            "Returns:\nstr\n    The pages.",
        ),
        (SPHINX, "what to look for, in any language", "how many", "Returns: The pages."),
    ],
)
def test_docstrings_are_parsed_completely(text: str, query: str, limit: str, rest: str):
    parsed = parse_docstring(text)
    assert parsed.parameters["query"] == query
    assert parsed.parameters["limit"] == limit
    assert parsed.summary == f"Search the web.\n\nIt is fast.\n\n{rest}"


def test_a_text_that_looks_like_a_section_stays():
    assert parse_docstring("Parameters are read.\n\nNote: it is slow.").summary == (
        "Parameters are read.\n\nNote: it is slow."
    )
    assert parse_docstring(None) == parse_docstring("")


LINSPACE = """
    Return evenly spaced numbers over a specified interval.

    Parameters
    ----------
    start : array_like
        The starting value of the sequence.
    num : int, optional
        Number of samples to generate. Default is 50. Must be
        non-negative.

        .. versionadded:: 1.9.0

    x1, x2, ..., xn : {array_like, ``'a'``}
        The arrays.
    \\*args : tuple
        Extra arguments.
    **kwargs
        Everything else:

        - one
        - two

    Returns
    -------
    samples : ndarray
        There are `num` samples.

    Raises
    ------
    ValueError
        If `num` is negative.

    See Also
    --------
    arange : Similar.

    Other Parameters
    ----------------
    axis : int, optional
        The axis.

    Examples
    --------
    >>> linspace(2.0)
    """
REQUEST = """Constructs and sends a :class:`Request <Request>`.

    :param method: method for the new :class:`Request` object: ``GET``, ``OPTIONS``.
    :param timeout: (optional) How many seconds to wait, as a float, or a :ref:`(connect timeout, read
        timeout) <timeouts>` tuple.

        Longer is better.
    :type timeout: float or tuple
    :param dict[str, int] \\**kwargs: the rest
    :return: :class:`Response <Response>` object
    :rtype: requests.Response
    :raises ValueError: if it is wrong

    Usage::

      >>> import requests
    """
TRANSFORM = """Transforms a batch.

    Args:
        input (Tensor): the input: one tensor.
        size, stride (int or tuple(int, list(int)), optional): both (see f(x)): sizes. Default: ``1``
            - nested: no parameter
        text (`str`, *optional*, defaults to `None`):
            The text.

        - `flag`: in a list
        \\*args: more

    Keyword args:
        out (Tensor, optional): the output
        without an indent.

    Returns:
        Tensor: the result

    Example::

        >>> transform(a)
    """
INDENTED = """Shows a tree.

    Parameters
    ----------
        path: Root path
        limit (int): Maximum depth

    Returns
    -------
        str: the tree
    """


def test_docstrings_of_numpy_have_no_underlines_and_all_parameters():
    parsed = parse_docstring(LINSPACE)
    assert parsed.summary == (
        "Return evenly spaced numbers over a specified interval.\n\nReturns:\nsamples : ndarray\n    There are `num` "
        "samples.\n\nRaises:\nValueError\n    If `num` is negative.\n\nSee Also:\narange : Similar.\n\n"
        "Examples:\n>>> linspace(2.0)"
    )
    assert parsed.parameters == {
        "start": "The starting value of the sequence.",
        "num": "Number of samples to generate. Default is 50. Must be non-negative.\n\n.. versionadded:: 1.9.0",
        "x1": "The arrays.",
        "x2": "The arrays.",
        "xn": "The arrays.",
        "args": "Extra arguments.",
        "kwargs": "Everything else:\n\n- one - two",
        "axis": "The axis.",
    }
    indented = parse_docstring(INDENTED)
    assert indented.parameters == {"path": "Root path", "limit": "Maximum depth"}
    assert indented.summary == "Shows a tree.\n\nReturns:\n    str: the tree"
    assert parse_docstring("A title\n=======\n\nText - more.\n---").summary == "A title\n\nText - more.\n---"


def test_docstrings_of_sphinx_have_paragraphs_and_results():
    parsed = parse_docstring(REQUEST)
    assert parsed.parameters == {
        "method": "method for the new :class:`Request` object: ``GET``, ``OPTIONS``.",
        "timeout": "(optional) How many seconds to wait, as a float, or a :ref:`(connect timeout, read timeout) "
        "<timeouts>` tuple.\n\nLonger is better.",
        "kwargs": "the rest",
    }
    assert parsed.summary == (
        "Constructs and sends a :class:`Request <Request>`.\n\nReturns: :class:`Response <Response>` object\n"
        "Raises ValueError: if it is wrong\n\nUsage::\n\n  >>> import requests"
    )


def test_docstrings_of_google_have_nested_types_lists_and_keyword_sections():
    parsed = parse_docstring(TRANSFORM)
    both = "both (see f(x)): sizes. Default: ``1`` - nested: no parameter"
    assert parsed.parameters == {
        "input": "the input: one tensor.",
        "size": both,
        "stride": both,
        "text": "The text.",
        "flag": "in a list",
        "args": "more",
        "out": "the output without an indent.",
    }
    assert parsed.summary == (
        "Transforms a batch.\n\nReturns:\n    Tensor: the result\n\nExample::\n\n    >>> transform(a)"
    )
    assert parse_docstring("It has these\narguments:\nnone.").summary == "It has these\narguments:\nnone."
