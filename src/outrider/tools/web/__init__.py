"""Pages of the web: fetched within limits, from public addresses only, and turned into text with the first of them."""

from typing import TYPE_CHECKING

from outrider.lazy import lazy_names

if TYPE_CHECKING:
    from outrider.tools.web.markdown import html_to_text
    from outrider.tools.web.reading import is_html, page_text

__all__ = ["html_to_text", "is_html", "page_text"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "outrider.tools.web.markdown": "html_to_text",
        "outrider.tools.web.reading": "is_html page_text",
    },
)
