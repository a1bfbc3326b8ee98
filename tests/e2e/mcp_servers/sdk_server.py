"""A server written with the SDK: `sdk_server.py stdio`, or `sdk_server.py streamable-http|sse PORT`."""

import base64
import sys
import warnings
from typing import Annotated, Literal

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, ListRoots, Resolve, Sample
from mcp.server.mcpserver.utilities.types import Image
from mcp_types import (
    CallToolResult,
    Completion,
    CompletionArgument,
    CompletionContext,
    CreateMessageResult,
    EmbeddedResource,
    ListRootsResult,
    PromptReference,
    ResourceLink,
    ResourceTemplateReference,
    SamplingMessage,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from pydantic import BaseModel

warnings.simplefilter("ignore")
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
server = MCPServer("friendly", instructions="Be friendly.")


class Sum(BaseModel):
    total: int


class Colour(BaseModel):
    colour: str


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(total=a + b)


@server.tool()
def fail(why: str) -> str:
    """Fail for a reason."""
    raise ToolError(why)


@server.tool()
async def work(steps: int, ctx: Context) -> str:
    """Work and report progress."""
    for step in range(steps):
        await ctx.report_progress(step + 1, steps, f"step {step + 1}")
        await ctx.info(f"log {step + 1}")
    return "worked"


@server.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=PIXEL, format="png")


@server.tool()
def mixed() -> CallToolResult:
    """Text, a link and a resource."""
    return CallToolResult(
        content=[
            TextContent(text="look"),
            ResourceLink(uri="notes://today", name="today"),
            EmbeddedResource(resource=TextResourceContents(uri="notes://old", text="old words")),
        ]
    )


def which_colour() -> Elicit[Colour]:
    return Elicit("Which colour?", Colour)


def a_thought() -> Sample:
    return Sample([SamplingMessage(role="user", content=TextContent(text="Think."))], max_tokens=10)


def roots() -> ListRoots:
    return ListRoots()


@server.tool()
def paint(colour: Annotated[Colour, Resolve(which_colour)]) -> str:
    """Ask the user for a colour."""
    return f"painted {colour.colour}"


@server.tool()
def think(thought: Annotated[CreateMessageResult, Resolve(a_thought)]) -> str:
    """Let the client's model think."""
    return "thought"


@server.tool()
def where(found: Annotated[ListRootsResult, Resolve(roots)]) -> str:
    """Where the client works."""
    return " ".join(str(root.uri) for root in found.roots)


@server.tool()
async def grow(ctx: Context) -> str:
    """Get one more tool."""

    def grown() -> str:
        """Grown."""
        return "grown"

    server.add_tool(grown)
    await ctx.notify_tools_changed()
    await ctx.session.send_tool_list_changed()
    return "one more"


@server.resource("notes://today", mime_type="text/plain")
def today() -> str:
    """Notes of today."""
    return "buy milk"


@server.resource("notes://{day}")
def notes(day: str) -> str:
    """Notes of any day."""
    return f"nothing on {day}"


@server.prompt()
def greet(name: str, tone: str = "") -> str:
    """Greet a person."""
    return f"Say hello to {name}{f' ({tone})' if tone else ''}."


@server.completion()
async def complete(
    ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, context: CompletionContext | None
) -> Completion:
    known = {"name": ["Ada Lovelace", "Alan", "Grace"], "day": ["monday", "mo/day", "tuesday"], "tone": []}
    given = context.arguments if context and context.arguments else {}
    values = [f"kind to {given['name']}"] if argument.name == "tone" and given else known[argument.name]
    return Completion(values=[value for value in values if value.startswith(argument.value)])


def main(transport: Literal["stdio", "sse", "streamable-http"], port: str = "0") -> None:
    if transport == "stdio":
        server.run("stdio")
    else:
        server.run(transport, host="127.0.0.1", port=int(port))


main(*sys.argv[1:])  # pyright: ignore
