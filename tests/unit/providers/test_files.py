"""Files that an API would reject are replaced by a note, because one of them would block the conversation."""

from outrider.providers.anthropic.client import AnthropicWire
from outrider.providers.google.client import GoogleWire
from outrider.providers.openai.chat_client import ChatWire
from outrider.providers.openai.responses_client import ResponsesWire
from outrider.providers.provider import WireFormat
from outrider.types.agents import Provider
from outrider.types.parts import FilePart, ToolResultPart, ToolUsePart
from outrider.types.request import ModelMessage, Prompt, Request
from outrider.types.tool_state import Attachment
from tests.fixtures.cases import for_each

WIRES: dict[str, WireFormat] = {
    "anthropic": AnthropicWire(Provider("p", "anthropic", "k")),
    "google": GoogleWire(Provider("p", "google", "k")),
    "chat": ChatWire(Provider("p", "openai", "k")),
    "compatible": ChatWire(Provider("p", "openai", "k", "http://127.0.0.1:1/v1")),
    "responses": ResponsesWire(Provider("p", "openai-responses", "k")),
}
ALL = tuple(WIRES)
MESSAGE = b"cannot read such files"


def sent(name: str, *parts: object, model: str = "m") -> bytes:
    return WIRES[name].build_request(Request(model, Prompt([ModelMessage("user", parts)]))).body


@for_each("name", WIRES)
@for_each(
    ("mime", "url", "refused_by"),
    [
        ("image/png", "data:image/png;base64,AAAA", ()),
        ("image/jpg", "data:image/jpg;base64,AAAA", ()),
        ("image/PNG; x=y", "data:image/png;base64,AAAA", ()),
        ("image/png", "https://example.org/a.png", ()),
        ("image/gif", "data:image/gif;base64,AAAA", ("google",)),
        ("image/bmp", "data:image/bmp;base64,AAAA", ("anthropic", "google", "chat", "responses")),
        ("image/svg+xml", "data:image/svg+xml;base64,PHN2Zy8+", ()),
        ("audio/mpeg", "data:audio/mpeg;base64,AAAA", ("anthropic", "responses")),
        ("audio/ogg", "data:audio/ogg;base64,AAAA", ("anthropic", "chat", "responses")),
        ("video/mp4", "data:video/mp4;base64,AAAA", ("anthropic", "chat", "responses")),
        ("application/pdf", "data:application/pdf;base64,AAAA", ()),
        ("application/zip", "data:application/zip;base64,AAAA", ("anthropic", "google")),
        ("image/png", "file:///home/me/a.png", ALL),
        ("text/plain", "file:///home/me/a.txt", ALL),
    ],
)
def test_a_file_is_sent_or_named(name: str, mime: str, url: str, refused_by: tuple[str, ...]):
    assert (MESSAGE in sent(name, FilePart(mime=mime, url=url))) is (name in refused_by)


def test_a_picture_that_gemini_cannot_see_does_not_stand_inside_a_response():
    use = ModelMessage("assistant", (ToolUsePart(tool_id="x", tool_name="look"),))
    gif = Attachment("image/gif", "AAAA", name="a.gif")
    result = ToolResultPart(tool_use_id="x", content="seen", tool_name="look", attachments=(gif,))
    asked = Request("gemini-3-pro", Prompt([use, ModelMessage("user", (result,))]))
    assert b'}},{"text":"(a.gif of type image/gif was attached' in WIRES["google"].build_request(asked).body
