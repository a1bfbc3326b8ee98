"""A store of the program: it delegates to another one and writes every change to an audit log first."""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider import Agent, Engine, Provider
from outrider.stores import SqliteStore


class AuditedStore(SqliteStore):
    """A SQLite store that appends one JSON line for each change. A class with all methods of `Store` works too;
    `outrider.testing.check_store` checks it."""

    def __init__(self, path: Path, log: Path) -> None:
        super().__init__(path)
        self._log = log

    async def append(self, session_id: str, values: Sequence[Any], **options: Any) -> int:
        with self._log.open("a", encoding="utf-8") as file:
            for value in values:
                file.write(json.dumps({"session": session_id, "id": value.id, "kind": type(value).__name__}) + "\n")
        return await super().append(session_id, values, **options)


async def main() -> None:
    folder = Path(tempfile.mkdtemp())
    model = Provider("demo", kind="scripted", options={"script": ["Hello."]})
    helper = Agent("helper", "You help.", model="demo", provider="demo")
    store = AuditedStore(folder / "sessions.db", folder / "audit.jsonl")
    async with store, Engine([helper], [model], store=store) as engine:
        session = await engine.create()
        print((await engine.prompt(session, "Hi!")).output)
    for line in (folder / "audit.jsonl").read_text(encoding="utf-8").splitlines():
        print(json.loads(line)["kind"])


if __name__ == "__main__":
    asyncio.run(main())
