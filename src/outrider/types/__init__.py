"""Frozen values: no I/O, no vendor."""

from typing import TYPE_CHECKING

from outrider._lazy import lazy_names

if TYPE_CHECKING:
    from outrider.types.agents import Agent, AgentMessage, Limits, Provider, SessionContext
    from outrider.types.anthropic_blocks import part_from_anthropic
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
    from outrider.types.origins import EgressBudget, FlowSettings, Origin
    from outrider.types.parts import (
        AgentPart,
        CacheTokens,
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
        Tokens,
        ToolPart,
        ToolResultPart,
        ToolUsePart,
        Usage,
    )
    from outrider.types.request import (
        Answer,
        ModelMessage,
        ModelSettings,
        OutputSchema,
        Prompt,
        Request,
        RetryPolicy,
        ToolChoice,
        ToolSpec,
    )
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

__all__ = [
    "Agent",
    "AgentMessage",
    "AgentPart",
    "Answer",
    "Attachment",
    "CacheTokens",
    "CompactionPart",
    "EgressBudget",
    "EndedTime",
    "Event",
    "FilePart",
    "FileSource",
    "FlowSettings",
    "Limits",
    "Message",
    "MessageError",
    "MessagePath",
    "MessageTime",
    "ModelMessage",
    "ModelRef",
    "ModelSettings",
    "Origin",
    "OutputSchema",
    "Part",
    "PartBase",
    "PartTime",
    "PatchPart",
    "Prompt",
    "Provider",
    "ReasoningPart",
    "Request",
    "ResourceSource",
    "RetryPart",
    "RetryPolicy",
    "RetryTime",
    "RunningTime",
    "SessionContext",
    "SnapshotPart",
    "StepFinishPart",
    "StepStartPart",
    "SubtaskPart",
    "SymbolSource",
    "TextPart",
    "TextRange",
    "Tokens",
    "ToolChoice",
    "ToolCompleted",
    "ToolError",
    "ToolPart",
    "ToolPending",
    "ToolResultPart",
    "ToolRunning",
    "ToolSpec",
    "ToolState",
    "ToolUsePart",
    "UnknownPart",
    "Usage",
    "decode_part",
    "decode_parts",
    "encode_part",
    "encode_parts",
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
    "new_id",
    "part_from_anthropic",
    "part_from_dict",
    "part_types",
    "register_part_type",
    "validate_part",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "outrider.types.agents": "Agent AgentMessage Limits Provider SessionContext",
        "outrider.types.anthropic_blocks": "part_from_anthropic",
        "outrider.types.codec": """
            UnknownPart decode_part decode_parts encode_part encode_parts is_agent_part is_compaction_part
            is_file_part is_patch_part is_reasoning_part is_retry_part is_snapshot_part is_step_finish_part
            is_step_start_part is_subtask_part is_text_part is_tool_part is_tool_result_part is_tool_use_part
            part_from_dict part_types register_part_type validate_part
        """,
        "outrider.types.events": "Event",
        "outrider.types.ids": "new_id",
        "outrider.types.messages": "Message MessageError MessagePath MessageTime",
        "outrider.types.origins": "EgressBudget FlowSettings Origin",
        "outrider.types.parts": """
            AgentPart CacheTokens CompactionPart FilePart FileSource ModelRef Part PartBase PartTime PatchPart
            ReasoningPart ResourceSource RetryPart RetryTime SnapshotPart StepFinishPart StepStartPart SubtaskPart
            SymbolSource TextPart TextRange Tokens ToolPart ToolResultPart ToolUsePart Usage
        """,
        "outrider.types.request": """
            Answer ModelMessage ModelSettings OutputSchema Prompt Request RetryPolicy ToolChoice ToolSpec
        """,
        "outrider.types.tool_state": """
            Attachment EndedTime RunningTime ToolCompleted ToolError ToolPending ToolRunning ToolState
        """,
    },
)
