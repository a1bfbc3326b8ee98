"""Commands that choose: the mode, the model, the agent, the look."""

from typing import get_args

from outrider.tui.commands.stage import Stage
from outrider.tui.looks import Look
from outrider.tui.widgets.picker import Item
from outrider.types.agents import Mode
from outrider.types.parts import ModelRef

MODES: dict[Mode, str] = {
    "chat": "talks only; no tools",
    "plan": "reads and looks around, changes nothing, ends with a plan",
    "agent": "works, and asks before it changes or runs something",
    "background": "works without asking, inside a sandbox",
}

_NEXT: dict[Mode, Mode] = {"agent": "plan", "plan": "chat", "chat": "agent", "background": "agent"}


async def mode(stage: Stage, name: str) -> None:
    wanted = name or await stage.pick("Mode", [Item(mode, mode, note) for mode, note in MODES.items()], stage.helm.mode)
    for known in get_args(Mode):
        if known == wanted:
            await stage.helm.set_mode(known)
            stage.redraw()
            return
    if wanted:
        stage.tell(f"no mode is called {wanted}; there are {', '.join(MODES)}", "warn")


def next_mode(current: Mode) -> Mode:
    """What a key leads to. Work without questions is chosen by its name, not by one press too many."""
    return _NEXT[current]


async def model(stage: Stage, name: str) -> None:
    helm = stage.helm
    current = f"{helm.model.provider}/{helm.model.model}"
    chosen = name or await stage.pick("Model", await _models(stage, current), current)
    if not chosen:
        return
    provider, _, rest = chosen.partition("/")
    known = helm.bridge.providers
    if provider not in known or not rest:
        stage.tell(f"write PROVIDER/MODEL, with a provider of: {', '.join(known)}", "warn")
        return
    await helm.set_model(ModelRef(provider, rest))
    stage.redraw()


async def agents(stage: Stage, name: str) -> None:
    helm = stage.helm
    items = [
        Item(agent.name, agent.name, agent.role or f"{agent.provider}/{agent.model}") for agent in helm.settings.agents
    ]
    chosen = name or await stage.pick("Agent", items, helm.agent)
    if chosen and chosen in helm.agents():
        await helm.set_agent(chosen)
        stage.redraw()
    elif chosen:
        stage.tell(f"no agent is called {chosen}; there are {', '.join(helm.agents())}", "warn")


async def theme(stage: Stage, name: str) -> None:
    for look in get_args(Look):
        if look == name:
            stage.switch_look(look)
            return
    if name:
        stage.tell(f"no look is called {name}; there are {', '.join(get_args(Look))}", "warn")
    else:
        stage.switch_look(None)


async def _models(stage: Stage, current: str) -> list[Item]:
    """Those in use first, then all that are listed for the providers that can be reached."""
    helm = stage.helm
    used = [f"{agent.provider}/{agent.model}" for agent in helm.settings.agents]
    return [Item(name, name) for name in dict.fromkeys((current, *used, *await helm.bridge.models()))]
