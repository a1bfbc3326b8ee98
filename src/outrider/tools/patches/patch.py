"""What a patch asks for, file by file, in whichever form it was written."""

import re
from collections.abc import Callable

from outrider.errors import ToolFailure
from outrider.tools.patches.begin_patch import read_begin_patch
from outrider.tools.patches.unified_diff import read_unified_diff
from outrider.tools.patches.wish import Wish

_FENCE = re.compile(r"\A\s*```[^\n]*\n(?P<inner>.*?)\n```\s*\Z", re.DOTALL)
_HEREDOC = re.compile(r"\A[^\n]*<<-?\s*['\"]?(?P<mark>\w+)['\"]?[^\n]*\n(?P<inner>.*?)\n(?P=mark)\s*\Z", re.DOTALL)


def read_patch(text: str) -> list[Wish]:
    """Raises ToolFailure for what is no patch, or not a whole one: nothing of it is applied then."""
    text = text.replace("\r\n", "\n")
    for wrapping in (_FENCE, _HEREDOC):
        if wrapped := wrapping.match(text):
            text = wrapped["inner"]
    reader: Callable[[list[str]], list[Wish]] = read_begin_patch if "*** Begin Patch" in text else read_unified_diff
    wishes = reader(text.split("\n"))
    if not wishes:
        raise ToolFailure("the patch changes nothing: it holds no `*** Update File:` (or Add, Delete) and no diff")
    return wishes
