"""The MCP tools of one session: a few are sent with their schemas; many are found by a search and called by name.

The tools that are sent are chosen before the first request and stay the same bytes, so that the provider's cached
prefix stays valid when servers come and go. What changes later is announced by text at the end of the conversation.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Annotated, Any

import msgspec

from outrider.errors import ToolFailure
from outrider.tools.mcp.connection import ServerFault, truncate_text
from outrider.tools.mcp.server import ServerStatus
from outrider.tools.mcp.toolset import McpTool
from outrider.tools.tool import ForwardingTool, Tool, ToolResult
from outrider.types.messages import MCP_SERVERS, Message
from outrider.types.parts import CompactionPart
from outrider.types.request import ServerOverview, ToolSpec
from outrider.types.tool_declaration import ToolDeclaration
from outrider.types.validate import is_object

FIND_TOOL = "find_mcp_tools"
CALL_TOOL = "call_mcp_tool"
MAX_SENT_BYTES = 6_000  # of all schemas that are sent with each request; with more, all tools are on demand
MAX_NOTE_LENGTH = 5_000  # characters of an announcement
_MAX_FOUND = 8
_MAX_FOUND_LENGTH = 20_000
_MAX_DESCRIPTION = 2_000
_MAX_NAMED = 40
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W_a-zA-Z0-9]+")


def summarize_servers(
    status: Mapping[str, ServerStatus], tools: Iterable[McpTool], first_tools: MutableMapping[str, frozenset[str]]
) -> list[ServerOverview]:
    """Returns an overview of each server, in the order of their names. `first_tools` has the tools of each server when
    it was first ready; those of a server that is ready now are added."""
    tools_of_server: dict[str, list[McpTool]] = {}
    for tool in tools:
        tools_of_server.setdefault(tool.definition.server, []).append(tool)
    return [
        _summarize(name, server_status, tools_of_server.get(name, ()), first_tools)
        for name, server_status in sorted(status.items())
    ]


def _summarize(
    server: str, status: ServerStatus, tools: Sequence[McpTool], first_tools: MutableMapping[str, frozenset[str]]
) -> ServerOverview:
    names = frozenset(tool.definition.name for tool in tools)
    is_ready = status.state == "ready" and bool(names)
    first_names = first_tools.setdefault(server, names) if is_ready else names
    return ServerOverview(
        server,
        status.state,
        status.error,
        len(tools),
        tuple(tool.definition.name for tool in tools if tool.has_changed),
        tuple(sorted(names - first_names)),
        tuple(sorted(first_names - names)),
    )


class AnnouncedServers(msgspec.Struct, omit_defaults=True):
    """What a session has announced about its servers, stored with the input whose text announced it: the definitions
    that are sent with each request, and a fingerprint of the state of each server."""

    sent: tuple[ToolSpec, ...] = ()
    servers: dict[str, str] = {}


class McpToolCatalog:
    """The MCP tools of one session by name, the tools on demand included."""

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self.tools: dict[str, Tool] = {}
        self.sent: tuple[ToolSpec, ...] | None = None
        self._announced: AnnouncedServers | None = None
        self._read_until = 0  # messages whose records were read
        self._read_records(messages)
        self._current: dict[str, McpTool] = {}
        self._own_tools = [self._make_find_tool(), self._make_call_tool()]

    def update(self, current: Sequence[McpTool], resource_tools: Iterable[Tool]) -> bool:
        """Replaces the tools by the current ones of the servers and by `resource_tools`. Returns whether a tool was
        added, removed or changed. The first update chooses the tools that are sent, unless `sent` was stored before."""
        fingerprints = {tool.name: tool.fingerprint for tool in current}
        if self.tools and fingerprints == {name: tool.fingerprint for name, tool in self._current.items()}:
            return False
        self._current = {tool.name: tool for tool in current}
        if self.sent is None:
            specs = tuple(tool.spec() for tool in current)
            self.sent = specs if len(msgspec.json.encode(specs)) <= MAX_SENT_BYTES else ()
        sent = {spec.name: self._sent_tool(spec) for spec in self.sent}
        for tool in current:
            tool.is_on_demand = tool.name not in sent
        fixed = {tool.name: tool for tool in (*self._own_tools, *resource_tools)}
        self.tools = {**sent, **{name: tool for name, tool in self._current.items() if name not in sent}, **fixed}
        return True

    def _sent_tool(self, spec: ToolSpec) -> Tool:
        """Returns the tool of a definition that is sent; the definition stays the same if the server changes it."""
        tool = self._current.get(spec.name)
        if tool is None:
            return _missing_tool(spec)
        tool.sent_spec = spec
        return tool

    def announce(
        self, servers: Sequence[ServerOverview], messages: Sequence[Message]
    ) -> tuple[str, dict[str, Any] | None]:
        """Returns a text for the model about servers that changed since the last announcement in the transcript, and
        the record to store with it, or None if nothing changed. The text contains no error messages, because the
        servers write them and they would look like the user's words."""
        self._read_records(messages)
        states = {server.name: self._fingerprint(server) for server in servers}
        announced = self._announced
        if announced is not None and states == announced.servers:
            return "", None
        self._announced = AnnouncedServers(self.sent or (), states)
        return self._describe_changes(servers, states, announced), msgspec.to_builtins(self._announced)

    def _read_records(self, messages: Sequence[Message]) -> None:
        """Reads the announcements in new messages. A compaction removes earlier announcements from the prompt."""
        for message in messages[self._read_until :]:
            if (stored := message.metadata.get(MCP_SERVERS)) is not None:
                with suppress(msgspec.ValidationError):
                    self._announced = msgspec.convert(stored, AnnouncedServers)
                    self.sent = self._announced.sent
            if any(part.summary for part in message.get_parts_by_type(CompactionPart)):
                self._announced = None
        self._read_until = len(messages)

    def _describe_changes(
        self, servers: Sequence[ServerOverview], states: Mapping[str, str], announced: AnnouncedServers | None
    ) -> str:
        old_states = announced.servers if announced else {}
        changed = [server for server in servers if states[server.name] != old_states.get(server.name)]
        lines = [self._describe(server, MAX_NOTE_LENGTH // len(changed)) for server in changed]
        lines += [f"- {name}: removed" for name in old_states if name not in states]
        if not any(lines):
            return ""
        head = "The MCP servers have changed:" if announced else "MCP servers:"
        tail = f"{FIND_TOOL} returns how the tools are called; {CALL_TOOL} calls them."
        return "\n".join([head, *(line for line in lines if line), tail])

    def _fingerprint(self, server: ServerOverview) -> str:
        marks = [tool.fingerprint for tool in self._current.values() if tool.definition.server == server.name]
        state = "connecting" if server.state == "connecting" and not marks else server.state
        return f"{state} {sha256(''.join(marks).encode()).hexdigest()[:12]}"

    def _describe(self, server: ServerOverview, room: int) -> str:
        """Returns a line about a server, or "" if it is ready and all of its tools are sent."""
        tools = [tool for tool in self._current.values() if tool.definition.server == server.name]
        name = " ".join(server.name.split())
        if server.state != "ready" and not tools:
            return f"- {name}: {'still connecting' if server.state == 'connecting' else 'not available'}"
        announced = [tool.name for tool in tools if tool.is_on_demand or tool.spec_differs]
        if server.state != "ready":
            return f"- {name}: not connected at present"
        if not announced:
            return "" if tools else f"- {name}: ready, without tools"
        prefix, listed, length = f"mcp__{server.name}__", list[str](), 0
        for tool_name in announced:
            length += len(tool_name) + 2
            if length > room - len(name) - 60:
                break
            listed.append(tool_name)
        hidden = len(announced) - len(listed)
        names = ", ".join(listed) + (f", and {hidden} more named {prefix}…" if hidden else "")
        return f"- {name}: {len(tools)} tools: {names}"

    def _make_find_tool(self) -> Tool:
        async def find_mcp_tools(
            query: Annotated[str, "words about what the tool does, or names of tools"],
            server: Annotated[str | None, "only tools of this MCP server"] = None,
        ) -> ToolResult:
            """Find tools of MCP servers, and how they are called."""
            return self._search(query, server)

        return Tool(find_mcp_tools, declares=ToolDeclaration("talk"), repeatable=True)

    def _make_call_tool(self) -> Tool:
        async def call_mcp_tool(
            tool: Annotated[str, "the name that find_mcp_tools returned"], arguments: dict[str, Any]
        ) -> str:
            """Call a tool of an MCP server that is not in your list of tools."""
            near = self._rank(tool)[:_MAX_FOUND]
            definitions = "\n".join(_format_definition(similar_tool) for similar_tool in near)[:_MAX_FOUND_LENGTH]
            hint = f" These are similar:\n{definitions}" if definitions else ""
            raise ToolFailure(f"There is no tool {tool!r}; {FIND_TOOL} finds tools.{hint}")

        return ForwardingTool(call_mcp_tool, declares=ToolDeclaration("talk"))

    def _search(self, query: str, server: str | None) -> ToolResult:
        tools = [tool for tool in self._current.values() if server in (None, "", tool.definition.server)]
        if server and not tools:
            names = sorted({tool.definition.server for tool in self._current.values()})
            raise ToolFailure(f"no MCP server {server!r} has tools; these have: {', '.join(names) or 'none'}")
        ranked = self._rank(query, tools)
        if not ranked:
            listed = sorted(tool.name for tool in tools)
            hidden = f" and {len(listed) - _MAX_NAMED} more" if len(listed) > _MAX_NAMED else ""
            names = ", ".join(listed[:_MAX_NAMED]) + hidden
            return ToolResult(f"No tool matches. There are: {names or 'no tools'}", title="no match")
        texts, length = list[str](), 0
        for tool in ranked[:_MAX_FOUND]:
            text = _format_definition(tool)
            length += len(text)
            if texts and length > _MAX_FOUND_LENGTH:
                break
            texts.append(text)
        other_names = [tool.name for tool in ranked[len(texts) :]][:_MAX_NAMED]
        footer = f"\n\nOther matches: {', '.join(other_names)}" if other_names else ""
        return ToolResult("\n\n".join(texts) + footer, title=f"{len(ranked)} of {len(tools)} tools")

    def _rank(self, query: str, tools: Sequence[McpTool] | None = None) -> list[McpTool]:
        """Returns the tools that match, best first: by exact names, then by the weight of common words. A word of a
        name has more weight than one of a description, and a rare word more than a frequent one."""
        tools = list(self._current.values()) if tools is None else tools
        words, names = set(_words(query)), set(re.split(r"[\s,;]+", query.strip().lower()))
        indexed = [(tool, _index_tool(tool)) for tool in tools]
        frequency = Counter(word for _, index in indexed for word in index)

        def score(tool: McpTool, index: Mapping[str, float]) -> float:
            exact = names & {tool.name.lower(), tool.definition.name.lower()}
            return 100.0 * len(exact) + sum(
                index[word] * math.log(1 + len(tools) / frequency[word]) for word in words if word in index
            )

        scored = [(score(tool, index), tool) for tool, index in indexed]
        return [
            tool for tool_score, tool in sorted(scored, key=lambda pair: (-pair[0], pair[1].name)) if tool_score > 0
        ]


def _index_tool(tool: McpTool) -> dict[str, float]:
    """Returns the words of a tool with their weights."""
    definition, index = tool.definition, dict[str, float]()
    parameters = definition.parameters.get("properties")
    names = " ".join(parameters) if is_object(parameters) else ""
    for text, weight in (
        (names, 0.5),
        (definition.description[:_MAX_DESCRIPTION], 1.0),
        (f"{definition.server} {definition.title or ''}", 1.0),
        (definition.name, 3.0),
    ):
        index.update((word, max(weight, index.get(word, 0.0))) for word in _words(text))
    return index


def _words(text: str) -> list[str]:
    """Returns the words of a text in lowercase, without a final s; a name such as `listOpenIssues` has three words."""
    words = (word.lower() for word in _WORD.findall(text))
    return [word[:-1] if len(word) > 3 and word.endswith("s") else word for word in words]


def _format_definition(tool: McpTool) -> str:
    schema = msgspec.json.encode(tool.definition.parameters).decode()
    about = truncate_text(tool.description.strip(), _MAX_DESCRIPTION)
    return f"{tool.name}: {about}\narguments: {schema}"


def _missing_tool(spec: ToolSpec) -> Tool:
    """Returns a substitute for a tool whose definition is sent although its server does not offer it now."""

    async def refuse(**_: object) -> str:
        raise ServerFault(f"{spec.name} is not available now: its MCP server is not connected or has removed it")

    return Tool.from_schema(spec.name, spec.description, spec.parameters, refuse, declares=ToolDeclaration("talk"))
