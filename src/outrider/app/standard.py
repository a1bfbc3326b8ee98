"""The engine that every front end opens: the user's settings, a store on disk, the built-in tools and a sandbox."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from outrider.app.approvals.gate import Rules
from outrider.app.config.folders import make_private
from outrider.app.config.settings import Settings
from outrider.app.engine import Engine
from outrider.app.toolbox import Surroundings
from outrider.app.workspace.confinement import FoundSandbox
from outrider.bus import EventBus
from outrider.errors import ConfigurationError
from outrider.sessions.sqlite_store import SqliteStore
from outrider.tools.builtin.question import Ask


@asynccontextmanager
async def standard_engine(
    settings: Settings, *, workspace: Path, attended: bool, bus: EventBus | None = None, ask: Ask | None = None
) -> AsyncGenerator[Engine, None]:
    """`attended` says whether somebody is there to approve calls, `ask` puts the model's questions to them.
    Raises ConfigurationError where no model can be reached, with the ways to get one."""
    if settings.missing:
        raise ConfigurationError(settings.missing)
    data = make_private(settings.data)
    bus = bus or EventBus()
    around = Surroundings(
        sandbox=FoundSandbox(data / "scratch", os.environ.get("PATH", "")),
        data=data,
        home=settings.home,
        bus=bus,
        ask=ask,
    )
    async with SqliteStore(settings.folders.store) as store:
        engine = Engine(
            settings.agents,
            settings.providers,
            store=store,
            bus=bus,
            attended=attended,
            limits=settings.limits,
            rules=Rules(settings.rules.allow, settings.rules.ask, settings.rules.deny),
            surroundings=around,
        )
        async with engine:
            yield engine
