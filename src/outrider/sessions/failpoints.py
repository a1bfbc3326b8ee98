"""Named points at which a test can kill the process. Without a test a failpoint costs one string comparison."""

import itertools
import os
import signal

_wanted, _, _count = os.environ.get("OUTRIDER_FAULT", "").partition("@")
_last = int(_count or 1)
_visits = itertools.count(1)


def failpoint(point: str) -> None:
    """Kills the process with SIGKILL if the environment asks for it: `OUTRIDER_FAULT=FP-name@3`, at the third visit."""
    if point == _wanted and next(_visits) == _last:
        os.kill(os.getpid(), signal.SIGKILL)
