"""A complete start with the embedded model (settings, engine, weights, prompt); prints the time of the first text.

python -m benchmarks.local_start WORKSPACE MODEL
"""

import asyncio
import sys
import time
from pathlib import Path

from outrider.config.settings import CommandFlags, read_settings
from outrider.engine.factory import standard_engine
from outrider.event_bus import EventBus
from outrider.types.events import PartDeltaEvent


async def main(workspace: str, model: str) -> None:
    bus, texts = EventBus(), list[float]()
    bus.subscribe(PartDeltaEvent, lambda _: texts.append(time.time()))
    settings = read_settings(cwd=workspace, flags=CommandFlags(model=model))
    async with standard_engine(settings, workspace=Path(workspace), attended=False, bus=bus) as engine:
        session = await engine.create(workspace=workspace)
        await engine.prompt(session, "Hello!")
    print(texts[0])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
