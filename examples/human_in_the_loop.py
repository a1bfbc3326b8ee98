"""A call that a person must allow. The question is stored: it can be answered by another process, tomorrow."""

import asyncio
import tempfile
from pathlib import Path

from outrider import Agent, Engine, Provider, Tool
from outrider.events import ToolApprovalRequestedEvent
from outrider.stores import SqliteStore


@Tool(read_only=True)
def temperature(city: str) -> str:
    """Return the temperature of a city."""
    return f"20 °C in {city}"


@Tool(policy="ask")
def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


agent = Agent("assistant", "You help with the weather and with mails.", model="demo", provider="demo")
tools = [temperature, send_mail]


async def ask(file: Path, provider: Provider) -> str:
    """Run until a person is needed, then stop the program."""
    async with SqliteStore(file) as store, Engine([agent], [provider], tools, store=store) as engine:
        session_id = await engine.create(owner="ada")
        events = engine.events(session_id)
        await engine.put(session_id, "Mail the temperature of Oakland to Bob.")
        while not isinstance(await anext(events), ToolApprovalRequestedEvent):
            pass
        return session_id


async def decide(file: Path, session_id: str, provider: Provider, *, allow: bool) -> str:
    """Answer the open questions in another process, and continue."""
    async with SqliteStore(file) as store, Engine([agent], [provider], tools, store=store) as engine:
        for question in await engine.approvals(session_id):
            print(f"{question.tool} {question.input}: {'yes' if allow else 'no'}")
            await engine.answer(question.id, allow=allow)
        return (await engine.go_on(session_id)).output


if __name__ == "__main__":
    file = Path(tempfile.mkdtemp()) / "sessions.db"
    mail = {"to": "bob@example.org", "text": "20 °C"}
    first = [{"tool": "temperature", "input": {"city": "Oakland"}}, {"tool": "send_mail", "input": mail}]
    session = asyncio.run(ask(file, Provider("demo", kind="scripted", options={"script": first})))
    later = Provider("demo", kind="scripted", options={"script": ["Bob has the mail."]})
    print(asyncio.run(decide(file, session, later, allow=True)))
