"""Results of MCP servers as tool results."""

import base64

import mcp_types as wire
import pytest

from outrider.errors import ToolFailure
from outrider.tools.mcp.config import ServerLimits
from outrider.tools.mcp.sdk_session import call_result, resource_result, tool_definition
from outrider.types.tool_state import Attachment

PNG = base64.b64encode(b"\x89PNG and more").decode()


def answer(*content, **more):
    return call_result(wire.CallToolResult(content=list(content), **more))


def text(content):
    return wire.TextContent(text=content)


def test_texts_are_joined():
    assert answer(text("one"), text("two")).content == "one\ntwo"


def test_images_audio_and_blobs_become_attachments_in_their_order():
    blob = wire.BlobResourceContents(uri="file:///a/b.bin", blob="AAAA", mime_type=None)
    result = answer(
        wire.ImageContent(data=PNG, mime_type="image/png"),
        wire.AudioContent(data="AAAA", mime_type="audio/wav"),
        wire.EmbeddedResource(resource=blob),
    )
    assert result.attachments == (
        Attachment("image/png", data=PNG),
        Attachment("audio/wav", data="AAAA"),
        Attachment("application/octet-stream", data="AAAA", name="b.bin"),
    )
    assert result.content.startswith("[attached: image/png]\n[attached: audio/wav]")


@pytest.mark.parametrize(
    ("data", "kind"), [("not base64!", "image/png"), (base64.b64encode(b"GIF?").decode(), "image/png")]
)
def test_a_file_that_is_not_what_it_claims_is_left_out_and_reported(data, kind):
    result = answer(wire.ImageContent(data=data, mime_type=kind))
    assert result.attachments == ()
    assert "left out" in result.content


def test_links_are_reported_and_never_attached():
    result = answer(wire.ResourceLink(uri="https://evil.example/x", name="x", description="click"))
    assert result.attachments == ()
    assert result.content == "[resource https://evil.example/x (x: click)]"
    assert result.metadata["resource_links"][0]["uri"] == "https://evil.example/x"


def test_structured_content_is_preserved_and_shown_where_there_is_no_text():
    assert answer(text("3"), structured_content={"total": 3}).metadata == {"structured": {"total": 3}}
    assert answer(structured_content={"total": 3}).content == '{"total":3}'
    large = answer(text("many"), structured_content={"rows": ["x" * 100] * 1000})
    assert large.metadata == {}


def test_an_error_is_raised_with_its_message_and_bounded():
    with pytest.raises(ToolFailure, match=r"^no such file$"):
        answer(text("no such file"), is_error=True)
    with pytest.raises(ToolFailure) as raised:
        answer(text("x" * 1_000_000), is_error=True)
    assert len(raised.value.message) < 11_000
    with pytest.raises(ToolFailure, match="gave no reason"):
        answer(is_error=True)


def test_a_resource_of_one_text_is_that_text():
    assert resource_result([wire.TextResourceContents(uri="a://b", text="words")]).content == "words"
    assert resource_result([]).content == ""


def test_a_definition_is_bounded_and_its_schema_an_object():
    tool = wire.Tool(name="t", description="d" * 50_000, input_schema={"properties": {}})
    definition = tool_definition("s", tool, ServerLimits())
    assert definition is not None
    assert len(definition.description) < 11_000
    assert definition.parameters == {"properties": {}, "type": "object"}
    endless = wire.Tool(name="t", input_schema={"type": "object", "description": "x" * 200_000})
    assert tool_definition("s", endless, ServerLimits()) is None
