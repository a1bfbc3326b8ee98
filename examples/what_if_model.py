"""What if another model had answered? A session is copied and run again from one of its steps; its cost is compared."""

import asyncio
import tempfile

from outrider import Agent, Engine, Provider, Tool, replay, what_if


@Tool(read_only=True)
def weather(place: str) -> str:
    """Return the weather of a place."""
    return "rain"


async def main() -> None:
    script = [{"tool": "weather", "input": {"place": "Ulm"}}, "Take an umbrella."]
    first = Provider("first", kind="scripted", options={"script": script})
    second = Provider("second", kind="scripted", options={"script": ["Take a hat."]})
    adviser = Agent("adviser", "You advise.", model="large", provider="first")
    async with Engine([adviser], [first, second], [weather], cassettes=tempfile.mkdtemp()) as engine:
        session = await engine.create()
        print((await engine.prompt(session, "Ulm today?")).output)
        (await replay(engine, session)).check()  # offline, from the recorded answers; raises if anything differs
        other = await what_if(engine, session, at_step=1, model="second/small")
        print(other.text())


if __name__ == "__main__":
    asyncio.run(main())
