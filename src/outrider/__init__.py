"""Outrider: an agent engine for Python. The public names, each loaded when it is first used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.app.complete import async_complete, complete
    from outrider.bus import EventBus, EventStream, get_event_bus
    from outrider.context.lower import lower
    from outrider.errors import (
        AuthenticationError,
        ConfigurationError,
        ContentFilterError,
        ContextOverflowError,
        InvalidRequestError,
        InvalidStateTransition,
        ListenerOverflow,
        MalformedAnswerError,
        NetworkError,
        NotFoundError,
        OutriderError,
        OverloadedError,
        PartValidationError,
        PermissionRefusedError,
        ProviderError,
        QuotaExceededError,
        RateLimitError,
        ServerError,
        StalledStreamError,
        ToolFailure,
    )
    from outrider.sessions.session import ForkPoint, Session, SessionTime
    from outrider.tools.context import Progress, ToolContext
    from outrider.tools.tool import Tool, ToolResult
    from outrider.tracing.event_log import AgentEvent, EventLog
    from outrider.tracing.logger import EventLogger
    from outrider.tracing.spans import Span, Trace
    from outrider.types.agents import Agent, AgentMessage, Limits, Provider
    from outrider.types.blocks import part_from_anthropic
    from outrider.types.codec import (
        UnknownPart,
        decode_part,
        decode_parts,
        encode_part,
        encode_parts,
        is_agent_part,
        is_compaction_part,
        is_file_part,
        is_patch_part,
        is_reasoning_part,
        is_retry_part,
        is_snapshot_part,
        is_step_finish_part,
        is_step_start_part,
        is_subtask_part,
        is_text_part,
        is_tool_part,
        is_tool_result_part,
        is_tool_use_part,
        part_from_dict,
        part_types,
        register_part_type,
        validate_part,
    )
    from outrider.types.events import Event
    from outrider.types.ids import new_id
    from outrider.types.messages import Message, MessageError, MessagePath, MessageTime
    from outrider.types.parts import (
        AgentPart,
        CompactionPart,
        FilePart,
        FileSource,
        ModelRef,
        Part,
        PartBase,
        PartTime,
        PatchPart,
        ReasoningPart,
        ResourceSource,
        RetryPart,
        RetryTime,
        SnapshotPart,
        StepFinishPart,
        StepStartPart,
        SubtaskPart,
        SymbolSource,
        TextPart,
        TextRange,
        ToolPart,
        ToolResultPart,
        ToolUsePart,
    )
    from outrider.types.request import ModelMessage, ModelSettings, OutputSchema, Prompt, Request, ToolChoice, ToolSpec
    from outrider.types.stream import Answer
    from outrider.types.tool_state import (
        Attachment,
        EndedTime,
        RunningTime,
        ToolCompleted,
        ToolError,
        ToolPending,
        ToolRunning,
        ToolState,
    )
    from outrider.types.usage import CacheTokens, Tokens, Usage

_HOMES = {
    "outrider.app.complete": "async_complete complete",
    "outrider.bus": "EventBus EventStream get_event_bus",
    "outrider.context.lower": "lower",
    "outrider.errors": """
        AuthenticationError ConfigurationError ContentFilterError ContextOverflowError
        InvalidRequestError InvalidStateTransition ListenerOverflow MalformedAnswerError
        NetworkError NotFoundError OutriderError OverloadedError PartValidationError
        PermissionRefusedError ProviderError QuotaExceededError RateLimitError ServerError
        StalledStreamError ToolFailure
    """,
    "outrider.sessions.session": "ForkPoint Session SessionTime",
    "outrider.tools.context": "Progress ToolContext",
    "outrider.tools.tool": "Tool ToolResult",
    "outrider.tracing.event_log": "AgentEvent EventLog",
    "outrider.tracing.logger": "EventLogger",
    "outrider.tracing.spans": "Span Trace",
    "outrider.types.agents": "Agent AgentMessage Limits Provider",
    "outrider.types.blocks": "part_from_anthropic",
    "outrider.types.codec": """
        UnknownPart decode_part decode_parts encode_part encode_parts is_agent_part
        is_compaction_part is_file_part is_patch_part is_reasoning_part is_retry_part
        is_snapshot_part is_step_finish_part is_step_start_part is_subtask_part is_text_part
        is_tool_part is_tool_result_part is_tool_use_part part_from_dict part_types
        register_part_type validate_part
    """,
    "outrider.types.events": "Event",
    "outrider.types.ids": "new_id",
    "outrider.types.messages": "Message MessageError MessagePath MessageTime",
    "outrider.types.parts": """
        AgentPart CompactionPart FilePart FileSource ModelRef Part PartBase PartTime PatchPart
        ReasoningPart ResourceSource RetryPart RetryTime SnapshotPart StepFinishPart StepStartPart
        SubtaskPart SymbolSource TextPart TextRange ToolPart ToolResultPart ToolUsePart
    """,
    "outrider.types.request": "ModelMessage ModelSettings OutputSchema Prompt Request ToolChoice ToolSpec",
    "outrider.types.stream": "Answer",
    "outrider.types.tool_state": """
        Attachment EndedTime RunningTime ToolCompleted
        ToolError ToolPending ToolRunning ToolState
    """,
    "outrider.types.usage": "CacheTokens Tokens Usage",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentEvent",
    "AgentMessage",
    "AgentPart",
    "Answer",
    "Attachment",
    "AuthenticationError",
    "CacheTokens",
    "CompactionPart",
    "ConfigurationError",
    "ContentFilterError",
    "ContextOverflowError",
    "EndedTime",
    "Event",
    "EventBus",
    "EventLog",
    "EventLogger",
    "EventStream",
    "FilePart",
    "FileSource",
    "ForkPoint",
    "InvalidRequestError",
    "InvalidStateTransition",
    "Limits",
    "ListenerOverflow",
    "MalformedAnswerError",
    "Message",
    "MessageError",
    "MessagePath",
    "MessageTime",
    "ModelMessage",
    "ModelRef",
    "ModelSettings",
    "NetworkError",
    "NotFoundError",
    "OutputSchema",
    "OutriderError",
    "OverloadedError",
    "Part",
    "PartBase",
    "PartTime",
    "PartValidationError",
    "PatchPart",
    "PermissionRefusedError",
    "Progress",
    "Prompt",
    "Provider",
    "ProviderError",
    "QuotaExceededError",
    "RateLimitError",
    "ReasoningPart",
    "Request",
    "ResourceSource",
    "RetryPart",
    "RetryTime",
    "RunningTime",
    "ServerError",
    "Session",
    "SessionTime",
    "SnapshotPart",
    "Span",
    "StalledStreamError",
    "StepFinishPart",
    "StepStartPart",
    "SubtaskPart",
    "SymbolSource",
    "TextPart",
    "TextRange",
    "Tokens",
    "Tool",
    "ToolChoice",
    "ToolCompleted",
    "ToolContext",
    "ToolError",
    "ToolFailure",
    "ToolPart",
    "ToolPending",
    "ToolResult",
    "ToolResultPart",
    "ToolRunning",
    "ToolSpec",
    "ToolState",
    "ToolUsePart",
    "Trace",
    "UnknownPart",
    "Usage",
    "async_complete",
    "complete",
    "decode_part",
    "decode_parts",
    "encode_part",
    "encode_parts",
    "get_event_bus",
    "is_agent_part",
    "is_compaction_part",
    "is_file_part",
    "is_patch_part",
    "is_reasoning_part",
    "is_retry_part",
    "is_snapshot_part",
    "is_step_finish_part",
    "is_step_start_part",
    "is_subtask_part",
    "is_text_part",
    "is_tool_part",
    "is_tool_result_part",
    "is_tool_use_part",
    "lower",
    "new_id",
    "part_from_anthropic",
    "part_from_dict",
    "part_types",
    "register_part_type",
    "validate_part",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOME_OF]
