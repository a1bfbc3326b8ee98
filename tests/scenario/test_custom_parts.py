"""Parts of kinds that a program registers: stored, exported, shown by every front end and sent to models."""

import json
from pathlib import Path
from typing import Any

import pytest

from outrider import Agent, Engine, PartBase, new_id, register_part_type
from outrider.presentation.item_views import part_view
from outrider.presentation.items import message_items
from outrider.stores import SqliteStore
from outrider.testing import Simulator
from outrider.types.codec import AnyPart


class RatingPart(PartBase, tag_field="type", tag="test_rating"):
    stars: int = 0

    def to_api_format(self) -> dict[str, Any]:
        if self.stars < 0:
            raise RuntimeError("no such rating")
        return {"type": "text", "text": f"The user gives {self.stars} stars."}


class PlainNote:
    """A plain class, without the base class of parts."""

    type = "test_note"

    def __init__(self, note: str, id: str = "") -> None:
        self.note = note
        self.id = id or new_id()
        self.session_id = self.message_id = ""

    def to_dict(self) -> dict[str, Any]:
        owners = {"session_id": self.session_id, "message_id": self.message_id}
        return {"type": "test_note", "id": self.id, "note": self.note, **owners}

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "PlainNote":
        return cls(value["note"], value["id"])

    def to_api_format(self) -> dict[str, Any]:
        return {"type": "text", "text": f"Note: {self.note}"}


class BookmarkPart(PartBase, tag_field="type", tag="test_bookmark"):
    """A part that no model sees."""

    page: int = 0


for name, kind in (("test_rating", RatingPart), ("test_note", PlainNote), ("test_bookmark", BookmarkPart)):
    register_part_type(name, kind)
MODELS = {"anthropic": "claude-opus-4-6", "openai": "gpt-5", "openai-responses": "gpt-5", "google": "gemini-3-pro"}


@pytest.mark.parametrize("api", list(MODELS))
async def test_a_part_of_the_program_is_stored_exported_shown_and_sent(api: Any, tmp_path: Path):
    parts: list[Any] = ["Hi", RatingPart(stars=4), PlainNote("remember"), BookmarkPart(page=7), RatingPart(stars=-1)]
    async with Simulator(lambda _: "ok") as simulator:
        agent = Agent("helper", "You help.", model=MODELS[api], provider="simulator")
        for turn in range(2):
            async with (
                SqliteStore(tmp_path / "s.db") as store,
                Engine([agent], [simulator.provider(api)], store=store) as engine,
            ):
                session_id = await engine.create() if turn == 0 else (await engine.list())[0].id
                assert (await engine.prompt(session_id, parts if turn == 0 else "again")).output == "ok"
                message = (await engine.open(session_id)).messages[0]
                page, document = await engine.share(session_id), await engine.export(session_id)
                copy = await engine.open(await engine.import_session(document))
            sent = json.dumps(simulator.requests[turn].body)
            assert "The user gives 4 stars." in sent
            assert "Note: remember" in sent
            assert "bookmark" not in sent
        simulator.check()
    kinds = ["TextPart", "RatingPart", "PlainNote", "BookmarkPart", "RatingPart"]
    assert [type(part).__name__ for part in message.parts] == kinds
    assert [type(part).__name__ for part in copy.messages[0].parts] == kinds
    assert "The user gives 4 stars." in page
    assert "Note: remember" in page
    shown = [getattr(item, "text", "") for item in message_items(message)]
    assert shown == ["Hi", "The user gives 4 stars.", "Note: remember", "test_bookmark", "test_rating"]
    views: list[AnyPart] = list(message.parts[1:])
    assert [view.subject for part in views if (view := part_view(part)) is not None] == shown[1:]
