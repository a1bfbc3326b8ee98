"""An engine of a server, as screens hold it."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from outrider.app.config.settings import Settings
from outrider.app.inputs.questions import AskedQuestion
from outrider.app.remote.archive import RemoteArchive
from outrider.app.remote.commands import run_there
from outrider.app.remote.engine import RemoteEngine
from outrider.app.remote.feeds.held import path_of
from outrider.processes.supervised import ProcessStatus
from outrider.types.parts import ModelRef


class _Done(msgspec.Struct, frozen=True):
    done: bool


class RemoteBridge:
    """With `folder`, a folder of the server's machine, new sessions work there. Agents and modes are the server's."""

    def __init__(self, engine: RemoteEngine, settings: Settings, folder: Path | None = None) -> None:
        first = engine.agents[0]
        own = {"agents": tuple(engine.agents), "mode": first.mode, "model": f"{first.provider}/{first.model}"}
        self.engine = engine
        self.settings = msgspec.structs.replace(settings, **own, providers=())
        self.archive = RemoteArchive(engine.client)
        self.folder = folder

    @property
    def providers(self) -> Sequence[str]:
        return list(dict.fromkeys(agent.provider for agent in self.engine.agents))

    async def models(self) -> Sequence[str]:
        return await self.engine.client.get("/api/models", list[str])

    def context_limit(self, session_id: str, model: ModelRef) -> int | None:
        """As the server said it of the model that answers there."""
        held = self.engine.live.get(session_id)
        return held.standing.context_limit if held else None

    async def processes(self, session_id: str) -> Sequence[ProcessStatus]:
        path = f"{path_of(session_id)}/processes"
        found: list[ProcessStatus] = await self.engine.client.get(path, list[ProcessStatus])
        return [one for one in found if one.backgrounded]

    async def end_process(self, session_id: str, process_id: str) -> bool:
        path = f"{path_of(session_id)}/processes/{process_id}/kill"
        return (await self.engine.client.post(path, None, _Done)).done

    async def run_by_hand(self, session_id: str, command: str, on_output: Callable[[str], object]) -> str:
        return await run_there(self.engine.client, session_id, command, on_output)

    async def questions(self, session_id: str) -> Sequence[AskedQuestion]:
        return await self.engine.client.get("/api/questions", list[AskedQuestion], session_id=session_id)

    async def answer_question(self, question_id: str, answers: Sequence[str]) -> None:
        await self.engine.client.ask("POST", f"/api/questions/{question_id}", {"answers": answers})

    async def revoke(self, approval_id: str) -> None:
        await self.archive.revoke(approval_id)
