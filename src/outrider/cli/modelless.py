"""Settings for work that asks no model: it goes on where no provider is set up."""

import msgspec

from outrider.app.config.settings import Settings
from outrider.types.agents import Provider

_NOBODY = Provider("nobody", "scripted", options={"script": []})


def modelless(settings: Settings) -> Settings:
    agents = tuple(msgspec.structs.replace(agent, provider=_NOBODY.name, model="nobody") for agent in settings.agents)
    return msgspec.structs.replace(settings, agents=agents, providers=(_NOBODY,), missing="")
