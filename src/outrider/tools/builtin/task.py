"""The `task` tool: delegates work to another agent with a separate context."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated

from outrider.errors import ToolFailure
from outrider.tools.definitions import argument_aliases, load_prompt
from outrider.tools.tool import Tool, ToolContext, ToolResult

RunTask = Callable[[str, str, str, ToolContext], Awaitable[str]]
"""Callback that runs an agent (name, description, prompt, context) as a child of the call and returns its answer."""

ALIASES = {"subagent_type": "agent", "agent_name": "agent", "subagent": "agent", "message": "prompt", "task": "prompt"}


def task_tool(agents: Mapping[str, str], run_task: RunTask) -> Tool:
    """Returns the tool. `agents` maps names to descriptions; the first is the default if the model names none."""
    names = list(agents)

    async def task(
        description: Annotated[str, "three to five words"],
        prompt: Annotated[str, "all it needs, and what to answer"],
        context: ToolContext,
        agent: str = "",
    ) -> ToolResult:
        chosen = agent or (names[0] if names else "")
        if chosen not in agents:
            raise ToolFailure(f"there is no agent called {agent!r}; the agents are: {', '.join(names) or 'none'}")
        if not prompt.strip():
            raise ToolFailure("`prompt` is empty; the agent knows only what it says")
        answer = await run_task(chosen, description, prompt, context)
        return ToolResult(answer, title=description[:100], metadata={"agent": chosen})

    is_single = len(agents) == 1  # its name need not be chosen
    listed = "\n".join(f"- {name}: {purpose}" for name, purpose in agents.items())
    alone = f"an agent ({next(iter(agents.values()), '')}); you get its answer."
    choice = f"an agent that sees only your prompt; you get its answer. Agents:\n{listed}"
    description = load_prompt(__file__, "task", agents=alone if is_single else choice)
    return Tool(
        task,
        description=description,
        preprocess_args=argument_aliases(ALIASES),
        delegates=True,
        unsaid=("agent",) if is_single else (),
    )
