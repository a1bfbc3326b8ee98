"""The standard engine with a scripted model: the user's own folder, a workspace, and what was asked of the model."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from outrider import Engine, EventBus, Provider
from outrider.app.config.settings import Flags, Settings, read_settings
from outrider.app.standard import standard_engine
from outrider.types.request import Request


class Place:
    """A user and a workspace; `requests` are what the model was sent."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "user"
        self.own = self.home / "outrider"
        self.workspace = folder / "workspace"
        for made in (self.home, self.own, self.workspace):
            made.mkdir(parents=True, exist_ok=True)
        self.requests: list[Request] = []

    @property
    def environ(self) -> dict[str, str]:
        return {"HOME": str(self.home), "OUTRIDER_HOME": str(self.own), "ANTHROPIC_API_KEY": "sk-ant-of-the-user"}

    def settings(self, cwd: Path | None = None, **flags: Any) -> Settings:
        return read_settings(cwd=cwd or self.workspace, environ=self.environ, flags=Flags(**flags))

    @asynccontextmanager
    async def engine(
        self,
        script: Iterable[Any],
        *,
        attended: bool = False,
        bus: EventBus | None = None,
        cwd: Path | None = None,
        **flags: Any,
    ) -> AsyncIterator[Engine]:
        """As a front end opens it, except that the answers are written down."""
        settings = self.settings(cwd, **flags)
        scripted = Provider("anthropic", "scripted", options={"script": self._noting(script)})
        settings = msgspec.structs.replace(settings, providers=(scripted,))
        workspace = cwd or self.workspace
        async with standard_engine(settings, workspace=workspace, attended=attended, bus=bus) as engine:
            yield engine

    def _noting(self, script: Iterable[Any]) -> Callable[[Request], Any]:
        answers = iter(script)

        def answer(request: Request) -> Any:
            self.requests.append(request)
            return next(answers, "done")

        return answer
