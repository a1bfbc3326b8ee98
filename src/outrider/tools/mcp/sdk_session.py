"""Runs one connection through the SDK: opened, used and closed in one task."""

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

from outrider.errors import OutriderError
from outrider.processes.process import ProcessSpawner
from outrider.tools.mcp.config import HttpServer, ServerConfig, ServerLimits, StdioServer, hide_secrets
from outrider.tools.mcp.connection import (
    ConnectionLifetime,
    Elicitation,
    LinkLost,
    ListKind,
    McpHost,
    McpPrompt,
    McpResource,
    PromptArgument,
    PromptMessage,
    ReportProgress,
    SamplingRequest,
    ServerFault,
    SessionForgotten,
    ToolDefinition,
    ValueQuery,
    VisitRequired,
    truncate_text,
)
from outrider.tools.mcp.sdk_http import http_transport
from outrider.tools.mcp.sdk_stdio import stdio_transport
from outrider.tools.tool import Progress, ToolResult
from outrider.types.tool_state import Attachment

MAX_ERROR_LENGTH = 10_000
MAX_STRUCTURED_SIZE = 64 << 10  # bytes of structured content to store in the metadata
_MAGIC_BYTES = {
    "image/png": b"\x89PNG",
    "image/jpeg": b"\xff\xd8\xff",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}


def call_result(answer: wire.CallToolResult) -> ToolResult:
    """Converts the result of a call. Raises ServerFault if the server reports an error."""
    result = merge_blocks(answer.content)
    structured = (answer.structured_content is not None and encode_or_none(answer.structured_content)) or b""
    if not result.content and structured:
        result = msgspec.structs.replace(result, content=structured.decode())
    if answer.is_error:
        raise ServerFault(truncate_text(result.content or "the tool failed and gave no reason", MAX_ERROR_LENGTH))
    if structured and len(structured) <= MAX_STRUCTURED_SIZE:
        metadata = result.metadata | {"structured": answer.structured_content}
        result = msgspec.structs.replace(result, metadata=metadata)
    return result


def encode_or_none(value: Any) -> bytes | None:
    """Encodes JSON. Returns None for values that msgspec cannot encode: integers beyond 64 bits and lone surrogates."""
    try:
        return msgspec.json.encode(value)
    except (ValueError, OverflowError, TypeError, RecursionError):
        return None


def merge_blocks(blocks: Iterable[wire.ContentBlock]) -> ToolResult:
    """Merges content blocks into one result, in order.

    A resource link becomes text and is never fetched: the server chooses the URL, so fetching it would be a request
    forgery risk.
    """
    texts: list[str] = []
    attachments: list[Attachment] = []
    links: list[dict[str, Any]] = []
    for block in blocks:
        match block:
            case wire.TextContent():
                texts.append(block.text)
            case wire.ImageContent() | wire.AudioContent():
                texts.append(_attach_file(attachments, block.data, block.mime_type, None))
            case wire.EmbeddedResource():
                texts.append(_embed_resource(attachments, block.resource))
            case wire.ResourceLink():
                links.append({"uri": block.uri, "name": block.name, "mime_type": block.mime_type})
                about = ": ".join(word for word in (block.name, block.description) if word)
                texts.append(f"[resource {block.uri} ({about})]")
            case _:
                assert_never(block)
    metadata = {"resource_links": links} if links else {}
    return ToolResult("\n".join(text for text in texts if text), tuple(attachments), metadata=metadata)


def resource_result(contents: Sequence[wire.TextResourceContents | wire.BlobResourceContents]) -> ToolResult:
    attachments: list[Attachment] = []
    if len(contents) == 1 and isinstance(contents[0], wire.TextResourceContents):
        return ToolResult(contents[0].text)
    texts = [_embed_resource(attachments, content) for content in contents]
    return ToolResult("\n".join(texts), tuple(attachments))


def _embed_resource(
    attachments: list[Attachment], resource: wire.TextResourceContents | wire.BlobResourceContents
) -> str:
    match resource:
        case wire.TextResourceContents():
            return f"[resource {resource.uri}]\n{resource.text}"
        case wire.BlobResourceContents():
            name = resource.uri.rstrip("/").rpartition("/")[2] or None
            mime_type = resource.mime_type or "application/octet-stream"
            return f"[resource {resource.uri}]\n{_attach_file(attachments, resource.blob, mime_type, name)}"
        case _:
            assert_never(resource)


def _attach_file(attachments: list[Attachment], data: str, mime_type: str, name: str | None) -> str:
    """Appends an attachment and returns its label. Invalid data is omitted, because a model API would reject every
    later request with it."""
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return f"[a file of type {mime_type} was left out: it is not valid base64]"
    if not content.startswith(_MAGIC_BYTES.get(mime_type, b"")):
        return f"[a file was left out: it is not of its type, {mime_type}]"
    attachments.append(Attachment(mime_type, data=data, name=name))
    return f"[attached: {name or mime_type}]"


T = TypeVar("T")
FetchPage = Callable[[str | None], Awaitable[tuple[Iterable[T], str | None]]]
CONNECTION_CLOSED_MESSAGE = "Connection closed"  # message text of the SDK
_MAX_MESSAGE_LENGTH = 2_000


class SdkLink:
    """Implementation of `ServerLink` with the SDK's client."""

    def __init__(self, client: Client, config: ServerConfig, limits: ServerLimits, life: ConnectionLifetime) -> None:
        self._client = client
        self._config = config
        self._limits = limits
        self._life = life

    @property
    def instructions(self) -> str:
        return truncate_text(self._client.instructions or "", self._limits.description)

    async def list_tools(self) -> list[ToolDefinition]:
        if self._client.server_capabilities.tools is None:
            return []

        async def page(cursor: str | None) -> tuple[list[wire.Tool], str | None]:
            answer = await self._client.list_tools(cursor=cursor)
            return answer.tools, answer.next_cursor

        listed = await self._request(self._fetch_all(page))
        definitions = [tool_definition(self._config.name, tool, self._limits) for tool in listed]
        return [definition for definition in definitions if definition is not None]

    async def list_resources(self) -> list[McpResource]:
        if self._client.server_capabilities.resources is None:
            return []

        async def page(cursor: str | None) -> tuple[list[wire.Resource], str | None]:
            answer = await self._client.list_resources(cursor=cursor)
            return answer.resources, answer.next_cursor

        async def template_page(cursor: str | None) -> tuple[list[wire.ResourceTemplate], str | None]:
            answer = await self._client.list_resource_templates(cursor=cursor)
            return answer.resource_templates, answer.next_cursor

        resources = await self._request(self._fetch_all(page))
        templates = await self._request(self._fetch_all(template_page), fallback=())
        return [*map(self._to_resource, resources), *map(self._to_template, templates)]

    async def list_prompts(self) -> list[McpPrompt]:
        if self._client.server_capabilities.prompts is None:
            return []

        async def page(cursor: str | None) -> tuple[list[wire.Prompt], str | None]:
            answer = await self._client.list_prompts(cursor=cursor)
            return answer.prompts, answer.next_cursor

        return [self._to_prompt(prompt) for prompt in await self._request(self._fetch_all(page))]

    async def call_tool(self, name: str, arguments: dict[str, Any], report: ReportProgress) -> ToolResult:
        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            text = f"{truncate_text(message, _MAX_MESSAGE_LENGTH)}\n" if message else ""
            report(Progress(output=text, metadata={"progress": {"done": progress, "total": total}}))

        return call_result(await self._request(self._client.call_tool(name, arguments, progress_callback=on_progress)))

    async def read_resource(self, uri: str) -> ToolResult:
        return resource_result((await self._request(self._client.read_resource(uri))).contents)

    async def get_prompt(self, name: str, arguments: dict[str, str]) -> tuple[PromptMessage, ...]:
        answer = await self._request(self._client.get_prompt(name, arguments))
        return tuple(PromptMessage(message.role, merge_blocks([message.content])) for message in answer.messages)

    async def complete_value(self, query: ValueQuery) -> Sequence[str]:
        if self._client.server_capabilities.completions is None:
            return ()
        is_prompt, target = query.kind == "prompt", query.target
        reference = wire.PromptReference(name=target) if is_prompt else wire.ResourceTemplateReference(uri=target)
        argument = {"name": query.argument, "value": query.value}
        return (await self._request(self._client.complete(reference, argument, query.given))).completion.values

    async def _fetch_all(self, page: FetchPage[T]) -> list[T]:
        """Fetches all pages up to the limit, so that an endless list terminates."""
        items: list[T] = []
        cursor: str | None = None
        for _ in range(self._limits.listed):
            members, following = await page(cursor)
            items += members
            if following is None or following == cursor or len(items) >= self._limits.listed:
                break
            cursor = following
        return items[: self._limits.listed]

    async def _request(self, answer: Awaitable[T], fallback: T | None = None) -> T:
        """Awaits a request and converts errors to ServerFault without secrets. Returns `fallback` if the server lacks
        the method."""
        try:
            return await answer
        except MCPError as error:
            if error.error.code == wire.METHOD_NOT_FOUND and fallback is not None:
                return fallback
            raise self._to_fault(error) from error
        except Exception as error:
            raise ServerFault(self._hide_secrets(error_text(error))) from error

    def _to_fault(self, error: MCPError) -> ServerFault:
        # Servers use the same error code for their own errors, so the message is compared too.
        if error.error.code == wire.CONNECTION_CLOSED and error.error.message == CONNECTION_CLOSED_MESSAGE:
            return LinkLost("it closed the connection")
        if error.error.message == "Session terminated":  # the SDK's message for status 404 within a session
            self._life.end("the server ended the session")
            return SessionForgotten("the server ended the session; nothing was run")
        if error.error.code == wire.URL_ELICITATION_REQUIRED and (visits := self._read_visits(error.error.data)):
            return VisitRequired(self._hide_secrets(error_text(error)), visits)
        about = f" ({self._life.last_problem})" if self._life.last_problem else ""
        return ServerFault(self._hide_secrets(error_text(error) + about))

    def _read_visits(self, data: Any) -> tuple[Elicitation, ...]:
        try:
            required = wire.ElicitationRequiredErrorData.model_validate(data)
        except ValidationError:
            return ()
        return tuple(
            Elicitation(self._config.name, elicitation.message, url=elicitation.url)
            for elicitation in required.elicitations
        )

    def _hide_secrets(self, text: str) -> str:
        return hide_secrets(text, self._config)

    def _to_resource(self, resource: wire.Resource) -> McpResource:
        about = truncate_text(resource.description or "", self._limits.description)
        return McpResource(self._config.name, resource.uri, resource.name, about, resource.mime_type, resource.size)

    def _to_template(self, template: wire.ResourceTemplate) -> McpResource:
        about = truncate_text(template.description or "", self._limits.description)
        return McpResource(
            self._config.name, template.uri_template, template.name, about, template.mime_type, is_template=True
        )

    def _to_prompt(self, prompt: wire.Prompt) -> McpPrompt:
        arguments = tuple(
            PromptArgument(argument.name, argument.description or "", argument.required or False)
            for argument in prompt.arguments or ()
        )
        return McpPrompt(
            self._config.name, prompt.name, truncate_text(prompt.description or "", self._limits.description), arguments
        )


def tool_definition(server: str, tool: wire.Tool, limits: ServerLimits) -> ToolDefinition | None:
    """Converts a tool definition. Returns None if the schema is too large or cannot be encoded."""
    schema = encode_or_none(tool.input_schema)
    if schema is None or len(schema) > limits.definition:
        return None
    parameters = tool.input_schema
    if parameters.get("type") != "object":  # every model API requires an object schema
        parameters = parameters | {"type": "object"}
    hints = tool.annotations.model_dump(exclude_none=True) if tool.annotations else {}
    title = tool.title or (tool.annotations.title if tool.annotations else None)
    return ToolDefinition(
        server, tool.name, truncate_text(tool.description or "", limits.description), parameters, title, hints
    )


def error_text(error: BaseException) -> str:
    """Returns the message of an error from the SDK or a lower layer."""
    match error:
        case MCPError():
            return truncate_text(error.error.message, _MAX_MESSAGE_LENGTH) or f"error {error.error.code}"
        case ValidationError():
            return f"it answered with what is not a valid answer ({error.error_count()} problems in {error.title})"
        case ServerFault():
            return error.message
        case _:
            text = str(error).strip()
            return truncate_text(
                f"{type(error).__name__}: {text}" if text else type(error).__name__, _MAX_MESSAGE_LENGTH
            )


_LIST_CHANGES: dict[type[object], ListKind] = {
    wire.ToolListChangedNotification: "tools",
    wire.ResourceListChangedNotification: "resources",
    wire.PromptListChangedNotification: "prompts",
}
_MAX_LOG_LENGTH = 2_000
_USER_REJECTED = -1  # the code that the specification uses for a refused request
_log = logging.getLogger("outrider.mcp")

# The SDK logs internal errors, which are reported as faults here. Without a handler, Python would print them.
for _name in ("mcp", "client"):
    logging.getLogger(_name).addHandler(logging.NullHandler())


async def run_connection(
    spawner: ProcessSpawner, config: ServerConfig, host: McpHost, life: ConnectionLifetime, *, legacy: bool
) -> None:
    """Implements `ConnectionRunner`. One cancel scope covers the connection: its deadline is first the start-up limit,
    at the end the shutdown limit."""
    scope = anyio.CancelScope(deadline=anyio.current_time() + host.limits.startup)
    client = _build_client(config, host, life, _build_transport(config, host, spawner, life), legacy=legacy)
    try:
        with scope:
            await _serve_connection(client, scope, SdkLink(client, config, host.limits, life), life, host.limits)
    except Exception as error:  # noqa: BLE001  a fault of one server must not affect the others
        if not scope.cancel_called:
            life.end(life.last_problem or "; ".join(dict.fromkeys(_error_causes(error))))
    life.end(f"it did not answer within {host.limits.startup:g} s")


async def _serve_connection(
    client: Client, scope: anyio.CancelScope, link: SdkLink, life: ConnectionLifetime, limits: ServerLimits
) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_set_close_deadline, life, scope, limits.shutdown)
        async with client:
            await life.start_serving(link)
            scope.deadline = math.inf
            tasks.start_soon(_listen_for_changes, client, life)
            await life.ended.wait()
        tasks.cancel_scope.cancel()


async def _set_close_deadline(life: ConnectionLifetime, scope: anyio.CancelScope, grace: float) -> None:
    """Waits for the end, then sets the deadline: none for a connection that is still starting, `grace` seconds for an
    open one."""
    await life.ended.wait()
    scope.deadline = anyio.current_time() + (0 if life.seconds_served is None else grace)


def _build_client(
    config: ServerConfig, host: McpHost, life: ConnectionLifetime, transport: Transport, *, legacy: bool
) -> Client:
    callbacks = _ServerCallbacks(config, host, life)
    return Client(
        transport,
        mode="legacy" if legacy else "auto",
        client_info=wire.Implementation(name="outrider", version=_package_version()),
        list_roots_callback=callbacks.list_roots,
        elicitation_callback=callbacks.elicit if host.ask else None,
        sampling_callback=callbacks.sample if host.sample else None,
        logging_callback=callbacks.on_log,
        log_level="info",
        message_handler=callbacks.on_message,
        cache=None,
    )


def _build_transport(
    config: ServerConfig, host: McpHost, spawner: ProcessSpawner, life: ConnectionLifetime
) -> Transport:
    match config:
        case StdioServer():
            return stdio_transport(config, host, spawner, life)
        case HttpServer():
            return http_transport(config, host, life)


async def _listen_for_changes(client: Client, life: ConnectionLifetime) -> None:
    """Subscribes to list changes, which newer servers require. Older servers notify `_ServerCallbacks.on_message`
    without a subscription."""
    capabilities = client.server_capabilities
    tools = bool(capabilities.tools and capabilities.tools.list_changed)
    resources = bool(capabilities.resources and capabilities.resources.list_changed)
    prompts = bool(capabilities.prompts and capabilities.prompts.list_changed)
    if client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (tools or resources or prompts):
        return
    try:
        async with client.listen(
            tools_list_changed=tools, resources_list_changed=resources, prompts_list_changed=prompts
        ) as changes:
            async for _ in changes:
                """The session also passes each change to `_ServerCallbacks.on_message`."""
    except Exception as error:  # noqa: BLE001  change notifications are optional
        _log.debug("cannot subscribe to list changes: %s", type(error).__name__)


class _ServerCallbacks:
    """Handlers for requests and notifications from the server."""

    def __init__(self, config: ServerConfig, host: McpHost, life: ConnectionLifetime) -> None:
        self._server = config.name
        self._host = host
        self._life = life

    async def list_roots(self, context: ClientRequestContext) -> wire.ListRootsResult:
        folder = self._host.workspace.absolute()
        return wire.ListRootsResult(roots=[wire.Root.model_validate({"uri": folder.as_uri(), "name": folder.name})])

    async def elicit(
        self, context: ClientRequestContext, params: wire.ElicitRequestParams
    ) -> wire.ElicitResult | wire.ErrorData:
        if self._host.ask is None:
            return wire.ErrorData(code=wire.INVALID_REQUEST, message="no user is connected")
        is_form = isinstance(params, wire.ElicitRequestFormParams)
        schema = dict(params.requested_schema) if is_form else None
        url = None if is_form else params.url
        reply = await self._host.ask(Elicitation(self._server, params.message, schema, url))
        return wire.ElicitResult(action=reply.action, content=reply.content)

    async def sample(
        self, context: ClientRequestContext, params: wire.CreateMessageRequestParams
    ) -> wire.CreateMessageResult | wire.ErrorData:
        if self._host.sample is None or params.tools:
            return wire.ErrorData(code=wire.INVALID_PARAMS, message="sampling with tools is not supported")
        messages = tuple(
            PromptMessage(message.role, merge_blocks(_sampling_blocks(message))) for message in params.messages
        )
        request = SamplingRequest(
            self._server, messages, params.system_prompt or "", max(1, params.max_tokens), params.temperature
        )
        try:
            reply = await self._host.sample(request)
        except OutriderError as error:
            return wire.ErrorData(code=_USER_REJECTED, message=error.message)
        return wire.CreateMessageResult(
            role="assistant", content=wire.TextContent(text=reply.text), model=reply.model, stop_reason="endTurn"
        )

    async def on_log(self, params: wire.LoggingMessageNotificationParams) -> None:
        text = params.data if isinstance(params.data, str) else repr(params.data)
        self._life.listener.log(Progress(output=f"[{params.level}] {truncate_text(text, _MAX_LOG_LENGTH)}\n"))

    async def on_message(self, message: IncomingMessage) -> None:
        if (changed := _LIST_CHANGES.get(type(message))) is not None:
            self._life.listener.stale(changed)


def _sampling_blocks(message: wire.SamplingMessage) -> list[wire.ContentBlock]:
    content = message.content if isinstance(message.content, list) else [message.content]
    plain = (wire.TextContent, wire.ImageContent, wire.AudioContent)
    return [block for block in content if isinstance(block, plain)]


def _error_causes(error: BaseException) -> Iterator[str]:
    """Yields the messages of the innermost exceptions of an exception group."""
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _error_causes(inner)
    elif isinstance(error, MCPError) and error.error.message == CONNECTION_CLOSED_MESSAGE:
        yield "it closed the connection"
    else:
        yield error_text(error)


def _package_version() -> str:
    try:
        return version("outrider")
    except PackageNotFoundError:
        return "0"
