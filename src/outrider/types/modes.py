"""Modes and approval levels; `permissions/modes.py` defines the rights of the modes. The command line reads them for
`--help`, so nothing heavy is imported here."""

from typing import Literal, get_args

Mode = Literal["chat", "plan", "agent", "background"]
MODES: tuple[Mode, ...] = get_args(Mode)  # the mode with the fewest rights first
UNATTENDED_MODES: tuple[Mode, ...] = ("background",)  # never ask for an approval
MODE_DESCRIPTIONS: dict[Mode, str] = {
    "chat": "conversation only, no tools",
    "plan": "reads files, changes nothing, ends with a plan",
    "agent": "runs commands in a sandbox and asks about what they change",
    "background": "works without asking, inside a sandbox",
}

ApprovalLevel = Literal["ask", "edits", "auto"]
"""What agent mode asks about."""
APPROVAL_LEVELS: tuple[ApprovalLevel, ...] = get_args(ApprovalLevel)  # the strictest first
APPROVAL_DESCRIPTIONS: dict[ApprovalLevel, str] = {
    "ask": "edits, what a command changed, and the network",
    "edits": "the network, paths outside the workspace and protected files; changes are applied, with undo",
    "auto": "only what leaves the sandbox, and protected files",
}

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
REASONING_EFFORTS: tuple[ReasoningEffort, ...] = get_args(ReasoningEffort)

VendorTool = Literal["web_search", "code_execution"]
"""Tools that the vendor of a model runs itself."""
