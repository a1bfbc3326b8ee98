"""Holds one connection through the SDK: made, used and closed in one task, whatever the server does."""

import base64
import binascii
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar, assert_never, cast

import anyio
import mcp_types as wire
import msgspec
from mcp import Client, MCPError
from mcp.client import ClientRequestContext, IncomingMessage, Transport
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from outrider.processes.spawner import Spawner
from outrider.tools.context import Progress
from outrider.tools.mcp.config import HttpServer, Limits, ServerConfig, StdioServer, hide
from outrider.tools.mcp.connection import (
    Definition,
    Host,
    Life,
    LinkLost,
    Listed,
    Prompt,
    PromptArgument,
    PromptMessage,
    Question,
    Report,
    Resource,
    ServerFault,
    SessionForgotten,
    cut,
)
from outrider.tools.mcp.sdk_http import http_transport
from outrider.tools.mcp.sdk_stdio import stdio_transport
from outrider.tools.tool import ToolResult
from outrider.types.tool_state import Attachment

LONGEST_ERROR = 10_000
LARGEST_STRUCTURE = 64 << 10  # bytes of structured content that are kept beside the text
_BEGINNINGS = {
    "image/png": b"\x89PNG",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}


def result_of(answer: wire.CallToolResult) -> ToolResult:
    """What a call came to; one that the server calls an error is raised as one."""
    result = gathered(answer.content)
    structured = (answer.structured_content is not None and encoded(answer.structured_content)) or b""
    if not result.content and structured:
        result = msgspec.structs.replace(result, content=structured.decode())
    if answer.is_error:
        raise ServerFault(cut(result.content or "the tool failed and gave no reason", LONGEST_ERROR))
    if structured and len(structured) <= LARGEST_STRUCTURE:
        metadata = result.metadata | {"structured": answer.structured_content}
        result = msgspec.structs.replace(result, metadata=metadata)
    return result


def encoded(value: Any) -> bytes | None:
    """None for what is valid JSON and yet cannot be written again: numbers beyond 64 bits, halves of letters."""
    try:
        return msgspec.json.encode(value)
    except (ValueError, OverflowError, TypeError, RecursionError):
        return None


def gathered(blocks: Iterable[wire.ContentBlock]) -> ToolResult:
    """All blocks in one result, in their order. A link is told as text and never followed: its address is the
    server's choice, and whoever reads the result would visit it."""
    texts: list[str] = []
    attachments: list[Attachment] = []
    links: list[dict[str, Any]] = []
    for block in blocks:
        match block:
            case wire.TextContent():
                texts.append(block.text)
            case wire.ImageContent() | wire.AudioContent():
                texts.append(_attach(attachments, block.data, block.mime_type, None))
            case wire.EmbeddedResource():
                texts.append(_embed(attachments, block.resource))
            case wire.ResourceLink():
                links.append({"uri": block.uri, "name": block.name, "mime_type": block.mime_type})
                about = ": ".join(word for word in (block.name, block.description) if word)
                texts.append(f"[resource {block.uri} ({about})]")
            case _:
                assert_never(block)
    metadata = {"resource_links": links} if links else {}
    return ToolResult("\n".join(text for text in texts if text), tuple(attachments), metadata=metadata)


def resource_of(contents: Sequence[wire.TextResourceContents | wire.BlobResourceContents]) -> ToolResult:
    attachments: list[Attachment] = []
    if len(contents) == 1 and isinstance(contents[0], wire.TextResourceContents):
        return ToolResult(contents[0].text)
    texts = [_embed(attachments, content) for content in contents]
    return ToolResult("\n".join(texts), tuple(attachments))


def _embed(attachments: list[Attachment], resource: wire.TextResourceContents | wire.BlobResourceContents) -> str:
    match resource:
        case wire.TextResourceContents():
            return f"[resource {resource.uri}]\n{resource.text}"
        case wire.BlobResourceContents():
            name = resource.uri.rstrip("/").rpartition("/")[2] or None
            mime_type = resource.mime_type or "application/octet-stream"
            return f"[resource {resource.uri}]\n{_attach(attachments, resource.blob, mime_type, name)}"
        case _:
            assert_never(resource)


def _attach(attachments: list[Attachment], data: str, mime_type: str, name: str | None) -> str:
    """What is no such file is left out, since a model's API would refuse the whole conversation for it."""
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return f"[a file of type {mime_type} was left out: it is not valid base64]"
    if not content.startswith(_BEGINNINGS.get(mime_type, b"")):
        return f"[a file was left out: it is not of its type, {mime_type}]"
    attachments.append(Attachment(mime_type, data=data, name=name))
    return f"[attached: {name or mime_type}]"


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


_CHANGES: dict[type[object], Listed] = {
    wire.ToolListChangedNotification: "tools",
    wire.ResourceListChangedNotification: "resources",
    wire.PromptListChangedNotification: "prompts",
}
_LONGEST_LOG = 2_000
_log = logging.getLogger("outrider.mcp")

# The SDK logs what goes wrong inside it, which is told as faults here; without listeners it would be printed.
for _name in ("mcp", "client"):
    logging.getLogger(_name).addHandler(logging.NullHandler())


async def hold(spawner: Spawner, config: ServerConfig, host: Host, life: Life, *, legacy: bool) -> None:
    """See `Hold`. One scope spans the whole life: first it is the start-up limit, at last the limit for closing."""
    scope = anyio.CancelScope(deadline=anyio.current_time() + host.limits.startup)
    client = _client(config, host, life, _transport(config, host, spawner, life), legacy=legacy)
    try:
        with scope:
            await _serve(client, scope, SdkLink(client, config, host.limits, life), life, host.limits)
    except Exception as error:  # noqa: BLE001  a fault of one server, whatever it is, stays with that server
        if not scope.cancel_called:
            life.end(life.trouble or "; ".join(dict.fromkeys(_causes(error))))
    life.end(f"it did not answer within {host.limits.startup:g} s")


async def _serve(client: Client, scope: anyio.CancelScope, link: SdkLink, life: Life, limits: Limits) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_close_with, life, scope, limits.shutdown)
        async with client:
            await life.begin(link)
            scope.deadline = math.inf
            tasks.start_soon(_listen, client, life)
            await life.over.wait()
        tasks.cancel_scope.cancel()


async def _close_with(life: Life, scope: anyio.CancelScope, grace: float) -> None:
    """A start-up is broken off; a connection in use may take its leave."""
    await life.over.wait()
    scope.deadline = anyio.current_time() + (0 if life.served is None else grace)


def _client(config: ServerConfig, host: Host, life: Life, transport: Transport, *, legacy: bool) -> Client:
    callbacks = _Callbacks(config, host, life)
    return Client(
        transport,
        mode="legacy" if legacy else "auto",
        client_info=wire.Implementation(name="outrider", version=_version()),
        list_roots_callback=callbacks.roots,
        elicitation_callback=callbacks.question if host.ask else None,
        logging_callback=callbacks.log,
        log_level="info",
        message_handler=callbacks.message,
        cache=None,
    )


def _transport(config: ServerConfig, host: Host, spawner: Spawner, life: Life) -> Transport:
    match config:
        case StdioServer():
            return stdio_transport(config, host, spawner, life)
        case HttpServer():
            return http_transport(config, host.limits, life)


async def _listen(client: Client, life: Life) -> None:
    """Newer servers tell of changes only to those who ask; older ones tell `_Callbacks.message`."""
    offered = client.server_capabilities
    tools = bool(offered.tools and offered.tools.list_changed)
    resources = bool(offered.resources and offered.resources.list_changed)
    prompts = bool(offered.prompts and offered.prompts.list_changed)
    if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (tools or resources or prompts):
        return
    try:
        async with client.listen(
            tools_list_changed=tools, resources_list_changed=resources, prompts_list_changed=prompts
        ) as changes:
            async for _ in changes:
                """The session passes each one to `_Callbacks.message` as well."""
    except Exception as error:  # noqa: BLE001  news are a convenience; the connection serves without them
        _log.debug("no news of changes: %s", type(error).__name__)


class _Callbacks:
    """What a server may ask of this side, and what it tells. Sampling is not offered, and so refused by the SDK."""

    def __init__(self, config: ServerConfig, host: Host, life: Life) -> None:
        self._server = config.name
        self._host = host
        self._life = life

    async def roots(self, context: ClientRequestContext) -> wire.ListRootsResult:
        folder = self._host.workspace.absolute()
        return wire.ListRootsResult(roots=[wire.Root.model_validate({"uri": folder.as_uri(), "name": folder.name})])

    async def question(
        self, context: ClientRequestContext, params: wire.ElicitRequestParams
    ) -> wire.ElicitResult | wire.ErrorData:
        if self._host.ask is None:
            return wire.ErrorData(code=wire.INVALID_REQUEST, message="there is nobody to ask")
        is_form = isinstance(params, wire.ElicitRequestFormParams)
        schema = dict(params.requested_schema) if is_form else None
        url = None if is_form else params.url
        reply = await self._host.ask(Question(self._server, params.message, schema, url))
        return wire.ElicitResult(action=reply.action, content=reply.content)

    async def log(self, params: wire.LoggingMessageNotificationParams) -> None:
        text = params.data if isinstance(params.data, str) else repr(params.data)
        self._life.listener.log(Progress(output=f"[{params.level}] {cut(text, _LONGEST_LOG)}\n"))

    async def message(self, message: IncomingMessage) -> None:
        if (changed := _CHANGES.get(type(message))) is not None:
            self._life.listener.stale(changed)


def _causes(error: BaseException) -> Iterator[str]:
    """What really happened, out of the groups that task groups make."""
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _causes(inner)
    elif isinstance(error, MCPError) and error.error.message == CLOSED:
        yield "it closed the connection"
    else:
        yield words_of(error)


def _version() -> str:
    try:
        return version("outrider")
    except PackageNotFoundError:
        return "0"
