"""What the environment says about the terminal."""

import os
from collections.abc import Mapping

_LIGHT = {"7", "15"}  # the two whites among the sixteen colours


def has_light_background(environ: Mapping[str, str] = os.environ) -> bool:
    """By COLORFGBG, which many terminals set; dark where nothing is said."""
    return environ.get("COLORFGBG", "").rpartition(";")[2] in _LIGHT
