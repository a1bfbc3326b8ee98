"""What the user may choose in an editor: the mode of a session, its model and its agent."""

from typing import get_args

from acp.schema import SessionConfigOptionSelect, SessionConfigSelectOption, SessionMode, SessionModeState

from outrider.acp.telling.texts import valid
from outrider.app.config.settings import Settings
from outrider.app.engine import Engine
from outrider.app.views.models import models_of
from outrider.errors import ConfigurationError
from outrider.types.agents import Mode
from outrider.types.parts import ModelRef

MODES: dict[Mode, str] = {
    "chat": "talks only; no tools",
    "plan": "reads and looks around, changes nothing, ends with a plan",
    "agent": "works, and asks before it changes or runs something",
    "background": "works without asking, inside a sandbox",
}


class Choices:
    """Of one open session."""

    def __init__(self, session_id: str, engine: Engine, settings: Settings) -> None:
        self._session_id = session_id
        self._engine = engine
        self._settings = settings

    @property
    def mode(self) -> Mode:
        return self._engine.live[self._session_id].journal.session.mode

    def modes(self) -> SessionModeState:
        available = [SessionMode(id=mode, name=mode.capitalize(), description=note) for mode, note in MODES.items()]
        return SessionModeState(current_mode_id=self.mode, available_modes=available)

    def options(self) -> list[SessionConfigOptionSelect]:
        """Modes once more, for clients that know options only, and what has no place of its own."""
        live = self._engine.live[self._session_id]
        model = f"{live.agent.provider}/{live.agent.model}"
        return [
            _select("mode", "Mode", self.mode, {mode: mode.capitalize() for mode in MODES}, category="mode"),
            _select("model", "Model", model, {name: name for name in self._models(model)}, category="model"),
            _select("agent", "Agent", live.agent.name, {agent.name: agent.name for agent in self._settings.agents}),
        ]

    async def choose(self, option: str, value: str) -> None:
        """Raises ConfigurationError for what cannot be chosen, with what can."""
        match option:
            case "mode":
                await self.set_mode(value)
            case "model":
                self._set_model(value)
            case "agent":
                await self._engine.set_agent(self._session_id, value)
                self._engine.live[self._session_id].model = None
            case _:
                raise ConfigurationError(f"there is no option {option!r}; there are mode, model and agent")

    async def set_mode(self, wanted: str) -> None:
        for mode in get_args(Mode):
            if mode == wanted:
                await self._engine.set_mode(self._session_id, mode)
                return
        raise ConfigurationError(f"no mode is called {wanted!r}; there are {', '.join(MODES)}")

    def _set_model(self, wanted: str) -> None:
        provider, _, model = wanted.partition("/")
        known = [found.name for found in self._settings.providers]
        if provider not in known or not model:
            raise ConfigurationError(f"no model is called {wanted!r}; write PROVIDER/MODEL, with one of {known}")
        self._engine.live[self._session_id].model = ModelRef(provider, model)

    def _models(self, current: str) -> list[str]:
        used = [f"{agent.provider}/{agent.model}" for agent in self._settings.agents]
        listed = [f"{found.provider}/{found.model}" for found in models_of(self._settings.providers)]
        return list(dict.fromkeys((current, *used, *listed)))


def _select(
    name: str, title: str, current: str, values: dict[str, str], category: str | None = None
) -> SessionConfigOptionSelect:
    options = [SessionConfigSelectOption(value=valid(value), name=valid(label)) for value, label in values.items()]
    return SessionConfigOptionSelect(
        type="select",
        id=name,
        name=title,
        category=category,  # type: ignore[arg-type]  the words of our own tables are among the known ones
        current_value=valid(current),
        options=options,
    )
