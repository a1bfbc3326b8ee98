"""Information flow: what a session has read, and which calls would send data after it has read untrusted text.

Each part has origins. A session that has read untrusted text (web pages, MCP servers, files of an untrusted folder) may
follow instructions in it. From then on a call that sends data needs an approval if the session has also read private
data, or if the call can reach it, in every mode and whatever the rules allow. Commands lose their network instead.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, assert_never, cast
from urllib.parse import urlsplit

from msgspec import Struct, field
from msgspec.structs import replace

from outrider.permissions import reasons
from outrider.permissions.modes import Decision, Mode, mode_asks
from outrider.permissions.paths.containment import contain
from outrider.permissions.paths.protected import find_protected_name
from outrider.permissions.redaction.secret_patterns import split_names
from outrider.types.codec import AnyPart
from outrider.types.messages import Message
from outrider.types.origins import (
    NETWORK,
    PROCESS,
    DataFlow,
    EgressBudget,
    Origin,
    OriginKind,
    Origins,
    make_origin,
    merge_origins,
)
from outrider.types.parts import (
    AgentPart,
    CompactionPart,
    FilePart,
    Part,
    PatchPart,
    ReasoningPart,
    ResourceSource,
    RetryPart,
    SnapshotPart,
    StepFinishPart,
    StepStartPart,
    SubtaskPart,
    TextPart,
    ToolPart,
    ToolResultPart,
    is_standard_part,
)
from outrider.types.tool_declaration import (
    DeclaredTool,
    call_subjects,
    canonical_tool,
    declaration_of,
    tool_name,
)
from outrider.types.tool_state import ToolError, ToolPending

MCP_PREFIX, TOOL_PREFIX = "mcp:", "tool:"
# Folders with third-party code and text, also inside a folder that the user trusts.
_THIRD_PARTY = split_names("node_modules site-packages dist-packages bower_components .venv venv vendor third_party")
_NOT_RUN = ("denied", "rejected", "invalid_input")
_MCP_TOOL = re.compile(r"mcp__(?P<server>.+?)__.+")
# Blocks of tools that the vendor runs: web search, web fetch, hosted MCP servers, file search.
_VENDOR_TOOL = re.compile(r"search|fetch|mcp|server_tool|grounding|browse|computer", re.IGNORECASE)
_MAX_COMMAND = 80


class OriginLabels(Struct, frozen=True, kw_only=True):
    """Derives the origins of tool results.

    - `trusts_workspace`: returns whether the user trusts the folder.
    - `private_servers`: names of MCP servers whose results are private.
    - `trusted_servers`: names of MCP servers whose results are written by the user only.
    - `has_secret`: returns whether a string contains a secret.
    """

    trusts_workspace: Callable[[], bool] = lambda: True
    private_servers: Collection[str] = ()
    trusted_servers: Collection[str] = ()
    has_secret: Callable[[str], bool] = lambda _: False

    def of_call(self, tool: str | DeclaredTool, arguments: Mapping[str, Any], workspace: str) -> Origins:
        """Returns the origins of the result of a call, as the tool declares them."""
        declared = declaration_of(tool)
        if declared.origins is not None:
            return tuple(self._complete_origin(origin, arguments) for origin in declared.origins)
        match declared.kind:
            case "read" | "write":
                origins = [self.of_path(str(path), workspace) for path in call_subjects(tool, arguments) or ["."]]
                return (*origins, *([make_origin("web", tool_name(tool))] if declared.network else []))
            case "shell":
                return (self._of_command(str(next(iter(call_subjects(tool, arguments)), tool_name(tool)))),)
            case "network":
                urls = [str(url) for url in call_subjects(tool, arguments)]
                return tuple(make_origin("web", url) for url in urls or [tool_name(tool)])
            case "talk" | "delegate":
                return ()
            case "unknown":
                match = _MCP_TOOL.fullmatch(tool_name(tool))
                return (self._of_server(match["server"]) if match else make_origin("tool", tool_name(tool)),)

    def with_secrets(self, origins: Origins, text: str) -> Origins:
        """Returns the origins of a result, with one more if its text contains a secret."""
        if not self.has_secret(text):
            return origins
        return merge_origins(origins, [make_origin("secret", origins[0].source if origins else "")])

    def of_path(self, path: str, workspace: str) -> Origin:
        """Returns the origin of a file."""
        origin = make_origin(_kind_of_path(path, workspace), path)
        if not _THIRD_PARTY.isdisjoint(path.split("/")):
            return replace(origin, untrusted=True)
        return self.with_trust(origin)

    def _of_command(self, command: str) -> Origin:
        return self.with_trust(make_origin("workspace", f"`{command[:_MAX_COMMAND]}`"))

    def with_trust(self, origin: Origin) -> Origin:
        """Returns the origin, marked as untrusted if it is the workspace and the user does not trust that folder.

        Other paths of the machine belong to the user. An origin that is not private, such as the initial state, has no
        content of files.
        """
        trusted = not origin.private or origin.kind not in ("workspace", "secret") or self.trusts_workspace()
        return origin if trusted else replace(origin, untrusted=True)

    def _complete_origin(self, origin: Origin, arguments: Mapping[str, Any]) -> Origin:
        if origin.kind == "mcp":
            return self._of_server(origin.source or str(arguments.get("server") or ""))
        return self.with_trust(origin) if origin.kind == "workspace" else origin

    def _of_server(self, server: str) -> Origin:
        origin = make_origin("mcp", server)
        return replace(origin, untrusted=server not in self.trusted_servers, private=server in self.private_servers)


DEFAULT_LABELS = OriginLabels()


def _kind_of_path(path: str, workspace: str) -> OriginKind:
    """Returns the kind of a path. A path whose text stays below the workspace is not resolved, because that takes
    longer than everything else here, and the target of a link is private as well."""
    parts = path.removeprefix(f"{workspace}/").split("/")
    if not parts[0] or parts[0].startswith("~") or ".." in parts:
        containment = contain(path, root=workspace, cwd=workspace, op="read")
        kinds: dict[str, OriginKind] = {"inside": "workspace", "protected": "secret"}
        return kinds.get(containment.kind, "outside")
    return "secret" if find_protected_name(parts, "read") else "workspace"


class EgressLedger:
    """The requests of a session and of its agents by destination. A call that is added again counts once."""

    def __init__(self) -> None:
        self._sizes: dict[str, dict[str, int]] = {}

    def charge(self, destination: str, call: str, size: int) -> None:
        self._sizes.setdefault(destination, {})[call] = size

    def has_room(self, destination: str, call: str, size: int, budget: EgressBudget) -> bool:
        """Returns whether a call stays within the budget of its destination."""
        spent = {**self._sizes.get(destination, {}), call: size}
        requests = budget.requests is None or len(spent) <= budget.requests
        return requests and (budget.bytes is None or sum(spent.values()) <= budget.bytes)


class EgressPolicy(Struct, frozen=True, kw_only=True):
    """Where sessions may send data without an approval.

    `allowed` has a budget per host name (`*.example.org` for subdomains), `mcp:SERVER` or `tool:NAME`; `*` allows
    everything. `ledger` counts what a session has sent.
    """

    allowed: Mapping[str, EgressBudget] = {}
    ledger: EgressLedger = field(default_factory=EgressLedger)

    @property
    def allows_all(self) -> bool:
        return "*" in self.allowed

    def may_send(self, destination: str, call: str, size: int) -> bool:
        """Returns whether the allow-list covers every destination of a call."""
        return all(self._has_room(host, call, size) for host in destination.split(", "))

    def open_hosts(self, hosts: Iterable[str] | None) -> tuple[str, ...]:
        """Returns the hosts that a command may reach: the ones among `hosts`, or among all if it is None, that are
        within their budget. A host with a limit in bytes is left out, because what a command sends is not counted."""
        names = [host for host in self.allowed if not host.startswith((MCP_PREFIX, TOOL_PREFIX))]
        listed = [host for host in names if self.allowed[host].bytes is None]
        if hosts is not None:
            listed = [host for host in listed if any(_matches_host(host, pattern) for pattern in hosts)]
        return tuple(host for host in listed if self._has_room(host, "", 0))

    def count_calls(self, calls: Iterable[ToolPart], tools: Mapping[str, DeclaredTool]) -> None:
        """Counts the calls of a transcript, which may be older than this process."""
        for call in calls:
            data_flow = None if _was_not_run(call) else find_egress(tools.get(call.tool, call.tool), call.state.input)
            if data_flow is not None:
                self.charge(data_flow, call.id)

    def charge(self, flow: DataFlow, call: str) -> None:
        for destination in flow.destination.split(", "):
            self.ledger.charge(destination, call, flow.characters)

    def _has_room(self, destination: str, call: str, size: int) -> bool:
        budget = next((self.allowed[pattern] for pattern in self.allowed if _matches_host(destination, pattern)), None)
        return budget is not None and self.ledger.has_room(destination, call, size, budget)


def _matches_host(host: str, pattern: str) -> bool:
    return host == pattern or (pattern.startswith("*.") and host.endswith(pattern[1:]))


class FlowState(Struct, frozen=True, kw_only=True):
    """What a session has read, for the decision about a call.

    `was_written` returns whether the user wrote a string literally, so that it carries no other data. `may_send`
    returns whether the allow-list or an earlier answer lets a call send a number of characters to a destination.
    """

    origins: Origins = ()
    was_written: Callable[[str], bool] = lambda _: False
    may_send: Callable[[str, int], bool] = lambda _, __: False

    @property
    def untrusted(self) -> Origins:
        return tuple(origin for origin in self.origins if origin.untrusted)

    @property
    def private(self) -> Origins:
        return tuple(origin for origin in self.origins if origin.private)


class ContextOrigins:
    """The origins of everything in the context of one agent, updated with each new message.

    A summary represents the messages that it replaces, and answers may repeat what has left the prompt, so the origins
    of a session only grow. A fork has those of the messages that it copies.
    """

    def __init__(self) -> None:
        self._origins: dict[Origin, None] = {}
        self._seen = 0
        self.user_texts: dict[str, None] = {}

    def update(self, messages: list[Message], labels: OriginLabels, workspace: str) -> Origins:
        """Reads the messages since the last call. The last one is read again, because its calls may still run."""
        if len(messages) < self._seen:  # the session was cleared
            self.__init__()
        for message in messages[max(0, self._seen - 1) :]:
            for part in message.parts:
                if is_standard_part(part):
                    origins = self._read_part(part, message, labels, workspace)
                elif isinstance(part, ToolResultPart):
                    origins = _origins_of_result(part, messages, labels, workspace)
                else:
                    origins = _origins_of_custom_part(part)
                self._origins.update(dict.fromkeys(origins))
        self._seen = len(messages)
        if len(self._origins) > _MAX_CONTEXT_ORIGINS:
            self._origins = dict.fromkeys(merge_origins(self._origins))
        return tuple(self._origins)

    def _read_part(self, part: Part, message: Message, labels: OriginLabels, workspace: str) -> Iterable[Origin]:
        match part:
            case TextPart() | CompactionPart() if part.origins:
                return map(labels.with_trust, part.origins)
            case TextPart(synthetic=True, metadata={"command": str(command)}) if message.role == "user":
                return _origins_of_user_command(command, labels, workspace)
            case TextPart() if message.role == "user" and not part.synthetic:
                self.user_texts[part.text] = None
                return [make_origin("secret", "the user's input")] if labels.has_secret(part.text) else ()
            case FilePart():
                return part.origins or [_origin_of_file(part, labels, workspace)]
            case ToolPart() if not _was_not_run(part):
                return part.origins or labels.of_call(part.tool, part.state.input, workspace)
            case ReasoningPart() if part.provider_state:
                return _vendor_origins(part)
            case TextPart() | ToolPart() | ReasoningPart() | CompactionPart():
                return ()  # without third-party text
            case StepStartPart() | StepFinishPart() | SnapshotPart() | PatchPart() | AgentPart():
                return ()  # no model sees these
            case SubtaskPart() | RetryPart():
                return ()
            case _:
                assert_never(part)


_MAX_CONTEXT_ORIGINS = 200


def _was_not_run(call: ToolPart) -> bool:
    state = call.state
    return isinstance(state, ToolPending) or (isinstance(state, ToolError) and state.reason in _NOT_RUN)


def _origins_of_user_command(command: str, labels: OriginLabels, workspace: str) -> Iterable[Origin]:
    """Returns the origins of a note about a command of the user, which may have run outside the sandbox."""
    yield from labels.of_call("shell", {"command": command}, workspace)
    if prints_remote_text(command):
        yield make_origin("web", NETWORK)


def _origins_of_result(
    part: ToolResultPart, messages: Iterable[Message], labels: OriginLabels, workspace: str
) -> Iterable[Origin]:
    """Returns the origins of an imported result: those of its call, or an unknown origin if the call is missing."""
    calls = (call for message in messages for call in message.get_calls() if call.call_id == part.tool_use_id)
    if (call := next(calls, None)) is None:
        return [_unknown_origin(part.tool_name or part.type)]
    return labels.of_call(call.tool, call.state.input, workspace)


def _origins_of_custom_part(part: AnyPart) -> Iterable[Origin]:
    """Returns the origins of a part of a registered kind: those in its field `origins`. Without the field, a part that
    models receive may contain untrusted text and private data."""
    if not hasattr(part, "to_api_format"):
        return ()
    origins: Origins | None = getattr(part, "origins", None)
    return [_unknown_origin(part.type)] if not isinstance(origins, tuple) else origins


def _unknown_origin(source: str) -> Origin:
    return replace(make_origin("tool", source), untrusted=True, private=True)


def _origin_of_file(part: FilePart, labels: OriginLabels, workspace: str) -> Origin:
    if isinstance(part.source, ResourceSource):
        return labels.of_call(f"mcp__{part.source.client_name}__resource", {}, ".")[0]
    if part.source is not None:
        return labels.of_path(part.source.path, workspace)
    return replace(make_origin("user", part.filename or part.mime), private=True)


def _vendor_origins(part: ReasoningPart) -> Iterable[Origin]:
    """Returns the origin of an opaque block that holds the result of a tool of the vendor."""
    blocks = (part.provider_state.get(name) for name in ("block", "item"))
    kinds = [str(cast("dict[str, Any]", block).get("type", "")) for block in blocks if isinstance(block, dict)]
    match part.provider_state:  # Gemini: parts without a type, and the sources of an answer
        case {"part": {"toolResponse": {"toolType": str(kind)}}}:
            kinds.append(kind.lower())
        case {"grounding": _}:
            kinds.append("grounding")
        case _:
            pass
    return [make_origin("web", kind) for kind in kinds if _VENDOR_TOOL.search(kind)]


# Output of these programs is the project's own, or that of the user's remotes and registries.
_LOCAL_PROGRAMS = split_names(
    """[ alias awk basename black bun cargo cat cd clang cmake comm cp cut date diff dirname docker-compose du echo env
    eslint export false file find flake8 gcc git go gradle grep head isort javac jest jq just ln ls make mkdir mocha mv
    mvn mypy ninja nl npm nproc nox od pip pip3 pnpm poetry prettier printf pwd pylint pyright pytest readlink realpath
    rg rm rmdir ruff rustc sed sort stat swift tail tee test touch tox tr tree true tsc uname uniq uv vitest wc which
    xxd yarn"""
)
_COMMAND_START = re.compile(r"(?:^|[;&|\n(){}`]|\$\()\s*(?P<program>[^\s;&|(){}`]+)")


_NETWORK_PROGRAMS = re.compile(
    r"(?<![\w./-])(?:curl|wget|ssh|scp|sftp|rsync|nc|ncat|telnet|ftp|gh|glab|aws|gcloud|az|kubectl|helm|twine|docker"
    r"|git\s+(?:-\S+\s+)*(?:push|fetch|pull|clone|ls-remote)|(?:npm|pnpm|yarn)\s+(?:publish|install|add|ci)"
    r"|pip3?\s+(?:install|download)|uv\s+(?:pip|sync|add|publish)|cargo\s+(?:publish|install|fetch))(?![\w-])"
)
_URL_HOST = re.compile(r"\b[a-z][a-z0-9+.-]*://(?:[^\s/@\"']*@)?(?P<host>\[[0-9a-f:]+\]|[A-Za-z0-9.-]+)(?P<port>:\d+)?")
_MAX_HOSTS = 8


def find_wanted_hosts(command: str) -> tuple[str, ...]:
    """Returns the hosts that a command names if it runs a program that connects to other hosts, or `("",)` if it names
    none. Returns an empty tuple if there is no such program. The sandbox decides what the command really reaches."""
    if _NETWORK_PROGRAMS.search(command) is None:
        return ()
    hosts = dict.fromkeys(f"{match['host']}{match['port'] or ''}" for match in _URL_HOST.finditer(command))
    return tuple(hosts)[:_MAX_HOSTS] or ("",)


def prints_remote_text(command: str) -> bool:
    """Returns whether a command that has a network may print third-party text. If unsure, returns True."""
    programs = [match["program"].rpartition("/")[2] for match in _COMMAND_START.finditer(command)]
    return not programs or any(name not in _LOCAL_PROGRAMS for name in programs)


_WORD = re.compile(r"[^\s<>\"'`()\[\]{}]+")


class WrittenTexts:
    """Returns, when called, whether the user wrote a string literally: as a word, without scheme and final
    punctuation."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = list(texts)
        self._words: set[str] | None = None

    def __call__(self, text: str) -> bool:
        if self._words is None:
            self._words = {_normalize_word(word) for written in self._texts for word in _WORD.findall(written)}
        return _normalize_word(text) in self._words


def _normalize_word(word: str) -> str:
    return re.sub(r"^https?://(?:www\.)?", "", word.strip().rstrip(".,;:!?/"), flags=re.IGNORECASE)


def can_send(tool: str | DeclaredTool) -> bool:
    """Returns whether calls of a tool may send data: commands, tools with a network, and tools of MCP servers."""
    declared = declaration_of(tool)
    return declared.kind == "shell" or bool(declared.destination or _find_destination(tool, []))


def find_egress(
    tool: str | DeclaredTool, arguments: Mapping[str, Any], was_written: Callable[[str], bool] = lambda _: False
) -> DataFlow | None:
    """Returns where a call that is not a command sends data that the user did not write, or None."""
    declared = declaration_of(tool)
    if canonical_tool(tool_name(tool)) == "process" and declared.kind == "shell":
        return DataFlow(PROCESS, _count_characters(arguments)) if arguments.get("action") == "write" else None
    subjects = [str(url) for url in call_subjects(tool, arguments)] if declared.kind == "network" else []
    destination = declared.destination or _find_destination(tool, subjects)
    if destination == MCP_PREFIX:
        destination += str(arguments.get("server") or "all servers")
    if not destination:
        return None
    is_page = canonical_tool(tool_name(tool)) == "web_fetch" and declared.kind == "network"
    sent = subjects if is_page else list(_leaf_texts(arguments))
    if subjects and all(map(was_written, sent)):
        return None
    return DataFlow(destination, sum(len(_normalize_word(text)) for text in sent))


def _find_destination(tool: str | DeclaredTool, urls: list[str]) -> str:
    declared = declaration_of(tool)
    hosts = dict.fromkeys(map(host_of, urls))
    if hosts:
        return ", ".join(hosts)
    if declared.kind == "network" or declared.network:
        return f"{TOOL_PREFIX}{tool_name(tool)}"
    match = _MCP_TOOL.fullmatch(tool_name(tool)) if declared.kind == "unknown" else None
    return f"{MCP_PREFIX}{match['server']}" if match else ""


def host_of(url: str) -> str:
    """Returns the host name of a URL, with its port if it is unusual; the start of the string if it is not a URL."""
    try:
        address = urlsplit(url)
        port = "" if address.port in (None, 80, 443) else f":{address.port}"
        return f"{(address.hostname or '').rstrip('.')}{port}" or url[:100]
    except ValueError:
        return url[:100]


def _leaf_texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case bool() | None:
            return
        case Mapping():
            for name, item in cast("Mapping[str, object]", value).items():
                yield from _leaf_texts(item)
                if not name.isidentifier():
                    yield name
        case list() | tuple():
            for item in cast("list[object]", value):
                yield from _leaf_texts(item)
        case _:
            yield str(value)


def _count_characters(arguments: Mapping[str, Any]) -> int:
    return sum(map(len, _leaf_texts(arguments)))


def _reaches_private(tool: str | DeclaredTool, arguments: Mapping[str, Any], workspace: str) -> bool:
    """Returns whether a call that connects to other hosts can itself read files: its tool declares that, or it names a
    file."""
    declared = declaration_of(tool)
    if declared.kind in ("read", "write", "shell"):
        return True
    return declared.kind != "network" and any(_names_file(text, workspace) for text in _leaf_texts(arguments))


def _names_file(text: str, workspace: str) -> bool:
    path = text.removeprefix("file://")
    if not path or len(path) > 1_000 or "\n" in path or path in (".", "/"):
        return False
    containment = contain(path, root=workspace, cwd=workspace, op="read")
    return containment.real_path is not None and os.path.lexists(containment.real_path)


def restrict_flow(
    decision: Decision,
    tool: str | DeclaredTool,
    arguments: Mapping[str, Any],
    flow: FlowState,
    *,
    mode: Mode,
    workspace: str,
    sandbox: bool,
    reads_only: bool = False,
) -> Decision:
    """Returns the decision about a call of a session that has read the origins in `flow`. A denied call stays denied.

    `reads_only` is True for a command that is proven to read only, so that it cannot send anything.
    """
    if decision.effect == "deny" or not (untrusted := flow.untrusted):
        return decision
    declared = declaration_of(tool)
    if declared.kind == "shell" and canonical_tool(tool_name(tool)) != "process":
        data_flow = DataFlow(NETWORK, 0, untrusted[-3:], flow.private[-3:])
        return _restrict_command(decision, data_flow, mode, sandbox=sandbox, reads_only=reads_only)
    data_flow = find_egress(tool, arguments, flow.was_written)
    private = flow.private
    if data_flow is None or not (private or _reaches_private(tool, arguments, workspace)):
        return decision
    data_flow = replace(data_flow, untrusted=untrusted[-3:], private=private[-3:])
    if flow.may_send(data_flow.destination, data_flow.characters):
        return replace(decision, flow=data_flow)
    return _ask_about_flow(decision, data_flow, mode)


def _restrict_command(decision: Decision, flow: DataFlow, mode: Mode, *, sandbox: bool, reads_only: bool) -> Decision:
    """Returns the decision about a command of a session that has read untrusted text.

    It runs inside the sandbox without a network, even if a rule lets it run outside: the approval is then about the
    hosts that it tries to reach. Without a sandbox, the approval is about the command itself.
    """
    if decision.effect == "ask":
        return _ask_about_flow(decision, flow, mode)
    if sandbox:
        confinement = "workspace" if decision.confinement == "none" else decision.confinement
        return replace(decision, confinement=confinement, flow=flow)
    if reads_only:
        return decision
    return _ask_about_flow(decision, flow, mode)


def _ask_about_flow(decision: Decision, flow: DataFlow, mode: Mode) -> Decision:
    reason = flow.description if decision.effect == "allow" else f"{decision.reason}; {flow.description}"
    if mode_asks(mode):
        return Decision("ask", reason, decision.rule, flow=flow)
    return Decision("deny", reasons.MODE_CANNOT_ASK.format(reason=reason, mode=mode), decision.rule)
