"""Gives an agent its seat in a session: the tools its mode allows, the way to the other agents, its system prompt."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from outrider.agents.crew import Crew, Seat, TakeInput
from outrider.agents.delegate import delegate_tools
from outrider.context.instructions import system_prompt
from outrider.context.projection import Projection
from outrider.sessions.journal import Journal
from outrider.tools.tool import Tool
from outrider.types.agents import Agent, Mode
from outrider.types.request import OutputSchema

TASK = "task"
# Models that were taught to write patches; all others were taught to replace text.
PATCHING = ("gpt-4.1", "gpt-5", "codex", "o4-mini")


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
    session = journal.session
    others = [other for other in crew.agents.values() if other.name != agent.name and session.mode != "chat"]
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
    seat.tools = delegates | offered
    said = (*said_to(agent, offered), *(tool for tool in delegates.values() if _is_offered(tool, seat, others)))
    seat.specs = tuple(tool.spec() for tool in said)
    return seat


def _is_offered(delegate: Tool, seat: Seat, others: Sequence[Agent]) -> bool:
    """An agent alone calls nobody, but may give itself tasks; a tool of the user's own goes before ours."""
    if delegate.name != TASK:
        return bool(others)
    wanted = seat.agent.tools is None or TASK in seat.agent.tools
    return wanted and seat.mode != "chat" and TASK not in seat.crew.tools


def said_to(agent: Agent, tools: Mapping[str, Tool]) -> list[Tool]:
    """The tools that a model is told of: every word about one travels with every request. Of two ways to change a file
    it hears of the one that it was taught, and a shell lists folders. What is left unsaid works all the same."""
    taught, other = ("apply_patch", "edit") if _patches(agent.model) else ("edit", "apply_patch")
    unsaid = {other if taught in tools else "", "list" if "shell" in tools else ""}
    return [tool for name, tool in tools.items() if agent.tools is not None or name not in unsaid]


def _patches(model: str) -> bool:
    return any(mark in model.lower() for mark in PATCHING)


def tools_of(agent: Agent, tools: Mapping[str, Tool], mode: Mode) -> dict[str, Tool]:
    """What a mode leaves of an agent's tools: chat none, plan those that only read or that the gate watches."""
    if mode == "chat":
        return {}
    named = {name: tool for name, tool in tools.items() if agent.tools is None or name in agent.tools}
    if mode != "plan":
        return named
    return {name: tool for name, tool in named.items() if tool.read_only or tool.options.plan}
