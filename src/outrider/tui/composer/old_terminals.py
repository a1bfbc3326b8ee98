"""Alt+Enter of terminals that know the old encoding only: Escape and Enter, which Textual takes for Enter alone."""

from typing import Any, cast

from textual import _ansi_sequences as sequences
from textual.keys import Keys

_ALT_ENTER = "\x1b\r"


def tell_alt_enter_from_enter() -> None:
    """Enter sends, so taking one for the other would send half a message. Both become Ctrl+J, a new line."""
    known = cast("dict[str, Any]", sequences.ANSI_SEQUENCES_KEYS)
    known.setdefault(_ALT_ENTER, (Keys.ControlJ,))
