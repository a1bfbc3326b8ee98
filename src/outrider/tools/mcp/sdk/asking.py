"""A connection in use: what is asked of a server through the SDK, and its answers as values."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import mcp_types as wire
from mcp import Client, MCPError
from pydantic import ValidationError

from outrider.tools.context import Progress
from outrider.tools.mcp.config import Limits, ServerConfig, hide
from outrider.tools.mcp.definitions import Definition, Prompt, PromptArgument, Resource
from outrider.tools.mcp.faults import LinkLost, ServerFault, SessionForgotten, cut
from outrider.tools.mcp.link import Life, PromptMessage, Report
from outrider.tools.mcp.sdk.contents import encoded, gathered, resource_of, result_of
from outrider.tools.tool import ToolResult

T = TypeVar("T")
Page = Callable[[str | None], Awaitable[tuple[Iterable[T], str | None]]]
CLOSED = "Connection closed"  # the SDK's words
_LONGEST = 2_000


class SdkLink:
    """See `Link`."""

    def __init__(self, client: Client, config: ServerConfig, limits: Limits, life: Life) -> None:
        self._client = client
        self._config = config
        self._limits = limits
        self._life = life

    @property
    def instructions(self) -> str:
        return cut(self._client.instructions or "", self._limits.description)

    async def list_tools(self) -> list[Definition]:
        if self._client.server_capabilities.tools is None:
            return []

        async def page(cursor: str | None) -> tuple[list[wire.Tool], str | None]:
            found = await self._client.list_tools(cursor=cursor)
            return found.tools, found.next_cursor

        listed = await self._asked(self._all(page))
        definitions = [definition_of(self._config.name, tool, self._limits) for tool in listed]
        return [definition for definition in definitions if definition is not None]

    async def list_resources(self) -> list[Resource]:
        if self._client.server_capabilities.resources is None:
            return []

        async def page(cursor: str | None) -> tuple[list[wire.Resource], str | None]:
            found = await self._client.list_resources(cursor=cursor)
            return found.resources, found.next_cursor

        async def template_page(cursor: str | None) -> tuple[list[wire.ResourceTemplate], str | None]:
            found = await self._client.list_resource_templates(cursor=cursor)
            return found.resource_templates, found.next_cursor

        resources = await self._asked(self._all(page))
        templates = await self._asked(self._all(template_page), missing=())
        return [*map(self._resource, resources), *map(self._template, templates)]

    async def list_prompts(self) -> list[Prompt]:
        if self._client.server_capabilities.prompts is None:
            return []

        async def page(cursor: str | None) -> tuple[list[wire.Prompt], str | None]:
            found = await self._client.list_prompts(cursor=cursor)
            return found.prompts, found.next_cursor

        return [self._prompt(prompt) for prompt in await self._asked(self._all(page))]

    async def call_tool(self, name: str, arguments: dict[str, Any], report: Report) -> ToolResult:
        async def heard(progress: float, total: float | None, message: str | None) -> None:
            text = f"{cut(message, _LONGEST)}\n" if message else ""
            report(Progress(output=text, metadata={"progress": {"done": progress, "total": total}}))

        return result_of(await self._asked(self._client.call_tool(name, arguments, progress_callback=heard)))

    async def read_resource(self, uri: str) -> ToolResult:
        return resource_of((await self._asked(self._client.read_resource(uri))).contents)

    async def get_prompt(self, name: str, arguments: dict[str, str]) -> tuple[PromptMessage, ...]:
        answer = await self._asked(self._client.get_prompt(name, arguments))
        return tuple(PromptMessage(message.role, gathered([message.content])) for message in answer.messages)

    async def _all(self, page: Page[T]) -> list[T]:
        """Every page, as far as the limit goes: a list that never ends is cut."""
        found: list[T] = []
        cursor: str | None = None
        for _ in range(self._limits.listed):
            members, following = await page(cursor)
            found += members
            if following is None or following == cursor or len(found) >= self._limits.listed:
                break
            cursor = following
        return found[: self._limits.listed]

    async def _asked(self, answer: Awaitable[T], missing: T | None = None) -> T:
        """The answer, or a fault in words without keys. A method that the server lacks answers with `missing`."""
        try:
            return await answer
        except MCPError as error:
            if error.error.code == wire.METHOD_NOT_FOUND and missing is not None:
                return missing
            raise self._fault(error) from error
        except Exception as error:
            raise ServerFault(self._hidden(words_of(error))) from error

    def _fault(self, error: MCPError) -> ServerFault:
        # Servers use the same number for errors of their own.
        if error.error.code == wire.CONNECTION_CLOSED and error.error.message == CLOSED:
            return LinkLost("it closed the connection")
        if error.error.message == "Session terminated":  # the SDK's words for a 404 within a session
            self._life.end("the server ended the session")
            return SessionForgotten("the server ended the session; nothing was run")
        about = f" ({self._life.trouble})" if self._life.trouble else ""
        return ServerFault(self._hidden(words_of(error) + about))

    def _hidden(self, text: str) -> str:
        return hide(text, self._config)

    def _resource(self, found: wire.Resource) -> Resource:
        about = cut(found.description or "", self._limits.description)
        return Resource(self._config.name, found.uri, found.name, about, found.mime_type, found.size)

    def _template(self, found: wire.ResourceTemplate) -> Resource:
        about = cut(found.description or "", self._limits.description)
        return Resource(self._config.name, found.uri_template, found.name, about, found.mime_type, is_template=True)

    def _prompt(self, found: wire.Prompt) -> Prompt:
        arguments = tuple(
            PromptArgument(one.name, one.description or "", one.required or False) for one in found.arguments or ()
        )
        return Prompt(self._config.name, found.name, cut(found.description or "", self._limits.description), arguments)


def definition_of(server: str, tool: wire.Tool, limits: Limits) -> Definition | None:
    """None for a tool whose schema is too large to be shown to a model, or cannot be written."""
    schema = encoded(tool.input_schema)
    if schema is None or len(schema) > limits.definition:
        return None
    parameters = tool.input_schema
    if parameters.get("type") != "object":  # every API wants an object there
        parameters = parameters | {"type": "object"}
    hints = tool.annotations.model_dump(exclude_none=True) if tool.annotations else {}
    title = tool.title or (tool.annotations.title if tool.annotations else None)
    return Definition(server, tool.name, cut(tool.description or "", limits.description), parameters, title, hints)


def words_of(error: BaseException) -> str:
    """What an error of the SDK, or below it, means."""
    match error:
        case MCPError():
            return cut(error.error.message, _LONGEST) or f"error {error.error.code}"
        case ValidationError():
            return f"it answered with what is not a valid answer ({error.error_count()} problems in {error.title})"
        case ServerFault():
            return error.message
        case _:
            text = str(error).strip()
            return cut(f"{type(error).__name__}: {text}" if text else type(error).__name__, _LONGEST)
