"""Product: a research team with a budget. A chief plans, readers work at the same time, an editor writes the report.

    EXAMPLE_MODEL=anthropic/claude-sonnet-4-5 python examples/research_team.py 'heat pumps' sources/
    python examples/research_team.py                             # a demonstration

One budget limits all agents together. If it is exhausted, the report says so and has what was found until then."""

import sys
import tempfile
from decimal import Decimal
from pathlib import Path

from example_model import choose_model

from outrider import Agent, Limits, Provider, Request, RunResult, Tool, ToolContext, ToolFailure, ToolResultPart, run


def answer_reader(request: Request) -> object:
    """Read a source, then report what it says."""
    last = request.prompt[-1].content[-1]
    if isinstance(last, ToolResultPart):
        return f"It says: {last.content}"
    name = "one.txt" if "one.txt" in str(last) else "two.txt"
    return {"tool": "read_source", "input": {"name": name}}


LIMITS = Limits(turns=40, tokens=200_000, seconds=900, depth=3)
DEMO = {
    "chief": [
        [
            {"tool": "call_agent", "input": {"agent_name": "reader", "message": f"What does {name} say about cost?"}}
            for name in ("one.txt", "two.txt")
        ],
        {"tool": "call_agent", "input": {"agent_name": "editor", "message": "one: 9000; two: 11000. Write it."}},
        "# Heat pumps\nThey cost 9,000 to 11,000 [one.txt, two.txt].",
    ],
    "reader": answer_reader,
    "editor": ["Heat pumps cost 9,000 to 11,000."],
}


@Tool(read_only=True)
def list_sources(context: ToolContext[Path]) -> str:
    """Return the names of all sources."""
    return "\n".join(sorted(path.name for path in context.deps.iterdir() if path.is_file()))


@Tool(read_only=True)
def read_source(context: ToolContext[Path], name: str) -> str:
    """Return the text of a source, at most 20,000 characters."""
    path = (context.deps / name).resolve()
    if path.parent != context.deps.resolve() or not path.is_file():
        raise ToolFailure(f"there is no source {name}; list_sources has all names")
    return path.read_text(encoding="utf-8", errors="replace")[:20_000]


def research(topic: str, sources: Path) -> RunResult[str]:
    providers, models = make_models()
    team = [
        Agent(
            name,
            instructions,
            model=models[name],
            provider=name,
            role=role,
            tools=tools,
            max_output_tokens=4_000,
        )
        for name, role, instructions, tools in (
            ("chief", "plans", "Split the topic, ask readers at once, then the editor. Cite.", ("list_sources",)),
            ("reader", "reads sources", "Read one source and answer with its facts only.", ("read_source",)),
            ("editor", "writes reports", "Write a short report with citations.", ()),
        )
    ]
    return run(
        team[0],
        f"Report on {topic}.",
        team,
        tools=[list_sources, read_source],
        providers=providers,
        deps=sources,
        limits=LIMITS,
    )


def make_models() -> tuple[list[Provider], dict[str, str]]:
    """Return one provider for each agent and the names of their models."""
    chosen, model = choose_model([])
    if chosen.kind != "scripted":
        providers = [Provider(name, kind=chosen.kind) for name in DEMO]
        return providers, dict.fromkeys(DEMO, model)
    providers = [Provider(name, kind="scripted", options={"script": script}) for name, script in DEMO.items()]
    return providers, dict.fromkeys(DEMO, "demo")


def main() -> None:
    if len(sys.argv) == 3:
        topic, sources = sys.argv[1], Path(sys.argv[2])
    else:
        topic, sources = "heat pumps", Path(tempfile.mkdtemp())
        (sources / "one.txt").write_text("A heat pump costs 9000.", encoding="utf-8")
        (sources / "two.txt").write_text("A heat pump costs 11000.", encoding="utf-8")
    result = research(topic, sources)
    for message in result.messages[1:-1]:
        print(f"{message.sender} → {message.receiver}: {message.content}")
    print(result.text)
    print(f"{result.usage.tokens.total} tokens, {result.usage.total_cost or Decimal(0)} dollars")
    if result.limit:
        print(f"the budget is exhausted: {result.limit}")


if __name__ == "__main__":
    main()
