"""What an engine needs to take work for later: somebody who keeps runs, and sees to it that they are carried on."""

from typing import Any, Protocol

from outrider.errors import ConfigurationError


class Submits(Protocol):
    """`outrider.Background` is one."""

    async def submit(self, prompt: str, **order: Any) -> Any: ...


class Submitting:
    """The side of an engine that knows runs. Who keeps them comes from above, so that an engine does without."""

    background: Submits | None = None

    async def submit(self, prompt: str, **order: Any) -> Any:
        """Work for later, kept before this returns; gives a `RunHandle`. It needs an open `Background(engine, …)`,
        whose `submit` says what else may be ordered."""
        if self.background is None:
            raise ConfigurationError("nobody keeps runs for this engine; open outrider.Background(engine, database)")
        return await self.background.submit(prompt, **order)
