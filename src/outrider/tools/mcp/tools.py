"""The tools of servers as the tools of an agent, and two tools for what servers offer to be read."""

from collections.abc import Mapping
from typing import Annotated, Any

from outrider.tools.context import ToolContext
from outrider.tools.mcp.definitions import Definition
from outrider.tools.mcp.faults import ServerFault
from outrider.tools.mcp.server import Server
from outrider.tools.tool import Policy, Tool, ToolResult


class McpTool(Tool):
    """A tool of a server. It is never taken for read-only on the server's word, and asks again once it `has_changed`
    since somebody last looked at it."""

    definition: Definition
    has_changed: bool

    @property
    def fingerprint(self) -> str:
        return self.definition.fingerprint

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> str | ToolResult:
        return await self.function(self.definition, arguments, context)


def tool_of(
    server: Server, definition: Definition, name: str, *, has_changed: bool, policy: Policy, timeout: float
) -> McpTool:
    def evaluate(base: Policy, arguments: dict[str, Any]) -> Policy:
        return "ask" if tool.has_changed and base == "allow" else base

    tool = McpTool.from_schema(
        name,
        definition.description or definition.title or definition.name,
        definition.parameters,
        server.call,
        policy=policy,
        evaluate_policy=evaluate,
        timeout=timeout,
    )
    tool.definition = definition
    tool.has_changed = has_changed
    return tool


def resource_tools(servers: Mapping[str, Server], policy: Policy) -> list[Tool]:
    """For the model to see and read what servers offer."""

    async def list_mcp_resources(
        server: Annotated[str | None, "the MCP server to ask; all of them if left out"] = None,
    ) -> str:
        """List what MCP servers offer to read: files, records, documents, each with its URI."""
        asked = [_named(servers, server)] if server is not None else list(servers.values())
        lines: list[str] = []
        for one in asked:
            try:
                lines += [_line(found) for found in await one.list_resources()]
            except ServerFault as fault:
                lines.append(f"{one.name}: {fault.message}")
        return "\n".join(lines) or "There are no resources."

    async def read_mcp_resource(
        server: Annotated[str, "the MCP server that offers it"],
        uri: Annotated[str, "as list_mcp_resources gave it; parts in braces filled in"],
    ) -> ToolResult:
        """Read a resource of an MCP server by its URI."""
        return await _named(servers, server).read_resource(uri)

    return [Tool(list_mcp_resources, policy=policy), Tool(read_mcp_resource, policy=policy)]


def _named(servers: Mapping[str, Server], name: str) -> Server:
    if name not in servers:
        raise ServerFault(f"there is no MCP server {name!r}; there are: {', '.join(servers) or 'none'}")
    return servers[name]


def _line(resource: Any) -> str:
    about = " · ".join(word for word in (resource.mime_type, resource.description) if word)
    kind = "template " if resource.is_template else ""
    return f"{resource.server}: {kind}{resource.uri} ({resource.name}){f' {about}' if about else ''}"
