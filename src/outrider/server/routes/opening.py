"""A session as somebody holds it who works in it: opened here, with how it stands and which model answers."""

import msgspec

from outrider.app.engine import Engine
from outrider.app.views.models import context_limit
from outrider.app.views.sessions import was_cut_off
from outrider.server.endpoint import Asked, Endpoint, Nothing
from outrider.server.routes.sessions import ONE
from outrider.types.parts import ModelRef


class Opening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`take_over` ends what another process does in the session."""

    take_over: bool = False


class ChosenModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As PROVIDER/MODEL, until the session is closed; empty for the agent's own."""

    model: str = ""


class OpenedSession(msgspec.Struct, frozen=True):
    """`busy` while a turn is under way; `broke_off` where the last one has no end of its own. `context_limit` is how
    many tokens the model holds, where that is known."""

    busy: bool
    broke_off: bool
    model: str
    context_limit: int | None = None


async def open_session(asked: Asked[Nothing, Opening]) -> OpenedSession:
    await asked.engine.open(asked.path["session_id"], take_over=asked.body.take_over)
    return _standing(asked.engine, asked.path["session_id"])


async def choose_model(asked: Asked[Nothing, ChosenModel]) -> OpenedSession:
    await asked.engine.open(asked.path["session_id"])
    live = asked.engine.live[asked.path["session_id"]]
    await live.use_model(_model_of(asked))
    return _standing(asked.engine, live.session.id)


def _model_of(asked: Asked[Nothing, ChosenModel]) -> ModelRef | None:
    provider, _, model = asked.body.model.partition("/")
    known = asked.engine.staff.plan.providers
    if asked.body.model and (provider not in known or not model):
        raise ValueError(f"write PROVIDER/MODEL, with a provider of: {', '.join(known)}")
    return ModelRef(provider, model) if model else None


def _standing(engine: Engine, session_id: str) -> OpenedSession:
    live = engine.live[session_id]
    agent = live.agent
    limit = context_limit(engine.staff.plan.providers.values(), ModelRef(agent.provider, agent.model))
    return OpenedSession(live.in_turn, was_cut_off(live.session), f"{agent.provider}/{agent.model}", limit)


OPENING = (
    Endpoint(method="POST", path=f"{ONE}/open", name="open_session", summary="Work in a session; how it stands",
             answer=open_session, body=Opening, gives=OpenedSession),
    Endpoint(method="POST", path=f"{ONE}/model", name="choose_model", summary="The model that answers from now on",
             answer=choose_model, body=ChosenModel, gives=OpenedSession),
)  # fmt: skip
