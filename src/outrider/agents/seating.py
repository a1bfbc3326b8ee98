"""Gives an agent its seat in a session: the tools its mode allows, the way to the other agents, its system prompt."""

from collections.abc import Mapping
from pathlib import Path

from outrider.agents.crew import Crew, Seat, TakeInput
from outrider.agents.delegate import delegate_tools
from outrider.context.instructions import system_prompt
from outrider.context.projection import Projection
from outrider.sessions.journal import Journal
from outrider.tools.tool import Tool
from outrider.types.agents import Agent, Mode
from outrider.types.request import OutputSchema


def take_seat(
    agent: Agent,
    journal: Journal,
    crew: Crew,
    *,
    caller: Seat | None = None,
    call_id: str = "",
    take_input: TakeInput | None = None,
    output: OutputSchema | None = None,
) -> Seat:
    others = [other for other in crew.agents.values() if other.name != agent.name]
    session = journal.session
    seat = Seat(
        agent=agent,
        crew=crew,
        mode=session.mode,
        caller=caller,
        journal=journal,
        projection=Projection(crew.client(agent).family(agent.model)),
        system=system_prompt(agent, others, session.mode, notes=crew.notes, prompts=crew.prompts),
        tools={},
        workspace=Path(session.workspace_directory or "."),
        depth=0 if caller is None else caller.depth + 1,
        ask=(*(caller.ask if caller else ()), *agent.permissions.get("ask", ())),
        deny=(*(caller.deny if caller else ()), *agent.permissions.get("deny", ())),
        call_id=call_id,
        take_input=take_input,
        output=output,
    )
    offered = tools_of(agent, crew.tools, session.mode)
    delegates = delegate_tools(seat, take_seat)
    seat.tools = offered | delegates
    seat.specs = tuple(tool.spec() for tool in (*offered.values(), *(delegates.values() if others else ())))
    return seat


def tools_of(agent: Agent, tools: Mapping[str, Tool], mode: Mode) -> dict[str, Tool]:
    """What a mode leaves of an agent's tools: chat none, plan those that only read or that the gate watches."""
    if mode == "chat":
        return {}
    named = {name: tool for name, tool in tools.items() if agent.tools is None or name in agent.tools}
    if mode != "plan":
        return named
    return {name: tool for name, tool in named.items() if tool.read_only or tool.options.plan}
