"""The model of an example: predefined answers, or a real model named by the variable EXAMPLE_MODEL."""

import os
from typing import Any

from outrider import Provider


def choose_model(script: list[Any]) -> tuple[Provider, str]:
    """Return a provider and the name of its model. EXAMPLE_MODEL=anthropic/claude-sonnet-4-5 uses that model, with the
    key of the vendor's environment variable; `openai-responses/…`, `google/…` and `local/…` work too."""
    kind, _, model = os.environ.get("EXAMPLE_MODEL", "").partition("/")
    if model:
        return Provider("model", kind=kind), model  # type: ignore[arg-type]
    return Provider("model", kind="scripted", options={"script": script}), "demo"
