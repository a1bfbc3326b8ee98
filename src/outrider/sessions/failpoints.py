"""Named points at which a test may kill the process; they cost one comparison when nobody asks for a fault."""

import itertools
import os
import signal

_wanted, _, _count = os.environ.get("OUTRIDER_FAULT", "").partition("@")
_last = int(_count or 1)
_visits = itertools.count(1)


def failpoint(point: str) -> None:
    """`OUTRIDER_FAULT=FP-name@3` kills this process the third time that it reaches FP-name."""
    if point == _wanted and next(_visits) == _last:
        os.kill(os.getpid(), signal.SIGKILL)
