"""Hands a piece of work to another agent, which has a context of its own."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated

from outrider.errors import ToolFailure
from outrider.tools.context import ToolContext
from outrider.tools.tool import Tool, ToolResult, argument_aliases, prompt_beside

RunTask = Callable[[str, str, str, ToolContext], Awaitable[str]]
"""Runs the agent of that name with a short description and a prompt, as a child of the call; its answer."""

ALIASES = {"subagent_type": "agent", "agent_name": "agent", "subagent": "agent", "message": "prompt", "task": "prompt"}


def task_tool(agents: Mapping[str, str], run_task: RunTask) -> Tool:
    """`agents` are names and what each is good at; the first is taken when the model names none."""
    names = list(agents)

    async def task(
        description: Annotated[str, "three to five words"],
        prompt: Annotated[str, "all it needs to know, and what to answer"],
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

    listed = "\n".join(f"- {name}: {words}" for name, words in agents.items())
    description = prompt_beside(__file__, agents=listed)
    return Tool(task, description=description, preprocess_args=argument_aliases(ALIASES), delegates=True)
