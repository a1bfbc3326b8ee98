"""Tools of an MCP server: this program is both, `mcp_tools.py serve` is the server that an agent uses."""

import asyncio
import sys
from pathlib import Path

from outrider import Agent, Provider, async_run
from outrider.mcp import McpToolset, StdioServer


def serve() -> None:
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("warehouse")

    @server.tool()
    def stock(item: str) -> int:
        """Return the number of items in stock."""
        return {"tea": 12}.get(item, 0)

    @server.tool()
    def reorder(item: str) -> str:
        """Order more of an item."""
        return f"ordered {item}"

    server.run()


async def main() -> None:
    warehouse = StdioServer(name="warehouse", command=sys.executable, args=(str(Path(__file__)), "serve"))
    script = [{"tool": "stock", "input": {"item": "tea"}}, "There are 12."]
    model = Provider("demo", kind="scripted", options={"script": script})
    clerk = Agent("clerk", "You answer questions about the stock.", model="demo", provider="demo")
    async with McpToolset(warehouse, prefix="", approval=["reorder"]) as toolset:
        print(sorted(tool.name for tool in toolset.tools))
        result = await async_run(clerk, "How much tea is there?", tools=toolset.tools, providers=[model])
        print(result.output)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else asyncio.run(main())
