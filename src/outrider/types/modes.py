"""The names of the modes and what front ends say about them; `permissions/modes.py` defines their rights."""

from typing import Literal, get_args

Mode = Literal["chat", "plan", "agent", "background"]
MODES: tuple[Mode, ...] = get_args(Mode)  # the mode with the fewest rights first
UNATTENDED_MODES: tuple[Mode, ...] = ("background",)  # never ask for an approval
MODE_DESCRIPTIONS: dict[Mode, str] = {
    "chat": "conversation only, no tools",
    "plan": "reads files, changes nothing, ends with a plan",
    "agent": "asks before it changes files or runs commands",
    "background": "works without asking, inside a sandbox",
}
